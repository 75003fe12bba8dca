"""The scheduler's routes: the page ``/bigfft``, ``/bigfft/json``, and gauges on ``/metrics``.

They are added to the web server that the scheduler has already, so its prefix, TLS and address
hold for them, and nothing else listens. They give out names and numbers, and take nothing in.
Bokeh and prometheus_client are optional: without one, its route is left out.

Imports this room.
"""

import re
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from distributed.http.utils import RequestHandler

try:
    import prometheus_client
    from prometheus_client.core import GaugeMetricFamily
except ImportError:
    prometheus_client = None  # type: ignore[assignment, unused-ignore]
try:
    from dask_bigfft.cluster.dashboard import add_page, menu_pages
except ImportError:  # without bokeh
    add_page = None  # type: ignore[assignment, unused-ignore]

__all__ = ["PLUGIN", "add_routes", "http_prefix", "remove_routes"]

#: Name of the scheduler's plugin, which the routes ask.
PLUGIN = "bigfft"


def http_prefix(scheduler: Any) -> str:
    """Return the prefix of a scheduler's routes, such as ``"/jupyter/dask"``, or ``""``.

    The scheduler does not keep it: it is read off the route that every scheduler has.
    """
    application = scheduler.http_application
    for router in (application.wildcard_router, application.default_router):
        for rule in router.rules:
            for inner in getattr(rule.target, "rules", [rule]):
                pattern = getattr(getattr(inner.matcher, "regex", None), "pattern", "")
                found = re.fullmatch(r"(.*)/health\$?", pattern)
                if found:
                    return found[1]
    return ""


class State(RequestHandler):  # type: ignore[misc, unused-ignore]
    """All runs and workers as JSON; 404 where nobody watches any more."""

    def get(self) -> None:
        """Answer a request."""
        plugin = self.server.plugins.get(PLUGIN)
        if plugin is None:
            self.send_error(404)
        else:
            self.write(plugin.state())


class Routes:
    """That a scheduler has our routes: a web server cannot lose them again."""


def add_routes(scheduler: Any) -> None:
    """Add the routes to a scheduler's web server, if it has not got them."""
    if PLUGIN not in scheduler.extensions:
        scheduler.extensions[PLUGIN] = Routes()
        prefix = http_prefix(scheduler)
        route = (rf"{prefix}/bigfft/json", State, {"dask_server": scheduler})
        scheduler.http_application.add_handlers(".*$", [route])
        if add_page is not None and scheduler.http_application.applications:
            add_page(scheduler, prefix)
    _menu(scheduler, shown=True)
    if prometheus_client is not None:
        _gauges().schedulers.add(scheduler)


def remove_routes(scheduler: Any) -> None:
    """Take the page out of the menu; from now on the routes have nothing to give out."""
    _menu(scheduler, shown=False)
    if prometheus_client is not None:
        _gauges().schedulers.discard(scheduler)


def _menu(scheduler: Any, *, shown: bool) -> None:
    """Show or hide the page in the menu of every page of the dashboard."""
    if add_page is None or not scheduler.http_application.applications:
        return
    pages = menu_pages(scheduler)
    if shown and PLUGIN not in pages:
        pages.append(PLUGIN)
    elif not shown and PLUGIN in pages:
        pages.remove(PLUGIN)


class Gauges:
    """Gauges of all schedulers of this process, for Prometheus."""

    def __init__(self) -> None:
        self.schedulers: WeakSet[Any] = WeakSet()

    def collect(self) -> Iterator[Any]:
        """Give the gauges as they are now."""
        runs, phases, arenas, devices = (
            self._families(kind) for kind in ("run", "phase", "arena", "device")
        )
        for scheduler in self.schedulers:
            plugin = scheduler.plugins.get(PLUGIN)
            if plugin is None:
                continue
            state = plugin.state()
            for run in state["runs"]:
                labels = [run["token"], run["name"], run["state"]]
                total = run["bytes_total"]
                share = run["bytes_done"] / total if total else 0.0
                runs["share"].add_metric(labels, share)
                runs["left_seconds"].add_metric(labels, run["left"] or 0.0)
                runs["bytes_per_second"].add_metric(labels, run["bytes_per_second"])
                runs["flops_per_second"].add_metric(labels, run["flops_per_second"])
                for row in run["phases"]:
                    labels = [run["token"], row["phase"], str(row["index"])]
                    phases["bytes"].add_metric(labels, row["nbytes"])
                    phases["thread_seconds"].add_metric(labels, row["seconds"])
            for worker in state["workers"]:
                for name in ("lent_bytes", "idle_bytes"):
                    nbytes = worker["arena"].get(name, 0)
                    arenas[name].add_metric([worker["address"]], nbytes)
                for place, device in enumerate(worker["devices"]):
                    labels = [worker["address"], str(place), device["name"]]
                    for name in devices:
                        devices[name].add_metric(labels, device[name.removesuffix("_bytes")])
        for families in (runs, phases, arenas, devices):
            yield from families.values()

    @staticmethod
    def _families(kind: str) -> dict[str, Any]:
        names, labels = {
            "run": (
                ("share", "left_seconds", "bytes_per_second", "flops_per_second"),
                ("plan", "name", "state"),
            ),
            "phase": (("bytes", "thread_seconds"), ("plan", "phase", "index")),
            "arena": (("lent_bytes", "idle_bytes"), ("worker",)),
            "device": (
                ("busy_share", "memory_bytes", "budget_bytes"),
                ("worker", "device", "name"),
            ),
        }[kind]
        text = {
            "share": "Part of a transform that is done",
            "left_seconds": "Time it will still take",
            "bytes_per_second": "Bytes made so far by time elapsed",
            "flops_per_second": "Floating point operations so far by time elapsed",
            "bytes": "Bytes that a phase has made",
            "thread_seconds": "Time of a phase by threads",
            "lent_bytes": "Memory of the arena in use",
            "idle_bytes": "Memory kept for reuse",
            "busy_share": "Part of the time in which a device had work, since the last heartbeat",
            "memory_bytes": "Memory reserved on a device",
            "budget_bytes": "Memory that may be",
        }
        return {
            name: GaugeMetricFamily(f"bigfft_{kind}_{name}", text[name], labels=labels)
            for name in names
        }


_registered: list[Gauges] = []


def _gauges() -> Gauges:
    """Return the gauges of this process; a registry takes each name once."""
    if not _registered:
        _registered.append(Gauges())
        prometheus_client.REGISTRY.register(_registered[0])
    return _registered[0]
