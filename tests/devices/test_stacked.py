"""Blocks stored by the shards of the next exchange: wide rows in host memory, the same answers."""

import threading
import time
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from devices.blocks import SMALL, distance, values

from dask_bigfft import fft, plan
from dask_bigfft.decomposition.rounds import Mirror
from dask_bigfft.devices import find
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.leases import GETTING_READY, Leases, Need
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.problem import Line, Problem
from dask_bigfft.devices.schedule import find_schedule
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.transfer import row_nbytes
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.exchange.stacking import stacked_layout, stacking
from dask_bigfft.kernels.composite import Shards
from dask_bigfft.kernels.stacked import Stacked


class Heard(SimulatedDevice):
    """Writes down how wide the rows are that it is asked to copy, in host memory."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.rows = {"h2d": [], "d2h": []}

    def _note(self, way, host):
        view = host.view(0) if isinstance(host, Shards) else host
        # A view whose rows lie side by side in host memory has them as one.
        self.rows[way].append(row_nbytes(view))

    def h2d(self, stream, source, target):
        self._note("h2d", source)
        super().h2d(stream, source, target)

    def d2h(self, stream, source, target):
        self._note("d2h", target)
        super().d2h(stream, source, target)


@pytest.fixture
def heard():
    device = Heard(64 << 20)
    find.use([device])
    yield device
    find.use(None)


def first_exchange(shape, chunks, name="fftn", dtype="c16", **keywords):
    x = da.zeros(shape, dtype=dtype, chunks=chunks)
    return plan(x, name, **keywords).exchanges[1]


@pytest.mark.parametrize(
    ("shape", "chunks", "dtype", "expected"),
    [
        ((512, 4096), (64, 4096), "c16", Stacked(1, 512)),
        ((512, 4096), (64, 4096), "c8", Stacked(1, 512)),
        ((4096, 512), (4096, 64), "c16", None),  # rows of blocks as they are
        ((512, 512), (64, 512), "c16", None),  # rows of 1 KiB are left to kernels
        ((64, 32768), (8, 32768), "c16", None),  # rows of 64 KiB are wide
        ((512, 4097), (64, 4097), "c16", None),  # nothing divides it evenly
    ],
)
def test_blocks_are_stacked_where_the_next_exchange_takes_narrow_rows(
    shape, chunks, dtype, expected
):
    exchange = first_exchange(shape, chunks, dtype=dtype)
    found = stacking(exchange)
    assert found == expected
    if found is not None:
        layout = stacked_layout(exchange.source, found)
        for block in exchange.source.indices():
            assert layout.shape(block) == found.shape(exchange.source.shape(block))


def test_half_a_spectrum_that_is_cut_evenly_is_not_stacked(heard):
    """Its 512 values are in digits of 1023, which chunks of 128 do not end."""
    x = values(768, 1023, dtype="f8")
    array, keywords = da.from_array(x, (192, 1023)), {"device": "gpu", "chunks": (768, 128)}
    exchange = plan(array, "rfft2", **keywords).exchanges[1]
    assert exchange.target.axes[1].groups[0].chunks == (128,) * 4
    assert stacking(exchange) is None
    got = fft.rfft2(array, **keywords).compute(scheduler="sync")
    assert distance(got, np.fft.rfft2(x)) < 1e-14
    assert heard.rows["h2d"]


def test_a_mirror_image_is_not_stacked():
    exchange = first_exchange((512, 4096), (64, 4096))
    assert stacking(exchange) is not None
    assert stacking(replace(exchange, mirror=Mirror(1, 8190, (0,)))) is None


def test_a_stacked_block_is_its_shards_one_after_the_other():
    x = values(6, 20, 3)
    stacked = Stacked(1, 5)
    block = stacked.lent(x.shape, x.dtype)
    for place, view in block.views(tuple(slice(0, n) for n in x.shape)):
        assert view.flags.c_contiguous
        assert view.shape == (6, 5, 3)
        view[...] = x[tuple(slice(i, i + n) for i, n in zip(place, view.shape, strict=True))]
    whole = stacked.whole(block)
    assert whole.shape == stacked.shape(x.shape)
    np.testing.assert_array_equal(whole.reshape(x.shape), x)
    memory = np.moveaxis(whole, 1, 0)
    assert memory.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize("threads", [1, 4])
def test_rows_in_host_memory_are_wide_both_ways(heard, dtype, threads):
    x = values(256, 4096, dtype=dtype)
    lazy = fft.fft2(da.from_array(x, chunks=(32, -1)), device="gpu", norm="ortho")
    with dask.config.set(scheduler="threads", num_workers=threads):
        got = lazy.compute()
    assert got.dtype == x.dtype
    assert distance(got, np.fft.fft2(x, norm="ortho")) < (1e-15 if dtype == "c16" else 5e-7)
    narrow = 512 * x.itemsize  # what a target block has of a row
    assert min(heard.rows["h2d"]) > narrow
    assert min(heard.rows["d2h"]) > narrow


def test_blocks_that_another_array_takes_as_well_are_not_stacked(heard):
    x = da.from_array(values(256, 4096), chunks=(32, -1))
    found, other = fft.fft2(x, device="gpu"), fft.fft(x, axis=1, device="gpu")
    a, b = dask.compute(found, other, scheduler="threads")
    assert distance(a, np.fft.fft2(x.compute())) < 1e-15
    assert distance(b, np.fft.fft(x.compute(), axis=1)) < 1e-15


def test_a_block_that_the_cpu_has_to_do_goes_with_stacked_ones(monkeypatch):
    stacked, left, lent = [], [], Stacked.lent

    def counted(self, *arguments):
        if len(stacked) == 3:
            raise DeviceMemoryError("the CPU has to do it")
        stacked.append(self)
        return lent(self, *arguments)

    def listening(event, numbers):
        if event == "fallback":
            left.append(numbers)

    monkeypatch.setattr(Stacked, "lent", counted)
    x = values(256, 4096)
    find.use([SimulatedDevice(64 << 20)], SMALL)
    add_sink(listening)
    try:
        got = fft.fft2(da.from_array(x, chunks=(32, -1)), device="gpu").compute(scheduler="sync")
    finally:
        remove_sink(listening)
        find.use(None)
    assert len(stacked) == 3
    assert left
    assert distance(got, np.fft.fft2(x)) < 1e-15


def test_only_the_last_of_the_jobs_of_a_round_would_be_stacked(monkeypatch, heard):
    """A round on real axes and others falls apart where it has to; here, always."""
    apart = []

    def links(self, job, limits):
        found = job.apart()
        apart.append(len(found))
        return found

    monkeypatch.setattr(Engine, "links", links)
    x = values(64, 256, 64, dtype="f8")
    lazy, keywords = da.from_array(x, chunks=(8, -1, -1)), {"device": "gpu"}
    assert stacking(plan(lazy, "rfftn", **keywords).exchanges[1]) is not None
    got = fft.rfftn(lazy, **keywords).compute(scheduler="sync")
    assert max(apart) > 1
    assert distance(got, np.fft.rfftn(x)) < 1e-15


@pytest.mark.parametrize("keywords", [{"verify": "energy"}, {"verify": "checksum"}])
def test_what_is_verified_is_right_as_well(heard, keywords):
    x = values(256, 4096)
    lazy = fft.fft2(da.from_array(x, chunks=(32, -1)), device="gpu", **keywords)
    assert distance(lazy.compute(scheduler="threads"), np.fft.fft2(x)) < 1e-15


# --- tasks that get ready in turn ---------------------------------------------------------------


def test_few_tasks_get_ready_at_a_time_and_a_lease_ends_their_turn():
    leases = Leases([Engine(SimulatedDevice(1000), 1000)])
    go, inside, most = threading.Event(), [], []
    lock = threading.Lock()

    def take():
        with leases.getting_ready():
            with lock:
                inside.append(1)
                most.append(len(inside))
            time.sleep(1e-3)
            with leases.lease(Need(1, 100, tasks=8)):
                with lock:
                    inside.pop()
                go.wait(20)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 20
    while leases.in_use < 8:  # none of them has left its turn otherwise than by its lease
        assert time.monotonic() < ends
        time.sleep(1e-3)
    go.set()
    for thread in threads:
        thread.join(20)
    assert max(most) <= GETTING_READY
    with leases.getting_ready():  # nobody has left twice, which would let too many in
        for _ in range(GETTING_READY - 1):
            assert leases._door.acquire(blocking=False)
        assert not leases._door.acquire(blocking=False)


def test_pieces_that_go_in_many_parts_are_fewer():
    """As many calls go for each piece as it has parts, and each of them costs something."""
    shape, blocks, limits = (512, 32768), 64, PieceLimits(2 << 30)
    problem = Problem(shape, (Line(1, shape[1]),), 16, blocks=blocks)
    plain, parts = (find_schedule(replace(problem, stores=n), limits).crossings[0].pieces
                    for n in (1, 64))
    assert parts < plain
