"""``python -m dask_bigfft.bench.gpu_hybrid``: CPU threads and a card, and ways between two cards.

Each problem is transformed by the three of them in turn, several times, so that what slows the
machine down for a while hits all alike: the card and both together one after the other in every
turn, in alternating order, the CPU alone after them, in every third turn where it is far behind.
What is claimed is the ratio of the better one of the two to hybrid, within a turn, with a
bootstrap interval of its median. No turn is left out but the first, which pins memory and makes
plans. Garbage is collected between transforms, not in them.

The ways between two cards are in `gpu_routes`. Imports the rest of this folder and `devices`.
"""

import argparse
import gc
import itertools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask
import numpy as np

from dask_bigfft import config, fft
from dask_bigfft.bench import gpu_bench, gpu_data, machine
from dask_bigfft.bench.gpu_report import table
from dask_bigfft.bench.gpu_routes import between, links, routes
from dask_bigfft.bench.targets import ratio
from dask_bigfft.devices import find
from dask_bigfft.devices.cuda import available, cupy, reason
from dask_bigfft.devices.cupy_device import open_device
from dask_bigfft.devices.peers import CupyPeers
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.front import plan as plan_of
from dask_bigfft.memory import configure

GIB, MIB = 1 << 30, 1 << 20
Place = Literal["cpu", "gpu", "hybrid"]
PLACES: tuple[Place, ...] = ("cpu", "gpu", "hybrid")

#: The CPU is far behind where it takes so many times as long as the slower one of the others: then
#: it takes part in these turns only.
FAR, SELDOM = 1.2, (1, 4, 7)

#: Turns go on, up to so many times as many, while a problem has taken less than so many seconds: of
#: short transforms chance is a larger part.
MORE, SPAN = 3, 8.0


@dataclass(frozen=True)
class Problem:
    """What is transformed, in blocks cut along the first axis.

    Parameters
    ----------
    ndim : int
        Number of dimensions, of lengths as even as can be, unless `length` says otherwise.
    dtype : str
        Of the data.
    mib, block_mib : int
        MiB in all, and of a block.
    axes : tuple of int, optional
        What is transformed, by default everything.
    length : int, optional
        Of the last axis of two.
    kernel : str, optional
        FFT library of the CPU.
    """

    ndim: int
    dtype: str
    mib: int
    block_mib: int
    axes: tuple[int, ...] | None = None
    length: int | None = None
    kernel: str | None = None

    def shape(self, elements: int) -> tuple[int, ...]:
        """Of so many elements."""
        if self.length is None:
            return gpu_data.even_shape(elements, self.ndim)
        return elements // self.length, self.length


#: Where many short FFTs lie in few large blocks, CPU threads are nearly as fast as the bus.
PROBLEMS = (
    Problem(2, "c16", 24576, 1024, (1,), 256, "ducc0"),
    Problem(2, "c16", 24576, 1024, (1,), 64, "ducc0"),
    Problem(2, "c8", 24576, 1024, (1,), 64, "ducc0"),
    Problem(2, "c16", 8192, 1024, (1,), 256, "ducc0"),
    Problem(2, "c16", 8192, 256, (1,), 256, "ducc0"),
    Problem(2, "c16", 4096, 256, (1,)),
    Problem(2, "c16", 4096, 256),
    Problem(3, "c16", 4096, 256),
    Problem(3, "c8", 4096, 256),
    Problem(1, "c16", 4096, 256),
    Problem(3, "c16", 8192, 1024),
)

#: Bytes of the answers that are held against each other.
COMPARED = 1 << 30


class _Counted:
    """Bytes of some events while the context lasts."""

    def __enter__(self) -> dict[str, int]:
        self.found: dict[str, int] = {}
        add_sink(self._take)
        return self.found

    def __exit__(self, *error: object) -> None:
        remove_sink(self._take)

    def _take(self, name: str, numbers: Any) -> None:
        if name.startswith("round"):
            self.found[name] = self.found.get(name, 0) + int(numbers.get("nbytes", 0))


def hybrid(bench: gpu_bench.Bench, turns: int, problems: Sequence[Problem] = PROBLEMS) -> None:
    """Every problem by the CPU, by the card, and by both."""
    gc.collect()
    gc.freeze()  # what is there now need not be looked through between transforms
    filled, most = "", 0
    for problem in problems:
        if bench.results.over:
            break
        nbytes, block_nbytes = (n * MIB // bench.scale for n in (problem.mib, problem.block_mib))
        memory = bench.blocks(block_nbytes)[: nbytes // block_nbytes]
        if problem.dtype != filled or problem.mib > most:
            gpu_data.fill(memory, problem.dtype)
            filled, most = problem.dtype, problem.mib
        shape = problem.shape(nbytes // np.dtype(problem.dtype).itemsize)
        _one(bench, turns, gpu_data.lazy(memory, shape, problem.dtype), problem)
    gc.unfreeze()


def _order(turn: int, far: bool) -> tuple[Place, ...]:
    """Who transforms in a turn, one after the other; the CPU seldom where it is far behind.

    >>> _order(1, True), _order(2, True)
    (('gpu', 'hybrid', 'cpu'), ('hybrid', 'gpu'))
    """
    pair: tuple[Place, ...] = ("gpu", "hybrid") if turn % 2 else ("hybrid", "gpu")
    return pair if far and turn not in SELDOM else (*pair, "cpu")


def _another(turn: int, turns: int, began: float) -> bool:
    """Whether a turn follows: so many at least, and more of short ones."""
    return turn < turns or (turn < MORE * turns and time.monotonic() - began < SPAN)


def _timed(x: Any, place: Place, keywords: dict[str, Any]) -> tuple[float, Any]:
    """Seconds of a transform whose blocks stay, and the blocks."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        done = fft.fftn(x, device=place, **keywords).persist(scheduler="threads")
        return time.perf_counter() - began, done
    finally:
        gc.enable()


def _one(bench: gpu_bench.Bench, turns: int, x: Any, problem: Problem) -> None:
    keywords: dict[str, Any] = {"norm": "ortho", "axes": problem.axes, "kernel": problem.kernel}
    seconds: dict[Place, dict[int, float]] = {place: {} for place in PLACES}
    share, error, far = 0.0, 0.0, False
    answers: dict[Place, Any] = {}
    began = time.monotonic()
    for turn in itertools.count():
        for place in _order(turn, far):
            with _Counted() as counted:
                taken, done = _timed(x, place, keywords)
            if turn:
                seconds[place][turn] = taken
            else:
                answers[place] = _answer(done)
            if place == "hybrid" and counted.get("round"):
                share = counted.get("round_device", 0) / counted["round"]
            del done
        if not turn:
            error = max(_off(answers["cpu"], answers[place]) for place in ("gpu", "hybrid"))
            answers.clear()
            began = time.monotonic()
        elif turn == 1:
            far = seconds["cpu"][1] > FAR * max(seconds["gpu"][1], seconds["hybrid"][1])
        if turn and (bench.results.over or not _another(turn, turns, began)):
            break
    _told(bench, x, problem, keywords, seconds, share, error)


def _told(
    bench: gpu_bench.Bench, x: Any, problem: Problem, keywords: dict[str, Any],
    seconds: dict[Place, dict[int, float]], share: float, error: float,
) -> None:
    """Keep what was measured of a problem, beside what the model says."""
    times = {place: list(found.values()) for place, found in seconds.items()}
    plans = {place: plan_of(x, "fftn", device=place, **keywords) for place in PLACES}
    median = {place: float(np.median(found)) for place, found in times.items()}
    alone: tuple[Place, ...] = ("cpu", "gpu")
    faster, found = min(alone, key=median.__getitem__), plans["hybrid"]
    pairs = [(s, seconds["hybrid"][turn]) for turn, s in seconds[faster].items()]
    gain = ratio(*zip(*pairs, strict=True))
    expected = {place: plan.expected.seconds for place, plan in plans.items()}
    section = "hybrid" if config.get("bigfft.hybrid-gain") else "forced"
    bench.results.add(
        section, shape=x.shape, dtype=str(x.dtype), axes=problem.axes, blocks=x.npartitions,
        rounds=found.notation, turns=len(pairs), better=faster, **median,
        gain=gain.median, low=gain.low, high=gain.high, share=share,
        who=found.device, expected_gain=min(expected["cpu"], expected["gpu"]) / expected["hybrid"],
        forecast=[round(part, 3) for part in found.shares], error=error, expected=expected,
        seconds=times,
    )
    for place, plan in plans.items():
        for one in plan.expected.rounds if len(plan.rounds) == 1 else ():
            bench.results.add(
                "model", shape=x.shape, dtype=str(x.dtype), blocks=x.npartitions, device=place,
                forecast=plan.expected.seconds, bound=one.bound, measured=median[place],
                error=plan.expected.seconds / median[place] - 1,
            )


def _answer(done: Any) -> Any:
    """The first values of a persisted array along its first axis."""
    rows = max(1, done.shape[0] * min(COMPARED, done.nbytes) // done.nbytes)
    return done[:rows].compute(scheduler="threads")


def _off(wanted: Any, got: Any) -> float:
    """Relative L2 distance."""
    parts = zip(np.array_split(wanted, 64), np.array_split(got, 64), strict=True)
    off = sum(float(np.linalg.norm((a - b).ravel())) ** 2 for a, b in parts)
    return math.sqrt(off) / float(np.linalg.norm(wanted.ravel()))


def write_report(found: dict[str, Any], path: Path) -> None:
    """Write the tables beside the results."""
    cards, host = found["gpu"], found["machine"]
    lines = [
        "# CPU threads and cards together, and ways between cards", "",
        f"{cards['count']} x {cards['name']}; host: "
        + ", ".join(f"{k} {v}" for k, v in host.items() if isinstance(v, str | int | float)), "",
        "Written by `ci/bench --gpu-hybrid`. Times are medians in seconds of turns in which CPU, "
        "card and both take turns; garbage is collected between them. `gain` is the time of the "
        "faster one alone over that of both, "
        "the median of the turns with a bootstrap interval (95 %); `share` is what the card did "
        "of rounds that were shared. Who does it is the model's choice.",
        "", "## Hybrid", "",
        *table(found.get("hybrid", []), {
            "shape": "shape", "dtype": "dtype", "axes": "axes", "blocks": "blocks",
            "rounds": "rounds", "cpu": "CPU", "gpu": "GPU", "hybrid": "hybrid", "gain": "gain",
            "low": "low", "high": "high", "expected_gain": "gain by the model",
            "who": "who does it", "share": "share", "forecast": "share by the model",
            "error": "distance from the CPU"}),
        "## Shared whatever the model says", "",
        "With `bigfft.hybrid-gain` at 0.", "",
        *table(found.get("forced", []), {
            "shape": "shape", "dtype": "dtype", "axes": "axes", "blocks": "blocks",
            "turns": "turns", "cpu": "CPU", "gpu": "GPU", "hybrid": "hybrid", "gain": "gain",
            "low": "low", "high": "high", "share": "share"}),
        "## Forecast of transforms of one round", "",
        f"By the profile {found.get('profile') or 'of a common machine'}.", "",
        *table(found.get("model", []), {
            "shape": "shape", "dtype": "dtype", "blocks": "blocks", "device": "device",
            "forecast": "forecast", "measured": "measured", "error": "error",
            "bound": "bound by"}),
        "## From card to card, by the copy engine", "",
        *table(found.get("links", []), {"source": "from", "target": "to", "gbs": "GB/s"}),
        "## Slabs of n x n x n complex64 change places on two devices", "",
        "`GB/s` counts the bytes that had to move; `moved` is what crossed a bus for each of them.",
        "",
        *table(found.get("peers", []), {
            "n": "n", "batches": "batches", "route": "route", "seconds": "seconds",
            "gbs": "GB/s", "moved": "moved", "peak_gib": "peak GiB of a device",
            "data_gib": "data GiB of a device"}),
        "## Whole transforms of blocks that stay on their cards", "",
        "The input stays. `peak` is what CuPy's pool of a card has taken beside it, `error` the "
        "distance from SciPy's values at 64 frequencies.", "",
        *table(found.get("between", []), {
            "shape": "shape", "blocks": "blocks", "cards": "cards", "route": "route",
            "seconds": "seconds", "low": "least", "peak_gib": "peak GiB of a card",
            "data_gib": "data GiB of a card", "error": "error"}),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 where there is no card."""
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.gpu_hybrid")
    parser.add_argument("--out", type=Path, default=Path("ci/results/gpu_hybrid.json"))
    parser.add_argument("--turns", type=int, default=7,
                        help=f"of each problem, at least; up to {MORE} times as many of short ones")
    parser.add_argument("--profile", type=Path, help="speeds, as dask-bigfft calibrate writes them")
    parser.add_argument("--only", nargs="*", type=int,
                        help="numbers of problems, from 0; none: the ways alone")
    parser.add_argument("--no-routes", action="store_true", help="leave the ways out")
    parser.add_argument("--budget-seconds", type=float, default=400.0)
    parser.add_argument("--scale", type=int, default=1, help="divide all sizes, to try things")
    args = parser.parse_args(argv)
    if reason() is not None:
        print(f"bench: {reason()}", file=sys.stderr)
        return 1
    configure(72 * GIB)
    dask.config.set({"bigfft.memory.arena-limit": 72 * GIB})
    if args.profile is not None:
        dask.config.set({"bigfft.planner.profile": str(args.profile)})
    results = gpu_bench.Results(args.out, time.monotonic() + args.budget_seconds)
    properties = cupy().cuda.runtime.getDeviceProperties(0)
    results.found["machine"] = machine.describe()
    results.found["gpu"] = {"name": properties["name"].decode(), "count": len(available()),
                            "cupy": cupy().__version__}
    results.found["profile"] = None if args.profile is None else args.profile.name
    problems = list(PROBLEMS) if args.only is None else [PROBLEMS[i] for i in args.only]
    anchor = open_device(0)  # keeps memory pinned from case to case
    most = max((problem.mib for problem in problems), default=0) * MIB
    bench = gpu_bench.Bench(results, args.scale, most // args.scale, 0)
    ordinals = available()
    if len(ordinals) > 1:
        links(bench)
    pair = (ordinals[0], ordinals[-1])  # two logical devices where there is one card
    if not args.no_routes:
        routes(bench, lambda: CupyPeers(pair))
        between(bench)
    for ordinal in set(pair):
        with cupy().cuda.Device(ordinal):
            cupy().get_default_memory_pool().free_all_blocks()
    write_report(results.found, args.out.with_suffix(".md"))
    hybrid(bench, args.turns, problems)
    write_report(results.found, args.out.with_suffix(".md"))
    find.release()
    anchor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
