"""The fastest library is measured once and kept; what cannot be trusted is measured again."""

import json
import logging
import re

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft.api.arguments import parse_kernel
from dask_bigfft.errors import KernelError
from dask_bigfft.kernels import fastest as wisdom
from dask_bigfft.kernels.fastest import fastest_library
from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.machine import environment

several = pytest.mark.skipif(len(usable()) < 2, reason="only one FFT library is installed")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(wisdom, "SECONDS", 0.001)
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path / "cache")}):
        yield tmp_path / "cache"


def forget(monkeypatch):
    """Make the process know nothing, and count its measurements."""
    calls = []

    def counted(names, dtype):
        calls.append(dtype)
        return {name: 1.0 + (name == names[-1]) for name in names}

    monkeypatch.setattr(wisdom, "measured_rates", counted)
    wisdom._rates.cache_clear()
    return calls


@several
def test_measured_once_and_kept(folder, monkeypatch):
    first = fastest_library("c16")
    assert first in usable()
    measured = json.loads((folder / "kernels.json").read_text())["dtypes"]["complex128"]
    assert set(measured["rates"]) == set(usable())
    assert all(1e6 < rate < 1e13 for rate in measured["rates"].values())
    assert list(folder.iterdir()) == [folder / "kernels.json"]
    calls = forget(monkeypatch)
    assert fastest_library(np.complex128) == first
    assert calls == []
    assert fastest_library("c8") in usable()
    assert calls == ["complex64"]
    assert set(json.loads((folder / "kernels.json").read_text())["dtypes"]) == {
        "complex128",
        "complex64",
    }


@several
@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (lambda text: text[: len(text) // 2], True),
        (lambda text: "[]", True),
        (lambda text: text.replace('"rates"', '"speeds"'), True),
        (lambda text: re.sub(r'"scipy": (?=\d)', '"scypy": ', text), True),
        (lambda text: "[" * 100_000, True),
        (lambda text: text.replace('"machine"', '"computer"'), False),
        (lambda text: text.replace('"schema": 2', '"schema": 99'), False),
        (lambda text: text.replace('"scipy": "', '"scipy": "0.'), False),
    ],
)
def test_what_cannot_be_trusted_is_measured_again(
    folder,
    monkeypatch,
    caplog,
    damage,
    reported,
):
    calls = forget(monkeypatch)
    chosen = fastest_library("c16")
    path = folder / "kernels.json"
    whole = path.read_text()
    assert damage(whole) != whole
    path.write_text(damage(whole))
    wisdom._rates.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert fastest_library("c16") == chosen
    assert calls == ["complex128"] * 2
    assert ("damaged" in caplog.text) == reported
    assert json.loads(path.read_text()) == json.loads(whole)


@several
@pytest.mark.parametrize(
    "what", ["platform.machine", "dask_bigfft.system.processor_model", "os.cpu_count"]
)
def test_what_another_machine_has_measured_is_measured_again(folder, monkeypatch, what):
    calls = forget(monkeypatch)
    fastest_library("c16")
    wisdom._rates.cache_clear()
    fastest_library("c16")
    assert calls == ["complex128"]  # read from the file
    wisdom._rates.cache_clear()
    monkeypatch.setattr(what, lambda: 77)
    fastest_library("c16")
    assert calls == ["complex128"] * 2


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    forget(monkeypatch)
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path / "file" / "cache")}):
        assert fastest_library("c16") in usable()


def test_plans_take_the_fastest(monkeypatch):
    x = da.zeros(64, chunks=8, dtype=complex)
    monkeypatch.setattr(environment, "fastest_library", lambda dtype: f"fast {dtype}")
    assert dask_bigfft.plan(x, "fft", kernel="auto").kernel == "fast complex128"
    assert dask_bigfft.plan(x, "fft", kernel="scipy").kernel == "scipy"
    assert parse_kernel("auto", np.dtype("c8")) == ("fast complex64", "")


def test_what_is_installed_and_broken_is_left_out(monkeypatch):
    def broken(name):
        if name == "pyfftw":
            raise KernelError("it is MKL's")
        return get_library(name)

    monkeypatch.setattr("dask_bigfft.kernels.libraries.get_library", broken)
    monkeypatch.setattr("dask_bigfft.kernels.libraries.available", lambda: ("scipy", "pyfftw"))
    assert list(usable()) == ["scipy"]
