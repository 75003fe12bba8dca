"""Settings are looked at when a plan is made: wrong values are refused, misspelt keys reported."""

import warnings

import dask.array as da
import dask.config
import pytest

import dask_bigfft
from dask_bigfft import config
from dask_bigfft.errors import ArgumentError

X = da.zeros((8, 8), chunks=4, dtype=complex)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(config, "_reported", set())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bigfft.hybrid.min-speedup", -1),
        ("bigfft.gpu.peer-transport", "x"),
        ("bigfft.scratch.row-size", "x"),
        ("bigfft.memory.pin-arrays", "maybe"),
        ("bigfft.scratch.threads", 0),
    ],
)
def test_values_that_are_read_late_are_refused_with_the_plan(key, value):
    with dask.config.set({key: value}), pytest.raises(ArgumentError, match=f"`{key}`={value!r}"):
        dask_bigfft.plan(X)
    with dask.config.set({key: value}), pytest.raises(ArgumentError, match=key):
        dask_bigfft.fft.fft2(X)


def test_misspelt_settings_are_reported_once():
    text = "no setting bigfft.scratch.thread, it does nothing: did you mean bigfft.scratch.threads"
    with dask.config.set({"bigfft.scratch.thread": 2}):
        with pytest.warns(UserWarning, match=text):
            dask_bigfft.plan(X)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dask_bigfft.plan(X)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("qqq", None),
        ("workers", None),
        ("backend", None),
        ("verbose", None),
        ("planner.foo", None),
        ("exchange.nonsense", None),
        ("carrier", "exchange.carrier"),
        ("devices", "device"),
        ("memory.limit", "memory-limit"),
        ("memory_limits", "memory-limit"),
        ("vrify", "verify"),
        ("pinned-limits", "memory.pinned-limit"),
        ("scratch.pice-size", "scratch.piece-size"),
    ],
)
def test_only_near_names_are_suggested(key, hint):
    said = f"did you mean bigfft.{hint}?" if hint else "it does nothing"
    text = f"no setting bigfft.{key}, it does nothing"
    with dask.config.set({f"bigfft.{key}": 2}), pytest.warns(UserWarning, match=text) as found:
        dask_bigfft.plan(X)
    assert [str(w.message).endswith(said) for w in found] == [True]


def test_settings_with_either_dash_and_mappings_are_known():
    known = {"bigfft.memory_limit": "2 GiB", "bigfft.rounds": [{0: -1}, {1: -1}]}
    with warnings.catch_warnings(), dask.config.set(known):
        warnings.simplefilter("error")
        assert len(dask_bigfft.plan(X, "fft2").rounds) == 2
