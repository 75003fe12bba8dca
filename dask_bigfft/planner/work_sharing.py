"""Work sharing: the fractions of a round for CPU threads and GPUs, by the cost model.

Both take tiles of the same blocks, in proportion to their speeds (Chen and Li, Proc. ICPADS,
2013)::

    share of the devices = D / (D + C),   D = devices / seconds of a block on one,
                                          C = threads / seconds of a block on one thread

Threads that gather blocks for a device are not counted in C, and D is limited by them. Contention
for host memory slows both down (`Profile.together`), and so does the GIL for threads that work on
tiles (`SHARED_TILES`). At run time an idle executor takes the next tile, so that a wrong share
costs little.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from dask_bigfft.decomposition.layout import admitted
from dask_bigfft.decomposition.rounds import exchange_shape
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.seconds import LEAST_NBYTES, Model, Stage
from dask_bigfft.transforms.spec import TransformSpec

#: CPU threads that halve all speeds while they work on tiles beside GPUs: each tile takes the GIL.
#: 3, 7 and 13 threads left 0.90, 0.81 and 0.73 of the speeds (H100, bus slowed down to 6 GB/s).
SHARED_TILES = 35

#: Threads that feed one GPU: the tiles of one are loaded while those of the other are stored.
FEEDERS = 2

#: Divisor of the CPU threads: this fraction is reserved for feeding a GPU.
_FEEDING = 5

#: Divisor of the CPU threads: this fraction gathers for one feeder of a GPU.
_GATHERING = 4


def gathering_threads(threads: int) -> int:
    """Return the number of threads that gather for one feeder.

    >>> gathering_threads(16), gathering_threads(2)
    (4, 1)
    """
    return max(1, threads // _GATHERING)


def lanes(threads: int, devices: int) -> int:
    """Return the number of CPU threads that work on tiles.

    The others feed GPUs and run dask. Beside an H200, 13 of 16 threads did at least as much as 15,
    which delayed the feeders.

    >>> lanes(16, 1), lanes(4, 1), lanes(1, 1)
    (13, 3, 1)
    """
    return max(1, threads - devices * max(1, threads // _FEEDING))


@dataclass(frozen=True)
class Sharing:
    """Speeds of CPU threads and devices of one process that share a round.

    Parameters
    ----------
    nbytes, blocks : int
        Bytes of its largest block, and number of blocks.
    device : float
        Seconds of a block on one GPU while threads are idle.
    rates : (float, float)
        Blocks per second of all threads that do not gather for devices, and of all devices.
    seconds : float
        Seconds of the shared round.
    divides, free : bool
        Whether both can work on the same round, and on the same block.
    beside : int
        Bytes of host memory between several passes of the blocks that devices share.
    """

    nbytes: int
    blocks: int
    device: float
    rates: tuple[float, float]
    seconds: float
    divides: bool
    free: bool
    beside: int

    def share(self, least: float, cpu_share: float | None = None) -> float:
        """Return the fraction for GPUs; 0 or 1 if sharing has a speed-up below `least`.

        Blocks that cannot be divided are not shared either. CPU threads do small ones. With a
        `cpu_share` set by hand, the one with the larger share does blocks that cannot be divided.
        """
        ours, theirs = self.rates
        if cpu_share is not None and theirs > 0:
            return round(1 - cpu_share, 4) if self.divides and self.free else float(cpu_share < 0.5)
        if self.divides and self.blocks / max(self.rates) >= least * self.seconds:
            return round(theirs / (theirs + ours), 4)
        return float(theirs > ours and self.nbytes >= LEAST_NBYTES)


def sharings(plan: Plan, gpus: int = 0) -> tuple[Sharing, ...]:
    """Return the speeds of CPU threads and GPUs in each round of a plan.

    Parameters
    ----------
    plan : Plan
        Plan with shared rounds.
    gpus : int
        GPUs of each process, at least one, if the plan's machine has fewer.
    """
    machine = replace(plan.machine, gpus=max(1, gpus, plan.machine.gpus))
    dtype = plan.spec.work_dtype.name
    profile = machine.profile
    devices = machine.devices
    model = Model(machine, plan.kernel, dtype, plan.storage)
    in_memory = replace(model, storage="memory", device="cpu")
    found = []
    result_dtypes = plan.dtypes[1::2]
    for number, round_ in enumerate(plan.rounds):
        exchange = plan.exchanges[number]
        before = exchange.source
        blocks = max(1, round_.source.blocks)
        shape = exchange_shape(before, round_.source)
        threads = lanes(machine.threads, len(devices))
        stage = Stage(
            before,
            round_,
            round_.source,
            source_dtype=exchange.source_dtype,
            dtype=exchange.dtype,
            result_dtype=result_dtypes[number],
        )
        alone = in_memory.stage(stage)
        cpu = max((alone.gather + alone.fft + alone.handling) / blocks, 1e-12)
        gather = in_memory.gather(stage, in_memory.flow(stage)) / blocks
        tiles = [tile_plans(round_, dtype, one.nbytes) for one in devices]
        device = max(model.of_device(round_), 1e-12) if all(tiles) else math.inf
        if (read := model.read(shape, round_.source.size * model.itemsize / blocks)) is not None:
            device = max(device, read)
        elif gather > 0:
            gatherers = min(FEEDERS * len(devices) * gathering_threads(threads), threads)
            device = max(device, gather * len(devices) / gatherers)
            threads = max(1, threads - gatherers)
        nbytes = max(round_.source.largest, round_.target.largest) * model.itemsize
        busy = threads * nbytes / cpu / (machine.threads * profile.copy)
        together = (1 - (1 - profile.together) * min(1.0, busy)) / (1 + threads / SHARED_TILES)
        rates = (threads / cpu, len(devices) / device)
        own = -(-blocks // machine.workers)
        seconds = own / (together * sum(rates)) + profile.shared_round
        fixed = set(map(round_.dim, round_.steps))
        extents = enumerate(round_.source.shape(round_.source.largest_block))
        free = any(n > 1 and dim not in fixed for dim, n in extents)
        passes = [tuple(len(found.passes) for found in plans) for plans in tiles]
        several = set(passes) != {(1,)}
        beside = several * min(admitted(nbytes) * len(devices), own) * nbytes
        divides = not several or (free and all(len(counts) == 1 for counts in passes))
        found.append(Sharing(nbytes, own, device, rates, seconds, divides, free, beside))
    return tuple(found)


def divided(plan: Plan, gpus: int, least: float, cpu_share: float | None = None) -> Plan:
    """Return a plan whose rounds are shared by CPU threads and devices, with its forecast.

    Parameters
    ----------
    plan : Plan
        For the CPU.
    gpus : int
        Devices of each process.
    least : float
        Minimum speed-up over the faster one for a round to be shared.
    cpu_share : float, optional
        The CPU's share of the rows of each block, instead of the forecast one.
    """
    shares = []
    rounds = list(plan.expected.rounds)
    peak = plan.expected.peak_host
    room = (plan.machine.memory_limit or math.inf) - peak
    for number, found in enumerate(sharings(plan, gpus)):
        if found.beside > room:
            found = replace(found, divides=False)
        share = found.share(least, cpu_share)
        ours = rounds[number]
        shares.append(share)
        peak = max(peak, plan.expected.peak_host + (0 < share < 1) * found.beside)
        # Tasks and travel take as long as without GPUs.
        beside = ours.travel + max(0.0, ours.scheduling - ours.handling / plan.machine.workers)
        work = found.seconds if share < 1 else found.blocks / found.rates[1]
        if cpu_share is not None and 0 < share < 1:  # one of them ends later
            later = sum(found.rates) * max((1 - share) / found.rates[0], share / found.rates[1])
            work += (later - 1) * (work - plan.machine.profile.shared_round)
        rounds[number] = replace(
            ours,
            seconds=work + beside if share else ours.seconds,
            gather=(1 - share) * ours.gather,
            fft=(1 - share) * ours.fft,
            device=share * found.device if share else 0.0,
            share=share,
            bound="CPU threads and devices" if 0 < share < 1 else ours.bound,
        )
    total = plan.machine.profile.start + sum(found.seconds for found in rounds)
    expected = replace(plan.expected, seconds=total, rounds=tuple(rounds), peak_host=peak)
    settings = replace(plan.settings, cpu_share=cpu_share)
    return replace(plan, shares=tuple(shares), expected=expected, settings=settings)


# --- device choice ------------------------------------------------------------------------

#: Minimum forecast speed-up of CPU threads over GPUs for a transform on the CPU alone.
CERTAIN = 2.0


@lru_cache(maxsize=128)
def decided(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    gpus: int,
    least: float,
    cpu_share: float | None = None,
) -> Plan:
    """Return the plan of a transform that CPU threads and devices may share.

    One kind does all rounds, by its own plan, where the forecast speed-up of sharing is below
    `least`. Forecasts for a bus are better than those for many CPU threads, which therefore need
    a speed-up of `CERTAIN` to work alone.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    request : Request
        Choices of the caller.
    machine : Machine
        Machine without GPUs.
    gpus : int
        GPUs of each process.
    least : float
        Minimum speed-up for sharing; 0 shares every round.
    cpu_share : float, optional
        The CPU's share of the rows of each block, set by hand.
    """
    base = find_plan(spec, request, machine)
    shared = divided(base, gpus, least, cpu_share)
    if least == 0 or cpu_share is not None:
        return shared
    ours = find_plan(spec, replace(request, device="cpu"), machine)
    ours = replace(ours, shares=(0.0,) * len(ours.rounds))
    theirs = find_plan(spec, replace(request, device="gpu"), replace(machine, gpus=gpus))
    theirs = replace(theirs, shares=(1.0,) * len(theirs.rounds))
    faster = theirs if theirs.expected.seconds < CERTAIN * ours.expected.seconds else ours
    if any(math.isinf(one.device) for one in sharings(theirs, gpus)):
        faster = ours  # a device has too little memory
    both = any(0 < share < 1 for share in shared.shares)
    return shared if both and faster.expected.seconds >= least * shared.expected.seconds else faster
