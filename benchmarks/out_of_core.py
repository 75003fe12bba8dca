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


def copied(given: dict[str, Any], name: str, nbytes: int) -> dict[str, Any]:
    """Copy the source as often as makes so many bytes read and written; return both."""
    task = Task(**given)
    source = source_path(STORED[name].scaled(task.scale), task)
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    drop_cache(source)
    left = nbytes // 2
    started = time.perf_counter()
    while left > 0:
        with open(task.folder / "copy", "wb", buffering=0) as target:
            for path in files:
                with open(path, "rb", buffering=0) as file:
                    while left > 0 and (data := file.read(min(8 << 20, left))):
                        target.write(data)
                        left -= len(data)
            os.fsync(target.fileno())
    seconds = time.perf_counter() - started
    (task.folder / "copy").unlink()
    return {"seconds": seconds, "moved": nbytes}


def measured(task: Task, name: str, repeat: int) -> dict[str, Any]:
    """Return the medians of runs and copies in turn, and the efficiency."""
    runs: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    given = dataclasses.asdict(task)
    for turn in range(repeat):
        for what in ("ours", "copy") if turn % 2 == 0 else ("copy", "ours"):
            if what == "ours":
                found = core.call(answered, f"out-of-core-{name}", given, limit=LIMIT)
            else:
                found = core.call(copied, given, name, runs[-1]["check"]["moved"], limit=LIMIT)
            if "error" in found:
                return {"failed": f"{what}: {found['error']}"}
            (runs if what == "ours" else copies).append(found)
    moved = [run["check"]["moved"] for run in runs]
    speeds = [n / run["figures"]["seconds"] for n, run in zip(moved, runs, strict=True)]
    plain = [one["moved"] / one["seconds"] for one in copies]
    return {
        "seconds": core.median([run["figures"]["seconds"] for run in runs]),
        "passes": moved[0] / STORED[name].scaled(task.scale).nbytes,
        "gib_per_second": (core.median(speeds) or 0.0) / GIB,
        "copy_gib_per_second": (core.median(plain) or 0.0) / GIB,
        "efficiency": core.ratio(speeds, plain),
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
