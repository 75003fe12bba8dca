"""Workers of a run whose client is gone, while another one goes on with its scratch folder."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

import dask_bigfft
from dask_bigfft.storage import targets
from dask_bigfft.testing.clusters import Processes, run_on, started
from dask_bigfft.testing.traps import Board

zarr = pytest.importorskip("zarr")


def test_what_a_worker_of_an_earlier_life_stores_late_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written a chunk of a result that is begun anew: nobody may take it for stored."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(32, 24)) + 1j * rng.normal(size=(32, 24))
    source, out, scratch = tmp_path / "in.zarr", tmp_path / "out.zarr", tmp_path / "scratch"
    array = zarr.create_array(source, shape=values.shape, chunks=(4, 24), dtype=values.dtype)
    array[...] = values
    asked: dict[str, Any] = {"block_size": 4 * 24 * 16, "scratch": scratch}
    board = Board(tmp_path / "board")

    def hold(folder: str) -> None:
        """Wait before the first block is recorded as stored."""
        from pathlib import Path

        from dask_bigfft.exchange.scratch import Scratch
        from dask_bigfft.testing.traps import Board

        record, there = Scratch.record_stored, Board(Path(folder))

        def waiting(self: Scratch, block: tuple[int, ...]) -> None:
            there.claim("sprung")
            there.stay()
            try:
                record(self, block)
            finally:
                there.claim("tried")

        Scratch.record_stored = waiting  # type: ignore[method-assign]

    with Processes(tmp_path / "cluster", 1) as cluster:
        with Client(scheduler_file=cluster.file) as client:
            client.wait_for_workers(1)
            client.run(hold, str(board.folder))
        run = started(run_on, cluster.file, str(tmp_path / "said"), source, out, **asked)
        board.wait()
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        run.join()
        real = targets.created

        def created(*arguments: Any) -> targets.Target:
            """Let the worker go on as soon as this life's result is there, and empty."""
            found = real(*arguments)
            board.release()
            end = time.monotonic() + 60
            while board.process("tried") is None:
                assert time.monotonic() < end
                time.sleep(0.005)
            return found

        monkeypatch.setattr(targets, "created", created)
        with dask.config.set(scheduler="sync"):
            dask_bigfft.run(source, out, **asked, resume=True)
    assert board.process("tried") is not None
    found = zarr.open_array(out, mode="r")[...]
    assert np.linalg.norm(found - np.fft.fftn(values)) < 1e-14 * np.linalg.norm(found)
    assert not scratch.exists()
