"""Factors of a block: twiddles and chirps between FFTs, and factors of cosine transforms.

A row of a block has the values of a digit k for one index r of the remaining digits. Its twiddles
W^(k*r) are products from two short tables per row, W^(r*64*i) and W^(r*j). These come from the
exact two-level `PhaseTable`, so phases are integers, and the inner loop has two multiplications.

Along a chirp n**2 grows by 2*n*stride + stride**2, which grows by 2*stride**2: two additions mod
twice its length, and no product of large numbers.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.arrays import Array, Ints
from dask_bigfft.kernels.compiled import compiled
from dask_bigfft.kernels.copies import may_compile, pays
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import allocate
from dask_bigfft.transforms.cosines import Cosines, point_digits
from dask_bigfft.transforms.layout import Digit
from dask_bigfft.transforms.steps import Divisor

Index = tuple[int, ...]

# np.pi is a double; long double needs its own.
_PI = "3.14159265358979323846264338327950288419716939937510582"


def unit_roots(
    t: npt.ArrayLike,
    m: int,
    sign: int,
    dtype: npt.DTypeLike = np.complex128,
) -> Array:
    """Return exp(sign*2j*pi*t/m), as accurate for a huge `t` as for a small one.

    Parameters
    ----------
    t
        Integers, int64 or uint64.
    m
        The order of the root, 1..2**60: 4.5 times a residue fits int64.
    sign
        Sign of the exponent, -1 or +1.
    dtype
        complex64, complex128 or clongdouble.

    Returns
    -------
    ndarray
        Its absolute error is below one unit in the last place of 1, and each part, however small,
        is within about two units in its own last place; multiples of a quarter turn are exact.

    Examples
    --------
    >>> unit_roots([0, 1, 2, 3], 4, -1)
    array([ 1.+0.j,  0.-1.j, -1.+0.j,  0.+1.j])
    >>> m = 2**33 + 1
    >>> unit_roots([5 * m + 7], m, +1) == unit_roots([7], m, +1)
    array([ True])
    """
    integers = np.asarray(t)
    # The nearest quarter turn 0..3 of t/m, and the remainder of 4*t, within -m/2..m/2.
    reduced = (np.atleast_1d(integers) % m).astype(np.int64)
    quarter = (4 * reduced + m // 2) // m
    remainder = 4 * reduced - quarter * m
    quarter %= 4
    out_dtype = np.dtype(dtype)
    real_type: Any = np.longdouble if out_dtype == np.clongdouble else np.float64
    ratio = remainder.astype(real_type) / real_type(m)
    angle = np.abs(ratio) * (real_type(_PI) / 2)
    cos = np.cos(angle)
    sin = np.copysign(np.sin(angle), ratio)
    eighth = np.abs(ratio) == 0.5  # the two legs of half a right angle are equal
    cos[eighth] = np.sqrt(real_type(0.5))
    sin[eighth] = np.copysign(cos[eighth], ratio[eighth])
    odd = (quarter & 1).astype(bool)
    result = np.empty(ratio.shape, dtype=out_dtype)
    # 1j**q * (c + 1j*s): (c, s), (-s, c), (-c, -s), (s, -c); adding 0 turns -0 into 0.
    flip = np.where((quarter == 1) | (quarter == 2), -1.0, 1.0)
    result.real = np.where(odd, sin, cos) * flip + 0.0
    flip = np.where(quarter >= 2, -float(sign), float(sign))
    result.imag = np.where(odd, cos, sin) * flip + 0.0
    return result.reshape(integers.shape)


def mulmod(a: npt.ArrayLike, b: npt.ArrayLike, m: int) -> Ints:
    """Return a*b mod `m` exactly, though the product needs up to 124 bits.

    Parameters
    ----------
    a, b
        Integers in 0..m-1 (not checked: the caller reduces); they broadcast.
    m
        The modulus, 1..2**60.

    Notes
    -----
    b = b1*2**31 + b0 is taken half by half: the quotient by m is then below 2**32, so double
    precision finds it to within one, and the remainder, in (-m, 2m), is right in wrapping 64-bit
    arithmetic.

    Examples
    --------
    >>> m = 2**59 - 1
    >>> mulmod([m - 1, 2**40], [m - 1, 2**40], m)
    array([      1, 2097152])
    """
    x = np.asarray(a, np.int64)
    y = np.asarray(b, np.int64)
    shape = np.broadcast_shapes(x.shape, y.shape)
    # NumPy warns of wrapping in scalars only: work on arrays of one axis at least.
    x = np.atleast_1d(x)
    y = np.atleast_1d(y)
    remainder = np.zeros(1, np.int64)
    for digit in (y >> 31, y & (2**31 - 1)):
        product = remainder * 2.0**31 + x.astype(np.float64) * digit
        quotient = np.floor(product / m).astype(np.int64)
        remainder = (remainder << 31) + x * digit - quotient * m
        remainder += np.where(remainder < 0, m, 0)
        remainder -= np.where(remainder >= m, m, 0)
    return remainder.reshape(shape)


def chirp(
    n: npt.ArrayLike,
    length: int,
    sign: int,
    dtype: npt.DTypeLike = np.complex128,
) -> Array:
    """Return exp(sign*1j*pi*n**2/length), the factor that Bluestein's transform is made of.

    Parameters
    ----------
    n
        Integers (int64) of either sign.
    length
        Length of the axis, 1..2**59.
    sign
        Sign of the exponent, -1 or +1.
    dtype
        complex64, complex128 or clongdouble.

    Notes
    -----
    n**2 is reduced mod 2*length in exact integers.

    Examples
    --------
    >>> chirp([0, 2, 4, -4], 4, -1)
    array([ 1.+0.j, -1.+0.j,  1.+0.j,  1.+0.j])
    """
    modulus = 2 * length
    residue = np.asarray(n, dtype=np.int64) % modulus
    return unit_roots(
        mulmod(residue, residue, modulus),
        modulus,
        sign,
        dtype,
    )


class PhaseTable(NamedTuple):
    """All powers of a root of unity, as products from two tables of about sqrt(modulus) entries.

    W**t = coarse[t >> shift] * fine[t & mask] for 0 <= t < modulus, W = exp(sign*2j*pi/modulus).
    Compiled loops take the fields as arguments.

    Examples
    --------
    >>> table = phase_table(1000, -1)
    >>> table.coarse.size, table.fine.size
    (32, 32)
    >>> bool(abs(table.at(250) - (-1j)) < 1e-15)
    True
    """

    #: W**(j << shift); read-only.
    coarse: Array
    #: W**j for j < 2**shift; read-only.
    fine: Array
    shift: int
    mask: int

    def at(self, t: npt.ArrayLike) -> Array:
        """Return W**t for 0 <= t < modulus (the caller reduces)."""
        index = np.asarray(t)
        return np.asarray(self.coarse[index >> self.shift] * self.fine[index & self.mask])


# A process works on a few lengths at a time; the tables of 2**40 take 32 MiB.
@lru_cache(maxsize=8)
def phase_table(modulus: int, sign: int, dtype: str = "D") -> PhaseTable:
    """Return the cached table of the powers of exp(sign*2j*pi/modulus), in double precision.

    Kernels of complex64 data take it as well, so that the product of its two parts is rounded to
    single precision once.

    Parameters
    ----------
    modulus
        Number of powers, 1..2**53 (twiddles of an axis of that length).
    sign
        Sign of the exponent, -1 or +1.
    dtype
        "D", or "G" for long double.

    Examples
    --------
    >>> phase_table(2**20, +1) is phase_table(2**20, +1)
    True
    """
    shift = ((modulus - 1).bit_length() + 1) // 2
    count = ((modulus - 1) >> shift) + 1
    coarse = unit_roots(
        np.arange(count, dtype=np.int64) << shift,
        modulus,
        sign,
        dtype,
    )
    fine = unit_roots(
        np.arange(1 << shift, dtype=np.int64),
        modulus,
        sign,
        dtype,
    )
    coarse.flags.writeable = fine.flags.writeable = False
    return PhaseTable(
        coarse,
        fine,
        shift,
        (1 << shift) - 1,
    )


#: Length of the inner table of a row.
_INNER = 64

#: Values that NumPy multiplies at a time; they stay in a cache.
_PART = 1 << 14

#: Bytes that NumPy copies in the time in which it multiplies one byte by a chirp.
CHIRP_COST = 8

#: Largest length for which squares of indices fit int64.
_SHORT = 3 * 10**9


def factor(divisor: Divisor, dtype: np.dtype[Any]) -> Any:
    """Return what to multiply values of a dtype with, in double precision or better."""
    real = np.longdouble if dtype.char in "gG" else float
    return 1 / (real(divisor.whole) * np.sqrt(real(divisor.root)))


@compiled
def _power(  # type: ignore[no-untyped-def]
    t,
    coarse,
    fine,
    shift,
    mask,
):
    return coarse[t >> shift] * fine[t & mask]


@compiled
def _multiply_by_powers(lines, outer_power, inner_powers):  # type: ignore[no-untyped-def]
    """Multiply lines[j, b] by outer_power * inner_powers[j], in place."""
    count, width = lines.shape
    if width == 1:
        line = lines[:, 0]
        for j in range(count):
            line[j] *= outer_power * inner_powers[j]
        return
    for j in range(count):
        power = outer_power * inner_powers[j]
        line = lines[j]
        for b in range(width):
            line[b] *= power


@compiled
def _twiddle_rows(  # type: ignore[no-untyped-def]
    x,
    rest,
    coarse,
    fine,
    shift,
    mask,
    scale,
    work,
):
    """Multiply x[l, f, b] by scale * W^(rest[l] * f), in place.

    W is the root whose powers `coarse` and `fine` hold (see `PhaseTable`), and rest[l] the index of
    the other digits in row l. `work` has memory for the factors of a row: `_INNER` of consecutive
    f, and one for each `_INNER` values of f, or a part of them.
    """
    rows, length, _ = x.shape
    outer = (length + _INNER - 1) // _INNER
    low = work[:_INNER]
    high = work[_INNER:]
    for row in range(rows):
        r = rest[row]
        if r == 0 and scale == 1:
            continue
        for j in range(min(_INNER, length)):
            low[j] = _power(
                r * j,
                coarse,
                fine,
                shift,
                mask,
            )
        for i in range(outer):
            high[i] = (
                _power(
                    r * i * _INNER,
                    coarse,
                    fine,
                    shift,
                    mask,
                )
                * scale
            )
        for i in range(outer):
            first = i * _INNER
            count = min(_INNER, length - first)
            _multiply_by_powers(x[row, first : first + count], high[i], low)


@compiled
def _chirp_rows(  # type: ignore[no-untyped-def]
    x,
    square,
    step,
    twice,
    inside,
    coarse,
    fine,
    shift,
    mask,
    modulus,
    factor,
    values,
):
    """Multiply x[l, p, f, b] by factor * W^(n^2), n the f-th place of row p; zero the others.

    W is the root whose powers `coarse` and `fine` hold (see `PhaseTable`). `values` has memory for
    the factors of a row, one for each f.

    Squares follow by sums: (n + s)^2 = n^2 + (2 n s + s^2), and the difference in brackets grows
    by 2 s^2 (`twice`) from one place to the next.
    """
    batches, places, count, width = x.shape
    for place in range(places):
        t = square[place]
        difference = step[place]
        for f in range(inside[place]):
            values[f] = factor * _power(
                t,
                coarse,
                fine,
                shift,
                mask,
            )
            t += difference
            if t >= modulus:
                t -= modulus
            difference += twice
            if difference >= modulus:
                difference -= modulus
        for batch in range(batches):
            if width == 1:
                line = x[batch, place, :, 0]
                for f in range(inside[place]):
                    line[f] *= values[f]
                for f in range(inside[place], count):
                    line[f] = 0
            else:
                for f in range(inside[place]):
                    for b in range(width):
                        x[batch, place, f, b] *= values[f]
                x[batch, place, inside[place] :] = 0


@compiled
def _filter_values(  # type: ignore[no-untyped-def]
    out,
    n,
    padded,
    length,
    by,
    offset,
    coarse,
    fine,
    shift,
    mask,
    scale,
):
    """Compute scale times the chirp at ``by * n + offset``, with n wrapped around `padded`."""
    for i in range(n.size):
        lag = n[i] if 2 * n[i] <= padded else n[i] - padded
        distance = abs(by * lag + offset)
        if distance < length:
            t = distance * distance % (2 * length)
            out[i] = scale * _power(
                t,
                coarse,
                fine,
                shift,
                mask,
            )
        else:
            out[i] = 0


def twiddle(
    x: Array,
    rest: Ints,
    modulus: int,
    sign: int,
    scale: Any = 1.0,
) -> None:
    """Multiply ``x[l, f, b]`` by scale * exp(sign*2j*pi*rest[l]*f/modulus), in place.

    Parameters
    ----------
    x : ndarray of complex, 3 dimensions, C-contiguous
        Rows, values of the transformed digit, and the inner dimensions.
    rest : ndarray of int64
        Index of the remaining digits, for each row.
    modulus : int
        Product of the lengths of the digit and of the remaining digits.
    scale : float
        Real factor of all values.
    """
    table = phase_table(modulus, sign, "G" if x.dtype.char == "G" else "D")
    if pays((x.dtype, x.dtype), 1, x.nbytes):
        work = np.empty(_INNER + -(-x.shape[1] // _INNER), table.coarse.dtype)
        arguments = (x, rest, *table, float(scale), work)
        if _twiddle_rows.call(arguments, may_compile()):
            return
    step = max(1, _PART // max(1, x[:1].size))
    for first in range(0, len(x), step):
        _twiddle_by_numpy(
            x[first : first + step],
            rest[first : first + step],
            table,
            scale,
        )


def _twiddle_by_numpy(
    x: Array,
    rest: Ints,
    table: PhaseTable,
    scale: Any,
) -> None:
    """Multiply some rows like `_twiddle_rows`, with the same bits."""
    rows, length, width = x.shape
    outer = -(-length // _INNER) * _INNER
    t = rest[:, None] * np.r_[: min(_INNER, length), :outer:_INNER]
    powers = _powers(table, t)
    low, high = np.split(powers, [min(_INNER, length)], axis=1)
    high = _product(high, high.dtype.type(scale))
    factors = _product(high[:, :, None], low[:, None]).reshape(rows, -1)[:, :length]
    is_unchanged = ((rest == 0) & (scale == 1))[:, None, None]
    step = max(1, _PART // (rows * width))
    for first in range(0, length, step):
        part = x[:, first : first + step]
        product = _product(part, factors[:, first : first + step, None])
        np.copyto(
            part,
            product,
            "same_kind",
            where=~is_unchanged,
        )


def _powers(table: PhaseTable, t: Ints) -> Array:
    """Return powers like `_power`, with the same bits."""
    return _product(table.coarse[t >> table.shift], table.fine[t & table.mask])


def _product(a: Array, b: Any) -> Array:
    """Return a product as compiled code has it: NumPy's own may round a sum of products once."""
    product = np.empty(np.broadcast_shapes(a.shape, b.shape), b.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(a.real * b.real, a.imag * b.imag, out=product.real)
        np.add(a.real * b.imag, a.imag * b.real, out=product.imag)
    return product


def multiply_chirp(
    x: Array,
    rest: Ints,
    stride: int,
    length: int,
    sign: int,
    factor: Any,
    turns: int = 0,
) -> None:
    """Multiply ``x[l, f, b]`` by factor * exp(sign*1j*pi*n**2/length), n = rest[l] + f*stride.

    This works in place. `rest` is repeated if it has fewer entries than x has rows. Places
    n >= length are padding or will be cropped, and are set to zero. Each of the `turns` is another
    factor 1j, for even `length` only.
    """
    batches = x.reshape(-1, len(rest), *x.shape[1:])
    rest = np.asarray(rest, np.int64)
    if x.dtype.char == "G":
        n = np.add.outer(rest, np.arange(x.shape[1], dtype=np.int64) * stride)
        batches[:, n >= length] = 0
        factor = factor * (1, 1j, -1, -1j)[turns % 4]
        chirps = factor * chirp(
            n,
            length,
            sign,
            x.dtype,
        )
        batches *= chirps[..., None]
        return
    if pays((x.dtype, x.dtype), 1, CHIRP_COST * x.nbytes):
        modulus = 2 * length
        n = rest % modulus
        by = stride % modulus
        squared = int(mulmod(by, by, modulus))
        step = (2 * mulmod(n, by, modulus) + squared) % modulus
        square = (mulmod(n, n, modulus) + sign * turns * (modulus // 4)) % modulus
        counts = np.clip(-((rest - length) // stride), 0, x.shape[1])
        arguments = (
            batches,
            square,
            step,
            2 * squared % modulus,
            counts,
            *phase_table(modulus, sign),
            modulus,
            float(factor),
            np.empty(x.shape[1], np.complex128),
        )
        if _chirp_rows.call(arguments, may_compile()):
            return
    places = np.arange(x.shape[1], dtype=np.int64) * stride
    size = max(1, _PART // max(1, batches[:, :1, :1].size))  # of places and digits at a time
    for digits in intervals(x.shape[1], size):
        for rows in intervals(len(rest), max(1, size // (digits.stop - digits.start))):
            _chirp_by_numpy(
                batches[:, rows, digits],
                np.add.outer(rest[rows], places[digits]),
                length,
                sign,
                factor,
                turns,
            )


def _chirp_by_numpy(
    x: Array,
    n: Ints,
    length: int,
    sign: int,
    factor: float,
    turns: int,
) -> None:
    """Multiply a part of the values at places n like `_chirp_rows`, with the same bits."""
    modulus = 2 * length
    residue = n % modulus
    t = (mulmod(residue, residue, modulus) + sign * turns * (modulus // 4)) % modulus
    factors = _product(_powers(phase_table(modulus, sign), t), np.complex128(factor))
    np.copyto(x, _product(x, factors[:, :, None]), "same_kind")
    x[:, n >= length] = 0


def chirp_filter(
    n: Ints,
    padded: int,
    length: int,
    sign: int,
    dtype: Any,
    step: int = 1,
    offset: int = 0,
) -> Array:
    """Return values of the convolution's filter at places n of an axis of length `padded`.

    The filter is exp(sign*1j*pi*(step*m + offset)**2/length) / padded, with m wrapped around, and
    zero for abs(step*m + offset) >= length. The convolution needs no other scale.
    """
    out = np.empty(n.size, dtype)
    has_short_squares = out.dtype.char != "G" and length < _SHORT
    if has_short_squares and pays((out.dtype, out.dtype), 1, CHIRP_COST * out.nbytes):
        arguments = (
            out,
            n.ravel(),
            padded,
            length,
            step,
            offset,
            *phase_table(2 * length, sign),
            1 / padded,
        )
        if _filter_values.call(arguments, may_compile()):
            return out.reshape(n.shape)
    lag = np.where(2 * n <= padded, n, n - padded)
    distance: Ints = np.absolute(step * lag + offset)
    inside = distance < length
    values = np.zeros(n.shape, np.result_type(dtype, np.complex128))
    if has_short_squares:  # with the bits of the loop
        powers = _powers(phase_table(2 * length, sign), distance[inside] ** 2 % (2 * length))
        values[inside] = _product(powers, np.complex128(1 / padded))
    else:
        values[inside] = chirp(
            distance[inside],
            length,
            sign,
            values.dtype,
        )
        values /= padded
    return values.astype(dtype, copy=False)


def index_of_places(digits: Sequence[Digit], places: Ints, stage: int = 0) -> Ints:
    """Return the index of the digits of one stage at places of an axis, or part of one."""
    index = np.zeros_like(places)
    for digit in reversed(digits):
        places, value = np.divmod(places, max(digit.size, 1))
        if digit.stage == stage:
            index += value * digit.stride
    return index


def _roots(
    t: Ints,
    modulus: int,
    sign: int,
    dtype: np.dtype[Any],
) -> Array:
    """Return powers of exp(sign*2j*pi/modulus), from reduced integers."""
    return phase_table(modulus, sign, "G" if dtype.char in "gG" else "D").at(t % modulus)


def _before(plan: Cosines, index: Ints, wide: np.dtype[Any]) -> Array | None:
    """Return the factors of the FFT's input."""
    n = plan.length
    root = np.sqrt(np.ones((), wide).real * 2)
    if plan.type == 2:
        return np.where(index < (n + 1) // 2, 1.0, -1.0) if plan.sine else None
    if plan.type == 3:
        factor = _roots(
            index,
            4 * n,
            +1,
            wide,
        )
        return np.where(index == 0, root, 1) * factor if plan.orthogonalize else factor
    if plan.type == 1 and plan.sine:
        return np.where(index <= n + 1, 1.0, -1.0)
    if plan.type == 1:
        return np.where(index % (n - 1) == 0, root, 1) if plan.orthogonalize else None
    if plan.halved:
        return _roots(
            index,
            2 * n,
            -1,
            wide,
        )
    return np.where((4 * index < n) == (index % 2 == 0), 1.0, -1.0)


def _after(plan: Cosines, index: Ints, wide: np.dtype[Any]) -> Array | None:
    """Return the factors of the FFT's output, of which the real part or both parts are used."""
    n = plan.length
    root = np.sqrt(np.ones((), wide).real / 2)
    if plan.type == 2:
        factor = 2 * _roots(
            index,
            4 * n,
            -1,
            wide,
        )
        return np.where(index == 0, root, 1) * factor if plan.orthogonalize else factor
    if plan.type == 3:
        return np.where(index < (n + 1) // 2, 1.0, -1.0) if plan.sine else None
    if plan.type == 1 and plan.sine:  # the imaginary part, with alternating sign
        return np.where(index <= n + 1, 1j, -1j)
    if plan.type == 1:
        return np.where(index % (n - 1) == 0, root, 1) if plan.orthogonalize else None
    if plan.halved:
        return 2 * _roots(
            4 * index + 1,
            8 * n,
            -1,
            wide,
        )
    place = np.where(index <= n // 2, index, index - n) + n // 2
    sign = np.where(place % 2 == 0, 2, -2) if plan.sine else 2
    return sign * _roots(
        2 * place + 1,
        8,
        -1,
        wide,
    )


def _along(factor: Array, axis: int, ndim: int) -> Array:
    return factor.reshape(*(-1 if a == axis else 1 for a in range(ndim)))


def before_points(
    block: Array,
    plan: Cosines,
    axis: int,
    bounds: Index,
    block_id: Index,
) -> Array:
    """Return the FFT's input: the arranged values times factors.

    Parameters
    ----------
    block : ndarray
        Real; with pairs of parts along `axis` where ``plan.pairs_in``.
    plan : Cosines
        The transform.
    axis : int
        Axis that is transformed.
    bounds : tuple of int
        Where the chunks of points begin along it, and where the last one ends.
    block_id : tuple of int
        Which block.
    """
    low = bounds[block_id[axis]]
    high = bounds[block_id[axis] + 1]
    wide = np.result_type(block.dtype, np.complex128)
    places = np.arange(low, high)
    factor = _before(plan, index_of_places(point_digits(plan, out=False), places), wide)
    if not plan.pairs_in:
        if factor is None:
            return block
        kind = np.result_type(block.dtype, np.complex64 if factor.dtype.kind == "c" else block)
        return _times(
            block,
            factor,
            axis,
            kind,
        )
    points = _of_pairs(block, axis, conjugate=plan.type == 3)
    assert factor is not None
    points *= _along(factor, axis, points.ndim).astype(points.dtype, copy=False)
    return points


def after_points(
    block: Array,
    plan: Cosines,
    axis: int,
    bounds: Index,
    divisor: Divisor,
    block_id: Index,
) -> Array:
    """Return the FFT's output times factors, as real values before they are put into order.

    Where two values were in a complex one (`plan.pairs_out`), the axis is twice as long.

    Parameters
    ----------
    block : ndarray
        Output of the FFT.
    plan, axis, bounds, block_id
        See `before_points`.
    divisor : Divisor
        What the whole transform divides by.
    """
    low = bounds[block_id[axis]]
    high = bounds[block_id[axis] + 1]
    wide = np.result_type(block.dtype, np.complex128)
    places = np.arange(low, high)
    factors = _after(plan, index_of_places(point_digits(plan, out=True), places), wide)
    real = block.real.dtype
    factors = (np.ones(1, real) if factors is None else factors) * factor(divisor, block.dtype)
    if block.dtype.kind != "c":
        return _times(
            block,
            factors,
            axis,
            real,
        )
    kind = block.dtype if factors.dtype.kind == "c" else real
    turned = _along(factors, axis, block.ndim).astype(kind, copy=False)
    if not plan.pairs_out:
        product: Array = allocate(block.shape, real)
        np.multiply(block.real, turned.real, out=product)
        if kind.kind == "c":
            product -= block.imag * turned.imag
        return product
    keeps_sign = plan.sine if plan.halved else plan.type == 4 and plan.length % 4 == 3
    return _in_pairs(block * turned, axis, conjugate=not keeps_sign)


def _of_pairs(values: Array, axis: int, conjugate: bool) -> Array:
    """Return complex values whose real and imaginary parts follow one another along an axis."""
    shape = (*values.shape[:axis], values.shape[axis] // 2, 2, *values.shape[axis + 1 :])
    real, imag = np.moveaxis(values.reshape(shape), axis + 1, 0)
    points: Array = allocate(real.shape, np.result_type(values, np.complex64))
    points.real = real
    sign = np.negative if conjugate else np.positive
    sign(imag, out=points.imag)
    return points


def _in_pairs(values: Array, axis: int, conjugate: bool) -> Array:
    """Return real values, in which real and imaginary parts follow one another along an axis."""
    count = values.shape[axis]
    before = values.shape[:axis]
    after = values.shape[axis + 1 :]
    pairs: Array = allocate((*before, count, 2, *after), values.real.dtype)
    real, imag = np.moveaxis(pairs, axis + 1, 0)
    real[...] = values.real
    sign = np.negative if conjugate else np.positive
    sign(values.imag, out=imag)
    return pairs.reshape(*before, 2 * count, *after)


def _times(
    block: Array,
    factor: Array,
    axis: int,
    dtype: np.dtype[Any],
) -> Array:
    """Return a block times factors along an axis, in a dtype."""
    out: Array = allocate(block.shape, dtype)
    kind = dtype if factor.dtype.kind == "c" else np.empty(0, dtype).real.dtype
    np.multiply(block, _along(factor, axis, block.ndim).astype(kind, copy=False), out=out)
    return out


def ends_scaled(
    block: Array,
    axis: int,
    bounds: tuple[int, ...],
    length: int,
    factor: Any,
    ends: tuple[Any, Any],
    block_id: tuple[int, ...],
) -> Array:
    """Return a block times a factor; the first and last values of an axis times others.

    Parameters
    ----------
    block : ndarray
        Real.
    axis : int
        The axis.
    bounds : tuple of int
        First values of the chunks along it, and the end of the last chunk.
    length : int
        Length of the axis; zeros may be left out at its end.
    factor : float
        Factor of all values.
    ends : (float, float)
        More factors, of the first and the last value.
    block_id : tuple of int
        Index of the block.
    """
    low = bounds[block_id[axis]]
    high = bounds[block_id[axis] + 1]
    factors = np.full(high - low, factor, block.dtype)
    if low == 0:
        factors[:1] *= block.dtype.type(ends[0])
    if high == length:
        factors[-1:] *= block.dtype.type(ends[1])
    return _times(
        block,
        factors,
        axis,
        block.dtype,
    )


def ends_of(plan: Cosines, *, out: bool) -> tuple[Any, Any]:
    """Return the factors of the first and last values of the input or of the output.

    All values of the input have a factor 2 besides.

    >>> ends_of(Cosines(False, 3, 8), out=False), ends_of(Cosines(True, 3, 8), out=False)
    ((0.5, 1), (1, 0.5))
    """
    end: Any = 1 if out else 0.5
    if plan.orthogonalize:
        end = np.sqrt(np.longdouble(0.5))
    if plan.type == 1 and not plan.sine:
        return end, end
    has_scaled_end = plan.type == 2 if out else plan.type == 3
    if not has_scaled_end:
        return 1, 1
    return (1, end) if plan.sine else (end, 1)


def divisor_of(plan: Cosines, norm: str | None) -> Divisor:
    """Return the divisor of a forward transform with a norm.

    >>> divisor_of(Cosines(False, 2, 8), "ortho")
    Divisor(whole=1, root=16)
    """
    full = 2 * plan.length + (0 if plan.type != 1 else 2 if plan.sine else -2)
    if norm == "ortho":
        return Divisor(1, full)
    return Divisor(full) if norm == "forward" else Divisor()
