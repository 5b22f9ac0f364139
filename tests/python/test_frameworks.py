"""Frameworks read Forebay through `forebay.integrations`: each sample once per epoch, and a resumed run goes on with
the samples and losses of an undisturbed one, on one process, on two ranks, and from one to the other.

`frameworks/*_runs.py` run the cases. Importing a framework takes most of the time, so each script runs all its cases.
With FOREBAY_FRAMEWORKS=1 Keras also runs all its cases on JAX, and Lightning those of its older package and on ranks
that it spawns.
"""

import ast
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.integrations import _passes, _versions
from support import REPOSITORY, environment
from test_docs import DOCS, blocks

# Whether to run what takes too long for CI.
ALL = os.environ.get("FOREBAY_FRAMEWORKS") == "1"
KERAS_BACKENDS = ["torch", "jax"] if ALL else ["torch"]
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


def run(script: str, folder: Path, *phase: str, ranks: int = 2, **more: str) -> dict[str, Case]:
    """Runs a script on its ranks, with more variables in its environment, and returns its cases."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    variables = environment() | {"PYTHONPATH": f"{PACKAGE}", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"} | more
    processes = []
    try:
        for rank in range(ranks):
            with (folder / f"{rank}.out").open("w") as output, (folder / f"{rank}.err").open("w") as errors:
                command = [sys.executable, SCRIPTS / script, f"{rank}", f"{port}", folder, *phase]
                processes.append(
                    subprocess.Popen(command, env=variables, stdout=output, stderr=errors, cwd=folder)
                )
        deadline = time.monotonic() + 300
        while any(process.poll() is None for process in processes):
            # A rank would wait for another one that has failed.
            failed = [rank for rank, process in enumerate(processes) if process.poll()]
            assert not failed, (folder / f"{failed[0]}.err").read_text()[-4000:]
            assert time.monotonic() < deadline, f"{script} has not ended"
            time.sleep(0.05)
        for rank, process in enumerate(processes):
            assert process.wait() == 0, (folder / f"{rank}.err").read_text()[-4000:]
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


@pytest.fixture(scope="module")
def lightning(tmp_path_factory):
    return run("lightning_runs.py", tmp_path_factory.mktemp("lightning"))


@pytest.fixture(scope="module")
def pytorch_lightning(tmp_path_factory):
    return run("lightning_runs.py", tmp_path_factory.mktemp("pytorch-lightning"), LIGHTNING="pytorch_lightning")


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    return run("transformers_runs.py", tmp_path_factory.mktemp("transformers"))


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory):
    return run("accelerate_runs.py", tmp_path_factory.mktemp("accelerate"))


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory):
    return run("fsdp_runs.py", tmp_path_factory.mktemp("fsdp"))


@pytest.fixture(scope="module")
def jax(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    phases = (("one", 1), ("ranks", 2), ("again", 1))
    reported = [run("jax_runs.py", folder, phase, ranks=ranks) for phase, ranks in phases]
    return {name: case for cases in reported for name, case in cases.items()}


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    torch = run("keras_runs.py", folder, ranks=1, KERAS_BACKEND="torch")
    ranks = run("keras_runs.py", folder, KERAS_BACKEND="jax", FOREBAY_TWO_RANKS="1")
    return torch | ranks | (run("keras_runs.py", folder, ranks=1, KERAS_BACKEND="jax") if ALL else {})


EPOCHS = {
    "lightning": [
        "plain", "set-epoch", "accumulated", "unknown-length", "validated", "validated-by-one-function", "reloaded",
        "ranks-plain", "ranks-made-before", "ranks-accumulated",
    ],
    "transformers": [
        "plain", "seq2seq", "accumulated", "unknown-length", "counted", "ranks-plain", "ranks-made-before",
        "ranks-accumulated",
    ],
    "accelerate": ["plain", "exact", "exact-counted", "ranks-plain", "ranks-exact"],
    "fsdp": ["plain", "exact", "exact-counted", "ranks-plain", "ranks-exact"],
    "jax": ["plain", "exact", "exact-counted", "ranks-plain", "ranks-exact"],
    "keras": [
        *[f"{backend}-{case}" for backend in KERAS_BACKENDS for case in ("plain", "without-callback")],
        "jax-ranks-plain",
    ],
}

# The case that was resumed, the undisturbed one, and the number of steps before the resume.
RESUMED = {
    "lightning": [
        ("set-epoch", "plain", 0),
        ("ranks-made-before", "ranks-plain", 0),
        ("resumed", "plain", 8),
        ("after-a-validation", "plain", 0),
        ("after-lr-find", "plain", 0),
        ("after-the-end", "plain", 6),
        ("steps-after-the-end", "plain", 6),
        ("after-last-batch", "plain", 6),
        ("estimated-after-the-end", "plain", 6),
        ("estimated-resumed", "plain", 8),
        ("restored-late", "plain", 8),
        ("restored-late-after-the-end", "plain", 6),
        ("accumulated-resumed", "accumulated", 8),
        ("limited-resumed", "limited", 4),
        ("limited-resumed-within", "limited", 6),
        ("unknown-length-resumed", "unknown-length", 8),
        ("unknown-length-after-the-end", "unknown-length", 6),
        ("counted-resumed", "plain", 8),
        ("validated-resumed", "validated", 8),
        ("ranks-resumed", "plain", 8),
        ("ranks-resumed-of-one", "plain", 8),
        ("ranks-limited", "limited", 0),
        ("ranks-limited-resumed", "limited", 6),
        ("ranks-accumulated", "accumulated", 0),
        ("ranks-accumulated-resumed", "accumulated", 8),
        ("ranks-steps-resumed", "plain", 8),
        ("resumed-of-ranks", "plain", 8),
    ],
    "transformers": [
        ("seq2seq", "plain", 0),
        ("seq2seq-resumed", "plain", 8),
        ("resumed", "plain", 8),
        ("resumed-without-skip", "plain", 8),
        ("resumed-from-last", "plain", 8),
        ("after-the-end", "plain", 6),
        ("max-steps-resumed", "plain", 8),
        ("accumulated-resumed", "accumulated", 10),
        ("unknown-length-resumed", "unknown-length", 8),
        ("ranks-resumed", "plain", 8),
        ("ranks-resumed-of-one", "plain", 8),
        ("ranks-max-steps-resumed", "plain", 8),
        ("ranks-accumulated", "accumulated", 0),
        ("ranks-accumulated-resumed", "accumulated", 10),
        ("resumed-of-ranks", "plain", 8),
    ],
    "accelerate": [
        ("exact", "plain", 0),
        ("exact-counted", "plain", 0),
        ("resumed", "plain", 8),
        ("after-the-end", "plain", 6),
        ("unknown-length-resumed", "plain", 6),
        ("ranks-exact", "ranks-plain", 0),
        ("ranks-resumed", "plain", 8),
        ("ranks-resumed-of-one", "plain", 8),
        ("resumed-of-ranks", "plain", 8),
    ],
    "fsdp": [
        ("exact", "plain", 0),
        ("exact-counted", "plain", 0),
        ("ranks-exact", "ranks-plain", 0),
        ("resumed", "plain", 8),
        ("after-the-end", "plain", 6),
        ("unknown-length-resumed", "plain", 6),
        ("ranks-resumed", "plain", 8),
        ("ranks-resumed-of-one", "plain", 8),
        ("resumed-of-ranks", "plain", 8),
    ],
    "jax": [
        ("exact", "plain", 0),
        ("exact-counted", "plain", 0),
        ("ranks-exact", "ranks-plain", 0),
        ("resumed", "plain", 8),
        ("after-the-end", "plain", 6),
        ("ranks-resumed", "plain", 8),
        ("ranks-resumed-of-one", "plain", 8),
        ("resumed-of-ranks", "plain", 8),
    ],
    "keras": [
        *[
            (f"{backend}-{case}-resumed", f"{backend}-{undisturbed}", after)
            for backend in KERAS_BACKENDS
            for case, undisturbed, after in (
                ("within", "plain", 8),
                ("last-batch", "plain", 6),
                ("epoch", "plain", 6),
                ("repeated", "repeated", 10),
                ("unknown-length", "repeated", 10),
            )
        ],
        ("jax-ranks-resumed", "jax-ranks-plain", 8),
        ("jax-ranks-resumed-of-one", "torch-plain", 8),
        *([("jax-resumed-of-ranks", "jax-ranks-plain", 8)] if ALL else []),
    ],
}

# The case of a mistake, and what its message says.
REFUSED = {
    "lightning": {
        "direct": "ForebayDataModule(train=",
        "direct-dataloader": "ForebayDataModule(train=",
        "direct-validation": "val=…",
        "without-trainer": "trainer.fit(",
        "epochs": "leave out epochs=",
        "other-seed": "seed was 3 and is 4",
        "other-global-batch": "global_batch_size=4",
        "no-samples": "24 samples, and 48 in a global step",
        "no-samples-found": "the query leaves too few samples",
        "restored-too-late": "do not use trainer.estimated_stepping_batches",
        "foreign-checkpoint": "has no place of a Forebay loader",
        "one-loader-twice": '"train" and "val"',
        "one-loader-returned-twice": "call load once for training",
        "spawned": "train=make_loader",
        "ranks-direct": "ForebayDataModule(train=",
        "ranks-direct-dataloader": "ForebayDataModule(train=",
        "ranks-uneven-validation": "drop_last=True",
        "ranks-uneven": "drop_last=True",
        "ranks-given": "rank 0 of 1",
    },
    "transformers": {
        "direct": "forebay.integrations.transformers",
        "direct-first-of-batch": "forebay.integrations.transformers",
        "direct-dataloader": "forebay.integrations.transformers",
        "ranks-direct": "forebay.integrations.transformers",
        "ranks-direct-first-of-batch": "forebay.integrations.transformers",
        "ranks-direct-dataloader": "forebay.integrations.transformers",
        "epochs": "leave out epochs=",
        "other-seed": "seed was 3 and is 4",
        "other-global-batch": "global_batch_size=4",
        "other-global-batch-at-the-end": "global_batch_size=4",
        "other-accumulation-at-the-end": "in epoch 1, and Trainer counts epoch 2",
        "unknown-accumulation": "leave out gradient_accumulation_steps",
        "uncounted": "load with count=True, or give TrainingArguments max_steps",
        "batch-metrics": "leave out batch_eval_metrics",
        "sequence-parallel": "use tensor parallelism",
        "tensor-parallel-evaluation": "ranks that each have the whole model",
        "other-accumulation": "gradient_accumulation_steps",
        "no-samples": "24 samples, and 48 in a global step",
        "no-samples-found": "the query leaves too few samples",
        "one-loader-twice": '"train_dataset" and "eval_dataset"',
        "small-evaluation-batch": "per_device_eval_batch_size=8",
        "foreign-checkpoint": "has no place of a Forebay loader",
        "ranks-uneven": "drop_last=True",
        "ranks-given": "rank 0 of 1",
    },
    "accelerate": {
        "other-seed": "seed was 3 and is 4",
        "no-samples": "24 samples, and 48 in a global step",
        "no-samples-found": "the query leaves too few samples",
        "ranks-given": "rank 0 of 1",
    },
    "fsdp": {
        "other-seed": "seed was 3 and is 4",
        "no-samples": "24 samples, and 48 in a global step",
        "no-samples-found": "the query leaves too few samples",
    },
    "jax": {
        "text": 'the column "word"',
        "no-samples": "24 samples, and 48 in a global step",
        "no-samples-found": "the query leaves too few samples",
        "ranks-given": "rank 0 of 1",
    },
    "keras": {
        f"{backend}-{case}": words
        for backend in KERAS_BACKENDS
        for case, words in {
            "steps": "repeat=True",
            "endless": "steps_per_epoch=",
            "unknown": "repeat=True",
            "epochs": "leave out epochs=",
            "column": 'no column "image"',
            "tensorflow": "set KERAS_BACKEND to torch or jax",
            "no-samples": "24 samples, and 48 in a global step",
            "no-samples-found": "the query leaves too few samples",
            "one-loader-twice": "call load once for training",
            "other-seed": "seed was 3 and is 4",
            "other-global-batch": "global_batch_size=4",
        }.items()
    },
}


if ALL:
    for listed in (EPOCHS, RESUMED, REFUSED):
        listed["pytorch_lightning"] = listed["lightning"]


@pytest.fixture
def cases(request, framework):
    return request.getfixturevalue(framework)


@pytest.mark.parametrize("framework, name", [(framework, name) for framework in EPOCHS for name in EPOCHS[framework]])
def test_each_epoch_has_each_sample_once(cases, name):
    check_epochs(cases[name])


@pytest.mark.parametrize(
    "framework, name, undisturbed, after", [(framework, *case) for framework in RESUMED for case in RESUMED[framework]]
)
def test_a_resumed_run_goes_on(cases, name, undisturbed, after):
    check_resumed(cases[name], cases[undisturbed], after)


@pytest.mark.parametrize("framework", [name for name in RESUMED if ALL or name != "keras"])
def test_two_ranks_train_like_one(cases, framework):
    one, ranks = ("jax-plain", "jax-ranks-plain") if framework == "keras" else ("plain", "ranks-plain")
    check_resumed(cases[ranks], cases[one], 0)


@pytest.mark.parametrize("framework", REFUSED)
def test_mistakes_are_refused_with_a_cure(cases, framework):
    for name, words in REFUSED[framework].items():
        case = cases[name]
        assert case["error"] == ("ConflictError" if name.endswith("other-seed") else "InvalidError"), case["message"]
        assert words in case["message"]


def test_lightnings_limited_epochs_are_the_beginnings_of_epochs(lightning):
    plain = lightning["plain"].samples
    assert lightning["limited"].samples == [*plain[:4], *plain[6:10], *plain[12:16]]


def test_lightning_resumes_behind_an_epoch_that_ended_early(lightning):
    plain = lightning["plain"].samples
    assert lightning["after-stopped"].samples == lightning["after-left"].samples == plain[6:]
    assert lightning["limited-steps"].samples == [*plain[:4], *plain[6:8]]
    # The feed's third epoch, and the beginning of a fourth.
    rest = lightning["after-limited-steps"].samples
    assert len(rest) == 6 and rest[:4] == plain[12:16]


def test_lightning_resumes_with_more_batches_in_an_epoch(lightning):
    rest = lightning["half-after-last-batch"].samples
    assert [a + b for a, b in zip(rest[::2], rest[1::2], strict=True)] == lightning["plain"].samples[6:]


# A spawned rank sometimes aborts after its training: "terminate called without an active exception". The cause is not
# known.
@pytest.mark.skipif(not ALL, reason="FOREBAY_FRAMEWORKS=1 runs it")
def test_lightning_trains_on_spawned_ranks(lightning, tmp_path):
    spawned = run("lightning_spawned.py", tmp_path, ranks=1)
    check_resumed(spawned["spawned"], lightning["plain"], 0)
    check_resumed(spawned["spawned-resumed"], lightning["plain"], 8)


def test_lightning_does_not_warn_of_loaders_that_nobody_gave(lightning):
    assert lightning["warnings"]["shown"] == [] and lightning["trains-only"].samples == lightning["plain"].samples


def test_lightnings_validations_have_each_sample_once(lightning):
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # The sanity check reads one batch. Then there are two validations in each epoch.
    assert lightning["validated"]["validated"] == [whole[0], *whole * 6]
    ranks = [sorted(sum(rank["validated"], [])) for rank in lightning["ranks-validated"].ranks]
    assert sorted(sum(ranks, [])) == list(range(10)) and all(ranks)


def test_lightnings_tests_and_predictions_have_each_sample_once(lightning):
    one, ranks = lightning["evaluated"], lightning["ranks-evaluated"].ranks
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert one["tested"] == [whole, whole]
    first, second = one["predicted"]
    assert first == second and sorted(sum(first, [])) == list(range(10)) and first != whole
    for loop, expected in itertools.product(range(2), ({"tested": whole}, {"predicted": first})):
        [(kind, steps)] = expected.items()
        # A global step is divided between the ranks, and the last one has samples for the first rank only.
        parts = itertools.zip_longest(*(rank[kind][loop] for rank in ranks), fillvalue=[])
        assert [sum(of, []) for of in parts] == steps


def test_transformers_evaluates_datasets_by_name_and_predicts(transformers):
    one, ranks = transformers["evaluated-by-name"], transformers["ranks-evaluated-by-name"]
    for case in (one, ranks):
        for metrics in case["metrics"]:
            assert metrics["eval_a_ids"] == list(range(10)) and metrics["eval_b_ids"] == list(range(7))
            for name in ("eval_a_loss", "eval_b_loss"):
                assert metrics[name] == pytest.approx(one["metrics"][0][name], rel=1e-5)
        assert case["predicted"] == [list(range(10))] * 2


def test_an_evaluation_of_transformers_counts_each_sample_once(transformers):
    one, ranks = transformers["evaluated"], transformers["ranks-evaluated"]
    assert one["evaluated"] == ranks["evaluated"] == list(range(10))
    # Whole and incomplete batches weigh as many samples as they have.
    assert one["loss"] == pytest.approx(ranks["loss"], rel=1e-5)
    assert transformers["ranks-evaluated-unknown"]["evaluated"] == list(range(13))


@pytest.mark.parametrize("backend", KERAS_BACKENDS)
def test_keras_evaluates_like_with_arrays(keras, backend):
    case = keras[f"{backend}-evaluated"]
    assert case["losses"] == pytest.approx([case["wanted"]] * 2, rel=1e-5)


def test_keras_may_train_several_steps_at_once(keras):
    # Two reports in each epoch: of four steps, and of the two that are left.
    assert len(keras["jax-ranks-at-once"].losses) == 6


@pytest.mark.parametrize("backend", KERAS_BACKENDS)
def test_epochs_follow_each_other_in_repeated_data(keras, backend):
    plain, repeated = keras[f"{backend}-plain"], keras[f"{backend}-repeated"]
    assert repeated.samples == plain.samples[:16] == keras[f"{backend}-unknown-length"].samples


def test_a_counted_query_has_the_steps_of_a_table(transformers):
    assert transformers["counted"].samples == transformers["accumulated"].samples


def test_a_length_that_differs_between_epochs_is_none_for_frameworks():
    table = forebay.table({"n": range(100)})
    loader = table.filter("random_uniform() < 0.5").load(batch_size=1, count=True, format="numpy")
    assert len(loader) == _passes.length(loader, 0) == len(list(loader))
    with pytest.raises(TypeError, match="epochs have different numbers of batches"):
        _passes.length(loader)
    assert "epochs have different numbers" in _passes.unknown(loader) and _passes.count_hint(loader) == ""
    uncounted = table.filter("n < 50").load(batch_size=1, format="numpy")
    assert "only reading shows it" in _passes.unknown(uncounted)
    assert _passes.count_hint(uncounted) == "load with count=True, or "
    loader = table.filter("n < 50").load(batch_size=1, count=True, format="numpy")
    assert len(loader) == _passes.length(loader) == 50


def test_torch_distributed_checkpoints_resume_with_another_global_batch(fsdp):
    rest = fsdp["plain"].samples[8:]
    assert fsdp["other-global-batch"].samples == [a + b for a, b in zip(rest[::2], rest[1::2])]


def test_processes_that_share_a_part_of_jaxs_mesh_are_one_rank(jax):
    for rank, reported in enumerate(jax["ranks-of-meshes"].ranks):
        assert reported["data"] == {"dp_rank": rank, "dp_size": 2}
        assert reported["model"] == {"dp_rank": 0, "dp_size": 1}


def test_dynamic_delivery_is_refused():
    session = forebay.Session()
    session.sql("CREATE PIPELINE numbers AS SELECT id FROM rows", rows=pa.table({"id": range(SAMPLES)}))
    with session.serve() as server:
        dynamic = {"delivery": "dynamic", "job": "frameworks", "dp_rank": 0, "dp_size": 2}
        loader = forebay.connect(server.uri).load("numbers", batch_size=4, **dynamic)
        with pytest.raises(forebay.InvalidError, match="dynamic delivery"):
            _passes.check_equal_steps(loader, "Trainer")


def test_the_tested_versions_are_those_that_are_installed_here():
    lines = (REPOSITORY / "tests" / "python" / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines)
    assert _versions.TESTED == {package: pinned[package] for package in _versions.TESTED}
    page = (DOCS / "frameworks.md").read_text()
    for package in [*_versions.TESTED, "torch", "orbax-checkpoint"]:
        assert f"{package} {pinned[package]}" in page


def test_an_unknown_version_is_a_warning_that_names_the_tested_one(monkeypatch):
    monkeypatch.setattr(_versions.importlib.metadata, "version", lambda package: "99.1.0")
    with pytest.warns(UserWarning, match=r"tested with jax 0\.10\.2, and this is jax 99\.1\.0"):
        _versions.require("json", "jax")


def test_a_missing_framework_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(_versions.TESTED, "nonesuch", "1.2.3")
    with pytest.raises(ModuleNotFoundError, match="pip install nonesuch==1.2.3"):
        _versions.require("nonesuch.pytorch", "nonesuch")


def test_the_guide_imports_what_exists():
    imported = 0
    for block in blocks(DOCS / "frameworks.md"):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("forebay."):
                source = PACKAGE / (node.module.replace(".", "/") + ".py")
                names = re.search(r"^__all__ = (\[.*\])$", source.read_text(), re.MULTILINE)
                assert {name.name for name in node.names} <= set(ast.literal_eval(names[1]))
                imported += 1
    assert imported >= 4


def test_importing_forebay_imports_no_framework():
    code = "import sys, forebay.integrations; print(sorted({'torch', 'jax', 'keras', 'lightning'} & {*sys.modules}))"
    variables = environment() | {"PYTHONPATH": f"{PACKAGE}"}
    ended = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
