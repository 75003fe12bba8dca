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
(`SHARED_TILES`).

At run time whoever is free takes the next piece, so that a share that is wrong costs little; what
really was done is told by the events ``round_cpu`` and ``round_device``.

Pure: imports `decomposition` and this room.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dask_bigfft.decomposition.rounds import Round, exchange_shape
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.device_seconds import device_block_seconds, device_passes
from dask_bigfft.planner.machine import Machine, RoundForecast
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.seconds import LEAST_NBYTES, Model, cpu_block_seconds
from dask_bigfft.transforms.spec import TransformSpec

__all__ = ["FEEDERS", "Balance", "balances", "divided", "gathering_threads", "known_devices",
           "lanes", "paces"]

#: Part of their speeds that is left while CPU threads that go from tile to tile share a round with
#: devices: each tile takes the GIL.
SHARED_TILES = 0.5

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


def balances(plan: Plan, cards: int = 0) -> tuple[Balance, ...]:
    """Return how each round of a plan is divided between CPU threads and devices.

    A process whose devices are not known is thought to have one.

    Parameters
    ----------
    plan : Plan
        With rounds that both are to do.
    cards : int
        Devices of each process, if the plan's machine does not say.
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
        passes = min(device_passes(round_, itemsize, one.nbytes) for one in devices)
        device = max(device_block_seconds(round_, itemsize, one) for one in devices)
        device = max(device, 1e-12) if passes else math.inf
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
        if not (shape.local and model.library.supports_out and is_one_call(round_)):
            together *= SHARED_TILES
        found.append(
            Balance(number + 1, nbytes, blocks, cpu, device, threads, len(devices), together,
                    profile.shared_round, passes == 1)
        )
    return tuple(found)


def is_one_call(round_: Round) -> bool:
    """Whether a round is nothing but FFTs along one dimension, however they are scaled."""
    (first, *others) = round_.steps
    beside = (first.twiddle, first.convolve, first.chirp_in, first.chirp_out)
    return not others and first.kind == "c2c" and beside == (None,) * len(beside)


def paces(plan: Plan) -> tuple[tuple[float, float], ...]:
    """Return the seconds that a CPU thread and a feeder of a device need for a byte, by round."""
    return tuple(
        (found.cpu / max(1, found.nbytes), FEEDERS * found.device / max(1, found.nbytes))
        for found in balances(plan)
    )


def known_devices(machine: Machine, cards: int = 0) -> tuple[DeviceProfile, ...]:
    """Return how fast the devices of a process are, one where nothing is known of any.

    >>> len(known_devices(Machine())), len(known_devices(Machine(), 2))
    (1, 2)
    """
    return replace(machine, cards=max(1, cards, machine.cards)).devices


def divided(plan: Plan, cards: int, least: float) -> Plan:
    """Return a plan whose rounds are shared by CPU threads and devices, with its forecast.

    Parameters
    ----------
    plan : Plan
        For the CPU.
    cards : int
        Devices of each process.
    least : float
        Gain over the faster one alone from which on a round is shared; else that one does it.
    """
    shares, rounds = [], list(plan.expected.rounds)
    for number, found in enumerate(balances(plan, cards)):
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


# --- who does a plan ----------------------------------------------------------------------

#: CPU threads alone do a transform only where the model has them so many times as fast as devices.
CERTAIN = 2.0

#: A plan that suits processes with fewer devices is taken where it needs less than this part of the
#: time of the one that suits those with most, for which the others would be waited for.
SLOWED = 0.95

#: The rounds of a plan, with what they take, in a process with so many devices.
Rounds = Callable[[int], tuple[RoundForecast, ...]]


def divided_among(plan: Plan, cards: int, least: float) -> Plan:
    """Return a plan whose rounds are shared by the CPU threads and devices of each process.

    Parameters
    ----------
    plan : Plan
        For the CPU.
    cards : int
        Devices of each process, or of that which has most.
    least : float
        Gain from which on a round is shared, as `divided` takes it.
    """
    def of(count: int) -> tuple[RoundForecast, ...]:
        return (divided(plan, count, least) if count else plan).expected.rounds

    return _waited_for(divided(plan, cards, least), of)


def _by_devices(plan: Plan) -> Plan:
    """A plan for devices, with the forecast of a cluster where some processes have fewer or none.

    CPU threads do the blocks of those that have none.
    """
    def of(count: int) -> tuple[RoundForecast, ...]:
        machine = replace(plan.machine, cards=count)
        device = plan.device if count else "cpu"
        return forecast(replace(plan, machine=machine, device=device)).rounds

    bare = any(not count for count, _ in plan.machine.by_cards)
    return _waited_for(replace(plan, device="hybrid") if bare else plan, of)


def _waited_for(plan: Plan, of: Rounds) -> Plan:
    """A plan whose rounds take what they take in the processes that are slowest."""
    kinds = plan.machine.by_cards
    if not kinds:
        return plan
    workers = sum(count for _, count in kinds)
    known = [(of(cards), count) for cards, count in kinds]
    rounds = []
    for number in range(len(plan.expected.rounds)):
        each = [(found[number], count) for found, count in known]
        slowest = max((found for found, _ in each), key=lambda found: found.seconds)
        share = sum(found.share * count for found, count in each) / workers
        rounds.append(replace(slowest, share=round(share, 4)))
    before, after = (sum(one.seconds for one in each) for each in (plan.expected.rounds, rounds))
    seconds = plan.expected.seconds + after - before
    return replace(plan, expected=replace(plan.expected, seconds=seconds, rounds=tuple(rounds)))


def _alone(plan: Plan, devices: bool) -> Plan:
    """A plan whose rounds are all done by one kind."""
    return replace(plan, shares=(float(devices),) * len(plan.rounds))


@lru_cache(maxsize=128)
def decided(
    spec: TransformSpec, request: Request, machine: Machine, cards: int, least: float,
) -> Plan:
    """Return the plan of a transform that CPU threads and devices may share, and who does what.

    Where both together are not so much faster by the model than the faster ones alone, those do
    all of it, by the plan that is made for them: so the transform is never slower for what might
    have been shared. So they do where no single round is worth sharing: that one round is better
    here and another one there rests on two forecasts that were never measured beside each other.
    The speed of a bus is known to a few per cent, that of many CPU threads often not to a half: so
    they do it alone where they are `CERTAIN` times as fast, and devices otherwise.

    Where processes have unlike numbers of devices, that is decided for the one that has most. But
    it may wait for the others: so another way is taken that needs less than `SLOWED` of the time.

    Parameters
    ----------
    spec : TransformSpec
        What is asked.
    request : Request
        What of it may be chosen.
    machine : Machine
        Where it runs, without devices.
    cards : int
        Devices of each process, or of that which has most.
    least : float
        The gain from which on it is shared; with 0 every round is.
    """
    base = find_plan(spec, request, machine)
    if least == 0:
        return divided_among(base, cards, least)
    shared = divided(base, cards, least)
    ours = _alone(find_plan(spec, replace(request, device="cpu"), machine), False)
    on_cards = replace(machine, cards=cards)
    theirs = _alone(find_plan(spec, replace(request, device="gpu"), on_cards), True)
    faster = min(ours, theirs, key=lambda plan: plan.expected.seconds)
    if theirs.expected.seconds < CERTAIN * ours.expected.seconds:
        faster = theirs
    if any(math.isinf(one.device) for one in balances(theirs, cards)):
        faster = ours  # a device has too little memory
    both = any(0 < share < 1 for share in shared.shares)
    if both and faster.expected.seconds >= least * shared.expected.seconds:
        faster = shared
    if not machine.by_cards:
        return faster
    unlike = (divided_among(base, cards, least), _by_devices(theirs), ours)
    suited = unlike[[shared, theirs, ours].index(faster)]
    best = min(unlike, key=lambda plan: plan.expected.seconds)
    return best if best.expected.seconds < SLOWED * suited.expected.seconds else suited
