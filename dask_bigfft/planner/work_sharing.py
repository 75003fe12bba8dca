"""Work sharing: the parts of a round that CPU threads and devices do, by the cost model.

Both take tiles of the same blocks, each as much as its speed alone is of both speeds together (Chen
and Li, Proc. ICPADS, 2013)::

    share of the devices = D / (D + C),   D = devices / seconds of a block on one,
                                          C = threads / seconds of a block on one thread

Threads that gather blocks for a device are not counted in C, and D is limited by them. Contention
for host memory slows both down (`Profile.together`), and so does the GIL where threads go from tile
to tile (`SHARED_TILES`). At run time an idle executor takes the next tile, so that a wrong share
costs little.

Pure: imports `transforms`, `decomposition` and this room.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from dask_bigfft.decomposition.rounds import Round, exchange_shape
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, Request, RoundForecast
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.seconds import LEAST_NBYTES, Model, Stage
from dask_bigfft.transforms.spec import TransformSpec

#: Part of both speeds that is left while CPU threads that go from tile to tile share a round with
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
class Sharing:
    """Speeds of CPU threads and devices of one process that share a round.

    Parameters
    ----------
    nbytes, blocks : int
        Bytes of its largest block, and number of blocks.
    cpu, device : float
        Seconds of a block on one thread, and on one device, while the other kind rests.
    rates : (float, float)
        Blocks per second of all threads that do not gather for devices, and of all devices.
    together : float
        Part of these speeds that is left while both work.
    extra : float
        Seconds that sharing costs.
    divides : bool
        Whether both can work on the same block.
    """

    nbytes: int
    blocks: int
    cpu: float
    device: float
    rates: tuple[float, float]
    together: float
    extra: float
    divides: bool

    @property
    def seconds(self) -> float:
        """Seconds of the round, if both do their share."""
        return self.blocks / (self.together * sum(self.rates)) + self.extra

    def share(self, least: float) -> float:
        """Return the devices' part; 0 or 1 where a speed-up below `least` is not worth sharing.

        So it is where a block cannot be divided. CPU threads do small ones.
        """
        ours, theirs = self.rates
        if self.divides and self.blocks / max(self.rates) >= least * self.seconds:
            return round(theirs / (theirs + ours), 4)
        return float(theirs > ours and self.nbytes >= LEAST_NBYTES)


def sharings(plan: Plan, cards: int = 0) -> tuple[Sharing, ...]:
    """Return how CPU threads and devices share each round of a plan.

    Parameters
    ----------
    plan : Plan
        With rounds that both are to do.
    cards : int
        Devices of each process, if the plan's machine does not say; at least one.
    """
    machine = replace(plan.machine, cards=max(1, cards, plan.machine.cards))
    dtype, profile, devices = plan.spec.work_dtype.name, machine.profile, machine.devices
    model = Model(machine, plan.kernel, dtype, plan.carrier)
    in_memory = replace(model, carrier="memory", device="cpu")
    found = []
    for round_, exchange in zip(plan.rounds, plan.exchanges, strict=False):
        before, blocks = exchange.source, max(1, round_.source.blocks)
        shape, threads = exchange_shape(before, round_.source), lanes(machine.threads, len(devices))
        stage = Stage(before, round_, round_.source)
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
        together = 1 - (1 - profile.together) * min(1.0, busy)
        if not (shape.local and model.library.supports_out and _is_one_call(round_)):
            together *= SHARED_TILES
        found.append(
            Sharing(
                nbytes,
                -(-round_.source.blocks // machine.workers),
                cpu,
                device,
                (threads / cpu, len(devices) / device),
                together,
                profile.shared_round,
                all(len(plans) == 1 and plans[0].divides for plans in tiles),
            )
        )
    return tuple(found)


def _is_one_call(round_: Round) -> bool:
    """Return whether a round is nothing but FFTs along one dimension."""
    (first, *others) = round_.steps
    beside = (first.twiddle, first.convolve, first.chirp_in, first.chirp_out)
    return not others and first.kind == "c2c" and beside == (None,) * len(beside)


def divided(plan: Plan, cards: int, least: float) -> Plan:
    """Return a plan whose rounds are shared by CPU threads and devices, with its forecast.

    Parameters
    ----------
    plan : Plan
        For the CPU.
    cards : int
        Devices of each process.
    least : float
        Speed-up over the faster one alone from which on a round is shared.
    """
    shares, rounds = [], list(plan.expected.rounds)
    for number, found in enumerate(sharings(plan, cards)):
        share, ours = found.share(least), rounds[number]
        shares.append(share)
        # Tasks, and what travels, take as long as without devices.
        beside = ours.travel + max(0.0, ours.scheduling - ours.handling / plan.machine.workers)
        work = found.seconds if share < 1 else found.blocks / found.rates[1]
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
    expected = replace(plan.expected, seconds=total, rounds=tuple(rounds))
    return replace(plan, shares=tuple(shares), expected=expected)


# --- who does a plan ----------------------------------------------------------------------

#: Forecast speed-up of CPU threads over devices from which on they do a transform alone.
CERTAIN = 2.0

#: A plan for the processes with fewer devices is taken where its time is below this part of the
#: time of the plan for the processes with most.
SLOWED = 0.95

#: Forecast rounds of a plan in a process with some number of devices.
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
        Minimum speed-up, as `divided` takes it.
    """
    return _waited_for(
        divided(plan, cards, least),
        lambda count: (divided(plan, count, least) if count else plan).expected.rounds,
    )


def _by_devices(plan: Plan) -> Plan:
    """Return a plan for devices on a cluster where some processes have fewer or none."""

    def of(count: int) -> tuple[RoundForecast, ...]:
        on, device = replace(plan.machine, cards=count), plan.device if count else "cpu"
        return forecast(replace(plan, machine=on, device=device)).rounds

    bare = any(not count for count, _ in plan.machine.by_cards)
    return _waited_for(replace(plan, device="hybrid") if bare else plan, of)


def _waited_for(plan: Plan, of: Rounds) -> Plan:
    """Return a plan with the seconds of its slowest processes."""
    kinds = plan.machine.by_cards
    if not kinds:
        return plan
    workers = sum(count for _, count in kinds)
    counts, rounds = [count for _, count in kinds], []
    for each in zip(*(of(cards) for cards, _ in kinds), strict=True):
        slowest = max(each, key=lambda found: found.seconds)
        share = sum(found.share * n for found, n in zip(each, counts, strict=True)) / workers
        rounds.append(replace(slowest, share=round(share, 4)))
    before, after = (sum(one.seconds for one in each) for each in (plan.expected.rounds, rounds))
    seconds = plan.expected.seconds + after - before
    return replace(plan, expected=replace(plan.expected, seconds=seconds, rounds=tuple(rounds)))


def _alone(plan: Plan, devices: bool) -> Plan:
    """Return a plan whose rounds are all done by one kind."""
    return replace(plan, shares=(float(devices),) * len(plan.rounds))


@lru_cache(maxsize=128)
def decided(
    spec: TransformSpec, request: Request, machine: Machine, cards: int, least: float
) -> Plan:
    """Return the plan of a transform that CPU threads and devices may share.

    One kind does all rounds, by its own plan, where the forecast speed-up of sharing is below
    `least`. Forecasts of a bus are better than those of many CPU threads: so these do it alone only
    where they are `CERTAIN` times as fast. Where processes have unlike numbers of devices, the one
    with most decides, unless waiting for the others makes another way faster (`SLOWED`).

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    request : Request
        Choices that were made by the caller.
    machine : Machine
        Where it runs, without devices.
    cards : int
        Devices of each process, or of that which has most.
    least : float
        Minimum speed-up for sharing; with 0 every round is shared.
    """
    base = find_plan(spec, request, machine)
    if least == 0:
        return divided_among(base, cards, least)
    shared = divided(base, cards, least)
    ours = _alone(find_plan(spec, replace(request, device="cpu"), machine), False)
    on_gpus = replace(machine, cards=cards)
    theirs = _alone(find_plan(spec, replace(request, device="gpu"), on_gpus), True)
    faster = min(ours, theirs, key=lambda plan: plan.expected.seconds)
    if theirs.expected.seconds < CERTAIN * ours.expected.seconds:
        faster = theirs
    if any(math.isinf(one.device) for one in sharings(theirs, cards)):
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
