"""Several workers behind one dispatcher, read by a client that does not know them; and requests that a worker
refuses."""

import json
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support import REPOSITORY, Batch, Server, Worker, batches, command, read

# BLAKE3 of the secret "abc", from its test vectors: pyarrow has no BLAKE3.
SECRET = "abc"
SECRET_KEY = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
# The session of the reader with this key: its BLAKE3 hash for that purpose.
SESSION = 6961125912928004705
REQUEST_BYTES_MAX = 1 << 20


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Writes a pipeline over the sample photographs, filtered and shrunk. A window of ten files takes at least 35
    ms."""
    path = tmp_path_factory.mktemp("cluster") / "pipelines.sql"
    path.write_text(f"""
        CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{REPOSITORY / "examples" / "photos"}';
        CREATE PIPELINE photos WITH (shuffle = true, seed = 3, batch_size = 4, window_rows = 10) AS
        SELECT random_hflip(random_resized_crop(decode_image(bytes), height => 16, width => 16)) AS image,
            sleep(path, milliseconds => 5) AS path
        FROM photos WHERE size % 3 <> 0;
    """)
    return path


@pytest.fixture
def dispatcher(script):
    with Server(script, "--no-worker") as dispatcher:
        yield dispatcher


def test_a_stream_goes_on_while_a_worker_is_killed_and_another_joins(dispatcher):
    request = {"pipeline": "photos", "epochs": 2, "rank": 1, "world_size": 2}
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(dispatcher, "--threads", "1")) for _ in range(2)]
        client = stack.enter_context(flight.connect(dispatcher.uri))
        undisturbed = read(client, **request)
        assert len(undisturbed) > 30
        [endpoint] = client.get_flight_info(command(**request)).endpoints
        disturbed = []
        for chunk in client.do_get(endpoint.ticket):
            disturbed.append(Batch(chunk.data, json.loads(chunk.app_metadata.to_pybytes())))
            if len(disturbed) == 5:
                workers[0].kill()
            if len(disturbed) == 10:
                stack.enter_context(Worker(dispatcher, "--threads", "1"))
            if len(disturbed) == 20:
                workers[1].kill()
    assert len(disturbed) == len(undisturbed)
    for got, expected in zip(disturbed, undisturbed):
        assert got.metadata == expected.metadata
        assert got.records.equals(expected.records)


@contextmanager
def open_window(dispatcher: Server):
    """Returns a worker's address, and a request for a window that the worker accepts."""
    with flight.connect(dispatcher.uri) as client:
        request = {"pipeline": "photos"}
        feed = json.loads(client.get_flight_info(command(**request)).app_metadata)["feed"]
        sync = {
            "session": SESSION, "seq": 0, "feed": feed, "rank": 0, "world_size": 1, "at": [0, 0], "until_epoch": 1,
            "known": 0, "broken": [], "waiting": None, "leaving": False, "samples": 0, "bytes": 0, "stalled_ms": 0,
        }  # fmt: skip
        call = {"request": request, "secret_key": SECRET_KEY, "sync": sync}
        routes = []
        while not routes:
            # The dispatcher answers when there is news, or after half a second.
            sync["seq"] += 1
            [answer] = client.do_action(flight.Action("reader.sync", json.dumps(call).encode()))
            answer = json.loads(answer.body.to_pybytes())
            routes, sync["known"] = answer["reply"]["routes"], answer["reply"]["version"]
        route = routes[0]
        rows = route["rows"]
        slice = {"first": 0, "rows": rows, "origin": 0, "end": rows, "batch_size": 4, "rank": 0, "world_size": 1}
        window = {
            "ticket": answer["ticket"], "secret": SECRET, "feed": feed, "window": route["window"], "slice": slice,
            "from_row": 0,
        }  # fmt: skip
        yield route["address"], window
        # Without this the worker keeps the window, and does not stop until the dispatcher declares the reader lost.
        sync["seq"] += 1
        sync["leaving"] = True
        with pytest.raises(flight.FlightUnavailableError, match="the reader has left"):
            list(client.do_action(flight.Action("reader.sync", json.dumps(call).encode())))


def test_a_worker_gives_a_window_only_for_a_good_ticket(dispatcher, script):
    with ExitStack() as stack:
        stack.enter_context(Worker(dispatcher))
        stranger = stack.enter_context(Server(script))
        address, window = stack.enter_context(open_window(dispatcher))
        _, stranger_window = stack.enter_context(open_window(stranger))
        ticket = window["ticket"]

        def get(**changed) -> list[Batch]:
            return batches(worker, flight.Ticket(json.dumps({**window, **changed})))

        with flight.connect(address) as worker:
            pieces = get()
            assert sum(piece.records.num_rows for piece in pieces) == window["slice"]["rows"]
            assert [piece.metadata["rows"] for piece in pieces][:2] == [[0, 4], [4, min(8, window["slice"]["rows"])]]
            middle = len(ticket) // 2
            altered = ticket[:middle] + ("B" if ticket[middle] == "A" else "A") + ticket[middle + 1 :]
            for changed, reason in [
                ({"secret": "another"}, "given to another reader"),
                ({"secret": SECRET_KEY}, "given to another reader"),
                ({"feed": "0123456789abcdef"}, "the ticket is of feed"),
                ({"ticket": altered}, "forged or altered"),
                ({"ticket": ticket[:-9]}, "forged or altered|truncated"),
                ({"ticket": stranger_window["ticket"]}, "signed by a key that this server does not know"),
                ({"ticket": ""}, "not one of Forebay's"),
                ({"ticket": "no ticket at all"}, "not one of Forebay's"),
            ]:
                with pytest.raises(flight.FlightUnauthorizedError, match=f"(?s){reason}.*hint: "):
                    get(**changed)
            with pytest.raises(KeyError, match="window 99 of epoch 7 .* is not here"):
                get(window=[7, 99])
            for slice in ({"batch_size": 0}, {"rows": 1 << 63}, {"rank": 1}, {"origin": 1 << 63}):
                with pytest.raises(pa.ArrowInvalid, match="the slice does not fit a window"):
                    get(slice={**window["slice"], **slice})
            with pytest.raises(pa.ArrowInvalid, match="the slice does not fit a window"):
                get(from_row=1 << 63)
            # Only a dispatcher answers other requests.
            for other in (json.dumps({**window, "path": "/etc/passwd"}), '{"pipeline": "photos"}', "?", b"\xff\x00"):
                with pytest.raises(pa.ArrowInvalid, match="is the address of a worker, not of a dispatcher"):
                    batches(worker, flight.Ticket(other))
            with pytest.raises(pa.ArrowException, match=str(REQUEST_BYTES_MAX)):
                get(secret="x" * REQUEST_BYTES_MAX)
            # The worker still works.
            assert len(get()) == len(pieces)
