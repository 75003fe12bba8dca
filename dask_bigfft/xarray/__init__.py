"""Transforms of xarray's arrays by the names of their dimensions.

A transformed dimension ``x`` becomes ``freq_x`` with a coordinate of frequencies. These are in
cycles per unit of the coordinate of ``x``, or per second for times, by default in natural order.
Attributes of the new coordinate (``direct_...``) describe the original one and the array's
attributes. The inverse restores both, also from products of spectra. Values are those of
`numpy.fft`: they are not scaled by the spacing, and their phase does not depend on the position of
the first sample. Other dimensions and their coordinates, the name and the attributes stay. Other
coordinates along a transformed dimension are dropped. Results are lazy for arrays in chunks, and
computed for others.

Importing this module gives every `xarray.DataArray` and `xarray.Dataset` an attribute ``bigfft``
with the same functions. For a dataset they transform every variable with these dimensions::

    import dask_bigfft.xarray
    spectrum = field.bigfft.rfft(["y", "x"])
"""

try:
    import xarray as _xarray  # noqa: F401
except ImportError as error:
    text = "dask_bigfft.xarray needs xarray: pip install 'dask-bigfft[xarray]'"
    raise ImportError(text) from error

from dask_bigfft.xarray import accessor, chirp_z, filters, functions, short_time, spectra
from dask_bigfft.xarray.accessor import *  # noqa: F403
from dask_bigfft.xarray.chirp_z import *  # noqa: F403
from dask_bigfft.xarray.filters import *  # noqa: F403
from dask_bigfft.xarray.functions import *  # noqa: F403
from dask_bigfft.xarray.short_time import *  # noqa: F403
from dask_bigfft.xarray.spectra import *  # noqa: F403

__all__ = [
    *accessor.__all__,
    *chirp_z.__all__,
    *filters.__all__,
    *functions.__all__,
    *short_time.__all__,
    *spectra.__all__,
]
__dir__ = __all__.copy  # so that completion shows these names alone
