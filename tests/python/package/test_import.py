"""`import forebay` imports no framework and no pyarrow. Each is imported on first use."""

import ast
from pathlib import Path

import forebay
from forebay import _native

from feeds import printed

HEAVY = ["numpy", "torch", "pyarrow", "jax", "tensorflow", "pandas", "polars", "multiprocessing", "ml_dtypes"]


def imported_after(code):
    return set(printed(f"import json, sys\n{code}\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"))


def test_importing_forebay_imports_no_framework():
    assert imported_after("import forebay") == set()


def test_arrow_batches_need_no_framework():
    # pyarrow is not blocked here, but Forebay itself must import neither NumPy nor torch.
    code = """
import forebay
pipeline = forebay.sql("SELECT value FROM numbers", numbers=FILE)
batch = pipeline.load(format="arrow")._feed.read({"from": "0:0", "epochs": 1, "rank": 0, "world_size": 1}, 1).next()
assert batch.num_rows == 3 and batch.columns()["value"].shape == (3,)
"""
    setup = "import tempfile; FILE = tempfile.mkdtemp() + '/n.csv'; open(FILE, 'w').write('value\\n1\\n2\\n3\\n')\n"
    assert imported_after(setup + code) == set()


def test_a_loop_in_numpy_imports_numpy_alone():
    code = """
import tempfile
import forebay
path = tempfile.mkdtemp() + "/n.csv"
open(path, "w").write("value\\n1\\n2\\n3\\n")
[batch] = forebay.table(path).load(format="numpy")
assert batch["value"].tolist() == [1, 2, 3]
"""
    # NumPy may import parts of the standard library.
    assert imported_after(code) - {"multiprocessing"} == {"numpy"}


def test_what_is_public_is_there_and_documented():
    for name in forebay.__all__:
        thing = getattr(forebay, name)
        assert name == "__version__" or thing.__doc__, name


def test_the_stubs_of_the_native_half_are_complete():
    stubs = ast.parse((Path(forebay.__file__).parent / "_native.pyi").read_text())
    described = {}
    for node in stubs.body:
        if isinstance(node, ast.ClassDef):
            described[node.name] = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
    functions = {node.name for node in stubs.body if isinstance(node, ast.FunctionDef)}
    real = {name: thing for name, thing in vars(_native).items() if not name.startswith("_")}
    assert set(described) == {name for name, thing in real.items() if isinstance(thing, type)}
    assert functions == {name for name, thing in real.items() if not isinstance(thing, type)}
    for name, members in described.items():
        own = {member for member in vars(real[name]) if member not in ("__doc__", "__module__", "__getitem__")}
        assert members == own, name


def test_the_package_says_that_it_is_typed():
    folder = Path(forebay.__file__).parent
    assert (folder / "py.typed").is_file() and (folder / "_native.pyi").is_file()
