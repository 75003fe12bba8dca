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


Figures = dict[str, float]
Found = tuple[Figures, dict[str, Any]]


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

    run: Callable[[Task], Found]
    limit: int = 0
    bound: float = 1.05
    prepare: Callable[[Task], None] | None = None
    gpu: bool = False


# --- in memory ------------------------------------------------------------------------------


def in_memory(problem: Problem, task: Task) -> Found:
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
        **{name: statistics.median(seconds) for name, seconds in times.items()},
        "compute / persist": problems.median_ratio(times["compute"], times["persist"]),
        "peak bytes": float(peak),
    }, check


def verified(
    problem: Problem, task: Task, modes: Sequence[str], stored: bool = False
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
            ways = {"again": "none"}
            graphs = {
                mode: graph_of(problem, array, kernel=task.kernel, verify=ways.get(mode, mode))
                for mode in modes
            }

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


def verification(problem: Problem, task: Task) -> Found:
    """Measure transforms with each kind of verification against one without."""
    modes = ("none", "energy", "checksum")
    times, check = verified(problem, dataclasses.replace(task, repeat=3 * task.repeat), modes)
    none = times.pop("none")
    return {f"{mode} / none": problems.median_ratio(t, none) for mode, t in times.items()}, check


# --- convolution ----------------------------------------------------------------------------


def convolution(samples: int, task: Task) -> Found:
    """Measure the convolution of two arrays: time and peak memory."""
    samples = max(4096, int(samples * task.scale))
    x, y = (fill(np.empty(samples), key) for key in range(2))
    cut = Problem("fft", (samples,), "f8", 16).chunks
    lazy_x = problems.lazy(x, cut)
    lazy_y = problems.lazy(y, cut)

    def work() -> Any:
        return signal.fftconvolve(lazy_x, lazy_y, kernel=task.kernel).persist()

    peak, result = problems.peak_of(work)
    check = problems.check_convolution(x, y, result)
    del result
    times = alternate({"persist": work}, task.repeat)
    return {"persist": statistics.median(times["persist"]), "peak bytes": float(peak)}, check


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
    for path in folder.rglob("*") if hasattr(os, "posix_fadvise") else ():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def out_of_core(problem: Problem, limit: int, task: Task) -> Found:
    """Measure a transform from Zarr to Zarr in a process with a memory limit.

    Neither array is compressed: the values are noise, and the row is compared with plain copies.
    """
    import zarr

    problem = problem.scaled(task.scale)
    source = source_path(problem, task)
    target = task.folder / "result.zarr"
    small = Problem(problem.kind, (4096, 16, 16)[: len(problem.shape)], problem.dtype, 4)
    room = task.folder / "scratch"
    room.mkdir(exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    options: dict[str, Any] = {"overwrite": True, "kernel": task.kernel}
    if "compressors" in inspect.signature(dask_bigfft.run).parameters:  # older trees have none
        options["compressors"] = None
    with dask.config.set(settings(carrier="disk", scratch=str(room))):
        warm = dataclasses.replace(task, folder=task.folder / "warm", scale=1.0)
        write_source(small, warm)
        dask_bigfft.run(source_path(small, warm), warm.folder / "out.zarr", small.kind, **options)
        share = int(0.8 * (limit - problems.status("RssAnon")))
        if task.scale < 1:
            share = max(256 * problems.MIB, int(share * task.scale))
        block = problem.nbytes // problem.ways

        def work() -> Any:
            return dask_bigfft.run(
                source, target, problem.kind, memory_limit=share, block_size=block, **options
            )

        before = problems.moved_bytes()
        seconds, (peak, done) = problems.seconds_of(lambda: problems.peak_of(work))
        moved = problems.moved_bytes() - before
    check = Truth.stored(problem, source).check(zarr.open_array(str(target), mode="r"))
    check |= {"moved": moved, "rounds": done.plan.notation}
    return {"seconds": seconds, "peak bytes": float(peak)}, check


# --- clusters -------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster(workers: int, folder: Path, **wanted: Any) -> Iterator[Any]:
    """Give a client of single-threaded worker processes that use the p2p carrier."""
    import distributed

    kept = {f"distributed.worker.memory.{limit}": False for limit in ("spill", "target")}
    with (
        dask.config.set(settings(carrier="p2p", **wanted) | kept),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            memory_limit=0,
            dashboard_address=None,
            local_directory=str(folder),
        ) as made,
        distributed.Client(made) as client,
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
    shape: tuple[int, ...], chunks: tuple[int, ...], task: Task, merge: bool = False
) -> Found:
    """Measure the time from `compute` to the first task, and memory of the client.

    The other tasks are not waited for. Without `merge` blocks stand for large ones, which are not
    merged before the transform.
    """
    split = sum(n > c for n, c in zip(shape, chunks, strict=True))
    factor = min(1.0, task.scale) ** (1 / split)
    shape = tuple(max(1, round(n // c * factor)) * c for n, c in zip(shape, chunks, strict=True))
    with tempfile.TemporaryDirectory(dir=task.folder) as name:
        folder = Path(name)
        with cluster(2, folder, **({} if merge else {"merge": 0})) as client:
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
    info = block_info[None]
    return fill(np.empty(info["chunk-shape"], info["dtype"]), info["chunk-location"][0])


@contextlib.contextmanager
def on_workers(
    problem: Problem, workers: int, kernel: str = "auto", folder: Path | None = None
) -> Iterator[tuple[Any, da.Array, Callable[[], da.Array], dict[str, Any]]]:
    """Give a client, an array on its workers, its transform as a call, and a check of it."""
    from distributed import wait

    truth = Truth.of(problem)
    for _ in truth.random_blocks():
        pass
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        cluster(workers, Path(name)) as client,
    ):
        x = client.persist(da.map_blocks(random_block, chunks=problem.chunks, dtype=problem.dtype))
        wait(x)

        def work() -> da.Array:
            y = client.persist(graph_of(problem, x, kernel=kernel))
            wait(y)
            return y

        yield client, x, work, truth.check(client.compute(work()).result())


def by_p2p(problem: Problem, workers: int, task: Task) -> Found:
    """Measure a transform by p2p between single-threaded workers."""
    problem = problem.scaled(task.scale)
    with on_workers(problem, workers, task.kernel, task.folder) as (_, _, work, check):
        alternate({"seconds": work}, 2)
        times = alternate({"seconds": work}, task.repeat)
    return {"seconds": statistics.median(times["seconds"])}, check


# --- GPU --------------------------------------------------------------------------------------


#: Rounds: name, number of dimensions, transformed axes.
ROUNDS = (("X", 2, (1,)), ("Y", 2, (0,)), ("1D", 1, (0,)), ("2D", 2, (0, 1)), ("3D", 3, (0, 1, 2)))


def even_shape(elements: int, ndim: int) -> tuple[int, ...]:
    """Return a shape of powers of two, as even as can be, the last ones longer.

    >>> even_shape(2**10, 3)
    (8, 8, 16)
    """
    bits = elements.bit_length() - 1
    shape = []
    for left in range(ndim, 0, -1):
        shape.append(1 << (bits // left))
        bits -= bits // left
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
    def of(cls, nbytes: int, block_nbytes: int, pinned: bool, budget: int) -> "GpuData":
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
        graph = {
            (name, i, *(0,) * (len(shape) - 1)): block.view(dtype).reshape(rows, *shape[1:])
            for i, block in enumerate(self.memory)
        }
        chunks = ((rows,) * len(self.memory), *((n,) for n in shape[1:]))
        return da.Array(graph, name, chunks, dtype=dtype)

    def whole_array(self, problem: Problem) -> np.ndarray:
        """Return all blocks as one array in memory."""
        first = self.memory[0]
        whole = np.asarray(first if first.base is None else first.base)[: self.nbytes]
        return whole.view(problem.dtype).reshape(problem.shape)

    def truth(self, problem: Problem) -> Truth:
        """Return the truth about the present contents."""
        blocks = list(problems.blocks_of(self.array(problem.shape, problem.dtype)))

        def part(i: int) -> Truth:
            found = Truth.of(problem)
            found.add(blocks[i][1], blocks[i][0][0])
            return found

        found = problems.at_once(part, range(len(self.memory)), most=4)  # each needs much memory
        total = sum((one.values for one in found), np.zeros(problems.SAMPLES, np.complex128))
        return Truth(problem, found[0].places, total, sum(one.energy for one in found))

    def graph(self, problem: Problem, **options: Any) -> da.Array:
        """Return a lazy transform on the GPU, not normalised."""
        options = {"device": "gpu", "device_memory_limit": self.budget} | options
        return graph_of(problem, self.array(problem.shape, problem.dtype), **options)

    def round(self, name: str, dtype: str) -> Problem:
        """Return the problem of a round over axes that lie whole in each block."""
        ndim, axes = next((ndim, axes) for known, ndim, axes in ROUNDS if known == name)
        inner = even_shape(self.memory[0].nbytes // np.dtype(dtype).itemsize, ndim)
        shape = (len(self.memory), *inner)
        return Problem("fftn", shape, dtype, len(self.memory), tuple(axis + 1 for axis in axes))

    def whole(self, ndim: Any, dtype: str) -> Problem:
        """Return the problem of a transform of all data; "X" has a row in each block."""
        size = self.nbytes // np.dtype(dtype).itemsize
        rows = len(self.memory)
        shape = (rows, size // rows) if ndim == "X" else even_shape(size, ndim)
        return Problem("fftn", shape, dtype, len(self.memory))


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


def on_gpu(what: str, task: Task) -> Found:
    """Measure rounds or whole transforms on a GPU, of data in blocks of 256 MiB."""
    nbytes, block = (max(1 << 16, int(n * task.scale)) for n in (4 * GIB, 256 * problems.MIB))
    nbytes, block = (1 << (n.bit_length() - 1) for n in (nbytes, block))
    budget = max(1 << 20, int(2 * GIB * task.scale))
    pinned = what in ("rounds", "transforms")
    pin = settings(**{"pin-arrays": what != "ring"})
    data = GpuData.of(nbytes, block, pinned, budget)
    figures = {}
    checks = []
    chosen = {name: data.round(name, "c16") for name, *_ in ROUNDS}
    if what in ("transforms", "unpinned"):
        chosen = {f"{ndim}D": data.whole(ndim, "c16") for ndim in (1, 2, 3)}
    with dask.config.set(pin):
        for name, problem in chosen.items():
            options = {"overwrite_x": True} if what in ("rounds", "ring") else {}
            times, check, _ = measured_on_gpu(data, problem, task.repeat, **options)
            figures[name] = statistics.median(times)
            checks.append(check)
    return figures, worst(checks)


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


def all_rows() -> Iterable[tuple[str, Row]]:
    for name, shape, dtype in ARRAYS:
        for ways in (16, 64):
            problem = Problem("fftn", shape, dtype, ways)
            bound = 1.10 if ways == 64 else 1.05
            yield f"{name}-x{ways}", Row(lambda t, p=problem: in_memory(p, t), bound=bound)
    yield "convolution-2p26", Row(lambda t: convolution(1 << 26, t))
    for name, problem in STORED.items():
        yield (
            f"out-of-core-{name}",
            Row(
                lambda t, p=problem: out_of_core(p, 2 * GIB, t),
                limit=2 * GIB,
                prepare=lambda t, p=problem: write_source(p, t),
            ),
        )
    for name, (shape, chunks) in FIRST.items():
        yield f"first-task-{name}", Row(lambda t, s=shape, c=chunks: first_task(s, c, t))
    p2p = Problem("fftn", (256, 512, 512), "c8", 16)
    yield "p2p-2-workers", Row(lambda t: by_p2p(p2p, 2, t))
    for name, problem in VERIFIED.items():
        yield f"verification-{name}", Row(lambda t, p=problem: verification(p, t))
    for what in ("rounds", "transforms", "ring", "unpinned"):
        bound = 1.05 if what in ("rounds", "transforms") else 1.10
        yield f"gpu-{what}", Row(lambda t, w=what: on_gpu(w, t), bound=bound, gpu=True)


ROWS: dict[str, Row] = dict(all_rows())


def answered(name: str, given: dict[str, Any], prepare: bool = False) -> dict[str, Any]:
    """Run or prepare one row with a task of JSON; return what was found."""
    task = Task(**given)
    task.folder.mkdir(parents=True, exist_ok=True)
    row = ROWS[name]
    answer = {"package": str(Path(dask_bigfft.__file__).resolve().parent.parent)}
    with dask.config.set(scheduler="threads", num_workers=task.threads):
        if prepare and row.prepare is not None:
            row.prepare(task)
        elif not prepare:
            figures, check = row.run(task)
            answer |= {"figures": figures, "check": check}
    return answer


if __name__ == "__main__":
    print(json.dumps(answered(*json.loads(sys.argv[1]))))
