"""What the runs of all frameworks share: data whose samples have numbers, a loader of it, and a report.

Each script here is started twice, as rank 0 and rank 1, because importing a framework takes longer than all its cases.
Rank 0 first runs the cases of one process, then both run the cases of two ranks, then rank 0 runs what resumes on one
process. A script prints a line of JSON for each case: the epochs, the samples and the losses of its steps.
"""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa

import forebay

SAMPLES, FEATURES = 24, 4


def table(samples: int = SAMPLES) -> pa.Table:
    """Rows with a number and features that depend on it, for a linear model."""
    x = [[((7 * row + 3 * column) % 11) / 11 for column in range(FEATURES)] for row in range(samples)]
    y = [sum((column + 1) * value for column, value in enumerate(row)) for row in x]
    features = pa.FixedSizeListArray.from_arrays(pa.array([v for row in x for v in row], pa.float32()), FEATURES)
    return pa.table({"id": range(samples), "x": features, "y": pa.array(y, pa.float32())})


def loader_table(samples: int = SAMPLES) -> forebay.Table:
    return forebay.table(table(samples), name=f"rows{samples}")


def loader(samples: int = SAMPLES, where: str | None = None, **options) -> forebay.Loader:
    """A loader of the numbered samples: by default 6 global steps of 4 samples in an epoch."""
    rows = loader_table(samples)
    if where is not None:
        rows = rows.filter(where)
    if "batch_size" not in options:
        options.setdefault("global_batch_size", 4)
    return rows.load(**{"shuffle": True, "seed": 3, **options})


def run_one_process(train, load, report: "Report") -> None:
    """Runs the cases of one process that accelerate, FSDP and JAX have alike: each has a loop of one's own, `train`."""
    train("plain", load())
    _run_exactly(train, "exact", load())
    _run_exactly(train, "exact-counted", load(where="id >= 0", count=True))
    train("saved", load(), save_at=8)
    train("resumed", load(), resume="saved")
    train("saved-at-the-end", load(), save_at=6)
    train("after-the-end", load(), resume="saved-at-the-end")
    report.refused("no-samples", lambda: train("", load(global_batch_size=48)))
    report.refused("no-samples-found", lambda: train("", load(where="id < 0")))


def run_two_ranks(train, load, first: forebay.Loader) -> None:
    """Runs the cases of two ranks that these have alike. `first` is the loader of the first case."""
    train("ranks-plain", first)
    _run_exactly(train, "ranks-exact", load())
    train("ranks-saved", load(), save_at=8)
    train("ranks-resumed", load(), resume="ranks-saved")
    train("ranks-resumed-of-one", load(), resume="saved")


def _run_exactly(train, case: str, loader: forebay.Loader) -> None:
    train(case, loader, takes_exactly=len(loader))


class Report:
    """Collects the steps of one case at a time."""

    def __init__(self, rank: int):
        self.rank = rank
        self.steps: list[dict] = []

    def step(self, epoch: int | None, ids, loss: float) -> None:
        """Reports a step, with the framework's number of the epoch if it has one."""
        self.steps.append({"epoch": epoch, "ids": [int(number) for number in ids], "loss": float(loss)})

    def end(self, case: str, **more) -> None:
        print(json.dumps({"case": case, "rank": self.rank, "steps": self.steps, **more}), flush=True)
        self.steps = []

    def refused(self, case: str, function) -> None:
        """Runs something that must raise an error, and reports Forebay's error."""
        try:
            function()
        except Exception as error:
            # Some frameworks fail once more while they end a failed run. A user sees both errors.
            while not isinstance(error, forebay.Error) and error.__context__ is not None:
                error = error.__context__
            self.end(case, error=type(error).__name__, message=f"{error}")
        else:
            self.end(case, error=None, message="")


def arguments() -> tuple[int, int, Path]:
    """Returns this process's rank, a free port, and a folder that both ranks see."""
    return int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


def torch_ranks(rank: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets."""
    return {
        "RANK": f"{rank}",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": f"{rank}",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
        "TORCHELASTIC_RUN_ID": "frameworks",
    }


def wait_for(path: Path) -> None:
    """Waits until the other rank has made `path`."""
    import time

    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"the other rank did not make {path}"
        time.sleep(0.02)


def clear(variables: dict[str, str]) -> None:
    for name in variables:
        os.environ.pop(name, None)
