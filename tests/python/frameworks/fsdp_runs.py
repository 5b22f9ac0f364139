"""FSDP2 with torch.distributed.checkpoint, which keeps the loader's state beside the model's."""

import os
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import common

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
RANK, PORT, FOLDER = common.arguments()
report = common.Report(RANK)


class Training:
    """Model and optimizer, as torch.distributed.checkpoint saves them."""

    def __init__(self, is_sharded):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(common.FEATURES, 4), torch.nn.Linear(4, 1))
        if is_sharded:
            for layer in self.model:
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def step(self, batch):
        loss = torch.nn.functional.mse_loss(self.model(batch["x"]).squeeze(1), batch["y"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def train(case, loader, epochs=3, save_at=None, resume=None, takes_exactly=None):
    """Trains a new model. With `takes_exactly`, a loop takes that many batches, and never asks for one too many."""
    training = Training(dist.is_initialized())
    if resume is not None:
        dcp.load({"training": training, "data": loader}, checkpoint_id=FOLDER / resume)
    steps = 0
    while loader.epoch < epochs:
        loop = loader if takes_exactly is None else (batch for _, batch in zip(range(takes_exactly), loader))
        for batch in loop:
            report.step(batch.epoch, batch["id"], training.step(batch))
            steps += 1
            if steps == save_at:
                dcp.save({"training": training, "data": loader}, checkpoint_id=FOLDER / case)
                report.end(case)
                return
    report.end(case)


def load(**options):
    return common.loader(drop_last=True, **options)


MADE_BEFORE = load()
if RANK == 0:
    common.run_one_process(train, load, report)
    train("unknown-length-saved", load(where="id >= 0"), save_at=6)
    train("unknown-length-resumed", load(where="id >= 0"), resume="unknown-length-saved")
    report.refused("other-seed", lambda: train("", load(seed=4), resume="saved"))
    (FOLDER / "one-process-ended").touch()
common.wait_for(FOLDER / "one-process-ended")
variables = common.torch_ranks(RANK, PORT)
os.environ.update(variables)
dist.init_process_group("gloo")
common.run_two_ranks(train, load, MADE_BEFORE)
train("ranks-batch-size", load(batch_size=4), resume="saved-at-the-end")
dist.destroy_process_group()
common.clear(variables)
if RANK == 0:
    train("resumed-of-ranks", load(), resume="ranks-saved")
    # Another global batch: the rest of the epoch has four steps of four samples, here two of eight.
    train("other-global-batch", load(global_batch_size=8), resume="ranks-saved")
