"""Digits of the transposed order: those of the length, unless both ends name others."""

import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft import fft, transposed_index
from dask_bigfft.errors import ArgumentError
from dask_bigfft.transforms.factors import transposed_digits

RNG = np.random.default_rng(3)
LINE = RNG.standard_normal(1024)
BOX = RNG.standard_normal((60, 72))


@pytest.mark.parametrize("chunks", [64, 100, 1024])
@pytest.mark.parametrize("digits", [None, (16, 64), [4, 16, 16], (1024,), np.array([64, 16])])
@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_there_and_back(name, digits, chunks):
    x = da.from_array(LINE, chunks=chunks)
    spectrum = getattr(fft, name)(x, order="transposed", digits=digits)
    k = transposed_index(1024, real=name == "rfft", digits=digits)
    np.testing.assert_allclose(spectrum.compute(), np.fft.fft(LINE)[k], atol=1e-11)
    frequencies = fft.fftfreq if name == "fft" else fft.rfftfreq
    expected = frequencies(1024, order="transposed", digits=digits).compute()
    np.testing.assert_array_equal(fft.frequencies_of(spectrum), expected)
    back = getattr(fft, f"i{name}")(
        spectrum,
        1024,
        order="transposed",
        digits=digits,
    )
    np.testing.assert_allclose(back.compute(), LINE, atol=1e-13)


def test_several_axes_and_a_product():
    digits = {0: (6, 10), -1: (8, 9)}
    x = da.from_array(BOX, chunks=(20, 24))
    named = {"order": "transposed", "digits": digits}
    y = fft.rfftn(x, **named)
    rows = transposed_index(60, digits=(6, 10))
    columns = transposed_index(72, real=True, digits=(8, 9))
    np.testing.assert_allclose(y.compute(), np.fft.fft2(BOX)[rows][:, columns], atol=1e-11)
    expected = np.fft.irfft2(np.fft.rfft2(BOX) ** 2)
    np.testing.assert_allclose(fft.irfftn(y * y, **named).compute(), expected, atol=1e-11)
    mixed = {"order": ("natural", "transposed"), "digits": {1: (8, 9)}}
    back = fft.irfftn(fft.rfftn(x, **mixed), **mixed)
    np.testing.assert_allclose(back.compute(), BOX, atol=1e-13)


def test_digits_of_the_length_are_none_of_their_own_and_others_tell_the_length():
    x = da.zeros(24, chunks=6)
    order = {"order": "transposed"}
    assert fft.fft(x, digits=transposed_digits(24), **order).name == fft.fft(x, **order).name
    assert fft.fft(x, digits=(2, 12), **order).name != fft.fft(x, **order).name
    assert fft.irfft(da.zeros(18), digits=(4, 6), **order).shape == (24,)  # (4//2 + 1) * 6


def test_rounds_with_other_digits_are_refused_in_transposed_order():
    x = da.from_array(LINE, chunks=64)
    with pytest.raises(ArgumentError, match=r"`rounds`.*digits"):
        fft.fft(x, order="transposed", rounds=[16, -1])
    with pytest.raises(ArgumentError, match=r"`rounds`.*digits"):
        fft.ifft(
            x,
            order="transposed",
            rounds=[16, -1],
            digits=(16, 64),
        )  # which inverses reverse
    with pytest.raises(ArgumentError, match=r"`rounds`.*digits"):
        fft.rfft(x, order="transposed", rounds=[1024])
    y = fft.fft(
        x,
        order="transposed",
        rounds=[16, -1],
        digits=(16, 64),
    )
    back = fft.ifft(
        y,
        order="transposed",
        rounds=[64, 16],
        digits=(16, 64),
    )
    np.testing.assert_allclose(back.compute(), LINE, atol=1e-13)
    documented = fft.fft(x, order="transposed", rounds=[32, -1])
    np.testing.assert_allclose(fft.ifft(documented, order="transposed").compute(), LINE, atol=1e-13)
    assert dask_bigfft.plan(x, "fft", rounds=[16, -1]).rounds  # natural order takes any
