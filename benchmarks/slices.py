"""Short-time transforms from Zarr to Zarr, against copies, memory and `map_overlap` by hand.

The record has 2^30 samples in single precision, and slices of 1,024 samples every 512, so that the
result has twice as many bytes. Runs have a memory cgroup of 1 GiB where one can be made, and read
and write without compression. Four contestants take turns in processes of their own: `run()`, a
plain copy of the bytes that it reads and writes, the same transform of a part of the record in
memory, whose time is scaled to all of it, and `dask.array.overlap` with SciPy's FFT by hand. The
larger one of the second and the third is the floor. A second row has the way back by `run()` of
``"istft"``, and the same floor. The temporary folder needs about 21 GiB. A ``--scale`` below 1
scales the record and the memory limit of the way there, but not the group.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.fft
import scipy.signal

import dask_bigfft
from benchmarks import core, problems
from benchmarks.out_of_core import COPY_STEP
from benchmarks.problems import GIB, MIB, Problem
from benchmarks.rows import Task, drop_cache, source_path
from dask_bigfft import signal

LIMIT = GIB

#: Minimum memory limit, which a plan of the smallest record keeps to.
LEAST_LIMIT = 2 << 20

PROBLEMS = {"1d": Problem("rfft", (1 << 30,), "f4", 128)}

SIZE = 1024
HOP = 512

#: Samples of the part that is transformed in memory.
IN_MEMORY = 1 << 25

#: Slices that are compared.
SAMPLES = 32


def window() -> np.ndarray:
    """Return the values of the window."""
    return np.asarray(scipy.signal.get_window("hann", SIZE), np.float32)


def write_source(problem: Problem, task: Task) -> None:
    """Write random samples."""
    import zarr

    array = zarr.create_array(
        str(source_path(problem, task)),
        shape=problem.shape,
        dtype=problem.dtype,
        compressors=None,
        chunks=(problem.chunks[0][0],),
    )
    start = 0
    for number, count in enumerate(problem.chunks[0]):
        array[start : start + count] = problems.fill(np.empty(count, problem.dtype), number)
        start += count


def spectra_path(task: Task) -> Path:
    return task.folder / "spectra.zarr"


def write_spectra(problem: Problem, task: Task) -> None:
    """Write a record's spectra, which `istft` reads."""
    write_source(problem, task)
    by_run(problem, task, LIMIT)
    (task.folder / "result.zarr").rename(spectra_path(task))


def check(source: Any, result: Any, first_sample: int) -> dict[str, Any]:
    """Compare slices with FFTs of their samples; the first column begins at a sample."""
    rng = np.random.default_rng(problems.SEED + 4)
    errors = []
    for column in rng.integers(2, result.shape[-1] - 4, size=SAMPLES).tolist():
        start = first_sample + column * HOP
        samples = np.asarray(source[start : start + SIZE], float)
        expected = np.fft.rfft(samples * window())
        difference = np.asarray(result[:, column]) - expected
        errors.append(float(np.abs(difference).max() / np.abs(expected).max()))
    return {"samples": max(errors), "ok": max(errors) < 1e-5}


def check_samples(source: Any, result: Any) -> dict[str, Any]:
    """Compare samples of the way back with those of the record."""
    rng = np.random.default_rng(problems.SEED + 4)
    errors = []
    for start in rng.integers(0, result.shape[0] - SIZE, size=SAMPLES).tolist():
        samples = source[start : start + SIZE]
        errors.append(float(np.abs(result[start : start + SIZE] - samples).max()))
    return {"samples": max(errors), "ok": result.shape == source.shape and max(errors) < 1e-5}


# --- contestants ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stored:
    """A stored transform.

    Parameters
    ----------
    first_sample : int or None
        Sample at which the first column begins, None for samples.
    forecast : int or None
        Forecast of the peak memory in bytes, None without one.
    """

    first_sample: int | None
    forecast: int | None


def by_run(problem: Problem, task: Task, memory_limit: int) -> Stored:
    """Store the transform by `run`."""
    done = dask_bigfft.run(
        source_path(problem, task),
        task.folder / "result.zarr",
        "stft",
        win=window(),
        hop=HOP,
        fs=1.0,
        phase_shift=None,  # as by hand
        compressors=None,
        memory_limit=memory_limit,
    )
    transform = scipy.signal.ShortTimeFFT(window(), HOP, 1.0)
    first_sample = int(transform.p_min * HOP - transform.m_num_mid)
    return Stored(first_sample, done.plan.expected.peak_host)


def spectra_by_hand(block: np.ndarray) -> np.ndarray:
    """Return the spectra of the slices of a block, with those of its neighbour's first samples."""
    if len(block) < SIZE:
        return np.empty((SIZE // 2 + 1, 0), np.complex64)
    slices = np.lib.stride_tricks.sliding_window_view(block, SIZE)[::HOP]
    return scipy.fft.rfft(slices * window(), axis=-1).T


def by_hand(problem: Problem, task: Task, memory_limit: int) -> Stored:
    """Store the transform as one would write it with `dask.array.overlap`."""
    import zarr

    x = da.from_zarr(str(source_path(problem, task)))
    x = x.rechunk(max(x.chunksize[0], 4 * SIZE))  # more than the overlap
    cut = x.chunks[0]
    overlapping = da.overlap.overlap(x, {0: (0, SIZE - HOP)}, boundary={0: "none"})
    columns = [n // HOP for n in cut]
    columns[-1] = (cut[-1] - SIZE) // HOP + 1
    spectra = overlapping.map_blocks(
        spectra_by_hand,
        dtype=np.complex64,
        chunks=((SIZE // 2 + 1,), tuple(columns)),
        new_axis=[0],
    )
    stored = zarr.create_array(
        str(task.folder / "result.zarr"),
        shape=spectra.shape,
        dtype=spectra.dtype,
        chunks=(spectra.shape[0], columns[0]),
        compressors=None,
    )
    da.store(spectra, stored, lock=False)
    return Stored(0, None)


def by_istft(problem: Problem, task: Task, memory_limit: int) -> Stored:
    """Store the samples of spectra by `run`."""
    done = dask_bigfft.run(
        spectra_path(task),
        task.folder / "result.zarr",
        "istft",
        win=window(),
        hop=HOP,
        fs=1.0,
        phase_shift=None,
        k1=problem.shape[0],
        compressors=None,
        memory_limit=memory_limit,
    )
    return Stored(None, done.plan.expected.peak_host)


STORED: dict[str, Callable[[Problem, Task, int], Stored]] = {
    "run": by_run,
    "by hand": by_hand,
    "istft": by_istft,
}

#: Contestants of each row, of which the first one is compared with the floor.
ROWS = {"stft": ("run", "by hand"), "istft": ("istft",)}


def stored(name: str, fields: dict[str, Any], problem_name: str) -> dict[str, Any]:
    """Transform from Zarr to Zarr in this process; return seconds, peak and a check."""
    import zarr

    task = Task(**fields)
    problem = PROBLEMS[problem_name].scaled(task.scale)
    target = task.folder / "result.zarr"
    dask.config.set(scheduler="threads", num_workers=task.threads)
    small = Problem(problem.kind, (1 << 14,), problem.dtype, 2)
    warm = dataclasses.replace(task, folder=task.folder / f"warm-{name}")
    is_inverse = name == "istft"
    prepare = write_spectra if is_inverse else write_source
    prepare(small, warm)
    STORED[name](small, warm, LIMIT)
    shutil.rmtree(warm.folder)
    memory_limit = int(0.75 * (LIMIT - problems.status("RssAnon")))
    if not is_inverse:  # whose source has chunks of the whole limit
        memory_limit = max(int(memory_limit * min(1.0, task.scale)), LEAST_LIMIT)
    drop_cache(spectra_path(task) if is_inverse else source_path(problem, task))

    def work() -> Stored:
        return STORED[name](problem, task, memory_limit)

    peak, (seconds, transform) = problems.peak_of(lambda: problems.seconds_of(work))
    source = zarr.open_array(str(source_path(problem, task)), mode="r")
    result = zarr.open_array(str(target), mode="r")
    answer: dict[str, Any] = {"seconds": seconds, "peak": peak, "written": int(result.nbytes)}
    answer |= {"limit": memory_limit, "forecast": transform.forecast}
    if transform.first_sample is None:
        answer |= check_samples(source, result)
    else:
        answer |= check(source, result, transform.first_sample)
    shutil.rmtree(target)
    return answer


def copy(row: str, fields: dict[str, Any], problem_name: str) -> dict[str, Any]:
    """Read all files of the source, and write as many bytes as the result has; return seconds."""
    task = Task(**fields)
    problem = PROBLEMS[problem_name].scaled(task.scale)
    source = spectra_path(task) if row == "istft" else source_path(problem, task)
    target = task.folder / "copy"
    drop_cache(source)

    def work() -> None:
        with open(target, "wb", buffering=0) as output:
            for path in sorted(source.rglob("*")):
                if path.is_file():
                    with open(path, "rb", buffering=0) as file:
                        while data := file.read(COPY_STEP):
                            if row == "istft":  # the record has half the bytes of the spectra
                                output.write(data[: len(data) // 2])
                            else:
                                output.write(data)
                                output.write(data)
            os.fsync(output.fileno())

    seconds, _ = problems.seconds_of(work)
    target.unlink()
    return {"seconds": seconds}


def in_memory(row: str, fields: dict[str, Any], problem_name: str) -> dict[str, Any]:
    """Transform a part of the record in memory; return seconds for all of it."""
    task = Task(**fields)
    problem = PROBLEMS[problem_name].scaled(task.scale)
    count = min(problem.shape[0], IN_MEMORY)
    x = problems.fill(np.empty(count, problem.dtype))
    chunks = da.core.normalize_chunks(max(problem.chunks[0][0] // 4, SIZE), (count,))
    blocks = problems.lazy(x, chunks)
    with dask.config.set(scheduler="threads", num_workers=task.threads):

        def forward() -> Any:
            return signal.stft(blocks, window(), HOP, 1.0, phase_shift=None).persist()

        work = forward
        if row == "istft":
            spectra = forward()

            def work() -> Any:
                return signal.istft(spectra, window(), HOP, 1.0, phase_shift=None).persist()

        times = [problems.seconds_of(work)[0] for _ in range(4)]
    return {"seconds": min(times[1:]) * problem.shape[0] / count}


def measured(
    row: str,
    name: str,
    task: Task,
    repeat: int,
) -> dict[str, Any]:
    """Return the medians of all contestants of a row, and ratios to its floor and by hand."""
    fields = dataclasses.asdict(task)

    def turn(contestant: str) -> dict[str, Any]:
        if contestant in STORED:
            return core.call(stored, contestant, fields, name, limit=LIMIT)
        if contestant == "copy":
            return core.call(copy, row, fields, name, limit=LIMIT)
        return core.call(in_memory, row, fields, name)

    answers = core.in_turns([*ROWS[row], "copy", "memory"], repeat, turn)
    for contestant, several in answers.items():
        for answer in several:
            if "error" in answer:
                return {"failed": f"{contestant}: {answer['error']}"}
    seconds = {label: [a["seconds"] for a in several] for label, several in answers.items()}
    floors = list(map(max, seconds["copy"], seconds["memory"]))
    ours = ROWS[row][0]
    runs = answers[ours]
    figures: dict[str, Any] = {
        "seconds": {label: core.median(several) for label, several in seconds.items()},
        "over_floor": core.ratio(seconds[ours], floors),
        "peak_gib": max(answer["peak"] for answer in runs) / GIB,
        "forecast_gib": max(answer["forecast"] for answer in runs) / GIB,
        "limit_gib": runs[0]["limit"] / GIB,
        "written_mib": runs[0]["written"] / MIB,
        "cgroup": runs[0]["cgroup"],
    }
    checks = list(runs)
    if "by hand" in answers:
        by_hand_answers = answers["by hand"]
        figures["by hand / run"] = core.ratio(seconds["by hand"], seconds[ours])
        figures["peak_by_hand_gib"] = max(answer["peak"] for answer in by_hand_answers) / GIB
        checks += by_hand_answers
    return {**figures, **core.outcome(problems.worst(checks))}


def main(argv: Sequence[str]) -> int:
    args = core.arguments("slices", __doc__, repeat=3).parse_args(argv)
    results = core.Results(args, "slices", limit_gib=LIMIT / GIB)
    for row in results.missing("transforms", core.chosen(ROWS, args.only)):
        with tempfile.TemporaryDirectory() as folder:
            task = Task(args.scale, args.threads, 1, "scipy", Path(folder).resolve())
            problem = PROBLEMS["1d"].scaled(args.scale)
            if row == "istft":
                write_spectra(problem, task)
            else:
                write_source(problem, task)
            results.add("transforms", row, **measured(row, "1d", task, args.repeat))
    return int(not results.ok)
