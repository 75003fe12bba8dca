"""Where the blocks of a result go: each into one chunk, or shard, of a Zarr array.

Imports `storage`, `exchange`, `events`, `files` and `lost`.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import dask.array as da
import numpy as np

from dask_bigfft.events import emit
from dask_bigfft.exchange.folders import sync_folders
from dask_bigfft.exchange.records import Stored
from dask_bigfft.exchange.scratch import Scratch
from dask_bigfft.files import room_missing, sync_path
from dask_bigfft.kernels.checksums import checksum
from dask_bigfft.runs.lost import file_size
from dask_bigfft.storage.chunk_files import PlainChunks

Block = tuple[int, ...]


class Sink:
    """A Zarr array as `dask.array.store` writes to it: a block at a time.

    Parameters
    ----------
    array : Zarr array
        Written to.
    blocks : tuple of int
        Shape of a block: that of a chunk, or of a shard where chunks lie in shards.
    scratch : Scratch or None
        Where to record which blocks are stored.
    exchange : str or None
        Folder of the scratch files that the blocks come from; a stored block's file goes.
    folder : Path or None
        Of the array: where its chunks are files. Their sizes are recorded, and with `sync` they
        are on the disk before.
    plain : PlainChunks or None
        Its chunks, where they are files of nothing but their values.
    parts : mapping of block to block
        Where a block is a part of one of the last round, that one: its file goes with the last of
        its parts that are stored.
    """

    def __init__(
        self,
        array: Any,
        blocks: tuple[int, ...],
        scratch: Scratch | None = None,
        exchange: str | None = None,
        folder: Path | None = None,
        plain: PlainChunks | None = None,
        parts: Mapping[Block, Block] = MappingProxyType({}),
    ) -> None:
        self.array, self.blocks, self.scratch = array, blocks, scratch
        self.exchange, self.folder, self.plain = exchange, folder, plain
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.parts, self._parts_of = dict(parts), dict[Block, list[Block]]()
        for part, whole in parts.items():
            self._parts_of.setdefault(whole, []).append(part)

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __setitem__(self, index: tuple[slice, ...], values: Any) -> None:
        started = time.perf_counter()
        block = tuple((s.start or 0) // n for s, n in zip(index, self.blocks, strict=True))
        try:
            if self.plain is None or not self.plain.write(index, values):
                self.array[index] = values
        except OSError as error:
            self._fail(error, block, values.nbytes)
        if self.scratch is not None:
            self.scratch.record_stored(block, self._settled(self.scratch, block, values))
            if self.exchange is not None:
                self._free(self.scratch, self.exchange, block)
        emit("sink_write", nbytes=values.nbytes, seconds=time.perf_counter() - started)

    def _fail(self, error: OSError, block: Block, nbytes: int) -> NoReturn:
        """Raise what went wrong with a chunk: which, and how many bytes a full disk lacks.

        Zarr names no file.
        """
        root = getattr(self.array.store, "root", None)
        path = Path(error.filename or "")
        if root is not None:
            path = Path(root, self.array.path, self.array.metadata.encode_chunk_key(block))
        text, lack = error.strerror or str(error), room_missing(path, error, nbytes)
        if lack is not None:
            text = f"{text}: {lack} for a chunk of the result of {nbytes}"
        raise OSError(error.errno, text, str(path)) from error

    def _free(self, scratch: Scratch, exchange: str, block: Block) -> None:
        """Delete the file that a stored block came from, unless others have to come from it.

        Any worker, now or before an interruption, may have stored them: the records say.
        """
        whole = self.parts.get(block, block)
        if all(scratch.stored(part) for part in self._parts_of.get(whole, ())):
            scratch.free(exchange, whole)

    def _settled(self, scratch: Scratch, block: Block, values: Any) -> Stored:
        """Return what there is to be known of a block's file, if it is one.

        With `sync` the file is then on the disk, and the names of all folders down to it; else its
        checksum tells later whether it has come there.
        """
        if self.folder is None:
            return Stored()
        path = self.folder / self.array.metadata.encode_chunk_key(block)
        whole = checksum(np.ascontiguousarray(values, self.dtype))
        if scratch.sync:
            sync_path(path)
            sync_folders(path.parent, self.folder)
        return Stored(file_size(path), whole, scratch.sync)


#: Stores a result in a sink, whole, before it returns.
Store = Callable[[da.Array, Sink], object]
