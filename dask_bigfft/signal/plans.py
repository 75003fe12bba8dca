"""Plans of averages over segments and of short-time transforms, with forecasts of their memory."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal

import dask.array as da

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.errors import parse_choice, raise_invalid
from dask_bigfft.signal.arguments import parse_pair
from dask_bigfft.signal.inverse_short_time import SampleArguments, istft, parse_inverse
from dask_bigfft.signal.segment_plan import OverlapAddPlan, SegmentPlan
from dask_bigfft.signal.segments import SegmentArguments, parse_average
from dask_bigfft.signal.short_time import (
    SliceArguments,
    WindowArguments,
    parse_call,
    spectrogram,
    stft,
)

__all__ = ["plan_segments"]

Planned = Literal["welch", "csd", "stft", "spectrogram", "istft"]


@keeps_kind
def plan_segments(
    x: Any,
    y: Any = None,
    function: Planned | None = None,
    **keywords: Any,
) -> SegmentPlan | OverlapAddPlan:
    """Return the plan of an average over segments or a short-time transform; no data are touched.

    Parameters
    ----------
    x, y : dask array or array-like
        Arrays of the function. `y` is the second one of `csd` and `spectrogram`.
    function : {"welch", "csd", "stft", "spectrogram", "istft"}, optional
        Name of the function, by default "welch", or "csd" for two arrays.
    **keywords
        The other arguments of the function, by name. Required ones are needed here, too, such as
        `win`, `hop` and `fs` of "stft".

    Returns
    -------
    SegmentPlan or OverlapAddPlan
        Segments and blocks; the latter for "istft". ``expected.peak_host`` is a forecast of the
        peak memory in bytes per process, without that of imports and of the tasks that make the
        input; ``explain()`` returns steps, memory and reason as text.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        In the same cases as the function. A missing argument of "stft", "spectrogram" or "istft" is
        a `TypeError`, as in a call of the function.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> x = da.zeros(2**24, chunks=2**20)
    >>> plan = plan_segments(x, nperseg=1024, memory_limit="100 MiB")
    >>> plan.count, plan.expected.peak_host < 100 * 2**20
    (32767, True)
    >>> plan = plan_segments(x, function="stft", win=np.hanning(1024), hop=512, fs=1.0)
    >>> plan.count, plan.expected.peak_host < 1000 * 2**20
    (32769, True)
    """
    name = _parse_function(function, y)
    if name == "istft":
        return _plan_of_inverse(x, keywords)
    arrays = (parse_array(x, "fft"),) if y is None else parse_pair(x, y)
    if name in ("welch", "csd"):
        return _plan_of_average(arrays, name, keywords)
    arguments = _arguments(stft if name == "stft" else spectrogram, keywords, x)
    call = parse_call(
        arrays,
        name,
        WindowArguments(**_of_fields(WindowArguments, arguments)),
        SliceArguments(**_of_fields(SliceArguments, arguments)),
        arguments["options"],
    )
    call.plan.refuse_above_limit()
    return call.plan


def _parse_function(function: Any, y: Any) -> str:
    """Return the name of the function that takes the arrays, one of which is `y` or None."""
    default = "welch" if y is None else "csd"
    name: str = parse_choice(
        "function",
        function or default,
        "welch",
        "csd",
        "stft",
        "spectrogram",
        "istft",
    )
    if y is not None and name not in ("csd", "spectrogram"):
        raise_invalid("y", "an array", f"None for {name}, which takes one array")
    if y is None and name == "csd":
        raise_invalid("y", None, "an array for csd, which takes two")
    return name


def _plan_of_inverse(x: Any, keywords: Mapping[str, Any]) -> OverlapAddPlan:
    """Return the plan of `istft`."""
    arguments = _arguments(istft, keywords, x)
    inverse = parse_inverse(
        parse_array(x, "fft"),
        WindowArguments(**_of_fields(WindowArguments, arguments)),
        SampleArguments(**_of_fields(SampleArguments, arguments)),
        arguments["options"],
    )
    inverse.plan.refuse_above_limit()
    return inverse.plan


def _plan_of_average(
    arrays: tuple[da.Array, ...],
    function: str,
    keywords: Mapping[str, Any],
) -> SegmentPlan:
    """Return the plan of `welch` or `csd`, which refuse one above the memory limit."""
    names = {field.name for field in fields(SegmentArguments)}
    options: Any = {key: value for key, value in keywords.items() if key not in names}
    segments = SegmentArguments(**_of_fields(SegmentArguments, keywords))
    return parse_average(
        arrays,
        function,
        segments,
        options,
    ).plan


def _arguments(
    function: Callable[..., Any],
    keywords: Mapping[str, Any],
    x: Any,
) -> dict[str, Any]:
    """Return all arguments of a function by name, with its defaults.

    A missing argument raises the `TypeError` of a call.
    """
    with_options = inspect.unwrap(function)  # has `options`, where the function shows each of them
    bound = inspect.signature(with_options).bind(x, **keywords)
    bound.apply_defaults()
    return bound.arguments


def _of_fields(kind: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are fields of a dataclass."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in arguments.items() if name in names}
