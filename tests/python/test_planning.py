"""Listing pipelines and asking for flight info: exact, and without reading anything."""

import json

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support import batches, command, photographs, read, ticket

SCHEMA_NAMES = ["image", "label", "path"]


def check_schema(schema: pa.Schema):
    assert schema.names == SCHEMA_NAMES
    assert schema.field("image").type == pa.fixed_shape_tensor(pa.float32(), (224, 224, 3), dim_names=["H", "W", "C"])
    assert schema.field("label").type == pa.string()
    assert schema.field("path").type == pa.string()


def test_flights_are_the_pipelines_by_path(client):
    [info] = client.list_flights()
    assert info.descriptor.descriptor_type == flight.DescriptorType.PATH
    assert info.descriptor.path == [b"photos"]
    assert info.total_records == len(photographs())
    check_schema(info.schema)


def test_a_listed_flight_can_be_read_as_it_is(client):
    [info] = client.list_flights()
    whole = batches(client, info.endpoints[0].ticket)
    assert sum(batch.records.num_rows for batch in whole) == info.total_records


@pytest.mark.parametrize("descriptor", [flight.FlightDescriptor.for_path("photos"), command(pipeline="photos")])
def test_the_schema_is_told_by_path_and_by_command(client, descriptor):
    check_schema(client.get_schema(descriptor).schema)
    check_schema(client.get_flight_info(descriptor).schema)


def test_flight_info_has_one_ordered_endpoint_and_names_the_feed(client):
    info = client.get_flight_info(command(pipeline="photos", rank=1, world_size=2))
    assert info.ordered
    [endpoint] = info.endpoints
    # An endpoint without a location refers to the server that answered.
    assert endpoint.locations == []
    feed = json.loads(info.app_metadata)
    assert feed["samples_per_epoch"] == len(photographs())
    assert json.loads(endpoint.ticket.ticket)["feed"] == feed["feed"]


def test_the_feed_is_the_same_for_every_rank_and_another_for_another_seed(client):
    def feed(**request):
        return json.loads(client.get_flight_info(command(pipeline="photos", **request)).app_metadata)["feed"]

    assert feed(rank=1, world_size=4, batch_size=3, epochs=5) == feed()
    assert feed(seed=17) == feed(), "17 is the pipeline's own seed"
    assert feed(seed=18) != feed()


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"batch_size": 1000},
        {"batch_size": 7, "rank": 2, "world_size": 3},
        # 240 = 150 + 90: rank 0 gets a batch, rank 1 a part of one, rank 2 none.
        {"batch_size": 50, "rank": 0, "world_size": 3},
        {"batch_size": 50, "rank": 1, "world_size": 3},
        {"batch_size": 50, "rank": 2, "world_size": 3},
        {"batch_size": 50, "rank": 1, "world_size": 3, "drop_last": True},
        {"batch_size": 50, "rank": 1, "world_size": 3, "epochs": 2, "from_": "1:70"},
        {"batch_size": 32, "epochs": 2, "from_": 200},
        {"from_": 240},
        {"from_": "1:0"},
    ],
    ids=json.dumps,
)
def test_total_records_is_what_reading_gives(client, request_):
    info = client.get_flight_info(command(pipeline="photos", **request_))
    delivered = batches(client, info.endpoints[0].ticket)
    assert info.total_records == sum(batch.records.num_rows for batch in delivered)


def test_total_records_is_unknown_where_only_reading_tells(serve, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(10)))
    _, client = serve("""
        CREATE EXTERNAL TABLE numbers STORED AS JSONL LOCATION 'rows.jsonl';
        CREATE PIPELINE odd AS SELECT n FROM numbers WHERE n % 2 = 1;
        CREATE PIPELINE whole AS SELECT n FROM numbers;
    """)
    records = {info.descriptor.path[0]: info.total_records for info in client.list_flights()}
    assert records == {b"odd": -1, b"whole": 10}
    assert client.get_flight_info(command(pipeline="whole", on_error="skip")).total_records == -1
    assert sum(batch.records.num_rows for batch in read(client, pipeline="odd")) == 5


def test_planning_reads_no_file(serve, tmp_path):
    """Serves broken files only, so any call that reads one fails."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for n in range(5):
        (folder / f"{n}.jpg").write_text("this is not a picture")
    _, client = serve("""
        CREATE EXTERNAL TABLE broken STORED AS MEDIA LOCATION 'broken';
        CREATE PIPELINE broken AS SELECT resize(decode_image(bytes), height => 8, width => 8) AS image FROM broken;
    """)
    assert [info.total_records for info in client.list_flights()] == [5]
    assert client.get_schema(command(pipeline="broken")).schema.names == ["image"]
    assert client.get_flight_info(command(pipeline="broken", batch_size=2, world_size=2)).total_records == 3
    with pytest.raises(flight.FlightInternalError, match="(?s)0.jpg.*not an image of a known format"):
        batches(client, ticket(pipeline="broken"))


def test_actions_are_listed_and_status_is_one(client):
    of_feeds = {"feed.spec", "feed.trace", "snapshot"}
    of_servers = {"status", "reload", "reader.sync", "claim.sync", "job.sync", "job.estimate", "worker.sync"}
    assert {action.type for action in client.list_actions()} == of_servers | of_feeds
    [status] = client.do_action("status")
    assert [worker["draining"] for worker in json.loads(status.body.to_pybytes())["workers"]] == [False]
