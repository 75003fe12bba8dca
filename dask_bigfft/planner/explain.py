"""Texts, tables and drawings of a plan: rounds, exchanges, reason and forecast."""

import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from html import escape

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.decomposition.rounds import ExchangeShape, exchange_shape
from dask_bigfft.decomposition.steps import AxisProgram, Step
from dask_bigfft.planner.cost import shared_layouts_in
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan_data import Exchange, PlanData, axis_letter
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.tile_plan import LINK_ROW_NBYTES, apart

#: Maximum line length.
WIDTH = 100

#: Text without line breaks: short parentheses, C and W with their values, numbers with units.
_GLUED = re.compile(
    r"\b[CW] = \d+( \([^()]*\))?|moves [\d.]+ \w+|\d+ (blocks?|groups?)\b|fan-in \d+"
    r"|\([^()]{1,70}\)"
)


def human_bytes(nbytes: float) -> str:
    """Return bytes in a unit that keeps the number short.

    >>> human_bytes(0), human_bytes(1536), human_bytes(3 << 30)
    ('0 B', '1.50 KiB', '3.00 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(nbytes) < 1023.995 or unit == "PiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{_short(nbytes)} {unit}"


def enough_bytes(nbytes: int) -> str:
    """Return bytes rounded up, so that they fit a memory limit of this text.

    >>> enough_bytes(5), enough_bytes(1025), enough_bytes((360 << 20) + 1), enough_bytes(3 << 30)
    ('5 B', '1.01 KiB', '361 MiB', '3.00 GiB')
    """
    unit = 1 << 10 * min(5, max(0, nbytes.bit_length() - 1) // 10)
    whole = -(-nbytes // unit)
    step = unit if whole >= 100 or unit == 1 else unit / (10 if whole >= 10 else 100)
    return human_bytes(math.ceil(nbytes / step) * step)


def human_count(count: float, unit: str = "") -> str:
    """Return a number with a decimal prefix.

    >>> human_count(999), human_count(2.5e9, "flop")
    ('999', '2.50 Gflop')
    """
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    power = min(max(0, int(math.log10(max(count, 1)) // 3)), len(prefixes) - 1)
    number = f"{count:.0f}" if power == 0 else _short(count / 1000**power)
    return f"{number} {prefixes[power]}{unit}".rstrip()


def human_seconds(seconds: float) -> str:
    """Return a time in a unit that keeps the number short.

    >>> human_seconds(0.0123), human_seconds(2.5), human_seconds(200), human_seconds(7300)
    ('12.3 ms', '2.50 s', '3 min 20 s', '2 h 01 min')
    """
    for end, scale, unit in ((1e-3, 1e6, "us"), (0.9995, 1e3, "ms"), (99.95, 1, "s")):
        if seconds < end:
            return f"{_short(seconds * scale)} {unit}"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _short(number: float) -> str:
    """Return three digits of a number below a thousand or so."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"


def wrapped(text: str, indent: str, first: str | None = None) -> Iterator[str]:
    """Yield lines of at most `WIDTH` columns, with no break inside glued text."""
    glued = re.sub(_GLUED, lambda found: found[0].replace(" ", "\u00a0"), text)
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from (line.replace("\u00a0", " ") for line in lines)


def speed_rows(profile: Profile) -> list[tuple[str, str]]:
    """Return the prices of a profile as names and values with units."""

    def text(name: str, value: float) -> str:
        if name == "together":
            return f"{100 * value:.0f} %"
        if name.endswith("flops"):
            return human_count(value, "FLOP/s")
        return human_seconds(value) if value < 1 else f"{value / 1e9:.3g} GB/s"

    rows = [
        (f.name.replace("_", " "), text(f.name, getattr(profile, f.name)))
        for f in fields(profile)
        if isinstance(getattr(profile, f.name), float)
    ]
    for library in profile.libraries:
        tiles, large = (human_count(n, "FLOP/s") for n in (library.flops, library.large_flops))
        name = f"{library.name}, {library.dtype}"
        rows.append((name, f"{tiles} in tiles, {large} in large blocks"))
    for device in profile.devices:
        bus = f"bus {text('h2d', device.h2d)} and {text('d2h', device.d2h)} at once"
        rows.append((device.name, f"{bus}, FFTs {text('flops', device.flops)}"))
    return rows


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with right-aligned numbers; long names are wrapped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = min(widths[0], WIDTH - 4 - sum(widths[1:]) - 2 * len(widths[1:]))
    for name, *numbers in rows:
        *before, last = textwrap.wrap(name, room, break_on_hyphens=False) or [""]
        yield from (f"    {line}" for line in before)
        cells = "  ".join(n.rjust(w) for n, w in zip(numbers, widths[1:], strict=True))
        yield f"    {last.ljust(room)}  {cells}"


#: Texts of scales, where N is the product of the lengths.
_SCALES = {"none": "1", "ortho": "1/sqrt(N)", "full": "1/N"}

_LEGEND = (
    "d(n, i, o): FFTs of length n, read at stride i and written at stride o, in elements of the "
    "whole array (in, and out). t_M: twiddles of modulus M. C, W: contiguous runs that a block is "
    "gathered from, and their width in elements. Fan-in: blocks that a block is gathered from. "
    "X1, X2, ..: digits of axis X, which are factors of its length."
)

# --- texts of blocks and digits -------------------------------------------------------------


def round_names(plan: PlanData) -> list[str]:
    """Return the steps of each round by name.

    They are those of `Plan.notation`: ``"{Y1} {Y2, X}"`` gives ``["Y1", "Y2, X"]``.
    """
    return plan.notation[1:-1].split("} {") if plan.rounds else []


def axis_text(plan: PlanData, axis: int) -> str:
    """Return the number of an axis, or its letter and its dimension's name, if that is known."""
    dims = plan.spec.dims
    return f"{axis_letter(axis, len(dims))} = {dims[axis]}" if dims else str(axis)


def block_shape(layout: Layout) -> str:
    """Return the shape of the largest block, with ``*`` between the groups of an axis."""
    sizes = ["*".join(str(max(g.chunks, default=0)) for g in axis.groups) for axis in layout.axes]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def blocks_text(layout: Layout) -> str:
    """Return the number and shape of the blocks of a layout, such as ``8 blocks (64, 512)``."""
    even = all(len(set(group.chunks)) <= 1 for axis in layout.axes for group in axis.groups)
    return f"{counted(layout.blocks, 'block')} {'' if even else 'up to '}{block_shape(layout)}"


def chunks_text(chunks: Sequence[int]) -> str:
    """Return the chunks of one axis in short.

    >>> chunks_text((64,) * 15 + (40,)), chunks_text((3, 1, 4, 1, 5, 9, 2))
    ('15 x 64, 40', '3, 1, 4, ... (7 chunks)')
    """
    runs = [(size, len(list(run))) for size, run in itertools.groupby(chunks)]
    texts = [str(size) if count == 1 else f"{count} x {size}" for size, count in runs]
    if len(texts) > 4:
        return f"{', '.join(texts[:3])}, ... ({len(chunks)} chunks)"
    return ", ".join(texts)


def step_text(plan: PlanData, step: Step) -> str:
    """Return one step in I/O-tensor notation, with the factors before and after."""
    i = step.source.stride * math.prod(plan.spec.shape[step.axis + 1 :])
    o = step.target.stride * math.prod(plan.spec.out_shape[step.axis + 1 :])
    parts = (
        "chirp" if step.chirp_in is not None else "",
        f"d({step.length}, {i}, {o})",
        step.kind if step.kind != "c2c" else "",
        "convolve" if step.convolve is not None else "",
        "chirp" if step.chirp_out is not None else "",
        f"t_{step.twiddle}" if step.twiddle is not None else "",
    )
    return " ".join(filter(None, parts))


# --- lines ----------------------------------------------------------------------------------


def _asked(plan: PlanData) -> Iterator[str]:
    spec = plan.spec
    result = f"{spec.out_shape} {spec.out_dtype} ({human_bytes(spec.out_nbytes)})"
    text = f"{spec.title} ({human_bytes(spec.nbytes)}) into {result}"
    yield from wrapped(text, "  ", "")
    named = zip(spec.axes, spec.lengths, strict=True)
    axes = ", ".join(f"{axis_text(plan, axis)}: {n}" for axis, n in named)
    texts = [
        f"lengths by axis {{{axes}}}, exponent {'+' if spec.sign > 0 else '-'}i, scale "
        f"{_SCALES[spec.scale]}, {_order(spec.orders_in)} to {_order(spec.orders_out)} order"
    ]
    for side, layout in (("input", plan.source), ("result", plan.result)):
        firsts = [(a, axis.groups[0].offset) for a, axis in enumerate(layout.axes)]
        if shifted := ", ".join(f"{a}: {first}" for a, first in firsts if first):
            texts.append(
                f"the {side} is stored cyclically from the element of each axis {{{shifted}}}"
            )
    texts += [
        f"axis {program.axis} of length {program.length} as a convolution of length "
        f"{math.prod(program.factors)} = {' x '.join(map(str, program.factors))} (Bluestein)"
        for program in plan.programs
        if program.bluestein
    ]
    texts.append(
        f"rounds {plan.notation}; variant {plan.variant}, kernel {plan.kernel}{placed(plan)}"
    )
    if plan.fallback:
        texts.append(f"kernel {plan.fallback}")
    if plan.shares:
        texts.append(share_text(plan))
    for text in texts:
        yield from wrapped(text, "    ", "  ")


def share_text(plan: PlanData) -> str:
    """Return the modelled fraction of each round for GPUs, and the seconds of the rounds."""
    rounds = plan.expected.rounds[: len(plan.rounds)]
    by_hand, shares = plan.settings.cpu_share, {found.share for found in rounds}
    if by_hand is None and shares in ({0.0}, {1.0}):
        who, rest = ("devices", "CPU threads") if 1.0 in shares else ("CPU threads", "devices")
        return f"{who} do all rounds alone by the model: {rest} would not gain enough"
    names = {0.0: "CPU threads alone", 1.0: "devices alone"}
    parts = []
    for found in rounds:
        who = names.get(found.share, f"devices {100 * found.share:.0f} % of it at the same time")
        parts.append(f"round {found.index} {who} ({human_seconds(found.seconds)})")
    if by_hand is not None:
        percent = f"{100 * by_hand:.3g} % of the rows of each block, as set"
        return f"the CPU's share is {percent}: {', '.join(parts)}"
    return f"shared by the model, {', '.join(parts)}; the faster one takes more"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(0, "device"), counted(1, "block"), counted(2, "process")
    ('0 devices', '1 block', '2 processes')
    """
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{plural}"


def placed(plan: PlanData) -> str:
    """Return the device of the rounds and the memory settings that the user chose."""
    where = {"auto": "", "hybrid": "; rounds by CPU threads and devices together"}
    text = where.get(plan.device, f"; rounds on the {plan.device}")
    if plan.machine.holding:
        text = f"; blocks and rounds on {counted(plan.machine.holding, 'GPU')}, in one task"
    if plan.device != "cpu" and plan.device_memory_limit is not None:
        text += f"; at most {human_bytes(plan.device_memory_limit)} of a GPU's memory"
    return text + ("; the input may be overwritten" if plan.overwrite else "")


def _order(orders: Iterable[str]) -> str:
    found = list(dict.fromkeys(orders))
    return found[0] if len(found) == 1 else "(" + ", ".join(orders) + ")"


def width_text(shape: ExchangeShape, dtype: str) -> str:
    """Return W in elements and bytes."""
    return f"W = {shape.width} ({human_bytes(shape.width * np.dtype(dtype).itemsize)})"


def exchange_text(exchange: Exchange, instead: str = "") -> str:
    """Return the blocks and bytes of an exchange in one line.

    `instead` is the text of an exchange without scratch files.
    """
    shape = exchange.shape
    text = f"{blocks_text(exchange.source)} -> {blocks_text(exchange.target)}"
    if exchange.mirror is not None:
        text += ", half a spectrum is mirrored"
    if exchange.local:
        return f"{text}, {instead or 'nothing travels'}"
    if instead:
        return f"{text}, {width_text(shape, exchange.source_dtype)}, {instead}"
    return (
        f"{text}, {counted(shape.groups, 'group')}, fan-in {shape.fan_in}, "
        f"C = {shape.runs}, {width_text(shape, exchange.source_dtype)}, "
        f"moves {human_bytes(exchange.nbytes)}"
    )


#: Texts of exchanges without scratch files.
_WITHOUT_FILES = {
    "rows": "each block is read where the array is stored, without scratch files",
    "split": "each chunk of the result is a part of one block, without scratch files",
}


def _travels(plan: PlanData) -> Iterator[str]:
    names = round_names(plan)
    if plan.incoming is not None and plan.merges:
        count = math.prod(map(len, plan.incoming))
        text = f"{count} tiny blocks -> {blocks_text(plan.source)}, neighbours become one"
        yield from wrapped(text, " " * 12, "  merge     ")
    if plan.reopened:
        text = f"the stored array in {blocks_text(plan.source)}, a few chunks at a time"
        yield from wrapped(text, " " * 12, "  open      ")
    for number, exchange in enumerate(plan.exchanges):
        kind = "local" if exchange.local else "exchange" if plan.moves[number] else "split"
        kind = "rows" if number == 0 and plan.from_rows else kind
        instead = _WITHOUT_FILES.get(kind, "")
        if plan.machine.gpus and shared_layouts_in(plan).exchanges[number] is not None:
            instead = "the round before writes there, without another pass over the bus"
        text = exchange_text(exchange, instead)
        if plan.assembles and plan.moves[number]:
            text += ", blocks are put together as shards arrive, to save memory"
        yield from wrapped(text, " " * 12, f"  {kind:8}  ")
        if number < len(names):
            steps = "  ".join(step_text(plan, step) for step in plan.rounds[number].steps)
            text = f"{{{names[number]}}}  {steps}"
            yield from wrapped(text, " " * 12, f"  {f'round {number + 1}':8}  ")
    named = enumerate(plan.chunks)
    chunks = "; ".join(f"{axis_text(plan, axis)}: {chunks_text(c)}" for axis, c in named)
    if plan.outgoing is not None:
        yield from wrapped(f"from {blocks_text(plan.result)}", " " * 12, "  cut       ")
    text = f"{counted(math.prod(map(len, plan.chunks)), 'chunk')} by axis {{{chunks}}}"
    yield from wrapped(text, " " * 12, "  result    ")


def in_a_line(plan: PlanData) -> str:
    """Return a plan's rounds, transform and forecast in one line, for a prompt."""
    spec, forecast, exchanges = plan.spec, plan.expected, counted(len(plan.travelling), "exchange")
    needs = f"{human_bytes(forecast.peak_host)} per process, {human_seconds(forecast.seconds)}"
    return f"<Plan {plan.notation}: {spec.title}, {exchanges}, {needs}>"


def summary(plan: PlanData) -> str:
    """Return the transform, and the rounds in I/O-tensor notation with C and W between them."""
    return "\n".join([*_asked(plan), *_travels(plan), *wrapped(_LEGEND, "  ")])


# --- reason and forecast --------------------------------------------------------------------


def budget_text(plan: PlanData) -> str:
    """Return the peak memory and the budget, such as ``3.00 GiB of 16.0 GiB (19 %)``."""
    peak, limit = plan.expected.peak_host, plan.machine.memory_limit
    if limit is None:
        return f"{human_bytes(peak)}, no limit is known"
    percent = 100 * peak / limit
    part = f"{percent:.3g} %" if percent >= 0.1 else "below 0.1 %"
    return f"{human_bytes(peak)} of {human_bytes(limit)} ({part})"


def forecast_rows(plan: PlanData) -> list[tuple[str, str]]:
    """Return the forecast of a plan as names and values."""
    forecast, machine, moving = plan.expected, plan.machine, len(plan.travelling)
    exchanged = f"{human_bytes(forecast.bytes_exchanged)} in {counted(moving, 'exchange')}"
    rows = [("exchanged", exchanged), ("peak memory", f"{budget_text(plan)}, per process")]
    if plan.storage == "disk":
        text = f"{moving + 1} times the data are read, and {moving + 1} times written"
        rows.append(("disk", f"{text}, from file to file"))
    if forecast.scratch:
        text = f"{human_bytes(forecast.scratch)} at the worst moment"
        if plan.piece_nbytes < math.inf:
            text += f", written in shards of {human_bytes(plan.piece_nbytes)} and more on average"
        rows.append(("scratch files", text))
    speeds = machine.profile.name or "common speeds"
    workers, threads = counted(machine.workers, "process"), counted(machine.threads, "thread")
    threads = counted(machine.holding, "GPU") if machine.holding else threads
    seconds = f"{human_seconds(forecast.seconds)} by the cost model ({speeds})"
    rows += [("tasks", str(forecast.tasks)), ("work", human_count(forecast.flops, "flop"))]
    rows.append(("time", f"{seconds}, for {workers} of {threads}"))
    return rows


def rejected_rows(plan: PlanData) -> list[tuple[str, ...]]:
    """Return a table row for the plan and each of its runners-up."""
    best, rows = plan.expected, list[tuple[str, ...]]()
    for name, found in ((f"{plan.notation} (chosen)", best), *plan.rejected):
        memory = human_bytes(found.bytes_exchanged), human_bytes(found.peak_host)
        ratio = f"{found.seconds / best.seconds if best.seconds else 1.0:.2f}"
        rows.append((name, *memory, str(found.tasks), human_seconds(found.seconds), ratio))
    return rows


def round_rows(plan: PlanData) -> list[tuple[str, ...]]:
    """Return a table of exchanges with their rounds, and of the parts of their time.

    Gathers, FFTs and devices are sums; the time is wall-clock time.
    """
    headings = "time", "gathers", "FFTs", "device", "travel", "scheduler", "bound by"
    names = [*(f"round {i} {{{name}}}" for i, name in enumerate(round_names(plan), 1))]
    names.append("last exchange")
    rows: list[tuple[str, ...]] = [("forecast by round", *headings)]
    for name, found in zip(names, plan.expected.rounds, strict=False):
        device = found.device * found.blocks
        parts = found.gather, found.fft, device, found.travel, found.scheduling
        shown = [human_seconds(part) if part else "-" for part in parts]
        rows.append((name, human_seconds(found.seconds), *shown, found.bound))
    return rows


def tile_lines(plan: PlanData) -> Iterator[str]:
    """Yield a table of each pass over the bus of the rounds that GPUs do, and their buffers.

    A tile is read and written as C runs of W elements in host memory.
    """
    rows: list[tuple[str, ...]] = [("passes over the bus", "digits", "tiles", "read", "written")]
    notes = list[str]()
    devices = replace(plan.machine, gpus=max(1, plan.machine.gpus)).devices
    nbytes, dtype = min(one.nbytes for one in devices), plan.spec.work_dtype.name
    done = zip(plan.rounds, plan.expected.rounds, strict=False)
    for number, (round_, found) in enumerate(done):
        if not found.share:
            continue
        name, axes = f"round {number + 1}", len(plan.source.axes)
        writes = (*shared_layouts_in(plan).exchanges, None)[number + 1]
        order = writes.place(round_.target).written if writes else ()
        plans = tile_plans(round_, dtype, nbytes, plan.settings, order)
        for tiles, part in zip(plans, apart(round_) if len(plans) > 1 else (round_,), strict=False):
            names = tiles.names([axis_letter(step.axis, axes) for step in part.steps])
            buffers = f"{tiles.buffers} buffers of {human_bytes(tiles.buffer_nbytes)}"
            notes.append(f"{name}: {buffers}, a stream for each {plan.settings.streams or 'role'}")
            for short, one in zip(names, tiles.passes, strict=True):
                steps = ((tiles.digits[line], j) for line, j in one.steps)
                digits = ", ".join(str(n[min(j, 2 * len(n) - 2 - j)]) for n, j in steps)
                sides = zip((one.reads, one.writes), one.copies, strict=True)
                runs = (f"C = {count}, W = {width}, {how}" for (count, width), how in sides)
                rows.append((f"{name} {short}", digits, human_count(one.tiles), *runs))
    if notes:
        yield from ("", *table(rows))
        for note in (*notes, _COPIES):
            yield from wrapped(note, "    ")


def held_lines(plan: PlanData) -> Iterator[str]:
    """Yield the memory, launches and copies of GPUs that hold the blocks."""
    count, given = plan.machine.holding, plan.source.size * np.dtype(plan.spec.dtype).itemsize
    if count:
        beside = human_bytes(max(0, plan.expected.peak_host - given) // count)
        text = f"each GPU: {human_bytes(given // count)} of input, at most {beside} beside it; a "
        text += "block is one tile, with a launch for each FFT, in place where that is possible"
        yield from ("", *wrapped(text, "    "))
    for number, exchange in enumerate(plan.exchanges):
        if count > 1 and not exchange.local:
            width = exchange.shape.width * plan.spec.work_dtype.itemsize
            shards = f"{exchange.target.blocks * exchange.shape.fan_in} shards in rows of"
            how = "copy engines of the sources" if width >= LINK_ROW_NBYTES else "kernels"
            text = f"exchange {number + 1}: {shards} {human_bytes(width)}, by {how} "
            yield from wrapped(text + "with the transport 'direct'", "    ")


_COPIES = (
    "copies of pinned memory: direct or strided by the copy engines, or by a kernel; other memory "
    "goes through the ring of pinned buffers"
)

#: Headings of `rejected_rows`.
HEADINGS = ("rounds", "exchanged", "peak", "tasks", "time", "ratio")


def preserved(plan: PlanData) -> str | None:
    """Return the cost of ``chunks="preserve"`` as text; None if unknown."""
    spec = plan.spec
    # Reopened arrays have other blocks, and those of several GPUs are cut.
    if spec.out_shape != spec.shape or plan.reopened or plan.machine.holding > 1:
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
    return (
        "chunks='preserve' costs an exchange more: "
        f"{human_bytes(target.size * spec.out_dtype.itemsize)}, C = {shape.runs}, "
        f"{width_text(shape, spec.out_dtype.str)}"
    )


def explain(plan: PlanData) -> str:
    """Return the rounds, the reason for the choice, the forecast and the runners-up as text."""
    lines = [summary(plan), "", *wrapped(f"why: {plan.reason or 'not recorded'}", "  ", "")]
    lines += ["", "forecast"]
    lines += [f"    {name:14}{value}" for name, value in forecast_rows(plan)]
    if (note := preserved(plan)) is not None:
        lines += wrapped(note, " " * 18, f"    {'chunks':14}")
    if plan.expected.rounds:
        lines += ["", *table(round_rows(plan))]
    lines += [*tile_lines(plan), *held_lines(plan)]
    if plan.rejected:
        lines += ["", "considered", *table([HEADINGS, *rejected_rows(plan)])]
    return "\n".join(lines)


_BOX = "border:1px solid #888888;border-radius:3px;padding:2px 6px;white-space:nowrap;background:"
_PLAIN, _WORK = "#8888882e", "#f2933f8c"
_SIDE = "display:inline-block;text-align:center;margin:2px"


def _tag(name: str, inner: str, style: str = "") -> str:
    return f'<{name} style="{style}">{inner}</{name}>'


def _lines(*texts: str) -> str:
    return "".join(_tag("div", escape(text)) for text in texts)


def digit_name(program: AxisProgram | None, digit: Digit) -> str:
    """Return the name of a digit: ``n`` of the input's index, ``k`` of the output's, ``m`` between.

    Digits that take a step of their own are numbered in the order of the steps.
    """
    if program is None:
        return "n"
    letter = {0: "n", program.target[0].stage: "k"}.get(digit.stage, "m")
    if len(program.steps) == 1:
        return letter
    numbers = (i for i, s in enumerate(program.steps, 1) if digit in (s.source, s.target))
    return f"{letter}{next(numbers, '')}"


def _group(group: Group, program: AxisProgram | None, step: Step | None) -> str:
    """Return the digits of a group, or the step on them, above the number of parts."""
    texts, fill = [f"{digit_name(program, d)}: {d.size}" for d in group.digits], _PLAIN
    if step is not None:
        names = digit_name(program, step.source), digit_name(program, step.target)
        texts, fill = [f"{' → '.join(names)}: {step.length}"], _WORK
    parts = len(group.chunks)
    boxes = "".join(_tag("span", escape(text), _BOX + fill) for text in texts)
    return _tag("div", boxes + _lines("whole" if parts == 1 else f"{parts} parts"), _SIDE)


def _exchange(exchange: Exchange, moves: bool) -> str:
    """Return an exchange: C, W, and the bytes that move."""
    shape, width = exchange.shape, width_text(exchange.shape, exchange.source_dtype)
    if not moves:
        return _lines("local")
    blocks = f"{shape.blocks_in} → {shape.blocks_out}, fan-in {shape.fan_in}"
    return _lines("exchange", f"C = {shape.runs}", width, blocks, human_bytes(exchange.nbytes))


def _rounds(plan: PlanData) -> str:
    """Return the table of blocks, with a row for each axis and an exchange between columns."""
    programs = {program.axis: program for program in plan.programs}
    names = round_names(plan)
    columns: list[tuple[str, Layout, Sequence[Step]]] = [("in", plan.source, ())]
    for number, (name, round_) in enumerate(zip(names, plan.rounds, strict=True), 1):
        columns.append((f"round {number} {{{name}}}", round_.source, round_.steps))
    columns.append(("out", plan.result, ()))
    ndim = len(plan.spec.shape)
    head = [_tag("th", "")]
    rows = [[_tag("th", escape(f"axis {axis_text(plan, axis)}"))] for axis in range(ndim)]
    for number, (title, layout, steps) in enumerate(columns):
        head.append(_tag("th", _lines(title, block_shape(layout)), "text-align:center"))
        own: dict[tuple[int, tuple[Digit, ...]], Step] = {
            (step.axis, (step.source,)): step for step in steps
        }
        for axis, row in enumerate(rows):
            groups = layout.axes[axis].groups
            drawn = (_group(g, programs.get(axis), own.get((axis, g.digits))) for g in groups)
            row.append(_tag("td", "".join(drawn), "text-align:center;white-space:nowrap"))
        if number < len(plan.exchanges):
            text = _exchange(plan.exchanges[number], plan.moves[number])
            head.append(f'<td rowspan="{ndim + 1}" style="padding:0 1em">{text}</td>')
    lines = ("".join(row) for row in (head, *rows))
    legend = f"{_LEGEND} n, m, k: index of the input, between rounds, of the output."
    return f'<table title="{legend}">{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


def draw(plan: PlanData) -> str:
    """Return the plan as HTML: rounds from left to right, and what `explain` says, folded."""
    return (
        f"<div><p><b>{escape(in_a_line(plan)[1:-1])}</b></p>"
        f'<div style="overflow-x:auto">{_rounds(plan)}</div>'
        f"<details><summary>why: {escape(plan.reason or 'not recorded')}</summary>"
        f"<pre>{escape(explain(plan))}</pre></details></div>"
    )
