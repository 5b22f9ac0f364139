"""The cache: what a feed keeps changes no sample, however much of it is there. A damaged cache is computed again."""

import contextlib
import json
import random
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from counting_bucket import CountingBucket
from support import REPOSITORY, Process, Server, binary, environment

PATIENCE_SECONDS = 120
ROWS = 3_000

TABLES = f"""
CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{REPOSITORY}/examples/photos';
CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 'numbers';
CREATE EXTERNAL TABLE labels STORED AS CSV LOCATION 'labels.csv';
"""

# The rows whose number ends in 77 are bad below the cut, and some others above it.
BAD = "CASE WHEN n % 100 = 77 THEN CAST(concat('x', text) AS BIGINT) ELSE n END"

QUERIES = {
    "photos": """SELECT normalize(random_hflip(random_crop(resize(decode_image(bytes), 48, 48), 32, 32))) AS image, label
        FROM photos WHERE label <> 'cat'""",
    # A normalize of the query is a step of a reader in one column only.
    "moved": """SELECT image AS hwc, to_chw(image) AS chw, label
        FROM (SELECT normalize(resize(decode_image(bytes), 24, 24)) AS image, label FROM photos)""",
    "packed": "SELECT * FROM pack((SELECT [n, length(text), n % 7] AS t FROM numbers WHERE n % 5 <> 0), length => 16)",
    "unnested": "SELECT item, random_uniform() AS u FROM (SELECT unnest([length(text), n % 3]) AS item, n FROM numbers)",
    "joined": """SELECT upper(a.text) AS text, b.label, random_int(10) AS r
        FROM numbers a JOIN labels b ON length(a.text) = b.size""",
    "bad": f"SELECT upper(text) AS text, abs({BAD}) AS n, random_int(5) + 1 / (n - 40) AS r FROM numbers",
    "lazy": """SELECT CASE WHEN n % 2 = 0 THEN length(text) ELSE 10 / (n % 2) END AS a, upper(text) AS b,
        coalesce(NULLIF(n % 3, 0), 5 / (n % 3 + 1)) + random_int(3) AS c,
        random_int(9) BETWEEN 6 AND abs(10 / (n % 4 - n % 2 * 2)) AS d,
        random_int(3) IN (1, abs(n), abs(10 / (n % 4))) AS e FROM numbers""",
}


@dataclass
class Case:
    """A folder with the data and a pipeline over it."""

    folder: Path
    query: str
    options: dict[str, str] = field(default_factory=dict)

    def script(self, **options: str) -> Path:
        rows = "40" if "photos" in self.query else "250"
        options = {"shuffle": "true", "seed": "5", "window_rows": rows, "on_error": "'skip'"} | self.options | options
        listed = ", ".join(f"{name} = {value}" for name, value in options.items())
        script = self.folder / "train.sql"
        script.write_text(f"{TABLES}CREATE PIPELINE train WITH ({listed}) AS {self.query};")
        return script

    def run(self, *flags: str, script: Path | None = None, expect: int = 0) -> subprocess.CompletedProcess:
        command = [binary(), "run", str(script or self.script()), "--output", "json", "--epochs", "2", *flags]
        done = subprocess.run(command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == expect, done.stderr
        return done

    def digests(self, *flags: str, script: Path | None = None) -> list[tuple[str, str]]:
        batches = [json.loads(line) for line in self.run(*flags, script=script).stdout.splitlines()]
        return [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch]

    def quarantined(self, root: str) -> set[tuple[str, ...]]:
        """The records of bad rows. A worker has a file for a window, and a process one for a batch."""
        files = [pq.read_table(path) for path in self.folder.glob(f"{root}/quarantine/*/*.parquet")]
        return {tuple(map(str, record.values())) for file in files for record in file.to_pylist()}

    def segments(self, root: str = "kept") -> list[Path]:
        return sorted(path for path in (self.folder / root).glob("cache/*/*") if path.is_file())


@pytest.fixture
def case(tmp_path: Path):
    (tmp_path / "numbers").mkdir()
    for part in range(6):
        rows = range(part * ROWS // 6, (part + 1) * ROWS // 6)
        text = "".join(f"{n},{'ab' * (n % 9)}{n}\n" for n in rows)
        (tmp_path / "numbers" / f"{part}.csv").write_text("n,text\n" + text)
    (tmp_path / "labels.csv").write_text("size,label\n" + "".join(f"{n},label {n}\n" for n in range(1, 12)))
    return lambda query, **options: Case(tmp_path, QUERIES.get(query, query), options)


@pytest.mark.parametrize("query", QUERIES)
def test_digests_are_equal_without_a_cache_and_with_any_part_of_one(case, query):
    feed = case(query)
    expected = feed.digests()
    assert expected
    prefix = ("--cache", "prefix", "--root", "kept")
    assert feed.digests(*prefix) == expected, "cold"
    segments = feed.segments()
    assert segments
    assert feed.digests(*prefix) == expected, "full"
    assert feed.segments() == segments, "nothing is written twice"
    for segment in segments[::2]:
        segment.unlink()
    assert feed.digests(*prefix) == expected, "half full"
    assert feed.segments() != segments[1::2], "what was missing is kept again"
    window = ("--window-rows", "600")
    assert feed.digests(*prefix, *window) == feed.digests(*window), "other windows"


def test_ranks_read_what_others_keep(case):
    feed = case("photos")
    prefix = ("--cache", "prefix", "--root", "kept")
    for ranks in (2, 4):
        for rank in range(ranks):
            of_rank = ("--rank", str(rank), "--world-size", str(ranks))
            assert feed.digests(*prefix, *of_rank) == feed.digests(*of_rank)
    assert feed.digests(*prefix) == feed.digests()


def test_another_pipeline_with_the_same_prefix_reads_it(case):
    feed = case("photos")
    feed.digests("--cache", "prefix", "--root", "kept")
    segments = feed.segments()
    other = case(QUERIES["photos"].replace("random_hflip(", "random_vflip("), seed="9")
    expected = other.digests()
    assert other.digests("--cache", "prefix", "--root", "kept") == expected
    assert feed.segments() == segments


def test_a_damaged_segment_is_computed_again_and_said(case):
    feed = case("photos")
    expected = feed.digests()
    prefix = ("--cache", "prefix", "--root", "kept")
    feed.run(*prefix)
    segments = feed.segments()
    for number, segment in enumerate(segments):
        content = bytearray(segment.read_bytes())
        content[len(content) // 3 if number % 2 else -20] ^= 4
        segment.write_bytes(content)
    assert feed.digests(*prefix) == expected
    for segment in feed.segments():
        content = bytearray(segment.read_bytes())
        content[len(content) // 3] ^= 4
        segment.write_bytes(content)
    done = feed.run(*prefix)
    assert "kept rows are computed again" in done.stderr and "is damaged" in done.stderr
    assert feed.digests(*prefix) == expected
    shutil.rmtree(feed.folder / "kept")
    assert feed.digests(*prefix) == expected


def test_changed_data_and_queries_have_caches_of_their_own(case):
    feed = case("lazy")
    prefix = ("--cache", "prefix", "--root", "kept")
    feed.run(*prefix)
    (feed.folder / "numbers" / "0.csv").write_text("n,text\n1,changed\n")
    assert feed.digests(*prefix) == feed.digests()
    other = case(QUERIES["lazy"].replace("upper(text)", "lower(text)"))
    assert other.digests(*prefix) == other.digests()
    assert len(list((feed.folder / "kept" / "cache").iterdir())) == 3


def test_full_repeats_the_first_epochs_draws_in_another_order(case):
    feed = case("SELECT concat(n, ':', random_int(1000000)) AS id, length(text) AS l FROM numbers")
    full = ("--cache", "full", "--root", "kept")

    def drawn(*flags: str) -> dict[int, list[str]]:
        lines = [json.loads(line) for line in feed.run(*flags, "--ids", "id").stdout.splitlines()]
        return {epoch: [row for line in lines if line.get("epoch") == epoch for row in line["ids"]] for epoch in (0, 1)}

    rows = drawn(*full)
    assert sorted(rows[0]) == sorted(rows[1]) and rows[0] != rows[1] and len(rows[0]) == ROWS
    without = drawn()
    assert sorted(without[0]) == sorted(rows[0]) and sorted(without[1]) != sorted(rows[1])
    assert feed.segments()
    first = feed.digests(*full)
    assert feed.digests(*full) == first
    shutil.rmtree(feed.folder / "kept")
    assert feed.digests(*full) == first
    # It is another feed.
    assert first[0][0].split(".")[1] != feed.digests()[0][0].split(".")[1]


@pytest.mark.parametrize("query,flags,message", [
    ("SELECT n, random_int(3) AS r FROM numbers", (), "no call of the query is the same in every epoch"),
    ("SELECT length(text) AS l FROM numbers WHERE random_uniform() < 0.5", (), "condition draws random values"),
    ("SELECT length(text) AS l, [n] AS t FROM numbers", ("--bucket-by-length", "t", "--bucket-boundaries", "1", "--global-batch-size", "8"), "cannot be combined"),
])  # fmt: skip
def test_a_cache_without_anything_to_keep_is_refused(case, query, flags, message):
    done = case(query).run("--cache", "prefix", *flags, expect=2)
    assert message in done.stderr and "hint" in done.stderr, done.stderr


def test_explain_shows_where_the_prefix_ends_and_how_much_is_kept(case):
    feed = case("photos")
    command = [binary(), "explain", str(feed.script(cache="'prefix'")), "--root", "kept"]
    before = subprocess.run(command, cwd=feed.folder, env=environment(), capture_output=True, text=True)
    assert "cache    prefix: 0 of 240 rows are kept" in before.stdout, before.stdout + before.stderr
    assert "bytes for each byte of photos" in before.stdout and "prefix:\n" in before.stdout
    feed.run("--root", "kept", script=feed.script(cache="'prefix'"))
    after = subprocess.run(command, cwd=feed.folder, env=environment(), capture_output=True, text=True)
    assert "240 of 240 rows are kept" in after.stdout


def test_a_cache_that_cannot_be_written_costs_a_warning(case):
    feed = case("photos")
    expected = feed.digests()
    (feed.folder / "file").write_text("")
    done = feed.run("--cache", "prefix", "--root", "file")
    assert "the cache cannot be written" in done.stderr or "cannot be listed" in done.stderr
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch] == expected


def test_a_store_that_becomes_slow_costs_a_warning_and_half_a_minute(case, monkeypatch):
    feed = case("photos")
    expected = feed.digests()
    feed.run("--cache", "prefix", "--root", "kept")
    with CountingBucket(feed.folder) as bucket:
        # The first reads are as fast as ever. Each of the others takes longer than a reader waits.
        bucket.delay_of = lambda _key: 60 if len(bucket.reads) > 3 else 0
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        begun = time.monotonic()
        done = feed.run("--cache", "prefix", "--root", "s3://bucket/kept")
        took = time.monotonic() - begun
        reads = len(bucket.reads)
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch] == expected
    assert done.stderr.count("kept rows are computed again for a minute: reading them takes too long") == 1
    # Two epochs have 480 rows. Windows that are prepared at the same time wait together, and no other waits.
    assert 3 < reads < 300 and 29 < took < 85, (reads, took, done.stderr)


@pytest.mark.parametrize("query", ["photos", "moved"])
def test_workers_keep_for_each_other(case, query):
    feed = case(query)
    expected = feed.digests()
    script = feed.script(cache="'prefix'")
    root = str(feed.folder / "kept")
    with Server(script, "--no-worker", "--root", root) as server:
        remote = ["--connect", server.uri, "--pipeline", "train"]

        def read() -> list[tuple[str, str]]:
            command = [binary(), "run", *remote, "--output", "json", "--epochs", "2"]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            batches = [json.loads(line) for line in done.stdout.splitlines()]
            return [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch]

        worker = ["worker", "--dispatcher", server.uri]
        with Process(*worker), Process(*worker):
            assert read() == expected
        segments = feed.segments()
        assert segments
        # A worker that is new computes nothing of the prefix again.
        with Process(*worker):
            assert read() == expected
        assert feed.segments() == segments


KILLED = [(query, "prefix") for query in ("photos", "packed", "unnested", "joined", "bad")]


@pytest.mark.parametrize(("query", "cache"), [*KILLED, ("photos", "full"), ("bad", "full")])
def test_kills_of_workers_change_nothing(case, query, cache):
    """Kills workers while 1, 2 and 4 ranks read with no segment, with some, and with windows of another size."""
    seed = 64
    print(f"seed {seed}")
    drawn = random.Random(seed)
    feed = case(query, on_error="'quarantine'")
    script = feed.script(cache=f"'{cache}'")
    expected = {}
    for ranks, window in ((1, ()), (2, ()), (4, ("--window-rows", "97"))):
        given = [("--rank", str(rank), "--world-size", str(ranks), *window) for rank in range(ranks)]
        expected[ranks] = [(flags, feed.digests("--root", "alone", *flags, script=script)) for flags in given]
        assert all(digests for _, digests in expected[ranks])
    root = str(feed.folder / "kept")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(script, "--no-worker", "--root", root))

        def begin_worker() -> Process:
            return stack.enter_context(Process("worker", "--dispatcher", server.uri))

        workers = [begin_worker() for _ in range(3)]
        kills = 0
        for ranks, of_ranks in expected.items():
            readers = [
                subprocess.Popen(
                    [binary(), "run", "--connect", server.uri, "--pipeline", "train", *flags, "--epochs", "2", "--output", "json"],
                    env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
                for flags, _ in of_ranks
            ]  # fmt: skip
            for _ in range(3):
                time.sleep(drawn.uniform(0.01, 0.2))
                if all(reader.poll() is not None for reader in readers):
                    break
                killed = drawn.randrange(3)
                workers[killed].process.kill()
                workers[killed] = begin_worker()
                kills += 1
            for reader, (flags, wanted) in zip(readers, of_ranks):
                output, error = reader.communicate(timeout=PATIENCE_SECONDS)
                assert reader.returncode == 0, error
                batches = [json.loads(line) for line in output.splitlines()]
                assert [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch] == wanted, flags
            segments = feed.segments()
            assert segments
            for segment in drawn.sample(segments, len(segments) // 3):
                segment.unlink()
        assert kills >= 3
    assert feed.quarantined("kept") == feed.quarantined("alone")
    assert bool(feed.quarantined("alone")) == (query == "bad")


def test_readers_choose_no_seed_of_a_full_cache(case, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("reads-only-but-long reader train\noperates-all-but-long operator\n")
    tokens.chmod(0o600)
    script = case("SELECT n, random_int(9) AS r, length(text) AS l FROM numbers").script(cache="'full'")
    with Server(script, "--root", str(tmp_path / "kept"), "--token-file", str(tokens)) as server:

        def read(token: str, *more: str) -> subprocess.CompletedProcess:
            command = [binary(), "run", "--connect", server.uri, "--pipeline", "train", "--token", token, *more]
            return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS)

        for token, more in [("reads-only-but-long", ()), ("reads-only-but-long", ("--seed", "5")),
                            ("operates-all-but-long", ("--seed", "6"))]:  # fmt: skip
            done = read(token, *more)
            assert done.returncode == 0, done.stderr
        done = read("reads-only-but-long", "--seed", "6")
        assert done.returncode != 0 and "for the seed 5 only" in done.stderr and "hint" in done.stderr, done.stderr
