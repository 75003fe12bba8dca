"""How long blocks take on a device: the pipeline itself, walked through on a simulated clock.

Nothing is copied or computed and no memory is touched, so sizes and speeds may be any. What is
walked is what would run: the same pieces, slots, streams and events.

Imports `planner` and this room.
"""

from collections.abc import Sequence

import numpy as np

from dask_bigfft.devices.crossings import PieceLimits
from dask_bigfft.devices.engine import Engine, Job
from dask_bigfft.devices.pieces import PiecePlan
from dask_bigfft.devices.protocol import Array
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.planner.profile import DeviceProfile

__all__ = ["walked_seconds"]


def _untouched(shape: Sequence[int], dtype: str) -> Array:
    """An array of any shape whose memory is a single element; only to be looked at."""
    strides, step = [], np.dtype(dtype).itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), tuple(shape), strides[::-1])


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

    Raises
    ------
    DeviceMemoryError
        If the pieces cannot be made small enough.
    """
    simulated = SimulatedDevice(device.nbytes, profile=device, dry=True)
    engine = Engine(simulated, nbytes, limits)
    pieces, carve = engine.pieces(job)
    engine.pipeline.prepare(carve, engine.limits.nbytes)
    shape = job.round.source.shape(job.block)
    spectra, ends = _spectra(pieces), []
    for _ in range(blocks):
        arrays = [_untouched(shape, pieces.source)]
        for number, crossing in enumerate(pieces.schedule.crossings):
            after = [crossing.after[dim] for dim in crossing.order]
            arrays.append(_untouched(after, pieces.written(number)))
        ends.append(engine.pipeline.submit(pieces, arrays, spectra))
    for end in ends:
        simulated.synchronize(end)
    return simulated.clock()
