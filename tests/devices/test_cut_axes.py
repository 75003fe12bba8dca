"""Real axes that are cut into blocks, whose first digit alone is larger than the card."""

import dask.array as da
import pytest
import scipy.fft
from devices.blocks import distance, on_the_card, values

from dask_bigfft import fft

#: Length, chunks, the digits of the rounds, and bytes of the device as a part of a digit's.
CUT = [
    (16384, 2048, (2048, 8), 3, "{X1} {X2}"),
    (16380, 2048, (2340, 7), 3, "{X1} {X2}"),  # digits of both kinds: even, odd
    (14175, 1576, (2025, 7), 2, "{X1} {X2}"),
    (14175, 4000, (2025, 7), 10, "{X1} {X2} {X3}"),
]


@pytest.mark.parametrize(("order", "single"), [("natural", False), ("transposed", True)])
@pytest.mark.parametrize(("n", "chunks", "digits", "part", "notation"), CUT)
def test_whole_transforms_stay_on_the_card(n, chunks, digits, part, notation, order, single):
    x = values(n, dtype="f4" if single else "f8")
    lazy, keywords = da.from_array(x, chunks), {"rounds": digits, "order": order}
    keywords["digits"] = digits if order == "transposed" else None
    got, _ = on_the_card("rfft", lazy, 16 * digits[0] // part, **keywords)
    host = fft.rfft(lazy, device="cpu", **keywords).compute(scheduler="sync")
    eps = 1e-6 if single else 1e-14
    assert distance(got, host) < eps
    if order == "natural":
        assert distance(got, scipy.fft.rfft(x)) < eps


def test_beside_other_axes():
    """Both are transformed in the first round: the real axis alone, then the other one."""
    x, rounds = values(6, 4 * 1001, dtype="f8"), [{0: 6, 1: 1001}, {1: 4}]
    got, _ = on_the_card("rfft2", da.from_array(x, (6, 1001)), 1 << 13, rounds=rounds)
    assert distance(got, scipy.fft.rfft2(x)) < 1e-14
