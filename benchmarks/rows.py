"""Rows: measurements of named problems in this process.

``python -m benchmarks.rows JSON`` runs one row (the arguments of `answered`) and prints its figures
as JSON. Rows use `problems` and the public functions of `dask_bigfft`, and import nothing else of
this repository, so that `guard` can run them with the package of any tree.
"""

import contextlib
import dataclasses
import inspect
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_bigfft
from benchmarks import problems
from benchmarks.problems import GIB, Problem, Truth, alternate, fill, graph_of, settings, worst
from dask_bigfft import fft, signal

#: Seconds after which a first task counts as missing.
FIRST_TASK_LIMIT = 300.0


@dataclass
class Task:
    """Everything that a row is given.

    Parameters
    ----------
    scale : float
        Part of the full number of elements.
    threads, repeat : int
        Threads of dask, and turns that count.
    kernel : str
        FFT library.
    folder : Path
        For files, with the sources that `prepare` has written.
    """

    scale: float
    threads: int
    repeat: int
    kernel: str
    folder: Path

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)  # JSON has text


#: Figures of a row, smaller is better: one number, or that of each turn.
Figures = dict[str, float | list[float]]
Measurement = tuple[Figures, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A named measurement.

    Parameters
    ----------
    run : callable
        Returns figures (smaller is better) and a check.
    limit : int
        Bytes of a memory cgroup around it at full scale, 0 for none.
    bound : float
        Most that `guard` allows of a figure's ratio.
    prepare : callable, optional
        Writes files once for many runs.
    gpu : bool
        Whether it needs a GPU.
    """

    run: Callable[[Task], Measurement]
    limit: int = 0
    bound: float = 1.05
    prepare: Callable[[Task], None] | None = None
    gpu: bool = False


# --- in memory ------------------------------------------------------------------------------


def in_memory(problem: Problem, task: Task) -> Measurement:
    """Measure `persist()`, `compute()` and peak memory of a transform of data in memory."""
    problem = problem.scaled(task.scale)
    x, truth = problems.data_of(problem)
    y = graph_of(problem, x, kernel=task.kernel)
    peak, result = problems.peak_of(y.persist)
    check = truth.check(result)
    del result
    for _ in range(min(3, GIB // problem.nbytes)):  # until copies are compiled
        y.persist()
    times = alternate({"persist": y.persist, "compute": y.compute}, task.repeat)
    check = worst([check, truth.check(y.compute())])
    return {
        "persist": times["persist"],
        "compute": times["compute"],
        "compute / persist": problems.median_ratio(times["compute"], times["persist"]),
        "peak bytes": float(peak),
    }, check


def verified(
    problem: Problem,
    task: Task,
    modes: Sequence[str],
    stored: bool = False,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return seconds of transforms by kind of verification, in alternating turns, and a check.

    Parameters
    ----------
    problem : Problem
        The transform.
    task : Task
        How it is run.
    modes : sequence of str
        Values of ``verify``; "again" stands for a second "none".
    stored : bool
        Whether input, exchanges and result go through files.
    """
    problem = problem.scaled(task.scale)
    with tempfile.TemporaryDirectory(dir=task.folder) as folder:
        x = np.empty(problem.shape, problem.dtype)
        sink: Any = None
        options: dict[str, Any] = {}
        if stored:
            x = np.memmap(f"{folder}/x", problem.dtype, "w+", shape=problem.shape)
            sink = np.memmap(f"{folder}/y", problem.out_dtype, "w+", shape=problem.out_shape)
            options = settings(carrier="disk", scratch=folder)
        fill(x)
        truth = Truth.of(problem, x)
        with dask.config.set(options):
            array = problems.lazy(x, problem.chunks)
            graphs = {}
            for mode in modes:
                verify = "none" if mode == "again" else mode
                graphs[mode] = graph_of(problem, array, kernel=task.kernel, verify=verify)

            def work(mode: str) -> Any:
                if not stored:
                    return graphs[mode].persist()
                da.store(graphs[mode], sink, lock=False)
                return np.asarray(sink)

            checks = [truth.check(work(mode)) for mode in modes]
            works = {mode: lambda mode=mode: work(mode) for mode in modes}
            alternate(works, 2)  # until copies are compiled
            times = alternate(works, task.repeat)
    return times, worst(checks)


def verification(problem: Problem, task: Task) -> Measurement:
    """Measure transforms with each kind of verification against one without."""
    modes = ("none", "energy", "checksum")
    longer = dataclasses.replace(task, repeat=3 * task.repeat)
    times, check = verified(problem, longer, modes)
    figures = {
        f"{mode} / none": problems.median_ratio(times[mode], times["none"]) for mode in modes[1:]
    }
    return figures, check


# --- convolution ----------------------------------------------------------------------------


def convolution(samples: int, task: Task) -> Measurement:
    """Measure the convolution of two arrays: time and peak memory."""
    samples = max(4096, int(samples * task.scale))
    x = fill(np.empty(samples), key=0)
    y = fill(np.empty(samples), key=1)
    chunks = Problem("fft", (samples,), "f8", 16).chunks
    lazy_x = problems.lazy(x, chunks)
    lazy_y = problems.lazy(y, chunks)

    def work() -> Any:
        return signal.fftconvolve(lazy_x, lazy_y, kernel=task.kernel).persist()

    peak, result = problems.peak_of(work)
    check = problems.check_convolution(x, y, result)
    del result
    times = alternate({"persist": work}, task.repeat)
    return {"persist": times["persist"], "peak bytes": float(peak)}, check


# --- larger than memory ---------------------------------------------------------------------


def source_path(problem: Problem, task: Task) -> Path:
    return task.folder / f"source-{'x'.join(map(str, problem.shape))}.zarr"


def write_source(problem: Problem, task: Task) -> None:
    """Write the input as a Zarr array, and the truth about it beside it."""
    import zarr

    problem = problem.scaled(task.scale)
    path = source_path(problem, task)
    truth = Truth.of(problem)
    array = zarr.create_array(
        str(path),
        shape=problem.shape,
        dtype=problem.dtype,
        compressors=None,
        overwrite=True,
        chunks=(problem.chunks[0][0], *problem.shape[1:]),
    )
    for start, block in truth.random_blocks():
        array[start : start + len(block)] = block
    truth.save(path)
    drop_cache(path)


def drop_cache(folder: Path) -> None:
    """Drop the files below a folder from the page cache, so that they are read from the disk."""
    os.sync()
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def out_of_core(problem: Problem, limit: int, task: Task) -> Measurement:
    """Measure a transform from Zarr to Zarr in a process with a memory limit.

    Neither array is compressed: the values are noise, and the row is compared with plain copies.
    """
    import zarr

    problem = problem.scaled(task.scale)
    source = source_path(problem, task)
    target = task.folder / "result.zarr"
    scratch = task.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    options: dict[str, Any] = {"overwrite": True, "kernel": task.kernel}
    if "compressors" in inspect.signature(dask_bigfft.run).parameters:  # older trees have none
        options["compressors"] = None
    with dask.config.set(settings(carrier="disk", scratch=str(scratch))):
        run_small(problem, task, options)
        memory_limit = int(0.8 * (limit - problems.status("RssAnon")))
        if task.scale < 1:
            memory_limit = max(256 * problems.MIB, int(memory_limit * task.scale))

        def work() -> Any:
            return dask_bigfft.run(
                source,
                target,
                problem.kind,
                memory_limit=memory_limit,
                block_size=problem.nbytes // problem.ways,
                **options,
            )

        before = problems.moved_bytes()
        seconds, (peak, run) = problems.seconds_of(lambda: problems.peak_of(work))
        moved = problems.moved_bytes() - before
    check = Truth.stored(problem, source).check(zarr.open_array(str(target), mode="r"))
    check |= {"moved": moved, "rounds": run.plan.notation}
    return {"seconds": seconds, "peak bytes": float(peak)}, check


def run_small(problem: Problem, task: Task, options: dict[str, Any]) -> None:
    """Run a small problem of the same kind from Zarr to Zarr, so that code is compiled."""
    shape = (4096, 16, 16)[: len(problem.shape)]
    small = Problem(problem.kind, shape, problem.dtype, 4)
    warm = dataclasses.replace(task, folder=task.folder / "warm", scale=1.0)
    write_source(small, warm)
    target = warm.folder / "out.zarr"
    dask_bigfft.run(source_path(small, warm), target, small.kind, **options)


# --- plans and graphs -----------------------------------------------------------------------


#: Elements of a block of the arrays whose graphs are built. No block is computed.
PLANNED_BLOCK = 1 << 22

#: Turns of planning for each turn of other rows, because one takes milliseconds.
PLANNING_TURNS = 5


def planning(blocks: int, task: Task) -> Measurement:
    """Measure the call of a transform of one axis, which plans it, and its optimised graph.

    The memory limit of each call is another one, so that no plan is known from a call before.
    """
    block = max(1 << 10, int(PLANNED_BLOCK * task.scale))
    x = da.zeros(blocks * block, chunks=block, dtype="c8")
    plan_seconds: list[float] = []
    graph_seconds: list[float] = []
    missing = 0
    for turn in range(1 + PLANNING_TURNS * task.repeat):
        problems.change_turns()
        memory_limit = (1 << 40) - turn * problems.MIB
        call = partial(fft.fft, x, memory_limit=memory_limit, kernel=task.kernel)
        seconds_of_call, y = problems.seconds_of(call)
        seconds_of_graph, graph = problems.seconds_of(partial(tasks_of, y))
        missing += sum(key not in graph for key in dask.core.flatten(y.__dask_keys__()))
        if turn == 0:  # imports, and reads measured speeds
            continue
        plan_seconds.append(seconds_of_call)
        graph_seconds.append(seconds_of_graph)
    check = {"ok": missing == 0 and y.shape == x.shape, "tasks": len(graph)}
    return {"plan": plan_seconds, "graph": graph_seconds}, check


def tasks_of(array: da.Array) -> dict[Any, Any]:
    """Return the tasks of an array as a scheduler gets them, by key."""
    (optimized,) = dask.optimize(array)
    return dict(optimized.__dask_graph__())


# --- clusters -------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster(workers: int, folder: Path, **values: Any) -> Iterator[Any]:
    """Give a client of single-threaded worker processes that use the p2p carrier."""
    import distributed

    no_spilling = {
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
    }
    with (
        dask.config.set(settings(carrier="p2p", **values) | no_spilling),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            memory_limit=0,
            dashboard_address=None,
            local_directory=str(folder),
        ) as local_cluster,
        distributed.Client(local_cluster) as client,
    ):
        client.wait_for_workers(workers)
        yield client


class Sink:
    """Takes blocks and keeps none."""

    def __setitem__(self, index: Any, values: Any) -> None:
        pass


def marking(block: np.ndarray, mark: str) -> np.ndarray:
    """Write the time into a file that does not exist yet; return the block."""
    if block.size:  # dask tries the function on an empty block while the graph is built
        with contextlib.suppress(FileExistsError), open(mark, "x") as handle:
            handle.write(str(time.time()))
    return block


def first_task(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    task: Task,
    merge: bool = False,
) -> Measurement:
    """Measure the time from `compute` to the first task, and memory of the client.

    The other tasks are not waited for. Without `merge` blocks stand for large ones, which are not
    merged before the transform.
    """
    split_axes = sum(n > chunk for n, chunk in zip(shape, chunks, strict=True))
    factor = min(1.0, task.scale) ** (1 / split_axes)
    shape = tuple(
        max(1, round(n // chunk * factor)) * chunk for n, chunk in zip(shape, chunks, strict=True)
    )
    merging = {} if merge else {"merge": 0}
    with tempfile.TemporaryDirectory(dir=task.folder) as name:
        folder = Path(name)
        with cluster(2, folder, **merging) as client:
            mark = folder / "mark"
            before = problems.reset_peak()
            x = da.zeros(shape, chunks=chunks, dtype="c8")
            x = x.map_blocks(marking, str(mark), dtype="c8")
            y = fft.fftn(x, memory_limit="1 TiB", kernel=task.kernel)
            stored = da.store(y, Sink(), lock=False, compute=False)
            started = time.time()
            future = client.compute(stored)
            while not (mark.exists() and mark.read_text()):
                if time.time() > started + FIRST_TASK_LIMIT:
                    raise TimeoutError(f"no task within {FIRST_TASK_LIMIT} s")
                time.sleep(0.01)
            seconds = float(mark.read_text()) - started
            grown = problems.status("VmHWM") - before
            client.cancel(future, force=True)
    figures = {"seconds": seconds, "client bytes": float(max(1, grown))}
    return figures, {"ok": True, "blocks": x.npartitions}


def random_block(block_info: Any = None) -> np.ndarray:
    """Return a block of random numbers, for `dask.array.map_blocks`."""
    block = block_info[None]
    values = np.empty(block["chunk-shape"], block["dtype"])
    return fill(values, block["chunk-location"][0])


@dataclass(frozen=True)
class OnWorkers:
    """An array on the workers of a cluster.

    Attributes
    ----------
    client : Client
        Client of the cluster.
    x : dask array
        The array, persisted.
    transform : callable
        Transforms it and waits for the result, which it returns.
    check : dict
        Check of a first result.
    """

    client: Any
    x: da.Array
    transform: Callable[[], da.Array]
    check: dict[str, Any]


@contextlib.contextmanager
def on_workers(
    problem: Problem,
    workers: int,
    kernel: str = "auto",
    folder: Path | None = None,
) -> Iterator[OnWorkers]:
    """Give a new cluster with the array of a problem, whose transform is checked."""
    from distributed import wait

    truth = Truth.of(problem)
    for _ in truth.random_blocks():
        pass
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        cluster(workers, Path(name)) as client,
    ):
        lazy_x = da.map_blocks(random_block, chunks=problem.chunks, dtype=problem.dtype)
        x = client.persist(lazy_x)
        wait(x)

        def transform() -> da.Array:
            y = client.persist(graph_of(problem, x, kernel=kernel))
            wait(y)
            return y

        check = truth.check(client.compute(transform()).result())
        yield OnWorkers(client, x, transform, check)


def by_p2p(problem: Problem, workers: int, task: Task) -> Measurement:
    """Measure a transform by p2p between single-threaded workers."""
    problem = problem.scaled(task.scale)
    with on_workers(problem, workers, kernel=task.kernel, folder=task.folder) as array:
        alternate({"seconds": array.transform}, 2)
        times = alternate({"seconds": array.transform}, task.repeat)
    return {"seconds": times["seconds"]}, array.check


# --- GPU --------------------------------------------------------------------------------------


#: Number of dimensions and transformed axes of rounds by name.
ROUNDS: dict[str, tuple[int, tuple[int, ...]]] = {
    "X": (2, (1,)),
    "Y": (2, (0,)),
    "1D": (1, (0,)),
    "2D": (2, (0, 1)),
    "3D": (3, (0, 1, 2)),
}


def even_shape(elements: int, ndim: int) -> tuple[int, ...]:
    """Return a shape of powers of two, as even as can be, the last ones longer.

    >>> even_shape(2**10, 3)
    (8, 8, 16)
    """
    bits = elements.bit_length() - 1
    shape = []
    for remaining_axes in range(ndim, 0, -1):
        axis_bits = bits // remaining_axes
        shape.append(1 << axis_bits)
        bits -= axis_bits
    return tuple(shape)


def host_memory(nbytes: int, pinned: bool) -> np.ndarray:
    """Return bytes of host memory, pinned where asked and where CuPy is installed."""
    if pinned:
        with contextlib.suppress(ImportError):
            import cupyx

            return cupyx.empty_pinned(nbytes, np.uint8)
    return np.empty(nbytes, np.uint8)


def fill_memory(memory: Sequence[np.ndarray], dtype: str) -> None:
    """Write random numbers into pieces of memory, many at a time."""
    problems.at_once(lambda i: fill(memory[i].view(dtype), i), range(len(memory)))


@contextlib.contextmanager
def device_held(budget: int) -> Iterator[None]:
    """Allocate all memory of the GPU but a budget and 1 GiB for contexts and FFT plans."""
    try:
        import cupy
    except ImportError:  # simulated devices
        yield
        return
    free = int(cupy.cuda.runtime.memGetInfo()[0])
    hold = cupy.cuda.Memory(max(1, free - budget - GIB))
    try:
        yield
    finally:
        del hold


@dataclass
class GpuData:
    """Host memory for transforms on a GPU, as an array cut into blocks.

    Parameters
    ----------
    memory : list of ndarray
        Bytes of each block.
    budget : int
        Device memory that may be used.
    """

    memory: list[np.ndarray]
    budget: int

    @classmethod
    def of(
        cls,
        nbytes: int,
        block_nbytes: int,
        pinned: bool,
        budget: int,
    ) -> "GpuData":
        whole = host_memory(nbytes, pinned)
        pieces = [whole[low : low + block_nbytes] for low in range(0, nbytes, block_nbytes)]
        return cls(pieces, budget)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.memory)

    def array(self, shape: tuple[int, ...], dtype: str) -> da.Array:
        """Return the blocks side by side along the first axis of a shape."""
        rows = shape[0] // len(self.memory)
        name = f"gpu-{shape}-{dtype}-{id(self)}"
        other_indices = (0,) * (len(shape) - 1)
        graph = {}
        for number, block in enumerate(self.memory):
            graph[(name, number, *other_indices)] = block.view(dtype).reshape(rows, *shape[1:])
        chunks = ((rows,) * len(self.memory), *((n,) for n in shape[1:]))
        return da.Array(graph, name, chunks, dtype=dtype)

    def whole_array(self, problem: Problem) -> np.ndarray:
        """Return all blocks as one array in memory."""
        first = self.memory[0]
        owner = first if first.base is None else first.base
        whole = np.asarray(owner)[: self.nbytes]
        return whole.view(problem.dtype).reshape(problem.shape)

    def truth(self, problem: Problem) -> Truth:
        """Return the truth about the present contents."""
        blocks = list(problems.blocks_of(self.array(problem.shape, problem.dtype)))

        def truth_of_block(number: int) -> Truth:
            first_indices, block = blocks[number]
            truth = Truth.of(problem)
            truth.add(block, first_indices[0])
            return truth

        # Each thread needs much memory.
        truths = problems.at_once(truth_of_block, range(len(self.memory)), most=4)
        values = np.zeros(problems.SAMPLES, np.complex128)
        energy = 0.0
        for truth in truths:
            values += truth.values
            energy += truth.energy
        return Truth(problem, truths[0].places, values, energy)

    def graph(self, problem: Problem, **options: Any) -> da.Array:
        """Return a lazy transform on the GPU, not normalised."""
        options = {"device": "gpu", "device_memory_limit": self.budget} | options
        return graph_of(problem, self.array(problem.shape, problem.dtype), **options)

    def round(self, name: str, dtype: str) -> Problem:
        """Return the problem of a round over axes that lie whole in each block."""
        ndim, axes = ROUNDS[name]
        blocks = len(self.memory)
        elements = self.memory[0].nbytes // np.dtype(dtype).itemsize
        shape = (blocks, *even_shape(elements, ndim))
        inner_axes = tuple(axis + 1 for axis in axes)
        return Problem("fftn", shape, dtype, ways=blocks, axes=inner_axes)

    def whole(self, ndim: Any, dtype: str) -> Problem:
        """Return the problem of a transform of all data; "X" has a row in each block."""
        size = self.nbytes // np.dtype(dtype).itemsize
        blocks = len(self.memory)
        shape = (blocks, size // blocks) if ndim == "X" else even_shape(size, ndim)
        return Problem("fftn", shape, dtype, blocks)


def measured_on_gpu(data: GpuData, problem: Problem, repeat: int, **options: Any) -> Any:
    """Return seconds of transforms after one that does not count, a check, and the lazy result."""
    fill_memory(data.memory, problem.dtype)
    truth = data.truth(problem)
    with device_held(data.budget):
        if options.get("overwrite_x"):  # unitary, so that values keep their size
            check = truth.check(data.graph(problem, **options).persist())
            y = data.graph(problem, norm="ortho", **options)
        else:
            y = data.graph(problem, **options)
            check = truth.check(y.persist())
        times = alternate({"seconds": y.persist}, repeat)["seconds"]
    return times, check, y


def power_of_two(nbytes: float) -> int:
    """Return the largest power of two up to a number of bytes, at least 64 KiB.

    >>> power_of_two(3 << 20) == 2 << 20
    True
    """
    return 1 << (max(1 << 16, int(nbytes)).bit_length() - 1)


def on_gpu(what: str, task: Task) -> Measurement:
    """Measure rounds or whole transforms on a GPU, of data in blocks of 256 MiB."""
    data = GpuData.of(
        nbytes=power_of_two(4 * GIB * task.scale),
        block_nbytes=power_of_two(256 * problems.MIB * task.scale),
        pinned=what in ("rounds", "transforms"),
        budget=max(1 << 20, int(2 * GIB * task.scale)),
    )
    if what in ("transforms", "unpinned"):
        chosen = {f"{ndim}D": data.whole(ndim, "c16") for ndim in (1, 2, 3)}
    else:
        chosen = {name: data.round(name, "c16") for name in ROUNDS}
    options = {"overwrite_x": True} if what in ("rounds", "ring") else {}
    pin_arrays = settings(**{"pin-arrays": what != "ring"})
    figures = {}
    checks = []
    with dask.config.set(pin_arrays):
        for name, problem in chosen.items():
            times, check, _ = measured_on_gpu(data, problem, task.repeat, **options)
            figures[name] = statistics.median(times)
            checks.append(check)
    return figures, worst(checks)


#: Shapes and grids of arrays whose blocks live on GPUs.
RESIDENT = (
    ((1024, 1024, 1024), (8, 1, 1)),
    ((1024, 1024, 1024), (4, 4, 4)),
    ((1 << 28,), (16,)),
)


def blocks_on_gpus(whole: Any, grid: Sequence[int], gpus: int) -> da.Array:
    """Return an array whose blocks are copies of parts of a CuPy array, in order on some GPUs."""
    import cupy as cp

    lengths = [n // blocks for n, blocks in zip(whole.shape, grid, strict=True)]
    chunks = da.core.normalize_chunks(lengths, whole.shape)
    places = da.core.slices_from_chunks(chunks)
    name = f"resident-{whole.shape}-{grid}-{gpus}"
    graph = {}
    for number, (index, place) in enumerate(zip(np.ndindex(*grid), places, strict=True)):
        with cp.cuda.Device(number * gpus // len(places)):
            graph[(name, *index)] = whole[place].copy()
    return da.Array(graph, name, chunks, meta=cp.empty((0,) * whole.ndim, whole.dtype))


def largest_error(result: da.Array, expected: Any) -> float:
    """Return the largest relative L2 error of the blocks of a result on GPUs."""
    import cupy as cp

    places = da.core.slices_from_chunks(result.chunks)
    errors = []
    for place, block in zip(places, result.to_delayed().ravel(), strict=True):
        expected_block = expected[place]
        own_block = block.compute().copy()  # on the GPU of the expected values
        difference = cp.linalg.norm((own_block - expected_block).ravel())
        errors.append(float(difference / cp.linalg.norm(expected_block.ravel())))
    return max(errors)


def resident(task: Task) -> Measurement:
    """Measure transforms of blocks that live on one, two and four GPUs of this process.

    The check compares them with CuPy's transform of the whole array.
    """
    import cupy as cp

    available = cp.cuda.runtime.getDeviceCount()

    def wait_for_gpus() -> None:
        for gpu in range(available):
            with cp.cuda.Device(gpu):
                cp.cuda.runtime.deviceSynchronize()

    def transform(x: da.Array) -> da.Array:
        result = fft.fftn(x).persist()
        wait_for_gpus()
        return result

    figures = {}
    errors = []
    for full_shape, grid in RESIDENT:
        factor = task.scale ** (1 / len(full_shape))
        blocks = max(grid)
        shape = tuple(max(blocks, int(n * factor) // blocks * blocks) for n in full_shape)
        whole = cp.random.default_rng(0).random(shape, dtype="f4").astype("c8")
        expected = cp.fft.fftn(whole)
        for gpus in (1, 2, 4):
            if gpus > available:
                continue
            x = blocks_on_gpus(whole, grid, gpus)
            wait_for_gpus()
            errors.append(largest_error(transform(x), expected))
            for _ in range(10):  # the first calls in a process are slower
                transform(x)
            times = alternate({"seconds": partial(transform, x)}, 10 * task.repeat)["seconds"]
            figures[f"{len(shape)}D {grid} on {gpus}"] = statistics.median(times)
            del x
        del whole, expected
        cp.get_default_memory_pool().free_all_blocks()
    error = max(errors)
    return figures, {"error": error, "ok": bool(error < 1e-5)}


# --- the guard's rows -----------------------------------------------------------------------


#: Arrays of the rows in memory: name, shape, dtype.
ARRAYS = (
    ("1d-2p26", (1 << 26,), "c16"),
    ("1d-2p27", (1 << 27,), "c16"),
    ("2d-8192x8192", (8192, 8192), "c16"),
    ("3d-512x512x256", (512, 512, 256), "c16"),
    ("3d-512x512x512-single", (512, 512, 512), "c8"),
    ("tall-65536x1024", (65536, 1024), "c16"),
    ("tall-8192x128x64", (8192, 128, 64), "c16"),
)

#: Arrays larger than memory, and those of other rows.
STORED = {
    "3d": Problem("fftn", (1024, 1536, 1024), "c8", 64),
    "1d": Problem("fft", (1 << 29,), "c16", 64),
}
VERIFIED = {
    "1d": Problem("fft", (1 << 24,), "c16", 16),
    "3d": Problem("fftn", (256, 256, 256), "c8", 16),
}
FIRST = {
    "4096": ((1 << 25,), (1 << 13,)),
    "8192": ((1 << 26,), (1 << 13,)),
    "100352": ((448, 448, 448), (2, 1, 448)),
}


#: Numbers of blocks of the rows that plan and build graphs.
PLANNED = (1, 16, 1024, 4096)


def all_rows() -> Iterable[tuple[str, Row]]:
    """Yield the name of each row and the row."""
    for name, shape, dtype in ARRAYS:
        for ways in (16, 64):
            problem = Problem("fftn", shape, dtype, ways)
            bound = 1.10 if ways == 64 else 1.05
            yield f"{name}-x{ways}", Row(partial(in_memory, problem), bound=bound)
    yield "convolution-2p26", Row(partial(convolution, 1 << 26))
    for name, problem in STORED.items():
        run = partial(out_of_core, problem, 2 * GIB)
        prepare = partial(write_source, problem)
        yield f"out-of-core-{name}", Row(run, limit=2 * GIB, prepare=prepare)
    for blocks in PLANNED:
        yield f"planning-{blocks}", Row(partial(planning, blocks))
    for name, (shape, chunks) in FIRST.items():
        yield f"first-task-{name}", Row(partial(first_task, shape, chunks))
    p2p = Problem("fftn", (256, 512, 512), "c8", 16)
    yield "p2p-2-workers", Row(partial(by_p2p, p2p, 2))
    for name, problem in VERIFIED.items():
        yield f"verification-{name}", Row(partial(verification, problem))
    for what in ("rounds", "transforms", "ring", "unpinned"):
        bound = 1.05 if what in ("rounds", "transforms") else 1.10
        yield f"gpu-{what}", Row(partial(on_gpu, what), bound=bound, gpu=True)
    yield "gpu-resident", Row(resident, gpu=True)


ROWS: dict[str, Row] = dict(all_rows())


def answered(name: str, fields: dict[str, Any], prepare: bool = False) -> dict[str, Any]:
    """Run or prepare one row; return its figures, its check and the folder of the package.

    Parameters
    ----------
    name : str
        Name of the row.
    fields : dict
        Fields of a `Task`.
    prepare : bool
        Whether to write the row's files only.
    """
    task = Task(**fields)
    task.folder.mkdir(parents=True, exist_ok=True)
    row = ROWS[name]
    answer = {"package": str(Path(dask_bigfft.__file__).resolve().parent.parent)}
    with dask.config.set(scheduler="threads", num_workers=task.threads):
        if not prepare:
            figures, check = row.run(task)
            return answer | {"figures": figures, "check": check}
        if row.prepare is not None:
            row.prepare(task)
    return answer


if __name__ == "__main__":
    if problems.turns_of_processes is not None:
        problems.turns_of_processes.take()
    print(json.dumps(answered(*json.loads(sys.argv[1]))))
