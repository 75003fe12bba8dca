"""Hooks of other libraries: dask's own FFT functions, SciPy's, and dask's array backends."""
