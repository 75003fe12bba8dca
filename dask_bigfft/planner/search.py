"""The search for a plan, the same for all numbers of dimensions.

Candidates with too large blocks or forecasts are dropped, and the cheapest by the model is taken::

    blocks near the input's size          as few rounds and split axes as will do
      else whole axes up to a floor       (a length that cannot be split, but is not large)
      else Bluestein's algorithm
      else smaller blocks                 (a memory limit that blocks of that size do not meet)
      else ever larger blocks             up to what the memory limit allows

With scratch files, blocks also grow until writes are large.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from dask_bigfft.decomposition.layout import wide_chunks
from dask_bigfft.decomposition.rounds import divided
from dask_bigfft.errors import MemoryLimitError, PlanError, raise_invalid
from dask_bigfft.planner.candidates import Candidate, Candidates, program_of, with_padding
from dask_bigfft.planner.cost import with_forecast
from dask_bigfft.planner.explain import enough_bytes, human_bytes
from dask_bigfft.planner.layouts import Sizes
from dask_bigfft.planner.plan import Plan, merged_up_to
from dask_bigfft.planner.plan_data import Forecast, Machine, Request, largest_block
from dask_bigfft.planner.rows import NOT_STORED
from dask_bigfft.transforms.spec import TransformSpec

#: Bytes below which a memory limit is taken for a number whose unit was forgotten.
LEAST_LIMIT = 1 << 16

#: Maximum number of halvings of blocks to meet a memory limit.
SMALLER = 6

#: Pairs of an input block and a result block beyond which the last blocks are twice as large.
#: Dask's ordering of a graph takes about 0.3 us for each pair.
MOST_PAIRS = 1 << 23


def ladder(spec: TransformSpec, request: Request) -> Iterator[Sizes]:
    """Yield the sizes of blocks to try."""
    target = max(1, int(largest_block(spec, request) * request.scale))
    floor = request.floor_bytes // spec.work_dtype.itemsize
    total = max(math.prod(spec.shape), math.prod(spec.out_shape), 1)
    blocks = max(1, round(math.prod(len(c) for c in request.chunks) / request.scale))
    near = Sizes(target, 2 * target, blocks, merge=request.joined)
    if blocks * (total // target) > MOST_PAIRS:
        yield replace(near, last=2)
    yield near
    if floor > 2 * target:
        yield replace(near, cap=floor)
    yield replace(near, bluestein=True)
    if floor > 2 * target:
        yield Sizes(floor, 2 * floor, bluestein=True, merge=True)
    for shift in range(1, SMALLER + 1):  # only a memory limit leads here
        yield Sizes(max(1, target >> shift), max(2, target >> (shift - 1)), bluestein=True)
    while target < 2 * total:
        target *= 2
        yield Sizes(target, 2 * target, bluestein=True, merge=True)
    yield Sizes(4 * total, 8 * total, merge=True)


def all_whole(search: Candidates) -> bool:
    """Return whether every transformed axis is whole in every input block."""
    return all(len(search.source.axes[axis].groups[0].chunks) == 1 for axis in search.spec.axes)


def finished(search: Candidates, candidate: Candidate) -> Plan:
    """Return the plan of a candidate, with its forecast."""
    request = search.request
    found, rounds = divided(candidate.programs, candidate.rounds, search.spec.scale)
    programs = {program.axis: program for program in found}
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
        expected=Forecast(0, 0, 0, 0, 0.0, 0.0),
        storage=search.storage,
        device=request.device,
        device_memory_limit=request.device_nbytes,
        from_rows=candidate.from_rows,
        stored=request.stored or NOT_STORED,
        reopened=request.reopened and not candidate.from_rows,
    )
    return with_forecast(plan)


def ranked_plans(search: Candidates, sizes: Sizes) -> list[Plan]:
    """Return the plans with blocks of some size, cheapest first."""
    search.bound = math.inf
    if search.spec.waves is not None:  # the only algorithm for waves
        candidates = search.bluestein(sizes)
    elif all_whole(search) and sizes.target >= search.largest_in:
        candidates = search.in_place()
    else:
        alone = replace(sizes, bluestein=False)
        if alone not in search.kept:  # needed again with Bluestein's algorithm
            search.kept[alone] = search.splits(sizes)
        candidates = search.kept[alone]
        if sizes.bluestein:
            candidates = candidates + search.bluestein(sizes)
    few = _different(sorted(candidates, key=lambda c: c.rank))
    plans = [(finished(search, c), c.penalty) for c in few]
    if search.machine.shared and search.machine.profile.name:  # shared buffers count, too
        plans.sort(key=lambda pair: pair[0].expected.seconds * pair[1])
    return [plan for plan, _ in plans]


def _different(ranked: list[Candidate]) -> list[Candidate]:
    """Return the best candidates, and the first few that have other prices."""
    found: dict[float, Candidate] = {}
    for candidate in ranked:
        found.setdefault(candidate.seconds, candidate)
    return [*ranked[:4], *(c for c in list(found.values())[:8] if c not in ranked[:4])]


def with_runners_up(plans: list[Plan], sizes: Sizes) -> Plan:
    """Return the first of some plans, cheapest first, with the reason and three others."""
    best = plans[0]
    others = plans[1:]
    seen = {best.expected}
    rejected = []
    for plan in others:
        if plan.expected not in seen:  # those of equal cost are permutations
            seen.add(plan.expected)
            digits = ", ".join(" x ".join(map(str, one.factors)) for one in plan.programs)
            rejected.append((f"{plan.notation} with {digits}", plan.expected))
    reason = (
        f"cheapest of the candidates whose blocks have at most {sizes.cap} elements"
        if rejected
        else "the only candidate: nothing has to be cut, or nothing else can be"
    )
    return replace(best, rejected=tuple(rejected[:3]), reason=reason)


#: Maximum number of doublings of blocks for larger writes, and minimum number of blocks.
MOST_DOUBLED = 12
FEWEST = 16

#: Fractions of a doubled block that are tried until one fits into memory.
STEPS = (1, 3 / 4, 11 / 16)

#: Maximum time of a plan with larger writes, in units of the fastest.
ALIKE = 1.05


def in_larger_pieces(search: Candidates, plan: Plan) -> Plan:
    """Return the plan, or one in larger blocks if its writes to scratch files are small.

    Every source block writes a shard for every target block, so twice as large blocks have four
    times as large shards.
    """
    least = search.request.piece_nbytes
    limit = search.machine.memory_limit
    size = max(round_.source.largest for round_ in plan.rounds)
    total = max(round_.source.size for round_ in plan.rounds)
    if plan.piece_nbytes >= least:
        return plan
    tried = [plan]
    local = plan.exchanges[0].local
    possible = limit is not None and total * search.itemsize >= FEWEST**2 * least
    for _ in range(MOST_DOUBLED if possible else 0):
        size *= 2
        if tried[-1].piece_nbytes >= least or total < FEWEST * size:
            break
        for part in STEPS:  # a smaller part may fit into memory
            found = _in_blocks(search, int(size * part), local)
            if found is not None and found.piece_nbytes > tried[-1].piece_nbytes:
                tried.append(found)
                break
        if found is None or part < 1:
            break
    best = _best(tried, least)
    text = f"scratch files take pieces of {human_bytes(best.piece_nbytes)} on average"
    if best.piece_nbytes < least:
        text += f", smaller than bigfft.scratch.min-write, {human_bytes(least)}: larger blocks "
        text += "would take longer, be too few, or need more memory than the limit, if there is one"
    return replace(best, reason=f"{best.reason}; {text}")


def _best(plans: list[Plan], least: int) -> Plan:
    """Return the plan with the largest writes among those about as fast as the fastest.

    Writes above `least` bytes count as equal. Of equals, the fastest or the first is taken.
    """
    fastest = min(plan.expected.seconds for plan in plans)
    alike = [plan for plan in plans if plan.expected.seconds <= ALIKE * fastest]
    return min(alike, key=lambda plan: (-min(plan.piece_nbytes, least), plan.expected.seconds))


def _in_blocks(search: Candidates, size: int, local: bool) -> Plan | None:
    """Return the best plan with scratch files in blocks of some size, from merged input blocks.

    Input blocks stay unmerged where the first round reads rows of a stored array directly. If they
    are `local`, in the order of the first round, it may read them directly, too, which takes the
    least memory.
    """
    spec = search.spec
    request = search.request
    stored = search.request.stored
    nbytes = size * spec.work_dtype.itemsize
    merged = merged_up_to(spec, request.chunks, nbytes)
    fitting = list[Plan]()
    # Pairs of input chunks, and whether the first round reads them from storage directly. Then the
    # chunks of the input do not matter, and are cut again.
    ways = [(merged, False)]
    if stored is not None:
        parts = stored.cut(spec.shape, np.dtype(spec.dtype).itemsize)
        near_ways = [(merged_up_to(spec, parts, nbytes), True)] if local else []
        ways = near_ways + [(cut, False) for cut in dict.fromkeys((request.chunks, merged))]
    for chunks, near in ways:
        new = chunks != request.chunks
        # Reopening an encoded array takes more memory than reading its own chunks.
        reopened = stored is not None and stored.reopened and (new or not stored.decoded)
        requested = replace(request, chunks=chunks, reopened=reopened)
        requested = replace(requested, scale=size / largest_block(spec, requested))
        larger = Candidates(spec, requested, search.machine, search.storage, near)
        found = _fitting_in(larger)
        if found is None or (near and not found.from_rows):
            continue
        if new and not found.reopened:
            found = with_forecast(found, incoming=request.chunks)
        if stored is not None and found.moves[0] and not found.from_rows and chunks != merged:
            continue
        found = _as_it_fits(found)
        if found.fits_memory:
            fitting.append(found)
        if near and fitting:
            break
    return _best(fitting, request.piece_nbytes) if fitting else None


def _as_it_fits(plan: Plan) -> Plan:
    """Return the plan; if it does not fit, the one that assembles blocks while shards arrive.

    For devices all shards of a block are read first, and then gathered.
    """
    on_gpu = plan.machine.gpus and plan.device != "cpu"
    if plan.fits_memory or plan.assembles or plan.storage != "disk" or on_gpu:
        return plan
    return with_forecast(plan, assembles=True)


def _fitting_in(search: Candidates) -> Plan | None:
    """Return the cheapest plan that fits, in blocks of the first size."""
    rungs = list(ladder(search.spec, search.request))
    for sizes in rungs:
        if sizes.target != rungs[0].target:
            break
        plans = [_as_it_fits(plan) for plan in ranked_plans(search, sizes)]
        fitting = [plan for plan in plans if plan.fits_memory]
        if fitting:
            return with_runners_up(fitting, sizes)
    return None


# --- rounds named by the user ---------------------------------------------------------------


def _named(search: Candidates, sizes: Sizes) -> Candidate:
    """Return the candidate whose rounds the user named."""
    spec = search.spec
    rounds = search.request.rounds
    assert rounds is not None
    named = [dict(pairs) for pairs in rounds]
    assignment = {a: tuple(i for i, n in enumerate(named) if a in n) for a in spec.axes}
    programs = {
        axis: program_of(spec, axis, tuple(named[i][axis] for i in places))
        for axis, places in assignment.items()
    }
    while True:
        if (found := search.build(programs, assignment, sizes)) is not None:
            return found
        if sizes.cap >= 4 * math.prod(spec.out_shape) + 4 * math.prod(spec.shape):
            text = "digits from which the requested order can be made, and fewer blocks"
            raise_invalid("rounds", named, text)
        sizes = Sizes(2 * sizes.target, 2 * sizes.cap)


# --- the search -----------------------------------------------------------------------------


def find_plan(spec: TransformSpec, request: Request, machine: Machine) -> Plan:
    """Return the cheapest plan whose blocks and memory fit.

    With storage ``"auto"`` a plan in memory is preferred to one with scratch files.

    Parameters
    ----------
    spec, request, machine
        The transform, the choices of the caller, and the machine.

    Raises
    ------
    PlanError
        If no plan meets the memory limit.
    ArgumentError
        If no plan has the named rounds or the variant.
    """
    storages = ("memory", "disk") if request.storage == "auto" else (request.storage,)
    needed: dict[str, int] = {}
    for storage in storages:
        search = Candidates(spec, request, machine, storage)
        found = _fitting(search)
        if isinstance(found, int):
            needed[storage] = found
            continue
        best = with_runners_up(*found)
        if request.rounds is not None:
            best = replace(best, reason="the rounds were named")
        elif storage == "disk":
            best = in_larger_pieces(search, best)
        if not needed:
            return best
        text = f"in memory it would take {enough_bytes(needed['memory'])} per process"
        return replace(best, reason=f"{best.reason}; {text}")
    assert machine.memory_limit is not None
    text = f"at least {enough_bytes(min(needed.values()))} per process for these chunks and threads"
    if len(needed) > 1:
        files, memory = (enough_bytes(needed[storage]) for storage in ("disk", "memory"))
        text += f" ({files} with scratch files, {memory} in memory)"
    if machine.memory_limit < LEAST_LIMIT:
        unit = "GiB" if machine.memory_limit < 100 else "MiB"
        text += f"; numbers are bytes, others have a unit: '{machine.memory_limit} {unit}'"
    raise_invalid("memory_limit", human_bytes(machine.memory_limit), text, kind=MemoryLimitError)


def find_plans(spec: TransformSpec, request: Request, machine: Machine) -> tuple[Plan, ...]:
    """Return the plans that `find_plan` compares, cheapest first; empty if none fits.

    Parameters
    ----------
    spec, request, machine
        As `find_plan` takes them.

    Raises
    ------
    PlanError
        If the chunks allow no plan at all.
    """
    storages = ("memory", "disk") if request.storage == "auto" else (request.storage,)
    for storage in storages:
        found = _fitting(Candidates(spec, request, machine, storage))
        if not isinstance(found, int):
            return tuple(sorted(found[0], key=lambda plan: plan.expected.seconds))
    return ()


def _fitting(search: Candidates) -> tuple[list[Plan], Sizes] | int:
    """Return the plans with one storage, best first, or the minimum bytes that one needs."""
    spec = search.spec
    request = search.request
    machine = search.machine
    limit = machine.memory_limit
    if request.rounds is not None:
        sizes = next(ladder(spec, request))
        plan = finished(search, _named(search, sizes))
        return ([plan], sizes) if plan.fits_memory else plan.expected.peak_host
    needed: list[int] = []
    in_vain = probed = False  # smaller blocks do not help; that was tried
    here = search.storage == "memory" and machine.workers == 1 and not all_whole(search)
    # The input stays in memory until a barrier has all blocks that are made of it.
    hopeless = limit is not None and here and spec.nbytes > limit
    for sizes in ladder(spec, request):
        if hopeless and needed:
            break
        smaller = sizes.target < int(min(1.0, request.scale) * search.largest_in)
        if smaller and (not needed or in_vain):
            continue  # what failed was not the memory limit, or smaller blocks do not help
        plans = ranked_plans(search, sizes)
        fitting = [plan for plan in plans if plan.fits_memory]
        if fitting:
            return fitting, sizes
        needed += [plan.expected.peak_host for plan in plans]
        if limit is not None and smaller and not probed:  # the sizes between may not help
            needed.append(least := _least_in_smallest(search))
            probed = True
            in_vain = limit < least < _NEVER
            hopeless = hopeless or (in_vain and search.storage == "disk")
    if needed:
        return min(needed) if probed else min(*needed, _least_in_smallest(search))
    if request.variant == "pease":
        text = f"axes of length r**m for constant geometry, m at most {request.max_rounds}"
        raise_invalid("variant", "pease", f"{text}; these are {spec.lengths}")
    what = f"{spec.name} of {spec.shape} in chunks of {_widths(request)}"
    raise PlanError(f"no plan was found for {what}; larger ones may allow one")


#: Bytes of a request without a plan.
_NEVER = 1 << 62


def _least_in_smallest(search: Candidates) -> int:
    """Return the minimum bytes of all plans in the smallest blocks that are tried."""
    smallest = min(ladder(search.spec, search.request), key=lambda sizes: sizes.target)
    plans = ranked_plans(search, replace(smallest, bluestein=True, merge=False))
    return min((plan.expected.peak_host for plan in plans), default=_NEVER)


# --- what would fit instead -----------------------------------------------------------------


def changes_that_fit(spec: TransformSpec, request: Request, machine: Machine) -> list[str]:
    """Return changes of an infeasible request, each of which makes a plan possible.

    Parameters
    ----------
    spec, request, machine
        As `find_plan` takes them.
    """

    @cache
    def needs(request: Request, machine: Machine) -> int:
        """Return the bytes of the least plan in the smallest blocks, or in the rounds named."""
        storage = "disk" if request.storage == "auto" else request.storage
        search = Candidates(spec, request, machine, storage)
        if request.rounds is None:
            return _least_in_smallest(search)
        return finished(search, _named(search, next(ladder(spec, request)))).expected.peak_host

    limit = machine.memory_limit
    found = list[str]()
    assert limit is not None  # no request is infeasible without one
    if request.storage == "memory" and needs(replace(request, storage="disk"), machine) <= limit:
        found.append("scratch files (bigfft.exchange.carrier 'disk')")
    if machine.threads > 1 and (one := needs(request, replace(machine, threads=1))) <= limit:
        each = max(1, (needs(request, machine) - one) // (machine.threads - 1))
        threads = max(1, min(machine.threads - 1, 1 + (limit - one) // each))
        threads = threads if needs(request, replace(machine, threads=threads)) <= limit else 1
        many = f"{threads} instead of {machine.threads}"
        local = machine.workers == 1
        found.append(f"dask's num_workers={many}" if local else f"{many} threads per worker")
    if request.stored is not None or request.rounds is not None:
        return found  # blocks are not the array's chunks, or follow from the rounds
    if (most := needs(request, machine)) >= _NEVER:
        return found
    times = max(1, math.ceil(math.log2(most / limit)))
    for count in range(times, times + 3):
        smaller = _halved(request, count)
        if needs(smaller, machine) <= limit:
            found.append(f"an array in chunks of {_widths(smaller)}")
            break
    return found


def _widths(request: Request) -> tuple[int, ...]:
    """Return the largest chunk of each axis."""
    return tuple(max(1, *chunks) for chunks in request.chunks)


def _halved(request: Request, count: int) -> Request:
    """Return a request in chunks halved `count` times, also for a result in the input's chunks.

    Axes that are cut already are halved first.
    """
    widths = list(_widths(request))
    for _ in range(count):
        cut = [w > 1 and len(c) > 1 for w, c in zip(widths, request.chunks, strict=True)]
        axis = max(range(len(widths)), key=lambda axis: (cut[axis], widths[axis]))
        widths[axis] = -(-widths[axis] // 2)
    sizes = map(sum, request.chunks)
    chunks = tuple(wide_chunks(n, w) for n, w in zip(sizes, widths, strict=True))
    same = request.wanted == request.chunks
    return replace(request, chunks=chunks, wanted=chunks if same else request.wanted)
