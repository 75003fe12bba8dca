"""`TransformSpec`: what a call of the `numpy.fft` interface asks for, normalised once.

Everything a user can write wrongly is refused here, naming the argument, its value and what is
allowed; the floors above never validate again.

Pure: imports numpy, `decomposition` and `errors`.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, cast, get_args

import numpy as np

from dask_bigfft.decomposition.factors import MAX_LENGTH, transposed_digits
from dask_bigfft.decomposition.layout import Order, flat_digits
from dask_bigfft.decomposition.rounds import Scale
from dask_bigfft.decomposition.steps import Kind, Waves
from dask_bigfft.errors import ArgumentTypeError, AxisError, refuse

Norm = Literal["backward", "ortho", "forward"]

#: Kind, sign of the exponent, and whether the norm is that of a forward transform.
FAMILIES: dict[str, tuple[Kind, int, bool]] = {
    "fft": ("c2c", -1, True),
    "ifft": ("c2c", +1, False),
    "rfft": ("r2c", -1, True),
    "irfft": ("c2r", +1, False),
    "hfft": ("c2r", -1, True),
    "ihfft": ("r2c", +1, False),
}

#: The transforms by name; the ending says which axes: one, two or any number.
NAMES: tuple[str, ...] = tuple(name + ending for ending in ("", "2", "n") for name in FAMILIES)

#: Transforms that are functions, which plans are made for only inside of them.
COSINES = ("dct", "idct", "dst", "idst", "dctn", "idctn", "dstn", "idstn")

_WORK = {"f": "F", "d": "D", "g": "G", "F": "F", "D": "D", "G": "G", "e": "F"}
_REAL = {"F": "f", "D": "d", "G": "g"}


@dataclass(frozen=True)
class TransformSpec:
    """A transform, independent of how its array is cut into blocks.

    Parameters
    ----------
    name : str
        Name of the call, such as ``"rfftn"``.
    shape : tuple of int
        Shape of the array that comes in.
    dtype : str
        Its dtype (as ``numpy.dtype.str``).
    kind : {"c2c", "r2c", "c2r"}
        Transform of the last of the axes; the others are always c2c.
    sign : {-1, 1}
        Sign in the exponent.
    scale : {"none", "ortho", "full"}
        Factor 1, 1/sqrt(N) or 1/N, N the product of the lengths.
    axes, lengths : tuple of int
        Transformed axes (non-negative) and the length N of the transform along each.
    orders_in, orders_out : tuple of {"natural", "transposed"}
        Order of each transformed axis in the array that comes in and that goes out.
    digits : tuple of (int, tuple of int)
        Axes whose transposed order has other digits than the canonical ones.
    windows : tuple of (int, int, int)
        Axis, start and count: of the values along that axis only `count` go out, from `start` on,
        cyclically.
    waves : Waves or None
        A sum over cosines or sines along the one axis, instead of a Fourier transform: of kind
        "c2c", with a real result.
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
    windows: tuple[tuple[int, int, int], ...] = ()
    waves: Waves | None = None

    @property
    def work_dtype(self) -> np.dtype[Any]:
        """Complex dtype in which the rounds compute."""
        char = np.dtype(self.dtype).char
        return np.dtype(_WORK.get(char, "D"))

    @property
    def real_dtype(self) -> np.dtype[Any]:
        """Real dtype of the same precision."""
        return np.dtype(_REAL[self.work_dtype.char])

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """Dtype of the result of the rounds."""
        is_real = self.kind == "c2r" or self.waves is not None
        return self.real_dtype if is_real else self.work_dtype

    @property
    def real_axis(self) -> int | None:
        """Axis that has half a spectrum on one side, if any."""
        return None if self.kind == "c2c" else self.axes[-1]

    def digits_of(self, axis: int) -> tuple[int, ...] | None:
        """Digits of an axis' transposed order where they were named, else None."""
        return dict(self.digits).get(axis)

    def window_of(self, axis: int) -> tuple[int, int] | None:
        """Start and count of what goes out of an axis where that is not all of it, else None."""
        return {a: (start, count) for a, start, count in self.windows}.get(axis)

    def out_size(self, axis: int) -> int:
        """Length of an axis of the result."""
        if axis not in self.axes:
            return self.shape[axis]
        window = self.window_of(axis)
        if window is not None:
            return window[1]
        i = self.axes.index(axis)
        half = self.kind == "r2c" and axis == self.real_axis
        return _count(self.lengths[i], self.orders_out[i], half, self.digits_out(axis))

    def digits_out(self, axis: int) -> tuple[int, ...] | None:
        """Digits of an axis of the result: those of the input reversed if that has digits, too."""
        i = self.axes.index(axis)
        found = self.digits_of(axis)
        if self.orders_in[i] == self.orders_out[i] == "transposed":
            return (found or transposed_digits(self.lengths[i]))[::-1]
        return found

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.out_size(axis) for axis in range(len(self.shape)))


def _count(length: int, order: Order, half: bool, digits: tuple[int, ...] | None) -> int:
    found = flat_digits(0, length, order, real=half, digits=digits)
    return math.prod(digit.size for digit in found)


def parse_dtype(dtype: np.dtype[Any], kind: Kind) -> str:
    """Refuse dtypes without a Fourier transform; return the others as a string.

    >>> parse_dtype(np.dtype("int8"), "c2c")
    '|i1'
    """
    if dtype.kind not in "biufc":
        allowed = "a number type (bool, int, float or complex)"
        refuse("a.dtype", str(dtype), allowed, kind=ArgumentTypeError)
    if kind == "r2c" and dtype.kind == "c":
        allowed = "a real type for this transform; take a.real, or use fft"
        refuse("a.dtype", str(dtype), allowed, kind=ArgumentTypeError)
    return str(dtype.str)


def _index(argument: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        refuse(argument, value, "an integer", kind=ArgumentTypeError)


def parse_axes(argument: str, axes: Sequence[SupportsIndex], ndim: int) -> tuple[int, ...]:
    """Return non-negative axes, each within the array and named once.

    >>> parse_axes("axes", (-1, 0), 3)
    (2, 0)
    """
    found = tuple(_index(argument, axis) for axis in axes)
    if ndim == 0:
        refuse("a", "an array without axes", "an array of at least one dimension")
    for axis in found:
        if not -ndim <= axis < ndim:
            allowed = f"{-ndim}..{ndim - 1} for an array of {ndim} dimensions"
            refuse(argument, axis, allowed, kind=AxisError)
    found = tuple(axis % ndim for axis in found)
    if len(set(found)) < len(found):
        refuse(argument, tuple(axes), "every axis at most once")
    return found


def parse_scale(norm: str | None, forward: bool) -> Scale:
    """Return the scale of a norm.

    >>> parse_scale(None, forward=True), parse_scale("backward", forward=False)
    ('none', 'full')
    """
    if norm is not None and (not isinstance(norm, str) or norm not in get_args(Norm)):
        refuse("norm", norm, "'backward', 'ortho' or 'forward' (None means 'backward')")
    if norm == "ortho":
        return "ortho"
    return "full" if (norm == "forward") == forward else "none"


def parse_orders(order: str | Sequence[str], count: int) -> tuple[Order, ...]:
    """Return one order per transformed axis, from one for all or a sequence.

    >>> parse_orders("natural", 2)
    ('natural', 'natural')
    """
    if not isinstance(order, Sequence):
        refuse("order", order, "'natural' or 'transposed'", kind=ArgumentTypeError)
    orders = (order,) * count if isinstance(order, str) else tuple(order)
    for found in orders:
        if found not in ("natural", "transposed"):
            refuse("order", order, "'natural' or 'transposed'")
    if len(orders) != count:
        refuse("order", order, f"one order, or {count} of them, one for each transformed axis")
    return cast("tuple[Order, ...]", orders)


def complete_factors(axis: int, factors: Sequence[int], length: int) -> tuple[int, ...]:
    """Return factors that multiply up to a length, with -1 filled in.

    >>> complete_factors(0, (4, -1), 12)
    (4, 3)
    """
    known = math.prod(n for n in factors if n != -1)
    found = tuple(length // known if n == -1 else n for n in factors)
    if math.prod(found) != length:
        wanted = (
            f"divides its length {length}, as {known} does not"
            if -1 in factors
            else (f"is its length {length}, not {known}")
        )
        refuse("rounds", {axis: tuple(factors)}, f"factors of axis {axis} whose product {wanted}")
    if len(found) > 1 and 1 in found:
        refuse(
            "rounds",
            {axis: tuple(factors)},
            f"factors of axis {axis}, whose length is {length}, of at least 2 each",
        )
    return found


def _lengths_of(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    s: Sequence[SupportsIndex | None] | None,
    argument: str,
) -> tuple[int | None, ...]:
    """Lengths as asked for, None where the array's own length decides."""
    if s is None:
        return (None,) * len(axes)
    if len(s) != len(axes):
        refuse(argument, tuple(s), f"as many lengths as axes ({len(axes)})")
    found: list[int | None] = []
    for n, axis in zip(s, axes, strict=True):
        if n is None:
            found.append(None)
            continue
        length = _index(argument, n)
        if length == -1 and argument == "s":
            length = shape[axis]
        if length < 1:
            refuse(
                argument,
                n,
                "lengths of at least 1"
                + (" (or -1 for the array's own)" if argument == "s" else ""),
            )
        if length > MAX_LENGTH:
            refuse(argument, n, f"lengths of at most {MAX_LENGTH}")
        found.append(length)
    return tuple(found)


def _default_length(
    argument: str, size: int, axis: int, half: bool, order: Order, digits: Sequence[int] | None
) -> int:
    """Length of a transform whose length was not given."""
    if half and order == "transposed":
        if digits is not None:
            return math.prod(digits)
        refuse(
            argument,
            None,
            f"the length of axis {axis}: half a spectrum in transposed order "
            f"({size} places) does not tell it",
        )
    length = 2 * (size - 1) if half else size
    if length < 1:
        least = "2 entries (or a length)" if half else "1 entry"
        refuse("a", f"axis {axis} of length {size}", f"at least {least} along a transformed axis")
    return length


def _named_digits(
    axis: int, length: int, order: Order, digits: tuple[int, ...]
) -> dict[int, tuple[int, ...]]:
    """The digits of an axis by its number, if they are not the documented ones."""
    if order == "natural":
        refuse(
            "digits",
            {axis: digits},
            f"None for axis {axis}, which is in natural order",
            kind=ArgumentTypeError,
        )
    if math.prod(digits) != length:
        refuse(
            "digits",
            {axis: digits},
            f"factors whose product is {length}, the length of axis {axis}",
        )
    return {} if digits == transposed_digits(length) else {axis: digits}


def _check_digits(
    axis: int, factors: tuple[int, ...], spectrum: tuple[int, ...], digits: tuple[int, ...]
) -> None:
    """Refuse rounds that give a spectrum in transposed order other digits than it has elsewhere."""
    if spectrum != digits:
        refuse(
            "rounds",
            {axis: factors},
            f"factors that give the spectrum along axis {axis} the "
            f"digits {digits} in transposed order, or digits={spectrum} at both ends",
        )


def _check_transposed(
    size: int, axis: int, length: int, half: bool, digits: tuple[int, ...] | None
) -> None:
    """Refuse spectra in transposed order that are not whole."""
    places = _count(length, "transposed", half, digits)
    if size != places:
        names = " x ".join(map(str, digits or transposed_digits(length)))
        refuse(
            "a",
            f"axis {axis} of length {size}",
            f"{places} entries: a spectrum of length {length} in transposed order "
            f"(digits {names}) is neither padded nor cropped",
        )


def _resolve(
    name: str, ndim: int, n_or_s: Any, axis_or_axes: Any
) -> tuple[tuple[int, ...], Sequence[SupportsIndex | None] | None, str]:
    """Return the axes, the lengths as given, and the name of the lengths' argument."""
    if not name.endswith(("2", "n")):
        axis = -1 if axis_or_axes is None else axis_or_axes
        return parse_axes("axis", (axis,), ndim), None if n_or_s is None else (n_or_s,), "n"
    s = None if n_or_s is None else parse_several("s", n_or_s)
    if s is not None and len(s) > ndim > 0:
        refuse("s", s, f"{ndim} lengths at most, for an array of {ndim} dimensions")
    if axis_or_axes is not None:
        axes = parse_axes("axes", parse_several("axes", axis_or_axes), ndim)
    elif name.endswith("2"):
        axes = parse_axes("axes", (-2, -1), ndim)
    else:
        axes = parse_axes("axes", range(-(ndim if s is None else len(s)), 0), ndim)
    if not axes:
        refuse("axes", (), "at least one axis")
    return axes, s, "s"


def parse_several(argument: str, value: Any) -> tuple[Any, ...]:
    """Return the parts of an argument that is one integer or a sequence of them.

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
        refuse(argument, value, "an integer or a sequence of them", kind=ArgumentTypeError)


def parse_transform_axes(
    name: str, ndim: int, n_or_s: Any = None, axis_or_axes: Any = None
) -> tuple[int, ...]:
    """Return the axes that a call transforms, non-negative and in the order of the call.

    >>> parse_transform_axes("fftn", 3, axis_or_axes=(-1, 0))
    (2, 0)
    """
    return _resolve(name, ndim, n_or_s, axis_or_axes)[0]


def parse_name(name: object) -> str:
    """Return the name of a transform; refuse any other."""
    if not isinstance(name, str) or name not in NAMES:
        allowed = f"one of {', '.join(NAMES)}"
        if isinstance(name, str) and name in COSINES:
            allowed += f"; cosine and sine transforms are functions only: dask_bigfft.fft.{name}"
        refuse("kind", name, allowed)
    return name


def transform_spec(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    n_or_s: Any = None,
    axis_or_axes: Any = None,
    norm: str | None = None,
    order: str | Sequence[str] = "natural",
    factors: Mapping[int, Sequence[int]] | None = None,
    digits: Mapping[int, tuple[int, ...]] | None = None,
) -> TransformSpec:
    """Return what a call of the `numpy.fft` interface asks for.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    shape, dtype
        Of the array.
    n_or_s, axis_or_axes, norm
        As `numpy.fft` has them.
    order : str or sequence of str
        Order of the spectrum: of the result of forward transforms, of the input of inverse ones.
    factors : mapping, optional
        Factors of axes whose decomposition was named, in the order of the rounds; -1 for what is
        left. In transposed order they have to be the digits of the spectrum.
    digits : mapping, optional
        Digits of the spectrum of axes in transposed order, where they are not those of
        `transposed_digits`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Whatever is not allowed.

    Examples
    --------
    >>> transform_spec("rfftn", (4, 6), np.dtype("f4")).out_shape
    (4, 4)
    """
    kind, sign, forward = FAMILIES[parse_name(name).rstrip("2n")]
    dtype_str = parse_dtype(np.dtype(dtype), kind)
    axes, s, argument = _resolve(name, len(shape), n_or_s, axis_or_axes)
    orders = parse_orders(order, len(axes))
    asked = _lengths_of(shape, axes, s, argument)
    named_digits: dict[int, tuple[int, ...]] = {}
    lengths = []
    for axis, length, found in zip(axes, asked, orders, strict=True):
        half = kind == "c2r" and axis == axes[-1]
        order_in: Order = "natural" if forward else found
        named, given = (factors or {}).get(axis), (digits or {}).get(axis)
        if length is None:
            length = _default_length(argument, shape[axis], axis, half, order_in, given)
        lengths.append(length)
        if given is not None:
            named_digits |= _named_digits(axis, length, found, given)
        if named is not None:
            completed = complete_factors(axis, named, length)
            if found == "transposed":
                spectrum = completed if forward else completed[::-1]
                _check_digits(axis, completed, spectrum, given or transposed_digits(length))
        if order_in == "transposed":
            _check_transposed(shape[axis], axis, length, half, given)
    in_order: Order = "natural"
    natural = (in_order,) * len(axes)
    return TransformSpec(
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
        digits=tuple(sorted(named_digits.items())),
    )
