"""A plan as a drawing for notebooks: self-contained HTML, without scripts.

From left to right the array as it comes in, the blocks of each round, the array that goes out::

            in         exchange        round 1        exchange          out
    axis 0  [ n  ]     C = 64     [n1 -> k1][ n2 ]    C = 64          [ k  ]
            4 parts    W = 4        whole   4 parts   W = 4           4 parts

A box is a digit, filled where it is transformed, above the number of parts into which blocks cut
it. Colours are half transparent and text takes the page's colour, for light and dark pages.

Pure: imports `decomposition` and `explain` of this room.
"""

from collections.abc import Sequence
from html import escape

from dask_bigfft.decomposition.layout import Digit, Group, Layout
from dask_bigfft.decomposition.steps import AxisProgram, Step
from dask_bigfft.planner.exchange import Exchange
from dask_bigfft.planner.explain import (
    HEADINGS,
    block_shape,
    forecast_rows,
    item_sizes,
    rejected_rows,
    round_names,
    step_text,
)
from dask_bigfft.planner.plan_data import PlanData
from dask_bigfft.planner.wording import human_bytes

__all__ = ["digit_name", "draw"]

_CELL = "text-align:left;padding:2px 10px 2px 0"
_BOX = "border:1px solid #888888;border-radius:3px;padding:2px 6px;white-space:nowrap;background:"
_PLAIN, _WORK = "#8888882e", "#f2933f8c"
_SIDE = "display:inline-block;text-align:center;margin:2px"


def _tag(name: str, inner: str, style: str = "") -> str:
    return f'<{name} style="{style}">{inner}</{name}>'


def _lines(*texts: str) -> str:
    return "".join(_tag("div", escape(text)) for text in texts)


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(_tag(tag, escape(cell), _CELL) for cell in cells)}</tr>"


def digit_name(program: AxisProgram | None, digit: Digit) -> str:
    """Return the name of a digit: ``n`` of the input's index, ``k`` of the output's, ``m`` between.

    Digits that take a step of their own are numbered in the order of the steps.
    """
    if program is None or digit.stage == 0:
        letter = "n"
    else:
        letter = "k" if digit.stage == program.last_stage else "m"
    steps = () if program is None or len(program.steps) == 1 else program.steps
    for number, step in enumerate(steps, 1):
        if digit == step.source or digit == step.target:
            return f"{letter}{number}"
    return letter


def _group(group: Group, program: AxisProgram | None, step: Step | None) -> str:
    """Return the digits of a group, or what a step makes of them, above its number of parts."""
    texts, fill = [f"{digit_name(program, d)}: {d.size}" for d in group.digits], _PLAIN
    if step is not None:
        names = digit_name(program, step.source), digit_name(program, step.target)
        texts, fill = [f"{' → '.join(names)}: {step.length}"], _WORK
    parts = len(group.chunks)
    boxes = "".join(_tag("span", escape(text), _BOX + fill) for text in texts)
    return _tag("div", boxes + _lines("whole" if parts == 1 else f"{parts} parts"), _SIDE)


def _column(layout: Layout, axis: int, program: AxisProgram | None, steps: Sequence[Step]) -> str:
    """Return an axis of some blocks."""
    found = []
    for group in layout.axes[axis].groups:
        own = (step for step in steps if step.axis == axis and group.digits == (step.source,))
        found.append(_group(group, program, next(own, None)))
    return _tag("td", "".join(found), "text-align:center;white-space:nowrap")


def _exchange(exchange: Exchange, itemsize: int, moves: bool) -> str:
    """Return an exchange: C, W, and the bytes that move."""
    shape = exchange.shape
    if not moves:
        return _lines("local")
    return _lines(
        "exchange",
        f"C = {shape.runs}",
        f"W = {shape.width} ({human_bytes(shape.width * itemsize)})",
        f"{shape.blocks_in} → {shape.blocks_out}, fan-in {shape.fan_in}",
        human_bytes(exchange.nbytes),
    )


def _rounds(plan: PlanData) -> str:
    """Return the table of blocks, with a row for each axis and an exchange between columns."""
    programs = {program.axis: program for program in plan.programs}
    names, sizes = round_names(plan), item_sizes(plan)
    columns: list[tuple[str, Layout, Sequence[Step]]] = [("in", plan.source, ())]
    for number, (name, round_) in enumerate(zip(names, plan.rounds, strict=True), 1):
        columns.append((f"round {number} {{{name}}}", round_.source, round_.steps))
    columns.append(("out", plan.result, ()))
    ndim = len(plan.spec.shape)
    head = [_tag("th", "")]
    rows = [[_tag("th", escape(f"axis {axis}"))] for axis in range(ndim)]
    for number, (title, layout, steps) in enumerate(columns):
        head.append(_tag("th", _lines(title, block_shape(layout)), "text-align:center"))
        for axis, row in enumerate(rows):
            row.append(_column(layout, axis, programs.get(axis), steps))
        if number < len(plan.exchanges):
            size = sizes[min(number, len(sizes) - 1)]
            text = _exchange(plan.exchanges[number], size, plan.moves[number])
            head.append(f'<td rowspan="{ndim + 1}" style="padding:0 1em">{text}</td>')
    lines = ("".join(row) for row in (head, *rows))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def draw(plan: PlanData) -> str:
    """Return the plan as HTML: rounds from left to right, forecast, and what was considered."""
    spec = plan.spec
    title = escape(f"{spec.name} of {spec.shape} {spec.out_dtype.name}: {plan.notation}")
    forecast = "".join(_row("td", row) for row in forecast_rows(plan))
    steps = ("  ".join(step_text(plan, s) for s in round_.steps) for round_ in plan.rounds)
    rejected = "".join(_row("td", row) for row in rejected_rows(plan))
    return (
        f"<div><p><b>{title}</b></p>"
        f'<div style="overflow-x:auto">{_rounds(plan)}</div><table>{forecast}</table>'
        f"<details><summary>why: {escape(plan.reason or 'not said')}</summary>"
        f"<ol>{''.join(f'<li><code>{escape(text)}</code></li>' for text in steps)}</ol>"
        f"<table>{_row('th', HEADINGS)}{rejected}</table></details></div>"
    )
