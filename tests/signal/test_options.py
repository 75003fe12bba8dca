"""Each function of `signal` follows the keywords of transforms, or refuses them by name."""

import inspect

import dask
import dask.array as da
import numpy as np
import pytest
from laws.law import damaged
from lazy import plans_of
from support import heard

from dask_bigfft import signal
from dask_bigfft.errors import BigFFTError
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.signal.arguments import ConvolutionOptions, SignalOptions
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.faults import DAMAGES, Times
from dask_bigfft.testing.strategies import random_array

pytestmark = pytest.mark.usefixtures("small")

VALUES = random_array((32, 40), "f8", 0)
KERNEL = random_array((3, 5), "f8", 1)
WINDOW = (np.hanning(8), 4, 1.0)
LIMITS = TileLimits(0, least=256, run_nbytes=64)


def gaussian(*frequencies):
    """Return a transfer function that smooths."""
    return np.exp(-sum(f**2 for f in frequencies))


#: Functions that transform whole axes: of an array and of options.
BY_SPECTRA = {
    "fftconvolve": lambda x, **options: signal.fftconvolve(x, x + 1, **options),
    "fftconvolve with a kernel": lambda x, **options: signal.fftconvolve(x, KERNEL, **options),
    "convolve": lambda x, **options: signal.convolve(x, KERNEL, **options),
    "correlate": lambda x, **options: signal.correlate(x, KERNEL, method="fft", **options),
    "fourier_filter": lambda x, **options: signal.fourier_filter(x, gaussian, **options),
    "gradient": lambda x, **options: signal.gradient(x, 0, **options),
    "laplacian": signal.laplacian,
    "poisson": signal.poisson,
    "power_spectrum": signal.power_spectrum,
    "cross_spectrum": lambda x, **options: signal.cross_spectrum(x, x + 1, **options),
    "czt": signal.czt,
    "derivative": signal.derivative,
    "hilbert": signal.hilbert,
    "envelope": signal.envelope,
    "shift": lambda x, **options: signal.shift(x, 0.5, **options),
    "resample": lambda x, **options: signal.resample(x, 20, **options),
    "downsample": lambda x, **options: signal.downsample(x, 2, **options),
    "lowpass": lambda x, **options: signal.lowpass(x, 0.2, **options),
    "highpass": lambda x, **options: signal.highpass(x, 0.2, **options),
    "bandpass": lambda x, **options: signal.bandpass(x, (0.1, 0.2), **options),
    "bandstop": lambda x, **options: signal.bandstop(x, (0.1, 0.2), **options),
    "convolve_masked": lambda x, **options: signal.convolve_masked(x, KERNEL**2, x < 0, **options),
    "fill_gaps": lambda x, **options: signal.fill_gaps(
        x, x < -4, band=0.2, iterations=2, tolerance=0.9, **options
    )[0],
    "zoom_fft": lambda x, **options: signal.zoom_fft(x, 0.5, **options),
    "radial_power_spectrum": lambda x, **options: signal.radial_power_spectrum(x, **options)[1],
}

#: Functions that SciPy computes block by block.
BY_BLOCK = {
    "oaconvolve": lambda x, **options: signal.oaconvolve(x, KERNEL, **options),
    "convolve": lambda x, **options: signal.convolve(x, KERNEL, method="direct", **options),
    "correlate": lambda x, **options: signal.correlate(x, KERNEL, method="direct", **options),
    "welch": lambda x, **options: signal.welch(x, nperseg=8, **options)[1],
    "csd": lambda x, **options: signal.csd(x, x + 1, nperseg=8, **options)[1],
    "coherence": lambda x, **options: signal.coherence(x, x + 1, nperseg=8, **options)[1],
    "transfer_function": lambda x, **options: signal.transfer_function(
        x, x + 1, nperseg=8, **options
    )[1],
    "stft": lambda x, **options: signal.stft(x, *WINDOW, **options),
    "spectrogram": lambda x, **options: signal.spectrogram(x, *WINDOW, **options),
    "istft": lambda x, **options: signal.istft(x, *WINDOW, mfft=62, **options),
}

by_spectra = pytest.mark.parametrize("function", BY_SPECTRA.values(), ids=BY_SPECTRA)
by_block = pytest.mark.parametrize("function", BY_BLOCK.values(), ids=BY_BLOCK)


def blocks():
    return da.from_array(VALUES, chunks=(8, 40))


def assert_close(value, right):
    np.testing.assert_allclose(value, right, rtol=1e-9, atol=1e-9 * np.nanmax(abs(right)))


def test_every_function_is_in_a_table():
    assert {*BY_SPECTRA, *BY_BLOCK, "plan_segments"} >= {*signal.__all__}


@pytest.mark.parametrize("name", sorted({*signal.__all__} - {"plan_segments"}))
def test_help_and_completion_show_every_keyword(name):
    """Only `plan_segments` has the keywords of the function that it plans."""
    function = getattr(signal, name)
    parameters = inspect.signature(function).parameters
    options = ConvolutionOptions if "kernel" in [*parameters][:2] else SignalOptions
    names = [*options.__annotations__]
    assert [*parameters][-len(names) :] == names
    assert not [p for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    described = inspect.getdoc(function).partition("\nReturns\n")[0]
    assert "planner" in described
    assert "**options" not in described


@by_spectra
@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_device(function, device):
    right = function(blocks()).compute()
    shared = dask.config.set({"bigfft.hybrid.cpu-share": 0.5})
    with shared, simulated_devices(1 << 14, limits=LIMITS), heard("h2d") as copies:
        result = function(blocks(), device=device)
        assert {plan.device for plan in plans_of(result)} == {device}
        assert_close(result.compute(scheduler="threads"), right)
    assert copies


@by_spectra
def test_device_memory_limit(function):
    peaks = {}
    for limit in (None, 1 << 12):
        with simulated_devices(1 << 16, limits=LIMITS) as (device,):
            function(blocks(), device="gpu", device_memory_limit=limit).compute(scheduler="threads")
            peaks[limit] = device.peak
    assert peaks[1 << 12] <= 1 << 12 < peaks[None]


@by_spectra
@pytest.mark.parametrize("verify", ["energy", "checksum"])
def test_verify(function, verify, monkeypatch):
    right = function(blocks()).compute()
    with heard("mismatch") as mismatches:
        damaged(monkeypatch, DAMAGES["exponent bit"], Times(1))
        result = function(blocks(), verify=verify)
        assert {plan.verify for plan in plans_of(result)} == {verify}
        assert_close(result.compute(), right)
    # The largest value is damaged: the mean, which derivatives then multiply by 0.
    assert len(mismatches) == 1


@by_spectra
def test_planner(function, tmp_path):
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        right = function(blocks()).compute()
        assert not list(tmp_path.iterdir())
        result = function(blocks(), planner="measure")
        assert list(tmp_path.iterdir())
        assert_close(result.compute(), right)


@by_spectra
@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "gpu"), ("device", "tpu"), ("device_memory_limit", -1), ("verify", "twice")],
)
def test_what_no_transform_takes_here(function, name, value):
    with pytest.raises(ValueError, match=name) as refused:
        function(blocks(), **{name: value})
    assert isinstance(refused.value, BigFFTError)


@by_block
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "gpu"),
        ("device", "hybrid"),
        ("device_memory_limit", "1 GiB"),
        ("verify", "energy"),
        ("verify", "checksum"),
        ("planner", "measure"),
    ],
)
def test_what_is_refused_block_by_block(function, name, value):
    with simulated_devices(1 << 16), pytest.raises(ValueError, match=name) as refused:
        function(blocks(), **{name: value})
    assert isinstance(refused.value, BigFFTError)


@pytest.mark.parametrize("name", ["csd", "coherence", "transfer_function"])
def test_a_refusal_names_the_function_that_was_called(name):
    with pytest.raises(ValueError, match=f"for {name}, which works block by block"):
        getattr(signal, name)(blocks(), blocks() + 1, nperseg=8, verify="energy")


@by_block
def test_what_is_followed_block_by_block(function):
    right = function(blocks())
    chunks = tuple((1,) * n for n in right.shape)
    options = {"device": "cpu", "verify": "none", "planner": "estimate", "kernel": "scipy"}
    result = function(blocks(), chunks=chunks, **options)
    assert result.chunks == chunks
    assert_close(result.compute(), right.compute())


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize(
    "options", [{"verify": "energy"}, {"memory_limit": "1 GiB"}, {"kernel": "ducc0"}]
)
def test_the_method_follows_the_options(name, options):
    if "kernel" in options:
        pytest.importorskip("ducc0")
    x = da.from_array(VALUES, chunks=(8, 40))
    function = getattr(signal, name)
    assert not plans_of(function(x, KERNEL))
    assert plans_of(function(x, KERNEL, **options))
