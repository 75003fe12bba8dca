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
    """SciPy with a mistake and perhaps the name of another library."""

    def __init__(self, mistake, name="scipy"):
        vars(self).update(vars(LIBRARIES["scipy"]()), mistake=mistake, name=name)

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


@pytest.fixture
def new_machine(tmp_path):
    """Forget loaded libraries, and the files that say what has passed on this machine."""
    libraries._load.cache_clear()
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        yield tmp_path
    libraries._load.cache_clear()


def test_a_library_that_answers_wrongly_is_left_out(monkeypatch, caplog, new_machine):
    pytest.importorskip("ducc0")
    monkeypatch.setitem(LIBRARIES, "ducc0", lambda: Liar("columns", "ducc0"))
    for _process in range(2):
        libraries._load.cache_clear()
        caplog.clear()
        with caplog.at_level(logging.INFO, libraries.__name__):
            assert "ducc0" not in usable()
            assert "ducc0" not in usable()
        (said,) = (record.getMessage() for record in caplog.records if "ducc0" in str(record.args))
        assert said.startswith("ducc0 is not used on this machine: columns of 48 values")
        with pytest.raises(ArgumentError, match="`kernel`='ducc0'"):
            fft.fft(da.ones(8), kernel="ducc0")


@pytest.mark.parametrize(("name", "is_stored"), [("ducc0", True), ("pyfftw", False)])
def test_a_library_that_has_passed(name, is_stored, monkeypatch, new_machine):
    """Only of a library that calls no other package does the version say that it is the same."""
    pytest.importorskip(name)
    tested = []
    monkeypatch.setattr(libraries, "self_test", lambda library: tested.append(library.name))
    monkeypatch.setattr(libraries, "version_of", lambda name: "1.0")
    for _process in range(2):
        libraries._load.cache_clear()
        assert libraries.get_library(name).name == name
    assert tested == [name] * (1 if is_stored else 2)

    monkeypatch.setattr(libraries, "version_of", lambda name: "1.1")
    libraries._load.cache_clear()
    libraries.get_library(name)
    assert tested == [name] * (2 if is_stored else 3)


class WrongScale(libraries.PocketFFT if SCIPY == "PocketFFT" else libraries.DuccOfSciPy):
    """SciPy's private functions after a change of what the numbers of scales mean."""

    _INORM: ClassVar = {"none": 0, "ortho": 2, "full": 2}


def test_private_functions_of_scipy_are_compared_once(monkeypatch, new_machine):
    """A file says that they have passed; if they fail, NumPy works in their place, and says so."""
    passed = new_machine / "self-test.json"
    assert type(LIBRARIES["scipy"]()).__name__ == SCIPY
    assert passed.exists()
    with monkeypatch.context() as patched:
        patched.setattr(libraries, "self_test", lambda library: "compared again")
        assert type(LIBRARIES["scipy"]()).__name__ == SCIPY
    passed.unlink()
    monkeypatch.setattr(libraries, SCIPY, WrongScale)
    with pytest.warns(FallbackWarning, match=r"private functions.*scale='ortho'"):
        assert type(LIBRARIES["scipy"]()) is libraries.NumPy
    assert not passed.exists()


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
