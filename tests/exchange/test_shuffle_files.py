"""Shards of several target blocks that wait in one file come back as they were, block by block."""

import itertools
from collections import defaultdict

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft
from dask_bigfft.exchange.p2p_run import MOST_OPEN, Files
from dask_bigfft.graph.build import build_graph
from dask_bigfft.graph.layer import PlanLayer

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


def togethers(x: da.Array) -> set[int]:
    """Target blocks in a file, of all shuffles of a transform."""
    y = fft.fft(x)
    layer = next(found for found in y.dask.layers.values() if isinstance(found, PlanLayer))
    graph = build_graph(layer.plan, layer.token, layer.source, "p2p", True)
    return {task.spec.together for task in graph.values() if hasattr(task, "spec")}


def test_only_tiny_shards_share_a_file() -> None:
    with dask.config.set({"bigfft.planner.merge-up-to": 0}):
        assert togethers(da.zeros(2**26, chunks=2**22, dtype="c16")) == {1}  # 256 KiB
        assert togethers(da.zeros(2**26, chunks=2**18, dtype="c16")) == {4}  # 16 KiB
        assert max(togethers(da.zeros(2**18, chunks=2**11, dtype="c16"))) == 128  # 512 B
