"""Trains a small convolutional network on the sample photographs, and resumes from a checkpoint.

    python examples/train_images.py --steps 100 --checkpoint images.pt
    python examples/train_images.py --steps 200 --checkpoint images.pt --resume images.pt

Each step prints its loss as a line of JSON. A run that is stopped at any step and resumed prints the same losses as a
run without interruption. The checkpoint holds the model, the optimizer and the loader's state.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn

import forebay

PHOTOS = Path(__file__).resolve().parent / "photos"
CLASSES = ["astronaut", "cat", "coffee", "galaxies", "rocket"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="the step to stop before, counted from the first run's beginning")
    parser.add_argument("--checkpoint", type=Path, help="the file to write")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--resume", type=Path, help="the checkpoint to resume from")
    parser.add_argument("--photos", type=Path, default=PHOTOS, help="a folder with a folder of pictures for each class")
    return parser.parse_args()


def photographs(folder: Path) -> forebay.Loader[forebay.Batch[torch.Tensor]]:
    """Returns a loader of batches of 32, with a new random crop of every photograph in every epoch."""
    numbers = " ".join(f"WHEN '{name}' THEN {number}" for number, name in enumerate(CLASSES))
    crops = "random_resized_crop(decode_image(bytes), height => 64, width => 64, scale_min => 0.4)"
    table = forebay.table(folder, format="media")
    samples = table.select(image=f"normalize(random_hflip({crops}))", label=f"CASE label {numbers} END")
    return samples.load(batch_size=32, shuffle=True, seed=17, drop_last=True)


def network() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, len(CLASSES)))


def save(path: Path, **state: object) -> None:
    """Writes a temporary file and renames it, so that a killed run leaves the previous checkpoint intact."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the same sums in the same order on every machine, and one core free for the feed
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = photographs(options.photos)
    step = 0
    if options.resume:
        state = torch.load(options.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["data"])
        step = state["step"]

    while step < options.steps:
        for batch in loader:  # one epoch, or the rest of it after a resume
            images = batch["image"].permute(0, 3, 1, 2)  # height x width x channels to channels first: a view
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = (logits.argmax(1) == batch["label"]).float().mean()
            print(json.dumps({"step": step, "epoch": batch.epoch, "loss": loss.item(), "right": right.item()}), flush=True)

            step += 1
            is_last = step >= options.steps
            if options.checkpoint and (is_last or step % options.checkpoint_every == 0):
                save(
                    options.checkpoint,
                    step=step,
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    data=loader.state_dict(),
                )
            if is_last:
                break


if __name__ == "__main__":
    main()
