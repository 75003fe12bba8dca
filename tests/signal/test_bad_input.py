"""What convolutions, spectra and derivatives refuse, by argument."""

import dask.array as da
import numpy as np
import pytest
from support import assert_refused, refusals

from dask_bigfft import signal

X = da.zeros(10, chunks=5)


def named(function, name, *arrays, **others):
    return lambda value: function(*(arrays or (X,)), **{name: value}, **others)


def of(function, *others, **named):
    return lambda x: function(x, *others, **named)


EMPTY = [X[:0]]
WELCH = signal.welch
POWER = signal.power_spectrum
CONVOLVE = signal.fftconvolve

REFUSED = [
    (named(CONVOLVE, "mode", X, X), "mode", ["half"], []),
    (named(CONVOLVE, "in2", X), "in2", [X[None]], []),
    (named(CONVOLVE, "axes", X, X), "axes", [3, ()], ["x"]),
    (named(CONVOLVE, "order", X, X), "order", [], ["natural"]),
    (of(CONVOLVE, X), "a.dtype", [], [np.array(["a"])]),
    (named(CONVOLVE, "memory_limit", X, X), "memory_limit", [100], []),
    (named(signal.convolve, "method", X, X), "method", ["slow"], []),
    (named(signal.oaconvolve, "in2", da.zeros((4, 9)), axes=1), "in2", [np.ones((2, 3))], []),
    (named(POWER, "scaling"), "scaling", ["sum"], []),
    (named(POWER, "d"), "d", [0, (1, 2)], ["1"]),
    (named(POWER, "axes"), "axes", [2], []),
    (named(signal.cross_spectrum, "y"), "y", [X[1:]], []),
    (named(signal.csd, "y"), "y", [X[1:]], []),
    (named(WELCH, "nperseg"), "nperseg", [11], []),
    (named(WELCH, "noverlap", nperseg=4), "noverlap", [4], []),
    (named(WELCH, "average"), "average", ["mode"], []),
    (named(WELCH, "fs"), "fs", [0, -2.0], ["fast"]),
    (named(WELCH, "window"), "window", ["foo", ("kaiser",), np.ones(4) * 1j, 8.0], []),
    (named(WELCH, "window", nperseg=4), "window", [np.ones(5)], []),
    (named(WELCH, "detrend"), "detrend", ["foo", True, np.ones(2)], []),
    (named(signal.radial_power_spectrum, "bins"), "bins", [[1, 0]], []),
    (named(signal.gradient, "order", X, 0), "order", [], ["natural"]),
    (named(signal.poisson, "axes"), "axes", [()], []),
    (named(POWER, "onesided"), "onesided", [], ["yes"]),
    *[(of(f), "x", EMPTY, []) for f in (POWER, signal.radial_power_spectrum, signal.laplacian)],
    *[(of(f), "x", EMPTY, []) for f in (signal.czt, signal.hilbert)],
    (of(signal.czt, 3), "x", EMPTY, []),
    (of(signal.zoom_fft, 0.5), "x", EMPTY, []),
    (of(signal.zoom_fft, 0.5, 1), "x", EMPTY, []),
    (named(signal.zoom_fft, "endpoint", X, 0.5, 1), "endpoint", [True], []),
    (of(signal.envelope), "z", EMPTY, []),
]


@pytest.mark.parametrize(("call", "argument", "value", "kind"), refusals(REFUSED))
def test_bad_input_is_refused_by_name(
    call,
    argument,
    value,
    kind,
):
    assert_refused(call, argument, value, kind)
