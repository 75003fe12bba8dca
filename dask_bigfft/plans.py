"""Plans of transforms, and of filters and spectra that one plan computes, without touching data."""

from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, Unpack, cast, get_args, overload

from dask_bigfft.api.arguments import Extras
from dask_bigfft.api.calls import Axes, N, Norm, S, plan_of_stored, plans_of_call
from dask_bigfft.errors import ArgumentTypeError, PlanError, raise_invalid
from dask_bigfft.planner.plan import Plan
from dask_bigfft.transforms.spec import COSINES, TRANSFORMS

if TYPE_CHECKING:
    from dask_bigfft.signal.segment_plan import OverlapAddPlan, SegmentPlan

#: Names of `TRANSFORMS`.
TransformName = Literal[
    "fft",
    "ifft",
    "rfft",
    "irfft",
    "hfft",
    "ihfft",
    "fft2",
    "ifft2",
    "rfft2",
    "irfft2",
    "hfft2",
    "ihfft2",
    "fftn",
    "ifftn",
    "rfftn",
    "irfftn",
    "hfftn",
    "ihfftn",
]
FilterName = Literal[
    "bandpass",
    "bandstop",
    "convolve",
    "convolve_masked",
    "correlate",
    "derivative",
    "downsample",
    "fftconvolve",
    "fill_gaps",
    "fourier_filter",
    "highpass",
    "hilbert",
    "laplacian",
    "lowpass",
    "poisson",
    "resample",
    "shift",
]

SpectrumName = Literal["czt", "envelope", "power_spectrum", "radial_power_spectrum", "zoom_fft"]
SegmentName = Literal["csd", "spectrogram", "stft", "welch"]

#: Functions of `dask_bigfft.signal` that one plan computes, with rare exceptions.
FILTERS: tuple[str, ...] = get_args(FilterName)
FUNCTIONS = (*FILTERS, *get_args(SpectrumName), *get_args(SegmentName), "istft")

#: Functions that take several plans, by the function that has a plan like each of them.
SEVERAL_PLANS = {
    "coherence": "csd",
    "cross_spectrum": "power_spectrum",
    "gradient": "derivative",
    "transfer_function": "csd",
}


@overload
def plan(a: Any, kind: FilterName | SpectrumName, **extras: Any) -> Plan: ...


@overload
def plan(a: Any, kind: SegmentName, **extras: Any) -> "SegmentPlan": ...


@overload
def plan(a: Any, kind: Literal["istft"], **extras: Any) -> "OverlapAddPlan": ...


@overload
def plan(
    a: Any,
    kind: TransformName = "fftn",
    *,
    n: N = None,
    s: S = None,
    axis: SupportsIndex | None = None,
    axes: Axes = None,
    norm: Norm = None,
    **extras: Unpack[Extras],
) -> Plan: ...


@overload
def plan(a: Any, kind: str, **extras: Any) -> Any: ...


def plan(
    a: Any,
    kind: str = "fftn",
    *,
    n: N = None,
    s: S = None,
    axis: SupportsIndex | None = None,
    axes: Any = None,
    norm: Norm = None,
    **extras: Any,
) -> "Plan | SegmentPlan | OverlapAddPlan":
    """Return the plan of a transform, a filter or a spectrum, without touching data.

    Parameters
    ----------
    a : dask array or array-like
        Input of the transform or of the function.
    kind : str
        Name of a transform of `numpy.fft`, such as ``"fftn"`` or ``"irfft"``, or of a function of
        `dask_bigfft.signal`. Filters are ``"fourier_filter"``, ``"lowpass"``, ``"highpass"``,
        ``"bandpass"``, ``"bandstop"``, ``"fftconvolve"``, ``"convolve"``, ``"correlate"``,
        ``"convolve_masked"``, ``"fill_gaps"``, ``"derivative"``, ``"laplacian"``, ``"poisson"``,
        ``"hilbert"``, ``"shift"``, ``"resample"`` and ``"downsample"``. Spectra are
        ``"power_spectrum"``, ``"radial_power_spectrum"``, ``"czt"``, ``"zoom_fft"``,
        ``"envelope"``, ``"welch"``, ``"csd"``, ``"stft"``, ``"spectrogram"`` and ``"istft"``.
        Cosine and sine transforms have no plan.
    n, axis
        Arguments of transforms of one axis.
    s, axes
        Arguments of transforms of several axes.
    norm
        Scaling, as for the transform.
    **extras
        `order`, `chunks`, `memory_limit`, `rounds`, `digits`, `band`, `band_index`, `variant`,
        `kernel`, `device`, `device_memory_limit`, `overwrite_x`, `verify` and `planner`, see `fft`.
        For a function of `dask_bigfft.signal` all of its arguments by name, such as `transfer`,
        `spacing` and, for ``"csd"``, `y`.

    Returns
    -------
    Plan, SegmentPlan or OverlapAddPlan
        The plan; print it, call ``explain()``, or show it in a notebook. That of a filter has both
        transforms, with the product between them; that of ``"convolve_masked"`` has values and
        weights along a first axis of its own; that of ``"fill_gaps"`` has the seconds of one
        iteration and the memory of all. Plans of segments and slices are those of
        `dask_bigfft.signal.plan_segments`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        In the same cases as the transform or the function. A `PlanError` gives the reason why a
        function has no plan, or more than one.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> x = da.zeros(2**24, chunks=2**20, dtype=complex)
    >>> plan(x, "fft").notation
    '{X1} {X2}'
    >>> plan(x, "fourier_filter", transfer=lambda f: np.exp(-(f**2))).notation
    "{X1} {X2 H X2'} {X1'}"
    """
    if type(a).__module__.partition(".")[0] == "xarray":
        allowed = "an array: plan(a.data), with axes by number, as a.get_axis_num returns them"
        raise_invalid(
            "a",
            type(a).__qualname__,
            allowed,
            kind=ArgumentTypeError,
        )
    where: dict[str, Any] = {
        "n": n,
        "s": s,
        "axis": axis,
        "axes": axes,
    }
    if isinstance(kind, str) and kind in FUNCTIONS:
        from dask_bigfft import signal  # not needed for transforms

        named = {name: value for name, value in where.items() if value is not None}
        if norm is not None:
            named["norm"] = norm
        plans = plans_of_call(getattr(signal, kind), a, **named, **extras)
        return cast("Plan | SegmentPlan | OverlapAddPlan", only_plan(kind, plans))
    refuse_several_plans(kind)
    if not isinstance(kind, str) or kind not in (*TRANSFORMS, *COSINES):
        raise_invalid("kind", kind, f"one of {', '.join((*TRANSFORMS, *FUNCTIONS))}")
    return plan_of_stored(
        a,
        None,
        kind,
        where,
        norm,
        cast("Extras", extras),
    )


def refuse_several_plans(kind: Any) -> None:
    """Raise an error for a function that takes several plans; it names one that has such a plan."""
    if isinstance(kind, str) and kind in SEVERAL_PLANS:
        like = SEVERAL_PLANS[kind]
        raise_invalid(
            "kind", kind, f"{like!r}: {kind} takes several plans, each like that of {like}"
        )


def only_plan(kind: str, plans: list[Any]) -> Any:
    """Return the only one of the plans of a function, which it may use more than once.

    Raises
    ------
    PlanError
        If there are several, or none, with the reason.
    """
    if plans and all(plan is plans[0] for plan in plans):
        return plans[0]
    if not plans:
        raise PlanError(f"{kind} of these arguments works block by block, without a plan")
    text = f"{kind} of these arguments takes {len(plans)} plans, one after the other"
    raise PlanError(f"{text}. The first one: {plans[0].reason}")
