"""Copies to a GPU, with a fake torch that records calls: order, events, and errors of the batch that is copied
ahead."""

import contextlib

import pytest

import forebay
from feeds import pipeline, range_of
from forebay._devices import DeviceCopy


class Tensor:
    """The part of a tensor's interface that copying uses."""

    def __init__(self, log, values):
        self.log, self.values = log, values

    def pin_memory(self):
        self.log.append(("pin", self.values[0]))
        return self

    def to(self, device, non_blocking):
        assert non_blocking
        self.log.append(("copy", self.values[0], tuple(self.log.streams)))
        return self

    def record_stream(self, stream):
        self.log.append(("used", self.values[0], stream))


class Log(list):
    """Records calls, and holds the current streams."""

    def __init__(self):
        super().__init__()
        self.streams, self.events = ["loop"], 0


class Event:
    def __init__(self, log):
        log.events += 1
        self.log, self.number = log, log.events

    def record(self, stream):
        self.log.append(("record", self.number, stream))


class Cuda:
    def __init__(self, log):
        self.log = log

    def is_available(self):
        return True

    def Stream(self, device):
        return "copies"

    def Event(self):
        return Event(self.log)

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.streams.append(stream)
        yield
        self.log.streams.pop()

    def current_stream(self, device):
        log = self.log

        class Current(str):
            def wait_event(self, event):
                log.append(("wait", event.number, str(self)))

        return Current(log.streams[-1])


class Torch:
    Tensor = Tensor

    def __init__(self, log):
        self.cuda = Cuda(log)

    def device(self, name):
        class Device(str):
            type = str(name).partition(":")[0]

        return Device(name)


def on_gpu(made, **options):
    """Returns a loader whose batches go to a fake GPU, and the record of the calls."""
    import numpy

    log = Log()
    loader = made.load(format="torch", **options)
    loader._copy = DeviceCopy("cuda:0", False, Torch(log))
    loader._tensor = lambda native: Tensor(log, numpy.from_dlpack(native))
    return loader, log


def test_the_next_batch_is_copied_before_the_loop_gets_one():
    loader, log = on_gpu(pipeline({"n": range_of(6)}), batch_size=2)
    batches = iter(loader)
    first = next(batches)
    assert first["n"].values.tolist() == [0, 1] and first.step == 0
    copied = [("pin", 0), ("copy", 0, ("loop", "copies")), ("record", 1, "copies")]
    ahead = [("pin", 2), ("copy", 2, ("loop", "copies")), ("record", 2, "copies")]
    # The loop's stream waits only for the first copy, although the second one began earlier.
    assert log == [*copied, *ahead, ("wait", 1, "loop"), ("used", 0, "loop")]
    assert loader.state_dict()["offset"] == 2
    assert [batch.step for batch in batches] == [1, 2]
    assert [entry[1] for entry in log if entry[0] == "wait"] == [1, 2, 3]


def bad_at(row):
    return pipeline({"text": [str(n) if n != row else "x" for n in range(6)]}, "SELECT CAST(text AS BIGINT) AS n FROM {table}")


def test_an_error_of_the_next_batch_leaves_the_one_before_it():
    loader, _ = on_gpu(bad_at(4), batch_size=2)
    batches, got = iter(loader), []
    with pytest.raises(forebay.DataError, match="row 4"):
        for batch in batches:
            got.append(batch["n"].values.tolist())
    assert got == [[0, 1], [2, 3]]
    assert loader.state_dict()["offset"] == 4
    assert list(batches) == []


def test_an_error_of_the_first_batch_is_raised_at_once():
    loader, _ = on_gpu(bad_at(0), batch_size=2)
    with pytest.raises(forebay.DataError, match="row 0"):
        next(iter(loader))


def test_memory_that_ran_out_for_the_next_batch_costs_no_batch():
    loader, _ = on_gpu(pipeline({"n": range_of(6)}), batch_size=2)
    whole, calls = loader._copy, 0

    class RunsOut:
        is_async = True
        wait = staticmethod(whole.wait)

        def __call__(self, batch):
            nonlocal calls
            calls += 1
            if calls == 2:
                raise RuntimeError("CUDA out of memory")
            return whole(batch)

    loader._copy = RunsOut()
    batches = iter(loader)
    got = [next(batches)["n"].values.tolist()]
    with pytest.raises(RuntimeError, match="out of memory"):
        next(batches)
    got += [batch["n"].values.tolist() for batch in batches]
    assert got == [[0, 1], [2, 3], [4, 5]]


def test_a_loop_that_begins_anew_forgets_what_was_copied_ahead():
    loader, _ = on_gpu(pipeline({"n": range_of(6)}), batch_size=2)
    next(iter(loader))
    assert [batch["n"].values.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("where", ["", " WHERE n < 6"])
def test_the_copy_ahead_is_no_part_of_the_place(where):
    loader, _ = on_gpu(pipeline({"n": range_of(6)}, "SELECT n FROM {table}" + where), batch_size=2)
    for epoch in range(2):
        places = []
        for _, batch in zip(range(3), loader):
            state = loader.state_dict()
            places.append((batch["n"].values.tolist(), state["epoch"], state["offset"]))
        assert places == [([0, 1], epoch, 2), ([2, 3], epoch, 4), ([4, 5], epoch + 1, 0)]
    assert [batch.epoch for _, batch in zip(range(2), loader)] == [2, 2]
    assert [batch.epoch for batch in loader] == [2, 2, 2]


def test_an_error_of_the_batch_ahead_is_not_the_end_of_the_epoch():
    loader, _ = on_gpu(bad_at(4), batch_size=2)
    for _ in range(2):
        assert [batch["n"].values.tolist() for _, batch in zip(range(2), loader)] == [[0, 1], [2, 3]]
        assert (loader.state_dict()["epoch"], loader.state_dict()["offset"]) == (0, 4)
