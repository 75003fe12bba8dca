"""Products of spectra: transposed order means the same for every plan."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.law import PLANNED, exact_transform, planned

from dask_bigfft import fft, plan
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import chunkings, random_array

#: Every example plans three transforms and runs them: fewer examples than elsewhere.
FEWER = settings(max_examples=max(10, settings.default.max_examples // 4))

#: Ways to plan the same transform otherwise.
PLANS = [
    {},
    {"memory_limit": "64 MiB"},
    {"memory_limit": "3 MiB"},
    {"kernel": "auto"},
    {"variant": "dif"},
    {"variant": "stockham"},
]
SHAPES = [(120,), (64,), (97,), (35,), (12, 9), (16, 16), (7, 20), (1, 30), (6, 8, 5)]


def convolved(a, b):
    """The circular convolution, exactly: by the definition, through exact transforms."""
    return exact_transform("ifft", exact_transform("fft", a) * exact_transform("fft", b))


@FEWER
@given(
    data=st.data(),
    shape=st.sampled_from(SHAPES),
    plans=st.tuples(*[st.sampled_from(PLANS)] * 3),
    real=st.booleans(),
    how=st.sampled_from(list(PLANNED)),
    dtype=st.sampled_from(["f8", "f4"]),
)
def test_products_of_spectra_in_transposed_order(
    data,
    shape,
    plans,
    real,
    how,
    dtype,
):
    dtype = dtype if real else {"f8": "c16", "f4": "c8"}[dtype]
    a = random_array(shape, dtype, 1)
    b = random_array(shape, dtype, 2)
    first = da.from_array(a, chunks=data.draw(chunkings(shape)))
    second = da.from_array(b, chunks=data.draw(chunkings(shape)))
    axes = tuple(range(len(shape)))
    forward, inverse = (fft.rfftn, fft.irfftn) if real else (fft.fftn, fft.ifftn)
    with planned(how):
        spectra = [
            forward(x, axes=axes, order="transposed", **options)
            for x, options in zip((first, second), plans, strict=False)
        ]
        y = inverse(
            spectra[0] * spectra[1],
            s=shape,
            axes=axes,
            order="transposed",
            **plans[2],
        )
        product = y.compute()
    expected = convolved(a, b)
    assert product.dtype == dtype
    assert relative_l2(product, expected) < 40 * np.finfo(dtype).eps


def exchanges_of_a_product(shape, chunks, order):
    """Exchanges of a forward and an inverse transform, and the chunks before and after."""
    x = da.zeros(shape, chunks=chunks, dtype=complex)
    forward = plan(x, "fftn", order=order)
    y = da.zeros(forward.spec.out_shape, chunks=forward.chunks, dtype=complex)
    back = plan(y, "ifftn", order=order)
    return len(forward.travelling) + len(back.travelling), x.chunks, back.chunks


@pytest.mark.parametrize(
    ("shape", "chunks", "natural", "transposed"),
    [
        ((2**16,), 2**12, 6, 4),
        ((4096,), 256, 6, 4),
        ((10**6,), 50_000, 6, 4),
        ((64, 64), (8, 64), 2, 2),
        ((64, 64), (64, 8), 2, 2),
        ((4096, 4096), (256, 4096), 2, 2),
        ((512, 512, 512), (32, 512, 512), 2, 2),
    ],
)
def test_exchanges_of_a_product(
    shape,
    chunks,
    natural,
    transposed,
):
    """1D: four where natural order takes six; slabs: two, back in the chunks they came in."""
    for order, count in [("natural", natural), ("transposed", transposed)]:
        exchanges, before, after = exchanges_of_a_product(shape, chunks, order)
        assert exchanges == count
        assert before == after
