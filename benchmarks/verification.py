"""Cost of verification: the same transform with each kind of check, in alternating turns.

A cost is the ratio of seconds to those of the turn's run without checks. The second run without
checks ("again") shows the noise. Problems on disk go from file to file through scratch files.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

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


def main(argv: Sequence[str]) -> int:
    args = core.arguments("verification", __doc__, repeat=21).parse_args(argv)
    results = core.Results(args, "verification")
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        names = core.chosen(PROBLEMS, args.only)
        for row in results.missing("costs", [f"{n}, {k}" for k in args.kernels for n in names]):
            name, kernel = row.split(", ")
            with tempfile.TemporaryDirectory() as folder:
                task = Task(args.scale, args.threads, args.repeat, kernel, Path(folder))
                times, check = verified(PROBLEMS[name], task, MODES, "disk" in name)
            costs = {mode: core.ratio(times[mode], times["none"]) for mode in MODES[1:]}
            seconds = core.median(times["none"])
            results.add("costs", row, seconds=seconds, **costs, **core.outcome(check))
    return int(not results.ok)
