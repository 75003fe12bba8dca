"""Traps: a worker that reaches a phase waits there until a fault has hit some process.

::

    <board>/first     process that finished the first task of one of our computations
    <board>/sprung    process that waits in the phase
    <board>/deed      connections that a process cuts when it receives `SIGNAL`
    <board>/done      number of connections that were cut
    <board>/go        exists when waiting processes may continue

The test reads these files, chooses the victim and strikes. The only random element is the order in
which processes reach the phase.
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

Value = TypeVar("Value")

#: Maximum seconds of waiting, on a busy machine that compiles code first.
LONGEST = 200.0

#: Seconds of a pause of a process.
STOPPED = 1.5

SIGNAL = signal.SIGUSR1


#: All faults: a process is killed, paused, or cuts its connections to other workers, or also
#: its stream to the scheduler.
FAULTS = ("killed", "paused", "cut", "cut off")


def until(ready: Callable[[], Value], error: str = "not in time") -> Value:
    """Wait until a function returns a true value, and return it.

    A `TimeoutError` with the text `error` is raised after `LONGEST` seconds.
    """
    end = time.monotonic() + LONGEST
    while True:
        value = ready()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(error)
        time.sleep(0.005)


class Board:
    """Files by which processes of this machine coordinate a fault.

    Parameters
    ----------
    folder : Path
        Folder, created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, name: str, number: int | None = None) -> bool:
        """Store a number, by default this process's, and return True unless one is stored already.

        The number is the target of a symbolic link, because links are created atomically.
        """
        if number is None:
            number = os.getpid()
        try:
            os.symlink(str(number), self.folder / name)
        except FileExistsError:
            return False
        return True

    def process(self, name: str) -> int | None:
        """Return the stored number, None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return int(os.readlink(self.folder / name))
        return None

    def wait(self) -> dict[str, int]:
        """Return the processes involved once one waits in the phase.

        Returns
        -------
        dict
            Process numbers: ``"actor"`` waits in the phase, ``"first"`` finished the first task.
        """
        actor = until(lambda: self.process("sprung"), "nobody came to the phase")
        assert actor is not None
        return {"actor": actor, "first": self.process("first") or actor}

    def strike(self, fault: str, process: int) -> None:
        """Let a fault hit a process, then let waiting processes continue.

        Parameters
        ----------
        fault : str
            One of `FAULTS`.
        process : int
            Process number.
        """
        if fault == "killed":
            os.kill(process, signal.SIGKILL)
            self.release()
        elif fault == "paused":
            _stop(process)
            self.release()
            time.sleep(STOPPED)
            os.kill(process, signal.SIGCONT)
        else:
            (self.folder / "deed").write_text(fault)
            os.kill(process, SIGNAL)
            self.release()

    def release(self) -> None:
        """Let waiting processes continue."""
        (self.folder / "go").touch()

    def stay(self) -> None:
        """Wait until waiting processes may continue."""
        with contextlib.suppress(TimeoutError):
            until((self.folder / "go").exists, "nobody says go")

    def cut(self) -> int:
        """Return the number of connections cut by a struck process, when it is done."""
        until(lambda: self.process("done") is not None, "no process has done what it was told to")
        return self.process("done") or 0


def _stop(number: int) -> None:
    """Pause a process, and wait until the system has done it."""
    os.kill(number, signal.SIGSTOP)
    process = psutil.Process(number)  # a process that has ended never stops
    until(lambda: process.status() == psutil.STATUS_STOPPED, f"process {number} was not stopped")


class _Trap:
    """Sink of events and plugin of this process's worker."""

    def __init__(
        self,
        phase: str,
        board: Board,
        after: int,
        worker: Any,
    ) -> None:
        self.phase = phase
        self.board = board
        self.left = after
        self.worker = worker
        self._first = False
        self._lock = threading.Lock()

    def __call__(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Wait here if this is the phase and no other process waits.

        The process that finished the first task does not wait, so that two processes are involved.
        """
        if name != self.phase or self._first:
            return
        if self.board.process("first") is not None:
            self._come()

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Record the process of the first task, and wait before a barrier in phase *barrier*.

        A barrier has no event, and any worker may run it, so the first process may wait there, too.
        """
        name = str(key[0] if isinstance(key, tuple) else key)
        if "bigfft" not in name:
            return
        has_run = finish == "memory" and start in ("executing", "long-running")
        if has_run and not self._first:
            self._first = self.board.claim("first")
        if self.phase == "barrier" and finish == "executing" and "barrier" in name:
            self._come()

    def _come(self) -> None:
        """Wait for the fault, unless events are still skipped or another process waits."""
        with self._lock:
            self.left -= 1
            may_wait = self.left < 0 and self.board.process("sprung") is None
        if may_wait and self.board.claim("sprung"):
            self.board.stay()

    def struck(self) -> None:
        """Cut connections as the board says, and store their number."""
        connections: list[Any] = []
        for pool in (self.worker.rpc.available, self.worker.rpc.occupied):
            for connections_to_address in pool.values():
                connections.extend(connections_to_address)
        if (self.board.folder / "deed").read_text() == "cut off":
            connections.append(self.worker.batched_stream.comm)
        for connection in connections:
            connection.abort()
        self.board.claim("done", len(connections))


_NAME = "bigfft-traps"


def set_trap(
    phase: str,
    board: str,
    after: int = 0,
    dask_worker: Any = None,
) -> int:
    """Set a trap in this process, called by `distributed.Client.run` on all workers.

    Parameters
    ----------
    phase : str
        Event at which a worker waits, or ``"barrier"``.
    board : str
        Folder of the `Board` of this trap.
    after : int
        Number of earlier events of this process that are skipped.
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
    """Remove the trap of this process."""
    trap = dask_worker.plugins.pop(_NAME, None)
    if trap is not None:
        remove_sink(trap)
