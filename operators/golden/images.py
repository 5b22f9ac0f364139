"""Writes torchvision's results on the test images as PNG files in images/.

    pip install torch torchvision pillow
    python images.py
"""

import pathlib

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

HERE = pathlib.Path(__file__).parent
noise = np.array([[[(x * 19 + y * 31 + c * 57 + x * y * 7) % 256 for c in range(3)] for x in range(13)] for y in range(9)],
                 np.uint8)
colour = np.array(Image.open(HERE.parent / "testdata" / "colour.jpg.png"))
for name, pixels in [("noise", noise), ("colour", colour)]:
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    made = {
        "auto_contrast": F.autocontrast(image),
        "equalize": F.equalize(image),
        "posterize_2": F.posterize(image, 2),
        "posterize_0": F.posterize(image, 0),
        "solarize_100": F.solarize(image, 100),
        "solarize_255": F.solarize(image, 255),
        "grayscale": F.rgb_to_grayscale(image, num_output_channels=3),
        "vflip": F.vertical_flip(image),
    }
    for call, result in made.items():
        Image.fromarray(result.permute(1, 2, 0).contiguous().numpy()).save(HERE / "images" / f"{name}_{call}.png", optimize=True)
