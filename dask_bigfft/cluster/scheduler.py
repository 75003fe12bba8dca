"""The scheduler's plugin: progress of runs, measurements of workers, and routes that serve them.

The plugin reads graphs when they arrive, counts finished tasks, and collects the workers' counters
from their heartbeats. It serves names and numbers to clients, to the page ``/bigfft``, to
``/bigfft/json``, and as gauges for Prometheus.

Routes are added to the scheduler's web server, so its prefix, TLS and address apply, and no other
port is opened. The routes are read-only. Bokeh and prometheus_client are optional; without them
their routes are missing. This file uses private parts of distributed: handlers, routers, and the
metrics of workers. `dashboard` uses its Bokeh application.
"""

import contextlib
import functools
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakSet

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.http.utils import RequestHandler

from dask_bigfft.carriers.names import PLAN_NAME
from dask_bigfft.cluster.worker import METRIC
from dask_bigfft.config import own_version
from dask_bigfft.events import PlanRecord, Total
from dask_bigfft.gpu import dispatch
from dask_bigfft.memory.paused import watch_scheduler
from dask_bigfft.watch.progress import Board, PlanProgress
from dask_bigfft.watch.report import RunReport

try:
    import prometheus_client
    from prometheus_client.core import GaugeMetricFamily
except ImportError:
    prometheus_client = None  # type: ignore[assignment, unused-ignore]
try:
    from distributed.dashboard.scheduler import template_variables

    from dask_bigfft.cluster import dashboard
except ImportError:  # without bokeh
    dashboard = None  # type: ignore[assignment, unused-ignore]


class WatchScheduler(SchedulerPlugin):  # type: ignore[misc, unused-ignore]
    """Plugin that follows transforms on a scheduler."""

    name = METRIC
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Start to follow runs, to answer clients, and to show the page."""
        self.scheduler = scheduler
        self.board = Board()
        #: `Record.counters` by address, also of workers that have left.
        self.seen: dict[str, dict[str, list[list[Any]]]] = {}
        scheduler.handlers["bigfft_state"] = self.state
        add_routes(scheduler)
        watch_scheduler(scheduler)
        if prometheus_client is not None:
            _export()
            _exported.add(self)

    async def close(self) -> None:
        """Stop answering clients, and remove the page from the menu; the routes serve nothing."""
        self.scheduler.handlers.pop("bigfft_state", None)
        with contextlib.suppress(ValueError):
            _menu(self.scheduler).remove(METRIC)
        _exported.discard(self)

    def update_graph(self, scheduler: Any, *, keys: Iterable[Any], **kwargs: Any) -> None:
        """Add a graph before its tasks run."""
        self.board.expect(to_run(scheduler.tasks, keys))

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Record the new state of a task."""
        self.board.take(key, finish)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Keep the measurements of a leaving worker."""
        self._collect()

    def _collect(self) -> None:
        """Read the workers' last heartbeats."""
        for address, worker in self.scheduler.workers.items():
            metrics = worker.metrics.get(METRIC, {})
            plans = self.seen.setdefault(address, {})
            plans.update(metrics.get("counters", {}))
        # Runs that are no longer followed are forgotten, and workers without any.
        followed = self.board.runs
        seen = {}
        for address, plans in self.seen.items():
            if plans:
                seen[address] = {token: plans[token] for token in plans if token in followed}
        self.seen = seen

    def state(self) -> dict[str, Any]:
        """Return all runs, the latest last, and all workers, as names and numbers."""
        self._collect()
        workers = []
        for address, worker in self.scheduler.workers.items():
            workers.append(self._worker(address, worker))
        return {
            "time": time.time(),
            "version": own_version(),
            "runs": [self._run(run) for run in self.board.runs.values()],
            "workers": workers,
        }

    def _run(self, run: PlanProgress) -> dict[str, Any]:
        """Return the summary of a run, with its phases and the work of each worker in rounds."""
        records: dict[str, PlanRecord] = {}
        for address, plans in self.seen.items():
            if run.token in plans:
                records[address] = _record_of(plans[run.token])
        report = RunReport(run.plan, run.token, records)
        balance = {}
        for address, record in records.items():
            nbytes = 0
            seconds = 0.0
            for (name, _), total in record.totals.items():
                if name == "round":
                    nbytes += total.nbytes
                    seconds += total.seconds
            balance[address] = {
                "nbytes": nbytes // report.runs,
                "seconds": seconds / report.runs,
            }
        phases = []
        for row in report.rows:
            phase = asdict(row)
            phase["bytes_per_thread_second"] = row.bytes_per_thread_second
            phases.append(phase)
        return {
            **run.summary(),
            "phases": phases,
            "balance": balance,
        }

    def _worker(self, address: str, worker: Any) -> dict[str, Any]:
        """Return what is known about a worker, by its last heartbeat."""
        metrics = worker.metrics.get(METRIC, {})
        devices = worker.metrics.get(dispatch.METRIC, {})
        return {
            "address": address,
            "name": str(worker.name),
            "threads": worker.nthreads,
            "memory": int(worker.metrics.get("memory", 0)),
            "memory_limit": int(worker.memory_limit or 0),
            "version": metrics.get("version"),
            "arena": metrics.get("arena", {}),
            "devices": devices.get("devices", []),
            "devices_in_use": devices.get("in_use", 0),
        }


def _record_of(rows: Iterable[list[Any]]) -> PlanRecord:
    """Return the measurements of a plan from rows of name, index and sums, as in a heartbeat."""
    totals = {}
    for name, index, *sums in rows:
        totals[name, index] = Total(*sums)
    return PlanRecord(totals)


def to_run(tasks: Mapping[Any, Any], results: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return key and specification of the tasks that will run to compute results.

    Results in memory, such as those of `persist`, and the tasks before them do not run again. If
    they were counted, a run would never be complete. A plan is listed even if it is in memory,
    because a run is recognised by it; it is found only from a task that will run.

    Parameters
    ----------
    tasks : mapping
        The scheduler's tasks.
    results : iterable of keys
        Results requested by a client.
    """
    specifications: dict[Any, Any] = {}
    pending = list(results)
    while pending:
        key = pending.pop()
        task = tasks.get(key)
        if task is None or key in specifications:
            continue
        if task.state != "memory" or str(key).startswith(PLAN_NAME):
            specifications[key] = task.run_spec
            pending += [dependency.key for dependency in task.dependencies]
    return list(specifications.items())


# --- routes ---------------------------------------------------------------------------------

#: Schedulers whose web server has the routes, which cannot be removed.
_routed: WeakSet[Any] = WeakSet()


def http_prefix(scheduler: Any) -> str:
    """Return the prefix of a scheduler's routes, such as ``"/jupyter/dask"``, or ``""``.

    The scheduler does not store the prefix, so it is taken from a route that every scheduler has.
    """
    application = scheduler.http_application
    for router in (application.wildcard_router, application.default_router):
        for rule in router.rules:
            for inner in getattr(rule.target, "rules", [rule]):
                pattern = getattr(getattr(inner.matcher, "regex", None), "pattern", "")
                match = re.fullmatch(r"(.*)/health\$?", pattern)
                if match:
                    return match[1]
    return ""


class State(RequestHandler):  # type: ignore[misc, unused-ignore]
    """Route with all runs and workers as JSON; 404 without the plugin."""

    def get(self) -> None:
        """Answer a request."""
        plugin = self.server.plugins.get(METRIC)
        if plugin is None:
            self.send_error(404)
        else:
            self.write(plugin.state())


def _menu(scheduler: Any) -> list[str]:
    """Return the mutable list of pages in the dashboard's menu; empty without a dashboard."""
    if dashboard is None or not scheduler.http_application.applications:
        return []
    pages: list[str] = template_variables(scheduler)["pages"]
    return pages


def add_routes(scheduler: Any) -> None:
    """Add the routes to a scheduler's web server, unless it has them."""
    pages = _menu(scheduler)
    if scheduler not in _routed:
        _routed.add(scheduler)
        prefix = http_prefix(scheduler)
        route = (rf"{prefix}/bigfft/json", State, {"dask_server": scheduler})
        scheduler.http_application.add_handlers(".*$", [route])
        if pages:
            dashboard.add_page(scheduler, prefix)
    if METRIC not in pages:
        pages.append(METRIC)


def samples(state: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], dict[str, float]]]:
    """Yield kind, labels and values of gauges."""
    for run in state["runs"]:
        total = run["bytes_total"]
        labels = {
            "plan": run["token"],
            "name": run["name"],
            "state": run["state"],
        }
        values = {
            "bytes_per_second": run["bytes_per_second"],
            "flops_per_second": run["flops_per_second"],
            "share": run["bytes_done"] / total if total else 0.0,
            "left_seconds": run["left"] or 0.0,
        }
        yield "run", labels, values
        for phase in run["phases"]:
            labels = {
                "plan": run["token"],
                "phase": phase["phase"],
                "index": str(phase["index"]),
            }
            values = {
                "bytes": phase["nbytes"],
                "thread_seconds": phase["seconds"],
            }
            yield "phase", labels, values
    for worker in state["workers"]:
        labels = {"worker": worker["address"]}
        values = {
            "allocated_bytes": worker["arena"].get("allocated_bytes", 0),
            "idle_bytes": worker["arena"].get("idle_bytes", 0),
        }
        yield "arena", labels, values
        for place, device in enumerate(worker["devices"]):
            labels = {
                "worker": worker["address"],
                "device": str(place),
                "name": device["name"],
            }
            values = {
                "busy_share": device["busy_share"],
                "memory_bytes": device["memory"],
                "budget_bytes": device["budget"],
            }
            yield "device", labels, values


#: Plugins of all schedulers of this process whose gauges Prometheus gets.
_exported: WeakSet[WatchScheduler] = WeakSet()


class Gauges:
    """Gauges of all schedulers of this process, for Prometheus."""

    def collect(self) -> Iterable[Any]:
        """Return the current gauges."""
        families: dict[str, Any] = {}
        states = [plugin.state() for plugin in tuple(_exported)]
        for kind, labels, values in itertools.chain.from_iterable(map(samples, states)):
            for name, value in values.items():
                title = f"bigfft_{kind}_{name}"
                if title not in families:
                    text = f"{kind}: {name}".replace("_", " ")
                    families[title] = GaugeMetricFamily(title, text, labels=list(labels))
                family = families[title]
                family.add_metric(list(labels.values()), value)
        return families.values()


@functools.cache
def _export() -> None:
    """Register the gauges of this process; a registry takes each name once."""
    prometheus_client.REGISTRY.register(Gauges())
