"""`TransformSpec`: shapes, dtypes and lengths against NumPy, without dask."""


import numpy as np
import pytest
import scipy.fft

from dask_bigfft.decomposition.factors import transposed_digits
from dask_bigfft.decomposition.order import transposed_index
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.transforms.spec import (
    FAMILIES,
    NAMES,
    complete_factors,
    parse_axes,
    parse_transform_axes,
    transform_spec,
)

DTYPES = ["?", "i1", "u8", "f2", "f4", "f8", "g", "F", "D", "G", ">f4", ">c16"]
FORWARD = [name for name in NAMES if FAMILIES[name.rstrip("2n")][2]]


def peer(name):
    return getattr(np.fft, name, None) or getattr(scipy.fft, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_are_numpys(name, dtype):
    dtype = np.dtype(dtype)
    kind = FAMILIES[name.rstrip("2n")][0]
    if kind == "r2c" and dtype.kind == "c":
        with pytest.raises(ArgumentTypeError, match="a real type"):
            transform_spec(name, (4, 6), dtype)
        return
    spec = transform_spec(name, (4, 6), dtype)
    expected = np.result_type(peer("fft")(np.ones(4, dtype)).dtype)
    assert spec.work_dtype == expected
    assert spec.real_dtype == np.zeros(0, expected).real.dtype
    assert spec.out_dtype == (spec.real_dtype if kind == "c2r" else spec.work_dtype)
    assert spec.out_dtype.isnative
    assert spec.dtype == dtype.str


@pytest.mark.parametrize("n", [7, 8, 9, 12, 36, 100])
def test_transposed_spectra_have_the_places_of_transposed_index(n):
    for name in FORWARD:
        kind = FAMILIES[name.rstrip("2n")][0]
        given = n // 2 + 1 if kind == "c2r" else n
        lengths = (n,) if name.endswith(("2", "n")) else n
        axes = (0,) if name.endswith(("2", "n")) else 0
        spec = transform_spec(name, (given,), np.dtype("d"), lengths, axes, order="transposed")
        assert spec.orders_out == ("transposed",)
        assert spec.orders_in == ("natural",)
        assert spec.out_shape == transposed_index(n, real=kind == "r2c").shape
    assert transform_spec("ifft", (n,), np.dtype("d"), order="transposed").out_shape == (n,)
    places = transposed_index(n, real=True).size
    back = transform_spec("irfft", (places,), np.dtype("D"), n, order="transposed")
    assert back.orders_in == ("transposed",)
    assert back.out_shape == (n,)


def test_orders_are_those_of_the_axes_in_their_order():
    spec = transform_spec(
        "fftn", (9, 5, 16), np.dtype("D"), None, (2, 0), order=("transposed", "natural")
    )
    assert spec.axes == (2, 0)
    assert spec.orders_out == ("transposed", "natural")


def test_digits_are_those_of_the_length_unless_they_are_named():
    def spec(name, places=24, **keywords):
        return transform_spec(name, (places,), np.dtype("d"), order="transposed", **keywords)

    assert spec("fft", digits={0: (2, 12)}).digits == ((0, (2, 12)),)
    assert spec("fft", digits={0: transposed_digits(24)}).digits == ()
    assert spec("fft", factors={0: (2, -1)}, digits={0: (2, 12)}).digits == ((0, (2, 12)),)
    assert spec("ifft", factors={0: (2, 12)}, digits={0: (12, 2)}).digits == ((0, (12, 2)),)
    # (4//2 + 1) * 6: the digits tell the length
    assert spec("irfft", places=18, digits={0: (4, 6)}).lengths == (24,)
    for name, factors in (("fft", (2, 12)), ("ifft", (4, 6)), ("rfft", (24,))):
        with pytest.raises(ArgumentError, match=r"`rounds`.*digits"):
            spec(name, factors={0: factors})
    assert transform_spec("fft", (24,), np.dtype("d"), factors={0: (2, 12)}).digits == ()


def test_lengths_of_named_factors():
    assert complete_factors(3, (4, -1, 2), 24) == (4, 3, 2)
    assert complete_factors(0, (-1,), 1) == (1,)
    with pytest.raises(ArgumentError, match=r"`rounds`=\{3: \(4, 5\)\}.*24, not 20"):
        complete_factors(3, (4, 5), 24)
    with pytest.raises(ArgumentError, match="product divides its length 24, as 5 does not"):
        complete_factors(3, (5, -1), 24)
    with pytest.raises(ArgumentError, match="axis 0, whose length is 24, of at least 2"):
        complete_factors(0, (24, -1), 24)


def test_specs_are_equal_and_hash_alike_however_they_were_written():
    one = transform_spec("fftn", (4, 6), np.dtype("f4"), None, (-2, 1), "backward", "natural")
    two = transform_spec("fftn", (4, 6), np.dtype("f4"), (4, -1), [0, -1], None, ["natural"] * 2)
    assert one == two
    assert hash(one) == hash(two)


def test_axes_by_name_of_the_transform():
    assert parse_transform_axes("fft", 3) == (2,)
    assert parse_transform_axes("fft2", 3) == (1, 2)
    assert parse_transform_axes("fftn", 3) == (0, 1, 2)
    assert parse_transform_axes("fftn", 3, (5, 6)) == (1, 2)
    assert parse_axes("axes", (), 2) == ()
