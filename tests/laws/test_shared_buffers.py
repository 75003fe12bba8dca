"""Shared buffers: what one round writes, the next one reads, as a gather would move it."""

import dask
import dask.array as da
import numpy as np
import pytest
from lazy import task_names

from dask_bigfft import fft
from dask_bigfft.testing.strategies import random_array

#: Shape, chunks, transform and its keywords, and the exchanges whose blocks share buffers.
CASES = [
    ((4096,), 512, "fft", {}, {2}),
    ((3 * 5 * 7 * 16,), 105, "fft", {}, {2}),
    ((4096,), 512, "fft", {"order": "transposed"}, {2}),
    ((60, 84), (7, 84), "fft2", {}, {2}),
    ((61, 17), (9, 17), "fft2", {}, {2}),
    ((24, 30, 20), (5, 30, 20), "fftn", {}, {2}),
    ((24, 30, 20), (6, 10, 20), "fftn", {}, {2}),
    ((24, 30, 20), (6, 10, 5), "fftn", {}, {2}),
    ((32, 48, 20), (8, 48, 20), "rfftn", {}, {2}),
    ((64, 64), (8, 64), "ifft2", {"chunks": (16, 16)}, {2, 3}),
    ((4096,), 512, "fft", {"rounds": [{0: 16}, {0: 16}, {0: -1}]}, {2, 4}),
    # The half digit of a spectrum is stored with others, but is not joined with them.
    ((4096,), 512, "rfft", {}, {2}),
    ((2049,), 300, "irfft", {"rounds": [64, 64]}, None),
]


def computed(
    x,
    chunks,
    kind,
    extras,
    in_place,
):
    """The result with or without shared buffers, and the exchanges that have them."""
    settings = {
        "bigfft.exchange.in-place": in_place,
        "scheduler": "threads",
        "num_workers": 2,
    }
    with dask.config.set(settings):
        lazy = getattr(fft, kind)(da.from_array(x, chunks=chunks), **extras)
        names = task_names(lazy)
        result = lazy.compute()
    prefix = "bigfft_common"
    shared = {int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)}
    return result, shared


@pytest.mark.parametrize(("shape", "chunks", "kind", "extras", "expected"), CASES)
def test_blocks_find_in_a_shared_buffer_what_a_gather_would_bring(
    shape,
    chunks,
    kind,
    extras,
    expected,
):
    x = random_array(shape, "f8" if kind[0] == "r" else "c16", 1)
    in_place, shared = computed(
        x,
        chunks,
        kind,
        extras,
        True,
    )
    gathered, none = computed(
        x,
        chunks,
        kind,
        extras,
        False,
    )
    # A library may join lines in another order where the strides differ: SciPy 1.18 does.
    np.testing.assert_allclose(
        in_place,
        gathered,
        rtol=0,
        atol=1e-14 * np.abs(gathered).max(),
    )
    assert shared == expected or expected is None
    assert not none
