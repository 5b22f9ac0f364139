"""`trace`: the source rows of a batch."""

import pytest

import forebay
from feeds import files, pipeline, printed, range_of


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Returns the numbers below 100, 40 per file."""
    return forebay.table(files(tmp_path_factory.mktemp("trace") / "numbers")).pipeline()


def numbers(traced):
    return [int(file[-len("0.parquet")]) * 40 + row for file, row in traced]


def test_a_batch_is_traced_wherever_its_loop_began(rows):
    first = rows.load(format="numpy", batch_size=7, shuffle=True)
    batches = iter(first)
    next(batches)
    # Offset 7 is not a multiple of this global batch.
    loader = rows.load(format="numpy", batch_size=5, rank=1, world_size=2, shuffle=True)
    loader.load_state_dict(first.state_dict())
    for batch in loader:
        expected = batch["n"].tolist()
        assert numbers(loader.trace(batch)) == expected
        assert numbers(loader.trace(batch.step)) == expected
    assert loader.trace(batch.step + 1, epoch=0) == []


def test_steps_are_those_of_the_loop_that_was_in_the_epoch(rows):
    first = rows.load(format="numpy", batch_size=7)
    next(iter(first))
    loader = rows.load(format="numpy", batch_size=10)
    loader.load_state_dict(first.state_dict())
    resumed = {batch.step: batch["n"].tolist() for batch in loader}
    following = {batch.step: batch["n"].tolist() for batch in loader}
    for step in (0, 4, 8):
        assert numbers(loader.trace(step, epoch=0)) == resumed[step]
        assert numbers(loader.trace(step, epoch=1)) == following[step]
    assert resumed[4][0] == 47 and following[4][0] == 40
    # The same epoch again, from its beginning.
    loader.set_epoch(0)
    anew = next(iter(loader))
    assert numbers(loader.trace(anew.step)) == anew["n"].tolist() == list(range(10))


@pytest.mark.parametrize("query", ["SELECT n FROM {table}", "SELECT n FROM {table} WHERE n % 10 <> 9"])
def test_a_step_that_drop_last_leaves_out_is_refused(query):
    made = pipeline({"n": range_of(100)}, query)
    loader = made.load(format="numpy", batch_size=8, rank=0, world_size=2, drop_last=True)
    steps = {batch.step: batch["n"].tolist() for batch in loader}
    last = max(steps)
    assert [row for _, row in loader.trace(last, epoch=0)] == steps[last]
    with pytest.raises(forebay.InvalidError, match=f"epoch 0 has no step {last + 1}") as refused:
        loader.trace(last + 1, epoch=0)
    assert "in global batches of 16, without the last if it is incomplete" in str(refused.value)
    # Without drop_last that step exists.
    whole = made.load(format="numpy", batch_size=8, rank=0, world_size=2)
    assert [row for _, row in whole.trace(last + 1)] == [batch["n"].tolist() for batch in whole][-1]


def test_a_state_after_the_last_step_can_be_traced_from(rows):
    first = rows.load(format="numpy", batch_size=30)
    batches = iter(first)
    for _ in range(4):
        next(batches)
    loader = rows.load(format="numpy", batch_size=30)
    loader.load_state_dict(first.state_dict())
    assert numbers(loader.trace(3, epoch=0)) == list(range(90, 100))


def test_a_batch_that_is_not_as_the_loader_gave_it_is_refused(rows):
    with pytest.raises(forebay.InvalidError, match="does not know its place"):
        rows.load(format="numpy").trace(forebay.Batch(n=[1]))
    with pytest.raises(forebay.InvalidError, match='"step" must be an integer of at least 0, got'):
        rows.load(format="numpy").trace({"n": [1]})


def test_dynamic_delivery_is_traced_by_the_batch(rows):
    loader = rows.load(format="numpy", delivery="dynamic", job="trace")
    batch = next(iter(loader))
    assert numbers(loader.trace(batch)) == batch["n"].tolist()
    with pytest.raises(forebay.InvalidError, match="no steps of their own"):
        loader.trace(0)


INTERRUPTED = """
import json
from feeds import numbers
loader = numbers(12, batch_size=3)
batches, open_again, got = iter(loader), loader._feed.read, []
got.append(next(batches)["n"].to_pylist())

def interrupted(*_):
    loader._feed.read = open_again
    raise KeyboardInterrupt

# One Ctrl-C arrives while the loop waits, and another while it begins to read again.
loader._loop._interrupted, loader._feed.read = True, interrupted
try:
    next(batches)
except KeyboardInterrupt:
    got.append("interrupted")
got += [batch["n"].to_pylist() for batch in batches]
print(json.dumps(got))
"""


def test_a_second_ctrl_c_while_a_loop_reads_again_loses_nothing():
    assert printed(INTERRUPTED) == [[0, 1, 2], "interrupted", [3, 4, 5], [6, 7, 8], [9, 10, 11]]
