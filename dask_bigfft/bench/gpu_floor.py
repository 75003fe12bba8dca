"""What the bus and the host's memory allow for the copies of a plan, measured without a pipeline.

A transform is run once more on a device that writes down which copies it is asked for
(`gpu_heard`). Then nothing but these copies is made, on memory that is there for it (`Floor`):
those to the card in one stream and those back in another, each in its order, and nothing waits for
anything. What is not pinned goes from and to staging buffers, by as many threads as there are
cores, while the copy engines move as many bytes between these buffers and the card. No FFT, no
slots, no tasks: no pipeline that makes the same copies can take less time, so the time taken
against this one says what the pipeline loses, and this one against the bus what narrow rows and
the host's memory cost.

Kernels hold copies of narrow rows up, although they use other parts of the card: so the same is
measured once more with a third stream, in which all is computed that the transform computes.

Imports `gpu_heard`, and `devices`.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from dask_bigfft.bench.gpu_heard import Heard
from dask_bigfft.devices import ring
from dask_bigfft.devices.copiers import Copiers
from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.cupy_device import CupyDevice
from dask_bigfft.devices.transfer import TO_DEVICE, TO_HOST, Copy, copies, memcpy3d, slabs

Array = npt.NDArray[Any]

#: What is put into a stream: a call of the driver, that takes the stream last.
Call = Callable[[int], object]


@dataclass(frozen=True)
class Staged:
    """How what is not pinned is staged while it is measured.

    Parameters
    ----------
    nbytes, part : int
        Bytes of all buffers of one direction together, and of what is copied at a time.
    streamed : (bool, bool)
        Whether threads store around the caches: into buffers, and out of them.
    """

    nbytes: int = ring.BUFFERS * ring.BUFFER_NBYTES
    part: int = ring.BUFFER_NBYTES
    streamed: tuple[bool, bool] = (True, True)


@dataclass
class Floor:
    """Memory in which copies are made as others were, and how long that takes.

    Parameters
    ----------
    reads, writes : list of ndarray
        Pinned memory, bytes, each as large as the largest block that was copied, or nearly: what
        is copied to the card, and what is overwritten.
    ordinary : list of ndarray
        The same, but not pinned, for copies of what was not.
    staging : list of ndarray
        Pinned memory, bytes: the buffers to the card, and those back.
    """

    reads: list[Array]
    writes: list[Array]
    ordinary: list[Array]
    staging: list[Array]
    repeats: int = 2

    def seconds(
        self, found: Heard, staged: Staged | None = None, register: Sequence[Array] = (),
        let_go: bool = False, device: CupyDevice | None = None,
    ) -> float:
        """Least seconds in which the copies that a device was asked for can be made.

        Parameters
        ----------
        found : Heard
            The copies.
        staged : Staged, optional
            How what is not pinned is staged.
        register : sequence of ndarray
            Memory that is pinned meanwhile, one after the other.
        let_go : bool
            Whether it is let go meanwhile, too.
        device : Device, optional
            Computes meanwhile what was computed then, on whatever is in its memory; nothing waits
            for that either.
        """
        staged = Staged() if staged is None else staged
        kernels: Callable[[], None] | None = None
        if device is None:
            card = cupy().cuda.Memory(found.end)
            base = int(card.ptr)
        else:
            device.reserve(found.end)
            base, kernels = device.address, _computing(device, found)
        calls = {way: self._calls(found, way, base, staged) for way in (TO_DEVICE, TO_HOST)}
        parts = list(self._parts(found, staged))
        try:
            return min(
                self._run(calls, parts, register, let_go, kernels) for _ in range(self.repeats)
            )
        finally:
            if device is None:
                del card
            else:
                device.release()

    def alone(self, found: Heard, staged: Staged) -> float:
        """Seconds that threads take for the staging of what is not pinned, with engines idle."""
        return self._run({}, list(self._parts(found, staged)), (), False, None)

    def _run(
        self, calls: dict[int, list[Call]], parts: list[tuple[Array, Array, bool]],
        register: Sequence[Array], let_go: bool, kernels: Callable[[], None] | None,
    ) -> float:
        """Do all of it at once: a thread for each engine, and one a core for the staging."""
        cp, threads = cupy(), len(os.sched_getaffinity(0))
        streams = {way: cp.cuda.Stream(non_blocking=True) for way in calls}
        start = threading.Barrier(len(calls) + 3)
        ends: list[float] = []

        def engine(way: int) -> None:
            cp.cuda.Device().use()
            cp.cuda.runtime.free(0)
            raw = streams[way].ptr
            start.wait()
            for call in calls[way]:
                call(raw)
            streams[way].synchronize()
            ends.append(time.perf_counter())

        def pin() -> None:
            cp.cuda.runtime.free(0)
            start.wait()
            for array in register:
                cp.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 1)
                if let_go:
                    cp.cuda.runtime.hostUnregister(array.ctypes.data)
            if register:
                ends.append(time.perf_counter())

        def compute() -> None:
            start.wait()
            if kernels is not None:
                kernels()
                ends.append(time.perf_counter())

        others = [threading.Thread(target=engine, args=(way,)) for way in calls]
        others += [threading.Thread(target=work) for work in (pin, compute)]
        for thread in others:
            thread.start()
        copiers = Copiers(threads)
        start.wait()
        began = time.perf_counter()
        for future in [copiers.copy(*part) for part in parts]:
            future.result()
        if parts:
            ends.append(time.perf_counter())
        copiers.close()
        for thread in others:
            thread.join()
        if not let_go:
            for array in register:
                cp.cuda.runtime.hostUnregister(array.ctypes.data)
        return max(ends, default=began) - began

    def _calls(self, found: Heard, way: int, card: int, staged: Staged) -> list[Call]:
        """The driver calls of one direction, in their order."""
        known: dict[Any, list[Copy]] = {}
        calls: list[Call] = []
        memory, turn = self.reads if way == TO_DEVICE else self.writes, 0
        buffer = self.staging[0 if way == TO_DEVICE else 1][: staged.nbytes]
        for asked in found.copies:
            if asked.direction != way:
                continue
            if not asked.pinned:  # contiguous, in parts as large as a buffer
                for low in range(0, asked.nbytes, buffer.nbytes):
                    part = min(buffer.nbytes, asked.nbytes - low)
                    turn = 0 if turn + part > buffer.nbytes else turn
                    whole = Copy(turn, 0, part)
                    calls.append(_call(whole, int(buffer.ctypes.data), card, way))
                    turn += part
                continue
            view = asked.lying(memory)
            form = asked.shape, asked.strides, asked.places, asked.dtype
            if form not in known:
                known[form] = list(copies(view, asked.places))
            host = int(view.__array_interface__["data"][0])
            calls += [_call(copy, host, card + asked.device, way) for copy in known[form]]
        return calls

    def _parts(self, found: Heard, staged: Staged) -> Iterator[tuple[Array, Array, bool]]:
        """What threads copy of what is not pinned: target, source, and how, in their order."""
        turns = {TO_DEVICE: 0, TO_HOST: 0}
        for asked in found.copies:
            if asked.pinned:
                continue
            way = asked.direction
            buffer = self.staging[0 if way == TO_DEVICE else 1][: staged.nbytes]
            view = asked.lying(self.ordinary)
            for part, _ in slabs(view, staged.part):
                values = view[part]
                at = turns[way] if turns[way] + values.nbytes <= buffer.nbytes else 0
                turns[way] = at + values.nbytes
                held = buffer[at : at + values.nbytes].view(values.dtype).reshape(values.shape)
                if way == TO_DEVICE:
                    yield held, values, staged.streamed[0]
                else:
                    yield values, held, staged.streamed[1]


def _computing(device: CupyDevice, found: Heard) -> Callable[[], None]:
    """What computes all that was computed, one after the other; plans are there before."""
    for name, given in found.kernels:
        if name == "fft":
            device.work_nbytes(given[0])
    stream = device.stream("compute")

    def compute() -> None:
        for name, given in found.kernels:
            getattr(device, name)(stream, *given)
        device.synchronize_all()

    return compute


def _call(copy: Copy, host: int, device: int, way: int) -> Call:
    """A call of the driver; apart from `cuda_copies`, whose work is what is held against it."""
    runtime = cupy().cuda.runtime
    ends = host + copy.host, device + copy.device
    to, from_ = ends[::-1] if way == TO_DEVICE else ends
    if copy.depth > 1:
        said = memcpy3d(copy, host, device, way)
        return lambda stream: runtime.memcpy3DAsync(ctypes.addressof(said), stream)
    if copy.height > 1:
        wide = (copy.device_pitch, copy.pitch)
        to_pitch, from_pitch = wide if way == TO_DEVICE else wide[::-1]
        return lambda stream: runtime.memcpy2DAsync(
            to, to_pitch, from_, from_pitch, copy.width, copy.height, way, stream)
    return lambda stream: runtime.memcpyAsync(to, from_, copy.nbytes, way, stream)
