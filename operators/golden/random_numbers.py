"""Writes random_numbers.json: numbers of `random_uniform`, `random_int` and `random_normal` for the keys of the tests.

    pip install xxhash
    python random_numbers.py
"""

import json
import math
import pathlib
import struct

import xxhash

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

    def normal(self, mean, std):
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return mean + std * (radius * math.cos(math.tau * self.uniform()))


if __name__ == "__main__":
    rows = range(8)
    # Texts, because a reader of JSON may round numbers.
    numbers = {
        "uniform": [Draws(row).uniform() for row in rows],
        "uniform_in": [Draws(row).uniform(-2.0, 3.0) for row in rows],
        "int": [Draws(row).below(10) for row in rows],
        "normal": [Draws(row).normal(5.0, 2.0) for row in rows],
    }
    pathlib.Path(__file__).with_name("random_numbers.json").write_text(
        json.dumps({name: [repr(number) for number in row] for name, row in numbers.items()}, indent=1) + "\n"
    )
