"""Copies on GPUs and over the links between them.

`Gpus` are the GPUs of this process. Copies are enqueued in the current stream of a GPU, or in side
streams: the copy engine of a GPU writes wide rows to another one, and kernels read narrow rows.
"""

import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dask_bigfft.gpu import operations
from dask_bigfft.gpu.cuda import cupy, errors_of_cuda, in_pool, synchronize
from dask_bigfft.gpu.row_copies import TableCopy, copied_by_rows
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.tile_plan import LINK_ROW_NBYTES

Block = tuple[int, ...]

#: Copy of a whole array: source, target, and True to conjugate.
ArrayCopy = tuple[Any, Any, bool]

#: Maximum number of calls of a copy engine for a segment.
LINK_CALLS = 64

#: Maximum bytes that are brought from another GPU at once to be put in place by a kernel.
MESSAGE_NBYTES = 1 << 28

#: Largest distance of two rows in a call, in bytes, and the kind of copy that needs no direction.
_MAX_PITCH = 2**31 - 1
_ANY = 4

#: Bytes of a copy that measures a link.
PROBE = 1 << 26

#: Calls of a copy engine: first byte on either side, distances of rows, their width and number.
Calls = list[tuple[int, int, int, int, int, int]]

#: Copy by an engine: its calls, and the address on the engine's GPU and on another one.
Written = tuple[Calls, int, int]


class Gpus:
    """GPUs of this process by CuPy, numbered as in CUDA, and copies on and between them.

    Tests override methods (`testing.gpus`).
    """

    def ordinal(self, gpu: int) -> int:
        """Return the CUDA device number of a GPU."""
        return gpu

    def __init__(self) -> None:
        self._speeds: dict[tuple[int, int], float] = {}
        self._sides: dict[tuple[int, bool], _Side] = {}
        #: End of the last copy by an engine to each GPU.
        self._arrived: dict[int, tuple[Any, ...]] = {}

    def speed(self, source: int, target: int) -> float:
        """Return bytes per second from one GPU to another, measured at the first call."""
        if (source, target) not in self._speeds:
            ends = [self.empty(gpu, PROBE, np.dtype("u1")) for gpu in (source, target)]
            self.join((source, target))
            for _ in range(2):  # the first one opens the way
                with self._on(target):
                    stream = cupy().cuda.get_current_stream()
                    stream.synchronize()
                    started = time.perf_counter()
                    self.send(
                        source,
                        ends[0],
                        target,
                        ends[1],
                    )
                    stream.synchronize()
            self._speeds[source, target] = PROBE / (time.perf_counter() - started)
        return self._speeds[source, target]

    def join(self, numbers: Iterable[int]) -> None:
        """Let later work in the current streams of these GPUs wait for that of all of them."""
        ordinals = set(map(self.ordinal, numbers))
        if len(ordinals) == 1:
            return
        ends = {ordinal: _end(ordinal) for ordinal in ordinals}
        for ordinal in ordinals:
            _wait(ordinal, (end for other, end in ends.items() if other != ordinal))

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
        self,
        gpu: int,
        shape: int | tuple[int, ...],
        dtype: np.dtype[Any],
        zeros: bool = False,
    ) -> Any:
        """Return memory of CuPy's pool; raise `DeviceMemoryError` if there is too little."""
        with self._on(gpu), errors_of_cuda():
            return (cupy().zeros if zeros else cupy().empty)(shape, dtype)

    def used_nbytes(self, gpu: int) -> int:
        """Return the bytes in use on a GPU, by arrays of CuPy's pool."""
        with self._on(gpu):
            return in_pool()

    def reaches(self, gpu: int, other: int) -> bool:
        """Return True if a GPU can read the memory of another one, or its own."""
        own = self.ordinal(gpu)
        far = self.ordinal(other)
        return own == far or bool(cupy().cuda.runtime.deviceCanAccessPeer(own, far))

    def view(
        self,
        values: Any,
        start: int,
        counts: Sequence[int],
        strides: Sequence[int],
    ) -> Any:
        """Return a strided view that begins `start` bytes after the first element."""
        at = values.data + int(start)
        return cupy().ndarray(
            tuple(counts),
            values.dtype,
            memptr=at,
            strides=tuple(strides),
        )

    def now(self, gpu: int) -> Any:
        """Return an event after all work so far in the current stream of a GPU."""
        return _end(self.ordinal(gpu))

    def wait(self, gpu: int, events: Iterable[Any]) -> None:
        """Let later work in the current stream of a GPU wait for events."""
        _wait(self.ordinal(gpu), events)
        with self._on(gpu):
            synchronize()

    def copy(self, gpu: int, copies: Iterable[ArrayCopy]) -> None:
        """Copy arrays within a GPU."""
        with self._on(gpu), errors_of_cuda():
            for values, target, conjugate in copies:
                _put(values, target, conjugate)
            synchronize()

    def copy_tables(self, gpu: int, copies: Sequence[TableCopy]) -> None:
        """Do strided copies within a GPU, in one launch if their rows are wide."""
        with self._on(gpu), errors_of_cuda():
            is_copied = copied_by_rows(copies)
            if is_copied:
                synchronize()
        if not is_copied:
            self.copy(gpu, array_copies(copies))

    def copy_aside(
        self, gpu: int, copies: Sequence[TableCopy], events: Sequence[Any]
    ) -> dict[int, Any]:
        """Do strided copies, all from one GPU, to `gpu` in side streams after events.

        Rows that are wide enough are written by the copy engine of their GPU, others are read.
        Returns the end in each stream, by the GPU of the stream.
        """
        own = self.ordinal(gpu)
        far = int(copies[0][0].device.id)
        near_side = self._side(own, own)
        ends: dict[int, Any] = {}
        try:
            with errors_of_cuda():
                written, read = self._ways(copies, is_peer=own != far)
                if written:
                    ends[far] = self._write(
                        written,
                        far,
                        own,
                        events,
                    )
                if read:
                    with self._on(gpu), near_side.stream:
                        near_side.after(events)
                        for values, target, conjugate in read:
                            self._read(
                                values,
                                target,
                                conjugate,
                                own,
                            )
                        ends[own] = _mark(near_side.stream)
                return ends
        except BaseException:
            near_side.stream.synchronize()
            self._side(far, own).stream.synchronize()
            raise

    def _ways(
        self, copies: Sequence[TableCopy], is_peer: bool
    ) -> tuple[list[Written], list[ArrayCopy]]:
        """Return the copies that an engine writes, and those that a kernel reads."""
        written: list[Written] = []
        read: list[ArrayCopy] = []
        for source, target, rows in copies:
            is_plain = source.dtype == target.dtype and not rows.conjugate
            for counts, start, strides, place, steps in rows.listed:
                calls: Calls = []
                if is_peer and is_plain:
                    calls = _calls(
                        counts,
                        strides,
                        steps,
                        target.itemsize,
                        LINK_ROW_NBYTES,
                    )
                if calls:
                    written.append((calls, source.data.ptr + start, target.data.ptr + place))
                else:
                    values = self.view(
                        source,
                        start,
                        counts,
                        strides,
                    )
                    read.append(
                        (
                            values,
                            self.view(
                                target,
                                place,
                                counts,
                                steps,
                            ),
                            rows.conjugate,
                        )
                    )
        return written, read

    def _read(
        self,
        values: Any,
        target: Any,
        conjugate: bool,
        own: int,
    ) -> None:
        """Copy an array to the current GPU, of number `own`, by a kernel in its side stream."""
        if int(values.device.id) == own:
            _put(values, target, conjugate)
            return
        for part in _parts(values):  # one at a time
            brought = self._brought(values[part], own, self._side(own, own))
            _put(brought, target[part], conjugate)

    def _side(self, ordinal: int, other: int) -> "_Side":
        """Return the side stream of a GPU for copies within it, or to others."""
        key = ordinal, ordinal == other
        if key not in self._sides:
            with cupy().cuda.Device(ordinal):  # another thread may have made it
                self._sides.setdefault(key, _Side())
        return self._sides[key]

    def _write(
        self,
        written: Iterable[Written],
        far: int,
        own: int,
        events: Iterable[Any],
    ) -> Any:
        """Copy from the GPU `far` to the GPU `own` by the engine of `far`; return the end.

        A GPU writes to one other at a time, and one at a time writes to it. Otherwise links that
        are shared for a while bring all GPUs out of step (see `LINK_ROW_NBYTES`).
        """
        side = self._side(far, own)
        runtime = cupy().cuda.runtime
        stream = side.stream
        with cupy().cuda.Device(far):
            runtime._deviceEnsurePeerAccess(own)
            side.after((*events, *self._arrived.get(own, ())))
            for calls, source_address, target_address in written:
                for start, place, pitch, target_pitch, width, height in calls:
                    source = source_address + start
                    target = target_address + place
                    if height == 1:
                        runtime.memcpyAsync(
                            target,
                            source,
                            width,
                            _ANY,
                            stream.ptr,
                        )
                        continue
                    runtime.memcpy2DAsync(
                        target,
                        target_pitch,
                        source,
                        pitch,
                        width,
                        height,
                        _ANY,
                        stream.ptr,
                    )
            end = _mark(stream)
        self._arrived[own] = (end,)
        return end

    def _brought(self, values: Any, own: int, near: "_Side") -> Any:
        """Return an array on the current GPU, stored in the same order if it is of another one.

        Where rows are narrow, or memory is short, kernels read it where it is.
        """
        far = int(values.device.id)
        if far == own:
            return values
        nbytes = values.itemsize
        dense_strides = [0] * len(values.shape)
        for dim in sorted(range(len(values.shape)), key=lambda dim: values.strides[dim]):
            dense_strides[dim] = nbytes
            nbytes *= values.shape[dim]
        strides = tuple(dense_strides)
        calls = _calls(
            values.shape,
            values.strides,
            strides,
            values.itemsize,
            LINK_ROW_NBYTES,
        )
        memory = None
        if calls:
            with contextlib.suppress(cupy().cuda.memory.OutOfMemoryError):
                memory = cupy().empty(nbytes, np.uint8).data
        if memory is None:
            cupy().cuda.runtime._deviceEnsurePeerAccess(far)
            return _mapped(values, own)
        copy = (calls, values.data.ptr, memory.ptr)
        end = self._write(
            [copy],
            far,
            own,
            [_mark(near.stream)],
        )
        near.after([end])
        return cupy().ndarray(
            values.shape,
            values.dtype,
            memptr=memory,
            strides=strides,
        )

    def send(
        self,
        source: int,
        values: Any,
        target: int,
        out: Any,
        by_host: bool = False,
    ) -> None:
        """Copy a contiguous array to another GPU by the copy engine, or through pinned memory."""
        cp = cupy()
        own = self.ordinal(target)
        far = self.ordinal(source)
        if by_host:
            with self._on(source), errors_of_cuda():
                pinned = cp.cuda.alloc_pinned_memory(values.nbytes)
                host = np.frombuffer(pinned, values.dtype, values.size)
                values.get(out=host)
        with self._on(target), errors_of_cuda():
            stream = cp.cuda.get_current_stream()
            if by_host:
                out.set(host)
                stream.synchronize()
                return
            if own != far:
                _wait(own, [_end(far)])
                if self.reaches(target, source):  # else the driver copies through the host
                    cp.cuda.runtime._deviceEnsurePeerAccess(far)
            cp.cuda.runtime.memcpyPeerAsync(
                out.data.ptr,
                own,
                values.data.ptr,
                far,
                values.nbytes,
                stream.ptr,
            )

    def copied_to(self, gpu: int, values: Any) -> Any:
        """Return a copy on a GPU of an array on another one; both current streams wait for it."""
        source = self.home(values)
        packed = self.empty(source, values.shape, values.dtype)
        self.copy(source, [(values, packed, False)])
        copied = self.empty(gpu, values.shape, values.dtype)
        self.send(
            source,
            packed,
            gpu,
            copied,
            by_host=not self.reaches(gpu, source),
        )
        self.join((source, gpu))  # before the packed values are freed
        return copied


class _Side:
    """Side stream of the current GPU, with the latest events that it waits for."""

    def __init__(self) -> None:
        self.stream = cupy().cuda.Stream(non_blocking=True)
        self._awaited = deque[Any](maxlen=64)

    def after(self, events: Iterable[Any]) -> None:
        """Let later work wait for events."""
        for event in events:
            if event not in self._awaited:
                self.stream.wait_event(event)
                self._awaited.append(event)


def array_copies(copies: Sequence[TableCopy]) -> list[ArrayCopy]:
    """Return each strided copy as a pair of views, of its source and of its target."""
    arrays: list[ArrayCopy] = []
    for source, target, segments in copies:
        for counts, source_start, source_strides, target_start, target_strides in segments.listed:
            source_view = gpus().view(source, source_start, counts, source_strides)
            target_view = gpus().view(target, target_start, counts, target_strides)
            arrays.append((source_view, target_view, segments.conjugate))
    return arrays


def _put(values: Any, target: Any, conjugate: bool) -> None:
    """Copy an array, or its real part or conjugate, in the current stream."""
    if values.dtype.kind == "c" and target.dtype.kind != "c":
        values = values.real
    if conjugate and values.dtype.kind == "c":
        cupy().conj(values, out=target)
    else:
        target[...] = values


def _parts(values: Any) -> Iterator[tuple[slice, ...]]:
    """Yield parts of an array of at most `MESSAGE_NBYTES`, or one row each."""
    ends = [slice(None)] * len(values.shape)
    dim = max(range(len(ends)), key=lambda dim: values.strides[dim], default=0)
    n = values.shape[dim] if ends else 1
    step = max(1, n * MESSAGE_NBYTES // max(1, values.nbytes))
    for low in range(0, n, step):
        yield (*ends[:dim], slice(low, low + step), *ends[dim + 1 :]) if ends else ()


@functools.lru_cache(maxsize=1024)
def _calls(
    shape: Block,
    strides: Block,
    places: Block,
    itemsize: int,
    narrow: int,
) -> Calls:
    """Return the calls that copy an array to an array with some strides.

    There are none if rows have less than `narrow` bytes, or if it takes more than `LINK_CALLS`.
    """
    dims = sorted(range(len(shape)), key=lambda dim: (-strides[dim], -shape[dim], -places[dim]))
    width, outer = operations.runs(
        tuple(shape[dim] for dim in dims),
        tuple(strides[dim] for dim in dims),
        itemsize,
        tuple(places[dim] for dim in dims),
    )
    in_rows = [run for run in outer if max(run) <= _MAX_PITCH]
    height, pitch, target_pitch = max(in_rows, default=(1, width, width))
    if in_rows:
        outer.remove((height, pitch, target_pitch))
    if width < narrow or min(pitch, target_pitch) < width:
        return []
    if math.prod(run[0] for run in outer) > LINK_CALLS:
        return []
    calls = []
    for start, place in operations.offsets(outer):
        calls.append((start, place, pitch, target_pitch, width, height))
    return calls


def _mark(stream: Any) -> Any:
    """Return an event after all work so far in a stream; those without times take less time."""
    return stream.record(cupy().cuda.Event(disable_timing=True))


def _end(ordinal: int) -> Any:
    """Return an event after all work so far in the current stream of a GPU."""
    with cupy().cuda.Device(ordinal):
        return _mark(cupy().cuda.get_current_stream())


def _wait(ordinal: int, events: Iterable[Any]) -> None:
    """Let later work in the current stream of a GPU wait for events."""
    with cupy().cuda.Device(ordinal):
        stream = cupy().cuda.get_current_stream()
        for event in events:
            stream.wait_event(event)


def _mapped(values: Any, ordinal: int) -> Any:
    """Return an array of another GPU as an array of this one, as CuPy's kernels require."""
    size = values.itemsize + sum(
        (n - 1) * abs(step) for n, step in zip(values.shape, values.strides, strict=True)
    )
    memory = cupy().cuda.UnownedMemory(
        values.data.ptr,
        size,
        values,
        ordinal,
    )
    at = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(
        values.shape,
        values.dtype,
        memptr=at,
        strides=values.strides,
    )


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


def use(devices: Gpus | None) -> None:
    """Replace the GPUs of this process; None restores those of CuPy."""
    _gpus[1:] = [] if devices is None else [devices]
