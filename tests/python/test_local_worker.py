"""A worker in the trainer's process: what it computes, when it leaves, and what is refused."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import forebay
from cluster import status_of, undisturbed, write_script
from support import Server, Worker, environment
from test_scaling import PATIENCE_SECONDS, QUICK, children, status, until

ROWS = 400
PACKAGE = Path(forebay.__file__).resolve().parents[1]
# Prints the place and the content of each batch.
LOOP = """
import json, sys, time
import forebay
uri, epochs, step, options = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])
for batch in forebay.connect(uri, **options).load("train", epochs=epochs, format="numpy"):
    print(json.dumps([batch.epoch, batch.offset, *(batch[name].tolist() for name in batch)]), flush=True)
    time.sleep(step)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path, rows=ROWS, batch_size=10, window_rows=20, milliseconds=2, rows_per_file=20)


def trainer(uri: str, epochs: int, step: float = 0, output=subprocess.PIPE, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", LOOP, uri, str(epochs), str(step), json.dumps(options)]
    paths = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        command,
        env=environment() | {"PYTHONPATH": paths},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen) -> list:
    output, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, error
    return [json.loads(line) for line in output.splitlines()]


def expected(script: Path, epochs: int) -> list:
    quick = script.with_name("expected.sql")
    quick.write_text(script.read_text().replace("milliseconds => 2", "milliseconds => 0"))
    with Server(quick, "--threads", "1") as server:
        return lines(trainer(server.uri, epochs))


def beside(server: Server) -> list[dict]:
    return [worker for worker in status(server)["workers"] if worker["beside_trainer"]]


def test_a_local_worker_computes_alone_and_with_others_and_is_killed(script):
    wanted = expected(script, 2)
    with Server(script, "--no-worker") as server:
        alone = trainer(server.uri, 2, local_worker=2)
        assert lines(alone) == wanted
        until("no worker", lambda: not status(server)["workers"])
        with Worker(server, "--threads", "1"):
            # A trainer that is killed takes its worker with it. The other one reads on.
            killed = trainer(server.uri, 50, 0.02, local_worker=1)
            until("both workers", lambda: len(status(server)["workers"]) == 2)
            reads = trainer(server.uri, 2, 0.02)
            until("windows beside the trainer", lambda: any(worker["windows"] for worker in beside(server)))
            killed.kill()
            killed.communicate()
            assert lines(reads) == wanted


def test_remote_workers_go_when_local_ones_do_the_work(tmp_path):
    script = write_script(tmp_path, rows=3_000, batch_size=10, window_rows=20, milliseconds=10, rows_per_file=20)
    digests = [batch.ids for batch in undisturbed(script, 1).values()]
    with Server(script, "--workers", "0..3", *QUICK) as server, ExitStack() as stack:
        # Ten samples in 160 ms are 62 in a second, and a thread makes a hundred. A pipe that is not read would stop the
        # trainers soon.
        output = stack.enter_context((tmp_path / "slow.jsonl").open("w"))
        slow = stack.enter_context(trainer(server.uri, 100, 0.16, output))
        stack.callback(slow.kill)
        until("a worker", lambda: children(server))
        until("a decision by rates", lambda: ": trainers take" in status(server)["scaling"]["reason"], 120)
        beside_it = stack.enter_context(trainer(server.uri, 100, 0.16, subprocess.DEVNULL, local_worker=4))
        stack.callback(beside_it.kill)
        until("a local worker", lambda: beside(server))
        until("no other worker", lambda: not children(server), 180)
        scaling = status(server)["scaling"]
        assert scaling["workers"] == 0 and "beside 1 that others run" in scaling["reason"], scaling
        # Without it, they come back, and no sample is lost.
        beside_it.kill()
        until("a worker again", lambda: children(server), 120)
        first = [json.loads(line) for line in Path(output.name).read_text().splitlines()[:20]]
        assert [line[1] for line in first] == [10 * step for step in range(20)]
        assert [[str(id) for id in line[2]] for line in first] == [list(ids) for ids in digests[:20]]


def test_workers_that_others_started_are_not_the_scaler_s(script):
    with Server(script, "--workers", "2", *QUICK) as server, Worker(server, "--threads", "1"):
        until("all three", lambda: len(status(server)["workers"]) == 3)
        reason = until("the reason", lambda: "that others run" in (text := status(server)["scaling"]["reason"]) and text)
        assert reason.startswith("2 workers beside 1 that others run: ") and len(children(server)) == 2


def test_auto_begins_where_no_other_worker_computes(script):
    wanted = expected(script, 2)
    with Server(script, "--no-worker") as server:
        assert lines(trainer(server.uri, 2, local_worker="auto")) == wanted


def test_a_local_worker_is_one_of_a_process_and_leaves_with_its_last_user(script):
    with Server(script, "--no-worker") as server:
        first = forebay.connect(server.uri, local_worker=1)
        second = forebay.connect(server.uri, local_worker=1)
        assert second.local_threads == 1 and forebay.connect(server.uri).local_threads == 0
        [worker] = until("the worker", lambda: beside(server))
        with pytest.raises(forebay.InvalidError, match="has a local worker for .* with other settings"):
            forebay.connect(server.uri, local_worker=2)
        loader = second.load("train")
        del first, second
        assert len(list(loader)) > 0 and beside(server)[0]["worker"] == worker["worker"]
        del loader
        until("its leaving", lambda: not beside(server))
        with forebay.connect(server.uri, local_worker=1) as third:
            assert until("the next", lambda: beside(server))[0]["worker"] != worker["worker"]
        assert third.local_threads == 0 and not beside(server)


def test_status_shows_it(script):
    with Server(script, "--no-worker") as server, forebay.connect(server.uri, local_worker=1):
        until("the worker", lambda: beside(server))
        assert "computing beside a trainer" in status_of(server)


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"local_worker": 0}, 'a number of threads, or "auto"'),
        ({"local_worker": -1}, 'a number of threads, or "auto"'),
        ({"local_worker": True}, 'a number of threads, or "auto"'),
        ({"local_worker": "all"}, 'a number of threads, or "auto"'),
        ({"local_worker": 1.5}, 'a number of threads, or "auto"'),
        ({"local_worker": 10**9}, "at most 4096"),
        ({"local_worker": 1, "local_worker_memory": "much"}, "local_worker_memory"),
        ({"local_worker": 1, "local_worker_address": "localhost"}, 'must be an IP address, got "localhost"'),
        ({"local_worker": 1, "local_worker_address": "192.0.2.1"}, "other machines reach this local worker"),
        ({"local_worker": 1, "local_worker_address": "192.0.2.1", "insecure": True}, "cannot listen on 192.0.2.1"),
        ({"local_worker_memory": "1GiB"}, 'without "local_worker"'),
        ({"local_worker_address": "127.0.0.1"}, 'without "local_worker"'),
    ],
)
def test_wrong_values_are_refused(script, options, phrase):
    with Server(script) as server, pytest.raises(forebay.InvalidError) as refused:
        forebay.connect(server.uri, **options)
    assert phrase in str(refused.value), refused.value


def test_a_trainer_without_the_right_to_compute_is_told(script, tmp_path):
    readers, workers = tmp_path / "readers", tmp_path / "workers"
    readers.write_text("reads-only-but-long\n")
    workers.write_text("computes-only-but-long\n")
    for file in (readers, workers):
        file.chmod(0o600)
    secured = ("--no-worker", "--token-file", str(readers), "--worker-token-file", str(workers))
    with Server(script, *secured) as server:
        for how in (1, "auto"):
            with pytest.raises(forebay.DeniedError, match="this process may read") as refused:
                forebay.connect(server.uri, token="reads-only-but-long", local_worker=how)
            assert 'without "local_worker"' in str(refused.value)
        assert forebay.connect(server.uri, token="reads-only-but-long").pipelines() == ["train"]
        with forebay.connect(server.uri, token="computes-only-but-long", local_worker=1) as cluster:
            assert len(list(cluster.load("train"))) > 0


def test_a_dispatcher_that_is_gone(script):
    with Server(script) as server:
        uri = server.uri
    with pytest.raises(forebay.UnavailableError):
        forebay.connect(uri, local_worker=1)


def test_ranks(script, monkeypatch):
    with Server(script) as server:
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert forebay.connect(server.uri, local_worker="auto")._local_worker is None
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        monkeypatch.setenv("WORLD_SIZE", "4")
        with pytest.raises(forebay.InvalidError, match='give "local_worker_address"'):
            forebay.connect(server.uri, local_worker=1)
        forebay.connect(server.uri, local_worker=1, local_worker_address="127.0.0.1").close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_has_no_part_in_it(script):
    with Server(script, "--no-worker") as server, forebay.connect(server.uri, local_worker=1) as cluster:
        until("the worker", lambda: beside(server))
        child = os.fork()
        if child == 0:
            # Neither closing nor ending waits for threads that are not there.
            try:
                cluster.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(cluster.load("train"))) > 0 and beside(server)


def test_ctrl_c_drains_it(script):
    with Server(script, "--no-worker") as server:
        process = trainer(server.uri, 100, 0.05, local_worker=1)
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode != 0 and "KeyboardInterrupt" in error and "panicked" not in error, error
        until("its leaving", lambda: not status(server)["workers"])
