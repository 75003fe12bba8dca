"""What is done to arrays on a CUDA device: kernels compiled once, FFT plans made once.

The device's operations without its memory: they take addresses. One object per device and owner,
used by one thread at a time, because plans of cuFFT are not safe to share. Every plan uses the
work area that it is given at the call; CuPy's own cache of plans is never touched, since a plan in
it may run in two streams at a time.

Imports `kernels`, `errors` and this room.
"""

import ctypes
import functools
import importlib
import math
from collections import OrderedDict
from typing import Any

import numpy as np

from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.protocol import (
    ALIGNMENT,
    FFT,
    Multiply,
    Product,
    Strided,
    Term,
    Transpose,
)
from dask_bigfft.errors import DeviceError
from dask_bigfft.kernels.gpu_plans import WIDE, Batch, Call, fft_calls, tiles
from dask_bigfft.kernels.gpu_source import (
    KERNEL,
    OPTIONS,
    THREADS,
    TILE,
    Factor,
    Multiplying,
    Place,
    copy_source,
    multiply_source,
    product_source,
    transpose_source,
)

#: FFT plans that are kept; a round needs a handful.
MAX_PLANS = 64

#: Recordings of FFTs in tiles that are kept: a round needs one for each slot and form of piece.
MAX_GRAPHS = 64

#: Blocks of the grid of a kernel that runs over device memory: enough to fill any card.
GRID = 132 * 16

#: A modulus from here on leaves every place as it is.
_NO_MODULUS = 1 << 53


class At:
    """An address as CuPy's plans take arrays: something whose ``data.ptr`` is the address."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    @property
    def data(self) -> "At":
        """Itself, which has a ``ptr``."""
        return self


@functools.cache
def kernel(source: str) -> Any:
    """Return the compiled kernel of a source."""
    return cupy().RawKernel(source, KERNEL, options=OPTIONS)


@functools.cache
def _library() -> Any:
    """Return cuFFT itself, the one that CuPy has loaded, for the call that CuPy does not have."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cufft").abs_path)


def _grid(count: int) -> tuple[int]:
    return (max(1, min(GRID, -(-count // THREADS))),)


class Operations:
    """FFTs, multiplications and transposes of one owner on one device.

    Parameters
    ----------
    tiled : bool
        Whether columns of large arrays are done in tiles: it takes longer, but disturbs no copies.
    """

    def __init__(self, tiled: bool = False) -> None:
        self._tiled = tiled
        self._plans: OrderedDict[Batch, Any] = OrderedDict()
        self._work_at: dict[Batch, int] = {}
        self._needs: dict[Batch, int] = {}
        self._tables: dict[Batch, int] = {}
        self._graphs: OrderedDict[tuple[FFT, int, int, int], Any] = OrderedDict()

    # --- FFTs -------------------------------------------------------------------------------

    @property
    def tables(self) -> int:
        """Bytes of device memory that the plans took when they were made."""
        return sum(self._tables.values())

    def work_nbytes(self, op: FFT) -> int:
        """Make the plans of an FFT and return the bytes of work area that they need."""
        return max((self._need(call) for call in self._calls(op)), default=0)

    def _need(self, call: Call) -> int:
        self._plan(call.batch)
        return _aligned(self._needs[call.batch]) + _staging_nbytes(call)

    def _calls(self, op: FFT) -> Any:
        double = np.dtype(op.dtype).itemsize == 16
        return fft_calls(op.kind, op.source, op.target, op.dims, double, self._tiled)

    def _plan(self, batch: Batch) -> Any:
        plan = self._plans.get(batch)
        if plan is not None:
            self._plans.move_to_end(batch)
            return plan
        cp, asked = cupy(), [0]
        owner = object()

        def lend(size: int) -> Any:
            """Stand in for memory: a plan is told where its work area is when it is executed."""
            asked[0] = max(asked[0], size)
            memory = cp.cuda.memory.UnownedMemory(256, size, owner)
            return cp.cuda.memory.MemoryPointer(memory, 0)

        free = cp.cuda.runtime.memGetInfo
        before = free()[0]
        with cp.cuda.using_allocator(lend):
            plan = _make_plan(cp.cuda.cufft, batch)
        taken = before - free()[0]
        while len(self._plans) >= MAX_PLANS:
            old, _ = self._plans.popitem(last=False)
            self._work_at.pop(old, None)
            self._tables.pop(old, None)
            self._graphs.clear()  # which may use it
        self._plans[batch] = plan
        self._work_at[batch] = 0
        self._needs[batch] = asked[0]
        self._tables[batch] = max(0, int(taken))
        return plan

    def fft(self, op: FFT, source: int, target: int, work: int) -> None:
        """Transform in the current stream; all three are addresses.

        Tiles take hundreds of short calls. They are recorded the second time, and from then on
        put into the stream by one call: kernels are loaded by the first, which no recording may do.
        """
        if all(call.columns is None for call in self._calls(op)):
            self._fft(op, source, target, work)
            return
        key, stream = (op, source, target, work), cupy().cuda.get_current_stream()
        if key not in self._graphs:
            self._fft(op, source, target, work)
            self._graphs[key] = None
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
            return
        if self._graphs[key] is None:
            stream.begin_capture()
            try:
                self._fft(op, source, target, work)
            finally:
                recorded = stream.end_capture()
            self._graphs[key] = recorded
        self._graphs.move_to_end(key)
        self._graphs[key].launch(stream)

    def _fft(self, op: FFT, source: int, target: int, work: int) -> None:
        """Transform in the current stream, call by call."""
        cufft = cupy().cuda.cufft
        direction = cufft.CUFFT_INVERSE if op.sign > 0 else cufft.CUFFT_FORWARD
        real, complex_ = np.dtype(op.dtype).itemsize // 2, np.dtype(op.dtype).itemsize
        size_in, size_out = (real if op.kind == kind else complex_ for kind in ("r2c", "c2r"))
        for call in self._calls(op):
            plan = self._plan(call.batch)
            self._point(call.batch, plan, work)
            if call.columns is not None:
                tile = At(work + _aligned(self._needs[call.batch]))
                _by_tiles(call, plan, direction, (source, target), tile)
                source = target
                continue
            from_, to = source, target
            if call.staged is not None:
                stage = work + _aligned(self._needs[call.batch])
                if op.kind == "r2c":
                    from_ = _stage(call, op.source[op.dims[0]], real, source, stage)
                else:
                    to = stage
            for i in range(call.times):
                come = At(from_ + i * call.source_step * size_in)
                plan.fft(come, At(to + i * call.target_step * size_out), direction)
            if to != target:
                _unstage(call, op.target[op.dims[0]], real, target, to)
            source, size_in = target, size_out

    def _point(self, batch: Batch, plan: Any, work: int) -> None:
        """Tell a plan where its work area is, if it has one and it was elsewhere."""
        if not self._needs[batch] or self._work_at[batch] == work:
            return
        status = _library().cufftSetWorkArea(ctypes.c_int(plan.handle), ctypes.c_void_p(work))
        if status:
            raise DeviceError(f"cuFFT refused a work area with status {status}")
        self._work_at[batch] = work

    def drop_plans(self) -> None:
        """Forget all plans; nothing that uses one may be under way."""
        self._graphs.clear()
        self._plans.clear()
        self._work_at.clear()
        self._tables.clear()

    # --- kernels ----------------------------------------------------------------------------

    def multiply(self, op: Multiply, array: int) -> None:
        """Multiply by computed factors in the current stream."""
        count = math.prod(op.shape)
        if not count:
            return
        structure, numbers = multiplication(op)
        lengths = [np.uint64(n) for n in op.shape]
        arguments = (np.uint64(array), np.uint64(count), *lengths, *numbers)
        kernel(multiply_source(structure))(_grid(count), (THREADS,), arguments)

    def product(self, op: Product, array: int, other: int) -> None:
        """Multiply by another array in the current stream."""
        count = math.prod(op.shape)
        if not count:
            return
        repeated = tuple(n == 1 for n in op.other)
        source = product_source(repeated, np.dtype(op.dtype).itemsize == 16)
        lengths = [np.uint64(n) for n in op.shape]
        arguments = (np.uint64(array), np.uint64(count), *lengths, np.uint64(other))
        kernel(source)(_grid(count), (THREADS,), arguments)

    def transpose(self, op: Transpose, source: int, target: int) -> None:
        """Copy with the dimensions in another order in the current stream."""
        if not math.prod(op.shape):
            return
        itemsize = np.dtype(op.dtype).itemsize
        shape, axes = simplified(op.shape, op.axes)
        last = len(shape) - 1
        if axes[last] == last:
            _copy(shape, axes, itemsize, source, target)
        else:
            _turn(shape, axes, itemsize, source, target)

    def strided(self, op: Strided, source: int, target: int) -> None:
        """Copy elements to other places of another array in the current stream."""
        if not math.prod(op.counts):
            return
        itemsize = np.dtype(op.dtype).itemsize
        # Dimensions that are close together in the target last, so that writes are dense.
        dims = sorted(zip(op.counts, op.source, op.target, strict=True), key=lambda d: -abs(d[2]))
        source += op.source_start * itemsize
        target += op.target_start * itemsize
        strided_copy(dims, itemsize, source, target, GRID)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _staging_nbytes(call: Call) -> int:
    """Bytes of the dense array through which the real side of a call goes, or of a tile."""
    real = 8 if call.batch.double else 4
    if call.columns is not None:
        return _aligned(2 * real * call.batch.n[0] * call.batch.count)
    return 0 if call.staged is None else _aligned(math.prod(call.staged) * real)


def _by_tiles(call: Call, plan: Any, direction: int, ends: tuple[int, int], tile: At) -> None:
    """Transform columns where they stay in the cache; `ends` are the addresses of the array."""
    itemsize = 16 if call.batch.double else 8
    for start, dims in tiles(call):
        source, target = (end + start * itemsize for end in ends)
        strided_copy(list(dims), itemsize, source, tile.ptr, GRID, "s")
        plan.fft(tile, tile, direction)
        back = [(length, to, from_) for length, from_, to in dims]
        strided_copy(back, itemsize, tile.ptr, target, GRID, "st")


def _staging_dims(call: Call, n: int) -> list[tuple[int, int, int]]:
    """Lengths, strides in the array, and strides where it is staged."""
    assert call.staged is not None
    rows, inner, padded = call.staged
    return [(rows, n * inner, inner * padded), (inner, 1, padded), (n, inner, 1)]


def _stage(call: Call, n: int, itemsize: int, source: int, stage: int) -> int:
    """Copy the real side to where it is staged, and return the place."""
    strided_copy(_staging_dims(call, n), itemsize, source, stage, GRID)
    return stage


def _unstage(call: Call, n: int, itemsize: int, target: int, stage: int) -> None:
    """Copy the real side from where it is staged."""
    dims = [(length, to, from_) for length, from_, to in _staging_dims(call, n)]
    strided_copy(dims, itemsize, stage, target, GRID)


def _make_plan(cufft: Any, batch: Batch) -> Any:
    """Make the plan of a batch, with 64-bit sizes where it needs them."""
    sides = (
        (batch.source_embed, batch.source_stride, batch.source_distance),
        (batch.target_embed, batch.target_stride, batch.target_distance),
    )
    if not batch.wide:
        name = {"c2c": "ZZ", "r2c": "DZ", "c2r": "ZD"}[batch.kind]
        if not batch.double:
            name = name.replace("Z", "C").replace("D", "R")
        kind = getattr(cufft, f"CUFFT_{name[0]}2{name[1]}")
        return cufft.PlanNd(batch.n, *sides[0], *sides[1], kind, batch.count, "C", 0, None)
    real, complex_ = ("d", "D") if batch.double else ("f", "F")
    come, go = (real if batch.kind == kind else complex_ for kind in ("r2c", "c2r"))
    return cufft.XtPlanNd(
        batch.n, *sides[0], come, *sides[1], go, batch.count, complex_,
        order="C", last_axis=0, last_size=None,
    )


def multiplication(op: Multiply) -> tuple[Multiplying, list[Any]]:
    """Return the structure of a multiplication, and its numbers as the kernel takes them.

    Examples
    --------
    >>> structure, numbers = multiplication(Multiply((4, 8), "<c16", 0.5))
    >>> structure.ndim, structure.factors, numbers
    (2, (), [np.float64(0.5)])
    """
    factors: list[Factor] = []
    numbers: list[Any] = [np.float64(op.scale)]
    for twiddle in op.twiddles:
        left, right = _places(twiddle.left, op.shape), _places(twiddle.right, op.shape)
        factors.append(Factor(left, right))
        numbers += [np.uint64(twiddle.modulus), np.float64(twiddle.sign)]
        numbers += _numbers(twiddle.left, left) + _numbers(twiddle.right, right)
    for chirp in op.chirps:
        places = _places(chirp.place, op.shape)
        factors.append(Factor(places, None, chirp.half))
        numbers += [np.uint64(chirp.length), np.float64(chirp.sign)]
        numbers += _numbers(chirp.place, places)
    double, wide = np.dtype(op.dtype).itemsize == 16, math.prod(op.shape) >= WIDE
    structure = Multiplying(len(op.shape), double, wide, op.conjugate, tuple(factors))
    return structure, numbers


def _places(terms: tuple[Term, ...], shape: tuple[int, ...]) -> tuple[Place, ...]:
    """Which terms are digits of their place, and not the place itself."""
    return tuple(
        Place(
            term.dim,
            term.divisor != 1 or term.start + shape[term.dim] > min(term.modulus, _NO_MODULUS),
        )
        for term in terms
    )


def _numbers(terms: tuple[Term, ...], places: tuple[Place, ...]) -> list[Any]:
    found: list[Any] = []
    for term, place in zip(terms, places, strict=True):
        found += [np.uint64(term.start), np.uint64(term.stride)]
        if place.digit:
            found += [np.uint64(term.divisor), np.uint64(term.modulus)]
    return found


def simplified(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the same permuted copy with as few dimensions as can be, at least one.

    >>> simplified((2, 1, 3, 4), (3, 0, 1, 2))
    ((6, 4), (1, 0))
    """
    kept = [axis for axis in axes if shape[axis] != 1]
    groups: list[list[int]] = []
    for axis in kept:
        before = groups[-1][-1] if groups else None
        between = range(before + 1, axis) if before is not None and axis > before else None
        if between is not None and all(shape[a] == 1 for a in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    lengths = tuple(math.prod(shape[a] for a in groups[g]) for g in order) or (1,)
    return lengths, tuple(order.index(g) for g in range(len(groups))) or (0,)


def _strides(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Stride of each source dimension in the source, and in the target."""
    source = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    after = [shape[axis] for axis in axes]
    target = [0] * len(shape)
    for place, axis in enumerate(axes):
        target[axis] = math.prod(after[place + 1 :])
    return source, target


def _copy(
    shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int, source: int, target: int
) -> None:
    """Permute with the last dimension left last: rows keep together."""
    from_, to = _strides(shape, axes)
    # In the order of the target, so that writes are dense.
    dims = [(shape[a], from_[a], to[a]) for a in axes]
    strided_copy(dims, itemsize, source, target, GRID)


def strided_copy(
    dims: list[tuple[int, int, int]], itemsize: int, source: int, target: int, blocks: int,
    passing: str = "",
) -> None:
    """Copy elements in the current stream by a kernel.

    Parameters
    ----------
    dims
        Length and both strides of each dimension, in elements.
    itemsize
        Bytes of an element: 2, 4, 8 or 16; both addresses are multiples of it.
    blocks
        Most blocks of the grid.
    passing
        Sides of which the cache keeps nothing, of "s" and "t".
    """
    count = math.prod(n for n, _, _ in dims)
    numbers = [number for n, s, t in dims for number in (np.uint64(n), np.int64(s), np.int64(t))]
    arguments = (np.uint64(source), np.uint64(target), np.uint64(count), *numbers)
    grid = (max(1, min(blocks, -(-count // (4 * THREADS)))),)
    kernel(copy_source(len(dims), itemsize, passing))(grid, (THREADS,), arguments)


def _turn(
    shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int, source: int, target: int
) -> None:
    """Permute with another dimension last: tiles of the two last ones are turned."""
    from_, to = _strides(shape, axes)
    column, row = len(shape) - 1, axes[-1]  # what is dense before, and what is dense after
    others = [d for d in range(len(shape)) if d not in (row, column)]
    n, m = shape[row], shape[column]
    numbers = [
        number for d in others
        for number in (np.uint64(shape[d]), np.int64(from_[d]), np.int64(to[d]))
    ]
    arguments = (
        np.uint64(source), np.uint64(target), np.uint64(n), np.uint64(m),
        np.int64(from_[row]), np.int64(to[column]), *numbers,
    )
    tiles, batch = -(-n // TILE) * -(-m // TILE), math.prod(shape[d] for d in others)
    grid = (min(tiles, GRID), max(1, min(batch, GRID // min(tiles, GRID))))
    kernel(transpose_source(len(others), itemsize))(grid, (THREADS,), arguments)
