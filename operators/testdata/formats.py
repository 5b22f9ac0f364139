"""Writes files in formats other than JPEG and PNG, and photographs with an EXIF orientation, to the current folder.

    pip install pillow==13.0.0
    python formats.py

`<name>.<format>.png` has Pillow's pixels, made upright by `ImageOps.exif_transpose`. The source is
small.png's formula in make.py."""

import io

import numpy as np
from PIL import Image, ImageOps

H, W = 11, 17
y, x = np.mgrid[0:H, 0:W]
rgb = np.stack([x * 255 / (W - 1), y * 255 / (H - 1), 128 + 60 * np.sin(x / 5) + 60 * np.cos(y / 7)], -1)
image = Image.fromarray(rgb.clip(0, 255).astype(np.uint8))
alpha = image.copy()
alpha.putalpha(Image.fromarray((x * 255 / (W - 1)).astype(np.uint8)))


def save(name, picture, **options):
    picture.save(name, **options)
    upright = ImageOps.exif_transpose(Image.open(name))
    if upright.mode in ("RGBA", "LA"):
        # Drop transparency without blending.
        upright = Image.merge("RGB", upright.convert("RGBA").split()[:3])
    upright.convert("RGB").save(name + ".png", optimize=True)


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


save("lossless.webp", image, lossless=True)
save("lossy.webp", image, quality=90)
save("alpha.webp", alpha, lossless=True, exact=True)
save("tilted.webp", image, lossless=True, exif=exif(8))
save("palette.gif", image.quantize(32))
image.quantize(16).save("animated.gif", save_all=True, append_images=[image.rotate(180).quantize(16)])
first = Image.open("animated.gif")
first.convert("RGB").save("animated.gif.png", optimize=True)
save("colour.bmp", image)
save("palette.bmp", image.quantize(200))
save("grey.bmp", image.convert("L"))
save("colour.tiff", image)
save("lzw.tiff", image, compression="tiff_lzw")
save("deflate.tiff", image, compression="tiff_adobe_deflate")
save("grey.tiff", image.convert("L"))
save("alpha.tiff", alpha)
image.save("tilted.tiff", tiffinfo={274: 6})
ImageOps.exif_transpose(Image.open("tilted.tiff")).convert("RGB").save("tilted.tiff.png", optimize=True)
for orientation in range(1, 9):
    save(f"tilted{orientation}.jpg", image, quality=95, subsampling=0, exif=exif(orientation))
save("tilted5.png", image, exif=exif(5))
