"""Cost of verification: the same transform with each kind of check, in alternating turns.

A cost is the ratio of seconds to those of the turn's run without checks. The second run without
checks ("again") shows the noise. Problems on disk go from file to file through scratch files.
"""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask

from benchmarks import core
from benchmarks.problems import Problem
from benchmarks.rows import Task, verified

MODES = ("none", "again", "energy", "checksum")

PROBLEMS = {
    "1d": Problem("fftn", (1 << 24,), "c16", 16),
    "2d": Problem("fftn", (4096, 4096), "c16", 16),
    "3d": Problem("fftn", (256, 256, 256), "c8", 16),
    "3d real": Problem("rfftn", (256, 256, 512), "f4", 16),
    "1d on disk": Problem("fftn", (1 << 24,), "c16", 16),
    "2d on disk": Problem("fftn", (2048, 2048), "c16", 16),
    "3d on disk": Problem("fftn", (512, 256, 256), "c8", 16),
}


def measured(problem: Problem, task: Task, stored: bool) -> dict[str, Any]:
    """Return the row of a problem by one FFT library: seconds, and the cost of each check."""
    times, check = verified(problem, task, MODES, stored)
    row = {"seconds": core.median(times["none"])}
    for mode in MODES[1:]:
        row[mode] = core.ratio(times[mode], times["none"])
    return {**row, **core.outcome(check)}


def main(argv: Sequence[str]) -> int:
    args = core.arguments("verification", __doc__, repeat=21).parse_args(argv)
    results = core.Results(args, "verification")
    names = core.chosen(PROBLEMS, args.only)
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        for kernel, name in itertools.product(args.kernels, names):
            label = f"{name}, {kernel}"
            if not results.lacks("costs", label):
                continue
            with tempfile.TemporaryDirectory() as folder:
                task = Task(args.scale, args.threads, args.repeat, kernel, Path(folder))
                row = measured(PROBLEMS[name], task, stored="disk" in name)
            results.add("costs", label, **row)
    return int(not results.ok)
