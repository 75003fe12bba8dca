"""`install`: what is replaced, that it is undone, by whom, and what then works."""

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import xrft
from support import in_threads, python

import dask_bigfft
from dask_bigfft.integrations.installation import NAMES

BEFORE = {name: getattr(da.fft, name) for name in NAMES}
RNG = np.random.default_rng(8)
X = RNG.standard_normal((12, 16))
A = da.from_array(X, chunks=(3, 4))


def state():
    return {name: getattr(da.fft, name) for name in NAMES}


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    assert state() == BEFORE
    yield
    left = state() != BEFORE
    while state() != BEFORE:
        dask_bigfft.uninstall()
    assert not left


def test_all_that_dask_has_is_replaced():
    public = {name for name in vars(da.fft) if name.startswith(("fft", "ifft", "rfft", "irfft"))}
    assert set(NAMES) == (public | {"hfft", "ihfft"}) - {"fft_wrap", "fft_preamble"}


@pytest.mark.parametrize("name", [name for name in NAMES if "freq" not in name])
def test_functions_of_numpy_and_dask_come_here(name):
    n = getattr(np.fft, name)
    a = A if name.startswith(("rfft", "ihfft")) else A + 1j
    wanted = n(a.compute())
    for function in (lambda x: n(x), lambda x: getattr(da.fft, name)(x)):
        with dask_bigfft.installed():
            result = function(a)
            assert "bigfft" in result.name
        np.testing.assert_allclose(result.compute(), wanted, atol=1e-12)
    if "shift" not in name:
        with pytest.raises(ValueError, match="chunk"):
            getattr(da.fft, name)(a)


def test_calls_are_counted():
    with dask_bigfft.installed():
        dask_bigfft.install()
        with dask_bigfft.installed():
            pass
        dask_bigfft.uninstall()
        assert state() != BEFORE
    assert state() == BEFORE
    dask_bigfft.uninstall()  # one too many
    with dask_bigfft.installed():
        assert state() != BEFORE


def test_what_others_put_there_stays():
    dask_bigfft.install()
    da.fft.fft = len
    try:
        dask_bigfft.uninstall()
        assert da.fft.fft is len
        assert da.fft.ifft is BEFORE["ifft"]
    finally:
        da.fft.fft = BEFORE["fft"]


def test_threads_come_and_go():
    def work(number):
        for _ in range(40):
            with dask_bigfft.installed():
                assert da.fft.fft is not BEFORE["fft"]

    in_threads(8, work)


def test_what_only_dasks_functions_take_still_goes_there():
    unknown = A.rechunk((3, 16))[A[:, 0].compute() > 0]
    unknown = da.Array(
        unknown.dask,
        unknown.name,
        ((np.nan,) * unknown.numblocks[0], (16,)),
        float,
    )
    masked = da.ma.masked_greater(A.rechunk(-1), 1)
    with dask_bigfft.installed():
        spectrum = da.fft.fft(unknown, axis=1)
        assert "bigfft" not in spectrum.name
        np.testing.assert_allclose(spectrum.compute(), np.fft.fft(unknown.compute()))
        spectrum = np.fft.fft(axis=1, a=masked)
        np.testing.assert_allclose(spectrum.compute(), np.fft.fft(masked.compute()))
        np.testing.assert_allclose(da.fft.fft(X), np.fft.fft(X))
        np.testing.assert_allclose(da.fft.fft(a=X), np.fft.fft(X))


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("True", True),
        (None, False),
    ],
)
def test_the_setting_installs_at_import(setting, wanted):
    code = (
        "import dask, dask.array as da\n"
        f"dask.config.set({{'bigfft.install': {setting}}}) if {setting is not None} else None\n"
        "before = da.fft.fft\nimport dask_bigfft\nprint(da.fft.fft is not before)\n"
    )
    assert python("-c", code).stdout.strip() == str(wanted)


# --- xrft ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:dropping variables using `drop`:FutureWarning")  # by xrft
def test_xrft_takes_axes_in_many_chunks():
    a = xr.DataArray(RNG.standard_normal((2, 24, 20)), dims=("t", "y", "x"))
    arguments = {
        "dim": ["y", "x"],
        "real_dim": "x",
        "window": "hann",
        "detrend": "constant",
    }
    wanted = xrft.power_spectrum(a, **arguments)
    with dask_bigfft.installed():
        spectrum = xrft.power_spectrum(a.chunk(t=1, y=6, x=7), **arguments)
    xr.testing.assert_allclose(spectrum, wanted)
