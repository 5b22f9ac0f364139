"""Type checkers accept the package and the examples in strict mode, and know what `load` returns."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import _options, _types
from support import REPOSITORY

PACKAGE = REPOSITORY / "python"
TYPED = Path(__file__).parent / "typed"
OPERATORS = (REPOSITORY / "docs" / "operators.md").read_text()


def reported_by_mypy(cache: Path) -> list[tuple[str, int, str]]:
    checked = [PACKAGE / "forebay", *sorted((REPOSITORY / "examples").rglob("*.py")), *sorted(TYPED.glob("*.py"))]
    command = [sys.executable, "-m", "mypy", "--config-file", PACKAGE / "pyproject.toml", "--cache-dir", cache]
    ended = subprocess.run([*command, "--output", "json", *checked], cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    reports = [json.loads(line) for line in ended.stdout.splitlines()]
    return [(report["file"], report["line"], report["message"]) for report in reports if report["severity"] == "error"]


def reported_by_pyright() -> list[tuple[str, int, str]]:
    command = [sys.executable, "-m", "basedpyright", "--project", PACKAGE, "--pythonpath", sys.executable]
    ended = subprocess.run([*command, "--outputjson"], cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] > 20, "the examples and the package are checked"
    found = report["generalDiagnostics"]
    return [(item["file"], item["range"]["start"]["line"] + 1, item["message"]) for item in found]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_package_and_the_examples_have_types_and_mistakes_are_found(checker, tmp_path):
    reports = reported_by_mypy(tmp_path) if checker == "mypy" else reported_by_pyright()
    unexpected = [report for report in reports if Path(report[0]).name != "mistakes.py"]
    assert unexpected == []
    text = (TYPED / "mistakes.py").read_text().splitlines()
    expected = {number for number, line in enumerate(text, 1) if line.endswith("# error")}
    assert {line for _, line, _ in reports} == expected and len(expected) > 10


def test_options_are_the_same_in_types_signatures_and_checks():
    feed, read = _types.FeedOptions.__annotations__, _types.ReadOptions.__annotations__
    assert list(feed) == list(_options.FEED) and list(read) == list(_options.READ)
    options = _types.LoadOptions.__annotations__.items()
    declared = {"format": "str | None", **{name: text.__forward_arg__ for name, text in options}}
    classes: list[Any] = [forebay.Table, forebay.Pipeline, forebay.Session, forebay.Cluster]
    for function in [forebay.load, *(described.load for described in classes)]:
        parameters = inspect.signature(function).parameters.values()
        signature = {item.name: item.annotation for item in parameters if item.kind is item.KEYWORD_ONLY}
        assert signature == declared


@pytest.mark.parametrize("operator", ["pack", "mixup", "cutmix", "drop_near_duplicates"])
def test_methods_take_the_options_of_their_operators(operator):
    [section] = re.findall(rf"^### {operator}\n(.*?)(?=^### |\Z)", OPERATORS, re.MULTILINE | re.DOTALL)
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    method = inspect.signature(getattr(forebay.Table, operator)).parameters
    assert ["rows", *list(method)[1:]] == documented
