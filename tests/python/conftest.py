"""Servers for the tests."""

from contextlib import ExitStack

import pyarrow.flight as flight
import pytest

from support import PHOTOS_SQL, Server


@pytest.fixture(scope="session")
def server():
    """The sample photographs' pipeline, served."""
    with Server(PHOTOS_SQL) as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    with flight.connect(server.uri) as client:
        yield client


@pytest.fixture
def serve(tmp_path):
    """Serves the SQL it is given from a folder of its own, and gives the server and a client."""
    with ExitStack() as stack:

        def start(sql: str) -> tuple[Server, flight.FlightClient]:
            script = tmp_path / "pipelines.sql"
            script.write_text(sql)
            server = stack.enter_context(Server(script))
            return server, stack.enter_context(flight.connect(server.uri))

        yield start
