"""Methods of lazy arrays of any chunking return what they return for arrays in memory."""

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from records import CASES

import dask_bigfft.xarray  # noqa: F401
from dask_bigfft.testing.strategies import chunks_of, random_array

pytestmark = pytest.mark.usefixtures("small")

WINDOW = {"win": np.hanning(6)[1:], "hop": 2}


def windowed_power(a, other, mask):
    return a.bigfft.power_spectrum(
        "x",
        mask=mask,
        detrend="linear",
        window="hann",
    )


def cross_spectrum(a, other, mask):
    return a.bigfft.cross_spectrum(other, detrend="constant")


def masked_means(a, other, mask):
    return a.real.bigfft.convolve_masked(
        "x",
        kernel=[1, 2, 4],
        mask=mask,
    )


def samples_of_spectra(a, other, mask):
    return a.real.bigfft.stft("x", **WINDOW).bigfft.istft(**WINDOW)


#: Methods of an array, another one and a mask, along one dimension or all.
METHODS = {
    "hilbert": lambda a, *_: a.real.bigfft.hilbert("x"),
    "envelope": lambda a, *_: a.bigfft.envelope("x"),
    "derivative": lambda a, *_: a.bigfft.derivative("x"),
    "shift": lambda a, *_: a.bigfft.shift(distance=0.3),
    "resample": lambda a, *_: a.bigfft.resample("x", num=9),
    "downsample": lambda a, *_: a.bigfft.downsample(factor=2),
    "convolve_masked": masked_means,
    "power_spectrum": windowed_power,
    "cross_spectrum": cross_spectrum,
    "coherence": lambda a, b, _: a.bigfft.coherence(b, "x", nperseg=4),
    "spectrogram": lambda a, *_: a.real.bigfft.spectrogram("x", **WINDOW),
    "istft": samples_of_spectra,
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@CASES
@given(
    data=st.data(),
    n=st.sampled_from([5, 8, 13]),
    rows=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from(["f8", "f4", "c16"]),
    axis=st.integers(0, 1),
)
def test_results_do_not_depend_on_chunks(
    method,
    data,
    n,
    rows,
    dtype,
    axis,
):
    shape = [rows, rows]
    shape[axis] = n
    names = ["y", "y"]
    names[axis] = "x"
    step = data.draw(st.sampled_from([0.5, -0.5]))
    coords = {"x": step * np.arange(n), "y": np.arange(rows)}
    fields = []
    lazy_fields = []
    for seed in range(2):
        values = random_array(shape, dtype, seed)
        field = xr.DataArray(values, coords, names, "T")
        chunks = [data.draw(chunks_of(length, 4)) for length in shape]
        lazy = da.from_array(values, tuple(chunks))
        fields.append(field)
        lazy_fields.append(field.copy(data=lazy))
    mask = field.copy(data=np.random.default_rng(1).random(shape) < 0.2)
    expected = method(*fields, mask)
    result = method(*lazy_fields, mask)
    assert result.chunks is not None
    assert result.dtype == expected.dtype
    is_single = result.dtype in ("f4", "c8")
    largest = np.abs(expected.values).max()
    xr.testing.assert_allclose(
        result.compute(),
        expected,
        rtol=1e-4 if is_single else 1e-9,
        atol=(1e-5 if is_single else 1e-12) * largest,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"detrend": "linear"},
        {"detrend": "constant", "window": "hann"},
        {"window": "hann"},
    ],
)
def test_spectra_of_one_row_with_an_empty_chunk(options):
    x = random_array((13, 1), "f8", 0)
    lazy = xr.DataArray(da.from_array(x, ((13,), (0, 1))), dims=("x", "y"))
    power = lazy.bigfft.power_spectrum("x", **options)
    expected = xr.DataArray(x, dims=("x", "y")).bigfft.power_spectrum("x", **options)
    xr.testing.assert_allclose(power.compute(), expected)
