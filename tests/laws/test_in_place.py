"""Rounds in common memory: the same answers, less memory, and never a block worked on twice."""

import functools
import itertools
import sys
import types

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from graph.keeping import Keeping, come_back, lent_bytes
from support import heard, in_threads

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import CarrierError
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.memory import default_arena
from dask_bigfft.memory.pages import Buffer, populate

CASES = [
    ("fft", (2**14,), (2**10,), {}),
    ("ifft", (2**14,), (2**10,), {}),
    ("fft", (2**14,), (2**10,), {"norm": "ortho"}),
    ("fft", (2**14,), (2**10,), {"order": "transposed"}),
    ("fft", (3 * 5 * 7 * 11 * 13,), (1001,), {}),
    ("fft", (2**14,), (2**10,), {"rounds": [{0: 16}, {0: 32}, {0: -1}]}),
    ("fft2", (256, 192), (17, 192), {}),
    ("ifft2", (256, 192), (32, 192), {"chunks": (64, 64)}),
    ("fft2", (256, 192), (32, 64), {"norm": "forward"}),
    ("fftn", (32, 48, 64), (4, 48, 64), {}),
    ("fftn", (32, 48, 64), (8, 12, 64), {}),
    ("rfftn", (32, 48, 64), (4, 48, 64), {}),
    ("irfftn", (32, 48, 33), (4, 48, 33), {}),
    ("fft", (40, 512, 3), (40, 64, 3), {"axis": 1}),
]


def data(kind, shape, dtype="c16"):
    rng = np.random.default_rng(5)
    real = rng.standard_normal(shape)
    values = real if kind == "rfftn" else real + 1j * rng.standard_normal(shape)
    return values.astype({"c8": "f4", "c16": "f8"}[dtype] if kind == "rfftn" else dtype)


def reference(kind, a, extras):
    options = {k: v for k, v in extras.items() if k in ("norm", "axis")}
    found = getattr(scipy.fft, kind)(a, **options)
    if extras.get("order") == "transposed":
        found = found[dask_bigfft.transposed_index(a.size)]
    return found


def close(found, expected, dtype="c16"):
    eps = {"c8": 1e-6, "c16": 1e-14}[dtype]
    return np.linalg.norm(found - expected) <= eps * np.linalg.norm(expected)


@pytest.mark.parametrize("kernel", usable())
@pytest.mark.parametrize(("kind", "shape", "chunks", "extras"), CASES)
def test_the_answers_are_right_and_the_input_stays(kernel, kind, shape, chunks, extras):
    for dtype in ("c16", "c8"):
        a = data(kind, shape, dtype)
        kept = a.copy()
        a.flags.writeable = False
        y = getattr(fft, kind)(da.from_array(a, chunks=chunks), kernel=kernel, **extras)
        with dask.config.set(scheduler="threads", num_workers=2):
            for _ in range(2):  # once more, afresh
                assert close(y.compute(), reference(kind, a, extras), dtype)
        np.testing.assert_array_equal(a, kept)


def blocks_of(y):
    graph = dict(y.__dask_graph__())
    found = [graph[key] for key in dask.core.flatten(y.__dask_keys__())]
    return [np.asarray(getattr(block, "value", block)) for block in found]


def root(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize(("kind", "shape"), [("fft", (2**20,)), ("fft2", (1024, 1024))])
def test_a_result_is_one_array_and_nothing_else_is_kept(kind, shape):
    x = da.from_array(data(kind, shape), chunks=(shape[0] // 8, *shape[1:]))
    before = lent_bytes()
    y = getattr(fft, kind)(x).persist(scheduler="threads")
    blocks = blocks_of(y)
    held = lent_bytes() - before
    assert x.nbytes <= held <= 1.25 * x.nbytes
    assert len({root(block).ctypes.data for block in blocks}) == 1
    if kind == "fft":  # in natural order the blocks lie one behind the other
        ends = [(b.ctypes.data, b.ctypes.data + b.nbytes) for b in blocks]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    del y, blocks
    assert come_back(before)


CHUNKED = [
    ("fft", (2**21,), (2**17,), {}),  # a split axis, in common memory
    ("fft2", (1024, 1024), (64, 1024), {}),
    ("fft2", (1024, 1024), (64, 1024), {"verify": "energy"}),  # blocks of their own
    ("rfftn", (128, 128, 128), (8, 128, 128), {}),
    ("fft", (2**20 - 3,), (2**16,), {}),  # a prime length, convolved
]


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(("kind", "shape", "chunks", "extras"), CHUNKED)
def test_fresh_memory_is_faulted_in_by_all_threads_and_no_more_than_forecast(
    kind, shape, chunks, extras, wanted
):
    """Before anybody writes there: each event says how much, and for which round."""
    with dask.config.set(
        {"bigfft.memory.prefault": wanted, "scheduler": "threads", "num_workers": 2}
    ):
        x = da.from_array(data(kind, shape), chunks=chunks)
        with dask.config.set({"bigfft.verify": extras.get("verify", "none")}):
            forecast = dask_bigfft.plan(x, kind).expected
            y = getattr(fft, kind)(x)
        default_arena().trim()
        before = default_arena().counters()
        with heard("prefault") as events:
            found = y.compute()
    assert close(found, reference(kind, x.compute(), {}))
    after = default_arena().counters()
    fresh = after.fresh_bytes - before.fresh_bytes
    faulted = after.prefaulted_bytes - before.prefaulted_bytes
    assert faulted == sum(numbers["nbytes"] for _, numbers in events) <= fresh <= forecast.peak_host
    of_rounds = [
        numbers for _, numbers in events if "plan" in numbers
    ]  # others: of the whole result
    assert all(numbers["index"] >= 1 for numbers in of_rounds)
    assert bool(of_rounds) == wanted
    if wanted and populate(Buffer(1 << 20).memory):
        assert faulted >= 0.5 * found.nbytes
    else:
        assert not events


@pytest.mark.parametrize("carrier", ["auto", "disk"])
def test_computations_at_the_same_time_have_memory_or_files_of_their_own(carrier, tmp_path):
    a = data("fft2", (256, 256))
    settings = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with dask.config.set({**settings, "scheduler": "threads"}):
        y = fft.fft2(da.from_array(a, chunks=(32, 256)))
        found = in_threads(4, lambda number: y.compute())
    assert all(close(one, scipy.fft.fft2(a)) for one in found)
    assert list(tmp_path.iterdir()) == []


def test_results_that_depend_on_one_another():
    a = data("fft2", (256, 256))
    y = fft.fft2(da.from_array(a, chunks=(32, 256)))
    early = dask.optimize(y)[0]  # knows nothing of what is made of it later
    shifted = fft.fftshift(y)
    expected = scipy.fft.fft2(a)
    for one, other in ((y, shifted), (early, shifted), (early, y), (early, early + 1 - 1)):
        found = dask.compute(one, other, scheduler="threads")
        wanted = [np.fft.fftshift(expected) if z is shifted else expected for z in (one, other)]
        assert all(map(functools.partial(close), found, wanted))
    both = dask.compute(*dask.optimize(y), *dask.optimize(y + 1), *dask.optimize(y * 2))
    assert close(both[0], expected)
    assert close(both[1], expected + 1)
    assert close(both[2], expected * 2)


# --- the memory itself ------------------------------------------------------------------------


def test_blocks_kept_from_another_computation_are_not_used():
    a = data("fft2", (64, 64))
    y = fft.fft2(da.from_array(a, chunks=(8, 64)))
    with Keeping("round1"):
        assert close(y.compute(scheduler="threads"), scipy.fft.fft2(a))
        with pytest.raises(CarrierError, match="kept from another computation"):
            y.compute(scheduler="threads")
    assert close(y.compute(scheduler="threads"), scipy.fft.fft2(a))


def test_with_the_cache_of_dask_nothing_is_done_in_place(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.cache", types.SimpleNamespace(Cache=Keeping))
    a = data("fft2", (64, 64))
    y = fft.fft2(da.from_array(a, chunks=(8, 64)))
    with Keeping("round1") as cache:
        for _ in range(2):
            assert close(y.compute(scheduler="threads"), scipy.fft.fft2(a))
    assert cache.kept
