"""Convolutions whose digit is larger than the card: there, multiplied by the spectrum, and back."""

import numpy as np
import pytest
import scipy.fft
from devices.blocks import SMALL, distance, engine

from dask_bigfft.decomposition.layout import Layout, plain
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import axis_program
from dask_bigfft.gpu.engine import Source
from dask_bigfft.gpu.tile_work import Job


def bluestein(n, padded, sign, before=(), after=()):
    """The job of a prime length in one block, by Bluestein's algorithm, and its spectrum."""
    axis = len(before)
    (step,) = axis_program(axis, n, (padded,), sign=sign, bluestein=True).steps
    shape = (*before, padded, *after)
    source = Layout(tuple(plain(size, (size,)) for size in shape))
    round_ = Round((step,), source, transformed(source, (step,)))
    wave = np.exp(-1j * sign * np.pi * (np.arange(n) ** 2 % (2 * n)) / n)
    chirp = np.zeros(padded, complex)
    chirp[:n], chirp[1 - n :] = wave, wave[:0:-1]
    return Job(round_, (0,) * len(shape), "<c16", "<c16"), scipy.fft.fft(chirp) / padded


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("n", "padded", "before", "after", "nbytes", "notation"),
    [
        (1021, 2048, (), (), 1 << 17, "{X}"),
        (1021, 2048, (), (), 1 << 15, "{X1} {X2} {X1}"),
        (1021, 2100, (), (), 1 << 15, "{X1} {X2} {X1}"),
        (509, 1024, (3,), (), 1 << 14, "{X1} {X2} {X1}"),
        (127, 270, (2,), (5,), 1 << 12, "{Y1} {Y2} {Y1}"),
    ],
)
def test_scheme(n, padded, before, after, nbytes, notation, sign):
    job, spectrum = bluestein(n, padded, sign, before, after)
    rng, axis = np.random.default_rng(n), len(before)
    shape = (*before, n, *after)
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    more = [(0, padded - n) if d == axis else (0, 0) for d in range(x.ndim)]
    simulated = engine(nbytes, seed=padded, limits=SMALL)
    got = simulated.run(job, Source(lambda: np.pad(x, more)), {axis: spectrum})
    transform = scipy.fft.fft if sign < 0 else scipy.fft.ifft
    expected = transform(x, axis=axis, norm="backward" if sign < 0 else "forward")
    assert distance(got.take(range(n), axis=axis), expected) < 1e-14
    assert not got.take(range(n, padded), axis=axis).any()
    assert simulated.device.peak <= nbytes
    assert simulated.tiles(job)[0].notation == notation.replace("Y", "ZYX"[3 - x.ndim + axis])


def test_a_block_that_may_be_overwritten_stays_where_it_is():
    job, spectrum = bluestein(1021, 2048, -1)
    job = Job(job.round, job.block, job.source, job.target, inside=True)
    x = np.zeros(2048, complex)
    x[:1021] = np.random.default_rng(1).standard_normal(1021)
    expected = scipy.fft.fft(x[:1021])
    got = engine(1 << 15).run(job, Source(lambda: x, again=False), {0: spectrum})
    assert np.shares_memory(got, x)
    assert distance(got[:1021], expected) < 1e-14
