"""Writes the files to decode, and `expected.txt` with Pillow's results.

    pip install pillow==13.0.0 numpy simplejpeg && python make.py

The images are formulas with noise from a fixed seed. Each line of `expected.txt` has a file's name, height and width,
and the 64-bit FNV-1a hash of its pixels as RGB. The program also writes `tiny.jpg`, which the documentation uses.
"""

import io
import itertools
import pathlib

import numpy
import simplejpeg
from PIL import Image

HERE = pathlib.Path(__file__).parent


def picture(height: int, width: int, seed: int) -> numpy.ndarray:
    draws = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [numpy.sin(x / (3 + seed % 5 + 4 * channel) + y / (7 - channel)) for channel in range(3)]
    smooth = 128 + 90 * numpy.stack(waves, axis=-1)
    edges = 60 * ((x // 11 + y // 7) % 2)[..., None]
    noise = draws.normal(0, 6, (height, width, 3))
    return numpy.clip(smooth + edges + noise - 30, 0, 255).astype(numpy.uint8)


def hash_of(pixels: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in pixels:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def relabelled(file: bytes, factors: list, height: int, width: int) -> bytes:
    """Reuses the blocks with other sampling factors. The image is only a pattern, but the file is valid."""
    file, at = bytearray(file), 2
    while file[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    file[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    for number, (horizontal, vertical) in enumerate(factors):
        file[at + 11 + 3 * number] = horizontal << 4 | vertical
    return bytes(file)


def encoded(pixels: numpy.ndarray, subsampling: str, quality: int, progressive: bool) -> bytes:
    if subsampling in ("440", "411"):
        return simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling=subsampling)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=quality, subsampling=":".join(subsampling), progressive=progressive)
    return out.getvalue()


def files():
    sizes = itertools.cycle([(1, 1), (9, 2), (2, 3), (3, 40), (17, 33), (31, 16), (48, 64), (61, 37), (33, 90), (100, 75)])
    seed = 0
    for subsampling, progressive in itertools.product(["444", "422", "420", "440", "411"], [False, True]):
        if progressive and subsampling in ("440", "411"):
            continue
        for quality in (60, 88, 97) if subsampling == "420" else (85,):
            for height, width in itertools.islice(sizes, 3):
                seed += 1
                data = encoded(picture(height, width, seed), subsampling, quality, progressive)
                yield f"{subsampling}_{'p' if progressive else 's'}_{quality}_{height}x{width}", data
    for mode, options in [
        ("L", {}),
        ("L", {"progressive": True, "optimize": True}),
        ("RGB", {"optimize": True, "quality": 100}),
        ("RGB", {"restart_marker_blocks": 3, "optimize": True}),
        ("RGB", {"restart_marker_rows": 1, "progressive": True, "subsampling": 2}),
        ("RGB", {"keep_rgb": True}),
        ("RGB", {"quality": 1}),
        ("CMYK", {"quality": 90}),
        ("CMYK", {"progressive": True}),
    ]:
        seed += 1
        out = io.BytesIO()
        Image.fromarray(picture(45, 51, seed)).convert(mode).save(out, "JPEG", **options)
        yield f"{mode}_{'_'.join(options) or 'plain'}", out.getvalue()
        if mode == "RGB" and "keep_rgb" in options:
            data = out.getvalue()
            for at, factors in enumerate([[(2, 2), (2, 1), (1, 2)], [(4, 1), (1, 1), (2, 1)], [(1, 1), (2, 2), (2, 1)]]):
                yield f"relabelled_{at}", relabelled(data, factors, 29, 35)
    tables = bytearray(simplejpeg.encode_jpeg(picture(40, 40, 99), quality=80, colorsubsampling="420"))
    while (at := tables.find(b"\xff\xc4")) >= 0:
        del tables[at : at + 2 + int.from_bytes(tables[at + 2 : at + 4], "big")]
    yield "no_huffman_tables", bytes(tables)
    # Many blocks in few bytes.
    out = io.BytesIO()
    Image.new("L", (1024, 1024), 77).save(out, "JPEG", progressive=True)
    yield "flat", out.getvalue()
    out = io.BytesIO()
    Image.fromarray(picture(29, 37, 7)).save(out, "JPEG", quality=80)
    yield "tiny", out.getvalue()


def main() -> None:
    lines = []
    for name, data in files():
        (HERE / f"{name}.jpg").write_bytes(data)
        pixels = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        lines.append(f"{name} {pixels.shape[0]} {pixels.shape[1]} {hash_of(pixels.tobytes()):016x}\n")
    (HERE / "expected.txt").write_text("".join(lines))


main()
