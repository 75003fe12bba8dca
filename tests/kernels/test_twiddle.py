"""Twiddles and chirps at moduli where a rounded phase would be visible."""

import numpy as np
import pytest

from dask_bigfft.kernels import twiddle as module
from dask_bigfft.kernels.twiddle import chirp_filter, multiply_chirp, phase_table, twiddle

LONG = 2**33 + 1
EPS = {
    "c8": 2.0**-23,
    "c16": 2.0**-52,
    "G": float(np.finfo(np.longdouble).eps),
}


@pytest.fixture(scope="module", autouse=True)
def forgotten_tables():
    """The tables of these moduli are large: nothing keeps them."""
    yield
    phase_table.cache_clear()


def exact(numerator, denominator):
    """exp(1j*pi*numerator/denominator) from exact integers."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(160):
        factors = [mpmath.expjpi(mpmath.mpf(int(p)) / denominator) for p in numerator]
        real = [np.longdouble(mpmath.nstr(z.real, 30)) for z in factors]
        imag = [np.longdouble(mpmath.nstr(z.imag, 30)) for z in factors]
    return np.array(real) + 1j * np.array(imag)


def sampled_rows(modulus, digits):
    """Indices made of the digits still to come: small, large, and in between."""
    last = (modulus - 1) // max(digits - 1, 1)
    rng = np.random.default_rng(0)
    return np.unique([0, 1, last, last - 1, last // 2, *rng.integers(0, last, 4)])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("dtype", ["c8", "c16", "G"])
@pytest.mark.parametrize(
    ("modulus", "digits", "width"),
    [
        (12, 3, 1),
        (4096, 64, 2),
        (LONG, 201, 1),
        (LONG, 130, 3),
        (2**40, 65, 1),
        (3**21, 64, 2),
    ],
)
def test_twiddles(
    modulus,
    digits,
    width,
    dtype,
    sign,
):
    rest = sampled_rows(modulus, digits).astype(np.int64)
    x = np.full((len(rest), digits, width), 2 - 1j, dtype)
    twiddle(x, rest, modulus, sign)
    numerator = 2 * sign * np.multiply.outer(rest, np.arange(digits)).ravel()
    expected = (2 - 1j) * exact(numerator, modulus).reshape(len(rest), digits, 1)
    assert np.abs(x - expected).max() < 4 * np.sqrt(5) * EPS[dtype]
    # a row without a phase is not touched
    assert (x[rest == 0] == 2 - 1j).all()


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(
    "shape",
    [
        (9, 3, 1),
        (9, 64, 2),
        (2, 5000, 5),
        (20_000, 65, 1),
        (0, 4, 4),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_numpy_gives_the_bits_of_the_loop(
    shape,
    dtype,
    scale,
    monkeypatch,
):
    rng = np.random.default_rng(1)
    copies = [rng.normal(size=(*shape, 2)).view("c16")[..., 0].astype(dtype)] * 2
    rest = rng.integers(0, 1000, shape[0]) * (np.arange(shape[0]) % 7 > 0)
    for i, compiled in enumerate((True, False)):
        monkeypatch.setattr(module, "pays", lambda *_, compiled=compiled: compiled)
        monkeypatch.setattr(module, "may_compile", lambda: True)
        copies[i] = copies[i].copy()
        copies[i][:, -1, -1] = np.inf  # stays where nothing is multiplied
        with np.errstate(invalid="ignore"):
            twiddle(
                copies[i],
                rest,
                1000 * shape[1],
                -1,
                scale,
            )
    np.testing.assert_array_equal(*(x.view(f"u{x.itemsize // 2}") for x in copies))


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(
    ("shape", "turns"),
    [
        ((1, 9, 3, 1), 0),
        ((2, 7, 64, 2), 1),
        ((2, 3, 5000, 5), 2),
        ((1, 20_000, 3, 1), 3),
    ],
)
def test_numpy_gives_the_bits_of_the_loop_of_chirps(shape, turns, dtype, monkeypatch):
    rng = np.random.default_rng(1)
    batches, places, digits, width = shape
    length = 2 * places * digits  # half of the places are padding
    rest = rng.permutation(4 * places)[:places] * digits
    values = rng.normal(size=(*shape, 2)).view("c16")[..., 0].astype(dtype)
    values[:, -1, -1] = np.inf
    products = []
    filters = []
    for compiled in (True, False):
        monkeypatch.setattr(module, "pays", lambda *_, compiled=compiled: compiled)
        monkeypatch.setattr(module, "may_compile", lambda: True)
        x = values.reshape(batches * places, digits, width).copy()
        multiply_chirp(
            x,
            rest,
            stride=1,
            length=length,
            sign=-1,
            factor=1 / 3,
            turns=turns,
        )
        products.append(x)
        filters.append(chirp_filter(rest, 4 * length, length, 1, dtype, 3, 1))
    for by_loop, by_numpy in (products, filters):
        bits = f"u{by_loop.itemsize // 2}"
        np.testing.assert_array_equal(by_loop.view(bits), by_numpy.view(bits))


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("dtype", ["c8", "c16", "G"])
@pytest.mark.parametrize(
    ("length", "stride", "first"),
    [
        (7, 1, 0),
        (LONG, 1, LONG - 90),
        (LONG, 2**20 + 7, 2**33 - 50 * 2**20),
        (LONG, 3, 2**32),
    ],
)
def test_chirps(
    length,
    stride,
    first,
    dtype,
    sign,
):
    """n**2 mod 2N has 68 bits here; places from N on are zero."""
    rest = np.array([first, first + 1, max(first - 5, 0)])
    x = np.ones((3, 100, 2), dtype)
    multiply_chirp(
        x,
        rest,
        stride,
        length,
        sign,
        0.5,
    )
    n = np.add.outer(rest, stride * np.arange(100))
    squares = [int(k) ** 2 % (2 * length) * sign for k in n.ravel()]
    expected = np.where(n < length, 0.5 * exact(squares, length).reshape(n.shape), 0)
    assert np.abs(x - expected[:, :, None]).max() < 2 * EPS[dtype]
    assert (x[n >= length] == 0).all()


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_filter_is_a_chirp_wrapped_around(dtype):
    padded = 2 * LONG + 5
    length = LONG
    n = np.array([0, 1, 2, LONG - 1, LONG, LONG + 5, LONG + 6, padded - 2, padded - 1])
    filter_ = chirp_filter(
        n.reshape(3, 3),
        padded,
        length,
        1,
        dtype,
    )
    assert filter_.shape == (3, 3)
    assert filter_.dtype == dtype
    distance = np.minimum(n, padded - n)
    squares = [int(k) ** 2 % (2 * length) for k in distance]
    expected = np.where(distance < length, exact(squares, length), 0)
    assert np.abs(filter_.ravel() * padded - expected).max() < 2 * EPS[dtype]
    assert (distance >= length).any()
