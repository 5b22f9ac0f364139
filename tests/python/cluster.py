"""A cluster and a job of ranks as real processes, and the check of what the ranks trained on.

Whatever is killed comes back, as an orchestrator would bring it back: a rank resumes from its last checkpoint, and what
it read after that checkpoint was never trained on. At the end each sample of each epoch was trained on exactly once, in
batches that equal those of a single process that nothing disturbed.

Every wait is bounded, and a wait that ends too late says what it was for.
"""

import dataclasses
import json
import queue
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from support import STOPPED_WITHIN_SECONDS, Process, binary, environment

# The longest time without a batch of any rank. Far more than a busy machine needs.
PATIENCE_SECONDS = 90
# Exit codes of the command: see docs/operations.md.
CONFLICT, UNAVAILABLE = 5, 6
# How long ranks look for a dispatcher with workers before they give up.
RETRY_SECONDS = 60
# Lines of a process's log in the text of a failure.
LOG_LINES = 12

# The C library picks the code of its mathematics by the processor. This hides the extensions that it looks for.
OLD_PROCESSOR = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F,-AVX512VL,-AVX2_Usable,-FMA_Usable"}


class Failure(AssertionError):
    """A promise that was broken, or a wait that did not end. The text names it."""


def write_script(
    folder: Path,
    *,
    rows: int,
    batch_size: int = 4,
    window_rows: int = 50,
    milliseconds: int = 0,
    rows_per_file: int = 50,
    column: str = "0",
    on_error: str = "raise",
) -> Path:
    """Writes rows, and a pipeline that shuffles, filters and computes them, with a wait for each row and one column to
    choose. Mathematics of the C library would differ between processors."""
    data = folder / "rows"
    data.mkdir()
    for first in range(0, rows, rows_per_file):
        lines = [f"{row},{(row * 7919 % 10007) / 97.3}\n" for row in range(first, min(first + rows_per_file, rows))]
        (data / f"{first:06}.csv").write_text("id,x\n" + "".join(lines))
    script = folder / "pipelines.sql"
    script.write_text(f"""
        CREATE EXTERNAL TABLE rows STORED AS CSV LOCATION '{data}';
        CREATE PIPELINE train WITH (
            shuffle = true, seed = 11, batch_size = {batch_size}, window_rows = {window_rows}, on_error = '{on_error}'
        ) AS SELECT sleep(id, milliseconds => {milliseconds}) AS id, sin(x) AS s, exp(x / 50) AS e, power(x, 0.3) AS p,
            {column} AS more
        FROM rows WHERE cos(x) < 0.9;
    """)
    return script


@dataclasses.dataclass(frozen=True)
class Delivered:
    """A batch that a rank trained on."""

    epoch: int
    offset: int
    digest: str
    ids: tuple[str, ...]
    token: str

    @property
    def place(self) -> tuple[int, int]:
        return self.epoch, self.offset

    @property
    def content(self) -> tuple[str, tuple[str, ...]]:
        return self.digest, self.ids

    @staticmethod
    def of(line: dict) -> "Delivered":
        return Delivered(line["epoch"], line["offset"], line["digest"], tuple(line["ids"]), line["token"])


def undisturbed(script: Path, epochs: int) -> dict[tuple[int, int], Delivered]:
    """Returns each batch by its place, as one rank in one process reads them."""
    # The waits of the pipeline change no value, and only delay.
    quick = script.with_name("undisturbed.sql")
    quick.write_text(re.sub(r"milliseconds => \d+", "milliseconds => 0", script.read_text()))
    ended = subprocess.run(
        [binary(), "run", quick, "--pipeline", "train", "--epochs", str(epochs), "--ids", "id", "--output", "json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    batches = [Delivered.of(line) for line in lines if "digest" in line]
    assert len(batches) == lines[-1]["batches"] > 0
    return {batch.place: batch for batch in batches}


def check(ranks: Sequence[Sequence[Delivered]], expected: dict[tuple[int, int], Delivered], delivery: str):
    """Checks that each sample of each epoch came exactly once over all ranks, and that each batch equals the one at its
    place that nothing disturbed."""
    samples = Counter((batch.epoch, id) for batches in ranks for batch in batches for id in batch.ids)
    wanted = Counter((batch.epoch, id) for batch in expected.values() for id in batch.ids)
    assert max(wanted.values()) == 1
    missing, surplus = wanted - samples, samples - wanted
    if missing or surplus:
        raise Failure(
            f"{missing.total()} samples were never trained on, and {surplus.total()} once too often: (epoch, id) "
            f"{sorted(missing)[:5]} and {sorted(surplus)[:5]} among them"
        )
    steps = {}
    for epoch in {epoch for epoch, _ in expected}:
        steps |= {place: step for step, place in enumerate(sorted(place for place in expected if place[0] == epoch))}
    for number, batches in enumerate(ranks):
        for batch in batches:
            if batch.place not in expected:
                raise Failure(f"rank {number} got a batch at {batch.place}, where no batch begins")
            if batch.content != expected[batch.place].content:
                raise Failure(f"rank {number} got other bytes than the undisturbed run at {batch.place}")
        if delivery == "ordered":
            places = [batch.place for batch in batches]
            if places != sorted(places):
                raise Failure(f"rank {number} got its batches out of order")
            foreign = [place for place in places if steps[place] % len(ranks) != number]
            if foreign:
                raise Failure(f"rank {number} got the batches of other ranks at {foreign[:5]}")


class Cluster:
    """Dispatchers and workers, each in its own process with its own log. What ends by itself is a failure."""

    def __init__(
        self,
        folder: Path,
        script: Path,
        *,
        dispatchers: int = 1,
        workers: int = 1,
        worker_options: Sequence[str] = (),
        before: Sequence[str] = (),
        of_first_worker: Sequence[str] = (),
        computes: bool = False,
    ):
        self.folder = folder
        self.script = script
        self.worker_options = worker_options
        # Beginnings of command lines, for limits: of all processes, or of the first that computes.
        self.before = before
        self.of_first_worker = of_first_worker
        # Whether dispatchers compute too.
        self.computes = computes
        self.dispatchers: list[Process | None] = [None] * dispatchers
        self.workers: list[Process | None] = [None] * workers
        self.stopped: set[int] = set()
        self._ports = [0] * dispatchers
        self._processes: list[tuple[str, Process, Path]] = []
        # Processes whose end a fault asked for.
        self._ending: set[int] = set()
        for index in range(dispatchers):
            self.start_dispatcher(index)
        self.uris = ",".join(dispatcher.uri for dispatcher in self.dispatchers)
        for index in range(workers):
            self.start_worker(index)

    def _start(self, name: str, *arguments, before: Sequence[str] = (), **options) -> Process:
        log = self.folder / f"{len(self._processes):03}-{name}.log"
        with log.open("w") as stderr:
            process = Process(*arguments, stderr=stderr, before=before or self.before, **options)
        self._processes.append((name, process, log))
        return process

    def start_dispatcher(self, index: int):
        """Starts a dispatcher, at the address that it had before."""
        port = self._ports[index]
        only = [] if self.computes else ["--no-worker"]
        limits = self.of_first_worker if self.computes and index == 0 else ()
        dispatcher = self._start(f"dispatcher-{index}", "serve", self.script, *only, port=port, before=limits)
        self.dispatchers[index] = dispatcher
        self._ports[index] = dispatcher.port

    def start_worker(self, index: int, port: int = 0):
        """Starts a worker. The first has an older processor, and every second is read over its port only, as if it were
        on another machine."""
        options = [*self.worker_options, *(["--no-local-socket"] if index % 2 else [])]
        arguments = ["worker", "--dispatcher", self.uris, "--threads", "1", *options]
        limits = self.of_first_worker if index == 0 else ()
        variables = OLD_PROCESSOR if index == 0 else {}
        name = f"worker-{index}"
        self.workers[index] = self._start(name, *arguments, port=port, variables=variables, before=limits)

    def kill(self, process: Process):
        self.expect_end(process)
        process.kill()

    def expect_end(self, process: Process):
        self._ending.add(process.process.pid)
        self.stopped.discard(process.process.pid)

    def check_alive(self):
        for name, process, log in self._processes:
            code = process.process.poll()
            if code not in (None, 0) and process.process.pid not in self._ending:
                raise Failure(f"{name} ended by itself with {code}:\n{tail(log)}")

    def check_logs(self):
        for name, _, log in self._processes:
            if "panicked" in log.read_text():
                raise Failure(f"{name} panicked:\n{tail(log)}")

    def status(self) -> str:
        """What each dispatcher knows, for the text of a failure."""
        return "\n".join(status_of(dispatcher) for dispatcher in self.dispatchers if dispatcher is not None)

    def logs(self) -> str:
        recent = self._processes[-8:]
        return "\n".join(f"--- {name}, process {process.process.pid}\n{tail(log)}" for name, process, log in recent)

    def close(self):
        for _, process, _ in self._processes:
            # SIGKILL also ends a process that SIGSTOP stopped.
            process.kill()


def tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-LOG_LINES:])


def status_of(dispatcher: Process, *options: str) -> str:
    command = [binary(), "status", "--connect", dispatcher.uri, *options]
    try:
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return f"{dispatcher.uri} did not tell its status within 10 s"
    return ended.stdout + ended.stderr


def wait_for_status(dispatcher: Process, what: str, is_so: Callable[[dict], bool]) -> dict:
    """Asks for a dispatcher's status until `is_so` holds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        text = status_of(dispatcher, "--output", "json")
        with suppress(json.JSONDecodeError):
            status = json.loads(text)
            if is_so(status):
                return status
    raise Failure(f"waited {PATIENCE_SECONDS} s for {what}: {text}")


class Rank:
    """The trainer of a rank: `forebay run`, whose printed batches are what it trained on."""

    def __init__(self, number: int, checkpoint_every: int, pace: float):
        self.number = number
        self.checkpoint_every = checkpoint_every
        # Seconds that the trainer takes for a step.
        self.pace = pace
        self.trained: list[Delivered] = []
        # The number of these that the last checkpoint counts.
        self.kept = 0
        self.process: subprocess.Popen | None = None
        self.generation = 0
        self.log: Path | None = None
        self.has_summary = False
        self.has_ended = False
        self.is_stopped = False

    @property
    def token(self) -> str | None:
        return self.trained[self.kept - 1].token if self.kept else None

    @property
    def is_reading(self) -> bool:
        return self.process is not None and not self.has_summary


class Job:
    """The ranks of a job, each in its own process."""

    def __init__(
        self,
        folder: Path,
        uris: str,
        *,
        world_size: int,
        epochs: int,
        delivery: str = "ordered",
        name: str = "chaos",
        checkpoint_every: int = 1,
        pace: float = 0,
        slower: float = 1,
        retry_seconds: float = RETRY_SECONDS,
        options: Sequence[str] = (),
        before: Sequence[str] = (),
    ):
        self.folder = folder
        self.delivery = delivery
        job = ["--job", name] if delivery == "dynamic" else []
        self.arguments = [
            *before, binary(), "run", "--connect", uris, "--pipeline", "train", "--epochs", str(epochs), "--ids", "id",
            "--output", "json", "--delivery", delivery, *job, "--world-size", str(world_size),
            "--retry-for", str(retry_seconds), *options,
        ]  # fmt: skip
        # With dynamic delivery, the others take what the slower ranks do not.
        paces = [pace * (1 if number % 2 else slower) for number in range(world_size)]
        self.ranks = [Rank(number, checkpoint_every, pace) for number, pace in enumerate(paces)]
        self.said: queue.Queue[tuple[Rank, int, str | None]] = queue.Queue()
        self.logs: list[Path] = []
        # The most batches that were trained on at a time: kills take some back.
        self.high = 0
        self.longest_wait = 0.0
        self._heard = time.monotonic()
        self._strays: list[subprocess.Popen] = []

    def start(self, rank: Rank):
        """Starts a rank, from its checkpoint if it has one."""
        rank.generation += 1
        log = self.folder / f"rank-{rank.number}-{rank.generation:03}.log"
        self.logs.append(log)
        start = [] if rank.token is None else ["--from", rank.token]
        with log.open("w") as stderr:
            rank.process = subprocess.Popen(
                [*self.arguments, "--rank", str(rank.number), *start],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # A small pipe, so that a slow trainer slows its reader.
                pipesize=4096,
            )
        rank.log = log
        rank.is_stopped = rank.has_summary = rank.has_ended = False
        listener = threading.Thread(target=self._listen, args=(rank, rank.generation, rank.process), daemon=True)
        listener.start()

    def start_all(self):
        for rank in self.ranks:
            self.start(rank)
        self._heard = time.monotonic()

    def _listen(self, rank: Rank, generation: int, process: subprocess.Popen):
        for line in process.stdout:
            self.said.put((rank, generation, line))
            if rank.pace:
                time.sleep(rank.pace)
        self.said.put((rank, generation, None))

    def kill(self, rank: Rank):
        """Kills a rank. What it read after its checkpoint was not trained on."""
        rank.process.kill()
        self._forget(rank)

    def _forget(self, rank: Rank):
        rank.process.wait()
        rank.process = None
        rank.is_stopped = False
        # Lines of this process that have not been heard yet are of no process that counts.
        rank.generation += 1
        del rank.trained[rank.kept :]

    def replace(self, rank: Rank) -> tuple[subprocess.Popen, Path]:
        """Starts a second process of a rank from its checkpoint, and returns the first with its log."""
        old, log = rank.process, rank.log
        self._strays.append(old)
        del rank.trained[rank.kept :]
        self.start(rank)
        return old, log

    @property
    def trained(self) -> int:
        return sum(len(rank.trained) for rank in self.ranks)

    @property
    def is_done(self) -> bool:
        return all(rank.has_ended for rank in self.ranks)

    def hear(self, seconds: float) -> bool:
        """Takes the next line of a rank, if one comes within this time. Returns whether one came."""
        try:
            rank, generation, line = self.said.get(timeout=max(seconds, 0))
        except queue.Empty:
            return False
        if generation != rank.generation:
            return True
        if line is None:
            self._ended(rank)
            return True
        said = json.loads(line)
        if "digest" not in said:
            rank.has_summary = True
            return True
        now = time.monotonic()
        self.longest_wait, self._heard = max(self.longest_wait, now - self._heard), now
        rank.trained.append(Delivered.of(said))
        if len(rank.trained) - rank.kept >= rank.checkpoint_every:
            rank.kept = len(rank.trained)
        self.high = max(self.high, self.trained)
        return True

    def _ended(self, rank: Rank):
        code = rank.process.wait(STOPPED_WITHIN_SECONDS)
        if code != 0 or not rank.has_summary:
            awaited = re.search(r"until ranks? ([\d, ]+) joins?", rank.log.read_text().split("error: ")[-1])
            # A dispatcher that is new does not know which ranks have ended, and neither does a rank whose checkpoint is
            # older than that. The job has to start all of its ranks.
            others = [self.ranks[int(number)] for number in awaited[1].split(",")] if awaited else []
            if code == UNAVAILABLE and others and all(other.has_ended for other in others):
                self._forget(rank)
                for other in [rank, *others]:
                    self.start(other)
                return
            raise Failure(f"rank {rank.number} ended with {code}:\n{tail(rank.log)}")
        rank.has_ended = True
        rank.kept = len(rank.trained)
        rank.process = None

    def describe(self) -> str:
        """Where each rank is, for the text of a failure."""
        lines = []
        for rank in self.ranks:
            state = "has ended" if rank.has_ended else "is stopped" if rank.is_stopped else "reads"
            state = "is dead" if rank.process is None and not rank.has_ended else state
            last = rank.trained[-1].place if rank.trained else "nothing"
            lines.append(f"rank {rank.number} {state}; {len(rank.trained)} batches, the last at {last}")
        return "\n".join(lines)

    def read_until(self, batches: float, what: str):
        """Reads until so many batches were trained on, or all ranks have ended."""
        until = time.monotonic() + PATIENCE_SECONDS
        before = self.high
        while not self.is_done and self.trained < batches:
            self.hear(1)
            if self.high > before:
                until, before = time.monotonic() + PATIENCE_SECONDS, self.high
            if time.monotonic() > until:
                raise Failure(f"waited {PATIENCE_SECONDS} s for {what}:\n{self.describe()}")

    def close(self):
        for process in [*self._strays, *(rank.process for rank in self.ranks)]:
            if process is not None:
                process.kill()
                process.wait()
