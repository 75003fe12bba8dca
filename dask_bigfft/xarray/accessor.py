"""The functions of `dask_bigfft.xarray` as methods of arrays and datasets."""

import html
import inspect
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

import xarray as xr

from dask_bigfft.api.calls import Norm
from dask_bigfft.planner.plan import Plan, PublicNames
from dask_bigfft.plans import SegmentName
from dask_bigfft.signal.segment_plan import OverlapAddPlan, SegmentPlan
from dask_bigfft.xarray import chirp_z, filters, functions, short_time, spectra
from dask_bigfft.xarray.arrays import Dims, Labelled
from dask_bigfft.xarray.plans import PlannedName
from dask_bigfft.xarray.transforms import TransformName

__all__ = ["Accessor"]

P = ParamSpec("P")
R = TypeVar("R")

#: Modules of functions, by what they are called in the text of an accessor.
_MODULES = {
    "Transforms": functions,
    "Spectra": spectra,
    "Spectra of slices": short_time,
    "Spectra at chosen points": chirp_z,
    "Filters": filters,
}


class _MethodOfLabelled(Protocol[P]):
    """Type of a method that returns an array of an array, and a dataset of a dataset."""

    @overload
    def __get__(self, accessor: None, owner: type) -> Self: ...
    @overload
    def __get__(self, accessor: "Accessor[Labelled]", owner: type) -> Callable[P, Labelled]: ...


class _PlanMethod(Protocol):
    """Type of the method `plan`, whose result depends on the name of the function."""

    @overload
    def __call__(
        self,
        kind: TransformName | PlannedName = "fft",
        dim: Dims = None,
        *,
        n: int | None = None,
        norm: Norm = None,
        **arguments: Any,
    ) -> Plan: ...
    @overload
    def __call__(self, kind: SegmentName, dim: Dims = None, **arguments: Any) -> SegmentPlan: ...
    @overload
    def __call__(
        self, kind: Literal["istft"], dim: Dims = None, **arguments: Any
    ) -> OverlapAddPlan: ...


def _method(function: Callable[Concatenate[Any, P], Any]) -> _MethodOfLabelled[P]:
    """Return the method of an accessor that calls a function of arrays and of datasets."""
    return cast("_MethodOfLabelled[P]", _array_method(function))


def _array_method(
    function: Callable[Concatenate[xr.DataArray, P], R],
) -> Callable[Concatenate["Accessor[xr.DataArray]", P], R]:
    """Return the method of an accessor that calls a function of arrays."""

    @wraps(function)
    def method(self: "Accessor[xr.DataArray]", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(self._array, *args, **kwargs)

    return method


@xr.register_dataarray_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
@xr.register_dataset_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
class Accessor(PublicNames, Generic[Labelled]):
    """The functions of this module as methods of an array or dataset: ``array.bigfft.fft("x")``."""

    def __init__(self, array: Labelled) -> None:
        self._array: Labelled = array

    bandpass = _method(filters.bandpass)
    bandstop = _method(filters.bandstop)
    coherence = _array_method(filters.coherence)
    convolve = _method(filters.convolve)
    convolve_masked = _method(filters.convolve_masked)
    cross_spectrum = _array_method(spectra.cross_spectrum)
    csd = _array_method(spectra.csd)
    czt = _method(chirp_z.czt)
    dct = _method(functions.dct)
    derivative = _method(filters.derivative)
    downsample = _method(filters.downsample)
    dst = _method(functions.dst)
    envelope = _method(filters.envelope)
    fft = _method(functions.fft)
    fftshift = _method(functions.fftshift)
    fill_gaps = _method(filters.fill_gaps)
    hfft = _method(functions.hfft)
    highpass = _method(filters.highpass)
    hilbert = _method(filters.hilbert)
    idct = _method(functions.idct)
    idst = _method(functions.idst)
    ifft = _method(functions.ifft)
    ifftshift = _method(functions.ifftshift)
    ihfft = _method(functions.ihfft)
    irfft = _method(functions.irfft)
    isotropic_power_spectrum = _method(spectra.isotropic_power_spectrum)
    istft = _method(short_time.istft)
    lowpass = _method(filters.lowpass)
    pad = _method(filters.pad)
    plan = cast("_PlanMethod", _array_method(functions.plan))
    power_spectrum = _method(spectra.power_spectrum)
    resample = _method(filters.resample)
    rfft = _method(functions.rfft)
    shift = _method(filters.shift)
    spectrogram = _method(short_time.spectrogram)
    stft = _method(short_time.stft)
    transfer_function = _array_method(filters.transfer_function)
    unpad = _method(filters.unpad)
    welch = _method(spectra.welch)
    zoom_fft = _method(chirp_z.zoom_fft)

    def _title(self) -> str:
        """Return what the array is, in one line."""
        kind = type(self._array).__name__
        name = getattr(self._array, "name", None)
        sizes = ", ".join(f"{dim}: {size}" for dim, size in self._array.sizes.items())
        label = "" if name is None else f" {name!r}"
        return f"dask_bigfft functions of {kind}{label} ({sizes})"

    def __repr__(self) -> str:
        """Return the array in one line, and the names of the functions."""
        lines = [f"<{self._title()}>"]
        for group, module in _MODULES.items():
            lines.append(f"{group}: {', '.join(module.__all__)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the array in one line, and a table of the functions for each of their groups."""
        parts = [f"<p><b>{html.escape(self._title())}</b></p>"]
        for group, module in _MODULES.items():
            rows = "".join(_table_rows(module))
            parts.append(f"<details><summary>{group}</summary><table>{rows}</table></details>")
        return f"<div>{''.join(parts)}</div>"


def _table_rows(module: ModuleType) -> list[str]:
    """Return a row of a table in HTML for each function of a module: its name, what it returns."""
    rows = []
    for name in module.__all__:
        docstring = inspect.getdoc(vars(module)[name]) or ""  # none with python -OO
        summary = html.escape(docstring.partition("\n")[0])
        cells = f"<td><code>{name}</code></td><td style='text-align: left'>{summary}</td>"
        rows.append(f"<tr>{cells}</tr>")
    return rows
