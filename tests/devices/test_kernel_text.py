"""CUDA kernels, their own text run on the CPU: what copies multiply on the way is NumPy's."""

import itertools

import numpy as np
import pytest
from devices.kernel_text import factors, kernels_of, needs_compiler

from dask_bigfft.gpu import kernels
from dask_bigfft.gpu.kernels import TILE
from dask_bigfft.gpu.operations import Multiply, Product, Strided, transposed
from dask_bigfft.testing.simulated import multiplied, places_at
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.tiles.program import ChirpFactor, Term
from dask_bigfft.transforms.steps import Chirp

BIG = 1 << 62
RNG = np.random.default_rng(11)

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def own(monkeypatch, folder):
    monkeypatch.setattr(kernels, "kernel", kernels_of(folder))
    return kernels


def values(shape, dtype):
    return random_array(shape, dtype, RNG)


def close(ours, expected):
    eps = np.finfo(ours.dtype).eps
    np.testing.assert_allclose(
        ours,
        expected,
        rtol=0,
        atol=4 * eps * np.abs(expected).max(),
    )


SHAPES = [
    (1, 1),
    (1, 37),
    (37, 1),
    (TILE, TILE),
    (TILE + 1, TILE - 1),
    (2, 101),
    (101, 2),
    (67, 71),
]


@pytest.mark.parametrize("dtype", ["<c16", "<c8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_turned_and_multiplied_in_one_pass(own, shape, dtype):
    x = values(shape, dtype)
    by = factors(shape, dtype)
    out = np.full(shape[::-1], np.nan, dtype)
    own.strided(transposed(shape, (1, 0), dtype, by), x.ctypes.data, out.ctypes.data)
    close(out, multiplied(by, x).T)


ORDERS = list(itertools.permutations(range(4)))[1::3]


@pytest.mark.parametrize(
    ("axes", "narrow"),
    [
        *((axes, kernels._NARROW) for axes in ORDERS),
        ((2, 3, 0, 1), 0),
    ],
)
def test_any_order_of_dimensions_that_factors_depend_on(
    own,
    axes,
    narrow,
    monkeypatch,
):
    """Also where some stay together and are one to the kernel, and where a length is 1.

    Indices are found alike in 32 and in 64 bits.
    """
    monkeypatch.setattr(kernels, "_NARROW", narrow)
    for shape, dtype in (((3, 5, 1, 37), "<c16"), ((2, 3, 5, 7), "<c8")):
        x = values(shape, dtype)
        by = factors(shape, dtype, conjugate=False)
        out = np.full([shape[a] for a in axes], np.nan, dtype)
        own.strided(transposed(shape, axes, dtype, by), x.ctypes.data, out.ctypes.data)
        close(out, multiplied(by, x).transpose(axes))


@pytest.mark.parametrize("dtype", ["<c16", "<f4", "<f2"])
def test_without_factors_bits_are_carried(own, dtype):
    x = values((3, 45, 2, 34), dtype)
    x[0, 1] = np.nan
    for axes in ((3, 1, 2, 0), (1, 0, 2, 3), (0, 3, 2, 1), (2, 3, 0, 1)):
        out = np.zeros([x.shape[a] for a in axes], dtype)
        own.strided(transposed(x.shape, axes, dtype), x.ctypes.data, out.ctypes.data)
        np.testing.assert_array_equal(out, x.transpose(axes))


@pytest.mark.parametrize("dtype", ["<c16", "<c8"])
@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, 1, -1), (1, -1, 1)])
def test_strided_copies_multiply_on_the_way(own, flips, dtype):
    x = values((7, 9, 11), dtype)
    counts = (5, 1, 10)
    strides = tuple(flip * step for flip, step in zip(flips, (99, 11, 1), strict=True))
    start = sum((n - 1) * -min(0, s) for n, s in zip(counts, strides, strict=True))
    by = factors(counts, dtype)
    op = Strided(
        counts,
        strides,
        start,
        (1, 700, 5),
        3,
        dtype,
        by,
    )
    out = np.full(1000, -1, dtype)
    own.strided(op, x.ctypes.data, out.ctypes.data)
    expected = np.full(1000, -1, dtype)
    came = x.reshape(-1)[places_at(start, strides, counts)]
    expected[places_at(3, op.target, counts)] = multiplied(by, came)
    close(out, expected)


@pytest.mark.parametrize("dtype", ["<c16", "<c8"])
@pytest.mark.parametrize(
    "shape",
    [
        (1,),
        (37, 5),
        (4, 1, 67),
        (3, 5, 2, 41),
    ],
)
def test_multiplications_in_place(own, shape, dtype):
    for by in (factors(shape, dtype), Multiply(shape, dtype, -0.25, True)):
        x = values(shape, dtype)
        expected = multiplied(by, x)
        own.multiply(by, x.ctypes.data)
        close(x, expected)


def test_a_conjugate_of_what_is_not_finite_keeps_its_other_part(own):
    """Nothing but a scale is no complex product: inf times 0 would be a NaN."""
    x = np.array([complex(np.inf, 1), complex(2, np.nan), complex(-np.inf, np.inf)])
    out = np.zeros(3, "c16")
    by = Multiply((3, 1), "<c16", conjugate=True)
    own.strided(Strided((3, 1), (1, 1), 0, (-1, 1), 2, "<c16", by), x.ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out[::-1].real, x.real)
    np.testing.assert_array_equal(out[::-1].imag, -x.imag)


def test_what_lies_behind_the_end_of_a_chirp_is_zero_elsewhere_too(own):
    x = values((4, 50), "<c16")
    x[2, 9:] = np.nan
    x[3, 1] = np.inf
    place = Term(0, 1, BIG, 50), Term(1, 1, BIG, 1)
    by = Multiply(x.shape, "<c16", 0.5, True, (ChirpFactor(Chirp(109, -1), place, ()),))
    out = np.full((50, 4), np.nan, "c16")
    own.strided(transposed(x.shape, (1, 0), "<c16", by), x.ctypes.data, out.ctypes.data)
    assert not out.T.ravel()[109:].any()
    close(out, multiplied(by, x).T)


@pytest.mark.parametrize(
    "other",
    [
        (1, 30, 1),
        (4, 1, 7),
        (4, 30, 7),
        (1, 1, 1),
    ],
)
def test_products(own, other):
    x = values((4, 30, 7), "<c8")
    y = values(other, "<c8")
    expected = x * y
    own.multiply(Product(x.shape, other, "<c8"), x.ctypes.data, y.ctypes.data)
    close(x, expected)


def test_grids_are_within_what_cuda_allows(monkeypatch):
    seen = []
    monkeypatch.setattr(kernels, "kernel", lambda source: lambda grid, *_: seen.append(grid))
    for shape, axes in (((1 << 20, TILE * 3, 1 << 10), (0, 2, 1)), ((1 << 25, 8), (1, 0))):
        kernels.strided(transposed(shape, axes, "<c16"), 0, 0)
    assert len(seen) == 2
    assert all(x < 2**31 and y < 2**16 for x, y in seen)
