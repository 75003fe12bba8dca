"""Streams of several GPUs wait for each other wherever they use the same memory.

Operations of the stand-in for CuPy are done at once. Each is noted with the number of operations of
every stream that are over before it begins.
"""

import itertools
import math

import dask
import numpy as np
import pytest
from devices.test_blocks_on_a_gpu import Card, Memory, card, compute, uploaded  # noqa: F401

from dask_bigfft import fft
from dask_bigfft.gpu import cupy_gpu, links
from dask_bigfft.testing.strategies import random_array


class Stream:
    """A stream, and how many operations of each stream are over for its next one."""

    def __init__(self, non_blocking=True):
        self.over = {}
        self.ptr = self

    def __enter__(self):
        Stream.entered.append(self)

    def __exit__(self, *error):
        Stream.entered.pop()

    def synchronize(self):
        pass

    def record(self, event):
        return dict(self.over)

    def wait_event(self, event):
        self.over = {s: max(event.get(s, 0), self.over.get(s, 0)) for s in event | self.over}

    def does(self, *spans):
        """Note an operation: if it writes, and the address, counts and strides of each array."""
        before = dict(self.over)
        self.over[self] = self.over.get(self, 0) + 1
        for writes, at, counts, strides in spans:
            steps = [np.arange(n) * step for n, step in zip(counts, strides, strict=True)]
            places = at + sum(np.ix_(*steps)).ravel()
            Stream.noted.append((self, self.over[self], before, writes, places))


def now():
    """The current stream of the current GPU."""
    return (Stream.entered[-1:] or [Stream.by_gpu.setdefault(Card.current(), Stream())])[0]


def array(writes, values):
    return writes, values.data.ptr, values.shape, values.strides


def noted_compute(
    plans,
    op,
    source,
    target,
    work,
):
    """Compute as a GPU does, and note what the current stream reads and writes."""
    size = math.prod(getattr(op, "source", None) or op.shape)
    now().does((False, source, (size,), (16,)), (True, target, (size,), (16,)))
    compute(
        plans,
        op,
        source,
        target,
        work,
    )


@pytest.fixture
def streams(card, monkeypatch):  # noqa: F811
    def put(values, target, conjugate):
        now().does(array(False, values), array(True, target))
        real_put(values, target, conjugate)

    def rows(
        to,
        step,
        at,
        pitch,
        width,
        height,
        kind,
        stream,
    ):
        counts = height, width // 16
        stream.does((False, at, counts, (pitch, 16)), (True, to, counts, (step, 16)))
        by_rows(
            to,
            step,
            at,
            pitch,
            width,
            height,
            kind,
            stream,
        )

    def one_row(to, at, size, *end):
        rows(to, size, at, size, size, 1, *end)

    def keep(memory, owner, *given):  # so that no address is used twice
        alive.append(owner)
        begin(memory, owner, *given)

    Stream.entered = []
    Stream.by_gpu = {}
    Stream.noted = []
    alive = []
    begin = Memory.__init__
    real_put = links._put
    by_rows = card.cuda.runtime.memcpy2DAsync
    monkeypatch.setattr(Memory, "__init__", keep)
    monkeypatch.setattr(card.cuda, "Stream", Stream)
    monkeypatch.setattr(card.cuda, "get_current_stream", now)
    monkeypatch.setattr(card.cuda.runtime, "memcpy2DAsync", rows)
    monkeypatch.setattr(card.cuda.runtime, "memcpyAsync", one_row)
    monkeypatch.setattr(cupy_gpu, "compute", noted_compute)
    monkeypatch.setattr(links, "_put", put)


def user(blocks, writes):
    """What the user does with blocks in the current streams of their GPUs."""
    for block in dask.compute(*blocks.to_delayed().ravel(), scheduler="sync"):
        with Card(block.device.id):
            now().does(array(writes, block))


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((8, 8, 6), (1, 8, 6)),
        ((256,), 32),
    ],
)
@pytest.mark.parametrize("row_nbytes", [32, 1 << 20])
def test_uses_of_the_same_memory_are_in_order(
    streams,
    monkeypatch,
    shape,
    chunks,
    row_nbytes,
):
    monkeypatch.setattr(links, "LINK_ROW_NBYTES", row_nbytes)
    blocks = uploaded(random_array(shape, "c16", 3), chunks, count=4)
    user(blocks, True)
    chosen = {"bigfft.planner.whole-axis-floor": 1, "bigfft.exchange.carrier": "auto"}
    with dask.config.set(chosen):
        persisted = fft.fftn(blocks).persist(scheduler="sync")
    user(persisted, False)
    user(blocks, True)
    assert len({stream for stream, *_ in Stream.noted}) > 4
    for first, second in itertools.combinations(Stream.noted, 2):
        (stream_of_first, end_of_first, _, first_writes, addresses_of_first) = first
        (stream_of_second, _, waits_of_second, second_writes, addresses_of_second) = second
        is_ordered = stream_of_first is stream_of_second
        is_ordered |= waits_of_second.get(stream_of_first, 0) >= end_of_first
        if (first_writes or second_writes) and not is_ordered:
            assert not np.intersect1d(addresses_of_first, addresses_of_second).size
