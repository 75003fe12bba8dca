"""Bands: intervals of the frequencies of a spectrum, in ascending order.

A spectrum in natural order begins with frequency 0, and its negative frequencies come last. So a
band is a cyclic window of it, which begins with the lowest frequency of the band::

    natural order     0  1  2  3 -4 -3 -2 -1
    ascending order  -4 -3 -2 -1  0  1  2  3     as fftshift returns it
    band                   -2 -1  0  1           start 6, count 4

Half a spectrum is in ascending order as it is.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, parse_as, parse_count, raise_invalid
from dask_bigfft.transforms.layout import Digit, half

#: First index of a cyclic window of an axis, and number of its values.
Window = tuple[int, int]

#: Axis, and start and count of the window along it.
AxisWindow = tuple[int, int, int]

#: Relative difference below which a limit of a band is a frequency of the spectrum.
ROUNDING = 8 * sys.float_info.epsilon


def axis_windows(windows: Mapping[int, Window]) -> tuple[AxisWindow, ...]:
    """Return axis, start and count of windows that are given by axis, in the order of the axes.

    >>> axis_windows({1: (0, 3), 0: (6, 4)})
    ((0, 6, 4), (1, 0, 3))
    """
    return tuple((axis, start, count) for axis, (start, count) in sorted(windows.items()))


def windows_by_axis(windows: Iterable[AxisWindow]) -> dict[int, Window]:
    """Return windows by axis.

    >>> windows_by_axis([(0, 6, 4), (1, 0, 3)])
    {0: (6, 4), 1: (0, 3)}
    """
    return {axis: (start, count) for axis, start, count in windows}


@dataclass(frozen=True)
class Spectrum:
    """Frequencies of a spectrum along one axis, in ascending order.

    Parameters
    ----------
    length : int
        Length N of the transform.
    is_half : bool
        Whether only the frequencies 0 to N//2 are stored.
    """

    length: int
    is_half: bool = False

    @property
    def count(self) -> int:
        """Number of frequencies."""
        return half(self.length) if self.is_half else self.length

    @property
    def lowest(self) -> int:
        """Lowest frequency in units of 1/N cycles per sample."""
        return 0 if self.is_half else -(self.length // 2)

    @property
    def highest(self) -> int:
        """Highest frequency in units of 1/N cycles per sample."""
        return self.lowest + self.count - 1

    def window(self, first: int, last: int) -> Window:
        """Return the window with the frequencies from `first` to `last`.

        >>> Spectrum(8).window(-2, 1)
        (6, 4)
        """
        return first % self.length, last - first + 1

    def frequencies(self, window: Window) -> tuple[int, int]:
        """Return the first and the last frequency of a window.

        >>> Spectrum(8).frequencies((6, 4))
        (-2, 1)
        """
        start, count = window
        first = start - self.length if start > self.highest else start
        return first, first + count - 1

    def indices(self, window: Window) -> tuple[int, int]:
        """Return the first place of a window in ascending order, and the one behind its last.

        >>> Spectrum(8).indices((6, 4))
        (2, 6)
        """
        first, last = self.frequencies(window)
        return first - self.lowest, last - self.lowest + 1

    def parse_band(self, band: Any, spacing: float = 1.0) -> Window:
        """Return the window with the frequencies of a band, its ends included.

        Parameters
        ----------
        band : (float, float)
            Lowest and highest frequency, in cycles per unit of `spacing`.
        spacing : float
            Distance of two samples. If it is negative, the frequencies descend.

        Examples
        --------
        >>> Spectrum(8).parse_band((-0.25, 0.125))
        (6, 4)
        """
        limits = _parse_pair("band", band, "a pair of frequencies (low, high)")
        places = []  # frequencies in cycles per transform
        for limit in limits:
            frequency = parse_as(float, "band", limit, "frequencies that are numbers")
            places.append(_rounded(frequency * self.length * spacing))
        if spacing < 0:
            places.reverse()
        low, high = places
        lowest = 0.0 if self.is_half else -0.5  # in cycles per sample
        if not lowest * self.length <= low <= high <= self.length / 2:
            ends = sorted((lowest / spacing, 0.5 / spacing))
            raise_invalid("band", band, f"{ends[0]:.6g} <= low <= high <= {ends[1]:.6g}")
        first = max(math.ceil(low), self.lowest)
        last = min(math.floor(high), self.highest)
        if first > last:
            step = 1 / (self.length * spacing)
            ends = sorted((self.lowest * step + 0.0, self.highest * step + 0.0))  # 0, not -0
            allowed = "a band that contains a frequency of the spectrum: multiples of "
            allowed += f"{abs(step):.6g} from {ends[0]:.6g} to {ends[1]:.6g}"
            raise_invalid("band", band, allowed)
        return self.window(first, last)

    def parse_indices(self, band_index: Any) -> Window:
        """Return the window with an interval of places in ascending order.

        >>> Spectrum(8).parse_indices((2, 6))
        (6, 4)
        """
        start, stop = _parse_pair("band_index", band_index, "a pair of integers (start, stop)")
        for place in (start, stop):
            parse_count("band_index", place, 0, self.count)
        if not start < stop:
            raise_invalid("band_index", band_index, f"0 <= start < stop <= {self.count}")
        return self.window(self.lowest + int(start), self.lowest + int(stop) - 1)


def common_window(spectrum: Spectrum, length: int) -> Window:
    """Return the window with the frequencies that a spectrum of another length has, too.

    Of two signs of half the rate of an even length it has the negative one.

    >>> common_window(Spectrum(8), 5), common_window(Spectrum(8), 4), common_window(Spectrum(5), 8)
    ((6, 5), (6, 4), (3, 5))
    """
    least = min(spectrum.length, length)
    if spectrum.is_half:
        return 0, half(least)
    return -(least // 2) % spectrum.length, least


@dataclass(frozen=True)
class AxisBand:
    """Frequencies along an axis that a product keeps. It is 0 at all others.

    Parameters
    ----------
    axis, length : int
        Axis of the array, and the length N of its transform.
    start, count : int
        Window of the frequencies in natural order.
    is_half : bool
        Whether the window is one of frequencies 0 to N//2, and their negatives are kept, too.
    length_back : int or None
        Length of the inverse transform, if it is another one. The window then has all frequencies
        that both lengths have, and nothing else is stored.
    """

    axis: int
    length: int
    start: int
    count: int
    is_half: bool = False
    length_back: int | None = None

    @property
    def folds(self) -> bool:
        """True if the inverse transform has a frequency of which both signs add up."""
        if self.length_back is None or self.length_back >= self.length:
            return False
        return self.length_back % 2 == 0

    def contains(self, index: Array) -> Array:
        """Return whether indices 0 to N - 1 of frequencies are in the band.

        >>> AxisBand(0, 8, 6, 4).contains(np.arange(8)).tolist()
        [True, True, False, False, False, False, True, True]
        """
        if self.is_half:
            index = np.minimum(index, self.length - index)
        inside: Array = (index - self.start) % self.length < self.count
        return inside


def _parse_pair(argument: str, value: Any, allowed: str) -> tuple[Any, Any]:
    """Return the two values of an argument."""
    try:
        low, high = value
    except (TypeError, ValueError):
        raise_invalid(argument, value, allowed, kind=ArgumentTypeError)
    return low, high


def _rounded(place: float) -> float:
    """Return the nearest whole number if a place differs from it only by rounding errors.

    >>> _rounded(10 * 0.3 * (1 + 2e-16)), _rounded(2.9999)
    (3.0, 2.9999)
    """
    if not math.isfinite(place):
        return place
    nearest = float(round(place))
    return nearest if abs(place - nearest) <= ROUNDING * abs(nearest) else place


def window_of_digit(window: Window, digit: Digit, length: int) -> Window:
    """Return the cyclic window of the last digit of an axis that has all values of a window.

    Parameters
    ----------
    window : (int, int)
        Start and count of the values of the axis.
    digit : Digit
        The digit of the largest stride.
    length : int
        Number of values of the axis.

    Examples
    --------
    >>> window_of_digit((13, 6), Digit(1, 4, 4, 4), 16)
    (3, 2)
    """
    start, count = window
    first = start // digit.stride
    end = start + count
    if end <= length:
        last = (end - 1) // digit.stride
    else:
        last = digit.radix + (end - length - 1) // digit.stride
    return first, min(last - first + 1, digit.size)


def with_negatives(window: Window, length: int) -> Window:
    """Return the shortest cyclic window with the values of a window and their negatives.

    It is around 0, or around half the length.

    >>> with_negatives((1, 2), 16), with_negatives((6, 3), 16), with_negatives((1, 7), 16)
    ((14, 5), (6, 5), (9, 15))
    """
    start, count = window

    def has(value: int) -> bool:
        return (value - start) % length < count

    # Distances from 0 on the circle, where a value and its negative are at equal distances.
    distances = []
    for end in (start, start + count - 1):
        distances.append(min(end % length, -end % length))
    farthest = length // 2 if has(length // 2) else max(distances)
    nearest = 0 if has(0) else min(distances)
    count_around_zero = min(2 * farthest + 1, length)
    count_around_half = length - 2 * nearest + 1 if nearest else length
    if count_around_zero > count_around_half:
        return nearest, count_around_half
    first = -farthest % length if count_around_zero < length else 0
    return first, count_around_zero
