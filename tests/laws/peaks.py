"""The most memory that a process has used, measured from outside while it runs.

In a memory cgroup of its own where one can be had (root, and a mounted hierarchy): that counts what
the process has touched since it was put there, files in the page cache included. Elsewhere by
looking at anonymous and shared memory every few milliseconds, above what was there at the start.

"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.core import Cgroup, memory_cgroup

#: Seconds between two looks at another process that has no cgroup.
POLL = 0.002


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
