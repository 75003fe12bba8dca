"""Larger blocks where scratch files would be written in small pieces.

A source block gives each block on the other side a piece of its file, so twice as large blocks are
written in pieces four times as large. Memory sets a limit to that, so the first round then reads
stored slabs and planes itself: tasks that do nothing but read and merge would need more of it.

Pure: imports `decomposition` and this room.
"""

from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.layout import Chunks
from dask_bigfft.planner.candidates import Candidates
from dask_bigfft.planner.cost import forecast, may_assemble
from dask_bigfft.planner.merging import merged_up_to
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.ranking import chosen, ladder, ranked_plans
from dask_bigfft.planner.request import Request, largest_block
from dask_bigfft.planner.wording import human_bytes, human_seconds

#: How often blocks are doubled for larger pieces, and into how many the data are cut at least.
MOST_DOUBLED, FEWEST = 12, 16

#: Parts of a block twice as large that are tried, until one has room in memory.
STEPS = (1, 3 / 4, 11 / 16)

#: How much longer the model may say that a plan with pieces of the wanted size takes.
ALIKE = 1.05


def in_larger_pieces(search: Candidates, plan: Plan) -> Plan:
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
    tried, too_large, local = [plan], list[Plan](), plan.exchanges[0].local
    for _ in range(MOST_DOUBLED):
        size *= 2
        if limit is None or tried[-1].piece_nbytes >= least or total < FEWEST * size:
            break
        for part in STEPS:  # too large for memory: less of that step may not be
            found = _in_blocks(search, int(size * part), limit, too_large, local)
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
        want = _why_no_larger(best, too_large)
        best = _with_reason(best, f"{_small(best, least)}: {want}")
    return best


def _with_reason(plan: Plan, text: str) -> Plan:
    return replace(plan, reason=f"{plan.reason}; {text}")


def _small(plan: Plan, least: int) -> str:
    found, wanted = human_bytes(plan.piece_nbytes), human_bytes(least)
    return f"pieces of {found} are smaller than bigfft.scratch.piece-size, {wanted}"


def _why_no_larger(best: Plan, too_large: list[Plan]) -> str:
    """Return why there are no larger pieces, with the memory that they would take."""
    larger = [plan for plan in too_large if plan.piece_nbytes > best.piece_nbytes]
    if best.machine.memory_limit is None:
        return "without a memory limit blocks stay as they are"
    if not larger:
        return "larger blocks take longer by the model, or are fewer than are kept busy"
    found = max(larger, key=lambda plan: plan.piece_nbytes)
    peak = human_bytes(found.expected.peak_host)
    return f"{human_bytes(found.piece_nbytes)} would take {peak} of memory"


def _best(plans: list[Plan], least: int) -> Plan:
    """Of the plans that the model finds about as fast as the fastest, the one of largest pieces.

    Larger ones than `least` bytes are no better; of equals the fastest, or the first.
    """
    fastest = min(plan.expected.seconds for plan in plans)
    alike = [plan for plan in plans if plan.expected.seconds <= ALIKE * fastest]
    return min(alike, key=lambda plan: (-min(plan.piece_nbytes, least), plan.expected.seconds))


def _in_pieces(plan: Plan) -> str:
    size, seconds = human_bytes(plan.piece_nbytes), human_seconds(plan.expected.seconds)
    return f"pieces of {size} on average and {seconds}"


def _in_blocks(
    search: Candidates, size: int, limit: int, too_large: list[Plan], local: bool
) -> Plan | None:
    """The best plan with scratch files in blocks of some size, neighbours that come in merged.

    They may stay as they are where the first round reads rows of a stored array, without them.
    Where they are `local`, in the order that it needs, it may read them itself, too, which takes
    the least memory. What would need too much is added to `too_large`.
    """
    spec, request = search.spec, search.request
    nbytes = size * spec.work_dtype.itemsize
    merged = merged_up_to(spec, request.chunks, nbytes)
    fitting: list[Plan] = []
    for chunks, near in _ways_to_come_in(search, nbytes, merged, local):
        asked = replace(request, chunks=chunks, anew=_is_opened_anew(request, chunks))
        asked = replace(asked, scale=size / largest_block(spec, asked))
        larger = Candidates(spec, asked, search.machine, search.carrier, near)
        found = _fitting_in(larger, limit, too_large)
        if found is None or (near and not found.from_rows):
            continue
        if chunks != request.chunks and not found.anew:
            found = replace(found, incoming=request.chunks)
            found = replace(found, expected=forecast(found))
        if not (
            found.from_rows or request.stored is None or not found.moves[0] or chunks == merged
        ):
            continue
        found = _as_it_fits(found, limit, search)
        (fitting if found.expected.peak_host <= limit else too_large).append(found)
        if near and fitting:
            break
    return _best(fitting, request.piece_nbytes) if fitting else None


def _is_opened_anew(request: Request, chunks: tuple[Chunks, ...]) -> bool:
    """Return whether blocks are opened as these chunks, and read a few stored ones at a time.

    That takes more memory for a stored one that is decoded than to read it as it is.
    """
    stored = request.stored
    if stored is None or not stored.anew:
        return False
    return chunks != request.chunks or not stored.decoded


def _ways_to_come_in(
    search: Candidates, nbytes: int, merged: tuple[Chunks, ...], local: bool
) -> list[tuple[tuple[Chunks, ...], bool]]:
    """Chunks of what comes in, and whether the first round is to read them where it is stored.

    It needs none that are there already, so these are cut anew.
    """
    spec, request, stored = search.spec, search.request, search.request.stored
    if stored is None:
        return [(merged, False)]
    ways = [(cut, False) for cut in dict.fromkeys((request.chunks, merged))]
    if not local:
        return ways
    parts = stored.cut(spec.shape, np.dtype(spec.dtype).itemsize)
    return [(merged_up_to(spec, parts, nbytes), True), *ways]


def _as_it_fits(plan: Plan, limit: int, search: Candidates) -> Plan:
    """The plan, or the same one that puts blocks together as shards arrive if only that fits."""
    if plan.expected.peak_host <= limit or plan.assembles or not may_assemble(plan):
        return plan
    found = replace(plan, assembles=True)
    return replace(found, expected=forecast(found))


def _fitting_in(search: Candidates, limit: int, too_large: list[Plan]) -> Plan | None:
    """The cheapest plan that fits, in blocks of the size that is tried first.

    If none does, the one that needs the least memory is added to `too_large`.
    """
    rungs = list(ladder(search.spec, search.request))
    for sizes, bluestein, merge in rungs:
        if sizes.target != rungs[0][0].target:
            break
        plans = ranked_plans(search, sizes, bluestein, merge)
        plans = [_as_it_fits(plan, limit, search) for plan in plans]
        fitting = [plan for plan in plans if plan.expected.peak_host <= limit]
        if fitting:
            return chosen(fitting, sizes)
        if plans:
            too_large.append(min(plans, key=lambda plan: plan.expected.peak_host))
    return None
