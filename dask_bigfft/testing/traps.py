"""Traps: what a worker process does to itself when it comes to a phase, so that faults hit there.

A trap is a sink of events. It springs once, in the process that it was set in; a process that is
started in its place has none. May import every room; no room imports it.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dask_bigfft.events import add_sink, remove_sink

__all__ = ["DEEDS", "remove_traps", "set_trap", "sprung"]


def _kill(worker: Any) -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def _pause(worker: Any) -> None:
    """Stop this process for a second and a half."""
    subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def _cut(worker: Any) -> None:
    """Cut all connections from this worker to others and to the scheduler, but for its stream."""

    def cut() -> None:
        pool = worker.rpc
        for comms in (*pool.available.values(), *pool.occupied.values()):
            for comm in list(comms):
                comm.abort()

    worker.loop.add_callback(cut)


#: What may happen, by name.
DEEDS: dict[str, Callable[[Any], None]] = {"killed": _kill, "paused": _pause, "cut": _cut}


class _Trap:
    def __init__(self, phase: str, after: int, deed: Callable[[Any], None], worker: Any) -> None:
        self.phase, self.left, self.deed, self.worker = phase, after, deed, worker
        self.sprung = False
        self._lock = threading.Lock()

    def __call__(self, name: str, numbers: Mapping[str, Any]) -> None:
        with self._lock:
            if name != self.phase or self.sprung:
                return
            self.left -= 1
            if self.left >= 0:
                return
            self.sprung = True
        self.deed(self.worker)


_traps: list[_Trap] = []


def set_trap(phase: str, deed: str, after: int = 0, dask_worker: Any = None) -> None:
    """Set a trap in this process; to be called by `distributed.Client.run`.

    Parameters
    ----------
    phase : str
        Event at whose emission it springs.
    deed : str
        One of `DEEDS`.
    after : int
        How many such events pass before.
    dask_worker : distributed.Worker
        The worker of this process.
    """
    trap = _Trap(phase, after, DEEDS[deed], dask_worker)
    _traps.append(trap)
    add_sink(trap)


def sprung() -> bool:
    """Whether a trap has sprung in this process."""
    return any(trap.sprung for trap in _traps)


def remove_traps() -> None:
    """Take away all traps of this process."""
    while _traps:
        remove_sink(_traps.pop())
