"""Writes `testing::noise` as resized by Pillow and TensorFlow, as PNG files in resize/.

    pip install numpy pillow tensorflow-cpu
    python resize.py
"""

import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image

OUT = pathlib.Path(__file__).parent / "resize"
OUT.mkdir(exist_ok=True)
noise = np.array([[[(x * 19 + y * 31 + c * 57 + x * y * 7) % 256 for c in range(3)] for x in range(13)] for y in range(9)],
                 np.uint8)


def pillow(method, pixels=noise):
    return lambda height, width: np.array(Image.fromarray(pixels).resize((width, height), method))


def tensorflow(method, pixels=noise):
    def resize(height, width):
        resized = tf.image.resize(pixels, (height, width), method).numpy()
        return np.floor(np.clip(resized, 0, 255) + 0.5).astype(np.uint8)

    return resize


made = {
    "nearest_true": pillow(Image.NEAREST),
    "bicubic_true": pillow(Image.BICUBIC, 64 + noise // 2),
    "lanczos_true": pillow(Image.LANCZOS, 64 + noise // 2),
    "area_true": tensorflow("area"),
    "bilinear_false": tensorflow("bilinear"),
    "bicubic_false": tensorflow("bicubic", 64 + noise // 2),
}
colour = np.array(Image.open(OUT.parent / "colour.jpg.png").convert("RGB"))
for height, width in [(18, 20), (64, 90)]:
    for name, method in [("bicubic", Image.BICUBIC), ("lanczos", Image.LANCZOS)]:
        resized = pillow(method, colour)(height, width)
        Image.fromarray(resized).save(OUT / f"colour_{name}_{height}x{width}.png", optimize=True)
# Noise whose results rarely overshoot a byte's range. Overshoot is clamped between the two passes, whose order differs
# from ours.
soft = 64 + noise // 2
Image.fromarray(soft).save(OUT / "soft.png", optimize=True)
for height, width in [(5, 7), (18, 20), (9, 40)]:
    for name, resized in made.items():
        Image.fromarray(np.ascontiguousarray(resized(height, width))).save(OUT / f"{name}_{height}x{width}.png", optimize=True)
