"""Arguments of convolutions: axes, window of the full convolution, and transform length.

The full convolution of n1 and n2 samples has n1 + n2 - 1. A mode selects a *window* of it::

    mode     start          count
    full     0              n1 + n2 - 1
    same     (n2 - 1)//2    n1
    valid    least - 1      most - least + 1

A cyclic convolution of length N gives the correct window if samples that wrap around stay outside
it. The window therefore also determines the padding of both inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, SupportsIndex, TypedDict, cast, get_args

import dask.array as da
import numpy as np
import scipy.fft

from dask_bigfft import config
from dask_bigfft.api.arguments import (
    Options,
    array_like,
    parse_array,
    parse_chunks,
    parse_limit,
)
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, parse_choice, raise_invalid
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.request import DeviceChoice
from dask_bigfft.transforms.factors import smooth_length
from dask_bigfft.transforms.spec import parse_axes, parse_several

Mode = Literal["full", "same", "valid"]
Axes = SupportsIndex | Sequence[SupportsIndex] | None


class ConvolutionOptions(TypedDict, total=False):
    """Keywords of functions whose argument `kernel` is an array and no FFT library."""

    chunks: Any
    memory_limit: int | str | None
    device: DeviceChoice | None
    device_memory_limit: int | str | None
    verify: Literal["none", "energy", "checksum"] | None
    planner: Literal["estimate", "measure"] | None


class SignalOptions(Options, total=False):
    """Keywords of all functions in `signal`; None stands for the setting."""

    device: DeviceChoice | None
    device_memory_limit: int | str | None
    verify: Literal["none", "energy", "checksum"] | None
    planner: Literal["estimate", "measure"] | None


def parse_signal_options(options: Mapping[str, Any]) -> None:
    """Raise an error for unknown keywords and for values that no transform takes.

    Transforms check `chunks`, and whether this machine can do what the others ask for.
    """
    refuse_unknown(options, SignalOptions.__annotations__)
    for name in ("memory_limit", "device_memory_limit"):
        parse_limit(name, options.get(name))
    for name in ("kernel", "device", "verify", "planner"):
        config.argument(name, options.get(name))


def unsupported_options(
    options: Mapping[str, Any],
    array: da.Array,
    forecast: bool,
) -> dict[str, str]:
    """Return the options that SciPy's functions cannot follow block by block, and allowed values.

    Parameters
    ----------
    options : mapping
        Keywords of `SignalOptions`.
    array : dask.array.Array
        Its blocks are in host memory or on a GPU, where the function then runs.
    forecast : bool
        True if the function has a forecast of its memory, so that it can keep to a limit.
    """
    supported: dict[str, tuple[str, ...]] = {
        "kernel": ("auto", "scipy"),
        "device": ("auto", "gpu" if is_on_gpu(array._meta) else "cpu"),
        "device_memory_limit": (),
        "verify": ("none",),
        "planner": ("estimate",),
    }
    if not forecast:
        supported["memory_limit"] = ()
    return {
        name: " or ".join(map(repr, (None, *values)))
        for name, values in supported.items()
        if options.get(name) is not None and options.get(name) not in values
    }


def refuse_unsupported(
    options: Mapping[str, Any],
    array: da.Array,
    function: str,
    forecast: bool = False,
) -> None:
    """Raise an error that names an option that a function cannot follow block by block."""
    for name, allowed in unsupported_options(options, array, forecast).items():
        raise_invalid(name, options[name], f"{allowed} for {function}, which works block by block")


@dataclass(frozen=True)
class Window:
    """Requested part of the full convolution along one axis.

    Parameters
    ----------
    axis : int
        Axis of the arrays.
    first, second : int
        Lengths n1 and n2 of the inputs.
    start, count : int
        First sample and number of samples of the window.
    is_cyclic : bool
        Whether the first input goes on periodically, so that the window is one period.
    """

    axis: int
    first: int
    second: int
    start: int
    count: int
    is_cyclic: bool = False

    @property
    def least(self) -> int:
        """Length of the shortest cyclic convolution that gives a correct window."""
        full = self.first + self.second - 1
        return max(
            self.start + self.count,
            full - self.start,
            self.first,
            self.second,
        )


def cyclic_window(axis: int, first: int, second: int) -> Window:
    """Return the window of a period, as long as the first input, from the middle of the second one.

    >>> cyclic_window(0, 100, 9).start
    4
    """
    return Window(
        axis,
        first,
        second,
        start=second // 2,
        count=first,
        is_cyclic=True,
    )


def window(
    axis: int,
    first: int,
    second: int,
    mode: Mode,
) -> Window:
    """Return the window of a mode along one axis.

    >>> same = window(0, 100, 9, "same")
    >>> same.start, same.count, same.least
    (4, 100, 104)
    """
    if mode == "full":
        return Window(
            axis,
            first,
            second,
            0,
            first + second - 1,
        )
    if mode == "same":
        return Window(
            axis,
            first,
            second,
            (second - 1) // 2,
            first,
        )
    low, high = sorted((first, second))
    return Window(
        axis,
        first,
        second,
        low - 1,
        high - low + 1,
    )


def fast_length(least: int, cut: bool, real: bool) -> int:
    """Return a fast length of at least `least`, with nearly square factors if the axis is cut.

    >>> fast_length(10_001, False, True), fast_length(2**20 + 1, True, True)
    (10125, 1049760)
    """
    if cut:
        return smooth_length(least)
    return int(scipy.fft.next_fast_len(least, real))


@dataclass(frozen=True)
class Inputs:
    """Two arrays, and the requested part of their convolution.

    Parameters
    ----------
    first, second : dask.array.Array
        Arrays with the same number of axes. Lengths of axes without a window agree, or are 1.
    windows : tuple of Window
        Windows of the convolved axes.
    crop : tuple of slice
        Crop of the result along axes on which the inputs broadcast.
    kernel : ndarray or None
        The numbers of the smaller array if they are in host memory.
    """

    first: da.Array
    second: da.Array
    windows: tuple[Window, ...]
    crop: tuple[slice, ...]
    kernel: Array | None

    @property
    def axes(self) -> tuple[int, ...]:
        """The convolved axes."""
        return tuple(w.axis for w in self.windows)

    def reversed(self) -> "Inputs":
        """Return inputs whose convolution is the correlation of these."""
        return replace(self, second=_reversed(self.second, self.axes).conj())


def parse_inputs(
    in1: Any,
    in2: Any,
    mode: Any,
    axes: Axes,
    *,
    correlated: bool = False,
    strict: bool = False,
) -> Inputs:
    """Return the validated arrays and windows of a convolution.

    With `strict`, mode "valid" also compares axes of length 1, as `scipy.signal.convolve` does.
    Axes on which an input has length 1 are not convolved: the inputs are multiplied. Of these axes,
    the second input of a correlation is reversed along those where the first one has length 1.
    """
    first = without_empty(parse_array(in1, "fftn"))
    second = without_empty(parse_array(in2, "fftn"))
    mode = parse_choice("mode", mode, *get_args(Mode))
    if first.ndim != second.ndim:
        need = f"as many axes as in1: {first.ndim}"
        raise_invalid("in2", f"an array with {second.ndim} axes", need)
    named = several_axes(axes, first.ndim)
    shapes = list(zip(first.shape, second.shape, strict=True))
    _refuse_unequal_lengths(shapes, named)
    convolved = [axis for axis in named if 1 not in shapes[axis]]
    if mode == "valid":
        _refuse_mixed_lengths(first, second, named if strict else convolved)
    if correlated:
        second = _reversed_where_multiplied(second, shapes, named)
    windows = tuple(window(axis, *shapes[axis], mode) for axis in convolved)
    return Inputs(
        first,
        second,
        windows,
        crop=_crop_where_multiplied(shapes, convolved, mode),
        kernel=_in_memory(in1 if first.size < second.size else in2),
    )


def _in_memory(a: Any) -> Array | None:
    """Return the numbers of an array-like in host memory; None for arrays of other kinds."""
    numbers = array_like(a)
    return numbers if type(numbers) is np.ndarray else None


def _refuse_unequal_lengths(shapes: Sequence[tuple[int, int]], named: Sequence[int]) -> None:
    """Raise an error if inputs do not broadcast along an axis that is not to be convolved."""
    for axis, (n, m) in enumerate(shapes):
        if axis not in named and n != m and 1 not in (n, m):
            need = f"length {n} or 1, those of in1, along an axis that is not convolved"
            raise_invalid("in2", f"length {m} along axis {axis}", need)


def _refuse_mixed_lengths(first: da.Array, second: da.Array, axes: Sequence[int]) -> None:
    """Raise an error if each input is shorter than the other along some axis."""
    pairs = [(first.shape[axis], second.shape[axis]) for axis in axes]
    if not all(n >= m for n, m in pairs) and not all(n <= m for n, m in pairs):
        need = "one input at least as long as the other along every axis for mode='valid'"
        raise_invalid("in2", second.shape, f"{need}; in1 has {first.shape}")


def _crop_where_multiplied(
    shapes: Sequence[tuple[int, int]],
    convolved: Sequence[int],
    mode: str,
) -> tuple[slice, ...]:
    """Return the crop of a product of inputs, to the length of the first one for mode "same".

    Along convolved axes, windows crop.
    """
    crop = [slice(None)] * len(shapes)
    for axis, (n, m) in enumerate(shapes):
        if mode == "same" and n < m and axis not in convolved:
            start = (m - n) // 2
            crop[axis] = slice(start, start + n)
    return tuple(crop)


def _reversed_where_multiplied(
    second: da.Array,
    shapes: Sequence[tuple[int, int]],
    named: Sequence[int],
) -> da.Array:
    """Return the second input of a correlation, reversed along axes where the first has length 1.

    These axes are not convolved, so that no window reverses them.
    """
    return _reversed(second, [axis for axis in named if shapes[axis][0] == 1])


def _reversed(array: da.Array, axes: Sequence[int]) -> da.Array:
    """Return an array with some axes in reverse."""
    index = [slice(None)] * array.ndim
    for axis in axes:
        index[axis] = slice(None, None, -1)
    reversed_array: da.Array = array[tuple(index)]
    return reversed_array


def parse_pair(x: Any, y: Any) -> tuple[da.Array, da.Array]:
    """Return two arrays of numbers; refuse arrays of different shapes."""
    first = parse_array(x, "fft")
    second = parse_array(y, "fft")
    if first.shape != second.shape:
        raise_invalid("y", f"shape {second.shape}", f"the shape of x: {first.shape}")
    return first, second


def in_chunks(a: da.Array, chunks: Any) -> da.Array:
    """Return an array in the chunks that a caller asks for, unchanged for None."""
    if chunks is None:
        return a
    cuts = parse_chunks(
        chunks,
        a.chunks,
        a.shape,
        a.dtype,
    )
    return a if cuts is None else cast("da.Array", a.rechunk(cuts))


def parse_mask(mask: Any, array: da.Array) -> da.Array | None:
    """Return a mask in the chunks of an array, True where values are missing; None for None."""
    if mask is None:
        return None
    try:
        missing = mask
        if not hasattr(mask, "__dask_graph__"):  # views of an array in memory need no exchange
            values = np.asarray(mask)
            if values.shape == array.shape:
                missing = da.from_array(values, chunks=array.chunks)
        missing = da.asanyarray(missing)
    except (AttributeError, TypeError, ValueError):
        raise_invalid("mask", mask, "an array or None", kind=ArgumentTypeError)
    if missing.dtype.kind not in "biu":
        allowed = "an array of booleans, True where values are missing"
        raise_invalid("mask", f"dtype {missing.dtype}", allowed, kind=ArgumentTypeError)
    try:
        if missing.shape != array.shape:
            missing = da.broadcast_to(missing, array.shape)
    except ValueError:
        raise_invalid("mask", f"shape {missing.shape}", f"the shape of x: {array.shape}")
    return cast("da.Array", missing.astype(bool).rechunk(array.chunks))


def without_empty(a: da.Array) -> da.Array:
    """Return the array without empty chunks, for which dask's broadcasting and reversal fail."""
    chunks = tuple(tuple(filter(None, lengths)) or (0,) for lengths in a.chunks)
    rechunked: da.Array = a.rechunk(chunks)
    return rechunked


def several_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Return non-negative axes, all for None."""
    if axes is None:
        return tuple(range(ndim))
    several = parse_several("axes", axes)
    if not several:
        raise_invalid("axes", axes, "at least one axis")
    return parse_axes("axes", several, ndim)


def nonempty(
    array: da.Array,
    axes: Sequence[int],
    argument: str = "x",
) -> tuple[int, ...]:
    """Return the lengths of transformed axes; refuse 0 in an error that names the argument."""
    lengths = tuple(array.shape[axis] for axis in axes)
    if 0 in lengths:
        need = "at least one element along every axis of a transform"
        raise_invalid(argument, f"shape {array.shape}", need)
    return lengths


def with_halo(a: da.Array, depth: dict[int, Any]) -> da.Array:
    """Return an array whose blocks have samples of their neighbours, none around the array."""
    overlapping: da.Array = da.overlap.overlap(
        a,
        depth,
        boundary="none",
        allow_rechunk=False,
    )
    return overlapping


def long_enough(chunks: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return chunks after joining those that are shorter than the overlap `least`.

    >>> long_enough((4, 1, 2, 6, 2), 3)
    (4, 3, 8)
    """
    least = max(least, 1)
    joined = [0]
    for chunk in chunks:
        if joined[-1] >= least:
            joined.append(0)
        joined[-1] += int(chunk)
    if len(joined) > 1 and joined[-1] < least:
        joined[-2:] = [sum(joined[-2:])]
    return tuple(joined)
