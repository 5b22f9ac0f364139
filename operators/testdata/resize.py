"""What Pillow, torchvision and TensorFlow make of `testing::noise` at other sizes, as PNG files in resize/.

    pip install torch torchvision pillow tensorflow-cpu
    python resize.py
"""

import pathlib
import subprocess
import sys

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

OUT = pathlib.Path(__file__).parent / "resize"
OUT.mkdir(exist_ok=True)
noise = np.array([[[(x * 19 + y * 31 + c * 57 + x * y * 7) % 256 for c in range(3)] for x in range(13)] for y in range(9)],
                 np.uint8)


def pillow(method):
    return lambda height, width: np.array(Image.fromarray(noise).resize((width, height), method))


def sampled(mode):
    image = torch.from_numpy(noise).permute(2, 0, 1)
    return lambda height, width: F.resize(image, [height, width], mode, antialias=False).permute(1, 2, 0).numpy()


# TensorFlow and PyTorch do not go into one process.
AREA = """
import sys, numpy as np, tensorflow as tf
noise = np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(9, 13, 3)
resized = tf.image.resize(noise, tuple(map(int, sys.argv[1:])), "area").numpy()
sys.stdout.buffer.write(np.floor(resized + 0.5).astype(np.uint8).tobytes())
"""


def area(height, width):
    command = [sys.executable, "-c", AREA, str(height), str(width)]
    resized = subprocess.run(command, input=noise.tobytes(), stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(resized, np.uint8).reshape(height, width, 3)


made = {
    "nearest_true": pillow(Image.NEAREST),
    "bicubic_true": pillow(Image.BICUBIC),
    "lanczos_true": pillow(Image.LANCZOS),
    "area_true": area,
    "bilinear_false": sampled(InterpolationMode.BILINEAR),
    "bicubic_false": sampled(InterpolationMode.BICUBIC),
}
for height, width in [(5, 7), (18, 20), (9, 40)]:
    for name, resized in made.items():
        Image.fromarray(np.ascontiguousarray(resized(height, width))).save(OUT / f"{name}_{height}x{width}.png", optimize=True)
