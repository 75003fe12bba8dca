"""SciPy's own tests of convolution, correlation and Welch's method, through ours in chunks."""

import itertools
import sys

import dask.array as da
import numpy as np
import pytest
import scipy.signal
from integrations.scipy_tests import load

from dask_bigfft import signal

#: What is run of each module: its classes, and the functions that they call by name.
CLASSES = {
    "test_signaltools": "TestConvolve TestFFTConvolve TestOAConvolve TestCorrelateReal "
    "TestCorrelateComplex TestCorrelate",
    "test_spectral": "TestWelch TestCSD",
}
FUNCTIONS = ("convolve", "fftconvolve", "oaconvolve", "correlate", "welch", "csd")

#: Tests that are not run: thousands of shapes, lengths or types, of which our own tests draw some;
#: equality to the last bit; errors of sums that vanish; arrays without samples, segments longer
#: than the array and arrays of two lengths, which ours refuse; texts of errors; minutes of work.
#: (Of the other classes none calls a function that we have; `TestAllFreqConvolves` holds SciPy's
#: functions as parameters.)
LEFT_OUT = {
    "TestOAConvolve": "real_manylens 1d_noaxes 1d_axes 2d_noaxes 2d_axes",
    "TestConvolve": "convolve_method input_swapping",
    "TestCorrelateReal": "rank3_all rank3_valid",
    "TestCorrelateComplex": "swap_full",
    "TestWelch": "empty_input empty_input_other_axis short_data",
    "TestCSD": "empty_input empty_input_other_axis short_data pad_shorter_x pad_shorter_y "
    "incompatible_inputs window_external",
    "TestFFTConvolve": "many_sizes random_data_multidim_axes",
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
        lazy_result = ours(*lazy, *args[arrays:], **kwargs)
        if name in ("welch", "csd"):
            return lazy_result[0], lazy_result[1].compute(scheduler="sync")
        return lazy_result.compute(scheduler="sync")

    return call


def calling_us(module):
    """Let a module of SciPy's tests call us, if it is there."""
    for function in FUNCTIONS:
        if hasattr(module, function):
            setattr(module, function, through_dask(function))
    return module


MODULES = {name: calling_us(load(f"scipy.signal.tests.{name}")) for name in CLASSES}

for _name, _module in MODULES.items():
    for _class in CLASSES[_name].split() if _module is not None else ():
        _found = getattr(_module, _class)
        for _method in LEFT_OUT.get(_class, "").split():
            if hasattr(_found, f"test_{_method}"):  # SciPy's tests come and go
                delattr(_found, f"test_{_method}")
        globals()[f"{_class}_of_{_name}"] = _found


#: NumPy's, by their characters.
TYPES = "?bBhHiIlLefdFD"


def test_every_pair_of_types():
    """By spectra and by sums, in turn with either one first, and by each mode."""
    rng = np.random.default_rng(42)
    convolve = through_dask("convolve")
    whole = rng.integers(0, 2, 100)
    real = rng.standard_normal(100)
    drawn = {"b": whole, "i": whole, "u": whole, "f": real, "c": real + 0.5j * whole}
    values = {char: drawn[np.dtype(char).kind].astype(char) for char in TYPES}
    pairs = itertools.combinations_with_replacement(TYPES, 2)
    for (first, second), mode in zip(pairs, itertools.cycle(["full", "same", "valid", "full"])):
        x, y = (
            (values[first], values[second]) if mode == "full" else (values[second], values[first])
        )
        spectra, sums = (convolve(x, y, mode=mode, method=way) for way in ("fft", "direct"))
        assert spectra.dtype == sums.dtype
        if first == second == "?":
            continue
        expected = scipy.signal.convolve(x.astype("D"), y.astype("D"), mode=mode)
        eps = 1e-3 if "e" in (first, second) else 1e-5 if {first, second} & {"f", "F"} else 1e-12
        for convolution in (spectra, sums):
            assert np.linalg.norm(convolution - expected) <= eps * np.linalg.norm(expected)


def test_scipys_tests_were_found():
    if None in MODULES.values():
        pytest.skip(f"SciPy's tests are not installed in {sys.prefix}")
    assert MODULES["test_signaltools"].convolve([1, 2], [1, 1]).tolist() == [1, 3, 2]
    assert calls[-1] == "convolve"
