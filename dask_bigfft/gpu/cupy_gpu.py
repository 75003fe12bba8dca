"""CUDA device by CuPy: streams, events, an arena, and copies to and from host memory.

The copy engines copy strided views of pinned memory with wide rows in one call for up to three
dimensions (asynchronous strided copies, Chen and Li, Proc. ICPADS, 2013). Narrow rows are copied by
a kernel that accesses pinned memory directly. Pageable memory is staged through the ring.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu import kernels
from dask_bigfft.gpu.cuda import (
    cupy,
    current,
    errors_of_cuda,
    free_pinned,
    pins,
    reachable,
    software,
)
from dask_bigfft.gpu.executor import DeviceMemory
from dask_bigfft.gpu.ffts import FFTPlans
from dask_bigfft.gpu.operations import (
    FFT,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Transfer,
    dense,
    offsets,
    runs,
)
from dask_bigfft.gpu.ring import BUFFER_NBYTES, BUFFERS, Array, Ints, Part, Ring, unfinished
from dask_bigfft.kernels.segmented import SegmentedView, ShardView
from dask_bigfft.planner.tile_plan import copy_method
from dask_bigfft.system import processors

#: Bytes of device memory that kernels and plans use beside the arena: 20 MiB for cuFFT's and our
#: kernels, at most 2 MiB for each plan of most lengths (H200, CUDA 13). Larger plans are counted.
LIBRARIES_NBYTES = 64 << 20

#: Bytes of plans that are included in `LIBRARIES_NBYTES`.
_FEW_PLANS_NBYTES = 32 << 20

#: Largest batch of FFTs of a tile in bytes. Each batch takes more calls, but less of a work area.
BATCH_NBYTES = 1 << 28

#: Directions of copies, as the driver numbers them.
TO_DEVICE = 1
TO_HOST = 2

#: Largest distance of two rows in a strided call, in bytes.
MAX_PITCH_NBYTES = 2**31 - 1

#: Bytes of host memory whose page table entries fill a cache line of the GPU. The copy engines wait
#: for the entries of each row, which FFTs displace from the cache. When a kernel reads a byte of
#: each row shortly before, a transform of 2^30 complex128 takes 0.84 s instead of 1.10 (H200).
ENTRIES_NBYTES = 64 * 1024

#: Maximum number of narrow rows in a call without planes, and approximate maximum in calls that
#: are enqueued together. While they are copied, a kernel reads a byte of each row.
ROWS_AT_ONCE = 1024

#: Number of driver calls for a view above which a kernel copies it.
MANY_CALLS = 256

#: Grid size of a kernel that copies over the bus, which a few blocks saturate.
BUS_BLOCKS = 48

_HOST = 1
_DEVICE = 2
_INVALID_VALUE = 1


# --- routes of host memory ---------------------------------------------------------


#: Route of a view of host memory: the copy engines, a kernel, or the ring.
Route = Literal["engine", "kernel", "ring"]


class View(NamedTuple):
    """Form of a strided view of host memory, and the strides of its device array."""

    shape: Ints
    strides: Ints
    itemsize: int
    places: Ints


class Copy(NamedTuple):
    """Driver call that copies planes of rows, with their distances on host and device.

    `host` and `device` are bytes from the first element of either side.
    """

    host: int
    device: int
    width: int
    height: int = 1
    depth: int = 1
    pitch: int = 0
    plane: int = 0
    device_pitch: int = 0
    device_plane: int = 0

    @property
    def narrow(self) -> bool:
        """True if each row needs page table entries of its own."""
        return self.width < ENTRIES_NBYTES <= self.pitch

    def parts(self) -> Iterator["Copy"]:
        """Yield the copy in parts of at most `ROWS_AT_ONCE` rows, if they are narrow, in one plane.

        A copy of several planes stays whole.

        >>> [part[:4] for part in Copy(0, 0, 4096, 1500, pitch=1 << 20, device_pitch=4096).parts()]
        [(0, 0, 4096, 1024), (1073741824, 4194304, 4096, 476)]
        """
        if not self.narrow or self.depth > 1:
            yield self
            return
        for low in range(0, self.height, ROWS_AT_ONCE):
            yield self._replace(
                host=self.host + low * self.pitch,
                device=self.device + low * self.device_pitch,
                height=min(ROWS_AT_ONCE, self.height - low),
            )


def copies(view: View) -> tuple[Copy, ...]:
    """Return the driver calls that copy a view to or from its array on the device.

    Strides are positive and fall from the first dimension to the last, but for dimensions of
    length 1.

    >>> [c[2:5] for c in copies(View((6, 6, 4), (192, 32, 8), 8, (192, 32, 8)))]
    [(1152, 1, 1)]
    >>> [c[2:7] for c in copies(View((8, 3, 2), (192, 32, 8), 8, (48, 16, 8)))]
    [(16, 3, 8, 32, 192)]
    """
    if 0 in view.shape:
        return ()
    # Each run has its count and its strides on host and device.
    width, outer = runs(*view)
    height = 1
    pitch = 0
    device_pitch = 0
    depth = 1
    plane = 0
    device_plane = 0
    if outer and max(outer[-1][1:]) <= MAX_PITCH_NBYTES:
        height, pitch, device_pitch = outer.pop()
        if outer and not outer[-1][1] % pitch and not outer[-1][2] % device_pitch:
            depth, plane, device_plane = outer.pop()
    calls: list[Copy] = []
    for host, device in offsets(outer):
        call = Copy(
            host=host,
            device=device,
            width=width,
            height=height,
            depth=depth,
            pitch=pitch,
            plane=plane,
            device_pitch=device_pitch,
            device_plane=device_plane,
        )
        calls += call.parts()
    return tuple(calls)


@functools.lru_cache(maxsize=4096)
def route(view: View, direction: int, is_pinned: bool) -> tuple[Route, tuple[Copy, ...]]:
    """Return the route of a view, and its calls of the copy engines.

    >>> wide, narrow = (View((64, n), (131072, 16), 16, (16 * n, 16)) for n in (4096, 64))
    >>> route(wide, TO_DEVICE, True)[0], route(narrow, TO_DEVICE, True)[0]
    ('engine', 'kernel')
    >>> route(narrow, TO_HOST, True)[0], route(wide, TO_DEVICE, False)[0]
    ('engine', 'ring')

    Rows that are padded on the device alone are one run of host memory:

    >>> route(View((64, 64), (1024, 16), 16, (1152, 16)), TO_DEVICE, True)[0]
    'engine'
    """
    if not is_pinned:
        return "ring", ()
    calls = copies(view)
    width, outer = runs(*view)
    if outer and len(calls) > MANY_CALLS:
        return "kernel", calls
    if outer:
        count, pitch, _ = outer[-1]
        if pitch == width:
            width *= count
    if copy_method(1 + len(outer), width, direction == TO_HOST) == "kernel":
        return "kernel", calls
    return "engine", calls


def table_2d(
    calls: tuple[Copy, ...],
    hosts: Any,
    devices: Any,
    direction: int,
) -> Any:
    """Return `CUDA_MEMCPY2D` structures, one row of 16 words each, for views at these addresses.

    >>> call = Copy(8, 0, 256, 4, pitch=1024, device_pitch=256)
    >>> table = table_2d((call,), np.array([4096]), np.array([512]), TO_DEVICE)
    >>> table[0, [3, 6, 11, 13, 14, 15]].tolist()
    [4104, 1024, 512, 256, 256, 4]
    """
    table = np.zeros((len(hosts), len(calls), 16), np.uint64)
    source, target = (0, 7) if direction == TO_DEVICE else (7, 0)
    for number, call in enumerate(calls):
        row = table[:, number]
        row[:, source + 2] = _HOST
        row[:, target + 2] = _DEVICE
        row[:, source + 3] = hosts.astype(np.uint64) + np.uint64(call.host)
        row[:, target + 4] = devices.astype(np.uint64) + np.uint64(call.device)
        row[:, source + 6] = max(call.pitch, call.width)
        row[:, target + 6] = max(call.device_pitch, call.width)
        row[:, 14] = call.width
        row[:, 15] = call.height
    return table.reshape(-1, 16)


def structure_3d(
    copy: Copy,
    host: int,
    device: int,
    direction: int,
) -> npt.NDArray[np.uint64]:
    """Return a ``cudaMemcpy3DParms`` as 20 words, for a copy between these addresses."""
    # Each side has its address, pitch, width, and number of rows from plane to plane.
    host_rows = copy.plane // copy.pitch
    host_side = (host + copy.host, copy.pitch, copy.width, host_rows)
    device_rows = copy.device_plane // copy.device_pitch
    device_side = (device + copy.device, copy.device_pitch, copy.width, device_rows)
    source, target = (
        (host_side, device_side) if direction == TO_DEVICE else (device_side, host_side)
    )
    no_offset = (0, 0, 0, 0)  # no array, and position 0
    extent = (copy.width, copy.height, copy.depth)
    return np.array((*no_offset, *source, *no_offset, *target, *extent, direction), np.uint64)


@functools.cache
def _driver() -> Any:
    """Return the driver's asynchronous copy, called with the GIL held; None without a driver."""
    try:
        copy_2d = ctypes.PyDLL("libcuda.so.1").cuMemcpy2DAsync_v2
    except (OSError, AttributeError):
        return None
    copy_2d.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    copy_2d.restype = ctypes.c_int
    return copy_2d


def submit_2d(
    calls: tuple[Copy, ...],
    hosts: Any,
    devices: Any,
    direction: int,
    stream: int,
) -> bool | None:
    """Enqueue copies without releasing the GIL; return False if the memory is refused.

    A runtime call releases the GIL and may wait up to 5 ms behind a busy thread to get it back; a
    block read from 64 others needs 64 calls per tile. None if there is no driver, or for any other
    error, which the runtime calls then report.
    """
    driver = _driver()
    if driver is None:
        return None
    table = table_2d(calls, hosts, devices, direction)
    first = table.ctypes.data
    row_nbytes = table.strides[0]
    for address in range(first, first + len(table) * row_nbytes, row_nbytes):
        status = driver(address, stream)
        if status:
            return False if status == _INVALID_VALUE else None
    return True


def _views(host: Array | ShardView) -> list[Array]:
    """Return the views of host memory that make up a source or target."""
    if isinstance(host, ShardView):
        return [view for _, view in host.views()]
    return [host]


#: Unfinished scatters of the ring.
Futures = tuple[Future[None], ...]


class Stream:
    """CuPy stream, with its unfinished scatters of the ring and those that it waits for."""

    def __init__(self) -> None:
        cuda = cupy().cuda
        self.raw = cuda.Stream(non_blocking=True)
        #: Stream of the kernels that read a byte of each narrow row, with priority over others.
        self.touching = cuda.Stream(non_blocking=True, priority=-1)
        self.started, self.touched = (cuda.Event(disable_timing=True) for _ in range(2))
        self.unfinished: Futures = ()
        self.awaited: Futures = ()


class Event:
    """CuPy event, with the scatters that were unfinished when it was recorded."""

    def __init__(self) -> None:
        self.raw = cupy().cuda.Event(block=True, disable_timing=True)
        self.pending: Futures = ()


# --- the device -------------------------------------------------------------------------------


def compute(
    plans: FFTPlans,
    op: Compute,
    source: int,
    target: int,
    work: int,
) -> None:
    """Enqueue an operation on arrays at these addresses in the current stream."""
    if isinstance(op, FFT):
        plans.fft(op, source, target, work)
    elif isinstance(op, Multiply):
        kernels.multiply(op, target)
    elif isinstance(op, Product):
        kernels.multiply(op, target, source)
    elif isinstance(op, Transfer):
        op.apply(_array_at(target, op))
    else:
        kernels.strided(op, source, target)


def _array_at(address: int, op: Transfer) -> Any:
    """Return the array at an address that an operation multiplies."""
    dtype = np.dtype(op.dtype)
    nbytes = math.prod(op.shape) * dtype.itemsize
    memory = cupy().cuda.UnownedMemory(address, nbytes, owner=None)
    pointer = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(op.shape, dtype, memptr=pointer)


class CupyGPU:
    """GPU by CuPy; `executor.Device` describes the methods.

    Parameters
    ----------
    ordinal : int
        Number of the device in CUDA.
    """

    libraries = LIBRARIES_NBYTES

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._rt = cupy().cuda.runtime
        self._device = cupy().cuda.Device(ordinal)
        self._closed = False
        self._arena: Any = None
        self._base = self._nbytes = 0
        self._streams: list[Stream] = []
        self._plans = FFTPlans(BATCH_NBYTES)
        self._ring: Ring | None = None
        #: True for composites whose sources are all pinned.
        self._pinned: WeakKeyDictionary[SegmentedView, bool] = WeakKeyDictionary()
        with self._device, errors_of_cuda():
            self._rt.free(0)  # creates the context
            properties = self._rt.getDeviceProperties(ordinal)
        self.name = str(properties["name"].decode())
        #: False where the GPU uses the page tables of the host, and the bus is faster (GH200).
        self._own_tables = not properties.get("pageableMemoryAccessUsesHostPageTables", 0)
        pins.begin()

    @property
    def software(self) -> dict[str, str]:
        """Versions of libraries, and the name of the GPU."""
        return software([self.ordinal])

    @property
    def tables(self) -> int:
        """Bytes of FFT plans beyond `libraries`, for lengths with large primes."""
        return max(0, self._plans.taken - _FEW_PLANS_NBYTES)

    def memory(self) -> DeviceMemory:
        """Return the total and free memory. The arena is not free."""
        with self._device, errors_of_cuda():
            free, total = self._rt.memGetInfo()
            return DeviceMemory(int(total), int(free))

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena, with undefined contents, after the former one was released."""
        if self._arena is not None:
            raise DeviceError("an arena is reserved already")
        with self._device, errors_of_cuda():
            self._arena = cupy().cuda.alloc(nbytes)
        self._base = int(self._arena.ptr)
        self._nbytes = nbytes

    def release(self) -> None:
        """Free the arena after all enqueued work is done."""
        self.synchronize_all()
        if self._ring is not None:
            self._ring.forget()
        self._arena = None
        self._base = 0
        self._nbytes = 0
        self._free_pool()

    def drop_caches(self) -> None:
        """Free all cached memory (plans, pools), while streams are idle."""
        with self._device, errors_of_cuda():
            self._plans.drop()
        self._free_pool()

    def _free_pool(self) -> None:
        """Free the memory pools of CuPy, including the pinned one that exchanges use."""
        free_pinned()
        with self._device, errors_of_cuda():
            cupy().get_default_memory_pool().free_all_blocks()

    def close(self) -> None:
        """Free everything. The device is not used afterwards."""
        ring = self._ring
        self._ring = None
        try:
            self.release()
            self.drop_caches()
            self._streams.clear()
        finally:  # also if the GPU fails, so that the ring's threads end
            if ring is not None:
                ring.close()
            del ring
            free_pinned()  # else CuPy would cache it
        if not self._closed:
            self._closed = True
            pins.end()

    def _address(self, array: DeviceArray) -> int:
        if array.offset < 0 or array.offset + array.span > self._nbytes:
            raise DeviceError(f"{array} does not lie in an arena of {self._nbytes} bytes")
        return self._base + array.offset

    def stream(self, name: str) -> Stream:
        """Return a new stream. Streams wait for each other only by events."""
        with self._device, errors_of_cuda():
            self._streams.append(Stream())
            return self._streams[-1]

    def event(self, name: str) -> Event:
        """Return a new event, which stands for its latest record in a stream."""
        with self._device, errors_of_cuda():
            return Event()

    def record(self, event: Event, stream: Stream, stored: bool = True) -> None:
        """Record an event in a stream."""
        with self._device, errors_of_cuda():
            event.raw.record(stream.raw)
        event.pending = unfinished((*stream.unfinished, *stream.awaited)) if stored else ()

    def wait(self, stream: Stream, event: Event) -> None:
        """Let later work in a stream wait for the latest record of an event, if any."""
        with self._device, errors_of_cuda():
            stream.raw.wait_event(event.raw)
        stream.awaited = unfinished((*stream.awaited, *event.pending))

    def synchronize(self, event: Event) -> None:
        """Block the host until the latest record of an event, without the GIL."""
        pending = event.pending
        with errors_of_cuda():
            event.raw.synchronize()
        for future in pending:
            future.result()

    def synchronize_all(self) -> None:
        """Block the host until all streams are idle."""
        for stream in self._streams:
            with errors_of_cuda():
                stream.raw.synchronize()
            futures = stream.unfinished
            stream.unfinished = ()
            for future in futures:
                future.result()

    @contextlib.contextmanager
    def _in(self, stream: Stream) -> Iterator[None]:
        """Make the device and a stream current, after the scatters that the stream waits for."""
        awaited = stream.awaited
        stream.awaited = ()
        for future in awaited:
            future.result()
        with current(self._device), stream.raw, errors_of_cuda():
            yield

    # --- copies between host memory and the device --------------------------------------------

    def ring_nbytes(self, host: Array | SegmentedView) -> int:
        """Return the size of the ring, one way, if host memory is staged through it, else 0."""
        with current(self._device), errors_of_cuda():
            return 0 if self._reaches(host) else BUFFERS * BUFFER_NBYTES

    def ahead(self, stream: Stream, source: Array | ShardView) -> None:
        """Start to gather a source that `h2d` will copy later, in the order of these calls."""
        with self._in(stream):
            if not self._reaches(source):
                self._opened_ring().ahead(_views(source), source)

    def h2d(self, stream: Stream, source: Array | ShardView, target: DeviceArray) -> None:
        """Copy a host array of the same shape and dtype to the device, or shards of one."""
        self._copy(stream, source, target, TO_DEVICE)

    def d2h(self, stream: Stream, source: DeviceArray, target: Array | ShardView) -> None:
        """Copy from the device to a host array, as `h2d` does the other way."""
        self._copy(stream, target, source, TO_HOST)

    def _copy(
        self,
        stream: Stream,
        host: Array | ShardView,
        array: DeviceArray,
        direction: int,
    ) -> None:
        """Copy a view, or shards of one form, between host and device.

        The route is the cheapest one; the next one is taken where it refuses the memory.
        """
        if not host.nbytes:
            return
        address = self._address(array)
        itemsize = host.dtype.itemsize
        strides = array.strides or dense(array.shape, itemsize)
        view = View(host.shape, host.strides, itemsize, strides)
        if isinstance(host, ShardView):
            hosts = host.addresses
            devices = address + host.places @ strides
        else:
            hosts = np.array([host.ctypes.data])
            devices = np.array([address])
        with self._in(stream):
            way, calls = route(view, direction, self._reaches(host))
            if way == "kernel" and not self._by_kernel(view, hosts, devices, direction):
                way = "engine"
            if way == "engine" and not self._by_engine(stream, calls, hosts, devices, direction):
                way = "ring"
            if way == "ring":
                self._by_ring(stream, host, devices.tolist(), strides, direction)

    def _by_engine(
        self,
        stream: Stream,
        calls: tuple[Copy, ...],
        hosts: Any,
        devices: Any,
        direction: int,
    ) -> bool:
        """Copy by the copy engines; return False if they refuse the memory."""
        if not (calls[0].narrow and self._own_tables):
            return self._submit(stream, calls, hosts, devices, direction)
        # About `ROWS_AT_ONCE` rows are enqueued together, after their page table entries.
        rows = sum(call.height * call.depth for call in calls)
        portions = [calls] if rows <= ROWS_AT_ONCE else [(call,) for call in calls]
        views_at_once = max(1, ROWS_AT_ONCE // rows)
        try:
            for low in range(0, len(hosts), views_at_once):
                part = slice(low, low + views_at_once)
                for portion in portions:
                    self._touch(stream, portion, hosts[part].tolist())
                    if not self._submit(stream, portion, hosts[part], devices[part], direction):
                        return False  # memory of others that is pinned in parts
            return True
        finally:  # host memory may be freed as soon as this stream is done
            stream.touched.record(stream.touching)
            stream.raw.wait_event(stream.touched)

    def _touch(self, stream: Stream, calls: tuple[Copy, ...], hosts: list[int]) -> None:
        """Load the page table entries of narrow rows while they are copied."""
        stream.started.record(stream.raw)
        stream.touching.wait_event(stream.started)
        with stream.touching:
            for host, call in itertools.product(hosts, calls):
                kernels.touch(
                    host + call.host,
                    call.width,
                    call.height,
                    call.depth,
                    call.pitch,
                    call.plane,
                )

    def _submit(
        self,
        stream: Stream,
        calls: tuple[Copy, ...],
        hosts: Any,
        devices: Any,
        direction: int,
    ) -> bool:
        """Enqueue calls of the copy engines; return False if they refuse the memory."""
        if len(hosts) > 1 and max(copy.depth for copy in calls) == 1:
            copied = submit_2d(calls, hosts, devices, direction, stream.raw.ptr)
            if copied is not None:
                return copied
        try:
            for host, device in zip(hosts.tolist(), devices.tolist(), strict=True):
                for copy in calls:
                    self._call(copy, host, device, direction, stream.raw.ptr)
        except self._rt.CUDARuntimeError as error:
            if error.status != _INVALID_VALUE:
                raise
            return False
        return True

    def _call(
        self,
        copy: Copy,
        host: int,
        device: int,
        direction: int,
        stream: int,
    ) -> None:
        """Enqueue one call of the copy engines between these addresses."""
        target = device + copy.device
        source = host + copy.host
        target_pitch = copy.device_pitch
        source_pitch = copy.pitch
        if direction == TO_HOST:
            target, source = source, target
            target_pitch, source_pitch = source_pitch, target_pitch
        if copy.depth > 1:
            parameters = structure_3d(copy, host, device, direction)
            self._rt.memcpy3DAsync(parameters.ctypes.data, stream)
        elif copy.height > 1:
            self._rt.memcpy2DAsync(
                target,
                target_pitch,
                source,
                source_pitch,
                copy.width,
                copy.height,
                direction,
                stream,
            )
        else:
            self._rt.memcpyAsync(target, source, copy.width, direction, stream)

    def _by_kernel(
        self,
        view: View,
        hosts: Any,
        devices: Any,
        direction: int,
    ) -> bool:
        """Copy by a kernel that accesses pinned memory; return False if misaligned."""
        dims, unit = kernels.rows(*view, (*hosts.tolist(), *devices.tolist()))
        if not unit:
            return False
        sources = hosts
        targets = devices
        if direction == TO_HOST:
            dims = kernels.back(dims)
            sources = devices
            targets = hosts
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            kernels.copy(dims, unit, source, target, BUS_BLOCKS)
        return True

    def _by_ring(
        self,
        stream: Stream,
        host: Array | ShardView,
        devices: list[int],
        strides: Ints,
        direction: int,
    ) -> None:
        """Copy through the ring of pinned buffers."""
        views = _views(host)

        def copy_part(number: int, values: Array, part: Part) -> None:
            """Copy a part of a view between a ring buffer and the device."""
            firsts = [cut.indices(n)[0] for cut, n in zip(part, views[number].shape, strict=True)]
            offset = sum(first * stride for first, stride in zip(firsts, strides, strict=True))
            for call in copies(View(values.shape, values.strides, values.itemsize, strides)):
                device = devices[number] + offset
                self._call(call, values.ctypes.data, device, direction, stream.raw.ptr)

        def mark() -> Any:
            """Return an event after the copies so far."""
            event = cupy().cuda.Event(block=True, disable_timing=True)
            event.record(stream.raw)
            return event

        ring = self._opened_ring()
        if direction == TO_DEVICE:
            ring.load(views, copy_part, mark, host)
        else:
            for scatter in ring.store(views, copy_part, mark):
                stream.unfinished = unfinished((*stream.unfinished, scatter))

    def _reaches(self, host: Array | ShardView | SegmentedView) -> bool:
        """Return True if host memory is pinned, cached for each composite."""
        if isinstance(host, ShardView):
            host = host.block
        if not isinstance(host, SegmentedView):
            return not host.size or reachable(host)
        if host not in self._pinned:
            self._pinned[host] = all(map(reachable, host.sources.values()))
        return self._pinned[host]

    def _opened_ring(self) -> Ring:
        """Return the ring, made at first use."""
        if self._ring is None:

            def allocate(nbytes: int) -> Array:
                """Return pinned bytes."""
                pinned = cupy().cuda.alloc_pinned_memory(nbytes)
                return np.frombuffer(pinned, np.uint8, nbytes)

            threads = max(2, processors())
            self._ring = Ring(allocate, threads, BUFFERS, BUFFER_NBYTES)
        return self._ring

    # --- computing ------------------------------------------------------------------------------

    def clear(self, stream: Stream, array: DeviceArray) -> None:
        """Fill a dense array with zeros."""
        address = self._address(array)
        if array.nbytes:
            with self._in(stream):
                self._rt.memsetAsync(address, 0, array.nbytes, stream.raw.ptr)

    def work_nbytes(self, op: FFT) -> int:
        """Make the plan of an FFT, while streams are idle, and return the size of its work area."""
        with self._device, errors_of_cuda():
            return self._plans.prepare(op)

    def compute(
        self,
        stream: Stream,
        op: Compute,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray | None = None,
    ) -> None:
        """Enqueue an operation. The work area of an FFT is scratch memory."""
        source_address = self._address(source)
        target_address = self._address(target)
        work_address = 0 if work is None else self._address(work)
        with self._in(stream):
            compute(self._plans, op, source_address, target_address, work_address)

    def prepare(self, stream: Stream, op: Transfer, target: DeviceArray) -> Transfer:
        """Enqueue the work of a transfer that needs no target values, and return the rest."""
        with self._in(stream):
            return op.prepare(_array_at(self._address(target), op))

    def clock(self) -> float:
        """Return the host's monotonic time in seconds."""
        return time.perf_counter()
