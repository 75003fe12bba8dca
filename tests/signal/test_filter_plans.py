"""Plans of filters before they are computed: `plan(x, "lowpass", ...)` and `.bigfft.plan`."""

from dataclasses import replace
from typing import get_args

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from lazy import plans_of

import dask_bigfft
import dask_bigfft.xarray  # the accessor
from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, MemoryLimitError, PlanError
from dask_bigfft.plans import FILTERS, FUNCTIONS, SEVERAL_PLANS, TransformName
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.transforms.spec import TRANSFORMS

SHAPE = (31, 40)
KERNEL = random_array((3, 5), "f8", 1)


def unreadable(shape=SHAPE, chunks=(8, 40), dtype="f8"):
    """Return a lazy array that raises an error if it is computed."""

    def raise_read(block):
        raise AssertionError("a plan reads no data")

    return da.zeros(shape, chunks=chunks, dtype=dtype).map_blocks(raise_read, dtype=dtype)


def gaussian(*frequencies):
    return np.exp(-sum(f**2 for f in frequencies))


def anonymous(plan):
    """Return a plan without the token of its transfer function, which kernels in memory change."""
    return replace(plan, spec=replace(plan.spec, transfer="token"))


#: Arguments of each filter.
ARGUMENTS = {
    "bandpass": {"band": (0.1, 0.2), "axes": 1},
    "bandstop": {"band": (5, 10), "by": "period"},
    "convolve": {"in2": KERNEL, "method": "fft"},
    "convolve_masked": {"kernel": KERNEL**2, "memory_limit": "1 GiB"},
    "correlate": {"in2": KERNEL, "method": "fft", "mode": "same"},
    "derivative": {"axis": 0},
    "downsample": {"factor": 2, "axes": 1},
    "fill_gaps": {"band": 0.1, "iterations": 2},
    "fftconvolve": {"in2": KERNEL, "axes": (0, 1)},
    "fourier_filter": {"transfer": gaussian, "s": (64, 45), "verify": "energy"},
    "highpass": {"cutoff": 0.2, "chunks": (31, 10)},
    "hilbert": {"axis": 1},
    "laplacian": {},
    "lowpass": {"cutoff": 0.2, "edge": "cosine"},
    "poisson": {},
    "resample": {"num": 20, "axis": 1},
    "shift": {"distance": 0.5, "memory_limit": "1 GiB"},
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", FILTERS)
def test_the_plan_is_that_of_the_function(name, dtype):
    x = unreadable(dtype=dtype)
    plan = dask_bigfft.plan(x, name, **ARGUMENTS[name])
    result = getattr(signal, name)(x, **ARGUMENTS[name])
    if name == "fill_gaps":
        result, _ = result
    chunks = plan.chunks
    if name == "convolve_masked":  # values and weights in one block
        assert chunks[0] == (2,)
        chunks = chunks[1:]
    assert chunks == result.chunks
    assert {anonymous(plan.core)} == {anonymous(own) for own in plans_of(result)}
    assert "H" in plan.explain(details=True)
    assert plan.expected.peak_host > 0


WINDOW = {"win": np.hanning(8), "hop": 4, "fs": 1.0}

#: Arguments of each spectrum.
SPECTRA = {
    "csd": {"y": np.ones(SHAPE), "nperseg": 8},
    "czt": {"m": 5, "axis": 0},
    "envelope": {"residual": None},
    "istft": {**WINDOW, "mfft": 60},
    "power_spectrum": {"axes": 1},
    "radial_power_spectrum": {},
    "spectrogram": WINDOW,
    "stft": WINDOW,
    "welch": {"nperseg": 8, "axis": 0},
    "zoom_fft": {"fn": 0.5},
}


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {*FILTERS}))
def test_spectra_are_planned_by_their_names(name):
    plan = dask_bigfft.plan(unreadable(), name, **SPECTRA[name], memory_limit="1 GiB")
    assert plan.expected.peak_host > 0
    assert "memory" in plan.explain()
    with pytest.raises((MemoryLimitError, PlanError), match=r"memory_limit"):
        dask_bigfft.plan(unreadable(), name, **SPECTRA[name], memory_limit=100)


def test_types_have_all_names():
    assert get_args(TransformName) == tuple(TRANSFORMS)


def test_a_plan_of_segments_is_that_of_plan_segments():
    plan = dask_bigfft.plan(unreadable(), "welch", nperseg=8, axis=0)
    assert plan == signal.plan_segments(unreadable(), nperseg=8, axis=0)


@pytest.mark.parametrize("name", SEVERAL_PLANS)
def test_functions_of_several_plans_name_one_that_has_such_a_plan(name):
    like = SEVERAL_PLANS[name]
    with pytest.raises(ArgumentError, match=f"`kind`='{name}'.*need '{like}'"):
        dask_bigfft.plan(unreadable(), name)
    if name != "gradient":
        with pytest.raises(ArgumentError, match=f"`kind`='{name}'.*need '{like}'"):
            xr.DataArray(unreadable()).bigfft.plan(name)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((37,), 9), ((4, 1, 6, 5, 7), (3, 1, 2, 5, 3)), ((16, 18), ((3, 5, 8), (11, 7)))],
)
def test_of_a_split_array(shape, chunks):
    plan = dask_bigfft.plan(unreadable(shape, chunks), "fourier_filter", transfer=gaussian)
    result = signal.fourier_filter(unreadable(shape, chunks), gaussian)
    assert plan.notation == plans_of(result)[0].notation
    assert plan.spec.shape == shape


def test_what_was_planned_before_does_not_count():
    smooth = signal.lowpass(unreadable(), 0.2)
    assert dask_bigfft.plan(smooth, "highpass", cutoff=0.1).spec.shape == SHAPE


def test_of_an_array_that_is_not_lazy():
    plan = dask_bigfft.plan(np.ones(12), "fourier_filter", transfer=np.ones(7))
    assert plan.spec.shape == (12,)


def test_a_large_lazy_transfer_function_is_an_operand():
    transfer = unreadable((2048, 1025), (256, 1025))
    plan = dask_bigfft.plan(unreadable((2048, 2048), 512), "fourier_filter", transfer=transfer)
    assert plan.spec.factor.shape == (2048, 1025)


@pytest.mark.parametrize(
    ("name", "arguments", "argument"),
    [
        ("fourier_filter", {"transfer": gaussian, "norm": "ortho"}, "norm"),
        ("fourier_filter", {"transfer": gaussian, "n": 8}, "n"),
        ("fourier_filter", {"transfer": gaussian, "cutof": 8}, "cutof"),
        ("fourier_filter", {}, "transfer"),
        ("lowpass", {"axes": 0}, "cutoff"),
    ],
)
def test_arguments_are_those_of_the_function(name, arguments, argument):
    with pytest.raises(TypeError, match=argument):
        dask_bigfft.plan(unreadable(), name, **arguments)


@pytest.mark.parametrize("kind", ["oaconvolve", "plan_segments", "fftx", None, ["fft"], np.ones(3)])
def test_other_kinds_are_refused(kind):
    with pytest.raises(ArgumentError, match="`kind`"):
        dask_bigfft.plan(unreadable(), kind)


def test_filters_of_several_plans_or_none_are_refused():
    band = {"transfer": unreadable((31, 21)), "band": {0: (-0.1, 0.1)}}
    with pytest.raises(PlanError, match="2 plans"):
        dask_bigfft.plan(unreadable(), "fourier_filter", **band)
    with pytest.raises(PlanError, match="block by block"):
        dask_bigfft.plan(unreadable(), "convolve", in2=np.ones((1, 3)))


# --- arrays with coordinates -------------------------------------------------------------------

NAMED = {
    "bandpass": {"band": (0.1, 0.2)},
    "bandstop": {"band": (5, 10), "by": "wavelength"},
    "convolve": {"kernel": np.ones(3), "method": "fft"},
    "derivative": {},
    "downsample": {"factor": 2},
    "highpass": {"cutoff": 0.1},
    "hilbert": {},
    "lowpass": {"cutoff": 5, "by": "wavelength", "chunks": {"x": 8}},
    "resample": {"num": 20},
    "shift": {"distance": 0.1},
}


@pytest.mark.parametrize("name", NAMED)
def test_the_plan_of_a_dimension(name):
    xr = pytest.importorskip("xarray")
    import dask_bigfft.xarray as bx

    field = xr.DataArray(unreadable(), {"x": np.arange(40) * 0.5}, ("y", "x"), "T")
    plan = field.bigfft.plan(name, "x", **NAMED[name])
    result = getattr(bx, name)(field, "x", **NAMED[name])
    assert plan.chunks == result.chunks
    assert [anonymous(plan.core)] == [anonymous(own) for own in plans_of(result.data)]
    assert plan.spec.axes == (1,)
    assert plan.spec.dims == ("y", "x")
    assert field.copy(data=np.ones(SHAPE)).bigfft.plan(name, "x", **NAMED[name]).spec.shape == SHAPE


def test_arguments_of_a_dimension():
    xr = pytest.importorskip("xarray")
    import dask_bigfft.xarray  # noqa: F401

    field = xr.DataArray(unreadable(), dims=("y", "x"))
    with pytest.raises(ArgumentTypeError, match="`n`"):
        field.bigfft.plan("lowpass", "x", cutoff=0.1, n=3)
    with pytest.raises(ArgumentTypeError, match="`cutof`"):
        field.bigfft.plan("lowpass", "x", cutof=0.1)
    with pytest.raises(ArgumentTypeError, match="`array`"):
        field.to_dataset(name="T").bigfft.plan("lowpass", "x", cutoff=0.1)
