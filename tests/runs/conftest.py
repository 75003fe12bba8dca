"""Fixtures of runs that are killed and resumed."""

import collections
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import ASKED, BLOCK, RNG, N, done_so_far, files, stored

import dask_bigfft
from dask_bigfft import events
from dask_bigfft.testing import dying_runs
from dask_bigfft.testing.clusters import started


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported everything before they begin."""

    def start(function, *args, **kwargs):
        process = started(function, *args, **kwargs)
        process.join(120)
        assert process.exitcode is not None
        return process.exitcode

    return start


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = RNG.normal(size=N) + 1j * RNG.normal(size=N)
    stored("in.zarr", values, (BLOCK,))
    with dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1}):
        yield tmp_path


@pytest.fixture
def undisturbed(here):
    zarr = pytest.importorskip("zarr")
    dask_bigfft.run("in.zarr", "whole.zarr", **ASKED, scratch="whole")
    assert not Path("whole").exists()
    values = zarr.open_array("in.zarr")[...]
    found = zarr.open_array("whole.zarr")[...]
    assert np.linalg.norm(found - np.fft.fft(values)) < 1e-13 * np.linalg.norm(found)
    return files("whole.zarr")


@pytest.fixture
def begun(here, processes):
    """A run that has been killed in the middle."""
    processes(dying_runs.run_and_die, 150, 1, "in.zarr", "out.zarr", **ASKED, scratch="scratch")
    assert sum(done_so_far()) > 0


@pytest.fixture
def counted():
    found = collections.Counter()

    def sink(name, numbers):
        found[name] += 1
        found[f"{name} bytes"] += numbers.get("nbytes", 0)

    events.add_sink(sink)
    yield found
    events.remove_sink(sink)
