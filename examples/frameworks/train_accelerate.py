"""Trains with Hugging Face's accelerate. Start it again after it was killed, and it resumes with the next batch, also
on another number of processes.

    python examples/frameworks/train_accelerate.py --folder runs/accelerate --epochs 4
    torchrun --nproc-per-node 2 examples/frameworks/train_accelerate.py --folder runs/accelerate --epochs 4
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator

from forebay.integrations.accelerate import prepare
from samples import FEATURES, load, samples


def last_checkpoint(folder: Path) -> Path | None:
    """Returns the newest checkpoint. A checkpoint gets its name when it is complete."""
    return max(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")), default=None)


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    accelerator.save_state(str(folder / "incomplete"))
    # All processes have written their part.
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "incomplete").rename(folder / f"step-{step}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    train(accelerator, options.folder, options.epochs)
    # Torch's threads end with the process group, which ends when no model holds it. Otherwise one of them may be alive
    # when Python ends, and then aborts the process.
    accelerator.free_memory()
    accelerator.end_training()


def train(accelerator: Accelerator, folder: Path, epochs: int) -> None:
    """Trains from the last checkpoint on."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    # The loader's place is a part of accelerate's state from here on.
    batches = prepare(accelerator, load(samples()))
    if (last := last_checkpoint(folder)) is not None:
        accelerator.load_state(str(last))
    # All processes have looked before one of them writes.
    accelerator.wait_for_everyone()
    for epoch in range(batches.loader.epoch, epochs):
        for batch in batches:
            step = epoch * len(batches) + batch.step
            loss = torch.nn.functional.mse_loss(model(batch["features"]).squeeze(1), batch["target"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            numbers = batch["number"].tolist()
            print(json.dumps({"step": step, "samples": numbers, "loss": loss.item()}), flush=True)
            if (step + 1) % 5 == 0:
                save(accelerator, folder, step + 1)


if __name__ == "__main__":
    main()
