"""Blocks of the result that end within digits of a cut axis: written box by box by the card."""

import itertools
import math

import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import distance, engine, on_the_card, values

from dask_bigfft import fft
from dask_bigfft.gpu.dispatch import _still
from dask_bigfft.gpu.half_spectrum import Window
from dask_bigfft.gpu.jobs import Job, Source
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices

#: Digits of each dimension and what the block has of it.
WINDOWS = [
    (((5, 4),), ((3, 14),)),
    (((5, 4),), ((0, 20),)),
    (((5, 4),), ((7, 8),)),
    (((3, 4, 5),), ((11, 47),)),
    (((7,), (3, 4), (2,)), ((2, 5), (1, 11), (0, 2))),
    (((3, 4), (2, 2, 3)), ((5, 7), (1, 12))),
]


@pytest.mark.parametrize(("digits", "bounds"), WINDOWS)
@pytest.mark.parametrize("seed", range(3))
def test_every_value_has_one_place_and_nothing_else_is_touched(digits, bounds, seed):
    window = Window(digits, bounds)
    whole = tuple(map(math.prod, digits))
    around = np.arange(math.prod(whole)).reshape(whole)
    block = np.full(window.shape, -1)
    rng, cuts = np.random.default_rng(seed), []
    for n in window.view.shape:
        inner = rng.choice(np.arange(1, n), rng.integers(0, min(3, n)), replace=False)
        cuts.append(list(itertools.pairwise([0, *sorted(inner.tolist()), n])))
    seen = around.reshape(window.view.shape)
    for box in itertools.product(*cuts):
        for part in window.parts(tuple(slice(*pair) for pair in box)):
            place = window.view.part(block, part)
            assert place.base is block  # so that whoever pins memory finds whose it is
            assert (place == -1).all()
            place[...] = seen[part]
    np.testing.assert_array_equal(block, around[tuple(slice(*pair) for pair in bounds)])
    filled = window.filled(block).reshape(whole)
    expected = np.zeros_like(around)
    expected[tuple(slice(*pair) for pair in bounds)] = block
    np.testing.assert_array_equal(filled, expected)


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


def on_a_card(name, x, cut, nbytes, **keywords):
    """The result on a card, and how often each event happened."""
    limits = TileLimits(nbytes, least=256, run_nbytes=1)  # any row is wide enough
    return on_the_card(name, da.from_array(x, cut), nbytes, limits, len(x), **keywords)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_gathered(case, single):
    name, shape, chunks, keywords = CASES[case]
    x = values(*shape, dtype="f8" if name in ("rfft", "ihfft", "rfft2") else "c16")
    x = x.astype("f4" if x.dtype.kind == "f" else "c8") if single else x
    got, counts = on_a_card(name, x, chunks, 1 << 14, **keywords)
    wanted = {k: v for k, v in keywords.items() if k == "n"}
    expected = getattr(scipy.fft, name)(x, **wanted)
    assert got.dtype == expected.dtype
    assert distance(got, expected) < (1e-6 if single else 1e-14)
    assert "gather" not in counts
    host = getattr(fft, name)(da.from_array(x, chunks), device="cpu", **keywords)
    with simulated_devices(1 << 14):
        lazy = getattr(fft, name)(da.from_array(x, chunks), device="gpu", **keywords)
    assert host.chunks == lazy.chunks


def test_a_block_of_almost_two_digits_is_gathered():
    """What lies around it would be more than twice as much."""
    x, cut = values(8 * 9 * 30), 70
    got, counts = on_a_card("fft", x, 300, 1 << 14, rounds=[8, 9, 30], chunks=cut)
    assert distance(got, scipy.fft.fft(x)) < 1e-14

    def around(low, high, digit):
        return (-(-high // digit) - low // digit) * digit

    blocks = [(low, min(low + cut, len(x))) for low in range(0, len(x), cut)]
    wide = [b for b in blocks if around(*b, 8) > 72 and around(*b, 72) > 2 * (b[1] - b[0])]
    assert counts["gather"] == len(wide) > 3


def test_what_is_gathered_all_the_same_is_written_within_its_bounds():
    """An engine that had better not read shards, in small pieces, asks for the block around it."""
    window, block = Window(((8, 9),), ((5, 70),)), values(65)
    job = Job(_still((9, 8), (1, 0), 1), (0, 0), "<c16", "<c16", order=(1, 0), window=window)
    around = np.ascontiguousarray(window.filled(block).T)
    got = engine(1 << 11).run(job, Source(lambda: around))
    np.testing.assert_array_equal(got, block)
