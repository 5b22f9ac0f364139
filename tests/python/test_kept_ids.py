"""Vocabularies that keep their ids while rows are added, removed, and read by other queries."""

import concurrent.futures
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from test_stages import run

SEED = 11
QUERY = "SELECT n, categorify(user, min_freq => 3, keep_ids => 'users') AS id, user FROM clicks"


def append(folder: Path, name: str, users: list) -> None:
    (folder / "clicks").mkdir(exist_ok=True)
    lines = [json.dumps({"n": n, "user": user}) for n, user in enumerate(users)]
    (folder / f"clicks/{name}.jsonl").write_text("\n".join(lines))


def all_users(folder: Path) -> list:
    files = sorted((folder / "clicks").iterdir())
    return [json.loads(line)["user"] for file in files for line in file.read_text().splitlines()]


def samples(folder: Path, query: str = QUERY, root: str = "root", code: int = 0) -> list[dict] | str:
    """The samples of the query, or else the errors."""
    script = f"CREATE EXTERNAL TABLE clicks STORED AS JSONL LOCATION 'clicks'; CREATE PIPELINE p AS {query};"
    (folder / "p.sql").write_text(script)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    flags = ["--to", out, "--format", "parquet", "--root", folder / root]
    done = run("materialize", "p.sql", *flags, folder=folder, code=code)
    return done.stderr if code else pq.read_table(out).to_pylist()


def ids_of(rows: list[dict]) -> dict:
    ids = {row["user"]: row["id"] for row in rows if row["id"]}
    assert all(row["id"] == ids.get(row["user"], 0) for row in rows)
    return ids


def failure(folder: Path, query: str = QUERY, code: int = 2) -> str:
    return samples(folder, query, code=code)


def counted(users: list, before: list, min_freq: int = 3) -> list:
    """The entries of the next version."""
    counts = Counter(users)
    frequent = [user for user, count in counts.items() if count >= min_freq and user not in before]
    return before + sorted(frequent, key=lambda user: (-counts[user], user))


@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_ids_after_three_appends(tmp_path, kind):
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    entries: list = []
    for day in range(4):
        # Each day has users of its own, and others become more frequent than those before.
        drawn = [int(draw.paretovariate(0.7)) % 200 + draw.choice([0, 50 * day]) for _ in range(700)]
        append(tmp_path, f"day-{day}", drawn if kind == "integers" else [f"user {user}" for user in drawn])
        users = all_users(tmp_path)
        entries = counted(users, entries)
        expected = {user: at for at, user in enumerate(entries, 1) if user in users}
        assert ids_of(samples(tmp_path)) == expected
        # The same data find what is kept.
        assert ids_of(samples(tmp_path)) == expected
    renumbered = counted(users, [])
    assert sorted(renumbered) == sorted(entries) and renumbered != entries
    assert ids_of(samples(tmp_path, QUERY.replace(", keep_ids => 'users'", ""))) != expected


def test_a_name_keeps_ids_in_other_queries_and_over_other_data(tmp_path):
    append(tmp_path, "a", ["x"] * 5 + ["y"] * 4 + ["rare"])
    assert ids_of(samples(tmp_path)) == {"x": 1, "y": 2}
    append(tmp_path, "b", ["z"] * 9 + ["rare"] * 3)
    assert ids_of(samples(tmp_path)) == {"x": 1, "y": 2, "z": 3, "rare": 4}
    # Another column is fitted too, and the frequency is another one.
    query = "SELECT categorify(n, keep_ids => 'n') AS n, categorify(user, min_freq => 4, keep_ids => 'users') AS id, user FROM clicks"
    assert ids_of(samples(tmp_path, query)) == {"x": 1, "y": 2, "z": 3, "rare": 4}
    (tmp_path / "clicks/a.jsonl").unlink()
    append(tmp_path, "c", ["new"] * 20)
    assert ids_of(samples(tmp_path)) == {"z": 3, "rare": 4, "new": 5}
    # Earlier data find their version.
    (tmp_path / "clicks/c.jsonl").unlink()
    append(tmp_path, "a", ["x"] * 5 + ["y"] * 4 + ["rare"])
    assert ids_of(samples(tmp_path)) == {"x": 1, "y": 2, "z": 3, "rare": 4}
    # Another name and another root begin anew.
    anew = {"z": 1, "x": 2, "rare": 3, "y": 4}
    assert ids_of(samples(tmp_path, QUERY.replace("'users'", "'others'"))) == anew
    assert ids_of(samples(tmp_path, root="another")) == anew


def test_the_most_entries_hold_for_old_and_new_ones(tmp_path):
    query = QUERY.replace("min_freq => 3", "max_size => 2")
    append(tmp_path, "a", ["x"])
    assert ids_of(samples(tmp_path, query)) == {"x": 1}
    append(tmp_path, "b", ["z", "z", "y"])
    assert ids_of(samples(tmp_path, query)) == {"x": 1, "z": 2}
    append(tmp_path, "c", ["y"] * 5)
    assert ids_of(samples(tmp_path, query)) == {"x": 1, "z": 2}
    assert ids_of(samples(tmp_path, query.replace("=> 2", "=> 3"))) == {"x": 1, "z": 2, "y": 3}
    append(tmp_path, "d", ["x"])
    few = failure(tmp_path, query, code=4)
    assert "the vocabulary 'users' has 3 entries already, and at most 2 are asked for" in few


def test_processes_that_run_at_a_time_make_versions_of_their_own(tmp_path):
    folders = []
    for number in range(4):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        append(folders[-1], "a", [f"of {number}", "of all"] * 3)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda folder: ids_of(samples(folder, root="../root")), folders))
    assert all(len(ids) == 2 for ids in made)
    assert len(list((tmp_path / "root/names").glob("*/*"))) == 4
    append(folders[0], "b", ["of 0"])
    latest = ids_of(samples(folders[0], root="../root"))
    assert any(latest["of all"] == ids["of all"] for ids in made)


def test_a_version_that_is_lost_or_damaged(tmp_path):
    append(tmp_path, "a", ["x"] * 3)
    samples(tmp_path)
    append(tmp_path, "b", ["y"] * 4)
    samples(tmp_path)
    append(tmp_path, "c", ["z"] * 5)
    [version] = (tmp_path / "root/names").glob("*/00000002")
    fingerprint = json.loads(version.read_text())["body"]["record"]["fingerprint"]
    [vocabulary] = (tmp_path / "root/artifacts" / fingerprint).glob("*.parquet")
    content = vocabulary.read_bytes()
    vocabulary.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    failed = failure(tmp_path, code=4)
    assert "version 2 of the vocabulary 'users' cannot be read" in failed and "then get other ids" in failed
    vocabulary.unlink()
    assert "version 2 of the vocabulary 'users' cannot be read" in failure(tmp_path, code=5)
    [manifest] = (vocabulary.parent / "_forebay/generations").iterdir()
    manifest.write_bytes(manifest.read_bytes().replace(b"rows_out", b"rows_ouT"))
    assert "is damaged" in failure(tmp_path, code=4)
    shutil.rmtree(vocabulary.parent)
    assert ids_of(samples(tmp_path)) == {"x": 1, "z": 2, "y": 3}


@pytest.mark.parametrize(
    "code, query, message",
    [
        (
            2,
            "SELECT categorify(n, keep_ids => 'users') AS n, categorify(user, keep_ids => 'users') AS user FROM clicks",
            "two vocabularies have the name 'users'",
        ),
        (4, "SELECT n, categorify(n, keep_ids => 'users') AS id FROM clicks", "has strings, and the values are integers"),
        (
            2,
            "SELECT id, count(*) AS rows FROM (SELECT categorify(user, keep_ids => 'users') AS id FROM clicks) GROUP BY id",
            "the vocabulary 'users' is fitted within a query over whole tables",
        ),
    ],
)
def test_calls_that_cannot_keep_ids_are_refused(tmp_path, code, query, message):
    append(tmp_path, "a", ["x"] * 3)
    samples(tmp_path)
    assert message in failure(tmp_path, query, code)


def test_a_bare_query_keeps_no_ids(tmp_path):
    append(tmp_path, "a", ["x"] * 3)
    samples(tmp_path)
    query = "SELECT categorify(user, keep_ids => 'users') AS id FROM clicks"
    failed = run("sql", "p.sql", "-c", query, "--root", tmp_path / "root", folder=tmp_path, code=2)
    assert "is fitted within a query over whole tables" in failed.stderr
