"""Arrays with holes: masked convolutions and filled gaps, against plain filters and astropy.

The array is a sum of three waves, of which 30 % are NaN. *masked* convolves it with a Gaussian of
65 samples along each axis, and *filling* fills the gaps in 20 iterations. Both go from Zarr to
Zarr without compression, in a memory cgroup of 1 GiB where one can be made; the contestant is a
Gaussian filter by one plan, from Zarr to Zarr in the same group, of which two, or 20, are the
bound. *masked* is held against two convolutions with its kernel as well, which pad the array as it
does. *in memory* convolves an array that fits, against astropy, which computes in double
precision. Contestants take turns in processes of their own. The last of ``--kernels`` is used. The
temporary folder needs about 45 GiB. A turn of *filling* reads and writes the array more than 100
times, which takes an hour on a slow disk; ``--scale 0.125`` fills 1 GiB through 256 MiB.
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core, problems
from benchmarks.problems import GIB, MIB, Problem
from benchmarks.rows import Task, drop_cache, source_path
from dask_bigfft import signal
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.planner.plan import Plan

LIMIT = GIB

PROBLEMS = {"3d": Problem("rfftn", (1024, 1024, 2048), "f4", 512)}
SMALL = Problem("rfftn", (64, 64, 128), "f4", 4)
IN_MEMORY = {"3d, in memory": Problem("rfftn", (256, 256, 256), "f4", 8)}

#: Part of the values that is missing.
MISSING = 0.3

#: Samples of the kernel along an axis, and its standard deviation.
KERNEL = 65
WIDTH = 8.0

#: Highest frequency of the band, and iterations.
BAND = 0.05
ITERATIONS = 20

#: Number of places that are compared.
SAMPLES = 24

#: Seconds after which a process of a stored array counts as failed.
MOST_SECONDS = 4 * 3600.0


def wave(shape: Sequence[int], index: Sequence[Any]) -> Any:
    """Return the values of a band-limited array at some places."""
    total: Any = 0.0
    for number in range(3):
        turns: Any = 0.0
        for axis, (n, places) in enumerate(zip(shape, index, strict=True)):
            periods = int(BAND * n * (0.3 + 0.2 * ((number + axis) % 3)))
            turns = turns + periods * (places % n) / n
        total = total + np.cos(2 * np.pi * (turns + 0.1 * number))
    return total


def block_of(problem: Problem, start: int, count: int) -> np.ndarray:
    """Return some rows of the array with its holes."""
    grids = [np.arange(n, dtype=float) for n in problem.shape]
    grids[0] = np.arange(start, start + count, dtype=float)
    values = wave(problem.shape, np.meshgrid(*grids, indexing="ij", sparse=True))
    rng = np.random.default_rng((problems.SEED, start))
    holes = rng.random(values.shape, np.float32) < MISSING
    return np.where(holes, np.nan, values).astype(problem.dtype)


def write_source(problem: Problem, task: Task) -> None:
    """Write the array with its holes."""
    import zarr

    array = zarr.create_array(
        str(source_path(problem, task)),
        shape=problem.shape,
        dtype=problem.dtype,
        compressors=None,
        chunks=(problem.chunks[0][0], *problem.shape[1:]),
    )
    start = 0
    for count in problem.chunks[0]:
        array[start : start + count] = block_of(problem, start, count)
        start += count


def kernel_of(problem: Problem) -> np.ndarray:
    """Return the values of the kernel."""
    kernel: Any = 1.0
    for axis, n in enumerate(problem.shape):
        size = min(KERNEL, n // 2 * 2 - 1)
        bell = np.exp(-((np.arange(size) - size // 2) ** 2) / (2 * WIDTH**2))
        shape = [1] * len(problem.shape)
        shape[axis] = size
        kernel = kernel * bell.reshape(shape)
    return np.asarray(kernel)


def smooth(*frequencies: np.ndarray) -> Any:
    """Return the transfer function of the plain filter."""
    return np.exp(-2 * (np.pi * WIDTH) ** 2 * sum(f**2 for f in frequencies))


def masked(problem: Problem, x: da.Array, **options: Any) -> da.Array:
    """Return the convolution of known values."""
    return signal.convolve_masked(x, kernel_of(problem), **options)


def filled(problem: Problem, x: da.Array, **options: Any) -> da.Array:
    """Return the array with its gaps filled."""
    return signal.fill_gaps(x, band=BAND, iterations=ITERATIONS, **options)[0]


def plain(problem: Problem, x: da.Array, **options: Any) -> da.Array:
    """Return a filter by one plan; what it makes of NaN does not count."""
    return signal.fourier_filter(x, smooth, **options)


def convolution(problem: Problem, x: da.Array, **options: Any) -> da.Array:
    """Return a convolution by one plan; what it makes of NaN does not count."""
    kernel = kernel_of(problem).astype(problem.dtype)
    return signal.fftconvolve(x, kernel, mode="same", **options)


FUNCTIONS: dict[str, Callable[..., da.Array]] = {
    "masked": masked,
    "filling": filled,
    "plain": plain,
    "convolution": convolution,
}

#: Number of plain filters whose time is the bound.
BOUNDS = {"masked": 2, "filling": ITERATIONS}

#: Functions that pad the array as much as a convolution does.
PADDED = ("masked",)


# --- checks ---------------------------------------------------------------------------------


def mean_around(problem: Problem, source: Any, place: tuple[int, ...]) -> float:
    """Return the weighted mean of the known values around a place; they are 0 outside."""
    kernel = kernel_of(problem)
    inside = []
    of_kernel = []
    for n, size, at in zip(problem.shape, kernel.shape, place, strict=True):
        low = at - size // 2
        inside.append(slice(max(low, 0), min(low + size, n)))
        of_kernel.append(slice(max(-low, 0), min(n - low, size)))
    values = np.asarray(source[tuple(inside)], float)
    weights = kernel[tuple(of_kernel)]
    known = np.isfinite(values)
    outside = kernel.sum() - weights.sum()
    total = np.sum(weights * np.where(known, values, 0))
    return float(total / (np.sum(weights * known) + outside))


def check(name: str, problem: Problem, source: Any, result: Any) -> dict[str, Any]:
    """Compare samples of a result with sums by definition, or with the waves."""
    if name in ("plain", "convolution"):
        return {"samples": 0.0, "ok": result.shape == problem.shape}
    rng = np.random.default_rng(problems.SEED + 3)
    errors = []
    while len(errors) < SAMPLES:
        place = tuple(int(rng.integers(n)) for n in problem.shape)
        if name == "masked":
            expected = mean_around(problem, source, place)
        elif np.isfinite(float(source[place])):
            continue
        else:
            expected = float(wave(problem.shape, place))
        errors.append(abs(float(result[place]) - expected))
    return {"samples": max(errors), "ok": max(errors) < 3e-3}


# --- runs -----------------------------------------------------------------------------------


def by_zarr(
    name: str,
    problem: Problem,
    task: Task,
    memory_limit: int,
) -> tuple[Any, list[Plan]]:
    """Apply a function from Zarr to Zarr; return the stored result and the plans."""
    import zarr

    x = da.from_zarr(str(source_path(problem, task)))
    result = FUNCTIONS[name](problem, x, memory_limit=memory_limit)
    chunks = tuple(max(cut) for cut in result.chunks)
    stored = zarr.create_array(
        str(task.folder / f"{name}.zarr"),
        shape=result.shape,
        dtype=result.dtype,
        chunks=chunks,
        compressors=None,
        overwrite=True,
    )
    da.store(result.rechunk(chunks), stored, lock=False)
    return stored, list(transforms_in(result).values())


def warm_up(name: str, task: Task) -> None:
    """Apply a function to a small array by scratch files, which imports and compiles all of it."""
    warm = dataclasses.replace(task, folder=task.folder / f"warm-{name}")
    write_source(SMALL, warm)
    with dask.config.set({"bigfft.exchange.carrier": "disk"}):
        by_zarr(name, SMALL, warm, LIMIT)
    shutil.rmtree(warm.folder)


def out_of_core(name: str, fields: dict[str, Any], problem_name: str) -> dict[str, Any]:
    """Apply a function from Zarr to Zarr in this process; return seconds, peak and a check."""
    import zarr

    task = Task(**fields)
    problem = PROBLEMS[problem_name].scaled(task.scale)
    source = source_path(problem, task)
    dask.config.set(
        {
            "scheduler": "threads",
            "num_workers": task.threads,
            "bigfft.kernel": task.kernel,
            "bigfft.scratch.directory": str(task.folder),
        }
    )
    warm_up(name, task)
    memory_limit = int(0.75 * (LIMIT - problems.status("RssAnon")))
    if task.scale < 1:
        memory_limit = max(256 * MIB, int(memory_limit * task.scale))
    drop_cache(source)

    def work() -> tuple[Any, list[Plan]]:
        return by_zarr(name, problem, task, memory_limit)

    peak, (seconds, (stored, plans)) = problems.peak_of(lambda: problems.seconds_of(work))
    original = zarr.open_array(str(source), mode="r")
    answer = {"seconds": seconds, "peak": peak, "limit": memory_limit}
    if len({plan.expected.peak_host for plan in plans}) == 1:  # of one plan, or of iterations
        answer["forecast"] = plans[0].expected.peak_host
    answer |= check(name, problem, original, stored)
    shutil.rmtree(task.folder / f"{name}.zarr")
    return answer


def measured(name: str, problem_name: str, task: Task, repeat: int) -> dict[str, Any]:
    """Return the medians of a function and of plain plans in turn, and their ratios."""
    fields = dataclasses.asdict(task)

    def turn(contestant: str) -> dict[str, Any]:
        return core.call(
            out_of_core,
            contestant,
            fields,
            problem_name,
            limit=LIMIT,
            seconds=MOST_SECONDS,
        )

    padded = ["convolution"] if name in PADDED else []
    answers = core.in_turns([name, "plain", *padded], repeat, turn)
    for contestant, several in answers.items():
        for answer in several:
            if "error" in answer:
                return {"failed": f"{contestant}: {answer['error']}"}
    count = BOUNDS[name]
    own = answers[name]
    forecast = own[0].get("forecast")
    seconds = {
        contestant: [answer["seconds"] for answer in several]
        for contestant, several in answers.items()
    }
    against_padded = {}
    if "convolution" in seconds:
        bounds = [count * time for time in seconds["convolution"]]
        against_padded = {
            "convolution": core.median(seconds["convolution"]),
            "over_convolutions": core.ratio(seconds[name], bounds),
        }
    return {
        "seconds": core.median(seconds[name]),
        "plain": core.median(seconds["plain"]),
        "count": count,
        "over_bound": core.ratio(seconds[name], [count * time for time in seconds["plain"]]),
        **against_padded,
        "peak_gib": max(answer["peak"] for answer in own) / GIB,
        "forecast_gib": None if forecast is None else forecast / GIB,
        "limit_gib": own[0]["limit"] / GIB,
        "cgroup": own[0]["cgroup"],
        **core.outcome(problems.worst(own)),
    }


def in_memory(contestant: str, problem_name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Convolve an array in memory in this process; return times, peak and a check."""
    problem = IN_MEMORY[problem_name].scaled(task["scale"])
    dask.config.set(scheduler="threads", num_workers=task["threads"])
    dask.config.set({"bigfft.kernel": task["kernel"]})
    x = np.concatenate([block_of(problem, s, n) for s, n in starts(problem)])
    kernel = kernel_of(problem)
    if contestant == "astropy":
        from astropy.convolution import convolve_fft

        def run() -> Any:
            return convolve_fft(x, kernel, allow_huge=True)

    else:
        blocks = problems.lazy(x, problem.chunks)

        def run() -> Any:
            return np.asarray(masked(problem, blocks))

    timing = problems.timed(run, task["repeat"])
    return {**timing.figures, **check("masked", problem, x, timing.result)}


def starts(problem: Problem) -> list[tuple[int, int]]:
    """Return the first row of each block of the array, and its number of rows."""
    counts = problem.chunks[0]
    ends = np.cumsum(counts)
    return [(int(end - count), count) for end, count in zip(ends, counts, strict=True)]


def against_astropy(name: str, task: dict[str, Any], processes: int) -> dict[str, Any]:
    """Return the medians of both contestants in memory, and their ratio."""

    def turn(contestant: str) -> dict[str, Any]:
        return core.call(in_memory, contestant, name, task)

    answers = core.in_turns(["ours", "astropy"], processes, turn)
    for contestant, several in answers.items():
        for answer in several:
            if "error" in answer:
                return {"failed": f"{contestant}: {answer['error']}"}
    warm = {label: [s for a in several for s in a["warm"]] for label, several in answers.items()}
    return {
        "ours": core.median(warm["ours"]),
        "astropy": core.median(warm["astropy"]),
        "first": core.median([answer["first"] for answer in answers["ours"]]),
        "astropy / ours": core.ratio(warm["astropy"], warm["ours"]),
        "peak_gib": max(answer["peak"] for answer in answers["ours"]) / GIB,
        **core.outcome(problems.worst([*answers["ours"], *answers["astropy"]])),
    }


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("holes", __doc__, repeat=3)
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of each in memory")
    args = parser.parse_args(argv)
    kernel = args.kernels[-1]
    results = core.Results(args, "holes", kernel=kernel, limit_gib=LIMIT / GIB)
    names = [f"{name}, {problem}" for name in BOUNDS for problem in PROBLEMS]
    chosen = core.chosen([*names, *IN_MEMORY], args.only)
    for name in results.missing("memory", [name for name in chosen if name in IN_MEMORY]):
        task = {"scale": args.scale, "threads": args.threads, "kernel": kernel}
        task["repeat"] = args.repeat
        results.add("memory", name, **against_astropy(name, task, args.processes))
    stored = [name for name in chosen if name not in IN_MEMORY]
    for name in results.missing("stored", stored):
        function, _, problem = name.partition(", ")
        with tempfile.TemporaryDirectory() as folder:
            own_task = Task(args.scale, args.threads, 1, kernel, Path(folder).resolve())
            write_source(PROBLEMS[problem].scaled(args.scale), own_task)
            results.add("stored", name, **measured(function, problem, own_task, args.repeat))
    return int(not results.ok)
