"""Host memory that is reserved once and reused by block after block: `arena`, `pages`, `pinned`."""

from dask_bigfft.memory.arena import allocate, default_arena, fault_in

__all__ = ["allocate", "default_arena", "fault_in"]
