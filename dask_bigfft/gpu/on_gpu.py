"""Rounds on blocks that are CuPy arrays, and copies on and between GPUs.

Results are CuPy arrays, too. The block is one tile, in passes without copies (one pass, except for
lengths that cuFFT refuses), with the same computations as tiles of host blocks. Steps that cannot
run in place allocate from CuPy's pool, so at most the block, its result and the FFT work area are
needed. Everything runs in the user's current stream.
"""

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.cuda import cupy, current, errors_of_cuda, free_pinned, in_pool
from dask_bigfft.gpu.ffts import FFTPlans
from dask_bigfft.gpu.operations import FFT, DeviceArray
from dask_bigfft.gpu.tile_work import Job, TileWork
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.tile_plan import TileLimits

Block = tuple[int, ...]

#: Strided copy: source view, target view, and True to conjugate.
Segment = tuple[Any, Any, bool]

_NO_LIMIT = 1 << 62

#: Limits that make one tile and one pass.
_WHOLE = TileLimits(_NO_LIMIT, slots=1, most=_NO_LIMIT, least=_NO_LIMIT, pieces=1)


def as_block(values: Any) -> Any:
    """Return an array on a GPU as a CuPy array."""
    return values if isinstance(values, cupy().ndarray) else cupy().asarray(values)


# --- rounds -----------------------------------------------------------------------------------


@dataclass
class _Plans:
    """FFT plans of one GPU for the tasks' own streams; one task enqueues at a time."""

    ffts: FFTPlans = field(default_factory=FFTPlans)
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)


_plans: dict[int, _Plans] = {}
_lock = threading.Lock()


def _plans_of(ordinal: int) -> _Plans:
    with _lock:
        return _plans.setdefault(ordinal, _Plans())


def forget_plans() -> None:
    """Drop the cached plans of all GPUs."""
    with _lock:  # a fork inherits the objects, but not the GPUs
        own = [ordinal for ordinal, plans in _plans.items() if plans.process == os.getpid()]
        held = {ordinal: _plans.pop(ordinal) for ordinal in own}
    for ordinal, plans in held.items():
        with plans.lock, cupy().cuda.Device(ordinal):
            plans.ffts.drop()
    if held:
        free_pinned()  # left by copies between GPUs through the host


def round_on_gpu(job: Job, gather: Callable[[], Any], filters: Mapping[int, Any]) -> Any:
    """Return a block after a round, on the GPU where it is gathered.

    Parameters
    ----------
    job : Job
        The round on the block.
    gather : callable
        Returns the block: a CuPy array, contiguous and free to overwrite. It is called again
        after memory ran out and caches were dropped.
    filters : mapping of int to array
        Spectrum of the convolution's filter, for the axes that need one; host arrays are copied.

    Raises
    ------
    DeviceMemoryError
        If the GPU has too little memory.
    """
    with errors_of_cuda():
        try:
            return _attempt(job, gather(), filters)
        except (DeviceMemoryError, cupy().cuda.memory.OutOfMemoryError):
            emit("fallback", nbytes=0)
        plans = _plans_of(int(cupy().cuda.runtime.getDevice()))
        with plans.lock:
            cupy().cuda.get_current_stream().synchronize()
            plans.ffts.drop()
            cupy().get_default_memory_pool().free_all_blocks()
        return _attempt(job, gather(), filters)


def _attempt(job: Job, values: Any, filters: Mapping[int, Any]) -> Any:
    shape = job.round.target.shape(job.block)
    if not values.size or not math.prod(shape):
        return cupy().zeros(shape, job.target)
    if values.dtype.str != job.source:
        with values.device:
            values = values.astype(job.source)
    tiles = replace(job, inside=False).tiles(_WHOLE)
    plans = _plans_of(values.device.id)
    with current(values.device), plans.lock:
        for number in range(len(tiles.plan.passes)):
            (work,) = tiles.works(number)
            values = _computed(plans.ffts, values, work, filters)
        cupy().cuda.get_current_stream().synchronize()
    return values.reshape(shape)


def _computed(plans: FFTPlans, values: Any, work: TileWork, filters: Mapping[int, Any]) -> Any:
    """Do all operations on a tile, in the stream of the task; return the result."""
    from dask_bigfft.gpu.cupy_gpu import compute  # imports numba

    plans.trim()
    ffts = [found.op for found in work.computations if isinstance(found.op, FFT)]
    area = cupy().empty(max(map(plans.prepare, ffts), default=0), np.uint8)
    emit("device_memory", device=int(cupy().cuda.runtime.getDevice()), nbytes=in_pool())
    buffers = _memory(values, work, filters)

    def array(found: DeviceArray) -> Any:
        memory = buffers[found.offset].data
        return cupy().ndarray(found.shape, np.dtype(found.dtype), memptr=memory)

    if buffers[work.source.offset] is not values:
        array(work.source)[...] = values.reshape(work.source.shape)
    for found in work.computations:
        source, target = (int(buffers[x.offset].data.ptr) for x in (found.source, found.target))
        compute(plans, found.op, source, target, int(area.data.ptr))
    return array(work.result)


def _memory(values: Any, work: TileWork, filters: Mapping[int, Any]) -> dict[int, Any]:
    """Return the memory for the arrays of a tile, with a separate buffer for each offset.

    The values are used as one of the buffers if they are large enough.
    """
    cp, buffers, sizes = cupy(), dict[int, Any](), dict[int, int]()
    for one in work.filters:
        spectrum = cp.asarray(filters[one.axis]).reshape(one.shape)[one.part]
        buffers[one.array.offset] = cp.ascontiguousarray(spectrum)
    ends = (array for found in work.computations for array in (found.source, found.target))
    for array in (work.source, work.result, *ends):
        sizes[array.offset] = max(sizes.get(array.offset, 0), array.nbytes)
    for offset, nbytes in sizes.items():
        if offset == work.source.offset and nbytes <= values.nbytes:
            buffers[offset] = values
        elif offset not in buffers:
            buffers[offset] = cp.empty(nbytes, np.uint8)
    return buffers


def roll_on_gpu(values: Any, rolls: tuple[tuple[int, int], ...]) -> Any:
    """Return a block after circular shifts: pairs of a dimension and its new first index."""
    with values.device:
        dims, firsts = zip(*rolls, strict=True)
        done = cupy().roll(values, tuple(-first for first in firsts), dims)
        cupy().cuda.get_current_stream().synchronize()
        return done


# --- copies on and between GPUs ---------------------------------------------------------------


class Gpus:
    """GPUs of this process by CuPy, numbered as in CUDA, and copies on and between them.

    Tests override methods (`testing.gpus`).
    """

    def ordinal(self, gpu: int) -> int:
        """Return the CUDA device number of a GPU."""
        return gpu

    def _on(self, gpu: int) -> Any:
        return cupy().cuda.Device(self.ordinal(gpu))

    def homes(self, blocks: Mapping[Block, Any]) -> dict[Block, int]:
        """Return the GPU of each block; empty unless all blocks are on GPUs."""
        on_gpus = all(map(is_on_gpu, blocks.values()))
        return {index: self.home(values) for index, values in blocks.items()} if on_gpus else {}

    def home(self, values: Any) -> int:
        """Return the GPU of an array."""
        return int(values.device.id)

    def empty(
        self, gpu: int, shape: int | tuple[int, ...], dtype: np.dtype[Any], zeros: bool = False
    ) -> Any:
        """Return memory of CuPy's pool; raise `DeviceMemoryError` if there is too little."""
        with self._on(gpu), errors_of_cuda():
            return (cupy().zeros if zeros else cupy().empty)(shape, dtype)

    def most(self, gpu: int) -> int:
        """Return the bytes in use on a GPU, by arrays of CuPy's pool."""
        with self._on(gpu):
            return in_pool()

    def reaches(self, gpu: int, other: int) -> bool:
        """Return True if a GPU can read the memory of another one, or its own."""
        own, far = self.ordinal(gpu), self.ordinal(other)
        return own == far or bool(cupy().cuda.runtime.deviceCanAccessPeer(own, far))

    def view(self, values: Any, start: int, counts: Sequence[int], strides: Sequence[int]) -> Any:
        """Return a strided view that begins `start` bytes after the first element."""
        at = values.data + int(start)
        return cupy().ndarray(tuple(counts), values.dtype, memptr=at, strides=tuple(strides))

    def copy(self, gpu: int, segments: Iterable[Segment]) -> None:
        """Copy segments by kernels on one GPU, maybe from other GPUs, and wait for the end.

        The kernels run in the thread's current stream, after all work in the current streams of the
        other GPUs.
        """
        cp, ready = cupy(), {self.ordinal(gpu)}
        with self._on(gpu), errors_of_cuda():
            stream = cp.cuda.get_current_stream()
            for values, target, conjugate in segments:
                owner = int(values.device.id)
                if owner not in ready:
                    ready.add(owner)
                    cp.cuda.runtime._deviceEnsurePeerAccess(owner)
                    with cp.cuda.Device(owner):
                        written = cp.cuda.get_current_stream().record()
                    stream.wait_event(written)
                if owner != self.ordinal(gpu):
                    values = _mapped(values, self.ordinal(gpu))
                if values.dtype.kind == "c" and target.dtype.kind != "c":
                    values = values.real
                if conjugate and values.dtype.kind == "c":
                    cp.conj(values, out=target)
                else:
                    target[...] = values
            stream.synchronize()

    def send(self, source: int, values: Any, target: int, out: Any, by_host: bool = False) -> None:
        """Copy a contiguous array to another GPU by the copy engine, or through pinned memory."""
        cp, own, far = cupy(), self.ordinal(target), self.ordinal(source)
        if by_host:
            with self._on(source), errors_of_cuda():
                pinned = cp.cuda.alloc_pinned_memory(values.nbytes)
                host = np.frombuffer(pinned, values.dtype, values.size)
                values.get(out=host)
        with self._on(target), errors_of_cuda():
            stream = cp.cuda.get_current_stream()
            if by_host:
                out.set(host)
            else:
                if own != far and self.reaches(target, source):
                    # Without it the driver copies through the host.
                    cp.cuda.runtime._deviceEnsurePeerAccess(far)
                pointers = out.data.ptr, own, values.data.ptr, far
                cp.cuda.runtime.memcpyPeerAsync(*pointers, values.nbytes, stream.ptr)
            stream.synchronize()


def _mapped(values: Any, ordinal: int) -> Any:
    """Return an array of another GPU as an array of this one, as CuPy's kernels require."""
    size = values.itemsize + sum(
        (n - 1) * abs(step) for n, step in zip(values.shape, values.strides, strict=True)
    )
    memory = cupy().cuda.UnownedMemory(values.data.ptr, size, values, ordinal)
    at = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(values.shape, values.dtype, memptr=at, strides=values.strides)


def home_of(number: int, blocks: int, count: int) -> int:
    """Return the GPU of a block by its number: equal batches of blocks on `count` GPUs.

    >>> [home_of(i, 6, 4) for i in range(6)]
    [0, 0, 1, 2, 2, 3]
    """
    return number * count // blocks


_gpus: list[Gpus] = [Gpus()]


def gpus() -> Gpus:
    """Return the GPUs of this process."""
    return _gpus[-1]


def use(found: Gpus | None) -> None:
    """Replace the GPUs of this process; None restores those of CuPy."""
    _gpus[1:] = [] if found is None else [found]
