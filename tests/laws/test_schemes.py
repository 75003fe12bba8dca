"""Every scheme of the literature, named by its rounds, on arrays small enough to check whole."""

import dask.array as da
import pytest
import scipy.fft

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

#: shape, chunks, rounds by axis
SCHEMES = {
    "1D two rounds": ((4096,), (256,), [{0: 64}, {0: 64}]),
    "1D two rounds, uneven": ((3000,), (170,), [{0: 60}, {0: 50}]),
    "1D three rounds": ((4096,), (200,), [{0: 16}, {0: 32}, {0: 8}]),
    "2D naive": ((64, 48), (16, 48), [{1: -1}, {0: -1}]),
    "2D naive, Y first": ((64, 48), (16, 12), [{0: -1}, {1: -1}]),
    "2D Y decomposition": ((1024, 6), (100, 6), [{0: 32}, {0: 32, 1: -1}]),
    "2D Y decomposition, X early": ((1024, 6), (100, 6), [{0: 32, 1: -1}, {0: 32}]),
    "2D X larger than a block": ((6, 1024), (6, 64), [{1: 32, 0: -1}, {1: 32}]),
    "2D two axes' digits at a time": ((64, 36), (16, 9), [{0: 8, 1: 6}, {0: 8, 1: 6}]),
    "3D naive": ((24, 20, 18), (5, 20, 18), [{1: -1, 2: -1}, {0: -1}]),
    "3D naive, Z first": ((24, 20, 18), (24, 7, 18), [{0: -1}, {1: -1, 2: -1}]),
    "3D Z decomposition": ((64, 6, 5), (4, 6, 5), [{0: 8}, {0: 8, 1: -1, 2: -1}]),
    "3D Z decomposition, reordered": ((64, 6, 5), (4, 6, 5), [{0: 8, 1: -1}, {0: 8, 2: -1}]),
    "3D XY larger than a block": ((6, 36, 20), (1, 9, 20), [{0: -1, 1: 6}, {1: 6, 2: -1}]),
    "3D X larger than a block": ((6, 5, 64), (1, 1, 16), [{2: 8, 0: -1}, {2: 8, 1: -1}]),
    "3D pencils": ((24, 20, 18), (6, 5, 18), [{2: -1}, {1: -1}, {0: -1}]),
    "4D slabs": ((8, 6, 5, 4), (3, 6, 5, 4), [{1: -1, 2: -1, 3: -1}, {0: -1}]),
}


@pytest.mark.parametrize("variant", ["auto", "dif", "dit", "stockham"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme(scheme, variant):
    shape, chunks, rounds = SCHEMES[scheme]
    a = random_array(shape, "c16", 3)
    x = da.from_array(a, chunks=chunks)
    y = fft.fftn(x, rounds=rounds, variant=variant)
    assert relative_l2(y.compute(), scipy.fft.fftn(a)) < 1e-15
    plan = dask_bigfft.plan(
        x,
        "fftn",
        rounds=rounds,
        variant=variant,
    )
    assert [sorted(s.axis for s in r.steps) for r in plan.rounds] == [sorted(r) for r in rounds]
    back = fft.ifftn(y, rounds=rounds, variant=variant)
    assert relative_l2(back.compute(), a) < 1e-15


@pytest.mark.parametrize("n", [4096, 4095, 3 * 5 * 7 * 11])
def test_real_input_halves_the_bytes_of_every_exchange(n):
    real = dask_bigfft.plan(da.zeros(n, chunks=n // 16), "rfft")
    full = dask_bigfft.plan(da.zeros(n, chunks=n // 16, dtype=complex), "fft")
    assert len(real.travelling) == len(full.travelling) == 3
    for half, whole in zip(real.travelling, full.travelling, strict=True):
        assert half.nbytes <= 0.56 * whole.nbytes
