"""Writes `scaled.txt` with Pillow's results for the files here at a half, a quarter and an eighth of their size.

    pip install pillow==13.0.0 && python scaled.py

Each line has a file's name and, for each scale, the 64-bit FNV-1a hash of its pixels as RGB. `Image.draft` does not
reduce an image below a given size of at least one pixel. The program makes the same settings itself, to reduce small
images, too.
"""

import pathlib

from PIL import Image, ImageFile

HERE = pathlib.Path(__file__).parent


def hash_of(pixels: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in pixels:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def scaled(path: pathlib.Path, denominator: int) -> Image.Image:
    image = Image.open(path)
    width, height = (-(-side // denominator) for side in image.size)
    image.decoderconfig = (denominator, 0)
    image._size = (width, height)
    image.tile = [ImageFile._Tile(tile[0], (0, 0, width, height), tile[2], tile[3]) for tile in image.tile]
    return image.convert("RGB")


def main() -> None:
    lines = []
    for line in (HERE / "expected.txt").read_text().splitlines():
        name = line.split(" ")[0]
        hashes = [f"{hash_of(scaled(HERE / f'{name}.jpg', scale).tobytes()):016x}" for scale in (2, 4, 8)]
        lines.append(" ".join([name, *hashes]) + "\n")
    (HERE / "scaled.txt").write_text("".join(lines))


main()
