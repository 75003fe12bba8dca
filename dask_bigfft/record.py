"""What this process has measured: per plan, round and phase how much, how long, and when.

The record listens to `events` from the moment this module is imported, so a run can be looked at
after it was made. It keeps the last few plans and nothing but numbers. Where several workers of a
cluster share a process, each has its own part.

Imports `events`; looks a distributed worker up if there is one.
"""

import mmap
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from dask_bigfft.events import PHASES, SUBPHASES, add_sink

__all__ = [
    "RECORD",
    "WATCHED",
    "PlanRecord",
    "Record",
    "Span",
    "Total",
    "current_worker",
    "resident",
]

#: Plans that are kept for each worker, and spans of time of each.
KEPT_PLANS, KEPT_SPANS = 24, 4096

_PAGE_NBYTES = mmap.PAGESIZE

#: Seconds for which what the system says of resident memory is taken to hold.
OFTEN = 0.01

#: Events that plans are recorded by, as tables list them: phases, then what they consist of.
WATCHED = (
    "pack",
    "send",
    "barrier",
    "unpack",
    "round",
    "round_cpu",
    "round_device",
    "peer_host",
    "peer_direct",
    "lease_wait",
    "compile",
    "prefault",
    *SUBPHASES,
    "fallback",
)

#: A phase of a plan: its name and number, such as ``("round", 2)``.
Phase = tuple[str, int]


def current_worker() -> Any:
    """Return the distributed worker that runs the calling task, or None."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.get_worker()
    except (AttributeError, ValueError):  # still being imported; not in a task
        return None


def current_place() -> str:
    """Return the address of the worker that runs the calling task, or an empty string."""
    worker = current_worker()
    return "" if worker is None else str(worker.address)


@dataclass(slots=True)
class Total:
    """What one phase of a plan has done so far.

    Attributes
    ----------
    count
        Times that it was done.
    nbytes
        Bytes that it has made.
    seconds
        Time that it took, threads added up.
    first, last
        When it first began and last ended, in seconds since the epoch.
    """

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def add(self, nbytes: int, seconds: float, now: float) -> None:
        """Count one more."""
        self.first = min(self.first, now - seconds) if self.count else now - seconds
        self.last = max(self.last, now)
        self.count += 1
        self.nbytes += nbytes
        self.seconds += seconds

    def as_list(self) -> list[float]:
        """Return count, bytes, seconds, first and last."""
        return [self.count, self.nbytes, self.seconds, self.first, self.last]


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one block: which, from when to when (seconds since the epoch), in which lane.

    A lane is a thread; `place` the worker that it belongs to.
    """

    phase: str
    index: int
    start: float
    stop: float
    lane: int
    nbytes: int
    place: str = ""


@dataclass(slots=True)
class PlanRecord:
    """What is known of one plan in one place.

    Attributes
    ----------
    totals
        By phase.
    spans
        The last ones of the phases, not of their sub-phases.
    rss_before, rss_peak
        Resident memory of the process in bytes when the plan was first seen, and at most at the
        ends of its rounds, which are looked at a hundred times a second at most.
    devices
        Most bytes that were in use of each device of the process, by its number.
    """

    totals: dict[Phase, Total] = field(default_factory=dict)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=KEPT_SPANS))
    rss_before: int = 0
    rss_peak: int = 0
    devices: dict[int, int] = field(default_factory=dict)


def resident() -> int:
    """Return this process' resident memory in bytes.

    Tasks ask between two FFTs, when psutil's code has long left the caches: the file alone is read.
    """
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE_NBYTES
    except OSError:  # not on Linux
        return int(psutil.Process().memory_info().rss)


class Record:
    """The plans that this process has worked on lately, and what it has measured.

    Parameters
    ----------
    kept : int
        Plans that are kept for each worker.
    """

    def __init__(self, kept: int = KEPT_PLANS) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._plans: dict[str, OrderedDict[str, PlanRecord]] = {}
        self._lanes: dict[int, int] = {}
        self._asked, self._rss = 0.0, 0

    def start_afresh(self) -> None:
        """Forget everything; also what another thread has locked when this process was forked."""
        self.__init__(self.kept)  # type: ignore[misc]

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Take in an event: a sink of `events`."""
        token = numbers.get("plan")
        begun = name == "begun"  # what the process holds before the plan takes any memory
        held = name == "device_memory"
        if token is None or not (begun or held or name in WATCHED):
            return
        now, place, thread = time.time(), current_place(), threading.get_ident()
        nbytes, seconds = int(numbers.get("nbytes", 0)), float(numbers.get("seconds", 0.0))
        index = int(numbers.get("index", 0))
        rss = self._resident(now)
        with self._lock:
            plan = self._plan(place, str(token), rss)
            if held:
                device = int(numbers["device"])
                plan.devices[device] = max(plan.devices.get(device, 0), nbytes)
            if begun or held:
                return
            total = plan.totals.get((name, index))
            if total is None:
                total = plan.totals[name, index] = Total()
            total.add(nbytes, seconds, now)
            if name in PHASES:
                plan.rss_peak = max(plan.rss_peak, rss)
                lane = self._lanes.setdefault(thread, len(self._lanes))
                plan.spans.append(Span(name, index, now - seconds, now, lane, nbytes, place))

    def _resident(self, now: float) -> int:
        """Resident memory; asked of the system no more than a hundred times a second."""
        if not 0 <= now - self._asked < OFTEN:
            self._asked = now  # first, so that no other thread asks meanwhile
            self._rss = resident()
        return self._rss

    def _plan(self, place: str, token: str, rss: int) -> PlanRecord:
        plans = self._plans.setdefault(place, OrderedDict())
        found = plans.get(token)
        if found is None:
            found = plans[token] = PlanRecord(rss_before=rss)
        plans.move_to_end(token)
        while len(plans) > self.kept:
            plans.popitem(last=False)
        return found

    def tokens(self, place: str = "") -> tuple[str, ...]:
        """Return the tokens of the plans that are known in a place, the latest last."""
        with self._lock:
            return tuple(self._plans.get(place, ()))

    def plan(self, token: str, place: str = "") -> PlanRecord | None:
        """Return a copy of what is known of a plan in a place, or None."""
        with self._lock:
            found = self._plans.get(place, OrderedDict()).get(token)
            if found is None:
                return None
            totals = {phase: Total(*_fields(total)) for phase, total in found.totals.items()}
            return PlanRecord(
                totals, found.spans.copy(), found.rss_before, found.rss_peak, dict(found.devices)
            )

    def counters(self, place: str = "") -> dict[str, dict[str, list[float]]]:
        """Return the totals of a place by plan and phase, as plain numbers.

        A phase is written ``"round/2"``; its numbers are those of `Total.as_list`.
        """
        with self._lock:
            return {
                token: {
                    f"{name}/{index}": total.as_list()
                    for (name, index), total in found.totals.items()
                }
                for token, found in self._plans.get(place, {}).items()
            }

    def forget(self, place: str) -> None:
        """Forget all plans of a place."""
        with self._lock:
            self._plans.pop(place, None)


def _fields(total: Total) -> tuple[int, int, float, float, float]:
    return total.count, total.nbytes, total.seconds, total.first, total.last


#: The record of this process.
RECORD = Record()
add_sink(RECORD.take)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RECORD.start_afresh)
