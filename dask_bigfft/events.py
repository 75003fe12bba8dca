"""What the rooms report while they work, and the hook through which it leaves them.

Imports nothing but the standard library and `errors`. The set of events is closed: `EVENTS`
declares each name with the unit of each of its numbers, and `emit` refuses any other, with or
without a sink. Sinks are installed by whoever watches: the record of the process, the cluster's
worker plugin, a test.

A task says once which plan and round it works for (`during`); what it emits, and what the rooms
below emit in its thread, then carries both without being told.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from dask_bigfft.errors import refuse

__all__ = [
    "EVENTS",
    "PHASES",
    "SUBPHASES",
    "Sink",
    "add_sink",
    "counting_work",
    "during",
    "emit",
    "interrupted",
    "measured",
    "remove_sink",
    "working_for",
]

#: Called as ``sink(name, numbers)``. All are numbers but `plan`, the token of a plan in task names.
Sink = Callable[[str, Mapping[str, Any]], object]

#: The phases of a run, named alike in task names, events, errors and the dashboard.
PHASES = ("round", "pack", "send", "barrier", "unpack")

#: What happens inside the phase *round*.
SUBPHASES = ("gather", "h2d", "fft", "twiddle", "d2h", "scatter")

_WORK = MappingProxyType(
    {"plan": "name", "index": "ordinal", "nbytes": "byte", "seconds": "second", "worked": "second"}
)
_MEMORY = MappingProxyType({"nbytes": "byte"})
_READ = MappingProxyType({"nbytes": "byte", "seconds": "second"})

#: Each event's numbers and their units. `plan` is the plan's token in task names; `index` is the
#: number of the round, or of the round that an exchange leads to, from 1 as in task names; `worked`
#: is, inside `counting_work`, how long the thread had a processor.
EVENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(PHASES + SUBPHASES, _WORK),
        "lease_wait": _WORK,  # how long a task waited for a device
        "round_cpu": _WORK,  # of a round that is shared: what CPU threads did of a block,
        "round_device": _WORK,  # and what devices did
        "peer_host": _WORK,  # what went between devices by the host, both ways counted
        "peer_direct": _WORK,  # what went from device to device
        "begun": MappingProxyType({"plan": "name", "index": "ordinal"}),  # before memory is taken
        # memory
        "device_memory": MappingProxyType(  # that is in use of a device of this process, from 0 on
            {"plan": "name", "index": "ordinal", "device": "ordinal", "nbytes": "byte"}
        ),
        "prefault": _WORK,  # fresh pages of blocks, backed before anybody writes there
        # files; `index` is that of the exchange
        "scratch_write": _WORK,
        "scratch_read": _WORK,
        "scratch_free": _MEMORY,  # deleted, everything computed from it being durable
        "source_read": _READ,
        "sink_write": _READ,
        # verification
        "mismatch": _WORK,  # something was not what it has to be, and is done once more
        "unverified": _WORK,  # values that cannot be checked: NaN, infinity
        # code; phases leave out what a task waits for it
        "compiling": MappingProxyType({"plan": "name", "index": "ordinal"}),  # it has begun
        "compile": _WORK,
        # decisions
        "fallback": _WORK,  # a slower way was taken, and what it cost
    }
)

_sinks: tuple[Sink, ...] = ()

#: Held while `_sinks` or `_counting` changes.
_lock = threading.Lock()


def _unlock() -> None:
    """Forget the lock, which another thread may have held when this process was forked."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def add_sink(sink: Sink) -> None:
    """Install a sink for this process, unless it is there already.

    Parameters
    ----------
    sink
        Called as ``sink(name, numbers)`` in the thread that emits, so it must be quick and safe to
        call from several threads.
    """
    global _sinks
    with _lock:
        if sink not in _sinks:
            _sinks = (*_sinks, sink)


def remove_sink(sink: Sink) -> None:
    """Take away a sink that `add_sink` has installed; nothing happens where it is not there."""
    global _sinks
    with _lock:
        _sinks = tuple(found for found in _sinks if found != sink)


#: How many want threads to say how long they had a processor: workers of one process may all be
#: calibrated at a time.
_counting = 0


@contextmanager
def counting_work() -> Iterator[None]:
    """Let phases and their parts say how long their thread had a processor, too: ``worked``.

    A thread that comes back from a library waits until it is handed the interpreter, the longer the
    more threads there are. That is in its ``seconds``, but not in what it worked. Asking costs a
    system call each time, so it is done by those who want to know.

    Examples
    --------
    >>> sink = lambda name, numbers: print(name, numbers["worked"] < 0.01 < numbers["seconds"])
    >>> add_sink(sink)
    >>> with counting_work(), during("0a1b", 1), measured("fft", 16):
    ...     time.sleep(0.02)
    fft True
    >>> remove_sink(sink)
    """
    global _counting
    with _lock:
        _counting += 1
    try:
        yield
    finally:
        with _lock:
            _counting -= 1


class _Job:
    """What a task works for, and the time that its sub-phases have taken so far."""

    __slots__ = ("began", "index", "plan", "sums", "waited")

    def __init__(self, plan: str, index: int) -> None:
        self.plan, self.index, self.waited = plan, index, 0.0
        self.began = time.thread_time() if _counting else 0.0
        self.sums: dict[str, list[float]] = {}


_job: ContextVar[_Job | None] = ContextVar("bigfft_job", default=None)


class during:
    """Say for which plan and round this thread works: events inside carry both.

    What `measured` finds inside is added up, and emitted at the end.

    Parameters
    ----------
    plan
        Token of the plan in task names.
    index
        Number of the round, from 1.
    """

    __slots__ = ("_token", "_work")

    def __init__(self, plan: str, index: int) -> None:
        self._work = _Job(plan, index)

    def __enter__(self) -> None:
        self._token = _job.set(self._work)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            sums = {} if kind is not None else self._work.sums
            for name, (nbytes, seconds, worked) in sums.items():
                more = {"worked": worked} if self._work.began else {}
                emit(name, nbytes=int(nbytes), seconds=seconds, **more)
        finally:
            _job.reset(self._token)


def working_for() -> tuple[str, int] | None:
    """Return plan and round that this thread works for, so that another thread can name them."""
    job = _job.get()
    return None if job is None else (job.plan, job.index)


def interrupted(seconds: float) -> None:
    """Leave out of the times of this thread's task what it has waited for its own code.

    Parameters
    ----------
    seconds
        How long it was compiled, or read from disk, just now.
    """
    job = _job.get()
    if job is not None:
        job.waited += seconds


def _clock() -> float:
    """Seconds that this thread's task has worked."""
    job = _job.get()
    return time.perf_counter() - (0.0 if job is None else job.waited)


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

    __slots__ = ("began", "name", "nbytes", "started")

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes, self.began = name, nbytes, 0.0

    def __enter__(self) -> None:
        if _counting:
            self.began = time.thread_time()
        self.started = _clock()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            return
        seconds, job = _clock() - self.started, _job.get()
        if job is None:
            emit(self.name, nbytes=self.nbytes, seconds=seconds)
            return
        found = job.sums.setdefault(self.name, [0, 0.0, 0.0])
        found[0] += self.nbytes
        found[1] += seconds
        if self.began:  # else it is not known when that was
            found[2] += time.thread_time() - self.began


def emit(name: str, **numbers: Any) -> None:
    """Hand one event to the sinks, if there are any.

    Raises
    ------
    ArgumentError
        If the event or one of its numbers is not declared in `EVENTS`.

    Examples
    --------
    >>> sink = lambda name, numbers: print(name, numbers)
    >>> add_sink(sink)
    >>> emit("round", index=1, nbytes=4096)
    round {'index': 1, 'nbytes': 4096}
    >>> remove_sink(sink)
    """
    declared = EVENTS.get(name)
    if declared is None:
        refuse("name", name, f"one of {', '.join(EVENTS)}")
    if not numbers.keys() <= declared.keys():
        unknown = ", ".join(sorted(numbers.keys() - declared.keys()))
        refuse("numbers", unknown, f"some of {', '.join(declared)} for the event {name!r}")
    if not _sinks:
        return
    job = _job.get()
    if job is not None and "index" in declared:
        numbers = {"plan": job.plan, "index": job.index, **numbers}
        if job.waited and name in PHASES and "seconds" in numbers:
            numbers["seconds"] = max(0.0, numbers["seconds"] - job.waited)
        if job.began and name in PHASES:  # a task may do several blocks
            before, job.began = job.began, time.thread_time()
            numbers["worked"] = job.began - before
    for sink in _sinks:
        sink(name, numbers)
