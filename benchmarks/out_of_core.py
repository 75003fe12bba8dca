"""Arrays larger than memory, from Zarr to Zarr, against a plain copy of as many bytes.

Everything runs in a memory cgroup of 2 GiB where one can be made. Runs and copies take turns; the
efficiency is the bytes that a run has moved per second over those of the copy. Neither source nor
result is compressed (``compressors=None``; the default is zarr's). The last of ``--kernels`` is
used. The temporary folder needs about 40 GiB.
"""

import dataclasses
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import core
from benchmarks.problems import GIB, worst
from benchmarks.rows import STORED, Task, answered, drop_cache, source_path, write_source

LIMIT = 2 * GIB

#: Bytes that the plain copy reads and writes at a time.
COPY_STEP = 8 << 20


def copied(fields: dict[str, Any], name: str, nbytes: int) -> dict[str, Any]:
    """Copy the source as often as makes so many bytes read and written; return both."""
    task = Task(**fields)
    source = source_path(STORED[name].scaled(task.scale), task)
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    target = task.folder / "copy"
    drop_cache(source)
    started = time.perf_counter()
    remaining = nbytes // 2
    while remaining > 0:
        remaining -= copy_files(files, target, remaining)
    seconds = time.perf_counter() - started
    target.unlink()
    return {"seconds": seconds, "moved": nbytes}


def copy_files(files: Sequence[Path], target: Path, most: int) -> int:
    """Write files into a new one, up to a number of bytes; return the bytes that were written."""
    remaining = most
    with open(target, "wb", buffering=0) as output:
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while data := file.read(min(COPY_STEP, remaining)):
                    output.write(data)
                    remaining -= len(data)
        os.fsync(output.fileno())
    return most - remaining


def measured(task: Task, name: str, repeat: int) -> dict[str, Any]:
    """Return the medians of runs and copies in turn, and the efficiency."""
    runs: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    fields = dataclasses.asdict(task)
    for turn in range(repeat):
        for contestant in ("ours", "copy") if turn % 2 == 0 else ("copy", "ours"):
            if contestant == "ours":
                answer = core.call(answered, f"out-of-core-{name}", fields, limit=LIMIT)
                runs.append(answer)
            else:
                moved = runs[-1]["check"]["moved"]
                answer = core.call(copied, fields, name, moved, limit=LIMIT)
                copies.append(answer)
            if "error" in answer:
                return {"failed": f"{contestant}: {answer['error']}"}
    nbytes = STORED[name].scaled(task.scale).nbytes
    return row_of(runs, copies, nbytes)


def row_of(
    runs: Sequence[dict[str, Any]],
    copies: Sequence[dict[str, Any]],
    nbytes: int,
) -> dict[str, Any]:
    """Return the medians of runs and copies of an array, and the efficiency."""
    seconds = [run["figures"]["seconds"] for run in runs]
    speeds = [run["check"]["moved"] / run["figures"]["seconds"] for run in runs]
    copy_speeds = [copy["moved"] / copy["seconds"] for copy in copies]
    return {
        "seconds": core.median(seconds),
        "passes": runs[0]["check"]["moved"] / nbytes,
        "gib_per_second": (core.median(speeds) or 0.0) / GIB,
        "copy_gib_per_second": (core.median(copy_speeds) or 0.0) / GIB,
        "efficiency": core.ratio(speeds, copy_speeds),
        "cgroup": runs[0]["cgroup"],
        "peak_gib": max(run["figures"]["peak bytes"] for run in runs) / GIB,
        "rounds": runs[0]["check"]["rounds"],
        **core.outcome(worst(run["check"] for run in runs)),
    }


def main(argv: Sequence[str]) -> int:
    args = core.arguments("out_of_core", __doc__, repeat=3, threads=3).parse_args(argv)
    kernel = args.kernels[-1]
    results = core.Results(args, "out_of_core", kernel=kernel, limit_gib=LIMIT / GIB)
    for name in results.missing("problems", core.chosen(STORED, args.only)):
        with tempfile.TemporaryDirectory() as folder:
            task = Task(args.scale, args.threads, 1, kernel, Path(folder).resolve())
            write_source(STORED[name], task)
            results.add("problems", name, **measured(task, name, args.repeat))
    return int(not results.ok)
