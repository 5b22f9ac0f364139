"""Frameworks read Forebay through `forebay.integrations`: each sample once per epoch, and a resumed run goes on with the
samples and losses of an undisturbed one, on one process, on two ranks, and from one to the other.

`frameworks/*_runs.py` run the cases. Importing a framework takes most of the time, so each script runs all its cases.
"""

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import forebay
from support import environment

SCRIPTS = Path(__file__).parent / "frameworks"
PACKAGE = Path(forebay.__file__).resolve().parents[1]
SAMPLES, STEPS = 24, 6


@dataclass(frozen=True)
class Case:
    """What a script reported of one case, on one or two ranks."""

    ranks: list[dict]

    @property
    def samples(self) -> list[list[int]]:
        """The samples of each step, those of rank 0 first."""
        return [sum((step["ids"] for step in steps), []) for steps in zip(*self._steps, strict=True)]

    @property
    def losses(self) -> list[float]:
        """The loss of each step, over all ranks."""
        return [sum(step["loss"] for step in steps) / len(steps) for steps in zip(*self._steps, strict=True)]

    @property
    def _steps(self) -> list[list[dict]]:
        return [rank["steps"] for rank in self.ranks]

    def __getitem__(self, name: str):
        return self.ranks[0][name]


def run(script: str, folder: Path, ranks: int = 2) -> dict[str, Case]:
    """Runs a script on its ranks, and returns its cases."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    variables = environment() | {"PYTHONPATH": f"{PACKAGE}", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    processes = []
    try:
        for rank in range(ranks):
            with (folder / f"{rank}.out").open("w") as output, (folder / f"{rank}.err").open("w") as errors:
                command = [sys.executable, SCRIPTS / script, f"{rank}", f"{port}", folder]
                processes.append(
                    subprocess.Popen(command, env=variables, stdout=output, stderr=errors, cwd=folder)
                )
        for rank, process in enumerate(processes):
            status = process.wait(300)
            assert status == 0, (folder / f"{rank}.err").read_text()[-4000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    cases: dict[str, list[dict]] = {}
    for rank in range(ranks):
        for line in (folder / f"{rank}.out").read_text().splitlines():
            if line.startswith('{"case"'):
                reported = json.loads(line)
                cases.setdefault(reported["case"], []).append(reported)
    return {name: Case(ranks) for name, ranks in cases.items()}


def check_epochs(case: Case, steps: int = STEPS, epochs: int = 3, samples: int = SAMPLES):
    """Each epoch has each sample once, in an order of its own."""
    assert len(case.samples) == steps * epochs
    orders = [sum(case.samples[epoch * steps :][:steps], []) for epoch in range(epochs)]
    for order in orders:
        assert sorted(order) == list(range(samples))
    assert len(set(map(tuple, orders))) == epochs, "the epochs' orders differ"


def check_resumed(case: Case, undisturbed: Case, after: int):
    """The case is the undisturbed run after some steps."""
    assert case.samples == undisturbed.samples[after:]
    assert case.losses == pytest.approx(undisturbed.losses[after:], rel=1e-4)


def check_refused(case: Case, *words: str, error: str = "InvalidError"):
    assert case["error"] == error, case["message"]
    for word in words:
        assert word in case["message"]


LIGHTNING_RESUMED = [
    ("resumed", "plain", 8),
    ("after-the-end", "plain", 6),
    ("steps-after-the-end", "plain", 6),
    ("after-last-batch", "plain", 6),
    ("accumulated-resumed", "accumulated", 8),
    ("limited-resumed", "limited", 4),
    ("limited-resumed-within", "limited", 6),
    ("unknown-length-resumed", "unknown-length", 8),
    ("unknown-length-after-the-end", "unknown-length", 6),
    ("validated-resumed", "validated", 8),
    ("ranks-resumed", "ranks-plain", 8),
    ("ranks-resumed-of-one", "plain", 8),
    ("resumed-of-ranks", "plain", 8),
]


class TestLightning:
    @pytest.fixture(scope="class")
    def cases(self, tmp_path_factory):
        return run("lightning_runs.py", tmp_path_factory.mktemp("lightning"))

    @pytest.mark.parametrize("name", ["plain", "accumulated", "unknown-length", "validated", "reloaded", "ranks-plain"])
    def test_each_epoch_has_each_sample_once(self, cases, name):
        check_epochs(cases[name])

    @pytest.mark.parametrize("name, undisturbed, after", LIGHTNING_RESUMED)
    def test_a_resumed_run_goes_on(self, cases, name, undisturbed, after):
        check_resumed(cases[name], cases[undisturbed], after)

    def test_two_ranks_train_like_one(self, cases):
        check_resumed(cases["ranks-plain"], cases["plain"], 0)

    def test_limited_epochs_are_the_beginnings_of_epochs(self, cases):
        plain = cases["plain"].samples
        assert cases["limited"].samples == [*plain[:4], *plain[6:10], *plain[12:16]]

    def test_each_validation_has_each_sample_once(self, cases):
        whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        # The sanity check reads one batch. Then there are two validations in each epoch.
        assert cases["validated"]["validated"] == [whole[0], *whole * 6]
        ranks = [sorted(sum(rank["validated"], [])) for rank in cases["ranks-validated"].ranks]
        assert sorted(sum(ranks, [])) == list(range(10)) and all(ranks)

    def test_mistakes_are_refused_with_a_cure(self, cases):
        check_refused(cases["direct"], "ForebayDataModule(train=")
        check_refused(cases["direct-dataloader"], "ForebayDataModule(train=")
        check_refused(cases["epochs"], "leave out epochs=")
        check_refused(cases["other-seed"], "seed was 3 and is 4", error="ConflictError")
        check_refused(cases["other-global-batch"], "global_batch_size=4")
        check_refused(cases["no-samples"], "24 samples", "48")
        check_refused(cases["foreign-checkpoint"], "has no place of a Forebay loader")
        check_refused(cases["one-loader-twice"], '"train" and "val"')
        check_refused(cases["ranks-uneven"], "drop_last=True")
        check_refused(cases["ranks-given"], "rank 0 of 1")


TRANSFORMERS_RESUMED = [
    ("resumed", "plain", 8),
    ("resumed-without-skip", "plain", 8),
    ("resumed-from-last", "plain", 8),
    ("after-the-end", "plain", 6),
    ("max-steps-resumed", "plain", 8),
    ("accumulated-resumed", "accumulated", 10),
    ("unknown-length-resumed", "unknown-length", 8),
    ("ranks-resumed", "ranks-plain", 8),
    ("ranks-resumed-of-one", "plain", 8),
    ("resumed-of-ranks", "plain", 8),
]


class TestTransformers:
    @pytest.fixture(scope="class")
    def cases(self, tmp_path_factory):
        return run("transformers_runs.py", tmp_path_factory.mktemp("transformers"))

    @pytest.mark.parametrize("name", ["plain", "accumulated", "unknown-length", "ranks-plain", "ranks-made-before"])
    def test_each_epoch_has_each_sample_once(self, cases, name):
        check_epochs(cases[name])

    @pytest.mark.parametrize("name, undisturbed, after", TRANSFORMERS_RESUMED)
    def test_a_resumed_run_goes_on(self, cases, name, undisturbed, after):
        check_resumed(cases[name], cases[undisturbed], after)

    def test_two_ranks_train_like_one(self, cases):
        check_resumed(cases["ranks-plain"], cases["plain"], 0)

    def test_an_evaluation_counts_each_sample_once(self, cases):
        one, ranks = cases["evaluated"], cases["ranks-evaluated"]
        assert one["evaluated"] == ranks["evaluated"] == list(range(10))
        # The losses of whole and incomplete batches weigh as many samples as they have.
        assert one["loss"] == pytest.approx(ranks["loss"], rel=1e-5)
        assert cases["ranks-evaluated-unknown"]["evaluated"] == list(range(13))

    def test_mistakes_are_refused_with_a_cure(self, cases):
        check_refused(cases["direct"], "forebay.integrations.transformers")
        check_refused(cases["ranks-direct"], "forebay.integrations.transformers")
        check_refused(cases["epochs"], "leave out epochs=")
        check_refused(cases["other-seed"], "seed was 3 and is 4", error="ConflictError")
        check_refused(cases["other-global-batch"], "global_batch_size=4")
        check_refused(cases["other-accumulation"], "gradient_accumulation_steps")
        check_refused(cases["no-samples"], "24 samples", "48")
        check_refused(cases["small-evaluation-batch"], "per_device_eval_batch_size=8")
        check_refused(cases["foreign-checkpoint"], "has no place of a Forebay loader")
        check_refused(cases["ranks-uneven"], "drop_last=True")
        check_refused(cases["ranks-given"], "rank 0 of 1")
