"""Length buckets: every global step is one matrix on all ranks, and its metadata counts the gaps."""

import json
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support import Server, command, read

SCRIPT = """
CREATE EXTERNAL TABLE texts STORED AS JSONL LOCATION 'texts.jsonl';
CREATE PIPELINE texts WITH (shuffle = true) AS
SELECT id, pad_to(tokens, boundaries => [4, 8, 32]) AS tokens FROM texts;
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"id": n, "tokens": list(range(n * 7 % 20))} for n in range(110)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.sql").write_text(SCRIPT)
    with Server(folder / "texts.sql") as server:
        yield server


def matrix(column):
    length = column.value_lengths()[0].as_py() if len(column) else 0
    return column.flatten().to_numpy().reshape(len(column), length)


@pytest.mark.parametrize("boundaries", ["4,8", [4, 8]])
def test_a_step_is_of_one_length_on_all_ranks(texts, boundaries):
    buckets = {"bucket_by_length": "tokens", "bucket_boundaries": boundaries, "global_batch_size": 16}
    steps, ids, gaps = defaultdict(set), [], 0
    with flight.connect(texts.uri) as client:
        ranks = [read(client, pipeline="texts", rank=rank, world_size=4, **buckets) for rank in range(4)]
        info = client.get_flight_info(command(pipeline="texts", **buckets))
    # The number of samples is known before reading; the number of gaps is not.
    assert json.loads(info.app_metadata)["samples_per_epoch"] == 110
    assert info.total_records == -1
    assert len({len(batches) for batches in ranks}) == 1
    for batch in [batch for batches in ranks for batch in batches]:
        tokens = matrix(batch.records["tokens"])
        if len(tokens):
            steps[batch.metadata["step"]].add(tokens.shape[1])
            # After the first padding value there is only padding.
            assert np.array_equal(tokens, np.where(tokens == np.arange(tokens.shape[1]), tokens, 0))
        ids += batch.records["id"].to_pylist()
        gaps += batch.metadata.get("gaps", 0)
        assert batch.metadata["rows"] + batch.metadata.get("gaps", 0) == batch.metadata["positions"] == 4
    assert sorted(ids) == list(range(110))
    assert gaps == 2, "seven steps of 16 hold 110 rows"
    assert all(len(lengths) == 1 for lengths in steps.values())
    assert len(set.union(*steps.values())) == 3


def test_a_world_size_that_does_not_divide_the_global_batch_is_refused(texts):
    buckets = {"bucket_by_length": "tokens", "bucket_boundaries": [4], "global_batch_size": 16}
    with flight.connect(texts.uri) as client, pytest.raises(pa.ArrowInvalid, match="divided among 3 ranks"):
        read(client, pipeline="texts", world_size=3, **buckets)
