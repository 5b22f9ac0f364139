"""Events of the engine reach Python's `logging`."""

import logging
import re
import sys

import pytest

import forebay


@pytest.fixture
def loader(tmp_path):
    (tmp_path / "rows.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(40)))
    session = forebay.Session(root=tmp_path / "root")
    table = session.table(tmp_path / "rows.csv")
    return table.select(n="10 / (n % 10)").load(batch_size=8, on_error="quarantine")


def test_warnings_are_logged_with_their_fields(loader, caplog):
    assert sum(len(batch["n"]) for batch in loader) == 36
    records = [record for record in caplog.records if record.name == "forebay"]
    assert records and all(record.levelno == logging.WARNING for record in records)
    rows = [re.fullmatch(r"rows quarantined .*\brows=(\d+).*", record.getMessage()) for record in records]
    assert sum(int(found[1]) for found in rows) == 4


def test_a_handler_that_fails_costs_no_batch(loader, monkeypatch):
    class Failing(logging.Handler):
        def handle(self, record):
            raise RuntimeError("the disk is full")

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    logger, handler = logging.getLogger("forebay"), Failing()
    logger.addHandler(handler)
    try:
        assert sum(len(batch["n"]) for batch in loader) == 36
    finally:
        logger.removeHandler(handler)
    assert ignored and all(str(error.exc_value) == "the disk is full" for error in ignored)
