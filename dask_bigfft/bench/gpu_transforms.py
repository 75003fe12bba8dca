"""Whole transforms of the GPU benchmark: data larger than the card, against libraries and loops.

Imports `gpu_bench`, `gpu_data`, `gpu_heard` and `gpu_peers`, and `devices`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask
import numpy as np

from dask_bigfft import fft
from dask_bigfft.bench import gpu_peers
from dask_bigfft.bench.gpu_bench import GIB, MIB, Array, Bench, best, held
from dask_bigfft.bench.gpu_data import distance, even_shape, fill, lazy, owner
from dask_bigfft.bench.gpu_heard import Heard, heard
from dask_bigfft.devices import find
from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.cuda_pins import is_pinned, pins
from dask_bigfft.devices.cupy_device import open_device
from dask_bigfft.front import plan as plan_of
from dask_bigfft.memory import configure, default_arena, lend

NAMES = {1: "1D", 2: "2D", 3: "3D"}

#: A number of dimensions, a dtype, and names of loops.
Case = tuple[int, str, tuple[str, ...]]


def transforms(bench: Bench, chunks: Sequence[int], cases: Sequence[Case]) -> None:
    """Out-of-card transforms of all the data, against the CPU and against loops over the card."""
    for ndim, dtype, loops in cases:
        if bench.results.over:
            return
        memory = bench.blocks(max(chunks))
        shape = even_shape(bench.nbytes // np.dtype(dtype).itemsize, ndim)
        fill(memory, dtype)
        expected = _cpu(bench, memory, shape, dtype)
        for nbytes in chunks:
            if not bench.results.over:
                _ours(bench, bench.blocks(nbytes), shape, dtype, expected)
        _loops(bench, expected, shape, dtype, loops)
        del expected


def pageable(bench: Bench, chunks: Sequence[int]) -> None:
    """Out-of-card transforms of data that nobody has pinned, as users' arrays are.

    They are pinned anew in every run, or go through the ring.
    """
    memory = np.empty(bench.nbytes, np.uint8)
    fill(np.split(memory, bench.nbytes // max(chunks)), "c16")
    for ndim in (2, 3, 1):
        shape = even_shape(bench.nbytes // 16, ndim)
        for nbytes in chunks:
            for source in ("pageable", "ring"):
                if bench.results.over:
                    return
                blocks = np.split(memory, bench.nbytes // nbytes)
                with dask.config.set({"bigfft.memory.pin-arrays": source == "pageable"}):
                    _ours(bench, blocks, shape, "c16", None, source)
        pins.forsake()


def large(bench: Bench, nbytes: int, budget: int, block_nbytes: int) -> None:
    """Transforms of more data, with a larger budget, of which nobody has another answer."""
    bench.memory, bench.nbytes, bench.budget = [], nbytes, budget
    set_arena(3 * nbytes + block_nbytes)  # what comes in, what goes out, and what is between
    default_arena().trim()
    for ndim in (1, 2, 3):
        if not bench.results.over:
            shape = even_shape(nbytes // 16, ndim)
            _ours(bench, bench.blocks(block_nbytes), shape, "c16", None)


def set_arena(nbytes: int) -> None:
    """Let the arena hold so much: beyond it blocks are not pinned."""
    configure(nbytes)
    dask.config.set({"bigfft.memory.arena-limit": nbytes})


def _cpu(bench: Bench, memory: list[Array], shape: tuple[int, ...], dtype: str) -> Array:
    """The answer, and the time of the CPU's libraries."""
    x = lend(shape, dtype)
    parts = np.split(x.reshape(-1).view(np.uint8), len(memory))
    for block, part in zip(memory, parts, strict=True):
        part[...] = block
    out = lend(shape, dtype)
    for name, run in gpu_peers.cpu_libraries(len(shape), best=True).items():
        seconds = best(partial(run, x, out), 1)
        bench.results.add("cpu", peer=name, shape=shape, dtype=dtype, seconds=seconds)
    return out


def _ours(
    bench: Bench, memory: list[Array], shape: tuple[int, ...], dtype: str, expected: Array | None,
    source: str = "pinned",
) -> None:
    x = lazy(memory, shape, dtype)
    keywords: Any = {"device": "gpu", "device_memory_limit": bench.budget, "norm": "ortho"}
    found = plan_of(x, "fftn", **keywords)
    find.release()  # what is kept on the card, so that it can be held
    with held(bench.budget), dask.config.set(scheduler="threads"):
        times = []
        for _ in range(3):
            pins.forsake()
            began = time.perf_counter()
            done = fft.fftn(x, **keywords).persist()
            times.append(time.perf_counter() - began)
            error = None if expected is None or len(times) < 3 else distance(done, expected)
            del done
        with asked_of(source) as asked:
            before = int(cupy().cuda.runtime.memGetInfo()[0])
            least = gpu_peers.least_free(lambda: fft.fftn(x, **keywords).persist())
        register = [owner(memory[0])] if source == "pageable" else ()
        allowed = bench.allowed(asked, min(times[1:]), register=register)
    moved = len(found.exchanges) * bench.nbytes  # a reordering after the last round counts
    bench.results.add(
        "transforms" if source == "pinned" else "pageable", source=source,
        name=NAMES[len(shape)], shape=shape, dtype=dtype,
        block_mib=memory[0].nbytes / MIB, rounds=found.notation,
        exchanges=len(found.travelling), seconds=min(times[1:]), first=times[0],
        gib=bench.nbytes / GIB, budget_gib=bench.budget / GIB, crossings=len(found.exchanges),
        fraction=moved / bench.duplex / min(times[1:]), error=error,
        device_peak=(before - least) / bench.budget, **allowed,
    )


@contextmanager
def asked_of(source: str) -> Iterator[Heard]:
    """Write down what the card is asked to copy, from now on, by transforms that run meanwhile."""
    device = open_device(0)
    find.use([device])
    try:
        with heard(device, (lambda _: True) if source == "pageable" else is_pinned) as found:
            pins.forsake()
            yield found
    finally:
        find.use(None)
        pins.forsake()


def _loops(
    bench: Bench, x: Array, shape: tuple[int, ...], dtype: str, names: tuple[str, ...]
) -> None:
    """The loops that users write, on data that is overwritten, after one that does not count.

    The pageable one takes so long that it first does a small part instead.
    """
    loops = gpu_peers.LOOPS if len(shape) > 1 else gpu_peers.LONG_LOOPS
    for name in names:
        run = loops[name]
        if bench.results.over:
            return
        pinned = name.startswith("pinned")
        values = x if pinned else np.ones(shape, dtype)
        with held(bench.budget):
            if not pinned:
                run(values[: max(1, shape[0] // 64)], bench.budget)
            seconds = best(partial(run, values, bench.budget), 2 if pinned else 0)
        bench.results.add("loops", peer=name, shape=shape, dtype=dtype, seconds=seconds)
        del values
