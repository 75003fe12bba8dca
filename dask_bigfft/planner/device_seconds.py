"""What a device takes for a block, by a formula: the bus each way, or its FFTs.

Pure: imports `decomposition` and this room.
"""

import math

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.work import is_real, step_flops

__all__ = ["device_block_seconds"]

#: Pieces that a device holds at the same time.
SLOTS = 3


def device_block_seconds(round_: Round, itemsize: int, device: DeviceProfile) -> float:
    """Seconds that a device takes for each of many blocks of a round.

    Both directions of the bus and the FFTs work at the same time on different pieces. A block that
    does not fit crosses the bus once more.

    Parameters
    ----------
    round_ : Round
        What is done.
    itemsize : int
        Bytes of a complex number.
    device : DeviceProfile
        How fast it is.
    """
    there = round_.source.largest * (itemsize // 2 if is_real(round_) else itemsize)
    back = round_.target.largest * (itemsize // 2 if is_real(round_, after=True) else itemsize)
    blocks = max(1, round_.source.blocks)
    kernels = sum(
        max(count / blocks / device.flops, 4 * max(there, back) / device.memory)
        for step, count in step_flops(round_)
    )
    piece = math.prod(step.length for step in round_.steps) * itemsize
    crossings = 1 if SLOTS * piece <= device.nbytes else 2
    return crossings * max(there / device.h2d, back / device.d2h, kernels)
