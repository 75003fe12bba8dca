"""Functions that are written for the array API give the same on our transforms as on NumPy's.

SciPy's own copy of array_api_compat is always there; the package itself where it is installed.
"""

import importlib

import dask.array as da
import numpy as np
import pytest
from support import python

import dask_bigfft

COPIES = ["scipy._lib.array_api_compat", "array_api_compat"]

RNG = np.random.default_rng(21)

#: Kinds of the standard: input (complex or real), and options that it names.
COMPLEX = ("fft", "ifft", "fftn", "ifftn")
REAL = ("rfft", "rfftn", "ihfft")
HALF = ("irfft", "irfftn", "hfft")

#: Precision of the result by that of the input.
RESULTS = {"f4": ("c8", "f4"), "f8": ("c16", "f8"), "c8": ("c8", "f4"), "c16": ("c16", "f8")}


@pytest.fixture(params=COPIES)
def compat(request):
    return pytest.importorskip(request.param)


@pytest.fixture
def xp(compat):
    """The namespace of a lazy array, while our transforms are installed."""
    with dask_bigfft.installed():
        yield compat.array_namespace(da.ones(3, chunks=1))


def values(name, dtype):
    if name in COMPLEX:
        dtype = np.result_type(dtype, "c8")
    x = RNG.standard_normal((12, 10))
    return (x + 1j * RNG.standard_normal(x.shape) if np.dtype(dtype).kind == "c" else x).astype(
        dtype
    )


def options_of(name):
    """Keywords of the standard for a function of one axis, or of several."""
    for norm in ("backward", "ortho", "forward"):
        if name.endswith("n"):
            yield {"norm": norm, "axes": (0, 1), "s": (9, 11)}
            yield {"norm": norm, "axes": (1,)}
        else:
            yield {"norm": norm, "axis": 0, "n": 9}
            yield {"norm": norm}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", [*COMPLEX, *REAL, *HALF])
def test_transforms(xp, name, dtype):
    """Values, shape and precision by the standard; both axes are in several chunks."""
    if name in HALF:
        dtype = {"f4": "c8", "f8": "c16"}[dtype]
    x = values(name, dtype)
    lazy = da.from_array(x, chunks=(5, 4))
    for options in options_of(name):
        result = getattr(xp.fft, name)(lazy, **options)
        assert isinstance(result, da.Array)
        assert "bigfft" in result.name
        expected = getattr(np.fft, name)(x.astype(np.result_type(x, "f8")), **options)
        assert result.dtype == RESULTS[x.dtype.str[1:]][name in HALF]
        tolerance = 1e-5 if dtype in ("f4", "c8") else 1e-12
        np.testing.assert_allclose(result.compute(), expected, rtol=tolerance, atol=tolerance)


def test_frequencies_and_shifts(xp):
    for name in ("fftfreq", "rfftfreq"):
        frequencies = getattr(xp.fft, name)(10, d=0.5)
        expected = getattr(np.fft, name)(10, d=0.5)
        np.testing.assert_array_equal(np.asarray(frequencies), expected)
        single = getattr(xp.fft, name)(10, d=0.5, dtype=xp.float32, device="cpu")
        assert isinstance(single, da.Array)
        assert single.dtype == "f4"
        np.testing.assert_array_equal(np.asarray(single), expected.astype("f4"))
    x = values("rfft", "f8")
    lazy = da.from_array(x, chunks=(5, 4))
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 1, (0,)):
            shifted = getattr(xp.fft, name)(lazy, axes=axes)
            assert "bigfft" in shifted.name
            np.testing.assert_array_equal(shifted.compute(), getattr(np.fft, name)(x, axes=axes))


def test_a_function_for_any_library(compat):
    """It asks an array for its namespace, as SciPy does, and knows no library."""

    def autocorrelation(x):
        xp = compat.array_namespace(x)
        return xp.fft.irfftn(abs(xp.fft.rfftn(x)) ** 2, s=x.shape, axes=(0, 1))

    x = values("rfft", "f8")
    with dask_bigfft.installed():
        lazy = autocorrelation(da.from_array(x, chunks=(5, 4)))
    np.testing.assert_allclose(lazy.compute(), autocorrelation(x), atol=1e-10)


def test_copies_are_as_before_afterwards(compat):
    module = importlib.import_module(f"{compat.__name__}.dask.array.fft")
    before = {name: getattr(module, name) for name in module.__all__}
    with dask_bigfft.installed():
        assert module.fft is da.fft.fft is not before["fft"]
        assert module.fftfreq is before["fftfreq"]  # calls the present one
    assert {name: getattr(module, name) for name in module.__all__} == before


def test_a_copy_that_is_imported_while_ours_are_installed():
    python(
        "-c",
        """
import dask.array as da, dask_bigfft
dasks = da.fft.fft
with dask_bigfft.installed():
    import scipy._lib.array_api_compat.dask.array.fft as copy
    assert copy.fft is da.fft.fft is not dasks
assert copy.fft is da.fft.fft is dasks
""",
    )
