"""Trains with FSDP2 under torchrun, with torch.distributed.checkpoint. Start it again after it was killed, and it goes
on with the next batch, also on another number of ranks.

    torchrun --nproc-per-node 2 examples/frameworks/train_fsdp.py --folder runs/fsdp --epochs 4
"""

import argparse
import gc
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import forebay
from samples import FEATURES, load, samples


class Training:
    """Model, optimizer and step number, in the form that torch.distributed.checkpoint saves and loads."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = 0

    def train_step(self, batch: forebay.Batch[torch.Tensor]) -> float:
        loss = torch.nn.functional.mse_loss(self.model(batch["features"]).squeeze(1), batch["target"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.step = state["step"]


def last_checkpoint(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint: the metadata are written last."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options.folder, options.epochs)
    # Torch's threads end with the process group, which ends when no model holds it. Otherwise one of them may be alive
    # when Python ends, and then aborts the process.
    gc.collect()
    dist.destroy_process_group()


def train(folder: Path, epochs: int) -> None:
    """Trains from the last checkpoint on."""
    loader = load(samples())
    training = Training()
    if (last := last_checkpoint(folder)) is not None:
        dcp.load({"training": training, "data": loader}, checkpoint_id=last)
    # All ranks have looked before one of them writes.
    dist.barrier()
    while loader.epoch < epochs:
        for batch in loader:
            step, loss = training.step, training.train_step(batch)
            numbers = batch["number"].tolist()
            print(json.dumps({"step": step, "samples": numbers, "loss": loss}), flush=True)
            if training.step % 5 == 0:
                checkpoint = folder / f"step-{training.step}"
                dcp.save({"training": training, "data": loader}, checkpoint_id=checkpoint)


if __name__ == "__main__":
    main()
