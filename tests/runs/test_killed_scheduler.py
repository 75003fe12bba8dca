"""A scheduler that is killed outright: the run ends with an error, and goes on on another one."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

import dask_bigfft
from dask_bigfft.exchange.scratch import recorded_blocks

zarr = pytest.importorskip("zarr")

BLOCKS, LENGTH = 64, 2**15


@contextlib.contextmanager
def cluster(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler and two workers, each a process; the scheduler is given."""
    dask_ = [sys.executable, "-m", "dask"]
    scheduler = subprocess.Popen(
        [*dask_, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
         "--scheduler-file", name], stderr=subprocess.DEVNULL)
    worker = [*dask_, "worker", "--scheduler-file", name, "--host", "127.0.0.1", "--nthreads", "1",
              "--no-nanny", "--no-dashboard", "--local-directory", f"of-{name}"]
    workers = [subprocess.Popen(worker, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        yield scheduler
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_run_goes_on_where_a_killed_scheduler_has_left_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    values = rng.normal(size=LENGTH) + 1j * rng.normal(size=LENGTH)
    array = zarr.create_array("in.zarr", shape=values.shape, chunks=LENGTH // BLOCKS,
                              dtype=values.dtype, compressors=None)
    array[...] = values
    asked = {"kind": "fft", "block_size": values.nbytes // BLOCKS, "scratch": "scratch"}
    settings = {"bigfft.planner.whole-axis-floor": 1, "distributed.comm.timeouts.connect": "4s"}

    def kill(scheduler: subprocess.Popen[bytes]) -> None:
        while len(recorded_blocks(Path("scratch"), "exchange1")) < 8:
            time.sleep(0.001)
        scheduler.kill()

    with dask.config.set(settings):
        with cluster("one.json") as scheduler:
            killer = threading.Thread(target=kill, args=(scheduler,), daemon=True)
            with Client(scheduler_file="one.json", timeout=60) as client:
                client.wait_for_workers(2)
                killer.start()
                with pytest.raises(Exception, match=r"(?i)cancel|lost|connect|closed"):
                    dask_bigfft.run("in.zarr", "out.zarr", **asked)
            killer.join()
        assert not Path("out.zarr").exists()
        assert len(recorded_blocks(Path("scratch"), "exchange1")) >= 8
        with cluster("two.json"), Client(scheduler_file="two.json", timeout=60) as client:
            client.wait_for_workers(2)
            dask_bigfft.run("in.zarr", "out.zarr", **asked, resume=True)
    found = zarr.open_array("out.zarr", mode="r")[...]
    wanted = np.fft.fft(values)
    assert np.linalg.norm(found - wanted) < 1e-14 * np.linalg.norm(wanted)
    assert not Path("scratch").exists()
