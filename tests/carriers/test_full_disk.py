"""Workers of real processes whose files of shards cannot grow: an error says so within seconds."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support import close

from dask_bigfft import fft
from dask_bigfft.errors import ScratchError
from dask_bigfft.events import workers_of
from dask_bigfft.testing.clusters import SETTINGS, Processes
from dask_bigfft.testing.traps import until

zarr = pytest.importorskip("zarr")

#: 16 blocks of 64 KiB; what waits for one of them comes from all.
VALUES = np.random.default_rng(8).standard_normal(2**17)
CHUNK = 2**13

#: Bytes that a file may have: not even the shards of one source block, or those of some.
FEW = 1000
SOME = 50_000

#: Far below the minutes for which distributed tries an `OSError` again, and what compiling takes.
SOON = 60
COMPILED = 200

SAID = r"[\d.]+ \w+ are missing for shards that wait on the worker tcp://.*local_directory.*shuffle"


def limit(most: int) -> int:
    """Let no file of this process grow further: as on a full disk, but for the error's number."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most < 0 else most, hard))
    return most


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster of two workers."""
    with Processes(tmp_path_factory.mktemp("cluster"), 2) as processes:
        yield processes


@pytest.fixture
def client(workers: Processes) -> Iterator[Client]:
    options = {
        **SETTINGS,
        "bigfft.exchange.carrier": "p2p",
        "bigfft.planner.min-chunk": 0,
    }
    with dask.config.set(options), Client(scheduler_file=workers.file) as client:
        client.wait_for_workers(2)
        client.run(dask.config.set, {"bigfft.exchange.shuffle-memory": 0})
        assert right(client)  # compiles: what that keeps on disk would fall under a limit
        yield client
        client.run(limit, -1)


def spectrum() -> da.Array:
    """A transform of two exchanges of all blocks, which is computed anew each time."""
    return fft.fft(da.from_array(VALUES, chunks=CHUNK, name=False))


def right(client: Client) -> bool:
    return close(client.compute(spectrum()).result(timeout=COMPILED), np.fft.fft(VALUES))


def without_shards(folder: Path) -> bool:
    """Whether no files are in folders of shuffles, which may go while they are looked for."""
    return not any(names for path, _, names in os.walk(folder) if "/shuffle-" in path)


@pytest.mark.parametrize("most", [FEW, SOME])
@pytest.mark.parametrize("victims", [1, 2])
def test_the_file_and_what_is_missing_are_named(
    workers: Processes,
    client: Client,
    victims: int,
    most: int,
) -> None:
    """While blocks are sent, or when all are; by the worker itself, or to one that it sends to."""
    full = sorted(workers_of(client))[:victims]
    client.run(limit, most, workers=full)
    future = client.compute(spectrum())
    with pytest.raises(ScratchError, match=SAID) as caught:
        future.result(timeout=SOON)
    assert Path(caught.value.filename).parent.name.startswith("shuffle-")
    assert any(worker in str(caught.value) for worker in full)
    del future, caught
    until(lambda: without_shards(workers.folder))
    client.run(limit, -1)
    assert right(client)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_small_disk(client: Client, small_disk: Path) -> None:
    """Half of what waits on two workers has room there."""
    with Processes(small_disk, 2) as workers, Client(scheduler_file=workers.file) as own:
        own.wait_for_workers(2)
        own.run(dask.config.set, {"bigfft.exchange.shuffle-memory": 0})
        future = own.compute(spectrum())
        with pytest.raises(ScratchError, match=r"No space left on device: " + SAID):
            future.result(timeout=SOON)
        del future
        until(lambda: without_shards(small_disk))
        subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
        assert right(own)
