"""Copies between views of host memory and a CUDA device, each by the way that suits it.

Straight by the copy engines where memory is pinned and rows are wide (one call for up to three
dimensions); by a kernel that reads or writes pinned memory itself where rows are narrow; through a
ring of staging buffers where memory is not pinned.

Imports `kernels`, `memory` and this room.
"""

import ctypes
import os
import threading
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dask_bigfft.gpu import ring as staging
from dask_bigfft.gpu.cuda import cupy, free_pinned
from dask_bigfft.gpu.cuda_kernels import strided_copy
from dask_bigfft.gpu.cuda_pins import make_pinner, reachable
from dask_bigfft.gpu.cuda_planes import planes
from dask_bigfft.gpu.operations import Array, dense, places_of
from dask_bigfft.gpu.transfer import (
    TO_DEVICE,
    TO_HOST,
    Copy,
    calls,
    copies,
    memcpy3d,
    row_nbytes,
    runs,
)
from dask_bigfft.kernels.composite import Composite, Shards
from dask_bigfft.memory.pages import Buffer

#: Rows from here on are left to the copy engines; narrower ones are read by a kernel. On an H200
#: both reach 33 GB/s each way at it, and the engines more beyond.
ENGINE_ROW_NBYTES = 8 * 1024

#: Narrower rows are not written by a kernel, which the host's memory takes very badly.
KERNEL_WRITE_NBYTES = 4 * 1024

#: Driver calls for one piece from which on a kernel copies it in one.
MANY_CALLS = 256

#: Forms of views whose ways are remembered.
MOST_ROUTES = 4096

#: Blocks of the grid of a kernel that copies over the bus: a few keep it busy.
BUS_BLOCKS = 48

_INVALID_VALUE = 1


class Way(Enum):
    """How a view of host memory travels."""

    ENGINE = "copy engine"
    KERNEL = "kernel"
    RING = "ring"


def way(view: Array, direction: int, is_pinned: bool, places: tuple[int, ...] | None = None) -> Way:
    """Return how a view travels.

    Parameters
    ----------
    view : ndarray
        Host memory.
    direction : {TO_DEVICE, TO_HOST}
        Where to.
    is_pinned : bool
        Whether all of it lies in pinned memory.
    places : tuple of int, optional
        Strides on the device in bytes, if the array is not dense there.

    Examples
    --------
    >>> block = np.zeros((64, 8192), "c16")
    >>> way(block[:, :4096], TO_DEVICE, True), way(block[:, :256], TO_DEVICE, True)
    (<Way.ENGINE: 'copy engine'>, <Way.KERNEL: 'kernel'>)
    >>> way(block[:, :64], TO_HOST, True), way(block, TO_DEVICE, False)
    (<Way.ENGINE: 'copy engine'>, <Way.RING: 'ring'>)
    """
    if not is_pinned:
        return Way.RING
    width, many = row_nbytes(view, places), calls(view, places) > MANY_CALLS
    if width >= view.nbytes or (width >= ENGINE_ROW_NBYTES and not many):
        return Way.ENGINE
    if direction == TO_HOST and width < KERNEL_WRITE_NBYTES and not many:
        return Way.ENGINE
    return Way.KERNEL


class CupyStream:
    """A stream, and what the host still has to do before that in it is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.raw = cupy().cuda.Stream(non_blocking=True)
        self.unfinished, self.awaited = staging.Pending(), staging.Pending()


class HostCopies:
    """Copies of one device; used by one thread at a time, whose current device and stream it is.

    But for `ring_nbytes`, which any thread may ask.
    """

    def __init__(self) -> None:
        self._cupy = cupy()
        self._rt = self._cupy.cuda.runtime
        self._ring: staging.Ring | None = None
        self._ring_memory: list[Buffer] = []
        self._ring_size = staging.BUFFERS, staging.BUFFER_NBYTES
        self._ring_part: int | None = None
        #: How often anything has gone through the ring.
        self.staged = 0
        #: By the form of a view: which way it takes, and in which calls.
        self._routes: dict[Any, tuple[Way, tuple[Copy, ...]]] = {}
        #: Of composites: whether all that they are made of is pinned.
        self._pinned: WeakKeyDictionary[Composite, bool] = WeakKeyDictionary()
        self._asking = threading.Lock()

    def travel(
        self,
        stream: CupyStream,
        view: Array,
        device: int,
        direction: int,
        places: tuple[int, ...] | None = None,
    ) -> None:
        """Copy a view to an address on the device, or from it, in a stream.

        `places` are the strides there in bytes, if the array is not dense.
        """
        pinned_ = reachable(view)
        key = view.shape, view.strides, view.dtype, places, direction, pinned_
        found = self._routes.get(key)
        if found is None:
            chosen = way(view, direction, key[-1], places)
            found = self._routes[key] = chosen, tuple(copies(view, places))
            if len(self._routes) > MOST_ROUTES:
                self._routes.clear()
        chosen, calls_ = found
        if chosen is Way.KERNEL and not self._by_kernel(view, device, direction, places):
            chosen = Way.ENGINE
        if chosen is Way.ENGINE and not self._by_engine(stream, view, device, direction, calls_):
            chosen = Way.RING
        if chosen is Way.RING:
            self._by_ring(stream, view, device, direction, places)

    def travel_together(
        self, stream: CupyStream, shards: Shards, device: int, direction: int
    ) -> bool:
        """Copy shards to or from the part that begins at an address on the device.

        False where each has to go its own way: they are narrow, or go back to memory that is not
        pinned.
        """
        view, places = shards.view(0), places_of(shards)
        if not self._all_pinned(shards.block):
            if direction == TO_HOST:
                return False
            there = (device + shards.places @ places).tolist()
            views = (view for _, view in shards.views())
            self._load(stream, views, shards.shape, there, places, shards)
            return True
        if way(view, direction, True, places) is not Way.ENGINE:
            return False
        calls_, raw = tuple(copies(view, places)), stream.raw.ptr
        devices = device + shards.places @ places
        if max(copy.depth for copy in calls_) == 1:
            copied = planes(calls_, shards.addresses, devices, direction, raw)
            if copied is not None:
                return copied
        try:
            for host, there in zip(shards.addresses.tolist(), devices.tolist(), strict=True):
                for copy in calls_:
                    self._call(copy, host, there, direction, raw)
        except self._rt.CUDARuntimeError as error:
            if error.status != _INVALID_VALUE:
                raise
            return False  # somebody else's memory, pinned in parts
        return True

    def ahead(self, host: Array | Shards) -> None:
        """Begin to gather what will be copied to the device later, if it goes through the ring."""
        if isinstance(host, Shards):
            if not self._all_pinned(host.block):
                self.ring.ahead((view for _, view in host.views()), host)
        elif not reachable(host):
            self.ring.ahead((host,), host)

    def forget(self) -> None:
        """Give up what was begun and not asked for."""
        if self._ring is not None:
            self._ring.forget()

    def _all_pinned(self, block: Composite) -> bool:
        """Whether all source blocks of a composite are pinned, as long as it lives."""
        with self._asking:
            known = self._pinned.get(block)
        if known is None:
            sources = block.sources.values()
            known = all(map(reachable, sources))
            with self._asking:
                self._pinned[block] = known
        return known

    def _by_engine(
        self, stream: CupyStream, view: Array, device: int, direction: int, calls_: tuple[Copy, ...]
    ) -> bool:
        """Copy by the copy engines; whether they took it."""
        host = int(view.ctypes.data)
        try:
            for copy in calls_:
                self._call(copy, host, device, direction, stream.raw.ptr)
        except self._rt.CUDARuntimeError as error:
            if error.status != _INVALID_VALUE:
                raise
            return False  # somebody else's memory, pinned in parts
        return True

    def _call(self, copy: Copy, host: int, device: int, direction: int, stream: int) -> None:
        ends = host + copy.host, device + copy.device
        target, source = ends[::-1] if direction == TO_DEVICE else ends
        if copy.depth > 1:
            found = memcpy3d(copy, host, device, direction)
            self._rt.memcpy3DAsync(ctypes.addressof(found), stream)
        elif copy.height > 1:
            wide = copy.device_pitch, copy.pitch
            to, from_ = wide if direction == TO_DEVICE else wide[::-1]
            self._rt.memcpy2DAsync(
                target, to, source, from_, copy.width, copy.height, direction, stream
            )
        else:
            self._rt.memcpyAsync(target, source, copy.nbytes, direction, stream)

    def _by_kernel(
        self, view: Array, device: int, direction: int, places: tuple[int, ...] | None
    ) -> bool:
        """Copy by a kernel that reaches into pinned memory; whether it can."""
        width, outer = runs(view, places)
        host = int(view.ctypes.data)
        numbers = (width, host, device, *(n for run in outer for n in (run.stride, run.place)))
        unit = next((size for size in (16, 8, 4) if not any(n % size for n in numbers)), 0)
        if not unit:
            return False
        dims = [(run.count, run.stride // unit, run.place // unit) for run in outer]
        dims.append((width // unit, 1, 1))
        if direction == TO_DEVICE:
            strided_copy(dims, unit, host, device, BUS_BLOCKS)
        else:
            turned = [(n, to, from_) for n, from_, to in dims]
            strided_copy(turned, unit, device, host, BUS_BLOCKS)
        return True

    def _by_ring(
        self,
        stream: CupyStream,
        view: Array,
        device: int,
        direction: int,
        places: tuple[int, ...] | None,
    ) -> None:
        """Copy through staging buffers."""
        strides = dense(view.shape, view.itemsize) if places is None else places
        if direction == TO_DEVICE:
            self._load(stream, (view,), view.shape, (device,), strides, view)
            return

        def copy(staged: Array, part: tuple[slice, ...]) -> Any:
            self._staged(stream, staged, device, view.shape, part, strides, direction)
            return self._mark(stream)

        self.staged += 1
        stream.unfinished.add(self.ring.store(view, copy))

    def _load(
        self,
        stream: CupyStream,
        views: Iterable[Array],
        shape: tuple[int, ...],
        devices: Sequence[int],
        strides: tuple[int, ...],
        of: object,
    ) -> None:
        """Take views of one form through staging buffers to places on the device."""

        def copy(number: int, staged: Array, part: tuple[slice, ...]) -> None:
            self._staged(stream, staged, devices[number], shape, part, strides, TO_DEVICE)

        self.staged += 1
        self.ring.load(views, copy, lambda: self._mark(stream), of)

    def _staged(
        self,
        stream: CupyStream,
        staged: Array,
        device: int,
        shape: tuple[int, ...],
        part: tuple[slice, ...],
        strides: tuple[int, ...],
        direction: int,
    ) -> None:
        """Copy a part of a view of some shape between a staging buffer and the device."""
        begins = (cut.indices(n)[0] for cut, n in zip(part, shape, strict=True))
        place = device + sum(i * s for i, s in zip(begins, strides, strict=True))
        for call in copies(staged, strides):
            self._call(call, int(staged.ctypes.data), place, direction, stream.raw.ptr)

    def _mark(self, stream: CupyStream) -> Any:
        mark = self._cupy.cuda.Event(block=True, disable_timing=True)
        mark.record(stream.raw)
        return mark

    @property
    def ring(self) -> staging.Ring:
        """The staging buffers, made when they are first needed."""
        if self._ring is None:
            self._ring = self._make_ring()
        return self._ring

    def _make_ring(self) -> staging.Ring:
        """Pin the staging buffers, or find others that the driver has."""
        count, nbytes = self._ring_size
        self._ring_memory = [Buffer(nbytes) for _ in range(2 * count)]
        pinner = make_pinner(len(self._ring_memory) * nbytes)
        for buffer in self._ring_memory:
            pinner.pin(buffer)
        memory = [buffer.memory for buffer in self._ring_memory]
        if pinner.counters().ranges < len(memory):
            self._ring_memory, number = [], len(memory)
            del memory
            alloc = self._cupy.cuda.alloc_pinned_memory
            memory = [np.frombuffer(alloc(nbytes), np.uint8, nbytes) for _ in range(number)]
        found = staging.Ring(memory, max(2, len(os.sched_getaffinity(0))))
        found.use(self._ring_part)
        return found

    def stage(self, buffers: int | None, nbytes: int | None, part: int | None = None) -> None:
        """Use so many staging buffers each way from now on, of so many bytes, in such parts."""
        wanted = buffers or staging.BUFFERS, nbytes or staging.BUFFER_NBYTES
        if wanted != self._ring_size:
            self.close()
            self._ring_size = wanted
        self._ring_part = part
        if self._ring is not None:
            self._ring.use(part)

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the staging buffers of one way, if host memory travels through them; else 0."""
        if isinstance(host, Composite):
            straight = self._all_pinned(host)
        else:
            straight = not host.size or reachable(host)
        count, nbytes = self._ring_size
        return 0 if straight else count * min(nbytes, self._ring_part or nbytes)

    def close(self) -> None:
        """Wait for what goes through the ring, and give the ring back."""
        ring, self._ring = self._ring, None
        if ring is None:
            return
        try:
            ring.close()
        finally:  # also where the card fails: nobody is to wait for the threads of this one
            del ring
            self._ring_memory = []
            free_pinned()  # which would be kept for others otherwise
