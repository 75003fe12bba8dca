"""Sinks of results: Zarr arrays to which blocks are stored one by one."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.utils import format_bytes

from dask_bigfft.api.calls import by_block
from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.dask_private import is_expression
from dask_bigfft.events import emit
from dask_bigfft.exchange import folders
from dask_bigfft.exchange.scratch import RESULT, Scratch
from dask_bigfft.files import WriteBehind, explained, sync_path
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.storage import targets


@dataclass(eq=False)
class Sink:
    """Zarr array to which `dask.array.store` writes a block at a time.

    Parameters
    ----------
    target : Target
        Array that is written.
    scratch : Scratch or None
        Scratch folder that records the stored blocks.
    exchange : str or None
        Folder of the scratch files that the blocks are made of. The file of a stored block is
        deleted.
    parts : mapping of block to block
        Block of the last round for each block that is a part of one. Its file is deleted once all
        parts are stored.
    writes : WriteBehind
        Writes of blocks that their tasks do not wait for. By default all tasks wait.
    """

    target: targets.Target
    scratch: Scratch | None = None
    exchange: str | None = None
    parts: Mapping[Block, Block] = field(default_factory=dict)
    writes: WriteBehind = field(default_factory=partial(WriteBehind, 0))

    def __post_init__(self) -> None:
        self.shape = self.target.array.shape
        self.dtype = self.target.array.dtype
        self.ndim = self.target.array.ndim
        self._parts_of: dict[Block, list[Block]] = {}
        for part, whole in self.parts.items():
            self._parts_of.setdefault(whole, []).append(part)

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __setitem__(self, index: tuple[slice, ...], values: Any) -> None:
        self.writes.start(values.nbytes, partial(self._write, index, values))

    def _write(self, index: tuple[slice, ...], values: Any) -> None:
        """Write a block, and record it in the scratch folder."""
        started = time.perf_counter()
        pairs = zip(index, self.target.blocks, strict=True)
        block = tuple((slice_.start or 0) // length for slice_, length in pairs)
        path = self.target.chunk_file(block)
        try:
            self.target.write(index, values)
        except OSError as error:  # zarr names no file
            what = f"a chunk of the result of {format_bytes(values.nbytes)}"
            text = explained(
                path,
                error,
                values.nbytes,
                what,
            )
            raise OSError(error.errno, text, str(path)) from error
        if self.scratch is not None:
            self._record(
                self.scratch,
                block,
                path,
                values,
            )
        emit("sink_write", nbytes=values.nbytes, seconds=time.perf_counter() - started)

    def _record(
        self,
        scratch: Scratch,
        block: Block,
        path: Path,
        values: Any,
    ) -> None:
        """Record a stored block, and delete its scratch file if no other block needs it.

        With `sync` the block's file and folders are synced first. Otherwise its checksum shows
        later if it has reached the disk.
        """
        block_checksum = checksum(np.ascontiguousarray(values, self.dtype))
        if scratch.sync:
            sync_path(path)
            folders.sync_folders(path.parent, self.target.partial)
        file = {
            "nbytes": path.stat().st_size,
            "checksum": block_checksum,
            "synced": scratch.sync,
        }
        scratch.record(RESULT, block, file)
        whole = self.parts.get(block, block)
        # Other workers, or earlier attempts, may have stored the other parts.
        parts = self._parts_of.get(whole, ())
        if self.exchange is not None and all(scratch.recorded(RESULT, part) for part in parts):
            scratch.free(self.exchange, whole)


#: Function that stores a whole result in a sink before it returns.
Store = Callable[[da.Array, Sink], object]


def store_now(result: da.Array, sink: Sink) -> None:
    """Store a result with the current scheduler."""
    if not is_expression(result):
        da.store(result, cast("Any", sink), lock=False)
        return
    # dask with query planning has no `store`
    marks = by_block(
        _store_block,
        result,
        sink=sink,
        bounds=tuple(np.cumsum((0, *along)) for along in result.chunks),
        chunks=tuple((1,) * len(along) for along in result.chunks),
        dtype=np.bool_,
    )
    marks.compute()


def _store_block(
    values: Array,
    sink: Sink,
    bounds: tuple[Ints, ...],
    block_id: Block,
) -> Array:
    """Store a block in a sink, and return a mark of one element."""
    region = []
    for along, place in zip(bounds, block_id, strict=True):
        region.append(slice(int(along[place]), int(along[place + 1])))
    sink[tuple(region)] = values
    return np.ones((1,) * values.ndim, np.bool_)
