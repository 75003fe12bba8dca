"""Arrays larger than memory, from Zarr to Zarr, against a plain copy of as many bytes.

Everything runs in a memory cgroup of 2 GiB where one can be made. Runs and copies take turns; the
efficiency is the bytes that a run has moved per second over those of the copy.
"""

import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import core
from benchmarks.rows import GIB, ROWS, STORED, Task, drop_cache, source_path

LIMIT = 2 * GIB


def copied(task: Task, name: str, nbytes: int) -> dict[str, Any]:
    """Copy the source as often as makes so many bytes read and written; return both."""
    source = source_path(STORED[name].scaled(task.scale), task)
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    drop_cache(source)
    left, started = nbytes // 2, time.perf_counter()
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


def ours(task: Task, name: str) -> dict[str, Any]:
    """Run the row of the guard in a new process."""
    given = {**dataclasses.asdict(task), "folder": str(task.folder), "row": f"out-of-core-{name}"}
    command = ["-m", "benchmarks.rows", json.dumps(given)]
    return core.child(command, limit=LIMIT)


def copy_of(task: Task, name: str, nbytes: int) -> dict[str, Any]:
    """Run a copy in a new process."""
    given = {**dataclasses.asdict(task), "folder": str(task.folder)}
    text = json.dumps({"name": name, "nbytes": nbytes, "task": given})
    return core.child(["-m", "benchmarks", "out_of_core", "--child", text], limit=LIMIT)


def measured(task: Task, name: str, repeat: int) -> dict[str, Any]:
    """Return the medians of runs and copies in turn, and the efficiency."""
    runs: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    for turn in range(repeat):
        for what in ("ours", "copy") if turn % 2 == 0 else ("copy", "ours"):
            known = runs[-1]["check"]["moved"] if runs else 0
            found = ours(task, name) if what == "ours" else copy_of(task, name, known)
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
        "error": max(r["check"]["samples"] for r in runs),
        "ok": all(run["check"]["ok"] for run in runs),
    }


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["--child"]:
        given = json.loads(argv[1])
        task = Task(**{**given["task"], "folder": Path(given["task"]["folder"])})
        print(json.dumps(copied(task, given["name"], given["nbytes"])))
        return 0
    parser = core.arguments("out_of_core", __doc__, repeat=3, threads=3)
    parser.add_argument("--folder", type=Path, help="disk for files, about 40 GiB")
    parser.add_argument("--kernel", default="ducc0" if find_spec("ducc0") else "scipy")
    args = parser.parse_args(argv)
    results = core.Results(args, "out_of_core", kernel=args.kernel, limit_gib=LIMIT / GIB)
    for name in core.chosen(STORED, args.only):
        if results.over or results.has("problems", name):
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            task = Task(args.scale, args.threads, 1, args.kernel, Path(folder).resolve())
            prepare = ROWS[f"out-of-core-{name}"].prepare
            if prepare is not None:
                prepare(task)
            results.add("problems", name, **measured(task, name, args.repeat))
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir()
    return int(not results.ok)
