"""Every scheme of the literature, named by its rounds, on arrays small enough to check whole."""

import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_bigfft
from dask_bigfft import fft

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


def relative(found, wanted):
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("variant", ["auto", "dif", "dit", "stockham"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme(scheme, variant):
    shape, chunks, rounds = SCHEMES[scheme]
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    x = da.from_array(a, chunks=chunks)
    y = fft.fftn(x, rounds=rounds, variant=variant)
    assert relative(y.compute(), scipy.fft.fftn(a)) < 1e-15
    plan = dask_bigfft.plan(x, "fftn", rounds=rounds, variant=variant)
    assert [sorted(s.axis for s in r.steps) for r in plan.rounds] == [sorted(r) for r in rounds]
    back = fft.ifftn(y, rounds=rounds, variant=variant)
    assert relative(back.compute(), a) < 1e-15


@pytest.mark.parametrize("n", [4096, 4095, 3 * 5 * 7 * 11])
def test_real_input_halves_the_bytes_of_every_exchange(n):
    real = dask_bigfft.plan(da.zeros(n, chunks=n // 16), "rfft")
    full = dask_bigfft.plan(da.zeros(n, chunks=n // 16, dtype=complex), "fft")
    assert len(real.travelling) == len(full.travelling) == 3
    for half, whole in zip(real.travelling, full.travelling, strict=True):
        assert half.nbytes <= 0.56 * whole.nbytes


PRIME = """
import numpy as np, dask, dask.array as da, scipy.fft
import dask_bigfft
from dask_bigfft import fft

def high_water():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024

n, limit = 10_000_019, 1536 * 2**20
rng = np.random.default_rng(1)
warm = da.from_array(rng.standard_normal(1009) + 0j, chunks=100)
with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
    fft.fft(warm).compute()  # what numba and the libraries need is not the plan's
a = rng.standard_normal(n) + 1j * rng.standard_normal(n)
x = da.from_array(a, chunks=-(-n // 16), name=False)
plan = dask_bigfft.plan(x, "fft", memory_limit=limit)
before = high_water()
y = fft.fft(x, memory_limit=limit).persist(scheduler="threads", num_workers=2)
used = high_water() - before
k = rng.integers(0, n, 8)
direct = np.array([np.vdot(np.exp(2j * np.pi * ((m * np.arange(n)) % n) / n), a) for m in k])
found = np.array([y[int(m)].compute(scheduler="sync") for m in k])
error = abs(found - direct).max() / abs(direct).max()
print(plan.notation, used, plan.expected.peak_host, limit, error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_prime_of_ten_million_holds_its_memory_limit():
    run = subprocess.run(
        [sys.executable, "-c", PRIME], capture_output=True, text=True, check=True, timeout=280
    )
    *notation, used, forecast, limit, error = run.stdout.split()
    assert " ".join(notation) == "{X1} {X2*} {X3}"
    assert int(used) <= int(forecast) <= int(limit)
    assert float(error) < 1e-9
