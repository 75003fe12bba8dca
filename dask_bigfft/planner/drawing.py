"""A plan as a drawing for notebooks: self-contained HTML with inline SVG, no scripts.

From left to right the array as it comes in, the blocks of each round, the array that goes out::

            in         exchange        round 1        exchange          out
    axis 0  [ n  ]     C = 64     [n1 -> k1][ n2 ]    C = 64          [ k  ]
            |-|-|-|    W = 4          |-----| |-|-|   W = 4           |-|-|-|

A box is a digit, filled where it is transformed; the bar under it shows into how many parts it is
cut between blocks. Colours are half transparent and text takes the page's colour, so that it reads
on light and dark pages.

Pure: imports `decomposition` and `explain` of this room; a `Plan` is only read, never made here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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

BOX, WIDE, HIGH = 54, 84, 26  # a digit, one that is transformed, and their height
GAP, PAD, ROW, HEAD = 6, 10, 58, 46  # between boxes, around them, per axis, above them
ARROW = 128
MOST_PARTS = 24  # cuts that a bar shows one by one

_FILL, _WORK, _EDGE = "#8888882e", "#f2933f8c", "#888888"


@dataclass(frozen=True)
class _Box:
    """A digit as drawn."""

    label: str
    width: float
    fill: str


@dataclass(frozen=True)
class _Column:
    """Blocks as drawn: what they are, how they lie, and which of their digits are transformed."""

    title: str
    under: str
    layout: Layout
    programs: Mapping[int, AxisProgram]
    steps: tuple[Step, ...] = ()

    def step(self, axis: int, group: Group) -> Step | None:
        """Return the step that transforms a group, if any."""
        found = (s for s in self.steps if s.axis == axis and group.digits == (s.source,))
        return next(found, None)

    def row(self, axis: int) -> list[list[_Box]]:
        """Return the boxes of an axis, group by group."""
        program = self.programs.get(axis)
        groups = self.layout.axes[axis].groups
        return [_boxes(group, program, self.step(axis, group)) for group in groups]

    def row_width(self, axis: int) -> float:
        row = self.row(axis)
        return sum(box.width for boxes in row for box in boxes) + GAP * (len(row) - 1)

    @property
    def width(self) -> float:
        rows = [self.row_width(axis) for axis in range(len(self.layout.axes))]
        return max(WIDE, 7 * len(self.under), 8 * len(self.title), *rows) + 2 * PAD


def _text(x: float, y: float, text: str, size: int = 11, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="{size}" '
        f'font-weight="{weight}" fill="currentColor">{escape(text)}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
        f'fill="{fill}" stroke="{_EDGE}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_EDGE}"{more}/>'
    )


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


def _bar(x: float, y: float, width: float, parts: int) -> list[str]:
    """Return the bar under a group: its cuts, or only their number where they are many."""
    drawn = [_line(x, y + 4, x + width, y + 4, ' stroke-width="3"')]
    shown = parts if parts <= MOST_PARTS else 2
    for i in range(shown + 1):
        at = x + width * i / shown
        if parts <= MOST_PARTS or i != 1:
            drawn.append(_line(at, y, at, y + 8))
    label = "whole" if parts == 1 else f"{parts} parts"
    return [*drawn, _text(x + width / 2, y + 18, label, 9)]


def _boxes(group: Group, program: AxisProgram | None, step: Step | None) -> list[_Box]:
    """Return a box for each digit of a group; one that is transformed shows what it becomes."""
    if step is not None:
        arrow = f"{digit_name(program, step.source)} → {digit_name(program, step.target)}"
        labels, least, fill = [f"{arrow}: {step.length}"], WIDE, _WORK
    else:
        labels = [f"{digit_name(program, digit)}: {digit.size}" for digit in group.digits]
        least, fill = BOX, _FILL
    return [_Box(label, max(least, 7 * len(label) + 8), fill) for label in labels]


def _axis(x: float, y: float, column: _Column, axis: int) -> list[str]:
    """Return an axis in a column: the boxes of its groups, and into how many parts each is cut."""
    drawn: list[str] = []
    at = x + (column.width - column.row_width(axis)) / 2
    for group, boxes in zip(column.layout.axes[axis].groups, column.row(axis), strict=True):
        start = at
        for box in boxes:
            drawn.append(_rect(at, y, box.width, HIGH, box.fill))
            drawn.append(_text(at + box.width / 2, y + 17, box.label))
            at += box.width
        drawn += _bar(start, y + HIGH + 3, at - start, len(group.chunks))
        at += GAP
    return drawn


def _arrow(x: float, y: float, exchange: Exchange, itemsize: int, moves: bool) -> list[str]:
    """Return an exchange: C, W, and how much moves; dashed where nothing does."""
    shape, middle = exchange.shape, x + ARROW / 2
    dash = ' stroke-width="2"' if moves else ' stroke-dasharray="4 3"'
    tip = x + ARROW - 8
    drawn = [
        _line(x + 8, y, tip, y, dash),
        f'<path d="M {tip} {y - 5} L {tip + 7} {y} L {tip} {y + 5} z" fill="{_EDGE}"/>',
        _text(middle, y - 8, "exchange" if moves else "local", 11, "bold"),
    ]
    if not moves:
        return drawn
    words = [
        f"C = {shape.runs}",
        f"W = {shape.width} ({human_bytes(shape.width * itemsize)})",
        f"{shape.blocks_in} → {shape.blocks_out}, fan-in {shape.fan_in}",
        human_bytes(exchange.nbytes),
    ]
    return drawn + [_text(middle, y + 14 + 13 * i, word, 10) for i, word in enumerate(words)]


def _columns(plan: PlanData) -> list[_Column]:
    programs = {program.axis: program for program in plan.programs}
    found = [_Column("in", block_shape(plan.source), plan.source, programs)]
    for number, (name, round_) in enumerate(zip(round_names(plan), plan.rounds, strict=True), 1):
        title = f"round {number} {{{name}}}"
        under = block_shape(round_.source)
        found.append(_Column(title, under, round_.source, programs, round_.steps))
    found.append(_Column("out", block_shape(plan.result), plan.result, programs))
    return found


def _svg(plan: PlanData) -> str:
    columns, sizes = _columns(plan), item_sizes(plan)
    ndim = len(plan.spec.shape)
    height = HEAD + max(ndim * ROW, 2 * ROW) + 12
    drawn, x = [_text(24, HEAD + a * ROW + 17, f"axis {a}") for a in range(ndim)], 52.0
    for number, column in enumerate(columns):
        drawn += [
            _text(x + column.width / 2, 16, column.title, 12, "bold"),
            _text(x + column.width / 2, 32, column.under, 10),
        ]
        for axis in range(ndim):
            drawn += _axis(x, HEAD + axis * ROW, column, axis)
        x += column.width
        if number < len(plan.exchanges):
            size = sizes[min(number, len(sizes) - 1)]
            exchange, moves = plan.exchanges[number], plan.moves[number]
            drawn += _arrow(x, HEAD + 24, exchange, size, moves)
            x += ARROW
        elif number + 1 < len(columns):
            drawn.append(_text(x + 14, HEAD + 28, "=", 18))
            x += 28
    label = escape(f"Plan of {plan.spec.name}: {plan.notation}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x + 8:.0f}" height="{height}" '
        f'viewBox="0 0 {x + 8:.0f} {height}" role="img" aria-label="{label}" '
        f'font-family="sans-serif">{"".join(drawn)}</svg>'
    )


def _cells(tag: str, cells: tuple[str, ...] | list[str]) -> str:
    style = "text-align:left;padding:2px 10px 2px 0"
    return "<tr>" + "".join(f'<{tag} style="{style}">{escape(c)}</{tag}>' for c in cells) + "</tr>"


def _forecast(plan: PlanData) -> str:
    """Return the forecast, with a bar of the peak memory against the budget."""
    limit, rows = plan.machine.memory_limit, []
    for name, value in forecast_rows(plan):
        rows.append(_cells("td", (name, value)))
        if name == "peak memory" and limit is not None:
            share = 200 * min(1.0, plan.expected.peak_host / limit)
            bar = _rect(0, 0, 200, 8, "none") + _rect(0, 0, share, 8, _WORK)
            svg = f'<svg width="202" height="10" aria-hidden="true">{bar}</svg>'
            rows.append(f"<tr><td></td><td>{svg}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _considered(plan: PlanData) -> str:
    rows = [_cells("td", row) for row in rejected_rows(plan)]
    return f"<table>{_cells('th', HEADINGS)}{''.join(rows)}</table>"


def _notation(plan: PlanData) -> str:
    rounds = "".join(
        f"<li><code>{escape('  '.join(step_text(plan, s) for s in round_.steps))}</code></li>"
        for round_ in plan.rounds
    )
    return f"<ol>{rounds}</ol>"


def draw(plan: PlanData) -> str:
    """Return the plan as HTML: rounds from left to right, forecast, and what was considered."""
    spec = plan.spec
    title = f"{spec.name} of {spec.shape} {spec.out_dtype.name}: {plan.notation}"
    considered = (
        f"<details><summary>why: {escape(plan.reason or 'not said')}</summary>"
        f"{_notation(plan)}{_considered(plan)}</details>"
    )
    return (
        f"<div><p><b>{escape(title)}</b></p>"
        f'<div style="overflow-x:auto">{_svg(plan)}</div>'
        f"{_forecast(plan)}{considered}</div>"
    )
