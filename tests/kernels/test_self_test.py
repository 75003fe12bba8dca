"""A library that answers wrongly on this machine is not used, and its name says why not."""

import logging
from typing import ClassVar

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.errors import ArgumentError, FallbackWarning
from dask_bigfft.kernels import libraries
from dask_bigfft.kernels.libraries import LIBRARIES, self_test, usable

#: Which private functions this SciPy has.
SCIPY = type(LIBRARIES["scipy"]()).__name__


class Liar(type(LIBRARIES["scipy"]())):
    """SciPy with a mistake of another library."""

    def __init__(self, mistake):
        vars(self).update(vars(LIBRARIES["scipy"]()), mistake=mistake)

    def _run(self, call, x, out):
        spectrum = super()._run(call, x, out)
        columns = x.shape[call.dims[0]] == 48 and call.dims == (0,)
        if self.mistake == "columns" and call.kind == "c2c" and columns:
            spectrum[0] += 1
        if self.mistake == "real" and call.kind == "r2c" and x.dtype == "f4":
            spectrum *= 1 + 1e-4
        if self.mistake == "NaN" and call.length > 10_000:
            spectrum[0, 5] = np.nan
        return spectrum


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("columns", "columns of 48 values in complex64 are off by 0."),
        ("real", "real lines of 126 values in complex64 are off by 0.0001"),
        ("NaN", "half spectra of 12836 values in complex64 are off by nan"),
    ],
)
def test_mistakes_are_found(mistake, said):
    assert (self_test(Liar(mistake)) or "").startswith(said)
    assert self_test(LIBRARIES["scipy"]()) is self_test(libraries.NumPy()) is None


def test_a_library_that_answers_wrongly_is_left_out(monkeypatch, caplog):
    pytest.importorskip("ducc0")
    monkeypatch.setitem(LIBRARIES, "ducc0", lambda: Liar("columns"))
    libraries._load.cache_clear()
    try:
        with caplog.at_level(logging.INFO, libraries.__name__):
            assert "ducc0" not in usable()
            assert "ducc0" not in usable()
        (said,) = (record.getMessage() for record in caplog.records if "ducc0" in str(record.args))
        assert said.startswith("ducc0 is not used on this machine: columns of 48 values")
        with pytest.raises(ArgumentError, match="`kernel`='ducc0'"):
            fft.fft(da.ones(8), kernel="ducc0")
    finally:
        libraries._load.cache_clear()


class WrongScale(libraries.PocketFFT if SCIPY == "PocketFFT" else libraries.DuccOfSciPy):
    """SciPy's private functions after a change of what the numbers of scales mean."""

    _INORM: ClassVar = {"none": 0, "ortho": 2, "full": 2}


def test_private_functions_of_scipy_are_compared_once(monkeypatch, tmp_path):
    """A file says that they have passed; if they fail, NumPy works in their place, and says so."""
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        assert type(LIBRARIES["scipy"]()).__name__ == SCIPY
        assert (tmp_path / "self-test.json").exists()
        with monkeypatch.context() as patched:
            patched.setattr(libraries, "self_test", lambda library: "compared again")
            assert type(LIBRARIES["scipy"]()).__name__ == SCIPY
        (tmp_path / "self-test.json").unlink()
        monkeypatch.setattr(libraries, SCIPY, WrongScale)
        with pytest.warns(FallbackWarning, match=r"private functions.*scale='ortho'"):
            assert type(LIBRARIES["scipy"]()) is libraries.NumPy
        assert not (tmp_path / "self-test.json").exists()


@pytest.mark.parametrize("kernel", ["auto", *usable()])
def test_lengths_that_libraries_have_got_wrong(kernel):
    """On some processors: columns of 40 and 48 in place, and long lines in single precision."""
    rng = np.random.default_rng(0)
    for n in (40, 48):
        x = rng.standard_normal((n, n, n))
        spectrum = fft.fftn(da.from_array(x, chunks=n // 2), kernel=kernel).compute()
        assert np.linalg.norm(spectrum - scipy.fft.fftn(x)) < 1e-12 * np.linalg.norm(spectrum)
    for n in range(8192, 16500, 516):
        w = rng.standard_normal(n).astype("f4")
        back = fft.irfft(da.from_array(scipy.fft.rfft(w), chunks=-1), n, kernel=kernel).compute()
        assert np.linalg.norm(back - w) < 1e-5 * np.linalg.norm(w), n
