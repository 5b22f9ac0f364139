"""What the guides say is missing is missing.

Each item of a list under "Not supported" or "Current limits" carries a comment that names what must not exist:

    <!-- absent: operator *audio*, format tar, argument sampler, python Loader.__getitem__, scheme gs -->
    <!-- refused (reads the clock): SELECT now() AS seen FROM photos -->
    <!-- tested: test_frameworks.py sequence-parallel -->
    <!-- not in a registry -->

The words in brackets are those of the refusal's message. Names may be patterns. Operators are those of
docs/operators.md, which is generated from the registry. A test that refuses it is named by its file, and its
function or the key of its case.
"""

import fnmatch
import inspect
import re
from pathlib import Path

import pytest

import forebay
from forebay import _native
from support import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "migration").glob("*.md"))]
SECTION = re.compile(r"^## (?:Not supported(?: yet)?|Current limits)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--\s*(absent|tested|refused\s+\([^)]*\)|not in a registry):?\s*(.*?)\s*-->", re.DOTALL)


def items(text: str) -> list[str]:
    """Items of the lists in the sections about what is missing, each on one line."""
    found = []
    for section in SECTION.findall(text):
        before, *listed = section.split("\n- ")
        assert not before.strip(), f"a section about what is missing is a list, and not: {before.strip()}"
        found += [" ".join(item.split()) for item in listed]
    return found


DENIALS = [
    pytest.param(page, item, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, item in enumerate(items(page.read_text()))
]


def operators() -> set[str]:
    return set(re.findall(r"^### (\w+)$", (DOCS / "operators.md").read_text(), re.MULTILINE))


def public_names() -> set[str]:
    """Names of the package, and of its classes' members as `Class.member`."""
    names = set(forebay.__all__)
    for name in forebay.__all__:
        thing = getattr(forebay, name)
        if inspect.isclass(thing):
            # Members that all classes have deny nothing.
            names |= {f"{name}.{member}" for member in set(dir(thing)) - set(dir(object))}
    return names


def of_kind(kind: str) -> set[str]:
    match kind:
        case "operator":
            return operators()
        case "format":
            return set(_native.formats())
        case "argument":
            return set(inspect.signature(forebay.load).parameters)
        case "python":
            return public_names()
    raise AssertionError(f'a comment denies "{kind}", which is none of operator, format, argument, python, scheme')


def present(kind: str, pattern: str) -> list[str]:
    """What exists although a guide denies it."""
    if kind == "scheme":
        try:
            forebay.table(f"{pattern}://bucket/rows.parquet")
        except forebay.InvalidError as error:
            return [] if "scheme" in error.message or "not supported" in error.message else [error.message]
        return [pattern]
    return sorted(name for name in of_kind(kind) if fnmatch.fnmatchcase(name, pattern))


def contradictions(item: str) -> list[str]:
    """What exists of the things that an item of a list denies."""
    comments = COMMENT.findall(item)
    assert comments, f"no comment says what must not exist: {item}"
    found = []
    for comment, text in comments:
        if comment == "absent":
            for kind, pattern in (denied.split() for denied in text.split(",")):
                found += [f"{kind} {name}" for name in present(kind, pattern)]
        elif comment == "tested":
            for file, word in (named.split() for named in text.split(",")):
                tests = (REPOSITORY / "tests" / "python" / file).read_text()
                named = re.search(rf'^def {re.escape(word)}\(|"{re.escape(word)}": ', tests, re.MULTILINE)
                found += [] if named else [f"no test of {word}"]
        elif comment.startswith("refused"):
            found += [] if is_refused(text, comment.partition("(")[2][:-1]) else [text]
    return found


def is_refused(statement: str, phrase: str) -> bool:
    session = forebay.Session(base=REPOSITORY / "examples")
    try:
        session.sql("CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos'")
        is_query = statement.lstrip().upper().startswith(("SELECT", "WITH"))
        session.sql(f"CREATE PIPELINE denied AS {statement}" if is_query else statement)
    except forebay.InvalidError as error:
        # A mistake in the statement would be refused whatever the engine can do.
        assert " ".join(phrase.split()) in error.message, error.message
        return True
    return False


@pytest.mark.parametrize("page, item", DENIALS)
def test_what_a_guide_denies_does_not_exist(page: Path, item: str):
    assert contradictions(item) == [], f"{page.name} denies what exists"


def test_every_page_with_such_a_section_is_checked():
    sections = [page for page in PAGES if re.search("^#+ .*(?i:not supported|limits$)", page.read_text(), re.MULTILINE)]
    assert sections == [page for page in PAGES if items(page.read_text())] and len(sections) >= 9


@pytest.mark.parametrize(
    "item, found",
    [
        ("no jitter <!-- absent: operator color_*, operator pack -->", ["operator color_jitter", "operator pack"]),
        ("no CSV <!-- absent: format csv, scheme gs -->", ["format csv"]),
        ("no test <!-- tested: test_frameworks.py no-such-case -->", ["no test of no-such-case"]),
        ("no seed <!-- absent: argument seed, python Loader.skip -->", ["argument seed", "python Loader.skip"]),
        ("no WHERE <!-- refused (x): SELECT size FROM photos WHERE size > 9 -->", [
            "SELECT size FROM photos WHERE size > 9",
        ]),
    ],
)
def test_a_denial_of_something_that_exists_is_found(item: str, found: list[str]):
    assert contradictions(item) == found


@pytest.mark.parametrize("statement", ["SELECT label FRM photos", "SELECT lable FROM photos"])
def test_a_statement_with_a_mistake_denies_nothing(statement: str):
    with pytest.raises(AssertionError):
        contradictions(f"no clock <!-- refused (reads the clock): {statement} -->")


def test_a_denial_without_a_comment_is_found():
    with pytest.raises(AssertionError, match="no comment"):
        contradictions("EXIF orientation is ignored")
