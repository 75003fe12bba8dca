"""What completion, a prompt and a notebook show of `dask_bigfft.xarray` and its accessor."""

import inspect
import re

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import dask_bigfft
import dask_bigfft.xarray as bx
from dask_bigfft import fft, signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.transforms.spec import FAMILIES
from dask_bigfft.xarray.accessor import Accessor
from dask_bigfft.xarray.plans import OTHER_NAMES, TRANSFORM_NAMES

NAMES = sorted(set(bx.__all__) - {"Accessor"})


def field(chunks=(5, 7)):
    """Return a lazy field in km."""
    values = da.random.default_rng(0).standard_normal((20, 30), chunks=chunks)
    coords = {"y": np.arange(20) * 0.5, "x": np.arange(30) * 2.0}
    return xr.DataArray(values, coords, ("y", "x"), "T")


def parameters(function):
    return inspect.signature(function).parameters


def test_names_of_plans_are_those_of_all_transforms_and_in_the_docstring():
    assert tuple(FAMILIES) == TRANSFORM_NAMES
    for name in (*TRANSFORM_NAMES, *OTHER_NAMES):
        assert f'``"{name}"``' in bx.plan.__doc__


def test_every_function_is_a_method():
    methods = {name for name in vars(Accessor) if not name.startswith("_")}
    assert methods == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_methods_have_the_signatures_of_their_functions(name):
    function = parameters(getattr(bx, name))
    method = parameters(getattr(field().bigfft, name))
    assert list(method.items()) == list(function.items())[1:]
    assert "dim" in method
    assert not [p for p in method.values() if p.kind is inspect.Parameter.VAR_POSITIONAL]
    assert getattr(bx, name).__doc__ == getattr(Accessor, name).__doc__


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"plan"}))
def test_completion_shows_every_keyword(name):
    """Only `plan` has the keywords of the function that it plans."""
    method = parameters(getattr(field().bigfft, name))
    assert not [p for p in method.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    assert ("chunks" in method) == (name not in ("fftshift", "ifftshift", "pad", "unpad"))
    assert "**" not in inspect.getdoc(getattr(bx, name)).partition("Returns")[0]


@pytest.mark.parametrize(("name", "needed"), [("lowpass", "cutoff"), ("convolve", "kernel")])
def test_a_missing_argument_is_named_with_its_function(name, needed):
    with pytest.raises(ArgumentTypeError, match=f"^{name} needs the argument `{needed}`"):
        getattr(field().bigfft, name)("x")


def test_completion_of_an_accessor_shows_functions_alone():
    assert dir(field().bigfft) == NAMES


@pytest.mark.parametrize("name", ["cross_spectrum", "csd", "coherence", "transfer_function"])
def test_functions_of_two_arrays_refuse_unknown_keywords(name):
    function = getattr(bx, name)
    with pytest.raises(ArgumentTypeError, match="memory_limit"):
        function(field(), other=field(), dim="x", memory_limits=3)
    function(array=field(), other=field(), dim="x")


@pytest.mark.parametrize(
    ("name", "keyword", "meant"),
    [
        ("welch", "fs", "a coordinate of the dimension.*"),
        ("power_spectrum", "axes", "`dim`.*"),
        ("isotropic_power_spectrum", "metre", "`metres`"),
        ("fft", "metres", None),
        ("rfft", "padding", None),
    ],
)
def test_an_unknown_keyword_is_guessed_only_if_one_is_like_it(name, keyword, meant):
    with pytest.raises(ArgumentTypeError, match=f"^`{keyword}`=.* keywords dim, ") as error:
        getattr(field().bigfft, name)(**{keyword: 1})
    _, _, guess = str(error.value).partition("did you mean ")
    assert re.fullmatch(rf"{meant}\?" if meant else "", guess)


@pytest.mark.parametrize("name", ["fft", "rfft", "power_spectrum", "isotropic_power_spectrum"])
def test_completion_shows_windows_and_trends(name):
    assert {"detrend", "window"} <= {*parameters(getattr(field().bigfft, name))}


@pytest.mark.parametrize("name", sorted({*NAMES} & {*signal.__all__}))
def test_defaults_are_those_without_coordinates(name):
    theirs = dict(parameters(getattr(signal, name)))
    if name == "convolve":
        theirs.pop("kernel")  # the FFT library
    for keyword, parameter in parameters(getattr(bx, name)).items():
        if keyword in theirs and keyword not in ("dim", "metres"):
            assert parameter.default == theirs[keyword].default, keyword


def test_a_prompt_names_the_array_and_the_functions():
    text = repr(field().bigfft)
    assert "DataArray 'T' (y: 20, x: 30)" in text
    assert all(name in text for name in NAMES)
    assert "Dataset (y: 20, x: 30)" in repr(field().to_dataset().bigfft)


def test_a_notebook_shows_a_row_for_each_function():
    array = field().rename("<script>")
    html = array.bigfft._repr_html_()
    assert html.count("<tr>") == len(NAMES)
    assert "<script>" not in html
    assert "Return the power spectrum along some dimensions." in html


KINDS = {
    "fft": {"band": {"x": (0.0, 0.1)}},
    "rfft": {"n": 24},
    "hfft": {},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lazy", [True, False])
def test_a_plan_is_that_of_the_transform(kind, lazy):
    array = field() if lazy else field().compute()
    plan = array.bigfft.plan(kind, ["y", "x"], **KINDS[kind])
    result = getattr(array.bigfft, kind)(["y", "x"], **KINDS[kind])
    assert plan.spec.out_shape == result.shape
    assert plan.spec.dims == ("y", "x")
    if lazy:
        assert plan.chunks == result.chunks


SLICES = {"dim": "x", "win": np.ones(8), "hop": 4}
OTHERS = {
    "bandpass": {"band": (0.1, 0.2)},
    "bandstop": {"band": (0.1, 0.2)},
    "convolve": {"kernel": np.ones((3, 5)), "method": "fft"},
    "convolve_masked": {"kernel": np.ones((3, 5)), "mask": np.eye(20, 30, dtype=bool)},
    "csd": {"other": field(), "dim": "x", "nperseg": 8},
    "czt": {"dim": "x", "m": 5},
    "derivative": {"dim": "x"},
    "downsample": {"factor": 2},
    "envelope": {"dim": "x"},
    "fill_gaps": {"band": 0.1},
    "highpass": {"cutoff": 0.1},
    "hilbert": {"dim": "x"},
    "isotropic_power_spectrum": {},
    "istft": SLICES,
    "lowpass": {"cutoff": 0.1},
    "power_spectrum": {"window": "hann"},
    "resample": {"dim": "x", "num": 15},
    "shift": {"distance": 0.5},
    "spectrogram": SLICES,
    "stft": SLICES,
    "welch": {"dim": "x", "nperseg": 8},
    "zoom_fft": {"dim": "x", "fn": 0.2, "m": 5},
}


@pytest.mark.parametrize("kind", OTHER_NAMES)
def test_every_function_with_a_plan_is_planned_by_its_name(kind):
    array = field()
    keywords = OTHERS[kind]
    if kind == "istft":
        array = array.bigfft.stft(**SLICES)
        keywords = {"win": SLICES["win"], "hop": SLICES["hop"]}
    plan = array.bigfft.plan(kind, **keywords)
    assert plan.expected.peak_host > 0
    assert "memory" in plan.explain()
    limited = array.bigfft.plan(kind, **keywords, memory_limit="1 GiB")
    assert limited.machine.memory_limit == 2**30


def test_a_plan_of_an_inverse_knows_the_length():
    spectrum = field((20, 6)).isel(x=slice(29)).bigfft.rfft(["y", "x"])
    plan = spectrum.bigfft.plan("irfft")
    assert plan.spec.out_shape == (20, 29)
    assert plan.chunks == spectrum.bigfft.irfft().chunks
    expected = fft.irfftn(spectrum.data, s=(20, 29), axes=(0, 1))
    assert np.allclose(expected, spectrum.bigfft.irfft())


def test_a_plan_of_something_else_is_refused():
    with pytest.raises(ArgumentError, match=r"`kind`='dct'.*convolve_masked.*welch"):
        field().bigfft.plan("dct")
    with pytest.raises(ArgumentTypeError, match="`memory_limits`"):
        field().bigfft.plan("fft", memory_limits=3)
    with pytest.raises(ArgumentTypeError, match="`array`"):
        field().to_dataset().bigfft.plan("fft")


BY_NAME = {
    "fft": ({"dim": "x"}, {"y": 4, "freq_x": 6}),
    "dct": ({"dim": "x"}, {"y": 4, "x": 6}),
    "power_spectrum": ({"dim": "x"}, {"y": 4, "freq_x": 6}),
    "welch": ({"dim": "x", "nperseg": 8}, {"y": 4}),
    "lowpass": ({"dim": "x", "cutoff": 0.1}, {"y": 4, "x": 6}),
    "convolve": ({"dim": "x", "kernel": np.ones(3)}, {"y": 4, "x": 6}),
    "derivative": ({"dim": "x"}, {"y": 4, "x": 6}),
    "stft": ({"dim": "x", "win": np.ones(4), "hop": 2}, {"y": 4}),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_chunks_by_the_names_of_dimensions(name):
    keywords, chunks = BY_NAME[name]
    function = getattr(field().bigfft, name)
    cut = function(**keywords, chunks=chunks)
    for dim, size in chunks.items():
        own = dim if dim in cut.dims else f"freq_{dim}"
        assert cut.chunksizes[own][0] == size
    xr.testing.assert_allclose(cut.compute(), function(**keywords).compute())
    with pytest.raises(ArgumentError, match="`chunks`"):
        function(**keywords, chunks={"z": 3})


def test_arguments_by_name():
    array = field()
    xr.testing.assert_identical(
        bx.rfft(array=array, dim="x").compute(),
        array.bigfft.rfft("x").compute(),
    )
    with pytest.raises(TypeError, match="cutoff"):
        array.bigfft.lowpass("x")
    assert dask_bigfft.xarray is bx
