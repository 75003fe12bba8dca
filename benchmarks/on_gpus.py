"""Arrays whose blocks live on GPUs: against CuPy on one, against torch and NCCL on several.

Ours is ``dask.persist(fft.fftn(x))`` of a persisted array, with the graph, until all GPUs are idle.
CuPy transforms the same array in one piece. By hand: a process for each GPU does local 2D FFTs,
``all_to_all_single`` and FFTs. Every result is compared with sums at 64 frequencies. *bound* is
what may be taken: 1.1 times CuPy for slabs and 1.4 times for cubes, 4 ms, and 0.25 ms a block.
"""

import functools
import itertools
import json
import operator
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from dask_bigfft import fft, plan

#: Shape, dtype, and the grids of blocks.
ONE = (
    ((1024, 1024, 1024), "c8", ((8, 1, 1), (16, 1, 1), (64, 1, 1), (2, 2, 2), (4, 4, 4))),
    ((512, 512, 512), "c8", ((8, 1, 1), (16, 1, 1), (64, 1, 1), (2, 2, 2), (4, 4, 4))),
    ((16384, 16384), "c8", ((8, 1), (16, 1), (64, 1), (4, 4), (8, 8))),
    ((512, 512, 1024), "c16", ((8, 1, 1), (16, 1, 1), (64, 1, 1), (2, 2, 2), (4, 4, 4))),
    ((1 << 28,), "c8", ((8,), (16,), (64,))),
)

#: Shape and dtype on several GPUs, in one block for each and in 8; a shape with 0 there grows.
SEVERAL = (
    ((1024, 1024, 1024), "c8"),
    ((2048, 1024, 2048), "c8"),
    ((2048, 2048, 2048), "c8"),
    ((2048, 2048, 2048), "c16"),
    ((1024, 1024, 0), "c8"),
    ((1 << 31,), "c8"),
)


@functools.cache
def cupy() -> Any:
    import cupy

    return cupy


def idle(count: int) -> None:
    """Wait for all GPUs."""
    for gpu in range(count):
        with cupy().cuda.Device(gpu):
            cupy().cuda.runtime.deviceSynchronize()


def seconds(work: Callable[[], Any], count: int, repeat: int) -> list[float]:
    """Return the seconds of calls after two that do not count."""
    found = []
    for _ in range(repeat + 2):
        idle(count)
        started = time.perf_counter()
        done = work()
        idle(count)
        found.append(time.perf_counter() - started)
        del done
    return found[2:]


def made(
    shape: Sequence[int], dtype: str, grid: Sequence[int], gpus: int, whole: Any = None
) -> da.Array:
    """Return an array of random blocks, batch after batch on each GPU, or of parts of an array."""
    chunks = da.core.normalize_chunks([-(-n // g) for n, g in zip(shape, grid, strict=True)], shape)
    places, cp, graph = list(itertools.product(*map(range, map(len, chunks)))), cupy(), {}
    name, real = f"on-gpus-{time.time_ns()}", np.dtype(dtype).type(0).real.dtype
    for number, place in enumerate(places):
        sizes = [cut[i] for cut, i in zip(chunks, place, strict=True)]
        starts = [sum(cut[:i]) for cut, i in zip(chunks, place, strict=True)]
        with cp.cuda.Device(number * gpus // len(places)):
            if whole is None:
                values = cp.random.default_rng(number).random(sizes, dtype=real) - 0.5
                graph[(name, *place)] = values.astype(dtype)
            else:
                part = tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))
                graph[(name, *place)] = whole[part].copy()
    return da.Array(graph, name, chunks, meta=cp.empty((0,) * len(shape), dtype))


def sums(x: da.Array, places: np.ndarray) -> np.ndarray:
    """Return the transform at some frequencies, one in each row of `places`."""
    cp, starts = cupy(), [np.cumsum((0, *cut)) for cut in x.chunks]
    total = np.zeros(len(places), "c16")
    for (_, *index), values in x.dask.items():
        values = getattr(values, "value", values)
        with values.device:
            found, width = values.reshape(-1, 1), 1
            for axis in reversed(range(x.ndim)):
                begin, n, length = starts[axis][index[axis]], values.shape[axis], x.shape[axis]
                for low, step in ((0, min(n, 4096)), (None, n // min(n, 4096))):
                    # Positions along an axis are those within 4,096 values, and of these.
                    at = np.arange(step) if low == 0 else np.arange(step) * min(n, 4096) + begin
                    turns = np.multiply.outer(at, places[:, axis]) % length / length
                    phase = cp.asarray(np.exp(-2j * np.pi * turns), np.result_type(x, "c8"))
                    if width == 1:
                        found = found.reshape(-1, step) @ phase
                    else:
                        found = cp.einsum("anf,nf->af", found.reshape(-1, step, width), phase)
                    width = len(places)
            total += found.sum(axis=0).get()
    return total


def values_at(x: da.Array, places: np.ndarray) -> np.ndarray:
    """Return the values of a persisted array at some places."""
    starts = [np.cumsum((0, *cut)) for cut in x.chunks]
    found = []
    for place in places.tolist():
        at = [int(np.searchsorted(s, i, "right")) - 1 for s, i in zip(starts, place, strict=True)]
        block = x.dask[(x.name, *at)]
        inner = (int(i - s[b]) for i, s, b in zip(place, starts, at, strict=True))
        found.append(complex(getattr(block, "value", block)[tuple(inner)].get()))
    return np.array(found)


def check(x: da.Array, done: da.Array) -> dict[str, Any]:
    """Return the largest error at 64 frequencies in units of the usual size, and if it is small."""
    places = np.random.default_rng(0).integers(0, done.shape, (64, x.ndim))
    error = np.abs(values_at(done, places) - sums(x, places)).max() / np.sqrt(x.size / 12)
    return found_ok(float(error), done.dtype)


def found_ok(error: float, dtype: Any) -> dict[str, Any]:
    single = np.finfo(dtype).eps > 1e-10
    return {"error": error, "ok": bool(error < (1e-4 if single else 1e-12))}


def pool_peak(work: Callable[[], Any], count: int) -> float:
    """Return the bytes that CuPy's pool grows by during a call, on the GPU where it is most."""
    pool, before, after = cupy().get_default_memory_pool(), [], []
    for gpu in range(count):
        with cupy().cuda.Device(gpu):
            pool.free_all_blocks()
            before.append(pool.used_bytes())
    work()
    for gpu in range(count):
        with cupy().cuda.Device(gpu):
            after.append(pool.total_bytes())
    return max(map(operator.sub, after, before))


def free(count: int) -> None:
    cupy().fft.config.get_plan_cache().clear()
    for gpu in range(count):
        with cupy().cuda.Device(gpu):
            cupy().get_default_memory_pool().free_all_blocks()


def one(args: Any, results: core.Results) -> None:
    """Measure arrays on one GPU against CuPy."""
    for shape, dtype, grids in ONE:
        for name, grid in itertools.product(("fftn", "rfftn", "irfftn"), grids):
            label = f"{name}, {'x'.join(map(str, shape))} {dtype}, {'x'.join(map(str, grid))}"
            if results.over or results.has("one", label):
                continue
            x = made(shape, dtype if name == "fftn" else f"f{int(dtype[1:]) // 2}", grid, 1)
            before = whole = x.compute()
            if name == "irfftn":
                whole = cupy().fft.rfftn(before)
                x = made(whole.shape, dtype, grid, 1, whole)
            row = one_row(args, x, whole, name, grid)
            if name == "irfftn":
                off = cupy().linalg.norm((fft.irfftn(x).compute() - before).ravel())
                off = float(off / cupy().linalg.norm(before.ravel()))
                row |= found_ok(off, before.dtype)
            results.add("one", label, **row)
            del x, whole, before
            free(1)


def one_row(args: Any, x: da.Array, whole: Any, name: str, grid: Sequence[int]) -> dict[str, Any]:
    """Return the figures of an array on one GPU."""
    ours, theirs = getattr(fft, name), getattr(cupy().fft, name)
    found = {} if name == "irfftn" else check(x, ours(x).persist())
    used = pool_peak(lambda: ours(x).persist(), 1)
    times = seconds(lambda: ours(x).persist(), 1, args.repeat)
    rival = statistics.median(seconds(lambda: theirs(whole), 1, args.repeat))
    bound = (1.1 if grid[0] == x.npartitions else 1.4) * rival + 4e-3 + 2.5e-4 * x.npartitions
    forecast = (plan(x, name).expected.peak_host - x.nbytes) / 2**30
    taken = statistics.median(times)
    within, peaks = taken <= bound, {"peak_gib": used / 2**30, "forecast_gib": forecast}
    return {"bigfft": taken, "cupy": rival, "bound": bound, "within": within, **peaks, **found}


def several(args: Any, results: core.Results) -> None:
    """Measure arrays on 2 and more GPUs, by each copy method, against torch and NCCL."""
    most, room = cupy().cuda.runtime.getDeviceCount(), cupy().cuda.runtime.memGetInfo()[1]
    for gpus, (shape, dtype) in itertools.product((1, 2, 4, 6, 8), SEVERAL):
        shape, peer = tuple(n or 1024 * gpus for n in shape), dict[str, Any]()
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        if gpus > most or 3.2 * size / gpus > room:
            continue
        ways = args.ways if gpus > 1 else ()
        for blocks, way in ((gpus, "auto"), (8, "auto"), *((gpus, way) for way in ways)):
            label = f"{gpus} GPUs, {'x'.join(map(str, shape))} {dtype}, {blocks} blocks, {way}"
            if results.over or results.has("several", label):
                continue
            if len(shape) == 3 and not peer:
                peer = by_hand(gpus, shape, dtype, args.repeat)
            x = made(shape, dtype, (blocks, *(1,) * (len(shape) - 1)), gpus)
            with dask.config.set({"bigfft.gpu.peer-transport": way}):
                found = check(x, fft.fftn(x).persist())
                used = pool_peak(lambda x=x: fft.fftn(x).persist(), gpus)
                times = seconds(lambda x=x: fft.fftn(x).persist(), gpus, args.repeat)
            row = {"bigfft": statistics.median(times), **peer, "peak_gib": used / 2**30, **found}
            results.add("several", label, **row)
            del x
            free(gpus)


# --- torch and NCCL -------------------------------------------------------------------------


def by_hand(gpus: int, shape: Sequence[int], dtype: str, repeat: int) -> dict[str, Any]:
    """Return the median seconds of torch and NCCL, and of the exchange alone."""
    task = json.dumps([gpus, shape, dtype, repeat])
    return core.child(["-m", "benchmarks.on_gpus", task], core.environment(), limit=0)


def rank(number: int, gpus: int, shape: Sequence[int], dtype: str, repeat: int) -> None:
    """Transform slabs in one process of several; the first prints the result."""
    import torch

    torch.cuda.set_device(number)
    torch.distributed.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:29511", rank=number, world_size=gpus
    )
    kind = {"c8": torch.complex64, "c16": torch.complex128}[dtype]
    x = torch.randn(shape[0] // gpus, *shape[1:], dtype=kind, device="cuda")
    out = torch.empty(gpus, len(x), shape[1] // gpus, shape[2], dtype=kind, device="cuda")
    flat = torch.empty_like(out)

    def exchange() -> None:
        ends = (torch.view_as_real(a) for a in (out, flat))
        torch.distributed.all_to_all_single(*ends)

    def whole() -> None:
        y = torch.fft.fft2(x).reshape(len(x), gpus, -1, shape[2]).transpose(0, 1)
        flat.copy_(y)
        del y
        exchange()
        torch.fft.fft(out.reshape(shape[0], -1, shape[2]), dim=0)

    found = {}
    for name, work in {"by_hand": whole, "exchange": exchange}.items():
        times = []
        for _ in range(repeat + 2):
            torch.cuda.synchronize()
            torch.distributed.barrier()
            torch.cuda.synchronize()
            started = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        found[name] = statistics.median(times[2:])
    if number == 0:
        print(json.dumps(found))
    torch.distributed.destroy_process_group()


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("on_gpus", __doc__, repeat=15, budget=540.0)
    ways = ["host", "staged", "swap", "kernel"]
    parser.add_argument("--ways", nargs="*", default=ways, help="copy methods between GPUs")
    args = parser.parse_args(argv)
    properties = cupy().cuda.runtime.getDeviceProperties(0)
    count = cupy().cuda.runtime.getDeviceCount()
    results = core.Results(args, "on_gpus", gpu=f"{count} x {properties['name'].decode()}")
    with dask.config.set(scheduler="threads"):
        for name in core.chosen(("one", "several"), args.only):
            {"one": one, "several": several}[name](args, results)
    return int(not results.ok)


if __name__ == "__main__":
    import torch.multiprocessing

    task = json.loads(sys.argv[1])
    torch.multiprocessing.spawn(rank, tuple(task), task[0])
