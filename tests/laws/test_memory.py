"""The memory contract: measured peak <= forecast <= budget, and the forecast says something.

Measured in processes of their own, above what imports and first use cost: in a memory cgroup where
one can be had, else by sampling.
"""

import contextlib
import os
import re
from importlib.util import find_spec

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait
from laws.law import damaged
from laws.peak_of_arrays import of_arrays
from laws.peak_of_files import of_files
from laws.peaks import measured, watched
from laws.prompt import Prompt
from support import local

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import PlanError
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.memory import allocate, default_arena
from dask_bigfft.memory.arena import HostArena
from dask_bigfft.memory.limits import assumed_memory
from dask_bigfft.testing.faults import DAMAGES, Times

#: What Python's own objects may take beside blocks: graph, tables, compiled code.
OBJECTS = 8 * 2**20

#: What a large buffer of the arena may be larger than what lies in it.
PAGE = 2 * 2**20

MIB = 2**20


@pytest.mark.parametrize(
    ("problem", "scale"),
    [
        (("fft", (1 << 24,), "c16", 16), 1 / 2),
        (("fftn", (512, 512, 512), "c8", 16), 1 / 8),
        (("rfftn", (512, 512, 512), "f4", 16), 1 / 4),
        (("rfftn", (16, 1024, 2048), "f4", 4), 1),  # transformed whole
    ],
)
def test_problems_of_benchmarks(tmp_path, problem, scale):
    peak, figures = measured(
        of_arrays,
        problem,
        scale,
        None,
        tmp_path,
    )
    assert figures["storage"] == "memory"
    assert figures["tight"] == figures["peak"]  # a budget of just the forecast holds the same plan
    assert peak.nbytes <= figures["peak"] + OBJECTS
    assert peak.nbytes >= 0.7 * figures["peak"]


@pytest.mark.parametrize(
    "problem",
    [
        ("rfft", (1 << 22,), "f8", 32),
        ("fft", (1 << 21,), "c16", 32),
        ("irfft", ((1 << 21) + 1,), "c16", 32),
    ],
)
def test_transforms_in_one_block(tmp_path, problem):
    """The result of the only task is counted once, and one line takes one thread of a library."""
    peak, figures = measured(
        of_arrays,
        problem,
        1,
        None,
        tmp_path,
        settings={"bigfft.planner.small": "64 MiB"},
    )
    assert figures["blocks"] == 1
    assert peak.nbytes <= figures["peak"] + OBJECTS
    assert peak.nbytes >= 0.7 * figures["peak"]


def lent_block(like, block_info=None):
    """A block of ones from the arena, which counts it."""
    values = allocate(block_info[None]["chunk-shape"], block_info[None]["dtype"])
    values.fill(1)
    return values


def arena_peak(monkeypatch, kind, shape, chunks, dtype, settings, **options):
    """Return the peak of the arena in bytes, the plan, and the result of a call on blocks of ones.

    What the arena lends at the worst moment: all blocks, but none of NumPy's own memory.
    """
    peak = 0
    plainly = HostArena.allocate

    def counting(arena, *arguments):
        nonlocal peak
        values = plainly(arena, *arguments)
        peak = max(peak, arena.counters().allocated_bytes)
        return values

    with (
        Prompt(2) as pool,
        dask.config.set(
            {
                "scheduler": "threads",
                "num_workers": 2,
                "pool": pool,
                **settings,
            }
        ),
    ):
        x = da.map_blocks(
            lent_block,
            0,
            chunks=da.core.normalize_chunks(chunks, shape),
            dtype=dtype,
            meta=np.empty((0,) * len(shape), dtype),
        )
        plan = dask_bigfft.plan(x, kind, **options)
        monkeypatch.setattr(HostArena, "allocate", counting)
        default_arena().trim()  # a block may lie in a larger buffer that was idle
        before = default_arena().counters().allocated_bytes
        result = getattr(fft, kind)(x, **options).persist()
    return peak - before, plan, result


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape", "chunks", "dtype"),
    [
        ("fft", (1 << 20,), (1 << 17,), "c16"),
        ("fft2", (768, 2048), (96, 2048), "c16"),
        ("fft2", (1024, 1536), (512, 512), "c16"),
        ("fft", (512, 2048), (128, 512), "c16"),
        ("rfftn", (96, 120, 128), (16, 120, 128), "f8"),
        ("irfftn", (96, 120, 65), (24, 120, 65), "c16"),
        ("fft", (524309,), (65539,), "c16"),  # a prime: a longer axis inside
    ],
)
def test_every_scheme_holds_no_more_blocks_than_forecast(
    monkeypatch,
    kind,
    shape,
    chunks,
    dtype,
    together,
):
    """Common memory is made of whole pages of 2 MiB where it is large."""
    settings = {"bigfft.exchange.in-place": together}
    peak, plan, result = arena_peak(
        monkeypatch,
        kind,
        shape,
        chunks,
        dtype,
        settings,
    )
    assert plan.storage == "memory"
    assert result.nbytes <= peak <= plan.expected.peak_host + PAGE


@pytest.mark.parametrize("mode", ["energy", "checksum"])
@pytest.mark.parametrize(
    ("kind", "shape", "chunks", "options"),
    [
        ("fft2", (768, 2048), (96, 2048), {}),  # the second round in common memory
        ("fft2", (8, 1 << 19), (8, 1 << 13), {"rounds": [{0: -1}, {1: -1}]}),  # in uncut blocks
        ("fft", (4, 131101), (4, 16388), {"memory_limit": "60 MiB"}),  # a prime length
    ],
)
def test_checked_rounds_hold_no_more_blocks_than_forecast(
    monkeypatch,
    kind,
    shape,
    chunks,
    options,
    mode,
):
    """With a fault, too: a tile is repeated with a copy of its values."""
    settings = {"bigfft.planner.whole-axis-floor": 1}
    damage = DAMAGES["exponent bit" if mode == "energy" else "sign bit"]
    for faults in (0, 1):
        when = Times(faults, after=20)
        damaged(monkeypatch, damage, when)
        peak, plan, result = arena_peak(
            monkeypatch,
            kind,
            shape,
            chunks,
            "c16",
            settings,
            verify=mode,
            **options,
        )
        assert plan.storage == "memory"
        assert when.left < 0
        assert result.nbytes <= peak <= plan.expected.peak_host + PAGE
        del result


@pytest.mark.parametrize("piece", [0, "128 KiB"])
def test_more_than_the_budget_goes_through_files(tmp_path, piece):
    """Without a cgroup, which would count the files; in blocks as they come, or larger."""
    peak, figures = measured(
        of_arrays,
        ("fft", (2**24,), "c16", 64),
        1 / 2,
        "40 MiB",
        tmp_path,
        cgroups=False,
        settings={"bigfft.scratch.min-write": piece},
    )
    assert figures["storage"] == "disk"
    assert figures["merged"] == (piece != 0)
    assert figures["nbytes"] == 128 * 2**20
    assert peak.nbytes <= figures["peak"] + OBJECTS
    assert figures["peak"] <= 40 * 2**20


def job(kind, size, **more):
    """What `of_files` is told to do."""
    return {
        "kind": kind,
        "kernel": "scipy",
        "size": size,
        "compressors": None,
        **more,
    }


#: Lines of 8 MiB, two to a block, of which libraries copy one or more.
ROWS = job(
    "fft",
    2**23,
    chunk=2**20,
    block_size=2**24,
)
SLABS = job(
    "fftn",
    256,
    inner=[256, 256],
    fewer=3,
    small=2**22,
    block_size=2**23,
    threads=2,
)
SLABS |= {"compressors": "auto"}
LINE = job(
    "fft",
    2**24,
    chunk=2**18,
    threads=2,
    memory_limit=120 * MIB,
)
PACKED = SLABS | {
    "size": 128,
    "chunk": 8,
    "packed": True,
    "memory_limit": 200 * MIB,
}
ZSTD = {"name": "zstd", "configuration": {"level": 12}}
THIN = {
    "rows": True,
    "local": True,
    "merges": False,
}


def stored(job, least=0.5, piece=0, **says):
    """What is run, the least part of the forecast that is used, the least bytes of a piece of a
    file, and what the plan says: a result that is stored is not kept here."""
    return job, least, piece, says


STORED = {
    "rows": stored(ROWS, rows=True, decoded=0, longest=2**19),
    "rows by another library": stored(ROWS | {"kernel": "ducc0"}, rows=True),
    "rows in small chunks": stored(
        ROWS | {"chunk": 2**16, "compressors": "auto"}, 0.4, rows=True, decoded=2**20
    ),
    # Which the C library would keep for each thread that has had some.
    "chunks side by side": stored(
        SLABS | {"chunk": 8, "memory_limit": 140 * MIB}, rows=True, decoded=8 * MIB
    ),
    # By tasks of their own, two at a time; by chance of who decodes and encodes when.
    "chunks that are blocks": stored(
        SLABS | {"chunk": 16, "memory_limit": 260 * MIB}, rows=False, decoded=16 * MIB
    ),
    "thin slabs": stored(
        SLABS | {"chunk": 1, "threads": 1, "memory_limit": 110 * MIB}, piece=768 * 2**10, **THIN
    ),
    "thick slabs": stored(
        SLABS | {"chunk": 8, "memory_limit": 160 * MIB}, piece=768 * 2**10, **THIN
    ),
    # In larger blocks than there would be memory to merge.
    "opened anew": stored(
        LINE | {"chunk": 2**14, "memory_limit": 100 * MIB},
        piece=MIB,
        rows=False,
        reopened=True,
        block=16 * MIB,
    ),
    "opened anew, decoded": stored(
        LINE | {"compressors": "auto"}, piece=MIB, reopened=True, block=16 * MIB
    ),
    "contiguous": stored(LINE | {"component": "a"}, piece=MIB, rows=False, block=16 * MIB),
    # Values have four times the bytes of what is stored.
    "packed": stored(PACKED | {"compressors": None}, 0.4),
    "packed, decoded": stored(PACKED, 0.4),
    # Results are compressed as zarr does, if nothing else is said here.
    "written as it is": stored(LINE | {"size": 2**23, "result": None}),
    "written in chunks that are cut at the end": stored(
        SLABS
        | {
            "size": 128,
            "chunk": 16,
            "compressors": None,
            "chunks": (20, 256, 256),
        },
        0.2,  # few of the blocks wait for their neighbours, and no chunk is copied
    ),
    "written by several codecs": stored(
        LINE
        | {
            "size": 2**23,
            "result": [ZSTD, {"name": "crc32c"}],
            "memory_limit": 300 * MIB,
        }
    ),
    "written in shards": stored(
        LINE
        | {
            "size": 2**23,
            "inner_chunks": (2**12,),
            "memory_limit": 300 * MIB,
        }
    ),
}


#: The case in which a chunk more may be held, depending on who decodes when.
BY_CHANCE = "chunks that are blocks"
A_CHUNK = 16 * MIB


@pytest.mark.parametrize("case", STORED)
def test_stored_arrays(tmp_path, case):
    job, least, piece, says = STORED[case]
    if job["kernel"] not in usable() or ("component" in job and not find_spec("h5py")):
        pytest.skip("not installed")
    peak, figures = measured(
        of_files,
        tmp_path,
        job,
        cgroups=False,
        settings={"bigfft.scratch.min-write": piece} if piece else {},
    )
    for name, wanted in says.items():
        value = bool(figures[name]) if isinstance(wanted, bool) else figures[name]
        assert value == wanted, name
    assert figures["piece"] >= piece
    assert figures["peak"] <= job.get("memory_limit", figures["peak"])
    objects = OBJECTS + A_CHUNK if case == BY_CHANCE else OBJECTS
    assert least * figures["peak"] <= peak.nbytes <= figures["peak"] + objects


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("workers"))
    with local(processes=True, memory_limit="640 MiB", local_directory=folder) as client:
        yield client


@pytest.mark.parametrize("carrier", ["p2p", "tasks"])
def test_workers_with_small_limits(client, carrier):
    a = np.random.default_rng(1).standard_normal(2**22) + 0j
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        small = da.from_array(a[: 2**12], chunks=2**8)
        fft.fft(small).compute()
        x = da.random.default_rng(2).standard_normal(2**22, chunks=2**18) + 0j
        plan = dask_bigfft.plan(x, "fft")
        budget = assumed_memory(640 * 2**20).budget
        assert plan.expected.peak_host <= plan.machine.memory_limit <= budget
        pids = client.run(os.getpid)
        with contextlib.ExitStack() as stack:
            peaks = [stack.enter_context(watched(pid, cgroups=False)) for pid in pids.values()]
            y = fft.fft(x).persist()
            wait(y)
        assert client.run(os.getpid) == pids  # no worker was killed
        assert max(peak.nbytes for peak in peaks) <= plan.expected.peak_host + OBJECTS
        expected = np.fft.fft(x.compute())
        assert np.linalg.norm(y.compute() - expected) <= 1e-14 * np.linalg.norm(expected)


def test_a_plan_that_cannot_hold_is_refused_with_the_numbers(client):
    x = da.zeros((2**14, 2**14), chunks=2**11, dtype=complex)
    with dask.config.set({"bigfft.exchange.carrier": "tasks"}):
        with pytest.raises(PlanError, match=r"`memory_limit`=.* at least .*640.00 MiB") as told:
            fft.fft2(x)
        limit = re.search(r"at least ([\d.]+ GiB)", str(told.value))[1]
        assert dask_bigfft.plan(x, "fft2", memory_limit=limit).expected.peak_host > 320 * 2**20
