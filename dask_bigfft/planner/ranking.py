"""Plans with blocks of some size, ranked by the model; and the sizes that are tried, in order.

Pure: imports `transforms`, `decomposition` and this room.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from dask_bigfft.decomposition.scaling import divided
from dask_bigfft.planner.candidates import Candidate, Candidates
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.layouts import Sizes
from dask_bigfft.planner.notation import notation
from dask_bigfft.planner.plan import Forecast, Plan
from dask_bigfft.planner.programs import with_padding
from dask_bigfft.planner.request import Request, largest_block
from dask_bigfft.transforms.spec import TransformSpec

#: How often blocks are halved to meet a memory limit.
SMALLER = 6

#: Pairs of an incoming and a resulting block beyond which the last blocks are twice as large.
#: Dask's ordering of a graph whose blocks are all asked for takes about 0.3 us for each pair.
MOST_PAIRS = 1 << 23


def ladder(spec: TransformSpec, request: Request) -> Iterator[tuple[Sizes, bool, bool]]:
    """Sizes of blocks to try, whether Bluestein's algorithm is allowed, and chunks joined."""
    target = max(1, int(largest_block(spec, request) * request.scale))
    floor = request.floor_bytes // spec.work_dtype.itemsize
    total = max(math.prod(spec.shape), math.prod(spec.out_shape), 1)
    blocks = max(1, round(math.prod(len(c) for c in request.chunks) / request.scale))
    if blocks * (total // target) > MOST_PAIRS:
        yield Sizes(target, 2 * target, blocks, last=2), False, False
    yield Sizes(target, 2 * target, blocks), False, False
    if floor > 2 * target:
        yield Sizes(target, floor, blocks), False, False
    yield Sizes(target, 2 * target, blocks), True, False
    if floor > 2 * target:
        yield Sizes(floor, 2 * floor), True, True
    for shift in range(1, SMALLER + 1):  # only a memory limit leads here
        yield Sizes(max(1, target >> shift), max(2, target >> (shift - 1))), True, False
    while target < 2 * total:
        target *= 2
        yield Sizes(target, 2 * target), True, True
    yield Sizes(4 * total, 8 * total), False, True


def all_whole(search: Candidates) -> bool:
    """Return whether every transformed axis already lies whole in every block."""
    return all(len(search.source.axes[axis].groups[0].chunks) == 1 for axis in search.spec.axes)


def finished(search: Candidates, candidate: Candidate) -> Plan:
    """A candidate with its forecast."""
    request = search.request
    found, rounds = divided(candidate.programs, candidate.rounds, search.spec.scale)
    programs = {program.axis: program for program in found}
    empty, stored = Forecast(0, 0, 0, 0, 0.0, 0.0), request.stored
    anew = request.anew and not candidate.from_rows
    beside = stored.read_beside(search.spec.shape) if stored is not None and anew else None
    plan = Plan(
        spec=search.spec,
        programs=found,
        source=with_padding(search.source, programs),
        rounds=rounds,
        result=candidate.result,
        variant=request.variant,
        kernel=request.kernel,
        verify=request.verify,
        machine=search.machine,
        expected=empty,
        carrier=search.carrier,
        device=request.device,
        from_rows=candidate.from_rows,
        decoded=0 if stored is None else stored.decoded,
        result_as_is=stored is not None and stored.result_as_is,
        anew=anew,
        read_beside=beside,
    )
    return replace(plan, expected=forecast(plan))


def ranked_plans(search: Candidates, sizes: Sizes, bluestein: bool, merge: bool) -> list[Plan]:
    """Plans with blocks of some size, cheapest first."""
    search.bound = math.inf
    if search.spec.waves is not None:  # by no other algorithm
        candidates = search.bluestein(sizes, merge)
    elif all_whole(search) and sizes.target >= search.largest_in:
        candidates = search.in_place()
    else:
        if (sizes, merge) not in search.kept:  # it is asked once more, with Bluestein's algorithm
            search.kept[sizes, merge] = search.splits(sizes, merge)
        candidates = search.kept[sizes, merge]
        if bluestein:
            candidates = candidates + search.bluestein(sizes, merge)
    ranked = sorted(candidates, key=lambda c: c.rank)
    few = _different(ranked)
    plans = [finished(search, c) for c in few]
    if search.machine.shared and search.machine.profile.name:  # joints count, too
        penalties = {id(plan): c.penalty for plan, c in zip(plans, few, strict=True)}
        plans.sort(key=lambda plan: plan.expected.seconds * penalties[id(plan)])
    return plans


def _different(ranked: list[Candidate]) -> list[Candidate]:
    """The best candidate, and the first few behind it that cost something else."""
    found: dict[float, Candidate] = {}
    for candidate in ranked:
        found.setdefault(candidate.seconds, candidate)
    return [*ranked[:4], *(c for c in list(found.values())[:8] if c not in ranked[:4])]


def chosen(plans: list[Plan], sizes: Sizes) -> Plan:
    """The first plan, with the reason, and with what it was compared with."""
    best, others = plans[0], plans[1:]
    seen = {best.expected}
    rejected = []
    for plan in others:
        if plan.expected not in seen:  # mere permutations of the same work say nothing
            seen.add(plan.expected)
            rejected.append((_described(plan), plan.expected))
    reason = (
        f"cheapest of the candidates whose blocks have at most {sizes.cap} elements"
        if rejected
        else "the only candidate: nothing has to be cut, or nothing else can be"
    )
    return replace(best, rejected=tuple(rejected[:3]), reason=reason)


def _described(plan: Plan) -> str:
    lengths = ", ".join(" x ".join(map(str, program.factors)) for program in plan.programs)
    return f"{notation(plan.spec, plan.programs, plan.rounds)} with {lengths}"
