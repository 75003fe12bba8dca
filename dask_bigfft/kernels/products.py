"""Products of a spectrum with values of a transfer function, which are checked on the way.

One compiled pass casts real values, tests whether they are finite, and multiplies, without the GIL.
NumPy takes a pass for each of these, and needs the GIL between them. It has as fast products of
complex values. Until the loop is compiled, or without numba, it does all, with the same bits.

The product replaces the spectrum: a loop with a second array for it is not vectorised where both
are the same memory.

The sign of the frequency N/2 of an even length N is not determined. A value there may be the mean
of those for both signs, of which the second one comes last along the axis.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.kernels.compiled import compiled
from dask_bigfft.kernels.copies import may_compile, pays
from dask_bigfft.kernels.multi_index import advance

Slices = tuple[slice, ...]


def multiply_checked(
    values: Array,
    spectrum: Array,
    part: Slices,
    middles: Mapping[int, int],
    scale: float = 1.0,
) -> bool:
    """Multiply a part of a spectrum by values in place, and return whether all of them are finite.

    Parameters
    ----------
    values : ndarray
        Real or complex. They broadcast against the part.
    spectrum : ndarray
        The spectrum.
    part : tuple of slice
        The part that is multiplied.
    middles : mapping of int to int
        Places in the part, along some axes, whose value is the mean of the one there and of the
        last one. Along these axes there is one value more than the part has.
    scale : float
        Number by which the product is multiplied.
    """
    if values.dtype.char not in "fdgFDG":
        values = values.astype(np.float64)
    factors = spectrum[part]
    is_compilable = spectrum.dtype.char in "FD" and values.dtype.char in "fd"
    if not is_compilable or not spectrum.flags.c_contiguous:
        return _multiply_by_numpy(values, factors, middles, scale)
    if pays((spectrum.dtype, spectrum.dtype), 1, factors.nbytes):
        has_wrong = np.zeros(1, np.int64)
        contiguous_values = np.ascontiguousarray(values)
        start_nbytes = factors.ctypes.data - spectrum.ctypes.data
        arguments = (
            contiguous_values.reshape(-1),
            spectrum.reshape(-1).view(spectrum.real.dtype),
            start_nbytes // spectrum.real.itemsize,
            _axes_table(contiguous_values, factors, middles),
            np.zeros(factors.ndim - 1, np.int64),
            np.empty(1 << factors.ndim, np.int64),
            np.empty(1 << factors.ndim, np.float64),
            float(scale),
            has_wrong,
        )
        if _multiply_rows.call(arguments, may_compile()):
            return not has_wrong[0]
    return _multiply_by_numpy(values, factors, middles, scale)


# --- the compiled loop --------------------------------------------------------------------------


def _axes_table(values: Array, factors: Array, middles: Mapping[int, int]) -> Array:
    """Return a row for each axis, which `_multiply_rows` reads.

    It has the number of places, the steps in the values and in the real numbers of the spectrum,
    the place whose value is a mean (-1: none), and the step from there to the other value of it.
    """
    rows: list[tuple[int, ...]] = []
    for axis, count in enumerate(factors.shape):
        step = 0
        if values.shape[axis] > 1:
            step = values.strides[axis] // values.itemsize
        middle = middles.get(axis, -1) if step else -1
        spectrum_step = factors.strides[axis] // factors.real.itemsize
        rows.append((count, step, spectrum_step, middle, (count - middle) * step))
    return np.array(rows, np.int64)


@compiled
def _multiply_row(  # type: ignore[no-untyped-def]
    values,
    spectrum,
    first_value,
    first,
    value_step,
    step,
    count,
    scale,
):
    """Multiply some places of a row; return 1 if a value is not finite, else 0."""
    real = spectrum.dtype.type
    v = np.uintp(first_value)
    s = np.uintp(first)
    one = np.uintp(1)
    two = np.uintp(2)
    wrong = 0
    if value_step == 1 and step == 2:
        for i in range(count):
            place = s + two * np.uintp(i)
            value = values[v + np.uintp(i)]
            wrong |= int(value - value != 0)
            factor = real(value * scale)
            spectrum[place] *= factor
            spectrum[place + one] *= factor
    else:
        for i in range(count):
            place = s + np.uintp(i) * np.uintp(step)
            value = values[v + np.uintp(i) * np.uintp(value_step)]
            wrong |= int(value - value != 0)
            factor = real(value * scale)
            spectrum[place] *= factor
            spectrum[place + one] *= factor
    return wrong


@compiled
def _multiply_by_mean(  # type: ignore[no-untyped-def]
    values,
    spectrum,
    place,
    offsets,
    count,
    means,
    scale,
):
    """Multiply one place by the mean of `count` values, a power of 2; return as `_multiply_row`.

    The values are at `offsets`. Those of two signs of an axis are half of them apart, for the last
    axis first.
    """
    for i in range(count):
        means[i] = values[offsets[i]]
    while count > 1:
        count //= 2
        for i in range(count):
            means[i] = means[i] / 2 + means[i + count] / 2  # their sum may overflow
    value = means[0]
    factor = spectrum.dtype.type(value * scale)
    spectrum[place] *= factor
    spectrum[place + 1] *= factor
    return int(value - value != 0)


@compiled
def _doubled(offsets, count, step):  # type: ignore[no-untyped-def]
    """Append each of some offsets plus a step; return their number."""
    for i in range(count):
        offsets[count + i] = offsets[i] + step
    return 2 * count


@compiled
def _multiply_line(  # type: ignore[no-untyped-def]
    values,
    spectrum,
    first,
    axis,
    offsets,
    mean_count,
    means,
    scale,
):
    """Multiply a line along the last axis; return 1 if a value is not finite, else 0.

    `axis` is the last row of `_axes_table`. Each factor is the mean of `mean_count` values, whose
    first ones are at `offsets`.
    """
    count, value_step, step, middle, opposite = axis
    wrong = 0
    place = 0
    while place < count:
        if mean_count == 1 and place != middle:
            end = middle if place < middle else count
            wrong |= _multiply_row(
                values,
                spectrum,
                offsets[0],
                first + place * step,
                value_step,
                step,
                end - place,
                scale,
            )
        else:
            end = place + 1
            own_count = mean_count
            if place == middle:
                own_count = _doubled(offsets, mean_count, opposite)
            wrong |= _multiply_by_mean(
                values,
                spectrum,
                first + place * step,
                offsets,
                own_count,
                means,
                scale,
            )
        for i in range(mean_count):
            offsets[i] += (end - place) * value_step
        place = end
    return wrong


@compiled
def _multiply_rows(  # type: ignore[no-untyped-def]
    values,
    spectrum,
    first,
    axes,
    index,
    offsets,
    means,
    scale,
    has_wrong,
):
    """Multiply all lines of a part; `has_wrong` becomes 1 if a value is not finite.

    Values and spectrum are lines of real numbers, and the part of the spectrum begins at `first`.
    For `axes` see `_axes_table`. `index` has zeros for the place along each axis but the last,
    `offsets` and `means` memory for the values of a mean.
    """
    last = len(axes) - 1
    outer = axes[:last]
    line_count = 1
    for axis in range(last):
        line_count *= axes[axis, 0]
    value_place = 0
    place = first
    wrong = 0
    for _ in range(line_count):
        offsets[0] = value_place
        mean_count = 1
        for axis in range(last):
            if index[axis] == axes[axis, 3]:
                mean_count = _doubled(offsets, mean_count, axes[axis, 4])
        wrong |= _multiply_line(
            values,
            spectrum,
            place,
            axes[last],
            offsets,
            mean_count,
            means,
            scale,
        )
        value_change, change = advance(index, outer[:, 0], outer[:, 1], outer[:, 2])
        value_place += value_change
        place += change
    if wrong:
        has_wrong[0] = 1


# --- by NumPy -----------------------------------------------------------------------------------


def _multiply_by_numpy(
    values: Array,
    factors: Array,
    middles: Mapping[int, int],
    scale: float,
) -> bool:
    """Multiply a part like `_multiply_rows`, with the same bits for real values."""
    with np.errstate(all="ignore"):  # values that are not finite, or not in single precision
        # Most often the sum tells, in half of the time.
        is_finite = bool(np.isfinite(values.sum())) or bool(np.isfinite(values).all())
        own_middles = [axis for axis in sorted(middles) if values.shape[axis] > 1]
        if own_middles:
            values = values.astype(np.result_type(values, np.float64))
        for axis in reversed(own_middles):
            values = _mean_over_signs(values, axis, middles[axis])
        if scale != 1:
            values = values * np.float64(scale)
        values = in_precision(values, factors.dtype)
        if values.dtype.kind == "c":
            np.multiply(factors, values, out=factors)
            return is_finite
        np.multiply(factors.real, values, out=factors.real)
        np.multiply(factors.imag, values, out=factors.imag)
    return is_finite


def _mean_over_signs(values: Array, axis: int, place: int) -> Array:
    """Replace a value along an axis by its mean with the last one, and return all but the last one.

    >>> _mean_over_signs(np.array([1.0, 2.0, 3.0, 6.0]), 0, 1)
    array([1., 4., 3.])
    """
    outer = (slice(None),) * axis
    middle = (*outer, slice(place, place + 1))
    # Halves are added, because the sum of two large values may overflow.
    values[middle] /= 2
    values[middle] += values[(*outer, slice(-1, None))] / 2
    return values[(*outer, slice(0, -1))]


def in_precision(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return real or complex values in the precision of a dtype.

    >>> in_precision(np.arange(2.0), np.dtype("c8")).dtype
    dtype('float32')
    """
    if values.dtype.kind != "c":
        dtype = np.empty(0, dtype).real.dtype
    return values.astype(dtype, copy=False)
