"""The most memory that a process has used, measured from outside while it runs.

In a memory cgroup of its own where one can be had (root, and a mounted hierarchy): that counts what
the process has touched since it was put there, files in the page cache included. Elsewhere by
looking at anonymous and shared memory every few milliseconds, above what was there at the start.

"""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dask

from benchmarks.core import Cgroup, memory_cgroup
from dask_bigfft.testing.clusters import started

#: Seconds between two looks at another process that has no cgroup.
POLL = 0.002


def measured(
    program: Callable[..., None],
    *arguments: Any,
    cgroups: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> tuple["Peak", dict[str, Any]]:
    """Return the peak of a program between its two pauses, and its figures.

    Parameters
    ----------
    program : callable
        Called in a process of its own with a function and the arguments. It calls the function
        before and after what is measured, the second time with its figures.
    *arguments
        Arguments of the program.
    cgroups : bool
        Whether to use a cgroup where one can be had.
    settings : mapping, optional
        Settings for dask in the process.
    """
    connection, connection_of_child = Pipe()
    process = started(run_program, connection_of_child, program, arguments, settings or {})
    connection_of_child.close()
    with connection:
        connection.recv()
        with watched(process.pid, cgroups=cgroups) as peak:
            connection.send(None)
            figures = connection.recv()
        connection.send(None)
        process.join()
    assert process.exitcode == 0
    return peak, figures


def run_program(
    connection: Connection,
    program: Callable[..., None],
    arguments: Sequence[Any],
    settings: Mapping[str, Any],
) -> None:
    """Run a program that pauses, in this process."""

    def pause(figures: Mapping[str, Any] | None = None) -> None:
        connection.send(figures)
        connection.recv()

    dask.config.set(settings)
    gc.collect()  # writes to the pages that it shares with the process it was forked from
    program(pause, *arguments)


class Peak:
    """The most bytes used at a time since the start of a watch; known at its end."""

    nbytes = 0


@contextlib.contextmanager
def watched(pid: int, cgroups: bool = True) -> Iterator[Peak]:
    """Watch a process for a while.

    Parameters
    ----------
    pid : int
        The process.
    cgroups : bool
        Whether to use a cgroup where one can be had.
    """
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(memory_cgroup()) if cgroups else None
        if group is None:
            yield stack.enter_context(_sampled(pid))
            return
        stack.enter_context(holding(group, pid))
        peak = Peak()
        yield peak
        peak.nbytes = group.peak or 0


@contextlib.contextmanager
def holding(group: Cgroup, pid: int) -> Iterator[None]:
    """Keep a process in a group for a while."""
    root = Path("/sys/fs/cgroup", "memory" if group.version == 1 else "")
    home = root
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == ("memory" if group.version == 1 else ""):
            home = root / path.lstrip("/")
    (group.folder / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the process may be gone
            (home / "cgroup.procs").write_text(str(pid))


def in_use(pid: int) -> int:
    """Return the bytes of anonymous and shared memory of a process, 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    kinds = (fields.get(kind, "0 kB") for kind in ("RssAnon", "RssShmem"))
    return sum(int(value.split()[0]) * 1024 for value in kinds)


@contextlib.contextmanager
def _sampled(pid: int) -> Iterator[Peak]:
    before = in_use(pid)
    stop = threading.Event()
    peak = Peak()

    def look() -> None:
        while not stop.wait(POLL):
            peak.nbytes = max(peak.nbytes, in_use(pid) - before)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
        peak.nbytes = max(peak.nbytes, in_use(pid) - before)
