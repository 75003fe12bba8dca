"""Files of a result that are recorded as stored, but are not what they were then.

Without `sync`, a loss of power can keep a record and lose the file that it speaks of, its end, or
pages in the middle, which are zeros afterwards. So a record has the file's size, and a checksum of
a *sample* of its values: one of at least every 4 KiB of the file. To take it costs next to nothing;
to compare it, the file is read once where a run is resumed. A checksum of all values finds a
single flipped bit, where `checksum` or `verify` asks for that.

Imports `exchange`, `kernels`, `planner` and `storage`.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.exchange.records import Stored
from dask_bigfft.kernels.checksums import checksum
from dask_bigfft.planner.plan import Plan
from dask_bigfft.storage.chunk_files import PlainChunks, plain_chunks
from dask_bigfft.storage.damaged import UNREADABLE
from dask_bigfft.storage.targets import Target

__all__ = ["file_size", "lost_blocks", "sample_of"]

Block = tuple[int, ...]

#: Bytes of a file of which at least one value is in the sample: what systems lose at a time.
PAGE = 4096


def file_size(path: Path) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def sample_of(
    values: npt.NDArray[Any], chunk: tuple[int, ...], dtype: npt.DTypeLike | None = None
) -> int:
    """Return the checksum of a sample of a block's values.

    Parameters
    ----------
    values : ndarray
        The block.
    chunk : tuple of int
        Shape of what lies in one piece in the file, row-major: the block, or a part of it.
    dtype : dtype, optional
        Of the file, if that of the values is another one.

    Examples
    --------
    >>> values = np.ones((8, 1024))
    >>> before = sample_of(values, (8, 1024))
    >>> values.reshape(-1)[512:1024] = 0  # the second page of 4 KiB
    >>> sample_of(values, (8, 1024)) == before
    False
    """
    stored = np.dtype(dtype or values.dtype)
    chosen, left = list[npt.NDArray[np.intp]](), stored.itemsize
    for axis in reversed(range(values.ndim)):
        step, left, size = max(1, PAGE // left), left * chunk[axis], values.shape[axis]
        inside = np.arange(0, chunk[axis], step)
        places = (np.arange(0, size, chunk[axis])[:, None] + inside).ravel()
        places = places[places < size]
        chosen.append(np.append(places, size - 1) if places[-1] < size - 1 else places)
    return checksum(np.ascontiguousarray(values[np.ix_(*reversed(chosen))], stored))


def lost_blocks(
    target: Target, plan: Plan, recorded: Mapping[Block, Stored], whole: bool = False
) -> list[Block]:
    """Return the blocks of a result that are recorded as stored, and are lost; their files go.

    All values are compared where `whole` is true, else a sample of them.

    So do files that nothing is recorded of and that may not be whole: of a shard that is there Zarr
    reads the index before it writes it anew.
    """
    lost: dict[Block, Path] = {}
    plain = plain_chunks(target.array, target.partial)
    for block in plan.result.indices():
        path = target.partial / str(target.array.metadata.encode_chunk_key(block))
        if block in recorded and _is_whole(
                target, plain, block, path, recorded[block], whole):
            continue
        path.unlink(missing_ok=True)
        if block in recorded:
            lost[block] = path
    if lost:
        path = next(iter(lost.values()))
        warnings.warn(f"{len(lost)} files of the result are not what they were when they were "
                      f"stored, and are made once more: {path}", RuntimeWarning, stacklevel=4)
    return list(lost)


def _is_whole(
    target: Target, plain: PlainChunks | None, block: Block, path: Path, file: Stored, whole: bool
) -> bool:
    """Whether the file of a block is as it was stored."""
    if file.nbytes is None or file.nbytes != file_size(path):
        return file.nbytes is None
    if file.checksum is None if whole else file.sample is None:
        return True
    array = target.array
    shape = array.shards or array.chunks
    region = tuple(slice(i * n, min(i * n + n, size))
                   for i, n, size in zip(block, shape, array.shape, strict=True))
    try:
        values = None if plain is None else plain.read(region)
        values = np.asarray(array[region]) if values is None else values
    except UNREADABLE:
        return False
    if whole:
        return checksum(np.ascontiguousarray(values)) == file.checksum
    return sample_of(values, array.chunks) == file.sample
