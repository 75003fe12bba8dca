"""Dispatch of rounds to the devices of a process, with the CPU as the fallback.

Devices are opened at first use, with one engine each, and closed at exit, because graphs are also
built on machines without a GPU. `use` registers other devices instead, such as simulated ones. The
modules of engines are imported with the first device: a process without one needs none of them.

A task that waits for a lease holds no block. Leases are granted in first-come order. A few tasks
share a device, so that the tiles of one task are stored while those of another are loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.system import CPU_COUNT

from dask_bigfft import config
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit, running_client
from dask_bigfft.gpu import cuda
from dask_bigfft.kernels.segmented import SegmentedView
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.request import DeviceChoice
from dask_bigfft.planner.seconds import LEAST_NBYTES
from dask_bigfft.planner.tile_plan import AS_IS, COMPUTED, DeviceSettings, TileLimits
from dask_bigfft.system import after_fork
from dask_bigfft.transforms.layout import ADMITTED, Layout, admitted, plain
from dask_bigfft.transforms.rounds import Round

if TYPE_CHECKING:
    from dask_bigfft.gpu.engine import Engine, Source
    from dask_bigfft.gpu.executor import Device
    from dask_bigfft.gpu.tile_work import Array, Job

#: Name of the worker metric that describes its devices.
METRIC = "bigfft-streams"


# --- leases ---------------------------------------------------------------------------------


class Leases:
    """Devices of a process, and their leases.

    Parameters
    ----------
    engines : sequence of Engine
        One per device.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._used = [0] * len(engines)
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._own = threading.local()
        self._door = threading.Semaphore()

    def getting_ready(self) -> contextlib.ExitStack:
        """Wait for this task's turn to describe its block and to submit it to a device.

        That needs the GIL, so that several tasks at once would delay each other and the device. The
        turn ends at `ready`, or when the returned stack is closed.
        """
        turn = contextlib.ExitStack()
        self._own.turn = turn
        turn.enter_context(self._door)
        return turn

    def ready(self) -> None:
        """End the turn of this task, if it has one."""
        turn = getattr(self._own, "turn", None)
        if turn is not None:
            turn.close()

    @contextlib.contextmanager
    def lease(self, tasks: int = ADMITTED, timeout: float | None = None) -> Iterator[Engine]:
        """Lease the engine of the least used device, in first-come order.

        Parameters
        ----------
        tasks : int
            Largest number of leases per device, this one included.
        timeout : float, optional
            Longest wait in seconds.

        Raises
        ------
        TimeoutError
            If no device is free within `timeout`.
        """
        ticket = object()
        started = time.perf_counter()

        def free() -> bool:
            return self._waiting[0] is ticket and min(self._used) < tasks

        with self._changed:
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(free, timeout):
                    raise TimeoutError(f"no device was free within {timeout} s")
                number = self._used.index(min(self._used))
                self._used[number] += 1
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        emit("lease_wait", seconds=time.perf_counter() - started)
        try:
            yield self.engines[number]
        finally:
            with self._changed:
                self._used[number] -= 1
                self._changed.notify_all()

    @property
    def in_use(self) -> int:
        """Number of leases."""
        with self._changed:
            return sum(self._used)

    def close(self) -> None:
        """Close all engines."""
        for engine in self.engines:
            engine.close()


# --- the devices of the process ---------------------------------------------------------------


@dataclass
class _Process:
    """Registered devices of the process, and the leases of all devices."""

    registered: tuple[Device, ...] | None = None
    limits: TileLimits | None = None
    nbytes: int | None = None
    leases: Leases | None = None
    failure: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_process = _Process()
# Devices belong to the process that opened them.
after_fork(lambda: vars(_process).update(vars(_Process())))


def missing() -> str | None:
    """Return the reason why this process has no GPU, and the remedy; None if it has one."""
    if _process.registered:
        return None
    return _process.failure or cuda.reason()


def device_count() -> int:
    """Return the number of devices that this process may use, without opening any."""
    if _process.registered is not None:
        return len(_process.registered)
    return 0 if _process.failure else len(cuda.available())


def open_early(device: Any) -> None:
    """Start to open a device if an argument or the setting names one and tasks will run here.

    The call goes on meanwhile: it copies its input and makes its plan.
    """
    if device is None:
        device = config.get("bigfft.device")
    is_named = isinstance(device, str) and device in ("gpu", "hybrid")
    if is_named and _process.registered is None and running_client() is None:
        cuda.open_beside()


def software() -> dict[str, str]:
    """Return the versions that decide the last bit of results on this process' devices, by name.

    No device is opened. The result is empty where there is no device.
    """
    if _process.registered is not None:
        return {
            name: text for device in _process.registered for name, text in device.software.items()
        }
    return cuda.software(cuda.available()) if device_count() else {}


def leases() -> Leases | None:
    """Return the leases of this process' devices, opening them at the first call.

    None if there is no device, or if one cannot be opened; `missing` then returns the reason.
    """
    if _process.leases is not None:
        return _process.leases
    with _process.lock:
        if _process.leases is None and _process.failure is None:
            nbytes = _process.nbytes
            limits = _process.limits
            devices = _opened() if _process.registered is None else _process.registered
            if devices:
                from dask_bigfft.gpu.engine import Engine

                _process.leases = Leases(
                    [Engine(device, nbytes, limits, i) for i, device in enumerate(devices)]
                )
        return _process.leases


def _opened() -> tuple[Device, ...]:
    """Open the devices that this process may use; return none if one of them fails."""
    ordinals = cuda.available()
    if not ordinals:
        return ()

    from dask_bigfft.gpu.cupy_gpu import CupyGPU  # numba and its kernels: 50 MiB

    devices: list[Device] = []
    try:
        for ordinal in ordinals:
            devices.append(CupyGPU(ordinal))
    except DeviceError as error:
        for device in devices:
            device.close()
        _process.failure = f"a device does not work ({error})"
        warnings.warn(f"rounds are done on the CPU: {_process.failure}", stacklevel=2)
        return ()
    return tuple(devices)


def known_nbytes() -> int | None:
    """Return the memory limit of the devices in bytes, without opening any; None if unknown."""
    if _process.registered is not None or not device_count():
        return _process.nbytes

    from dask_bigfft.gpu.engine import MEMORY_SHARE

    runtime = cuda.cupy().cuda.runtime
    total_nbytes = [
        runtime.getDeviceProperties(ordinal)["totalGlobalMem"] for ordinal in cuda.available()
    ]
    return int(MEMORY_SHARE * min(total_nbytes))


def in_use() -> int:
    """Return the number of leases of this process' devices, without opening any."""
    return 0 if _process.leases is None else _process.leases.in_use


def uses() -> tuple[dict[str, Any], ...]:
    """Return the present use of this process' devices, without opening or waiting for any.

    Each entry has the ``name`` of the device, the bytes of ``memory`` that are reserved, the
    ``budget`` of bytes that may be reserved, and the ``busy_seconds`` since the device was opened.
    """
    engines = () if _process.leases is None else _process.leases.engines
    return tuple(
        {
            "name": engine.device.name,
            "memory": engine.executor.arena_nbytes,
            "budget": engine.limits.nbytes,
            "busy_seconds": engine.busy_seconds,
        }
        for engine in engines
    )


def use(
    devices: Sequence[Device] | None, limits: TileLimits | None = None, nbytes: int | None = None
) -> None:
    """Register the devices of this process; None restores those that CUDA finds.

    Parameters
    ----------
    devices : sequence of Device or None
        Open devices. They are closed when other devices replace them.
    limits : TileLimits, optional
        Limits for tiles; the number of bytes is replaced.
    nbytes : int, optional
        Memory limit of each device in bytes, by default a share of its free memory.
    """
    release()
    with _process.lock:
        _process.registered = None if devices is None else tuple(devices)
        _process.limits = limits
        _process.nbytes = nbytes
        _process.failure = None


def release() -> None:
    """Close all devices, and drop the FFT plans for arrays on GPUs; later use reopens them."""
    with _process.lock:
        old_leases = _process.leases
        _process.leases = None
    on_gpu = sys.modules.get("dask_bigfft.gpu.on_gpu")
    if on_gpu is not None:  # which made plans
        on_gpu.forget_plans()
    if old_leases is not None:
        old_leases.close()


atexit.register(release)


@dataclass(frozen=True)
class Place:
    """Device choice for rounds.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu", "hybrid"}
        ``"auto"`` uses a device if there is one and the block is large enough. With ``"hybrid"``
        the CPU and a device share a block.
    nbytes : int or None
        Memory limit of a device in bytes.
    settings : DeviceSettings
        Settings of the pipeline.
    share : float
        Forecast share of the devices in a hybrid round.
    """

    device: DeviceChoice = "auto"
    nbytes: int | None = None
    settings: DeviceSettings = AS_IS
    share: float = 0.5

    def for_share(self, share: tuple[float, ...]) -> Place:
        """Return the device choice of a round with a given device share; empty means unknown.

        A share of 1 becomes ``"auto"``, so that the CPU is the fallback. A GPU also takes small
        blocks if the share is set by hand.
        """
        device = self.device
        if share == (0.0,):
            device = "cpu"
        elif share == (1.0,):
            by_hand = self.settings.cpu_share is not None and not missing()
            device = "gpu" if by_hand else "auto"
        (part,) = share or (self.share,)
        return replace(self, device=device, share=part)


@functools.lru_cache(maxsize=256)  # repeated calls ask for the same blocks
def job_of(
    round_: Round,
    block: tuple[int, ...],
    source: np.dtype[Any],
    target: np.dtype[Any],
    inside: bool,
) -> Job:
    """Return the job of a round on a block, given its dtypes before and after.

    `inside` requests passes that need no host memory beside the block.
    """
    from dask_bigfft.gpu.tile_work import Job

    if source.kind == "f" and target.kind == "c" and not round_.takes_real:
        source = target  # real input of complex FFTs becomes complex on the way
    return Job(round_, block, source.str, target.str, inside)


def getting_ready(place: Place, nbytes: int, dtype: str) -> contextlib.ExitStack:
    """Wait for a task's turn to describe a block, if a device may take the block.

    The turn ends when the block is submitted to a device or gathered for it, or when `on_device`
    leaves the block to the CPU.

    Parameters
    ----------
    place : Place
        Device choice.
    nbytes : int
        Size of the block in bytes.
    dtype : str
        Dtype of the block.
    """
    if place.device == "hybrid":  # its tasks never wait for a device
        return contextlib.ExitStack()
    device_leases = _leases(place, nbytes, dtype)
    return contextlib.ExitStack() if device_leases is None else device_leases.getting_ready()


def on_device(
    job: Job,
    incoming: BlockView,
    filters: Mapping[int, Array] | None,
    place: Place,
) -> Array | None:
    """Return a block after a round on a device; None if the CPU has to do it.

    Parameters
    ----------
    job : Job
        The round on the block.
    incoming : BlockView
        The block before the round; it is not gathered before the device is leased.
    filters : mapping of int to ndarray or None
        Spectra of convolutions' filters, by their numbers among the plan's operands.
    place : Place
        Where rounds are done.

    Raises
    ------
    DeviceError
        If a device is demanded and there is none, or it fails.
    """
    nbytes = incoming.dtype.itemsize * math.prod(incoming.shape)
    device_leases = _leases(place, nbytes, job.source, job.target)
    if device_leases is None:
        return None
    source = _source(incoming)
    job = replace(job, settings=place.settings)
    target = None if incoming.in_place else incoming.target
    if target is not None:
        order = np.argsort(np.negative(target.strides), kind="stable")
        job = replace(job, order=tuple(order))
        source.target = target.transpose(job.order)
    shards = source.segmented
    if shards is not None:
        # Steps that complete half a spectrum or apply a filter need the scratch space in which
        # reversed shards are turned.
        plain = all(step.kind == "c2c" and step.convolve is None for step in job.round.steps)
        job = replace(job, shards=shards.count, mirrored=shards.is_mirrored and plain)
    # In a hybrid round the CPU takes the block if no device is free.
    timeout = 0.0 if place.device == "hybrid" else None
    block = _run(
        device_leases,
        job,
        source,
        place,
        nbytes,
        filters,
        timeout=timeout,
    )
    is_in_target = block is not None and block is source.target
    return target if is_in_target else block


def _run(
    device_leases: Leases,
    job: Job,
    source: Source,
    place: Place,
    nbytes: int,
    filters: Mapping[int, Array] | None = None,
    *,
    timeout: float | None = None,
) -> Array | None:
    """Return a block after a round on a leased device; None if the CPU has to do it."""
    try:
        limits_of_devices = [engine.within(place.nbytes) for engine in device_leases.engines]
        limits = min(limits_of_devices, key=lambda limits: limits.nbytes)
        source.ready = device_leases.ready
        if source.gather is not None or source.shards(job.tiles(limits), limits) is not None:
            for link in device_leases.engines[0].links(job, limits):
                link.tiles(limits)  # raises if they do not fit, before the task waits
            with device_leases.lease(admitted(nbytes), timeout) as engine:
                return engine.run(job, source, filters, nbytes=place.nbytes)
    except TimeoutError:
        pass
    except DeviceMemoryError:
        emit("fallback", nbytes=nbytes)
    device_leases.ready()
    return None


def moved_on_device(incoming: BlockView, place: Place, blocks: int = 1) -> Array | None:
    """Return a block after an exchange without a round, gathered by a device.

    The device reads the shards in the order of their memory and transposes them. None if the CPU
    has to gather the block.

    Parameters
    ----------
    incoming : BlockView
        The block.
    place : Place
        Where rounds are done.
    blocks : int
        Number of blocks of this exchange.

    Raises
    ------
    DeviceError
        If a device is demanded and there is none, or it fails.
    """
    dtype = incoming.dtype
    nbytes = dtype.itemsize * math.prod(incoming.shape)
    device_leases = _leases(place, nbytes, dtype.str)
    if device_leases is None:
        return None

    from dask_bigfft.gpu.engine import Source
    from dask_bigfft.gpu.tile_work import Job

    shards = incoming.boxes(True)
    order = None if shards is None else shards.order
    if shards is None or order is None:
        device_leases.ready()
        return None
    in_memory_order = shards.turned(order)
    back = tuple(map(order.index, range(len(order))))
    job = Job(
        _reordering(in_memory_order.sizes, back, blocks),
        (0,) * len(order),
        dtype.str,
        dtype.str,
        order=back,
        shards=in_memory_order.count,
        mirrored=in_memory_order.is_mirrored,
        settings=place.settings,
        window=None if shards.form.is_whole else shards.form,
    )
    source = Source(None, segmented=in_memory_order)
    block = _run(device_leases, job, source, place, nbytes)
    return None if block is None else block.reshape(incoming.shape)


def inside_device(job: Job, shards: SegmentedView, place: Place) -> bool:
    """Do a round in place on the shards of other blocks that make up a block.

    Returns False if the CPU has to do it; the shards are unchanged then.

    Parameters
    ----------
    job : Job
        The round on the block, in place.
    shards : SegmentedView
        The block.
    place : Place
        Where rounds are done.

    Raises
    ------
    DeviceError
        If a device is demanded and there is none, or it fails.
    """
    device_leases = _leases(place, shards.nbytes, job.source, job.target)
    if device_leases is None:
        return False

    from dask_bigfft.gpu.engine import Source

    job = replace(job, shards=shards.count, settings=place.settings)
    source = Source(None, again=False, segmented=shards, inside=True)
    return _run(device_leases, job, source, place, shards.nbytes) is not None


def _reordering(sizes: tuple[int, ...], order: tuple[int, ...], blocks: int) -> Round:
    """Return a round without steps that only reorders the dimensions of a block."""

    def layout(shape: tuple[int, ...]) -> Layout:
        """Return the layout of blocks of a shape, side by side along the first dimension."""
        first, *others = shape
        chunks = [(first,) * blocks, *((n,) for n in others)]
        return Layout(tuple(plain(sum(own_chunks), own_chunks) for own_chunks in chunks))

    target_sizes = tuple(sizes[dim] for dim in order)
    return Round((), layout(sizes), layout(target_sizes))


def takes(device: DeviceChoice, nbytes: int, *dtypes: str) -> bool:
    """Return True if a device takes a block of this size and these dtypes.

    >>> takes("auto", LEAST_NBYTES, "c16"), takes("auto", 64, "c16"), takes("gpu", 64, "c16")
    (True, False, True)
    """
    if device == "cpu" or any(np.dtype(name).char not in COMPUTED for name in dtypes):
        return False
    least_nbytes = 1 if device == "gpu" else LEAST_NBYTES
    return nbytes >= least_nbytes


def _leases(place: Place, nbytes: int, *dtypes: str) -> Leases | None:
    """Return the leases of devices that take a block; None if the CPU has to do it."""
    if place.device == "cpu":
        return None
    device_leases = leases()
    if device_leases is None and place.device == "gpu":
        raise DeviceError(f"device='gpu' is asked for, but {missing()}")
    return device_leases if takes(place.device, nbytes, *dtypes) else None


def _source(incoming: BlockView) -> Source:
    """Return the block for a device, without a copy where that is possible."""
    from dask_bigfft.gpu.engine import Source

    array = incoming.array
    segmented = incoming.boxes(False)
    if array is not None and not incoming.owned and array.flags.c_contiguous:
        return Source(lambda: array, borrowed=True)
    return Source(
        lambda: incoming.gather(threads=CPU_COUNT),
        again=not incoming.owned,
        segmented=segmented,
    )
