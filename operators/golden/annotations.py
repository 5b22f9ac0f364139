"""Writes annotations.json: boxes, points and masks moved by torchvision, with the draws of `keyed`.

    pip install torch torchvision xxhash
    python annotations.py
"""

import json
import math
import pathlib

import torch
from random_numbers import Draws
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

HEIGHT, WIDTH = 37, 53
ROWS = 24
# Masks take more room.
MASK_ROWS = 4

BOXES = [
    [0, 0, 53, 37],
    [3.5, 2.25, 20.75, 30.5],
    [50, 30, 53, 37],
    [0, 0, 1.5, 1.5],
    [26, 18, 27, 19],
    [40, 1, 52, 36],
]
POINTS = [[0, 0], [52, 36], [3.5, 2.25], [26, 18], [50, 1], [1, 35.5]]


def mask():
    """Ids from 1 to 250, no two of neighbours alike. Where torchvision has no pixel of the mask, it writes 0."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    return tv_tensors.Mask((1 + (7 * x + 31 * y + x * y) % 250).to(torch.uint8)[None])


def resize(annotations, size):
    """Resizes a mask by the pixel at each centre. torchvision's own way for masks is the older NEAREST, which takes the
    pixel at each corner, and so moves a mask against its image."""
    if not isinstance(annotations, tv_tensors.Mask):
        return F.resize(annotations, size)
    pixels = annotations.as_subclass(torch.Tensor)
    return tv_tensors.Mask(F.resize_image(pixels, size, interpolation=InterpolationMode.NEAREST_EXACT))


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
            return resize(F.crop(annotations, top, left, h, w), [height, width])
    raise AssertionError("these ranges always fit")


def random_rotate(draws, annotations, degrees):
    return F.rotate(annotations, draws.uniform(-degrees, degrees))


CASES = {
    "resize": lambda draws, a: resize(a, [20, 61]),
    "center_crop": lambda draws, a: F.center_crop(a, [20, 30]),
    # An odd number of missing rows moves torchvision's boxes by one more than its image; ours follow the image.
    "center_crop_larger": lambda draws, a: F.center_crop(a, [45, 30]),
    "pad": lambda draws, a: F.pad(a, [1, 2, 5, 3]),
    "random_crop": lambda draws, a: random_crop(draws, a, 20, 30),
    "random_crop_padding": lambda draws, a: random_crop(draws, a, 37, 60, padding=4),
    # Powers of two: no centre of a pixel falls between two pixels, where torchvision's float32 may take either.
    "random_resized_crop": lambda draws, a: random_resized_crop(draws, a, 32, 64),
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
            # Two digits for each pixel.
            "masks": [bytes(case(Draws(row), mask()).flatten().tolist()).hex() for row in range(MASK_ROWS)],
        }
    golden = {"height": HEIGHT, "width": WIDTH, "boxes": BOXES, "points": POINTS, "cases": cases}
    pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
