"""What a feed keeps by itself: `forebay advise` measures every place, and `cache => 'auto'` keeps what pays off.

Stages that sleep cost the same on every machine, and so dominate what is measured.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from support import Server, Worker, binary, environment

PATIENCE_SECONDS = 120
ROWS = 1_200

PRICES = "worker=0.31/h,trainer=8/h,storage=0.02/GB-month"

# Windows are prepared one by one, so that epochs last longer than it takes to decide.
SLOWLY = ("--epochs", "4", "--threads", "2", "--window-memory-limit", "0")

# Sleeping for 2 ms costs far more than to read what is kept of it.
SLOW = "upper(concat('x', sleep(text, 2)))"
QUERIES = {
    "slow": f"SELECT {SLOW} AS text, random_int(1000) AS r, n FROM numbers WHERE n % 3 <> 0",
    # Sixty times as large, and no work: it is kept before it is inflated.
    "inflated": "SELECT repeat(sleep(text, 2), 60) AS text, random_int(1000) AS r FROM numbers",
    "unnested": """SELECT item, random_uniform() AS u
        FROM (SELECT unnest([length(sleep(text, 2)), n]) AS item FROM numbers)""",
    "random": "SELECT sleep(random_int(1000), 1) AS r, n FROM numbers",
}


class Case:
    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "numbers").mkdir()
        for part in range(4):
            rows = range(part * ROWS // 4, (part + 1) * ROWS // 4)
            text = "".join(f"{n},{'ab' * 40}{n}\n" for n in rows)
            (folder / "numbers" / f"{part}.csv").write_text("n,text\n" + text)

    def script(self, query: str, **options: str) -> Path:
        given = {"shuffle": "true", "window_rows": "40", "window_bytes": "4096"} | options
        listed = ", ".join(f"{name} = {value}" for name, value in given.items())
        script = self.folder / "train.sql"
        script.write_text(
            "CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 'numbers';\n"
            f"CREATE PIPELINE train WITH ({listed}) AS {QUERIES.get(query, query)};"
        )
        return script

    def forebay(self, *arguments: str | Path, expect: int = 0) -> subprocess.CompletedProcess:
        command = [binary(), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == expect, done.stderr
        return done

    def digests(self, script: Path, *flags: str) -> list[tuple[str, str]]:
        lines = self.forebay("run", script, "--output", "json", *SLOWLY, *flags).stdout.splitlines()
        return [(batch["token"], batch["digest"]) for batch in map(json.loads, lines) if "digest" in batch]

    def advice(self, script: Path, *flags: str) -> dict:
        return json.loads(self.forebay("advise", script, "--output", "json", *flags).stdout)

    def kept(self, root: str) -> list[Path]:
        return sorted(path for path in (self.folder / root).glob("cache/*/*") if path.is_file())


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def chosen(advice: dict) -> str | None:
    return advice["estimates"][advice["chosen"]]["cut"]


def test_a_slow_stage_is_kept_and_few_rows_are_measured(case):
    advice = case.advice(case.script("slow"))
    assert advice["trial"]["rows"] <= ROWS * 0.05
    cuts = [estimate["cut"] for estimate in advice["estimates"]]
    assert cuts[:2] == [None, "source"] and "sleep" in cuts
    assert chosen(advice) in ("sleep", "concat", "upper"), "the places after the slow stage are equal"
    never = [estimate["cut"] for estimate in advice["estimates"] if estimate["never_kept"]]
    assert never == ["source", "all calls, random ones included", "whole query"], "local files, and what is random"
    saved = {cut["name"]: cut["compute_seconds_per_sample"] for cut in advice["trial"]["cuts"]}
    # A sample sleeps for 2 ms. What it costs to take it from the cache is subtracted, and is more on a busy machine.
    assert saved["sleep"] >= 0.0005
    assert not case.kept(".forebay"), "a trial keeps nothing"
    assert not list((case.folder / ".forebay").glob("trial/*"))


def test_rows_are_kept_before_they_are_inflated(case):
    # The trainer takes less than either place gives, so that what keeps least is chosen.
    trainer = ("--step-time", "1s", "--batch-size", "4000")
    advice = case.advice(case.script("inflated"), "--epochs-to-come", "20", *trainer)
    assert chosen(advice) == "sleep"
    by_cut = {estimate["cut"]: estimate for estimate in advice["estimates"]}
    assert by_cut["repeat"]["kept_bytes"] > 30 * by_cut["sleep"]["kept_bytes"]


def test_nothing_is_kept_for_a_slow_trainer_one_epoch_or_dear_storage(case):
    script = case.script("slow")
    assert chosen(case.advice(script, "--step-time", "10s", "--batch-size", "32")) is None
    assert chosen(case.advice(script, "--epochs-to-come", "1")) is None
    assert chosen(case.advice(script, "--epochs-to-come", "1", "--other-jobs", "3")) is not None
    assert chosen(case.advice(script, "--keep-at-most", "0")) is None
    dear = "worker=0.31/h,trainer=8/h,storage=1e12/GB-month"
    assert chosen(case.advice(script, "--price", dear)) is None


def test_the_table_and_the_plot_are_for_people(case):
    text = case.forebay("advise", case.script("slow"), "--price", PRICES).stdout
    lines = text.splitlines()
    assert lines[0].startswith("measured ") and "of 1,200 rows" in lines[0]
    header = next(line for line in lines if line.startswith("keep "))
    assert all(column in header for column in ["bytes", "samples/s", "CPU s/epoch", "pays off", "score", "money"])
    assert any("\N{FULL BLOCK}" * 40 in line for line in lines)
    assert lines[-1].startswith("keep after "), lines[-1]


@pytest.mark.parametrize(
    ("flags", "phrases"),
    [
        (["--price", "worker=-1/h"], ["not negative", "worker=0.31/h"]),
        (["--price", "worker=1/h"], ['the price of "trainer" is missing', "trainer=8/h"]),
        (["--step-time", "soon"], ["120ms"]),
        (["--epochs-to-come", "0"], ["epochs-to-come"]),
        (["--weights", "speed=1"], ["none of time, storage and rate"]),
        (["--pipeline", "trian"], ['did you mean "train"?']),
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(case, flags, phrases):
    script = case.script("slow")
    error = subprocess.run(
        [binary(), "advise", script, *flags], cwd=case.folder, env=environment(), capture_output=True, text=True
    )
    assert error.returncode != 0 and "panicked" not in error.stderr
    assert all(phrase in error.stderr for phrase in phrases), error.stderr


@pytest.mark.parametrize("query", QUERIES)
def test_auto_changes_no_sample_while_it_decides_and_afterwards(case, query):
    expected = case.digests(case.script(query))
    script = case.script(query, cache="'auto'")
    assert case.digests(script, "--root", "kept") == expected, "it decides in the middle of the first epoch"
    assert bool(case.kept("kept")) == (query != "random")
    assert case.digests(script, "--root", "kept") == expected, "a second job"
    for segment in case.kept("kept")[::2]:
        segment.unlink()
    assert case.digests(script, "--root", "kept") == expected, "half of it is gone"


def test_a_second_job_reads_in_its_first_epoch_what_the_first_job_kept(case):
    script = case.script("slow", cache="'auto'")
    case.forebay("run", script, *SLOWLY, "--root", "kept")
    kept = case.kept("kept")
    assert kept
    case.forebay("run", script, "--epochs", "1", "--root", "kept", "--seed", "9", "--threads", "1")
    assert case.kept("kept") == kept, "nothing was computed that is to be kept"
    assert "auto" in case.forebay("explain", script, "--root", "kept").stdout


def test_the_limit_holds_and_what_saves_least_makes_room(case):
    poor = case.script("SELECT repeat(sleep(text, 1), 20) AS text FROM numbers", cache="'auto'")
    case.forebay("run", poor, *SLOWLY, "--root", "kept")
    first = case.kept("kept")
    bytes_kept = sum(path.stat().st_size for path in first)
    assert bytes_kept > 0
    rich = case.script("SELECT length(sleep(text, 4)) AS size FROM numbers", cache="'auto'")
    limit = str(bytes_kept + 2_000)
    case.forebay("run", rich, *SLOWLY, "--root", "kept", "--cache-limit", limit)
    second = case.kept("kept")
    assert second and not set(first) & set(second), "rows that save less per byte were deleted"
    # Nothing has room under a limit that is smaller than anything.
    shutil.rmtree(case.folder / "kept")
    case.forebay("run", rich, *SLOWLY, "--root", "kept", "--cache-limit", "1")
    assert not case.kept("kept")


def test_workers_of_a_server_keep_what_pays_off_and_kills_change_nothing(case):
    script = case.script("slow")
    expected = case.digests(script)
    auto = case.script("slow", cache="'auto'")
    with Server(auto, "--no-worker", "--root", case.folder / "kept") as server:
        slowly = ("--threads", "1", "--memory-limit", "16KiB")
        with Worker(server, *slowly) as first, Worker(server, *slowly):
            run = subprocess.Popen(
                [binary(), "run", "--connect", server.uri, "--output", "json", "--epochs", "4"],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            time.sleep(1.5)
            first.process.kill()
            output, _ = run.communicate(timeout=PATIENCE_SECONDS)
    batches = [json.loads(line) for line in output.splitlines()]
    assert [(batch["token"], batch["digest"]) for batch in batches if "digest" in batch] == expected
    assert case.kept("kept")


def test_a_root_that_cannot_be_written_leaves_the_feed_as_it_is(case):
    expected = case.digests(case.script("slow"))
    (case.folder / "file").write_text("")
    script = case.script("slow", cache="'auto'")
    assert case.digests(script, "--root", "file") == expected


def planned(case: Case, *flags: str) -> dict:
    step = ("--step-time", "100ms", "--batch-size", "64")
    output = case.forebay("plan", case.script("slow"), "--output", "json", "--worker-cores", "1", *step, *flags).stdout
    return json.loads(output)["plan"]


def test_a_plan_has_as_many_workers_as_the_stage_asks_for(case):
    # 640 samples a second, each with a little more than 2 ms of a core.
    plan = planned(case, "--keep-at-most", "0", "--epochs-to-come", "1")
    assert plan["chosen"]["configuration"]["cut"] is None
    assert 2 <= plan["chosen"]["configuration"]["workers"] <= 4
    assert plan["chosen"]["waited"] <= 0.01
    kept = planned(case, "--epochs-to-come", "50")["chosen"]["configuration"]
    assert kept["cut"] in ("sleep", "concat", "upper") and kept["workers"] == 1, "later epochs hardly compute"
    local = planned(case, "--keep-at-most", "0", "--trainer-host-cores", "9", "--trainer-cores", "1")
    assert local["chosen"]["configuration"]["workers"] == 0, "idle cores cost nothing"


def test_a_plan_is_explained_beside_its_runner_up(case):
    command = ["plan", case.script("slow"), "--step-time", "100ms", "--batch-size", "64", "--price", PRICES]
    lines = case.forebay(*command).stdout.splitlines()
    [header] = [line for line in lines if "runner-up" in line]
    assert "plan" in header
    rows = ["workers", "local cores", "keep", "step", "trainers wait", "first epoch", "CPU", "read", "sent", "money"]
    assert all(any(line.startswith(row) for line in lines) for row in rows)
    assert any("trainers take 640 samples/s" in line for line in lines)


@pytest.mark.parametrize(
    ("flags", "phrases"),
    [
        ([], ["needs the time of a training step", "--step-time 120ms"]),
        (["--step-time", "120"], ["write a time such as 120ms or 0.2s"]),
        (["--step-time", "1s", "--workers", "0"], ["--trainer-host-cores", "--workers"]),
        (["--step-time", "1s", "--workers", "3..1"], ["range such as 0..8"]),
        (["--step-time", "1s", "--trainer-cores", "4", "--trainer-host-cores", "2"], ["a trainer needs 4 cores"]),
        (["--step-time", "1s", "--price", "worker=1/h"], ['the price of "trainer" is missing']),
        (["--step-time", "1s", "--worker-cores", "none"], ["number of cores"]),
    ],
)
def test_a_plan_of_nonsense_is_refused(case, flags, phrases):
    command = [binary(), "plan", case.script("slow"), *flags]
    error = subprocess.run(command, cwd=case.folder, env=environment(), capture_output=True, text=True)
    assert error.returncode != 0 and "panicked" not in error.stderr
    assert all(phrase in error.stderr for phrase in phrases), error.stderr
