"""How large tiles should be where many threads share an interpreter: large transforms, in turn.

``python -m dask_bigfft.bench.tiles`` runs the problems of `bench.large` with tiles of several sizes
in every turn, by the same plans, and holds the answers of each size against those of the first.
Medians of some turns count; processor seconds, and how often threads slept, stand beside them: a
thread sleeps where it finds the interpreter taken.

Imports `decomposition`, `calibration`, `planner`, `kernels` and this folder.
"""

import argparse
import contextlib
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config
import numpy as np

from dask_bigfft import calibration
from dask_bigfft.bench import machine
from dask_bigfft.bench.large import LARGE
from dask_bigfft.bench.model_problems import Problem, machine_of
from dask_bigfft.decomposition import tiles
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels import warming
from dask_bigfft.kernels.libraries import available
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planning.profiles import known_profile

__all__ = ["SIZES", "main", "markdown"]

MIB = 1 << 20

#: Bytes of tiles, and of those of blocks that change their shape or type.
SIZES = ((2 * MIB, MIB // 2), (2 * MIB, 2 * MIB), (4 * MIB, MIB), (4 * MIB, 4 * MIB),
         (8 * MIB, 8 * MIB), (32 * MIB, 32 * MIB))


@contextlib.contextmanager
def tiles_of(nbytes: int, changed: int) -> Iterator[None]:
    """Tiles of a size, whatever the number of threads, while the context lasts."""
    before = tiles.TILE_BYTES, tiles.FEW, tiles.CHANGED
    tiles.TILE_BYTES, tiles.FEW, tiles.CHANGED = nbytes, sys.maxsize, nbytes // changed
    try:
        yield
    finally:
        tiles.TILE_BYTES, tiles.FEW, tiles.CHANGED = before


def _run(x: da.Array, plan: Plan) -> tuple[list[float], da.Array]:
    """Seconds, processor seconds, how often threads slept; and the result, in memory."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = transformed_array(x, plan, "shared").persist()
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [seconds, worked, float(after.ru_nvcsw - before.ru_nvcsw)], result


def _far(result: da.Array, expected: da.Array) -> float:
    """The distance of a result from another one, in units of that."""
    off, size = (
        float((abs(values) ** 2).sum().compute()) ** 0.5
        for values in (result - expected, expected))
    return float(off / size) if size else float(off)


def measured(problem: Problem, kernel: str, on: Machine, repeat: int) -> dict[str, Any]:
    """Return what a problem takes with tiles of each size.

    Parameters
    ----------
    problem : Problem
        What is run.
    kernel : str
        FFT library.
    on : Machine
        Where it is run.
    repeat : int
        Turns that count, after one whose answers are compared.

    Raises
    ------
    ArithmeticError
        If an answer is not that of the first size.
    """
    x = problem.array()
    plan = problem.plan(x, kernel, on)
    taken: list[list[list[float]]] = [[] for _ in SIZES]
    first: da.Array | None = None
    for turn in range(repeat + 1):
        for (nbytes, changed), rows in zip(SIZES, taken, strict=True):
            with tiles_of(nbytes, changed):
                numbers, result = _run(x, plan)
            if turn:
                rows.append(numbers)
            else:
                first = result if first is None else first
                if (far := _far(result, first)) > 100 * np.finfo(plan.spec.work_dtype).eps:
                    raise ArithmeticError(f"{problem.name}: tiles of {nbytes} bytes are {far} off")
            del result
    return {"problem": problem.name, "kernel": kernel, "rounds": plan.notation, "tiles": [
        {"nbytes": nbytes, "changed": changed, "seconds": seconds, "worked": worked, "slept": slept}
        for (nbytes, changed), rows in zip(SIZES, taken, strict=True)
        for seconds, worked, slept in [map(statistics.median, zip(*rows, strict=True))]]}


def markdown(found: dict[str, Any]) -> str:
    """Return the table of what was found."""
    names = [f"{one['nbytes'] / MIB:g} ({one['changed'] / MIB:g})"
             for one in found["rows"][0]["tiles"]] if found["rows"] else []
    lines = [
        "# Tiles of several sizes", "",
        f"{found['machine']['cpu']}, {found['threads']} threads. Seconds by MiB of a tile (of "
        "those of blocks that change their shape or type).", "",
        f"| problem | library | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    lines += [
        f"| {row['problem']} | {row['kernel']} | "
        + " | ".join(f"{one['seconds']:.3f}" for one in row["tiles"]) + " |"
        for row in found["rows"]]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0."""
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.tiles")
    add = parser.add_argument
    add("--threads", type=int, default=0, metavar="N", help="threads of dask (default: all cores)")
    add("--repeat", type=int, default=5, metavar="N", help="turns that count (default: 5)")
    add("--scale", type=float, default=1.0, metavar="X", help="part of the first axis")
    add("--most", type=float, default=2.1, metavar="GIB",
        help="leave out larger arrays, before --scale (default: 2.1)")
    add("--out", type=Path, metavar="PATH", help="JSON of everything; the table goes beside it")
    args = parser.parse_args(argv)
    threads = args.threads or calibration.usual_threads()
    rows: list[dict[str, Any]] = []
    found = {"schema": 1, "machine": machine.describe(), "threads": threads, "rows": rows}
    warming.at_once()
    on = machine_of(known_profile(""), threads)
    with dask.config.set(scheduler="threads", num_workers=threads, pool=None):
        for problem in (p.scaled(args.scale) for p in LARGE if p.nbytes <= args.most * (1 << 30)):
            for kernel in (name for name in ("scipy", "ducc0") if name in available()):
                rows.append(measured(problem, kernel, on, args.repeat))
                if args.out is not None:
                    args.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
                    args.out.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
