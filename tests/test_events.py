"""The closed set of events and the hook that hands them on."""

import timeit

import pytest

from dask_bigfft import events
from dask_bigfft.errors import ArgumentError

UNITS = {"byte", "count", "ordinal", "second"}


@pytest.fixture
def seen():
    got = []
    previous = events.set_sink(lambda name, numbers: got.append((name, numbers)))
    yield got
    events.set_sink(previous)


def test_the_phases_are_declared_and_every_number_has_a_unit():
    assert events.PHASES == ("round", "pack", "send", "barrier", "unpack")
    assert {*events.PHASES, *events.SUBPHASES} <= events.EVENTS.keys()
    assert {unit for numbers in events.EVENTS.values() for unit in numbers.values()} == UNITS


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        events.EVENTS["extra"] = {}
    with pytest.raises(TypeError):
        events.EVENTS["round"]["extra"] = "byte"


def test_a_sink_gets_what_is_emitted(seen):
    events.emit("round", index=2, nbytes=1024, seconds=0.5)
    events.emit("barrier")
    assert seen == [("round", {"index": 2, "nbytes": 1024, "seconds": 0.5}), ("barrier", {})]


def test_set_sink_returns_the_one_before(seen):
    mine = events.set_sink(None)
    events.emit("round", nbytes=1)
    assert events.set_sink(mine) is None
    assert seen == []


@pytest.mark.parametrize("listening", [False, True])
def test_what_is_not_declared_is_refused(seen, listening):
    if not listening:
        events.set_sink(None)
    with pytest.raises(ArgumentError, match="`name`='lap' is not allowed: need one of round, pack"):
        events.emit("lap", nbytes=1)
    with pytest.raises(ArgumentError, match=r"`numbers`='furlongs'.*for the event 'round'"):
        events.emit("round", nbytes=1, furlongs=1)
    assert seen == []


def test_without_a_sink_an_event_costs_microseconds():
    previous = events.set_sink(None)
    try:
        seconds = min(timeit.repeat(lambda: events.emit("fft", nbytes=1), number=1000, repeat=9))
    finally:
        events.set_sink(previous)
    assert seconds / 1000 < 20e-6
