"""A plan in short, for users of dask: its steps, memory and time, and the reason for it.

`explain` has the same plan with its decomposition, the parts of each round's time, and the plans
that were not taken.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from dask.utils import format_bytes

from dask_bigfft.planner.explain import (
    block_shape,
    budget_text,
    chunks_text,
    counted,
    forecast_rows,
    remarks,
    title_text,
    why,
    wrapped,
)
from dask_bigfft.planner.plan import Plan
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Step

#: The last line.
_MORE = "explain(details=True) adds the decomposition, the time of each step, and other plans"


def overview(plan: Plan) -> str:
    """Return the steps of a plan, its memory and time, and the reason for it as text."""
    return short_text(title_text(plan), _step_texts(plan), [*_rows(plan), ("more", _MORE)])


def short_text(
    title: str,
    steps: Iterable[str],
    rows: Iterable[tuple[str, str]],
) -> str:
    """Return the text of a plan of any kind: a title, numbered steps and labelled rows."""
    lines = [*wrapped(title, "  ", ""), "steps"]
    for number, text in enumerate(steps, 1):
        lines += wrapped(text, " " * 6, f"{number:4}  ")
    for label, text in rows:
        lines += wrapped(text, " " * 10, f"{label:10}")
    return "\n".join(lines)


def _rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the labelled lines below the steps."""
    count = math.prod(map(len, plan.chunks))
    chunks = [f"{_axes_text(plan, [axis])}: {chunks_text(c)}" for axis, c in enumerate(plan.chunks)]
    yield "result", f"{counted(count, 'chunk')}; {'; '.join(chunks)}"
    for remark in remarks(plan):
        yield "note", remark
    memory = budget_text(plan.expected.peak_host, plan.machine.memory_limit)
    yield "memory", f"{memory}, per process"
    forecast = dict(forecast_rows(plan))
    if "scratch files" in forecast:
        yield "disk", f"scratch files of {forecast['scratch files']}"
    yield "time", f"{forecast['time']}; {counted(plan.expected.tasks, 'task')}"
    yield "why", why(plan)


# --- steps ----------------------------------------------------------------------------------


def _step_texts(plan: Plan) -> Iterator[str]:
    """Yield the steps from the chunks of the input to those of the result."""
    if plan.incoming is not None and plan.merges:
        yield f"join {math.prod(map(len, plan.incoming))} small chunks into {_blocks(plan, 0)}"
    if plan.reopened:
        yield f"open the stored array in {_blocks(plan, 0)}"
    for number in range(len(plan.exchanges)):
        yield from _rechunk_texts(plan, number)
        if number < len(plan.rounds):
            yield f"{_round_text(plan, plan.rounds[number])} in {_blocks(plan, number)}"
    if plan.outgoing is not None:
        yield f"cut the blocks into {counted(math.prod(map(len, plan.outgoing)), 'chunk')}"


def _blocks(plan: Plan, number: int) -> str:
    """Return the blocks after an exchange, with their shape and the bytes of the largest.

    A block that has every n-th element of an axis has no shape in the array.
    """
    exchange = plan.exchanges[number]
    layout = exchange.target
    nbytes = _largest_size(layout) * np.dtype(exchange.dtype).itemsize
    shape = block_shape(layout)
    shape = "" if "*" in shape else f"{shape} "
    is_even = layout.size == _largest_size(layout) * layout.blocks
    size = format_bytes(nbytes) if is_even else f"up to {format_bytes(nbytes)}"
    return f"{counted(layout.blocks, 'block')} {shape}of {size}"


def _largest_size(layout: Layout) -> int:
    """Return the number of elements of the largest block."""
    return math.prod(max(group.chunks, default=0) for axis in layout.axes for group in axis.groups)


def _rechunk_texts(plan: Plan, number: int) -> Iterator[str]:
    """Yield the text of an exchange, if its blocks are not those before it."""
    exchange = plan.exchanges[number]
    if number == 0 and plan.from_rows:
        yield "read each block where the array is stored"
    elif plan.moves[number]:
        way = " through scratch files" if plan.storage == "disk" else ""
        sources = counted(exchange.shape.fan_in, "block")
        text = f"rechunk{way}: {format_bytes(exchange.nbytes)}, each block from {sources}"
        yield f"{text}; half a spectrum is completed" if exchange.mirror is not None else text
    elif not exchange.local:
        yield "cut each block into chunks of the result"


def _round_text(plan: Plan, round_: Round) -> str:
    """Return the FFTs of a round."""
    texts = _ffts(plan, round_.steps)
    if round_.multiplies:
        texts.append("the product with the function of frequencies")
        turning = [step.axis for step in round_.steps if step.between is not None]
        if turning:
            texts.append(f"inverse FFT along {_axes_text(plan, turning)}")
    return ", ".join(texts)


def _ffts(plan: Plan, steps: Sequence[Step]) -> list[str]:
    """Return the FFTs of some steps: those of whole axes together, then parts of axes."""
    whole_axes: dict[str, list[int]] = {}
    parts = []
    for step in steps:
        name, number, count = _part_of_fft(plan, step)
        if count == 1:
            whole_axes.setdefault(name, []).append(step.axis)
            continue
        axis = _axes_text(plan, [step.axis])
        parts.append(f"part {number} of {count} of the {name} along {axis}")
    whole = [f"{name} along {_axes_text(plan, axes)}" for name, axes in whole_axes.items()]
    return whole + parts


def _part_of_fft(plan: Plan, step: Step) -> tuple[str, int, int]:
    """Return the name of the FFT that a step belongs to, its number in it, and their count.

    An operator has a forward FFT and an inverse one, whose steps are counted backwards: number 3 of
    3 transforms back what number 3 of 3 of the forward FFT has transformed.
    """
    (program,) = (program for program in plan.programs if program.axis == step.axis)
    number = program.steps.index(step) + 1
    count = len(program.steps)
    name = "inverse FFT" if plan.spec.sign > 0 else "FFT"
    if not plan.spec.transfer:
        return name, number, count
    forward_count = len(program.factors)
    if number <= forward_count:
        return name, number, forward_count
    return "inverse FFT", count + 1 - number, forward_count


def _axes_text(plan: Plan, axes: Sequence[int]) -> str:
    """Return the names of dimensions if they are known, else numbers of axes."""
    names = [plan.spec.dims[axis] if plan.spec.dims else str(axis) for axis in sorted(axes)]
    noun = "" if plan.spec.dims else "axis " if len(names) == 1 else "axes "
    if len(names) == 1:
        return f"{noun}{names[0]}"
    return f"{noun}{', '.join(names[:-1])} and {names[-1]}"
