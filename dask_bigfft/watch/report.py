"""What a run took against what was forecast, as text and as a table; `timeline` has the picture.

Seconds of a phase are those of one thread, threads added up; the forecast of a phase is that of the
cost model, unfolded by `phase_forecasts`. Where a transform was computed several times, numbers are
means over its runs, and the picture shows the last one.

Imports `planner`, `record` and this room.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

from dask_bigfft.events import PHASES
from dask_bigfft.planner.explain import budget_text, round_names
from dask_bigfft.planner.phases import phase_forecasts
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.wording import human_bytes, human_count, human_seconds
from dask_bigfft.record import WATCHED, Phase, PlanRecord, Span, Total
from dask_bigfft.watch.timeline import timeline

__all__ = ["HEADINGS", "Report", "Row", "RunReport"]

#: Headings of a report's rows.
HEADINGS = ("phase", "steps", "blocks", "bytes", "thread time", "forecast", "ratio", "GB/s")

_PARTS = frozenset(WATCHED) - frozenset(PHASES)

#: Phases that are done once for every block in every run.
_COUNTED = frozenset({"round", "unpack"})

#: Devices whose memory is printed one by one.
_MOST_DEVICES = 8


@dataclass(frozen=True)
class Row:
    """One phase of a run.

    Parameters
    ----------
    phase : str
        Name of the phase, or of a part of a round.
    index : int
        Number of the round, or of the round that an exchange leads to, from 1.
    steps : str
        The steps of the round.
    count, nbytes : int
        Blocks or shards, and bytes that were made.
    seconds : float
        Time of all threads.
    forecast : float or None
        The same by the cost model; None where it says nothing.
    """

    phase: str
    index: int
    steps: str
    count: int
    nbytes: int
    seconds: float
    forecast: float | None

    @property
    def is_part(self) -> bool:
        """Whether the phase is a part of a round, whose time has it already."""
        return self.phase in _PARTS

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        name = f"  {self.phase}" if self.is_part else f"{self.phase} {self.index}"
        known = self.forecast is not None and self.forecast > 0
        speed = f"{self.nbytes / self.seconds / 1e9:.2f}" if self.seconds else ""
        return (
            name,
            "" if self.is_part else self.steps,
            str(self.count),
            human_bytes(self.nbytes),
            human_seconds(self.seconds),
            human_seconds(self.forecast) if known and self.forecast else "",
            f"{self.seconds / self.forecast:.2f}" if known and self.forecast else "",
            speed,
        )


@dataclass(frozen=True, repr=False)
class RunReport:
    """What one transform took.

    Parameters
    ----------
    plan : Plan
        What was done.
    token : str
        Of the plan in task names.
    places : dict of str to PlanRecord
        What was measured, by worker; an empty name is this process.
    """

    plan: Plan
    token: str
    places: Mapping[str, PlanRecord] = field(hash=False)

    @cached_property
    def totals(self) -> dict[Phase, Total]:
        """What each phase has done in all places and runs."""
        found: dict[Phase, Total] = {}
        for record in self.places.values():
            for phase, total in record.totals.items():
                old = found.get(phase)
                if old is None:
                    found[phase] = Total(
                        total.count, total.nbytes, total.seconds, total.first, total.last
                    )
                    continue
                old.count += total.count
                old.nbytes += total.nbytes
                old.seconds += total.seconds
                old.first, old.last = min(old.first, total.first), max(old.last, total.last)
        return found

    @cached_property
    def runs(self) -> int:
        """How often the transform was computed."""
        counts = [
            self.totals[("round", i)].count / max(1, round_.target.blocks)
            for i, round_ in enumerate(self.plan.rounds, 1)
            if ("round", i) in self.totals
        ]
        return max(1, round(max(counts, default=1)))

    @cached_property
    def spans(self) -> list[Span]:
        """The phases of the last run, block by block, as far as they are remembered.

        Every run does as many rounds and unpacks as many blocks; of what travels each may send
        other shards, so there it is the time that tells.
        """
        found: list[Span] = []
        before = [0.0]  # when what earlier runs did came to its end
        everything = [span for record in self.places.values() for span in record.spans]
        everything.sort(key=lambda span: (span.phase, span.index, span.stop))
        counted = (span for span in everything if span.phase in _COUNTED)
        for _, group in itertools.groupby(counted, key=lambda span: (span.phase, span.index)):
            spans = list(group)
            last = math.ceil(len(spans) / self.runs)
            found += spans[-last:]
            before += [span.stop for span in spans[:-last]]
        found += [s for s in everything if s.phase not in _COUNTED and s.stop > max(before)]
        return sorted(found, key=lambda span: span.start)

    @property
    def seconds(self) -> float:
        """Time from the first block to the last one of the last run."""
        if not self.spans:
            return 0.0
        return max(span.stop for span in self.spans) - self.spans[0].start

    @property
    def rows(self) -> list[Row]:
        """The phases in the order in which they come."""
        forecasts = {(p.name, p.index): p.seconds for p in phase_forecasts(self.plan)}
        names = round_names(self.plan)
        rows = []
        order = sorted(self.totals, key=lambda phase: (phase[1], WATCHED.index(phase[0])))
        for phase in order:
            total, (name, index) = self.totals[phase], phase
            steps = f"{{{names[index - 1]}}}" if name == "round" and index <= len(names) else ""
            rows.append(
                Row(
                    name,
                    index,
                    steps,
                    total.count // self.runs,
                    total.nbytes // self.runs,
                    total.seconds / self.runs,
                    forecasts.get(phase),
                )
            )
        return rows

    @property
    def busy_seconds(self) -> float:
        """Time of all threads in a run."""
        return sum(row.seconds for row in self.rows if not row.is_part)

    @property
    def rss_peak(self) -> int:
        """Most memory that a process held at the end of a phase, above what it held before."""
        return max((r.rss_peak - r.rss_before for r in self.places.values()), default=0)

    @property
    def device_peaks(self) -> dict[tuple[str, int], int]:
        """Most bytes that were in use of each device, by the worker's address and its number.

        Devices are numbered from 0 in each process; an empty address is this process. What FFT
        libraries take beside the data counts as far as it is known.
        """
        return {
            (place, device): nbytes
            for place, record in sorted(self.places.items())
            for device, nbytes in sorted(record.devices.items())
        }

    @property
    def _peaks_text(self) -> str:
        peaks, texts = self.device_peaks, list[str]()
        workers = {place: number for number, place in enumerate(sorted(self.places))}
        for (place, device), nbytes in itertools.islice(peaks.items(), _MOST_DEVICES):
            whose = f" of worker {workers[place]}" if place else ""
            texts.append(f"{human_bytes(nbytes)} of device {device}{whose}")
        if len(peaks) > len(texts):
            most = human_bytes(max(peaks.values()))
            texts.append(f"and so on: {len(peaks)} devices, {most} of one of them")
        return f"at most {', '.join(texts)}"

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Forecast against measured for the whole transform, as names and values."""
        plan, seconds = self.plan, self.seconds
        forecast = plan.expected
        lanes = len({(span.place, span.lane) for span in self._in_tasks})
        speed = human_count(forecast.flops / seconds, "FLOP/s") if seconds else "not known"
        rows = [
            (
                "time",
                f"{human_seconds(seconds)} from the first block to the last; forecast "
                f"{human_seconds(forecast.seconds)}",
            ),
            ("speed", speed),
            ("threads", f"{lanes}, busy {100 * self.busy_share:.0f} % of the time"),
            (
                "memory",
                f"{human_bytes(max(0, self.rss_peak))} more at most in a process; forecast "
                f"{budget_text(plan)}",
            ),
        ]
        rows.append(("kernel", plan.fallback or plan.kernel))
        if self.shares:
            rows.append(("devices", self._shares_text))
        if self.device_peaks:
            rows.append(("on cards", self._peaks_text))
        if self.runs > 1:
            rows.append(("runs", f"{self.runs}; phases are their means"))
        if not self.totals:
            rows = [("nothing", "was measured here: has it been computed?")]
        return rows

    @property
    def shares(self) -> dict[int, float]:
        """What part devices did of each round, from 1, that CPU threads and devices shared."""
        found = {}
        for index in range(1, len(self.plan.rounds) + 1):
            parts = [self.totals.get((name, index)) for name in ("round_cpu", "round_device")]
            cpu, device = (0 if part is None else part.nbytes for part in parts)
            if cpu + device:
                found[index] = device / (cpu + device)
        return found

    @property
    def _shares_text(self) -> str:
        planned = {one.index: one.share for one in self.plan.expected.rounds if self.plan.shares}
        return ", ".join(
            f"{100 * share:.0f} % of round {index}"
            + (f" ({100 * planned[index]:.0f} % by the model)" if index in planned else "")
            for index, share in self.shares.items()
        )

    @property
    def busy_share(self) -> float:
        """Part of the time that threads spent in tasks of the last run."""
        spans = self._in_tasks
        whole = self.seconds * len({(span.place, span.lane) for span in spans})
        return sum(span.stop - span.start for span in spans) / whole if whole else 0.0

    @property
    def _in_tasks(self) -> list[Span]:
        """Spans of the last run in threads of tasks: what a worker sends goes beside these."""
        return [span for span in self.spans if span.phase != "send"]

    @property
    def title(self) -> str:
        """What was transformed, and in which rounds."""
        spec = self.plan.spec
        return f"{spec.name} of {spec.shape} {spec.out_dtype.name}: {self.plan.notation}"

    def __repr__(self) -> str:
        return f"RunReport<{self.title}>"

    def __str__(self) -> str:
        lines = [self.title, *(f"  {name:9}{value}" for name, value in self.summary)]
        if self.totals:
            lines += ["", *_columns([HEADINGS, *(row.cells for row in self.rows)])]
        return "\n".join(lines)

    def timeline(self) -> str:
        """Return the last run as a picture (SVG): threads from top to bottom, time to the right."""
        return timeline(self.plan, self.spans, self.seconds)

    def _repr_html_(self) -> str:
        summary = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self.summary
        )
        head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>"
            for row in self.rows
        )
        table = f"<table><tr>{head}</tr>{rows}</table>" if self.totals else ""
        return (
            f"<div><p><b>{escape(self.title)}</b></p><table>{summary}</table>{table}"
            f'<div style="overflow-x:auto">{self.timeline()}</div></div>'
        )


@dataclass(frozen=True, repr=False)
class Report:
    """What all transforms of an array took: prints as text, shows itself in a notebook.

    Parameters
    ----------
    runs : tuple of RunReport
        One for each transform, in the order in which they began.
    """

    runs: tuple[RunReport, ...]

    def __repr__(self) -> str:
        return f"Report<{', '.join(run.title for run in self.runs)}>"

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.runs))

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs)

    def timeline(self) -> str:
        """Return the pictures (SVG) of all transforms, one after the other."""
        return "\n".join(run.timeline() for run in self.runs)


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = [cell.ljust(w) for cell, w in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(w) for cell, w in zip(row[2:], widths[2:], strict=True)]
        yield "  " + "  ".join([*texts, *numbers]).rstrip()
