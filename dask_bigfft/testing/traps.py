"""Traps: a worker that comes to a phase waits there until a fault has hit it, or another process.

::

    <board>/first     process that has ended the first task of a computation of ours
    <board>/sprung    process that waits in the phase
    <board>/deed      what a process is to do to itself when it gets `SIGNAL`
    <board>/done      what came of that
    <board>/go        whoever waits may go on

Whoever sets traps reads there who is where, chooses the victim and strikes: nothing is left to
chance but which process comes first. May import every room; no room imports it.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from dask_bigfft.events import add_sink, remove_sink

__all__ = ["FAULTS", "Board", "remove_traps", "set_trap", "until"]

Found = TypeVar("Found")

#: Seconds that anybody waits at most, on a machine that is busy, and compiles code first.
LONGEST = 200.0

#: Seconds for which a process is stopped.
STOPPED = 1.5

SIGNAL = signal.SIGUSR1


def _cut(worker: Any) -> int:
    """Cut all connections of this worker to others and to the scheduler, but for its stream."""
    pools = worker.rpc.available, worker.rpc.occupied
    found = [comm for pool in pools for comms in pool.values() for comm in comms]
    for comm in found:
        comm.abort()
    return len(found)


def _cut_off(worker: Any) -> int:
    """Cut all connections of this worker, with the one by which the scheduler knows it."""
    count = _cut(worker)
    worker.batched_stream.comm.abort()
    return count + 1


#: What a process can do to itself alone, by name: returns how many connections it has cut.
DEEDS: dict[str, Callable[[Any], int]] = {"cut": _cut, "cut off": _cut_off}

#: All faults: a process is ended at once, or stopped for a while, or does one of the `DEEDS`.
FAULTS = ("killed", "paused", *DEEDS)


def until(
    ready: Callable[[], Found], error: str = "not in time", timeout: float = LONGEST
) -> Found:
    """Wait until a function returns a true value, and return it.

    A `TimeoutError` with the text `error` is raised after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while not (found := ready()):
        if time.monotonic() > end:
            raise TimeoutError(error)
        time.sleep(0.005)
    return found


class Board:
    """What processes of this machine tell each other about a fault, in files.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, name: str, number: int | None = None) -> bool:
        """Note a number, this process's by default, unless one is there; return whether it was so.

        The number is where a symbolic link points to, which is there at once or not at all.
        """
        try:
            os.symlink(str(os.getpid() if number is None else number), self.folder / name)
        except FileExistsError:
            return False
        return True

    def process(self, name: str) -> int | None:
        """Return the number that was noted, None if there is none."""
        try:
            return int(os.readlink(self.folder / name))
        except FileNotFoundError:
            return None

    def wait(self) -> dict[str, int]:
        """Return who is where once a process waits in the phase.

        Returns
        -------
        dict
            Process numbers: ``"actor"`` waits in the phase, ``"first"`` has ended the first task.
        """
        actor = until(lambda: self.process("sprung"), "nobody came to the phase")
        assert actor is not None
        return {"actor": actor, "first": self.process("first") or actor}

    def strike(self, fault: str, process: int) -> None:
        """Let a fault hit a process, then let whoever waits go on.

        Parameters
        ----------
        fault : str
            One of `FAULTS`.
        process : int
            Its number.
        """
        if fault == "killed":
            os.kill(process, signal.SIGKILL)
        elif fault == "paused":
            os.kill(process, signal.SIGSTOP)
            found = psutil.Process(process)  # one that has ended, unnoticed, never stops
            stopped = psutil.STATUS_STOPPED
            until(lambda: found.status() == stopped, f"process {process} was not stopped")
            timer = threading.Timer(STOPPED, os.kill, (process, signal.SIGCONT))
            timer.start()
        else:
            (self.folder / "deed").write_text(fault)
            os.kill(process, SIGNAL)
        self.release()
        if fault == "paused":
            timer.join()

    def release(self) -> None:
        """Let whoever waits go on."""
        (self.folder / "go").touch()

    def stay(self) -> None:
        """Wait until whoever waits may go on."""
        with contextlib.suppress(TimeoutError):
            until((self.folder / "go").exists, "nobody says go")

    def cut(self) -> int:
        """Return how many connections a struck process has cut, once it has."""
        late = "no process has done what it was told to"
        until(lambda: self.process("done") is not None, late)
        return self.process("done") or 0


class _Trap:
    """A sink of events, and a plugin of this process's worker."""

    def __init__(self, phase: str, board: Board, after: int, worker: Any) -> None:
        self.phase, self.board, self.left, self.worker = phase, board, after, worker
        self._first = False
        self._lock = threading.Lock()

    def __call__(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Wait here if this is the phase and nobody does yet.

        That is nobody who was the first: so those are two processes.
        """
        if name == self.phase and not self._first and self.board.process("first") is not None:
            self._come()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Note who ends the first task; come to the phase *barrier*, which has no event, before it.

        Any worker may have the barrier, so there the first one waits, too.
        """
        name = str(key[0] if isinstance(key, tuple) else key)
        if "bigfft" not in name:
            return
        if finish == "memory" and start in ("executing", "long-running") and not self._first:
            self._first = self.board.claim("first")
        if self.phase == "barrier" and finish == "executing" and "barrier" in name:
            self._come()

    def _come(self) -> None:
        with self._lock:
            self.left -= 1
            mine = self.left < 0 and self.board.process("sprung") is None
        if mine and self.board.claim("sprung"):
            self.board.stay()

    def struck(self) -> None:
        """Do what is written on the board."""
        deed = DEEDS[(self.board.folder / "deed").read_text()]
        self.board.claim("done", deed(self.worker))


_NAME = "bigfft-traps"


def set_trap(phase: str, board: str, after: int = 0, dask_worker: Any = None) -> int:
    """Set a trap in this process; to be called by `distributed.Client.run`, on all workers.

    Parameters
    ----------
    phase : str
        Event at whose emission a worker waits, or ``"barrier"``.
    board : str
        Folder of the `Board`, of this one trap.
    after : int
        How many such events of this process pass before.
    dask_worker : distributed.Worker
        The worker of this process, which runs in its main thread.

    Returns
    -------
    int
        Number of this process.
    """
    remove_traps(dask_worker)
    trap = _Trap(phase, Board(Path(board)), after, dask_worker)
    dask_worker.plugins[_NAME] = trap
    add_sink(trap)
    dask_worker.loop.asyncio_loop.add_signal_handler(SIGNAL, trap.struck)
    return os.getpid()


def remove_traps(dask_worker: Any = None) -> None:
    """Take away the trap of this process."""
    trap = dask_worker.plugins.pop(_NAME, None)
    if trap is not None:
        remove_sink(trap)
