"""Program that transforms dask's array expressions, and prints the module of their class."""

import dask.array as da
import numpy as np
import scipy.fft
import scipy.signal

from dask_bigfft import fft, signal

a, b = np.random.default_rng(0).standard_normal((2, 400))
x = da.from_array(a, chunks=50)
y = da.from_array(b, chunks=50)


def is_near(lazy, expected):
    """Return True if a lazy array has the expected values."""
    return np.allclose(lazy.compute(), expected, rtol=0, atol=1e-11)


assert is_near(signal.fftconvolve(x, y), scipy.signal.fftconvolve(a, b))
rows = a.reshape(8, 50)
row = b[None, :9]
lazy_rows = da.from_array(rows, chunks=(4, 10))
assert is_near(
    signal.fftconvolve(lazy_rows, row, axes=1),
    scipy.signal.fftconvolve(rows, row, axes=1),
)
assert is_near(signal.oaconvolve(x, b[:9]), scipy.signal.oaconvolve(a, b[:9]))
assert is_near(signal.correlate(x, y, "same"), scipy.signal.correlate(a, b, "same"))
assert is_near(signal.welch(x, nperseg=32)[1], scipy.signal.welch(a, nperseg=32)[1])
assert is_near(signal.poisson(signal.laplacian(x)), a - a.mean())
assert np.isfinite(signal.radial_power_spectrum(x)[1].compute()).all()
for kind in (1, 2, 3, 4):
    assert is_near(fft.dct(x, kind), scipy.fft.dct(a, kind))
print(type(x).__module__)
