"""Convolution, spectra and derivatives of dask arrays of any size.

Functions that exist in `scipy.signal` have the same names and arguments. The modules::

    arguments, transforms (forward and inverse; frequencies of the places of a spectrum)
    convolution (by spectra) -> kernel_spectrum (of a short array); overlap (block by block)
    spectra (power, cross, radial); segments (Welch's averages); differentiation
"""

from dask_bigfft.signal.convolution import convolve, correlate, fftconvolve, oaconvolve
from dask_bigfft.signal.differentiation import gradient, laplacian, poisson
from dask_bigfft.signal.segments import csd, welch
from dask_bigfft.signal.spectra import cross_spectrum, power_spectrum, radial_power_spectrum

__all__ = [
    "convolve",
    "correlate",
    "cross_spectrum",
    "csd",
    "fftconvolve",
    "gradient",
    "laplacian",
    "oaconvolve",
    "poisson",
    "power_spectrum",
    "radial_power_spectrum",
    "welch",
]
__dir__ = __all__.copy  # so that completion shows these names alone
