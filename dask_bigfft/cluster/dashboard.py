"""The page ``/bigfft`` of the scheduler's dashboard.

From top to bottom: a table of the running and recent transforms; how far each round is; how fast
each phase is against the machine's profile; what each worker has done, and its memory against its
limit; how busy devices are, and their memory against their budget. A colour stands for a transform
in all of them. The page asks the scheduler's plugin twice a second and shows names and numbers
only.

Imports bokeh, distributed's dashboard and this room's words.
"""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import ColumnDataSource, Div, FactorRange, HoverTool, NumeralTickFormatter
from bokeh.plotting import figure
from distributed.dashboard.components.scheduler import env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dask_bigfft.planner.wording import human_bytes, human_count, human_seconds

__all__ = [
    "add_page",
    "balance_rows",
    "device_rows",
    "memory_rows",
    "menu_pages",
    "phase_bars",
    "runs_table",
    "stage_rows",
]

#: Runs that the figures show, and milliseconds between two looks at the scheduler.
SHOWN, REFRESH = 6, 500

#: Colours that most people can tell apart (Okabe and Ito, 2008), and a grey for what is left.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
GREY = "#BBBBBB"

State = Mapping[str, Any]
Columns = dict[str, list[Any]]


def menu_pages(scheduler: Any) -> list[str]:
    """Return the pages in the menu: one list for the whole dashboard, which may be changed."""
    pages: list[str] = template_variables(scheduler)["pages"]
    return pages


def add_page(scheduler: Any, prefix: str) -> None:
    """Add the page to a scheduler's web server."""
    variables = template_variables(scheduler)
    application = BokehApplication(
        {"/bigfft": page}, scheduler, prefix=prefix, template_variables=variables
    )
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def labels(state: State) -> dict[str, str]:
    """Return a short name for each run that is shown, the latest first.

    Runs of one kind are told apart by the beginning of their token.
    """
    shown = list(state["runs"])[::-1][:SHOWN]
    return {run["token"]: f"{run['name']} {run['token'][:6]}" for run in shown}


def colours(state: State) -> dict[str, str]:
    """Return the colour of each run: it stays the same while later ones come."""
    count = len(COLOURS)
    return {run["token"]: COLOURS[i % count] for i, run in enumerate(state["runs"])}


def runs_table(state: State) -> str:
    """Return the runs as an HTML table, the latest first."""
    names, paint = labels(state), colours(state)
    heads = (
        "transform",
        "array",
        "rounds",
        "state",
        "done",
        "GB/s",
        "GFLOP/s",
        "elapsed",
        "left",
        "memory needed",
        "limit",
    )
    rows = []
    for run in reversed(state["runs"]):
        if run["token"] not in names:
            continue
        total, limit = run["bytes_total"], run["memory_limit"]
        share = run["bytes_done"] / total if total else 0.0
        stage = f" ({run['stage']})" if run["state"] == "running" else ""
        cells = (
            names[run["token"]],
            f"{tuple(run['shape'])} {run['dtype']}, {human_bytes(run['nbytes'])}",
            run["rounds"],
            f"{run['state']}{stage}",
            f"{100 * share:.0f} % of {human_bytes(total)}",
            f"{run['bytes_per_second'] / 1e9:.2f}",
            f"{run['flops_per_second'] / 1e9:.2f}",
            human_seconds(run["elapsed"]),
            "" if run["left"] is None else human_seconds(run["left"]),
            human_bytes(run["forecast"]["peak_host"]),
            "not known" if limit is None else human_bytes(limit),
        )
        body = "".join(f"<td style='padding:2px 10px'>{escape(cell)}</td>" for cell in cells)
        edge = f"border-left:8px solid {paint[run['token']]}"
        rows.append(f"<tr data-token='{escape(run['token'])}' style='{edge}'>{body}</tr>")
    if not rows:
        return "<p>No transform has been seen yet.</p>"
    head = "".join(f"<th style='padding:2px 10px;text-align:left'>{h}</th>" for h in heads)
    return (
        f"<table id='bigfft-runs' style='border-collapse:collapse'><tr>{head}</tr>"
        + "".join(rows)
        + "</table>"
    )


def stage_rows(state: State) -> Columns:
    """Return a bar for each stage of each run: which part is done."""
    names, paint = labels(state), colours(state)
    found: Columns = {key: [] for key in ("y", "share", "text", "colour", "nbytes")}
    for run in reversed(state["runs"]):
        for stage in run["stages"] if run["token"] in names else ():
            found["y"].append((names[run["token"]], stage["label"]))
            found["share"].append(stage["done"] / stage["total"])
            found["text"].append(f"{stage['done']} of {stage['total']}")
            found["colour"].append(paint[run["token"]])
            found["nbytes"].append(human_bytes(stage["nbytes"]))
    return found


def phase_bars(state: State) -> Columns:
    """Return a bar for each phase of each run: GB/s of a thread, and by the profile."""
    names, paint = labels(state), colours(state)
    found: Columns = {key: [] for key in ("y", "speed", "limit", "colour", "nbytes", "seconds")}
    for run in reversed(state["runs"]):
        for phase in run["phases"] if run["token"] in names else ():
            found["y"].append((names[run["token"]], f"{phase['phase']} {phase['index']}"))
            found["speed"].append(phase["bytes_per_thread_second"] / 1e9)
            limit = phase["limit"]
            found["limit"].append(float("nan") if limit is None else limit / 1e9)
            found["colour"].append(paint[run["token"]])
            found["nbytes"].append(human_bytes(phase["nbytes"]))
            found["seconds"].append(human_seconds(phase["seconds"]))
    return found


def balance_rows(state: State) -> Columns:
    """Return a bar for each worker of each run: the bytes that it has made in rounds."""
    names, paint = labels(state), colours(state)
    workers = {worker["address"]: worker["name"] for worker in state["workers"]}
    found: Columns = {key: [] for key in ("y", "made", "colour", "seconds")}
    for run in reversed(state["runs"]):
        for address, done in run["balance"].items() if run["token"] in names else ():
            found["y"].append((names[run["token"]], workers.get(address, f"{address} (gone)")))
            found["made"].append(done["nbytes"])
            found["colour"].append(paint[run["token"]])
            found["seconds"].append(human_seconds(done["seconds"]))
    return found


def memory_rows(state: State) -> Columns:
    """Return a bar for each worker: its memory and what the arena keeps, against its limit."""
    found: Columns = {key: [] for key in ("y", "memory", "arena", "limit", "text", "devices")}
    for worker in state["workers"]:
        arena = worker["arena"].get("lent_bytes", 0) + worker["arena"].get("idle_bytes", 0)
        found["y"].append(worker["name"])
        found["memory"].append(worker["memory"])
        found["arena"].append(arena)
        limit = worker["memory_limit"]
        found["limit"].append(limit if limit else float("nan"))
        found["text"].append(human_bytes(worker["memory"]))
        devices = ", ".join(device["name"] for device in worker["devices"])
        found["devices"].append(
            f"{devices}: {worker['devices_in_use']} tasks" if devices else "none"
        )
    return found


def device_rows(state: State) -> Columns:
    """Return a bar for each device of each worker: how busy it is, and its memory of its budget."""
    found: Columns = {key: [] for key in ("y", "busy", "held", "memory", "budget", "tasks")}
    for worker in state["workers"]:
        for place, device in enumerate(worker["devices"]):
            found["y"].append((worker["name"], f"{device['name']} {place}"))
            found["busy"].append(device["busy_share"])
            found["held"].append(device["memory"] / device["budget"] if device["budget"] else 0.0)
            found["memory"].append(human_bytes(device["memory"]))
            found["budget"].append(human_bytes(device["budget"]))
            found["tasks"].append(worker["devices_in_use"])
    return found


def totals_text(state: State) -> str:
    """Return what all running transforms do together, or what is amiss, in a sentence."""
    going = [run for run in state["runs"] if run["state"] == "running"]
    other = [w for w in state["workers"] if w["version"] not in (None, state["version"])]
    if other:
        listed = ", ".join(f"{w['name']} ({w['version']})" for w in other)
        return f"Workers with another version than {state['version']} of dask_bigfft: {listed}."
    if not going:
        return "Nothing is being transformed."
    speed = human_count(sum(run["bytes_per_second"] for run in going), "B/s")
    work = human_count(sum(run["flops_per_second"] for run in going), "FLOP/s")
    count = len(going)
    return f"{count} transform{'' if count == 1 else 's'} running: {speed}, {work}."


# --- the page -------------------------------------------------------------------------------


class _Figure:
    """A figure with one bar for each row of a table that comes with a state."""

    def __init__(
        self,
        title: str,
        rows: Callable[[State], Columns],
        unit: str,
        hides: bool = False,
        levels: int = 2,
    ) -> None:
        self.hides = hides
        # Bokeh 3.10 cannot draw factors of two levels in a range that was empty before.
        self.nothing: Any = "" if levels == 1 else ("",) * levels
        self.rows, self.range = rows, FactorRange(factors=[self.nothing], range_padding=0.1)
        self.source = ColumnDataSource(rows({"runs": [], "workers": []}))
        self.figure = figure(
            title=title,
            y_range=self.range,
            height=320,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
            x_axis_label=unit,
        )
        self.figure.x_range.start = 0
        self.figure.ygrid.visible = False
        self.figure.yaxis.group_label_orientation = "horizontal"

    def bars(self, value: str, colour: str, height: float = 0.7) -> None:
        """Draw a column of the table as bars; `colour` is a colour or a column."""
        column_ = {"field": "colour"} if colour == "colour" else colour
        self.figure.hbar(
            y="y",
            right=value,
            height=height,
            source=self.source,
            fill_color=column_,
            line_color=None,
        )

    def marks(self, value: str) -> None:
        """Draw a column of the table as marks across the bars."""
        self.figure.scatter(
            x=value,
            y="y",
            source=self.source,
            marker="dash",
            angle=1.5708,
            size=20,
            line_color="black",
            line_width=2,
        )

    def update(self, state: State) -> None:
        """Show a new state."""
        found = self.rows(state)
        factors = found["y"][::-1] or [self.nothing]
        if list(self.range.factors) != factors:
            self.source.data = {key: [] for key in found}
            self.range.factors = factors
            rows = max(1, len(found["y"]))
            self.figure.height = 110 + 24 * rows
        self.figure.visible = bool(found["y"]) or not self.hides
        self.source.data = found


def _figures() -> list[_Figure]:
    stages = _Figure("Rounds: part that is done", stage_rows, "")
    stages.figure.x_range.end = 1
    stages.figure.xaxis.formatter = NumeralTickFormatter(format="0 %")
    stages.bars("share", "colour")
    stages.figure.add_tools(HoverTool(tooltips=[("blocks", "@text"), ("makes", "@nbytes")]))
    phases = _Figure(
        "Phases: GB/s of a thread (mark: by the machine's profile)", phase_bars, "GB/s"
    )
    phases.bars("speed", "colour")
    phases.marks("limit")
    phases.figure.add_tools(
        HoverTool(
            tooltips=[
                ("GB/s", "@speed{0.00}"),
                ("by the profile", "@limit{0.00}"),
                ("made", "@nbytes"),
                ("thread time", "@seconds"),
            ]
        )
    )
    balance = _Figure("Workers: made in rounds", balance_rows, "")
    balance.figure.xaxis.formatter = NumeralTickFormatter(format="0.0 b")
    balance.bars("made", "colour")
    balance.figure.add_tools(
        HoverTool(tooltips=[("made", "@made{0.00 b}"), ("thread time", "@seconds")])
    )
    memory = _Figure(
        "Workers: memory (dark: kept by the arena; mark: limit)", memory_rows, "", levels=1
    )
    memory.figure.xaxis.formatter = NumeralTickFormatter(format="0.0 b")
    memory.bars("memory", GREY)
    memory.bars("arena", "#555555", 0.35)
    memory.marks("limit")
    memory.figure.add_tools(
        HoverTool(
            tooltips=[("memory", "@text"), ("limit", "@limit{0.00 b}"), ("devices", "@devices")]
        )
    )
    devices = _Figure(
        "Devices: part of the time with work (dark: memory reserved, of what may be)",
        device_rows,
        "",
        hides=True,
    )
    devices.figure.x_range.end = 1
    devices.figure.xaxis.formatter = NumeralTickFormatter(format="0 %")
    devices.bars("busy", COLOURS[2])
    devices.bars("held", "#555555", 0.35)
    devices.figure.add_tools(
        HoverTool(
            tooltips=[
                ("busy", "@busy{0 %}"),
                ("memory", "@memory of @budget"),
                ("tasks on the worker's devices", "@tasks"),
            ]
        )
    )
    return [stages, phases, balance, memory, devices]


def page(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    """Fill one visitor's document, and keep it up to date."""
    summary = Div(text="", sizing_mode="stretch_width")
    table = Div(text="", sizing_mode="stretch_width")
    figures = _figures()

    def refresh() -> None:
        plugin = scheduler.plugins.get("bigfft")
        if plugin is None:
            summary.text = "Nobody watches transforms here any more."
            return
        state = plugin.state()
        summary.text = f"<b>{escape(totals_text(state))}</b>"
        text = runs_table(state)
        if table.text != text:
            table.text = text
        for found in figures:
            found.update(state)

    refresh()
    stages, phases, balance, memory, devices = (found.figure for found in figures)
    doc.title = "Dask: bigfft"
    doc.add_root(
        column(
            summary,
            table,
            row(stages, phases, sizing_mode="stretch_width"),
            row(balance, memory, sizing_mode="stretch_width"),
            row(devices, sizing_mode="stretch_width"),
            sizing_mode="stretch_width",
            name="bigfft",
        )
    )
    doc.add_periodic_callback(refresh, REFRESH)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
