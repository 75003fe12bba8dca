"""Memory that is reserved once and lent to block after block: the arenas of this process.

::

    default (the arena of a process) -> host -> books (lent and idle, within a limit) -> idle
        pages (memory of the system) <- pinned (for cards); blocks (the arrays lent), counters

Imports NumPy, the standard library and the package's errors; sizes and limits are handed in.
"""

from dask_bigfft.memory.blocks import ALIGNMENT_NBYTES
from dask_bigfft.memory.counters import ArenaCounters
from dask_bigfft.memory.default import (
    configure,
    default_arena,
    fault_in,
    lend,
    pin_blocks,
    pinned,
)
from dask_bigfft.memory.host import SMALL_NBYTES, HostArena
from dask_bigfft.memory.pinned import PinnedCounters, Pinner

__all__ = [
    "ALIGNMENT_NBYTES",
    "SMALL_NBYTES",
    "ArenaCounters",
    "HostArena",
    "PinnedCounters",
    "Pinner",
    "configure",
    "default_arena",
    "fault_in",
    "lend",
    "pin_blocks",
    "pinned",
]
