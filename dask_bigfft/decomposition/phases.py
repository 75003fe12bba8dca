"""Exact phases: roots of unity, twiddles and chirps whose integers are reduced before the sine.

Imports NumPy and `errors`. The angle of exp(2j*pi*t/m) loses as many digits as t/m has, and of
exp(1j*pi*n**2/m) twice as many, if the quotient is rounded first. So t is reduced mod m, and then
to the nearest quarter turn, in integers; only what is left, at most an eighth of a turn, meets
floating point::

    4*t = q*m + d,  |d| <= m/2      exp(2j*pi*t/m) = 1j**q * exp(0.5j*pi * d/m)

Phases of single-precision data are computed in double and rounded once at the end.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse

#: Moduli of `mulmod` and `chirp` lie below it.
MAX_MODULUS = 2**62

# np.pi is a double; long double needs its own.
_PI = "3.14159265358979323846264338327950288419716939937510582"
# Below it 4*t + m/2 fits int64.
_FAST_MODULUS = 2**60


def unit_roots(
    t: npt.ArrayLike, m: int, sign: int, dtype: npt.DTypeLike = np.complex128
) -> npt.NDArray[Any]:
    """Return exp(sign*2j*pi*t/m), as accurate for a huge `t` as for a small one.

    Parameters
    ----------
    t
        Integers of any size: int64, uint64, or Python integers in an object array.
    m
        The order of the root, 1 or more.
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
    if m < 1:
        refuse("m", m, "1 or more")
    if sign not in (-1, 1):
        refuse("sign", sign, "-1 or +1")
    integers = np.asarray(t)
    quarter, rest = _reduce(np.atleast_1d(integers), int(m))
    out_dtype = np.dtype(dtype)
    real_type: Any = np.longdouble if out_dtype == np.clongdouble else np.float64
    ratio = rest.astype(real_type) / real_type(m)
    angle = np.abs(ratio) * (real_type(_PI) / 2)
    cos, sin = np.cos(angle), np.copysign(np.sin(angle), ratio)
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


def _reduce(t: npt.NDArray[Any], m: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the nearest quarter turn 0..3 of t/m and what is left of 4*t, within -m/2..m/2."""
    if t.dtype.kind not in "iuO":
        refuse("t", t.dtype, "an array of integers")
    if m > _FAST_MODULUS or t.dtype.kind == "O":
        t = np.asarray(t.astype(object) % m, dtype=object)
        if m > _FAST_MODULUS:
            quarter = (4 * t + m // 2) // m
            rest = np.asarray(4 * t - quarter * m, dtype=object)
            return np.asarray(quarter % 4).astype(np.int64), rest
    if t.dtype != np.uint64:  # whose values need not fit int64
        t = t.astype(np.int64)
    t = np.asarray(t % m).astype(np.int64)
    quarter = (4 * t + m // 2) // m
    return quarter % 4, 4 * t - quarter * m


def mulmod(a: npt.ArrayLike, b: npt.ArrayLike, m: int) -> npt.NDArray[np.int64]:
    """Return a*b mod `m` exactly, though the product needs up to 124 bits.

    Parameters
    ----------
    a, b
        Integers in 0..m-1 (not checked: the caller reduces); they broadcast.
    m
        The modulus, 1 <= m < 2**62.

    Notes
    -----
    Up to 2**31 the product fits int64; up to 2**42 that of `a` and half of `b` fits uint64. Above,
    b = b1*2**31 + b0 is taken half by half as well: the quotient by m is below 2**32, so double
    precision finds it to within one, and the remainder, in (-m, 2m), is right in wrapping 64-bit
    arithmetic. The three take about 1, 1 and 3 times as long.

    Examples
    --------
    >>> m = 2**61 - 1
    >>> mulmod([m - 1, 2**40], [m - 1, 2**40], m)
    array([     1, 524288])
    """
    if not 1 <= m < MAX_MODULUS:
        refuse("m", m, f"1..{MAX_MODULUS - 1}")
    x, y = np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64)
    if m <= 2**31:
        return np.asarray(x * y % m)
    if m <= 2**42:
        u, v = x.astype(np.uint64), y.astype(np.uint64)
        return np.asarray(((u * (v >> 21) % m << 21) + u * (v & (2**21 - 1))) % m).astype(np.int64)
    # NumPy warns of wrapping in scalars only: work on arrays of one axis at least.
    shape = np.broadcast_shapes(x.shape, y.shape)
    x, y = np.atleast_1d(x), np.atleast_1d(y)
    high = _muladd_mod(x, y >> 31, None, m)
    return _muladd_mod(x, y & (2**31 - 1), high, m).reshape(shape)


def _muladd_mod(
    a: npt.NDArray[np.int64],
    digit: npt.NDArray[np.int64],
    carry: npt.NDArray[np.int64] | None,
    m: int,
) -> npt.NDArray[np.int64]:
    """Return (carry*2**31 + a*digit) mod m for a digit below 2**31 and a carry below m < 2**62."""
    estimate = a.astype(np.float64) * digit
    exact = a * digit  # wraps: right mod 2**64
    if carry is not None:
        estimate += carry.astype(np.float64) * 2.0**31
        exact += carry << 31
    quotient = np.floor(estimate / m).astype(np.int64)
    exact -= quotient * m
    exact += np.where(exact < 0, m, 0)
    exact -= np.where(exact >= m, m, 0)
    return exact


def chirp(
    n: npt.ArrayLike, length: int, sign: int, dtype: npt.DTypeLike = np.complex128
) -> npt.NDArray[Any]:
    """Return exp(sign*1j*pi*n**2/length), the factor that Bluestein's transform is made of.

    Parameters
    ----------
    n
        Integers (int64) of either sign.
    length
        Length of the axis, below 2**61.
    sign
        Sign of the exponent, -1 or +1.
    dtype
        complex64, complex128 or clongdouble.

    Notes
    -----
    n**2 is reduced mod 2*length in exact integers. Long runs of double-precision factors come
    several times faster from ``phase_table(2*length, sign).at(mulmod(r, r, 2*length))`` with
    r = n mod 2*length.

    Examples
    --------
    >>> chirp([0, 2, 4, -4], 4, -1)
    array([ 1.+0.j, -1.+0.j,  1.+0.j,  1.+0.j])
    """
    if not 1 <= length < MAX_MODULUS // 2:
        refuse("length", length, f"1..{MAX_MODULUS // 2 - 1}")
    modulus = 2 * length
    residue = np.asarray(n, dtype=np.int64) % modulus
    return unit_roots(mulmod(residue, residue, modulus), modulus, sign, dtype)


@dataclass(frozen=True, eq=False)
class PhaseTable:
    """All powers of a root of unity, from two tables of about the square root of their number.

    W**t = coarse[t >> shift] * fine[t & mask] for 0 <= t < modulus, W = exp(sign*2j*pi/modulus).

    Examples
    --------
    >>> table = phase_table(1000, -1)
    >>> table.coarse.size, table.fine.size
    (32, 32)
    >>> bool(abs(table.at(250) - (-1j)) < 1e-15)
    True
    """

    #: Number of powers.
    modulus: int
    #: Sign of the exponent.
    sign: int
    #: log2 of the size of `fine`.
    shift: int
    #: W**(j << shift); read-only.
    coarse: npt.NDArray[Any]
    #: W**j for j < 2**shift; read-only.
    fine: npt.NDArray[Any]

    @property
    def mask(self) -> int:
        """The bits of t that index `fine`."""
        return (1 << self.shift) - 1

    @property
    def nbytes(self) -> int:
        """Bytes that both tables take."""
        return self.coarse.nbytes + self.fine.nbytes

    def at(self, t: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return W**t for 0 <= t < modulus (the caller reduces)."""
        index = np.asarray(t)
        return np.asarray(self.coarse[index >> self.shift] * self.fine[index & self.mask])


def phase_table(modulus: int, sign: int) -> PhaseTable:
    """Return the cached table of the powers of exp(sign*2j*pi/modulus), in double precision.

    Kernels of complex64 data take it as well, so that the product of its two parts is rounded to
    single precision once.

    Parameters
    ----------
    modulus
        Number of powers, 1..2**53 (twiddles of an axis of that length).
    sign
        Sign of the exponent, -1 or +1.

    Examples
    --------
    >>> phase_table(2**20, +1) is phase_table(2**20, +1)
    True
    """
    if not 1 <= modulus <= 2**53:
        refuse("modulus", modulus, "1..2**53")
    return _phase_table(int(modulus), sign)


# A process works on a few lengths at a time; the tables of 2**40 take 32 MiB.
@lru_cache(maxsize=8)
def _phase_table(modulus: int, sign: int) -> PhaseTable:
    shift = ((modulus - 1).bit_length() + 1) // 2
    count = ((modulus - 1) >> shift) + 1
    coarse = unit_roots(np.arange(count, dtype=np.int64) << shift, modulus, sign)
    fine = unit_roots(np.arange(1 << shift, dtype=np.int64), modulus, sign)
    coarse.flags.writeable = fine.flags.writeable = False
    return PhaseTable(modulus, sign, shift, coarse, fine)
