"""The closed set of events and the hook that hands them on."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import heard

from dask_bigfft import events
from dask_bigfft.errors import ArgumentError


@pytest.fixture
def seen():
    with heard() as found:
        yield found


def test_a_sink_gets_what_is_emitted(seen):
    events.emit("round", index=2, nbytes=1024, seconds=0.5)
    events.emit("barrier")
    assert seen == [("round", {"index": 2, "nbytes": 1024, "seconds": 0.5}), ("barrier", {})]


@pytest.mark.parametrize("listening", [False, True])
def test_what_is_not_declared_is_refused(seen, listening, monkeypatch):
    if not listening:
        monkeypatch.setattr(events, "_sinks", ())
    with pytest.raises(ArgumentError, match="`name`='lap'"):
        events.emit("lap", nbytes=1)
    with pytest.raises(ArgumentError, match="`numbers`='furlongs'"):
        events.emit("round", nbytes=1, furlongs=1)
    assert seen == []


def test_events_of_a_task_carry_plan_and_round(seen):
    with events.during("0a1b", 3):
        assert events.working_for() == ("0a1b", 3)
        events.emit("round", nbytes=8)
        events.emit("gather", plan="other", index=1)
        events.emit("scratch_free", nbytes=9)
    events.emit("round")
    assert events.working_for() is None
    assert seen == [
        ("round", {"plan": "0a1b", "index": 3, "nbytes": 8}),
        ("gather", {"plan": "other", "index": 1}),
        ("scratch_free", {"nbytes": 9}),
        ("round", {}),
    ]


def test_parts_of_a_task_are_added_up(seen):
    with events.during("0a1b", 1):
        for _ in range(5):
            with events.measured("fft", 100):
                pass
        with pytest.raises(KeyError), events.measured("twiddle", 1):
            raise KeyError
        assert seen == []
    with events.measured("fft", 7):
        pass
    (one, inside), (two, outside) = seen
    assert (one, inside["nbytes"], inside["plan"]) == ("fft", 500, "0a1b")
    assert (two, outside["nbytes"]) == ("fft", 7)
    assert inside["seconds"] >= 0
    assert "plan" not in outside


def test_no_sink_is_lost_where_others_come_and_go(seen):
    before, interval = events._sinks, sys.getswitchinterval()

    def come_and_go(number):
        for _ in range(1000):
            found = []
            sink = lambda name, numbers, found=found: found.append(numbers)  # noqa: E731
            events.add_sink(sink)
            events.emit("round", index=number, nbytes=1, seconds=0.0)
            events.remove_sink(sink)
            assert number in [numbers["index"] for numbers in found]

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(come_and_go, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert events._sinks == before
