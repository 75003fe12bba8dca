"""The most memory that a process has used, measured from outside while it runs.

In a memory cgroup of its own where one can be had (root, and a mounted hierarchy): that counts what
the process has touched since it was put there, files in the page cache included. Elsewhere by
looking at anonymous and shared memory every few milliseconds, above what was there at the start.

Imports the standard library only.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Peak", "watched"]

#: Seconds between two looks at a process that has no cgroup.
POLL = 0.002

#: Roots of memory hierarchies (cgroup versions 1 and 2), each with the files of limit and peak.
_ROOTS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)


class Peak:
    """What `watched` finds out.

    Attributes
    ----------
    nbytes : int
        The most bytes used at a time since the start of the watch; known at its end.
    how : {"cgroup", "sampled"}
        How that was found.
    """

    def __init__(self, how: str) -> None:
        self.nbytes, self.how = 0, how


@contextlib.contextmanager
def watched(pid: int, limit: int | None = None, cgroups: bool = True) -> Iterator[Peak]:
    """Watch a process for a while.

    Parameters
    ----------
    pid : int
        The process.
    limit : int, optional
        Bytes that it may use in the meantime beside what it uses now. Kept by the system, which
        then takes pages of files away or ends the process; without a cgroup nothing keeps it.
    cgroups : bool
        Whether to use a cgroup where one can be had.
    """
    group = _group() if cgroups else None
    if group is None:
        with _sampled(pid) as peak:
            yield peak
        return
    folder, limit_file, peak_file = group
    home = _home_of(pid, folder.parent)
    try:
        if limit is not None:
            (folder / limit_file).write_text(str(limit))
        (folder / "cgroup.procs").write_text(str(pid))
        peak = Peak("cgroup")
        yield peak
        peak.nbytes = int((folder / peak_file).read_text())
    finally:
        with contextlib.suppress(OSError):  # the process may be gone
            (home / "cgroup.procs").write_text(str(pid))
        _remove(folder)


def _group() -> tuple[Path, str, str] | None:
    """Make a cgroup; return its folder and the names of its files, None where that is not to be."""
    for root, limit_file, peak_file in _ROOTS:
        folder = root / f"bigfft-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / peak_file).exists():
            return folder, limit_file, peak_file
        _remove(folder)
    return None


def _home_of(pid: int, root: Path) -> Path:
    """The folder of the cgroup that a process is in."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == ("memory" if root.name == "memory" else ""):
            return root / path.lstrip("/")
    return root


def _remove(folder: Path) -> None:
    """Remove a cgroup as soon as its last process has left."""
    for _ in range(200):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def _in_use(pid: int) -> int:
    """Bytes of anonymous and shared memory of a process, 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    kinds = (fields.get(kind, "0 kB") for kind in ("RssAnon", "RssShmem"))
    return sum(int(value.split()[0]) * 1024 for value in kinds)


@contextlib.contextmanager
def _sampled(pid: int) -> Iterator[Peak]:
    before, stop, peak = _in_use(pid), threading.Event(), Peak("sampled")

    def look() -> None:
        while not stop.wait(POLL):
            peak.nbytes = max(peak.nbytes, _in_use(pid) - before)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
        peak.nbytes = max(peak.nbytes, _in_use(pid) - before)
