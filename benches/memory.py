"""Peak memory of `forebay run` over datasets ten times larger than the window memory limit.

    cargo build --release && python3 benches/memory.py

Generates photographs (copies of the samples, which decode like any others) and a CSV in a temporary folder. Prints each
peak of resident memory and its limit, `LIMIT_MB` + 300 MB. Exits non-zero if a peak is above the limit.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOREBAY = os.environ.get("FOREBAY_BIN", str(ROOT / "target/release/forebay"))
LIMIT_MB = 64
ALLOWED_MB = LIMIT_MB + 300

PIPELINES = {
    "photographs": (
        "CREATE EXTERNAL TABLE t STORED AS MEDIA LOCATION 'photos';"
        "CREATE PIPELINE p WITH (shuffle = true) AS SELECT"
        " normalize(random_hflip(random_resized_crop(decode_image(bytes), 224, 224))) AS image, label FROM t;"
    ),
    "clicks": (
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'clicks.csv';"
        "CREATE PIPELINE p WITH (shuffle = true) AS SELECT log1p(a) AS a, b, c FROM t WHERE b % 10 <> 3;"
    ),
}


def generate(folder: pathlib.Path) -> None:
    samples = sorted((ROOT / "examples/photos").glob("*/*.jpg"))
    size = sum(sample.stat().st_size for sample in samples)
    for copy in range(10 * LIMIT_MB * 1_000_000 // size + 1):
        target = folder / "photos" / f"copy{copy}"
        target.mkdir(parents=True)
        for index, sample in enumerate(samples):
            shutil.copyfile(sample, target / f"{index}.jpg")
    with open(folder / "clicks.csv", "w", encoding="utf-8") as file:
        file.write("a,b,c\n")
        row = 0
        while file.tell() < 10 * LIMIT_MB * 1_000_000:
            file.writelines(f"{n % 1013}.5,{n},some words that take room {n}\n" for n in range(row, row + 10_000))
            row += 10_000


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    generate(folder)
    good = True
    for dataset, sql in PIPELINES.items():
        (folder / "script.sql").write_text(sql, encoding="utf-8")
        command = [FOREBAY, "run", str(folder / "script.sql"), "--batch-size", "32", "--output", "json"]
        command += ["--window-memory-limit", f"{LIMIT_MB}MB"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        summary = json.loads(output.splitlines()[-1])
        peak = summary["peak_rss_bytes"] / 1e6
        good &= peak <= ALLOWED_MB
        print(
            json.dumps(
                {
                    "dataset": dataset,
                    "samples": summary["samples"],
                    "peak_mb": round(peak),
                    "allowed_mb": ALLOWED_MB,
                    "samples_per_second": round(summary["samples_per_second"]),
                }
            )
        )
sys.exit(0 if good else 1)
