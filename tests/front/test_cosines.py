"""Cosine and sine transforms against SciPy and in extended precision, and what they exchange."""

import dask.array as da
import mpmath
import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy import plans_of

from dask_bigfft import fft, plan
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import chunkings, chunks_of, norms, random_array, shapes

ONE = ("dct", "dst", "idct", "idst")
TYPES = (1, 2, 3, 4)

FEWER = settings(max_examples=max(20, settings.default.max_examples // 2))


pytestmark = pytest.mark.usefixtures("small")


def travelling(y):
    """Bytes of every exchange in which something travels, in the order of the graph."""
    exchanges = [exchange for plan in plans_of(y) for exchange in plan.exchanges]
    return [exchange.nbytes for exchange in exchanges if not exchange.local]


@FEWER
@given(
    data=st.data(),
    n=st.sampled_from([2, 3, 4, 36, 64, 87, 97, 125, 166, 210, 225, 256, 360, 361]),
    name=st.sampled_from(ONE),
    type_=st.sampled_from(TYPES),
    norm=norms(),
    ortho=st.sampled_from([None, True, False]),
    dtype=st.sampled_from(["f8", "f4", "c16", "i4", "f2"]),
)
def test_one_axis(
    data,
    n,
    name,
    type_,
    norm,
    ortho,
    dtype,
):
    x = random_array((n, 3), dtype if dtype != "f2" else "f4", 1).astype(dtype)
    lazy = da.from_array(x, chunks=(data.draw(chunks_of(n)), (2, 1)))
    options = {"axis": 0, "norm": norm, "orthogonalize": ortho}
    expected = getattr(scipy.fft, name)(x.real, type_, **options)
    if dtype == "c16":  # of which SciPy does not make the whole orthogonal
        expected = expected + 1j * getattr(scipy.fft, name)(x.imag, type_, **options)
    coefficients = getattr(fft, name)(lazy, type_, **options)
    assert coefficients.dtype == expected.dtype
    assert relative_l2(coefficients.compute(), expected) < 40 * np.finfo(expected.dtype).eps


@FEWER
@given(
    data=st.data(),
    shape=shapes(3),
    name=st.sampled_from([f"{n}n" for n in ONE]),
    type_=st.sampled_from((2, 3, 4)),
    norm=norms(),
)
def test_several_axes(
    data,
    shape,
    name,
    type_,
    norm,
):
    x = random_array(shape, "f8", 1)
    lazy = da.from_array(x, chunks=data.draw(chunkings(shape)))
    axes = data.draw(st.permutations(range(len(shape)))) if data.draw(st.booleans()) else None
    expected = getattr(scipy.fft, name)(
        x,
        type_,
        axes=axes,
        norm=norm,
    )
    coefficients = getattr(fft, name)(
        lazy,
        type_,
        axes=axes,
        norm=norm,
    )
    assert relative_l2(coefficients.compute(), expected) < 1e-14


@pytest.mark.parametrize("length", [50, 144, 200])
@pytest.mark.parametrize("type_", TYPES)
def test_cropped_and_padded_and_shifted_and_only_read(type_, length):
    x = random_array((144,), "f8", 1)
    x.flags.writeable = False
    lazy = da.from_array(x, chunks=12)
    shifted = fft.fftshift(fft.dct(lazy, type_, n=length, chunks=25, overwrite_x=True))
    expected = scipy.fft.fftshift(scipy.fft.dct(x, type_, n=length))
    assert relative_l2(shifted.compute(), expected) < 1e-14
    assert shifted.chunksize == (25,)
    plane = x[:, None] * x[:9]
    both = fft.dctn(da.from_array(plane, chunks=(12, 3)), type_, s=(length, 5))
    assert relative_l2(both.compute(), scipy.fft.dctn(plane, type_, s=(length, 5))) < 1e-14


def exactly(x, sine, type_):
    """The sums of the definitions, in 40 digits."""
    n = len(x)
    offset = int(sine)
    wave = mpmath.sin if sine else mpmath.cos
    place, frequency, total = {
        1: (lambda j: j + offset, lambda k: k + offset, n - 1 + 2 * offset),
        2: (lambda j: 2 * j + 1, lambda k: k + offset, 2 * n),
        3: (lambda j: j + offset, lambda k: 2 * k + 1, 2 * n),
        4: (lambda j: 2 * j + 1, lambda k: 2 * k + 1, 4 * n),
    }[type_]
    single = {(1, False): (0, n - 1), (3, False): (0,), (3, True): (n - 1,)}.get((type_, sine), ())
    with mpmath.workdps(40):
        sums = [
            mpmath.fsum(
                (1 if j in single else 2) * v * wave(mpmath.pi * place(j) * frequency(k) / total)
                for j, v in enumerate(x)
            )
            for k in range(n)
        ]
        return np.array([np.longdouble(mpmath.nstr(v, 25)) for v in sums])


@pytest.mark.parametrize("n", [36, 51])
@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("type_", TYPES)
def test_accuracy(n, sine, type_):
    """Against the definitions in 40 digits: as accurate as SciPy, long double beyond it."""
    x = random_array((n,), "f8", 3)
    name = "dst" if sine else "dct"
    for dtype in ("f4", "f8"):
        y = x.astype(dtype)
        exact = exactly([mpmath.mpf(float(v)) for v in y], sine, type_)
        eps = np.finfo(dtype).eps
        coefficients = getattr(fft, name)(da.from_array(y, chunks=5), type_).compute()
        theirs = relative_l2(getattr(scipy.fft, name)(y, type_), exact)
        assert relative_l2(coefficients, exact) < 1.5 * theirs + 1.5 * eps  # of which 1: Bluestein
    if np.finfo(np.longdouble).eps < 1e-18:
        wide = getattr(fft, name)(da.from_array(x.astype("g"), chunks=5), type_).compute()
        assert wide.dtype == np.dtype("g")
        assert relative_l2(wide, exact) < 1e-17


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("n", [1024, 3969, 2043, 9408])
def test_exchanges(n, type_, sine):
    """Three, as a real FFT has: types II to IV move no more bytes, type I at most twice as many.

    Type III is held against the way back: both begin with a rectangle of half a spectrum.
    """
    length = n - (1 if sine else -1) if type_ == 1 else n
    nbytes = travelling((fft.dst if sine else fft.dct)(da.zeros(length, chunks=n // 16), type_))
    assert len(nbytes) == 3
    real = fft.rfft(da.zeros(n, chunks=n // 16))
    if type_ == 3:
        half = n // 2 + 1
        real = fft.irfft(da.zeros(half, chunks=half // 16, dtype=complex), n)
    assert sum(nbytes) <= (2 if type_ == 1 else 1) * sum(travelling(real)) + 64
    assert sum(nbytes) >= 0.9 * sum(travelling(real))


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("type_", TYPES)
def test_a_convolution_moves_what_a_real_fft_of_a_prime_length_does(type_, sine):
    """Also where type I has a prime n - 1 or n + 1: its own length then is no prime."""
    n = 8191 if type_ != 1 else 8190 if sine else 8192
    nbytes = travelling((fft.dst if sine else fft.dct)(da.zeros(n, chunks=n // 16), type_))
    prime = travelling(fft.rfft(da.zeros(8191, chunks=8191 // 16)))
    assert len(nbytes) == len(prime) == 4
    assert sum(nbytes) <= sum(prime) + 64


@pytest.mark.parametrize("n", [8191, 8192])
@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(
    ("norm", "ortho"),
    [
        ("ortho", None),
        ("forward", True),
    ],
)
def test_convolutions(
    n,
    type_,
    sine,
    norm,
    ortho,
):
    """Lengths of which some transforms have no useful split."""
    x = random_array((n,), "f8", 4)
    name = "dst" if sine else "dct"
    lazy = da.from_array(x, chunks=n // 7)
    coefficients = getattr(fft, name)(
        lazy,
        type_,
        norm=norm,
        orthogonalize=ortho,
    ).compute()
    expected = getattr(scipy.fft, name)(
        x,
        type_,
        norm=norm,
        orthogonalize=ortho,
    )
    assert relative_l2(coefficients, expected) < 3e-15


def test_several_axes_take_no_more_exchanges_than_a_real_fft():
    assert travelling(fft.dct(da.zeros((8, 300), chunks=(2, 300)), 4)) == []
    for shape, chunks in [((32, 30), (4, 30)), ((32, 30), (32, 3)), ((8, 12, 10), (2, 12, 10))]:
        x = da.zeros(shape, chunks=chunks)
        assert len(travelling(fft.dctn(x))) <= len(plan(x, "rfftn").travelling)
