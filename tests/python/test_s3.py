"""Datasets in S3, against moto, a local implementation of its protocol."""

import json
import subprocess

import boto3
import pytest
from moto.server import ThreadedMotoServer

import forebay
from support import REPOSITORY, binary, environment as clean_environment

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


# A store that refuses a bucket counts as unavailable.
@pytest.mark.parametrize(("location", "code"), [("s3://bucket/nothing", 2), ("s3://nobody/photos", 6)])
def test_a_bucket_or_key_that_is_not_there_is_named(bucket, tmp_path, location, code):
    _, environment = bucket
    script = tmp_path / "script.sql"
    script.write_text(PIPELINE.format(location=location))
    done = run(environment, str(script))
    assert done.returncode == code
    assert location in done.stderr


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
