"""Reading a feed: each sample once over all ranks, from any position, as NumPy arrays."""

import json
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support import Batch, batches, command, paths, photographs, read, ticket


@pytest.fixture(scope="module")
def epoch(client) -> list[Batch]:
    """Reads the first epoch with one rank, in batches of 16."""
    return read(client, pipeline="photos", batch_size=16)


def same(left: list[Batch], right: list[Batch]) -> bool:
    """Whether rows and metadata are equal, bit for bit."""
    return len(left) == len(right) and all(
        a.metadata == b.metadata and a.records.equals(b.records, check_metadata=True) for a, b in zip(left, right)
    )


def test_app_metadata_says_where_a_batch_lies(epoch):
    for step, batch in enumerate(epoch):
        assert set(batch.metadata) == {"epoch", "step", "offset", "rows", "positions", "token"}
        token = batch.metadata["token"]
        assert batch.metadata == {
            "epoch": 0,
            "step": step,
            "offset": 16 * step,
            "rows": batch.records.num_rows,
            "positions": 16,
            "token": token,
        }
        assert token.startswith("fb1.")


def test_an_epoch_has_each_sample_once(epoch):
    assert sorted(paths(epoch)) == photographs()


@pytest.mark.parametrize("world_size, batch_size", [(2, 16), (3, 7), (5, 50), (4, 1000)])
def test_ranks_together_give_each_sample_once(client, epoch, world_size, batch_size):
    order = paths(epoch)
    delivered = []
    for rank in range(world_size):
        for batch in read(client, pipeline="photos", rank=rank, world_size=world_size, batch_size=batch_size):
            offset = batch.metadata["offset"]
            # Global step g is offsets [g n B, (g + 1) n B), of which rank r takes the r-th B.
            assert offset == (batch.metadata["step"] * world_size + rank) * batch_size
            assert batch.paths == order[offset : offset + batch_size]
            delivered += batch.paths
    assert sorted(delivered) == photographs()


def test_ranks_may_read_at_once(client, server, epoch):
    order = paths(epoch)
    delivered: list[list[Batch]] = [[] for _ in range(3)]

    def trainer(rank: int):
        with flight.connect(server.uri) as own:
            delivered[rank] = read(own, pipeline="photos", rank=rank, world_size=3, batch_size=10)

    trainers = [Thread(target=trainer, args=(rank,)) for rank in range(3)]
    for thread in trainers:
        thread.start()
    for thread in trainers:
        thread.join()
    steps = zip(*delivered)
    assert [path for step in steps for batch in step for path in batch.paths] == order


def test_without_drop_last_ranks_may_get_unequal_numbers_of_batches(client):
    def rows(drop_last):
        return [
            [
                batch.records.num_rows
                for batch in read(
                    client, pipeline="photos", rank=rank, world_size=3, batch_size=50, drop_last=drop_last
                )
            ]
            for rank in range(3)
        ]

    assert rows(False) == [[50, 50], [50, 40], [50]]
    assert rows(True) == [[50], [50], [50]]


def test_images_are_fixed_shape_tensors(epoch):
    for batch in epoch:
        image = batch.records["image"]
        assert isinstance(image, pa.FixedShapeTensorArray)
        assert tuple(image.type.shape) == (224, 224, 3)
        pixels = image.to_numpy_ndarray()
        assert pixels.shape == (16, 224, 224, 3)
        assert pixels.dtype == np.float32
        assert np.isfinite(pixels).all()
        # Values are normalised with ImageNet's means and deviations: black is -2.12, white 2.64.
        assert -2.2 < pixels.min() < pixels.max() < 2.7


def test_arrays_are_views_of_what_was_received(epoch):
    image = epoch[0].records["image"]
    values = np.frombuffer(image.storage.flatten().buffers()[1], dtype=np.float32)
    assert np.shares_memory(image.to_numpy_ndarray(), values)


def test_a_batch_of_a_whole_epoch_is_one_message(client, epoch):
    [whole] = read(client, pipeline="photos", batch_size=240)
    assert whole.records.num_rows == 240
    assert whole.records["image"].nbytes > 100 << 20
    assert whole.paths == paths(epoch)


def test_reading_again_gives_the_same_bits(client, epoch):
    assert same(read(client, pipeline="photos", batch_size=16), epoch)


def test_epochs_have_the_same_samples_in_another_order_with_other_crops(client, epoch):
    two = read(client, pipeline="photos", batch_size=16, epochs=2)
    first, second = two[: len(epoch)], two[len(epoch) :]
    assert same(first, epoch)
    assert {batch.metadata["epoch"] for batch in second} == {1}
    assert sorted(paths(second)) == photographs()
    assert paths(second) != paths(first)
    crops = [
        {path: image.tobytes() for b in of for path, image in zip(b.paths, b.records["image"].to_numpy_ndarray())}
        for of in (first, second)
    ]
    assert all(crops[0][path] != crops[1][path] for path in photographs())


def test_seed_and_shuffle_decide_the_order(client, epoch):
    def order(**request):
        return paths(read(client, pipeline="photos", **request))

    assert order(seed=17) == paths(epoch)
    assert order(seed=18) != paths(epoch)
    assert order(shuffle=False) == photographs()


@pytest.mark.parametrize("start", [96, "96", "0:96"])
def test_an_offset_gives_the_tail(client, epoch, start):
    assert same(read(client, pipeline="photos", batch_size=16, from_=start), epoch[6:])


def test_any_offset_will_do(client, epoch):
    tail = read(client, pipeline="photos", batch_size=16, from_=101)
    assert tail[0].place == (0, 101)
    assert paths(tail) == paths(epoch)[101:]


def test_an_epoch_and_offset_give_the_tail_of_that_epoch(client):
    second = read(client, pipeline="photos", batch_size=16, epochs=2)[15:]
    assert second[0].place == (1, 0)
    assert same(read(client, pipeline="photos", batch_size=16, epochs=2, from_="1:64"), second[4:])


@pytest.mark.parametrize("done", [1, 7, 14, 15, 16, 29])
def test_a_token_gives_the_tail(client, done):
    whole = read(client, pipeline="photos", batch_size=16, epochs=2)
    token = whole[done - 1].token
    assert same(read(client, pipeline="photos", batch_size=16, epochs=2, from_=token), whole[done:])


def test_the_last_token_gives_nothing(client, epoch):
    assert read(client, pipeline="photos", batch_size=16, from_=epoch[-1].token) == []


def test_every_rank_has_the_same_token_after_a_step(client):
    tokens = [
        [batch.token for batch in read(client, pipeline="photos", rank=rank, world_size=4, batch_size=10)]
        for rank in range(4)
    ]
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]
    assert len(set(tokens[0])) == 6


def test_a_token_is_good_for_another_number_of_ranks_and_another_batch_size(client, epoch):
    [_, second, *_] = read(client, pipeline="photos", rank=0, world_size=2, batch_size=16)
    rest = [
        read(client, pipeline="photos", rank=rank, world_size=3, batch_size=11, from_=second.token)
        for rank in range(3)
    ]
    assert sorted(path for rank in rest for path in paths(rank)) == sorted(paths(epoch)[64:])


def test_a_token_goes_on_where_a_filter_makes_offsets_depend_on_the_data(serve, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(40_000)))
    _, client = serve("""
        CREATE EXTERNAL TABLE numbers STORED AS JSONL LOCATION 'rows.jsonl';
        CREATE PIPELINE odd WITH (shuffle = true, seed = 3, batch_size = 100, window_rows = 10000) AS
        SELECT n FROM numbers WHERE n % 3 = 1;
    """)
    whole = read(client, pipeline="odd")
    assert sorted(n for batch in whole for n in batch.records["n"].to_pylist()) == list(range(1, 40_000, 3))
    for done in (1, 30, 31, 66, len(whole) - 1):
        assert same(read(client, pipeline="odd", from_=whole[done - 1].token), whole[done:])


def test_a_hand_made_ticket_is_as_good_as_a_planned_one(client, epoch):
    assert same(batches(client, ticket(pipeline="photos", batch_size=16)), epoch)


def test_a_ticket_keeps_working(client, epoch):
    info = client.get_flight_info(command(pipeline="photos", batch_size=16))
    for _ in range(2):
        assert same(batches(client, info.endpoints[0].ticket), epoch)


def test_pyarrow_can_gather_a_stream_itself(client, epoch):
    table = client.do_get(ticket(pipeline="photos", batch_size=100)).read_all()
    assert table["path"].to_pylist() == paths(epoch)
    assert isinstance(table["image"].chunk(0), pa.FixedShapeTensorArray)
    reader = client.do_get(ticket(pipeline="photos", batch_size=100)).to_reader()
    assert [batch.num_rows for batch in reader] == [100, 100, 40]


def test_a_reader_that_leaves_disturbs_no_other(client, epoch):
    leaving = client.do_get(ticket(pipeline="photos", epochs=1000))
    leaving.read_chunk()
    leaving.cancel()
    assert same(read(client, pipeline="photos", batch_size=16), epoch)


def test_a_bad_row_keeps_its_offset(serve, tmp_path):
    lines = [json.dumps({"n": n}) for n in range(12)]
    # The middle batch of four loses one row, and the last batch loses all rows.
    for bad in (5, 8, 9, 10, 11):
        lines[bad] = '{"n": "not a number"}'
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    _, client = serve("""
        CREATE EXTERNAL TABLE numbers (n BIGINT) STORED AS JSONL LOCATION 'rows.jsonl';
        CREATE PIPELINE numbers WITH (on_error = 'skip', batch_size = 4) AS SELECT n FROM numbers;
    """)
    places = [
        (batch.metadata["offset"], batch.metadata["rows"], batch.metadata["positions"], batch.records["n"].to_pylist())
        for batch in read(client, pipeline="numbers")
    ]
    assert places == [(0, 4, 4, [0, 1, 2, 3]), (4, 3, 4, [4, 6, 7]), (8, 0, 4, [])]
