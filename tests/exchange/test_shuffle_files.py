"""Shards of several target blocks that wait in one file come back as they were, block by block."""

import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from distributed.shuffle._pickle import pickle_bytelist

from dask_bigfft.exchange.p2p_run import ALIGNMENT, Run, aligned_frames
from dask_bigfft.exchange.p2p_shards import MOST_OPEN, Files, Kept

GRID = (3, 7)
TARGETS = list(itertools.product(*map(range, GRID)))


def message(source: int, blocks: list[tuple[int, ...]]):
    """Values that say where they come from and go; one more than the first index of the block."""
    sizes = [block[0] + 1 for block in blocks]
    names = [100 * source + 10 * block[0] + block[1] for block in blocks]
    values = [np.full(size, name) for size, name in zip(sizes, names, strict=True)]
    sums = np.array([source + sum(block) for block in blocks], np.uint64)
    bounds = np.cumsum([0, *sizes])
    return np.array(blocks), bounds, np.concatenate(values), sums


@pytest.mark.parametrize("together", [1, 2, 5, 21, 100])
def test_every_block_finds_its_shards(together: int) -> None:
    mine = [block for block in TARGETS if sum(block) % 2]
    files, stored, reads = Files(mine, together), defaultdict(list), []
    given = {source: mine[source % 3 :: 1 + source % 2] for source in range(9)}
    for source, blocks in given.items():
        for name, kept in files.parts((source,), message(source, blocks)):
            stored[name].append(kept)
    assert len(stored) == -(-len(mine) // together)

    def read(name):
        reads.append(name)
        return stored[name]

    for block in mine:
        found = {s[0]: (total, values) for s, total, values in files.shards_of(block, read)}
        assert found.keys() == {source for source, blocks in given.items() if block in blocks}
        for source, (total, values) in found.items():
            assert total == source + sum(block)
            value = 100 * source + 10 * block[0] + block[1]
            np.testing.assert_array_equal(values, np.full(block[0] + 1, value))
    assert len(reads) == len(set(reads))  # in order, each file is read once
    assert len(files._read) <= MOST_OPEN


@pytest.mark.parametrize("dtype", ["f4", "c8", "c16", "g"])
def test_values_lie_in_files_so_that_nobody_has_to_copy_them(dtype: str, tmp_path: Path) -> None:
    """Whatever lengths pickles have, and however often a file is added to."""
    path, written = tmp_path / "0_1", []
    for turn in range(9):
        parts = [
            Kept((turn, 10**k), [(k, 1)] * k, [0] * (k + 1), [0] * k, values)
            for k in range(1, 4) for values in [np.full(3 * turn + k, k, dtype)]
        ]
        with path.open("ab") as file:
            # As distributed hands them over: several lists of parts at a time.
            frames = [frame for some in (parts[:2], parts[2:]) for frame in pickle_bytelist(some)]
            file.writelines(aligned_frames(frames, file.tell()))
        written += [parts[:2], parts[2:]]
    found, nbytes = Run.read(None, path)
    assert nbytes == path.stat().st_size
    assert len(found) == len(written)
    for lists in zip(found, written, strict=True):
        for kept, part in zip(*lists, strict=True):
            assert kept[:4] == part[:4]
            assert kept.values.flags.aligned
            np.testing.assert_array_equal(kept.values, part.values, strict=True)
        assert lists[0][0].values.ctypes.data % ALIGNMENT == 0
