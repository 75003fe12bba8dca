"""A run that lost what was not on the disk is resumed to the bit, or its resume is refused."""

import itertools
import os
import random
import shutil
import warnings
from typing import Any

import dask
import numpy as np
import pytest
from runs.power import CONTENTS, NAMES, Disk
from runs.resuming import contents

import dask_bigfft
from dask_bigfft.errors import ArgumentError

zarr = pytest.importorskip("zarr")

SLOW = bool(os.environ.get("BIGFFT_SLOW"))

#: Every how many moments of a run the power is lost, and how many losses are tried then.
EVERY, TIMES = (5, 15) if SLOW else (20, 3)

#: Most moments of a run that are tried.
MOST = 1000 if SLOW else 8

LINE = np.random.default_rng(1).normal(size=2**11) + 0j

#: Rows of which the spectrum has one value that is not zero, between many that are.
STRIPES = np.random.default_rng(2).normal(size=(64, 1)) * (-1.0) ** np.arange(64) + 0j

#: Source, its chunks, destination, and arguments of a run.
RUNS: dict[str, tuple[np.ndarray, tuple[int, ...], str, dict[str, Any]]] = {
    "axis": (LINE, (2**9,), "out.zarr", {"block_size": 2**13}),
    "rows": (STRIPES, (16, 64), "out.zarr", {"block_size": 2**14}),
    "shards": (STRIPES, (16, 64), "out.zarr", {"block_size": 2**14, "inner_chunks": (8, 32)}),
    "replacing": (LINE, (2**9,), "old.zarr", {"block_size": 2**13, "overwrite": True}),
    "in place": (LINE, (2**9,), "in.zarr", {"block_size": 2**13, "overwrite": True}),
}


@pytest.fixture(params=RUNS)
def prepared(request, tmp_path, monkeypatch):
    """A folder with a source, and what resumes a run there; it returns the result's files."""
    values, chunks, destination, requested = RUNS[request.param]
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    zarr.create_array(folder / "in.zarr", data=values, chunks=chunks)
    zarr.create_array(folder / "old.zarr", shape=(8,), chunks=(4,), dtype="f8")[...] = 1

    def resume():
        source, out, scratch = (folder / name for name in ("in.zarr", destination, "scratch"))
        dask_bigfft.run(
            source,
            out,
            "fft",
            scratch=scratch,
            resume=True,
            **requested,
        )
        names = [path.name for path in folder.iterdir() if any(path.iterdir())]
        by_path = contents(folder).items()
        return sorted(names), {name: data for name, data in by_path if "zarr.json" not in name}

    with dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1}):
        yield folder, resume


def losses(rng):
    """Return what a loss of power may leave, in some order."""
    every = list(itertools.product(NAMES, CONTENTS))
    return rng.sample(every, min(TIMES, len(every)))


def is_refused(answer):
    """Whether a run was refused since the mark of its result was half written."""
    return isinstance(answer, str) and "delete both folders to start over" in answer


def said(resume):
    """Return what a run has made, or why it is refused."""
    try:
        return resume()
    except ArgumentError as error:
        return str(error)


@pytest.mark.parametrize("sync", [False, True])
def test_a_run_that_lost_power_is_resumed_to_the_bit(prepared, sync):
    """With `sync` nothing that is recorded is lost, where the disk keeps the order of names."""
    folder, resume = prepared
    rng = random.Random(int(os.environ.get("BIGFFT_SEED", "27")))
    first = rng.randrange(EVERY)
    refused = 0
    with dask.config.set({"bigfft.scratch.sync": sync}):
        with Disk(folder, lambda number: number % EVERY == first) as disk:
            wanted = resume()
        assert len(disk.moments) >= 2
        for moment in rng.sample(disk.moments, min(MOST, len(disk.moments))):
            for names, left in losses(rng):
                moment.restore(folder, names, left, rng)
                silent = sync and names != "any"
                with warnings.catch_warnings():
                    warnings.simplefilter("error" if silent else "ignore", RuntimeWarning)
                    answer = said(resume)
                assert answer == wanted or is_refused(answer), (names, left)
                refused += is_refused(answer)
    assert refused <= TIMES  # of the moment between a mark and its sync


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_power_that_is_lost_again_and_again(prepared):
    """Also while the run is resumed, and while damage is repaired."""
    folder, resume = prepared
    rng = random.Random(27)
    copy = shutil.copytree(folder, "kept")
    with Disk(folder, lambda number: False) as disk:
        wanted = resume()
    most = next(disk.count)
    for _ in range(20 if SLOW else 2):
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        for _ in range(5):
            last = rng.randrange(most // 3)
            with Disk(folder, lambda number, last=last: number == last) as disk:
                resume()
            for moment in disk.moments:
                moment.restore(folder, "any", "any", rng)
        assert resume() == wanted
