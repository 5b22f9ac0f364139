"""A server that starts and drains workers as its trainers need them, and what it decides."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from cluster import undisturbed, write_script
from support import Server, binary, environment

PATIENCE_SECONDS = 60
ROWS = 3_000
# Milliseconds that a sample takes to compute: a worker of one thread makes 100 samples in a second.
MILLISECONDS = 10
QUICK = ("--threads", "1", "--settle-for", "2", "--metrics-port", "0")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path, rows=ROWS, batch_size=10, window_rows=20, milliseconds=MILLISECONDS, rows_per_file=20)


def until(what: str, is_so: Callable[[], object], seconds: float = PATIENCE_SECONDS):
    """Waits for something, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"{what} within {seconds} s"
        time.sleep(0.05)
    return found


def status(server: Server) -> dict:
    command = [binary(), "status", "--connect", server.uri, "--output", "json"]
    return json.loads(subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout)


def children(server: Server) -> list[psutil.Process]:
    running = psutil.Process(server.process.pid).children()
    return [child for child in running if child.status() != psutil.STATUS_ZOMBIE]


def read(server: Server, *flags: str) -> subprocess.Popen:
    command = [binary(), "run", "--connect", server.uri, "--pipeline", "train", "--output", "json", *flags]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def digests(reader: subprocess.Popen) -> list[str]:
    output, error = reader.communicate(timeout=PATIENCE_SECONDS)
    assert reader.returncode == 0, error
    return [line["digest"] for line in map(json.loads, output.splitlines()) if "digest" in line]


def test_workers_come_and_go_with_the_trainers(script, tmp_path):
    expected = [batch.digest for batch in undisturbed(script, 1).values()]
    trace = tmp_path / "trace.jsonl"
    scaled = ("--workers", "0..3", *QUICK, "--keep-idle-for", "1", "--policy-trace", str(trace))
    with Server(script, *scaled) as server:
        assert status(server)["scaling"]["workers"] == 0 and not children(server)
        # It takes samples as fast as they come.
        reader = read(server)
        until("three workers", lambda: len(status(server)["workers"]) == 3)
        wanted = status(server)["scaling"]
        assert wanted["workers"] == 3 and "trainers take" in wanted["reason"], wanted
        page = urlopen(server.started["metrics"]).read().decode()
        assert "\nforebay_dispatcher_workers_wanted 3" in page
        # One that is killed is replaced.
        children(server)[0].kill()
        assert digests(reader) == expected
        until("no worker", lambda: not status(server)["workers"] and not children(server))
        reason = status(server)["scaling"]["reason"]
        assert reason == "0 workers: no trainer reads; this changes when one does"
    replayed = subprocess.run([binary(), "policy", "replay", trace], capture_output=True, text=True, check=True).stdout
    assert "0 of them different" in replayed and "3 workers: " in replayed, replayed


def test_few_workers_do_for_a_slow_trainer(script):
    loop = """
import sys, time, forebay
for batch in forebay.connect(sys.argv[1]).load("train", epochs=100):
    time.sleep(0.16)
"""
    with Server(script, "--workers", "0..6", *QUICK) as server:
        # Ten samples in 160 ms are 62 in a second: one worker makes a hundred.
        with subprocess.Popen([sys.executable, "-c", loop, server.uri]) as trainer:
            until("a decision by rates", lambda: ": trainers take" in status(server)["scaling"]["reason"], 120)
            seen = []
            for _ in range(20):
                seen.append(status(server)["scaling"]["workers"])
                time.sleep(0.2)
            trainer.kill()
        assert max(seen) <= 2, seen


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_workers_end_with_their_server(script, how):
    server = Server(script, "--workers", "2", "--drain-timeout", "1", *QUICK)
    reader = read(server)
    workers = until("two workers", lambda: len(children(server)) == 2 and children(server))
    until("windows", lambda: any(worker["windows"] for worker in status(server)["workers"]))
    server.process.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
    reader.kill()
    reader.communicate()
    server.process.wait(PATIENCE_SECONDS)
    until("the end of the workers", lambda: not any(worker.is_running() for worker in workers))


def test_workers_have_the_server_s_tokens(script, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("reads-only-but-long reader train\noperates-all-but-long operator\n")
    workers = tmp_path / "workers"
    workers.write_text("computes-only-but-long\n")
    tokens.chmod(0o600)
    workers.chmod(0o600)
    secured = ("--token-file", str(tokens), "--worker-token-file", str(workers))
    with Server(script, "--workers", "1", *secured, *QUICK) as server:
        reader = read(server, "--token", "reads-only-but-long")
        assert "digest" in json.loads(reader.stdout.readline())
        reader.kill()
        reader.communicate()


def test_a_command_sets_the_number_of_workers(script, tmp_path):
    wanted, fails = tmp_path / "wanted", tmp_path / "fails"
    fails.write_text("")
    command = f"test ! -e {fails} && echo {{workers}} >> {wanted}"
    with (tmp_path / "log").open("w") as log:
        with Server(script, "--workers", "1..4", "--scale-command", command, *QUICK, stderr=log) as server:
            until("a failure", lambda: "the scale command failed" in (tmp_path / "log").read_text())
            assert not wanted.exists()
            fails.unlink()
            until("the number", lambda: wanted.exists() and wanted.read_text().split() == ["1"])
            reader = read(server)
            time.sleep(1)
            reader.kill()
            reader.communicate()
            assert not children(server) and status(server)["scaling"]["workers"] == 1
    assert wanted.read_text().split() == ["1"]


@pytest.mark.parametrize(
    ("flags", "phrase"),
    [
        (("--workers", "8..2"), "write a range such as 0..8"),
        (("--workers", "many"), "write a range such as 0..8"),
        (("--scale-command", "scale {workers}"), "--workers"),
        (("--workers", "0..4", "--scale-command", "scale"), "hint: write {workers}"),
        (("--workers", "0..4", "--wait-at-most", "120%"), "between 0 and 1"),
        (("--workers", "0..4", "--price", "worker=-1/h,trainer=8/h"), "worker"),
        (("--workers", "0..4", "--price", "worker=1/h"), "trainer=8/h"),
        (("--workers", "0..4", "--host", "0.0.0.0", "--insecure"), "hint: give --host"),
        (("--workers", "0..4", "--policy-trace", "missing/trace.jsonl"), "missing/trace.jsonl"),
    ],
)
def test_wrong_flags_are_named(script, flags, phrase):
    command = [binary(), "serve", str(script), "--port", "0", *flags]
    done = subprocess.run(command, env=environment(), cwd=script.parent, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2 and phrase in done.stderr, done.stderr


def test_a_trace_that_cannot_be_replayed_is_named(tmp_path):
    trace = tmp_path / "trace.jsonl"
    settings = json.dumps({"forebay_policy_trace": 1, "settings": {}})
    for text, phrase in [
        ("", "line 1: the file is empty"),
        ("CREATE TABLE x", "line 1: no trace begins like this"),
        (json.dumps({"forebay_policy_trace": 2}), "line 1: the trace has version 2"),
        (f'{settings}\n{{"observation":\n{{"observation":', "line 2: the line is damaged"),
    ]:
        trace.write_text(text)
        done = subprocess.run([binary(), "policy", "replay", trace], capture_output=True, text=True)
        assert done.returncode == 2 and phrase in done.stderr and "hint: " in done.stderr, done.stderr
    done = subprocess.run([binary(), "policy", "replay", tmp_path / "none"], capture_output=True, text=True)
    assert done.returncode == 2 and os.fspath(tmp_path / "none") in done.stderr
    # What a process wrote when it ended is left out, also if another one went on in the same file.
    trace.write_text(f'{settings}\n{{"observation":\n{settings}\n{{"obs')
    done = subprocess.run([binary(), "policy", "replay", trace], capture_output=True, text=True)
    assert done.returncode == 0 and "0 decisions" in done.stdout, done.stderr
