"""xrft's own tests, with its functions replaced by ours in xrft's conventions."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import xrft
from integrations.scipy_tests import load

import dask_bigfft.xarray as bx

# Of methods that they call, and of a field that they make.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::RuntimeWarning")

#: Names that have changed since xrft's tests were written.
NEW = {
    "np.complex)": "complex)",
    "np.float(": "float(",
    "trapz": "trapezoid",
}
NEW |= {"closed=": "inclusive="}

#: Tests that are not run. The guide's page about xarray has the differences.
LEFT_OUT = {
    "test_fft_3d_dask": "ours take any chunks",
    "test_isotropize": "ours begin with an array, not with a spectrum",
    "test_isotropic_cs": "ours have no isotropic cross spectrum",
    "test_cross_phase_true_phase_2d": "ours want two arrays on the same coordinates",
    "test_spacing_tol": "ours have one tolerance",
    "test_spacing_tol_float_value": "ours have one tolerance",
    "test_reversed_coordinates": "of falling coordinates, our frequencies fall",
    "test_nondim_coords": "ours drop other coordinates",
    "test_non_numerical_or_datetime_coords": "our error is a TypeError",
}

SUITE = vars(load("xrft.tests.test_xrft", NEW))
NAMES = [name for name in SUITE if name.lower().startswith("test")]
globals().update({name: SUITE[name] for name in (*NAMES, "time_data", "sample_data_3d")})

CALLED = []


def ours(work, arrays, dim, *, real_dim=None, chunks_to_segments=False, spacing_tol=0, **keywords):
    """Return a spectrum of arrays in several chunks, or in segments, by one of our functions."""
    CALLED.append(work)
    dims = list(arrays[0].dims) if dim is None else [dim] if isinstance(dim, str) else list(dim)
    dims = [*(d for d in dims if d != real_dim), *([] if real_dim is None else [real_dim])]
    if chunks_to_segments:
        arrays = [xrft.xrft._stack_chunks(a, dims) for a in arrays]
    halves = {d: max(1, n // 2) for d, n in arrays[0].sizes.items() if d in dims}
    transformed = work(*(a if a.chunks else a.chunk(halves) for a in arrays), dims, **keywords)
    return transformed if arrays[0].chunks else transformed.compute()


def fft(a, dim=None, shift=True, true_phase=True, true_amplitude=True, prefix="freq_", **keywords):
    whole = keywords.get("real_dim") is None
    true = {"true_phase": true_phase, "true_amplitude": true_amplitude}
    return ours(
        bx.fft if whole else bx.rfft,
        [a],
        dim,
        shift=shift and whole,
        **true,
        **keywords,
    )


def ifft(
    a,
    dim=None,
    shift=True,
    true_phase=True,
    true_amplitude=True,
    lag=None,
):
    return ours(
        bx.ifft,
        [a],
        dim,
        true_phase=true_phase,
        true_amplitude=true_amplitude,
    )


def squared(work, arrays, dim=None, density=True, true_phase=True, **keywords):
    if keywords.get("real_dim") is None:  # two-sided
        arrays, keywords = [a.astype(complex) for a in arrays], {"shift": True} | keywords
    power = ours(work, arrays, dim, **keywords)
    for d in power.dims if not density else ():
        power = power / power[d].attrs.get("spacing", 1)
    return power


def power_spectrum(a, **keywords):
    return squared(bx.power_spectrum, [a], **keywords)


def cross_spectrum(a, b, **keywords):
    return squared(bx.cross_spectrum, [b, a], **keywords)


def cross_phase(a, b, **keywords):
    angles = xr.apply_ufunc(np.angle, cross_spectrum(a, b, **keywords), dask="allowed")
    return angles.rename(f"{a.name}_{b.name}_phase")


def isotropic_power_spectrum(a, dim=None, density=True, **keywords):
    """Return means over xrft's rings, times their radii."""
    y, x = (np.fft.fftfreq(a.sizes[d]) for d in dim or a.dims)
    radii = np.hypot(y[:, None], x)
    edges = pd.cut(radii.ravel(), min(radii.shape) // 4, retbins=True)[1] * (1 + 1e-12)
    power = ours(
        bx.isotropic_power_spectrum,
        [a],
        dim,
        bins=edges,
        **keywords,
    )
    return power * power.freq_r


PLAIN = {"true_phase": False, "true_amplitude": False}
REPLACED = [fft, ifft, power_spectrum, cross_spectrum, cross_phase, isotropic_power_spectrum]
OURS = {function.__name__: function for function in REPLACED}
OURS |= {"dft": partial(fft, **PLAIN), "idft": partial(ifft, **PLAIN)}


@pytest.fixture(autouse=True)
def replaced(request, monkeypatch):
    test = request.node.originalname
    if test in LEFT_OUT:
        pytest.skip(LEFT_OUT[test])
    for name, function in OURS.items():
        monkeypatch.setattr(xrft, name, function)
    CALLED.clear()
    yield
    assert CALLED, "the test did not use our functions"
