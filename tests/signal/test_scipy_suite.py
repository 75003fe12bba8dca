"""SciPy's own tests of convolution, correlation and Welch's method, through ours in chunks."""

import inspect
import itertools
import sys

import dask.array as da
import numpy as np
import pytest
import scipy.signal
from integrations.scipy_tests import load
from scipy._lib._array_api import array_namespace

from dask_bigfft import signal

#: What is run of each module: its classes, and the functions that they call by name.
CLASSES = {
    "test_signaltools": (
        "TestConvolve",
        "TestFFTConvolve",
        "TestOAConvolve",
        "TestCorrelateReal",
        "TestCorrelateComplex",
        "TestCorrelate",
    ),
    "test_spectral": ("TestWelch", "TestCSD"),
}
FUNCTIONS = ("convolve", "fftconvolve", "oaconvolve", "correlate", "welch", "csd")

#: Tests that are not run, and why. (Of the other classes none calls a function that we have;
#: `TestAllFreqConvolves` holds SciPy's functions as parameters.)
LEFT_OUT = {
    **dict.fromkeys(
        [
            f"TestOAConvolve.test_{name}"
            for name in ("real_manylens", "1d_noaxes", "1d_axes", "2d_noaxes", "2d_axes")
        ],
        "thousands of shapes; `test_convolution` draws some",
    ),
    "TestConvolve.test_convolve_method": "588 combinations; `test_every_pair_of_types` has some",
    "TestConvolve.test_input_swapping": "to the last bit; ours go through spectra, or their parts",
    "TestCorrelateReal.test_rank3_all": "relative errors of sums that vanish, as above",
    **{
        f"{name}.test_{what}": why
        for name in ("TestWelch", "TestCSD")
        for what, why in {
            "empty_input": "ours refuse arrays without samples, SciPy's give empty ones",
            "empty_input_other_axis": "as above",
            "short_data": "ours refuse segments longer than the array, SciPy's warn",
        }.items()
    },
    **dict.fromkeys(
        ["TestCSD.test_pad_shorter_x", "TestCSD.test_pad_shorter_y"],
        "ours refuse arrays of two lengths, SciPy pads one of them",
    ),
    "TestCSD.test_incompatible_inputs": "the text of an error",
    "TestCSD.test_window_external": "the text of an error, at its end",
    "TestFFTConvolve.test_many_sizes": "a hundred lengths of random data, as above",
    "TestFFTConvolve.test_random_data_multidim_axes": "five axes, for minutes",
}

calls = []


def in_chunks(a):
    return da.from_array(a, chunks=tuple(max(1, -(-n // 2)) for n in a.shape))


def through_dask(name):
    """One of our functions that takes NumPy arrays, cuts them up, and computes what it returns."""
    ours = getattr(signal, name)

    def call(*args, **kwargs):
        calls.append(name)
        arrays = 1 if name == "welch" else 2
        lazy = [in_chunks(np.asarray(a)) for a in args[:arrays]]
        if arrays == 2 and args[1] is args[0]:  # an array with itself
            lazy[1] = lazy[0]
        found = ours(*lazy, *args[arrays:], **kwargs)
        if name in ("welch", "csd"):
            return found[0], found[1].compute(scheduler="sync")
        return found.compute(scheduler="sync")

    return call


def calling_us(module):
    """Let a module of SciPy's tests call us, if it is there."""
    for function in FUNCTIONS:
        if hasattr(module, function):
            setattr(module, function, through_dask(function))
    return module


MODULES = {name: calling_us(load(f"scipy.signal.tests.{name}")) for name in CLASSES}

for _name, _module in MODULES.items():
    for _class in CLASSES[_name] if _module is not None else ():
        _found = getattr(_module, _class)
        for _method in [m for m, f in vars(_found).items() if inspect.isfunction(f)]:
            if f"{_class}.{_method}" in LEFT_OUT:
                delattr(_found, _method)
        globals()[f"{_class}_of_{_name}"] = _found


#: NumPy's, by their characters.
TYPES = "?bBhHiIlLefdFD"


def test_every_pair_of_types():
    """By spectra and by sums, in turn with either one first, and by each mode."""
    rng, convolve = np.random.default_rng(42), through_dask("convolve")
    whole, real = rng.integers(0, 2, 100), rng.standard_normal(100)
    drawn = {"b": whole, "i": whole, "u": whole, "f": real, "c": real + 0.5j * whole}
    values = {char: drawn[np.dtype(char).kind].astype(char) for char in TYPES}
    pairs = itertools.combinations_with_replacement(TYPES, 2)
    for (one, two), mode in zip(pairs, itertools.cycle(["full", "same", "valid", "full"])):
        x, y = (values[one], values[two]) if mode == "full" else (values[two], values[one])
        spectra, sums = (convolve(x, y, mode=mode, method=way) for way in ("fft", "direct"))
        assert spectra.dtype == sums.dtype
        if one == two == "?":
            continue
        expected = scipy.signal.convolve(x.astype("D"), y.astype("D"), mode=mode)
        eps = 1e-3 if "e" in (one, two) else 1e-5 if {one, two} & {"f", "F"} else 1e-12
        for found in (spectra, sums):
            assert np.linalg.norm(found - expected) <= eps * np.linalg.norm(expected)


@pytest.fixture
def xp():
    return array_namespace(np.empty(0))


def test_scipys_tests_were_found():
    if None in MODULES.values():
        pytest.skip(f"SciPy's tests are not installed in {sys.prefix}")
    assert MODULES["test_signaltools"].convolve([1, 2], [1, 1]).tolist() == [1, 3, 2]
    assert calls[-1] == "convolve"
    left_out = {name.partition(".")[0] for name in LEFT_OUT}
    assert left_out <= {name for names in CLASSES.values() for name in names}
