"""The benchmarks in Python run, in a tiny form. Their figures are not checked, but what they check themselves is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from support import REPOSITORY, binary, environment

BENCHES = REPOSITORY / "benches"
PACKAGE = Path(forebay.__file__).resolve().parents[1]
ENDED_WITHIN_SECONDS = 300


def figures(script: str, *options: str) -> list[dict]:
    """Runs a benchmark to its end, and returns its lines of JSON."""
    paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, str(BENCHES / script), *options],
        env=environment() | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=ENDED_WITHIN_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def of_processes(script: str, *options: str) -> list[dict]:
    return figures(script, "--forebay", str(binary()), *options)


def test_workers_scale():
    lines = of_processes("cluster.py", "--only", "scaling", "--rows", "20")
    assert [line["workers"] for line in lines] == [1, 2, 3, 4]


def test_coordinated_reads_give_all_ranks_steps_of_one_length():
    options = ["--steps", "20", "--batch", "4", "--unit", "0.001", "--rounds", "1"]
    lines = of_processes("coordinated.py", "--ranks", "2", "4", *options)
    assert [(line["ranks"], line["steps"]) for line in lines] == [(2, 20), (4, 20)]
    # The lengths of the steps do not depend on time.
    assert [line["of_one_length"] for line in lines] == [1, 1]
    assert all(line["of_these_steps"] > 1.1 for line in lines), lines
    assert [line["arithmetic"] for line in lines] == [1.371, 2.004]


def test_keeping_and_writing_samples():
    lines = of_processes("artifacts.py", "--copies", "1", "--texts", "200", "--rows", "40", "--rounds", "1")
    kinds = [line["measurement"] for line in lines]
    assert kinds == ["cache"] * 3 + ["parquet"] * 4 + ["killed"] + ["scaling"] * 3
    [killed] = [line for line in lines if line["measurement"] == "killed"]
    assert 90 <= killed["written"] <= 100 and killed["windows_computed"] >= 100, killed


def test_trainers_share_a_computation():
    options = ["--copies", "1", "--photographs", "24", "--rounds", "1"]
    lines = of_processes("shared_trainers.py", "--trainers", "2", *options)
    expected = [(1, "private"), (1, "shared"), (2, "private"), (2, "shared")]
    assert [(line["trainers"], line["kind"]) for line in lines] == expected


@pytest.mark.parametrize("way", ["paused", "fewer_threads"])
def test_an_epoch_with_a_slow_worker_is_complete(way):
    lines = of_processes("slow_worker.py", "--way", way, "--workers", "2", "--rows", "40", "--rounds", "1")
    assert [line["workers"] for line in lines] == ["all_fast", "without", "with_slow"]


def test_two_readers_get_every_row_once_while_workers_are_killed():
    lines = of_processes("kills.py", "--rows", "200", "--pause", "0.3", "--rounds", "1")
    assert [(line["run"], line["reader"]) for line in lines] == [
        ("undisturbed", "fast"),
        ("undisturbed", "behind"),
        ("killed", "fast"),
        ("killed", "behind"),
    ]
    assert all((line["kills"] > 0) == (line["run"] == "killed") for line in lines)


def test_pipers_chain_gives_what_pandas_gives():
    lines = figures("piper_peers.py", "--rows", "3000", "--rounds", "1", "--modulus", "97")
    assert [(line["bench"], line["modulus"]) for line in lines] == [("modulus", 97), ("vocabularies", 97)]


def test_a_lake_is_opened_and_read_whole():
    lines = of_processes("lakes.py", "--files", "20", "--delay", "0", "--rows", "2000")
    assert [line["run"] for line in lines if line["bench"] == "opening"] == ["first", "again"]
    assert [line["shuffle"] for line in lines if line["bench"] == "layout"] == ["false", "true"] * 3


def test_late_filters_and_waiting_calls_are_measured():
    lines = of_processes("policies.py", "filter", "waiting", "--rows", "60")
    assert [line["measurement"] for line in lines] == ["filter", "waiting"]


def test_every_place_to_keep_samples_is_tried():
    lines = of_processes("policies.py", "presto", "--rows", "120")
    assert len(lines) == 4 and all(line["rows measured"] <= 0.05 for line in lines)
