"""Trains a model that predicts clicks from a table, and resumes from a checkpoint.

    python examples/train_tabular.py --steps 200 --checkpoint clicks.pt
    python examples/train_tabular.py --steps 400 --checkpoint clicks.pt --resume clicks.pt

The first run generates the table from a fixed seed and writes it as Parquet. Clicks depend on the user, the site and
the price, so there is something to learn. SQL computes the features: hashed categories, a hashed cross of two
categories, clamped and logarithmic numbers. Each step prints its loss as a line of JSON.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import forebay

ROWS_PER_FILE, FILES = 50_000, 4
BUCKETS = {"user_bucket": 4096, "site_bucket": 64, "hour_bucket": 64}

FEATURES = """
    SELECT
        hash_bucket(user_id, buckets => 4096, seed => 1) AS user_bucket,
        hash_bucket(site, buckets => 64, seed => 2) AS site_bucket,
        hash_bucket(concat(device, '/', hour), buckets => 64, seed => 3) AS hour_bucket,
        log1p(price) AS price,
        clamp(CAST(visits AS FLOAT), min => 0, max => 20) / CAST(20 AS FLOAT) AS visits,
        CAST(clicked AS FLOAT) AS clicked
    FROM clicks
    WHERE price >= 0
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="the step to stop before, counted from the first run's beginning")
    parser.add_argument("--checkpoint", type=Path, help="the file to write")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--resume", type=Path, help="the checkpoint to resume from")
    data = Path(tempfile.gettempdir()) / "forebay-clicks"
    parser.add_argument("--data", type=Path, default=data, help=f"where to store the table ({data})")
    return parser.parse_args()


def write_table(folder: Path) -> None:
    """Writes the same rows on every machine. Some prices are negative, like real bad data, and the query filters them
    out."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number}.parquet" for number in range(FILES)]
    if all(path.exists() for path in paths):
        return
    random = np.random.default_rng(7)
    users, sites = 2_000, 40
    user_likes, site_likes = random.normal(0, 1, users), random.normal(0, 1, sites)
    for path in paths:
        user, site = random.integers(0, users, ROWS_PER_FILE), random.integers(0, sites, ROWS_PER_FILE)
        price = random.gamma(2, 20, ROWS_PER_FILE)
        score = user_likes[user] + site_likes[site] - 0.5 * np.log1p(price)
        clicked = random.random(ROWS_PER_FILE) < 1 / (1 + np.exp(-score))
        table = pa.table(
            {
                "user_id": user * 7919,
                "site": pa.array([f"site-{name}.example" for name in site]),
                "device": pa.array(random.choice(["phone", "tablet", "laptop"], ROWS_PER_FILE)),
                "hour": random.integers(0, 24, ROWS_PER_FILE),
                "price": np.where(random.random(ROWS_PER_FILE) < 0.01, -1, price).astype("float32"),
                "visits": random.poisson(3, ROWS_PER_FILE),
                "clicked": clicked,
            }
        )
        # Keep an existing file, because a checkpoint may depend on it.
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            pq.write_table(table, unfinished, row_group_size=5_000, write_page_index=True)
            os.replace(unfinished, path)


def features(folder: Path) -> forebay.Loader[forebay.Batch[torch.Tensor]]:
    samples = forebay.sql(FEATURES, clicks=str(folder))
    return samples.load(batch_size=1024, shuffle=True, seed=17, drop_last=True, window_bytes="2MiB")


class ClickModel(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.embeddings = nn.ModuleDict({name: nn.Embedding(buckets, width) for name, buckets in BUCKETS.items()})
        self.body = nn.Sequential(nn.Linear(width * len(BUCKETS) + 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        embedded = [embedding(batch[name]) for name, embedding in self.embeddings.items()]
        numbers = torch.stack([batch["price"], batch["visits"]], dim=1)
        logits: torch.Tensor = self.body(torch.cat([*embedded, numbers], dim=1))
        return logits.squeeze(1)


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
    write_table(options.data)
    model = ClickModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = features(options.data)
    step = 0
    if options.resume:
        state = torch.load(options.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["data"])
        step = state["step"]

    while step < options.steps:
        for batch in loader:  # one epoch, or the rest of it after a resume
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["clicked"])
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
