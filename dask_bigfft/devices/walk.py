"""How long blocks take on a device: the pipeline itself, walked through on a simulated clock.

Nothing is copied or computed and no memory is touched, so sizes and speeds may be any. What is
walked is what would run: the same pieces, slots, streams and events.

Imports `planner` and this room.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.operations import Array
from dask_bigfft.devices.pieces import COMPUTED, PiecePlan
from dask_bigfft.devices.pipeline import Carve, Coming
from dask_bigfft.devices.simulated import SimulatedDevice
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


def walked_seconds(
    job: Job,
    device: DeviceProfile,
    nbytes: int | None = None,
    blocks: int = 1,
    limits: PieceLimits | None = None,
    pageable: bool = False,
) -> float:
    """Return the seconds that blocks alike take on a device, one after the other.

    The first pieces of a block are loaded while the last ones of the block before are stored.

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

    Raises
    ------
    DeviceMemoryError
        If the pieces cannot be made small enough.
    """
    simulated = SimulatedDevice(device.nbytes, profile=device, dry=True, pageable=pageable)
    engine = Engine(simulated, nbytes, limits)
    links = [placed(engine, link) for link in engine.links(job, engine.limits)]
    spectra = [_spectra(pieces) for pieces, _, _ in links]
    waiting = deque(
        (carve, Coming(pieces, arrays, found))
        for _ in range(blocks)
        for (pieces, carve, arrays), found in zip(links, spectra, strict=True)
    )

    def following() -> Coming | None:
        """The next block, which is ready unless it has to be done by another job first."""
        return waiting[0][1] if waiting and len(links) == 1 else None

    ends = []
    while waiting:
        carve, coming = waiting.popleft()
        engine.pipeline.prepare(carve, engine.limits.nbytes)
        ends.append(engine.pipeline.submit(coming, following))
    for end in ends:
        simulated.synchronize(end)
    return simulated.clock()


#: Blocks that are walked through: what the first one takes alone is spread over them. Where that
#: would be more pieces than `MOST_PIECES`, fewer; a block of more pieces is not walked through.
WALKED, MOST_PIECES = 4, 256


@dataclass(frozen=True)
class _BlockWalk:
    """What devices take for each of many blocks of a round: a `planner.seconds.Walk`."""

    devices: tuple[DeviceProfile, ...]
    nbytes: int | None
    dtype: str

    def __call__(self, round_: Round) -> float | None:
        return _slowest(self, round_)


@lru_cache(maxsize=512)
def _slowest(walk: _BlockWalk, round_: Round) -> float | None:
    if round_.source.largest == 0:
        return 0.0
    block = round_.source.largest_block  # the first one may have no elements
    real = np.empty(0, walk.dtype).real.dtype
    kinds = {step.kind for step in round_.steps}
    source, target = (
        real if kind in kinds else np.dtype(walk.dtype) for kind in ("r2c", "c2r")
    )
    job = Job(round_, block, source.str, target.str)
    found = []
    try:
        for device in set(walk.devices):
            simulated = SimulatedDevice(device.nbytes, profile=device, dry=True)
            engine = Engine(simulated, walk.nbytes)
            links = engine.links(job, engine.limits)
            pieces = sum(engine.pieces(link)[0].pieces for link in links)
            if pieces > MOST_PIECES:
                return None
            each = -(-round_.source.blocks // len(walk.devices))  # a single one overlaps nothing
            blocks = max(1, min(WALKED, each, MOST_PIECES // pieces))
            found.append(walked_seconds(job, device, walk.nbytes, blocks) / blocks)
    except (DeviceError, DeviceMemoryError, MemoryError):
        return None  # which the CPU will have to do, or a card to refuse
    return max(found)


def walk_on(
    devices: tuple[DeviceProfile, ...], nbytes: int | None, dtype: str
) -> Walk | None:
    """Return what tells the seconds of blocks of rounds on devices; None without any.

    Parameters
    ----------
    devices : tuple of DeviceProfile
        How fast they are; the slowest one counts.
    nbytes : int or None
        Bytes of each that may be used.
    dtype : str
        Of complex values.
    """
    computed = np.dtype(dtype).char in COMPUTED
    return _BlockWalk(devices, nbytes, dtype) if devices and computed else None
