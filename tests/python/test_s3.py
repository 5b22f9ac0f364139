"""Datasets in S3, against moto, a local implementation of its protocol."""

import datetime
import json
import re
import socket
import subprocess
import time

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import dataset

import forebay
from interposed import interposed
from support import REPOSITORY, Process, binary, environment as clean_environment

PHOTOS = REPOSITORY / "examples" / "photos"
PIPELINE = """
CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{location}';
CREATE PIPELINE photos WITH (shuffle = true, batch_size = 10) AS
SELECT random_resized_crop(decode_image(bytes), height => 32, width => 32) AS image, label, path FROM photos;
"""


@pytest.fixture(scope="module")
def bucket():
    """Starts moto. Returns a client of a bucket, and the environment with which Forebay reaches the bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="bucket")
    yield client, environment
    server.stop()


def run(environment, *arguments):
    return subprocess.run(
        [binary(), "run", "--output", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean_environment(), **environment},
    )


def batches(environment, *arguments):
    done = run(environment, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[:-1]]


def test_photographs_in_a_bucket_are_the_samples_they_are_on_disk(bucket, tmp_path):
    client, environment = bucket
    folder = tmp_path / "photos"
    for label in ("cat", "rocket"):
        (folder / label).mkdir(parents=True)
        for photograph in (PHOTOS / label).glob("*.jpg"):
            (folder / label / photograph.name).write_bytes(photograph.read_bytes())
            client.upload_file(str(photograph), "bucket", f"photos/{label}/{photograph.name}")
    digests = []
    for name, location in (("local", folder), ("remote", "s3://bucket/photos")):
        script = tmp_path / f"{name}.sql"
        script.write_text(PIPELINE.format(location=location))
        digests.append([(batch["offset"], batch["digest"]) for batch in batches(environment, str(script))])
    assert digests[0] == digests[1]
    assert len(digests[0]) == len(list(folder.glob("*/*"))) // 10 + 1


def test_an_object_that_changes_under_a_feed_is_named(bucket, tmp_path):
    client, environment = bucket
    rows = "".join(f"{row}\n" for row in range(200_000))
    client.put_object(Bucket="bucket", Key="rows.csv", Body="a\n" + rows)
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://bucket/rows.csv';"
        "CREATE PIPELINE p WITH (batch_size = 100, window_rows = 1000) AS SELECT a FROM t;"
    )
    command = [binary(), "run", str(script), "--output", "json", "--window-memory-limit", "0"]
    reader = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean_environment(), **environment}
    )
    reader.stdout.readline()
    # The reader's pipe is full by now, or will be soon, so most of the object is still unread.
    client.put_object(Bucket="bucket", Key="rows.csv", Body="a\n" + rows.replace("7", "8"))
    _, errors = reader.communicate(timeout=60)
    assert reader.returncode == 5
    assert "s3://bucket/rows.csv" in errors and "changed" in errors


def test_quarantined_rows_are_written_to_a_bucket(bucket, tmp_path):
    client, environment = bucket
    (tmp_path / "rows.csv").write_text("a\n1\nx\n3\n")
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS CSV LOCATION 'rows.csv'; CREATE PIPELINE p AS SELECT a FROM t;"
    )
    batches(environment, str(script), "--on-error", "quarantine", "--root", "s3://bucket/root")
    script.write_text(
        "CREATE EXTERNAL TABLE q STORED AS PARQUET LOCATION 's3://bucket/root/quarantine';"
        'CREATE PIPELINE p AS SELECT file, "row", reason FROM q;'
    )
    (batch,) = batches(environment, str(script), "--ids", "row")
    assert batch["ids"] == ["1"]


def write_script(folder, location="s3://bucket/photos"):
    script = folder / "script.sql"
    script.write_text(PIPELINE.format(location=location))
    return str(script)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("location", "phrases"),
    [
        ("s3://bucket/nothing", ['"s3://bucket/nothing" does not exist', "hint: check the key, in which case counts"]),
        ("s3://nobody/photos", ['the bucket of "s3://nobody/photos" does not exist', "AWS_ENDPOINT_URL"]),
    ],
)
def test_a_bucket_or_key_that_is_not_there_is_named(bucket, tmp_path, location, phrases):
    _, environment = bucket
    done = run(environment, write_script(tmp_path, location))
    assert done.returncode == 2
    assert all(phrase in done.stderr for phrase in phrases), done.stderr
    assert "<" not in done.stderr and "relative paths" not in done.stderr, done.stderr


def test_a_refusal_is_a_sentence_and_is_not_repeated(bucket, tmp_path):
    with interposed(bucket[1]) as (server, environment):
        error = "<Code>AccessDenied</Code><Message>User: arn:aws:iam::1:user/x is not authorized</Message>"
        server.answer = (403, f"<?xml version='1.0'?><Error>{error}</Error>")
        done = run(environment, write_script(tmp_path))
        assert done.returncode == 3
        assert '"s3://bucket/photos" may not be accessed' in done.stderr and "<" not in done.stderr, done.stderr
        assert len(server.requests) == len(set(server.requests))


def test_settings_that_are_missing_are_named(bucket, tmp_path, closed_port):
    _, environment = bucket
    script = write_script(tmp_path)
    done = run({name: value for name, value in environment.items() if name != "AWS_ALLOW_HTTP"}, script)
    assert done.returncode == 2 and "set AWS_ALLOW_HTTP=true" in done.stderr, done.stderr
    secrets = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    without = {name: value for name, value in environment.items() if name not in secrets}
    started = time.monotonic()
    done = run(without | {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{closed_port}"}, script)
    assert done.returncode == 3 and time.monotonic() - started < 30
    wanted = [*secrets, "AWS_WEB_IDENTITY_TOKEN_FILE", f"127.0.0.1:{closed_port}", "AWS_SKIP_SIGNATURE"]
    assert all(name in done.stderr for name in wanted), done.stderr


def test_a_store_that_cannot_be_reached_is_named(bucket, tmp_path, closed_port):
    environment = bucket[1] | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port}"}
    command = [binary(), "run", write_script(tmp_path)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**clean_environment(), **environment}, **pipes) as process:
        try:
            # A warning, or the error if the retries took less than five seconds.
            line = process.stderr.readline()
        finally:
            process.kill()
    assert f"no connection to 127.0.0.1:{closed_port}: Connection refused" in line, line


def test_a_store_that_stalls_is_logged_and_shown_until_it_answers(bucket, tmp_path):
    client, _ = bucket
    for number in range(3):
        client.upload_file(str(PHOTOS / "cat" / "001.jpg"), "bucket", f"stalled/{number}.jpg")
    with interposed(bucket[1]) as (server, environment):
        log = tmp_path / "log"
        script = write_script(tmp_path, "s3://bucket/stalled")
        with log.open("w") as stderr, Process("serve", script, variables=environment, stderr=stderr) as serving:
            server.stalls = lambda path: path.startswith("/bucket/stalled/")
            command = [binary(), "run", "--connect", serving.uri, "--pipeline", "photos"]
            reading = subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL)

            def status() -> str:
                asked = [binary(), "status", "--connect", serving.uri]
                return subprocess.run(asked, env=clean_environment(), capture_output=True, text=True, timeout=60).stdout

            deadline = time.monotonic() + 60
            while "waits for a store" not in status():
                assert time.monotonic() < deadline
                time.sleep(0.2)
            line = r"waits for a store: \d requests, the oldest for \d+ s: http://[^ ]*/bucket/stalled/\d"
            assert re.search(line, status()), status()
            assert re.search(r"a store does not answer; waiting.*/bucket/stalled/\d\.jpg", log.read_text())
            server.released.set()
            assert reading.wait(60) == 0
            assert "waits for a store" not in status()


def test_a_dispatcher_that_waits_for_a_store_says_so(bucket, tmp_path):
    client, _ = bucket
    client.upload_file(str(PHOTOS / "cat" / "001.jpg"), "bucket", "slow/1.jpg")
    with interposed(bucket[1]) as (server, environment):
        script = write_script(tmp_path, "s3://bucket/slow")
        with Process("serve", script, "--no-worker", variables=environment) as serving:
            server.stalls = lambda path: "slow" in path
            (tmp_path / "script.sql").write_text(PIPELINE.format(location="s3://bucket/slow") + "\n-- changed\n")
            asked = ["--connect", serving.uri]
            reloading = subprocess.Popen([binary(), "reload", *asked], env=clean_environment(), stdout=subprocess.PIPE)
            deadline = time.monotonic() + 60
            while True:
                said = subprocess.run([binary(), "status", *asked], env=clean_environment(), capture_output=True, text=True, timeout=60)
                if "the dispatcher waits for a store" in said.stdout:
                    break
                assert time.monotonic() < deadline, said
                time.sleep(0.2)
            assert re.search(r"the dispatcher waits for a store: \d requests, the oldest for \d+ s: http://", said.stdout), said
            server.released.set()
            assert reloading.wait(60) == 0


def test_a_list_of_paths_in_a_bucket_is_a_table_in_python(bucket, monkeypatch):
    client, environment = bucket
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for path in ("cat/001.jpg", "cat/002.jpg", "rocket/002.jpg"):
        client.upload_file(str(PHOTOS / path), "bucket", f"listed/{path}")
    paths = ["s3://bucket/listed/rocket/002.jpg", "s3://bucket/listed/cat/001.jpg"]
    session = forebay.Session()
    [batch] = session.table(paths).select("path", "label", image="decode_image(bytes)").load(format="numpy")
    assert batch["path"] == sorted(paths) and batch["label"] == ["cat", "rocket"] and len(batch["image"]) == 2
    with pytest.raises(forebay.NotFoundError, match='"s3://bucket/listed/cat/009.jpg"; searched "s3://bucket/listed/cat"'):
        session.table(["s3://bucket/listed/cat/001.jpg", "s3://bucket/listed/cat/009.jpg"])


def test_folders_that_name_values_are_columns_in_a_bucket(bucket, tmp_path, monkeypatch):
    client, environment = bucket
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    values = ["a b", "a/b", "50%", "x=y", "Zürich", "日本", None]
    rows = [{"id": id, "dt": datetime.date(2026, 1, 1 + id % 3), "city": values[id % 7]} for id in range(42)]
    keys = pa.schema([("dt", pa.date32()), ("city", pa.string())])
    layout = dataset.partitioning(keys, flavor="hive")
    dataset.write_dataset(pa.Table.from_pylist(rows), tmp_path / "hive", format="parquet", partitioning=layout)
    for file in (tmp_path / "hive").rglob("*.parquet"):
        client.upload_file(str(file), "bucket", f"hive/{file.relative_to(tmp_path / 'hive')}")
    session = forebay.Session(root=tmp_path / "root")
    for location in (tmp_path / "hive", "s3://bucket/hive"):
        table = session.table(location)
        read = [row for batch in table.load(batch_size=10, format="arrow") for row in batch.to_pylist()]
        assert sorted(read, key=lambda row: row["id"]) == rows
        [batch] = table.filter("city = 'a/b' AND dt = DATE '2026-01-02'").load(batch_size=10, format="arrow")
        expected = [row["id"] for row in rows if row["city"] == "a/b" and row["dt"].day == 2]
        assert sorted(batch["id"].to_pylist()) == expected
