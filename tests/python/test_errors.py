"""Errors: the right pyarrow exception, with a text that says what to do."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support import PHOTOS_SQL, Server, batches, command, read, ticket


def plan_fails(client, **request) -> str:
    """Checks that planning and reading fail in the same way, and returns the error's text."""
    with pytest.raises(pa.ArrowInvalid) as planned:
        client.get_flight_info(command(**request))
    with pytest.raises(pa.ArrowInvalid):
        client.get_schema(command(**request))
    with pytest.raises(pa.ArrowInvalid):
        batches(client, ticket(**request))
    return str(planned.value)


@pytest.mark.parametrize("descriptor", [flight.FlightDescriptor.for_path("photo"), command(pipeline="photo")])
def test_an_unknown_pipeline_is_a_key_error_with_the_nearest_name(client, descriptor):
    for ask in (client.get_flight_info, client.get_schema):
        with pytest.raises(KeyError, match='(?s)there is no pipeline "photo".*did you mean "photos"'):
            ask(descriptor)
    with pytest.raises(KeyError, match='(?s)there is no pipeline "photo".*did you mean "photos"'):
        batches(client, ticket(pipeline="photo"))


def test_an_unknown_field_is_named_with_those_there_are(client):
    text = plan_fails(client, pipeline="photos", batchsize=32)
    assert "unknown field `batchsize`" in text
    assert "`batch_size`" in text


def test_a_rank_outside_the_world_is_refused(client):
    text = plan_fails(client, pipeline="photos", rank=2, world_size=2)
    assert '"rank" must be below the world size of 2, got 2' in text


@pytest.mark.parametrize(
    "request_, expected",
    [
        ({"batch_size": 0}, '"batch_size" must be a positive integer, got 0'),
        ({"world_size": 0}, '"world_size" must be a positive integer, got 0'),
        ({"window_bytes": 0}, '"window_bytes" must be positive, got 0'),
        ({"batch_size": 1 << 40}, 'may set "batch_size" to at most 16777216, got 1099511627776'),
        ({"on_error": "ignore"}, "`raise`, `skip`, `quarantine`"),
        ({"from_": "later"}, '"from" must be OFFSET, EPOCH:OFFSET or a resume token, got "later"'),
        ({"from_": "fb1.0123"}, "is not a whole resume token"),
    ],
)
def test_values_without_a_meaning_are_refused(client, request_, expected):
    assert expected in plan_fails(client, pipeline="photos", **request_)


def test_a_token_of_another_feed_is_refused_with_the_reasons_it_can_have(client):
    token = read(client, pipeline="photos", batch_size=120)[0].token
    text = plan_fails(client, pipeline="photos", seed=18, from_=token)
    assert "the resume token is of feed" in text
    assert "one of them differs from the run that made the token" in text


def test_a_token_that_lost_a_digit_is_refused(client):
    token = read(client, pipeline="photos", batch_size=120)[0].token
    assert "is not a whole resume token" in plan_fails(client, pipeline="photos", from_=token[:-1])


def test_a_ticket_of_another_feed_is_refused(client):
    with pytest.raises(pa.ArrowInvalid, match="(?s)precondition.*now opens as feed.*ask for flight info again"):
        batches(client, ticket(pipeline="photos", feed="0123456789abcdef"))


@pytest.mark.parametrize("text", ["", "photos", "[]", '{"rank": 0}', "\x00\xff"])
def test_what_is_no_request_is_refused_with_an_example(client, text):
    with pytest.raises(pa.ArrowInvalid, match='(?s)the ticket is not a stream request.*"pipeline": "train"'):
        batches(client, flight.Ticket(text))
    with pytest.raises(pa.ArrowInvalid, match='"pipeline": "train"'):
        client.get_flight_info(flight.FlightDescriptor.for_command(text))


def test_a_path_has_one_part(client):
    with pytest.raises(pa.ArrowInvalid, match="a path of one pipeline name"):
        client.get_flight_info(flight.FlightDescriptor.for_path("photos", "train"))


def test_feeds_are_only_read(client):
    with pytest.raises(NotImplementedError, match="no action"):
        list(client.do_action("forebay.checkpoint"))
    with pytest.raises(NotImplementedError, match="read, not written"):
        client.do_put(flight.FlightDescriptor.for_path("photos"), pa.schema([]))[0].close()
    with pytest.raises(NotImplementedError, match="DoGet"):
        client.do_exchange(flight.FlightDescriptor.for_path("photos"))[1].read_all()


def cats_with_a_bad_last_row(serve, tmp_path):
    """Returns a client, and the number of good rows before the bad one."""
    shutil.copytree(PHOTOS_SQL.parent / "photos" / "cat", tmp_path / "cats")
    (tmp_path / "cats" / "zzz.jpg").write_text("this is not a picture")
    _, client = serve("""
        CREATE EXTERNAL TABLE cats STORED AS MEDIA LOCATION 'cats';
        CREATE PIPELINE cats AS SELECT resize(decode_image(bytes), height => 8, width => 8) AS image FROM cats;
    """)
    return client, client.get_flight_info(command(pipeline="cats")).total_records - 1


def test_a_bad_row_is_named_with_its_file_and_reason(serve, tmp_path):
    client, _ = cats_with_a_bad_last_row(serve, tmp_path)
    with pytest.raises(flight.FlightInternalError, match="(?s)data loss.*zzz.jpg.*row 0.*not an image of a known format"):
        read(client, pipeline="cats")


def test_good_batches_before_a_bad_row_are_delivered(serve, tmp_path):
    client, good = cats_with_a_bad_last_row(serve, tmp_path)
    stream = client.do_get(ticket(pipeline="cats", batch_size=good))
    assert stream.read_chunk().data.num_rows == good
    with pytest.raises(flight.FlightInternalError):
        stream.read_chunk()


def test_a_changed_file_is_named(serve, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": 1}\n{"n": 2}\n')
    _, client = serve("""
        CREATE EXTERNAL TABLE numbers STORED AS JSONL LOCATION 'rows.jsonl';
        CREATE PIPELINE numbers AS SELECT n FROM numbers;
    """)
    assert len(read(client, pipeline="numbers")) == 1
    rows.write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    with pytest.raises(pa.ArrowInvalid, match="rows.jsonl.*changed since the feed's snapshot was taken"):
        read(client, pipeline="numbers")
    os.remove(rows)
    with pytest.raises(pa.ArrowInvalid, match="rows.jsonl.*was removed since the feed's snapshot was taken"):
        read(client, pipeline="numbers")


def test_a_server_that_dies_is_unavailable(client):
    with Server(PHOTOS_SQL) as server, flight.connect(server.uri) as own:
        stream = own.do_get(ticket(pipeline="photos", epochs=1000))
        token = json.loads(stream.read_chunk().app_metadata.to_pybytes())["token"]
        server.process.kill()
        with pytest.raises(flight.FlightUnavailableError):
            stream.read_all()
        with pytest.raises(flight.FlightUnavailableError):
            own.get_flight_info(command(pipeline="photos"))
    # This is why the token matters: another server resumes from it.
    assert read(client, pipeline="photos", from_=token)[0].metadata["step"] == 1
