"""Plans of transforms and of filters of arrays with dimensions and coordinates."""

from typing import Any, Literal, cast, get_args

import xarray as xr

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import Norm, plans_of_call
from dask_bigfft.errors import ArgumentTypeError, parse_choice, raise_invalid
from dask_bigfft.planner.plan import Plan
from dask_bigfft.plans import only_plan
from dask_bigfft.xarray import filters
from dask_bigfft.xarray.arrays import Dims
from dask_bigfft.xarray.transforms import TransformName, planned

FilterKind = Literal[
    "bandpass",
    "bandstop",
    "convolve",
    "derivative",
    "downsample",
    "highpass",
    "hilbert",
    "lowpass",
    "resample",
    "shift",
]


def plan(
    array: xr.DataArray,
    kind: TransformName | FilterKind = "fft",
    dim: Dims = None,
    *,
    n: int | None = None,
    norm: Norm = None,
    **extras: Any,
) -> Plan:
    """Return the plan of a transform or of a filter, without touching data.

    Parameters
    ----------
    array : xarray.DataArray
        As for the transform or the filter.
    kind : str
        Name of a transform, ``"fft"``, ``"ifft"``, ``"rfft"``, ``"irfft"``, ``"hfft"`` or
        ``"ihfft"``, or of a filter: ``"lowpass"``, ``"highpass"``, ``"bandpass"``,
        ``"bandstop"``, ``"convolve"``, ``"derivative"``, ``"hilbert"``, ``"shift"``,
        ``"resample"`` or ``"downsample"``.
    dim, n, norm
        As for the transform or the filter. Filters have no `n` and `norm`.
    **extras
        All other arguments of the transform or the filter by name, such as `memory_limit`, `cutoff`
        and `by`.

    Returns
    -------
    dask_bigfft.Plan
        That of a transform is without `detrend`, `window` and `shift`. Print it, call
        ``explain()``, or show it in a notebook.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        In the same cases as the transform or the filter. A `PlanError` gives the reason why a
        filter has no plan, or more than one.

    Examples
    --------
    >>> import dask.array as da
    >>> field = xr.DataArray(da.zeros((256, 256), chunks=64), dims=("y", "x"))
    >>> plan(field, "rfft", ["y", "x"]).spec.out_shape
    (256, 129)
    >>> plan(field, "lowpass", "x", cutoff=0.1).spec.axes
    (1,)
    """
    parse_choice("kind", kind, *get_args(TransformName), *get_args(FilterKind))
    if isinstance(array, xr.Dataset):
        names = tuple(array.data_vars)
        raise_invalid("array", "a dataset", f"one of its variables {names}", kind=ArgumentTypeError)
    if kind in get_args(TransformName):
        return planned(
            array,
            cast("TransformName", kind),
            dim,
            n=n,
            norm=norm,
            **extras,
        )
    for name, value in (("n", n), ("norm", norm)):
        if value is not None:
            raise_invalid(name, value, f"None for {kind}", kind=ArgumentTypeError)
    lazy_array = array.copy(data=parse_array(array.data))
    plans = plans_of_call(getattr(filters, kind), lazy_array, dim, **extras)
    return only_plan(kind, plans)
