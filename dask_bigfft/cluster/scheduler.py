"""What the scheduler knows of transforms: how far each run is, and what workers have measured.

The plugin looks at graphs when they arrive, counts tasks as they end, and gathers the workers'
counters from their heartbeats. It gives all of it out as names and numbers: to clients, to the
page, to the JSON route and to Prometheus.

Imports `watch` and this room.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_bigfft.cluster.devices import StreamWorkerPlugin
from dask_bigfft.cluster.routes import add_routes, remove_routes
from dask_bigfft.cluster.worker import METRIC, own_version
from dask_bigfft.graph.names import PLAN_NAME
from dask_bigfft.planner.phases import phase_forecasts
from dask_bigfft.record import WATCHED
from dask_bigfft.watch.meter import Board, Meter

__all__ = ["WatchScheduler"]

#: Totals by phase: count, bytes, seconds, first, last.
Counters = dict[str, list[float]]


class WatchScheduler(SchedulerPlugin):  # type: ignore[misc, unused-ignore]
    """Follows transforms on a scheduler.

    Parameters
    ----------
    version : str
        Of the package, where the client is.
    """

    name = METRIC
    idempotent = True

    def __init__(self, version: str) -> None:
        self.version = version

    async def start(self, scheduler: Any) -> None:
        """Begin to look, answer clients, and show the page."""
        self.scheduler = scheduler
        self.board = Board(time.time)
        #: By address of a worker, also of one that has gone, and token of a plan.
        self.seen: dict[str, dict[str, Counters]] = {}
        self.baselines: dict[str, dict[str, Counters]] = {}
        scheduler.handlers["bigfft_state"] = self.answer
        add_routes(scheduler)

    async def close(self) -> None:
        """Stop answering."""
        self.scheduler.handlers.pop("bigfft_state", None)
        remove_routes(self.scheduler)

    async def answer(self, tokens: list[str] | None = None) -> dict[str, Any]:
        """Return the state of all runs, or those of some plans, to a client."""
        return self.state(None if tokens is None else set(tokens))

    # --- hooks ------------------------------------------------------------------------------

    def update_graph(self, scheduler: Any, *, keys: Iterable[Any], **kwargs: Any) -> None:
        """Take in a graph before its tasks run."""
        for meter in self.board.expect(to_run(scheduler.tasks, keys)):
            self._collect()
            self.baselines[meter.token] = {
                address: counters[meter.token]
                for address, counters in self.seen.items()
                if meter.token in counters
            }

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Take in that a task has changed its state."""
        if finish == "processing":
            self.board.begin(key)
        elif finish == "memory":
            self.board.add(key)
        elif finish == "erred":
            self.board.erred(key)
        elif finish == "forgotten":
            self.board.forgotten(key)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Keep what a worker has measured that leaves."""
        self._collect()

    # --- what is given out ------------------------------------------------------------------

    def _collect(self) -> None:
        """Read the workers' last heartbeats."""
        for address, worker in self.scheduler.workers.items():
            counters = worker.metrics.get(METRIC, {}).get("counters")
            if counters:
                self.seen.setdefault(address, {}).update(counters)
        kept = self.board.meters.keys()
        for plans in self.seen.values():
            for token in plans.keys() - kept:
                del plans[token]
        self.seen = {address: plans for address, plans in self.seen.items() if plans}
        for token in self.baselines.keys() - kept:
            del self.baselines[token]

    def counters(self, token: str) -> dict[str, Counters]:
        """Return what each worker has measured in the latest run of a plan."""
        before = self.baselines.get(token, {})
        found = {}
        for address, plans in self.seen.items():
            counters = without(plans.get(token, {}), before.get(address, {}))
            if counters:
                found[address] = counters
        return found

    def state(self, tokens: set[str] | None = None) -> dict[str, Any]:
        """Return all runs, the latest last, and all workers, as names and numbers."""
        self._collect()
        meters = [m for m in self.board.meters.values() if tokens is None or m.token in tokens]
        return {
            "time": time.time(),
            "version": own_version(),
            "runs": [self._run(meter) for meter in meters],
            "workers": [self._worker(a, w) for a, w in self.scheduler.workers.items()],
        }

    def _run(self, meter: Meter) -> dict[str, Any]:
        counters = self.counters(meter.token)
        return {
            **meter.as_dict(),
            "phases": phase_rows(meter, counters.values()),
            "balance": {
                address: {
                    "nbytes": sum(v[1] for k, v in found.items() if k.startswith("round/")),
                    "seconds": sum(v[2] for k, v in found.items() if k.startswith("round/")),
                }
                for address, found in counters.items()
            },
        }

    def _worker(self, address: str, worker: Any) -> dict[str, Any]:
        told = worker.metrics.get(METRIC, {})
        streams = worker.metrics.get(StreamWorkerPlugin.name, {})
        return {
            "address": address,
            "name": str(worker.name),
            "threads": worker.nthreads,
            "memory": int(worker.metrics.get("memory", 0)),
            "memory_limit": int(worker.memory_limit or 0),
            "version": told.get("version"),
            "arena": told.get("arena", {}),
            "devices": streams.get("devices", []),
            "devices_in_use": streams.get("in_use", 0),
        }


def to_run(known: Mapping[Any, Any], wanted: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return key and specification of the tasks that will run so that keys are there.

    Results that are there, such as those of `persist`, are not made once more, nor what only they
    were made of: counted with the others, a run of them would never be done. A plan that is there
    belongs to a run that goes on.

    Parameters
    ----------
    known : mapping
        The scheduler's tasks.
    wanted : iterable of keys
        What a client has asked for.
    """
    found: dict[Any, Any] = {}
    rest = list(wanted)
    while rest:
        key = rest.pop()
        task = known.get(key)
        if task is None or key in found:
            continue
        if task.state != "memory" or str(key).startswith(PLAN_NAME):
            found[key] = task.run_spec
            rest += [needed.key for needed in task.dependencies]
    return list(found.items())


def without(now: Mapping[str, list[float]], before: Mapping[str, list[float]]) -> Counters:
    """Return counters less what they were before, phases that nothing was done for left out.

    >>> without({"round/1": [3, 30, 0.3, 1.0, 2.0]}, {"round/1": [1, 10, 0.1, 1.0, 1.5]})
    {'round/1': [2, 20, 0.2, 1.5, 2.0]}
    """
    found = {}
    for phase, (count, nbytes, seconds, first, last) in now.items():
        c, n, s, _, end = before.get(phase, [0, 0, 0.0, 0.0, first])
        if count > c:
            found[phase] = [count - c, nbytes - n, round(seconds - s, 9), max(first, end), last]
    return found


def phase_rows(meter: Meter, places: Iterable[Counters]) -> list[dict[str, Any]]:
    """Return what each phase of a run has done in all places, against the cost model's speed."""
    limits = {
        f"{phase.name}/{phase.index}": phase.bytes_per_second
        for phase in phase_forecasts(meter.plan)
    }
    sums: dict[str, list[float]] = {}
    for counters in places:
        for phase, (count, nbytes, seconds, first, last) in counters.items():
            c, n, s, begun, ended = sums.get(phase, [0, 0, 0.0, first, last])
            sums[phase] = [c + count, n + nbytes, s + seconds, min(begun, first), max(ended, last)]
    rows = []
    for phase, (count, nbytes, seconds, first, last) in sums.items():
        name, _, index = phase.partition("/")
        rows.append(
            {
                "phase": name,
                "index": int(index),
                "count": int(count),
                "nbytes": int(nbytes),
                "seconds": seconds,
                "first": first,
                "last": last,
                "bytes_per_second": nbytes / (last - first) if last > first else 0.0,
                "bytes_per_thread_second": nbytes / seconds if seconds else 0.0,
                "limit": limits.get(phase),
            }
        )
    return sorted(rows, key=lambda row: (row["index"], WATCHED.index(row["phase"])))
