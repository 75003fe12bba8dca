"""Widths, values and samples of padded arrays."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, cast

import dask.array as da
import numpy as np

from dask_bigfft.errors import ArgumentTypeError, parse_as, parse_count, raise_invalid
from dask_bigfft.signal.arguments import without_empty

#: Modes of padding.
Mode = Literal["constant", "edge", "linear_ramp", "reflect", "symmetric", "wrap"]


def _width_by_dim(width: Any, dims: Sequence[Hashable]) -> dict[Hashable, Any]:
    """Return the width of each dimension: its own one, or that of all.

    >>> _width_by_dim((1, 2), ["y", "x"])
    {'y': (1, 2), 'x': (1, 2)}
    >>> _width_by_dim([(1, 2), 3], ["y", "x"])
    {'y': (1, 2), 'x': 3}
    """
    if isinstance(width, Mapping):
        return dict(width)
    if isinstance(width, np.ndarray):
        width = width.tolist()
    if isinstance(width, Sequence) and len(width) == len(dims):
        has_pairs = any(map(np.iterable, width))
        if has_pairs:
            return dict(zip(dims, width, strict=True))
    return dict.fromkeys(dims, width)


def parse_width(width: Any, dims: Sequence[Hashable]) -> dict[Hashable, tuple[int, int]]:
    """Return the samples before and after each dimension."""
    allowed = f"a number of samples, a pair of them, or one of these for each of {dims}"
    by_dim = _width_by_dim(width, dims)
    if set(by_dim) != set(dims):
        raise_invalid("width", width, allowed)
    widths = {}
    for dim, own_width in by_dim.items():
        pair = [*own_width] if np.iterable(own_width) else [own_width, own_width]
        if len(pair) != 2:
            raise_invalid("width", width, allowed)
        before = parse_count("width", pair[0], 0, 2**62)
        after = parse_count("width", pair[1], 0, 2**62)
        widths[dim] = (before, after)
    return widths


def parse_constant(constant_values: Any, dtype: np.dtype[Any]) -> Any:
    """Return the value of padded samples; refuse one that an array of numbers cannot hold."""
    if dtype.kind not in "biufc":
        return constant_values
    allowed = f"a number that an array of dtype {dtype} can hold"
    values = parse_as(np.asarray, "constant_values", constant_values, allowed)
    if values.dtype.kind not in "biufc":
        raise_invalid("constant_values", constant_values, allowed, kind=ArgumentTypeError)
    if values.dtype.kind == "c" and dtype.kind != "c":
        raise_invalid("constant_values", constant_values, allowed)
    if dtype.kind in "biu":
        with np.errstate(invalid="ignore"):
            in_dtype = values.astype(dtype)
        if not np.array_equal(in_dtype, values):
            raise_invalid("constant_values", constant_values, allowed)
    return constant_values


def pad_lazy_array(
    array: da.Array,
    widths: Sequence[tuple[int, int]],
    mode: Mode,
    **keywords: Any,
) -> da.Array:
    """Return what `numpy.pad` returns for a lazy array.

    Parameters
    ----------
    array : dask.array.Array
        The array. Empty chunks are dropped, because `dask.array.pad` fails for some of them.
    widths : sequence of (int, int)
        Samples before and after, for each axis. In periodic modes they may be more than the axis
        has, for which `dask.array.pad` fails.
    mode, **keywords
        Mode and other keywords of `numpy.pad`.
    """
    array = without_empty(array)
    ends = {"wrap": 0, "symmetric": 0, "reflect": 1}  # samples that are not mirrored
    wide_axes = []
    narrow_widths = list(widths)
    for axis, n in enumerate(array.shape):
        if mode in ends and max(widths[axis]) > n - ends[mode]:
            wide_axes.append(axis)
            narrow_widths[axis] = (0, 0)
    padded: Any = da.pad(
        array,
        narrow_widths,
        mode=mode,
        **keywords,
    )
    for axis in wide_axes:
        before, after = widths[axis]
        padded = _repeated(
            padded,
            axis,
            before,
            after,
            mode,
        )
    return cast("da.Array", padded)


def _repeated(
    array: da.Array,
    axis: int,
    before: int,
    after: int,
    mode: Mode,
) -> da.Array:
    """Return a lazy array that goes on periodically before and after the samples of an axis.

    A period is the array for "wrap"; else it is the array and its mirror image, which for "reflect"
    lacks both ends.
    """
    ahead = (slice(None),) * axis
    period: Any = array
    n = array.shape[axis]
    if mode != "wrap" and n > 1:
        mirrored: Any = da.flip(array, axis)
        if mode == "reflect":
            mirrored = mirrored[(*ahead, slice(1, -1))]
        period = da.concatenate([array, mirrored], axis)
    length = period.shape[axis]
    first = -before % length
    end = first + before + n + after
    periods = da.concatenate([period] * -(-end // length), axis)
    return cast("da.Array", periods[(*ahead, slice(first, end))])
