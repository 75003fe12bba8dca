"""How long blocks take on a device: the pipeline itself, walked through on a simulated clock.

Nothing is copied or computed and no memory is touched, so sizes and speeds may be any. What is
walked is what would run: the same pieces, slots, streams and events.

Imports `planner` and this room.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.find import known_limits
from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.operations import Array
from dask_bigfft.devices.pieces import COMPUTED, PiecePlan
from dask_bigfft.devices.pipeline import Carve, Coming, Loads
from dask_bigfft.devices.protocol import Event
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.work_sharing import shared_dim
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.seconds import Walk

__all__ = ["placed", "walk_on", "walked_seconds"]


def _untouched(shape: Sequence[int], dtype: str) -> Array:
    """An array of any shape whose memory is a single element; only to be looked at."""
    strides, step = [], np.dtype(dtype).itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), tuple(shape), strides[::-1])


def placed(engine: Engine, job: Job) -> tuple[PiecePlan, Carve, list[Array | Composite]]:
    """Pieces of a block as the engine cuts them, how the arena is, and arrays only to be looked at.

    Memory that a device would stage counts as it does there.
    """
    def arrays(plan: PiecePlan, _: PieceLimits) -> list[Array | Composite]:
        written = range(len(plan.schedule.crossings))
        first = _untouched(plan.round.source.shape(plan.block), plan.source)
        return [first, *(_untouched(plan.shape(n), plan.written(n)) for n in written)]

    return engine.placed(job, engine.limits, arrays)


def _spectra(plan: PiecePlan) -> dict[int, Array]:
    """Spectra of the filters that pieces are multiplied by."""
    found: dict[int, Array] = {}
    for number in range(len(plan.schedule.crossings)):
        work = next(plan.works(number))
        found |= {one.axis: _untouched(one.shape, plan.dtype) for one in work.filters}
    return found


class _Few(Coming):
    """A block of which only the first pieces of each crossing are put into the streams."""

    part = 1.0

    def count(self, number: int) -> int:
        """Return the number of pieces of a crossing that are."""
        return math.ceil(self.part * self.plan.schedule.crossings[number].pieces)

    def crossing(self, number: int, parts: int) -> Iterator[Loads]:
        """Return the first pieces of a crossing, as `Coming` has them."""
        return itertools.islice(super().crossing(number, parts), self.count(number))


#: Pieces of a block as the engine cuts them, how the arena is, and arrays only to be looked at.
_Link = tuple[PiecePlan, Carve, list[Array | Composite]]


def _submit(engine: Engine, links: Sequence[_Link], blocks: int, part: float) -> tuple[float, int]:
    """Return the seconds of a part of the pieces of some blocks, and how many pieces these are."""
    device, pipeline, ends, pieces = engine.device, engine.pipeline, list[Event](), 0
    assert isinstance(device, SimulatedDevice)
    began, spectra = device.clock(), [_spectra(plan) for plan, _, _ in links]
    waiting = deque[tuple[Carve, _Few]]()
    for _ in range(blocks):
        for (plan, carve, arrays), found in zip(links, spectra, strict=True):
            coming = _Few(plan, arrays, found)
            coming.part = part
            pieces += sum(map(coming.count, range(len(plan.schedule.crossings))))
            waiting.append((carve, coming))

    def following() -> Coming | None:
        """Return the next block, which is ready unless another job has to do it first."""
        return waiting[0][1] if waiting and len(links) == 1 else None

    while waiting:
        carve, coming = waiting.popleft()
        pipeline.prepare(carve, engine.limits.nbytes)
        ends.append(pipeline.submit(coming, following))
    for end in ends:
        device.synchronize(end)
    return device.clock() - began, pieces


def walked_seconds(
    job: Job,
    device: DeviceProfile,
    nbytes: int | None = None,
    blocks: int = 1,
    limits: PieceLimits | None = None,
    pageable: bool = False,
    most: float = math.inf,
) -> float:
    """Return the seconds that blocks alike take on a device, one after the other.

    The first pieces of a block are loaded while the last ones of the block before are stored.
    Pieces of a crossing are alike: where there are too many, the time of some of them, and how it
    grows with their number, tells the time of all.

    Parameters
    ----------
    job : Job
        The round on one of the blocks.
    device : DeviceProfile
        How fast the device is.
    nbytes : int, optional
        Bytes of its memory that may be used; by default a share of all.
    blocks : int
        How many blocks.
    limits : PieceLimits, optional
        How pieces are cut; its number of bytes is replaced.
    pageable : bool
        Whether the blocks are not pinned.
    most : int, optional
        Pieces that are walked through at most, about; by default all.

    Raises
    ------
    DeviceMemoryError
        If the pieces cannot be made small enough.
    """
    simulated = SimulatedDevice(device.nbytes, profile=device, dry=True, pageable=pageable)
    engine = Engine(simulated, nbytes, limits)
    links = [placed(engine, link) for link in engine.links(job, engine.limits)]
    pieces = blocks * sum(plan.pieces for plan, _, _ in links)
    if pieces <= most:
        return _submit(engine, links, blocks, 1.0)[0]
    (few, fewer), (some, count) = (
        _submit(engine, links, blocks, part * most / pieces) for part in (1 / 4, 1 / 2)
    )
    return some + (pieces - count) * (some - few) / (count - fewer)


#: Blocks that are walked through: what the first one takes alone is spread over them. Where that
#: would be more than `MOST_PIECES`, fewer blocks; of a block of more pieces, a part.
WALKED, MOST_PIECES = 4, 256


@dataclass(frozen=True)
class _BlockWalk:
    """What devices take for each of many blocks of a round: a `planner.seconds.Walk`."""

    devices: tuple[DeviceProfile, ...]
    nbytes: int | None
    dtype: str
    limits: PieceLimits | None = None

    def __call__(self, round_: Round) -> float | None:
        return _walked(self, round_)[0]

    def divides(self, round_: Round) -> bool:
        """Return whether devices and CPU threads can share the blocks of a round."""
        return _walked(self, round_)[1]


@lru_cache(maxsize=512)
def _walked(walk: _BlockWalk, round_: Round) -> tuple[float | None, bool]:
    """Seconds of the slowest device, None where one cannot do it; and whether blocks divide."""
    if round_.source.largest == 0:
        return 0.0, False
    block = round_.source.largest_block  # the first one may have no elements
    real = np.empty(0, walk.dtype).real.dtype
    kinds = {step.kind for step in round_.steps}
    source, target = (
        real if kind in kinds else np.dtype(walk.dtype) for kind in ("r2c", "c2r")
    )
    job = Job(round_, block, source.str, target.str)
    found, divides = list[float](), True
    try:
        for device in set(walk.devices):
            simulated = SimulatedDevice(device.nbytes, profile=device, dry=True)
            engine = Engine(simulated, walk.nbytes, walk.limits)
            plans = [engine.pieces(link)[0] for link in engine.links(job, engine.limits)]
            divides = divides and len(plans) == 1 and shared_dim(plans[0]) is not None
            pieces = sum(plan.pieces for plan in plans)
            each = -(-round_.source.blocks // len(walk.devices))  # a single one overlaps nothing
            blocks = max(1, min(WALKED, each, MOST_PIECES // pieces))
            seconds = walked_seconds(
                job, device, walk.nbytes, blocks, walk.limits, most=MOST_PIECES)
            found.append(seconds / blocks)
    except (DeviceError, DeviceMemoryError, MemoryError):
        return None, False  # which the CPU will have to do, or a card to refuse
    return max(found), divides


def walk_on(
    devices: tuple[DeviceProfile, ...], nbytes: int | None, dtype: str
) -> Walk | None:
    """Return what tells the seconds of blocks of rounds on devices; None without any.

    Devices that were handed in have their own memory and limits.

    Parameters
    ----------
    devices : tuple of DeviceProfile
        How fast they are; the slowest one counts.
    nbytes : int or None
        Bytes of each that may be used.
    dtype : str
        Of complex values.
    """
    if not devices or np.dtype(dtype).char not in COMPUTED:
        return None
    limits, known = known_limits()
    nbytes = min((n for n in (nbytes, known) if n is not None), default=None)
    return _BlockWalk(devices, nbytes, dtype, limits)
