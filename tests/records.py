"""Random arrays with chunks and an axis, and a comparison in the precision of their dtype.

Each function below has a law that compares it with astropy, SciPy or a formula for at least 100
random cases: shapes, irregular and empty chunks, axes and dtypes. Laws of several functions have
that number for each name. All take their number of cases from `CASES`::

    convolve_masked               signal/test_holes          astropy
    power_spectrum(mask=)         signal/test_holes          formula
    fill_gaps                     signal/test_gaps           formula
    lowpass, highpass             signal/test_passbands      formula
    bandpass, bandstop            signal/test_passbands      formula
    convolve, correlate           signal/test_convolution    SciPy
    fftconvolve, oaconvolve       signal/test_convolution    SciPy
    derivative                    signal/test_sampling       formula
    gradient, laplacian, poisson  signal/test_sampling       formula
    hilbert, envelope             signal/test_sampling       SciPy
    envelope of a band            signal/test_envelope       SciPy
    shift, downsample             signal/test_sampling       formula
    resample                      signal/test_sampling       SciPy
    coherence, transfer_function  signal/test_ratios         SciPy
    welch, csd                    signal/test_spectra        SciPy
    power_spectrum                signal/test_spectra        SciPy
    cross_spectrum                signal/test_spectra        SciPy
    radial_power_spectrum         signal/test_spectra        formula
    stft, istft, spectrogram      signal/test_short_time     SciPy
    czt, zoom_fft                 signal/test_chirp_z        SciPy
    run(append=True)              runs/test_append           SciPy
    run of istft, with append     runs/test_inverse_short_time  SciPy
    .bigfft: filters by name      integrations/test_xarray_laws  formula
    .bigfft: convolve             integrations/test_xarray_laws  SciPy
    .bigfft: pad, unpad           integrations/test_xarray_laws  NumPy
    .bigfft: czt, zoom_fft        integrations/test_xarray_chirp_z  formula
    .bigfft: other methods        integrations/test_xarray_chunks  arrays in memory
    fourier_filter                signal/test_filter_bands   NumPy: 60 seeds, 40 on simulated GPUs
"""

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from dask_bigfft.testing.strategies import chunkings, random_array

#: Random cases of a function: at least 100, and more where the profile asks for more.
CASES = settings(max_examples=max(100, settings.default.max_examples), phases=[Phase.generate])
REAL = ["f8", "f4", "i2"]
DTYPES = [*REAL, "c16", "c8"]


def require_close(
    result,
    expected,
    dtype,
    error=1e-12,
):
    """Fail where values or the precision differ."""
    is_single = np.dtype(dtype).char in "fF"
    assert result.shape == expected.shape
    real_dtype = np.empty(0, result.dtype).real.dtype
    assert real_dtype == ("f4" if is_single else "f8")
    assert (result.dtype.kind == "c") == (expected.dtype.kind == "c")
    largest = np.abs(expected).max(initial=1e-3)
    tolerance = largest * (2e-5 if is_single else error)
    np.testing.assert_allclose(
        result.compute(),
        expected,
        rtol=0,
        atol=tolerance,
    )


@st.composite
def records(
    draw,
    dtypes=DTYPES,
    most=2,
):
    """Return an array, its chunks and an axis."""
    ndim = draw(st.integers(1, most))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 6)) for _ in range(ndim)]
    shape[axis] = draw(st.sampled_from([1, 2, 3, 4, 16, 31, 60]))
    dtype = draw(st.sampled_from(dtypes))
    return (
        random_array(
            shape,
            dtype,
            draw(st.integers(0, 9)),
        ),
        draw(chunkings(shape)),
        axis,
    )
