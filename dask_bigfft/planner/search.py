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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NoReturn

import numpy as np

from dask_bigfft.errors import MemoryLimitError, PlanError, raise_invalid
from dask_bigfft.planner.candidates import Candidate, Candidates, program_of, with_padding
from dask_bigfft.planner.cost import with_forecast
from dask_bigfft.planner.layouts import Sizes
from dask_bigfft.planner.merging import merged_up_to
from dask_bigfft.planner.plan import NO_FORECAST, Plan, with_reason
from dask_bigfft.planner.request import Machine, Request, block_count, largest_block, padded_block
from dask_bigfft.planner.rows import NOT_STORED
from dask_bigfft.transforms.layout import Chunks, wide_chunks
from dask_bigfft.transforms.rounds import divided, numbered
from dask_bigfft.transforms.spec import TransformSpec

#: Bytes below which a memory limit is taken for a number whose unit was forgotten.
LEAST_LIMIT = 1 << 16

#: Maximum number of halvings of blocks to meet a memory limit.
SMALLER = 6

#: Maximum number of blocks for which smaller blocks, or smaller chunks of the input, are tried.
#: Dask cannot order a graph of more, and the search would take minutes.
MOST_BLOCKS = 1 << 20

#: Pairs of an input block and a result block beyond which the last blocks are twice as large.
#: Dask's ordering of a graph takes about 0.3 us for each pair.
MOST_PAIRS = 1 << 23


def ladder(spec: TransformSpec, request: Request) -> Iterator[Sizes]:
    """Yield the sizes of blocks to try, until one has a plan within the memory limit.

    The first ones are as large as the input's blocks, or as the floor if it is larger. Smaller ones
    follow, which take less memory, then larger ones, which split long axes into fewer digits, and
    at last a block for all.
    """
    target = max(1, int(largest_block(spec, request) * request.scale))
    floor = request.floor_bytes // spec.work_dtype.itemsize
    total = max(math.prod(spec.shape), math.prod(spec.out_shape), 1)
    blocks = max(1, round(block_count(request.chunks) / request.scale))
    near_input = Sizes(
        target,
        cap=2 * target,
        blocks=blocks,
        merge=request.joined,
    )
    if blocks * (total // target) > MOST_PAIRS:
        yield replace(near_input, last=2)
    yield near_input
    if floor > 2 * target:
        yield replace(near_input, cap=floor)
    yield replace(near_input, bluestein=True)
    if floor > 2 * target:
        yield Sizes(
            floor,
            cap=2 * floor,
            bluestein=True,
            merge=True,
        )
    for shift in range(1, SMALLER + 1):  # only a memory limit leads here
        smaller = max(1, target >> shift)
        if total // smaller > MOST_BLOCKS:
            break
        yield Sizes(smaller, cap=max(2, target >> (shift - 1)), bluestein=True)
    while target < 2 * total:
        target *= 2
        yield Sizes(
            target,
            cap=2 * target,
            bluestein=True,
            merge=True,
        )
    yield Sizes(4 * total, cap=8 * total, merge=True)


def all_whole(search: Candidates) -> bool:
    """Return whether every transformed axis is whole in every input block."""
    return all(len(search.source.axes[axis].groups[0].chunks) == 1 for axis in search.spec.axes)


def finished(search: Candidates, candidate: Candidate) -> Plan:
    """Return the plan of a candidate, with its forecast."""
    request = search.request
    programs, rounds = divided(candidate.programs, candidate.rounds, search.spec.scale)
    programs, rounds = numbered(programs, rounds)
    program_by_axis = {program.axis: program for program in programs}
    plan = Plan(
        spec=search.spec,
        programs=programs,
        source=with_padding(search.source, program_by_axis),
        rounds=rounds,
        result=candidate.result,
        variant=request.variant,
        kernel=request.kernel,
        verify=request.verify,
        machine=search.machine,
        expected=NO_FORECAST,
        storage=search.storage,
        device=request.device,
        device_memory_limit=request.device_nbytes,
        from_rows=candidate.from_rows,
        stored=request.stored or NOT_STORED,
        writing=request.writing,
        reopened=request.reopened and not candidate.from_rows,
    )
    return with_forecast(plan, search.model)


def ranked_plans(search: Candidates, sizes: Sizes) -> list[Plan]:
    """Return the plans with blocks of some size, cheapest first."""
    search.bound = math.inf
    candidates = sorted(_candidates(search, sizes), key=lambda c: c.rank)
    cheapest = _different(candidates)
    plans = [(finished(search, c), c.penalty) for c in cheapest]
    if search.machine.shared and search.machine.profile.name:
        # The price of a candidate leaves out shared buffers, the forecast of its plan counts them.
        # Rounding keeps the order of plans with equal forecasts.
        plans.sort(key=lambda pair: float(f"{pair[0].expected.seconds * pair[1]:.3g}"))
    return [plan for plan, _ in plans]


def _candidates(search: Candidates, sizes: Sizes) -> list[Candidate]:
    """Return all candidates with blocks of some size."""
    if search.spec.waves is not None:  # the only algorithm for waves
        return search.bluestein(sizes)
    if all_whole(search) and sizes.target >= padded_block(search.spec, search.request):
        return search.in_place()
    key = replace(sizes, bluestein=False)
    if key not in search.splits_by_sizes:
        search.splits_by_sizes[key] = search.splits(sizes)
    candidates = search.splits_by_sizes[key]
    if sizes.bluestein:
        return candidates + search.bluestein(sizes)
    return candidates


def _different(ranked: list[Candidate]) -> list[Candidate]:
    """Return the best candidates, and the first few that have other prices."""
    first_of_price: dict[float, Candidate] = {}
    for candidate in ranked:
        first_of_price.setdefault(candidate.seconds, candidate)
    best = ranked[:4]
    others = list(first_of_price.values())[:8]
    return best + [c for c in others if c not in best]


def with_runners_up(plans: list[Plan]) -> Plan:
    """Return the first of some plans, cheapest first, with the reason and three others."""
    best = plans[0]
    forecasts = {best.expected}
    rejected = []
    for plan in plans[1:]:
        if plan.expected in forecasts:  # a permutation costs the same
            continue
        forecasts.add(plan.expected)
        digits = ", ".join(" x ".join(map(str, program.factors)) for program in plan.programs)
        rejected.append((f"{plan.notation} with {digits}", plan.expected))
    reason = ""
    if not rejected:
        reason = "the only order of steps that blocks of this size allow"
        if not best.travelling:
            reason = "each block holds whole axes, which saves every rechunk"
    return best.changed(rejected=tuple(rejected[:3]), reason=reason)


#: Maximum number of doublings of blocks for larger writes, and minimum number of blocks.
MOST_DOUBLED = 12
FEWEST = 16

#: Fractions of a doubled block that are tried if the doubled block does not fit into memory.
STEPS = (3 / 4, 11 / 16)

#: Maximum time of a plan with larger writes, in units of the fastest.
ALIKE = 1.05


def in_larger_pieces(search: Candidates, plan: Plan) -> Plan:
    """Return the plan, or one in larger blocks if its writes to scratch files are small.

    Every source block writes a shard for every target block, so twice as large blocks have four
    times as large shards.
    """
    least = search.request.piece_nbytes
    if plan.piece_nbytes >= least:
        return plan

    from dask.utils import format_bytes  # 8 ms, which few searches need

    best = _best(_with_doubled_blocks(search, plan), least)
    piece = format_bytes(round(best.piece_nbytes))
    text = f"scratch files are written in pieces of {piece} on average"
    if best.piece_nbytes < least:
        text += f", smaller than bigfft.scratch.min-write, {format_bytes(least)}: larger blocks "
        text += "would take longer, be too few, or need more memory than the limit, if there is one"
    return with_reason(best, text)


def _with_doubled_blocks(search: Candidates, plan: Plan) -> list[Plan]:
    """Return a plan, followed by plans in ever larger blocks until writes are large enough.

    Blocks are not doubled without a memory limit: it says how large they may become.
    """
    least = search.request.piece_nbytes
    block_size = max(round_.source.largest for round_ in plan.rounds)
    total_size = max(round_.source.size for round_ in plan.rounds)
    is_local = plan.exchanges[0].local
    plans = [plan]
    if search.machine.memory_limit is None:
        return plans
    if total_size * search.itemsize < FEWEST**2 * least:
        return plans
    for _ in range(MOST_DOUBLED):
        block_size *= 2
        if plans[-1].piece_nbytes >= least or total_size < FEWEST * block_size:
            return plans
        larger = _in_larger_blocks(
            search,
            block_size,
            is_local,
            plans[-1].piece_nbytes,
        )
        if larger is None:
            part = _in_part_of_block(search, block_size, is_local, plans[-1].piece_nbytes)
            return plans if part is None else [*plans, part]
        plans.append(larger)
    return plans


def _in_part_of_block(
    search: Candidates,
    block_size: int,
    is_local: bool,
    piece_nbytes: float,
) -> Plan | None:
    """Return the first plan in a part of a block that does not fit, or None."""
    for fraction in STEPS:
        plan = _in_larger_blocks(
            search,
            int(block_size * fraction),
            is_local,
            piece_nbytes,
        )
        if plan is not None:
            return plan
    return None


def _in_larger_blocks(
    search: Candidates,
    size: int,
    is_local: bool,
    piece_nbytes: float,
) -> Plan | None:
    """Return the plan in blocks of some size; None if it does not fit or has no larger writes.

    Parameters
    ----------
    search : Candidates
        The search.
    size : int
        Elements of a block.
    is_local : bool
        Whether the input blocks are local, see `_in_blocks`.
    piece_nbytes : int
        Size of the writes of a plan in smaller blocks.
    """
    plan = _in_blocks(search, size, is_local)
    if plan is None or plan.piece_nbytes <= piece_nbytes:
        return None
    return plan


def _best(plans: list[Plan], least: int) -> Plan:
    """Return the plan with the largest writes among those about as fast as the fastest.

    Writes above `least` bytes count as equal. Of equals, the fastest or the first is taken.
    """
    fastest = min(plan.expected.seconds for plan in plans)
    fast_enough = [plan for plan in plans if plan.expected.seconds <= ALIKE * fastest]
    return min(
        fast_enough,
        key=lambda plan: (-min(plan.piece_nbytes, least), plan.expected.seconds),
    )


def _in_blocks(search: Candidates, size: int, is_local: bool) -> Plan | None:
    """Return the best plan with scratch files in blocks of about `size`; None if none fits.

    Input blocks are merged, unless the first round reads rows of a stored array directly. If the
    input blocks are local, in the order of the first round, it may read whole blocks directly, too.
    That takes the least memory, so a plan that does it is taken at once.
    """
    request = search.request
    if is_local:
        plan = _reading_directly(search, size)
        if plan is not None:
            return plan
    nbytes = size * search.spec.work_dtype.itemsize
    merged = merged_up_to(search.spec, request.chunks, nbytes)
    chunk_choices = [merged] if request.stored is None else [request.chunks, merged]
    fitting: list[Plan] = []
    for chunks in dict.fromkeys(chunk_choices):
        plan = _plan_in_blocks(
            search,
            size,
            chunks,
            near=False,
        )
        if plan is None:
            continue
        writes_source = plan.moves[0] and not plan.from_rows
        if chunks == merged or not writes_source:
            fitting.append(plan)
    return _best(fitting, request.piece_nbytes) if fitting else None


def _reading_directly(search: Candidates, size: int) -> Plan | None:
    """Return the plan whose first round reads blocks of a stored array; None if none fits.

    The chunks of the input do not matter then, so it is cut again.
    """
    stored = search.request.stored
    if stored is None:
        return None
    spec = search.spec
    nbytes = size * spec.work_dtype.itemsize
    parts = stored.cut(spec.shape, np.dtype(spec.dtype).itemsize)
    return _plan_in_blocks(
        search,
        size,
        merged_up_to(spec, parts, nbytes),
        near=True,
    )


def _plan_in_blocks(
    search: Candidates,
    size: int,
    chunks: tuple[Chunks, ...],
    *,
    near: bool,
) -> Plan | None:
    """Return the plan in blocks of some size for an input in other chunks; None if none fits.

    With `near` the first round has to read the stored array directly.
    """
    spec = search.spec
    request = search.request
    stored = request.stored
    is_merged = chunks != request.chunks
    # Reopening an encoded array takes more memory than reading its own chunks.
    reopens = stored is not None and stored.reopened and (is_merged or not stored.decoded)
    request_in_chunks = replace(request, chunks=chunks, reopened=reopens)
    scale = size / largest_block(spec, request_in_chunks)
    larger_search = Candidates(
        spec,
        replace(request_in_chunks, scale=scale),
        search.machine,
        search.storage,
        near,
    )
    plan = _fitting_in(larger_search)
    if plan is None or (near and not plan.from_rows):
        return None
    if is_merged and not plan.reopened:
        plan = with_forecast(plan.changed(incoming=request.chunks), larger_search.model)
    plan = _as_it_fits(plan)
    return plan if plan.fits_memory else None


def _as_it_fits(plan: Plan) -> Plan:
    """Return the plan; if it does not fit, the one that assembles blocks while shards arrive.

    On GPUs all shards of a block are read first, and then gathered.
    """
    runs_on_gpu = plan.machine.gpus > 0 and plan.device != "cpu"
    if plan.fits_memory or plan.assembles or plan.storage != "disk" or runs_on_gpu:
        return plan
    return with_forecast(plan.changed(assembles=True))


def _fitting_in(search: Candidates) -> Plan | None:
    """Return the cheapest plan that fits, in blocks of the first size."""
    sizes_to_try = list(ladder(search.spec, search.request))
    for sizes in sizes_to_try:
        if sizes.target != sizes_to_try[0].target:
            break
        plans = [_as_it_fits(plan) for plan in ranked_plans(search, sizes)]
        fitting = _that_fit(plans)
        if fitting:
            return with_runners_up(fitting)
    return None


# --- rounds named by the user ---------------------------------------------------------------


def _named(search: Candidates, sizes: Sizes) -> Candidate:
    """Return the candidate whose rounds the user named."""
    spec = search.spec
    rounds = search.request.rounds
    assert rounds is not None
    factors_of_rounds = [dict(pairs) for pairs in rounds]
    assignment = {}
    programs = {}
    for axis in spec.axes:
        numbers = tuple(i for i, factors in enumerate(factors_of_rounds) if axis in factors)
        assignment[axis] = numbers
        axis_factors = tuple(factors_of_rounds[i][axis] for i in numbers)
        programs[axis] = program_of(spec, axis, axis_factors)
    whole_cap = 4 * math.prod(spec.out_shape) + 4 * math.prod(spec.shape)
    while True:
        candidate = search.build(programs, assignment, sizes)
        if candidate is not None:
            return candidate
        if sizes.cap >= whole_cap:
            text = "digits from which the requested order can be made, and fewer blocks"
            raise_invalid("rounds", factors_of_rounds, text)
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
    needed: dict[str, int] = {}
    for storage in _storages(request):
        search = Candidates(
            spec,
            request,
            machine,
            storage,
        )
        outcome = _fitting(search)
        if not outcome.plans:
            needed[storage] = outcome.least_nbytes
            continue
        best = with_runners_up(outcome.plans)
        if request.rounds is not None:
            best = replace(best, reason="the steps that `rounds` names")
        elif storage == "disk":
            best = in_larger_pieces(search, best)
        if not needed:
            return best

        from dask_bigfft.planner.explain import enough_bytes

        nbytes = enough_bytes(needed["memory"])
        return with_reason(best, f"without scratch files it would need {nbytes} per process")
    _raise_too_little_memory(machine, needed)


def _storages(request: Request) -> tuple[str, ...]:
    """Return the storages that a request allows, the preferred one first."""
    return ("memory", "disk") if request.storage == "auto" else (request.storage,)


def _raise_too_little_memory(machine: Machine, needed: dict[str, int]) -> NoReturn:
    """Raise the error of a memory limit, given the bytes that each storage needs."""
    from dask.utils import format_bytes

    from dask_bigfft.planner.explain import enough_bytes

    limit = machine.memory_limit
    assert limit is not None
    text = f"at least {enough_bytes(min(needed.values()))} per process for these chunks and threads"
    if len(needed) > 1:
        on_disk = enough_bytes(needed["disk"])
        in_memory = enough_bytes(needed["memory"])
        text += f" ({on_disk} with scratch files, {in_memory} in memory)"
    if limit < LEAST_LIMIT:
        unit = "GiB" if limit < 100 else "MiB"
        text += f"; numbers are bytes, others have a unit: '{limit} {unit}'"
    raise_invalid(
        "memory_limit",
        format_bytes(limit),
        text,
        kind=MemoryLimitError,
    )


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
    for storage in _storages(request):
        search = Candidates(
            spec,
            request,
            machine,
            storage,
        )
        plans = _fitting(search).plans
        if plans:
            return tuple(sorted(plans, key=lambda plan: plan.expected.seconds))
    return ()


@dataclass(frozen=True)
class _Outcome:
    """Outcome of a search with one storage.

    Parameters
    ----------
    plans : list of Plan
        Plans that fit into memory, the best first; empty if none fits.
    least_nbytes : int
        Minimum bytes that a plan needs, if none fits.
    """

    plans: list[Plan]
    least_nbytes: int = 0


def _that_fit(plans: list[Plan]) -> list[Plan]:
    """Return the plans that fit into memory."""
    return [plan for plan in plans if plan.fits_memory]


def _fitting(search: Candidates) -> _Outcome:
    """Return the plans that fit, in blocks of the first size for which there are any.

    Raises
    ------
    PlanError
        If there is no plan, however large the memory is.
    """
    if search.request.rounds is not None:
        return _fitting_in_named_rounds(search)
    peaks: list[int] = []
    smallest_peak: int | None = None
    for sizes in ladder(search.spec, search.request):
        if not _is_worth_trying(
            search,
            sizes,
            bool(peaks),
            smallest_peak,
        ):
            continue
        plans = ranked_plans(search, sizes)
        fitting = _that_fit(plans)
        if fitting:
            return _Outcome(fitting)
        peaks += [plan.expected.peak_host for plan in plans]
        if smallest_peak is None and _is_smaller(search, sizes):
            # The sizes between these and the smallest may not help either.
            smallest_peak = _least_in_smallest(search)
    if not peaks:
        _raise_no_plan(search)
    if smallest_peak is None:
        smallest_peak = _least_in_smallest(search)
    return _Outcome([], least_nbytes=min(*peaks, smallest_peak))


def _fitting_in_named_rounds(search: Candidates) -> _Outcome:
    """Return the plan in the rounds that the user named, or the bytes that it needs."""
    sizes = next(ladder(search.spec, search.request))
    plan = finished(search, _named(search, sizes))
    return _Outcome(_that_fit([plan]), least_nbytes=plan.expected.peak_host)


def _is_smaller(search: Candidates, sizes: Sizes) -> bool:
    """Return whether blocks of some size are smaller than the requested ones."""
    return sizes.target < int(min(1.0, search.request.scale) * search.largest_in)


def _is_worth_trying(
    search: Candidates,
    sizes: Sizes,
    has_failed: bool,
    smallest_peak: int | None,
) -> bool:
    """Return whether blocks of some size may meet the memory limit.

    Parameters
    ----------
    search : Candidates
        The search.
    sizes : Sizes
        Size of the blocks.
    has_failed : bool
        Whether plans in other blocks were too large for the memory limit.
    smallest_peak : int or None
        Bytes of a plan in the smallest blocks, if that is known.
    """
    limit = search.machine.memory_limit
    if not has_failed:
        return not _is_smaller(search, sizes)  # smaller blocks only help against a limit
    assert limit is not None
    smallest_is_too_large = smallest_peak is not None and limit < smallest_peak < _NEVER
    if smallest_is_too_large and (search.storage == "disk" or _is_smaller(search, sizes)):
        return False
    if search.storage == "disk" or search.machine.workers > 1 or all_whole(search):
        return True
    # The input stays in memory until a barrier has all blocks that are made of it.
    return search.spec.nbytes <= limit


def _raise_no_plan(search: Candidates) -> NoReturn:
    """Raise the error of a request that has no plan, however large the memory is."""
    spec = search.spec
    request = search.request
    if request.variant == "pease":
        text = f"axes of length r**m for constant geometry, m at most {request.max_rounds}"
        raise_invalid("variant", "pease", f"{text}; these are {spec.lengths}")
    text = f"{spec.name} of {spec.shape} in chunks of {_widths(request)}"
    raise PlanError(f"no plan was found for {text}; larger ones may allow one")


#: Bytes of a request without a plan.
_NEVER = 1 << 62


def _least_in_smallest(search: Candidates) -> int:
    """Return the minimum bytes of all plans in the smallest blocks that are tried."""
    smallest = min(ladder(search.spec, search.request), key=lambda sizes: sizes.target)
    plans = ranked_plans(search, replace(smallest, bluestein=True, merge=False))
    return min((plan.expected.peak_host for plan in plans), default=_NEVER)


# --- changes of a request that fit ----------------------------------------------------------

#: Function that returns the least bytes per process of a request on a machine.
LeastPeak = Callable[[Request, Machine], int]


def changes_that_fit(spec: TransformSpec, request: Request, machine: Machine) -> list[str]:
    """Return changes of an infeasible request, each of which makes a plan possible.

    Parameters
    ----------
    spec, request, machine
        As `find_plan` takes them.
    """

    @cache
    def least_peak(request: Request, machine: Machine) -> int:
        """Return the bytes of the least plan in the smallest blocks, or in the rounds named."""
        storage = "disk" if request.storage == "auto" else request.storage
        search = Candidates(
            spec,
            request,
            machine,
            storage,
        )
        if request.rounds is None:
            return _least_in_smallest(search)
        plan = finished(search, _named(search, next(ladder(spec, request))))
        return plan.expected.peak_host

    limit = machine.memory_limit
    assert limit is not None  # no request is infeasible without one
    changes: list[str] = []
    on_disk = replace(request, storage="disk")
    if request.storage == "memory" and least_peak(on_disk, machine) <= limit:
        changes.append("scratch files (bigfft.exchange.carrier 'disk')")
    if block_count(request.chunks) > MOST_BLOCKS:
        return changes
    threads = _fewer_threads(
        least_peak,
        request,
        machine,
        limit,
    )
    if threads is not None:
        text = f"{threads} instead of {machine.threads}"
        if machine.workers == 1:
            changes.append(f"dask's num_workers={text}")
        else:
            changes.append(f"{text} threads per worker")
    if request.stored is not None or request.rounds is not None:
        return changes  # blocks are not the array's chunks, or follow from the rounds
    smaller = _smaller_chunks(
        least_peak,
        request,
        machine,
        limit,
    )
    if smaller is not None:
        changes.append(f"an array in chunks of {_widths(smaller)}")
    return changes


def _fewer_threads(
    least_peak: LeastPeak,
    request: Request,
    machine: Machine,
    limit: int,
) -> int | None:
    """Return a smaller number of threads that fit into memory; None if not even one does."""
    if machine.threads <= 1:
        return None
    single_peak = least_peak(request, replace(machine, threads=1))
    if single_peak > limit:
        return None
    added_bytes = least_peak(request, machine) - single_peak
    thread_bytes = max(1, added_bytes // (machine.threads - 1))
    threads = max(1, min(machine.threads - 1, 1 + (limit - single_peak) // thread_bytes))
    fits = least_peak(request, replace(machine, threads=threads)) <= limit
    return threads if fits else 1


def _smaller_chunks(
    least_peak: LeastPeak,
    request: Request,
    machine: Machine,
    limit: int,
) -> Request | None:
    """Return the request in halved chunks that fit into memory; None without any."""
    peak = least_peak(request, machine)
    if peak >= _NEVER:
        return None
    halvings = max(1, math.ceil(math.log2(peak / limit)))
    for count in range(halvings, halvings + 3):
        smaller = _halved(request, count)
        if block_count(smaller.chunks) > MOST_BLOCKS:
            break
        if least_peak(smaller, machine) <= limit:
            return smaller
    return None


def _widths(request: Request) -> tuple[int, ...]:
    """Return the largest chunk of each axis."""
    return tuple(max(1, *chunks) for chunks in request.chunks)


def _halved(request: Request, count: int) -> Request:
    """Return a request in chunks halved `count` times, also for a result in the input's chunks.

    Axes that are cut already are halved first.
    """
    widths = list(_widths(request))
    for _ in range(count):
        is_cut = [w > 1 and len(c) > 1 for w, c in zip(widths, request.chunks, strict=True)]
        axis = max(range(len(widths)), key=lambda axis: (is_cut[axis], widths[axis]))
        widths[axis] = -(-widths[axis] // 2)
    sizes = map(sum, request.chunks)
    chunks = tuple(wide_chunks(n, w) for n, w in zip(sizes, widths, strict=True))
    wanted_chunks = request.wanted_chunks
    if wanted_chunks == request.chunks:
        wanted_chunks = chunks
    return replace(request, chunks=chunks, wanted_chunks=wanted_chunks)
