"""The training scripts run. A killed script resumes with the same losses as a run without interruption."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import forebay
from support import REPOSITORY, environment

EXAMPLES = REPOSITORY / "examples"
PACKAGE = Path(forebay.__file__).resolve().parents[1]
EVERY = 3


def command(script: str, tmp_path: Path, *options: str | int | Path) -> tuple[list[str], dict[str, str]]:
    data = ["--data", str(tmp_path / "clicks")] if script == "train_tabular.py" else []
    paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    arguments = [sys.executable, str(EXAMPLES / script), *map(str, options), *data]
    return arguments, environment() | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def losses(script: str, tmp_path: Path, *options: str | int | Path) -> list[dict]:
    """Runs a script to its end, and returns its lines."""
    arguments, variables = command(script, tmp_path, *options)
    ended = subprocess.run(arguments, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def kill_after(script: str, tmp_path: Path, step: int, *options: str | int | Path) -> None:
    """Starts a long run, and kills it when it has printed `step`."""
    arguments, variables = command(script, tmp_path, *options)
    with subprocess.Popen(arguments, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        try:
            for line in run.stdout:
                if json.loads(line)["step"] >= step:
                    break
        finally:
            run.kill()


@pytest.mark.parametrize("script", ["train_images.py", "train_text.py", "train_tabular.py"])
def test_a_run_that_was_killed_goes_on_with_the_same_losses(script, tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    kill_after(script, tmp_path, EVERY + 1, "--steps", 100_000, "--checkpoint", checkpoint, "--checkpoint-every", EVERY)
    # The last checkpoint depends on how far the run came before it was killed.
    reached = torch.load(checkpoint)["step"]
    assert reached >= EVERY and reached % EVERY == 0

    steps = reached + EVERY
    resumed = losses(script, tmp_path, "--steps", steps, "--resume", checkpoint)
    undisturbed = losses(script, tmp_path, "--steps", steps)
    assert [line["step"] for line in undisturbed] == list(range(steps))
    assert resumed == undisturbed[reached:]
    assert len({line["loss"] for line in undisturbed}) == steps, "each step sees other samples"
