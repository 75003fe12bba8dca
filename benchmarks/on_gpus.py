"""Arrays whose blocks live on GPUs: against CuPy on one, against torch and NCCL on several.

Ours is ``dask.persist(fft.fftn(x))`` of a persisted array, with the graph, until all GPUs are idle.
CuPy transforms the same array in one piece. By hand: a process for each GPU does local 2D FFTs,
``all_to_all_single`` and FFTs. With a process for each GPU, ours runs on workers of dask-cuda.
Every result is compared with sums at 64 frequencies. *bound* is
what may be taken: 1.1 times CuPy for slabs and 1.4 times for cubes, 4 ms, and 0.25 ms a block.
"""

import functools
import itertools
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.gpu import cupy, gpus
from benchmarks.problems import blocks_of, phases
from dask_bigfft import fft, plan
from dask_bigfft.exchange.shards import exchange_map
from dask_bigfft.gpu.gather import Crossing, crosses, gathered, spread, view_of
from dask_bigfft.gpu.on_gpu import gpus as gpus_here
from dask_bigfft.gpu.peers import TRANSPORTS, transport_of
from dask_bigfft.graph.layer import cut_blocks

#: Shape, dtype, and the grids of blocks.
THREE_AXES = ((8, 1, 1), (16, 1, 1), (64, 1, 1), (2, 2, 2), (4, 4, 4))
ONE = (
    ((1024, 1024, 1024), "c8", THREE_AXES),
    ((512, 512, 512), "c8", THREE_AXES),
    ((16384, 16384), "c8", ((8, 1), (16, 1), (64, 1), (4, 4), (8, 8))),
    ((512, 512, 1024), "c16", THREE_AXES),
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


#: Shapes of complex64 with a process for each GPU.
PROCESSES = ((1024, 1024, 1024), (2048, 1024, 2048))


def on_each(count: int, work: Callable[[], Any]) -> list[Any]:
    """Return what a function returns on each of some GPUs."""
    found = []
    for gpu in range(count):
        with cupy().cuda.Device(gpu):
            found.append(work())
    return found


def seconds(
    work: Callable[[], Any], repeat: int, idle: Callable[[], Any], ready: Callable[[], Any]
) -> float:
    """Return the median seconds from `ready` until `idle` returns; ten calls do not count.

    The first ones in a process are slower, by 10 % on four GPUs.
    """
    times = []
    for _ in range(repeat + 10):
        ready()
        started = time.perf_counter()
        result = work()
        idle()
        times.append(time.perf_counter() - started)
        del result
    return statistics.median(times[10:])


def on_gpus(work: Callable[[], Any], count: int, repeat: int) -> float:
    """Return the median seconds of calls that use some GPUs of this process."""
    idle = functools.partial(on_each, count, cupy().cuda.runtime.deviceSynchronize)
    return seconds(work, repeat, idle, idle)


def made(
    shape: Sequence[int], dtype: str, grid: Sequence[int], count: int, whole: Any = None
) -> da.Array:
    """Return an array of random blocks, batch after batch on each GPU, or of parts of an array."""
    chunks = da.core.normalize_chunks([-(-n // g) for n, g in zip(shape, grid, strict=True)], shape)
    keys = list(np.ndindex(*map(len, chunks)))
    places = da.core.slices_from_chunks(chunks)
    name = f"on-gpus-{time.time_ns()}"
    graph = {}
    cp = cupy()
    for number, (key, place) in enumerate(zip(keys, places, strict=True)):
        with cp.cuda.Device(number * count // len(keys)):
            if whole is None:
                sizes = [cut.stop - cut.start for cut in place]
                graph[(name, *key)] = random_block(sizes, dtype, number)
            else:
                graph[(name, *key)] = whole[place].copy()
    return da.Array(graph, name, chunks, meta=cp.empty((0,) * len(shape), dtype))


def random_block(sizes: Sequence[int], dtype: str, number: int) -> Any:
    """Return random real values of a dtype on the current GPU."""
    real = np.dtype(dtype).type(0).real.dtype
    return (cupy().random.default_rng(number).random(sizes, dtype=real) - 0.5).astype(dtype)


def sums(block: Any, first: Sequence[int], shape: Sequence[int], places: np.ndarray) -> np.ndarray:
    """Return a block's part of the transform at some frequencies, one in each row of `places`."""
    found = block
    axes = list(zip(first, block.shape, shape, places.T, strict=True))
    with block.device:
        for start, n, length, frequencies in reversed(axes):
            width = min(n, 4096)  # the phases of a long axis would take much memory
            for at in (np.arange(width), start + width * np.arange(n // width)):
                phase = phases(length, frequencies, at).astype(np.result_type(block.dtype, "c8"))
                if found is block:
                    found = block.reshape(-1, width) @ cupy().asarray(phase)
                else:
                    found = found.reshape(-1, *phase.shape)
                    found = cupy().einsum("anf,nf->af", found, cupy().asarray(phase))
        return np.asarray(found.sum(axis=0).get(), "c16")


def values_at(block: Any, first: Sequence[int], places: np.ndarray) -> dict[int, complex]:
    """Return the values of a block at those of some places that lie in it, by number."""
    inside = np.all((places >= first) & (places < np.add(first, block.shape)), axis=1)
    numbers = np.flatnonzero(inside).tolist()
    return {i: complex(block[tuple((places[i] - first).tolist())].get()) for i in numbers}


def check(x: da.Array, done: da.Array, ask: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Return the largest error at 64 frequencies in units of the usual size, and if it is small.

    `ask` calls a function of a block where the block is.
    """
    ask = ask or (lambda function, *given: function(*given))
    places = np.random.default_rng(0).integers(0, done.shape, (64, x.ndim))
    found = np.full(len(places), np.nan, "c16")
    for first, block in blocks_of(done):
        for number, value in ask(values_at, block, first, places).items():
            found[number] = value
    expected = sum(ask(sums, block, first, x.shape, places) for first, block in blocks_of(x))
    error = np.abs(found - expected).max() / np.sqrt(x.size / 12)
    return within_tolerance(float(error), done.dtype)


def within_tolerance(error: float, dtype: Any) -> dict[str, Any]:
    single = np.finfo(dtype).eps > 1e-10
    return {"error": error, "ok": bool(error < (1e-4 if single else 1e-12))}


def measured(work: Callable[[], Any], count: int, repeat: int) -> tuple[float, float]:
    """Return median seconds, and the GiB that CuPy's pool grows by where it grows most."""
    pool = cupy().get_default_memory_pool()
    on_each(count, pool.free_all_blocks)
    before = on_each(count, pool.used_bytes)
    work()
    grown = max(map(operator.sub, on_each(count, pool.total_bytes), before))
    return on_gpus(work, count, repeat), grown / 2**30


def free(count: int) -> None:
    cupy().fft.config.get_plan_cache().clear()
    on_each(count, cupy().get_default_memory_pool().free_all_blocks)


def one(args: Any, results: core.Results) -> None:
    """Measure arrays on one GPU against CuPy."""
    for shape, dtype, grids in ONE:
        for name, grid in itertools.product(("fftn", "rfftn", "irfftn"), grids):
            label = f"{name}, {'x'.join(map(str, shape))} {dtype}, {'x'.join(map(str, grid))}"
            if results.lacks("one", label):
                results.add("one", label, **one_row(name, shape, dtype, grid, args.repeat))
                free(1)


def one_row(
    name: str, shape: Sequence[int], dtype: str, grid: Sequence[int], repeat: int
) -> dict[str, Any]:
    """Return the figures of an array on one GPU."""
    cp = cupy()
    ours = getattr(fft, name)
    theirs = getattr(cupy().fft, name)
    x = made(shape, dtype if name == "fftn" else f"f{int(dtype[1:]) // 2}", grid, 1)
    before = whole = x.compute()
    if name == "irfftn":
        whole = cp.fft.rfftn(before)
        x = made(whole.shape, dtype, grid, 1, whole)
        off = cp.linalg.norm((ours(x).compute() - before).ravel())
        verdict = within_tolerance(float(off / cp.linalg.norm(before.ravel())), before.dtype)
    else:
        verdict = check(x, ours(x).persist())
    taken, peak = measured(lambda: ours(x).persist(), 1, repeat)
    rival = on_gpus(lambda: theirs(whole), 1, repeat)
    bound = (1.1 if grid[0] == x.npartitions else 1.4) * rival + 4e-3 + 2.5e-4 * x.npartitions
    forecast = (plan(x, name).expected.peak_host - x.nbytes) / 2**30
    row = {"bigfft": taken, "cupy": rival, "bound": bound, "within": taken <= bound}
    return {**row, "peak_gib": peak, "forecast_gib": forecast, **verdict}


def several(args: Any, results: core.Results) -> None:
    """Measure arrays on 2 and more GPUs, by each copy method, against torch and NCCL."""
    most = cupy().cuda.runtime.getDeviceCount()
    room = cupy().cuda.runtime.memGetInfo()[1]
    for count, (shape, dtype) in itertools.product((8, 6, 4, 2, 1), SEVERAL):
        shape, peer = tuple(n or 1024 * count for n in shape), dict[str, Any]()
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        if count > most or 3.2 * size / count > room:
            continue
        ways = args.ways if count > 1 and size == 8 << 30 else ()
        for blocks, way in ((count, "auto"), (8, "auto"), *((count, way) for way in ways)):
            label = f"{count} GPUs, {'x'.join(map(str, shape))} {dtype}, {blocks} blocks, {way}"
            if not results.lacks("several", label):
                continue
            if len(shape) == 3 and not peer and count > 1 and 5.2 * size / count < room:
                peer = core.call(by_hand, count, shape, dtype, args.repeat)
            x = made(shape, dtype, (blocks, *(1,) * (len(shape) - 1)), count)
            with dask.config.set({"bigfft.gpu.peer-transport": way}):
                verdict = check(x, fft.fftn(x).persist())
                taken, peak = measured(lambda x=x: fft.fftn(x).persist(), count, args.repeat)
            row = {"bigfft": taken, **peer, "peak_gib": peak, **verdict}
            if peer:
                row["ratio"] = taken / peer["by_hand"]
            if way == "auto" and count > 1:
                row["bigfft_exchange"] = alone = exchange_alone(x, count, args.repeat)
                row["share"] = peer["exchange"] / alone if peer else None
            results.add("several", label, **row)
            del x
            free(count)


def exchange_alone(x: da.Array, count: int, repeat: int) -> float:
    """Return the median seconds of the first exchange between GPUs, without FFTs."""
    planned = plan(x, "fftn")
    x = cut_blocks(x, planned.chunks_in)
    before = dict(zip(np.ndindex(*x.numblocks), dask.compute(*x.to_delayed().ravel()), strict=True))

    def choice(source: int, target: int) -> str:
        return transport_of(gpus_here(), source, target)

    homes = gpus_here().homes(before)
    for exchange in planned.exchanges:
        shards = exchange_map(exchange.source, exchange.target, exchange.mirror)
        if crosses(shards, homes):
            break
        homes, found = spread(exchange.target, homes), before
        before = {
            block: gathered(
                view_of(shards, block, np.dtype(exchange.dtype), found.__getitem__, home=home)
            ).array
            for block, home in homes.items()
        }

    def once() -> None:
        crossing = Crossing(shards, exchange, homes, before, choice)
        crossing.take(before)
        for block in exchange.target.indices():
            crossing.arrived(block)
        crossing.join()

    return on_gpus(once, count, repeat)


# --- a process for each GPU -----------------------------------------------------------------


def processes(args: Any, results: core.Results) -> None:
    """Measure clusters with a worker for each GPU."""
    most = cupy().cuda.runtime.getDeviceCount()
    room = cupy().cuda.runtime.memGetInfo()[1]
    for count, protocol, shape in itertools.product((8, 6, 4, 2), args.protocols, PROCESSES):
        label = f"{count} GPUs, {'x'.join(map(str, shape))} c8, {count} blocks"
        if count > most or 3.2 * 8 * np.prod(shape, dtype=np.int64) / count > room:
            continue
        if results.lacks("processes", f"{label}, {protocol}"):
            row = core.call(on_cluster, count, protocol, shape, args.repeat)
            row = row if "bigfft" in row else {"failed": row["error"]}
            inside = results.content["sections"].get("several", [])
            known = [found["bigfft"] for found in inside if found["name"] == f"{label}, auto"]
            if "bigfft" in row and known:
                row["ratio"] = row["bigfft"] / known[0]
            results.add("processes", f"{label}, {protocol}", **row)


def on_cluster(count: int, protocol: str, shape: Sequence[int], repeat: int) -> dict[str, Any]:
    """Return the figures of an array on workers of dask-cuda."""
    import dask_cuda
    import distributed

    import dask_bigfft.cluster

    def worker_block(block_info: Any) -> Any:
        block = block_info[None]
        return random_block(block["chunk-shape"], "c8", block["chunk-location"][0])

    with (
        dask_cuda.LocalCUDACluster(
            n_workers=count,
            host="127.0.0.1",
            protocol=protocol,
            dashboard_address="127.0.0.1:0",
            threads_per_worker=1,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        dask_bigfft.cluster.register(client)
        chunks = ((shape[0] // count,) * count, *((n,) for n in shape[1:]))
        meta = cupy().empty((0,) * len(shape), "c8")
        x = da.map_blocks(worker_block, chunks=chunks, dtype="c8", meta=meta).persist()
        distributed.wait(x)

        def whole() -> None:
            distributed.wait(fft.fftn(x).persist())

        def idle() -> None:
            client.run(cupy().cuda.runtime.deviceSynchronize)

        def ask(function: Callable[..., Any], *given: Any) -> Any:
            return client.submit(function, *given).result()

        verdict = check(x, fft.fftn(x).persist(), ask)
        return {"bigfft": seconds(whole, repeat, idle, idle), **verdict}


# --- torch and NCCL -------------------------------------------------------------------------


def by_hand(count: int, *task: Any) -> dict[str, Any]:
    """Return the median seconds of torch and NCCL, and of the exchange alone."""
    from torch import multiprocessing

    answer = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(rank, (answer, count, *task), count)
    return answer.get()


def rank(
    number: int, answer: Any, count: int, shape: Sequence[int], dtype: str, repeat: int
) -> None:
    """Transform slabs in one process of several; the first one answers."""
    import torch

    torch.cuda.set_device(number)
    torch.distributed.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:29511", rank=number, world_size=count
    )
    kind = {"c8": torch.complex64, "c16": torch.complex128}[dtype]
    x = torch.randn(shape[0] // count, *shape[1:], dtype=kind, device="cuda")
    out = torch.empty(count, len(x), shape[1] // count, shape[2], dtype=kind, device="cuda")
    flat = torch.empty_like(out)

    def exchange() -> None:
        torch.distributed.all_to_all_single(*map(torch.view_as_real, (out, flat)))

    def whole() -> None:
        flat.copy_(torch.fft.fft2(x).reshape(len(x), count, -1, shape[2]).transpose(0, 1))
        exchange()
        torch.fft.fft(out.reshape(shape[0], -1, shape[2]), dim=0)

    def together() -> None:
        torch.cuda.synchronize()
        torch.distributed.barrier()
        torch.cuda.synchronize()

    found = {
        name: seconds(work, repeat, torch.cuda.synchronize, together)
        for name, work in {"by_hand": whole, "exchange": exchange}.items()
    }
    if number == 0:
        answer.put(found)
    torch.distributed.destroy_process_group()


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("on_gpus", __doc__, repeat=15, budget=540.0)
    parser.add_argument("--ways", nargs="*", default=TRANSPORTS, help="copy methods between GPUs")
    parser.add_argument("--protocols", nargs="*", default=("ucx", "tcp"), help="of dask-cuda")
    args = parser.parse_args(argv)
    results = core.Results(args, "on_gpus", gpu=gpus())
    with dask.config.set(scheduler="threads"):
        for name in core.chosen(("one", "several", "processes"), args.only):
            {"one": one, "several": several, "processes": processes}[name](args, results)
    return int(not results.ok)
