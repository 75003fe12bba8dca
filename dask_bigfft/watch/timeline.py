"""The picture of a run: its threads from top to bottom, what each did from left to right.

Imports `planner` and `record`.
"""

from collections.abc import Sequence
from html import escape

from dask_bigfft.planner.explain import round_names
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.wording import human_bytes, human_seconds
from dask_bigfft.record import Span

#: Colours of rounds in the picture, and that of exchanges (Okabe and Ito, 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_EXCHANGE = "#999999"

_WIDTH, _LANE, _MARGIN, _MOST_LANES = 900, 14, 120, 32


def _colour(span: Span) -> str:
    return _COLOURS[(span.index - 1) % len(_COLOURS)] if span.phase == "round" else _EXCHANGE


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" '
        f'fill="currentColor">{escape(text)}</text>'
    )


def _bar(span: Span, x: float, y: float, width: float) -> str:
    label = f"{span.phase} {span.index}: {human_seconds(span.stop - span.start)}, "
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.3):.2f}" height="{_LANE - 3}" '
        f'fill="{_colour(span)}"><title>{label}{human_bytes(span.nbytes)}</title></rect>'
    )


def timeline(plan: Plan, spans: Sequence[Span], seconds: float) -> str:
    """Return the spans of a run, which took some seconds, as a picture (SVG); "" without spans."""
    if not spans:
        return ""
    lanes = sorted({(span.place, span.lane) for span in spans})
    shown = lanes[:_MOST_LANES]
    places = {place: number for number, place in enumerate(sorted({p for p, _ in lanes}))}
    start, seconds = spans[0].start, max(seconds, 1e-9)
    scale = (_WIDTH - _MARGIN - 10) / seconds
    top = 24
    drawn = []
    for number, (place, lane) in enumerate(shown):
        y = top + _LANE * number
        name = f"worker {places[place]}, thread {lane}" if place else f"thread {lane}"
        drawn.append(_text(_MARGIN - 6, y + 10, name, "end"))
        drawn += [
            _bar(span, _MARGIN + (span.start - start) * scale, y, (span.stop - span.start) * scale)
            for span in spans
            if (span.place, span.lane) == (place, lane)
        ]
    bottom = top + _LANE * len(shown)
    drawn.append(
        f'<line x1="{_MARGIN}" x2="{_WIDTH - 10}" y1="{bottom + 2}" y2="{bottom + 2}" '
        'stroke="currentColor"/>'
    )
    for i in range(6):
        x = _MARGIN + (_WIDTH - _MARGIN - 10) * i / 5
        anchor = "middle" if i < 5 else "end"
        drawn.append(_text(x, bottom + 16, human_seconds(seconds * i / 5) if i else "0", anchor))
    drawn += _legend(plan, spans)
    if len(lanes) > len(shown):
        drawn.append(_text(_MARGIN, bottom + 32, f"{len(lanes) - len(shown)} threads not shown"))
    height = bottom + (40 if len(lanes) > len(shown) else 24)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="phases over time">'
        f"{''.join(drawn)}</svg>"
    )


def _legend(plan: Plan, spans: Sequence[Span]) -> list[str]:
    names = round_names(plan)
    found = sorted({s.index for s in spans if s.phase == "round"})
    items = [
        (
            f"round {i} {{{names[i - 1]}}}" if i <= len(names) else f"round {i}",
            _COLOURS[(i - 1) % len(_COLOURS)],
        )
        for i in found
    ]
    if any(span.phase != "round" for span in spans):
        items.append(("exchange", _EXCHANGE))
    drawn, x = [], float(_MARGIN)
    for name, colour in items:
        drawn.append(f'<rect x="{x:.0f}" y="6" width="10" height="10" fill="{colour}"/>')
        drawn.append(_text(x + 14, 15, name))
        x += 30 + 7 * len(name)
    return drawn
