"""Events of the package, and the record of this process.

Each event has a name and numbers, see `OF_FILES`. A task says once which plan and round it works
for (`during`); all events of its thread then carry both.

`RECORD` is a permanent sink, so a run can be inspected after its end. It holds numbers of the last
few plans: bytes, seconds and times for each plan, round and phase. Workers of a cluster that share
a process have separate records. Other sinks are the cluster's worker plugin, progress displays, and
tests.

Asks distributed for the current worker where it is imported.
"""

import math
import sys
import threading
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import astuple, dataclass, field, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import dask.config
import psutil
from dask.system import CPU_COUNT

from dask_bigfft.errors import raise_invalid
from dask_bigfft.system import after_fork

#: Called as ``sink(name, numbers)``. `plan` is the token of a plan; all other values are numbers.
Sink = Callable[[str, Mapping[str, Any]], object]

#: The phases of a run, named alike in task names, events, errors and the dashboard. `product` is
#: the work on a spectrum after its last round, such as the multiplication by another spectrum.
PHASES = ("round", "pack", "send", "barrier", "unpack", "product")

#: Parts of the phase *round*.
SUBPHASES = ("gather", "h2d", "fft", "twiddle", "d2h", "scatter")

#: Events that plans are recorded by, in the order of tables: phases, then what they consist of.
WATCHED = (
    "pack",
    "send",
    "barrier",
    "unpack",
    "round",
    "prefault",  # of a phase: fresh pages of its block, before anybody writes there
    "round_cpu",  # of a round that is shared: what CPU threads did of a block,
    "round_device",  # and what devices did
    "peer_host",  # bytes that went between devices through the host, both ways counted
    "peer_direct",  # bytes that went from device to device
    "lease_wait",  # a task waited for a device
    "compile",  # a task waited for its code; its phases leave that out
    *SUBPHASES,
    "fallback",  # a slower way was taken, and what it cost
    "product",
)

#: Events of files that belong to no plan. They have `nbytes`, and `seconds` unless a file is
#: deleted (`scratch_free`, when everything made from it is durable). All other events have the
#: token of a plan in task names as `plan`, and as `index` the number of the round, or of the round
#: that an exchange leads to, from 1 as in task names. Most have `nbytes` and `seconds`; those of a
#: block after its round or after the last exchange have the index of the `block`, too. Beside
#: those of `WATCHED` they are `begun` (before a task takes memory), `compiling` (its end is
#: `compile`), `device_memory` (bytes in use of a `device` of this process, from 0),
#: `scratch_write`, `scratch_read`, `mismatch` (a check failed, and the work is done once more), and
#: `unverified` (values that cannot be checked: NaN, infinity).
OF_FILES = frozenset({"scratch_free", "source_read", "sink_write"})

#: Installed sinks, in order. Single operations on a dict need no lock, which a fork might inherit.
_sinks: dict[Sink, None] = {}


def add_sink(sink: Sink) -> None:
    """Install a sink for this process, unless it is installed.

    Parameters
    ----------
    sink
        Called as ``sink(name, numbers)`` in the thread that emits, so it must be quick and safe to
        call from several threads.
    """
    _sinks.setdefault(sink)


def remove_sink(sink: Sink) -> None:
    """Remove a sink, if it is installed."""
    _sinks.pop(sink, None)


@dataclass(slots=True)
class _Job:
    """Plan, round and place of a task, its seconds of compilation, and sums of `measured` parts."""

    plan: str
    index: int
    place: str
    waited: float = 0.0
    sums: dict[str, list[float]] = field(default_factory=dict)


_job: ContextVar[_Job | None] = ContextVar("bigfft_job", default=None)


@contextmanager
def during(plan: str, index: int) -> Iterator[None]:
    """Context manager that adds a plan and a round to all events of this thread.

    Parts timed by `measured` are summed up and emitted at the end.

    Parameters
    ----------
    plan
        Token of the plan in task names.
    index
        Number of the round, from 1.
    """
    # Asked for once a task, because that takes as long as the rest of an event.
    job = _Job(plan, index, current_place())
    before = _job.set(job)
    try:
        yield
        for name, (nbytes, seconds) in job.sums.items():
            emit(name, nbytes=int(nbytes), seconds=seconds)
    finally:
        _job.reset(before)


def working_for() -> tuple[str, int] | None:
    """Return plan and round of this thread, for use in another thread."""
    job = _job.get()
    return None if job is None else (job.plan, job.index)


def interrupted(seconds: float) -> None:
    """Leave time that this thread's task waited for its own code out of its phases.

    Parameters
    ----------
    seconds
        Time in which it was compiled, or read from disk, just now.
    """
    job = _job.get()
    if job is not None:
        job.waited += seconds


class measured:
    """Time a part of a task as the event `name`, unless it raises: ``with measured("fft", n):``.

    Cheap enough for every tile: inside `during` the parts of a task are added up.

    Parameters
    ----------
    name
        The event.
    nbytes
        Bytes worked on.

    Examples
    --------
    >>> sink = lambda name, numbers: print(name, numbers["index"], numbers["nbytes"])
    >>> add_sink(sink)
    >>> with during("0a1b", 2):
    ...     for _ in range(3):
    ...         with measured("fft", 4096):
    ...             pass
    fft 2 12288
    >>> remove_sink(sink)
    """

    __slots__ = ("job", "name", "nbytes", "started")

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.job = _job.get()

    def _clock(self) -> float:
        """Return a time in seconds that does not pass while the task waits for its code."""
        waited = 0.0 if self.job is None else self.job.waited
        return time.perf_counter() - waited

    def __enter__(self) -> None:
        self.started = self._clock()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        seconds = self._clock() - self.started
        if kind is not None:
            return
        if self.job is None:
            emit(self.name, nbytes=self.nbytes, seconds=seconds)
            return
        sums = self.job.sums.setdefault(self.name, [0, 0.0])
        sums[0] += self.nbytes
        sums[1] += seconds


def emit(name: str, **numbers: Any) -> None:
    """Hand one event, with its numbers, to the sinks.

    Examples
    --------
    >>> sink = lambda name, numbers: print(name, numbers)
    >>> add_sink(sink)
    >>> emit("round", index=1, nbytes=4096)
    round {'index': 1, 'nbytes': 4096}
    >>> remove_sink(sink)
    """
    job = _job.get()
    if name not in OF_FILES and job is not None:
        numbers = {"plan": job.plan, "index": job.index, **numbers}
        if job.waited and name in PHASES and "seconds" in numbers:
            numbers["seconds"] = max(0.0, numbers["seconds"] - job.waited)
    for sink in tuple(_sinks):
        sink(name, numbers)


# --- the record -----------------------------------------------------------------------------

#: Maximum number of recorded plans of each worker.
KEPT_PLANS = 24

#: Maximum number of spans of each plan.
KEPT_SPANS = 4096

#: Minimum seconds between two measurements of resident memory.
OFTEN = 0.01

#: A phase of a plan: its name and number, such as ``("round", 2)``.
Phase = tuple[str, int]


def current_worker() -> Any:
    """Return the distributed worker that runs the calling task, or None."""
    try:
        return sys.modules["distributed"].get_worker()
    except (KeyError, AttributeError, ValueError):  # not, or not yet, imported; not in a task
        return None


def current_place() -> str:
    """Return the address of the worker that runs the calling task, or an empty string."""
    worker = current_worker()
    return "" if worker is None else str(worker.address)


def uses_clusters() -> bool:
    """Return True if dask would compute on a cluster here, if there is one."""
    if "distributed" not in sys.modules:
        return False
    scheduler = dask.config.get("scheduler", None)
    if scheduler is None:
        return True
    # "dask.distributed" if there is a default client
    name = scheduler if isinstance(scheduler, str) else type(scheduler).__module__
    return "distributed" in name


def running_client() -> Any:
    """Return the client that `compute` would use, if there is one."""
    try:
        return sys.modules["distributed"].default_client() if uses_clusters() else None
    except (AttributeError, ValueError):  # not yet imported; no client
        return None


def schedulers_here() -> list[Any]:
    """Return the distributed schedulers that run in this process.

    They turn the graphs that they receive into tasks.
    """
    kind = getattr(sys.modules.get("distributed"), "Scheduler", None)  # None while it is imported
    schedulers = list(getattr(kind, "_instances", ()))
    return [scheduler for scheduler in schedulers if scheduler.status.name == "running"]


#: Workers of each client when they were last asked for, and the time of that. One call of a
#: transform asks several times, and an answer takes half a millisecond.
_seen: WeakKeyDictionary[Any, tuple[float, Any]] = WeakKeyDictionary()

#: Seconds for which an answer holds.
LASTS = 0.005


def workers_of(client: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the scheduler's information on each worker, by address, at most `LASTS` old.

    The scheduler is asked directly. `Client.scheduler_info` returns a cached value, which another
    coroutine of the client may have just replaced by one without workers.
    """
    if client.asynchronous:  # its answers cannot be awaited here
        return cast("Mapping[str, Any]", client.scheduler_info(n_workers=-1)["workers"])
    answered, workers = _seen.get(client, (-LASTS, {}))
    if time.monotonic() - answered >= LASTS:
        with suppress(OSError):  # no connection: the last answer holds
            workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
        _seen[client] = (time.monotonic(), workers)
    return cast("Mapping[str, Mapping[str, Any]]", workers)


def raise_if_asynchronous(client: Any) -> None:
    """Raise an error for an asynchronous client, whose answers would have to be awaited.

    Such a client can compute transforms.
    """
    if client is not None and client.asynchronous:
        allowed = "a client made without asynchronous=True, in a thread other than that of an "
        allowed += "event loop: another one for the same scheduler will do"
        raise_invalid("client", client, allowed)


def uses_processes() -> bool:
    """Return whether dask's setting of the scheduler names processes of this machine.

    >>> with dask.config.set(scheduler="processes"):
    ...     uses_processes()
    True
    >>> with dask.config.set(scheduler="threads"):
    ...     uses_processes()
    False
    """
    scheduler = dask.config.get("scheduler", None)
    if isinstance(scheduler, str):
        return scheduler.lower() in ("processes", "multiprocessing")
    return isinstance(scheduler, ProcessPoolExecutor)


#: Dask's names of the scheduler that runs one task after the other.
ONE_AT_A_TIME = ("sync", "synchronous", "single-threaded")


def task_threads() -> int:
    """Return the number of concurrent tasks: a worker's threads, or those of dask's pool.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with dask.config.set(num_workers=3):
    ...     task_threads()
    3
    >>> with dask.config.set(pool=ThreadPoolExecutor(5)):
    ...     task_threads()
    5
    >>> with dask.config.set(scheduler="sync"):
    ...     task_threads()
    1
    """
    worker = current_worker()
    if worker is not None:
        return int(worker.state.nthreads)
    scheduler = dask.config.get("scheduler", None)
    if scheduler in ONE_AT_A_TIME:
        return 1
    for pool in (scheduler, dask.config.get("pool", None)):
        for name in ("_max_workers", "_processes"):  # of executors, of pools of multiprocessing
            threads = getattr(pool, name, None)
            if threads:
                return int(threads)
    return int(dask.config.get("num_workers", None) or CPU_COUNT)


# Not frozen, as one is made for each event, and frozen ones take three times as long.
@dataclass(slots=True)
class Total:
    """Work of one phase: count, bytes, seconds of all threads, first start and last end.

    `first` and `last` are in seconds since the epoch.
    """

    count: int
    nbytes: int
    seconds: float
    first: float
    last: float

    def plus(self, other: "Total | None") -> "Total":
        """Return the sum of two totals.

        >>> Total(1, 8, 0.5, 2.0, 3.0).plus(Total(2, 8, 1.0, 1.0, 2.0))
        Total(count=3, nbytes=16, seconds=1.5, first=1.0, last=3.0)
        """
        if other is None:
            return self
        return Total(
            self.count + other.count,
            self.nbytes + other.nbytes,
            self.seconds + other.seconds,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
        )


@dataclass(slots=True)
class Span:
    """One phase of one block: start and end in seconds since the epoch, and its lane.

    A lane is a thread; `place` is its worker, and `block` the index of the block, if it is known.
    """

    phase: str
    index: int
    start: float
    stop: float
    lane: int
    nbytes: int
    place: str = ""
    block: tuple[int, ...] | None = None


class LatestEvents:
    """The latest events of one phase: when they ended, their bytes and their seconds."""

    def __init__(self) -> None:
        self.stops = array("d")
        self.nbytes = array("d")
        self.seconds = array("d")
        #: End of the last event that is no longer here, in seconds since the epoch.
        self.forgotten = 0.0

    def add(self, stop: float, nbytes: int, seconds: float) -> None:
        """Add an event; of twice `KEPT_SPANS` events the earlier half is forgotten."""
        if len(self.stops) >= 2 * KEPT_SPANS:
            self.forgotten = self.stops[KEPT_SPANS - 1]
            for column in (self.stops, self.nbytes, self.seconds):
                del column[:KEPT_SPANS]
        self.stops.append(stop)
        self.nbytes.append(nbytes)
        self.seconds.append(seconds)

    def after(self, start: float) -> Total | None:
        """Return the sum of the events that ended after a time; None if some are forgotten.

        >>> events = LatestEvents()
        >>> events.add(2.0, 8, 0.5)
        >>> events.add(4.0, 8, 0.5)
        >>> events.after(3.0)
        Total(count=1, nbytes=8, seconds=0.5, first=3.5, last=4.0)
        """
        if self.forgotten > start:
            return None
        sums = Total(0, 0, 0.0, math.inf, 0.0)
        for stop, nbytes, seconds in zip(self.stops, self.nbytes, self.seconds, strict=True):
            if stop > start:
                sums = sums.plus(Total(1, int(nbytes), seconds, stop - seconds, stop))
        return sums


@dataclass(slots=True)
class PlanRecord:
    """Measurements of one plan in one worker or process.

    Attributes
    ----------
    totals
        Totals by phase.
    spans
        Latest spans of phases, without sub-phases.
    latest
        Latest events by phase, with sub-phases.
    rss_before, rss_peak
        Resident memory of the process in bytes at the first event of the plan, and its maximum at
        the ends of phases, sampled at most a hundred times a second.
    devices
        Peak bytes of each device of the process, by its number.
    """

    totals: dict[Phase, Total] = field(default_factory=dict)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=KEPT_SPANS))
    latest: dict[Phase, LatestEvents] = field(default_factory=dict)
    rss_before: int = 0
    rss_peak: int = 0
    devices: dict[int, int] = field(default_factory=dict)


class Record:
    """Measurements of the latest plans of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._lock = threading.Lock()
        #: Records of plans by place and token, the latest plan last.
        self._plans: dict[str, OrderedDict[str, PlanRecord]] = {}
        #: Numbers of threads, by their identity.
        self._lanes: dict[int, int] = {}
        #: Resident memory in bytes, and the time of its measurement.
        self._rss = 0
        self._rss_time = 0.0

    def start_afresh(self) -> None:
        """Reset the record and its lock, which another thread may have held at a fork."""
        self.__init__()  # type: ignore[misc]

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Add an event: a sink."""
        token = numbers.get("plan")
        is_watched = name in WATCHED
        if token is None or not (is_watched or name in ("begun", "device_memory")):
            return
        now = time.time()
        job = _job.get()
        place = current_place() if job is None else job.place
        rss = self._resident_nbytes(now)
        with self._lock:
            record = self._record_of(token, place, rss)
            if name == "device_memory":
                device = int(numbers["device"])
                peak_nbytes = record.devices.get(device, 0)
                record.devices[device] = max(peak_nbytes, int(numbers.get("nbytes", 0)))
            if is_watched:
                self._add(record, name, numbers, now, place)
            if name in PHASES:
                record.rss_peak = max(record.rss_peak, rss)

    def _resident_nbytes(self, now: float) -> int:
        """Return the resident memory of this process, measured at most `OFTEN` seconds ago."""
        if not 0 <= now - self._rss_time < OFTEN:
            self._rss_time = now  # first, so that no other thread asks meanwhile
            self._rss = int(self._process.memory_info().rss)
        return self._rss

    def _record_of(self, token: str, place: str, rss: int) -> PlanRecord:
        """Return the record of a plan, which is made if there is none; the lock is held.

        It is the latest one from now on. The oldest records above `KEPT_PLANS` are dropped.
        """
        plans = self._plans.get(place)
        if plans is None:
            plans = OrderedDict[str, PlanRecord]()
            self._plans[place] = plans
        record = plans.get(token)
        if record is None:
            record = PlanRecord(rss_before=rss)
            plans[token] = record
        plans.move_to_end(token)
        while len(plans) > KEPT_PLANS:
            plans.popitem(last=False)
        return record

    def _add(
        self,
        record: PlanRecord,
        name: str,
        numbers: Mapping[str, Any],
        now: float,
        place: str,
    ) -> None:
        """Add an event that ends now to a record; the lock is held."""
        index = int(numbers.get("index", 0))
        nbytes = int(numbers.get("nbytes", 0))
        seconds = float(numbers.get("seconds", 0.0))
        start = now - seconds
        phase = (name, index)
        total = Total(1, nbytes, seconds, start, now)
        record.totals[phase] = total.plus(record.totals.get(phase))
        latest = record.latest.setdefault(phase, LatestEvents())
        latest.add(now, nbytes, seconds)
        if name in PHASES:
            lane = self._lanes.setdefault(threading.get_ident(), len(self._lanes))
            block = numbers.get("block")
            span = Span(name, index, start, now, lane, nbytes, place, block)
            record.spans.append(span)

    def plan(self, token: str, place: str = "") -> PlanRecord | None:
        """Return a copy of the record of a plan in a place, or None."""
        with self._lock:
            plans = self._plans.get(place, OrderedDict())
            record = plans.get(token)
            if record is None:
                return None
            return replace(
                record,
                totals=dict(record.totals),
                spans=record.spans.copy(),
                latest=deepcopy(record.latest),
                devices=dict(record.devices),
            )

    def counters(self, place: str = "") -> dict[str, list[list[Any]]]:
        """Return the totals of a place by plan, for a message: rows of phase, index and `Total`."""
        rows_by_plan = {}
        with self._lock:
            for token, record in self._plans.get(place, {}).items():
                rows = [[*phase, *astuple(total)] for phase, total in record.totals.items()]
                rows_by_plan[token] = rows
        return rows_by_plan

    def forget(self, place: str) -> None:
        """Forget all plans of a place."""
        with self._lock:
            self._plans.pop(place, None)


#: The record of this process.
RECORD = Record()
add_sink(RECORD.take)
after_fork(RECORD.start_afresh)
