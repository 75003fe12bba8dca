"""Shuffles spread blocks evenly over workers, in 1 to 5 dimensions, where stock P2P does not."""

import itertools
import math
import pickle
from collections import Counter

import dask.array as da
import pytest
from distributed.shuffle._rechunk import ArrayRechunkSpec
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft import fft
from dask_bigfft.exchange.p2p import P2PBarrierTask, Spec
from dask_bigfft.graph.build import build_graph
from dask_bigfft.graph.carriers import MOST_SHUFFLES
from dask_bigfft.planning.arguments import make_plan
from dask_bigfft.testing.strategies import chunks_of


def spec_of(grid, before=0):
    """Return the spec of a shuffle of a whole grid of target blocks."""
    return Spec("x", True, (), (), tuple(map(range, grid)), before, "plan", 0)


def rotations(workers):
    """The scheduler hands workers over in another rotation for every shuffle."""
    return itertools.cycle([workers[i:] + workers[:i] for i in range(len(workers))])


def counts(specs, workers):
    found = Counter(dict.fromkeys(workers, 0))
    for spec, rotated in zip(specs, rotations(workers), strict=False):
        for block in spec.output_partitions:
            found[spec.pick_worker(block, rotated)] += 1
    return found


def even(found):
    mean = sum(found.values()) / len(found)
    return all(abs(n - mean) < 1 for n in found.values())


def addresses(count):
    return [f"tcp://127.0.0.1:{40000 + 37 * i % 101}" for i in range(count)]


@pytest.mark.parametrize(
    "grid",
    [
        (64,),
        (7, 1),
        (64, 1),
        (8, 1, 8),
        (16, 1, 16),
        (4, 4, 4),
        (8, 8, 8),
        (5, 1, 3, 2),
        (8, 1, 1, 8),
        (2, 3, 1, 2, 3),
        (4, 1, 4, 1, 4),
    ],
)
def test_grids_that_stock_p2p_skews(grid):
    workers = addresses(8)
    found = counts([spec_of(grid)], workers)
    assert even(found)
    assert sum(found.values()) == math.prod(grid)
    stock = ArrayRechunkSpec("x", True, new=tuple((1,) * n for n in grid), old=())
    if len(grid) > 2:  # half of the workers or more have nothing: else this test shows nothing
        assert list(counts([stock], workers).values()).count(0) >= 4


@given(
    grids=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=6),
    number=st.integers(1, 9),
)
def test_groups_take_turns(grids, number):
    """Over all groups of an exchange as over the blocks of one."""
    specs, before = [], 0
    for grid in grids:
        specs.append(spec_of(grid, before))
        before += math.prod(grid)
    workers = addresses(number)
    assert even(counts(specs, workers))
    for spec in specs:
        assert even(counts([spec], workers))


@given(data=st.data(), ndim=st.integers(1, 5), number=st.integers(1, 5))
def test_exchanges_of_plans(data, ndim, number):
    """All blocks of an exchange whose groups are shuffled, each once, evenly."""
    size = {1: 240, 2: 36, 3: 16}.get(ndim, 6)
    chunks = tuple(data.draw(chunks_of(size, 6)) for _ in range(ndim))
    x = da.zeros((size,) * ndim, chunks=chunks, dtype=complex)
    plan = make_plan(x, "fftn")
    graph = build_graph(plan, "token", "x", "p2p", True)
    specs = {}
    for task in graph.values():
        if isinstance(task, P2PBarrierTask):
            specs.setdefault(task.spec.number, []).append(task.spec)
    for found in specs.values():
        blocks = [block for spec in found for block in spec.output_partitions]
        assert len(set(blocks)) == len(blocks)
        ranks = [spec.rank(block) for spec in found for block in spec.output_partitions]
        assert sorted(ranks) == list(range(len(ranks)))
        assert even(counts(found, addresses(number)))


def test_tasks_stay_small():
    """What every task of thousands carries does not grow with the number of blocks."""
    largest = []
    for chunk in (2**15, 2**13):
        x = da.zeros(2**24, chunks=chunk, dtype=complex)
        layer = fft.fft(x).dask.layers[fft.fft(x).name]
        graph = build_graph(layer.plan, "token", x.name, "p2p", True)
        barriers = {key for key, task in graph.items() if isinstance(task, P2PBarrierTask)}
        assert 0 < len(barriers) <= MOST_SHUFFLES * len(layer.plan.exchanges)
        others = [task for key, task in graph.items() if key not in barriers and "plan" not in key]
        largest.append(max(len(pickle.dumps(task)) for task in others))
    assert largest[1] < 1.1 * largest[0]
