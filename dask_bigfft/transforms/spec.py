"""`TransformSpec`: the normalised arguments of a call of the `numpy.fft` interface.

All checks of these arguments are here. An error names the argument, its value and the allowed
values. Other modules do not check again.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, SupportsIndex, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentTypeError, AxisError, parse_as, parse_type, raise_invalid
from dask_bigfft.transforms.bands import (
    AxisBand,
    AxisWindow,
    Spectrum,
    Window,
    axis_windows,
    common_window,
    windows_by_axis,
)
from dask_bigfft.transforms.factors import MAX_LENGTH, parse_factors, transposed_digits
from dask_bigfft.transforms.layout import Order, flat_digits, size_of
from dask_bigfft.transforms.rounds import Scale
from dask_bigfft.transforms.steps import OPTIONAL, CosineSum, Kind

Norm = Literal["backward", "ortho", "forward"]
R = TypeVar("R")

#: Kind, sign of the exponent, and whether the norm is that of a forward transform.
FAMILIES: dict[str, tuple[Kind, int, bool]] = {
    "fft": ("c2c", -1, True),
    "ifft": ("c2c", +1, False),
    "rfft": ("r2c", -1, True),
    "irfft": ("c2r", +1, False),
    "hfft": ("c2r", -1, True),
    "ihfft": ("r2c", +1, False),
}

#: The same by the name of a transform, whose ending says which axes: one, two or any number.
TRANSFORMS = {name + ending: FAMILIES[name] for ending in ("", "2", "n") for name in FAMILIES}

#: Transforms without public plans.
COSINES = ("dct", "idct", "dst", "idst", "dctn", "idctn", "dstn", "idstn")

_WORK = {
    "e": "F",
    "f": "F",
    "F": "F",
    "g": "G",
    "G": "G",
}


def work_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the complex dtype of a spectrum, with double precision for integers.

    >>> work_dtype("int8"), work_dtype("float16")
    (dtype('complex128'), dtype('complex64'))
    """
    return np.dtype(_WORK.get(np.dtype(dtype).char, "D"))


@dataclass(frozen=True)
class FactorSpec:
    """Lazy array of which the transfer function of an operator is made.

    Parameters
    ----------
    chunks : tuple of chunks
        Chunks of the array, which has as many axes as the spectrum.
    dtype : str
        Its dtype (as ``numpy.dtype.str``).
    role : {"values", "product", "kernel", "samples", "whole"}
        Values of the transfer function in natural order: the array has the shape of the spectrum,
        with length 1 along axes on which the function does not depend. They have to be finite, but
        not for a "product" of a spectrum that a user has written. Or samples of a small kernel, of
        whose spectrum each task computes its part. Or samples of an array that is transformed like
        the input. Or the bytes of small arrays, which each task gets as a whole.
    conjugated : bool
        Whether the spectrum of an array that is transformed is conjugated.
    """

    chunks: tuple[tuple[int, ...], ...]
    dtype: str
    role: Literal["values", "product", "kernel", "samples", "whole"] = "values"
    conjugated: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(map(sum, self.chunks))

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class TransformSpec:
    """A transform, independent of the chunks of its array.

    Parameters
    ----------
    name : str
        Name of the call, such as ``"rfftn"``.
    shape : tuple of int
        Shape of the input.
    dtype : str
        Its dtype (as ``numpy.dtype.str``).
    kind : {"c2c", "r2c", "c2r"}
        Kind of the transform of the last axis; the others are always c2c.
    sign : {-1, 1}
        Sign in the exponent.
    scale : {"none", "ortho", "full"}
        Factor 1, 1/sqrt(N) or 1/N, N the product of the lengths.
    axes, lengths : tuple of int
        Transformed axes (non-negative) and the length N of the transform along each.
    orders_in, orders_out : tuple of {"natural", "transposed"}
        Order of each transformed axis in the input and in the result.
    digits : tuple of (int, tuple of int)
        Axes whose transposed order has other digits than the canonical ones.
    windows : tuple of (int, int, int)
        Axis, start and count: the result has only `count` values along that axis, cyclically from
        `start` on.
    windows_in : tuple of (int, int, int)
        The same for the input: its other values are zeros, which are not stored.
    waves : CosineSum or None
        Sum over cosines or sines along the one axis, in place of a Fourier transform; of kind
        "c2c", with a real result.
    dims : tuple of str
        Names of the input's dimensions, for texts; empty if they are not known.
    transfer : str
        Token of the transfer function of an operator, which multiplies the spectrum before it is
        transformed back; empty for a transform. Of kind "r2c" the result is real.
    factor : FactorSpec or None
        Lazy array of which the transfer function is made, if it is made of one.
    windows_between : tuple of (int, int, int)
        Axis, start and count of the frequencies of an operator that are kept; all others count as
        zeros.
    lengths_back : tuple of (int, int)
        Axis and length of the inverse transform of an operator, where it is another one than that
        of the forward transform.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    sign: int
    scale: Scale
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    orders_in: tuple[Order, ...]
    orders_out: tuple[Order, ...]
    digits: tuple[tuple[int, tuple[int, ...]], ...] = ()
    windows: tuple[AxisWindow, ...] = ()
    windows_in: tuple[AxisWindow, ...] = field(default=(), metadata=OPTIONAL)
    waves: CosineSum | None = None
    dims: tuple[str, ...] = ()
    transfer: str = field(default="", metadata=OPTIONAL)
    factor: FactorSpec | None = field(default=None, metadata=OPTIONAL)
    windows_between: tuple[AxisWindow, ...] = field(default=(), metadata=OPTIONAL)
    lengths_back: tuple[tuple[int, int], ...] = field(default=(), metadata=OPTIONAL)

    @property
    def title(self) -> str:
        """Name, shape and dtype of the input, such as ``rfft2 of (y: 64, x: 48) float64``."""
        shape = str(self.shape)
        if self.dims:
            sizes = [f"{dim}: {size}" for dim, size in zip(self.dims, self.shape, strict=False)]
            shape = f"({', '.join(sizes)})"
        return f"{self.name} of {shape} {np.dtype(self.dtype)}"

    @cached_property
    def work_dtype(self) -> np.dtype[Any]:
        """Complex dtype of the rounds."""
        return work_dtype(self.dtype)

    @cached_property
    def real_dtype(self) -> np.dtype[Any]:
        """Real dtype of the same precision."""
        return np.empty(0, self.work_dtype).real.dtype

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """Dtype of the result of the rounds; that of the input without transformed axes."""
        if not self.axes:
            return np.dtype(self.dtype)
        if self.transfer:
            is_real = self.kind == "r2c"
        else:
            is_real = self.kind == "c2r" or self.waves is not None
        return self.real_dtype if is_real else self.work_dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array that comes in."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def out_nbytes(self) -> int:
        """Bytes of the result."""
        return math.prod(self.out_shape) * self.out_dtype.itemsize

    @property
    def real_axis(self) -> int | None:
        """Axis with half a spectrum on one side, if any."""
        return None if self.kind == "c2c" else self.axes[-1]

    @property
    def is_forward(self) -> bool:
        """True if the result is a spectrum, False if the input is one."""
        return not self.name.startswith("i")

    def length_of(self, axis: int) -> int:
        """Return the length of the transform along a transformed axis."""
        return self.lengths[self.axes.index(axis)]

    def orders_of(self, axis: int) -> tuple[Order, Order]:
        """Return the order of a transformed axis in the input, and that in the result."""
        number = self.axes.index(axis)
        return self.orders_in[number], self.orders_out[number]

    def kind_of(self, axis: int) -> Kind:
        """Return the kind of the transform along a transformed axis."""
        return self.kind if axis == self.real_axis else "c2c"

    def spectrum(self, axis: int) -> Spectrum:
        """Return the frequencies along a transformed axis of the spectrum."""
        halved_kind = "r2c" if self.is_forward else "c2r"
        is_half = self.kind == halved_kind and axis == self.real_axis
        return Spectrum(self.length_of(axis), is_half)

    @property
    def bands(self) -> dict[int, Window]:
        """Window of the spectrum that is stored along some axes."""
        if self.waves is not None or self.transfer:
            return {}
        return windows_by_axis(self.windows if self.is_forward else self.windows_in)

    @property
    def bands_between(self) -> tuple[AxisBand, ...]:
        """Frequencies that the product of an operator keeps."""
        bands: list[AxisBand] = []
        for axis, start, count in self.windows_between:
            spectrum = self.spectrum(axis)
            bands.append(
                AxisBand(
                    axis,
                    spectrum.length,
                    start,
                    count,
                    spectrum.is_half,
                )
            )
        for axis, length_back in self.lengths_back:
            spectrum = self.spectrum(axis)
            start, count = common_window(spectrum, length_back)
            bands.append(
                AxisBand(
                    axis,
                    spectrum.length,
                    start,
                    count,
                    spectrum.is_half,
                    length_back,
                )
            )
        return tuple(bands)

    def digits_of(self, axis: int) -> tuple[int, ...]:
        """Return the digits of an axis in transposed order."""
        return dict(self.digits).get(axis) or transposed_digits(self.length_of(axis))

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        out_shape = list(self.shape)
        halved_axis = self.real_axis if self.kind == "r2c" and not self.transfer else None
        for axis, length, order_in, order in zip(
            self.axes,
            self.lengths,
            self.orders_in,
            self.orders_out,
            strict=True,
        ):
            digits = None if order == "natural" else self.digits_of(axis)
            if digits is not None and order_in == "transposed":
                digits = digits[::-1]
            out_shape[axis] = _places(
                length,
                order,
                half=axis == halved_axis,
                digits=digits,
            )
        for axis, length_back in self.lengths_back:
            out_shape[axis] = length_back
        for axis, _, count in self.windows:
            out_shape[axis] = count
        return tuple(out_shape)


def rearranged_spec(name: str, shape: tuple[int, ...], dtype: str) -> TransformSpec:
    """Return the specification of values that keep their dtype, without transformed axes."""
    return TransformSpec(
        name=name,
        shape=shape,
        dtype=dtype,
        kind="c2c",
        sign=-1,
        scale="none",
        axes=(),
        lengths=(),
        orders_in=(),
        orders_out=(),
    )


def _places(
    length: int,
    order: Order,
    half: bool,
    digits: tuple[int, ...] | None,
) -> int:
    """Return the number of places of a spectrum along an axis."""
    stored_digits = flat_digits(
        0,
        length,
        order,
        real=half,
        digits=digits,
    )
    return size_of(stored_digits)


def parse_dtype(dtype: np.dtype[Any], kind: Kind) -> str:
    """Return a dtype as a string; raise an error for dtypes without a Fourier transform.

    >>> parse_dtype(np.dtype("int8"), "c2c")
    '|i1'
    """
    if dtype.kind not in "biufc":
        allowed = "a number type (bool, int, float or complex)"
        raise_invalid("a.dtype", str(dtype), allowed, kind=ArgumentTypeError)
    if kind == "r2c" and dtype.kind == "c":
        allowed = "a real type for this transform; take a.real, or use fft"
        raise_invalid("a.dtype", str(dtype), allowed, kind=ArgumentTypeError)
    return str(dtype.str)


def parse_axes(argument: str, axes: Sequence[SupportsIndex], ndim: int) -> tuple[int, ...]:
    """Return non-negative axes of an array; each may occur once.

    An error names `argument`. An array without dimensions has no such axes, whatever they are: its
    error names the array, `a`.

    >>> parse_axes("axes", (-1, 0), 3)
    (2, 0)
    """
    numbers = [parse_as(operator.index, argument, axis, "an integer") for axis in axes]
    if ndim == 0:
        raise_invalid("a", "an array of shape ()", "an array of at least one dimension")
    for axis in numbers:
        if not -ndim <= axis < ndim:
            allowed = f"{-ndim}..{ndim - 1} for an array of {ndim} dimensions"
            raise_invalid(argument, axis, allowed, kind=AxisError)
    parsed_axes = tuple(axis % ndim for axis in numbers)
    if len(set(parsed_axes)) < len(parsed_axes):
        raise_invalid(argument, tuple(axes), "every axis at most once")
    return parsed_axes


def parse_some(
    argument: str,
    named: Sequence[Any] | Mapping[Any, Any],
    axes: tuple[int, ...],
    ndim: int,
) -> tuple[int, ...]:
    """Return the non-negative axes in an argument; they must be transformed and occur once."""
    named_axes = parse_axes(argument, tuple(named), ndim)
    if not set(named_axes) <= set(axes):
        raise_invalid(argument, named, f"only axes that are transformed, {axes}")
    return named_axes


def parse_scale(norm: str | None, forward: bool) -> Scale:
    """Return the scale of a norm.

    >>> parse_scale(None, forward=True), parse_scale("backward", forward=False)
    ('none', 'full')
    """
    if norm is not None and (not isinstance(norm, str) or norm not in get_args(Norm)):
        raise_invalid("norm", norm, "'backward', 'ortho' or 'forward' (None means 'backward')")
    if norm == "ortho":
        return "ortho"
    return "full" if (norm == "forward") == forward else "none"


def parse_orders(order: str | Sequence[str], count: int) -> tuple[Order, ...]:
    """Return one order for each transformed axis, from a single one or a sequence.

    >>> parse_orders("natural", 2)
    ('natural', 'natural')
    """
    parse_type("order", order, Sequence, "'natural' or 'transposed'")
    orders = (order,) * count if isinstance(order, str) else tuple(order)
    if not all(axis_order in ("natural", "transposed") for axis_order in orders):
        raise_invalid("order", order, "'natural' or 'transposed'")
    if len(orders) != count:
        raise_invalid(
            "order", order, f"one order, or {count} of them, one for each transformed axis"
        )
    return cast("tuple[Order, ...]", orders)


def complete_factors(axis: int, factors: Sequence[int], length: int) -> tuple[int, ...]:
    """Return factors with the product `length`, with -1 filled in.

    >>> complete_factors(0, (4, -1), 12)
    (4, 3)
    """
    known = math.prod(n for n in factors if n != -1)
    completed = tuple(length // known if n == -1 else n for n in factors)
    if math.prod(completed) != length:
        condition = f"is its length {length}, not {known}"
        if -1 in factors:
            condition = f"divides its length {length}, as {known} does not"
        allowed = f"factors of axis {axis} whose product {condition}"
        raise_invalid("rounds", {axis: tuple(factors)}, allowed)
    if len(completed) > 1 and 1 in completed:
        allowed = f"factors of axis {axis}, whose length is {length}, of at least 2 each"
        raise_invalid("rounds", {axis: tuple(factors)}, allowed)
    return completed


def parse_length(argument: str, n: SupportsIndex, size: int) -> int:
    """Return the given length of a transform; -1 in `s` stands for the array's own."""
    length = parse_as(operator.index, argument, n, "an integer")
    allowed = f"lengths of 1..{MAX_LENGTH}"
    if argument == "s":
        allowed += ", or -1 for the array's own"
        if length == -1:
            length = size
    if not 1 <= length <= MAX_LENGTH:
        raise_invalid(argument, n, allowed)
    return length


def _by_axis(
    argument: str,
    value: Any,
    axes: tuple[int, ...],
    allowed: str,
) -> Mapping[Any, Any]:
    """Return an argument as a mapping of axis to value, its form for several transformed axes.

    If one axis is transformed, the value alone stands for the mapping.
    """
    by_axis = value
    if len(axes) == 1 and not isinstance(value, Mapping):
        by_axis = {axes[0]: value}
    parse_type(argument, by_axis, Mapping, allowed)
    return cast("Mapping[Any, Any]", by_axis)


def _parse_digits(digits: Any, axes: tuple[int, ...], ndim: int) -> dict[int, tuple[int, ...]]:
    """Return the argument `digits` by axis; empty for None.

    They are the factors in which a spectrum in transposed order is stored.
    """
    if digits is None:
        return {}
    by_name = _by_axis("digits", digits, axes, "a mapping of axis to factors")
    named_axes = parse_some("digits", by_name, axes, ndim)
    parsed_digits = {}
    for axis, factors in zip(named_axes, by_name.values(), strict=True):
        parsed_digits[axis] = parse_factors("digits", factors)
    return parsed_digits


@dataclass(frozen=True)
class _InputAxis:
    """Transformed axis of the input, along which the transform gets its length.

    Parameters
    ----------
    axis, size : int
        Axis of the array, and its size there.
    argument : str
        Name of the argument with the lengths.
    order : {"natural", "transposed"}
        Order of the spectrum along the axis.
    is_spectrum, half : bool
        Whether the array is a spectrum, and whether it has half of one along this axis.
    digits : tuple of int or None
        Digits of the spectrum that the caller gave.
    """

    axis: int
    size: int
    argument: str
    order: Order
    is_spectrum: bool
    half: bool
    digits: tuple[int, ...] | None

    @property
    def is_transposed(self) -> bool:
        """True if the array is a spectrum in transposed order along the axis."""
        return self.is_spectrum and self.order == "transposed"

    def length(self, given_length: SupportsIndex | None) -> int:
        """Return the length of the transform; None stands for the default.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If the axis cannot have this length or these digits.
        """
        if given_length is None:
            length = self._default_length()
        else:
            length = parse_length(self.argument, given_length, self.size)
        if self.digits is not None:
            self._check_digits(length, self.digits)
        if self.is_transposed:
            self._check_size(length)
        return length

    def _default_length(self) -> int:
        """Return the length that follows from the size of the axis, or from its digits."""
        if self.half and self.is_transposed:
            if self.digits is not None:
                return math.prod(self.digits)
            allowed = f"the length of axis {self.axis}: half a spectrum in transposed order "
            allowed += f"({self.size} places) does not tell it"
            raise_invalid(self.argument, None, allowed)
        length = 2 * (self.size - 1) if self.half else self.size
        if length < 1:
            least = "2 entries (or a length)" if self.half else "1 entry"
            allowed = f"at least {least} along a transformed axis"
            raise_invalid("a", f"axis {self.axis} of length {self.size}", allowed)
        return length

    def _check_digits(self, length: int, digits: tuple[int, ...]) -> None:
        """Raise an error for digits that an axis cannot have."""
        if self.order == "natural":
            allowed = f"None for axis {self.axis}, which is in natural order"
            raise_invalid(
                "digits",
                {self.axis: digits},
                allowed,
                kind=ArgumentTypeError,
            )
        if math.prod(digits) != length:
            allowed = f"factors whose product is {length}, the length of axis {self.axis}"
            raise_invalid("digits", {self.axis: digits}, allowed)

    def _check_size(self, length: int) -> None:
        """Raise an error if a spectrum in transposed order has not the size for a length."""
        places = _places(
            length,
            self.order,
            half=self.half,
            digits=self.digits,
        )
        if self.size != places:
            names = " x ".join(map(str, self.digits or transposed_digits(length)))
            allowed = f"{places} entries: a spectrum of length {length} in transposed order "
            allowed += f"(digits {names}) is neither padded nor cropped"
            raise_invalid("a", f"axis {self.axis} of length {self.size}", allowed)


def _resolve(
    name: str,
    shape: tuple[int, ...],
    n_or_s: Any,
    axis_or_axes: Any,
) -> tuple[tuple[int, ...], tuple[SupportsIndex | None, ...], str]:
    """Return the axes, the given length of each, and the name of the lengths' argument.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an array of no dimensions (`a`), and for axes or lengths that it cannot have.
    """
    ndim = len(shape)
    if not takes_axes(name):
        axis = -1 if axis_or_axes is None else axis_or_axes
        return parse_axes("axis", (axis,), ndim), (n_or_s,), "n"
    if n_or_s is None:
        axes = _parse_several_axes(
            name,
            axis_or_axes,
            ndim,
            default_count=ndim,
        )
        return axes, (None,) * len(axes), "s"
    lengths = parse_several("s", n_or_s)
    if len(lengths) > ndim > 0:
        raise_invalid("s", lengths, f"{ndim} lengths at most, for an array of {ndim} dimensions")
    axes = _parse_several_axes(
        name,
        axis_or_axes,
        ndim,
        default_count=len(lengths),
    )
    if len(lengths) != len(axes):
        raise_invalid("s", lengths, f"as many lengths as axes ({len(axes)})")
    return axes, lengths, "s"


def _parse_several_axes(
    name: str,
    axes: Any,
    ndim: int,
    default_count: int,
) -> tuple[int, ...]:
    """Return the axes of a transform of several ones.

    The default are the last two for names that end with 2, and the last `default_count` for others.
    """
    named_axes: Sequence[Any]
    if axes is not None:
        named_axes = parse_several("axes", axes)
    elif name.endswith("2"):
        named_axes = (-2, -1)
    else:
        named_axes = range(-default_count, 0)
    parsed_axes = parse_axes("axes", named_axes, ndim)
    if not parsed_axes:
        raise_invalid("axes", (), "at least one axis")
    return parsed_axes


def parse_several(argument: str, value: Any) -> tuple[Any, ...]:
    """Return the values of an argument that is an integer or a sequence of integers.

    >>> parse_several("axes", [0, 1]), parse_several("axes", np.array(2))
    ((0, 1), (array(2),))
    """
    try:
        if isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0:
            raise TypeError
        return tuple(value)
    except TypeError:
        if hasattr(value, "__index__"):
            return (value,)
        raise_invalid(
            argument,
            value,
            "an integer or a sequence of them",
            kind=ArgumentTypeError,
        )


def parse_name(name: object, others: Sequence[str] = ()) -> str:
    """Return the checked name of a transform; an error also lists `others` that a caller takes."""
    if not isinstance(name, str) or name not in TRANSFORMS:
        allowed = f"one of {', '.join((*TRANSFORMS, *others))}"
        if isinstance(name, str) and name in COSINES:
            allowed += f"; cosine and sine transforms are functions only: dask_bigfft.fft.{name}"
        raise_invalid("kind", name, allowed)
    return name


def takes_axes(name: str) -> bool:
    """Return whether a transform takes `s` and `axes`; those of one axis take `n` and `axis`."""
    return name.endswith(("2", "n"))


#: Names of dimensions, as `with_dims` gives them.
_dims: ContextVar[tuple[str, ...]] = ContextVar("bigfft_dims", default=())


def with_dims(dims: Iterable[Any], work: Callable[..., R], /, *args: Any, **keywords: Any) -> R:
    """Return the result of a function that transforms arrays of these dimensions."""
    context = copy_context()
    context.run(_dims.set, tuple(map(str, dims)))
    return context.run(work, *args, **keywords)


def transform_spec(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    n_or_s: Any = None,
    axis_or_axes: Any = None,
    norm: str | None = None,
    order: str | Sequence[str] = "natural",
    digits: Any = None,
    band: Any = None,
    band_index: Any = None,
) -> TransformSpec:
    """Return the specification of a call of the `numpy.fft` interface.

    Parameters
    ----------
    name : str
        One of `TRANSFORMS`.
    shape, dtype
        Shape and dtype of the array.
    n_or_s, axis_or_axes, norm
        Arguments as in `numpy.fft`.
    order : str or sequence of str
        Order of the spectrum: of the result of forward transforms, of the input of inverse ones.
    digits : sequence of int or mapping, optional
        Digits of the spectrum of axes in transposed order; the default are `transposed_digits`.
    band, band_index : mapping or pair, optional
        Part of the spectrum along some axes: the limits of its frequencies in cycles per sample, or
        of its indices in ascending order.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that is not allowed.

    Examples
    --------
    >>> transform_spec("rfftn", (4, 6), np.dtype("f4")).out_shape
    (4, 4)
    """
    kind, sign, forward = TRANSFORMS[parse_name(name)]
    dtype_str = parse_dtype(np.dtype(dtype), kind)
    axes, given_lengths, argument = _resolve(
        name,
        shape,
        n_or_s,
        axis_or_axes,
    )
    orders = parse_orders(order, len(axes))
    named_digits = _parse_digits(digits, axes, len(shape))
    halved_axis = axes[-1] if kind == "c2r" else None
    lengths = []
    other_digits = []
    for axis, given_length, axis_order in zip(axes, given_lengths, orders, strict=True):
        axis_digits = named_digits.get(axis)
        input_axis = _InputAxis(
            axis,
            size=shape[axis],
            argument=argument,
            order=axis_order,
            is_spectrum=not forward,
            half=axis == halved_axis,
            digits=axis_digits,
        )
        length = input_axis.length(given_length)
        lengths.append(length)
        if axis_digits is not None and axis_digits != transposed_digits(length):
            other_digits.append((axis, axis_digits))
    natural = parse_orders("natural", len(axes))
    dims = _dims.get()
    spec = TransformSpec(
        name=name,
        shape=tuple(map(int, shape)),
        dtype=dtype_str,
        kind=kind,
        sign=sign,
        scale=parse_scale(norm, forward),
        axes=axes,
        lengths=tuple(lengths),
        orders_in=natural if forward else orders,
        orders_out=orders if forward else natural,
        digits=tuple(sorted(other_digits)),
        dims=dims if len(dims) == len(shape) else (),
    )
    windows = _parse_windows(spec, band, band_index)
    if not windows:
        return spec
    if forward:
        return replace(spec, windows=windows)
    _check_stored_bands(
        spec,
        windows,
        argument,
        given_lengths,
    )
    return replace(spec, windows_in=windows)


def _parse_windows(spec: TransformSpec, band: Any, band_index: Any) -> tuple[AxisWindow, ...]:
    """Return the windows of a spectrum that have the frequencies of bands."""
    windows: dict[int, Window] = {}
    for argument, value in (("band", band), ("band_index", band_index)):
        if value is None:
            continue
        by_name = _by_axis(argument, value, spec.axes, "a mapping of axis to a pair of limits")
        axes = parse_some(argument, by_name, spec.axes, len(spec.shape))
        for axis, limits in zip(axes, by_name.values(), strict=True):
            order_in, order_out = spec.orders_of(axis)
            order = order_out if spec.is_forward else order_in
            if order != "natural":
                raise_invalid("order", order, f"'natural' for axis {axis}, which has a {argument}")
            if axis in windows:
                raise_invalid(argument, by_name, f"axes without a `band`, which axis {axis} has")
            spectrum = spec.spectrum(axis)
            parse = spectrum.parse_band if argument == "band" else spectrum.parse_indices
            windows[axis] = parse(limits)
    return axis_windows(windows)


def _check_stored_bands(
    spec: TransformSpec,
    windows: tuple[AxisWindow, ...],
    argument: str,
    lengths: tuple[SupportsIndex | None, ...],
) -> None:
    """Raise an error if the input of an inverse transform does not have the size of its bands.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    windows : tuple of (int, int, int)
        Axis, start and count of each band.
    argument : str
        Name of the argument with the lengths.
    lengths : tuple of int or None
        The given length of each transformed axis.
    """
    given_lengths = dict(zip(spec.axes, lengths, strict=True))
    for axis, _, count in windows:
        if given_lengths[axis] in (None, -1):
            allowed = f"the length of axis {axis}, which a band of its spectrum does not tell"
            raise_invalid(argument, None, allowed)
        size = spec.shape[axis]
        if size != count:
            length = spec.length_of(axis)
            allowed = f"{count} entries, as many as the band has of a spectrum of length {length}"
            raise_invalid("a", f"axis {axis} of length {size}", allowed)
