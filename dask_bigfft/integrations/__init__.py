"""Hooks for dask's FFT functions, for `scipy.fft`, and for dask's array backends."""
