"""Checks the guides: their Python and SQL runs, and prints what they show."""

import contextlib
import io
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import REPOSITORY, binary, environment

DOCS = REPOSITORY / "docs"
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"\(not run: \S.*\)")


@dataclass(frozen=True)
class Block:
    """A fenced block, the rest of its first line after the language, and the output shown right below it, if any."""

    language: str
    info: str
    code: str
    line: int
    output: str | None

    @property
    def not_run(self) -> bool:
        """Whether the block states that it is not run, and why."""
        return NOT_RUN.fullmatch(self.info) is not None


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    found = list(FENCE.finditer(text))
    result = []
    for fence, following in zip(found, [*found[1:], None]):
        shown = following is not None and following[1] == "text" and not text[fence.end() : following.start()].strip()
        line = text.count("\n", 0, fence.start()) + 1
        result.append(Block(fence[1], fence[2].strip(), fence[3], line, following[3] if shown else None))
    return result


def of(document: str, language: str) -> list:
    """The blocks of one language, as parameters named by their lines."""
    path = DOCS / document
    return [pytest.param(block, id=f"{document}:{block.line}") for block in blocks(path) if block.language == language]


def run_python(path: Path, scope: dict):
    """Runs a document's Python from top to bottom, as a reader would, and compares its output."""
    for block in [block for block in blocks(path) if block.language == "python"]:
        printed = io.StringIO()
        # Errors then have the line numbers of the document.
        code = compile("\n" * block.line + block.code, path, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, scope)
        if block.output is not None:
            assert printed.getvalue() == block.output, f"{path.name}, line {block.line}"


def test_the_flight_guide_runs(server, monkeypatch, tmp_path):
    monkeypatch.setenv("FOREBAY_URI", server.uri)
    monkeypatch.chdir(tmp_path)
    run_python(DOCS / "flight.md", {"__name__": "flight_guide"})


def test_the_text_guide_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_python(DOCS / "text.md", {"__name__": "text_guide"})


@pytest.fixture(scope="module")
def guide_folder(tmp_path_factory) -> Path:
    return make_guide_folder(tmp_path_factory.mktemp("guide"))


def make_guide_folder(folder: Path) -> Path:
    """Fills a folder with the sources of the user guide's scripts: photographs, and the data that its Python makes."""
    shutil.copytree(REPOSITORY / "examples" / "photos", folder / "photos")
    with contextlib.chdir(folder):
        run_python(DOCS / "guide.md", {"__name__": "guide"})
    return folder


@pytest.mark.parametrize("block", of("guide.md", "sql"))
def test_the_user_guides_scripts_run(guide_folder, block):
    script = guide_folder / f"line-{block.line}.sql"
    script.write_text(block.code)
    ended = subprocess.run([binary(), "sql", script], env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
