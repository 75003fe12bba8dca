"""Problems: named transforms, their data, their checks, and how a call is measured.

A check compares `SAMPLES` frequencies with sums by the definition of the transform, spread over the
first axis so that each of 64 blocks has one, and the energy with that of the input (Parseval). The
file uses only the public functions of `dask_bigfft`, so that `guard` can use it with any tree.
"""

import contextlib
import dataclasses
import gc
import importlib
import math
import os
import resource
import statistics
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
from dask_bigfft import fft

GIB = 1 << 30
MIB = 1 << 20
SEED = 20260
SAMPLES = 64

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
        lengths = [-(-n // count) for n, count in zip(self.shape, ways, strict=True)]
        return da.core.normalize_chunks(lengths, self.shape)

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
        factor = scale ** (1 / len(self.shape))
        least_shape = (4096,) if len(self.shape) == 1 else (64, 4, 4)
        shape = []
        for n, least in zip(self.shape, least_shape, strict=False):
            power = 1 << round(math.log2(n * factor))
            shape.append(min(n, max(least, power)))
        if is_prime(self.shape[0]):
            shape = [next(n for n in range(shape[0], 1, -1) if is_prime(n))]
        return dataclasses.replace(self, shape=tuple(shape))


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
    indices = np.ndindex(*map(len, chunks))
    places = da.core.slices_from_chunks(chunks)
    blocks = {}
    for index, place in zip(indices, places, strict=True):
        blocks[(name, *index)] = np.ascontiguousarray(x[place])
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


def factors(
    problem: Problem,
    axis: int,
    places: np.ndarray,
    index: Any,
) -> np.ndarray:
    """Return what elements along an axis are multiplied with for frequencies: index x places."""
    if problem.along(axis):
        return phases(problem.shape[axis], places[:, axis], index)
    return (np.asarray(index)[:, np.newaxis] == places[:, axis]).astype(np.complex128)


def direct(
    problem: Problem,
    block: np.ndarray,
    start: int,
    places: np.ndarray,
) -> np.ndarray:
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
        return direct_line(problem, block, start, places)
    if problem.along(0):
        return direct_planes(problem, block, start, places)
    # A block has its own frequencies of the first axis alone.
    inside = (places[:, 0] >= start) & (places[:, 0] < start + len(block))
    total = np.zeros(len(places), np.complex128)
    if inside.any():
        total[inside] = direct_planes(problem, block, start, places[inside])
    return total


def direct_line(
    problem: Problem,
    block: np.ndarray,
    start: int,
    places: np.ndarray,
) -> np.ndarray:
    """Return `direct` of a block of one axis, in rows of 4,096 elements and a rest."""
    total = np.zeros(len(places), np.complex128)
    width = min(4096, len(block))
    inner = factors(problem, 0, places, np.arange(width))
    rows = block[: len(block) // width * width].reshape(-1, width)
    for part in parts(rows):
        row_starts = start + width * np.arange(part.start, part.stop)
        outer = factors(problem, 0, places, row_starts)
        total += np.sum((rows[part].astype(np.complex128) @ inner) * outer, axis=0)
    tail = block[rows.size :].astype(np.complex128)
    outer = factors(problem, 0, places, [start + rows.size])[0]
    return total + outer * (tail @ inner[: len(tail)])


def direct_planes(
    problem: Problem,
    block: np.ndarray,
    start: int,
    places: np.ndarray,
) -> np.ndarray:
    """Return `direct` of a block of several axes, from the last axis to the first."""
    last_axis = block.ndim - 1
    length = block.shape[last_axis]
    # Of a long axis, the factors of parts and within a part: all of them would take much memory.
    width = 4096 if problem.along(last_axis) and length % 4096 == 0 else length
    rows = block.reshape(-1, width)
    inner = factors(problem, last_axis, places, np.arange(width))
    sums = np.empty((len(rows), len(places)), np.complex128)
    for part in parts(rows):
        sums[part] = rows[part].astype(np.complex128) @ inner
    if width < length:
        part_starts = width * np.arange(length // width)
        outer = factors(problem, last_axis, places, part_starts)
        sums = np.einsum("rnk,nk->rk", sums.reshape(-1, *outer.shape), outer)
    sums = sums.reshape(*block.shape[:-1], len(places))
    for axis in reversed(range(1, last_axis)):
        along = factors(problem, axis, places, np.arange(block.shape[axis]))
        sums = np.einsum("...nk,nk->...k", sums, along)
    along = factors(problem, 0, places, start + np.arange(len(block)))
    return np.einsum("nk,nk->k", sums, along)


def energy(block: np.ndarray) -> float:
    """Return the sum of squared magnitudes, summed in double precision."""
    values = np.ascontiguousarray(block).reshape(-1)
    flat = values.view(values.real.dtype)
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
    indices = np.ndindex(*map(len, chunks))
    places = da.core.slices_from_chunks(chunks)
    for index, place in zip(indices, places, strict=True):
        value = result[place] if graph is None else graph[(result.name, *index)]
        first = tuple(part.start for part in place)
        yield first, getattr(value, "value", value)


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
        truth = cls(problem, places, np.zeros(SAMPLES, np.complex128))
        if x is not None:
            truth.add(x, 0)
        return truth

    def random_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield first indices and blocks of a random input, each taken in."""
        start = 0
        for number, rows in enumerate(self.problem.chunks[0]):
            shape = (rows, *self.problem.shape[1:])
            block = fill(np.empty(shape, self.problem.dtype), number)
            self.add(block, start)
            yield start, block
            start += rows

    @classmethod
    def stored(cls, problem: Problem, source: Path) -> "Truth":
        """Return the truth that `save` has written beside a source."""
        truth = cls.of(problem)
        saved = np.load(source.with_suffix(".npz"))
        truth.values = saved["values"]
        truth.energy = float(saved["energy"])
        return truth

    def save(self, path: Path) -> None:
        """Write the file that `stored` reads."""
        np.savez(path.with_suffix(".npz"), values=self.values, energy=self.energy)

    def add(self, block: np.ndarray, start: int) -> None:
        """Take in a block of the input that begins at `start` of the first axis."""
        self.values += direct(self.problem, block, start, self.places)
        self.energy += energy(block)

    def check(self, result: Any) -> dict[str, Any]:
        """Return the relative errors of a result, and whether both are within the tolerance."""
        samples = np.full(SAMPLES, np.nan, np.complex128)

        def energy_of_block(first_and_block: tuple[tuple[int, ...], np.ndarray]) -> float:
            first, block = first_and_block
            ends = np.add(first, block.shape)
            inside = np.all((self.places >= first) & (self.places < ends), axis=1)
            samples[inside] = block[tuple((self.places[inside] - first).T)]
            return self.energy_of(block, first[-1])

        blocks = blocks_of(result)
        if isinstance(result, da.Array):
            energies = at_once(energy_of_block, blocks)
        else:  # blocks in files may be larger than memory together: one after another
            energies = [energy_of_block(first_and_block) for first_and_block in blocks]
        size = self.problem.transformed
        rms = math.sqrt(self.energy * size / self.problem.size)
        sample_error = float(np.max(np.abs(samples - self.values))) / rms
        energy_error = abs(sum(energies) / self.energy / size - 1)
        eps = float(np.finfo(self.problem.out_dtype).eps)
        tolerance = 8 * eps * math.log2(self.problem.size)
        # NaN is not within the tolerance.
        within = sample_error <= tolerance and energy_error <= tolerance
        return {
            "samples": sample_error,
            "energy": energy_error,
            "tolerance": tolerance,
            "ok": bool(within and tuple(result.shape) == self.problem.out_shape),
        }

    def energy_of(self, block: np.ndarray, first_column: int) -> float:
        """Return the energy of a block of the result and of its mirror image."""
        if not self.problem.real:
            return energy(block)
        columns = first_column + np.arange(block.shape[-1])
        alone = (columns == 0) | (2 * columns == self.problem.shape[-1])
        return 2 * energy(block) - energy(block[..., alone])


def sample_of_convolution(x: np.ndarray, y: np.ndarray, place: int) -> float:
    """Return one sample of the full convolution by its definition."""
    first = max(0, place - y.size + 1)
    last = min(x.size, place + 1)
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
    samples = np.full(len(places), np.nan)
    total = 0.0
    for (first,), block in blocks_of(result):
        inside = (places >= first) & (places < first + len(block))
        samples[inside] = block[places[inside] - first]
        total += float(block.sum())
    expected = np.array([sample_of_convolution(x, y, int(place)) for place in places])
    sample_error = float(np.max(np.abs(samples - expected))) / rms
    expected_total = float(x.sum()) * float(y.sum())
    sum_error = abs(total - expected_total) / (rms * math.sqrt(full))
    tolerance = 64 * float(np.finfo(float).eps) * math.log2(2 * max(x.size, y.size))
    within = sample_error <= tolerance and sum_error <= tolerance
    return {
        "samples": sample_error,
        "sum": sum_error,
        "tolerance": tolerance,
        "ok": bool(within and result.shape == (full,)),
    }


def data_of(problem: Problem) -> tuple[da.Array, Truth]:
    """Return a random input in memory, and the truth about it."""
    x = fill(np.empty(problem.shape, problem.dtype))
    return lazy(x, problem.chunks), Truth.of(problem, x)


def worst(checks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the check of a wrong result, or the one with the largest error."""
    return max(checks, key=lambda check: (not check["ok"], check["samples"]))


def at_once(work: Callable[[Any], Any], items: Iterable[Any], most: int = 64) -> list[Any]:
    """Return the results of a call for each item, in a thread for each core and `most` at most."""
    with ThreadPoolExecutor(min(most, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(work, items))


# --- turns of two processes -----------------------------------------------------------------

#: Variable with the paths of two named pipes: that of this process and that of the other one.
TURNS = "BENCHMARKS_TURNS"


class Turns:
    """Turns of two processes that live at the same time, of which one works and the other waits.

    Both then meet the same noise of the machine, which changes within seconds. A byte in the pipe
    of a process is its turn.

    Parameters
    ----------
    own, other : path
        Named pipes of this process and of the other one, which exist.
    """

    def __init__(self, own: str | Path, other: str | Path) -> None:
        # A pipe that is open for both does not wait for the other process to open it.
        self.own = os.open(own, os.O_RDWR)
        self.other = os.open(other, os.O_RDWR)

    @classmethod
    def of_environment(cls) -> "Turns | None":
        """Return the turns that the variable `TURNS` names, None if this process works alone."""
        paths = os.environ.get(TURNS)
        return cls(*paths.split(os.pathsep)) if paths else None

    def take(self) -> None:
        """Wait for a turn of this process."""
        os.read(self.own, 1)

    def change(self) -> None:
        """Let the other process have a turn, and wait for the next one of this process."""
        os.write(self.other, b".")
        self.take()


#: Turns of this process, if it has another one beside it.
turns_of_processes = Turns.of_environment()


def change_turns() -> None:
    """Let the other process of a pair have its turn; do nothing in a process that works alone."""
    if turns_of_processes is not None:
        turns_of_processes.change()


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

    What `before` has of the same name is called before a call, outside of the clock. Another
    process that shares `Turns` with this one has its turn before each of these.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(turns):
        change_turns()
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if before and name in before:
                before[name]()
            seconds, result = seconds_of(works[name])
            times[name].append(seconds)
            del result
    return times


@dataclass
class Timing:
    """The first run of a call in a process, and later ones.

    Attributes
    ----------
    first : float
        Seconds of the first run, whose memory is new. Imports are not part of it.
    warm : list of float
        Seconds of each later run.
    peak : int
        Most bytes of memory that the first run added.
    faults : int
        Page faults of the last run.
    result : Any
        Of the last run.
    """

    first: float
    warm: list[float]
    peak: int
    faults: int
    result: Any

    @property
    def figures(self) -> dict[str, Any]:
        """Everything but the result."""
        return {"first": self.first, "warm": self.warm, "peak": self.peak, "faults": self.faults}


def timed(
    run: Callable[[], Any],
    repeat: int,
    before: Callable[[], Any] | None = None,
    slow: float = math.inf,
) -> Timing:
    """Return the seconds of the first run of a call in this process, and of later ones.

    Parameters
    ----------
    run : callable
        The call. Each result is deleted before the next run.
    repeat : int
        Number of warm runs.
    before : callable, optional
        Called before each run, outside of the clock.
    slow : float
        Seconds of a first run after which there is only one warm run.
    """
    if before is not None:
        before()
    peak, (first, result) = peak_of(lambda: seconds_of(run))
    warm = []
    for _ in range(repeat if first <= slow else 1):
        del result
        if before is not None:
            before()
        known_faults = page_faults()
        seconds, result = seconds_of(run)
        faults = page_faults() - known_faults
        warm.append(seconds)
    return Timing(first, warm, peak, faults, result)


def page_faults() -> int:
    """Return the number of pages that this process had to get from the system so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


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


def settings(**values: Any) -> dict[str, Any]:
    """Return settings of dask by the names that this tree gives them."""
    missing = object()
    by_name = {}
    for short_name, value in values.items():
        current, *older = SETTINGS[short_name]
        known = [name for name in (current, *older) if dask.config.get(name, missing) != missing]
        by_name[known[0] if known else current] = value
    return by_name


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of ratios within turns."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
