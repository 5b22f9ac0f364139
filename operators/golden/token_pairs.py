"""Writes token_pairs.json: the results of `mask_tokens` and `corrupt_spans`, with the draws of `keyed`.

The first follows `DataCollatorForLanguageModeling` of transformers, the second `random_spans_noise_mask` of T5.

    pip install xxhash
    python token_pairs.py
"""

import json
import pathlib

from random_numbers import Draws

ROWS = 40
SPECIAL = {0, 101, 102}


def tokens(row):
    return [101] + [(row * 7919 + at * 104729) % 30000 + 500 for at in range(row * 3)] + [102] + [0] * (row % 3)


def mask(ids, draws):
    inputs, labels = [], []
    for token in ids:
        if token in SPECIAL or draws.uniform() >= 0.15:
            inputs.append(token)
            labels.append(-100)
            continue
        fate = draws.uniform()
        labels.append(token)
        inputs.append(103 if fate < 0.8 else draws.below(30522) if fate < 0.9 else token)
    return inputs, labels


def segments(items, count, draws):
    """Returns `count` positive lengths with the sum `items`."""
    starts, needed = [0], count - 1
    for boundary in range(1, items):
        if needed and draws.below(items - boundary) < needed:
            starts.append(boundary)
            needed -= 1
    return [end - start for start, end in zip(starts, [*starts[1:], items])]


def corrupt(ids, draws, p=0.15, mean_length=3.0):
    noise = min(max(round(len(ids) * p), 1), len(ids) - 1)
    spans = max(min(round(noise / mean_length), len(ids) - noise), 1)
    removed, kept = segments(noise, spans, draws), segments(len(ids) - noise, spans, draws)
    is_noise = [flag for k, r in zip(kept, removed) for flag in [False] * k + [True] * r]

    def sentinels(flags):
        out, number = [], 0
        for at, (token, flag) in enumerate(zip(ids, flags)):
            if not flag:
                out.append(token)
            elif at == 0 or not flags[at - 1]:
                out.append(32099 - number)
                number += 1
        return out

    return sentinels(is_noise), sentinels([not flag for flag in is_noise])


if __name__ == "__main__":
    rows = [tokens(row) for row in range(ROWS)]
    masked = [mask(ids, Draws(row)) for row, ids in enumerate(rows)]
    spans = [corrupt(ids, Draws(row)) for row, ids in enumerate(rows)]
    golden = {
        "tokens": rows,
        "masked_inputs": [pair[0] for pair in masked],
        "masked_labels": [pair[1] for pair in masked],
        "span_inputs": [pair[0] for pair in spans],
        "span_labels": [pair[1] for pair in spans],
    }
    pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
