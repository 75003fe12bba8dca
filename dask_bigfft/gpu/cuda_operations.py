"""What is done to arrays on a CUDA device: FFTs, whose plans are made once, and kernels.

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

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.cuda_kernels import GRID, Kernels, strided_copy
from dask_bigfft.gpu.operations import ALIGNMENT, FFT
from dask_bigfft.kernels.gpu_plans import Batch, Call, fft_calls, tiles

#: FFT plans that `trim` keeps; a round needs a handful.
MAX_PLANS = 64

#: Recordings of FFTs in tiles that are kept: a round needs one for each slot and form of piece.
MAX_GRAPHS = 64


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
def _library() -> Any:
    """Return cuFFT itself, the one that CuPy has loaded, for the call that CuPy does not have."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cufft").abs_path)


class Operations(Kernels):
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
        """Make the plans of an FFT and return the bytes of work area that they need.

        They are kept until `trim` or `drop_plans`: one that went while FFTs are under way would
        have to be made anew beside them, in memory that nobody has counted.
        """
        return max((self._need(call) for call in self._calls(op)), default=0)

    def _need(self, call: Call) -> int:
        self._make(call.batch)
        return _aligned(self._needs[call.batch]) + _staging_nbytes(call)

    def _calls(self, op: FFT) -> Any:
        double = np.dtype(op.dtype).itemsize == 16
        return fft_calls(op.kind, op.source, op.target, op.dims, double, self._tiled)

    def _plan(self, batch: Batch) -> Any:
        """The plan of a batch, which `work_nbytes` has made."""
        plan = self._plans.get(batch)
        if plan is None:
            raise DeviceError(f"no plan was made for {batch} before it is needed")
        return plan

    def _make(self, batch: Batch) -> None:
        """Make the plan of a batch, if it is not there."""
        if batch in self._plans:
            self._plans.move_to_end(batch)
            return
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
        # cuFFT copies tables in the null stream, which streams of ours do not wait for.
        cp.cuda.Stream.null.synchronize()
        taken = before - free()[0]
        self._plans[batch] = plan
        self._work_at[batch] = 0
        self._needs[batch] = asked[0]
        self._tables[batch] = max(0, int(taken))

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

    def trim(self) -> None:
        """Forget plans needed longest ago, of more than `MAX_PLANS`; nothing may be under way."""
        while len(self._plans) > MAX_PLANS:
            old, _ = self._plans.popitem(last=False)
            for kept in (self._work_at, self._needs, self._tables):
                kept.pop(old)
            self._graphs.clear()  # which may use it

    def drop_plans(self) -> None:
        """Forget all plans; nothing that uses one may be under way."""
        self._graphs.clear()
        self._plans.clear()
        self._work_at.clear()
        self._needs.clear()
        self._tables.clear()


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
        batch.n,
        *sides[0],
        come,
        *sides[1],
        go,
        batch.count,
        complex_,
        order="C",
        last_axis=0,
        last_size=None,
    )
