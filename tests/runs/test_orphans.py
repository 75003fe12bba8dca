"""Workers of a run whose client is gone, while another one goes on with its scratch folder."""

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from runs.resuming import close, complex_values, stored

import dask_bigfft
from dask_bigfft.storage import targets
from dask_bigfft.testing.clusters import Processes, run_on, started
from dask_bigfft.testing.traps import LONGEST, Board, until

#: Of an array in eight chunks.
NUMBERS = complex_values(32, 24), (4, 24)


def hold(folder: str) -> None:
    """Let a worker wait before the first block is recorded as stored."""
    from pathlib import Path

    from dask_bigfft.exchange.scratch import RESULT, Scratch
    from dask_bigfft.testing.traps import Board

    record = Scratch.record
    board = Board(Path(folder))

    def waiting(self: Scratch, exchange: str, block: tuple[int, ...], what: Any) -> None:
        if exchange == RESULT and board.claim("sprung"):
            board.stay()
        try:
            record(self, exchange, block, what)
        finally:
            if exchange == RESULT:
                board.claim("tried")

    Scratch.record = waiting  # type: ignore[method-assign]


def killed(cluster: Processes, board: Board, said: Path, *args: Any, **requested: Any) -> None:
    """A run that was killed while a worker of it waits, and goes on waiting."""
    with Client(scheduler_file=cluster.file) as client:
        client.wait_for_workers(1)
        client.run(hold, str(board.folder))
    run = started(run_on, cluster.file, str(said), *args, **requested)
    board.wait()
    run.kill()
    run.join()


def test_what_a_worker_of_an_earlier_life_stores_late_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written a chunk of a result that is begun anew: nobody may take it for stored."""
    source = tmp_path / "in.zarr"
    out = tmp_path / "out.zarr"
    scratch = tmp_path / "scratch"
    values = stored(source, *NUMBERS)
    board = Board(tmp_path / "board")
    requested: dict[str, Any] = {"block_size": 4 * 24 * 16, "scratch": scratch}
    with Processes(tmp_path / "cluster", 1) as cluster:
        killed(
            cluster,
            board,
            tmp_path / "said",
            source,
            out,
            **requested,
        )
        real = targets.created

        def created(*arguments: Any, **labels: Any) -> targets.Target:
            """Let the worker go on as soon as this life's result is there, and empty."""
            target = real(*arguments, **labels)
            board.release()
            until(lambda: board.process("tried"))
            return target

        monkeypatch.setattr(targets, "created", created)
        with dask.config.set(scheduler="sync"):
            dask_bigfft.run(source, out, **requested, resume=True)
    assert board.process("tried") is not None
    assert close(out, np.fft.fftn(values))
    assert not scratch.exists()


def test_a_run_goes_on_while_a_worker_is_busy_with_the_one_that_was_killed(tmp_path: Path) -> None:
    """That worker does all of the rest, too, and remembers tasks of the first life as they were.

    It once waited for what they depended on then, and the second life never ended.
    """
    source = tmp_path / "in.zarr"
    out = tmp_path / "out.zarr"
    scratch = tmp_path / "scratch"
    values = stored(source, *NUMBERS)
    board = Board(tmp_path / "board")
    said = tmp_path / "said"
    requested: dict[str, Any] = {"block_size": 4 * 24 * 16, "scratch": scratch}
    requested["settings"] = {"bigfft.planner.whole-axis-floor": 1}
    with Processes(tmp_path / "cluster", 1, threads=2) as cluster:
        killed(
            cluster,
            board,
            said,
            source,
            out,
            **requested,
        )
        again = started(
            run_on,
            cluster.file,
            str(said),
            source,
            out,
            **requested,
            resume=True,
        )
        again.join(LONGEST / 4)
        ended = again.exitcode
        again.kill()
        assert ended == 0, said.read_text() if said.exists() else "never done"
    assert close(out, np.fft.fftn(values))
    assert not scratch.exists()
