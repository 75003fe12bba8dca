"""`TransformSpec`: shapes, dtypes and lengths against NumPy, without dask."""

import itertools

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
    parse_name,
    parse_orders,
    parse_scale,
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(5,), (1,), (4, 6), (3, 5, 2), (2, 1, 7)])
def test_shapes_are_numpys(name, shape):
    kind = FAMILIES[name.rstrip("2n")][0]
    x = np.ones(shape, "d" if kind == "r2c" else "D")
    several = name.endswith(("2", "n"))
    for count in range(1, len(shape) + 1) if several else [1]:
        for axes in itertools.permutations(range(-len(shape), 0), count):
            for lengths in [None, (4,) * count, (9, 3, 5)[:count], (1,) * count]:
                if kind == "c2r" and lengths is None and shape[axes[-1]] == 1:
                    continue  # refused: a spectrum of one entry does not tell its length
                n, axis = (lengths, axes) if several else (lengths and lengths[0], axes[0])
                expected = peer(name)(x, n, axis).shape
                spec = transform_spec(name, shape, x.dtype, n, axis)
                assert spec.out_shape == expected
                assert spec.axes == tuple(a % len(shape) for a in axes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
def test_scales_and_signs_are_numpys(name, norm):
    family = name.rstrip("2n")
    spec = transform_spec(name, (4, 6), np.dtype("d"), norm=norm)
    x = np.zeros(6)
    x[1] = 1
    found = peer(family)(x if spec.kind == "r2c" else x.astype(complex), norm=norm)
    n = found.shape[0] if spec.kind == "c2r" else 6
    scale = {"none": 1, "ortho": n**-0.5, "full": 1 / n}[spec.scale]
    phase = np.exp(spec.sign * 2j * np.pi / n)
    wanted = 2 * phase.real if spec.kind == "c2r" else phase
    np.testing.assert_allclose(found[1], wanted * scale)


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


def test_scalars_stand_for_sequences_of_one():
    spec = transform_spec("fftn", (4, 6), np.dtype("d"), 8, 0)
    assert (spec.axes, spec.lengths) == ((0,), (8,))


def test_numpy_integers_are_integers():
    spec = transform_spec("fft", (np.int64(4),), np.dtype("d"), np.int8(6), np.uint8(0))
    assert spec.lengths == (6,)
    assert {type(n) for n in (*spec.shape, *spec.lengths, *spec.axes)} == {int}


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


def test_small_parsers():
    assert parse_name("hfft2") == "hfft2"
    assert parse_orders(["natural", "transposed"], 2) == ("natural", "transposed")
    assert [parse_scale("forward", forward) for forward in (True, False)] == ["full", "none"]
    with pytest.raises(ArgumentError, match="2 of them"):
        parse_orders(("natural",), 2)
