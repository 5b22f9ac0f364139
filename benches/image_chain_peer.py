"""CPU per image of Forebay and of torchvision with PIL: same photographs, same augmentations, one run, one core for
each.

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install torchvision pillow
    cargo build --release && /tmp/peers/bin/python benches/image_chain_peer.py

Both decode JPEG, crop at random to 224, flip at random, convert to float32 and normalise. The two alternate, so that a
noisy machine affects both. The script reports the best round of each. Forebay's figure is the whole process, including
start and planning; torchvision's is the loop alone, without interpreter start and DataLoader.
"""

import json
import os
import pathlib
import subprocess
import time

import torch
from PIL import Image
from torchvision import transforms

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOREBAY = os.environ.get("FOREBAY_BIN", str(ROOT / "target/release/forebay"))
EPOCHS = 10
ROUNDS = 5

torch.set_num_threads(1)
photographs = sorted((ROOT / "examples/photos").glob("*/*.jpg"))
chain = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


def torchvision_with_pil() -> float:
    start = time.process_time()
    for _ in range(EPOCHS):
        for photograph in photographs:
            with Image.open(photograph) as image:
                chain(image.convert("RGB"))
    return (time.process_time() - start) / (EPOCHS * len(photographs))


def forebay() -> float:
    command = [FOREBAY, "run", str(ROOT / "examples/photos.sql"), "--epochs", str(EPOCHS), "--threads", "1"]
    # Text output, because JSON lines would add a digest of every batch.
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used / (EPOCHS * len(photographs))


rounds = [(torchvision_with_pil(), forebay()) for _ in range(ROUNDS)]
peer, ours = (min(column) * 1e6 for column in zip(*rounds))
print(
    json.dumps(
        {
            "images": len(photographs),
            "torchvision_pil_us_per_image": round(peer),
            "forebay_us_per_image": round(ours),
            "ratio": round(ours / peer, 3),
        }
    )
)
