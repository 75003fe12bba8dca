"""Runs at the same time on two workers, which share a scratch folder, or the folder above it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
from runs.resuming import close, stored
from support import in_threads

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import ArgumentError
from dask_bigfft.runs import resumable
from dask_bigfft.testing.traps import until

pytest.importorskip("zarr")

VALUES = np.random.default_rng(3).normal(size=2**12) + 0j
ASKED = {"block_size": 2**12, "resume": True}


@pytest.fixture
def folder(client, tmp_path):
    """A folder with a source that both workers see."""
    stored(tmp_path / "in.zarr", VALUES, (2**8,))
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        yield tmp_path


def attempt(
    folder,
    kind,
    out,
    scratch,
):
    """Do a run; return what it says."""
    try:
        dask_bigfft.run(folder / "in.zarr", folder / out, kind, scratch=folder / scratch, **ASKED)
    except ArgumentError as error:
        return str(error)
    return "done"


def during(
    monkeypatch,
    folder,
    first,
    second,
):
    """Do the second run in the middle of the first; return what each says."""
    begun = threading.Event()
    go_on = threading.Event()
    real = resumable._make

    def make(*args):
        begun.set()
        assert go_on.wait(60)
        real(*args)

    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patch:
        patch.setattr(resumable, "_make", make)
        future = threads.submit(attempt, folder, *first)
        assert begun.wait(60)
        said = attempt(folder, *second)
        go_on.set()
        return future.result(60), said


@pytest.mark.parametrize(
    ("used", "other"),
    [
        ("scratch", ("ifft", "other.zarr")),
        ("scratch", ("fft", "out.zarr")),
        ("scratch/inner", ("ifft", "other.zarr")),
    ],
)
def test_a_scratch_folder_is_refused_while_a_run_uses_it_or_one_inside(
    folder,
    monkeypatch,
    used,
    other,
):
    """By another run, and by the same one that is started twice; later it is free."""
    calls = [("fft", "out.zarr", used), (*other, "scratch")]
    first, second = during(monkeypatch, folder, *calls)
    assert first == "done"
    assert "`scratch`=" in second
    assert close(folder / "out.zarr", np.fft.fft(VALUES))
    process = dask_bigfft.run(
        folder / "in.zarr", folder / other[1], other[0], scratch=folder / "scratch", **ASKED
    )
    assert process.already == (other[1] == "out.zarr")
    assert sorted(p.name for p in folder.iterdir()) == sorted({"in.zarr", "out.zarr", other[1]})


def test_runs_whose_scratch_folders_are_neighbours_go_on_together(folder):
    calls = [("fft", "out.zarr", "all/one"), ("ifft", "other.zarr", "all/two")]
    assert in_threads(2, lambda number: attempt(folder, *calls[number])) == ["done", "done"]
    assert close(folder / "out.zarr", np.fft.fft(VALUES))
    assert close(folder / "other.zarr", np.fft.ifft(VALUES))
    assert list((folder / "all").iterdir()) == []


def test_graphs_share_a_scratch_directory(client, tmp_path):
    """Four at a time, of equal and of other arrays; nothing stays."""
    options = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.directory": str(tmp_path)}
    with dask.config.set(options):
        x = da.from_array(VALUES, chunks=2**8)
        lazy = [fft.fft(x), fft.ifft(x), fft.fft(x), fft.fft(2 * x)]
        futures = client.compute(lazy)
        answers = [future.result(60) for future in futures]
        del futures
    wanted = [np.fft.fft(VALUES), np.fft.ifft(VALUES), np.fft.fft(VALUES), np.fft.fft(2 * VALUES)]
    assert close(np.stack(answers), np.stack(wanted))
    until(lambda: not list(tmp_path.iterdir()))  # the last worker to hear of it deletes the folder
