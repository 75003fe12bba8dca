"""Blocks of the result that end within digits of a cut axis: written box by box by the card."""

import dask.array as da
import pytest
import scipy.fft
from devices.blocks import distance, on_the_card, values

from dask_bigfft.planner.tile_plan import TileLimits

#: Transform, shape, chunks, keywords. Results end within digits, for there are many blocks of them.
CASES = {
    "one axis": ("fft", (64 * 63,), (500,), {"rounds": [64, 63]}),
    "three digits": ("ifft", (12 * 13 * 100,), (1500,), {"rounds": [12, 13, 100]}),
    "less than a digit": ("fft", (8 * 9 * 30,), (300,), {"rounds": [8, 9, 30], "chunks": 45}),
    "half": ("rfft", (64 * 63,), (500,), {"rounds": [64, 63]}),
    "half, odd": ("rfft", (63 * 65,), (500,), {"rounds": [63, 65]}),
    "half, conjugated": ("ihfft", (64 * 62,), (700,), {"rounds": [64, 62]}),
    "real": ("irfft", (64 * 63 // 2 + 1,), (500,), {"n": 64 * 63, "rounds": [64, 63]}),
    "beside others": ("fft2", (16, 900), (16, 100), {"rounds": [{0: 16, 1: 30}, {1: 30}]}),
    "half, beside others": ("rfft2", (16, 900), (16, 100), {"rounds": [{0: 16, 1: 30}, {1: 30}]}),
    "chunks": ("fft", (64 * 63,), (504,), {"rounds": [64, 63], "chunks": (700, 1, 2000, 1331)}),
}


LIMITS = TileLimits(0, least=256, run_nbytes=1)  # any row is wide enough


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_gathered(case, single):
    name, shape, chunks, keywords = CASES[case]
    x = values(*shape, dtype="f8" if name in ("rfft", "ihfft", "rfft2") else "c16")
    x = x.astype("f4" if x.dtype.kind == "f" else "c8") if single else x
    transformed, counts = on_the_card(
        name,
        da.from_array(x, chunks),
        1 << 14,
        LIMITS,
        **keywords,
    )
    expected = getattr(scipy.fft, name)(x, **{k: v for k, v in keywords.items() if k == "n"})
    assert transformed.dtype == expected.dtype
    assert distance(transformed, expected) < (1e-6 if single else 1e-14)
    assert "gather" not in counts


def test_blocks_across_two_digits_are_read_in_place():
    """Most blocks of 70 values have parts of two digits of 72."""
    x = values(8 * 9 * 30)
    lazy = da.from_array(x, 300)
    keywords = {"rounds": [8, 9, 30], "chunks": 70}
    result, counts = on_the_card(
        "fft",
        lazy,
        1 << 14,
        LIMITS,
        **keywords,
    )
    assert distance(result, scipy.fft.fft(x)) < 1e-14
    assert "gather" not in counts
