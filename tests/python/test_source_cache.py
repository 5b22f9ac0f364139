"""`cache = 'source'`: what is read of a bucket is kept on the local disk, within a limit."""

import json
import subprocess
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counting_bucket import CountingBucket
from support import Process, Server, binary, environment

ROWS = 60_000
EPOCHS = 4
SCRIPT = """
CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/rows';
CREATE PIPELINE train WITH (shuffle = true, seed = 3, batch_size = 5000, window_bytes = '2MiB') AS
SELECT n, x, y, random_int(10) AS r FROM t;
"""


@pytest.fixture
def bucket(tmp_path: Path):
    seed = 8
    print("seed", seed)
    random = np.random.default_rng(seed)
    (tmp_path / "bucket/rows").mkdir(parents=True)
    for part in range(6):
        columns = {name: random.normal(size=ROWS // 6) for name in "xyz"}
        rows = pa.table({"n": np.arange(ROWS // 6) + part * ROWS // 6, **columns})
        name = tmp_path / f"bucket/rows/{part}.parquet"
        pq.write_table(rows, name, row_group_size=1_000, use_dictionary=False, compression="none")
    (tmp_path / "train.sql").write_text(SCRIPT)
    with CountingBucket(tmp_path / "bucket") as bucket:
        bucket.size = (tmp_path / "bucket/rows/0.parquet").stat().st_size
        yield bucket


def run(bucket: CountingBucket, folder: Path, *options: str, epochs: int = EPOCHS, expect: int = 0):
    """Reads epochs. Returns the tokens and digests, and the standard error."""
    # Windows of one epoch at a time: the table is so small that several epochs would be read ahead.
    options = ("--window-memory-limit", "1MiB", *options)
    command = [binary(), "run", folder / "train.sql", "--epochs", str(epochs), "--output", "json", *options]
    bucket.reads.clear()
    variables = {**environment(), **bucket.environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, cwd=folder)
    assert done.returncode == expect, done.stderr
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    return [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch], done.stderr


def read_bytes(bucket: CountingBucket) -> int:
    """Bytes that were read of rows, without the ends of files, which tell where the rows are."""
    return sum(end - start for _, start, end in rows_read(bucket))


def rows_read(bucket: CountingBucket) -> list[tuple[str, int, int]]:
    return [read for read in bucket.reads if read[2] < bucket.size]


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*-*") if path.is_file())


SOURCE = ("--cache", "source", "--root", "kept")


def test_files_are_read_once_and_samples_are_the_same(bucket, tmp_path):
    expected, _ = run(bucket, tmp_path)
    without = read_bytes(bucket)
    assert run(bucket, tmp_path, *SOURCE)[0] == expected
    first = read_bytes(bucket)
    assert first == without / EPOCHS, (first, without)
    # Another process, and another order.
    assert run(bucket, tmp_path, *SOURCE)[0] == expected
    assert read_bytes(bucket) == 0
    run(bucket, tmp_path, *SOURCE, "--seed", "4")
    assert read_bytes(bucket) == 0


def test_half_of_a_dataset_stays_where_lru_would_evict_it(bucket, tmp_path):
    run(bucket, tmp_path, epochs=1)
    dataset = read_bytes(bucket)
    # What every epoch asks for, in its order.
    asked, of_first = [], 0
    for epochs in range(1, EPOCHS + 1):
        run(bucket, tmp_path, epochs=epochs)
        asked.append(rows_read(bucket)[of_first:])
        of_first = len(rows_read(bucket))
    limit = dataset // 2
    run(bucket, tmp_path, *SOURCE, "--cache-limit", str(limit), epochs=1)
    first = read_bytes(bucket)
    run(bucket, tmp_path, *SOURCE, "--cache-limit", str(limit))
    ours = read_bytes(bucket) / EPOCHS
    assert on_disk(tmp_path / "kept") <= limit
    assert ours <= 0.55 * dataset, (ours, dataset, first)

    # LRU with the same room.
    kept, held, missed = OrderedDict(), 0, 0
    for number, reads in enumerate(asked):
        for read in reads:
            if read in kept:
                kept.move_to_end(read)
                continue
            size = read[2] - read[1]
            kept[read], held = size, held + size
            missed += size if number else 0
            while held > limit:
                held -= kept.popitem(last=False)[1]
    lru = missed / (EPOCHS - 1)
    print(f"an epoch reads {ours / dataset:.2f} of the dataset, with LRU {lru / dataset:.2f}")
    assert lru >= 1.5 * ours, (lru, ours)


def test_damaged_pieces_are_read_again_and_said(bucket, tmp_path):
    expected, _ = run(bucket, tmp_path, *SOURCE)
    pieces = [path for path in (tmp_path / "kept/source").rglob("*-*") if path.is_file()]
    for number, piece in enumerate(pieces):
        content = bytearray(piece.read_bytes())
        content[number % len(content)] ^= 1
        piece.write_bytes(content)
    again, said = run(bucket, tmp_path, *SOURCE)
    assert again == expected and "a kept piece is damaged" in said
    assert read_bytes(bucket) > 0
    run(bucket, tmp_path, *SOURCE)
    assert read_bytes(bucket) == 0


def test_a_full_disk_costs_a_warning(bucket, tmp_path):
    expected, _ = run(bucket, tmp_path)
    (tmp_path / "file").write_text("")
    found, said = run(bucket, tmp_path, "--cache", "source", "--cache-folder", "file")
    assert found == expected and said.count("nothing more is kept for a minute") == 1, said


def test_a_folder_must_be_on_the_local_disk(bucket, tmp_path):
    _, said = run(bucket, tmp_path, "--cache", "source", "--root", "s3://bucket/root", expect=2)
    assert "cache_folder" in said, said
    _, said = run(bucket, tmp_path, *SOURCE, "--cache-folder", "s3://bucket/kept", expect=2)
    assert "must be on the local disk" in said, said


def test_explain_says_what_is_kept(bucket, tmp_path):
    def explained(*options: str) -> str:
        command = [binary(), "explain", tmp_path / "train.sql", "--cache", "source", *options]
        variables = {**environment(), **bucket.environment}
        return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path, check=True).stdout

    run(bucket, tmp_path, *SOURCE, epochs=1)
    text = explained("--root", "kept", "--cache-limit", "1GiB")
    line = next(line for line in text.splitlines() if line.startswith("  cache    source: "))
    kept = int(line.split()[2])
    assert 0.9 * on_disk(tmp_path / "kept") < kept <= on_disk(tmp_path / "kept"), line
    assert "bytes of at most 1073741824" in line
    local = SCRIPT.replace("s3://bucket/rows", str(tmp_path / "bucket/rows"))
    (tmp_path / "train.sql").write_text(local)
    assert "nothing is kept, since no file of t is remote" in explained()


def test_workers_have_folders_of_their_own(bucket, tmp_path):
    expected, _ = run(bucket, tmp_path)
    (tmp_path / "train.sql").write_text(SCRIPT.replace("shuffle", "cache = 'source', shuffle"))
    with Server(
        tmp_path / "train.sql", "--no-worker", "--root", str(tmp_path / "root"), variables=bucket.environment
    ) as server:
        worker = ["worker", "--dispatcher", server.uri]
        folders = [tmp_path / "one", tmp_path / "two"]
        with (
            Process(*worker, "--cache-folder", folders[0], variables=bucket.environment),
            Process(*worker, "--cache-folder", folders[1], variables=bucket.environment),
        ):
            command = [binary(), "run", "--connect", server.uri, "--epochs", str(EPOCHS), "--output", "json"]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
            batches = [json.loads(line) for line in done.stdout.splitlines()]
            assert [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch] == expected
        assert all(on_disk(folder) for folder in folders)


def test_auto_keeps_what_a_slow_store_gives(bucket: CountingBucket, tmp_path: Path):
    expected, _ = run(bucket, tmp_path)
    without = read_bytes(bucket)
    bucket.delay = 0.05
    assert run(bucket, tmp_path, "--cache", "auto")[0] == expected, "it decides while the epochs are read"
    assert any(path.is_file() for path in (tmp_path / ".forebay/source").rglob("*"))
    assert run(bucket, tmp_path, "--cache", "auto")[0] == expected
    assert read_bytes(bucket) < 0.6 * without, "what the first run kept is read from the disk"
