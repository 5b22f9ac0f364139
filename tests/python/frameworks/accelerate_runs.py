"""accelerate in a loop of one's own: `save_state` keeps the loader's place beside the model, on one process and two."""

import os
import warnings

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

import common
from forebay.integrations.accelerate import prepare

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
RANK, PORT, FOLDER = common.arguments()
report = common.Report(RANK)


def train(case, loader, epochs=3, save_at=None, resume=None, takes_exactly=None):
    """Trains a new model. With `takes_exactly`, a loop takes that many batches, and never asks for one too many."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(common.FEATURES, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    batches = prepare(accelerator, loader)
    if resume is not None:
        accelerator.load_state(FOLDER / resume)
    steps = 0
    while loader.epoch < epochs:
        loop = batches if takes_exactly is None else (batch for _, batch in zip(range(takes_exactly), batches))
        for batch in loop:
            loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            report.step(batch.epoch, batch["id"], loss.item())
            steps += 1
            if steps == save_at:
                accelerator.save_state(FOLDER / case)
                accelerator.wait_for_everyone()
                report.end(case)
                return
    report.end(case)


def load(**options):
    return common.loader(drop_last=True, **options)


def reset():
    """Forgets accelerate's view of the processes."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


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
reset()
common.run_two_ranks(train, load, MADE_BEFORE)
report.refused("ranks-given", lambda: train("", load(rank=0, world_size=1)))
torch.distributed.destroy_process_group()
common.clear(variables)
reset()
if RANK == 0:
    train("resumed-of-ranks", load(), resume="ranks-saved")
