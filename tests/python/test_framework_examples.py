"""The examples of frameworks run as users start them. Killed and started again, they go on with the samples and losses
of a run without interruption."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

import forebay
from support import REPOSITORY, environment

EXAMPLES = REPOSITORY / "examples" / "frameworks"
PACKAGE = Path(forebay.__file__).resolve().parents[1]
SAMPLES, STEPS = 512, 16
# The run is killed after this many steps, when it has a checkpoint.
KILLED_AFTER = 13

# Enough for the run to be killed within it. If nobody kills it, it ends by itself.
EPOCHS_TO_KILL = 300
DEADLINE_SECONDS = 150
# Names a run in the environment of all its processes. torchrun's workers have sessions of their own.
MARK = "FOREBAY_TEST_RUN"

# The files that a complete checkpoint has, and the number of ranks.
SCRIPTS: dict[str, tuple[str, int]] = {
    "lightning": ("last.ckpt", 1),
    "lightning-devices": ("last.ckpt", 2),
    "transformers": ("checkpoint-*/trainer_state.json", 1),
    "keras": ("forebay.json", 1),
    "jax": ("[0-9]*/data/*", 2),
    "accelerate": ("step-*", 2),
    "fsdp": ("step-*/.metadata", 2),
}


class Run:
    """The processes of one run. Their lines are those of one process if they share an output."""

    def __init__(self, name: str, folder: Path, checkpoints: Path, epochs: int):
        ranks = SCRIPTS[name][1]
        script = EXAMPLES / f"train_{name.removesuffix('-devices')}.py"
        options = ["--folder", str(checkpoints), "--epochs", f"{epochs}"]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        python = [sys.executable, str(script), *options]
        commands = [python]
        if name.endswith("-devices"):
            # The framework starts the other ranks.
            commands = [[*python, "--devices", f"{ranks}"]]
        elif name == "jax":
            many = ["--coordinator", f"127.0.0.1:{port}", "--processes", f"{ranks}", "--process"]
            commands = [[*python, *many, f"{rank}"] for rank in range(ranks)]
        elif ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", f"{ranks}", "--master-port", f"{port}"]
            commands = [[sys.executable, *launcher, str(script), *options]]
        self._mark = uuid.uuid4().hex
        variables = environment() | {"PYTHONPATH": str(PACKAGE), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
        variables[MARK] = self._mark
        read, write = os.pipe()
        self.errors = (folder / f"{checkpoints.name}.err").open("a+")
        self.processes = [
            subprocess.Popen(command, env=variables, cwd=folder, stdout=write, stderr=self.errors)
            for command in commands
        ]
        os.close(write)
        self._output = os.fdopen(read)
        # When its processes are gone, whoever reads its output or waits for it goes on.
        self._deadline = threading.Timer(DEADLINE_SECONDS, self.kill)
        self._deadline.start()

    def lines(self):
        """Yields the steps as they are printed."""
        decoder = json.JSONDecoder()
        for line in self._output:
            # Two processes may write their lines before either ends its line.
            line = line.strip()
            while line.startswith('{"'):
                step, end = decoder.raw_decode(line)
                yield step
                line = line[end:]

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
        # torchrun's workers outlive it. One may start another while this looks for them.
        while workers := marked(self._mark):
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            psutil.wait_procs(workers, timeout=10)

    def wait(self):
        for process in self.processes:
            status = process.wait(120)
            self.errors.seek(0)
            assert status == 0, self.errors.read()[-4000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._deadline.cancel()
        self.kill()
        self._output.close()
        self.errors.close()


def marked(mark: str) -> list[psutil.Process]:
    """Returns the processes of the run with this mark, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        # Other users' processes do not show their environment.
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def by_step(lines: list[dict]) -> dict[int, tuple[list[int], float]]:
    """Returns samples and loss of each step, over all ranks."""
    ranks = defaultdict(list)
    for line in lines:
        ranks[line["step"]].append(line)
    return {
        step: (sorted(sum((line["samples"] for line in of), [])), sum(line["loss"] for line in of) / len(of))
        for step, of in ranks.items()
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_killed_run_goes_on(name, tmp_path):
    pattern, ranks = SCRIPTS[name]
    killed = []
    with Run(name, tmp_path, tmp_path / "killed", EPOCHS_TO_KILL) as run:
        for line in run.lines():
            killed.append(line)
            if len(killed) >= KILLED_AFTER * ranks and any((tmp_path / "killed").glob(pattern)):
                break
        run.kill()
        killed += run.lines()
    assert len(killed) >= KILLED_AFTER * ranks, (tmp_path / "killed.err").read_text()[-4000:]

    # One step may have been trained and not printed.
    epochs = (len(killed) // ranks + 1) // STEPS + 2
    runs = []
    with (
        Run(name, tmp_path, tmp_path / "killed", epochs) as resumed,
        Run(name, tmp_path, tmp_path / "undisturbed", epochs) as undisturbed,
    ):
        for run in (resumed, undisturbed):
            runs.append(list(run.lines()))
            run.wait()
    assert not marked(resumed._mark) and not marked(undisturbed._mark)
    resumed, undisturbed = runs
    assert len(undisturbed) == epochs * STEPS * ranks
    assert 0 < len(resumed) < len(undisturbed), "the run resumed from a checkpoint"
    if name == "keras":
        # Its lines have no samples. The losses are those of the same samples only.
        losses = [line["loss"] for line in undisturbed]
        assert [line["loss"] for line in resumed] == pytest.approx(losses[-len(resumed) :], rel=1e-3)
        return
    resumed, undisturbed = by_step(resumed), by_step(undisturbed)
    for epoch in range(epochs):
        steps = range(epoch * STEPS, (epoch + 1) * STEPS)
        assert sorted(sum((undisturbed[step][0] for step in steps), [])) == list(range(SAMPLES))
    assert list(resumed) == list(range(min(resumed), epochs * STEPS))
    for step, (samples, loss) in resumed.items():
        assert samples == undisturbed[step][0]
        assert loss == pytest.approx(undisturbed[step][1], rel=1e-5)


def test_no_process_outlives_its_run(tmp_path, monkeypatch):
    """Also a process in a session of its own, whose parent is gone."""
    worker = "import time; print('{\"}', flush=True); time.sleep(300)"
    launcher = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {worker!r}], start_new_session=True)"
    (tmp_path / "train_orphan.py").write_text(launcher)
    monkeypatch.setattr(sys.modules[__name__], "EXAMPLES", tmp_path)
    monkeypatch.setitem(SCRIPTS, "orphan", ("", 1))
    with Run("orphan", tmp_path, tmp_path / "orphans", 1) as run:
        run.processes[0].wait(60)
        assert run._output.readline() == '{"}\n'
        assert len(marked(run._mark)) == 1
    assert not marked(run._mark)
    monkeypatch.setattr(sys.modules[__name__], "DEADLINE_SECONDS", 1)
    with Run("orphan", tmp_path, tmp_path / "late", 1) as run:
        assert run._output.readlines() == ['{"}\n'], "the deadline ended the worker, and with it the output"
