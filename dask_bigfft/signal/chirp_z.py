r"""Chirp z-transforms: spectra at evenly spaced points of a circle or a spiral.

At the points a w^-k the sum over n x_n a^-n w^(kn) is a convolution with a chirp, because

    k n = (k^2 + n^2 - (k - n)^2) / 2

(Rabiner, Schafer and Rader, Bell Syst. Tech. J. 48, 1969). It goes through `fftconvolve`, whose
plans take axes of any chunking. A chirp turns k^2 times, so that double precision loses its angle
on a long axis. Here angles are fractions of integers, which are reduced to one turn exactly.
"""

import cmath
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, parse_as, parse_count, parse_flag, raise_invalid
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.views import empty_like
from dask_bigfft.signal.arguments import (
    SignalOptions,
    nonempty,
    parse_signal_options,
    without_empty,
)
from dask_bigfft.signal.convolution import fftconvolve
from dask_bigfft.transforms.spec import parse_axes, work_dtype

__all__ = ["czt", "zoom_fft"]

#: Parts of a turn. Angles are integers modulo this number.
TURN = 1 << 64

#: Consecutive numbers of a chirp whose angles are computed from the same exact fractions. Their
#: rounding adds up to this number of parts of a turn at most.
RUN = 1024

#: Blocks of the chirp that an array is convolved with, if those of the array are short.
MOST_BLOCKS = 1024

#: Growth of a chirp, as a logarithm, up to which single precision is used. A convolution with a
#: chirp multiplies rounding errors by its growth.
MOST_GROWTH_IN_SINGLE = 0.1

#: Growth of a chirp, as a logarithm, whose values are still finite in double precision.
MOST_GROWTH = math.log(np.finfo(float).max)

#: Digits of 2 pi below which the argument of a complex number is found.
TWO_PI = Fraction("6.28318530717958647692528676655900576839433879875021164194988918461563281")


@dataclass(frozen=True)
class Chirp:
    """Powers exp(growth(k)) of a point that turns with k, for an integer k.

    The logarithm is ``square * k**2 / 2 + slope * k`` for the growth and for the turns.

    Parameters
    ----------
    square, slope : Fraction
        Coefficients of the angle, in turns.
    growth_square, growth_slope : float
        Coefficients of the logarithm of the modulus.
    """

    square: Fraction
    slope: Fraction
    growth_square: float = 0.0
    growth_slope: float = 0.0

    def inverse_square(self) -> "Chirp":
        """Return the chirp of the reciprocals, without the slopes."""
        return Chirp(-self.square, Fraction(0), -self.growth_square)

    def without_slope(self) -> "Chirp":
        """Return the chirp without the slopes."""
        return Chirp(self.square, Fraction(0), self.growth_square)

    def growth(self, count: int) -> float:
        """Return the logarithm of the ratio of the largest and the smallest modulus below `count`.

        The slope is left out, because it belongs to the transformed samples.

        >>> Chirp(Fraction(0), Fraction(0), growth_square=-0.5).growth(5)
        4.0
        """
        return abs(self.growth_square) * (count - 1) ** 2 / 2

    def values(self, first: int, count: int) -> npt.NDArray[np.complex128]:
        """Return the values for k from `first` on."""
        radians = self.angles(first, count) * (2 * math.pi / TURN)
        values = np.empty(count, complex)
        values.real = np.cos(radians)
        values.imag = np.sin(radians)
        if self.growth_square or self.growth_slope:
            k = np.arange(first, first + count, dtype=float)
            slope = self.growth_square * k / 2
            slope += self.growth_slope
            with np.errstate(over="ignore", under="ignore"):
                values *= np.exp(k * slope)
        return values

    def angles(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return the angles for k from `first` on, in parts of a turn from -half to half.

        With k = s + j for starts s of runs, k**2 = s**2 + 2 s j + j**2. The first two terms are
        exact fractions for each run, and the last one for each j.

        >>> quarters = Chirp(Fraction(1, 2), Fraction(0)).angles(10**15, 3)
        >>> (quarters // (TURN // 4)).tolist()
        [0, 1, 0]
        """
        half = self.square / 2
        squares = [half * j**2 for j in range(min(RUN, count))]
        at_starts = []
        steps = []
        for start in range(first, first + count, RUN):
            at_starts.append(start * (half * start + self.slope))
            steps.append(self.square * start + self.slope)
        inner = np.arange(len(squares), dtype=np.uint64)
        angles = _parts(steps)[:, None] * inner
        angles += _parts(at_starts)[:, None]
        angles += _parts(squares)
        return angles.reshape(-1)[:count].view(np.int64)


def _parts(turns: Sequence[Fraction]) -> npt.NDArray[np.uint64]:
    """Return angles in parts of a turn, rounded and modulo a turn."""
    parts = []
    for turn in turns:
        whole = turn.numerator * TURN // turn.denominator
        parts.append(whole % TURN)
    return np.array(parts, np.uint64)


def turns_of(z: complex) -> Fraction:
    """Return the argument of a complex number in turns, with twice the digits of a float.

    It is above -1/2, and at most 1/2. The number is not 0.

    The number is turned back by the argument that `cmath` knows. The small argument that remains
    is that of the product with an exact cosine and sine.

    >>> abs(turns_of(1j) - Fraction(1, 4)) < Fraction(1, 10**32)
    True
    """
    near = Fraction(cmath.phase(z))
    cosine = Fraction(1)
    sine = Fraction(0)
    term = Fraction(1)
    for order in range(1, 50):
        term = (term * near / order).limit_denominator(10**60)
        sign = -1 if order % 4 in (2, 3) else 1
        if order % 2:
            sine += sign * term
        else:
            cosine += sign * term
    x = Fraction(z.real)
    y = Fraction(z.imag)
    real = x * cosine + y * sine
    imag = y * cosine - x * sine
    argument = near + imag / real
    return (argument / TWO_PI).limit_denominator(10**40)


def growth_of(z: complex) -> float:
    """Return the logarithm of the modulus of a complex number, accurate beside 1.

    >>> growth_of(1.0), growth_of(complex(1, 1e-9))
    (0.0, 5e-19)
    """
    square = Fraction(z.real) ** 2 + Fraction(z.imag) ** 2
    if Fraction(1, 2) < square < 2:
        return 0.5 * math.log1p(float(square - 1))
    return math.log(abs(z))


# --- transforms -----------------------------------------------------------------------------


@on_own_gpu
def _times_chirp(
    block: Array,
    numbers: Array,
    chirp: Chirp,
    out_dtype: np.dtype[Any],
) -> Array:
    """Return a block times the chirp at consecutive numbers, which broadcast against it."""
    first = int(numbers.flat[0])
    values = chirp.values(first, numbers.size)
    factors = values.astype(out_dtype).reshape(numbers.shape)
    product: Array = block * np.asarray(factors, like=block)
    return product.astype(out_dtype, copy=False)


def _along(a: da.Array, chirp: Chirp, axis: int) -> da.Array:
    """Return an array times the chirp along an axis."""
    dtype = work_dtype(a.dtype)
    numbers: Any = da.arange(
        a.shape[axis],
        chunks=(a.chunks[axis],),
        dtype=np.int64,
    )
    index: list[Any] = [np.newaxis] * a.ndim
    index[axis] = slice(None)
    return by_block(
        _times_chirp,
        a,
        numbers[tuple(index)],
        dtype=dtype,
        chirp=chirp,
        out_dtype=dtype,
    )


def _chirp_block(
    numbers: Array,
    chirp: Chirp,
    shape: tuple[int, ...],
    out_dtype: np.dtype[Any],
    like: Array,
) -> Array:
    """Return the chirp at consecutive numbers."""
    first = int(numbers[0])
    values = chirp.values(first, len(numbers))
    return np.asarray(values.astype(out_dtype).reshape(shape), like=like)


def _chirp_transform(
    array: da.Array,
    axis: int,
    count: int,
    points: Chirp,
    options: SignalOptions,
) -> da.Array:
    """Return sums over n of an array times values of a chirp at n and k, for k below `count`.

    Parameters
    ----------
    array : dask.array.Array
        The input.
    axis : int
        Axis of n, along which the input has elements.
    count : int
        Number of points k.
    points : Chirp
        With the slopes of n, and the squares of n and k.
    options : SignalOptions
        The caller's keywords.
    """
    n = array.shape[axis]
    dtype = work_dtype(array.dtype)
    if array.size == 0:
        shape_of_result = list(array.shape)
        shape_of_result[axis] = count
        empty: Any = da.zeros_like(array, dtype, shape=tuple(shape_of_result))
        return cast("da.Array", empty)
    if points.growth(max(n, count)) > MOST_GROWTH_IN_SINGLE:
        array = array.astype(np.result_type(array.dtype, np.float64))
    before = _along(without_empty(array), points, axis)
    least_width = (n + count) // MOST_BLOCKS + 1
    numbers = da.arange(
        1 - n,
        count,
        chunks=max(*before.chunks[axis], least_width),
        dtype=np.int64,
    )
    shape = [1] * array.ndim
    shape[axis] = -1
    chunks = [(1,)] * array.ndim
    chunks[axis] = numbers.chunks[0]
    response: Any = da.map_blocks(
        _chirp_block,
        numbers,
        dtype=before.dtype,
        out_dtype=before.dtype,
        chunks=tuple(chunks),
        new_axis=[other for other in range(array.ndim) if other != axis],
        meta=empty_like(before._meta, before.ndim, before.dtype),
        chirp=points.inverse_square(),
        shape=tuple(shape),
        like=before._meta,
    )
    sums = fftconvolve(
        before,
        response,
        mode="valid",
        axes=axis,
        **options,
    )
    transform: Any = _along(sums, points.without_slope(), axis)
    return cast("da.Array", transform.astype(dtype))


def _parse_points(m: Any, n: int) -> int:
    """Return the number of points, by default that of the samples."""
    return n if m is None else parse_count("m", m, 1, 2**40)


def _parse_number(name: str, value: Any) -> complex:
    """Return a complex number that is finite and not 0."""
    allowed = "a finite number other than 0"
    number = parse_as(complex, name, value, allowed)
    if not cmath.isfinite(number) or number == 0:
        raise_invalid(name, value, allowed)
    return number


@keeps_rows()
def czt(
    x: Any,
    m: int | None = None,
    w: complex | None = None,
    a: complex = 1 + 0j,
    *,
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the chirp z-transform: sums of ``x[n] * z**-n`` at points z of a spiral.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read.
    m : int, optional
        Number of points, by default that of the samples.
    w : complex, optional
        Ratio of two points: point k is ``a * w**-k``. By default the points are evenly spaced on
        the unit circle. ``abs(w) ** (n**2 / 2)`` must not overflow or underflow, with n the larger
        of the numbers of samples and points.
    a : complex
        First point.
    axis : int
        Axis of the samples.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fftconvolve`.

    Returns
    -------
    dask.array.Array
        Lazy, with `m` entries along the axis, as `scipy.signal.czt` returns them; of single
        precision for single-precision `x`. A NaN makes all of its line NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    Angles are exact for the given numbers, also on long axes. The modulus of a complex `w` or `a`
    is rarely 1 to the last digit, and is not rounded to it. For points on the unit circle, use
    `zoom_fft`.

    On a spiral, where the modulus of `w` is not 1, single-precision `x` is transformed in double
    precision and the result rounded. Rounding errors grow as ``abs(w) ** (n**2 / 2)`` or its
    reciprocal, as in SciPy.

    See Also
    --------
    zoom_fft : Points on a part of the unit circle.

    Examples
    --------
    >>> czt(da.ones(4, chunks=2)).compute().round(6) + 0.0
    array([4.+0.j, 0.+0.j, 0.+0.j, 0.+0.j])
    """
    parse_signal_options(options)
    array = parse_array(x, "fft")
    (along,) = parse_axes("axis", (axis,), array.ndim)
    nonempty(array, (along,))
    count = _parse_points(m, array.shape[along])
    start = _parse_number("a", a)
    if w is None:
        square = Fraction(-1, count)
        growth = 0.0
    else:
        ratio = _parse_number("w", w)
        square = turns_of(ratio)
        growth = growth_of(ratio)
    points = Chirp(
        square=square,
        slope=-turns_of(start),
        growth_square=growth,
        growth_slope=-growth_of(start),
    )
    if points.growth(max(count, array.shape[along])) > MOST_GROWTH:
        allowed = "a modulus nearer to 1, or fewer samples and points: "
        allowed += "powers of w overflow in double precision"
        raise_invalid("w", w, allowed)
    return _chirp_transform(
        array,
        along,
        count,
        points,
        options,
    )


@keeps_rows()
def zoom_fft(
    x: Any,
    fn: Any,
    m: int | None = None,
    *,
    fs: float = 2,
    endpoint: bool = False,
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the spectrum at evenly spaced frequencies of an interval.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read.
    fn : float or sequence of two floats
        First frequency and the end of the frequencies; a number is an end, and the first one 0.
    m : int, optional
        Number of frequencies, by default that of the samples.
    fs : float
        Sampling rate.
    endpoint : bool
        True if the end is the last frequency.
    axis : int
        Axis of the samples.
    chunks, ..., planner
        See `czt`.

    Returns
    -------
    dask.array.Array
        Lazy, with `m` entries along the axis, as `scipy.signal.zoom_fft` returns them; of single
        precision for single-precision `x`. A NaN makes all of its line NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    Angles are exact for the given frequencies and rate, also on long axes.

    Examples
    --------
    >>> x = da.exp(2j * np.pi * 0.3 * da.arange(1000, chunks=300))
    >>> spectrum = zoom_fft(x, [0.25, 0.35], 11, fs=1.0, endpoint=True)
    >>> abs(spectrum).argmax().compute()
    np.int64(5)
    """
    parse_signal_options(options)
    array = parse_array(x, "fft")
    (along,) = parse_axes("axis", (axis,), array.ndim)
    nonempty(array, (along,))
    count = _parse_points(m, array.shape[along])
    low, high = parse_interval(fn)
    rate = parse_as(float, "fs", fs, "a positive number")
    if not 0 < rate < math.inf:
        raise_invalid("fs", fs, "a positive number")
    steps = count - 1 if parse_flag("endpoint", endpoint) else count
    if steps == 0:
        raise_invalid("endpoint", True, "False for m=1")
    start = Fraction(low) / Fraction(rate)
    end = Fraction(high) / Fraction(rate)
    points = Chirp(
        square=(start - end) / steps,
        slope=-start,
    )
    return _chirp_transform(
        array,
        along,
        count,
        points,
        options,
    )


def parse_interval(fn: Any) -> tuple[float, float]:
    """Return the first frequency of an interval, and its end."""
    allowed = "a finite number, or two"
    try:
        ends = [float(end) for end in np.ravel(fn)]
    except (TypeError, ValueError):
        raise_invalid("fn", fn, allowed, kind=ArgumentTypeError)
    if len(ends) == 1:
        ends.insert(0, 0.0)
    if len(ends) != 2 or not all(map(math.isfinite, ends)):
        raise_invalid("fn", fn, allowed)
    return ends[0], ends[1]
