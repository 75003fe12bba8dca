"""What part of a round devices are to do, and what part CPU threads, by the model.

Both take pieces of the same blocks, and the round is over when both are done. So each should do as
much as its speed, measured apart (Chen and Li 2013), is of both speeds together::

    share of the devices = D / (D + C),   D = devices / seconds of a block on one,
                                          C = threads / seconds of a block on one thread

Where blocks have to be gathered for a device, some of the threads do that and nothing else: they
are not counted in C, and D is no more than they can gather. Some threads are left to feed each
device. While both work they are slower than each alone, as both go to the host's memory: the more,
the closer CPU threads are to what they could copy (`Profile.together`). And what is shared costs
time of its own, most where CPU threads need the interpreter for every tile
(`Profile.shared_tiles`).

At run time both take rows until they meet, so that a share that is wrong costs little. The events
``round_cpu`` and ``round_device`` tell what each did.

Pure: imports `decomposition` and this room.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.decomposition.rounds import Round, exchange_shape
from dask_bigfft.planner.device_seconds import device_block_seconds
from dask_bigfft.planner.machine import Machine
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.seconds import LEAST_NBYTES, Model, Walk
from dask_bigfft.planner.thread_seconds import cpu_block_seconds

__all__ = ["Balance", "balances", "divided", "gathering_threads", "known_devices", "lanes"]

#: Threads that give pieces to one device: one whose pieces come while those of the other go.
FEEDERS = 2

#: Of the CPU threads, the part that is left to those who feed a device.
_FEEDING = 5

#: Of the CPU threads, the part that gathers for one feeder of a device.
_GATHERING = 4


def gathering_threads(threads: int) -> int:
    """Return the number of threads that gather for one feeder.

    >>> gathering_threads(16), gathering_threads(2)
    (4, 1)
    """
    return max(1, threads // _GATHERING)


def lanes(threads: int, devices: int) -> int:
    """Return the number of CPU threads that work on tiles.

    The others are for those who feed devices and for dask: beside an H200, 13 of 16 did at least as
    much as 15, which held them up.

    >>> lanes(16, 1), lanes(4, 1), lanes(1, 1)
    (13, 3, 1)
    """
    return max(1, threads - devices * max(1, threads // _FEEDING))


@dataclass(frozen=True)
class Balance:
    """How a round is divided in one process.

    Parameters
    ----------
    index : int
        Number of the round, from 1.
    nbytes : int
        Bytes of its largest block.
    blocks : int
        Blocks of one process.
    cpu, device : float
        Seconds that one thread and one device need for a block, while the other kind rests.
    threads, devices : int
        How many there are; threads that gather for devices are left out.
    together : float
        Part of these speeds that is left while both work.
    extra : float
        Seconds that the round takes longer because they share it.
    divides : bool
        Whether both can work on the same block.
    """

    index: int
    nbytes: int
    blocks: int
    cpu: float
    device: float
    threads: int
    devices: int
    together: float = 1.0
    extra: float = 0.0
    divides: bool = True

    @property
    def rates(self) -> tuple[float, float]:
        """Blocks per second of the CPU threads and of the devices, each alone."""
        return self.threads / self.cpu, self.devices / self.device

    @property
    def share(self) -> float:
        """The devices' part of the round, from 0 to 1."""
        ours, theirs = self.rates
        return theirs / (theirs + ours)

    @property
    def gain(self) -> float:
        """How many times as fast both together are as the faster one alone."""
        return self.blocks / max(self.rates) / self.seconds

    @property
    def seconds(self) -> float:
        """Of the round, if both do their share."""
        return self.blocks / (self.together * sum(self.rates)) + self.extra

    def kept(self, least: float) -> float:
        """The devices' part, or all of it to the faster ones where both gain less than that.

        So it is where a block cannot be divided. CPU threads do small ones.
        """
        if self.divides and self.gain >= least:
            return round(self.share, 4)
        return float(self.rates[1] > self.rates[0] and self.nbytes >= LEAST_NBYTES)


def balances(plan: Plan, cards: int = 0, walk: Walk | None = None) -> tuple[Balance, ...]:
    """Return how each round of a plan is divided between CPU threads and devices.

    A process whose devices are not known is thought to have one.

    Parameters
    ----------
    plan : Plan
        With rounds that both are to do.
    cards : int
        Devices of each process, if the plan's machine does not say.
    walk : callable, optional
        Seconds that a device takes for each of many blocks of a round, by a walk through its
        pipeline; by a formula without it.
    """
    machine, itemsize = plan.machine, np.dtype(plan.spec.work_dtype).itemsize
    dtype = np.dtype(plan.spec.work_dtype).name
    model = Model(machine, plan.kernel, dtype, device="cpu")
    devices = known_devices(machine, cards)
    beside = Model(replace(machine, cards=len(devices)), plan.kernel, dtype, plan.carrier)
    found = []
    for number, round_ in enumerate(plan.rounds):
        before = plan.exchanges[number].source
        cpu = max(cpu_block_seconds(round_, before, machine, plan.kernel, dtype), 1e-12)
        shape = exchange_shape(before, round_.source)
        gather = model.gather(shape, before, round_.source, round_) / max(1, round_.source.blocks)
        if walk is None:
            device = max(device_block_seconds(round_, itemsize, one) for one in devices)
        else:
            walked = walk(round_)
            device = math.inf if walked is None else max(walked, 1e-12)
        divides = walk is None or walk.divides(round_)
        threads = lanes(machine.threads, len(devices))
        block = round_.source.size * itemsize / max(1, round_.source.blocks)
        if (read := beside.read(shape, block)) is not None:
            device = max(device, read)
        elif gather > 0:
            gatherers = min(FEEDERS * len(devices) * gathering_threads(threads), threads)
            device = max(device, gather * len(devices) / gatherers)
            threads = max(1, threads - gatherers)
        nbytes = max(round_.source.largest, round_.target.largest) * itemsize
        blocks = -(-round_.source.blocks // machine.workers)
        profile = machine.profile
        busy = threads * nbytes / cpu / (machine.threads * profile.copy)
        together = 1 - (1 - profile.together) * min(1.0, busy)
        if not (shape.local and model.library.elsewhere and is_one_call(round_)):
            together *= profile.shared_tiles
        extra = profile.shared_round + blocks * profile.shared_block
        found.append(
            Balance(number + 1, nbytes, blocks, cpu, device, threads, len(devices), together, extra,
                    divides)
        )
    return tuple(found)


def is_one_call(round_: Round) -> bool:
    """Whether a round is nothing but FFTs along one dimension, however they are scaled."""
    (first, *others) = round_.steps
    beside = (first.twiddle, first.convolve, first.chirp_in, first.chirp_out)
    return not others and first.kind == "c2c" and beside == (None,) * len(beside)


def known_devices(machine: Machine, cards: int = 0) -> tuple[DeviceProfile, ...]:
    """Return how fast the devices of a process are, one where nothing is known of any.

    >>> len(known_devices(Machine())), len(known_devices(Machine(), 2))
    (1, 2)
    """
    return replace(machine, cards=max(1, cards, machine.cards)).devices


def divided(plan: Plan, cards: int, least: float, walk: Walk | None = None) -> Plan:
    """Return a plan whose rounds are shared by CPU threads and devices, with its forecast.

    Parameters
    ----------
    plan : Plan
        For the CPU.
    cards : int
        Devices of each process.
    least : float
        Gain over the faster one alone from which on a round is shared; else that one does it.
    walk : callable, optional
        As `balances` takes it.
    """
    shares, rounds = [], list(plan.expected.rounds)
    for number, found in enumerate(balances(plan, cards, walk)):
        share, ours = found.kept(least), rounds[number]
        shares.append(share)
        # What is beside the work of threads stays: tasks, and what travels. Threads that take work
        # piece by piece end together, and do not all use the memory as those that do everything.
        beside = ours.travel + max(0.0, ours.scheduling - ours.handling / plan.machine.workers)
        work = found.seconds if share < 1 else found.blocks / found.rates[1]
        rounds[number] = replace(
            ours, seconds=work + beside if share else ours.seconds,
            gather=(1 - share) * ours.gather, fft=(1 - share) * ours.fft,
            device=share * found.device if share else 0.0, share=share,
            bound="CPU threads and devices" if 0 < share < 1 else ours.bound,
        )
    start = plan.machine.profile.start
    total = start + sum(found.seconds for found in rounds)
    expected = replace(plan.expected, seconds=total, rounds=tuple(rounds))
    return replace(plan, shares=tuple(shares), expected=expected)
