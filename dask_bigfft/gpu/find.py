"""The devices of this process: found when first needed, one engine each, given back at exit.

Nothing here touches a card before a task asks for it: graphs are built on machines without one.
`use` puts other devices in the place of those that are found, such as simulated ones.

Imports this room.
"""

import atexit
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu.cuda import available, reason
from dask_bigfft.gpu.cuda import software as software_of_cards
from dask_bigfft.gpu.cupy_device import open_device
from dask_bigfft.gpu.engine import Engine
from dask_bigfft.gpu.leases import Leases
from dask_bigfft.gpu.on_card import forget_plans
from dask_bigfft.gpu.protocol import Device
from dask_bigfft.planner.tile_plan import TileLimits

__all__ = [
    "METRIC",
    "count",
    "in_use",
    "known_nbytes",
    "leases",
    "missing",
    "release",
    "software",
    "use",
]

#: Name under which a worker tells its scheduler of its devices.
METRIC = "bigfft-streams"


@dataclass
class _Process:
    """What the process has: devices that were handed in, and the leases of all devices."""

    given: tuple[Device, ...] | None = None
    limits: TileLimits | None = None
    nbytes: int | None = None
    leases: Leases | None = None
    failure: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start_afresh(self) -> None:
        """Forget what a fork inherits: a device works only in the process that opened it."""
        self.given = self.limits = self.nbytes = self.leases = self.failure = None
        self.lock = threading.Lock()


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.start_afresh)


def missing() -> str | None:
    """Return what keeps this process from using a GPU, and how to get it; None if nothing does."""
    if _process.given:
        return None
    return _process.failure or reason()


def count() -> int:
    """Return how many devices this process may use; opens none."""
    if _process.given is not None:
        return len(_process.given)
    return 0 if _process.failure else len(available())


def software() -> dict[str, str]:
    """Return what decides about the last bit of what this process' devices compute, by name.

    Opens none; nothing where there is no device.
    """
    if _process.given is not None:
        return {name: text for device in _process.given for name, text in device.software.items()}
    return software_of_cards(available()) if count() else {}


def leases() -> Leases | None:
    """Return the leases of this process' devices, which are opened now if need be; None: no device.

    Where a device cannot be opened the answer is None as well, and `missing` says why.
    """
    if _process.leases is not None:
        return _process.leases
    with _process.lock:
        if _process.leases is None and _process.failure is None:
            nbytes, limits = _process.nbytes, _process.limits
            devices = _opened() if _process.given is None else _process.given
            if devices:
                _process.leases = Leases(
                    [Engine(device, nbytes, limits, i) for i, device in enumerate(devices)]
                )
        return _process.leases


def _opened() -> tuple[Device, ...]:
    """Open the devices that this process may use; none where one of them does not work."""
    devices: list[Device] = []
    try:
        for ordinal in available():
            devices.append(open_device(ordinal))
    except DeviceError as error:
        for device in devices:
            device.close()
        _process.failure = f"a device does not work ({error})"
        warnings.warn(f"rounds are done on the CPU: {_process.failure}", stacklevel=2)
        return ()
    return tuple(devices)


def staged() -> int:
    """Return how often memory that is not pinned has gone to or from this process' devices."""
    found = _process.leases
    return 0 if found is None else sum(engine.device.staged for engine in found.engines)


def known_nbytes() -> int | None:
    """Return the bytes of each device that was handed in; None where devices were found."""
    return _process.nbytes


def in_use() -> int:
    """Return how many tasks use this process' devices now; opens none."""
    return 0 if _process.leases is None else _process.leases.in_use


@dataclass(frozen=True)
class DeviceUse:
    """How a device is used at one moment.

    Parameters
    ----------
    name : str
        Of the device.
    memory, budget : int
        Bytes of its memory that are reserved, and that may be.
    busy_seconds : float
        How long it has had work since it was opened.
    """

    name: str
    memory: int
    budget: int
    busy_seconds: float


def uses() -> tuple[DeviceUse, ...]:
    """Return how this process' devices are used now; opens none, and waits for none."""
    found = _process.leases
    return (
        ()
        if found is None
        else tuple(
            DeviceUse(
                engine.device.name,
                engine.pipeline.arena_nbytes,
                engine.limits.nbytes,
                engine.busy.seconds,
            )
            for engine in found.engines
        )
    )


def use(
    devices: Sequence[Device] | None, limits: TileLimits | None = None, nbytes: int | None = None
) -> None:
    """Use these devices from now on; None: those that are found.

    Parameters
    ----------
    devices : sequence of Device or None
        Open devices; they are closed when others take their place.
    limits : TileLimits, optional
        How blocks are cut into pieces; its number of bytes is replaced.
    nbytes : int, optional
        Bytes of each device that may be used, by default a share of what is free.
    """
    release()
    with _process.lock:
        _process.given = None if devices is None else tuple(devices)
        _process.limits, _process.nbytes, _process.failure = limits, nbytes, None


def release() -> None:
    """Close all devices, and drop the plans of blocks that live on cards; all come when needed."""
    with _process.lock:
        held, _process.leases = _process.leases, None
    forget_plans()
    if held is not None:
        held.close()


atexit.register(release)
