"""The drawing of a plan in HTML, for notebooks."""

from collections.abc import Iterator, Sequence
from html import escape

from dask.utils import format_bytes

from dask_bigfft.planner.explain import (
    LEGEND,
    axis_text,
    block_shape,
    details,
    in_a_line,
    round_names,
    width_text,
)
from dask_bigfft.planner.overview import overview
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.stages import Exchange
from dask_bigfft.transforms.layout import Digit, Group, Layout
from dask_bigfft.transforms.steps import AxisProgram, Step

_BOX = "border:1px solid #888888;border-radius:3px;padding:2px 6px;white-space:nowrap;background:"
_PLAIN = "#8888882e"
_WORK = "#f2933f8c"
_SIDE = "display:inline-block;text-align:center;margin:2px"


def _tag(name: str, inner: str, style: str = "") -> str:
    """Return an HTML element."""
    return f'<{name} style="{style}">{inner}</{name}>'


def _lines(*texts: str) -> str:
    """Return texts one below the other as HTML."""
    return "".join(_tag("div", escape(text)) for text in texts)


def digit_name(program: AxisProgram | None, digit: Digit) -> str:
    """Return the name of a digit: ``n`` of the input's index, ``k`` of the output's, ``m`` between.

    Digits that take a step of their own are numbered in the order of the steps.
    """
    if program is None:
        return "n"
    if digit.stage == program.target[0].stage:
        letter = "k"
    elif digit.stage == 0:
        letter = "n"
    else:
        letter = "m"
    if len(program.factors) == 1 and not program.bluestein:
        return letter
    for number, step in enumerate(program.steps, 1):
        if digit in (step.source, step.target):
            return f"{letter}{number}"
    return letter


def _group(group: Group, program: AxisProgram | None, step: Step | None) -> str:
    """Return the digits of a group, or the step on them, above the number of parts."""
    if step is None:
        texts = [f"{digit_name(program, digit)}: {digit.size}" for digit in group.digits]
        style = _BOX + _PLAIN
    else:
        before = digit_name(program, step.source)
        after = digit_name(program, step.target)
        texts = [f"{before} → {after}: {step.length}"]
        style = _BOX + _WORK
    boxes = "".join(_tag("span", escape(text), style) for text in texts)
    count = len(group.chunks)
    return _tag("div", boxes + _lines("whole" if count == 1 else f"{count} parts"), _SIDE)


def _exchange(exchange: Exchange, moves: bool) -> str:
    """Return an exchange: C, W, and the bytes that move."""
    if not moves:
        return _lines("local")
    shape = exchange.shape
    return _lines(
        "exchange",
        f"C = {shape.runs}",
        width_text(shape, exchange.source_dtype),
        f"{shape.blocks_in} → {shape.blocks_out}, fan-in {shape.fan_in}",
        format_bytes(exchange.nbytes),
    )


def _html_table(plan: Plan) -> str:
    """Return the blocks as an HTML table: a row for each axis, a column for each round.

    Between two columns is a cell for the exchange, across all rows, unless the last round leaves
    the blocks of the result.
    """
    columns: list[tuple[str, Layout, Sequence[Step]]] = [("in", plan.source, ())]
    for number, name in enumerate(round_names(plan)):
        round_ = plan.rounds[number]
        columns.append((f"round {number + 1} {{{name}}}", round_.source, round_.steps))
    columns.append(("out", plan.result, ()))
    ndim = len(plan.spec.shape)
    head = [_tag("th", "")]
    rows = [[_tag("th", escape(f"axis {axis_text(plan, axis)}"))] for axis in range(ndim)]
    for number, (title, layout, steps) in enumerate(columns):
        head.append(_tag("th", _lines(title, block_shape(layout)), "text-align:center"))
        for axis, row in enumerate(rows):
            groups = "".join(
                _axis_groups(
                    plan,
                    axis,
                    layout,
                    steps,
                )
            )
            row.append(_tag("td", groups, "text-align:center;white-space:nowrap"))
        if number < len(plan.exchanges):
            text = _exchange(plan.exchanges[number], plan.moves[number])
            head.append(f'<td rowspan="{ndim + 1}" style="padding:0 1em">{text}</td>')
    lines = ["".join(row) for row in (head, *rows)]
    legend = f"{LEGEND} n, m, k: index of the input, between rounds, of the output."
    return f'<table title="{legend}">{"".join(f"<tr>{line}</tr>" for line in lines)}</table>'


def _axis_groups(
    plan: Plan,
    axis: int,
    layout: Layout,
    steps: Sequence[Step],
) -> Iterator[str]:
    """Yield the groups of an axis, each with the one of the steps that transforms it."""
    programs = {program.axis: program for program in plan.programs}
    step_of_digits: dict[tuple[Digit, ...], Step] = {}
    for step in steps:
        if step.axis == axis:
            step_of_digits[(step.source,)] = step
    for group in layout.axes[axis].groups:
        yield _group(group, programs.get(axis), step_of_digits.get(group.digits))


def draw(plan: Plan) -> str:
    """Return the plan as HTML: what `explain()` says, and, folded, its rounds as a picture."""
    return (
        f"<div><p><b>{escape(in_a_line(plan)[1:-1])}</b></p>"
        f"<pre>{escape(overview(plan))}</pre>"
        f"<details><summary>Rounds and exchanges</summary>"
        f'<div style="overflow-x:auto">{_html_table(plan)}</div>'
        f"<pre>{escape(details(plan))}</pre></details></div>"
    )
