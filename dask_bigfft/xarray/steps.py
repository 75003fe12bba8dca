"""The step of a coordinate's samples, and what to do about uneven ones."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import xarray as xr

from dask_bigfft.errors import raise_invalid

#: Relative tolerance of the steps of a coordinate around their mean.
TOLERANCE = 1e-3

#: Number of a coordinate's values that are worked on together, so that temporary arrays are small.
PIECE = 2**16

#: Units of durations in messages, in seconds.
_DURATIONS = {
    "day": 86400.0,
    "hour": 3600.0,
    "minute": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
}


def even_step(
    coordinate: xr.DataArray,
    as_numbers: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    seconds: float | None = None,
) -> float:
    """Return the mean step of a coordinate.

    Parameters
    ----------
    coordinate
        Coordinate of one dimension with at least two samples.
    as_numbers
        Function that returns some of its values as numbers.
    seconds
        Length of 1 in these numbers in seconds, None for a coordinate that is no time.

    Raises
    ------
    ArgumentError
        If the steps differ, with the gap or the calendar's step, and what to do.
    """
    values = coordinate.values
    pieces = []
    with np.errstate(invalid="ignore"):  # of infinite values
        for steps in _steps_by_piece(values, as_numbers):
            pieces.append((steps.min(), steps.max(), steps.sum()))
        smallest, largest, sums = np.transpose(pieces)
        mean_step = float(sums.sum() / (len(values) - 1))
        errors = np.abs([smallest.min() - mean_step, largest.max() - mean_step])
        if mean_step and np.all(errors <= TOLERANCE * abs(mean_step)):
            return mean_step
        all_steps = np.concatenate([*_steps_by_piece(values, as_numbers)])
    _raise_uneven(coordinate, all_steps, seconds)


def _steps_by_piece(
    values: npt.NDArray[Any],
    as_numbers: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the steps of a coordinate's values, a piece at a time."""
    for start in range(0, len(values) - 1, PIECE):
        yield _steps(as_numbers(values[start : start + PIECE + 1]))


def _steps(places: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the steps between numbers, without overflow.

    >>> _steps(np.array([2**64 - 1, 0], np.uint64))
    array([-1.84467441e+19])
    """
    if places.dtype.kind == "f":
        exact_places = places
    elif int(places.max()) - int(places.min()) < 2**63:
        exact_places = places.astype(np.int64)
    else:
        exact_places = places.astype(object)
    return np.diff(exact_places).astype(float)


def _raise_uneven(
    coordinate: xr.DataArray, steps: npt.NDArray[np.float64], seconds: float | None
) -> NoReturn:
    """Raise an error that names the first irregularity of a coordinate, and what to do."""
    dim = str(coordinate.dims[0])
    values = coordinate.values
    units = coordinate.attrs.get("units")
    allowed = "evenly spaced samples: "
    disorder = _disorder(coordinate, steps)
    if disorder is not None:
        irregularity, cure = disorder
        raise_invalid(f"coordinate {dim}", irregularity, f"{allowed}{cure}")
    sizes = np.abs(steps)
    usual = float(np.median(sizes))
    regular = np.abs(sizes - usual) <= TOLERANCE * usual
    gaps = np.flatnonzero(~regular)
    spread = _range_text(
        sizes.min(),
        sizes.max(),
        units,
        seconds,
    )
    months = _months(values, sizes)
    if months is not None:
        irregularity = f"with steps of {months}"
        allowed += f"these steps are {spread} long; "
    elif 2 * len(gaps) <= len(sizes) and np.all(sizes[gaps] > usual):
        gap = _step_text(sizes[gaps[0]], units, seconds)
        irregularity = f"with a gap of {gap} after {_value_text(values[gaps[0]])}"
        count = round(float(sizes.sum()) / usual) + 1
        missing = count - len(values)
        cure = f"fill the {missing} missing of {count} samples, which are "
        cure += f"{_step_text(usual, units, seconds)} apart: {_interpolation(dim, values, count)}"
        raise_invalid(f"coordinate {dim}", irregularity, f"{allowed}{cure}")
    else:
        irregularity = f"with steps of {spread}"
    cure = f"{_interpolation(dim, values, len(values))}, or drop_vars({dim!r})"
    cure += " for frequencies in cycles per sample"
    raise_invalid(f"coordinate {dim}", irregularity, f"{allowed}{cure}")


def _disorder(coordinate: xr.DataArray, steps: npt.NDArray[np.float64]) -> tuple[str, str] | None:
    """Return what is wrong with the order of values, and its cure; None if they rise or fall."""
    dim = str(coordinate.dims[0])
    values = coordinate.values
    if coordinate.isnull().any():
        return "with missing values", f"array.isel({dim}=array[{dim!r}].notnull())"
    if values.dtype.kind == "f" and np.isinf(values).any():
        return "with infinite values", f"array.isel({dim}=np.isfinite(array[{dim!r}]))"
    repetitions = np.flatnonzero(steps == 0)
    if len(repetitions):
        place = _value_text(values[repetitions[0]])
        return f"with two samples at {place}", f"array.drop_duplicates({dim!r})"
    signs = np.sign(steps)
    turns = np.flatnonzero(signs != signs[0])
    if len(turns):
        place = _value_text(values[turns[0]])
        return f"which turns round at {place}", f"array.sortby({dim!r})"
    return None


def _interpolation(dim: str, values: npt.NDArray[Any], count: int) -> str:
    """Return the call that interpolates an array to even samples, as text.

    >>> _interpolation("x", np.array([0.0, 1.0, 4.0]), 5)
    'array.interp(x=np.linspace(0.0, 4.0, 5))'
    """
    first = _value_text(values[0])
    last = _value_text(values[-1])
    if values.dtype.kind == "M":
        return f"array.interp({dim}=xr.date_range({first!r}, {last!r}, periods={count}))"
    if values.dtype.kind in "iuf":
        return f"array.interp({dim}=np.linspace({first}, {last}, {count}))"
    return f"array.interp({dim}=even) with {count} even samples"


def _months(values: npt.NDArray[Any], sizes: npt.NDArray[np.float64]) -> str | None:
    """Return the usual number of calendar months between times as text, if there is one.

    >>> times = np.array(["2026-01-31", "2026-02-28", "2026-03-31"], "M8[D]")
    >>> _months(times, np.array([28.0, 31.0]))
    'a calendar month'
    """
    if values.dtype.kind == "M":
        months = values.astype("M8[M]").astype(np.int64)
    elif values.dtype.kind == "O":  # of cftime
        months = np.array([12 * value.year + value.month for value in values])
    else:  # no dates
        return None
    counts = np.abs(np.diff(months))
    usual_count = int(np.median(counts))
    is_regular = counts == usual_count
    if usual_count == 0 or 2 * is_regular.sum() <= len(counts):
        return None
    regular_sizes = sizes[is_regular]
    if regular_sizes.max() > regular_sizes.min() * 31 / 28 * (1 + TOLERANCE):
        return None
    step = _months_text(usual_count)
    gaps = np.flatnonzero(~is_regular)
    if not len(gaps):
        return step
    return f"{step} and a gap after {_value_text(values[gaps[0]])}"


def _months_text(months: int) -> str:
    """Return a number of calendar months as text, in years if they are whole.

    >>> _months_text(1), _months_text(24)
    ('a calendar month', '2 calendar years')
    """
    is_years = months % 12 == 0
    unit = "year" if is_years else "month"
    number = months // 12 if is_years else months
    return f"a calendar {unit}" if number == 1 else f"{number} calendar {unit}s"


def _step_text(step: float, units: str | None, seconds: float | None) -> str:
    """Return a step with its unit.

    >>> _step_text(3.0, "km", None), _step_text(86400e6, None, 1e-6)
    ('3 km', '1 day')
    """
    if seconds is None:
        return f"{step:g} {units}" if units else f"{step:g}"
    duration = step * seconds
    for unit, size in _DURATIONS.items():
        if duration >= size:
            number = f"{duration / size:.6g}"
            plural = "s" if len(unit) > 2 and number != "1" else ""
            return f"{number} {unit}{plural}"
    return f"{duration * 1e9:g} ns"


def _range_text(
    low: float,
    high: float,
    units: str | None,
    seconds: float | None,
) -> str:
    """Return two steps with their unit.

    >>> _range_text(28.0, 31.0, None, 86400.0), _range_text(1.0, 25.0, None, 3600.0)
    ('28 to 31 days', '1 hour to 1.04167 days')
    """
    first = _step_text(low, units, seconds)
    last = _step_text(high, units, seconds)
    number, _, unit = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


def _value_text(value: Any) -> str:
    """Return a value of a coordinate as text; times without trailing zeros.

    >>> _value_text(np.datetime64("2026-01-31", "ns")), _value_text(np.float64(2.5))
    ('2026-01-31', '2.5')
    """
    if not isinstance(value, np.datetime64):
        return str(value)
    return str(np.datetime_as_string(value, unit="auto"))
