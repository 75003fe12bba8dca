"""Plans of functions of arrays with dimensions and coordinates, by the names of the functions."""

from collections.abc import Callable
from typing import Any, Literal, cast, get_args, overload

import xarray as xr

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import Norm, plans_of_call
from dask_bigfft.errors import ArgumentTypeError, parse_choice, raise_invalid
from dask_bigfft.planner.plan import Plan
from dask_bigfft.plans import SegmentName, only_plan, refuse_several_plans
from dask_bigfft.signal.segment_plan import OverlapAddPlan, SegmentPlan
from dask_bigfft.xarray import chirp_z, filters, short_time, spectra
from dask_bigfft.xarray.arrays import Dims
from dask_bigfft.xarray.transforms import TransformName, planned

#: Functions that one plan of a transform computes, with rare exceptions.
PlannedName = Literal[
    "bandpass",
    "bandstop",
    "convolve",
    "convolve_masked",
    "czt",
    "derivative",
    "downsample",
    "envelope",
    "fill_gaps",
    "highpass",
    "hilbert",
    "isotropic_power_spectrum",
    "lowpass",
    "power_spectrum",
    "resample",
    "shift",
    "zoom_fft",
]

#: Names of the kinds of plans: transforms, and all others.
TRANSFORM_NAMES: tuple[str, ...] = get_args(TransformName)
OTHER_NAMES: tuple[str, ...] = (*get_args(PlannedName), *get_args(SegmentName), "istft")


@overload
def plan(
    array: xr.DataArray,
    kind: TransformName | PlannedName = "fft",
    dim: Dims = None,
    *,
    n: int | None = None,
    norm: Norm = None,
    **arguments: Any,
) -> Plan: ...


@overload
def plan(
    array: xr.DataArray,
    kind: SegmentName,
    dim: Dims = None,
    **arguments: Any,
) -> SegmentPlan: ...


@overload
def plan(
    array: xr.DataArray,
    kind: Literal["istft"],
    dim: Dims = None,
    **arguments: Any,
) -> OverlapAddPlan: ...


def plan(
    array: xr.DataArray,
    kind: str = "fft",
    dim: Dims = None,
    *,
    n: int | None = None,
    norm: Norm = None,
    **arguments: Any,
) -> Plan | SegmentPlan | OverlapAddPlan:
    """Return the plan of a function of this module, without touching data.

    Parameters
    ----------
    array : xarray.DataArray
        As for the function.
    kind : str
        Name of the function: a transform, ``"fft"``, ``"ifft"``, ``"rfft"``, ``"irfft"``,
        ``"hfft"`` or ``"ihfft"``; a filter, ``"lowpass"``, ``"highpass"``, ``"bandpass"``,
        ``"bandstop"``, ``"convolve"``, ``"convolve_masked"``, ``"fill_gaps"``, ``"derivative"``,
        ``"hilbert"``, ``"envelope"``, ``"shift"``, ``"resample"`` or ``"downsample"``; or a
        spectrum, ``"power_spectrum"``, ``"isotropic_power_spectrum"``, ``"zoom_fft"``, ``"czt"``,
        ``"welch"``, ``"csd"``, ``"stft"``, ``"spectrogram"`` or ``"istft"``. Other functions have
        several plans, or none.
    dim, n, norm
        As for the function. Only transforms have `n` and `norm`.
    **arguments
        All other arguments of the function by name, such as `memory_limit`, `cutoff`, `by` and, for
        ``"csd"``, `other`.

    Returns
    -------
    dask_bigfft.Plan, or a plan of segments
        That of a transform is without `detrend`, `window` and `shift`; those of segments and slices
        are those of `dask_bigfft.signal.plan_segments`. Print it, call ``explain()``, or show it in
        a notebook.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        In the same cases as the function. A `PlanError` gives the reason why it has no plan, or
        more than one.

    Examples
    --------
    >>> import dask.array as da
    >>> field = xr.DataArray(da.zeros((256, 256), chunks=64), dims=("y", "x"))
    >>> plan(field, "rfft", ["y", "x"]).spec.out_shape
    (256, 129)
    >>> plan(field, "lowpass", "x", cutoff=0.1).spec.axes
    (1,)
    >>> plan(field, "welch", "x", nperseg=16).count
    31
    """
    refuse_several_plans(kind)
    parse_choice("kind", kind, *TRANSFORM_NAMES, *OTHER_NAMES)
    if isinstance(array, xr.Dataset):
        names = tuple(array.data_vars)
        raise_invalid("array", "a dataset", f"one of its variables {names}", kind=ArgumentTypeError)
    if kind in TRANSFORM_NAMES:
        return planned(
            array,
            cast("TransformName", kind),
            dim,
            n=n,
            norm=norm,
            **arguments,
        )
    for name, value in (("n", n), ("norm", norm)):
        if value is not None:
            raise_invalid(name, value, f"None for {kind}", kind=ArgumentTypeError)
    lazy_array = array.copy(deep=False, data=parse_array(array.data))
    plans = plans_of_call(_function(kind), lazy_array, dim=dim, **arguments)
    return cast("Plan | SegmentPlan | OverlapAddPlan", only_plan(kind, plans))


def _function(kind: str) -> Callable[..., Any]:
    """Return the function of a name that is no transform."""
    functions = vars(filters) | vars(spectra) | vars(short_time) | vars(chirp_z)
    return cast("Callable[..., Any]", functions[kind])
