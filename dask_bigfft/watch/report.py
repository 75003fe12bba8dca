"""Reports that compare the measurements of a run with its forecast: text, tables, a picture.

The seconds of a phase are summed over all threads. Its forecast comes from the cost model, by
`phase_forecasts`. If a transform was computed several times, numbers and picture are those of the
last run. The cluster's page shows the same rows, as means over all runs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

from dask.utils import format_bytes, format_time

from dask_bigfft.arrays import Block
from dask_bigfft.events import PHASES, WATCHED, Phase, PlanRecord, Span, Total
from dask_bigfft.planner.explain import (
    budget_text,
    human_count,
    round_names,
    speed_text,
    table,
)
from dask_bigfft.planner.phases import phase_forecasts
from dask_bigfft.planner.plan import Plan, PublicNames

#: Headings of a report's rows.
HEADINGS = ("phase", "blocks", "bytes", "thread time", "forecast", "ratio", "speed")


@dataclass(frozen=True)
class Row:
    """One phase of a run.

    Parameters
    ----------
    phase : str
        Name of the phase, or of a part of it.
    index : int
        Number of the round, or of the round after an exchange, from 1.
    steps : str
        Steps of a round; empty for other phases.
    count, nbytes : int
        Numbers of blocks or shards, and of bytes.
    seconds : float
        Seconds summed over all threads.
    forecast, limit : float or None
        Forecast of the seconds, and of the bytes per second of a thread; None without a forecast,
        and `limit` also without a profile of the machine.
    """

    phase: str
    index: int
    steps: str
    count: int
    nbytes: int
    seconds: float
    forecast: float | None
    limit: float | None

    @property
    def is_part(self) -> bool:
        """True for a part of a phase, whose time includes it."""
        return self.phase not in PHASES

    @property
    def bytes_per_thread_second(self) -> float:
        """Bytes per second of a thread; 0 without a measured time."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        name = f"  {self.phase}" if self.is_part else f"{self.phase} {self.index} {self.steps}"
        forecast = ""
        ratio = ""
        if self.forecast:
            forecast = format_time(self.forecast)
            ratio = f"{self.seconds / self.forecast:.2f}"
        speed = speed_text(self.bytes_per_thread_second) if self.seconds else ""
        return (
            name,
            str(self.count),
            format_bytes(self.nbytes),
            format_time(self.seconds),
            forecast,
            ratio,
            speed,
        )


@dataclass(frozen=True, repr=False)
class RunReport(PublicNames):
    """Measurements of one transform.

    Parameters
    ----------
    plan : Plan
        The plan that ran.
    token : str
        Token of the plan in task names.
    places : dict of str to PlanRecord
        Measurements by the address of a worker; empty for this process.
    """

    plan: Plan
    token: str
    places: Mapping[str, PlanRecord] = field(hash=False)

    _public_names = (
        "plan",
        "runs",
        "seconds",
        "rows",
        "shares",
        "passes",
        "device_peaks",
        "timeline",
    )

    @cached_property
    def totals(self) -> dict[Phase, Total]:
        """The totals of each phase over all processes and runs."""
        totals: dict[Phase, Total] = {}
        for record in self.places.values():
            for phase, total in record.totals.items():
                totals[phase] = total.plus(totals.get(phase))
        return totals

    @cached_property
    def _stops(self) -> dict[tuple[str, int, Block | None], list[float]]:
        """Ends of rounds, unpacks and products, by phase, index and block, in order."""
        stops: dict[tuple[str, int, Block | None], list[float]] = defaultdict(list)
        for record in self.places.values():
            for span in record.spans:
                if span.phase in ("round", "unpack", "product"):
                    stops[span.phase, span.index, span.block].append(span.stop)
        return {key: sorted(ends) for key, ends in stops.items()}

    @cached_property
    def runs(self) -> int:
        """Number of computations of the transform, at least 1."""
        counts = [1]
        for number, round_ in enumerate(self.plan.rounds, 1):
            total = self.totals.get(("round", number))
            if total is not None:
                counts.append(round(total.count / max(1, round_.target.blocks)))
        counts += [len(ends) for (*_, block), ends in self._stops.items() if block is not None]
        return max(counts)

    @cached_property
    def _end_of_earlier_runs(self) -> float:
        """Time at which the last block of all earlier runs was done; 0.0 without earlier runs.

        A run does each block once. Every run has the same number of phases whose blocks are not
        known.
        """
        earlier = [0.0]
        for (*_, block), ends in self._stops.items():
            of_last_run = 1 if block is not None else math.ceil(len(ends) / self.runs)
            earlier += ends[:-of_last_run]
        return max(earlier)

    @cached_property
    def spans(self) -> list[Span]:
        """The recorded phases of the last run, block by block: those after all earlier runs."""
        start = self._end_of_earlier_runs
        spans = [span for record in self.places.values() for span in record.spans]
        return sorted((s for s in spans if s.stop > start), key=lambda span: span.start)

    @cached_property
    def last_totals(self) -> dict[Phase, Total] | None:
        """The totals of each phase over all processes in the last run; None if it is unknown."""
        start = self._end_of_earlier_runs
        if self.runs == 1:
            return self.totals
        if start == 0.0:  # too many blocks for the record, or a record without spans
            return None
        sums: dict[Phase, Total] = {}
        for record in self.places.values():
            for phase in record.totals:
                total = record.latest[phase].after(start)
                if total is None:
                    return None
                if total.count:
                    sums[phase] = total.plus(sums.get(phase))
        return sums

    @property
    def seconds(self) -> float:
        """Time from the first to the last block of the last run."""
        if not self.spans:
            return 0.0
        return max(span.stop for span in self.spans) - self.spans[0].start

    @cached_property
    def rows(self) -> list[Row]:
        """The phases of the last run in order; means over all runs if it is unknown."""
        totals = self.last_totals
        runs = 1
        if totals is None:
            totals = self.totals
            runs = self.runs
        names = round_names(self.plan)
        forecasts = {(phase.name, phase.index): phase for phase in phase_forecasts(self.plan)}
        is_measured = bool(self.plan.machine.profile.name)
        rows = []
        for phase in sorted(totals, key=lambda phase: (phase[1], WATCHED.index(phase[0]))):
            name, index = phase
            total = totals[phase]
            model = forecasts.get(phase)
            row = Row(
                phase=name,
                index=index,
                steps=f"{{{names[index - 1]}}}" if name == "round" else "",
                count=-(-total.count // runs),
                nbytes=total.nbytes // runs,
                seconds=total.seconds / runs,
                forecast=model.seconds if model else None,
                limit=model.bytes_per_second if model and is_measured else None,
            )
            rows.append(row)
        return rows

    @property
    def device_peaks(self) -> dict[tuple[str, int], int]:
        """Peak memory of each device in bytes, by the worker's address and the device's number.

        Devices are numbered from 0 in each process; an empty address means this process. The work
        areas of FFT libraries are included as far as they are known.
        """
        peaks = {}
        for place, record in sorted(self.places.items()):
            for device, nbytes in sorted(record.devices.items()):
                peaks[place, device] = nbytes
        return peaks

    @property
    def shares(self) -> dict[int, float]:
        """Fraction of each shared round that devices did, by the number of the round from 1."""
        nbytes = Counter({(row.phase, row.index): row.nbytes for row in self.rows})
        shares = {}
        for number in range(1, len(self.plan.rounds) + 1):
            on_cpu = nbytes["round_cpu", number]
            on_devices = nbytes["round_device", number]
            if on_cpu + on_devices:
                shares[number] = on_devices / (on_cpu + on_devices)
        return shares

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Forecast and measurement of the whole transform, as names and values."""
        if not self.totals:
            return [("nothing", "was measured here: has it been computed?")]
        rows = [
            ("time", self._time_text),
            ("speed", self._speed_text),
            ("threads", self._threads_text),
            ("memory", self._memory_text),
            ("kernel", self.plan.fallback or self.plan.kernel),
            ("devices", self._shares_text),
            ("bus", f"{self.passes:.2f} passes of the data" if self.passes else ""),
            ("on GPUs", self._device_peaks_text),
            ("runs", self._runs_text),
        ]
        return [(name, text) for name, text in rows if text]

    @property
    def _time_text(self) -> str:
        """The time of the last run and its forecast."""
        time = format_time(self.seconds)
        forecast = format_time(self.plan.expected.seconds)
        return f"{time} from the first block to the last; forecast {forecast}"

    @property
    def _speed_text(self) -> str:
        """Flops per second."""
        if not self.seconds:
            return "not known"
        return human_count(self.plan.expected.flops / self.seconds, "FLOP/s")

    @property
    def _threads_text(self) -> str:
        """Number of threads, and the part of the time for which they worked."""
        spans = [span for span in self.spans if span.phase != "send"]  # sent beside tasks
        threads = len({(span.place, span.lane) for span in spans})
        thread_seconds = self.seconds * threads
        busy = 0.0
        if thread_seconds:
            busy = sum(span.stop - span.start for span in spans) / thread_seconds
        return f"{threads}, busy {100 * busy:.0f} % of the time"

    @property
    def _memory_text(self) -> str:
        """Additional memory of the process that needed most, and the forecast."""
        increases = [record.rss_peak - record.rss_before for record in self.places.values()]
        most = format_bytes(max(0, *increases))
        forecast = budget_text(self.plan.expected.peak_host, self.plan.machine.memory_limit)
        return f"{most} more at most in a process; forecast {forecast}"

    @property
    def _shares_text(self) -> str:
        """Fraction of each shared round that devices did, and the fraction by the model."""
        modelled = {}
        if self.plan.shares:
            modelled = {cost.index: cost.share for cost in self.plan.expected.rounds}
        texts = []
        for number, share in self.shares.items():
            text = f"{100 * share:.0f} % of round {number}"
            if number in modelled:
                text += f" ({100 * modelled[number]:.0f} % by the model)"
            texts.append(text)
        return ", ".join(texts)

    @property
    def _device_peaks_text(self) -> str:
        """Peak memory of each device; empty without devices."""
        workers = sorted(self.places)
        texts = []
        for (place, device), nbytes in self.device_peaks.items():
            text = f"{format_bytes(nbytes)} of device {device}"
            if place:
                text += f" of worker {workers.index(place)}"
            texts.append(text)
        return f"at most {', '.join(texts)}" if texts else ""

    @property
    def _runs_text(self) -> str:
        """The number of runs, and which of them the report is about; empty for one run."""
        if self.runs == 1:
            return ""
        if self.last_totals is None:
            return f"{self.runs}; phases are their means"
        return f"this is the last of {self.runs}; memory is that of all"

    @property
    def passes(self) -> float:
        """Bytes that a run brings to GPUs over those of the input."""
        to_gpus = sum(row.nbytes for row in self.rows if row.phase == "h2d")
        return to_gpus / self.plan.spec.nbytes

    @property
    def title(self) -> str:
        """The transform and its rounds."""
        return f"{self.plan.spec.title}: {self.plan.notation}"

    def __repr__(self) -> str:
        lines = [self.title]
        lines += [f"  {name:9}{text}" for name, text in self.summary]
        if self.totals:
            rows = [HEADINGS, *(row.cells for row in self.rows)]
            lines += ["", *table(rows)]
        return "\n".join(lines)

    def timeline(self) -> str:
        """Return a picture (SVG) of the last run: a row for each thread, time to the right."""
        return timeline(self.plan, self.spans, self.seconds)

    def _repr_html_(self) -> str:
        rows = []
        if self.totals:
            rows = [HEADINGS, *(row.cells for row in self.rows)]
        return (
            f"<div><p><b>{escape(self.title)}</b></p>{_table(self.summary)}{_table(rows)}"
            f'<div style="overflow-x:auto">{self.timeline()}</div></div>'
        )


@dataclass(frozen=True, repr=False)
class Report(PublicNames):
    """Measurements of all transforms of an array, shown as text or in a notebook.

    Parameters
    ----------
    runs : tuple of RunReport
        One for each transform, in the order of their starts.
    """

    runs: tuple[RunReport, ...]

    _public_names = ("runs", "timeline")

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self.runs))

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs)

    def timeline(self) -> str:
        """Return the pictures (SVG) of all transforms, joined by newlines."""
        return "\n".join(run.timeline() for run in self.runs)


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table of rows of cells (HTML)."""
    lines = []
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    indented = "".join(lines).replace("<td>  ", "<td>&emsp;")
    return f"<table>{indented}</table>"


# --- the picture ----------------------------------------------------------------------------

#: Colours that colour-blind readers can tell apart (Okabe and Ito, 2008).
_OKABE_ITO = ("#0072B2", "#E69F00", "#CC79A7", "#999999", "#009E73", "#D55E00")

#: Colours of phases.
COLOURS = dict(zip(PHASES, _OKABE_ITO, strict=True))

#: Colours of rounds, which take turns.
_ROUND_COLOURS = (COLOURS["round"], "#56B4E9")

#: Width, height of a row, left margin and top margin in pixels.
_WIDTH = 900
_LANE = 14
_MARGIN = 120
_TOP = 24

#: Maximum number of rows.
_MOST_LANES = 32


def _colour(phase: str, index: int) -> str:
    """Return the colour of a phase, given the number of its round."""
    if phase == "round":
        return _ROUND_COLOURS[(index - 1) % 2]
    return COLOURS[phase]


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
) -> str:
    """Return a text (SVG) at a point, in pixels from the upper left corner."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" '
        f'fill="currentColor">{escape(text)}</text>'
    )


def timeline(plan: Plan, spans: Sequence[Span], seconds: float) -> str:
    """Return a picture (SVG) of the spans of a run of some seconds; "" without spans."""
    if not spans:
        return ""
    lanes = sorted({(span.place, span.lane) for span in spans})
    tops = {lane: _TOP + _LANE * number for number, lane in enumerate(lanes[:_MOST_LANES])}
    bottom = _TOP + _LANE * len(tops)
    scale = (_WIDTH - _MARGIN - 10) / max(seconds, 1e-9)
    elements = legend(_colours_by_name(plan, spans).items(), _MARGIN)
    workers = sorted({place for place, _ in lanes})
    for (place, lane), top in tops.items():
        name = f"worker {workers.index(place)}, thread {lane}" if place else f"thread {lane}"
        elements.append(
            _text(
                _MARGIN - 6,
                top + 10,
                name,
                "end",
            )
        )
    for span in spans:
        if (span.place, span.lane) in tops:
            x = _MARGIN + (span.start - spans[0].start) * scale
            elements.append(
                _bar(
                    span,
                    x,
                    tops[span.place, span.lane],
                    scale,
                )
            )
    elements += _times(seconds, scale, bottom + 16)
    hidden = len(lanes) - len(tops)
    if hidden:
        elements.append(_text(_MARGIN, bottom + 32, f"{hidden} threads not shown"))
    height = bottom + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="phases over time">'
        f"{''.join(elements)}</svg>"
    )


def _colours_by_name(plan: Plan, spans: Iterable[Span]) -> dict[str, str]:
    """Return the colours of the rounds of a plan, and of the other phases of a run."""
    colours = {}
    for number, name in enumerate(round_names(plan), 1):
        colours[f"round {number} {{{name}}}"] = _colour("round", number)
    for span in spans:
        if span.phase != "round":
            colours[span.phase] = COLOURS[span.phase]
    return colours


def _bar(
    span: Span,
    x: float,
    y: float,
    scale: float,
) -> str:
    """Return the bar of a span (SVG), with `scale` pixels for a second."""
    seconds = span.stop - span.start
    width = max(seconds * scale, 0.3)
    values = f"{format_time(seconds)}, {format_bytes(span.nbytes)}"
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_LANE - 3}" '
        f'fill="{_colour(span.phase, span.index)}">'
        f"<title>{span.phase} {span.index}: {values}</title></rect>"
    )


def _times(seconds: float, scale: float, y: float) -> list[str]:
    """Return the round times up to some seconds (SVG), with `scale` pixels for a second."""
    power = 10.0 ** math.floor(math.log10(max(seconds, 1e-9)))
    step = next(part * power for part in (0.2, 0.5, 1, 2) if seconds <= 6 * part * power)
    times = []
    for number in range(int(seconds / step) + 1):
        time = number * step
        label = format_time(time) if number else "0"
        times.append(
            _text(
                _MARGIN + time * scale,
                y,
                label,
                "middle",
            )
        )
    return times


def legend(colours: Iterable[tuple[str, str]], x: float = 0.0) -> list[str]:
    """Return the elements of an SVG that name colours, from `x` to the right."""
    elements = []
    for name, colour in colours:
        elements.append(f'<rect x="{x:.0f}" y="6" width="10" height="10" fill="{colour}"/>')
        elements.append(_text(x + 14, 15, name))
        x += 30 + 7 * len(name)
    return elements
