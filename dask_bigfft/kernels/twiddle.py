"""Twiddles and chirps: what a block is multiplied with between FFTs.

The twiddle of one row of a block (the values of a digit k for one index r of the digits still
to come) is W^(k*r). It is made from two short tables per row, W^(r*64*i) and W^(r*j), which in
turn are read off the exact two-level `PhaseTable`, so the phase never leaves the integers and
the inner loop is two multiplications without a table walk.

Along a chirp n**2 grows by 2*n*stride + stride**2, which grows by 2*stride**2: two additions mod
twice its length, and no product of large numbers.

Imports numpy, `decomposition` and this room.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.phases import chirp, mulmod, phase_table, unit_roots
from dask_bigfft.kernels.compiled import compiled, squares_of_line

#: Length of the inner of the two tables of a row.
_INNER = 64

#: Values that are multiplied before they are weighed.
WEIGHED = 512

#: Lengths up to which the squares of their indices fit int64.
_SHORT = 3 * 10**9


@compiled
def _power(t, coarse, fine, shift, mask):  # type: ignore[no-untyped-def]
    return coarse[t >> shift] * fine[t & mask]


@compiled
def _twiddle_rows(x, rest, coarse, fine, shift, mask, scale, parts, weigh):  # type: ignore[no-untyped-def]
    """Multiply x[l, f, b] by scale * W^(rest[l] * f), in place.

    Return the energy of what has been made of it if `weigh` is True and not None: of some values at
    a time, while they are in L1; `parts` are all values, as real ones.
    """
    rows, digits, width = x.shape
    total, some = 0.0, max(1, WEIGHED // (_INNER * width))
    outer = (digits + _INNER - 1) // _INNER
    low = np.empty(_INNER, coarse.dtype)
    high = np.empty(outer, coarse.dtype)
    for row in range(rows):
        r, begin = rest[row], 2 * row * digits * width
        if r == 0 and scale == 1:
            if weigh is not None:
                total += squares_of_line(parts[begin : begin + 2 * digits * width])
            continue
        for j in range(min(_INNER, digits)):
            low[j] = _power(r * j, coarse, fine, shift, mask)
        for i in range(outer):
            high[i] = _power(r * i * _INNER, coarse, fine, shift, mask) * scale
        for i in range(outer):
            first = i * _INNER
            count = min(_INNER, digits - first)
            factor = high[i]
            if width == 1:
                line = x[row, first : first + count, 0]
                for j in range(count):
                    line[j] *= factor * low[j]
            else:
                for j in range(count):
                    w = factor * low[j]
                    line = x[row, first + j]
                    for b in range(width):
                        line[b] *= w
            if weigh is not None and ((i + 1) % some == 0 or i + 1 == outer):
                end = 2 * (row * digits + first + count) * width
                total += squares_of_line(parts[begin:end])
                begin = end
    return total


@compiled
def _chirp_rows(  # type: ignore[no-untyped-def]
    x, square, step, twice, inside, coarse, fine, shift, mask, modulus, factor
):
    """Multiply x[l, p, f, b] by factor * W^(n^2), n the f-th place of row p; zero the others."""
    batches, places, digits, width = x.shape
    values = np.empty(digits, coarse.dtype)
    for place in range(places):
        t, more = square[place], step[place]
        for f in range(inside[place]):
            values[f] = factor * _power(t, coarse, fine, shift, mask)
            t += more
            if t >= modulus:
                t -= modulus
            more += twice
            if more >= modulus:
                more -= modulus
        for f in range(inside[place], digits):
            values[f] = 0
        for batch in range(batches):
            if width == 1:
                line = x[batch, place, :, 0]
                for f in range(inside[place]):
                    line[f] *= values[f]
                for f in range(inside[place], digits):
                    line[f] = 0
            else:
                for f in range(inside[place]):
                    for b in range(width):
                        x[batch, place, f, b] *= values[f]
                x[batch, place, inside[place] :] = 0


@compiled
def _filter_values(  # type: ignore[no-untyped-def]
    out, n, padded, length, by, offset, coarse, fine, shift, mask, scale
):
    """The chirp at `by` times n, wrapped around `padded`, and an offset, times a scale."""
    for i in range(n.size):
        lag = n[i] if 2 * n[i] <= padded else n[i] - padded
        distance = abs(by * lag + offset)
        if distance < length:
            t = distance * distance % (2 * length)
            out[i] = scale * _power(t, coarse, fine, shift, mask)
        else:
            out[i] = 0


def twiddle(
    x: npt.NDArray[Any],
    rest: npt.NDArray[np.int64],
    modulus: int,
    sign: int,
    scale: Any = 1.0,
    weigh: bool = False,
) -> float | None:
    """Multiply ``x[l, f, b]`` by scale * exp(sign*2j*pi*rest[l]*f/modulus), in place.

    Parameters
    ----------
    x : ndarray of complex, 3 dimensions, C-contiguous
        Rows, values of the transformed digit, and what lies inside of it.
    rest : ndarray of int64
        Index made of the digits still to come, for each row.
    modulus : int
        Product of the lengths of the digit and of those still to come.
    scale : float
        Real factor of all values.
    weigh : bool
        Whether to return the sum of squared magnitudes of what has been made; long double has none.
    """
    if x.dtype.char == "G":
        steps = np.arange(x.shape[1], dtype=np.int64)
        for row, r in zip(x, rest, strict=True):
            row *= (scale * unit_roots(r * steps, modulus, sign, x.dtype))[:, None]
        return None
    table = phase_table(modulus, sign)
    parts = x.reshape(-1).view(np.float32 if x.dtype.char == "F" else np.float64)
    total: float = _twiddle_rows(
        x,
        rest,
        table.coarse,
        table.fine,
        table.shift,
        table.mask,
        float(scale),
        parts,
        weigh or None,
    )
    return total if weigh else None


def _chirp(n: npt.NDArray[np.int64], length: int, sign: int, dtype: Any) -> npt.NDArray[Any]:
    """exp(sign*1j*pi*n**2/length) for n >= 0: long ones are read off a phase table."""
    if np.dtype(dtype).char == "G":
        return chirp(n, length, sign, dtype)
    modulus = 2 * length
    residue = n % modulus
    return phase_table(modulus, sign).at(mulmod(residue, residue, modulus))


def multiply_chirp(
    x: npt.NDArray[Any],
    rest: npt.NDArray[np.int64],
    stride: int,
    length: int,
    sign: int,
    factor: Any,
    turns: int = 0,
) -> None:
    """Multiply ``x[l, f, b]`` by factor * exp(sign*1j*pi*n**2/length), n = rest[l] + f*stride.

    In place. `rest` may be shorter than x is long: it then applies again and again. Places
    n >= length hold padding or what is going to be cropped, and are zeroed. Each of the `turns`
    is another factor 1j; `length` is even then.
    """
    batches = x.reshape(-1, len(rest), *x.shape[1:])
    if x.dtype.char != "G":
        _multiply_chirp(batches, rest, stride, length, sign, factor, turns)
        return
    factor = factor * (1, 1j, -1, -1j)[turns % 4]
    steps = np.arange(x.shape[1], dtype=np.int64) * stride
    for place, r in enumerate(rest):
        n = r + steps
        inside = int(np.count_nonzero(n < length))
        values = _chirp(n[:inside], length, sign, np.result_type(x.dtype, np.complex128))
        batches[:, place, :inside] *= (factor * values)[:, None]
        batches[:, place, inside:] = 0


def _multiply_chirp(
    x: npt.NDArray[Any],
    rest: npt.NDArray[np.int64],
    stride: int,
    length: int,
    sign: int,
    factor: Any,
    turns: int,
) -> None:
    modulus = 2 * length
    table = phase_table(modulus, sign)
    n, by = np.asarray(rest, np.int64) % modulus, stride % modulus
    product = mulmod(n, by, modulus)
    step = (2 * product + int(mulmod(by, by, modulus))) % modulus
    inside = np.clip(-((np.asarray(rest, np.int64) - length) // stride), 0, x.shape[2])
    square = (mulmod(n, n, modulus) + sign * turns * (modulus // 4)) % modulus
    _chirp_rows(
        x,
        square,
        step,
        2 * int(mulmod(by, by, modulus)) % modulus,
        inside,
        table.coarse,
        table.fine,
        table.shift,
        table.mask,
        modulus,
        float(factor),
    )


def chirp_filter(
    shape: tuple[int, ...],
    n: npt.NDArray[np.int64],
    padded: int,
    length: int,
    sign: int,
    dtype: npt.DTypeLike,
    step: int = 1,
    offset: int = 0,
) -> npt.NDArray[Any]:
    """Values of the convolution's filter at the places n of an axis of length `padded`.

    The filter is the chirp exp(sign*1j*pi*(step*m + offset)**2/length), where the square's root is
    below `length`, wrapped around, over `padded`, so that the convolution needs no other scale.
    """
    if np.dtype(dtype).char != "G" and length < _SHORT:
        table = phase_table(2 * length, sign)
        found = np.empty(n.size, dtype)
        _filter_values(
            found,
            n.ravel(),
            padded,
            length,
            step,
            offset,
            table.coarse,
            table.fine,
            table.shift,
            table.mask,
            1 / padded,
        )
        return found.reshape(shape)
    lag = np.where(2 * n <= padded, n, n - padded)
    distance: npt.NDArray[np.int64] = np.absolute(step * lag + offset)
    inside = distance < length
    values = np.zeros(n.shape, np.result_type(dtype, np.complex128))
    values[inside] = _chirp(distance[inside], length, sign, values.dtype)
    values /= padded
    return values.reshape(shape).astype(dtype, copy=False)
