"""A memory cgroup, where one can be had: a limit that counts the page cache, and its peak.

Imports the standard library.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cgroup", "memory_cgroup"]

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroup:
    """A group of processes with a memory limit.

    Parameters
    ----------
    folder : Path
        Of the group.
    version : int
        1 or 2.
    """

    folder: Path
    version: int

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs another one inside of the group."""
        join = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"'
        return ["sh", "-c", join, "sh", *arguments]

    @property
    def peak(self) -> int | None:
        """Most bytes that the group ever had, page cache included."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None

    @contextlib.contextmanager
    def holding(self, pid: int) -> Iterator[None]:
        """Keep a process in the group for a while."""
        home = self._home_of(pid)
        (self.folder / "cgroup.procs").write_text(str(pid))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the process may be gone
                (home / "cgroup.procs").write_text(str(pid))

    def _home_of(self, pid: int) -> Path:
        """The folder of the group that a process is in."""
        root = _ROOT / "memory" if self.version == 1 else _ROOT
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == ("memory" if self.version == 1 else ""):
                return root / path.lstrip("/")
        return root

    def reset(self) -> None:
        """Forget the peak, and what of the page cache can be dropped."""
        for name in ("memory.force_empty", "memory.max_usage_in_bytes"):
            with contextlib.suppress(OSError):
                (self.folder / name).write_text("0")


def _parents() -> Iterator[tuple[Path, int]]:
    """Groups in which this process may make one: its own, then the highest."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield _ROOT / "memory" / path.strip("/"), 1
            yield _ROOT / "memory", 1
        elif not controllers:
            yield _ROOT / path.strip("/"), 2
            yield _ROOT, 2


@contextlib.contextmanager
def memory_cgroup(limit: int | None = None) -> Iterator[Cgroup | None]:
    """Give a group, which has no swap if it has a limit; None where none can be made."""
    made = (_made(parent, version, limit) for parent, version in _parents())
    found = next((group for group in made if group is not None), None)
    try:
        yield found
    finally:
        if found is not None:
            _removed(found.folder)


def _made(parent: Path, version: int, limit: int | None) -> Cgroup | None:
    """Make a group below another one, where that may be."""
    group = Cgroup(parent / f"dask_bigfft_{os.getpid()}_{uuid.uuid4().hex[:8]}", version)
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    swap = "memory.swap.max" if version == 2 else "memory.memsw.limit_in_bytes"
    try:
        group.folder.mkdir()
        if limit is not None:
            (group.folder / name).write_text(str(limit))
    except OSError:
        with contextlib.suppress(OSError):
            group.folder.rmdir()
        return None
    if limit is None and group.peak is None:
        _removed(group.folder)
        return None
    if limit is not None:
        with contextlib.suppress(OSError):
            (group.folder / swap).write_text("0" if version == 2 else str(limit))
    return group


def _removed(folder: Path) -> None:
    """Remove a group once its processes have ended."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)
