"""Batches for cuFFT: done by hand at their strides, they are SciPy's transforms."""

import math

import numpy as np
import pytest
import scipy.fft

from dask_bigfft.gpu.ffts import Batch, Side, fft_calls, tiles

RNG = np.random.default_rng(5)


def places(n, embed, stride, distance, count):
    """Flat place of every element of every transform of a batch."""
    inner = np.zeros((1,) * len(n), np.int64)
    for axis, length in enumerate(n):
        step = math.prod(embed[axis + 1 :]) * stride
        shape = [-1 if a == axis else 1 for a in range(len(n))]
        inner = inner + (np.arange(length) * step).reshape(shape)
    return np.arange(count).reshape(-1, *(1,) * len(n)) * distance + inner


def executed(kind, source, target_shape, dims, dtype="c16", tiled=False):
    """What the calls give, each batch by SciPy on the elements that its strides name."""
    current = source.reshape(-1)
    out = np.full(math.prod(target_shape), np.nan, "f8" if kind == "c2r" else dtype)
    for call in fft_calls(kind, source.shape, target_shape, dims, dtype == "c16", tiled):
        b, come_from, go_to = call.batch, current, out
        if call.columns is not None:
            in_tiles(call, come_from, go_to)
            current = out
            continue
        if call.staged is not None:
            stage = np.full(call.staged, np.nan)
            n = b.n[0]
            if kind == "r2c":
                stage[:, :, :n] = current.reshape(call.times, n, b.count).transpose(0, 2, 1)
                come_from = stage.reshape(-1)
            else:
                go_to = stage.reshape(-1)
        come = b.n if kind != "c2r" else (*b.n[:-1], b.n[-1] // 2 + 1)
        goes = b.n if kind != "r2c" else (*b.n[:-1], b.n[-1] // 2 + 1)
        for i in range(call.times):
            at = places(come, *b.source, b.count)
            to = places(goes, *b.target, b.count)
            x, axes = come_from[at + i * call.source_step], tuple(range(1, 1 + len(b.n)))
            if kind == "r2c":
                y = scipy.fft.rfft(x, axis=1)
            elif kind == "c2r":
                y = scipy.fft.irfft(x, b.n[0], axis=1, norm="forward")
            else:
                y = scipy.fft.fftn(x, axes=axes)
            go_to[to + i * call.target_step] = y
        if go_to is not out:
            out[:] = stage[:, :, : b.n[0]].transpose(0, 2, 1).reshape(-1)
        current = out
    return out.reshape(target_shape)


def in_tiles(call, come_from, go_to):
    """The tiles of a call: copied to a small array, transformed there, copied back."""
    n, count = call.batch.n[0], call.batch.count
    side = Side((n,), count, 1)
    assert call.batch == Batch("c2c", (n,), side, side, count, call.batch.double)
    found = list(tiles(call))
    assert len(found) == call.times
    for start, dims in found:
        there = here = np.zeros((), np.int64)
        for length, far, near in dims:
            there = there[..., None] + np.arange(length) * far
            here = here[..., None] + np.arange(length) * near
        tile = np.full(n * count, np.nan, come_from.dtype)
        tile[here] = come_from[start + there]
        tile = scipy.fft.fft(tile.reshape(n, count), axis=0).reshape(-1)
        go_to[start + there] = tile[here]


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6,), (0,)),
        ((4, 6), (0,)),
        ((4, 6), (1,)),
        ((4, 6), (0, 1)),
        ((3, 4, 6), (1,)),
        ((6, 4, 3), (1,)),
        ((2, 3, 4, 5), (1, 2)),
        ((2, 3, 4, 5), (0, 2)),
        ((2, 3, 4, 5), (0, 1)),
        ((2, 3, 4, 5), (2, 3)),
        ((2, 3, 2, 2, 3), (0, 1, 2, 3, 4)),
        ((2, 3, 2, 2, 3), (0, 1, 3, 4)),
        ((1, 7, 1), (1,)),
        ((5, 1, 5), (0, 1, 2)),
    ],
)
def test_complex_batches(shape, dims):
    x = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    np.testing.assert_allclose(
        executed("c2c", x, shape, dims), scipy.fft.fftn(x, axes=dims), atol=1e-12
    )


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((8,), 0), ((3, 8, 2), 1), ((2, 9, 5), 1), ((7, 9, 3), 1), ((4, 7), 1), ((5, 3), 0)],
)
def test_real_batches(shape, dim):
    x = RNG.standard_normal(shape)
    half = (*shape[:dim], shape[dim] // 2 + 1, *shape[dim + 1 :])
    spectrum = executed("r2c", x, half, (dim,))
    np.testing.assert_allclose(spectrum, scipy.fft.rfft(x, axis=dim), atol=1e-12)
    back = executed("c2r", spectrum, shape, (dim,))
    np.testing.assert_allclose(back, shape[dim] * x, atol=1e-11)


def test_real_transforms_begin_at_even_places():
    """cuFFT refuses a real array that is not aligned as a complex one."""
    for shape in ((3, 8, 2), (2, 9, 5), (9, 9, 2), (7, 5, 3), (4, 7)):
        half = (shape[0], shape[1] // 2 + 1, *shape[2:])
        for kind, a, b in (("r2c", shape, half), ("c2r", half, shape)):
            for call in fft_calls(kind, a, b, (1,), True):
                step = call.source_step if kind == "r2c" else call.target_step
                assert call.times == 1 or step % 2 == 0


def test_the_work_area_of_large_batches_is_bounded(monkeypatch):
    monkeypatch.setattr("dask_bigfft.gpu.ffts.MOST_NBYTES", 1 << 12)
    for shape, dims in (
        ((96, 64), (1,)),
        ((64, 96), (0,)),
        ((7, 3, 40, 20), (2, 3)),
        ((4, 6, 90), (0, 1)),
        ((1024,), (0,)),
        ((13, 96), (1,)),
    ):
        calls = fft_calls("c2c", shape, shape, dims, True)
        for call in calls:
            assert call.batch.count == 1 or 16 * math.prod(call.batch.n) * call.batch.count <= 4096
        assert sum(call.times for call in calls) > 1 or shape == (1024,)
        x = RNG.standard_normal(shape) + 0j
        expected = scipy.fft.fftn(x, axes=dims)
        np.testing.assert_allclose(executed("c2c", x, shape, dims), expected, atol=1e-11)


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize(
    ("shape", "dims", "tiled"),
    [
        ((64, 100), (0,), 1),
        ((3, 32, 60), (1,), 1),
        ((40, 16, 8), (1,), 1),
        ((41, 16, 3), (1,), 1),
        ((16, 7, 40), (0, 1), 0),
        ((4, 16, 7, 24), (1, 3), 1),
        ((512, 64), (0,), 0),
        ((100, 64), (1,), 0),
        ((5, 16, 9, 16), (1,), 1),
    ],
)
def test_columns_of_large_arrays_are_done_in_tiles(monkeypatch, shape, dims, tiled, dtype):
    double = dtype == "c16"
    itemsize = 16 if double else 8
    monkeypatch.setattr("dask_bigfft.gpu.ffts.TILE_NBYTES", 256 * itemsize)
    monkeypatch.setattr("dask_bigfft.gpu.ffts.TILED_NBYTES", 1024 * itemsize)
    monkeypatch.setattr("dask_bigfft.gpu.ffts.TILE_ROW_NBYTES", 2 * itemsize)
    assert all(call.columns is None for call in fft_calls("c2c", shape, shape, dims, double))
    calls = fft_calls("c2c", shape, shape, dims, double, tiled=True)
    found = [call for call in calls if call.columns is not None]
    assert len(found) == tiled
    for call in found:
        assert call.batch.n[0] * call.batch.count <= 256
        assert call.times > 1
    x = (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)
    got = executed("c2c", x, shape, dims, dtype, tiled=True)
    assert not np.isnan(got).any()
    np.testing.assert_allclose(got, scipy.fft.fftn(x, axes=dims), atol=1e-10 if double else 1e-3)
