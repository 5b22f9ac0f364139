"""`forebay materialize --connect`: the workers of a server write the files, as processes that are killed."""

import hashlib
import json
import random
import subprocess
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from cluster import Cluster, status_of, wait_for_status
from support import Server, Worker, binary, environment

ROWS, FILES = 6000, 30
JOB = ["--window-rows", "200", "--file-size", "1"]
WITHIN_SECONDS = 150


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "numbers").mkdir()
    for part in range(3):
        rows = range(part * 2000, (part + 1) * 2000)
        pq.write_table(pa.table({"n": rows}), tmp_path / "numbers" / f"{part}.parquet", row_group_size=200)
    (tmp_path / "train.sql").write_text(script(tmp_path, milliseconds=1))
    return tmp_path


def script(folder, milliseconds):
    """A pipeline that takes time, and has a bad row in each thousand."""
    return f"""
    CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{folder}/numbers';
    CREATE PIPELINE train WITH (on_error = 'skip') AS SELECT sleep(n, milliseconds => {milliseconds}) AS n,
        CAST(CASE WHEN n % 1000 = 7 THEN 'bad' ELSE '1' END AS INT) AS one FROM numbers;
    """


def arguments(server, to, *more):
    return [binary(), "materialize", "--connect", server, "--to", str(to), *JOB, "--output", "json", *more]


def begin(server, to, *more):
    command = arguments(server, to, *more)
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process):
    out, err = process.communicate(timeout=WITHIN_SECONDS)
    assert process.returncode == 0, err
    return json.loads(out)


def refused(server, to, *more):
    ended = subprocess.run(arguments(server, to, *more), env=environment(), capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    return ended.stderr


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}


@pytest.fixture
def alone(folder):
    """The digests of the files that one process writes."""
    quick = folder / "alone.sql"
    quick.write_text(script(folder, milliseconds=0))
    command = [binary(), "materialize", quick, "--to", folder / "alone", *JOB, "--output", "json"]
    subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=60)
    return [*digests(folder / "alone").values()]


def test_workers_write_what_one_process_writes(folder, alone):
    with Server(folder / "train.sql", "--no-worker", "--allow-write", str(folder / "out")) as server:
        waits = begin(server.uri, folder / "out/a")
        with Worker(server), Worker(server):
            # A second client of the same job, a job of another target, and a reader of the same pipeline.
            other, second = begin(server.uri, folder / "out/b"), begin(server.uri, folder / "out/a")
            read = subprocess.run(
                [binary(), "run", "--connect", server.uri, "--window-rows", "200", "--output", "json"],
                env=environment(), capture_output=True, text=True, timeout=WITHIN_SECONDS,
            )  # fmt: skip
            results = [end(process) for process in (waits, second, other)]
            assert json.loads(read.stdout.splitlines()[-1])["samples"] == ROWS - 6
            for result in results:
                assert (result["rows"], result["files"], result["bad_rows"]) == (ROWS - 6, FILES, 6)
            assert results[0]["job"] == results[1]["job"] and results[0]["url"] == str(folder / "out/a")
            assert [*digests(folder / "out/a").values()] == [*digests(folder / "out/b").values()] == alone
            again = end(begin(server.uri, folder / "out/a"))
            assert again["found"] and again["rows"] == ROWS - 6
            divided = end(begin(server.uri, folder / "out/c", "--partition-by", "one"))
            assert divided["rows"] == ROWS - 6 and len(digests(folder / "out/c/one=1")) == FILES == divided["files"]


def test_workers_write_samples_in_an_order_of_their_own(folder):
    (folder / "plain.sql").write_text(f"""
        CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{folder}/numbers';
        CREATE PIPELINE plain AS SELECT n, n + 1 AS next FROM numbers;
    """)

    def written(server, name, *order):
        assert end(begin(server.uri, folder / name, *order))["rows"] == ROWS
        [file] = (folder / name).glob("*.parquet")
        return pq.read_table(file)["n"].to_pylist()

    with Server(folder / "plain.sql", "--no-worker", "--allow-write", str(folder)) as server, Worker(server):
        assert written(server, "sorted", "--sort-by", "next DESC") == [*reversed(range(ROWS))]
        shuffled = written(server, "shuffled", "--global-shuffle", "--seed", "3")
        assert sorted(shuffled) == [*range(ROWS)] != shuffled
        assert '"nxt", which is not there' in refused(server.uri, folder / "out", "--sort-by", "nxt")


def test_a_server_estimates_what_its_workers_would_write(folder, alone):
    with Server(folder / "train.sql", "--allow-write", str(folder)) as server:
        estimate = end(begin(server.uri, folder / "out", "--dry-run"))
        assert not (folder / "out").exists()
        assert (estimate["files"], estimate["files_written"], estimate["is_complete"]) == (FILES, 0, False)
        written = end(begin(server.uri, folder / "out"))
        assert estimate["job"] == written["job"] and 0.3 < estimate["bytes"] / written["bytes"] < 3
        assert end(begin(server.uri, folder / "out", "--dry-run"))["is_complete"]


def test_what_is_refused(folder):
    tokens = folder / "tokens"
    tokens.write_text("reads-only-but-long reader train\noperates-all-but-long operator\n")
    tokens.chmod(0o600)
    with Server(folder / "train.sql", "--allow-write", f"{folder}/out") as server:
        for to in ["other", "out-of-reach", "out/../other"]:
            error = refused(server.uri, f"{folder}/{to}")
            assert "does not write to" in error and f"below {folder}/out" in error or ".." in error, error
        assert "relative" in refused(server.uri, "out")
        assert "no pipeline \"tests\"" in refused(server.uri, folder / "out/a", "--pipeline", "tests")
        assert "format" in refused(server.uri, folder / "out/a", "--format", "parquett")
        (folder / "out/used").mkdir(parents=True)
        (folder / "out/used/notes.txt").write_text("mine")
        assert "notes.txt" in refused(server.uri, folder / "out/used")
        assert "does not write to" in refused(server.uri, folder / "other", "--dry-run")
        assert sorted(path.name for path in (folder / "out").iterdir()) == ["used"]
    with Server(folder / "train.sql") as server:
        error = refused(server.uri, folder / "out/a")
        assert "does not write to" in error and "--allow-write" in error
    with Server(folder / "train.sql", "--allow-write", f"{folder}/out", "--token-file", str(tokens)) as server:
        assert "operator's right" in refused(server.uri, folder / "out/a", "--token", "reads-only-but-long")
        assert end(begin(server.uri, folder / "out/a", "--token", "operates-all-but-long"))["rows"] == ROWS - 6


def test_a_failing_row_ends_the_job_and_nothing_is_committed(folder):
    (folder / "train.sql").write_text(script(folder, milliseconds=0).replace("'skip'", "'raise'"))
    with Server(folder / "train.sql", "--allow-write", str(folder)) as server:
        assert "bad" in refused(server.uri, folder / "out")
    assert not list((folder / "out").glob("_forebay/generations/*"))


def leased_alone(feeds):
    """Whether a worker writes the only file that is left of the only job."""
    return any(feed["windows_leased"] == 1 and feed["writing"]["stored"] == FILES - 1 for feed in feeds)


def test_python_has_the_workers_write(folder, alone):
    (folder / "train.sql").write_text(script(folder, milliseconds=1))
    with Server(folder / "train.sql", "--allow-write", str(folder / "out")) as server:
        cluster, seen = forebay.connect(server.uri), []
        options = {"window_rows": 200, "file_size": 1}
        done = cluster.materialize("train", str(folder / "out"), progress=seen.append, **options)
        assert (done.rows, done.bad_rows, done.files, done.found) == (ROWS - 6, 6, FILES, False)
        assert [*digests(folder / "out").values()] == alone
        assert len(seen) > 1 and seen[-1] == (FILES, FILES, ROWS - 6, done.bytes)
        assert all(isinstance(progress, forebay.JobProgress) and progress.files <= FILES for progress in seen)
        assert cluster.materialize("train", str(folder / "out"), **options).found
        assert len(list(forebay.table(done.url).load(batch_size=1000, format="numpy"))) == 6
        with pytest.raises(forebay.DeniedError, match="does not write to"):
            cluster.materialize("train", str(folder / "other"))
        with pytest.raises(forebay.InvalidError, match="it offers: train"):
            cluster.materialize("trains x", str(folder / "out"))
        with pytest.raises(TypeError, match="file_sizes"):
            cluster.materialize("train", str(folder / "out"), file_sizes=1)
        with pytest.raises(forebay.InvalidError, match="progress"):
            cluster.materialize("train", str(folder / "out"), progress=1)


def test_a_file_that_loses_all_its_workers_ends_the_job(folder):
    # The last file never ends.
    slow = "CASE WHEN n >= 5800 THEN sleep(n, milliseconds => 60000) ELSE n END AS n,"
    (folder / "train.sql").write_text(script(folder, milliseconds=0).replace("sleep(n, milliseconds => 0) AS n,", slow))
    with Server(folder / "train.sql", "--no-worker", "--allow-write", str(folder / "out")) as server:
        job = begin(server.uri, folder / "out")
        # A worker that had not begun the file was not lost over it.
        for _ in range(20):
            worker = Worker(server)
            wait_for_status(server, "the last file", lambda status: job.poll() or leased_alone(status["feeds"]))
            worker.kill()
            if job.poll() is not None:
                break
            wait_for_status(server, "the loss", lambda status: not status["workers"])
        _, error = job.communicate(timeout=WITHIN_SECONDS)
        assert job.returncode == 6 and "was given up: every worker that computed it was lost" in error, error


def test_a_second_job_says_that_it_waits(folder):
    (folder / "train.sql").write_text(script(folder, milliseconds=1))
    with Server(folder / "train.sql", "--allow-write", str(folder / "out")) as server:
        here = [binary(), "materialize", folder / "train.sql", "--to", folder / "out", *JOB, "--output", "json"]
        first = subprocess.Popen(here, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for_files(folder / "out", 1)
        second = begin(server.uri, folder / "out")
        assert end(first)["rows"] == ROWS - 6
        out, error = second.communicate(timeout=WITHIN_SECONDS)
        assert json.loads(out)["found"]
        assert "another process writes the same files; waiting for it" in error


def test_links_do_not_lead_out(folder):
    (folder / "out").mkdir()
    (folder / "out/link").symlink_to(folder)
    with Server(folder / "train.sql", "--allow-write", str(folder / "out")) as server:
        assert "does not write to" in refused(server.uri, folder / "out/link/other")
    assert not (folder / "other").exists()


def test_an_interrupted_job_stops_and_resumes(folder, alone):
    with Server(folder / "train.sql", "--allow-write", str(folder), "--threads", "1") as server:
        process = begin(server.uri, folder / "out")
        wait_for_files(folder / "out", 3)
        process.terminate()
        _, error = process.communicate(timeout=30)
        assert process.returncode in (130, 143) and "run the command again to resume" in error
        before = len(digests(folder / "out"))
        assert before < FILES
        assert end(begin(server.uri, folder / "out"))["rows"] == ROWS - 6
    assert [*digests(folder / "out").values()] == alone


def wait_for_files(folder, count):
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.parquet"))) < count:
        assert time.monotonic() < deadline, f"{len(list(folder.glob('*.parquet')))} files after 60 s"
        time.sleep(0.02)


def test_kills_change_nothing(folder, alone):
    """Kills the dispatcher, workers and the client again and again while the files are written."""
    seed = 19
    print(f"seed {seed}")
    drawn = random.Random(seed)
    (folder / "train.sql").write_text(script(folder, milliseconds=4))
    cluster = WritingCluster(folder, folder / "train.sql", workers=3)
    try:
        client, kills = begin(cluster.uris, folder / "out"), []
        while client.poll() is None and len(kills) < 20:
            time.sleep(drawn.uniform(0.1, 0.8))
            kind = drawn.choice(["worker", "worker", "dispatcher", "client"])
            kills.append(kind)
            match kind:
                case "worker":
                    index = drawn.randrange(3)
                    cluster.kill(cluster.workers[index])
                    cluster.start_worker(index)
                case "dispatcher":
                    cluster.kill(cluster.dispatchers[0])
                    cluster.start_dispatcher(0)
                case "client":
                    client.kill()
                    client.communicate()
                    client = begin(cluster.uris, folder / "out")
        if client.poll() is not None:
            assert client.returncode == 0, client.stderr.read()
        status = status_of(cluster.dispatchers[0])
        result = end(client)
        assert (result["rows"], result["bad_rows"]) == (ROWS - 6, 6)
        assert [*digests(folder / "out").values()] == alone
        assert {"worker", "dispatcher", "client"} <= {*kills} and len(kills) >= 10, (kills, status)
        cluster.check_logs()
    finally:
        cluster.close()


class WritingCluster(Cluster):
    def start_dispatcher(self, index):
        only = ["--no-worker", "--allow-write", str(self.folder)]
        dispatcher = self._start(f"dispatcher-{index}", "serve", self.script, *only, port=self._ports[index])
        self.dispatchers[index] = dispatcher
        self._ports[index] = dispatcher.port
