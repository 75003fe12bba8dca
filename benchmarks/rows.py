"""Rows: named problems, their data, their checks, and one measurement of each in this process.

``python benchmarks/rows.py JSON`` runs one row (the arguments of `answered`) and prints its figures
as JSON. The file uses only
the public functions of `dask_bigfft` and imports nothing else of this repository, so that `guard`
can run it on any tree (``PYTHONPATH=TREE``).

A check compares `SAMPLES` frequencies with sums by the definition of the transform, spread over the
first axis so that each of 64 blocks has one, and the energy with that of the input (Parseval).
"""

import contextlib
import dataclasses
import gc
import importlib
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_bigfft
from dask_bigfft import fft, signal

GIB, MIB = 1 << 30, 1 << 20
SEED, SAMPLES = 20260, 64

#: Seconds after which a first task counts as missing.
FIRST_TASK_LIMIT = 300.0

#: Names that a setting has had, the current one first.
SETTINGS = {
    "carrier": ("bigfft.exchange.carrier",),
    "scratch": ("bigfft.scratch.directory",),
    "merge": ("bigfft.planner.min-chunk", "bigfft.planner.merge-up-to"),
    "pin-arrays": ("bigfft.memory.pin-arrays",),
    "peer": ("bigfft.gpu.peer-transport", "bigfft.exchange.peer"),
}


# --- problems -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A transform of one array that is cut into blocks.

    Parameters
    ----------
    kind : str
        Function of `dask_bigfft.fft`.
    shape : tuple of int
        Of the input.
    dtype : str
        Of the input.
    ways : int or tuple of int
        Number of blocks along the first axis, or along each.
    axes : tuple of int, optional
        Transformed axes, all by default.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    ways: int | tuple[int, ...]
    axes: tuple[int, ...] | None = None

    @property
    def real(self) -> bool:
        return np.dtype(self.dtype).kind == "f"

    @property
    def out_dtype(self) -> np.dtype[Any]:
        return np.result_type(self.dtype, np.complex64)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.shape[:-1], self.shape[-1] // 2 + 1) if self.real else self.shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        ways = (self.ways,) if isinstance(self.ways, int) else self.ways
        ways += (1,) * (len(self.shape) - len(ways))
        steps = [-(-n // count) for n, count in zip(self.shape, ways, strict=True)]
        return da.core.normalize_chunks(steps, self.shape)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the transform beside the array."""
        return {} if self.axes is None else {"axes": self.axes}

    @property
    def transformed(self) -> int:
        """Number of elements of one transform."""
        return math.prod(n for axis, n in enumerate(self.shape) if self.along(axis))

    def along(self, axis: int) -> bool:
        return self.axes is None or axis in self.axes

    def scaled(self, scale: float) -> "Problem":
        """Return the problem with about `scale` times the elements; a prime length stays prime.

        >>> Problem("fftn", (8192, 8192), "c16", 16).scaled(1 / 1024).shape
        (256, 256)
        """
        if scale >= 1:
            return self
        factor, prime = scale ** (1 / len(self.shape)), is_prime(self.shape[0])
        least = (4096,) if len(self.shape) == 1 else (64, 4, 4)
        shape = tuple(
            min(n, max(low, 1 << round(math.log2(n * factor))))
            for n, low in zip(self.shape, least, strict=False)
        )
        if prime:
            shape = (next(n for n in range(shape[0], 1, -1) if is_prime(n)),)
        return dataclasses.replace(self, shape=shape)


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def fill(array: np.ndarray, key: int = 0) -> np.ndarray:
    """Write random numbers of mean 0 in place, the same in every process."""
    real = array.real.dtype.type
    flat = array.reshape(-1).view(real)
    rng = np.random.default_rng((SEED, key))
    rng.random(out=flat, dtype=real)
    flat -= real(0.5)
    return array


def lazy(x: np.ndarray, chunks: tuple[tuple[int, ...], ...]) -> da.Array:
    """Return a dask array whose blocks are views of `x`, or copies where these are strided."""
    name = f"row-{dask.base.tokenize(x.shape, str(x.dtype), x.ctypes.data)}"
    keys, places = np.ndindex(*map(len, chunks)), da.core.slices_from_chunks(chunks)
    blocks = {(name, *key): np.ascontiguousarray(x[i]) for key, i in zip(keys, places, strict=True)}
    return da.Array(blocks, name, chunks, dtype=x.dtype)


def graph_of(problem: Problem, array: da.Array, **options: Any) -> da.Array:
    """Return the lazy transform of an array."""
    return getattr(fft, problem.kind)(array, **problem.options, **options)


def plan_of(problem: Problem, array: da.Array, **options: Any) -> Any:
    """Return the plan of the transform of an array."""
    return dask_bigfft.plan(array, problem.kind, **problem.options, **options)


# --- checks ---------------------------------------------------------------------------------


def phases(n: int, frequencies: np.ndarray, places: Any) -> np.ndarray:
    """Return exp(-2j pi place frequency / n) as places x frequencies."""
    index = np.multiply.outer(np.asarray(places, np.int64), frequencies.astype(np.int64)) % n
    return np.exp(index * (-2j * math.pi / n))


def parts(rows: np.ndarray) -> Iterator[slice]:
    """Yield slices of the first axis of about 32 MiB in double precision."""
    step = max(1, (2 << 20) // max(1, math.prod(rows.shape[1:])))
    for low in range(0, len(rows), step):
        yield slice(low, min(len(rows), low + step))


def factors(problem: Problem, axis: int, places: np.ndarray, index: Any) -> np.ndarray:
    """Return what elements along an axis are multiplied with for frequencies: index x places."""
    if problem.along(axis):
        return phases(problem.shape[axis], places[:, axis], index)
    return (np.asarray(index)[:, np.newaxis] == places[:, axis]).astype(np.complex128)


def direct(problem: Problem, block: np.ndarray, start: int, places: np.ndarray) -> np.ndarray:
    """Return the share of a block in some frequencies, by the definition of the transform.

    Parameters
    ----------
    problem : Problem
        The transform.
    block : ndarray
        Part of the input from `start` on along the first axis.
    start : int
        First index of the block.
    places : ndarray of int
        Frequencies x axes.
    """
    if block.ndim == 1:
        total = np.zeros(len(places), np.complex128)
        width = min(4096, len(block))
        inner = factors(problem, 0, places, np.arange(width))
        rows = block[: len(block) // width * width].reshape(-1, width)
        for part in parts(rows):
            at = factors(problem, 0, places, start + width * np.arange(part.start, part.stop))
            total += np.sum((rows[part].astype(np.complex128) @ inner) * at, axis=0)
        tail = block[rows.size :].astype(np.complex128)
        at = factors(problem, 0, places, [start + rows.size])[0]
        return total + at * (tail @ inner[: len(tail)])
    if not problem.along(0):  # a block has its own frequencies alone
        inside = (places[:, 0] >= start) & (places[:, 0] < start + len(block))
        if not inside.all():
            total = np.zeros(len(places), np.complex128)
            if inside.any():
                total[inside] = direct(problem, block, start, places[inside])
            return total
    axis, last = block.ndim - 1, block.shape[-1]
    # Of a long axis, the factors of parts and within a part: all of them would take much memory.
    width = 4096 if problem.along(axis) and last % 4096 == 0 else last
    rows, inner = block.reshape(-1, width), factors(problem, axis, places, np.arange(width))
    sums = np.empty((len(rows), len(places)), np.complex128)
    for part in parts(rows):
        sums[part] = rows[part].astype(np.complex128) @ inner
    if width < last:
        along = factors(problem, axis, places, width * np.arange(last // width))
        sums = np.einsum("rnk,nk->rk", sums.reshape(-1, *along.shape), along)
    sums = sums.reshape(*block.shape[:-1], len(places))
    for axis in reversed(range(1, block.ndim - 1)):
        along = factors(problem, axis, places, np.arange(block.shape[axis]))
        sums = np.einsum("...nk,nk->...k", sums, along)
    along = factors(problem, 0, places, start + np.arange(len(block)))
    return np.einsum("nk,nk->k", sums, along)


def energy(block: np.ndarray) -> float:
    """Return the sum of squared magnitudes, summed in double precision."""
    flat = block.reshape(-1) if block.flags.c_contiguous else np.ascontiguousarray(block).ravel()
    flat = flat.view(flat.real.dtype)
    total = 0.0
    for part in parts(flat):
        values = flat[part].astype(np.float64, copy=False)
        total += float(np.dot(values, values))
    return total


def blocks_of(result: Any) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield first index and values of each block of an array, a persisted or a Zarr array."""
    if isinstance(result, np.ndarray):
        yield (0,) * result.ndim, result
        return
    graph = result.__dask_graph__() if isinstance(result, da.Array) else None
    chunks = da.core.normalize_chunks(result.chunks, result.shape)
    keys, places = np.ndindex(*map(len, chunks)), da.core.slices_from_chunks(chunks)
    for key, place in zip(keys, places, strict=True):
        value = result[place] if graph is None else graph[(result.name, *key)]
        yield tuple(cut.start for cut in place), getattr(value, "value", value)


@dataclass
class Truth:
    """Energy of an input and some frequencies of its transform."""

    problem: Problem
    places: np.ndarray
    values: np.ndarray
    energy: float = 0.0

    @classmethod
    def of(cls, problem: Problem, x: np.ndarray | None = None) -> "Truth":
        """Return the truth about `x`; without it, of an input whose blocks are added later."""
        rng = np.random.default_rng(SEED + 1)
        places = np.stack([rng.integers(n, size=SAMPLES) for n in problem.out_shape], axis=1)
        n = problem.out_shape[0]  # one in each of as many parts of the first axis
        places[:, 0] = (np.arange(SAMPLES) * n + places[:, 0]) // SAMPLES
        places[0] = 0
        found = cls(problem, places, np.zeros(SAMPLES, np.complex128))
        if x is not None:
            found.add(x, 0)
        return found

    def random_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first indices and blocks of a random input, each taken in."""
        cuts = self.problem.chunks[0]
        for number, start in enumerate(np.cumsum((0, *cuts[:-1])).tolist()):
            shape = (cuts[number], *self.problem.shape[1:])
            block = fill(np.empty(shape, self.problem.dtype), number)
            self.add(block, start)
            yield start, block

    @classmethod
    def stored(cls, problem: Problem, source: Path) -> "Truth":
        """Return the truth that `write_source` has written beside a source."""
        found, known = cls.of(problem), np.load(source.with_suffix(".npz"))
        found.values, found.energy = known["values"], float(known["energy"])
        return found

    def add(self, block: np.ndarray, start: int) -> None:
        """Take in a block of the input that begins at `start` of the first axis."""
        self.values += direct(self.problem, block, start, self.places)
        self.energy += energy(block)

    def check(self, result: Any) -> dict[str, Any]:
        """Return the relative errors of a result, and whether both are within the tolerance."""
        found, n = np.full(SAMPLES, np.nan, np.complex128), self.problem.shape[-1]

        def of_block(item: tuple[tuple[int, ...], np.ndarray]) -> float:
            first, block = item
            inside = np.all((self.places >= first) & (self.places < np.add(first, block.shape)), 1)
            found[inside] = block[tuple((self.places[inside] - first).T)]
            total = (1 + self.problem.real) * energy(block)
            if self.problem.real:  # these frequencies have no mirror image
                columns = first[-1] + np.arange(block.shape[-1])
                total -= energy(block[..., (columns == 0) | (2 * columns == n)])
            return total

        # Blocks in files are read one after another: they may be larger than memory.
        each = at_once if isinstance(result, da.Array) else map
        total = sum(each(of_block, blocks_of(result)))
        eps = float(np.finfo(self.problem.out_dtype).eps)
        tolerance = 8 * eps * math.log2(self.problem.size)
        size = self.problem.transformed
        rms = math.sqrt(self.energy * size / self.problem.size)
        errors = (
            float(np.max(np.abs(found - self.values))) / rms,
            abs(total / self.energy / size - 1),
        )
        shape_ok = tuple(result.shape) == self.problem.out_shape
        ok = shape_ok and all(error <= tolerance for error in errors)  # NaN is not
        return {"samples": errors[0], "energy": errors[1], "tolerance": tolerance, "ok": bool(ok)}


def worst(checks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return max(checks, key=lambda found: (not found["ok"], found["samples"]))


def at_once(work: Callable[[Any], Any], items: Iterable[Any], most: int = 64) -> list[Any]:
    """Return the results of a call for each item, in a thread for each core and `most` at most."""
    with ThreadPoolExecutor(min(most, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(work, items))


# --- measuring ------------------------------------------------------------------------------


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds and result of a call; garbage is collected before it."""
    gc.collect()
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def alternate(
    works: Mapping[str, Callable[[], Any]],
    turns: int,
    before: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of several calls that take turns; each turn begins with another one.

    What `before` has of the same name is called before a call, outside of the clock.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if before and name in before:
                before[name]()
            seconds, result = seconds_of(works[name])
            times[name].append(seconds)
            del result
    return times


def status(field: str) -> int:
    """Return bytes of a field of /proc/self/status, such as VmRSS or VmHWM."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    return 0


def reset_peak() -> int:
    """Reset VmHWM, the most memory in use; return the bytes that are in use now."""
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


def moved_bytes() -> int:
    """Return the bytes that this process has read and written by system calls."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def peak_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return the most bytes of memory that a call adds to those in use before, and its result.

    What imports and the compiler cost is not counted: one tree imports them when it needs them.
    """
    importlib.import_module("distributed")
    importlib.import_module("numba").njit(lambda: 0)()
    before = reset_peak()
    result = work()
    return status("VmHWM") - before, result


def settings(**wanted: Any) -> dict[str, Any]:
    """Return settings of dask by the names that this tree gives them."""
    found = {}
    for name, value in wanted.items():
        known = [key for key in SETTINGS[name] if dask.config.get(key, found) is not found]
        found[known[0] if known else SETTINGS[name][0]] = value
    return found


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of ratios within turns."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


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


def data_of(problem: Problem) -> tuple[da.Array, Truth]:
    """Return a random input in memory, and the truth about it."""
    x = fill(np.empty(problem.shape, problem.dtype))
    return lazy(x, problem.chunks), Truth.of(problem, x)


def in_memory(problem: Problem, task: Task) -> Found:
    """Measure `persist()`, `compute()` and peak memory of a transform of data in memory."""
    problem = problem.scaled(task.scale)
    x, truth = data_of(problem)
    y = graph_of(problem, x, kernel=task.kernel)
    peak, result = peak_of(y.persist)
    check = truth.check(result)
    del result
    for _ in range(min(3, GIB // problem.nbytes)):  # until copies are compiled
        y.persist()
    times = alternate({"persist": y.persist, "compute": y.compute}, task.repeat)
    check = worst([check, truth.check(y.compute())])
    return {
        **{name: statistics.median(seconds) for name, seconds in times.items()},
        "compute / persist": median_ratio(times["compute"], times["persist"]),
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
            array, ways = (
                lazy(x, problem.chunks),
                {mode: mode for mode in modes} | {"again": "none"},
            )
            graphs = {
                mode: graph_of(problem, array, kernel=task.kernel, verify=ways[mode])
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
    return {f"{mode} / none": median_ratio(times[mode], times["none"]) for mode in modes[1:]}, check


# --- convolution ----------------------------------------------------------------------------


def sample_of_convolution(x: np.ndarray, y: np.ndarray, place: int) -> float:
    """Return one sample of the full convolution by its definition."""
    first, last = max(0, place - y.size + 1), min(x.size, place + 1)
    sums = []
    for low in range(first, last, 1 << 20):
        high = min(low + (1 << 20), last)
        sums.append(float(x[low:high] @ y[place - high + 1 : place - low + 1][::-1]))
    return math.fsum(sums)


def check_convolution(x: np.ndarray, y: np.ndarray, result: Any) -> dict[str, Any]:
    """Compare samples and the sum of a full convolution with their definitions."""
    full = x.size + y.size - 1
    places = np.random.default_rng(SEED + 1).integers(0, full, 24)
    rms = math.sqrt(min(x.size, y.size)) / 12
    found, total = np.full(len(places), np.nan), 0.0
    for (first,), block in blocks_of(result):
        inside = (places >= first) & (places < first + len(block))
        found[inside] = block[places[inside] - first]
        total += float(block.sum())
    wanted = np.array([sample_of_convolution(x, y, int(place)) for place in places])
    samples = float(np.max(np.abs(found - wanted))) / rms
    whole = abs(total - float(x.sum()) * float(y.sum())) / (rms * math.sqrt(full))
    tolerance = 64 * float(np.finfo(float).eps) * math.log2(2 * max(x.size, y.size))
    ok = result.shape == (full,) and samples <= tolerance and whole <= tolerance
    return {"samples": samples, "sum": whole, "tolerance": tolerance, "ok": bool(ok)}


def convolution(samples: int, task: Task) -> Found:
    """Measure the convolution of two arrays: time and peak memory."""
    samples = max(4096, int(samples * task.scale))
    x, y = (fill(np.empty(samples), key) for key in range(2))
    cut = Problem("fft", (samples,), "f8", 16).chunks
    lazy_x, lazy_y = lazy(x, cut), lazy(y, cut)

    def work() -> Any:
        return signal.fftconvolve(lazy_x, lazy_y, kernel=task.kernel).persist()

    peak, result = peak_of(work)
    check = check_convolution(x, y, result)
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
    path, truth = source_path(problem, task), Truth.of(problem)
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
    np.savez(path.with_suffix(".npz"), values=truth.values, energy=truth.energy)
    drop_cache(path)


def drop_cache(folder: Path) -> None:
    """Drop the files below a folder from the page cache, so that they are read from the disk."""
    os.sync()
    for path in folder.rglob("*") if hasattr(os, "posix_fadvise") else ():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def out_of_core(problem: Problem, limit: int, task: Task) -> Found:
    """Measure a transform from Zarr to Zarr in a process with a memory limit."""
    import zarr

    problem = problem.scaled(task.scale)
    source, target = source_path(problem, task), task.folder / "result.zarr"
    small = Problem(problem.kind, (4096, 16, 16)[: len(problem.shape)], problem.dtype, 4)
    room = task.folder / "scratch"
    room.mkdir(exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    options: dict[str, Any] = {"overwrite": True, "kernel": task.kernel}
    with dask.config.set(settings(carrier="disk", scratch=str(room))):
        warm = dataclasses.replace(task, folder=task.folder / "warm", scale=1.0)
        write_source(small, warm)
        dask_bigfft.run(source_path(small, warm), warm.folder / "out.zarr", small.kind, **options)
        share = int(0.8 * (limit - status("RssAnon")))
        if task.scale < 1:
            share = max(256 * MIB, int(share * task.scale))
        block = problem.nbytes // problem.ways

        def work() -> Any:
            return dask_bigfft.run(
                source, target, problem.kind, memory_limit=share, block_size=block, **options
            )

        before = moved_bytes()
        seconds, (peak, done) = seconds_of(lambda: peak_of(work))
        moved = moved_bytes() - before
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
            before = reset_peak()
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
            grown = status("VmHWM") - before
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
    bits, shape = elements.bit_length() - 1, []
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
    at_once(lambda i: fill(memory[i].view(dtype), i), range(len(memory)))


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
        rows, name = shape[0] // len(self.memory), f"gpu-{shape}-{dtype}-{id(self)}"
        graph = {
            (name, i, *(0,) * (len(shape) - 1)): block.view(dtype).reshape(rows, *shape[1:])
            for i, block in enumerate(self.memory)
        }
        chunks = ((rows,) * len(self.memory), *((n,) for n in shape[1:]))
        return da.Array(graph, name, chunks, dtype=dtype)

    def truth(self, problem: Problem) -> Truth:
        """Return the truth about the present contents."""
        blocks = list(blocks_of(self.array(problem.shape, problem.dtype)))

        def part(i: int) -> Truth:
            found = Truth.of(problem)
            found.add(blocks[i][1], blocks[i][0][0])
            return found

        found = at_once(part, range(len(self.memory)), most=4)  # each needs much memory
        total = sum((one.values for one in found), np.zeros(SAMPLES, np.complex128))
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

    def whole(self, ndim: int, dtype: str) -> Problem:
        """Return the problem of a transform of all data."""
        shape = even_shape(self.nbytes // np.dtype(dtype).itemsize, ndim)
        return Problem("fftn", shape, dtype, len(self.memory))


def measured_on_gpu(data: GpuData, problem: Problem, repeat: int, **options: Any) -> Any:
    """Return seconds of transforms after one that does not count, and a check."""
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
    return times, check


def on_gpu(what: str, task: Task) -> Found:
    """Measure rounds or whole transforms on a GPU, of data in blocks of 256 MiB."""
    nbytes, block = (max(1 << 16, int(n * task.scale)) for n in (4 * GIB, 256 * MIB))
    nbytes, block = (1 << (n.bit_length() - 1) for n in (nbytes, block))
    budget = max(1 << 20, int(2 * GIB * task.scale))
    pinned = what in ("rounds", "transforms")
    pin = settings(**{"pin-arrays": what != "ring"})
    data, figures, checks = GpuData.of(nbytes, block, pinned, budget), {}, []
    problems = {name: data.round(name, "c16") for name, *_ in ROUNDS}
    if what in ("transforms", "unpinned"):
        problems = {f"{ndim}D": data.whole(ndim, "c16") for ndim in (1, 2, 3)}
    with dask.config.set(pin):
        for name, problem in problems.items():
            options = {"overwrite_x": True} if what in ("rounds", "ring") else {}
            times, check = measured_on_gpu(data, problem, task.repeat, **options)
            figures[name], _ = statistics.median(times), checks.append(check)
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
    row, answer = ROWS[name], {"package": str(Path(dask_bigfft.__file__).parent.parent)}
    with dask.config.set(scheduler="threads", num_workers=task.threads):
        if prepare and row.prepare is not None:
            row.prepare(task)
        elif not prepare:
            figures, check = row.run(task)
            answer |= {"figures": figures, "check": check}
    return answer


if __name__ == "__main__":
    print(json.dumps(answered(*json.loads(sys.argv[1]))))
