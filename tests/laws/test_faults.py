"""Faults of a cluster of real processes, in each phase: the result is right, or there is an error.

A case of each fault runs always; the others are marked slow: they wait for distributed's limits.
"""

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_bigfft import fft
from dask_bigfft.testing.traps import remove_traps, set_trap, sprung

WORKERS = 3

#: Carrier, phase, fault.
ALWAYS = {
    ("p2p", "unpack", "killed"), ("tasks", "pack", "cut"), ("disk", "scratch_write", "killed"),
    ("disk", "scratch_read", "paused"),
}
GRID = [
    pytest.param(*case, marks=() if case in ALWAYS else pytest.mark.slow)
    for carrier, phases in {
        "p2p": ("pack", "send", "unpack", "round"), "tasks": ("pack", "round"),
        "disk": ("scratch_write", "scratch_read"),
    }.items()
    for phase in phases
    for fault in ("killed", "paused", "cut")
    for case in [(carrier, phase, fault)]
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "10s"}),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=str(tmp_path_factory.mktemp("workers")),
        ) as found,
    ):
        yield found


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.linalg.norm(found - wanted) <= 1e-14 * np.linalg.norm(wanted))


@pytest.mark.parametrize(("carrier", "phase", "fault"), GRID)
def test_the_result_is_right(
    cluster: LocalCluster, carrier: str, phase: str, fault: str, tmp_path: Path
) -> None:
    seed = zlib.crc32(f"{carrier} {phase} {fault}".encode())  # data, and so tasks, of its own
    a = np.random.default_rng(seed).standard_normal(16 * 512)
    options = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with Client(cluster) as client, dask.config.set(options):
        client.wait_for_workers(WORKERS)
        before = client.run(os.getpid)
        victim = sorted(before)[0]
        client.run(set_trap, phase, fault, after=2, workers=[victim])
        y = fft.fft(da.from_array(a, chunks=512))
        assert close(client.compute(y).result(timeout=200), np.fft.fft(a))
        client.wait_for_workers(WORKERS)
        after = client.run(os.getpid)
        if fault == "killed":
            assert before[victim] not in after.values()
        else:
            assert client.run(sprung, workers=[victim]) == {victim: True}
        client.run(remove_traps)


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_an_error(cluster: LocalCluster) -> None:
    """Nothing looks complete: the caller learns which task killed the workers."""
    a = np.random.default_rng(5).standard_normal(16 * 512)
    with (
        Client(cluster) as client,
        dask.config.set({"bigfft.exchange.carrier": "p2p"}),
    ):
        def end(block: np.ndarray) -> np.ndarray:
            if block.size:
                os._exit(1)
            return block

        client.wait_for_workers(WORKERS)
        x = da.from_array(a, chunks=512).map_blocks(end, dtype=float)
        future = client.compute(fft.fft(x))
        with pytest.raises(Exception, match="died while running it"):
            future.result(timeout=200)
        client.cancel(future)  # its other blocks would go on killing workers
        client.wait_for_workers(WORKERS)
        assert close(fft.fft(da.from_array(a, chunks=512)).compute(), np.fft.fft(a))


@pytest.mark.slow
def test_a_scheduler_that_restarts_is_an_error_and_then_all_is_well() -> None:
    a = np.random.default_rng(6).standard_normal(64 * 512)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"bigfft.exchange.carrier": "p2p"}),
    ):
        def slowly(block: np.ndarray) -> np.ndarray:
            time.sleep(0.2)
            return block

        x = da.from_array(a, chunks=512)
        future = client.compute(fft.fft(x.map_blocks(slowly, dtype=float)))
        time.sleep(1.0)
        client.restart()
        with pytest.raises(Exception, match=r"(?i)cancel"):
            future.result(timeout=60)
        assert close(fft.fft(x).compute(), np.fft.fft(a))

