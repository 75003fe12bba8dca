"""Positions of a dimension's samples, and their record in the attributes of its frequencies."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.xarray.steps import PIECE, TOLERANCE, even_step
from dask_bigfft.xarray.units import unit_symbol

PREFIX = "freq_"

#: Attribute of a coordinate: samples that were added before and after it.
PAD_WIDTH = "pad_width"

#: Units of time in xarray, coarsest first, in seconds.
SECONDS = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
}

#: Fields of `Samples` that attributes may have.
RECORDED = (
    "first",
    "rate",
    "last",
    "units",
    "dtype",
    "time_unit",
    "calendar",
    "band_start",
    "band_stop",
)

#: Unit of times of cftime as numbers.
SINCE = "microseconds since 1970-01-01"

#: Largest integer that every file format stores as an attribute: NetCDF 3 has 32 bits.
MOST_IN_FILES = 2**31 - 1


@dataclass(frozen=True)
class Samples:
    """Positions of the samples of a dimension, stored with its frequency coordinate.

    ``first`` and ``step`` are in the coordinate's unit, or in ``time_unit`` for times. Sample n is
    at first + n * step. If there is a ``rate``, the number of samples per unit, it is at
    (round(first * rate) + n) / rate, which differs in the last bit. The last sample is at ``last``
    if there is one, as `numpy.linspace` ends at its argument. ``dtype`` is that of the
    coordinate, None if the dimension has no coordinate. Times of cftime are stored as distances
    from 1970 in their ``calendar``. A band of the frequencies has the places ``band_start`` to
    ``band_stop`` - 1 in ascending order.
    """

    dim: Hashable
    length: int
    first: float | int = 0
    step: float = 1.0
    rate: float | None = None
    last: float | None = None
    units: str | None = None
    dtype: str | None = None
    time_unit: str = "ns"
    calendar: str | None = None
    band_start: int | None = None
    band_stop: int | None = None

    @property
    def band(self) -> slice | None:
        """Places of the frequencies that are stored, in ascending order; None for all."""
        if self.band_start is None:
            return None
        return slice(self.band_start, self.band_stop)

    def spectrum_length(self, size: int) -> int:
        """Return the length of a spectrum of which an array has `size` frequencies."""
        return size if self.band is None else self.length

    @property
    def is_time(self) -> bool:
        """True if the coordinate is a time."""
        return self.dtype is not None and np.dtype(self.dtype).kind in "mM"

    @property
    def spacing(self) -> float:
        """Distance of two samples, in seconds for times."""
        return self.step * SECONDS[self.time_unit] if self.is_time else self.step

    @property
    def start(self) -> float:
        """Position of the first sample, in seconds for times."""
        return self.first * SECONDS[self.time_unit] if self.is_time else self.first

    @property
    def frequency_units(self) -> str | None:
        """Unit of the frequencies, None if it is unknown."""
        if self.dtype is None:
            return "cycles/sample"
        if self.is_time:
            return "Hz"
        if self.units is None:
            return None
        if unit_symbol(self.units) == "s":
            return "Hz"
        return f"1/{self.units}" if self.units.isalnum() else f"1/({self.units})"

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the frequency coordinate: strings and numbers, which files can store."""
        attrs: dict[str, Any] = {"units": self.frequency_units}
        for name, value in asdict(self).items():
            attrs[f"direct_{name}"] = value
        attrs["direct_first"] = self._first_for_files()
        if not self.is_time:
            del attrs["direct_time_unit"]
        return {key: value for key, value in attrs.items() if value is not None}

    def _first_for_files(self) -> float | int | str:
        """Return the first position: dates and integers of more than 32 bits as text."""
        if self._is_date:
            return str(np.array(self.first).astype(f"M8[{self.time_unit}]"))
        is_long = isinstance(self.first, int) and abs(self.first) > MOST_IN_FILES
        return str(self.first) if is_long else self.first

    @property
    def _is_date(self) -> bool:
        """True if the coordinate has dates of NumPy."""
        return self.dtype is not None and np.dtype(self.dtype).kind == "M"

    def with_first_of(self, text: str) -> "Samples":
        """Return the samples with the first position that a frequency coordinate has as text."""
        if self._is_date:
            date = np.array(text).astype(f"M8[{self.time_unit}]")
            return replace(self, first=int(date.astype(np.int64)))
        return replace(self, first=int(text))

    def with_length(self, length: int) -> "Samples":
        """Return another number of samples with the same step."""
        if length == self.length:
            return self
        return replace(self, length=length, last=None)

    def resampled(self, length: int | None) -> "Samples":
        """Return `length` samples in the same interval, unchanged if `length` is None."""
        if length is None or length == self.length:
            return self
        step = self.step * self.length / length
        if self.is_time:
            return replace(self, length=length, step=step)._in_whole_steps()
        has_integers = self.dtype is not None and np.dtype(self.dtype).kind in "iu"
        dtype = "float64" if has_integers and not step.is_integer() else self.dtype
        return replace(
            self,
            length=length,
            step=step,
            rate=None,
            last=None,
            dtype=dtype,
        )

    def _in_whole_steps(self) -> "Samples":
        """Return the times in the coarsest unit with whole steps, else in the finest that fits."""
        units = list(SECONDS)
        samples = self
        for unit in units[units.index(self.time_unit) + 1 :]:
            if samples.step.is_integer():
                break
            first = int(samples.first) * 1000
            step = samples.step * 1000
            last = first + step * self.length
            if max(abs(first), abs(last)) >= 2**63:
                break
            dtype = f"{np.dtype(self.dtype).kind}8[{unit}]"
            samples = replace(
                samples,
                first=first,
                step=step,
                time_unit=unit,
                dtype=dtype,
            )
        return samples

    def coordinate(
        self,
        count: int,
        attrs: Mapping[Any, Any] | None = None,
    ) -> xr.Variable | None:
        """Return the positions of the first `count` samples, None without a coordinate.

        `count` is at most the number of samples, `length`. `attrs` are attributes of the coordinate
        beside the unit.
        """
        if self.dtype is None:
            return None
        dtype = np.dtype(object if self.calendar is not None else self.dtype)
        positions = np.empty(count, dtype)
        for start in range(0, count, PIECE):
            stop = min(start + PIECE, count)
            positions[start:stop] = self.positions(start, stop)
        all_attrs = dict(attrs or {})
        if self.units is not None:
            all_attrs["units"] = self.units
        return xr.Variable((self.dim,), positions, all_attrs)

    def positions(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the positions of the samples `start` to `stop` - 1, as the coordinate has them."""
        dtype = np.dtype(self.dtype)
        numbers = np.arange(start, stop)
        offsets = numbers * self.step
        positions: Any
        if self.is_time:
            whole_offsets = np.rint(offsets).astype(np.int64)
            in_units = whole_offsets + int(self.first)
            positions = in_units.astype(f"{dtype.kind}8[{self.time_unit}]")
        elif self.rate is not None:
            positions = (round(self.first * self.rate) + numbers) / self.rate
        else:
            positions = self.first + offsets
        if self.last is not None and stop == self.length:
            positions[-1] = self.last
        if self.calendar is not None:
            microseconds = positions.astype("m8[us]").astype(np.int64)
            dates = import_module("cftime").num2date(microseconds, SINCE, self.calendar)
            return np.asarray(dates)
        if dtype.kind in "iu":
            positions = np.rint(positions)
        return np.asarray(positions.astype(dtype))


def samples_of(array: xr.DataArray, dim: Hashable) -> Samples:
    """Return the positions of a dimension's samples, and refuse uneven ones."""
    length = array.sizes[dim]
    if dim not in array.coords:
        return Samples(dim, length)
    coordinate = array.coords[dim]
    values = coordinate.values
    calendar = getattr(next(iter(values), None), "calendar", None)
    dtype = values.dtype if calendar is None else np.dtype("m8[us]")
    if dtype.kind not in "iufmM":
        need = f"numbers or times, or none: drop_vars({dim!r})"
        raise_invalid(
            f"coordinate {dim}",
            f"of dtype {dtype}",
            need,
            kind=ArgumentTypeError,
        )
    time_unit = "ns"
    if dtype.kind in "mM":  # in their own unit: years before 1678 are not in nanoseconds
        unit, multiple = np.datetime_data(dtype)
        time_unit = unit if unit in SECONDS and multiple == 1 else "ns"
    as_numbers = partial(_as_numbers, time_unit=time_unit, calendar=calendar)
    samples = Samples(
        dim,
        length,
        first=as_numbers(values[:1]).item() if length else 0,
        units=coordinate.attrs.get("units"),
        dtype=str(dtype),
        time_unit=time_unit,
        calendar=calendar,
    )
    if length < 2:
        return samples
    seconds = SECONDS[time_unit] if samples.is_time else None
    with_mean_step = replace(samples, step=even_step(coordinate, as_numbers, seconds))
    return _with_exact_step(with_mean_step, values) if dtype.kind == "f" else with_mean_step


def _with_exact_step(samples: Samples, values: npt.NDArray[Any]) -> Samples:
    """Return samples whose step or rate gives each bit of a coordinate, or else the mean step.

    So an inverse transform returns the coordinate of its source, with which xarray aligns it.

    >>> values = np.arange(5) / 10
    >>> _with_exact_step(Samples("x", 5, 0.0, 0.1, dtype="float64"), values).rate
    10.0
    """
    for candidate in _with_similar_steps(samples, values):
        if _gives(candidate, values):
            return candidate
    return samples


def _with_similar_steps(samples: Samples, values: npt.NDArray[Any]) -> Iterator[Samples]:
    """Yield samples with steps that a coordinate of floating-point numbers may be made of.

    Decimal steps come first, by their number of digits, then the steps of `numpy.arange` and
    `numpy.linspace`, then decimal numbers of samples per unit. The first position of numbers of 32
    bits may be a decimal number, too.
    """
    decimal_first = replace(samples, first=float(str(values[0])))
    for digits in range(1, 16):
        step = float(f"{samples.step:.{digits}g}")
        yield replace(samples, step=step)
        yield replace(decimal_first, step=step)
    yield replace(samples, step=float(values[1] - values[0]))
    step = float(values[-1] - values[0]) / (len(values) - 1)
    yield replace(samples, step=step)
    yield replace(samples, step=step, last=float(values[-1]))
    for digits in range(1, 16):
        rate = float(f"{1 / samples.step:.{digits}g}")
        yield replace(samples, step=1 / rate, rate=rate)


def _gives(samples: Samples, values: npt.NDArray[Any]) -> bool:
    """Return True if the positions of samples are the values of their coordinate."""
    for start in range(0, len(values), PIECE):
        stop = min(start + PIECE, len(values))
        if not np.array_equal(samples.positions(start, stop), values[start:stop]):
            return False
    return True


def attrs_of_samples(array: xr.DataArray, dim: Hashable) -> dict[Any, Any]:
    """Return the attributes of a dimension's coordinate that other samples of it have, too.

    These are all but the number of samples that `pad` has added.
    """
    if dim not in array.coords:
        return {}
    attrs = dict(array.coords[dim].attrs)
    attrs.pop(PAD_WIDTH, None)
    return attrs


def _as_numbers(
    values: npt.NDArray[Any],
    time_unit: str,
    calendar: str | None,
) -> npt.NDArray[Any]:
    """Return values of a coordinate as numbers: times in a unit, those of cftime since 1970."""
    if calendar is not None:
        since_1970 = import_module("cftime").date2num(values, SINCE, calendar)
        return np.asarray(since_1970).astype(np.int64)
    if values.dtype.kind in "mM":
        return values.astype(f"{values.dtype.kind}8[{time_unit}]").astype(np.int64)
    return values


def remembered(array: xr.DataArray, dim: Hashable, half: bool) -> Samples:
    """Return the samples of the dimension that a frequency coordinate came from.

    They are in the attributes of the coordinate. What these lack is guessed: the name from that of
    `dim`, the length from the number of frequencies, which is half of a spectrum if `half` is true,
    and the step from the spacing of the frequencies.
    """
    attrs = array[dim].attrs
    size = array.sizes[dim]
    name = str(dim)
    default_name = name[len(PREFIX) :] if name.startswith(PREFIX) else f"{name}_"
    direct = attrs.get("direct_dim", default_name)
    length = int(attrs.get("direct_length", 2 * (size - 1) if half else size))
    if "direct_step" in attrs:
        fields = {}
        for field in RECORDED:
            if f"direct_{field}" in attrs:
                fields[field] = attrs[f"direct_{field}"]
        first = fields.pop("first", 0)
        samples = Samples(
            direct,
            length,
            step=float(attrs["direct_step"]),
            **fields,
        )
        if isinstance(first, str):
            return samples.with_first_of(first)
        return replace(samples, first=first)
    if dim not in array.coords:
        return Samples(direct, length)
    frequencies = array.coords[dim].values
    spacing = float(np.abs(np.diff(frequencies)).min()) if size > 1 else 1.0
    return Samples(
        direct,
        length,
        step=1 / (spacing * max(1, length)),
        dtype="float64",
    )


def refuse_parts(
    array: xr.DataArray,
    dim: Hashable,
    before: Samples,
    half: bool,
    waves: Any = None,
) -> None:
    """Refuse a spectrum in natural order that has lost frequencies since it was made.

    The inverse transform would take the remaining frequencies for others. Half a spectrum may lack
    its highest frequencies, which count as zeros. A whole one may have frequency 0 in the middle.

    Parameters
    ----------
    array : xarray.DataArray
        The spectrum.
    dim : hashable
        One of its dimensions.
    before : Samples
        The samples that were transformed along it.
    half : bool
        True if only non-negative frequencies are stored.
    waves : ndarray, optional
        All frequencies of a cosine or sine transform.
    """
    if "direct_step" not in array[dim].attrs:
        return  # the original frequencies are not known
    present = array.coords[dim].values
    n = before.length
    distance = 1 / (n * abs(before.spacing))
    if waves is not None:
        complete = [waves]
    elif before.band is not None:
        ascending = np.arange(n // 2 + 1) if half else np.arange(n) - n // 2
        complete = [ascending[before.band] / (n * before.spacing)]
    elif half:
        present = np.abs(present[: n // 2 + 1])
        complete = [np.arange(len(present)) * distance]
    else:
        natural = np.fft.fftfreq(n, before.spacing)
        complete = [natural, np.fft.fftshift(natural)]
    same_length = [values for values in complete if len(values) == len(present)]
    tolerance = TOLERANCE * distance
    if not any(np.all(np.abs(present - values) < tolerance) for values in same_length):
        need = f"all frequencies as the transform of {n} samples has put them (set to 0 what is "
        need += f"not wanted), or no coordinate: drop_vars({dim!r})"
        raise_invalid(f"coordinate {dim}", f"of {array.sizes[dim]} frequencies", need)


def cosine_frequencies(samples: Samples, name: str, kind: int) -> npt.NDArray[np.float64]:
    """Return the frequencies of the waves of a cosine or sine transform of a type.

    Type 1 has half a period between the first and the last sample of a cosine, or between the
    zeros beside them of a sine. The others have it in as many steps as there are samples.

    >>> cosine_frequencies(Samples("x", 4), "dct", 2) * 8
    array([0., 1., 2., 3.])
    """
    n = samples.length
    is_sine = "s" in name
    steps = n
    if kind == 1:
        steps = n + 1 if is_sine else n - 1
    first = 0.5 if kind > 2 else float(is_sine)
    return np.asarray((first + np.arange(n)) / (2 * steps * samples.spacing))
