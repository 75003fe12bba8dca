"""What dask.cache may do to a computation, for tests of memory that several computations meet."""

from dask.callbacks import Callback

from dask_bigfft.graph.dask_private import DataNode


class Keeping(Callback):
    """Keeps blocks whose key says `part`, and puts them into later computations."""

    def __init__(self, part):
        self.part, self.kept = part, {}

    def _start(self, dsk):
        for key in set(dsk) & set(self.kept):
            dsk[key] = DataNode(key, self.kept[key])

    def _posttask(self, key, value, dsk, state, id):
        if self.part in str(key):
            self.kept[key] = value
