"""The search for a plan: one for all numbers of dimensions.

Candidates whose blocks or forecast are too large fall out, the cheapest by the model is taken::

    blocks near the input's size          as few rounds and split axes as will do
      else whole axes up to a floor       (a length that cannot be split, but is not large)
      else Bluestein's algorithm
      else smaller blocks                 (a memory limit that blocks of that size do not meet)
      else ever larger blocks             up to what the memory limit allows

With scratch files they become larger, too, until these are written in large pieces.

Pure: imports `transforms`, `decomposition` and this room.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np

from dask_bigfft.decomposition.scaling import divided
from dask_bigfft.errors import PlanError, refuse
from dask_bigfft.planner.candidates import (
    Candidate,
    Candidates,
    program_of,
    with_padding,
)
from dask_bigfft.planner.cost import forecast, least_host
from dask_bigfft.planner.explain import human_bytes, human_seconds
from dask_bigfft.planner.layouts import Sizes
from dask_bigfft.planner.merging import merged_up_to
from dask_bigfft.planner.plan import Forecast, Machine, Plan, notation
from dask_bigfft.planner.request import Request, largest_block
from dask_bigfft.planner.seconds import Walk
from dask_bigfft.transforms.spec import TransformSpec

# --- rounds named by the user ---------------------------------------------------------------


def _named(search: Candidates, sizes: Sizes) -> Candidate:
    """The candidate whose rounds the user named."""
    spec, rounds = search.spec, search.request.rounds
    assert rounds is not None
    factors: dict[int, list[int]] = {axis: [] for axis in spec.axes}
    places: dict[int, list[int]] = {axis: [] for axis in spec.axes}
    for number, named in enumerate(rounds):
        for axis, n in named:
            factors[axis].append(n)
            places[axis].append(number)
    programs = {axis: program_of(spec, axis, tuple(f)) for axis, f in factors.items()}
    assignment = {axis: tuple(p) for axis, p in places.items()}
    while True:
        found = search.build(programs, assignment, sizes, merge=False)
        if found is not None:
            return found
        if sizes.cap >= 4 * math.prod(spec.out_shape) + 4 * math.prod(spec.shape):
            refuse("rounds", [dict(r) for r in rounds], "digits of which the order that was asked "
                   "for can be made, and fewer blocks")
        sizes = Sizes(sizes.target * 2, sizes.cap * 2)


# --- the search -----------------------------------------------------------------------------


#: How often blocks are halved to meet a memory limit.
SMALLER = 6

#: Pairs of an incoming and a resulting block beyond which the last blocks are twice as large.
#: Dask's ordering of a graph whose blocks are all asked for takes about 0.3 us for each pair.
MOST_PAIRS = 1 << 23


def _ladder(spec: TransformSpec, request: Request) -> Iterator[tuple[Sizes, bool, bool]]:
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


def _all_whole(search: Candidates) -> bool:
    """Whether every transformed axis already lies whole in every block."""
    return all(
        len(search.source.axes[axis].groups[0].chunks) == 1 for axis in search.spec.axes
    )


def _finished(search: Candidates, candidate: Candidate) -> Plan:
    """A candidate with its forecast."""
    request = search.request
    found, rounds = divided(candidate.programs, candidate.rounds, search.spec.scale)
    programs = {program.axis: program for program in found}
    empty = Forecast(0, 0, 0, 0, 0.0, 0.0)
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
        forecast=empty,
        carrier=search.carrier,
        device=request.device,
        from_rows=candidate.from_rows,
        decoded=0 if request.stored is None else request.stored.decoded,
    )
    return replace(plan, forecast=forecast(plan, search.walk))


def find_plan(
    spec: TransformSpec, request: Request, machine: Machine, walk: Walk | None = None
) -> Plan:
    """Return the cheapest plan whose blocks and memory fit.

    With carrier ``"auto"`` a plan in memory is preferred to one with scratch files.

    Parameters
    ----------
    spec, request, machine
        What is asked, and where.
    walk : callable, optional
        What devices take for blocks; the best plans by a formula are then ranked by it.

    Raises
    ------
    PlanError
        If no plan meets the memory limit.
    ArgumentError
        If the named rounds, or the variant, cannot be had.
    """
    carriers = ("memory", "disk") if request.carrier == "auto" else (request.carrier,)
    needed: dict[str, int] = {}
    for carrier in carriers:
        found = _found(Candidates(spec, request, machine, carrier, walk))
        if isinstance(found, Plan):
            if needed:
                text = f"; in memory it would take {needed['memory']} bytes per process"
                found = replace(found, reason=found.reason + text)
            return found
        needed[carrier] = found
    assert machine.memory_limit is not None
    _refuse_memory(machine.memory_limit, needed)


def find_plans(spec: TransformSpec, request: Request, machine: Machine) -> tuple[Plan, ...]:
    """Return the plans that `find_plan` compares, cheapest first: none where none fits.

    Raises
    ------
    PlanError
        If the chunks allow no plan at all.
    """
    carriers = ("memory", "disk") if request.carrier == "auto" else (request.carrier,)
    for carrier in carriers:
        found = _fitting(Candidates(spec, request, machine, carrier))
        if not isinstance(found, int):
            return tuple(sorted(found[0], key=lambda plan: plan.forecast.seconds))
    return ()


def every_plan(spec: TransformSpec, request: Request, machine: Machine) -> tuple[Plan, ...]:
    """Return the plans of all candidates, however dear, in blocks of the first size that has any.

    What `find_plans` returns are the cheapest of them. Memory limits and Bluestein's algorithm are
    left out.
    """
    carrier = "memory" if request.carrier == "auto" else request.carrier
    search = Candidates(spec, request, machine, carrier)
    search.dearer = math.inf
    for sizes, _, merge in _ladder(spec, request):
        whole = _all_whole(search) and sizes.target >= search.largest_in
        if candidates := search.in_place() if whole else search.splits(sizes, merge):
            return tuple(_finished(search, candidate) for candidate in candidates)
    return ()


def _found(search: Candidates) -> Plan | int:
    """The cheapest plan with one carrier, or the bytes that the least of them needs."""
    found = _fitting(search)
    if isinstance(found, int):
        return found
    plans, sizes = found
    if search.request.rounds is not None:
        return replace(plans[0], reason="the rounds were named")
    best = _chosen(plans, sizes)
    return _in_larger_pieces(search, best) if search.carrier == "disk" else best


def _fitting(search: Candidates) -> tuple[list[Plan], Sizes] | int:
    """The plans with one carrier, best first, or the bytes that the least of them needs."""
    spec, request, machine = search.spec, search.request, search.machine
    limit = machine.memory_limit
    if request.rounds is not None:
        sizes = next(_ladder(spec, request))[0]
        plan = _finished(search, _named(search, sizes))
        if limit is not None and plan.forecast.peak_host > limit:
            return plan.forecast.peak_host
        return [plan], sizes
    smallest: int | None = None
    in_vain = probed = False
    hopeless = limit is not None and _never_fits(search, limit)
    for sizes, bluestein, merge in _ladder(spec, request):
        if hopeless and smallest is not None:
            break
        smaller = sizes.target < int(min(1.0, request.scale) * search.largest_in)
        if smaller and (smallest is None or in_vain):
            continue  # what failed was not the memory limit, or smaller blocks do not help
        plans = _plans(search, sizes, bluestein, merge)
        if limit is not None and plans:
            lowest = min(plan.forecast.peak_host for plan in plans)
            smallest = lowest if smallest is None else min(smallest, lowest)
            in_vain = _in_vain(search, plans, limit)
            hopeless = hopeless or (in_vain and search.carrier == "disk")
            plans = [plan for plan in plans if plan.forecast.peak_host <= limit]
        if plans:
            return plans, sizes
        if limit is not None and smaller and not probed:  # are those between worth a look?
            probed, least = True, _least_in_smallest(search)
            if smallest is not None and least is not None:
                in_vain, smallest = in_vain or least > limit, min(smallest, least)
    if smallest is not None:
        return smallest
    if request.variant == "pease":
        refuse("variant", "pease", "axes of length r**m for constant geometry, m at most "
               f"{request.max_rounds}; these are {spec.lengths}")
    raise PlanError(f"no plan was found for {spec.name} of {spec.shape} in blocks of the chunks "
                    "given; larger chunks would help")


def _never_fits(search: Candidates, limit: int) -> bool:
    """Whether no plan fits that leaves all blocks in memory, however large or small they are.

    What comes in is there while a barrier waits for all of what is made of it.
    """
    spec, here = search.spec, search.carrier == "memory" and search.machine.workers == 1
    nbytes = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    return here and not _all_whole(search) and nbytes > limit


def _in_vain(search: Candidates, plans: list[Plan], limit: int) -> bool:
    """Whether plans like these need too much memory in smaller blocks, too.

    With scratch files that is so in blocks of any size: it is what comes in that is too large.
    """
    alone = search.machine.workers == 1  # else smaller blocks lie more evenly
    onto_disk = search.carrier == "disk" and search.request.stored is None
    return (alone or onto_disk) and min(map(least_host, plans)) > limit


def _least_in_smallest(search: Candidates) -> int | None:
    """Bytes of the least of all plans in the smallest blocks that are tried; None without any."""
    sizes = min((rung for rung, *_ in _ladder(search.spec, search.request)),
                key=lambda sizes: sizes.target)
    plans = _plans(search, sizes, True, False)
    return min((plan.forecast.peak_host for plan in plans), default=None)


def _plans(search: Candidates, sizes: Sizes, bluestein: bool, merge: bool) -> list[Plan]:
    """Plans with blocks of some size, cheapest first."""
    search.bound = math.inf
    if search.spec.waves is not None:  # by no other algorithm
        candidates = search.bluestein(sizes, merge)
    elif _all_whole(search) and sizes.target >= search.largest_in:
        candidates = search.in_place()
    else:
        if (sizes, merge) not in search.kept:  # it is asked once more, with Bluestein's algorithm
            search.kept[sizes, merge] = search.splits(sizes, merge)
        candidates = search.kept[sizes, merge]
        if bluestein:
            candidates = candidates + search.bluestein(sizes, merge)
    ranked = sorted(candidates, key=lambda c: c.rank)
    chosen = _different(ranked)
    plans = [_finished(search, c) for c in chosen]
    measured = search.machine.shared and search.machine.profile.name
    if search.walk is not None or measured:  # which say more than what candidates are ranked by
        penalties = {id(plan): c.penalty for plan, c in zip(plans, chosen, strict=True)}
        plans.sort(key=lambda plan: plan.forecast.seconds * penalties[id(plan)])
    return plans


def _different(ranked: list[Candidate]) -> list[Candidate]:
    """The best candidate, and the first few behind it that cost something else."""
    found: dict[float, Candidate] = {}
    for candidate in ranked:
        found.setdefault(candidate.seconds, candidate)
    return [*ranked[:4], *(c for c in list(found.values())[:8] if c not in ranked[:4])]


def _chosen(plans: list[Plan], sizes: Sizes) -> Plan:
    best, others = plans[0], plans[1:]
    seen = {best.forecast}
    rejected = []
    for plan in others:
        if plan.forecast not in seen:  # mere permutations of the same work say nothing
            seen.add(plan.forecast)
            rejected.append((_described(plan), plan.forecast))
    reason = (
        f"cheapest of the candidates whose blocks have at most {sizes.cap} elements"
        if rejected
        else "the only candidate: nothing has to be cut, or nothing else can be"
    )
    return replace(best, rejected=tuple(rejected[:3]), reason=reason)


# --- pieces of scratch files ----------------------------------------------------------------

#: How often blocks are doubled for larger pieces, and into how many the data are cut at least.
MOST_DOUBLED, FEWEST = 12, 16

#: Parts of a block twice as large that are tried, until one has room in memory.
STEPS = (1, 3 / 4, 11 / 16)

#: How much longer the model may say that a plan with pieces of the wanted size takes.
ALIKE = 1.05


def _in_larger_pieces(search: Candidates, plan: Plan) -> Plan:
    """The plan, or one in larger blocks where scratch files are written in small pieces.

    A source block gives each block on the other side a piece of its file, so twice as large blocks
    are written in pieces four times as large, until they are large enough; the reason says what was
    compared, and what larger pieces would want where they stay small.
    """
    least, limit = search.request.piece_nbytes, search.machine.memory_limit
    size = max(round_.source.largest for round_ in plan.rounds)
    total = max(round_.source.size for round_ in plan.rounds)
    if plan.piece_nbytes >= least:
        return plan
    if total * search.itemsize < FEWEST**2 * least:
        text = f"the data are less than {human_bytes(FEWEST**2 * least)}"
        return _with_reason(plan, f"{_small(plan, least)}: {text}")
    tried, too_large = [plan], list[Plan]()
    for _ in range(MOST_DOUBLED):
        size *= 2
        if limit is None or tried[-1].piece_nbytes >= least or total < FEWEST * size:
            break
        for part in STEPS:  # too large for memory: less of that step may not be
            found = _in_blocks(search, int(size * part), limit, too_large)
            if found is not None and found.piece_nbytes > tried[-1].piece_nbytes:
                tried.append(found)
                break
        if found is None or part < 1:
            break
    best = _best(tried, least)
    if others := "; ".join(_in_pieces(found) for found in tried if found is not best):
        text = f"scratch files take {_in_pieces(best)}, in blocks of other sizes {others}"
        best = _with_reason(best, text)
    if best.piece_nbytes < least:
        want = _what_larger_want(best, too_large, least)
        best = _with_reason(best, f"{_small(best, least)}: {want}")
    return best


def _with_reason(plan: Plan, text: str) -> Plan:
    return replace(plan, reason=f"{plan.reason}; {text}")


def _small(plan: Plan, least: int) -> str:
    found, wanted = human_bytes(plan.piece_nbytes), human_bytes(least)
    return f"pieces of {found} are smaller than bigfft.scratch.piece-size, {wanted}"


def _what_larger_want(best: Plan, too_large: list[Plan], least: int) -> str:
    """Why there are no larger pieces: what those that memory has no room for would take.

    Blocks of p bytes each give pieces of p^2 bytes over those of the data, and memory holds a few
    of them for each thread: so what pieces want of it grows with the root of their size.
    """
    larger = [plan for plan in too_large if plan.piece_nbytes > best.piece_nbytes]
    if best.machine.memory_limit is None:
        return "without a memory limit blocks stay as they are"
    if not larger:
        return "larger blocks take longer by the model, or are fewer than are kept busy"
    found = max(larger, key=lambda plan: plan.piece_nbytes)
    text = f"{human_bytes(found.piece_nbytes)} would take {_peak_of(found)}"
    if found.machine.threads > 1:
        alone = replace(found, machine=replace(found.machine, threads=1))
        alone = replace(alone, forecast=forecast(alone))
        text += f" ({human_bytes(alone.forecast.peak_host)} with 1)"
    if found.piece_nbytes < least:
        wanted = int(found.forecast.peak_host * math.sqrt(least / found.piece_nbytes))
        text += f", {human_bytes(least)} about {human_bytes(wanted)}"
    return text


def _peak_of(plan: Plan) -> str:
    threads = f"thread{'' if plan.machine.threads == 1 else 's'}"
    peak = human_bytes(plan.forecast.peak_host)
    return f"{peak} of memory with {plan.machine.threads} {threads}"


def _best(plans: list[Plan], least: int) -> Plan:
    """Of the plans that the model finds about as fast as the fastest, the one of largest pieces.

    Larger ones than `least` bytes are no better; of equals the fastest, or the first.
    """
    fastest = min(plan.forecast.seconds for plan in plans)
    alike = [plan for plan in plans if plan.forecast.seconds <= ALIKE * fastest]
    return min(alike, key=lambda plan: (-min(plan.piece_nbytes, least), plan.forecast.seconds))


def _in_pieces(plan: Plan) -> str:
    size, seconds = human_bytes(plan.piece_nbytes), human_seconds(plan.forecast.seconds)
    return f"pieces of {size} on average and {seconds}"


def _in_blocks(
    search: Candidates, size: int, limit: int, too_large: list[Plan]
) -> Plan | None:
    """The best plan with scratch files in blocks of some size, neighbours that come in merged.

    They may stay as they are where the first round reads rows of a stored array, without them.
    What would need too much memory is added to `too_large`.
    """
    spec, request = search.spec, search.request
    nbytes = size * spec.work_dtype.itemsize
    merged = merged_up_to(spec, request.chunks, nbytes)
    both = (request.chunks, merged) if request.stored is not None else (merged,)
    fitting = []
    for chunks in dict.fromkeys(both):
        asked = replace(request, chunks=chunks)
        asked = replace(asked, scale=size / largest_block(spec, asked))
        larger = Candidates(spec, asked, search.machine, search.carrier, search.walk)
        found = _fitting_in(larger, limit, too_large)
        if found is None:
            continue
        if chunks != request.chunks:
            found = replace(found, incoming=request.chunks)
            found = replace(found, forecast=forecast(found, search.walk))
        rows = found.from_rows or request.stored is None or not found.moves[0]
        if (rows or chunks == merged) and found.forecast.peak_host <= limit:
            fitting.append(found)
        elif rows or chunks == merged:
            too_large.append(found)
    return _best(fitting, request.piece_nbytes) if fitting else None


def _fitting_in(search: Candidates, limit: int, too_large: list[Plan]) -> Plan | None:
    """The cheapest plan that fits, in blocks of the size that is tried first.

    If none does, the one that needs the least memory is added to `too_large`.
    """
    ladder = list(_ladder(search.spec, search.request))
    for sizes, bluestein, merge in ladder:
        if sizes.target != ladder[0][0].target:
            break
        plans = _plans(search, sizes, bluestein, merge)
        fitting = [plan for plan in plans if plan.forecast.peak_host <= limit]
        if fitting:
            return _chosen(fitting, sizes)
        if plans:
            too_large.append(min(plans, key=lambda plan: plan.forecast.peak_host))
    return None


def _described(plan: Plan) -> str:
    lengths = ", ".join(
        " x ".join(map(str, program.factors)) for program in plan.programs
    )
    return f"{notation(plan.spec, plan.programs, plan.rounds)} with {lengths}"


def _refuse_memory(limit: int, needed: dict[str, int]) -> NoReturn:
    text = f"at least {min(needed.values())} bytes per process: the least of all plans found for "
    text += "these chunks"
    if len(needed) > 1:
        text += f" ({needed['disk']} with scratch files, {needed['memory']} in memory)"
    elif "memory" in needed:
        text += " (in memory; bigfft.exchange.carrier 'disk' takes scratch files instead)"
    refuse("memory_limit", limit, text, kind=PlanError)
