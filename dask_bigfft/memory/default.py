"""The host arena that a process shares, made when it is first asked for.

How large it may be, and when it must give idle memory back, is handed in through `configure`:
this floor reads no configuration and knows no worker. It imports the standard library, the
package's errors and the rest of this folder.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy.typing as npt

from dask_bigfft.errors import parse_count
from dask_bigfft.memory.host import HostArena
from dask_bigfft.memory.pinned import Pinner

_UNKNOWN_MACHINE_LIMIT = 1024**3


@dataclass(frozen=True, slots=True)
class _Settings:
    limit: int
    enabled: bool = True
    pressure: Callable[[], bool] | None = None
    prefault: bool = True

    @property
    def effective_limit(self) -> int:
        return self.limit if self.enabled else 0


class _Process:
    """What the process shares: settings, which a fork inherits, and an arena, which it does not."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget arena and lock, both of which another thread may have held when we forked."""
        self.lock = threading.Lock()
        self.arena: HostArena | None = None
        self.pinner: Pinner | None = None  # a fork has no card


def _quarter_of_machine() -> int:
    """Return a quarter of the machine's memory, the limit until somebody knows better."""
    if sys.platform == "win32":
        return _UNKNOWN_MACHINE_LIMIT
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (OSError, ValueError):
        return _UNKNOWN_MACHINE_LIMIT


_process = _Process(_Settings(_quarter_of_machine()))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.start_afresh)


def configure(
    limit: int, enabled: bool = True, *, pressure: Callable[[], bool] | None = None,
    prefault: bool = True,
) -> None:
    """Set how much the process's arena holds, now and in processes forked from here.

    Takes effect at once, also on an arena that is in use. Until the first call the limit is a
    quarter of the machine's memory.

    Parameters
    ----------
    limit
        The most bytes held at a time, lent and idle together.
    enabled
        If false, `lend` gives ordinary memory.
    pressure
        Tells whether idle memory has to go back to the system; see `HostArena`.
    prefault
        If false, `fault_in` does nothing.

    Raises
    ------
    ArgumentTypeError
        If `limit` is not an integer.
    ArgumentError
        If `limit` is negative.
    """
    settings = _Settings(parse_count("limit", limit, 0), enabled, pressure, prefault)
    with _process.lock:
        _process.settings = settings
        if _process.arena is not None:
            _process.arena.watch(pressure)
            _process.arena.prefaults(prefault)
            _process.arena.resize(settings.effective_limit)


def default_arena() -> HostArena:
    """Return the arena of this process, always the same one; a forked child gets its own."""
    arena = _process.arena
    if arena is not None:
        return arena
    with _process.lock:
        if _process.arena is None:
            settings = _process.settings
            _process.arena = HostArena(settings.effective_limit, pressure=settings.pressure)
            _process.arena.prefaults(settings.prefault)
            _process.arena.pin(_process.pinner)
        return _process.arena


def pin_blocks(pinner: Pinner | None) -> Pinner | None:
    """Have the arena's buffers pinned before they are lent, and return who did it so far.

    Parameters
    ----------
    pinner
        Pins them; None pins no more.
    """
    with _process.lock:
        previous, _process.pinner = _process.pinner, pinner
        if _process.arena is not None:
            _process.arena.pin(pinner)
        return previous


def pinned(address: int, nbytes: int) -> bool:
    """Whether the arena has pinned all of these bytes, in one range."""
    pinner = _process.pinner
    return pinner is not None and pinner.covers(address, nbytes)


def lend(shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised C-contiguous array from the process's arena.

    Parameters
    ----------
    shape
        Lengths of the axes.
    dtype
        Of the elements.

    See Also
    --------
    HostArena.lend : Says what is guaranteed.

    Examples
    --------
    >>> lend((2, 3), "float32").shape
    (2, 3)
    """
    return default_arena().lend(shape, dtype)


def fault_in(block: npt.NDArray[Any]) -> int:
    """Return the bytes of a block of the process's arena that this call has had backed by memory.

    Parameters
    ----------
    block
        About to be filled.

    See Also
    --------
    HostArena.fault_in : Says what is guaranteed.
    """
    return default_arena().fault_in(block)
