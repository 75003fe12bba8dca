"""The settings: their table, the shipped file, what is refused, and what may be misspelt."""

import re
import warnings
from importlib import resources

import dask.array as da
import dask.config
import pytest
import yaml
from support import ROOT, python

import dask_bigfft
from dask_bigfft import config
from dask_bigfft.errors import ArgumentError

TEXT = (resources.files("dask_bigfft") / "bigfft.yaml").read_text(encoding="utf-8")
X = da.zeros((8, 8), chunks=4, dtype=complex)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(config, "_reported", set())


def flatten(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


def test_bigfft_yaml_is_made_from_the_schema():
    entries = dict(flatten(yaml.safe_load(TEXT)))
    assert entries == {key: setting.default for key, setting in config.SETTINGS.items()}
    assert python(ROOT / "ci" / "settings", "--check").returncode == 0


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("bigfft.order", ["natural", "transposed"], ("natural", "transposed")),
        ("bigfft.chunks", -1, -1),
        ("bigfft.chunks", [[2, 3], "auto"], ((2, 3), "auto")),
        ("bigfft.chunks", "1 MiB", "1048576 B"),
        ("bigfft.memory-limit", "2 GiB", 2**31),
        ("bigfft.exchange.carrier", "disk", "disk"),
        ("bigfft.scratch.directory", "/a/../b", "/b"),
        ("bigfft.scratch.sync", True, True),
        ("bigfft.memory.pinned-limit", 0, 0),
        ("bigfft.planner.max-rounds", 2, 2),
    ],
)
def test_values_are_read(key, value, expected):
    with dask.config.set({key: value}):
        assert config.get(key) == expected


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("order", ["sorted", ["natural", 1]]),
        ("chunks", [0, None, "many"]),
        ("memory-limit", ["plenty", 0, True, [1]]),
        ("kernel", ["", None]),
        ("device", ["tpu"]),
        ("rounds", ["8 8"]),
        ("exchange.carrier", ["pigeon", ["tasks"]]),
        ("scratch.directory", [3, "", "a\0b", "s3://bucket/a"]),
        ("scratch.sync", ["always"]),
        ("planner.profile", ["a\0b"]),
        ("memory.pinned-limit", [False, -1]),
        ("planner.max-rounds", [0, 2.5]),
        ("planner.whole-axis-floor", [None]),
        ("hybrid.min-speedup", [-1]),
        ("hybrid.cpu-share", [-0.1, 1.01, "half", True]),
    ],
)
def test_other_values_are_refused_by_name(key, values):
    """Also with a plan, by whose run they would be read late."""
    for value in values:
        for read in (lambda: config.get(f"bigfft.{key}"), lambda: dask_bigfft.plan(X)):
            with (
                dask.config.set({f"bigfft.{key}": value}),
                pytest.raises(ArgumentError, match=re.escape(f"bigfft.{key}")),
            ):
                read()


def test_scratch_files_follow_dasks_temporary_directory(tmp_path):
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        assert config.get("bigfft.scratch.directory") == str(tmp_path)
        with dask.config.set({"bigfft.scratch.directory": "/scratch"}):
            assert config.get("bigfft.scratch.directory") == "/scratch"


def test_underscores_and_the_environment_work_as_in_dask():
    with dask.config.set({"bigfft.memory_limit": "1 GiB"}):
        assert config.get("bigfft.memory-limit") == 2**30
    keys = ["bigfft.memory-limit", "bigfft.memory.arena"]
    code = f"from dask_bigfft import config; print(*map(config.get, {keys}))"
    env = {"DASK_BIGFFT__MEMORY_LIMIT": "3GiB", "DASK_BIGFFT__MEMORY__ARENA": "false"}
    assert python("-c", code, env=env).stdout.split() == [str(3 * 2**30), "False"]


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
        ("planner.foo", None),
        ("carrier", "exchange.carrier"),
        ("memory.limit", "memory-limit"),
        ("memory_limits", "memory-limit"),
        ("pinned-limits", "memory.pinned-limit"),
        ("scratch.min-writ", "scratch.min-write"),
    ],
)
def test_only_near_names_are_suggested(key, hint):
    said = f"did you mean bigfft.{hint}?" if hint else "it does nothing"
    text = f"no setting bigfft.{key}, it does nothing"
    with dask.config.set({f"bigfft.{key}": 2}), pytest.warns(UserWarning, match=text) as caught:
        dask_bigfft.plan(X)
    assert [str(w.message).endswith(said) for w in caught] == [True]


def test_settings_with_either_dash_and_mappings_are_known():
    known = {"bigfft.memory_limit": "2 GiB", "bigfft.rounds": [{0: -1}, {1: -1}]}
    with warnings.catch_warnings(), dask.config.set(known):
        warnings.simplefilter("error")
        assert len(dask_bigfft.plan(X, "fft2").rounds) == 2
