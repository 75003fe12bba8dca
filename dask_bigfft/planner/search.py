"""The search for a plan: one for all numbers of dimensions.

Candidates whose blocks or forecast are too large fall out, the cheapest by the model is taken::

    blocks near the input's size          as few rounds and split axes as will do
      else whole axes up to a floor       (a length that cannot be split, but is not large)
      else Bluestein's algorithm
      else smaller blocks                 (a memory limit that blocks of that size do not meet)
      else ever larger blocks             up to what the memory limit allows

With scratch files they become larger, too, until these are written in large pieces.

Pure: imports `transforms`, `errors` and this room.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NoReturn

import numpy as np

from dask_bigfft.errors import MemoryLimitError, PlanError, refuse
from dask_bigfft.planner.candidates import Candidate, Candidates
from dask_bigfft.planner.cost import least_host
from dask_bigfft.planner.layouts import Sizes
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.programs import program_of
from dask_bigfft.planner.ranking import all_whole, chosen, finished, ladder, ranked_plans
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.scratch_pieces import in_larger_pieces
from dask_bigfft.planner.wording import enough_bytes, human_bytes
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
            refuse(
                "rounds",
                [dict(r) for r in rounds],
                "digits of which the order that was asked for can be made, and fewer blocks",
            )
        sizes = Sizes(sizes.target * 2, sizes.cap * 2)


# --- the search -----------------------------------------------------------------------------


def find_plan(spec: TransformSpec, request: Request, machine: Machine) -> Plan:
    """Return the cheapest plan whose blocks and memory fit.

    With carrier ``"auto"`` a plan in memory is preferred to one with scratch files.

    Parameters
    ----------
    spec, request, machine
        What is asked, and where.

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
        found = _found(Candidates(spec, request, machine, carrier))
        if isinstance(found, Plan):
            if needed:
                text = f"; in memory it would take {enough_bytes(needed['memory'])} per process"
                found = replace(found, reason=found.reason + text)
            return found
        needed[carrier] = found
    assert machine.memory_limit is not None
    _refuse_memory(machine.memory_limit, needed)


def find_plans(spec: TransformSpec, request: Request, machine: Machine) -> tuple[Plan, ...]:
    """Return the plans that `find_plan` compares, cheapest first: none where none fits.

    Parameters
    ----------
    spec, request, machine
        As `find_plan` takes them.

    Raises
    ------
    PlanError
        If the chunks allow no plan at all.
    """
    carriers = ("memory", "disk") if request.carrier == "auto" else (request.carrier,)
    for carrier in carriers:
        found = _fitting(Candidates(spec, request, machine, carrier))
        if not isinstance(found, int):
            return tuple(sorted(found[0], key=lambda plan: plan.expected.seconds))
    return ()


def every_plan(spec: TransformSpec, request: Request, machine: Machine) -> tuple[Plan, ...]:
    """Return the plans of all candidates, however dear, in blocks of the first size that has any.

    What `find_plans` returns are the cheapest of them. Memory limits and Bluestein's algorithm are
    left out.
    """
    carrier = "memory" if request.carrier == "auto" else request.carrier
    search = Candidates(spec, request, machine, carrier)
    search.dearer = math.inf
    for sizes, _, merge in ladder(spec, request):
        whole = all_whole(search) and sizes.target >= search.largest_in
        if candidates := search.in_place() if whole else search.splits(sizes, merge):
            return tuple(finished(search, candidate) for candidate in candidates)
    return ()


def _found(search: Candidates) -> Plan | int:
    """The cheapest plan with one carrier, or the bytes that the least of them needs."""
    found = _fitting(search)
    if isinstance(found, int):
        return found
    plans, sizes = found
    if search.request.rounds is not None:
        return replace(plans[0], reason="the rounds were named")
    best = chosen(plans, sizes)
    return in_larger_pieces(search, best) if search.carrier == "disk" else best


def _fitting(search: Candidates) -> tuple[list[Plan], Sizes] | int:
    """The plans with one carrier, best first, or the bytes that the least of them needs."""
    spec, request, machine = search.spec, search.request, search.machine
    limit = machine.memory_limit
    if request.rounds is not None:
        sizes = next(ladder(spec, request))[0]
        plan = finished(search, _named(search, sizes))
        if limit is not None and plan.expected.peak_host > limit:
            return plan.expected.peak_host
        return [plan], sizes
    smallest: int | None = None
    in_vain = probed = False
    hopeless = limit is not None and _never_fits(search, limit)
    for sizes, bluestein, merge in ladder(spec, request):
        if hopeless and smallest is not None:
            break
        smaller = sizes.target < int(min(1.0, request.scale) * search.largest_in)
        if smaller and (smallest is None or in_vain):
            continue  # what failed was not the memory limit, or smaller blocks do not help
        plans = ranked_plans(search, sizes, bluestein, merge)
        if limit is not None and plans:
            lowest = min(plan.expected.peak_host for plan in plans)
            smallest = lowest if smallest is None else min(smallest, lowest)
            in_vain = _in_vain(search, plans, limit)
            hopeless = hopeless or (in_vain and search.carrier == "disk")
            plans = [plan for plan in plans if plan.expected.peak_host <= limit]
        if plans:
            return plans, sizes
        if limit is not None and smaller and not probed:  # are those between worth a look?
            probed, least = True, _least_in_smallest(search)
            if smallest is not None and least is not None:
                in_vain, smallest = in_vain or least > limit, min(smallest, least)
    if smallest is not None:
        least = None if probed else _least_in_smallest(search)
        return smallest if least is None else min(smallest, least)
    if request.variant == "pease":
        refuse(
            "variant",
            "pease",
            "axes of length r**m for constant geometry, m at most "
            f"{request.max_rounds}; these are {spec.lengths}",
        )
    raise PlanError(
        f"no plan was found for {spec.name} of {spec.shape} in chunks of {_widths(request)}"
    )


def _never_fits(search: Candidates, limit: int) -> bool:
    """Return whether no plan in memory fits, in blocks of any size.

    What comes in is there while a barrier waits for all of what is made of it.
    """
    spec, here = search.spec, search.carrier == "memory" and search.machine.workers == 1
    nbytes = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    return here and not all_whole(search) and nbytes > limit


def _in_vain(search: Candidates, plans: list[Plan], limit: int) -> bool:
    """Return whether plans like these need too much memory in smaller blocks, too.

    With scratch files that is so in blocks of any size: it is what comes in that is too large.
    """
    alone = search.machine.workers == 1  # else smaller blocks lie more evenly
    onto_disk = search.carrier == "disk" and search.request.stored is None
    return (alone or onto_disk) and min(map(least_host, plans)) > limit


def _least_in_smallest(search: Candidates) -> int | None:
    """Bytes of the least of all plans in the smallest blocks that are tried; None without any."""
    sizes = min(
        (rung for rung, *_ in ladder(search.spec, search.request)), key=lambda sizes: sizes.target
    )
    plans = ranked_plans(search, sizes, True, False)
    return min((plan.expected.peak_host for plan in plans), default=None)


def _refuse_memory(limit: int, needed: dict[str, int]) -> NoReturn:
    texts = {carrier: enough_bytes(nbytes) for carrier, nbytes in needed.items()}
    text = f"at least {enough_bytes(min(needed.values()))} per process for these chunks and threads"
    if len(needed) > 1:
        text += f" ({texts['disk']} with scratch files, {texts['memory']} in memory)"
    refuse("memory_limit", human_bytes(limit), text, kind=MemoryLimitError)


# --- what would fit instead -----------------------------------------------------------------

#: How often chunks are doubled until there is a plan.
DOUBLED = 16

#: Bytes that nobody has: of a request without a plan.
_NEVER = 1 << 62


def changes_that_fit(spec: TransformSpec, request: Request, machine: Machine) -> list[str]:
    """Return changes of a request that no plan fits, after each of which one does.

    Parameters
    ----------
    spec, request, machine
        As `find_plan` takes them.
    """

    @cache
    def needs(request: Request, machine: Machine) -> int:
        """Return the bytes of the least plan in the smallest blocks, or in the rounds named."""
        carrier = "disk" if request.carrier == "auto" else request.carrier
        if request.rounds is not None:
            asked = Candidates(spec, request, replace(machine, memory_limit=None), carrier)
            return finished(asked, _named(asked, next(ladder(spec, request))[0])).expected.peak_host
        found = _least_in_smallest(Candidates(spec, request, machine, carrier))
        return _NEVER if found is None else found

    limit = machine.memory_limit
    if limit is None:
        return []
    found = []
    if request.carrier == "memory" and needs(replace(request, carrier="disk"), machine) <= limit:
        found.append("scratch files (bigfft.exchange.carrier 'disk')")
    if (threads := _threads_that_fit(limit, machine, lambda on: needs(request, on))) is not None:
        many = f"{threads} instead of {machine.threads}"
        local = machine.workers == 1
        found.append(f"dask's num_workers={many}" if local else f"{many} threads per worker")
    if request.stored is not None or request.rounds is not None:
        return found  # blocks are not the array's chunks, or follow from the rounds
    if (most := needs(request, machine)) >= _NEVER:
        return found
    times = max(1, math.ceil(math.log2(most / limit)))
    for count in range(times, times + 3):
        smaller = _in_chunks(request, _halved(request, count))
        if needs(smaller, machine) <= limit:
            found.append(f"an array in chunks of {_widths(smaller)}")
            break
    return found


def larger_chunks_that_fit(
    spec: TransformSpec, request: Request, machine: Machine
) -> tuple[int, ...] | None:
    """Return chunks in which there is a plan where those that were given allow none.

    Parameters
    ----------
    spec, request, machine
        As `find_plan` takes them.
    """
    axis = max(spec.axes, key=lambda axis: len(request.chunks[axis]))
    for _ in range(DOUBLED):
        widths = list(_widths(request))
        widths[axis] *= 2
        request = _in_chunks(request, tuple(widths))
        try:
            find_plan(spec, request, machine)
        except PlanError:
            continue
        return _widths(request)
    return None


def _threads_that_fit(limit: int, machine: Machine, needs: Callable[[Machine], int]) -> int | None:
    """The most threads whose tasks fit, at most all but one; each needs about as much."""
    if machine.threads == 1 or (one := needs(replace(machine, threads=1))) > limit:
        return None
    each = max(1, (needs(machine) - one) // (machine.threads - 1))
    threads = max(1, min(machine.threads - 1, 1 + (limit - one) // each))
    return threads if needs(replace(machine, threads=threads)) <= limit else 1


def _widths(request: Request) -> tuple[int, ...]:
    """Largest chunk of each axis."""
    return tuple(max(1, *chunks) for chunks in request.chunks)


def _halved(request: Request, count: int) -> tuple[int, ...]:
    """Chunks halved so often, along an axis that is cut already if there is one."""
    widths = list(_widths(request))
    for _ in range(count):
        cut = [w > 1 and len(c) > 1 for w, c in zip(widths, request.chunks, strict=True)]
        axis = max(range(len(widths)), key=lambda axis: (cut[axis], widths[axis]))
        widths[axis] = -(-widths[axis] // 2)
    return tuple(widths)


def _in_chunks(request: Request, widths: tuple[int, ...]) -> Request:
    """Return a request in other chunks; a result in the same chunks gets the new ones, too."""
    sizes = map(sum, request.chunks)
    cut = tuple(
        (w,) * (n // w) + ((n % w,) if n % w else ()) for n, w in zip(sizes, widths, strict=True)
    )
    same = request.wanted == request.chunks
    return replace(request, chunks=cut, wanted=cut if same else request.wanted)
