"""Seconds of a device for a block: its passes over the bus, or its FFTs.

Pure: imports `decomposition` and this room.
"""

import math

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.work import is_real, step_flops

__all__ = ["device_block_seconds", "device_passes"]

#: Tiles that a device holds at a time.
TILES = 3

#: Passes of an axis that is longer than a tile: two digits, and the natural order.
PASSES_OF_A_LONG_AXIS = 3


def device_passes(round_: Round, itemsize: int, nbytes: int) -> int:
    """Return how often a block crosses the bus each way in a round; 0 where it cannot be done.

    A tile holds all lines of as many steps as fit it; a longer axis is split in two digits.
    """
    room, passes, tile = nbytes // (TILES * itemsize), 0, math.inf
    for length in sorted(step.length for step in round_.steps):
        if length > room:
            if math.isqrt(length - 1) + 1 > room:
                return 0
            passes += PASSES_OF_A_LONG_AXIS
        elif tile * length <= room:
            tile *= length
        else:
            passes, tile = passes + 1, length
    return passes


def device_block_seconds(round_: Round, itemsize: int, device: DeviceProfile) -> float:
    """Return the seconds of a device for each of many blocks of a round.

    Both directions of the bus and the FFTs overlap.

    Parameters
    ----------
    round_ : Round
        What is done.
    itemsize : int
        Bytes of a complex number.
    device : DeviceProfile
        How fast it is, and how much memory it has.
    """
    there = round_.source.largest * (itemsize // 2 if is_real(round_) else itemsize)
    back = round_.target.largest * (itemsize // 2 if is_real(round_, after=True) else itemsize)
    blocks = max(1, round_.source.blocks)
    kernels = sum(
        max(count / blocks / device.flops, 4 * max(there, back) / device.memory)
        for step, count in step_flops(round_)
    )
    passes = max(1, device_passes(round_, itemsize, device.nbytes))
    calls = device.call * passes * TILES * (len(round_.steps) + 2)
    return max(calls, passes * there / device.h2d, passes * back / device.d2h, kernels)
