"""Blocks that lie side by side are transformed several at a time, and handed on one by one."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_bigfft.graph.run as graph_run
from dask_bigfft import fft
from dask_bigfft.events import add_sink, remove_sink

#: Function, shape and chunks of arrays in many blocks, some of them uneven.
CASES = {
    "2D": ("fft2", (128, 64), (2, 64)),
    "uneven": ("ifft2", (131, 70), (3, 70)),
    "3D": ("fftn", (64, 8, 36), (1, 8, 36)),
    "real": ("rfft2", (96, 80), (2, 80)),
    "1D": ("fft", (4096,), (64,)),
    "1D inverse": ("ifft", (6561,), (81,)),
    "two axes cut": ("fft2", (96, 96), (12, 12)),
    "to real": ("irfft2", (96, 40), (2, 40)),
}


@pytest.fixture(autouse=True)
def two_threads():
    with dask.config.set(
        {"num_workers": 2, "scheduler": "threads", "bigfft.planner.merge-up-to": 0}
    ):
        yield


def made(case, **keywords):
    name, shape, chunks = CASES[case]
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape)
    if name != "rfft2":
        x = x + 1j * rng.standard_normal(shape)
    return getattr(fft, name)(da.from_array(x, chunks), **keywords), getattr(scipy.fft, name)(x)


def wide_tasks(y):
    names = {key[0] for key in y.__dask_graph__() if isinstance(key, tuple)}
    return sorted(name for name in names if "-2-" in name)


def distance(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_one_array(case):
    y, expected = made(case, kernel="scipy")
    assert distance(y.compute(), expected) < 1e-14
    assert distance(y[..., 5:20].compute(), expected[..., 5:20]) < 1e-14


@pytest.mark.parametrize("case", ["2D", "uneven", "3D", "real"])
def test_blocks_that_lie_together_are_done_together(case):
    y, _ = made(case)
    assert wide_tasks(y)


@pytest.mark.parametrize("verify", ["energy", "checksum"])
@pytest.mark.parametrize("case", ["2D", "uneven", "3D", "real"])
def test_verified_blocks_are_done_together_too(case, verify):
    y, expected = made(case, verify=verify, kernel="scipy")
    assert wide_tasks(y)
    assert distance(y.compute(), expected) < 1e-14


def test_blocks_that_do_not_lie_together_are_gathered():
    y, expected = made("2D")
    assert wide_tasks(y)
    with dask.config.set({"bigfft.exchange.in-place": False}):
        assert distance(y.compute(), expected) < 1e-14


def test_each_block_counts_as_one():
    found = []

    def sink(name, numbers):
        if name == "round":
            found.append((numbers["index"], numbers["nbytes"]))

    y, _ = made("uneven")
    add_sink(sink)
    try:
        y.compute()
    finally:
        remove_sink(sink)
    blocks = y.numblocks[0] * y.numblocks[1]
    assert sum(index == 2 for index, _ in found) == blocks
    assert sum(nbytes for index, nbytes in found if index == 2) == y.nbytes


def test_an_error_in_one_call_ends_the_computation(monkeypatch):
    y, _ = made("2D")
    run = graph_run.run_round

    def failing(round_, block, *rest):
        if round_.source.grid[1] > 1 and block[1] == 3:
            raise OSError("planted")
        return run(round_, block, *rest)

    monkeypatch.setattr(graph_run, "run_round", failing)
    with pytest.raises(OSError, match="planted"):
        y.compute()
    monkeypatch.undo()
    assert distance(y.compute(), made("2D")[1]) < 1e-14


def test_one_block_of_the_result_takes_one_wide_block():
    y, expected = made("2D")
    one = y.blocks[0, 1]
    start = y.chunks[1][0]
    assert distance(one.compute(), expected[:, start : start + y.chunks[1][1]]) < 1e-14
    optimised = dask.optimize(one)[0].__dask_graph__()
    assert sum("-2-" in str(key) for key in optimised) <= 1
