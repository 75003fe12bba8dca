"""Time and peak memory against the size of an array, in processes that may use 1 GiB.

Each job opens a Zarr array of float64 with `da.from_zarr`, transforms it and stores the spectrum
with `to_zarr`, both without compression, in a process of its own in a memory cgroup: all seconds
are those of first runs. Ours has 0.7 of the limit as `memory_limit`, because Python and libraries
come on top. `da.fft` gets one axis in one chunk; of two axes it transforms one, rechunks and
transforms the other, in chunks of 16 MiB. It runs on dask's threads, and on a worker of
distributed, whose rechunk spills to the disk. It runs with glibc's defaults, which give freed
memory back to the system, and with settings that keep it. Peaks are resident memory of Python,
libraries and arrays without mapped files. The temporary folder needs 8 GiB.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da

from benchmarks import core, problems, rows
from dask_bigfft import fft

CHUNK = 16 * problems.MIB
#: Shapes of 64 MiB to 2 GiB of float64.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one axis": [(1 << 23,), (1 << 24,), (1 << 25,), (1 << 26,), (1 << 27,), (1 << 28,)],
    "two axes": [
        (4096, 2048),
        (8192, 2048),
        (8192, 4096),
        (16384, 4096),
        (16384, 8192),
        (32768, 8192),
    ],
}


def all_problems() -> Iterator[tuple[tuple[str, str], problems.Problem]]:
    """Yield section and name of each problem, and the problem."""
    for section, shapes in SHAPES.items():
        for shape in shapes:
            nbytes = 8 * math.prod(shape)
            problem = problems.Problem("rfftn", shape, "f8", ways=nbytes // CHUNK)
            yield (section, f"{nbytes // problems.MIB} MiB"), problem


PROBLEMS = dict(all_problems())
CONTESTANTS = (
    "ours",
    "da.fft",
    "da.fft, memory kept",
    "da.fft, distributed",
    "da.fft, distributed, memory kept",
)
#: Number of failures after which a contestant runs no more.
ENOUGH_FAILURES = 2

#: Seconds after which a process counts as failed: a paused worker of distributed waits for ever.
MOST_SECONDS = 240.0


def job(
    contestant: str,
    source: str,
    target: str,
    threads: int,
    limit: int,
) -> dict[str, Any]:
    """Transform a Zarr array into another one; return seconds and peak memory."""
    settings = {"array.chunk-size": CHUNK, "scheduler": "threads", "num_workers": threads}
    if "distributed" in contestant:
        import distributed

        settings.pop("scheduler")
        distributed.Client(
            processes=False,
            n_workers=1,
            threads_per_worker=threads,
            memory_limit=int(0.8 * limit),
            local_directory=str(Path(target).parent),
            dashboard_address=None,
        )

    def work() -> None:
        x = da.from_zarr(source)
        if contestant == "ours":
            y = fft.rfftn(x, memory_limit=int(0.7 * limit))
        elif x.ndim == 1:
            y = da.fft.rfft(x.rechunk(-1))
        else:
            y = da.fft.fft(da.fft.rfft(x, axis=1).rechunk({0: -1, 1: "auto"}), axis=0)
        y.to_zarr(target, compressors=None)

    with dask.config.set(settings):
        seconds, _ = problems.seconds_of(work)
    peak = problems.status("VmHWM") - problems.status("RssFile")
    print(json.dumps({"seconds": seconds, "peak_gib": peak / problems.GIB}), flush=True)
    os._exit(0)  # a cluster would take its time to close


def measured(problem: problems.Problem, args: Any, limit: int) -> dict[str, Any]:
    """Return medians of all contestants, and the errors of those that do not end."""
    import zarr

    right = True
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as folder:
        task = rows.Task(1.0, args.threads, 1, "auto", Path(folder))
        rows.write_source(problem, task)
        source = rows.source_path(problem, task)
        target = task.folder / "result.zarr"
        truth = problems.Truth.stored(problem, source)
        for name in CONTESTANTS * args.repeat:
            if len(errors_of(runs[name])) == ENOUGH_FAILURES:
                continue
            rows.drop_cache(source)
            memory = core.memory_mode(name)
            run = core.call(
                job,
                name,
                source,
                target,
                args.threads,
                limit,
                memory=memory,
                limit=limit,
                seconds=MOST_SECONDS,
            )
            runs[name].append(run)
            if "error" not in run:
                right &= truth.check(zarr.open_array(str(target), mode="r"))["ok"]
            shutil.rmtree(target, ignore_errors=True)
    return {**row_of(runs), "ok": right}


def errors_of(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return what processes that failed ended with."""
    return [run["error"].partition(":")[0] for run in runs if "error" in run]


def row_of(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of contestants that never failed, and the errors of the others."""
    row: dict[str, Any] = {"seconds": {}, "peak_gib": {}, "died": {}}
    for name, processes in runs.items():
        errors = errors_of(processes)
        if errors:
            row["died"][name] = f"{errors[0]} in {len(errors)} of {len(processes)} runs"
            continue
        for key in ("seconds", "peak_gib"):
            row[key][name] = core.median([run[key] for run in processes])
    return row


def main(argv: Sequence[str]) -> int:
    args = core.arguments("limited", __doc__, repeat=3).parse_args(argv)
    limit = max(int(problems.GIB * args.scale), problems.GIB // 2)  # of which Python takes a part
    results = core.Results(args, "limited", limit_gib=limit / problems.GIB)
    for label in core.chosen([", ".join(key) for key in PROBLEMS], args.only):
        section, name = label.split(", ")
        if results.lacks(section, name):
            problem = PROBLEMS[section, name].scaled(args.scale)
            results.add(section, name, **measured(problem, args, limit))
    return int(not results.ok)
