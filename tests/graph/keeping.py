"""Who keeps blocks of a computation, for tests of memory: caches of dask, threads, garbage."""

import gc

from dask.callbacks import Callback

from dask_bigfft.dask_private import DataNode
from dask_bigfft.memory import default_arena
from dask_bigfft.testing.traps import until


def allocated_bytes():
    """Bytes that the arena of this process has lent, but for what is garbage."""
    gc.collect()
    return default_arena().counters().allocated_bytes


def come_back(before):
    """Whether no more is lent in the end than before: threads let go of a block after its task."""
    until(lambda: allocated_bytes() <= before)
    return allocated_bytes() == before


class Keeping(Callback):
    """Keeps blocks whose key says `part`, and puts them into later computations."""

    def __init__(self, part):
        self.part = part
        self.blocks = {}

    def _start(self, dsk):
        for key in set(dsk) & set(self.blocks):
            dsk[key] = DataNode(key, self.blocks[key])

    def _posttask(
        self,
        key,
        value,
        dsk,
        state,
        id,
    ):
        if self.part in str(key):
            self.blocks[key] = value
