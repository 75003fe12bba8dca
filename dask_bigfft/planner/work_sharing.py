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

from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import Plan, RoundForecast
from dask_bigfft.planner.request import Machine, Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.seconds import LEAST_NBYTES, Model
from dask_bigfft.planner.stages import Stage
from dask_bigfft.transforms.layout import admitted
from dask_bigfft.transforms.rounds import Round
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
        cpu_rate, gpu_rate = self.rates
        if cpu_share is not None and gpu_rate > 0:
            if self.divides and self.free:
                return round(1 - cpu_share, 4)
            return 1.0 if cpu_share < 0.5 else 0.0
        if self.divides and self.blocks / max(self.rates) >= least * self.seconds:
            return round(gpu_rate / (gpu_rate + cpu_rate), 4)
        gpus_are_faster = gpu_rate > cpu_rate and self.nbytes >= LEAST_NBYTES
        return 1.0 if gpus_are_faster else 0.0


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
    model = Model(
        machine,
        plan.kernel,
        plan.spec.work_dtype.name,
        plan.storage,
    )
    return tuple(_sharing(plan, model, number) for number in range(len(plan.rounds)))


def _sharing(plan: Plan, model: Model, number: int) -> Sharing:
    """Return the speeds of CPU threads and GPUs in a round; `model` is that of both together."""
    machine = model.machine
    gpu_count = len(machine.devices)
    round_ = plan.rounds[number]
    block_nbytes = max(round_.source.largest, round_.target.largest) * model.itemsize
    own_blocks = -(-max(1, round_.source.blocks) // machine.workers)
    tiles_of_gpus = [
        tile_plans(round_, plan.spec.work_dtype.name, device.nbytes) for device in machine.devices
    ]
    stage = plan.stages[number]
    threads, gpu_seconds = _gathering(model, stage)
    if all(tiles_of_gpus):
        gpu_seconds = max(gpu_seconds, model.of_device(round_), 1e-12)
    else:
        gpu_seconds = math.inf
    cpu_seconds = _cpu_seconds(model, stage)
    rates = (threads / cpu_seconds, gpu_count / gpu_seconds)
    speed = _speed_together(machine, threads, threads * block_nbytes / cpu_seconds)
    is_free = _has_free_dim(round_)
    beside = 0
    divides = True
    pass_counts = [tuple(len(tiles.passes) for tiles in parts) for parts in tiles_of_gpus]
    if set(pass_counts) != {(1,)}:  # some GPU takes several passes
        beside = min(admitted(block_nbytes) * gpu_count, own_blocks) * block_nbytes
        divides = is_free and all(len(counts) == 1 for counts in pass_counts)
    return Sharing(
        nbytes=block_nbytes,
        blocks=own_blocks,
        device=gpu_seconds,
        rates=rates,
        seconds=own_blocks / (speed * sum(rates)) + machine.profile.shared_round,
        divides=divides,
        free=is_free,
        beside=beside,
    )


def _speed_together(machine: Machine, threads: int, bytes_per_second: float) -> float:
    """Return the speed of threads and GPUs that work together, in units of their speeds alone.

    The threads read `bytes_per_second` of blocks. The fraction of the memory bandwidth that they
    take slows both down, and so does their number (`SHARED_TILES`).
    """
    copy_rate = machine.threads * machine.profile.copy
    busy = min(1.0, bytes_per_second / copy_rate)
    return (1 - (1 - machine.profile.together) * busy) / (1 + threads / SHARED_TILES)


def _cpu_seconds(model: Model, stage: Stage) -> float:
    """Return the seconds of a block on one CPU thread."""
    on_cpu = replace(model, storage="memory", device="cpu").stage(stage)
    seconds = on_cpu.gather + on_cpu.fft + on_cpu.handling
    return max(seconds / max(1, stage.exchange.target.blocks), 1e-12)


def _gathering(model: Model, stage: Stage) -> tuple[int, float]:
    """Return the threads that work on tiles, and the seconds in which a GPU gets a block.

    Where GPUs cannot read the shards themselves, some threads gather for them.
    """
    gpu_count = len(model.machine.devices)
    threads = lanes(model.machine.threads, gpu_count)
    blocks = max(1, stage.exchange.target.blocks)
    exchange = stage.exchange
    read_seconds = model.read(exchange, stage.round_)
    if read_seconds is not None:
        return threads, read_seconds
    in_memory = replace(model, storage="memory", device="cpu")
    gather_seconds = in_memory.gather(stage, in_memory.traffic(stage)) / blocks
    if gather_seconds <= 0:
        return threads, 0.0
    gatherers = min(FEEDERS * gpu_count * gathering_threads(threads), threads)
    return max(1, threads - gatherers), gather_seconds * gpu_count / gatherers


def _has_free_dim(round_: Round) -> bool:
    """Return whether blocks have a dimension that a round does not transform, of several values."""
    transformed_dims = set(map(round_.dim, round_.steps))
    extents = round_.source.shape(round_.source.largest_block)
    return any(n > 1 and dim not in transformed_dims for dim, n in enumerate(extents))


def divided(
    plan: Plan,
    gpus: int,
    least: float,
    cpu_share: float | None = None,
) -> Plan:
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
    free_nbytes = (plan.machine.memory_limit or math.inf) - plan.expected.peak_host
    shares = []
    rounds = list(plan.expected.rounds)
    most_beside = 0
    for number, sharing in enumerate(sharings(plan, gpus)):
        if sharing.beside > free_nbytes:
            sharing = replace(sharing, divides=False)
        share = sharing.share(least, cpu_share)
        shares.append(share)
        rounds[number] = _shared_forecast(
            plan,
            number,
            sharing,
            share,
            cpu_share,
        )
        if 0 < share < 1:
            most_beside = max(most_beside, sharing.beside)
    start = plan.machine.profile.start
    expected = replace(
        plan.expected,
        seconds=start + sum(round_.seconds for round_ in rounds),
        rounds=tuple(rounds),
        peak_host=plan.expected.peak_host + most_beside,
    )
    settings = replace(plan.settings, cpu_share=cpu_share)
    return replace(
        plan,
        shares=tuple(shares),
        expected=expected,
        settings=settings,
    )


def _shared_forecast(
    plan: Plan,
    number: int,
    sharing: Sharing,
    share: float,
    cpu_share: float | None,
) -> RoundForecast:
    """Return the forecast of a round of which GPUs do a share; `cpu_share` is set by hand."""
    on_cpu = plan.expected.rounds[number]
    if not share:
        return replace(on_cpu, device=0.0, share=share)
    cpu_rate, gpu_rate = sharing.rates
    if share == 1:
        bound = on_cpu.bound
        work_seconds = sharing.blocks / gpu_rate
    else:
        bound = "CPU threads and devices"
        work_seconds = sharing.seconds
        if cpu_share is not None:
            # One of them ends later than with the shares of the model.
            delay = sum(sharing.rates) * max((1 - share) / cpu_rate, share / gpu_rate)
            work_seconds += (delay - 1) * (work_seconds - plan.machine.profile.shared_round)
    # Tasks and travel take as long as without GPUs.
    own_handling = on_cpu.handling / plan.machine.workers
    other_seconds = on_cpu.travel + max(0.0, on_cpu.scheduling - own_handling)
    return replace(
        on_cpu,
        seconds=work_seconds + other_seconds,
        gather=(1 - share) * on_cpu.gather,
        fft=(1 - share) * on_cpu.fft,
        device=share * sharing.device,
        share=share,
        bound=bound,
    )


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
    a speed-up of `CERTAIN` to work alone. The plan to be shared is made for the machine without
    its GPUs. With a share set by hand, or `least` 0, it is not compared with others.

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
    shared_plan = divided(
        find_plan(spec, request, machine),
        gpus,
        least,
        cpu_share,
    )
    if least == 0 or cpu_share is not None:
        return shared_plan
    cpu_plan = find_plan(spec, replace(request, device="cpu"), machine)
    cpu_plan = replace(cpu_plan, shares=(0.0,) * len(cpu_plan.rounds))
    gpu_plan = find_plan(spec, replace(request, device="gpu"), replace(machine, gpus=gpus))
    gpu_plan = replace(gpu_plan, shares=(1.0,) * len(gpu_plan.rounds))
    faster_plan = gpu_plan
    if gpu_plan.expected.seconds >= CERTAIN * cpu_plan.expected.seconds:
        faster_plan = cpu_plan
    if any(math.isinf(sharing.device) for sharing in sharings(gpu_plan, gpus)):
        faster_plan = cpu_plan  # a device has too little memory
    is_shared = any(0 < share < 1 for share in shared_plan.shares)
    if is_shared and faster_plan.expected.seconds >= least * shared_plan.expected.seconds:
        return shared_plan
    return faster_plan
