"""FFTs of any size on dask arrays of any chunking."""

from dask_bigfft import fft
from dask_bigfft.decomposition.order import transposed_index
from dask_bigfft.front import plan
from dask_bigfft.planner.plan import Plan

__version__ = "0.1.0"

__all__ = ["Plan", "__version__", "fft", "plan", "transposed_index"]
