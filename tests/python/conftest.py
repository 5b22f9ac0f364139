"""Servers for the tests."""

from contextlib import ExitStack

import pyarrow.flight as flight
import pytest

from support import PHOTOS_SQL, Server


@pytest.fixture(scope="session")
def server():
    """A server of the sample photographs' pipeline."""
    with Server(PHOTOS_SQL) as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    with flight.connect(server.uri) as client:
        yield client


@pytest.fixture
def serve(tmp_path):
    """Returns a function that serves given SQL from its own folder, and returns the server and a client."""
    with ExitStack() as stack:

        def start(sql: str) -> tuple[Server, flight.FlightClient]:
            script = tmp_path / "pipelines.sql"
            script.write_text(sql)
            server = stack.enter_context(Server(script))
            return server, stack.enter_context(flight.connect(server.uri))

        yield start
