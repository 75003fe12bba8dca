"""Exchanges through scratch files: how much is read and written, and what is left behind."""

import gc
import os
import signal
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from support import failing, heard, local, slowed

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.carriers.names import PLAN_NAME
from dask_bigfft.exchange import scratch
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.testing.traps import until


@pytest.fixture
def on_disk(tmp_path):
    options = {
        "bigfft.exchange.carrier": "disk",
        "bigfft.scratch.directory": str(tmp_path / "scratch"),
        "bigfft.planner.whole-axis-floor": 1,
        "scheduler": "threads",
    }
    with dask.config.set(options):
        yield tmp_path / "scratch"


@pytest.mark.parametrize("verify", ["none", "energy", "checksum"])
@pytest.mark.parametrize(
    ("kind", "shape", "chunks", "options"),
    [
        ("fft", (2**12,), 2**8, {}),
        ("fft", (4 * 1021,), 500, {}),
        ("ifft", (2**12,), 2**8, {"n": 5000}),
        ("fft", (2**12,), 2**8, {"order": "transposed"}),
        ("rfftn", (16, 12, 20), (4, 12, 20), {}),
        ("irfftn", (16, 12, 11), (4, 12, 11), {}),
        ("fftn", (16, 12, 20), (4, 5, 20), {"s": (12, 16, 20), "axes": (0, 1, 2)}),
        ("hfft", (30, 601), (7, 100), {}),
    ],
)
def test_blocks_that_are_put_together_as_shards_arrive(
    on_disk,
    monkeypatch,
    kind,
    shape,
    chunks,
    options,
    verify,
):
    """To the bit what is gathered when all are there, in shards a few at a time or one by one."""
    x = random_array(shape, "f4" if kind.startswith("rfft") else "c8", 3)
    a = da.from_array(x, chunks=chunks)
    plan = dask_bigfft.plan(
        a,
        kind,
        verify=verify,
        **options,
    )
    expected = transformed_array(a, plan, "disk").compute()
    assert relative_l2(expected, getattr(fft, kind)(a, **options).compute()) < 1e-5
    incremental = replace(plan, assembles=True)
    for size in (scratch.READ_BYTES, 1):
        monkeypatch.setattr(scratch, "READ_BYTES", size)
        transformed = transformed_array(a, incremental, "disk").compute()
        np.testing.assert_array_equal(transformed, expected)


SCHEMES = {
    "3D slabs": ((16, 12, 20), (4, 12, 20), "fftn", {}, 1),
    "3D pencils": ((32, 32, 32), (2, 2, 32), "fftn", {"rounds": [{2: -1}, {0: -1}, {1: -1}]}, 2),
    "1D natural": ((2**12,), (2**8,), "fft", {}, 3),
    "1D transposed": ((2**12,), (2**8,), "fft", {"order": "transposed"}, 2),
    "a batch": ((16, 64), (2, 64), "fft", {}, 0),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_exchange_writes_and_reads_the_data_once(on_disk, scheme):
    shape, chunks, name, options, exchanges = SCHEMES[scheme]
    x = random_array(shape, "c16", 3)
    array = da.from_array(x, chunks=chunks)
    plan = dask_bigfft.plan(array, name, **options)
    with heard("scratch_write", "scratch_read", "scratch_free") as seen:
        transformed = getattr(fft, name)(array, **options).compute()
    written, read, freed = (
        [numbers["nbytes"] * (event == f"scratch_{what}") for event, numbers in seen]
        for what in ("write", "read", "free")
    )
    assert sum(written) == sum(read) == exchanges * x.nbytes
    worst = max(np.cumsum(np.subtract(written, freed)), default=0)
    assert worst <= plan.expected.scratch <= 2 * x.nbytes
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        assert transformed.tobytes() == getattr(fft, name)(array, **options).compute().tobytes()


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_nothing_is_left_behind(on_disk, scheduler):
    x = da.from_array(random_array((2**12,), "c16", 3), chunks=2**8)
    y = fft.fft(x)
    y.compute(scheduler=scheduler)
    persisted = y.persist(scheduler=scheduler)
    assert list(on_disk.iterdir()) == []
    assert relative_l2(persisted.compute(), np.fft.fft(x.compute())) < 1e-14
    bad = fft.fft(failing(x))
    with pytest.raises(RuntimeError, match="broken"):
        bad.compute(scheduler=scheduler)
    goes(on_disk)  # as soon as no task runs, and no traceback holds its frames


@pytest.fixture
def client():
    with local(processes=True) as client:
        yield client


def goes(folder):
    """Wait until there are no scratch files."""
    until(lambda: gc.collect() >= 0 and not list(folder.iterdir()))


def opener(dask_worker):
    """Process number of a worker, if it has opened a scratch folder itself."""
    story = dask_worker.state.story(*[k for k in dask_worker.state.tasks if "bigfft" in str(k)])
    opened = any(e[1] == "compute-task" and str(e[0]).startswith(PLAN_NAME) for e in story)
    return os.getpid() if opened else None


@pytest.mark.parametrize("fault", ["killed", "retired"])
def test_the_files_of_a_worker_that_goes_are_used_by_the_others(on_disk, client, fault):
    """In mid-run, while another computation clears away what dead processes have left."""
    x = random_array((24, 32, 16), "f8", 3)
    array = da.from_array(x, chunks=(1, 32, 16))
    future = client.compute(fft.rfftn(slowed(array, 0.1)))
    until(lambda: len(list(on_disk.glob("bigfft-*/exchange*/done-*.json"))) >= 4)
    assert future.status == "pending", future.exception()
    (folder,) = on_disk.glob("bigfft-*")
    pids = client.run(opener)
    (address,) = [address for address, pid in pids.items() if pid is not None]
    if fault == "killed":
        os.kill(pids[address], signal.SIGKILL)
    else:
        client.retire_workers([address], close_workers=True)
    other = client.compute(fft.rfftn(array + 1), priority=1)  # before what is left of the first
    assert relative_l2(other.result(timeout=100), np.fft.rfftn(x + 1)) < 1e-14
    assert folder.exists() or future.done()
    assert relative_l2(future.result(timeout=100), np.fft.rfftn(x)) < 1e-14
    goes(on_disk)


def test_files_go_when_the_cluster_needs_them_no_more(on_disk, client):
    x = random_array((24, 32, 16), "f8", 3)
    y = fft.rfftn(da.from_array(x, chunks=(4, 32, 16)))
    persisted = y.persist()
    assert relative_l2(persisted.compute(), np.fft.rfftn(x)) < 1e-14
    goes(on_disk)  # while the result is still there
    assert relative_l2((persisted + 1).compute(), np.fft.rfftn(x) + 1) < 1e-14
    del persisted
    assert relative_l2((y + 1).compute(), np.fft.rfftn(x) + 1) < 1e-14
    goes(on_disk)


# --- what the planner says ------------------------------------------------------------------


def test_the_disk_is_taken_where_memory_is_too_small(tmp_path):
    x = da.zeros(2**20, chunks=2**14, dtype=complex)
    assert dask_bigfft.plan(x, "fft", memory_limit="64 MiB").storage == "memory"
    plan = dask_bigfft.plan(x, "fft", memory_limit="20 MiB")
    assert plan.storage == "disk"
    assert plan.expected.peak_host <= 20 * 2**20
    assert plan.expected.scratch == 2 * 2**24
    assert type(plan).from_json(plan.to_json()) == plan
    with dask.config.set({"bigfft.scratch.directory": str(tmp_path)}):
        y = fft.fft(da.ones(2**14, chunks=2**10, dtype=complex), memory_limit="400 kiB")
        assert y.compute()[0] == 2**14
        assert list(tmp_path.iterdir()) == []
