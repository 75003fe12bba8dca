"""The checksum of shards: what it is, and what it cannot miss; weighted sums of tiles."""

import numpy as np
import pytest

from dask_bigfft.kernels import checks
from dask_bigfft.kernels.checks import (
    FACTOR,
    LENGTH,
    PhaseFactors,
    checksum,
    energy,
    weighted_sum,
    weights_of,
)


def by_hand(data: bytes) -> int:
    """With Python's integers."""
    padded = data + bytes(-len(data) % 4)
    words = [int.from_bytes(padded[i : i + 4], "little") for i in range(0, len(padded), 4)]
    total = sum(v * (1 + (i + 1) * FACTOR) for i, v in enumerate(words))
    return (total + len(data) * LENGTH) % 2**64


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 64, 1000, 4097])
@pytest.mark.parametrize("first", [0, 1, 4])
def test_it_is_the_weighted_sum(size, first):
    data = np.random.default_rng(size).integers(
        0,
        256,
        size + first,
        np.uint8,
    )[first:]
    assert checksum(data) == by_hand(data.tobytes())


def test_words_that_change_places_are_seen():
    """Also where they differ in the highest bit only, and lie a power of two apart."""
    assert FACTOR % 4 == 2  # so weights are odd, and one word that changes is seen, too
    words = np.zeros(1 << 20, np.uint32)
    words[0] = 1 << 31
    checksums = set()
    for place in (0, 1, 2, 1 << 10, 1 << 19, (1 << 20) - 1):
        moved = np.roll(words, place)
        checksums.add(checksum(moved))
    assert len(checksums) == 6


def test_zeros_at_the_end_are_seen():
    assert len({checksum(np.zeros(n, np.uint8)) for n in range(20)}) == 20


@pytest.mark.parametrize("factors", [None, PhaseFactors(np.array([0, 5, 7]), 700, -1)])
def test_numpy_sums_tiles_like_the_loops(factors, monkeypatch):
    rng = np.random.default_rng(4)
    tile = rng.standard_normal((6, 100, 2), np.float32).view("c8")[..., 0]
    weights = weights_of(tile.shape, tile.dtype, first=1, steps=(), inward=False)
    sums = []
    for is_compiled in (True, False):
        monkeypatch.setattr(checks, "pays", lambda *_, is_compiled=is_compiled: is_compiled)
        monkeypatch.setattr(checks, "may_compile", lambda: True)
        weighted, squares = weighted_sum(tile, weights, factors)
        sums.append([weighted, squares, energy(tile)])
    np.testing.assert_allclose(*sums, rtol=1e-5)
