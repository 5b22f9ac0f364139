"""`forebay.check_udf`: functions whose results depend on more than their rows."""

import random
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import forebay


def declared(function, input="int64", output="float64"):
    return forebay.udf(function, input=input, output=output, name="checked")


def problems(function, *arrays, **types):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = forebay.check_udf(declared(function, **types), *arrays)
    assert [str(warning.message) for warning in caught] == [f"checked: {problem}" for problem in found]
    return found


@pytest.mark.parametrize(
    "name, draw",
    [
        ("random", lambda count: [random.random() for _ in range(count)]),
        ("numpy.random", np.random.rand),
        ("torch", lambda count: torch.rand(count).numpy()),
    ],
)
def test_draws_from_global_generators_are_found_and_undone(name, draw):
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    [problem] = problems(lambda x: draw(len(x)))
    assert problem.startswith(f"draws from {name},")
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_a_function_that_seeds_the_global_generator_is_found_too():
    def seeded(x):
        np.random.seed(3)
        return np.random.rand(len(x))

    assert problems(seeded)[0].startswith("draws from numpy.random,")


def test_results_that_change_from_call_to_call_are_found():
    own = np.random.default_rng(7)
    [problem] = problems(lambda x: own.random(len(x)))
    assert problem.startswith("gives other results for the same rows")
    calls = []

    def counted(x):
        calls.append(x)
        return [float(len(calls))] * len(x)

    assert problems(counted) == [problem]


def test_results_that_depend_on_other_rows_are_found():
    [problem] = problems(lambda x: pc.subtract(x, pc.min(x)))
    assert "alone in a call" in problem
    # A generator for the call, and not for the row.
    [problem] = problems(lambda x: np.random.default_rng(7).random(len(x)))
    assert "alone in a call" in problem


def test_functions_of_their_rows_have_no_problems():
    assert problems(lambda x: pc.add(x, 1)) == []
    keyed = lambda x: [np.random.default_rng(number).random() for number in x.to_pylist()]  # noqa: E731
    assert problems(keyed) == []
    # A NaN equals itself here.
    assert problems(lambda x: [float("nan")] * len(x)) == []


@pytest.mark.parametrize("type", ["string", "binary", "bool", "float32", "list<int32>", "list<string>"])
def test_rows_of_simple_types_are_made(type):
    assert problems(lambda x: [float(len(str(value))) for value in x.to_pylist()], input=type) == []


def test_rows_may_be_given():
    seen = []

    def keep(text):
        seen.extend(text.to_pylist())
        return [0.0] * len(text)

    assert problems(keep, ["a", "b"], input="string") == []
    assert set(seen) == {"a", "b"}


def test_wrong_calls_are_refused():
    with pytest.raises(forebay.InvalidError, match="not a function in queries") as raised:
        forebay.check_udf(len)
    assert "forebay.udf" in str(raised.value)
    two = forebay.udf(lambda x, y: x, input=["int64", "int64"], output="int64", name="two")
    with pytest.raises(forebay.InvalidError, match="takes 2 arrays, got 1"):
        forebay.check_udf(two, [1, 2])
    with pytest.raises(forebay.InvalidError, match="at least 2, got 1"):
        forebay.check_udf(declared(lambda x: x), [1])
    made = forebay.udf(lambda x: x, input=pa.date32(), output="int64", name="dates")
    with pytest.raises(forebay.InvalidError, match=r"no rows of type date32\[day\] can be made for dates"):
        forebay.check_udf(made)
    with pytest.raises(forebay.InvalidError, match="returned 0 rows for 8"):
        forebay.check_udf(declared(lambda x: x[:0]))


def test_tensors_are_checked():
    image, many = forebay.tensor("uint8", [2, 3]), forebay.tensor("float32", [None, None, 3])

    @forebay.udf(input=image, output="float64", name="alone")
    def alone(x):
        return x.mean(axis=(1, 2))

    @forebay.udf(input=image, output="float64", name="together")
    def together(x):
        return np.full(len(x), x.mean())

    @forebay.udf(input=many, output=many, name="halves")
    def halves(images):
        return [image[::2] for image in images]

    arrays = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    assert not forebay.check_udf(alone) and not forebay.check_udf(alone, arrays)
    assert not forebay.check_udf(alone, pa.FixedShapeTensorArray.from_numpy_ndarray(arrays))
    assert not forebay.check_udf(halves) and not forebay.check_udf(halves, [np.ones((2, 2, 3)), np.ones((1, 4, 3))])
    with pytest.warns(UserWarning, match="another result if it is alone"):
        assert forebay.check_udf(together)
