"""Files of a result that are recorded as stored, but are not what they were then.

Without `sync`, a loss of power can keep a record and lose the file that it speaks of, its end, or
pages in the middle, which are zeros afterwards. So a record has the file's size and a checksum of
its values, and a resumed run reads the file once and compares them. Files that `sync` has put on
the disk before their record are read only where `checksum` or `verify` asks for that.

Imports `exchange`, `kernels`, `planner` and `storage`.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dask_bigfft.exchange.records import Stored
from dask_bigfft.kernels.checksums import checksum
from dask_bigfft.planner.plan import Plan
from dask_bigfft.storage.chunk_files import PlainChunks, plain_chunks
from dask_bigfft.storage.damaged import UNREADABLE
from dask_bigfft.storage.targets import Target

__all__ = ["file_size", "lost_blocks"]

Block = tuple[int, ...]


def file_size(path: Path) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def lost_blocks(
    target: Target, plan: Plan, recorded: Mapping[Block, Stored], synced: bool = False
) -> list[Block]:
    """Return the blocks of a result that are recorded as stored, and are lost; their files go.

    Values of files that were on the disk before their record are compared only if `synced` is true.

    So do files that nothing is recorded of and that may not be whole: of a shard that is there Zarr
    reads the index before it writes it anew.
    """
    lost: dict[Block, Path] = {}
    plain = plain_chunks(target.array, target.partial)
    for block in plan.result.indices():
        path = target.partial / str(target.array.metadata.encode_chunk_key(block))
        if block in recorded and _is_whole(target, plain, block, path, recorded[block], synced):
            continue
        path.unlink(missing_ok=True)
        if block in recorded:
            lost[block] = path
    if lost:
        path = next(iter(lost.values()))
        warnings.warn(
            f"{len(lost)} files of the result are not what they were when they were "
            f"stored, and are made once more: {path}",
            RuntimeWarning,
            stacklevel=4,
        )
    return list(lost)


def _is_whole(
    target: Target, plain: PlainChunks | None, block: Block, path: Path, file: Stored, synced: bool
) -> bool:
    """Whether the file of a block is as it was stored."""
    if file.nbytes is None or file.nbytes != file_size(path):
        return file.nbytes is None
    if file.checksum is None or (file.synced and not synced):
        return True
    array = target.array
    shape = array.shards or array.chunks
    region = tuple(
        slice(i * n, min(i * n + n, size))
        for i, n, size in zip(block, shape, array.shape, strict=True)
    )
    try:
        values = None if plain is None else plain.read(region)
        values = np.asarray(array[region]) if values is None else values
    except UNREADABLE:
        return False
    return checksum(np.ascontiguousarray(values)) == file.checksum
