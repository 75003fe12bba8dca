"""What part of a round devices are to do, and what part CPU threads, by the model.

Both take pieces of the same blocks, and the round is over when both are done. So each should do as
much as its speed, measured apart (Chen and Li 2013), is of both speeds together::

    share of the devices = D / (D + C),   D = devices / seconds of a block on one,
                                          C = threads / seconds of a block on one thread

Where blocks have to be gathered for a device, some of the threads do that and nothing else: they
are not counted in C, and D is no more than they can gather.

At run time whoever is free takes the next piece, so that a share that is wrong costs little; what
really was done is told by the events ``round_cpu`` and ``round_device``.

Pure: imports `decomposition` and this room.
"""

from dataclasses import dataclass

import numpy as np

from dask_bigfft.decomposition.rounds import exchange_shape
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.seconds import Model, cpu_block_seconds, device_block_seconds

__all__ = ["FEEDERS", "Balance", "balances", "gathering_threads", "shares_of"]

#: Threads that give pieces to one device: one whose pieces come while those of the other go.
FEEDERS = 2

#: Of the CPU threads, the part that gathers for one feeder of a device.
_GATHERING = 4


def gathering_threads(threads: int) -> int:
    """Return the number of threads that gather for one feeder.

    >>> gathering_threads(16), gathering_threads(2)
    (4, 1)
    """
    return max(1, threads // _GATHERING)


@dataclass(frozen=True)
class Balance:
    """How a round is divided in one process.

    Parameters
    ----------
    index : int
        Number of the round, from 1.
    nbytes : int
        Bytes of its largest block.
    cpu, device : float
        Seconds that one thread and one device need for a block.
    threads, devices : int
        How many there are; threads that gather for devices are left out.
    """

    index: int
    nbytes: int
    cpu: float
    device: float
    threads: int
    devices: int

    @property
    def share(self) -> float:
        """The devices' part of the round, from 0 to 1."""
        theirs, ours = self.devices / self.device, self.threads / self.cpu
        return theirs / (theirs + ours)

    @property
    def gain(self) -> float:
        """How many times as fast both together are as the faster one alone, at best."""
        theirs, ours = self.devices / self.device, self.threads / self.cpu
        return (theirs + ours) / max(theirs, ours)


def balances(plan: Plan) -> tuple[Balance, ...]:
    """Return how each round of a plan is divided between CPU threads and devices.

    A process whose devices are not known is thought to have one.
    """
    machine, itemsize = plan.machine, np.dtype(plan.spec.work_dtype).itemsize
    dtype = np.dtype(plan.spec.work_dtype).name
    model = Model(machine, plan.kernel, dtype, device="cpu")
    devices = machine.devices or (machine.profile.devices or (DeviceProfile(),))[:1]
    found = []
    for number, round_ in enumerate(plan.rounds):
        before = plan.exchanges[number].source
        cpu = cpu_block_seconds(round_, before, machine, plan.kernel, dtype)
        shape = exchange_shape(before, round_.source)
        gather = model.gather(shape, before, round_.source, round_) / max(1, round_.source.blocks)
        device = max(device_block_seconds(round_, itemsize, one) for one in devices)
        threads = machine.threads
        if not shape.local and gather > 0:
            gatherers = min(FEEDERS * len(devices) * gathering_threads(threads), threads)
            device = max(device, gather * len(devices) / gatherers)
            threads = max(1, threads - gatherers)
        nbytes = max(round_.source.largest, round_.target.largest) * itemsize
        found.append(
            Balance(number + 1, nbytes, max(cpu, 1e-12), max(device, 1e-12), threads, len(devices))
        )
    return tuple(found)


def shares_of(plan: Plan, alone: float) -> tuple[float, ...]:
    """Return the devices' part of each round of a plan; above `alone` they do all of it."""
    shares = (round(one.share, 4) for one in balances(plan))
    return tuple(part if part <= alone else 1.0 for part in shares)
