"""The rules of the FFT part of the array API standard, as a table.

The standard's own suite is not published as a package. Its checks of transforms are those of
`test_any_arguments`, with any shape and any combination of keywords; here values are compared, too,
with sums by the definition. The rules follow version 2024.12. Arrays are in several chunks.
"""

import dask.array as da
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from laws.law import exact_transform

from dask_bigfft import fft
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

pytestmark = pytest.mark.usefixtures("small")

#: Names of the standard, by the values that they take and return.
COMPLEX = ("fft", "ifft", "fftn", "ifftn")
REAL_TO_COMPLEX = ("rfft", "ihfft", "rfftn")
COMPLEX_TO_REAL = ("irfft", "hfft", "irfftn")
NAMES = (*COMPLEX, *REAL_TO_COMPLEX, *COMPLEX_TO_REAL)
SEVERAL_AXES = tuple(name for name in NAMES if name.endswith("n"))

SHAPE = (6, 10)

#: Complex dtype of each precision, by the real one.
COMPLEX_OF = {"f4": "c8", "f8": "c16"}


def values(name, precision="f8", shape=SHAPE):
    """Return input of a function of the standard."""
    dtype = precision if name in REAL_TO_COMPLEX else COMPLEX_OF[precision]
    return random_array(shape, dtype, 31)


def lazy(x):
    return da.from_array(x, chunks=tuple(max(1, n // 2) for n in x.shape))


def result_dtype(name, precision):
    return np.dtype(precision if name in COMPLEX_TO_REAL else COMPLEX_OF[precision])


def length_of(name, size):
    """Return the length of a transform of an axis, by default."""
    return 2 * (size - 1) if name in COMPLEX_TO_REAL else size


def stored(name, length):
    """Return the values of a result along its last axis."""
    return length // 2 + 1 if name in REAL_TO_COMPLEX else length


def assert_by_definition(
    name,
    x,
    y,
    lengths,
    axes,
    norm="backward",
):
    """The values are those of the sum in the standard's text."""
    expected = exact_transform(
        name,
        x,
        lengths,
        axes,
        norm,
    )
    computed = y.compute()
    assert y.shape == computed.shape == expected.shape
    assert y.dtype == computed.dtype
    assert relative_l2(computed, expected) <= 20 * np.finfo(y.dtype).eps


# --- rules of every transform -----------------------------------------------------------------


def defaults(name):
    """One axis: the last one. Several axes: all. The length is that of the input, no scaling."""
    x = values(name)
    y = getattr(fft, name)(lazy(x))
    axes = (0, 1) if name in SEVERAL_AXES else (1,)
    lengths = [x.shape[axis] for axis in axes]
    lengths[-1] = length_of(name, lengths[-1])
    assert_by_definition(name, x, y, lengths, axes)


def precision(name):
    """A result has the precision of its input, and is real where the standard says so."""
    for real in ("f4", "f8"):
        y = getattr(fft, name)(lazy(values(name, real)))
        assert y.dtype == y.compute().dtype == result_dtype(name, real)


def scaling(name):
    """`norm` divides by nothing, by the root of the length, or by the length."""
    x = values(name)
    axes = (0, 1) if name in SEVERAL_AXES else (1,)
    lengths = [x.shape[axis] for axis in axes]
    lengths[-1] = length_of(name, lengths[-1])
    for norm in ("backward", "ortho", "forward"):
        y = getattr(fft, name)(lazy(x), norm=norm)
        assert_by_definition(name, x, y, lengths, axes, norm)
    with pytest.raises(ValueError, match="norm"):
        getattr(fft, name)(lazy(x), norm="both")


def lengths(name):
    """A longer transform pads with zeros at the end, a shorter one drops values there."""
    x = values(name)
    for length in (1, 7, 10, 13):
        if name in SEVERAL_AXES:
            y = getattr(fft, name)(lazy(x), s=(8, length), axes=(0, 1))
            assert_by_definition(name, x, y, [8, length], (0, 1))
        else:
            y = getattr(fft, name)(lazy(x), n=length)
            assert_by_definition(name, x, y, [length], (1,))
        assert y.shape[-1] == stored(name, length)


def axes(name):
    """Any axis may be named, also from the end; several ones in any order."""
    x = values(name, shape=(4, 6, 5))
    if name in SEVERAL_AXES:
        for named in [(0,), (2, 0), (-1, -3), (1, 2, 0)]:
            y = getattr(fft, name)(lazy(x), axes=named)
            sizes = [x.shape[axis] for axis in named]
            sizes[-1] = length_of(name, sizes[-1])
            assert_by_definition(name, x, y, sizes, named)
    else:
        for axis in (0, 1, -1, -2):
            y = getattr(fft, name)(lazy(x), axis=axis)
            assert_by_definition(name, x, y, [length_of(name, x.shape[axis])], (axis,))


def bad_arguments(name):
    """Axes that an array has not, or has once, and lengths below 1 are errors."""
    array = lazy(values(name))
    function = getattr(fft, name)
    if name in SEVERAL_AXES:
        bad = [{"axes": (0, 2)}, {"axes": (0, 0)}, {"s": (4, 0), "axes": (0, 1)}]
        bad.append({"s": (4,), "axes": (0, 1)})
    else:
        bad = [{"axis": 2}, {"axis": -3}, {"n": 0}]
    for arguments in bad:
        with pytest.raises((ValueError, IndexError)):
            function(array, **arguments)


def own_lengths(name):
    """A length of -1 among several is the array's own."""
    if name in SEVERAL_AXES:
        x = values(name)
        y = getattr(fft, name)(lazy(x), s=(-1, 7), axes=(0, 1))
        assert_by_definition(name, x, y, [6, 7], (0, 1))


def last_axes(name):
    """Lengths without axes are those of the last axes; ours warns as NumPy does."""
    if name in SEVERAL_AXES:
        x = values(name, shape=(2, 6, 5))
        with pytest.warns(DeprecationWarning, match="axes"):
            y = getattr(fft, name)(lazy(x), s=(4, 7))
        assert_by_definition(name, x, y, [4, 7], (1, 2))


def batches(name):
    """Arrays without elements along other axes have results of the same kind."""
    x = values(name, shape=(0, 10))
    arguments = {"axes": (1,)} if name in SEVERAL_AXES else {}
    y = getattr(fft, name)(lazy(x), **arguments)
    assert y.compute().shape == (0, stored(name, length_of(name, 10)))


RULES = (
    defaults,
    precision,
    scaling,
    lengths,
    axes,
    bad_arguments,
    own_lengths,
    last_axes,
    batches,
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_transform(rule, name):
    rule(name)


def keywords(data, **options):
    """Return some of these keywords; the others are left to their default."""
    return {name: value for name, value in options.items() if data.draw(st.booleans(), name)}


def drawn_length(data, name, size):
    """Return a length from half to one and a half of an axis, and at least 1."""
    return data.draw(st.integers(max(1, size // 2), size + (size + 1) // 2), name)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_arguments(name, data):
    """Shape, precision and values, whichever keywords are there."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4), "shape"))
    x = values(name, data.draw(st.sampled_from(["f4", "f8"])), shape)
    norm = data.draw(st.sampled_from(["backward", "ortho", "forward"]), "norm")
    places = st.integers(-x.ndim, x.ndim - 1)
    if name in SEVERAL_AXES:
        named = data.draw(st.lists(places, min_size=1, unique_by=lambda a: a % x.ndim), "axes")
        options = keywords(data, axes=tuple(named), norm=norm)
        axes = options.get("axes", tuple(range(x.ndim)))
        if "axes" in options:  # without them lengths are deprecated
            lengths = tuple(drawn_length(data, "s", x.shape[axis]) for axis in axes)
            options |= keywords(data, s=lengths)
        sizes = list(options.get("s", [x.shape[axis] for axis in axes]))
    else:
        axis = data.draw(places, "axis")
        options = keywords(data, axis=axis, norm=norm)
        axes = (options.get("axis", -1),)
        options |= keywords(data, n=drawn_length(data, "n", x.shape[axes[0]]))
        sizes = [options.get("n", x.shape[axes[0]])]
    if options.keys().isdisjoint({"n", "s"}):
        sizes[-1] = length_of(name, sizes[-1])
    assume(sizes[-1] > 0)  # half a spectrum of one value has no default length
    y = getattr(fft, name)(lazy(x), **options)
    assert y.dtype == result_dtype(name, x.real.dtype.str[1:])
    assert_by_definition(name, x, y, sizes, axes, options.get("norm", "backward"))


# --- rules of pairs, shifts and frequencies ---------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "inverse"),
    [
        ("fft", "ifft"),
        ("fftn", "ifftn"),
        ("rfft", "irfft"),
        ("rfftn", "irfftn"),
        ("ihfft", "hfft"),
    ],
)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("shape", [(6, 10), (5, 9)])
def test_inverse(forward, inverse, norm, shape):
    """The inverse with the same norm and lengths gives the input."""
    x = values(forward, shape=shape)
    spectrum = getattr(fft, forward)(lazy(x), norm=norm)
    where = {"n": shape[-1]}
    if inverse.endswith("n"):
        where = {"s": shape, "axes": (0, 1)}
    back = getattr(fft, inverse)(spectrum, norm=norm, **where)
    assert back.dtype == x.dtype
    assert relative_l2(back.compute(), x) <= 20 * np.finfo(x.dtype).eps


@pytest.mark.parametrize("n", [1, 2, 9, 10])
@pytest.mark.parametrize("d", [1.0, 0.25, -2.0])
def test_frequencies(n, d):
    """The values of the formula, in double precision."""
    places = np.arange(n)
    ordered = np.where(places < (n + 1) // 2, places, places - n)
    frequencies = fft.fftfreq(n, d=d)
    assert frequencies.dtype == np.float64
    np.testing.assert_allclose(frequencies.compute(), ordered / (n * d), rtol=1e-15)
    half = fft.rfftfreq(n, d=d)
    np.testing.assert_allclose(half.compute(), np.arange(n // 2 + 1) / (n * d), rtol=1e-15)


@pytest.mark.parametrize("shape", [(6, 10), (5, 9), (1, 4), (3, 2, 4, 5)])
@pytest.mark.parametrize("axes", [None, 0, -1, (0, 1), (1,), (-1, 0)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_shifts(shape, axes, dtype):
    """The zero frequency moves to the middle, and back; shape and dtype stay."""
    x = random_array(shape, dtype, 32)
    named = range(x.ndim) if axes is None else np.atleast_1d(axes)
    expected = x
    for axis in named:
        expected = np.roll(expected, x.shape[axis] // 2, axis)
    shifted = fft.fftshift(lazy(x), axes=axes)
    assert shifted.dtype == dtype
    np.testing.assert_array_equal(shifted.compute(), expected)
    np.testing.assert_array_equal(fft.ifftshift(shifted, axes=axes).compute(), x)
