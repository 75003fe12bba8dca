"""The closed set of events, the hook that hands them on, and the record of a process' runs."""

import multiprocessing
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from support import heard, in_threads, listening, python

import dask_bigfft
from dask_bigfft import events, fft
from dask_bigfft.events import RECORD, Record


@pytest.fixture
def seen():
    with heard() as emitted:
        yield emitted


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


def test_the_worker_of_a_task_is_asked_for_once(monkeypatch):
    asked = []
    record = Record()
    monkeypatch.setattr(events, "current_worker", lambda: asked.append(1))
    with events.during("0a1b", 1):
        for _ in range(3):
            record.take("round", {"plan": "0a1b", "index": 1})
    assert (len(asked), record.plan("0a1b").totals["round", 1].count) == (1, 3)


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
    with pytest.raises(KeyError), events.during("0a1b", 2):  # noqa: PT012
        with events.measured("fft", 1):
            pass
        raise KeyError
    (first, inside), (second, outside) = seen
    assert (first, inside["nbytes"], inside["plan"]) == ("fft", 500, "0a1b")
    assert (second, outside["nbytes"]) == ("fft", 7)
    assert inside["seconds"] >= 0
    assert "plan" not in outside


# --- the record -----------------------------------------------------------------------------


def assert_spans_of_rounds(plan_record, count):
    spans = [span for span in plan_record.spans if span.phase == "round"]
    assert len(spans) == count
    assert all(span.start <= span.stop for span in spans)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("carrier", ["shared", "tasks"])
def test_every_round_is_counted_with_its_bytes(scheduler, carrier):
    RECORD.forget("")
    x = da.random.default_rng(1).standard_normal((32, 48), chunks=(8, 12))
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        y = fft.rfft2(x)
        plan = dask_bigfft.plan(x, "rfft2")
        y.compute(scheduler=scheduler)
    plan_record = RECORD.plan(y.name.partition("-")[2])
    for number, round_ in enumerate(plan.rounds, 1):
        total = plan_record.totals["round", number]
        itemsize = np.dtype(plan.dtypes[2 * number - 1]).itemsize
        assert total.count == round_.target.blocks
        assert total.nbytes == round_.target.size * itemsize
        assert 0 < total.first <= total.last
        assert plan_record.totals["fft", number].seconds <= total.seconds
    is_packed = any(phase == "pack" for phase, _ in plan_record.totals)
    assert is_packed == (carrier == "tasks")
    assert plan_record.rss_peak >= plan_record.rss_before > 0
    assert_spans_of_rounds(plan_record, sum(round_.target.blocks for round_ in plan.rounds))


def test_of_many_events_the_latest_are_known():
    latest = events.LatestEvents()
    count = 3 * events.KEPT_SPANS
    for number in range(1, count + 1):
        latest.add(float(number), 8, 0.5)
    assert latest.after(count - 10.0) == events.Total(10, 80, 5.0, count - 9.5, float(count))
    assert latest.after(count + 1.0).count == 0
    assert latest.after(1.0) is None


def test_threads_count_together_and_old_plans_are_forgotten():
    # a dead thread's name comes again
    record = Record()
    together = threading.Barrier(4)

    def work(number):
        together.wait()
        for _ in range(200):
            events.emit(
                "pack",
                plan="a",
                index=1,
                nbytes=3,
                seconds=0.0,
            )
        together.wait()

    with listening(record.take):
        in_threads(4, work)
        plan_record = record.plan("a")
        for number in range(events.KEPT_PLANS):
            events.emit("round", plan=str(number), index=1)
    assert plan_record.totals["pack", 1].nbytes == 4 * 200 * 3
    assert {span.lane for span in plan_record.spans} == {0, 1, 2, 3}
    assert [record.plan(token) is None for token in ("a", "0")] == [True, False]


def test_tasks_are_as_many_as_processors_that_the_process_may_use():
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    code += "from dask_bigfft.events import task_threads; print(task_threads())"
    assert python("-c", code).stdout == "1\n"


def test_while_another_thread_imports_distributed_there_is_no_client(monkeypatch):
    monkeypatch.setitem(events.sys.modules, "distributed", type(events)("distributed"))
    assert events.running_client() is events.current_worker() is None


def _child(queue):
    events.emit(
        "round",
        plan="child",
        index=1,
        nbytes=1,
    )
    queue.put((list(RECORD.counters()), RECORD.plan("child").totals["round", 1].count))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_afresh_even_while_locked():
    context = multiprocessing.get_context("fork")
    events.emit("round", plan="parent", index=1)
    queue = context.SimpleQueue()
    with RECORD._lock:
        child = context.Process(target=_child, args=(queue,))
        child.start()
    assert queue.get() == (["child"], 1)
    child.join(20)
    assert child.exitcode == 0
