"""The samples that the examples train on: numbered rows with features, and a target that depends on them."""

from typing import Any

import numpy as np
import pyarrow as pa

import forebay

ROWS, FEATURES = 512, 8


def samples() -> forebay.Table:
    random = np.random.default_rng(7)
    features = random.normal(size=(ROWS, FEATURES)).astype("float32")
    target = features @ np.arange(FEATURES, dtype="float32") + random.normal(size=ROWS).astype("float32")
    rows = {
        "number": np.arange(ROWS),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), FEATURES),
        "target": target,
    }
    # Name the table, because a resume compares its name and its content with the checkpoint's.
    return forebay.table(pa.table(rows), name="samples")


def load(table: forebay.Table, **options: Any) -> forebay.Loader[Any]:
    """16 steps in an epoch, on any number of ranks."""
    loader: forebay.Loader[Any] = table.load(global_batch_size=32, shuffle=True, seed=17, drop_last=True, **options)
    return loader
