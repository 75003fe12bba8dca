"""Convolution and correlation of dask arrays of any size, called like those of `scipy.signal`.

Imports this room.
"""

from dask_bigfft.signal.convolution import convolve, correlate, fftconvolve, oaconvolve

__all__ = ["convolve", "correlate", "fftconvolve", "oaconvolve"]
