"""What a process remembers of its runs is what it did."""

import multiprocessing
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from support import in_threads

import dask_bigfft
from dask_bigfft import events, fft
from dask_bigfft.record import RECORD, Record


def token_of(y):
    """Token in the names of a transform's tasks."""
    return y.name.partition("-")[2]


@pytest.fixture
def record():
    found = Record(kept=2)
    events.add_sink(found.take)
    yield found
    events.remove_sink(found.take)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("carrier", ["shared", "tasks"])
def test_every_round_is_counted_with_its_bytes(scheduler, carrier):
    RECORD.forget("")
    x = da.random.default_rng(1).standard_normal((32, 48), chunks=(8, 12))
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        y = fft.rfft2(x)
        plan = dask_bigfft.plan(x, "rfft2")
        y.compute(scheduler=scheduler)
    found = RECORD.plan(token_of(y))
    for number, round_ in enumerate(plan.rounds, 1):
        total = found.totals["round", number]
        itemsize = np.dtype(plan.dtypes[2 * number - 1]).itemsize
        assert total.count == round_.target.blocks
        assert total.nbytes == round_.target.size * itemsize
        assert 0 < total.first <= total.last
        assert found.totals["fft", number].seconds <= total.seconds
    packed = [total.nbytes for (name, _), total in found.totals.items() if name == "pack"]
    assert bool(packed) == (carrier == "tasks")
    assert found.rss_peak >= found.rss_before > 0
    spans = [span for span in found.spans if span.phase == "round"]
    assert len(spans) == sum(round_.target.blocks for round_ in plan.rounds)
    assert all(span.start <= span.stop for span in spans)


def test_threads_count_together(record):
    together = threading.Barrier(4)  # the name of a thread that has ended is given out again

    def work(number):
        together.wait()
        for _ in range(200):
            events.emit("pack", plan="a", index=1, nbytes=3, seconds=0.0)
        together.wait()

    in_threads(4, work)
    assert record.plan("a").totals["pack", 1].nbytes == 4 * 200 * 3
    assert {span.lane for span in record.plan("a").spans} == {0, 1, 2, 3}


def _child(queue):
    events.emit("round", plan="child", index=1, nbytes=1)
    queue.put((RECORD.tokens(), RECORD.plan("child").totals["round", 1].count))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_afresh_even_while_locked():
    context = multiprocessing.get_context("fork")
    events.emit("round", plan="parent", index=1)
    queue = context.SimpleQueue()
    with RECORD._lock:
        child = context.Process(target=_child, args=(queue,))
        child.start()
    assert queue.get() == (("child",), 1)
    child.join(20)
    assert child.exitcode == 0
