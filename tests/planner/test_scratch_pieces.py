"""Scratch files are written in pieces of at least 1 MiB where memory has room for such blocks."""

import collections
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.dask_private import original_of
from dask_bigfft.planner import search, strategies
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import RunRequest, planned_input
from dask_bigfft.storage import sources
from dask_bigfft.testing.strategies import random_array

MIB = 1 << 20
GIB = 1 << 30
AS_THEY_COME = {"bigfft.scratch.min-write": 0}

#: Kind, shape, chunks, memory limit: 4 to 64 times as many bytes of complex64 as memory.
LARGER = {
    "1D, 4 times": ("fft", (2**27,), 2**21, 256 * MIB),
    "1D, 16 times": ("fft", (2**32,), 2**24, 2 * GIB),
    "1D, 64 times": ("fft", (2**34,), 2**24, 2 * GIB),
    "2D, 4 times": ("fft2", (2**13, 2**14), (2**7, 2**14), 256 * MIB),
    "2D, 32 times": ("fft2", (2**16, 2**17), (2**5, 2**17), 2 * GIB),
    "real 1D, 8 times": ("rfft", (2**32,), 2**22, 2 * GIB),
}


@pytest.fixture(autouse=True)
def two_threads():
    strategies.find_cached_plan.cache_clear()  # which knows nothing of what a test patches
    with dask.config.set({"scheduler": "threads", "num_workers": 2}):
        yield
    strategies.find_cached_plan.cache_clear()


def planned(
    kind: str,
    shape: tuple[int, ...],
    chunks: object,
    limit: int,
) -> tuple[Plan, Plan]:
    """The plan, and the one in blocks as they come."""
    x = da.zeros(shape, chunks=chunks, dtype="f4" if kind == "rfft" else "c8")
    plan = dask_bigfft.plan(x, kind, memory_limit=limit)
    with dask.config.set(AS_THEY_COME):
        return plan, dask_bigfft.plan(x, kind, memory_limit=limit)


@pytest.mark.parametrize("case", LARGER)
def test_pieces_are_large_where_memory_has_room(case: str) -> None:
    plan, small = planned(*LARGER[case])
    assert plan.storage == small.storage == "disk"
    assert small.piece_nbytes < MIB <= plan.piece_nbytes
    assert plan.expected.peak_host <= plan.machine.memory_limit
    assert plan.expected.seconds <= search.ALIKE * small.expected.seconds
    assert plan.source.blocks >= search.FEWEST
    assert "pieces of" in plan.explain(details=True)
    assert Plan.from_json(plan.to_json()) == plan


def stored(
    folder: Path,
    shape: Any,
    chunks: Any,
    limit: int,
    compressed: bool,
    compressors: Any = None,
) -> RunRequest:
    """The run of an array of complex64 in files; its result has the compressors."""
    zarr = pytest.importorskip("zarr")
    options: Any = {} if compressed else {"compressors": None}
    zarr.create_array(
        folder / "in.zarr",
        shape=shape,
        dtype="c8",
        chunks=chunks,
        **options,
    )
    return RunRequest(
        folder / "in.zarr",
        folder / "out.zarr",
        missing_chunks="fill",
        compressors=compressors,
        options={"memory_limit": limit},
    )


@pytest.mark.parametrize(
    ("gib", "shape", "chunks", "threads", "compressed"),
    [
        (2, (2**17, 2**17), (2**5, 2**17), 2, False),
        (2, (2**17, 2**17), (2**12, 2**12), 2, False),
        (1, (2**11, 2**11, 2**11), (4, 2**11, 2**11), 2, False),
        (1, (2**11, 2**11, 2**11), (2, 2**11, 2**11), 1, True),
    ],
)
def test_stored_planes_and_slabs_at_64_times_the_memory(
    gib: int,
    shape: Any,
    chunks: Any,
    threads: int,
    compressed: bool,
    tmp_path: Path,
) -> None:
    """The first round reads the array: nothing merges chunks, and large ones are read in parts."""
    with dask.config.set(num_workers=threads):
        _, plan = planned_input(stored(tmp_path, shape, chunks, gib * GIB, compressed))
    assert plan.storage == "disk"
    assert plan.moves == (False, True)  # read once, written to scratch files once
    assert plan.from_rows
    assert not plan.merges
    assert plan.piece_nbytes >= MIB
    assert plan.expected.peak_host <= gib * GIB


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((2**15, 2**16), (2**5, 2**16)),
        ((2**9, 2**11, 2**11), (4, 2**11, 2**11)),
        ((2**31,), (2**20,)),
    ],
)
def test_compressed_results_at_16_times_the_memory(shape: Any, chunks: Any, tmp_path: Path) -> None:
    """A task that compresses a chunk has it twice."""
    with dask.config.set(num_workers=2):
        _, plan = planned_input(stored(tmp_path, shape, chunks, GIB, False, "auto"))
    assert plan.storage == "disk"
    assert plan.piece_nbytes >= MIB
    assert plan.expected.peak_host <= GIB


@pytest.mark.parametrize(
    ("gib", "chunk", "compressed"),
    [
        (1, 2**20, False),
        (2, 2**24, True),
    ],
)
def test_a_stored_line_at_64_times_the_memory(
    gib: int,
    chunk: int,
    compressed: bool,
    tmp_path: Path,
) -> None:
    """Read in blocks as they are wanted, where tasks that merge would have each block twice."""
    requested = stored(
        tmp_path,
        gib * 2**33,
        chunk,
        gib * GIB,
        compressed,
    )
    x, plan = planned_input(requested)
    assert plan.reopened
    assert plan.incoming is None
    assert x.chunks == plan.chunks_in
    assert sources.stored_reader(original_of(x), x).few
    assert len(x.chunks[0]) < len(sources.open_reader(requested.source).array().chunks[0])
    assert all(cut % chunk == 0 for cut in x.chunks[0])  # each stored chunk is in one block
    assert plan.piece_nbytes >= MIB
    assert plan.expected.peak_host <= gib * GIB
    assert "open      the stored array in" in plan.explain(details=True)
    assert "costs nothing" not in plan.explain(details=True)  # the result has not the stored chunks
    as_given = replace(requested, block_size="128 MiB")
    assert planned_input(as_given)[1].piece_nbytes < plan.piece_nbytes


def test_small_arrays_keep_their_blocks() -> None:
    with dask.config.set({"bigfft.exchange.carrier": "disk"}):
        x = da.zeros((2**20,), chunks=2**14, dtype="c16")  # no 16 blocks of it give such pieces
        plan = dask_bigfft.plan(x, "fft")
        assert plan.chunks == x.chunks
        assert plan.incoming is None
        with dask.config.set(AS_THEY_COME):
            unchanged = dask_bigfft.plan(x, "fft")
    assert replace(unchanged, reason="") == replace(plan, reason="")


def test_what_is_written_is_counted(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the calls of the system, of a transform in 256 blocks of 16 KiB."""
    counted: collections.Counter[int] = collections.Counter()
    write = os.pwritev

    def counting(handle: int, values: list[memoryview], begin: int) -> int:
        written = write(handle, values, begin)
        counted[written] += 1
        return written

    monkeypatch.setattr(os, "pwritev", counting)
    values = random_array((2**18,), "c16", 3)
    with dask.config.set(
        {
            "bigfft.exchange.carrier": "disk",
            "bigfft.scratch.directory": str(tmp_path),
            "bigfft.scratch.min-write": "16 kiB",
            "bigfft.planner.min-chunk": 0,
        }
    ):
        x = da.from_array(values, chunks=2**10)
        plan = dask_bigfft.plan(x, "fft", memory_limit="8 MiB")
        result = fft.fft(x, memory_limit="8 MiB").compute()
    expected = np.fft.fft(values)
    assert np.linalg.norm(result - expected) <= 1e-14 * np.linalg.norm(expected)
    exchanges = len(plan.travelling)
    assert sum(n * count for n, count in counted.items()) == exchanges * values.nbytes
    assert exchanges == 3
    assert min(counted) >= 16 << 10
