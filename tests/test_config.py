"""The settings: their table, the shipped file, and what is refused."""

import os
import re
import subprocess
import sys
import tempfile
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


def comments(text):
    """Return the comment block right above each entry, by the entry's full key."""
    found, path, block = {}, [], []
    for line in text.splitlines():
        entry = re.match(r"( *)([\w-]+):(.*)", line)
        if entry:
            depth = len(entry[1]) // 2
            path[depth:] = [entry[2]]
            if entry[3].strip():
                found[".".join(path)] = " ".join(block)
        comment = line.strip()
        block = [*block, comment.lstrip("# ")] if comment.startswith("#") else []
    return found


def test_file_and_table_hold_the_same_settings_and_defaults():
    entries = dict(flatten(yaml.safe_load(TEXT)))
    assert entries == {key: knob.default for key, knob in config.KNOBS.items()}
    assert {key: type(value) for key, value in entries.items()} == {
        key: type(knob.default) for key, knob in config.KNOBS.items()
    }


@pytest.mark.parametrize("knob", config.KNOBS.values(), ids=lambda knob: knob.key)
def test_every_setting_is_described_with_its_unit(knob):
    assert knob.key.startswith("bigfft.")
    assert knob.description.endswith(".")
    assert knob.unit
    assert comments(TEXT)[knob.key] == f"{knob.description} Unit: {knob.unit}."


def test_a_setting_without_a_comment_is_found():
    assert comments("bigfft:\n  # What. Unit: x.\n  a: 1\n\n  b: 2\n") == {
        "bigfft.a": "What. Unit: x.",
        "bigfft.b": "",
    }


#: What the tests' own settings change.
CLEAN = {"bigfft.kernel": "auto", "bigfft.wisdom.directory": None}


def test_cache_directory(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    with dask.config.set(CLEAN):
        assert config.get("bigfft.wisdom.directory") == "/var/cache/dask_bigfft"


def test_defaults(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with dask.config.set(CLEAN):
        found = {key: config.get(key) for key in config.KNOBS}
    assert found == {
        "bigfft.order": "natural",
        "bigfft.chunks": "auto",
        "bigfft.memory-limit": None,
        "bigfft.rounds": None,
        "bigfft.variant": "auto",
        "bigfft.kernel": "auto",
        "bigfft.wisdom.directory": os.path.expanduser("~/.cache/dask_bigfft"),
        "bigfft.device": "auto",
        "bigfft.device-memory-limit": None,
        "bigfft.hybrid-gain": 1.1,
        "bigfft.install": False,
        "bigfft.exchange.carrier": "auto",
        "bigfft.exchange.in-place": True,
            "bigfft.exchange.shuffle-memory": None,
        "bigfft.exchange.peer": "auto",
        "bigfft.verify": "none",
        "bigfft.scratch.directory": tempfile.gettempdir(),
        "bigfft.scratch.direct": True,
        "bigfft.scratch.sync": False,
        "bigfft.scratch.row-size": 2**20,
        "bigfft.scratch.piece-size": 2**20,
        "bigfft.scratch.threads": 8,
        "bigfft.memory.arena": True,
        "bigfft.memory.arena-limit": None,
        "bigfft.memory.prefault": True,
        "bigfft.memory.pinned-limit": None,
        "bigfft.memory.pin-arrays": True,
        "bigfft.planner.max-rounds": 4,
        "bigfft.planner.mode": "estimate",
        "bigfft.planner.profile": None,
        "bigfft.planner.whole-axis-floor": 4 * 2**20,
        "bigfft.planner.merge-up-to": 2**20,
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


def test_an_unknown_setting_is_refused():
    with pytest.raises(ArgumentError, match=r"bigfft\.speed.*bigfft\.order"):
        config.get("bigfft.speed")


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
