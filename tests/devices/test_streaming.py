"""Copies around the caches: rows of any width, wherever they begin."""

import numpy as np
import pytest

from dask_bigfft.kernels.streaming import Rows, copy_rows


def copied(rows):
    """All of it is copied, by this thread."""
    target, source, width, *columns = rows.numbers
    columns = (np.array(column, np.uint64) for column in columns)
    numbers = (np.uint64(number) for number in (target, source, width))
    copy_rows(*numbers, *columns, np.uint64(0), np.uint64(rows.nbytes), rows.streamed)


@pytest.mark.parametrize("width", [1, 7, 63, 64, 65, 200, 4096])
@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, 3), (16, 40), (63, 1)])
def test_rows_of_any_width_and_place(width, shift):
    rng = np.random.default_rng(width)
    source = rng.integers(0, 256, 40_000, np.uint8)
    target = np.zeros(60_000, np.uint8)
    into, from_ = target[shift[0] :], source[shift[1] :]
    rows = [(2, 25_000, 18_000), (3, 5000, 4500)]
    copied(Rows(into, from_, width, rows))
    expected = np.zeros_like(target)
    for i in range(2):
        for j in range(3):
            to, come = shift[0] + i * 25_000 + j * 5000, shift[1] + i * 18_000 + j * 4500
            expected[to : to + width] = source[come : come + width]
    assert np.array_equal(target, expected)


def test_one_row():
    source, target = np.arange(1000.0), np.zeros(1000)
    copied(Rows(target, source, 8000, []))
    assert np.array_equal(target, source)
