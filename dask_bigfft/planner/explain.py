"""Texts and tables of a plan: rounds, exchanges, reason and forecast."""

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
from dask.utils import format_bytes, format_time, parse_bytes

from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import Forecast, Plan, axis_letter
from dask_bigfft.planner.profile import MOST, Profile
from dask_bigfft.planner.stages import Exchange
from dask_bigfft.planner.tile_plan import LINK_ROW_NBYTES, TilePlan, apart, digit_of_step
from dask_bigfft.transforms.exchanges import ExchangeShape, exchange_shape
from dask_bigfft.transforms.layout import AxisLayout, Layout
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Step

#: Maximum line length.
WIDTH = 100

#: Text without line breaks: short parentheses, C and W with their values, numbers with units.
_GLUED = re.compile(
    r"\b[CW] = \d+( \([^()]*\))?|[\d.]+ ([kMGTP]?i?B|[um]?s|blocks?|groups?)\b|fan-in \d+"
    r"|\([^()]{1,70}\)"
)


def enough_bytes(nbytes: int) -> str:
    """Return bytes rounded up, so that they fit a memory limit of this text.

    >>> enough_bytes(5), enough_bytes(1025), enough_bytes((360 << 20) + 1), enough_bytes(3 << 30)
    ('5 B', '1.01 kiB', '360.01 MiB', '3.00 GiB')
    """
    _, unit = format_bytes(nbytes).split()
    step = max(1.0, parse_bytes(f"1 {unit}") / 100)  # of the last digit
    return format_bytes(math.ceil(math.ceil(nbytes / step) * step))


def human_count(count: float, unit: str = "") -> str:
    """Return a number with a decimal prefix.

    >>> human_count(999), human_count(2.5e9, "flop")
    ('999', '2.50 Gflop')
    """
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    thousands = int(math.log10(max(count, 1)) // 3)
    power = min(max(0, thousands), len(prefixes) - 1)
    number = f"{count:.0f}" if power == 0 else f"{count / 1000**power:.2f}"
    return f"{number} {prefixes[power]}{unit}".rstrip()


def speed_text(bytes_per_second: float) -> str:
    """Return bytes per second as text.

    >>> speed_text(1.5 * 2**30)
    '1.50 GiB/s'
    """
    return f"{format_bytes(int(bytes_per_second))}/s"


def wrapped(text: str, indent: str, first: str | None = None) -> Iterator[str]:
    """Yield lines of at most `WIDTH` columns, with no break inside glued text."""
    glued = re.sub(_GLUED, lambda match: match[0].replace(" ", "\u00a0"), text)
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        yield line.replace("\u00a0", " ")


def speed_rows(profile: Profile) -> list[tuple[str, str]]:
    """Return the prices of a profile as names and values with units."""
    rows = []
    for field in fields(profile):
        value = getattr(profile, field.name)
        if isinstance(value, float):
            rows.append((field.name.replace("_", " "), _price_text(field.name, value)))
    for library in profile.libraries:
        in_tiles = human_count(library.flops, "FLOP/s")
        in_large_blocks = human_count(library.large_flops, "FLOP/s")
        name = f"{library.name}, {library.dtype}"
        rows.append((name, f"{in_tiles} in tiles, {in_large_blocks} in large blocks"))
    for device in profile.devices:
        h2d = _price_text("h2d", device.h2d)
        d2h = _price_text("d2h", device.d2h)
        speed = _price_text("flops", device.flops)
        rows.append((device.name, f"bus {h2d} and {d2h} at once, FFTs {speed}"))
    return rows


def _price_text(name: str, value: float) -> str:
    """Return the value of a price of a profile with its unit."""
    if name == "together":
        return f"{100 * value:.0f} %"
    if name.endswith("flops"):
        return human_count(value, "FLOP/s")
    if value >= MOST:
        return "no cost"
    return format_time(value) if value < 1 else speed_text(value)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with right-aligned numbers; long names are wrapped."""
    name_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    room_beside_numbers = WIDTH - 4 - sum(widths) - 2 * len(widths)
    name_width = min(name_width, room_beside_numbers)
    for name, *numbers in rows:
        name_lines = textwrap.wrap(name, name_width, break_on_hyphens=False) or [""]
        for line in name_lines[:-1]:
            yield f"    {line}"
        cells = "  ".join(n.rjust(w) for n, w in zip(numbers, widths, strict=True))
        yield f"    {name_lines[-1].ljust(name_width)}  {cells}"


#: Texts of scales, where N is the product of the lengths.
_SCALES = {
    "none": "1",
    "ortho": "1/sqrt(N)",
    "full": "1/N",
}

#: Meaning of the notation.
LEGEND = (
    "d(n, i, o): FFTs of length n, read at stride i and written at stride o, in elements of the "
    "whole array (in, and out). t_M: twiddles of modulus M. C, W: contiguous runs that a block is "
    "gathered from, and their width in elements. Fan-in: blocks that a block is gathered from. "
    "X1, X2, ..: digits of axis X, which are factors of its length."
)

# --- texts of blocks and digits -------------------------------------------------------------


def round_names(plan: Plan) -> list[str]:
    """Return the steps of each round by name.

    They are those of `Plan.notation`: ``"{Y1} {Y2, X}"`` gives ``["Y1", "Y2, X"]``.
    """
    return plan.notation[1:-1].split("} {") if plan.rounds else []


def axis_text(plan: Plan, axis: int) -> str:
    """Return the number of an axis, or its letter and its dimension's name, if that is known."""
    dims = plan.spec.dims
    return f"{axis_letter(axis, len(dims))} = {dims[axis]}" if dims else str(axis)


def block_shape(layout: Layout) -> str:
    """Return the shape of the largest block, with ``*`` between the groups of an axis."""
    sizes = []
    for axis in layout.axes:
        longest = (max(group.chunks, default=0) for group in axis.groups)
        sizes.append("*".join(map(str, longest)))
    comma = "," if len(sizes) == 1 else ""
    return f"({', '.join(sizes)}{comma})"


def blocks_text(layout: Layout) -> str:
    """Return the number and shape of the blocks of a layout, such as ``8 blocks (64, 512)``."""
    is_even = all(len(set(group.chunks)) <= 1 for axis in layout.axes for group in axis.groups)
    qualifier = "" if is_even else "up to "
    return f"{counted(layout.blocks, 'block')} {qualifier}{block_shape(layout)}"


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


def step_text(plan: Plan, step: Step) -> str:
    """Return one step in I/O-tensor notation, with the factors before and after."""
    stride_in = step.source.stride * math.prod(plan.spec.shape[step.axis + 1 :])
    stride_out = step.target.stride * math.prod(plan.spec.out_shape[step.axis + 1 :])
    parts = []
    if step.chirp_in is not None:
        parts.append("chirp")
    parts.append(f"d({step.length}, {stride_in}, {stride_out})")
    if step.kind != "c2c":
        parts.append(step.kind)
    if step.convolve is not None:
        parts.append("convolve")
    if step.between is not None:
        parts.append("transfer")
        if step.kind != "c2c":
            parts.append(step.last_kind)
    if step.chirp_out is not None:
        parts.append("chirp")
    if step.twiddle is not None:
        parts.append(f"t_{step.twiddle}")
    return " ".join(parts)


# --- lines ----------------------------------------------------------------------------------


def title_text(plan: Plan) -> str:
    """Return the transform that a plan is for: the array, and its result."""
    spec = plan.spec
    result = f"{spec.out_shape} {spec.out_dtype} ({format_bytes(spec.out_nbytes)})"
    return f"{spec.title} ({format_bytes(spec.nbytes)}) into {result}"


def remarks(plan: Plan) -> list[str]:
    """Return what a reader may not expect of a plan, a sentence for each; all explanations have it.

    A new property of plans that users should know of has its sentence here.
    """
    texts = _band_texts(plan) + _offset_texts(plan)
    for program in plan.programs:
        if program.bluestein:
            factors = " x ".join(map(str, program.factors))
            padded = f"{math.prod(program.factors)} = {factors} (Bluestein)"
            axis = f"axis {program.axis} of length {program.length}"
            texts.append(f"{axis} as a convolution of length {padded}")
    texts += _length_texts(plan)
    texts += _factor_texts(plan)
    texts += _placement_texts(plan)
    if plan.fallback:
        texts.append(f"kernel {plan.fallback}")
    if plan.shares:
        texts.append(share_text(plan))
    return texts


def _transform_lines(plan: Plan) -> Iterator[str]:
    """Yield the transform that a plan is for, and the choices that hold for all rounds."""
    spec = plan.spec
    yield from wrapped(title_text(plan), "  ", "")
    lengths_of_axes = zip(spec.axes, spec.lengths, strict=True)
    lengths = ", ".join(f"{axis_text(plan, axis)}: {n}" for axis, n in lengths_of_axes)
    sign = "+" if spec.sign > 0 else "-"
    orders = f"{_order(spec.orders_in)} to {_order(spec.orders_out)} order"
    scale = _SCALES[spec.scale]
    texts = [f"lengths by axis {{{lengths}}}, exponent {sign}i, scale {scale}, {orders}"]
    texts.append(f"rounds {plan.notation}; variant {plan.variant}, kernel {plan.kernel}")
    if plan.spec.transfer:
        texts.append("H: product with the transfer function; a prime marks the inverse transform")
    texts += remarks(plan)
    for text in texts:
        yield from wrapped(text, "    ", "  ")


def _band_texts(plan: Plan) -> list[str]:
    """Return the bands of a spectrum: the frequencies of each axis in cycles per sample."""
    spec = plan.spec
    windows = dict(spec.bands)
    for axis, start, count in spec.windows_between:
        windows[axis] = (start, count)
    parts = []
    for axis, window in windows.items():
        spectrum = spec.spectrum(axis)
        low, high = spectrum.frequencies(window)
        limits = f"{low}/{spectrum.length} to {high}/{spectrum.length}"
        parts.append(f"{axis_text(plan, axis)}: {limits}, {window[1]} of {spectrum.count}")
    if not parts:
        return []
    bands = f"a band of frequencies by axis {{{'; '.join(parts)}}}"
    if spec.windows_between:
        text = f"the product has {bands}; the others are zeros"
        if any(round_.windows_in for round_ in plan.rounds):
            text += ", which no rechunk moves"
        return [text]
    if not spec.is_forward:
        return [f"the input has {bands}; the others are zeros, which no rechunk moves"]
    is_stored = any(round_.windows for round_ in plan.rounds)
    saving = "steps store" if is_stored else "rechunks move, but steps do not store,"
    return [f"the result has {bands}; {saving} the band alone"]


def _factor_texts(plan: Plan) -> list[str]:
    """Return a text for each array of which a transfer function is made: its way to its round.

    The array is a kernel, samples that are transformed, too, or the values of the function.
    """
    texts = []
    for operand in plan.operands:
        if operand.factor is None:
            continue
        text = f"the transfer function is an array of {format_bytes(operand.nbytes)}"
        if operand.factor.role == "kernel":
            nbytes = format_bytes(operand.nbytes)
            text = f"the transfer function is the spectrum of a kernel of {nbytes}"
            text += ", which each task that multiplies computes for its part"
        elif operand.factor.role == "samples":
            nbytes = format_bytes(operand.factor.nbytes)
            text = f"the transfer function is the spectrum of an array of {nbytes}"
            text += ", which has the same steps up to the product"
        elif operand.plan is None:
            text += ", which each task that multiplies gets as a whole"
        elif operand.plan.travelling:
            exchanged = format_bytes(operand.plan.exchanges[0].nbytes)
            text += f", rechunked like the spectrum: {exchanged}"
        else:
            text += ", in the blocks of the spectrum"
        texts.append(text)
    return texts


def _length_texts(plan: Plan) -> list[str]:
    """Return the other lengths of an inverse transform, and the place of the product."""
    spec = plan.spec
    parts = [f"{axis_text(plan, axis)}: {length}" for axis, length in spec.lengths_back]
    if not parts:
        return []
    text = f"the spectrum is cropped or padded to lengths by axis {{{', '.join(parts)}}}"
    (round_,) = (round_ for round_ in plan.rounds if round_.multiplies)
    if all(step.between is None for step in round_.steps):
        text += ", after the product"
    return [text]


def _offset_texts(plan: Plan) -> list[str]:
    """Return a sentence on each side, input or result, whose axes are stored shifted.

    It names the first element of each such axis, but for those of bands.
    """
    texts = []
    spec = plan.spec
    for side, layout in (("input", plan.source), ("result", plan.result)):
        axes_in_bands = spec.bands if (side == "result") == spec.is_forward else {}
        offsets = [
            (a, axis.groups[0].offset)
            for a, axis in enumerate(layout.axes)
            if a not in axes_in_bands
        ]
        shifted = ", ".join(f"{a}: {offset}" for a, offset in offsets if offset)
        if shifted:
            place = f"from the element of each axis {{{shifted}}}"
            texts.append(f"the {side} is stored cyclically {place}")
    return texts


def share_text(plan: Plan) -> str:
    """Return the modelled fraction of each round for GPUs, and the seconds of the rounds."""
    rounds = plan.expected.rounds[: len(plan.rounds)]
    cpu_share = plan.settings.cpu_share
    shares = {expected.share for expected in rounds}
    gain = "would not gain enough"
    if cpu_share is None and shares == {1.0}:
        return f"devices do all rounds alone by the model: CPU threads {gain}"
    if cpu_share is None and shares == {0.0}:
        return f"CPU threads do all rounds alone by the model: devices {gain}"
    parts = []
    for expected in rounds:
        if expected.share == 0:
            executor = "CPU threads alone"
        elif expected.share == 1:
            executor = "devices alone"
        else:
            executor = f"devices {100 * expected.share:.0f} % of it at the same time"
        parts.append(f"round {expected.index} {executor} ({format_time(expected.seconds)})")
    if cpu_share is not None:
        percent = f"{100 * cpu_share:.3g} % of the rows of each block, as set"
        return f"the CPU's share is {percent}: {', '.join(parts)}"
    return f"shared by the model, {', '.join(parts)}; the faster one takes more"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(0, "device"), counted(1, "block"), counted(2, "process")
    ('0 devices', '1 block', '2 processes')
    """
    if count == 1:
        return f"1 {noun}"
    plural = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{plural}"


def _placement_texts(plan: Plan) -> list[str]:
    """Return the device of the rounds and the memory settings that the user chose."""
    texts = []
    if plan.machine.holding:
        texts.append(f"blocks and rounds on {counted(plan.machine.holding, 'GPU')}, in one task")
    elif plan.device == "hybrid":
        texts.append("rounds by CPU threads and devices together")
    elif plan.device != "auto":
        texts.append(f"rounds on the {plan.device}")
    if plan.device != "cpu" and plan.device_memory_limit is not None:
        texts.append(f"at most {format_bytes(plan.device_memory_limit)} of a GPU's memory")
    if plan.overwrite:
        texts.append("the input may be overwritten")
    return texts


def _order(orders: Sequence[str]) -> str:
    """Return the order of all axes, or the order of each if they differ."""
    if len(set(orders)) == 1:
        return orders[0]
    return "(" + ", ".join(orders) + ")"


def width_text(shape: ExchangeShape, dtype: str) -> str:
    """Return W in elements and bytes."""
    return f"W = {shape.width} ({format_bytes(shape.width * np.dtype(dtype).itemsize)})"


def exchange_text(exchange: Exchange, instead: str = "") -> str:
    """Return the blocks and bytes of an exchange in one line.

    `instead` replaces groups, fan-in, C and bytes, for an exchange whose shards do not travel: one
    without scratch files, or one that the round before does in place on a GPU.
    """
    shape = exchange.shape
    width = width_text(shape, exchange.source_dtype)
    text = f"{blocks_text(exchange.source)} -> {blocks_text(exchange.target)}"
    if exchange.mirror is not None:
        text += ", half a spectrum is mirrored"
    if exchange.local:
        return f"{text}, {instead or 'nothing travels'}"
    if instead:
        return f"{text}, {width}, {instead}"
    text += f", {counted(shape.groups, 'group')}, fan-in {shape.fan_in}"
    return f"{text}, C = {shape.runs}, {width}, moves {format_bytes(exchange.nbytes)}"


#: Texts of exchanges without scratch files.
_WITHOUT_FILES = {
    "rows": "each block is read where the array is stored, without scratch files",
    "split": "each chunk of the result is a part of one block, without scratch files",
}


def _block_lines(plan: Plan) -> Iterator[str]:
    """Yield the blocks from the input to the result: exchanges, with the rounds between them."""
    if plan.incoming is not None and plan.merges:
        count = math.prod(map(len, plan.incoming))
        text = f"{count} tiny blocks -> {blocks_text(plan.source)}, neighbours become one"
        yield from _labelled("merge", text)
    if plan.reopened:
        text = f"the stored array in {blocks_text(plan.source)}, a few chunks at a time"
        yield from _labelled("open", text)
    names = round_names(plan)
    for number in range(len(plan.exchanges)):
        yield from _exchange_lines(plan, number)
        if number < len(names):
            steps = "  ".join(step_text(plan, step) for step in plan.rounds[number].steps)
            yield from _labelled(f"round {number + 1}", f"{{{names[number]}}}  {steps}")
    if plan.outgoing is not None:
        yield from _labelled("cut", f"from {blocks_text(plan.result)}")
    chunks_of_axes = enumerate(plan.chunks)
    chunks = "; ".join(f"{axis_text(plan, a)}: {chunks_text(c)}" for a, c in chunks_of_axes)
    count = math.prod(map(len, plan.chunks))
    yield from _labelled("result", f"{counted(count, 'chunk')} by axis {{{chunks}}}")


def _exchange_lines(plan: Plan, number: int) -> Iterator[str]:
    """Yield the blocks and bytes of an exchange, and what saves it a copy."""
    kind = _exchange_kind(plan, number)
    instead = _WITHOUT_FILES.get(kind, "")
    if plan.machine.gpus and plan.forecast_stages[number].reads is not None:
        instead = "the round before writes there, without another pass over the bus"
    text = exchange_text(plan.exchanges[number], instead)
    if plan.assembles and plan.moves[number]:
        text += ", blocks are put together as shards arrive, to save memory"
    yield from _labelled(kind, text)


def _exchange_kind(plan: Plan, number: int) -> str:
    """Return the name of an exchange: the way in which a round gets its blocks."""
    if number == 0 and plan.from_rows:
        return "rows"
    if plan.exchanges[number].local:
        return "local"
    return "exchange" if plan.moves[number] else "split"


def _labelled(label: str, text: str) -> Iterator[str]:
    """Yield the lines of a text behind a label."""
    yield from wrapped(text, " " * 12, f"  {label:8}  ")


def in_a_line(plan: Plan) -> str:
    """Return a plan's rounds, transform and forecast in one line, for a prompt."""
    exchanges = counted(len(plan.travelling), "exchange")
    memory = format_bytes(plan.expected.peak_host)
    seconds = format_time(plan.expected.seconds)
    transform = f"{plan.notation}: {plan.spec.title}"
    return f"<Plan {transform}, {exchanges}, {memory} per process, {seconds}>"


def summary(plan: Plan) -> str:
    """Return the transform, and the rounds in I/O-tensor notation with C and W between them."""
    return "\n".join([*_transform_lines(plan), *_block_lines(plan), *wrapped(LEGEND, "  ")])


# --- reason and forecast --------------------------------------------------------------------


def budget_text(peak: int, limit: int | None) -> str:
    """Return the peak memory and the budget, such as ``3.00 GiB of 16.00 GiB (18.8 %)``."""
    if limit is None:
        return f"{format_bytes(peak)}, no limit is known"
    percent = 100 * peak / limit
    part = f"{percent:.3g} %" if percent >= 0.1 else "below 0.1 %"
    return f"{format_bytes(peak)} of {format_bytes(limit)} ({part})"


def forecast_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the forecast of a plan as names and values."""
    expected = plan.expected
    machine = plan.machine
    exchanges = len(plan.travelling)
    exchanged = f"{format_bytes(expected.bytes_exchanged)} in {counted(exchanges, 'exchange')}"
    memory = budget_text(expected.peak_host, machine.memory_limit)
    rows = [("exchanged", exchanged), ("peak memory", f"{memory}, per process")]
    if plan.storage == "disk":
        text = f"{exchanges + 1} times the data are read, and {exchanges + 1} times written"
        rows.append(("disk", f"{text}, from file to file"))
    if expected.scratch:
        text = f"{format_bytes(expected.scratch)} at the worst moment"
        if plan.piece_nbytes < math.inf:
            piece = format_bytes(round(plan.piece_nbytes))
            text += f", written in shards of {piece} and more on average"
        rows.append(("scratch files", text))
    rows.append(("tasks", str(expected.tasks)))
    rows.append(("work", human_count(expected.flops, "flop")))
    processes = counted(machine.workers, "process")
    if machine.holding:
        executors = counted(machine.holding, "GPU")
    else:
        executors = counted(machine.threads, "thread")
    speeds = machine.profile.name or "common speeds"
    seconds = f"{format_time(expected.seconds)} by the cost model ({speeds})"
    rows.append(("time", f"{seconds}, for {processes} of {executors}"))
    return rows


def why(plan: Plan) -> str:
    """Return the reason for a plan, and what the next best one would have cost."""
    texts = [plan.reason] if plan.reason else []
    if plan.rejected:
        texts.append(_comparison(plan.expected, plan.rejected[0][1]))
    return "; ".join(texts) or "not recorded"


#: Costs of two plans that differ by less than this part are alike.
ALIKE = 0.01


def _comparison(chosen: Forecast, other: Forecast) -> str:
    """Return the costs of another plan that differ from those of the chosen one.

    A chosen plan may be slower than another one, if its writes to scratch files are larger.
    """
    texts = []
    if _differs(other.seconds, chosen.seconds):
        seconds = format_time(chosen.seconds)
        texts.append(f"take {format_time(other.seconds)} instead of {seconds}")
    else:
        texts.append(f"take as long ({format_time(other.seconds)})")
    if _differs(other.bytes_exchanged, chosen.bytes_exchanged):
        nbytes = format_bytes(chosen.bytes_exchanged)
        texts.append(f"rechunk {format_bytes(other.bytes_exchanged)} instead of {nbytes}")
    if _differs(other.peak_host, chosen.peak_host):
        nbytes = format_bytes(chosen.peak_host)
        texts.append(f"need {format_bytes(other.peak_host)} of memory instead of {nbytes}")
    which = "the next best" if other.seconds >= chosen.seconds else "another"
    return f"{which} plan would {' and '.join(texts)}"


def _differs(cost: float, chosen_cost: float) -> bool:
    """Return whether two costs are not alike."""
    return abs(cost - chosen_cost) > ALIKE * chosen_cost


def rejected_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a table row for the plan and each of its runners-up."""
    best = plan.expected
    rows: list[tuple[str, ...]] = []
    for name, expected in ((f"{plan.notation} (chosen)", best), *plan.rejected):
        ratio = expected.seconds / best.seconds if best.seconds else 1.0
        row = (
            name,
            format_bytes(expected.bytes_exchanged),
            format_bytes(expected.peak_host),
            str(expected.tasks),
            format_time(expected.seconds),
            f"{ratio:.2f}",
        )
        rows.append(row)
    return rows


def round_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a table of exchanges with their rounds, and of the parts of their time.

    Gathers, FFTs and devices are sums; the time is wall-clock time.
    """
    headings = ("time", "gathers", "FFTs", "device", "travel", "scheduler", "bound by")
    names = [f"round {number} {{{name}}}" for number, name in enumerate(round_names(plan), 1)]
    names.append("last exchange")
    rows: list[tuple[str, ...]] = [("forecast by round", *headings)]
    for name, expected in zip(names, plan.expected.rounds, strict=False):
        parts = (
            expected.gather,
            expected.fft,
            expected.device * expected.blocks,
            expected.travel,
            expected.scheduling,
        )
        part_texts = [format_time(part) if part else "-" for part in parts]
        rows.append((name, format_time(expected.seconds), *part_texts, expected.bound))
    return rows


def tile_lines(plan: Plan) -> Iterator[str]:
    """Yield a table of each pass over the bus of the rounds that GPUs do, and their buffers.

    A tile is read and written as C runs of W elements in host memory.
    """
    rows: list[tuple[str, ...]] = [("passes over the bus", "digits", "tiles", "read", "written")]
    notes: list[str] = []
    for number, expected in enumerate(plan.expected.rounds[: len(plan.rounds)]):
        if not expected.share:
            continue
        for part, tiles in _parts_in_tiles(plan, number):
            name = f"round {number + 1}"
            letters = [axis_letter(step.axis, len(plan.source.axes)) for step in part.steps]
            rows += _pass_rows(name, tiles, letters)
            buffers = f"{tiles.buffers} buffers of {format_bytes(tiles.buffer_nbytes)}"
            streams = plan.settings.streams or "role"
            notes.append(f"{name}: {buffers}, a stream for each {streams}")
    if not notes:
        return
    yield ""
    yield from table(rows)
    for note in (*notes, _COPIES):
        yield from wrapped(note, "    ")


def _parts_in_tiles(plan: Plan, number: int) -> list[tuple[Round, TilePlan]]:
    """Return the parts of a round that GPUs do one after the other, each with its tile plan."""
    round_ = plan.rounds[number]
    devices = replace(plan.machine, gpus=max(1, plan.machine.gpus)).devices
    stages = plan.forecast_stages
    order: tuple[int, ...] = ()
    if number + 1 < len(stages):
        shared = stages[number + 1].reads
        if shared is not None:
            order = shared.place(round_.target).written
    tiles_of_parts = tile_plans(
        round_,
        plan.spec.work_dtype.name,
        min(device.nbytes for device in devices),
        plan.settings,
        order,
    )
    parts = apart(round_) if len(tiles_of_parts) > 1 else (round_,)
    return list(zip(parts, tiles_of_parts, strict=False))


def _pass_rows(name: str, tiles: TilePlan, letters: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a table row for each pass of a round; `letters` are the names of its lines."""
    rows: list[tuple[str, ...]] = []
    for pass_name, tile_pass in zip(tiles.names(letters), tiles.passes, strict=True):
        lengths = []
        for line, step in tile_pass.steps:
            digits = tiles.digits[line]
            lengths.append(str(digits[digit_of_step(step, len(digits))]))
        how_read, how_written = tile_pass.copies
        row = (
            f"{name} {pass_name}",
            ", ".join(lengths),
            human_count(tile_pass.tiles),
            _runs_text(tile_pass.reads, how_read),
            _runs_text(tile_pass.writes, how_written),
        )
        rows.append(row)
    return rows


def _runs_text(runs: tuple[int, int], copy_method: str) -> str:
    """Return the contiguous runs of a tile in host memory."""
    count, width = runs
    return f"C = {count}, W = {width}, {copy_method}"


def gpu_lines(plan: Plan) -> Iterator[str]:
    """Yield the memory, launches and copies of GPUs that hold the blocks."""
    count = plan.machine.holding
    if not count:
        return
    input_nbytes = plan.source.size * np.dtype(plan.spec.dtype).itemsize
    other_nbytes = max(0, plan.expected.peak_host - input_nbytes)
    memory = f"{format_bytes(input_nbytes // count)} of input"
    text = f"each GPU: {memory}, at most {format_bytes(other_nbytes // count)} beside it; a "
    text += "block is one tile, with a launch for each FFT, in place where that is possible"
    yield ""
    yield from wrapped(text, "    ")
    if count == 1:
        return
    for number, exchange in enumerate(plan.exchanges, 1):
        if exchange.local:
            continue
        row_nbytes = exchange.shape.width * plan.spec.work_dtype.itemsize
        shards = f"{exchange.target.blocks * exchange.shape.fan_in} shards"
        copiers = "copy engines of the sources" if row_nbytes >= LINK_ROW_NBYTES else "kernels"
        text = f"exchange {number}: {shards} in rows of {format_bytes(row_nbytes)}, by {copiers} "
        yield from wrapped(text + "with the transport 'direct'", "    ")


_COPIES = (
    "copies of pinned memory: direct or strided by the copy engines, or by a kernel; other memory "
    "goes through the ring of pinned buffers"
)

#: Headings of `rejected_rows`.
HEADINGS = ("rounds", "exchanged", "peak", "tasks", "time", "ratio")


def preserved(plan: Plan) -> str | None:
    """Return the cost of ``chunks="preserve"`` as text; None if unknown."""
    spec = plan.spec
    # Reopened arrays have other blocks, and those of several GPUs are cut.
    if spec.out_shape != spec.shape or plan.reopened or plan.machine.holding > 1:
        return None
    input_chunks = plan.chunks_in
    if input_chunks == plan.chunks:
        return "the result has the input's chunks: chunks='preserve' costs nothing"
    if plan.incoming is not None:
        tasks = math.prod(map(len, input_chunks))
        return f"chunks='preserve' costs {tasks} tasks more, that cut blocks"
    if not plan.ends_in_round:
        return "chunks='preserve' costs nothing more: the last exchange can make any chunks"
    axes = []
    for axis, chunks in zip(plan.result.axes, input_chunks, strict=True):
        axes.append(AxisLayout((replace(axis.groups[0], chunks=chunks),)))
    target = Layout(tuple(axes))
    shape = exchange_shape(plan.result, target)
    nbytes = format_bytes(target.size * spec.out_dtype.itemsize)
    width = width_text(shape, spec.out_dtype.str)
    return f"chunks='preserve' costs an exchange more: {nbytes}, C = {shape.runs}, {width}"


def details(plan: Plan) -> str:
    """Return the rounds, the reason for the choice, the forecast and the runners-up as text."""
    lines = [summary(plan), ""]
    lines += wrapped(f"why: {why(plan)}", "  ", "")
    lines += ["", "forecast"]
    lines += [f"    {name:14}{value}" for name, value in forecast_rows(plan)]
    cost_of_preserving = preserved(plan)
    if cost_of_preserving is not None:
        lines += wrapped(cost_of_preserving, " " * 18, f"    {'chunks':14}")
    if plan.expected.rounds:
        lines += ["", *table(round_rows(plan))]
    lines += [*tile_lines(plan), *gpu_lines(plan)]
    if plan.rejected:
        lines += ["", "considered", *table([HEADINGS, *rejected_rows(plan)])]
    return "\n".join(lines)
