"""What `compute()` makes of a result's blocks: one array, right, and nobody else's memory."""

import gc
import pickle
import sys
import types
import weakref

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from graph.keeping import Keeping, allocated_bytes, come_back
from support import close

from dask_bigfft import fft
from dask_bigfft.memory import default_arena
from dask_bigfft.memory.arena import is_allocated
from dask_bigfft.testing.strategies import random_array


def data(*shape):
    return random_array(shape, "c16", 3)


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("fft", (2**20,)),
        ("fft2", (512, 4096)),
        ("fftn", (64, 128, 256)),
    ],
)
def test_blocks_that_lie_end_to_end_are_not_copied(kind, shape, blocks):
    a = data(*shape)
    y = getattr(fft, kind)(da.from_array(a, chunks=(shape[0] // blocks, *shape[1:])))
    before = allocated_bytes()
    allocations = default_arena().counters().allocations
    transformed = y.compute(scheduler="threads")
    assert is_allocated(transformed)
    if blocks == 1 and kind == "fft":  # others also take memory for tiles
        assert default_arena().counters().allocations == allocations + 1
    assert transformed.nbytes <= allocated_bytes() - before <= 1.25 * transformed.nbytes
    assert close(transformed, getattr(scipy.fft, kind)(a))
    del transformed
    assert come_back(before)


def test_others_are_copied_to_memory_that_comes_back():
    a = data(8, 512, 512)  # every plane is exchanged for itself
    y = fft.fft(da.from_array(a, chunks=(1, 64, 512)), axis=1)
    before = allocated_bytes()
    spectrum = y.compute(scheduler="threads")
    assert is_allocated(spectrum)
    assert close(spectrum, scipy.fft.fft(a, axis=1))
    assert allocated_bytes() - before <= 1.25 * spectrum.nbytes
    del spectrum
    assert come_back(before)


@pytest.mark.parametrize("blocks", [1, 16])
def test_what_else_uses_the_blocks_sees_them_as_they_are(blocks):
    a = data(2**16)
    x = da.from_array(a, chunks=2**16 // blocks)
    y = fft.fft(x)
    expected = scipy.fft.fft(a)
    untouched = a.copy()
    with dask.config.set(scheduler="threads", num_workers=2):
        whole, total, part, again = dask.compute(y, y.sum(), y[100:3000], y)
        assert close(whole, expected)
        assert close(total, expected.sum())
        assert close(part, expected[100:3000])
        assert close(again, expected)
        part[...] = 0
        assert close(whole, expected)
        persisted = y.persist()
        for _ in range(2):
            from_blocks = persisted.compute()
            assert close(from_blocks, expected)
            from_blocks[...] = 0
        from_graph = y.compute()
        from_graph[...] = 0
        assert close(persisted.compute(), expected)
        assert close(y.compute(), expected)
        assert close(a, untouched)


def test_a_source_block_is_not_the_result_unless_it_may_be_overwritten():
    a = data(2**16, 1)
    x = da.from_array(a, chunks=-1).persist()
    for transform in (fft.fft, fft.fftshift, fft.ifftshift):
        for axis in (0, 1):
            option = {"axes": axis} if transform is not fft.fft else {"axis": axis}
            moved = transform(x, **option).compute(scheduler="threads")
            moved[...] = 0
            assert close(x.compute(), a)


def test_an_array_dies_with_its_last_reference():
    gc.disable()
    try:
        y = fft.fft(da.from_array(data(64), chunks=16))
        reference = weakref.ref(y)
        del y
        assert reference() is None
    finally:
        gc.enable()


def test_methods_of_deleted_arrays():
    a = data(64)
    x = da.from_array(a, chunks=16)
    compute = fft.fft(x).compute
    assert close(compute(scheduler="sync"), scipy.fft.fft(a))
    y = fft.fft(x)
    y[3] = 0
    expected = scipy.fft.fft(a)
    expected[3] = 0
    assert close(y.compute(), expected)
    compute = y.compute
    del y
    with pytest.raises(RuntimeError, match="changed"):
        compute()


def test_arrays_stay_dask_arrays():
    a = data(256, 64)
    x = da.from_array(a, chunks=(32, 64))
    y = fft.fft2(x)
    expected = scipy.fft.fft2(a)
    assert type(y) is da.Array
    assert repr(y).startswith("dask.array<bigfft_")
    with dask.config.set(scheduler="threads"):
        assert close(np.asarray(y), expected)
        assert close(np.concatenate([y, y]).compute(), np.concatenate([expected] * 2))
        assert close((y + 1)[3:, ::2].compute(), (expected + 1)[3:, ::2])
        assert close(y.rechunk((100, 10)).compute(), expected)
        assert close(pickle.loads(pickle.dumps(y)).compute(), expected)
        assert close(y.compute(optimize_graph=False), expected)
        changed = y.copy()
        changed[5] = 7
        assert close(changed.compute()[5], np.full(64, 7))
        y[5] = 7
        assert close(y.compute(), np.where(np.arange(256)[:, None] == 5, 7, expected))
    assert close(fft.fft2(x).compute(scheduler="processes", num_workers=1), expected)


@pytest.mark.parametrize("is_computed_before", [False, True])
@pytest.mark.parametrize("part", ["round1", "unpack"])
def test_what_dask_keeps_is_not_overwritten(monkeypatch, part, is_computed_before):
    monkeypatch.setitem(sys.modules, "dask.cache", types.SimpleNamespace(Cache=Keeping))
    a = data(2**12)
    y = fft.fft(da.from_array(a, chunks=2**9))
    if is_computed_before:
        y.compute(scheduler="threads")
    with Keeping(part) as cache, dask.config.set(scheduler="threads"):
        for _ in range(3):
            spectrum = y.compute()
            assert close(spectrum, scipy.fft.fft(a))
            spectrum[...] = 0
    assert cache.blocks
