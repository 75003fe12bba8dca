"""Arrays whose blocks live on GPUs: against CuPy on one, against torch and NCCL on several.

Ours is ``dask.persist(fft.fftn(x))`` of a persisted array, with the graph, until all GPUs are idle.
CuPy transforms the same array in one piece. By hand: a process for each GPU does local 2D FFTs,
``all_to_all_single`` and FFTs. With a process for each GPU, ours runs on workers of dask-cuda.
Every result is compared with sums at 64 frequencies. *bound* is
what may be taken: 1.1 times CuPy for slabs and 1.4 times for cubes, 4 ms, and 0.25 ms a block;
for filters 1.15 times ``irfftn(rfftn(x) * h)`` by CuPy and 4 ms.
"""

import functools
import itertools
import math
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.gpu import cupy, gpus
from benchmarks.operators import check as sums_of_neighbours
from benchmarks.operators import cosines, frequencies_of
from benchmarks.problems import Problem, blocks_of, phases
from dask_bigfft import fft, plan, signal
from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.shards import exchange_map
from dask_bigfft.gpu.gather import Crossing, crosses, gathered, spread, view_on_gpu
from dask_bigfft.gpu.links import gpus as gpus_here
from dask_bigfft.gpu.peers import TRANSPORTS, transport_of
from dask_bigfft.graph.cutting import cut_blocks

#: Shape, dtype, and the grids of blocks.
THREE_AXES = ((8, 1, 1), (16, 1, 1), (64, 1, 1), (2, 2, 2), (4, 4, 4))
ONE = (
    ((1024, 1024, 1024), "c8", THREE_AXES),
    ((512, 512, 512), "c8", THREE_AXES),
    ((16384, 16384), "c8", ((8, 1), (16, 1), (64, 1), (4, 4), (8, 8))),
    ((512, 512, 1024), "c16", THREE_AXES),
    ((1 << 28,), "c8", ((8,), (16,), (64,))),
)

#: Shape, dtype and grids of real arrays that are filtered.
FILTERED = (((1024, 1024, 1024), "f4", ((1, 1, 1), (8, 1, 1), (2, 2, 2), (4, 4, 4))),)

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
    results = []
    for gpu in range(count):
        with cupy().cuda.Device(gpu):
            results.append(work())
    return results


#: Calls that do not count: the first ones in a process are slower, by 10 % on four GPUs.
WARM_UP = 10


def seconds(
    work: Callable[[], Any],
    repeat: int,
    idle: Callable[[], Any],
    ready: Callable[[], Any],
) -> float:
    """Return the median seconds from `ready` until `idle` returns, after `WARM_UP` calls."""
    times = []
    for _ in range(WARM_UP + repeat):
        ready()
        started = time.perf_counter()
        result = work()
        idle()
        times.append(time.perf_counter() - started)
        del result
    return statistics.median(times[WARM_UP:])


def on_gpus(work: Callable[[], Any], count: int, repeat: int) -> float:
    """Return the median seconds of calls that use some GPUs of this process."""
    idle = functools.partial(on_each, count, cupy().cuda.runtime.deviceSynchronize)
    return seconds(work, repeat, idle, idle)


def random_array(shape: Sequence[int], dtype: str, grid: Sequence[int], count: int) -> da.Array:
    """Return an array of random blocks, batch after batch on each of some GPUs."""

    def block(number: int, place: tuple[slice, ...]) -> Any:
        sizes = [part.stop - part.start for part in place]
        return random_block(sizes, dtype, number)

    return blockwise(shape, dtype, grid, count, block)


def cut(whole: Any, grid: Sequence[int]) -> da.Array:
    """Return an array of one GPU in blocks with memory of their own."""
    return blockwise(whole.shape, whole.dtype, grid, 1, lambda number, place: whole[place].copy())


def blockwise(
    shape: Sequence[int],
    dtype: Any,
    grid: Sequence[int],
    count: int,
    block: Callable[[int, tuple[slice, ...]], Any],
) -> da.Array:
    """Return an array of the blocks of a function of their number and place, on some GPUs."""
    cp = cupy()
    lengths = [-(-n // blocks) for n, blocks in zip(shape, grid, strict=True)]
    chunks = da.core.normalize_chunks(lengths, shape)
    indices = list(np.ndindex(*map(len, chunks)))
    places = da.core.slices_from_chunks(chunks)
    name = f"on-gpus-{time.time_ns()}"
    graph = {}
    for number, (index, place) in enumerate(zip(indices, places, strict=True)):
        with cp.cuda.Device(number * count // len(indices)):
            graph[(name, *index)] = block(number, place)
    return da.Array(graph, name, chunks, meta=cp.empty((0,) * len(shape), dtype))


def random_block(sizes: Sequence[int], dtype: str, number: int) -> Any:
    """Return random real values of a dtype on the current GPU."""
    real = np.dtype(dtype).type(0).real.dtype
    return (cupy().random.default_rng(number).random(sizes, dtype=real) - 0.5).astype(dtype)


def sums(block: Any, first: Sequence[int], shape: Sequence[int], places: np.ndarray) -> np.ndarray:
    """Return a block's part of the transform at some frequencies, one in each row of `places`.

    Axes are summed from the last to the first, each in parts of up to 4,096 elements, because the
    phases of a long axis would take much memory.
    """
    partial_sums = None
    dtype = np.result_type(block.dtype, "c8")
    with block.device:
        for axis in reversed(range(block.ndim)):
            n = block.shape[axis]
            width = min(n, 4096)
            for indices in (np.arange(width), first[axis] + width * np.arange(n // width)):
                phase = cupy().asarray(phases(shape[axis], places[:, axis], indices).astype(dtype))
                if partial_sums is None:
                    partial_sums = block.reshape(-1, width) @ phase
                else:
                    rows = partial_sums.reshape(-1, *phase.shape)
                    partial_sums = cupy().einsum("anf,nf->af", rows, phase)
        return np.asarray(partial_sums.sum(axis=0).get(), "c16")


def values_at(block: Any, first: Sequence[int], places: np.ndarray) -> dict[int, complex]:
    """Return the values of a block at those of some places that lie in it, by number."""
    inside = np.all((places >= first) & (places < np.add(first, block.shape)), axis=1)
    numbers = np.flatnonzero(inside).tolist()
    return {i: complex(block[tuple((places[i] - first).tolist())].get()) for i in numbers}


def call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, called in this process."""
    return function(*arguments)


def check(
    x: da.Array,
    result: da.Array,
    call: Callable[..., Any] = call_here,
) -> dict[str, Any]:
    """Return the largest error at 64 frequencies in units of the usual size, and if it is small.

    `call` calls a function of a block in the process that has the block.
    """
    places = np.random.default_rng(0).integers(0, result.shape, (64, x.ndim))
    values = np.full(len(places), np.nan, "c16")
    for first, block in blocks_of(result):
        for number, value in call(values_at, block, first, places).items():
            values[number] = value
    expected = sum(call(sums, block, first, x.shape, places) for first, block in blocks_of(x))
    error = np.abs(values - expected).max() / np.sqrt(x.size / 12)
    return within_tolerance(float(error), result.dtype)


def within_tolerance(error: float, dtype: Any) -> dict[str, Any]:
    """Return an error, and whether it is small for a dtype."""
    is_single = np.finfo(dtype).eps > 1e-10
    tolerance = 1e-4 if is_single else 1e-12
    return {"error": error, "ok": bool(error < tolerance)}


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


def on_one_gpu(args: Any, results: core.Results) -> None:
    """Measure arrays on one GPU against CuPy."""
    for shape, dtype, grids in ONE:
        for name, grid in itertools.product(("fftn", "rfftn", "irfftn"), grids):
            label = f"{name}, {'x'.join(map(str, shape))} {dtype}, {'x'.join(map(str, grid))}"
            if results.lacks("one", label):
                row = one_row(name, shape, dtype, grid, args.repeat)
                results.add("one", label, **row)
                free(1)


def against_cupy(our_seconds: float, cupy_seconds: float, bound: float) -> dict[str, Any]:
    """Return the seconds of both, what ours may take, and whether they do."""
    return {
        "bigfft": our_seconds,
        "cupy": cupy_seconds,
        "bound": bound,
        "within": our_seconds <= bound,
    }


def filters_on_one_gpu(args: Any, results: core.Results) -> None:
    """Measure filters of arrays on one GPU against CuPy."""
    for shape, dtype, grids in FILTERED:
        for grid in grids:
            label = f"{'x'.join(map(str, shape))} {dtype}, {'x'.join(map(str, grid))}"
            if results.lacks("filters", label):
                results.add("filters", label, **filter_row(shape, dtype, grid, args.repeat))
                free(1)


def filter_row(
    shape: Sequence[int],
    dtype: str,
    grid: Sequence[int],
    repeat: int,
) -> dict[str, Any]:
    """Return the figures of a filter of a real array on one GPU; CuPy has the transfer function."""
    cp = cupy()
    x = random_array(shape, dtype, grid, 1)
    whole = x.compute()
    frequencies = frequencies_of(Problem("rfftn", tuple(shape), dtype, 1))
    factor = cp.asarray(cosines(*frequencies).astype(dtype))

    def by_cupy() -> Any:
        return cp.fft.irfftn(cp.fft.rfftn(whole) * factor, s=shape)

    def by_one_plan() -> Any:
        return signal.fourier_filter(x, cosines).persist()

    result = by_one_plan().compute()
    difference = float(cp.abs(result - by_cupy()).max())
    verdict = within_tolerance(difference / float(cp.abs(result).max()), dtype)
    verdict["ok"] = verdict["ok"] and sums_of_neighbours(whole.get(), result.get())["ok"]
    del result
    our_seconds, peak = measured(by_one_plan, 1, repeat)
    cupy_seconds = on_gpus(by_cupy, 1, repeat)
    bound = 1.15 * cupy_seconds + 4e-3
    return {
        **against_cupy(our_seconds, cupy_seconds, bound),
        "peak_gib": peak,
        **verdict,
    }


def one_row(
    name: str,
    shape: Sequence[int],
    dtype: str,
    grid: Sequence[int],
    repeat: int,
) -> dict[str, Any]:
    """Return the figures of an array on one GPU."""
    cp = cupy()
    transform = getattr(fft, name)
    by_cupy = getattr(cp.fft, name)
    real_dtype = f"f{int(dtype[1:]) // 2}"
    x = random_array(shape, dtype if name == "fftn" else real_dtype, grid, 1)
    whole = x.compute()
    if name == "irfftn":
        inverse = whole
        whole = cp.fft.rfftn(inverse)
        x = cut(whole, grid)
        difference = cp.linalg.norm((transform(x).compute() - inverse).ravel())
        error = float(difference / cp.linalg.norm(inverse.ravel()))
        verdict = within_tolerance(error, inverse.dtype)
    else:
        verdict = check(x, transform(x).persist())
    our_seconds, peak = measured(lambda: transform(x).persist(), 1, repeat)
    cupy_seconds = on_gpus(lambda: by_cupy(whole), 1, repeat)
    are_slabs = grid[0] == x.npartitions
    factor = 1.1 if are_slabs else 1.4
    bound = factor * cupy_seconds + 4e-3 + 2.5e-4 * x.npartitions
    return {
        **against_cupy(our_seconds, cupy_seconds, bound),
        "peak_gib": peak,
        "forecast_gib": (plan(x, name).expected.peak_host - x.nbytes) / 2**30,
        **verdict,
    }


@dataclass(frozen=True)
class Several:
    """An array on several GPUs.

    Attributes
    ----------
    count : int
        Number of GPUs.
    shape : tuple of int
        Shape of the array.
    dtype : str
        Its data type.
    """

    count: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def fits(self, copies: float) -> bool:
        """Return whether the GPUs are there and have memory for so many copies of the array."""
        runtime = cupy().cuda.runtime
        _, device_nbytes = runtime.memGetInfo()
        enough_gpus = self.count <= runtime.getDeviceCount()
        return enough_gpus and copies * self.nbytes / self.count <= device_nbytes

    @property
    def has_peer(self) -> bool:
        """Whether torch and NCCL can transform the array by hand."""
        return len(self.shape) == 3 and self.count > 1 and self.fits(copies=5.2)

    def label(self, blocks: int) -> str:
        """Return the beginning of the name of a row."""
        return f"{self.count} GPUs, {'x'.join(map(str, self.shape))} {self.dtype}, {blocks} blocks"

    def variants(self, transports: Sequence[str]) -> list[tuple[int, str]]:
        """Return the numbers of blocks and copy methods that are measured."""
        variants = [(self.count, "auto"), (8, "auto")]
        if self.count > 1 and self.nbytes == 8 << 30:
            variants += [(self.count, transport) for transport in transports]
        return variants


def on_several_gpus(args: Any, results: core.Results) -> None:
    """Measure arrays on 2 and more GPUs, by each copy method, against torch and NCCL."""
    for count, (shape, dtype) in itertools.product((8, 6, 4, 2, 1), SEVERAL):
        case = Several(count, tuple(n or 1024 * count for n in shape), dtype)
        if not case.fits(copies=3.2):
            continue
        peer: dict[str, Any] = {}
        for blocks, transport in case.variants(args.ways):
            label = f"{case.label(blocks)}, {transport}"
            if not results.lacks("several", label):
                continue
            if not peer and case.has_peer:
                peer = core.call(by_hand, count, case.shape, dtype, args.repeat)
            results.add("several", label, **several_row(case, blocks, transport, peer, args.repeat))
            free(count)


def several_row(
    case: Several,
    blocks: int,
    transport: str,
    peer: dict[str, Any],
    repeat: int,
) -> dict[str, Any]:
    """Return the figures of an array in slabs on several GPUs.

    Parameters
    ----------
    case : Several
        The array.
    blocks : int
        Number of slabs.
    transport : str
        Copy method.
    peer : dict
        What `by_hand` has measured, empty where it has not.
    repeat : int
        Number of calls.
    """
    grid = (blocks, *(1,) * (len(case.shape) - 1))
    x = random_array(case.shape, case.dtype, grid, case.count)
    with dask.config.set({"bigfft.gpu.peer-transport": transport}):
        verdict = check(x, fft.fftn(x).persist())
        our_seconds, peak = measured(lambda: fft.fftn(x).persist(), case.count, repeat)
    row = {"bigfft": our_seconds, **peer, "peak_gib": peak, **verdict}
    if peer:
        row["ratio"] = our_seconds / peer["by_hand"]
    if transport == "auto" and case.count > 1:
        row["bigfft_exchange"] = exchange_alone(x, case.count, repeat)
        row["share"] = peer["exchange"] / row["bigfft_exchange"] if peer else None
    return row


def exchange_alone(x: da.Array, count: int, repeat: int) -> float:
    """Return the median seconds of the first exchange between GPUs, without FFTs."""
    planned = plan(x, "fftn")
    x = cut_blocks(x, planned.chunks_in)
    values = dask.compute(*x.to_delayed().ravel())
    blocks = dict(zip(np.ndindex(*x.numblocks), values, strict=True))

    def choice(source: int, target: int) -> str:
        return transport_of(gpus_here(), source, target)

    homes = gpus_here().homes(blocks)
    for exchange in planned.exchanges:
        shards = exchange_map(exchange.source, exchange.target, exchange.mirror)
        if crosses(shards, homes):
            break
        homes = spread(exchange.target, homes)
        dtype = np.dtype(exchange.dtype)
        source = blocks.__getitem__
        views = {index: view_of(shards, index, dtype, source) for index in homes}
        blocks = {
            index: gathered(view_on_gpu(view, homes[index])).array for index, view in views.items()
        }

    def exchange_once() -> None:
        crossing = Crossing(shards, exchange, homes, blocks, choice)
        crossing.take(blocks)
        for index in exchange.target.indices():
            crossing.arrived(index)
        crossing.join()

    return on_gpus(exchange_once, count, repeat)


# --- a process for each GPU -----------------------------------------------------------------


def on_processes(args: Any, results: core.Results) -> None:
    """Measure clusters with a worker for each GPU."""
    for count, protocol, shape in itertools.product((8, 6, 4, 2), args.protocols, PROCESSES):
        case = Several(count, shape, "c8")
        label = f"{case.label(count)}, {protocol}"
        if case.fits(copies=3.2) and results.lacks("processes", label):
            row = core.call(on_cluster, count, protocol, shape, args.repeat)
            if "error" in row and "bigfft" not in row:
                row = {"failed": row["error"]}
            in_one_process = seconds_of_row(results, f"{case.label(count)}, auto")
            if "bigfft" in row and in_one_process is not None:
                row["ratio"] = row["bigfft"] / in_one_process
            results.add("processes", label, **row)


def seconds_of_row(results: core.Results, name: str) -> float | None:
    """Return our seconds in a row of several GPUs in one process, if it was measured."""
    for row in results.content["sections"].get("several", []):
        if row["name"] == name:
            return float(row["bigfft"])
    return None


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

        def call_on_worker(function: Callable[..., Any], *arguments: Any) -> Any:
            return client.submit(function, *arguments).result()

        verdict = check(x, fft.fftn(x).persist(), call_on_worker)
        return {"bigfft": seconds(whole, repeat, idle, idle), **verdict}


# --- torch and NCCL -------------------------------------------------------------------------


def by_hand(count: int, shape: Sequence[int], dtype: str, repeat: int) -> dict[str, Any]:
    """Return the median seconds of torch and NCCL, and of the exchange alone."""
    from torch import multiprocessing

    answer = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(rank, (answer, count, shape, dtype, repeat), count)
    return answer.get()


def rank(
    number: int,
    answer: Any,
    count: int,
    shape: Sequence[int],
    dtype: str,
    repeat: int,
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
        target = torch.view_as_real(out)
        torch.distributed.all_to_all_single(target, torch.view_as_real(flat))

    def whole() -> None:
        planes = torch.fft.fft2(x).reshape(len(x), count, -1, shape[2])
        flat.copy_(planes.transpose(0, 1))
        exchange()
        torch.fft.fft(out.reshape(shape[0], -1, shape[2]), dim=0)

    def together() -> None:
        torch.cuda.synchronize()
        torch.distributed.barrier()
        torch.cuda.synchronize()

    idle = torch.cuda.synchronize
    figures = {
        "by_hand": seconds(whole, repeat, idle, together),
        "exchange": seconds(exchange, repeat, idle, together),
    }
    if number == 0:
        answer.put(figures)
    torch.distributed.destroy_process_group()


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("on_gpus", __doc__, repeat=15, budget=540.0)
    parser.add_argument("--ways", nargs="*", default=TRANSPORTS, help="copy methods between GPUs")
    parser.add_argument("--protocols", nargs="*", default=("ucx", "tcp"), help="of dask-cuda")
    args = parser.parse_args(argv)
    results = core.Results(args, "on_gpus", gpu=gpus())
    parts = {
        "one": on_one_gpu,
        "filters": filters_on_one_gpu,
        "several": on_several_gpus,
        "processes": on_processes,
    }
    with dask.config.set(scheduler="threads"):
        for name in core.chosen(parts, args.only):
            parts[name](args, results)
    return int(not results.ok)
