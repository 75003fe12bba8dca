"""Who does the rounds of a plan: CPU threads, devices, or both together, by the model.

Processes of a cluster may have unlike numbers of devices, or none. Each does with its blocks what
suits it, and blocks lie evenly: so a round is over when those are done that take longest, and the
devices' part of it is the mean of what they do in each process.

Pure: imports `transforms` and this room.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from dask_bigfft.planner.balance import divided
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.machine import Machine, RoundForecast
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.seconds import Walk
from dask_bigfft.transforms.spec import TransformSpec

__all__ = ["decided", "divided_among"]

#: CPU threads alone do a transform only where the model has them so many times as fast as devices.
CERTAIN = 2.0

#: A plan that suits processes with fewer devices is taken where it needs less than this part of the
#: time of the one that suits those with most, for which the others would be waited for.
SLOWED = 0.95

#: The rounds of a plan, with what they take, in a process with so many devices.
Rounds = Callable[[int], tuple[RoundForecast, ...]]


def divided_among(plan: Plan, cards: int, least: float, walk: Walk | None = None) -> Plan:
    """Return a plan whose rounds are shared by the CPU threads and devices of each process.

    Parameters
    ----------
    plan : Plan
        For the CPU.
    cards : int
        Devices of each process, or of that which has most.
    least : float
        Gain from which on a round is shared, as `divided` takes it.
    walk : callable, optional
        As `balances` takes it.
    """
    def of(count: int) -> tuple[RoundForecast, ...]:
        return (divided(plan, count, least, walk) if count else plan).expected.rounds

    return _waited_for(divided(plan, cards, least, walk), of)


def _by_devices(plan: Plan, walk: Walk | None) -> Plan:
    """A plan for devices, with the forecast of a cluster where some processes have fewer or none.

    CPU threads do the blocks of those that have none.
    """
    def of(count: int) -> tuple[RoundForecast, ...]:
        machine = replace(plan.machine, cards=count)
        device = plan.device if count else "cpu"
        return forecast(replace(plan, machine=machine, device=device), walk).rounds

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
    walk: Walk | None = None,
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
    walk : callable, optional
        As `balances` takes it.
    """
    base = find_plan(spec, request, machine)
    if least == 0:
        return divided_among(base, cards, least, walk)
    shared = divided(base, cards, least, walk)
    ours = _alone(find_plan(spec, replace(request, device="cpu"), machine), False)
    on_cards = replace(machine, cards=cards)
    theirs = _alone(find_plan(spec, replace(request, device="gpu"), on_cards, walk), True)
    faster = min(ours, theirs, key=lambda plan: plan.expected.seconds)
    if theirs.expected.seconds < CERTAIN * ours.expected.seconds:
        faster = theirs
    if walk is not None and any(walk(round_) is None for round_ in theirs.rounds):
        faster = ours  # a device has too little memory
    both = any(0 < share < 1 for share in shared.shares)
    if both and faster.expected.seconds >= least * shared.expected.seconds:
        faster = shared
    if not machine.by_cards:
        return faster
    unlike = (divided_among(base, cards, least, walk), _by_devices(theirs, walk), ours)
    suited = unlike[[shared, theirs, ours].index(faster)]
    best = min(unlike, key=lambda plan: plan.expected.seconds)
    return best if best.expected.seconds < SLOWED * suited.expected.seconds else suited
