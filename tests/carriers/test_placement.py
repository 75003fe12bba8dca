"""Shuffles spread blocks evenly over workers, in 1 to 5 dimensions, where stock P2P does not."""

import itertools
import math
import pickle
from collections import Counter
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from distributed.shuffle._pickle import pickle_bytelist
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft import fft, plan
from dask_bigfft.carriers.p2p import MAX_SHUFFLES
from dask_bigfft.carriers.shuffle import P2PBarrierTask, RechunkRun, Spec
from dask_bigfft.testing.strategies import chunks_of


def rotations(workers):
    """The scheduler hands workers over in another rotation for every shuffle."""
    return itertools.cycle([workers[i:] + workers[:i] for i in range(len(workers))])


def counts(specs, workers):
    blocks_by_worker = Counter(dict.fromkeys(workers, 0))
    for spec, rotated in zip(specs, rotations(workers), strict=False):
        for block in spec.output_partitions:
            blocks_by_worker[spec.pick_worker(block, rotated)] += 1
    return blocks_by_worker


def even(blocks_by_worker):
    mean = sum(blocks_by_worker.values()) / len(blocks_by_worker)
    return all(abs(n - mean) < 1 for n in blocks_by_worker.values())


def addresses(count):
    return [f"tcp://127.0.0.1:{40000 + 37 * i % 101}" for i in range(count)]


@given(
    grids=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=6),
    number=st.integers(1, 9),
)
def test_groups_take_turns(grids, number):
    """Over all groups of an exchange as over the blocks of one."""
    specs = []
    before = 0
    for grid in grids:
        specs.append(Spec("x", True, (), (), tuple(map(range, grid)), before, "plan", 0))
        before += math.prod(grid)
    workers = addresses(number)
    assert even(counts(specs, workers))
    for spec in specs:
        assert even(counts([spec], workers))


def shuffled_graph(transform, x):
    """The tasks of a transform whose exchanges are shuffles, without those of its input."""
    with dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        y = transform(x)
        return dict(y.dask.layers[y.name])


@given(data=st.data(), ndim=st.integers(1, 5), number=st.integers(1, 5))
def test_exchanges_of_plans(data, ndim, number):
    size = {1: 240, 2: 36, 3: 16}.get(ndim, 6)
    require_even_ranks(tuple(data.draw(chunks_of(size, 6)) for _ in range(ndim)), number)


def test_groups_that_send_nothing_take_no_turn():
    require_even_ranks(((16,), (2,) * 8, (0, 2, 14)), 3)


def require_even_ranks(chunks, number):
    """All blocks of an exchange whose groups are shuffled, each once, evenly."""
    x = da.zeros(tuple(map(sum, chunks)), chunks=chunks, dtype=complex)
    graph = shuffled_graph(fft.fftn, x)
    specs = {}
    for task in graph.values():
        if isinstance(task, P2PBarrierTask):
            specs.setdefault(task.spec.number, []).append(task.spec)
    for of_plan in specs.values():
        blocks = [block for spec in of_plan for block in spec.output_partitions]
        assert len(set(blocks)) == len(blocks)
        ranks = [spec.rank(block) for spec in of_plan for block in spec.output_partitions]
        assert sorted(ranks) == list(range(len(ranks)))
        assert even(counts(of_plan, addresses(number)))


def test_tasks_stay_small():
    """What every task of thousands carries does not grow with the number of blocks."""
    largest = []
    for chunk in (2**15, 2**13):
        x = da.zeros(2**24, chunks=chunk, dtype=complex)
        graph = shuffled_graph(fft.fft, x)
        barriers = {key for key, task in graph.items() if isinstance(task, P2PBarrierTask)}
        assert 0 < len(barriers) <= MAX_SHUFFLES * len(plan(x, "fft").exchanges)
        others = [task for key, task in graph.items() if key not in barriers and "plan" not in key]
        largest.append(max(len(pickle.dumps(task)) for task in others))
    assert largest[1] < 1.1 * largest[0]


@pytest.mark.parametrize("dtype", ["f4", "c8", "c16", "g"])
def test_values_are_read_as_they_were_written(dtype, tmp_path):
    """However often a file is added to."""
    written = []
    run = RechunkRun.__new__(RechunkRun)
    vars(run).update(_folder=tmp_path, local_address="here")
    for turn in range(9):
        parts = [((turn, 10**k), k, np.full(3 * turn + k, k, dtype)) for k in (1, 2, 3)]
        # As distributed hands them over: several lists of parts at a time.
        frames = [frame for some in (parts[:2], parts[2:]) for frame in pickle_bytelist(some)]
        run._write_frames(frames, "0_1")
        written += [parts[:2], parts[2:]]
    read, nbytes = RechunkRun.read(SimpleNamespace(), tmp_path / "0_1")
    assert nbytes == (tmp_path / "0_1").stat().st_size
    assert len(read) == len(written)
    for lists in zip(read, written, strict=True):
        for (source, checksum, values), wanted in zip(*lists, strict=True):
            assert (source, checksum) == wanted[:2]
            np.testing.assert_array_equal(values, wanted[2], strict=True)
