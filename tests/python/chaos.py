"""Faults that a seed draws, over real processes.

A *round* starts dispatchers, workers and ranks, disturbs them by a schedule, lets all ranks read to their end, and
checks what they trained on.

    python tests/python/chaos.py --seconds 600 --seed 1     rounds for ten minutes, each with other settings
    python tests/python/chaos.py --seed 17 --rounds 1       the round with seed 17 again

A seed gives the same settings, the same faults and the same order of faults. The scheduling of the processes is the
operating system's, so a repeated round is alike but not equal.
"""

import argparse
import dataclasses
import heapq
import itertools
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cluster import PATIENCE_SECONDS, Cluster, Failure, Job, Rank, check, tail, undisturbed, write_script
from support import limited

# A worker that is told to stop serves its readers for 30 s at most.
LEFT_WITHIN_SECONDS = 45


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of a schedule, as numbers in [0, 1) that choose among what is there when its time comes."""

    at: float
    kind: str
    target: float
    length: float
    choice: float


class Disturbed:
    """A cluster and a job that a schedule disturbs."""

    def __init__(self, cluster: Cluster, job: Job, stop_seconds: float):
        self.cluster = cluster
        self.job = job
        self.stop_seconds = stop_seconds
        self.fired: Counter[str] = Counter()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # Names of processes that a fault keeps down or stopped.
        self._busy: set[str] = set()
        self._replaced: list[tuple[int, subprocess.Popen, Path]] = []

    def after(self, seconds: float, action: Callable[[], None]):
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), action))

    def run(self, schedule: Sequence[Fault], total: int):
        """Reads to the end of all ranks, with each fault when its share of the batches has come."""
        faults = list(reversed(schedule))
        progress, since = 0, time.monotonic()
        while not self.job.is_done or self._later:
            while faults and self.job.high >= faults[-1].at * total:
                self._fire(faults.pop())
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            wait = min(self._later[0][0] - now, 1) if self._later else 1
            if self.job.is_done:
                time.sleep(max(wait, 0))
            else:
                self.job.hear(wait)
            self.cluster.check_alive()
            if self.job.high > progress:
                progress, since = self.job.high, time.monotonic()
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise Failure(f"no batch for {PATIENCE_SECONDS} s:\n{self.job.describe()}\n{self.cluster.status()}")
        for number, process, log in self._replaced:
            self._check_replaced(number, process, log)
        self.cluster.check_logs()

    def _fire(self, fault: Fault):
        if KINDS[fault.kind](self, fault):
            self.fired[fault.kind] += 1

    def choose(self, names: Sequence[str], share: float) -> str | None:
        """Chooses one of these processes that no other fault has."""
        free = [name for name in names if name not in self._busy]
        return free[int(share * len(free))] if free else None

    def hold(self, name: str, seconds: float, release: Callable[[], None]):
        """Marks a process as disturbed, until `release` is called after this time."""
        self._busy.add(name)

        def end():
            release()
            self._busy.discard(name)

        self.after(seconds, end)

    # Each returns whether the fault found a process to disturb.

    def worker_killed(self, fault: Fault) -> bool:
        name = self.choose([f"worker {index}" for index in range(len(self.cluster.workers))], fault.target)
        if name is None:
            return False
        index = int(name.split()[1])
        worker = self.cluster.workers[index]
        self.cluster.kill(worker)
        port = worker.port if fault.choice < 0.5 else 0
        self.hold(name, fault.length * 1.5, lambda: self.cluster.start_worker(index, port))
        return True

    def worker_stopped(self, fault: Fault) -> bool:
        name = self.choose([f"worker {index}" for index in range(len(self.cluster.workers))], fault.target)
        if name is None:
            return False
        process = self.cluster.workers[int(name.split()[1])].process
        process.send_signal(signal.SIGSTOP)
        self.hold(name, fault.length * self.stop_seconds, lambda: process.send_signal(signal.SIGCONT))
        return True

    def worker_leaves(self, fault: Fault) -> bool:
        name = self.choose([f"worker {index}" for index in range(len(self.cluster.workers))], fault.target)
        if name is None:
            return False
        index = int(name.split()[1])
        worker = self.cluster.workers[index]
        self.cluster.expect_end(worker)
        worker.process.terminate()
        self.cluster.start_worker(index)

        def look(until=time.monotonic() + LEFT_WITHIN_SECONDS):
            code = worker.process.poll()
            if code is None and time.monotonic() < until:
                self.after(0.2, look)
            elif code != 0:
                state = f"ended with {code}" if code is not None else f"was still there after {LEFT_WITHIN_SECONDS} s"
                raise Failure(f"worker {index} was told to stop, and {state}")

        self.after(0.2, look)
        return True

    def dispatcher_killed(self, fault: Fault) -> bool:
        names = [f"dispatcher {index}" for index in range(len(self.cluster.dispatchers))]
        name = self.choose(names, fault.target)
        if name is None:
            return False
        index = int(name.split()[1])
        self.cluster.kill(self.cluster.dispatchers[index])
        self.hold(name, fault.length, lambda: self.cluster.start_dispatcher(index))
        return True

    def dispatcher_stopped(self, fault: Fault) -> bool:
        names = [f"dispatcher {index}" for index in range(len(self.cluster.dispatchers))]
        name = self.choose(names, fault.target)
        if name is None:
            return False
        process = self.cluster.dispatchers[int(name.split()[1])].process
        process.send_signal(signal.SIGSTOP)
        self.hold(name, fault.length * self.stop_seconds, lambda: process.send_signal(signal.SIGCONT))
        return True

    def _reading(self, fault: Fault) -> tuple[str, Rank] | None:
        names = [f"rank {rank.number}" for rank in self.job.ranks if rank.is_reading]
        name = self.choose(names, fault.target)
        return None if name is None else (name, self.job.ranks[int(name.split()[1])])

    def rank_killed(self, fault: Fault) -> bool:
        if (found := self._reading(fault)) is None:
            return False
        name, rank = found
        self.job.kill(rank)
        self.hold(name, fault.length, lambda: self.job.start(rank))
        return True

    def rank_stopped(self, fault: Fault) -> bool:
        if (found := self._reading(fault)) is None:
            return False
        name, rank = found
        process, rank.is_stopped = rank.process, True
        process.send_signal(signal.SIGSTOP)

        def go_on():
            process.send_signal(signal.SIGCONT)
            rank.is_stopped = False

        self.hold(name, fault.length * self.stop_seconds, go_on)
        return True

    def rank_replaced(self, fault: Fault) -> bool:
        """Stops a rank as if its machine had frozen, starts another process of it, and lets the first go on."""
        if (found := self._reading(fault)) is None:
            return False
        name, rank = found
        rank.process.send_signal(signal.SIGSTOP)
        old, log = self.job.replace(rank)
        self._replaced.append((rank.number, old, log))
        self.hold(name, fault.length * self.stop_seconds, lambda: old.send_signal(signal.SIGCONT))
        return True

    def _check_replaced(self, number: int, process: subprocess.Popen, log: Path):
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"the replaced process of rank {number} was still there after {PATIENCE_SECONDS} s") from None
        said = log.read_text()
        # It may have read to its end, or found nobody to ask, before it could hear of the other process.
        if code != 0 and not re.search(r"error: a newer process reads as rank|resume with --from", said):
            raise Failure(f"the replaced process of rank {number} ended with {code}:\n{tail(log)}")


KINDS: dict[str, Callable[[Disturbed, Fault], bool]] = {
    kind.__name__: kind
    for kind in (
        Disturbed.worker_killed,
        Disturbed.worker_stopped,
        Disturbed.worker_leaves,
        Disturbed.dispatcher_killed,
        Disturbed.dispatcher_stopped,
        Disturbed.rank_killed,
        Disturbed.rank_stopped,
        Disturbed.rank_replaced,
    )
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What happened in a round."""

    text: str
    fired: Counter[str]

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Round:
    """The settings of a round."""

    seed: int
    delivery: str = "ordered"
    dispatchers: int = 1
    workers: int = 2
    ranks: int = 2
    rows: int = 1000
    epochs: int = 2
    batch_size: int = 4
    window_rows: int = 50
    # What a row takes at a worker.
    milliseconds: int = 2
    # How long the ranks train for, without faults, and how much longer a step of every second rank takes.
    seconds: float = 6.0
    slower: float = 1.0
    checkpoint_every: int = 1
    memory_limit: str | None = None
    buffer_limit: str | None = None
    files: int | None = None
    faults: int = 10
    kinds: tuple[str, ...] = tuple(KINDS)
    # The longest time for which a process is stopped. A dispatcher declares a worker lost after 2 s.
    stop_seconds: float = 3.0

    @staticmethod
    def draw(seed: int) -> "Round":
        """Draws settings. Most are extreme in some rounds, and faults of some kinds are left out of some."""
        draws = random.Random(f"settings {seed}")
        delivery = draws.choice(["ordered", "dynamic"])
        kinds = tuple(kind for kind in KINDS if draws.random() < 0.75) or tuple(KINDS)
        return Round(
            seed=seed,
            delivery=delivery,
            dispatchers=draws.choice([1, 2, 2]),
            workers=draws.choice([1, 2, 3]),
            ranks=draws.choice([1, 2, 3, 4]),
            rows=draws.choice([1500, 3000]),
            epochs=draws.choice([2, 3]),
            batch_size=draws.choice([1, 4, 7, 16]),
            window_rows=draws.choice([10, 50, 200]),
            milliseconds=draws.choice([0, 2, 4]),
            seconds=draws.choice([5.0, 10.0, 20.0]),
            slower=draws.choice([1.0, 4.0]),
            checkpoint_every=draws.choice([1, 1, 3, 20]),
            memory_limit=draws.choice([None, None, "40kB"]),
            buffer_limit=draws.choice([None, None, "16KiB"]),
            files=draws.choice([None, None, 256]),
            faults=draws.choice([5, 12, 25]),
            kinds=kinds,
            stop_seconds=draws.choice([1.0, 4.0, 13.0]),
        )

    @property
    def is_fenced(self) -> bool:
        """Whether a second process of a rank is noticed: a dispatcher compares only the ordered ranks that it hears."""
        return self.delivery == "dynamic" or self.dispatchers == 1

    def schedule(self) -> list[Fault]:
        draws = random.Random(f"faults {self.seed}")
        # Not among the last batches, so that each finds somebody who reads.
        times = sorted(draws.uniform(0.01, 0.9) for _ in range(self.faults))
        # Every kind once before any kind again.
        kinds = [kind for kind in self.kinds if self.is_fenced or kind != "rank_replaced"]
        drawn = [kind for _ in range(0, self.faults, len(kinds)) for kind in draws.sample(kinds, len(kinds))]
        return [Fault(at, kind, draws.random(), draws.random(), draws.random()) for at, kind in zip(times, drawn)]

    def run(self, folder: Path) -> Result:
        """Runs the round in a folder."""
        began = time.monotonic()
        script = write_script(
            folder,
            rows=self.rows,
            batch_size=self.batch_size,
            window_rows=self.window_rows,
            milliseconds=self.milliseconds,
        )
        expected = undisturbed(script, self.epochs)
        before = [] if self.files is None else limited(f"ulimit -n {self.files}")
        memory = [] if self.memory_limit is None else ["--memory-limit", self.memory_limit]
        buffer = [] if self.buffer_limit is None else ["--buffer-limit", self.buffer_limit]
        name = ["--job", "chaos"] if self.is_fenced and self.delivery == "ordered" else []
        with ExitStack() as stack:
            cluster = Cluster(
                folder,
                script,
                dispatchers=self.dispatchers,
                workers=self.workers,
                worker_options=memory,
                before=before,
            )
            stack.callback(cluster.close)
            job = Job(
                folder,
                cluster.uris,
                world_size=self.ranks,
                epochs=self.epochs,
                delivery=self.delivery,
                checkpoint_every=self.checkpoint_every,
                pace=self.seconds * self.ranks / len(expected),
                slower=self.slower,
                options=[*buffer, *name],
                before=before,
            )
            stack.callback(job.close)
            job.start_all()
            disturbed = Disturbed(cluster, job, self.stop_seconds)
            try:
                disturbed.run(self.schedule(), len(expected))
                check([rank.trained for rank in job.ranks], expected, self.delivery)
            except Failure as failure:
                fired = describe(disturbed.fired)
                raise Failure(f"{failure}\nafter {fired}\n{self}\n{job.describe()}\n{cluster.logs()}") from None
        if not disturbed.fired:
            raise Failure(f"no fault of the schedule fired: {self}")
        what = f"{self.delivery}, {self.dispatchers} dispatchers, {self.workers} workers, {self.ranks} ranks"
        seconds = time.monotonic() - began
        text = (
            f"seed {self.seed}: {what}: {len(expected)} batches, {describe(disturbed.fired)}; longest wait "
            f"{job.longest_wait:.1f} s, {seconds:.0f} s in all"
        )
        return Result(text, disturbed.fired)


def describe(fired: Counter[str]) -> str:
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(fired.items()))
    return f"{fired.total()} faults ({kinds})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Rounds of faults over real processes; see CONTRIBUTING.md.")
    parser.add_argument("--seconds", type=float, default=600, help="begin no round after this time (600)")
    parser.add_argument("--rounds", type=int, help="at most this many rounds")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first round; each next has the next (1)")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    total = 0
    for seed in itertools.count(arguments.seed):
        if total == arguments.rounds or time.monotonic() > until:
            break
        folder = Path(tempfile.mkdtemp(prefix=f"forebay-chaos-{seed}-"))
        print(f"seed {seed}: {Round.draw(seed)}", flush=True)
        try:
            print(Round.draw(seed).run(folder), flush=True)
        except BaseException:
            print(f"seed {seed} failed; its logs are in {folder}", flush=True)
            print(f"repeat it with: python tests/python/chaos.py --seed {seed} --rounds 1", flush=True)
            raise
        shutil.rmtree(folder)
        total += 1
    print(f"{total} rounds, from seed {arguments.seed}: nothing was lost, doubled or changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
