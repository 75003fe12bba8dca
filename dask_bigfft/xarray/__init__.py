"""Transforms of xarray's arrays by the names of their dimensions.

A transformed dimension ``x`` becomes ``freq_x``, with a coordinate of frequencies: cycles per unit
of the coordinate of ``x`` (per second where that is a time), in natural order unless another is
asked for. What the coordinate was is kept in the attributes of the new one (``direct_...``), and
the inverse puts it back. Values are those of `numpy.fft`: neither scaled by the spacing nor turned
by the place of the first sample. Other dimensions and their coordinates, the name and the
attributes stay; coordinates along a transformed dimension that are not its own are dropped. Arrays
in chunks stay so, others are computed.

Importing this module gives every `xarray.DataArray` and `xarray.Dataset` an attribute ``bigfft``
with the same functions. Of a dataset they transform every variable that has the dimensions::

    import dask_bigfft.xarray
    spectrum = field.bigfft.rfft(["y", "x"])

Imports `fft`, `frequencies` and `shifts`; needs xarray.
"""

try:
    import xarray as _xarray  # noqa: F401
except ImportError as error:
    text = "dask_bigfft.xarray needs xarray: pip install 'dask-bigfft[xarray]'"
    raise ImportError(text) from error

from dask_bigfft.xarray.functions import Accessor, fft, fftshift, ifft, ifftshift, irfft, rfft

__all__ = ["Accessor", "fft", "fftshift", "ifft", "ifftshift", "irfft", "rfft"]
