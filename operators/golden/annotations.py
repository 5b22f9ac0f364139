"""Writes annotations.json: boxes and points moved by torchvision, with the draws of `keyed`.

    pip install torch torchvision xxhash
    python annotations.py
"""

import json
import math
import pathlib

import torch
from random_numbers import Draws
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

HEIGHT, WIDTH = 37, 53
ROWS = 24

BOXES = [
    [0, 0, 53, 37],
    [3.5, 2.25, 20.75, 30.5],
    [50, 30, 53, 37],
    [0, 0, 1.5, 1.5],
    [26, 18, 27, 19],
    [40, 1, 52, 36],
]
POINTS = [[0, 0], [52, 36], [3.5, 2.25], [26, 18], [50, 1], [1, 35.5]]


def crop(draws, height, width, padding):
    """Returns the padding around the image, and the corner of the crop in the padded image."""
    around = [padding + max(0, want - (have + 2 * padding)) for have, want in ((HEIGHT, height), (WIDTH, width))]
    corner = [draws.below(have + 2 * border - want + 1)
              for have, want, border in ((HEIGHT, height, around[0]), (WIDTH, width, around[1]))]
    return around, corner


def random_crop(draws, annotations, height, width, padding=0):
    around, (top, left) = crop(draws, height, width, padding)
    padded = F.pad(annotations, [around[1], around[0]])
    return F.crop(padded, top, left, height, width)


def random_resized_crop(draws, annotations, height, width, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333)):
    aspect = WIDTH / HEIGHT
    for _ in range(10):
        area = draws.uniform(*scale)
        shape = math.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = math.sqrt(area * shape / aspect), math.sqrt(area / shape * aspect)
        if w <= 1 and h <= 1:
            w, h = min(max(round(w * WIDTH), 1), WIDTH), min(max(round(h * HEIGHT), 1), HEIGHT)
            top = draws.below(HEIGHT - h + 1)
            left = draws.below(WIDTH - w + 1)
            return F.resized_crop(annotations, top, left, h, w, [height, width])
    raise AssertionError("these ranges always fit")


def random_rotate(draws, annotations, degrees):
    return F.rotate(annotations, draws.uniform(-degrees, degrees))


CASES = {
    "resize": lambda draws, a: F.resize(a, [20, 61]),
    "center_crop": lambda draws, a: F.center_crop(a, [20, 30]),
    # An odd number of missing rows moves torchvision's boxes by one more than its image; ours follow the image.
    "center_crop_larger": lambda draws, a: F.center_crop(a, [45, 30]),
    "pad": lambda draws, a: F.pad(a, [1, 2, 5, 3]),
    "random_crop": lambda draws, a: random_crop(draws, a, 20, 30),
    "random_crop_padding": lambda draws, a: random_crop(draws, a, 37, 60, padding=4),
    "random_resized_crop": lambda draws, a: random_resized_crop(draws, a, 24, 48),
    "random_hflip": lambda draws, a: F.horizontal_flip(a) if draws.uniform() < 0.5 else a,
    "random_vflip": lambda draws, a: F.vertical_flip(a) if draws.uniform() < 0.5 else a,
    "random_rotate": lambda draws, a: random_rotate(draws, a, 30.0),
}


def numbers(tensor):
    return [[round(number, 5) for number in group] for group in tensor.tolist()]


if __name__ == "__main__":
    canvas = (HEIGHT, WIDTH)
    boxes = tv_tensors.BoundingBoxes(torch.tensor(BOXES), format="XYXY", canvas_size=canvas)
    points = tv_tensors.KeyPoints(torch.tensor(POINTS), canvas_size=canvas)
    cases = {}
    for name, case in CASES.items():
        cases[name] = {
            "boxes": [numbers(case(Draws(row), boxes.clone())) for row in range(ROWS)],
            "points": [numbers(case(Draws(row), points.clone())) for row in range(ROWS)],
            "size": list(case(Draws(0), points.clone()).canvas_size),
        }
    golden = {"height": HEIGHT, "width": WIDTH, "boxes": BOXES, "points": POINTS, "cases": cases}
    pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
