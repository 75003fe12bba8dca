"""Runs that are killed go on with files of every format, and know a source that has changed."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import close

import dask_bigfft
from dask_bigfft import events
from dask_bigfft.errors import ArgumentError
from dask_bigfft.testing import dying_runs
from dask_bigfft.testing.clusters import started

zarr = pytest.importorskip("zarr")
h5py = pytest.importorskip("h5py")

VALUES = np.random.default_rng(21).normal(size=(16, 64)) + 0j
ASKED = {"block_size": 2 * 64 * 16}


def npy_file(path: Path) -> None:
    with path.open("wb") as handle:
        np.save(handle, VALUES)


def hdf5_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=VALUES, chunks=(2, 64))


def sharded_array(path: Path) -> None:
    zarr.create_array(path, data=VALUES, chunks=(1, 32), shards=(2, 64))


#: What makes a source, and the file of it that is touched.
FORMATS: dict[str, tuple[Callable[[Path], None], str]] = {
    "npy": (npy_file, "."),
    "hdf5": (hdf5_file, "."),
    "zarr, sharded": (sharded_array, "c/3/0"),
}


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "zarr.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("name", FORMATS)
def test_killed_and_gone_on_with(name: str, kill: Callable[..., None], tmp_path: Path) -> None:
    """To the bit; not where the source's time or, asked for, its content is another one."""
    make, file = FORMATS[name]
    source, scratch = tmp_path / "in", tmp_path / "scratch"
    make(source)
    asked = {**ASKED, "inner_chunks": (2, 8) if "sharded" in name else None}
    with dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1}):
        dask_bigfft.run(source, tmp_path / "whole.zarr", **asked)
        kill(
            60, tmp_path / "out.zarr", source, scratch=scratch, checksum=True, kind="fftn", **asked
        )
        kept = shutil.copytree(scratch, tmp_path / "kept")
        times, data = (source / file).stat(), (source / file).read_bytes()
        flipped = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
        again = {**asked, "scratch": scratch, "resume": True}
        for changed, nanoseconds in ((data, 0), (flipped, times.st_mtime_ns)):
            (source / file).write_bytes(changed)
            os.utime(source / file, ns=(times.st_atime_ns, nanoseconds))
            with pytest.raises(ArgumentError, match="has changed"):
                dask_bigfft.run(source, tmp_path / "out.zarr", **again)
        (source / file).write_bytes(data)
        os.utime(source / file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert contents(scratch) == contents(kept)
        shutil.rmtree(kept)
        dask_bigfft.run(source, tmp_path / "out.zarr", **again)
    assert close(tmp_path / "out.zarr", np.fft.fftn(VALUES), 1e-14)
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.zarr", "whole.zarr"]


# --- killed again and again -----------------------------------------------------------------


def one_axis(path: Path) -> None:
    """Write an axis of 16 compressed chunks."""
    values = np.random.default_rng(22).normal(size=2**12) + 0j
    zarr.create_array(path, data=values, chunks=(2**8,))


def real_array(path: Path) -> None:
    """Write a real array in compressed chunks."""
    values = np.random.default_rng(23).normal(size=(32, 48))
    zarr.create_array(path, data=values, chunks=(4, 48))


#: What makes a source, and the arguments of a run.
RUNS: list[tuple[Callable[[Path], None], dict[str, object]]] = [
    (one_axis, {"kind": "fft", "block_size": 2**12}),
    (one_axis, {"kind": "ifft", "block_size": 2**12, "order": "transposed"}),
    (real_array, {"kind": "rfftn", "block_size": 4 * 48 * 8}),
    (real_array, {"kind": "rfft", "axis": 0, "block_size": 4 * 48 * 8, "verify": "energy"}),
    (npy_file, {"kind": "fftn", **ASKED}),
    (hdf5_file, {"kind": "fftn", **ASKED}),
    (sharded_array, {"kind": "fftn", "inner_chunks": (2, 8), **ASKED}),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_a_run_killed_at_random_moments_is_the_same_to_the_bit(
    number: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Five times each by number of its events; every fifth run by the clock, with three threads."""
    rng, by_clock = random.Random(number), number % 5 == 4
    make, asked = RUNS[number % len(RUNS)]
    asked = asked | {"checksum": bool(number // len(RUNS) % 2), "resume": True}
    threads = 3 if by_clock else 1
    source, out, scratch = (tmp_path / name for name in ("in", "out.zarr", "scratch"))
    make(source)
    count, kills = [0], 0

    def sink(name: str, numbers: object) -> None:
        count[0] += 1

    with dask.config.set(
        {
            "scheduler": "threads" if by_clock else "sync",
            "num_workers": threads,
            "bigfft.planner.whole-axis-floor": 1,
        }
    ):
        events.add_sink(sink)
        begun = time.monotonic()
        dask_bigfft.run(source, tmp_path / "whole.zarr", scratch=tmp_path / "whole", **asked)
        events.remove_sink(sink)
        seconds = time.monotonic() - begun
        for _ in range(5):
            after = 10**9 if by_clock else rng.randint(1, count[0] // 6)
            life = started(
                dying_runs.run_and_die, after, threads, source, out, scratch=scratch, **asked
            )
            life.join(rng.uniform(0.2, 3) * seconds if by_clock else 120)
            life.kill()
            life.join()
            kills += life.exitcode == -signal.SIGKILL
            assert life.exitcode in (0, -signal.SIGKILL)
        dask_bigfft.run(source, out, scratch=scratch, **asked)
    record_property("kills", kills)  # see --junit-xml with -o junit_family=xunit1
    assert by_clock or kills == 5
    assert contents(out) == contents(tmp_path / "whole.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.zarr", "whole.zarr"]
