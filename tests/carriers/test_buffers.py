"""Shared buffers of blocks."""

import dask
import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft.carriers.buffers import SharedBuffer
from dask_bigfft.kernels import views


@pytest.mark.parametrize(
    ("threads_of_block", "expected"),
    [(0.5, 1), (1, 1), (4, 4)],
)
def test_threads_without_a_block_help_to_fault_in_those_of_others(
    monkeypatch,
    threads_of_block,
    expected,
):
    with dask.config.set(scheduler="threads"):
        plan = dask_bigfft.plan(da.zeros((64, 64), chunks=(16, 64)), "fft2")
    layout = plan.rounds[0].target
    shared = plan.shared_layouts.exchanges[1].layout
    blocks = layout.blocks // shared.blocks
    assert blocks > 1
    counts = []
    monkeypatch.setattr(views, "fault_in", lambda block, threads: counts.append(threads) or 0)
    buffer = SharedBuffer("token", shared, (0,) * len(shared.grid))
    threads = int(threads_of_block * blocks)
    placed = buffer.place(layout, (0,) * len(layout.grid), threads)
    assert placed.size == layout.size // layout.blocks
    assert counts == [expected]
