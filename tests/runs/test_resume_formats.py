"""Runs that are killed go on with files of every format, and know a source that has changed."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import dask
import numpy as np
import pytest

import dask_bigfft
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
    array = zarr.create_array(path, shape=VALUES.shape, chunks=(1, 32), shards=(2, 64),
                              dtype=VALUES.dtype)
    array[...] = VALUES


#: What makes a source, and the file of it that is touched.
FORMATS: dict[str, tuple[Callable[[Path], None], str]] = {
    "npy": (npy_file, "."), "hdf5": (hdf5_file, "."), "zarr, sharded": (sharded_array, "c/3/0"),
}


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "zarr.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("name", FORMATS)
def test_killed_and_gone_on_with(name: str, tmp_path: Path) -> None:
    """To the bit; not where the source's time or, asked for, its content is another one."""
    make, file = FORMATS[name]
    source, scratch = tmp_path / "in", tmp_path / "scratch"
    make(source)
    asked = {**ASKED, "inner_chunks": (2, 8) if "sharded" in name else None}
    with dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1}):
        dask_bigfft.run(source, tmp_path / "whole.zarr", **asked)
        process = started(dying_runs.run_and_die, 60, 1, source, tmp_path / "out.zarr", **asked,
                          scratch=scratch, checksum=True)
        process.join(200)
        assert process.exitcode == -signal.SIGKILL
        kept = shutil.copytree(scratch, tmp_path / "kept")
        times = (source / file).stat()
        os.utime(source / file, ns=(0, 0))
        with pytest.raises(ArgumentError, match="has changed"):
            dask_bigfft.run(source, tmp_path / "out.zarr", **asked, scratch=scratch, resume=True)
        data = (source / file).read_bytes()
        (source / file).write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        os.utime(source / file, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(ArgumentError, match="has changed"):
            dask_bigfft.run(source, tmp_path / "out.zarr", **asked, scratch=scratch, resume=True)
        (source / file).write_bytes(data)
        os.utime(source / file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert contents(scratch) == contents(kept)
        shutil.rmtree(kept)
        dask_bigfft.run(source, tmp_path / "out.zarr", **asked, scratch=scratch, resume=True)
    found = zarr.open_array(tmp_path / "out.zarr", mode="r")[...]
    wanted = np.fft.fftn(VALUES)
    assert np.linalg.norm(found - wanted) < 1e-14 * np.linalg.norm(wanted)
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.zarr", "whole.zarr"]
