"""Frequencies and products with transfer functions by the text of the kernels, against NumPy."""

import numpy as np
import pytest
from devices.kernel_text import needs_compiler
from devices.test_blocks_on_a_gpu import CardArray

from dask_bigfft.gpu import operations
from dask_bigfft.gpu.transfer_kernels import CheckedProducts, frequencies
from dask_bigfft.kernels.indices import PlaceIndex
from dask_bigfft.kernels.transfer import BoundTransfer
from dask_bigfft.signal.kernel_spectrum import KernelSpectrum
from dask_bigfft.signal.separable_kernel import SeparableSpectrum
from dask_bigfft.signal.transfer import TransferFunction
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.tiles.program import NO_MODULUS, AxisFrequencies, Term, Transfer

pytestmark = [needs_compiler, pytest.mark.usefixtures("cards_of_kernels")]


#: Indices of an axis: one digit, two digits with a part of the places, shifted and divided ones.
INDICES = [
    (12, PlaceIndex((Term(0, 1, NO_MODULUS, 1),), 0, (0,), (12,))),
    (1, PlaceIndex((Term(0, 1, NO_MODULUS, 1),), 0, (0,), (1,))),
    (7, PlaceIndex((), 2, (0,), (1,))),
    (
        6 * 35,
        PlaceIndex((Term(1, 1, NO_MODULUS, 35), Term(2, 1, NO_MODULUS, 1)), 1, (2, 0), (3, 35)),
    ),
    (24, PlaceIndex((Term(0, 2, 3, 4, offset=5, size=24), Term(0, 1, 2, 2)), 0, (3,), (20,))),
    (
        1 << 40,
        PlaceIndex((Term(0, 1, NO_MODULUS, 1 << 38), Term(1, 1, NO_MODULUS, 3)), 0, (0, 5), (4, 9)),
    ),
]


@pytest.mark.parametrize(("length", "index"), INDICES)
def test_frequencies(length, index):
    step = 1 / (length * 0.3)
    indices = index.table().ravel()
    signed = np.where(indices >= (length + 1) // 2, indices - length, indices)
    for part in (slice(0, indices.size), slice(indices.size // 2, indices.size)):
        expected = signed[part] * step
        on_card = frequencies(index, part, length, step, None)
        assert np.array_equal(on_card._values, expected)
        last = expected.size - 1
        on_card = frequencies(index, part, length, step, last)
        assert np.array_equal(on_card._values, [*expected, -expected[last]])


@pytest.mark.parametrize(
    ("value_dtype", "dtype"),
    [("f4", "c16"), ("f8", "c8"), ("c16", "c8"), ("i8", "c8"), ("?", "c8")],
)
@pytest.mark.parametrize(
    ("shape", "value_shape", "middles"),
    [
        ((1000,), (1000,), {}),
        ((33, 5), (33, 5), {}),
        ((4, 9, 7), (4, 1, 7), {}),
        ((4, 9, 7), (5, 9, 8), {0: 1, 2: 6}),
        ((4, 9, 7), (1, 10, 1), {1: 0}),
        ((1, 3, 1, 2, 2), (2, 4, 2, 3, 3), dict.fromkeys(range(5), 0)),
        ((2500, 3), (2500, 3), {}),
    ],
)
def test_products(shape, value_shape, middles, value_dtype, dtype):
    spectrum = random_array(shape, dtype, 1)
    values = random_array(value_shape, "c16", 2)
    values = values.astype(value_dtype) if value_dtype[0] == "c" else values.real
    values = values.astype(value_dtype)
    expected = values.astype(np.result_type(value_dtype, "f8"))
    for axis, middle in middles.items():
        line = np.moveaxis(expected, axis, 0)
        line[middle] = (line[middle] + line[-1]) / 2
        expected = np.moveaxis(line[:-1], 0, axis)
    scale = 1 / 3
    expected = spectrum * expected * scale
    products = CheckedProducts()
    out = CardArray.of(np.zeros_like(spectrum))
    products.multiply(
        CardArray.of(values),
        CardArray.of(spectrum),
        out,
        middles,
        scale,
    )
    tolerance = 1e-6 if dtype == "c8" else 1e-14
    np.testing.assert_allclose(out._values, expected, rtol=tolerance, atol=tolerance)
    assert products.are_finite()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, complex(0, np.inf), complex(np.nan, 1)])
def test_values_that_are_not_finite(wrong):
    values = np.ones((20, 30), np.asarray(wrong).dtype)
    values[7, 29] = wrong
    spectrum = CardArray.of(np.ones((20, 30), "c8"))
    products = CheckedProducts()
    products.multiply(CardArray.of(values), spectrum, spectrum, {})
    assert not products.are_finite()


def delayed(*cycles):
    """Complex, Hermitian, and with another value for each sign of N/2."""
    return np.exp(-2j * np.pi * sum((0.7 + i) * f for i, f in enumerate(cycles)))


def inverse(*cycles):
    """Not finite at zero."""
    return 1 / sum(f**2 for f in cycles)


def bound(function, shape, at_zero=None):
    """Return the product with a function, for a tile with two dimensions for its last axis."""
    transfer = TransferFunction(
        function,
        tuple(range(len(shape))),
        tuple(shape),
        (0.5,) * len(shape),
        at_zero,
        balanced=True,
    )
    return product_with(transfer, shape)


def product_with(transfer, shape, scale=1.0):
    """Return the product with a transfer function, for a tile with two dimensions at its end."""
    index = Term(len(shape) - 1, 1, NO_MODULUS, shape[-1] // 2), Term(len(shape), 1, NO_MODULUS, 1)
    axes = [
        AxisFrequencies(axis, n, (Term(axis, 1, NO_MODULUS, 1),))
        for axis, n in enumerate(shape[:-1])
    ]
    axes.append(AxisFrequencies(len(shape) - 1, shape[-1], index))
    operation = Transfer(0, tuple(axes), (*range(len(shape)), len(shape) + 1), scale)
    return BoundTransfer(operation, transfer, (0,) * (len(shape) + 1))


@pytest.mark.pairs
@pytest.mark.parametrize(("function", "at_zero"), [(delayed, None), (inverse, 2.0)])
@pytest.mark.parametrize("shape", [(6, 8), (5, 4, 6), (64,)])
@pytest.mark.parametrize(("size", "is_prepared"), [(1 << 20, False), (20, True)])
def test_a_function_has_the_same_values_on_a_gpu(shape, function, at_zero, size, is_prepared):
    tile_shape = (*shape[:-1], 2, shape[-1] // 2)
    tile = random_array(tile_shape, "c16", 3)
    on_card = CardArray.of(tile)
    operation = bound(function, shape, at_zero)
    product = operation.on_tile(on_card, size)
    if is_prepared:
        product.prepare()
    product.apply()
    product.transfer.require_finite()
    operation.apply(tile)
    np.testing.assert_allclose(on_card._values, tile, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_a_separable_kernel_has_the_same_spectrum_on_a_gpu(dtype):
    shape = (5, 4, 6)
    vectors = (
        random_array((3, 1, 1), "f8", 1),
        random_array((1, 1, 1), "f8", 2),
        random_array((1, 1, 5), "f8", 3),
    )
    spectrum = SeparableSpectrum.of(
        vectors,
        {0: 5, 2: 6},
        {2: 2},
        conjugated=False,
        dtype=np.dtype(dtype),
    )
    operation = product_with(spectrum, shape)
    tile = random_array((5, 4, 2, 3), dtype, 4)
    on_card = CardArray.of(tile)
    operation.on_tile(on_card, 20).apply()
    operation.apply(tile)
    tolerance = 1e-5 if dtype == "c8" else 1e-13
    np.testing.assert_allclose(on_card._values, tile, rtol=tolerance, atol=tolerance)


KERNELS = [
    # shape of the kernel, and length of the transform of each transformed axis
    ((3, 4, 5), {0: 5, 1: 4, 2: 6}),
    ((3, 1, 5), {0: 5, 1: 4, 2: 6}),
    ((1, 1, 5), {0: 5, 1: 4, 2: 6}),
    ((1, 1, 1), {0: 5, 1: 4, 2: 6}),
    ((3, 4, 6), {0: 5, 1: 4}),
    ((5, 1, 5), {2: 6}),
]


@pytest.mark.parametrize(("kernel_shape", "lengths"), KERNELS)
@pytest.mark.parametrize(("starts", "conjugated"), [({}, False), ({0: 1, 2: 3}, True)])
@pytest.mark.parametrize("kernel_dtype", ["f8", "c16"])
@pytest.mark.parametrize(("dtype", "size"), [("c8", 1 << 20), ("c16", 20)])
def test_a_small_kernel_has_the_same_spectrum_on_a_gpu(
    kernel_shape, lengths, starts, conjugated, kernel_dtype, dtype, size
):
    kernel = random_array(kernel_shape, kernel_dtype, 1)
    own_starts = {axis: start for axis, start in starts.items() if axis in lengths}
    spectrum = KernelSpectrum(lengths, own_starts, conjugated, "scipy", kernel)
    operation = product_with(spectrum, (5, 4, 6), scale=1 / 3)
    tile = random_array((5, 4, 2, 3), dtype, 4)
    on_card = CardArray.of(tile)
    operation.on_tile(on_card, size).apply()
    # The spectrum by its definition.
    values = kernel
    for axis, length in lengths.items():
        start = own_starts.get(axis, 0) * (-1 if conjugated else 1)
        samples = np.arange(kernel_shape[axis]) - start
        phases = np.exp(-2j * np.pi * np.outer(np.arange(length), samples) / length)
        values = np.moveaxis(np.moveaxis(values, axis, -1) @ phases.T, -1, axis)
    expected = np.conj(values) if conjugated else values
    expected = (tile.reshape(5, 4, 6) * expected / 3).reshape(tile.shape)
    tolerance = 1e-5 if dtype == "c8" else 1e-13
    np.testing.assert_allclose(on_card._values, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("spare_nbytes", [0, 1 << 20])
def test_values_are_computed_before_a_tile_is_loaded(spare_nbytes):
    calls = []

    def recorded(*cycles):
        calls.append(len(cycles))
        return delayed(*cycles)

    shape = (6, 2, 4)
    product = bound(recorded, (6, 8))
    pending = operations.PendingTransfer(product.transfer)
    operation = operations.Transfer(
        shape,
        "<c16",
        product.operation,
        product.origin,
        pending,
        spare_nbytes,
    )
    on_card = CardArray.of(np.zeros(shape, "c16"))
    prepared = operation.prepare(on_card)
    assert len(calls) == (1 if spare_nbytes else 0)
    tile = random_array(shape, "c16", 3)
    on_card._values[...] = tile
    prepared.apply(on_card)
    assert len(calls) == 1
    pending.require_finite()
    bound(delayed, (6, 8)).apply(tile)
    np.testing.assert_allclose(on_card._values, tile, rtol=1e-13, atol=1e-13)
