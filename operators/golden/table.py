"""Golden values of the operators on tables.

    pip install numpy scipy torch xxhash
    python table.py

The program writes table.json: for each call its inputs, x, and the result. TorchArrow's last release is from 2022, so
values with TorchArrow as the reference come from its own tests and documentation.
"""

import json
import math
import pathlib

import numpy as np
import torch
from scipy import special
import xxhash

HERE = pathlib.Path(__file__).parent


def plain(values):
    """Replaces NaN and infinity, which JSON does not have."""
    return [None if v is None else v if isinstance(v, int) else repr(float(v)) if not math.isfinite(v) else float(v)
            for v in values]


def hashed(value, seed):
    if isinstance(value, str):
        data = value.encode()
    else:
        data = (value & (1 << 64) - 1).to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(data, seed)


def crossed(a, b, buckets, seed):
    pair = b"".join(hashed(value, seed).to_bytes(8, "little") for value in (a, b))
    return xxhash.xxh3_64_intdigest(pair, seed) % buckets


floats = [0.5, 1.0, 2.0, 4.0, 1e-3, 0.0, -1.0, -3.0, 1e6, 0.1, 0.9, 97.0, math.nan, math.inf]
x = np.array(floats)
t = torch.tensor(x)
integers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
signed = [0, 1, -1, 7, -7, 2**31, -2**31, 2**32 - 1, 2**32, 2**63 - 1, -2**63, 123456789012345]
words = ["berlin", "", "a", "ß", "x" * 40]
golden = {"floats": plain(floats), "integers": integers, "signed": signed, "words": words, "of": {}}
of = golden["of"]
with np.errstate(all="ignore"):
    of["floats"] = {
        "boxcox(x, 0.5)": plain(special.boxcox(x, 0.5)),
        "boxcox(x, 0)": plain(special.boxcox(x, 0)),
        "boxcox(x, -2)": plain(special.boxcox(x, -2)),
        "log_shift(x)": plain(np.log(x + 3)),
        "logit(x)": plain(torch.logit(t).tolist()),
        "logit(x, 0.01)": plain(torch.logit(t, 0.01).tolist()),
        "min_max(x, -1, 3)": plain((x + 1) / 4),
        "standardize(x, 0.1, 0.3)": plain((x - 0.1) / 0.3),
        "bucketize(x, [0.1, 1.0, 2.5])": torch.bucketize(t, torch.tensor([0.1, 1.0, 2.5], dtype=t.dtype)).tolist(),
        # Our definition maps NaN to 0. PyTorch leaves it undefined.
        "quantize(x, 0.25, 3)": [
            int(q) for q in torch.quantize_per_tensor(
                torch.nan_to_num(t, nan=-1e9).clamp(-1e9, 1e9).float(), 0.25, 3, torch.quint8).int_repr()],
        # Sine, then cosine.
        "cyclic(x, 24)": plain(np.float32(np.stack([np.sin(2 * np.pi * x / 24), np.cos(2 * np.pi * x / 24)], 1)).ravel().tolist()),
    }
of["integers"] = {
    # torcharrow/test/test_functional.py
    "sigrid_hash(x, 0, 100)": [6, 60, 54, 54, 9, 4, 91, 11, 67, 79, 2, 25, 92, 98, 83, 66],
    "sigrid_hash(x, 9, 1)": [0] * 16,
    "one_hot(x, 5)": [int(i == place) for i in integers for place in range(5)],
    "map_id(x, [3, 1], [30, 10], -5)": [{3: 30, 1: 10}.get(i, -5) for i in integers],
}
of["signed"] = {f"positive_mod(x, {d})": [v % d for v in signed] for d in (1, 2, 10, 1000003, 2**31, 2**32 + 5)}
of["signed"]["cross(x, 'berlin', 1000)"] = [crossed(v, "berlin", 1000, 0) for v in signed]
of["words"] = {
    "cross(x, 42, 1000000, 7)": [crossed(v, 42, 1000000, 7) for v in words],
    "cross(x, x, 97)": [crossed(v, v, 97, 0) for v in words],
}
golden["hex"] = {text: (lambda v: v - (1 << 64) if v >> 63 else v)(int(text, 16)) for text in [
    "68fd1e64", "00000000", "ffffffff", "FFFFFFFF", "abcdefAB", "0", "f", "12345678", "80000000", "123456789",
    "7fffffffffffffff", "8000000000000000", "ffffffffffffffff", "0a1b2c3", "90909090", "a0a0a0a0"]}
(HERE / "table.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(crossed("berlin", 42, 1000, 0))
