"""Writes the results of torchvision and Pillow on the test images, with the draws of `keyed`, as PNG files in images/.

The results of rows 0, 1, 2, ... are stacked vertically.

    pip install torch torchvision pillow xxhash
    python augment.py
"""

import io
import math
import pathlib
import struct

import numpy as np
import torch
import xxhash
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import RandAugment, TrivialAugmentWide
from torchvision.transforms.v2 import functional as F

HERE = pathlib.Path(__file__).parent
MASK = (1 << 64) - 1
SEED, SITE = 1, 5


def xxh3(*integers):
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(integers)}Q", *integers))


class Draws:
    """The draws of one row: see src/keyed.rs."""

    def __init__(self, row):
        self.state = xxh3(xxh3(SEED, 0, row), SITE)

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def uniform(self, a=0.0, b=1.0):
        return a + (b - a) * ((self.next() >> 11) * 2.0**-53)

    def below(self, n):
        product = self.next() * n
        if (product & MASK) < n:
            threshold = ((1 << 64) - n) % n
            while (product & MASK) < threshold:
                product = self.next() * n
        return product >> 64


def color_jitter(image, draws, brightness, contrast, saturation, hue):
    order = [0, 1, 2, 3]
    for last in (3, 2, 1):
        other = draws.below(last + 1)
        order[last], order[other] = order[other], order[last]
    factors = [draws.uniform(max(0.0, 1 - r), 1 + r) for r in (brightness, contrast, saturation)]
    turn = draws.uniform(-hue, hue)
    steps = [(brightness, lambda i: F.adjust_brightness(i, factors[0])), (contrast, lambda i: F.adjust_contrast(i, factors[1])),
             (saturation, lambda i: F.adjust_saturation(i, factors[2])), (hue, lambda i: F.adjust_hue(i, turn))]
    for at in order:
        if steps[at][0] > 0:
            image = steps[at][1](image)
    return image


def gaussian_blur(image, draws, size, least, most):
    sigma = draws.uniform(least, most)
    return F.gaussian_blur(image, [size, size], [sigma, sigma])


def random_erasing(image, draws, p, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=(7, 8, 9)):
    if draws.uniform() >= p:
        return image
    _, height, width = image.shape
    for _ in range(10):
        area = height * width * draws.uniform(*scale)
        aspect = math.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1])))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (h < height and w < width):
            continue
        top, left = draws.below(height - h + 1), draws.below(width - w + 1)
        return F.erase(image, top, left, h, w, torch.tensor(value, dtype=torch.uint8)[:, None, None])
    return image


def random_rotate(image, draws, degrees, interpolation):
    return F.rotate(image, draws.uniform(-degrees, degrees), interpolation)


def policy(space, transform, image, draws, bins, magnitude):
    """Uses torchvision's tables and operations with our draws."""
    names = list(space)
    name = names[draws.below(len(names))]
    table, signed = space[name]
    if magnitude is None:
        magnitude = draws.below(bins)
    magnitudes = table(bins, image.shape[1], image.shape[2])
    strength = 0.0 if magnitudes is None else float(magnitudes[magnitude])
    if signed and draws.below(2) == 1:
        strength = -strength
    return transform._apply_image_or_video_transform(image, name, strength, InterpolationMode.NEAREST, {})


def rand_augment(image, draws, operations, magnitude):
    transform = RandAugment(operations, magnitude)
    for _ in range(operations):
        image = policy(RandAugment._AUGMENTATION_SPACE, transform, image, draws, 31, magnitude)
    return image


def trivial_augment(image, draws):
    return policy(TrivialAugmentWide._AUGMENTATION_SPACE, TrivialAugmentWide(), image, draws, 31, None)


noise = np.array([[[(x * 19 + y * 31 + c * 57 + x * y * 7) % 256 for c in range(3)] for x in range(13)] for y in range(9)],
                 np.uint8)
colour = np.array(Image.open(HERE.parent / "testdata" / "colour.jpg.png"))
NEAREST, BILINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR
CASES = {
    "brightness": lambda i, d: color_jitter(i, d, 0.9, 0, 0, 0),
    "contrast": lambda i, d: color_jitter(i, d, 0, 0.9, 0, 0),
    "saturation": lambda i, d: color_jitter(i, d, 0, 0, 0.9, 0),
    "hue": lambda i, d: color_jitter(i, d, 0, 0, 0, 0.5),
    "jitter": lambda i, d: color_jitter(i, d, 0.4, 0.4, 0.4, 0.1),
    "blur": lambda i, d: gaussian_blur(i, d, 7, 0.1, 3.0),
    "erasing": lambda i, d: random_erasing(i, d, 0.8),
    "rotate": lambda i, d: random_rotate(i, d, 180, NEAREST),
    "rotate_bilinear": lambda i, d: random_rotate(i, d, 180, BILINEAR),
    # A value of 20 would shear by 0.2, which gives positions equally near to two pixels.
    "rand1": lambda i, d: rand_augment(i, d, 1, 21),
    "rand2": lambda i, d: rand_augment(i, d, 2, 9),
    "trivial": lambda i, d: trivial_augment(i, d),
}
for mode, fill in [("constant", [9, 8, 7]), ("edge", None), ("reflect", None)]:
    padded = F.pad(torch.from_numpy(noise).permute(2, 0, 1), [1, 2, 5, 3], fill, mode)
    Image.fromarray(padded.permute(1, 2, 0).contiguous().numpy()).save(HERE / "images" / f"noise_pad_{mode}.png", optimize=True)
# The image after Pillow, with libjpeg-turbo, encodes and decodes it.
for quality, sampling in [(50, "420"), (75, "420"), (90, "422"), (95, "444"), (100, "444")]:
    file = io.BytesIO()
    Image.fromarray(colour).save(file, "JPEG", quality=quality, subsampling={"444": 0, "422": 1, "420": 2}[sampling])
    Image.open(file).save(HERE / "images" / f"colour_jpeg_{quality}_{sampling}.png", optimize=True)
for name, pixels, rows in [("noise", noise, 48), ("colour", colour, 3)]:
    for case, apply in CASES.items():
        made = [apply(torch.from_numpy(pixels).permute(2, 0, 1), Draws(row)).permute(1, 2, 0).numpy() for row in range(rows)]
        Image.fromarray(np.concatenate(made)).save(HERE / "images" / f"{name}_{case}.png", optimize=True)
        if name == "noise" and case == "erasing":
            print(sum((m != pixels).any() for m in made), "of", rows, "erased")
