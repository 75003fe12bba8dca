"""A plan in words: its rounds and exchanges, why it was chosen, what it will need.

Pure: imports `decomposition` and this room; a `Plan` is only read, never made here.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Layout
from dask_bigfft.decomposition.rounds import exchange_shape
from dask_bigfft.decomposition.steps import Step
from dask_bigfft.planner.cost import fresh_seconds
from dask_bigfft.planner.exchange import Exchange
from dask_bigfft.planner.machine import Forecast
from dask_bigfft.planner.notation import axis_letter
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan_data import PlanData
from dask_bigfft.planner.tile_plan import apart
from dask_bigfft.planner.wording import human_bytes, human_count, human_seconds, table, wrapped

#: How a scale is written where N is the product of the lengths.
_SCALES = {"none": "1", "ortho": "1/sqrt(N)", "full": "1/N"}

_LEGEND = (
    "d(n, i, o): FFTs of length n, read at stride i and written at stride o, in elements of the "
    "whole array (in, and out). t_M: twiddles of modulus M. C, W: contiguous runs that a block is "
    "gathered from, and their width in elements."
)

# --- what blocks and digits look like -------------------------------------------------------


def item_sizes(plan: PlanData) -> list[int]:
    """Bytes of an element on the source side of each exchange of a plan."""
    found = [np.dtype(plan.spec.dtype).itemsize]
    return found + [np.dtype(dtype).itemsize for dtype in plan.dtypes[1 : 2 * len(plan.rounds) : 2]]


def round_names(plan: PlanData) -> list[str]:
    """Return the steps of each round by name.

    They are those of `Plan.notation`: ``"{Y1} {Y2, X}"`` gives ``["Y1", "Y2, X"]``.
    """
    return plan.notation[1:-1].split("} {") if plan.rounds else []


def block_shape(layout: Layout) -> str:
    """Return the shape of the largest block; ``*`` joins digits of an axis stored apart."""
    sizes = ["*".join(str(max(g.chunks, default=0)) for g in axis.groups) for axis in layout.axes]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def blocks_text(layout: Layout) -> str:
    """Return the number and shape of the blocks of a layout, such as ``8 blocks (64, 512)``."""
    even = all(len(set(group.chunks)) <= 1 for axis in layout.axes for group in axis.groups)
    count = f"{layout.blocks} block{'' if layout.blocks == 1 else 's'}"
    return f"{count} {'' if even else 'up to '}{block_shape(layout)}"


def chunks_text(chunks: Sequence[int]) -> str:
    """Chunks of one axis in short.

    >>> chunks_text((64,) * 15 + (40,)), chunks_text((3, 1, 4, 1, 5, 9, 2))
    ('15 x 64, 40', '3, 1, 4, ... (7 chunks)')
    """
    runs = [(size, len(list(run))) for size, run in itertools.groupby(chunks)]
    texts = [str(size) if count == 1 else f"{count} x {size}" for size, count in runs]
    if len(texts) > 4:
        return f"{', '.join(texts[:3])}, ... ({len(chunks)} chunks)"
    return ", ".join(texts)


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the row-major strides in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def step_text(plan: PlanData, step: Step) -> str:
    """Return one step in I/O-tensor notation, with what is multiplied before and after."""
    i = step.source.stride * _strides(plan.spec.shape)[step.axis]
    o = step.target.stride * _strides(plan.spec.out_shape)[step.axis]
    text = f"d({step.length}, {i}, {o})"
    if step.kind != "c2c":
        text += f" {step.kind}"
    if step.convolve is not None:
        text += " convolve"
    if step.chirp_in is not None:
        text = f"chirp {text}"
    if step.chirp_out is not None:
        text += " chirp"
    if step.twiddle is not None:
        text += f" t_{step.twiddle}"
    return text


# --- lines ----------------------------------------------------------------------------------


def _asked(plan: PlanData) -> Iterator[str]:
    spec = plan.spec
    nbytes = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    out = math.prod(spec.out_shape) * spec.out_dtype.itemsize
    yield from wrapped(
        f"{spec.name} of {spec.shape} {np.dtype(spec.dtype)} ({human_bytes(nbytes)}) into "
        f"{spec.out_shape} {spec.out_dtype} ({human_bytes(out)})",
        "  ",
        " ",
    )
    axes = ", ".join(f"{axis}: {n}" for axis, n in zip(spec.axes, spec.lengths, strict=True))
    orders = (_order(spec.orders_in), _order(spec.orders_out))
    yield from wrapped(
        f"lengths by axis {{{axes}}}, exponent {'+' if spec.sign > 0 else '-'}i, scale "
        f"{_SCALES[spec.scale]}, {orders[0]} to {orders[1]} order",
        "    ",
        "  ",
    )
    for side, layout in (("input", plan.source), ("result", plan.result)):
        firsts = [(a, axis.groups[0].offset) for a, axis in enumerate(layout.axes)]
        shifted = ", ".join(f"{a}: {first}" for a, first in firsts if first)
        if shifted:
            text = f"the {side} is stored cyclically from the element of each axis {{{shifted}}}"
            yield from wrapped(text, "    ", "  ")
    for program in plan.programs:
        if program.bluestein:
            padded = " x ".join(map(str, program.factors))
            yield from wrapped(
                f"axis {program.axis} of length {program.length} as a convolution of length "
                f"{math.prod(program.factors)} = {padded} (Bluestein)",
                "    ",
                "  ",
            )
    yield from wrapped(
        f"rounds {plan.notation}; variant {plan.variant}, kernel {plan.kernel}{placed(plan)}",
        "    ",
        "  ",
    )
    if plan.fallback:
        yield from wrapped(f"kernel {plan.fallback}", "    ", "  ")
    if plan.shares:
        yield from wrapped(share_text(plan), "    ", "  ")


def share_text(plan: PlanData) -> str:
    """Return what part of each round devices are to do, by the model, and what both then take."""
    rounds = plan.expected.rounds[: len(plan.rounds)]
    shares = {found.share for found in rounds}
    if shares in ({0.0}, {1.0}):
        who, rest = ("devices", "CPU threads") if 1.0 in shares else ("CPU threads", "devices")
        return f"{who} do all rounds alone by the model: {rest} would not gain enough"
    names = {0.0: "CPU threads alone", 1.0: "devices alone"}
    parts = []
    for found in rounds:
        text = f"devices {100 * found.share:.0f} % of it at the same time"
        seconds = human_seconds(found.seconds)
        parts.append(f"round {found.index} {names.get(found.share, text)} ({seconds})")
    text = f"shared by the model, {', '.join(parts)}; the faster one takes more"
    return text + unlike_text(plan)


def unlike_text(plan: PlanData) -> str:
    """Return how many processes have how many devices, where they are unlike."""
    kinds = [
        f"{count} with {cards or 'no'} device{'' if cards == 1 else 's'}"
        for cards, count in plan.machine.by_cards
    ]
    return f"; of {plan.machine.workers} processes {', '.join(kinds)}" if kinds else ""


def placed(plan: PlanData) -> str:
    """Return where rounds are done, if that was asked for."""
    where = {"auto": "", "hybrid": "; rounds by CPU threads and devices together"}
    text = where.get(plan.device, f"; rounds on the {plan.device}")
    if plan.device != "cpu" and plan.device_memory_limit is not None:
        text += f"; at most {human_bytes(plan.device_memory_limit)} of a GPU's memory"
    return text + ("; the input may be overwritten" if plan.overwrite else "")


def _order(orders: Iterable[str]) -> str:
    found = list(dict.fromkeys(orders))
    return found[0] if len(found) == 1 else "(" + ", ".join(orders) + ")"


def exchange_text(exchange: Exchange, itemsize: int, instead: str = "") -> str:
    """Return what an exchange moves, in one line; `itemsize` is that of its source's elements.

    `instead` says what is done instead of moving anything through scratch files.
    """
    shape = exchange.shape
    text = f"{blocks_text(exchange.source)} -> {blocks_text(exchange.target)}"
    if exchange.mirror is not None:
        text += ", half a spectrum is mirrored"
    if exchange.local:
        return f"{text}, {instead or 'nothing travels'}"
    if instead:
        return f"{text}, W = {shape.width} ({human_bytes(shape.width * itemsize)}), {instead}"
    return (
        f"{text}, {shape.groups} group{'' if shape.groups == 1 else 's'}, fan-in {shape.fan_in}, "
        f"C = {shape.runs}, W = {shape.width} ({human_bytes(shape.width * itemsize)}), "
        f"moves {human_bytes(exchange.nbytes)}"
    )


#: What takes the place of an exchange by scratch files.
_WITHOUT_FILES = {
    "rows": "each block is read where the array is stored, without scratch files",
    "split": "each chunk of the result is a part of one block, without scratch files",
}


def _travels(plan: PlanData) -> Iterator[str]:
    names = round_names(plan)
    sizes = item_sizes(plan)
    if plan.incoming is not None and plan.merges:
        count = math.prod(map(len, plan.incoming))
        text = f"{count} tiny blocks -> {blocks_text(plan.source)}, neighbours become one"
        yield from wrapped(text, " " * 12, "  merge     ")
    if plan.anew:
        text = f"the stored array in {blocks_text(plan.source)}, a few chunks at a time"
        yield from wrapped(text, " " * 12, "  open      ")
    for number, exchange in enumerate(plan.exchanges):
        kind, instead = "local" if exchange.local else "exchange", ""
        rows = number == 0 and plan.from_rows
        if rows or not (exchange.local or plan.moves[number]):
            kind = "rows" if rows else "split"
            instead = _WITHOUT_FILES[kind]
        itemsize = sizes[min(number, len(sizes) - 1)]
        text = exchange_text(exchange, itemsize, instead)
        if plan.assembles and plan.moves[number]:
            text += ", blocks are put together as shards arrive, to save memory"
        yield from wrapped(text, " " * 12, f"  {kind:8}  ")
        if number < len(names):
            steps = "  ".join(step_text(plan, step) for step in plan.rounds[number].steps)
            text = f"{{{names[number]}}}  {steps}"
            yield from wrapped(text, " " * 12, f"  {f'round {number + 1}':8}  ")


def _final(plan: PlanData) -> Iterator[str]:
    chunks = "; ".join(f"{axis}: {chunks_text(c)}" for axis, c in enumerate(plan.chunks))
    if plan.outgoing is not None:
        yield from wrapped(f"from {blocks_text(plan.result)}", " " * 12, "  cut       ")
    blocks = math.prod(map(len, plan.chunks))
    text = f"{blocks} chunk{'' if blocks == 1 else 's'} by axis {{{chunks}}}"
    yield from wrapped(text, " " * 12, "  result    ")


def in_a_line(plan: PlanData) -> str:
    """Return a plan's rounds, of what, and what it needs, for a prompt."""
    spec, forecast, moving = plan.spec, plan.expected, len(plan.travelling)
    exchanges = f"{moving} exchange{'' if moving == 1 else 's'}"
    needs = f"{human_bytes(forecast.peak_host)} per process, {human_seconds(forecast.seconds)}"
    return (
        f"<Plan {plan.notation}: {spec.name} of {spec.shape} {np.dtype(spec.dtype)}, "
        f"{exchanges}, {needs}>"
    )


def summary(plan: PlanData) -> str:
    """Return what is asked, and the rounds in I/O-tensor notation with C and W between them."""
    lines = [*_asked(plan), *_travels(plan), *_final(plan), *wrapped(_LEGEND, "  ")]
    lines[0] = lines[0].lstrip()
    return "\n".join(lines)


# --- why, and what else ---------------------------------------------------------------------


def budget_text(plan: PlanData) -> str:
    """Peak memory against the budget, such as ``3.00 GiB of 16.0 GiB (19 %)``."""
    peak, limit = plan.expected.peak_host, plan.machine.memory_limit
    if limit is None:
        return f"{human_bytes(peak)}, no limit is known"
    percent = 100 * peak / limit
    part = f"{percent:.3g} %" if percent >= 0.1 else "below 0.1 %"
    return f"{human_bytes(peak)} of {human_bytes(limit)} ({part})"


def forecast_rows(plan: PlanData) -> list[tuple[str, str]]:
    """Return what a plan is expected to need, as names and values."""
    forecast, machine = plan.expected, plan.machine
    moving = len(plan.travelling)
    rows = [
        (
            "exchanged",
            f"{human_bytes(forecast.bytes_exchanged)} in {moving} "
            f"exchange{'' if moving == 1 else 's'}",
        ),
        ("peak memory", f"{budget_text(plan)}, per process"),
        ("tasks", str(forecast.tasks)),
        ("work", human_count(forecast.flops, "flop")),
        (
            "time",
            f"{human_seconds(forecast.seconds)} by the cost model "
            f"({machine.profile.name or 'common speeds'}), for {machine.workers} "
            f"process{'' if machine.workers == 1 else 'es'} of {machine.threads} "
            f"thread{'' if machine.threads == 1 else 's'}",
        ),
    ]
    if machine.profile.name and plan.device == "cpu":
        rows.append(("first run", f"{human_seconds(fresh_seconds(plan))} more, for fresh pages"))
    if forecast.scratch:
        text = f"{human_bytes(forecast.scratch)} at the worst moment"
        if plan.piece_nbytes < math.inf:
            text += f", written in shards of {human_bytes(plan.piece_nbytes)} and more on average"
        rows.insert(2, ("scratch files", text))
    if plan.carrier == "disk":
        rows.insert(
            2,
            (
                "disk",
                f"{moving + 1} times the data are read, and {moving + 1} times "
                "written, from file to file",
            ),
        )
    return rows


def rejected_rows(plan: PlanData) -> list[tuple[str, ...]]:
    """Return a row of the table for the plan and each of its runners-up."""
    chosen = (f"{plan.notation} (chosen)", plan.expected)
    return [_row(name, found, plan.expected) for name, found in (chosen, *plan.rejected)]


def _row(name: str, found: Forecast, best: Forecast) -> tuple[str, ...]:
    ratio = found.seconds / best.seconds if best.seconds else 1.0
    return (
        name,
        human_bytes(found.bytes_exchanged),
        human_bytes(found.peak_host),
        str(found.tasks),
        human_seconds(found.seconds),
        f"{ratio:.2f}",
    )


def round_rows(plan: PlanData) -> list[tuple[str, ...]]:
    """Return a row of the table for each exchange with its round: where its time goes."""
    names = round_names(plan)
    rows: list[tuple[str, ...]] = []
    for found in plan.expected.rounds:
        last = found.index > len(names)
        name = "last exchange" if last else f"round {found.index} {{{names[found.index - 1]}}}"
        device = found.device * found.blocks
        rows.append(
            (
                name,
                human_seconds(found.seconds),
                *(
                    human_seconds(part) if part else "-"
                    for part in (found.gather, found.fft, device, found.travel, found.scheduling)
                ),
                found.bound,
            )
        )
    return rows


#: Headings of `round_rows`. Gathers, FFTs and devices are added up, seconds are those of the clock.
ROUND_HEADINGS = (
    "forecast by round",
    "time",
    "gathers",
    "FFTs",
    "device",
    "travel",
    "scheduler",
    "bound by",
)


def tile_rows(plan: PlanData) -> list[tuple[str, ...]]:
    """Return a row of the table for each pass over the bus of the rounds that GPUs do."""
    rows = list[tuple[str, ...]]()
    devices = replace(plan.machine, cards=max(1, plan.machine.cards)).devices
    nbytes, dtype = min(one.nbytes for one in devices), plan.spec.work_dtype.name
    done = zip(plan.rounds, plan.expected.rounds, strict=False)
    for number, (round_, found) in enumerate(done):
        if not found.share:
            continue
        name, axes = f"round {number + 1}", len(plan.source.axes)
        plans = tile_plans(round_, dtype, nbytes, plan.settings.of_round(number))
        for tiles, part in zip(plans, apart(round_) if len(plans) > 1 else (round_,), strict=False):
            names = tiles.names([axis_letter(step.axis, axes) for step in part.steps])
            for short, one in zip(names, tiles.passes, strict=True):
                runs = (f"C = {count}, W = {width}" for count, width in (one.reads, one.writes))
                buffers = f"{tiles.buffers} x {human_bytes(tiles.buffer_nbytes)}"
                rows.append((f"{name} {short}", human_count(one.tiles), buffers, *runs))
        if not plans:
            rows.append((name, "as a convolution", "-", "-", "-"))
    return rows


#: Headings of `tile_rows`: number of tiles, buffers on the GPU, contiguous runs of a tile in host
#: memory and elements in each.
TILE_HEADINGS = ("passes over the bus", "tiles", "buffers", "read", "written")

#: Headings of `rejected_rows`.
HEADINGS = ("rounds", "exchanged", "peak", "tasks", "time", "ratio")


def preserved(plan: PlanData) -> str | None:
    """Return what ``chunks="preserve"`` would cost, or None where that is not known."""
    spec = plan.spec
    if spec.out_shape != spec.shape or plan.anew:  # which has other blocks than those that came in
        return None
    wanted = plan.chunks_in
    if wanted == plan.chunks:
        return "the result has the input's chunks: chunks='preserve' costs nothing"
    if plan.incoming is not None:
        return f"chunks='preserve' costs {math.prod(map(len, wanted))} tasks more, that cut blocks"
    if not plan.ends_in_round:
        return "chunks='preserve' costs nothing more: the last exchange can make any chunks"
    groups = [axis.groups[0] for axis in plan.result.axes]
    axes = [replace(group, chunks=cut) for group, cut in zip(groups, wanted, strict=True)]
    target = Layout(tuple(AxisLayout((group,)) for group in axes))
    shape = exchange_shape(plan.result, target)
    itemsize = spec.out_dtype.itemsize
    return (
        f"chunks='preserve' costs an exchange more: {human_bytes(target.size * itemsize)}, "
        f"C = {shape.runs}, W = {shape.width} ({human_bytes(shape.width * itemsize)})"
    )


def explain(plan: PlanData) -> str:
    """Return what was chosen, why, what it will need, and what else was considered."""
    lines = [summary(plan), "", *wrapped(f"why: {plan.reason or 'not said'}", "  ", " ")]
    lines[2] = lines[2].lstrip()
    lines += ["", "forecast"]
    lines += [f"    {name:14}{value}" for name, value in forecast_rows(plan)]
    note = preserved(plan)
    if note is not None:
        lines += wrapped(note, " " * 18, f"    {'chunks':14}")
    if plan.expected.rounds:
        lines += ["", *table([ROUND_HEADINGS, *round_rows(plan)])]
    if tiles := tile_rows(plan):
        lines += ["", *table([TILE_HEADINGS, *tiles])]
    if plan.rejected:
        lines += ["", "considered", *table([HEADINGS, *rejected_rows(plan)])]
    return "\n".join(lines)
