"""Checks the pages about the Python package: their Python runs, and prints what they show.

Blocks marked `python` run, from top to bottom in one namespace per page. Other libraries' code is marked `py` and does
not run.
"""

import os
import shutil
from pathlib import Path

import forebay
import pytest
from support import REPOSITORY
from test_docs import DOCS, blocks, run_python

PAGES = [DOCS / "python.md", *sorted((DOCS / "migration").glob("*.md"))]
MIGRATIONS = {"dataloader", "hf-datasets", "mosaic-streaming", "ray-data", "tf-data-service", "webdataset"}
# The page of what all of them have in common.
SCRIPTS = {"training-scripts"}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The files that a page's code reads, in the working folder, and a session of its own."""
    shutil.copytree(REPOSITORY / "examples" / "photos", tmp_path / "photos")
    shutil.copy(REPOSITORY / "examples" / "photos.sql", tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", *[name for name in os.environ if name.startswith("FOREBAY_")]):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(forebay._session, "_default", None)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_python_runs(page, folder):
    assert any(block.language == "python" for block in blocks(page)), "a page has something to run"
    run_python(page, {"__name__": page.stem.replace("-", "_")})


def test_there_is_a_page_for_each_loader_people_come_from():
    assert MIGRATIONS | SCRIPTS == {page.stem for page in PAGES if page.parent.name == "migration"}


def test_the_quick_start_has_fifteen_lines():
    first = next(block for block in blocks(DOCS / "python.md") if block.language == "python")
    lines = [line for line in first.code.splitlines() if line.strip()]
    assert len(lines) <= 15
