"""What devices do to arrays, as NumPy does it: values for the simulated device.

Imports `decomposition`, `errors` and this room.
"""

import math
from typing import Any

import numpy as np
import scipy.fft

from dask_bigfft.decomposition.phases import chirp, phase_table
from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu.operations import (
    FFT,
    Array,
    ChirpFactor,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Term,
    Transpose,
    Twiddle,
)


def work_area(op: FFT) -> int:
    """Bytes of work area: as libraries have it, much for all but small powers of two."""
    lengths = [max(op.source[dim], op.target[dim]) for dim in op.dims]
    if all(n & (n - 1) == 0 and n <= 4096 for n in lengths):
        return 0
    size = max(math.prod(op.source), math.prod(op.target))
    return size * np.dtype(op.dtype).itemsize


def transformed(op: FFT, x: Array) -> Array:
    """The FFT of an array."""
    dim = op.dims[0]
    if op.kind == "r2c":
        return np.asarray(scipy.fft.rfft(x, axis=dim))
    if op.kind == "c2r":
        return np.asarray(scipy.fft.irfft(x, op.target[dim], axis=dim, norm="forward"))
    if op.sign < 0:
        return np.asarray(scipy.fft.fftn(x, axes=op.dims))
    return np.asarray(scipy.fft.ifftn(x, axes=op.dims, norm="forward"))


def index_of(terms: tuple[Term, ...], shape: tuple[int, ...]) -> Array:
    """The sum of terms at every place of an array, as integers that broadcast to its shape."""
    index = np.zeros((1,) * len(shape), np.int64)
    for term in terms:
        place = np.arange(term.start, term.start + shape[term.dim], dtype=np.int64)
        part = place // term.divisor % term.modulus * term.stride
        index = index + part.reshape([-1 if d == term.dim else 1 for d in range(len(shape))])
    return index


def _twiddle(factor: Twiddle, shape: tuple[int, ...], most: int) -> Array:
    power = index_of(factor.left, shape) * index_of(factor.right, shape)
    if power.size and power.max() >= most * factor.modulus:
        raise DeviceError(f"the product of indices reaches {most} times the modulus in {factor}")
    power %= factor.modulus
    return phase_table(factor.modulus, factor.sign).at(power)


def _chirp(factor: ChirpFactor, shape: tuple[int, ...]) -> Array:
    place = index_of(factor.place, shape)
    values = chirp(place, factor.length, factor.sign)
    if factor.half:
        values = np.where((place == 0) | (2 * place == factor.length), values, 2 * values)
    return np.where(place < factor.end, values, 0)


def factors_of(op: Multiply) -> Any:
    """What every element is multiplied with, but for the scale."""
    factors: Any = 1.0
    for twiddle in op.twiddles:
        factors = factors * _twiddle(twiddle, op.shape, 4 if op.chirps else 1)
    for found in op.chirps:
        factors = factors * _chirp(found, op.shape)
    return factors


def multiplied(op: Multiply, x: Array) -> Array:
    """An array (or its conjugate) times factors that are computed; 0 behind the end of a chirp."""
    with np.errstate(invalid="ignore"):  # whatever lies behind the end of a chirp
        found = np.asarray((np.conj(x) if op.conjugate else x) * (op.scale * factors_of(op)))
    for chirp_factor in op.chirps:
        found = np.where(index_of(chirp_factor.place, op.shape) < chirp_factor.end, found, 0)
    return found


def carried(by: Multiply | None, x: Array) -> Array:
    """What a copy takes to another place."""
    return x if by is None else multiplied(by, x)


def _fits(by: Multiply | None, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a copy of elements can multiply them by some factors."""
    return by is None or (by.shape == shape and by.dtype == dtype)


def places_at(start: int, strides: tuple[int, ...], counts: tuple[int, ...]) -> Array:
    """Places of the elements of a box in an array: those of one side of a `Strided`."""
    places = np.full((1,) * len(counts), start, np.int64)
    for dim, (count, stride) in enumerate(zip(counts, strides, strict=True)):
        steps = np.arange(count, dtype=np.int64) * stride
        places = places + steps.reshape([-1 if d == dim else 1 for d in range(len(counts))])
    return places


def check_strided(op: Strided, source: DeviceArray, target: DeviceArray) -> None:
    """Refuse a copy that leaves its arrays, or whose arrays are of another dtype or overlap."""
    sides = (source, op.source_start, op.source), (target, op.target_start, op.target)
    count = math.prod(op.counts)
    for array, start, strides in sides:
        reach = [(n - 1) * s for n, s in zip(op.counts, strides, strict=True)]
        low, high = start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0)
        inside = low >= 0 and (not count or high < array.size)
        if array.dtype != op.dtype or not inside or not _fits(op.by, op.counts, op.dtype):
            raise DeviceError(f"{op} from {source} to {target}")
    first, second = sorted((source, target), key=lambda a: a.offset)
    if first.offset + first.nbytes > second.offset:
        raise DeviceError(f"{op} between arrays that overlap: {source}, {target}")


def check_arrays(
    op: FFT | Multiply | Product | Transpose, source: DeviceArray, target: DeviceArray
) -> None:
    """Refuse arrays that are not what the description says, or that overlap."""
    if isinstance(op, FFT):
        shapes, real = (op.source, op.target), np.empty(0, op.dtype).real.dtype.str
        came, goes = (real if op.kind == kind else op.dtype for kind in ("r2c", "c2r"))
        dtypes = (came, goes)
        inside = op.kind == "c2c"
    else:
        after = op.shape
        if isinstance(op, Transpose):
            after = tuple(op.shape[axis] for axis in op.axes)
            if not _fits(op.by, op.shape, op.dtype):
                raise DeviceError(f"{op} has factors of another array")
        shapes, dtypes = (op.shape, after), (op.dtype, op.dtype)
        inside = not isinstance(op, Transpose)
    if (source.shape, target.shape) != shapes or (source.dtype, target.dtype) != dtypes:
        raise DeviceError(f"{op} from {source} to {target}")
    low, high = sorted((source, target), key=lambda a: a.offset)
    if not (inside and source == target) and low.offset + low.nbytes > high.offset:
        raise DeviceError(f"{op} between arrays that overlap: {source}, {target}")


def check_copy(host: Array, device: DeviceArray) -> None:
    """Refuse a copy between arrays of unlike shapes or dtypes, or of strides that do not fall."""
    if host.shape != device.shape or host.dtype.str != device.dtype:
        raise DeviceError(f"copy between {host.shape} {host.dtype.str} and {device}")
    steps = [s for n, s in zip(host.shape, host.strides, strict=True) if n > 1]
    if host.size and (any(s <= 0 for s in steps) or steps != sorted(steps, reverse=True)):
        raise DeviceError(f"a host array with strides {host.strides}: they have to fall")
