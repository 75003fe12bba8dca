"""Fixtures of runs that are killed and resumed."""

import collections
import signal
import threading
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import (
    ASKED,
    BLOCK,
    N,
    close,
    complex_values,
    done_so_far,
    files,
    stored,
    values_of,
)
from support import listening

import dask_bigfft
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
def kill(processes):
    """Do a run in a process that is killed at an event, or where a function is called."""

    def kill(at, destination="out.zarr", source="in.zarr", threads=1, **options):
        requested = {**ASKED, "scratch": "scratch", **options}
        code = processes(
            dying_runs.run_and_die,
            at,
            threads,
            source,
            destination,
            **requested,
        )
        assert code == -signal.SIGKILL

    return kill


@pytest.fixture
def source_folder(folder):
    """A working folder with a source, whose runs are done task by task."""
    stored("in.zarr", complex_values(N), (BLOCK,))
    with dask.config.set(scheduler="sync"):
        yield folder


@pytest.fixture
def undisturbed(source_folder):
    dask_bigfft.run("in.zarr", "whole.zarr", **ASKED, scratch="whole")
    assert not Path("whole").exists()
    assert close("whole.zarr", np.fft.fft(values_of("in.zarr")))
    return files("whole.zarr")


@pytest.fixture
def begun(source_folder, kill):
    """A run that has been killed in the middle."""
    kill(150)
    assert sum(done_so_far()) > 0


@pytest.fixture
def counted():
    """Events, their bytes, and the largest sum of scratch files at a time."""
    counts = collections.Counter()
    lock = threading.Lock()

    def sink(name, numbers):
        with lock:
            counts.update({name: 1, f"{name} bytes": numbers.get("nbytes", 0)})
            scratch_nbytes = counts["scratch_write bytes"] - counts["scratch_free bytes"]
            counts["worst"] = max(counts["worst"], scratch_nbytes)

    with listening(sink):
        yield counts


@pytest.fixture
def unsynced(monkeypatch):
    """Files are not synced: what survives a power loss is not what these tests look at."""
    monkeypatch.setattr("os.fsync", lambda file: None)
