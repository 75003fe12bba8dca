"""What the points of an FFT are multiplied with, to make cosine and sine transforms of it.

Imports `decomposition`, `memory` and this room.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.cosines import Cosines, point_digits
from dask_bigfft.decomposition.phases import phase_table, unit_roots
from dask_bigfft.decomposition.steps import Divisor
from dask_bigfft.kernels.loop import factor as scale_of
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


def point_index(plan: Cosines, low: int, high: int, *, out: bool) -> Ints:
    """Index of the points at places `low` to ``high - 1`` of the FFT's input or output."""
    place = np.arange(low, high, dtype=np.int64)
    index = np.zeros(high - low, np.int64)
    for digit in reversed(point_digits(plan, out=out)):
        place, value = np.divmod(place, digit.size)
        index += value * digit.stride
    return index


def _roots(t: Ints, modulus: int, sign: int, dtype: np.dtype[Any]) -> Array:
    """Powers of exp(sign*2j*pi/modulus), reduced as integers."""
    t = t % modulus
    if dtype.char in "gG":
        return unit_roots(t, modulus, sign, dtype)
    return phase_table(modulus, sign).at(t)


def _before(plan: Cosines, index: Ints, wide: np.dtype[Any]) -> Array | None:
    """Factors of the FFT's input."""
    n, root = plan.length, np.sqrt(np.ones((), wide).real * 2)
    if plan.type == 2:
        return np.where(index < (n + 1) // 2, 1.0, -1.0) if plan.sine else None
    if plan.type == 3:
        factor = _roots(index, 4 * n, +1, wide)
        return np.where(index == 0, root, 1) * factor if plan.orthogonalize else factor
    if plan.type == 1 and plan.sine:
        return np.where(index <= n + 1, 1.0, -1.0)
    if plan.type == 1:
        return np.where(index % (n - 1) == 0, root, 1) if plan.orthogonalize else None
    if plan.halved:
        return _roots(index, 2 * n, -1, wide)
    return np.where((4 * index < n) == (index % 2 == 0), 1.0, -1.0)


def _after(plan: Cosines, index: Ints, wide: np.dtype[Any]) -> Array | None:
    """Factors of the FFT's output, after which the real part counts, or both parts do."""
    n, root = plan.length, np.sqrt(np.ones((), wide).real / 2)
    if plan.type == 2:
        factor = 2 * _roots(index, 4 * n, -1, wide)
        return np.where(index == 0, root, 1) * factor if plan.orthogonalize else factor
    if plan.type == 3:
        return np.where(index < (n + 1) // 2, 1.0, -1.0) if plan.sine else None
    if plan.type == 1 and plan.sine:  # the imaginary part, whose sign turns with the frequency
        return np.where(index <= n + 1, 1j, -1j)
    if plan.type == 1:
        return np.where(index % (n - 1) == 0, root, 1) if plan.orthogonalize else None
    if plan.halved:
        return 2 * _roots(4 * index + 1, 8 * n, -1, wide)
    place = np.where(index <= n // 2, index, index - n) + n // 2
    sign = np.where(place % 2 == 0, 2, -2) if plan.sine else 2
    return sign * _roots(2 * place + 1, 8, -1, wide)


def _along(factor: Array, axis: int, ndim: int) -> Array:
    return factor.reshape(*(-1 if a == axis else 1 for a in range(ndim)))


def before_points(
    block: Array, plan: Cosines, axis: int, bounds: tuple[int, ...], block_id: tuple[int, ...]
) -> Array:
    """Return the FFT's input: what the arrangement brought, times factors.

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
    low, high = bounds[block_id[axis]], bounds[block_id[axis] + 1]
    wide = np.result_type(block.dtype, np.complex128)
    factor = _before(plan, point_index(plan, low, high, out=False), wide)
    if not plan.pairs_in:
        if factor is None:
            return block
        kind = np.result_type(block.dtype, np.complex64 if factor.dtype.kind == "c" else block)
        return _times(block, factor, axis, kind)
    split = block.reshape(*block.shape[:axis], high - low, 2, *block.shape[axis + 1 :])
    shape = (*block.shape[:axis], high - low, *block.shape[axis + 1 :])
    out: Array = lend(shape, np.result_type(block.dtype, np.complex64))
    out.real = split[(slice(None),) * (axis + 1) + (0,)]
    parts = split[(slice(None),) * (axis + 1) + (1,)]
    if plan.type == 3:
        np.negative(parts, out=out.imag)
    else:
        out.imag = parts
    assert factor is not None
    out *= _along(factor, axis, out.ndim).astype(out.dtype, copy=False)
    return out


def after_points(
    block: Array,
    plan: Cosines,
    axis: int,
    bounds: tuple[int, ...],
    divisor: Divisor,
    block_id: tuple[int, ...],
) -> Array:
    """Return what the arrangement of the result takes: the FFT's output times factors.

    Parameters
    ----------
    block : ndarray
        Output of the FFT.
    plan, axis, bounds, block_id
        As `before_points` takes them.
    divisor : Divisor
        What the whole transform divides by.
    """
    low, high = bounds[block_id[axis]], bounds[block_id[axis] + 1]
    wide = np.result_type(block.dtype, np.complex128)
    factor = _after(plan, point_index(plan, low, high, out=True), wide)
    real = block.real.dtype
    if factor is None:
        factor = np.ones(1, real)
    factor = factor * scale_of(divisor, block.dtype)
    if block.dtype.kind != "c":
        return _times(block, factor, axis, real)
    kind = block.dtype if factor.dtype.kind == "c" else real
    turned = _along(factor, axis, block.ndim).astype(kind, copy=False)
    if not plan.pairs_out:
        return _real_part(block, turned)
    made = block * turned
    out: Array = lend((*block.shape[:axis], high - low, 2, *block.shape[axis + 1 :]), real)
    out[(slice(None),) * (axis + 1) + (0,)] = made.real
    parts = out[(slice(None),) * (axis + 1) + (1,)]
    if plan.sine if plan.halved else plan.type == 4 and plan.length % 4 == 3:
        parts[...] = made.imag
    else:
        np.negative(made.imag, out=parts)
    return out.reshape(*block.shape[:axis], 2 * (high - low), *block.shape[axis + 1 :])


def _times(block: Array, factor: Array, axis: int, dtype: np.dtype[Any]) -> Array:
    out: Array = lend(block.shape, dtype)
    kind = dtype if factor.dtype.kind == "c" else np.empty(0, dtype).real.dtype
    np.multiply(block, _along(factor, axis, block.ndim).astype(kind, copy=False), out=out)
    return out


def _real_part(block: Array, factor: Array) -> Array:
    """Real part of a product."""
    out: Array = lend(block.shape, block.real.dtype)
    np.multiply(block.real, factor.real, out=out)
    if factor.dtype.kind == "c":
        out -= block.imag * factor.imag
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
        Where the chunks begin along it, and where the last one ends.
    length : int
        Where the axis ends; zeros may be left out there.
    factor : float
        Of all values.
    ends : (float, float)
        Of the first and last ones, besides.
    block_id : tuple of int
        Which block.
    """
    out: Array = lend(block.shape, block.dtype)
    np.multiply(block, block.dtype.type(factor), out=out)
    low, high = bounds[block_id[axis]], bounds[block_id[axis] + 1]
    if low < high:
        for there, place, end in ((low == 0, 0, ends[0]), (high == length, -1, ends[1])):
            if there:
                out[(slice(None),) * axis + (place,)] *= block.dtype.type(end)
    return out


def in_parts(real: Array, imag: Array) -> Array:
    """Return the complex array of two parts as they are.

    ``real + 1j * imag`` has them so only where all values are finite: 0 times infinity is NaN.
    """
    out: Array = lend(real.shape, np.result_type(real.dtype, np.complex64))
    out.real, out.imag = real, imag
    return out


def ends_of(plan: Cosines, *, out: bool) -> tuple[Any, Any]:
    """Return what the first and last values are multiplied with, of the input or of the output.

    Beside a factor 2 of all values of the input.

    >>> ends_of(Cosines(False, 3, 8), out=False), ends_of(Cosines(True, 3, 8), out=False)
    ((0.5, 1), (1, 0.5))
    """
    half, root = 0.5, np.sqrt(np.longdouble(0.5))
    if plan.type == 1 and not plan.sine:
        found = (root if plan.orthogonalize else 1) if out else root if plan.orthogonalize else half
        return found, found
    if plan.type == 3 and not out:
        end = root if plan.orthogonalize else half
    elif plan.type == 2 and out and plan.orthogonalize:
        end = root
    else:
        return 1, 1
    return (1, end) if plan.sine else (end, 1)


def divisor_of(plan: Cosines, norm: str | None, backwards: bool) -> Divisor:
    """Return what a norm divides by; `backwards` for an inverse transform.

    >>> divisor_of(Cosines(False, 2, 8), "ortho", False)
    Divisor(whole=1, root=16)
    """
    full = 2 * plan.length + (0 if plan.type != 1 else 2 if plan.sine else -2)
    if norm == "ortho":
        return Divisor(1, full)
    return Divisor(full) if (norm == "forward") != backwards else Divisor()
