"""Single rounds of the GPU benchmark: each scheme on a stream of blocks in host memory.

Imports `gpu_bench`, `gpu_floor` and `gpu_heard`, and `devices`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import dask
import dask.array as da
import numpy as np

from dask_bigfft.bench.gpu_bench import GIB, MIB, Array, Bench, best, held
from dask_bigfft.bench.gpu_data import even_shape, owner
from dask_bigfft.bench.gpu_floor import Staged
from dask_bigfft.bench.gpu_heard import Asked, Heard, heard
from dask_bigfft.devices.cuda_pins import is_pinned, pins
from dask_bigfft.devices.cupy_device import open_device
from dask_bigfft.devices.dispatch import job_of
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.jobs import Job, Source
from dask_bigfft.devices.transfer import TO_DEVICE, TO_HOST
from dask_bigfft.front import plan as plan_of
from dask_bigfft.planner.cost import admitted

Norm = Literal["ortho", "backward"]


def one_round(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, norm: Norm = "ortho", blocks: int = 1
) -> Job:
    """A round over axes that lie whole in each of some blocks, in place.

    The blocks lie side by side along an axis before those of `shape`.
    """
    x = da.zeros((blocks, *shape), dtype=dtype, chunks=(1, *shape))
    inner = tuple(axis + 1 for axis in axes)
    found = plan_of(x, "fftn", axes=inner, norm=norm, memory_limit="16 TiB")
    (round_,) = found.rounds
    place = (0,) * (1 + len(shape))
    return job_of(round_, place, np.dtype(dtype), np.dtype(dtype), inside=True)


def inside(engine: Engine, job: Job, block: Array) -> None:
    """A round in a block's own memory."""
    engine.run(job, Source(lambda: block))


SCHEMES = (("X", 2, (1,)), ("Y", 2, (0,)), ("1D", 1, (0,)), ("2D", 2, (0, 1)), ("3D", 3, (0, 1, 2)))


def rounds(bench: Bench, kind: str = "pinned", dtypes: Sequence[str] = ("c16", "c8")) -> None:
    """Each scheme on a stream of blocks, a few tasks at a time as the leases admit them.

    Blocks that are not pinned are pinned anew in every run, or go through the ring.
    """
    for nbytes in (4 * GIB // bench.scale, 256 * MIB // bench.scale):
        memory = _memory(bench, kind, nbytes)
        for name, ndim, axes in SCHEMES:
            for dtype in dtypes:
                if bench.results.over:
                    return
                _one_scheme(bench, kind, memory, name, ndim, axes, dtype)


def ordinary(bench: Bench) -> None:
    """The schemes on blocks that nobody has pinned, both ways."""
    for kind in ("pageable", "ring"):
        rounds(bench, kind, ("c16",))


def _memory(bench: Bench, kind: str, nbytes: int) -> list[Array]:
    if kind == "pinned":
        return bench.blocks(nbytes)
    total = bench.nbytes if kind == "ring" else bench.nbytes // 4  # pinning takes longest of all
    pageable = np.ones(total, np.uint8)
    return [pageable[low : low + nbytes] for low in range(0, total, nbytes)]


def _one_scheme(
    bench: Bench, kind: str, memory: list[Array], name: str, ndim: int, axes: tuple[int, ...],
    dtype: str,
) -> None:
    shape = even_shape(memory[0].nbytes // np.dtype(dtype).itemsize, ndim)
    job = one_round(shape, axes, dtype, blocks=len(memory))
    engine = Engine(open_device(0), bench.budget)
    blocks = [found.view(dtype).reshape(1, *shape) for found in memory]
    try:
        wanted = {"bigfft.memory.pin-arrays": kind == "pageable"}
        threads = admitted(memory[0].nbytes)
        with held(bench.budget), ThreadPoolExecutor(threads) as pool, dask.config.set(wanted):
            def work() -> None:
                pins.forsake()
                list(pool.map(partial(inside, engine, job), blocks))

            seconds = best(work, 2)
            every = (lambda _: True) if kind == "pageable" else is_pinned
            with heard(engine.device, every) as asked:
                work()
            found = engine.placed(job, engine.limits, Source(lambda: blocks[0]).arrays)
            crossings = found[0].schedule.crossings
            pins.forsake()
            engine.recover()
            inside_ = bench.memory if kind == "pinned" else ()
            allowed = bench.allowed(
                asked, seconds, inside=inside_, let_go=True,
                register=[owner(memory[0])] if kind == "pageable" else ())
        moved = len(crossings) * sum(block.nbytes for block in blocks)
        bench.results.add(
            "rounds", memory=kind, scheme=name, dtype=dtype, block_mib=memory[0].nbytes / MIB,
            gib=sum(block.nbytes for block in blocks) / GIB, seconds=seconds,
            crossings=len(crossings), gbs=moved / seconds / 1e9,
            fraction=moved / bench.duplex / seconds,
            runs=[(c.pieces, c.reads, c.writes) for c in crossings], **allowed,
        )
    finally:
        engine.close()


#: Bytes of the buffers of one direction, and of what is copied at a time, in MiB.
BUFFERS = ((256, 64), (128, 32), (64, 16), (32, 8), (16, 8))


def staging(bench: Bench) -> None:
    """What threads and engines move through buffers of several sizes, around the caches or not."""
    floor, whole, piece = bench.lent(), 4 * GIB // bench.scale, 32 * MIB // bench.scale
    floor.ordinary.append(np.ones(whole, np.uint8))
    found = Heard(lambda _: False)
    for low in range(0, whole, piece):
        for way in (TO_DEVICE, TO_HOST):
            found.copies.append(
                Asked(way, False, 0, low, (piece // 16,), (16,), "<c16", 0, (16,)))
    for nbytes, part in BUFFERS:
        for streamed in ((True, True), (False, True), (False, False)):
            if bench.results.over:
                return
            how = Staged(nbytes * MIB // bench.scale, part * MIB // bench.scale, streamed)
            seconds = floor.seconds(found, how)
            alone = floor.alone(found, how)
            bench.results.add(
                "staging", buffers_mib=nbytes, part_mib=part, around_caches=streamed,
                gbs=whole / seconds / 1e9, threads_alone_gbs=whole / alone / 1e9)
