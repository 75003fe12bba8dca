"""The page ``/bigfft`` of the scheduler's dashboard.

From top to bottom, the page shows:

- each running or recent transform, with its progress, the speed of each phase compared with the
  machine's profile, and the work of each worker;
- the memory of workers and its limit;
- the load of devices, their memory and its budget.

It queries the scheduler's plugin twice a second and shows names and numbers only.
"""

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from bokeh.models import Div
from distributed.dashboard.components.scheduler import env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dask_bigfft.planner.explain import human_bytes, human_count, human_seconds
from dask_bigfft.watch.progress import run_html
from dask_bigfft.watch.report import COLOURS

#: Number of runs on the page, and milliseconds between two updates.
SHOWN, REFRESH = 6, 500

#: Greys for memory.
GREY, DARK = "#BBBBBB", "#555555"


def add_page(scheduler: Any, prefix: str) -> None:
    """Add the page to a scheduler's web server."""
    variables = template_variables(scheduler)
    application = BokehApplication({"/bigfft": page}, scheduler, prefix, variables)
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def page(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    """Fill the document of one visitor, and update it."""
    shown = Div(text="", sizing_mode="stretch_width", name="bigfft")

    def refresh() -> None:
        plugin = scheduler.plugins.get("bigfft")
        gone = "Nobody watches transforms here any more."
        shown.text = gone if plugin is None else page_html(plugin.state())

    refresh()
    doc.title = "Dask: bigfft"
    doc.add_root(shown)
    doc.add_periodic_callback(refresh, REFRESH)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


class Bar(NamedTuple):
    """A bar: its name and length, a text, its colour, a dark bar inside, and a mark across it."""

    name: str
    value: float
    text: str
    colour: str
    inside: float = 0.0
    mark: float | None = None


def bars_html(title: str, bars: list[Bar], most: float = 0.0) -> str:
    """Return a table of bars, as long as `most` or the longest of them; nothing without bars."""
    if not bars:
        return ""
    most = most or max(max(bar.value, bar.mark or 0.0) for bar in bars) or 1.0
    part = '<div style="position:absolute;left:0;top:{}px;height:{}px;width:{:.1f}%;{}"></div>'
    rows = []
    for bar in bars:
        drawn = part.format(0, 14, 100 * bar.value / most, f"background:{bar.colour}")
        drawn += part.format(4, 6, 100 * bar.inside / most, f"background:{DARK}")
        if bar.mark is not None:
            drawn += part.format(0, 14, 100 * bar.mark / most, "border-right:2px solid black")
        rows.append(
            f'<tr><td>{escape(bar.name)}</td><td style="width:320px">'
            f'<div style="position:relative;height:14px">{drawn}</div></td>'
            f"<td>{escape(bar.text)}</td></tr>"
        )
    return f"<p>{escape(title)}</p><table>{''.join(rows)}</table>"


def page_html(state: Mapping[str, Any]) -> str:
    """Return the page of a state, the latest run first; each run keeps its colour.

    Of earlier runs that have ended, only a line is open.
    """
    runs = list(enumerate(state["runs"]))[: -SHOWN - 1 : -1]
    workers = {worker["address"]: worker["name"] for worker in state["workers"]}
    parts = [f"<p><b>{escape(totals_text(state))}</b></p>"]
    for place, run in runs:
        colour = COLOURS[place % len(COLOURS)]
        parts.append(
            f'<section data-token="{escape(run["token"])}" '
            f'style="border-left:8px solid {colour};padding-left:8px">'
            f"<details{' open' if run['state'] == 'running' or place == runs[0][0] else ''}>"
            f"<summary><b>{escape(run['name'])} {escape(run['token'][:6])}</b>, "
            f"{escape(run['state'])}</summary>{run_html(run)}"
            + bars_html("Phases: speed of a thread (mark: by the profile)", phases(run, colour))
            + bars_html("Workers: made in rounds", balance(run, workers, colour))
            + "</details></section>"
        )
    if not runs:
        parts.append("<p>No transform has been seen yet.</p>")
    found = state["workers"]
    memory = [memory_bar(worker) for worker in found]
    parts.append(bars_html("Workers: memory (dark: kept by the arena; mark: limit)", memory))
    devices = [bar for worker in found for bar in device_bars(worker)]
    title = "Devices: part of the time with work (dark: memory reserved, of what may be)"
    return "".join([*parts, bars_html(title, devices, most=1.0)])


def totals_text(state: Mapping[str, Any]) -> str:
    """Return the total speed of running transforms, or a warning, in a sentence."""
    going = [run for run in state["runs"] if run["state"] == "running"]
    other = [w for w in state["workers"] if w["version"] not in (None, state["version"])]
    if other:
        listed = ", ".join(f"{w['name']} ({w['version']})" for w in other)
        return f"Workers with another version than {state['version']} of dask_bigfft: {listed}."
    if not going:
        return "Nothing is being transformed."
    speed = human_count(sum(run["bytes_per_second"] for run in going), "B/s")
    work = human_count(sum(run["flops_per_second"] for run in going), "FLOP/s")
    return f"{len(going)} transform{'s' * (len(going) > 1)} running: {speed}, {work}."


def phases(run: Mapping[str, Any], colour: str) -> list[Bar]:
    """Return a bar for each phase of a run: bytes per second of a thread, and by the profile."""
    return [
        Bar(
            f"{phase['phase']} {phase['index']}",
            phase["bytes_per_thread_second"],
            f"{human_count(phase['bytes_per_thread_second'], 'B/s')}: "
            f"{human_bytes(phase['nbytes'])} in {human_seconds(phase['seconds'])}",
            colour,
            mark=phase["limit"],
        )
        for phase in run["phases"]
    ]


def balance(run: Mapping[str, Any], workers: Mapping[str, str], colour: str) -> list[Bar]:
    """Return a bar for each worker of a run: the bytes of its rounds."""
    return [
        Bar(
            workers.get(address, f"{address} (gone)"),
            done["nbytes"],
            f"{human_bytes(done['nbytes'])} in {human_seconds(done['seconds'])}",
            colour,
        )
        for address, done in run["balance"].items()
    ]


def memory_bar(worker: Mapping[str, Any]) -> Bar:
    """Return a bar with the memory of a worker, of its arena, and the limit."""
    arena = worker["arena"].get("allocated_bytes", 0) + worker["arena"].get("idle_bytes", 0)
    limit, memory = worker["memory_limit"] or None, worker["memory"]
    text = human_bytes(memory) + (f" of {human_bytes(limit)}" if limit else "")
    return Bar(worker["name"], memory, text, GREY, arena, limit)


def device_bars(worker: Mapping[str, Any]) -> list[Bar]:
    """Return a bar for each device of a worker: its load, its memory and the budget."""
    bars = []
    for place, device in enumerate(worker["devices"]):
        memory, budget = device["memory"], device["budget"]
        text = (
            f"{100 * device['busy_share']:.0f} %, {human_bytes(memory)} of {human_bytes(budget)}, "
            f"{worker['devices_in_use']} tasks on the worker's devices"
        )
        name = f"{worker['name']}: {device['name']} {place}"
        held = memory / budget if budget else 0.0
        bars.append(Bar(name, device["busy_share"], text, COLOURS[2], held))
    return bars
