"""The settings: their table, the shipped file, and what is refused."""

import os
import re
import subprocess
import sys
import textwrap
from importlib import resources

import dask.config
import pytest
import yaml

from dask_bigfft import config
from dask_bigfft.errors import ArgumentError

TEXT = (resources.files("dask_bigfft") / "bigfft.yaml").read_text(encoding="utf-8")


def flatten(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


def test_file_and_table_hold_the_same_settings_and_defaults():
    entries = dict(flatten(yaml.safe_load(TEXT)))
    assert entries == {key: knob.default for key, knob in config.KNOBS.items()}
    assert {key: type(value) for key, value in entries.items()} == {
        key: type(knob.default) for key, knob in config.KNOBS.items()
    }


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("bigfft.order", ["natural", "transposed"], ("natural", "transposed")),
        ("bigfft.chunks", "preserve", "preserve"),
        ("bigfft.chunks", -1, -1),
        ("bigfft.chunks", [[2, 3], "auto"], ((2, 3), "auto")),
        ("bigfft.chunks", "1 MiB", "1048576 B"),
        ("bigfft.memory-limit", "2 GiB", 2**31),
        ("bigfft.memory-limit", 2**40, 2**40),
        ("bigfft.variant", "pease", "pease"),
        ("bigfft.kernel", "ducc0", "ducc0"),
        ("bigfft.exchange.carrier", "tasks", "tasks"),
        ("bigfft.exchange.carrier", "disk", "disk"),
        ("bigfft.scratch.directory", "/a/../b", "/b"),
        ("bigfft.scratch.sync", True, True),
        ("bigfft.scratch.row-size", "256 kiB", 2**18),
        ("bigfft.scratch.threads", 1, 1),
        ("bigfft.memory.arena", False, False),
        ("bigfft.memory.arena-limit", "100MB", 10**8),
        ("bigfft.memory.pinned-limit", 0, 0),
        ("bigfft.planner.merge-up-to", 0, 0),
        ("bigfft.memory.pinned-limit", "2 GiB", 2**31),
        ("bigfft.planner.max-rounds", 2, 2),
    ],
)
def test_values_are_read(key, value, expected):
    with dask.config.set({key: value}):
        assert config.get(key) == expected


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("bigfft.order", "sorted", "natural or transposed"),
        ("bigfft.order", ["natural", 1], "natural or transposed"),
        ("bigfft.chunks", 0, "auto, preserve"),
        ("bigfft.chunks", None, "auto, preserve"),
        ("bigfft.chunks", "many", "auto, preserve, or dask chunks"),
        ("bigfft.memory-limit", "plenty", "a number of bytes above 0"),
        ("bigfft.memory-limit", 0, "a number of bytes above 0"),
        ("bigfft.memory-limit", True, "a number of bytes above 0"),
        ("bigfft.memory-limit", [1], "a number of bytes above 0"),
        ("bigfft.variant", "radix", "one of auto, dif, dit, stockham, pease"),
        ("bigfft.kernel", "", "scipy"),
        ("bigfft.kernel", None, "scipy"),
        ("bigfft.wisdom.directory", 3, "the path of a folder"),
        ("bigfft.exchange.carrier", "pigeon", "one of auto, shared, tasks, p2p, disk"),
        ("bigfft.exchange.carrier", ["tasks"], "one of auto, shared, tasks, p2p, disk"),
        ("bigfft.scratch.directory", 3, "the path of a folder"),
        ("bigfft.scratch.directory", "", "the path of a folder"),
        ("bigfft.scratch.directory", "a\0b", "the path of a folder"),
        ("bigfft.planner.profile", "a\0b", "the path of a file"),
        ("bigfft.scratch.sync", "always", "true or false"),
        ("bigfft.memory.arena", "yes", "true or false"),
        ("bigfft.memory.arena-limit", -1, "a number of bytes above 0"),
        ("bigfft.memory.pinned-limit", False, "'1 GiB', or 0"),
        ("bigfft.planner.merge-up-to", None, "'1 GiB', or 0"),
        ("bigfft.planner.max-rounds", 0, "an integer of at least 1"),
        ("bigfft.planner.max-rounds", 2.5, "an integer of at least 1"),
        ("bigfft.planner.whole-axis-floor", None, "a number of bytes above 0"),
    ],
)
def test_other_values_are_refused_by_name(key, value, allowed):
    with (
        dask.config.set({key: value}),
        pytest.raises(ArgumentError, match=re.escape(key)) as caught,
    ):
        config.get(key)
    assert allowed in str(caught.value)


def test_scratch_files_follow_dasks_temporary_directory(tmp_path):
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        assert config.get("bigfft.scratch.directory") == str(tmp_path)
        with dask.config.set({"bigfft.scratch.directory": "/scratch"}):
            assert config.get("bigfft.scratch.directory") == "/scratch"


def test_underscores_and_the_environment_work_as_in_dask():
    with dask.config.set({"bigfft.memory_limit": "1 GiB"}):
        assert config.get("bigfft.memory-limit") == 2**30
    code = textwrap.dedent(
        """
        from dask_bigfft import config
        print(config.get("bigfft.memory-limit"), config.get("bigfft.memory.arena"),
              config.get("bigfft.planner.max-rounds"), config.get("bigfft.variant"))
        """
    )
    settings = {
        "DASK_BIGFFT__MEMORY_LIMIT": "3GiB",
        "DASK_BIGFFT__MEMORY__ARENA": "false",
        "DASK_BIGFFT__PLANNER__MAX_ROUNDS": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [str(3 * 2**30), "False", "3", "auto"]
