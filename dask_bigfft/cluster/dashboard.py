"""The page ``/bigfft`` of the scheduler's dashboard.

From top to bottom, the page shows:

- the colours of the phases;
- each running or recent transform, with its progress, the time of each phase, compared with that
  by the machine's profile where there is one, and the work of each worker;
- the memory of workers and its limit, and the load of devices, their memory and its budget.

It queries the scheduler's plugin twice a second and shows names and numbers only.
"""

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from bokeh.models import Column, Div
from dask.utils import format_bytes, format_time
from distributed.dashboard.components.scheduler import env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dask_bigfft.planner.explain import human_count, speed_text
from dask_bigfft.watch.progress import run_html
from dask_bigfft.watch.report import COLOURS, legend

#: Maximum number of runs on the page, and milliseconds between two updates.
SHOWN = 6
REFRESH = 500

#: Colours of parts of a round, of memory, and of bars inside.
PART = "#A6CEE3"
GREY = "#BBBBBB"
DARK = "#555555"


def add_page(scheduler: Any, prefix: str) -> None:
    """Add the page to a scheduler's web server."""
    variables = template_variables(scheduler)
    application = BokehApplication(
        {"/bigfft": page},
        scheduler,
        prefix,
        variables,
    )
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def page(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    """Fill the document of one visitor, and update it.

    Each section is an element of its own, so that an unchanged one stays open or closed.
    """
    sections = [Div(sizing_mode="stretch_width") for _ in range(SHOWN + 2)]

    def refresh() -> None:
        plugin = scheduler.plugins.get("bigfft")
        texts = ["Transforms are no longer followed here."]
        if plugin is not None:
            texts = page_html(plugin.state())
        texts += [""] * (len(sections) - len(texts))
        for section, text in zip(sections, texts, strict=True):
            section.text = text

    refresh()
    doc.title = "Dask: bigfft"
    doc.add_root(Column(*sections, sizing_mode="stretch_width"))
    doc.add_periodic_callback(refresh, REFRESH)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


class Bar(NamedTuple):
    """A bar: its name and length, a text, its colour, a dark bar inside, and a mark across it."""

    name: str
    value: float
    text: str
    colour: str = GREY
    inside: float = 0.0
    mark: float | None = None


def bars_html(title: str, bars: list[Bar], most: float = 0.0) -> str:
    """Return a table of bars, as long as `most` or the longest of them; nothing without bars.

    A mark beyond that is drawn at the end.
    """
    if not bars:
        return ""
    longest = max(max(bar.value, bar.mark or 0.0) for bar in bars)
    most = most or longest or 1.0
    part = '<div style="position:absolute;left:0;top:{}px;height:{}px;width:{:.1f}%;{}"></div>'
    rows = []
    for bar in bars:
        drawn = part.format(
            0,
            14,
            100 * bar.value / most,
            f"background:{bar.colour}",
        )
        drawn += part.format(
            4,
            6,
            100 * bar.inside / most,
            f"background:{DARK}",
        )
        if bar.mark is not None:
            drawn += part.format(
                0,
                14,
                min(100.0, 100 * bar.mark / most),
                "border-right:2px solid black",
            )
        rows.append(
            f'<tr style="white-space:nowrap"><td>{escape(bar.name)}</td><td style="width:45%">'
            f'<div style="position:relative;height:14px">{drawn}</div></td>'
            f"<td>{escape(bar.text)}</td></tr>"
        )
    return f'<p>{escape(title)}</p><table style="width:100%">{"".join(rows)}</table>'


def side_by_side(*parts: str) -> str:
    """Return parts of a page from left to right, in more lines where the page is narrow."""
    columns = "".join(f'<div style="flex:1 1 400px">{part}</div>' for part in parts if part)
    return f'<div style="width:96vw;display:flex;flex-wrap:wrap;gap:0 3em">{columns}</div>'


def page_html(state: Mapping[str, Any]) -> list[str]:
    """Return the sections of a page: totals and colours, the latest runs, and the workers.

    There are at most `SHOWN` runs, the latest one first.
    Earlier runs that have ended are folded.
    """
    workers = {worker["address"]: worker["name"] for worker in state["workers"]}
    colours = "".join(legend([*COLOURS.items(), ("part of a round", PART)]))
    totals = escape(totals_text(state))
    sections = [f'<b>{totals}</b><br><svg width="600" height="22">{colours}</svg>']
    for number, run in enumerate(reversed(state["runs"][-SHOWN:])):
        is_open = run["state"] == "running" or number == 0
        sections.append(section_html(run, workers, is_open))
    if not state["runs"]:
        sections.append("<p>No transform has been seen yet.</p>")
    memory = [memory_bar(worker) for worker in state["workers"]]
    devices = [bar for worker in state["workers"] for bar in device_bars(worker)]
    memory_title = "Workers: memory (dark: kept by the arena; mark: limit)"
    devices_title = "Devices: part of the time with work (dark: memory reserved, of what may be)"
    sections.append(
        side_by_side(
            bars_html(memory_title, memory),
            bars_html(devices_title, devices, most=1.0),
        )
    )
    return sections


def section_html(run: Mapping[str, Any], workers: Mapping[str, str], is_open: bool) -> str:
    """Return the section of a run, which is folded unless it is open."""
    times = phases(run)
    longest = max((bar.value for bar in times), default=0.0)
    times_title = "Phases: time of all threads, speed of a thread"
    if any(bar.mark for bar in times):
        times_title += " (mark: time by the profile)"
    columns = side_by_side(
        run_html(run),
        bars_html(times_title, times, most=longest),
        bars_html("Workers: made in rounds", balance(run, workers)),
    )
    return (
        f'<section data-token="{escape(run["token"])}">'
        f"<details{' open' if is_open else ''}>"
        f"<summary><b>{escape(run['name'])} {escape(run['token'][:6])}</b>, "
        f"{escape(run['state'])}</summary>{columns}</details></section>"
    )


def totals_text(state: Mapping[str, Any]) -> str:
    """Return the total speed of running transforms, or a warning, in a sentence."""
    version = state["version"]
    others = [worker for worker in state["workers"] if worker["version"] not in (None, version)]
    if others:
        names = ", ".join(f"{worker['name']} ({worker['version']})" for worker in others)
        return f"Workers with another version than {version} of dask_bigfft: {names}."
    running = [run for run in state["runs"] if run["state"] == "running"]
    if not running:
        return "Nothing is being transformed."
    noun = "transform" if len(running) == 1 else "transforms"
    speed = speed_text(sum(run["bytes_per_second"] for run in running))
    work = human_count(sum(run["flops_per_second"] for run in running), "FLOP/s")
    return f"{len(running)} {noun} running: {speed}, {work}."


def work_text(work: Mapping[str, Any]) -> str:
    """Return the bytes and seconds of a phase or worker as text."""
    return f"{format_bytes(work['nbytes'])} in {format_time(work['seconds'])}"


def phases(run: Mapping[str, Any]) -> list[Bar]:
    """Return a bar for each phase of a run: its seconds, and those by the profile as a mark.

    A fast phase has a short bar. Bars of speeds would be dwarfed by the fastest one. The
    ``"limit"`` of a phase is the profile's speed in bytes per second.
    """
    bars = []
    for phase in run["phases"]:
        speed = speed_text(phase["bytes_per_thread_second"])
        limit = phase["limit"]
        bars.append(
            Bar(
                name=f"{phase['phase']} {phase['index']}",
                value=phase["seconds"],
                text=f"{work_text(phase)}: {speed}",
                colour=COLOURS.get(phase["phase"], PART),
                mark=phase["nbytes"] / limit if limit else None,
            )
        )
    return bars


def balance(run: Mapping[str, Any], workers: Mapping[str, str]) -> list[Bar]:
    """Return a bar for each worker of a run: the bytes of its rounds."""
    bars = []
    for address, work in run["balance"].items():
        name = workers.get(address, f"{address} (gone)")
        bars.append(
            Bar(
                name,
                work["nbytes"],
                work_text(work),
                COLOURS["round"],
            )
        )
    return bars


def memory_bar(worker: Mapping[str, Any]) -> Bar:
    """Return a bar with the memory of a worker, of its arena, and the limit."""
    arena = worker["arena"]
    arena_nbytes = arena.get("allocated_bytes", 0) + arena.get("idle_bytes", 0)
    limit = worker["memory_limit"] or None
    memory = worker["memory"]
    text = format_bytes(memory)
    if limit is not None:
        text += f" of {format_bytes(limit)}"
    return Bar(
        worker["name"],
        memory,
        text,
        inside=arena_nbytes,
        mark=limit,
    )


def device_bars(worker: Mapping[str, Any]) -> list[Bar]:
    """Return a bar for each device of a worker: its load, its memory and the budget."""
    bars = []
    for place, device in enumerate(worker["devices"]):
        memory = device["memory"]
        budget = device["budget"]
        used = f"{format_bytes(memory)} of {format_bytes(budget)}"
        tasks = worker["devices_in_use"]
        text = f"{100 * device['busy_share']:.0f} %, {used}, {tasks} tasks on the worker's devices"
        name = f"{worker['name']}: {device['name']} {place}"
        memory_share = memory / budget if budget else 0.0
        bars.append(
            Bar(
                name,
                device["busy_share"],
                text,
                inside=memory_share,
            )
        )
    return bars
