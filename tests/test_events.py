"""The closed set of events and the hook that hands them on."""

import re
import sys
import threading
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dask_bigfft import events
from dask_bigfft.errors import ArgumentError

UNITS = {"byte", "name", "ordinal", "second"}


@pytest.fixture
def seen():
    got = []

    def sink(name, numbers):
        got.append((name, numbers))

    events.add_sink(sink)
    yield got
    events.remove_sink(sink)


@pytest.fixture
def nobody(monkeypatch):
    """No sink, not even the record of this process."""
    monkeypatch.setattr(events, "_sinks", ())


def test_the_phases_are_declared_and_every_number_has_a_unit():
    assert events.PHASES == ("round", "pack", "send", "barrier", "unpack")
    assert {*events.PHASES, *events.SUBPHASES} <= events.EVENTS.keys()
    assert {unit for numbers in events.EVENTS.values() for unit in numbers.values()} == UNITS


def test_every_event_is_emitted_somewhere():
    package = Path(events.__file__).parent
    text = "".join(path.read_text() for path in package.rglob("*.py"))
    emitted = set(re.findall(r'(?:emit|measured)\(\s*f?"(\w+)', text))
    assert events.EVENTS.keys() - emitted == {"round_cpu", "round_device"}  # f"round_{kind}"


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        events.EVENTS["extra"] = {}
    with pytest.raises(TypeError):
        events.EVENTS["round"]["extra"] = "byte"


def test_a_sink_gets_what_is_emitted(seen):
    events.emit("round", index=2, nbytes=1024, seconds=0.5)
    events.emit("barrier")
    assert seen == [("round", {"index": 2, "nbytes": 1024, "seconds": 0.5}), ("barrier", {})]


@pytest.mark.parametrize("listening", [False, True])
def test_what_is_not_declared_is_refused(seen, listening, monkeypatch):
    if not listening:
        monkeypatch.setattr(events, "_sinks", ())
    with pytest.raises(ArgumentError, match="`name`='lap' is not allowed: need one of round, pack"):
        events.emit("lap", nbytes=1)
    with pytest.raises(ArgumentError, match=r"`numbers`='furlongs'.*for the event 'round'"):
        events.emit("round", nbytes=1, furlongs=1)
    assert seen == []


def test_without_a_sink_an_event_costs_microseconds(nobody):
    timer = time.thread_time  # of this thread alone, however busy the machine is
    seconds = min(timeit.repeat(lambda: events.emit("fft", nbytes=1), timer=timer, number=1000))
    assert seconds / 1000 < 20e-6


def test_several_sinks_hear_each_event_once(seen):
    heard = []

    def sink(name, numbers):
        heard.append(name)

    events.add_sink(sink)
    events.add_sink(sink)
    try:
        events.emit("pack", nbytes=1)
    finally:
        events.remove_sink(sink)
    events.remove_sink(sink)
    events.emit("unpack")
    assert heard == ["pack"]
    assert [name for name, _ in seen] == ["pack", "unpack"]


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


def test_a_task_that_fails_leaves_no_job_behind(seen):
    with pytest.raises(RuntimeError), events.during("0a1b", 1), events.measured("fft", 1):
        raise RuntimeError
    assert events.working_for() is None
    assert seen == []


def test_work_is_counted_only_where_it_is_asked_for(seen):
    def task():
        with events.during("0a1b", 1):
            for _ in range(2):
                with events.measured("fft", 1):
                    time.sleep(0.01)  # as one who waits for the interpreter
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
            events.emit("round", nbytes=1, seconds=0.0)
            events.emit("round", nbytes=1, seconds=0.0)  # another block

    with events.counting_work():
        task()
    task()
    (_, block), (_, other), (_, fft), *later = seen
    assert fft["worked"] < 0.01 < fft["seconds"]
    assert block["worked"] >= 0.01 + fft["worked"]
    assert 0 <= other["worked"] < 0.01
    assert all("worked" not in numbers for _, numbers in later)


def test_several_threads_may_count_work_at_a_time(seen):
    """As workers of one process that are calibrated together; the first to begin ends first."""
    begun, ended = threading.Event(), threading.Event()

    def other():
        with events.counting_work():
            begun.set()
            ended.wait()
            with events.during("0a1b", 2):
                events.emit("round", nbytes=1, seconds=0.0)

    with events.during("0a1b", 1):  # began before anybody asked
        with events.counting_work():
            thread = threading.Thread(target=other)
            thread.start()
            begun.wait()
            events.emit("round", nbytes=1, seconds=0.0)
            with events.measured("fft", 1):
                pass
        ended.set()
        thread.join()
    with events.during("0a1b", 3):
        events.emit("round", nbytes=1, seconds=0.0)
    worked = {(name, numbers["index"]): "worked" in numbers for name, numbers in seen}
    counted = [key for key, known in worked.items() if known]
    assert (counted, len(worked)) == ([("round", 2)], 4)


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
