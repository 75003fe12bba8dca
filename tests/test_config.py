"""The settings: their table, the shipped file, and what is refused."""

import re
from importlib import resources
from pathlib import Path

import dask.config
import pytest
import yaml
from support import python

from dask_bigfft import config
from dask_bigfft.errors import ArgumentError

ROOT = Path(__file__).parents[1]
TEXT = (resources.files("dask_bigfft") / "bigfft.yaml").read_text(encoding="utf-8")


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
        ("bigfft.memory.arena-limit", "100MB", 10**8),
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
        ("variant", ["radix"]),
        ("kernel", ["", None]),
        ("wisdom.directory", [3]),
        ("exchange.carrier", ["pigeon", ["tasks"]]),
        ("scratch.directory", [3, "", "a\0b"]),
        ("scratch.sync", ["always"]),
        ("planner.profile", ["a\0b"]),
        ("memory.arena", ["yes"]),
        ("memory.arena-limit", [-1]),
        ("memory.pinned-limit", [False]),
        ("planner.min-chunk", [None]),
        ("planner.max-rounds", [0, 2.5]),
        ("planner.whole-axis-floor", [None]),
        ("speed", [1]),  # which is none
    ],
)
def test_other_values_are_refused_by_name(key, values):
    for value in values:
        with (
            dask.config.set({f"bigfft.{key}": value}),
            pytest.raises(ArgumentError, match=re.escape(f"bigfft.{key}")),
        ):
            config.get(f"bigfft.{key}")


def test_scratch_files_follow_dasks_temporary_directory(tmp_path):
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        assert config.get("bigfft.scratch.directory") == str(tmp_path)
        with dask.config.set({"bigfft.scratch.directory": "/scratch"}):
            assert config.get("bigfft.scratch.directory") == "/scratch"


def test_underscores_and_the_environment_work_as_in_dask():
    with dask.config.set({"bigfft.memory_limit": "1 GiB"}):
        assert config.get("bigfft.memory-limit") == 2**30
    code = (
        "from dask_bigfft import config; print(*map(config.get, "
        + repr([f"bigfft.{key}" for key in ("memory-limit", "memory.arena", "planner.max-rounds")])
        + "))"
    )
    done = python(
        "-c",
        code,
        env={
            "DASK_BIGFFT__MEMORY_LIMIT": "3GiB",
            "DASK_BIGFFT__MEMORY__ARENA": "false",
            "DASK_BIGFFT__PLANNER__MAX_ROUNDS": "3",
        },
    )
    assert done.stdout.split() == [str(3 * 2**30), "False", "3"]
