"""Checks the console blocks of the guides: their commands run, and print what the blocks show.

`$ ` begins a command, and the lines up to the next command are its output. In output, `…` stands for the rest of a
line, and on a line of its own for any number of lines. Times, rates and memory match any numbers. A feed's id, the
checksum of a token and a port differ from run to run: the test learns each at its first appearance on a page, and
expects the same value in the rest of the page. Warnings are not logged.

A block that cannot run states the reason: ```console (not run: reason). The command must have the flags in that block.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import REPOSITORY, binary, environment
from test_docs import DOCS, blocks, make_guide_folder

PAGES = sorted(
    path for path in REPOSITORY.rglob("*.md") if not {"target", ".venv", "node_modules"} & set(path.relative_to(REPOSITORY).parts)
)
RUN = [DOCS / "guide.md", DOCS / "flight.md", DOCS / "operations.md"]
SHELLS = {"console", "sh", "bash", "shell"}
COMMAND_WITHIN_SECONDS = 120
QUIET = {"FOREBAY_LOG": "error"}
# The guide shows what is wrong with this script, but not the script.
MISTAKE = """CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';
CREATE PIPELINE p AS SELECT resize(decode_image(bytes), heigth => 3, width => 10) AS i FROM photos;
"""

VARIES = re.compile(
    r"(?P<lines>^…\n)|(?P<rest>…)|(?P<name>fb1\.[0-9a-f]{16}|\b[0-9a-f]{16}\b|grpc://127\.0\.0\.1:\d+)"
    r"|(?P<checksum>(?<=\.)[0-9a-f]{6}(?=\W))|(?P<folder>/data/guide)"
    r"|(?P<number>\b[\d.]+(?= s\b| s:| samples/s| ms\b| CPU seconds| MB of memory))",
    re.MULTILINE,
)


def shell_blocks(page: Path) -> list:
    return [block for block in blocks(page) if block.language in SHELLS]


def commands(code: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with its output."""
    parts = re.split(r"^\$ (.*)\n", code, flags=re.MULTILINE)
    assert not parts[0].strip(), f"output without a command: {parts[0]}"
    return list(zip(parts[1::2], parts[2::2]))


class Names:
    """The names of feeds and servers on a page, and their names in this run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.known: dict[str, str] = {}

    def in_command(self, command: str) -> str:
        for shown, real in self.known.items():
            command = command.replace(shown, real)
        return command

    def compare(self, shown: str, printed: str, place: str):
        """Compares a command's output with the page's, and learns new names from it."""
        learned: dict[str, str] = {}

        def named(shown: str, form: str) -> str:
            if shown in self.known:
                return re.escape(self.known[shown])
            if shown in learned:
                return f"(?P={learned[shown]})"
            learned[shown] = f"name{len(learned)}"
            return f"(?P<{learned[shown]}>{form})"

        def pattern(match: re.Match) -> str:
            text = match[0]
            match match.lastgroup:
                case "lines":
                    return r"(?:.*\n)*?"
                case "rest":
                    return ".*"
                case "folder":
                    return re.escape(str(self.folder))
                case "number":
                    return r"[\d.]+"
                case "checksum":
                    # Another block may show the same checksum for another token.
                    return r"[0-9a-f]{6}"
                case "name" if text.startswith("grpc"):
                    return named(text, r"grpc://127\.0\.0\.1:\d+")
                case "name":
                    return text[: -len(text.removeprefix("fb1."))].replace(".", r"\.") + named(text.removeprefix("fb1."), "[0-9a-f]{16}")

        expected, end = "", 0
        for match in VARIES.finditer(shown):
            expected += re.escape(shown[end : match.start()]) + pattern(match)
            end = match.end()
        expected += re.escape(shown[end:])
        found = re.fullmatch(expected, printed)
        assert found, f"{place} shows\n{shown}\nand it prints\n{printed}"
        self.known |= {shown: found[name] for shown, name in learned.items()}
        for whole, token in zip(re.findall(r"fb1\.[0-9a-f.]+", shown), re.findall(r"fb1\.[0-9a-f.]+", printed)):
            self.known = {whole: token} | self.known


def run(command: str, folder: Path) -> str:
    """All output of a command, in a shell that has the program and this Python."""
    path = f"{binary().parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment() | {"PATH": path} | QUIET,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_WITHIN_SECONDS,
    )
    return ended.stdout


def start(command: str, folder: Path, lines: int, stack: ExitStack) -> str:
    """The first lines of a server, on a free port. It serves until the end of the page."""
    arguments = [binary(), *shlex.split(command)[1:], "--port", "0"]
    process = subprocess.Popen(arguments, cwd=folder, env=environment() | QUIET, stdout=subprocess.PIPE, text=True)
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return "".join(process.stdout.readline() for _ in range(lines))


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_pages_commands_run(page, tmp_path):
    folder = make_guide_folder(tmp_path)
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    (folder / "mistake.sql").write_text(MISTAKE)
    names = Names(folder)
    compared = 0
    with ExitStack() as stack:
        for block in blocks(page):
            # The script is the one that the page last showed under this name.
            if block.language == "sql" and block.info:
                (folder / block.info).write_text(block.code)
            if block.language not in SHELLS or block.not_run:
                continue
            for command, shown in commands(block.code):
                place = f"{page.name}, line {block.line}: {command}"
                command = names.in_command(command)
                if command.startswith("forebay serve "):
                    printed = start(command, folder, len(shown.splitlines()), stack)
                else:
                    printed = run(command, folder)
                names.compare(shown, printed, place)
                compared += 1
    assert compared > 0, "a page that is run shows commands"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_commands_run_or_say_why_not(page):
    for block in shell_blocks(page):
        place = f"{page.name}, line {block.line}"
        if page in RUN and block.language == "console":
            assert "not run" not in block.info or block.not_run, f"{place}: write (not run: reason)"
            continue
        assert block.not_run, f"{place} is not run: write ```{block.language} (not run: reason), or add the page to RUN"


HELP: dict[str, str] = {}


def help_of(subcommand: str) -> str:
    if subcommand not in HELP:
        ended = subprocess.run([binary(), subcommand, "--help"], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        HELP[subcommand] = ended.stdout
    return HELP[subcommand]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_commands_that_are_not_run_have_their_flags(page):
    for block in shell_blocks(page):
        for subcommand, arguments in re.findall(r"^(?:\$ )?forebay (\w+)(.*)", block.code, re.MULTILINE):
            for flag in re.findall(r"--[a-z][a-z-]*", arguments):
                known = re.search(rf"{flag}\b(?!-)", help_of(subcommand))
                assert known, f"{page.name}, line {block.line}: `forebay {subcommand}` has no {flag}"
