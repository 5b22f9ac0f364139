"""Trains a small language model on bytes of text, and resumes from a checkpoint.

    python examples/train_text.py --steps 100 --checkpoint text.pt
    python examples/train_text.py --steps 200 --checkpoint text.pt --resume text.pt

The text is this repository's documentation, or the files given with `--text`. A token is a byte. The blocks of tokens
are an Arrow table in memory. Any Arrow data can be a dataset, and a resume compares its content with the checkpoint's.
Each step prints its loss, in nats per byte, as a line of JSON.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import forebay

REPOSITORY = Path(__file__).resolve().parent.parent
CONTEXT = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="the step to stop before, counted from the first run's beginning")
    parser.add_argument("--checkpoint", type=Path, help="the file to write")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--resume", type=Path, help="the checkpoint to resume from")
    parser.add_argument("--text", type=Path, nargs="+", help="text files (this repository's documentation)")
    return parser.parse_args()


def blocks(files: list[Path]) -> pa.Table:
    """Returns the files' bytes, concatenated, in blocks of a context and the byte that follows it."""
    text = np.frombuffer(b"\n".join(file.read_bytes() for file in files), dtype=np.uint8)
    whole = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)]
    return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(whole), CONTEXT + 1)})


def token_batches(files: list[Path]) -> forebay.Loader[forebay.Batch[torch.Tensor]]:
    # Give the table a name, because a resume compares table names.
    return forebay.table(blocks(files), name="blocks").load(batch_size=32, shuffle=True, seed=17, drop_last=True)


class LanguageModel(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.tokens(tokens) + self.places.weight
        logits: torch.Tensor = self.head(self.body(embedded, mask=self.mask, is_causal=True))
        return logits


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
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = token_batches(options.text or sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")]))
    step = 0
    if options.resume:
        state = torch.load(options.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["data"])
        step = state["step"]

    while step < options.steps:
        for batch in loader:  # one epoch, or the rest of it after a resume
            tokens = batch["tokens"].long()
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(json.dumps({"step": step, "epoch": batch.epoch, "loss": loss.item()}), flush=True)

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
