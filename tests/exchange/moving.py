"""The exchange of two layouts, as laws ask for it: the one place that knows its classes."""

import numpy as np

from dask_bigfft.exchange.gather import stored_regions, view_of
from dask_bigfft.exchange.packing import IncrementalGather, fresh_block, pack, shard_sizes
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.transforms.exchanges import packed_dtype


class Moves:
    """What travels between the blocks of two layouts.

    Parameters
    ----------
    source, target : Layout
        Blocks before and after.
    mirror : Mirror, optional
        Mirror image that completes half a spectrum.
    """

    def __init__(self, source, target, mirror=None):
        self.source = source
        self.target = target
        self.map = ExchangeMap(source, target, mirror)

    def sources(self, block):
        """Return the source blocks of a target block."""
        return self.map.sources(block)

    def sizes(self, block):
        """Return the number of elements that come from each source block."""
        return shard_sizes(self.map, block)

    def gather(
        self,
        block,
        dtype,
        blocks,
        threads=1,
    ):
        """Return a target block, gathered from source blocks by their indices."""
        return view_of(self.map, block, dtype, blocks.__getitem__).gather(threads=threads)

    def pack(
        self,
        block,
        source,
        values,
        dtype,
    ):
        """Return the shard of a source block for a target block."""
        return pack(
            self.map,
            block,
            source,
            values,
            dtype,
        )

    def unpack(self, block, dtype, shards):
        """Return a target block, gathered from shards by their source blocks."""
        return view_of(
            self.map,
            block,
            dtype,
            shards.__getitem__,
            packed=True,
        ).gather()

    def unpack_some(
        self,
        block,
        dtype,
        source_dtype,
        batches,
    ):
        """Return a target block, put together from batches of shards as they arrive."""
        incremental = IncrementalGather(
            self.map,
            block,
            dtype,
            packed_dtype(source_dtype, dtype),
        )
        for shards in batches:
            incremental.take(shards)
        return incremental.values

    def view(self, block, dtype, blocks):
        """Return a target block that is gathered tile by tile (`result`, `tiles`)."""
        return view_of(
            self.map,
            block,
            dtype,
            blocks.__getitem__,
        )

    def read_in_place(self, block, dtype, stored):
        """Return a target block whose regions were read from a stored array into their places."""
        memory = fresh_block(self.map, block, dtype)
        self._read(block, memory, stored)
        return memory

    def read_packed(
        self,
        block,
        dtype,
        stored,
        blocks,
    ):
        """Return a target block whose regions were read from a stored array into its shards."""
        memory = {
            source: np.empty(self.pack(block, source, blocks[source], dtype).size, dtype)
            for source in self.sources(block)
        }
        self._read(block, memory, stored)
        return self.unpack(block, dtype, memory)

    def _read(self, block, memory, stored):
        for region, place in stored_regions(self.map, block, memory):
            assert place.shape == tuple(cut.stop - cut.start for cut in region)
            place[...] = stored[region]
