"""Host memory that is reserved once and reused by block after block: `arena`, `pages`, `pinned`."""

from dask_bigfft.memory.arena import (
    ALIGNMENT_NBYTES,
    SMALL_NBYTES,
    ArenaCounters,
    HostArena,
    allocate,
    configure,
    default_arena,
    fault_in,
    pin_blocks,
    pinned,
)
from dask_bigfft.memory.pinned import Pinner

__all__ = ["ALIGNMENT_NBYTES", "SMALL_NBYTES", "ArenaCounters", "HostArena", "Pinner", "configure"]
__all__ += ["allocate", "default_arena", "fault_in", "pin_blocks", "pinned"]
