"""Blocks that a GPU reads where their sources lie: right, and without a copy on the host."""

import dask
import dask.array as da
import pytest
import scipy.fft
from support import close, heard

from dask_bigfft import fft, transposed_index
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

TWO = [{0: 12, 1: 10}, {1: 12}]
BOTH = [{0: 4, 1: 8}, {0: 6, 1: 8}]

#: Transform, shape, chunks, and how it is asked for.
CASES = {
    "columns of slabs": ("fft2", (60, 48), (13, 48), {}),
    "3D": ("fftn", (16, 12, 20), (5, 12, 20), {}),
    "rows of columns": ("fft2", (60, 48), (60, 11), {}),
    "pencils": ("fftn", (16, 12, 20), (5, 7, 20), {}),
    "1D": ("fft", (4096,), (500,), {"rounds": [64, 64]}),
    "1D transposed": ("fft", (4096,), (512,), {"rounds": [64, 64], "order": "transposed"}),
    "real": ("rfft", (4096,), (512,), {"rounds": [64, 64]}),
    "padded": ("fft2", (60, 48), (13, 48), {"s": (64, 50)}),
    "cropped": ("fft2", (60, 48), (13, 48), {"s": (51, 40)}),
    "1D, ends within digits": ("fft", (4095,), (455,), {"rounds": [63, 65]}),
    "1D, padded": ("fft", (4000,), (455,), {"rounds": [63, 65], "n": 4095}),
    "half": ("irfft", (2049,), (300,), {"rounds": [64, 64]}),
    "half, odd": ("irfft", (2048,), (300,), {"rounds": [63, 65], "n": 4095}),
    "half, little": ("irfft", (4,), (2,), {"rounds": [2, 3]}),
    "half, cropped": ("irfft", (2049,), (300,), {"rounds": [62, 64], "n": 3968}),
    "half of two axes": ("irfft2", (12, 61), (5, 13), {"rounds": TWO}),
    "1D, padded far": ("fft", (100,), (30,), {"rounds": [64, 64], "n": 4096}),
    "rows, padded": ("fft2", (20, 60), (7, 11), {"rounds": BOTH, "s": (24, 64)}),
}

#: Bytes of a GPU that holds a block in one tile, and of one that takes several.
ROOMY = 1 << 18
TIGHT = 1 << 14

#: Bytes of a row from which on a GPU reads rows itself: always, and hardly ever.
ANY_ROW = 1
WIDE_ROWS = 1 << 20


def transformed(case, nbytes, row_nbytes):
    """The result of a case on a GPU, SciPy's, and the bytes that rounds gathered on the host."""
    name, shape, chunks, asked = CASES[case]
    x = random_array(shape, "f8" if name == "rfft" else "c16", 1)
    limits = TileLimits(nbytes, least=256, run_nbytes=row_nbytes)
    settings = {"bigfft.planner.whole-axis-floor": 1}
    with simulated_devices(nbytes, limits=limits), dask.config.set(settings):
        lazy = getattr(fft, name)(da.from_array(x, chunks=chunks), device="gpu", **asked)
        with heard("gather", "round") as events:
            result = lazy.compute(scheduler="sync")
    rounds = {numbers["index"] for event, numbers in events if event == "round"}
    gathered = [n for event, n in events if event == "gather" and n["index"] in rounds]
    lengths = {key: value for key, value in asked.items() if key in ("s", "n")}
    expected = getattr(scipy.fft, name)(x, **lengths)
    if asked.get("order") == "transposed":
        expected = expected[transposed_index(x.size)]
    return result, expected, sum(numbers["nbytes"] for numbers in gathered)


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_read_where_their_sources_lie(case):
    result, expected, gathered = transformed(case, ROOMY, ANY_ROW)
    assert close(result, expected)
    assert gathered == 0


@pytest.mark.parametrize("case", CASES)
def test_a_few_rows_at_a_time(case):
    result, expected, _ = transformed(case, TIGHT, ANY_ROW)
    assert close(result, expected)


@pytest.mark.parametrize("case", ["1D", "real", "half of two axes", "rows, padded"])
def test_narrow_rows_are_gathered_first(case):
    result, expected, gathered = transformed(case, ROOMY, WIDE_ROWS)
    assert close(result, expected)
    assert gathered > 0
