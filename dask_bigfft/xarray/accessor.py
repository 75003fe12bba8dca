"""The functions of `dask_bigfft.xarray` as methods of arrays and datasets."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import xarray as xr

from dask_bigfft.xarray import filters, functions, short_time, spectra

__all__ = ["Accessor"]


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of an accessor that calls a function on the accessor's array."""

    @wraps(function)
    def method(self: "Accessor", *args: Any, **kwargs: Any) -> Any:
        return function(self._array, *args, **kwargs)

    return method


@xr.register_dataarray_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
@xr.register_dataset_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
class Accessor:
    """The functions of this module as methods of an array or dataset: ``array.bigfft.fft("x")``."""

    def __init__(self, array: Any) -> None:
        self._array = array


for _module in (filters, functions, short_time, spectra):
    for _name in _module.__all__:
        setattr(Accessor, _name, _method(vars(_module)[_name]))
