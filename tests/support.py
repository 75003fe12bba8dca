"""What many tests need: other interpreters, waiting, listening, threads, clusters, limits."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from dask_bigfft import events
from dask_bigfft.errors import BigFFTError

ROOT = Path(__file__).resolve().parents[1]

#: Settings of users that tests have changed.
DEFAULTS = {"DASK_BIGFFT__PLANNER__SMALL": "64 MiB"}


def environment(**more):
    """Variables for processes that import this package, and no other version of it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | {name: str(value) for name, value in more.items()}


def python(*arguments, env=None, status=0, **options):
    """Run an interpreter to its end; fail with what it said unless it ends with the status."""
    options = {
        "capture_output": True,
        "text": True,
        "timeout": 240,
        "check": False,
    } | options
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.run(command, env=environment(**(env or {})), **options)
    assert process.returncode == status, process.stdout + process.stderr
    return process


@contextlib.contextmanager
def listening(sink):
    """Call a function with the events that are emitted meanwhile."""
    events.add_sink(sink)
    try:
        yield
    finally:
        events.remove_sink(sink)


@contextlib.contextmanager
def heard(*names):
    """Give a list of the events of some names, or of all, that are emitted meanwhile."""
    recorded = []

    def sink(name, numbers):
        if not names or name in names:
            recorded.append((name, numbers))

    with listening(sink):
        yield recorded


def in_threads(count, work):
    """Let threads of their own call a function with their numbers; return what it returned."""
    start = threading.Barrier(count)

    def call(number):
        start.wait()  # every thread takes one call
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


@contextlib.contextmanager
def forked_workers():
    """Let workers be forked from a process that has imported everything."""
    from dask_bigfft.testing.clusters import PRELOADED  # not needed by most files of tests

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(PRELOADED)
        yield


@contextlib.contextmanager
def local(workers=2, threads=1, **options):
    """Give a client of a cluster in this process, or of processes that listen on loopback.

    Processes are forked from one that has imported everything. Those with a memory limit are
    spawned as those of users are, with the settings that glibc reads when a process starts.
    """
    options = {"processes": False, "dashboard_address": "127.0.0.1:0"} | options
    if options["processes"]:
        options["host"] = "127.0.0.1"
    forked = options["processes"] and "memory_limit" not in options
    with (
        forked_workers() if forked else contextlib.nullcontext(),
        LocalCluster(n_workers=workers, threads_per_worker=threads, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def small_files(most):
    """No file may grow further: as on a full disk, but for the number of the error."""
    resource = pytest.importorskip("resource")  # Windows has none
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def slowed(x, seconds):
    """Return an array each of whose blocks takes a while to come."""

    def wait(block):
        time.sleep(seconds)
        return block

    return x.map_blocks(wait, dtype=x.dtype, meta=x._meta)


def failing(x):
    """Return an array whose blocks cannot be made."""

    def fail(block):
        raise RuntimeError("broken")

    return x.map_blocks(fail, dtype=x.dtype, meta=x._meta)


def close(ours, expected):
    """Whether an array in single or double precision is right, by its relative error."""
    most = 1e-6 if expected.dtype in (np.float32, np.complex64) else 1e-14
    return bool(np.linalg.norm(ours - expected) <= most * np.linalg.norm(expected))


def refusals(table):
    """Return parameters (call, argument, value, class of error) for every value of a table.

    Its rows have a call, the argument that its error names, values that it refuses, and values
    of a wrong type.
    """
    return [
        pytest.param(call, argument, value, kind, id=f"{argument}-{number}-{kind.__name__}")
        for number, (call, argument, values, types) in enumerate(table)
        for kind, refused in ((ValueError, values), (TypeError, types))
        for value in refused
    ]


def assert_refused(
    call,
    argument,
    value,
    kind,
):
    """Require that a call refuses a value in our own words, which begin with the argument."""
    with pytest.raises(kind) as caught:
        call(value)
    assert isinstance(caught.value, BigFFTError), "refused by somebody else"
    assert str(caught.value).startswith(f"`{argument}`="), str(caught.value)
