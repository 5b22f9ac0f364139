"""Writes photographs to a folder: 500 x 375, 4:2:0, quality 85 to 92, about 46 KB each.

    python photographs.py FOLDER [240]

Needs Pillow. Each photograph combines four crops of the sample photographs, which keeps their detail.
"""

import pathlib
import random
import sys

from PIL import Image

draws = random.Random(5)
samples = sorted((pathlib.Path(__file__).parents[2] / "examples" / "photos").rglob("*.jpg"))
photographs = [Image.open(path).convert("RGB") for path in samples]
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 240):
    picture = Image.new("RGB", (500, 375))
    for left, top in ((0, 0), (250, 0), (0, 188), (250, 188)):
        photograph = draws.choice(photographs)
        width, height = min(photograph.width, 250), min(photograph.height, 188)
        x, y = draws.randint(0, photograph.width - width), draws.randint(0, photograph.height - height)
        picture.paste(photograph.crop((x, y, x + width, y + height)).resize((250, 188), Image.LANCZOS), (left, top))
    picture.save(folder / f"{number:04}.jpg", quality=draws.randint(85, 92), subsampling=2)
