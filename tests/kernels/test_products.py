"""Products with values of transfer functions: compiled and by NumPy, against NumPy's own."""

import itertools

import numpy as np
import pytest

from dask_bigfft.kernels import products
from dask_bigfft.kernels.products import multiply_checked

#: Shapes of spectra, and parts of them.
PARTS = [
    ((7,), (slice(0, 7),)),
    ((1, 1), (slice(0, 1), slice(0, 1))),
    ((4, 11), (slice(1, 4), slice(0, 11))),
    ((6, 5, 9), (slice(1, 5), slice(0, 5), slice(2, 9))),
    ((2, 1, 3, 5), (slice(0, 2), slice(0, 1), slice(1, 3), slice(0, 5))),
]

EPS = {"F": 2.0**-23, "D": 2.0**-52, "G": 2.0**-52}


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    """Compile at once, or never."""
    if request.param == "compiled":
        pytest.importorskip("numba")
        monkeypatch.setattr(products, "pays", lambda *_: True)
        monkeypatch.setattr(products, "may_compile", lambda: True)
    else:
        monkeypatch.setattr(products, "pays", lambda *_: False)
    return request.param


def random_values(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def mean_values(values, middles):
    """Return the values with means at the middles, one place fewer along their axes."""
    for axis, place in middles.items():
        if values.shape[axis] == 1:
            continue
        moved = np.moveaxis(values, axis, 0).copy()
        moved[place] = (moved[place] + moved[-1]) / 2
        values = np.moveaxis(moved[:-1], 0, axis)
    return values


def cases(shape):
    """Yield middles and the axes along which values do not differ, for a part of some shape."""
    for has_middle in itertools.product((False, True), repeat=len(shape)):
        middles = {axis: n // 2 for axis, n in enumerate(shape) if has_middle[axis]}
        for is_same in itertools.product((False, True), repeat=len(shape)):
            value_shape = tuple(
                1 if is_same[axis] else n + (axis in middles) for axis, n in enumerate(shape)
            )
            yield middles, value_shape


@pytest.mark.parametrize(
    ("value_dtype", "dtype"),
    [("f", "F"), ("d", "F"), ("d", "D"), ("F", "F"), ("D", "D"), ("i8", "F"), ("d", "G")],
)
@pytest.mark.parametrize(("shape", "part"), PARTS)
def test_a_part_is_multiplied(
    way,
    shape,
    part,
    value_dtype,
    dtype,
):
    rng = np.random.default_rng(0)
    part_shape = tuple(cut.stop - cut.start for cut in part)
    for middles, value_shape in cases(part_shape):
        values = random_values(rng, value_shape, "d" if value_dtype == "i8" else value_dtype)
        values = (10 * values).astype(value_dtype)
        spectrum = random_values(rng, shape, dtype)
        expected = spectrum.copy()
        wide = values.astype(np.result_type(values, np.float64))
        expected[part] *= 0.5 * mean_values(wide, middles)
        before = values.copy()
        assert multiply_checked(values, spectrum, part, middles, 0.5)
        tolerance = 64 * (EPS["F"] if value_dtype in "fF" else EPS[dtype])
        np.testing.assert_allclose(spectrum, expected, tolerance, tolerance)
        np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("dtype", ["F", "D"])
@pytest.mark.parametrize("value_dtype", ["f", "d"])
def test_both_ways_have_the_same_bits(value_dtype, dtype):
    pytest.importorskip("numba")
    rng = np.random.default_rng(1)
    results = []
    values = random_values(rng, (65, 3, 34), value_dtype)
    original = random_values(rng, (64, 3, 33), dtype)
    for compiles in (True, False):
        spectrum = original.copy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "pays", lambda *_, compiles=compiles: compiles)
            patch.setattr(products, "may_compile", lambda: True)
            multiply_checked(values, spectrum, (slice(None),) * 3, {0: 32, 2: 32})
        results.append(spectrum)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("wrong", [-np.inf, np.nan])
@pytest.mark.parametrize("value_dtype", ["f", "d", "D"])
@pytest.mark.parametrize("place", [(0, 0), (2, 4), (4, 1), (3, 6)])
def test_values_that_are_not_finite_are_noticed(
    way,
    place,
    value_dtype,
    wrong,
):
    """They may be the value at a middle, or the one for its opposite sign."""
    values = np.ones((5, 7), value_dtype)
    spectrum = np.ones((4, 6), "D")
    part = (slice(None),) * 2
    assert multiply_checked(values, spectrum, part, {0: 2, 1: 4})
    values[place] = wrong
    assert not multiply_checked(values, spectrum, part, {0: 2, 1: 4})


def test_a_large_sum_is_finite(way):
    spectrum = np.ones((4,), "D")
    assert multiply_checked(np.full(4, 1e308), spectrum, (slice(None),), {})
    np.testing.assert_array_equal(spectrum, 1e308)


def test_a_spectrum_that_is_not_contiguous(way):
    spectrum = np.ones((4, 6), "D").T
    assert multiply_checked(np.arange(6.0)[:, None], spectrum, (slice(None),) * 2, {})
    np.testing.assert_array_equal(spectrum, np.arange(6.0)[:, None] * np.ones(4))
