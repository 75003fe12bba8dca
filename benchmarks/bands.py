"""A band of a spectrum, from Zarr to Zarr, against reading the source and its first round alone.

The band has an eighth of the frequencies of each axis. Runs have a memory cgroup of 1 GiB where one
can be made, and read and write without compression. Three contestants take turns in processes of
their own: the run, reading all files of the source, and the first round of a part of the source in
memory, whose time is scaled to all of it. The larger one of the last two is the floor. The last of
``--kernels`` is used. The temporary folder needs about 10 GiB.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_bigfft
from benchmarks import core, problems, rows
from benchmarks.out_of_core import COPY_STEP
from benchmarks.problems import GIB, Problem
from benchmarks.rows import Task, drop_cache, source_path
from dask_bigfft import fft

LIMIT = GIB

#: Frequencies that are kept, in parts of all.
PART = 8

PROBLEMS = {
    "3d": Problem("rfftn", (1024, 1024, 2048), "f4", 128),
    "2d": Problem("rfftn", (32768, 65536), "f4", 128),
}

#: Bytes of the part of the source whose first round is measured.
IN_MEMORY = 256 << 20


def band_of(problem: Problem) -> dict[int, tuple[int, int]]:
    """Return the places of the band in ascending order: around frequency 0, or from it on."""
    places = {}
    for axis, n in enumerate(problem.shape):
        count = max(1, n // PART)
        places[axis] = (n // 2 - count // 2, n // 2 - count // 2 + count)
    last_axis = len(problem.shape) - 1
    places[last_axis] = (0, max(1, problem.out_shape[-1] // PART))
    return places


def samples_of(problem: Problem) -> np.ndarray:
    """Return the places in the result whose values are checked, one row each."""
    rng = np.random.default_rng(problems.SEED + 2)
    columns = [rng.integers(stop - start, size=24) for start, stop in band_of(problem).values()]
    return np.stack(columns, axis=1)


def frequencies_of(problem: Problem, places: np.ndarray) -> np.ndarray:
    """Return the frequencies at places of the band."""
    frequencies = places.copy()
    for axis, (start, _) in band_of(problem).items():
        is_half = axis == len(problem.shape) - 1
        frequencies[:, axis] += start if is_half else start - problem.shape[axis] // 2
    return frequencies


def write_source(problem: Problem, task: Task) -> None:
    """Write the input as a Zarr array, and the values of the samples beside it."""
    import zarr

    path = source_path(problem, task)
    frequencies = frequencies_of(problem, samples_of(problem))
    array = zarr.create_array(
        str(path),
        shape=problem.shape,
        dtype=problem.dtype,
        compressors=None,
        chunks=(problem.chunks[0][0], *problem.shape[1:]),
    )
    values = np.zeros(len(frequencies), np.complex128)
    start = 0
    for number, count in enumerate(problem.chunks[0]):
        block = problems.fill(np.empty((count, *problem.shape[1:]), problem.dtype), number)
        array[start : start + count] = block
        values += problems.direct(problem, block, start, frequencies)
        start += count
    np.save(path.with_suffix(".npy"), values)


def run(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Run from Zarr to Zarr in a process with a memory limit; return seconds and its check."""
    import zarr

    task = Task(**fields)
    problem = PROBLEMS[name].scaled(task.scale)
    source = source_path(problem, task)
    target = task.folder / "band.zarr"
    band = band_of(problem)
    memory_limit = int(0.8 * (LIMIT - problems.status("RssAnon")))
    options: dict[str, Any] = {
        "memory_limit": memory_limit,
        "kernel": task.kernel,
        "overwrite": True,
        "compressors": None,
    }
    scratch = {"bigfft.scratch.directory": str(task.folder)}
    with dask.config.set(scheduler="threads", num_workers=task.threads, **scratch):
        rows.run_small(problem, task, {**options, "memory_limit": None})
        full = dask_bigfft.plan(da.from_zarr(str(source)), problem.kind, memory_limit=memory_limit)
        drop_cache(source)

        def work() -> Any:
            return dask_bigfft.run(source, target, problem.kind, band_index=band, **options)

        seconds, (peak, done) = problems.seconds_of(lambda: problems.peak_of(work))
    result = zarr.open_array(str(target), mode="r")
    places = samples_of(problem)
    values = np.array([result[tuple(place)] for place in places.tolist()])
    expected = np.load(source.with_suffix(".npy"))
    error = float(np.max(np.abs(values - expected)) / np.sqrt(np.mean(np.abs(expected) ** 2)))
    exchanged = done.plan.expected.bytes_exchanged
    return {
        "seconds": seconds,
        "peak": peak,
        "rounds": done.plan.notation,
        "samples": error,
        "ok": error < 1e-5 and result.shape == done.plan.spec.out_shape,
        "exchanged": exchanged / max(1, full.expected.bytes_exchanged),
    }


def reading(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Read all files of the source; return seconds."""
    task = Task(**fields)
    source = source_path(PROBLEMS[name].scaled(task.scale), task)
    drop_cache(source)

    def read() -> None:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                with open(path, "rb", buffering=0) as file:
                    while file.read(COPY_STEP):
                        pass

    return {"seconds": problems.seconds_of(read)[0]}


def first_round(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Transform a part of the source in memory over all axes but the first; return seconds."""
    task = Task(**fields)
    problem = PROBLEMS[name].scaled(task.scale)
    row_nbytes = problem.nbytes // problem.shape[0]
    count = min(problem.shape[0], max(problem.chunks[0][0], IN_MEMORY // row_nbytes))
    ways = max(1, count // problem.chunks[0][0])
    part = dataclasses.replace(problem, shape=(count, *problem.shape[1:]), ways=ways)
    x = problems.lazy(problems.fill(np.empty(part.shape, part.dtype)), part.chunks)
    axes = tuple(range(1, len(part.shape)))
    with dask.config.set(scheduler="threads", num_workers=task.threads):

        def work() -> Any:
            return fft.rfftn(x, axes=axes, kernel=task.kernel).persist()

        times = [problems.seconds_of(work)[0] for _ in range(4)]
    return {"seconds": min(times[1:]) * problem.shape[0] / count}


#: Contestants and their memory limits.
CONTESTANTS = {"band": (run, LIMIT), "reading": (reading, LIMIT), "first round": (first_round, 0)}


def measured(name: str, task: Task, repeat: int) -> dict[str, Any]:
    """Return the medians of all contestants, and the ratio of the run and its floor."""
    fields = dataclasses.asdict(task)

    def turn(contestant: str) -> dict[str, Any]:
        function, limit = CONTESTANTS[contestant]
        return core.call(function, fields, name, limit=limit)

    answers = core.in_turns(list(CONTESTANTS), repeat, turn)
    for contestant, several in answers.items():
        for answer in several:
            if "error" in answer:
                return {"failed": f"{contestant}: {answer['error']}"}
    seconds = {label: [a["seconds"] for a in several] for label, several in answers.items()}
    floors = list(map(max, seconds["reading"], seconds["first round"]))
    runs = answers["band"]
    worst = max(runs, key=lambda answer: answer["samples"])
    return {
        "seconds": {label: core.median(several) for label, several in seconds.items()},
        "over_floor": core.ratio(seconds["band"], floors),
        "exchanged": runs[0]["exchanged"],
        "peak_gib": max(answer["peak"] for answer in runs) / GIB,
        "rounds": runs[0]["rounds"],
        "cgroup": runs[0]["cgroup"],
        "error": worst["samples"],
        "ok": all(answer["ok"] for answer in runs),
    }


def main(argv: Sequence[str]) -> int:
    args = core.arguments("bands", __doc__, repeat=3).parse_args(argv)
    kernel = args.kernels[-1]
    results = core.Results(args, "bands", kernel=kernel, limit_gib=LIMIT / GIB)
    for name in results.missing("problems", core.chosen(PROBLEMS, args.only)):
        with tempfile.TemporaryDirectory() as folder:
            task = Task(args.scale, args.threads, 1, kernel, Path(folder).resolve())
            write_source(PROBLEMS[name].scaled(args.scale), task)
            results.add("problems", name, **measured(name, task, args.repeat))
    return int(not results.ok)
