"""``python -m dask_bigfft.bench.convolution``: convolutions of long arrays, time and memory.

Problems: ``full``, two float64 arrays of 2**26 samples with mode "full"; ``taps``, one of 2**26 and
4,096 taps. Contenders:

===============  ==================================================================================
fftconvolve      ours, `dask_bigfft.signal.fftconvolve`; ``persist()``, result in blocks
oaconvolve       ours, `dask_bigfft.signal.oaconvolve` (taps only)
da.fft           the same composed of `dask.array.fft` by hand, between the rechunks that a user
                 would write, back in blocks; ``persist()``
scipy            `scipy.signal.fftconvolve` of the arrays as they lie in memory
scipy.oaconvolve `scipy.signal.oaconvolve` of them
===============  ==================================================================================

Every run is a process of its own, the contenders in turn: it makes the inputs, convolves once (the
most memory above the inputs counts, and the time, as *cold*), and once more (*warm*). One of the
others that takes longer than `LONG` seconds convolves once, which counts as both: what a first run
costs beside the convolution is little of that. It runs in fewer processes (``--slow-repeat``). Idle
memory that the arena keeps counts, too: DASK_BIGFFT__MEMORY__ARENA=False shows what there is
without. Some samples of the last answer are held against the sum that defines them, and its sum
against the product of the inputs' sums. Results are written after every run.

Imports `machine` and the front door.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config
import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from dask_bigfft import signal
from dask_bigfft.bench import machine

__all__ = ["CONTENDERS", "PROBLEMS", "main", "measure", "targets"]

Array = npt.NDArray[Any]

#: Seconds beyond which another contender is slow.
LONG = 15.0

#: Contenders that are ours.
OURS = ("fftconvolve", "oaconvolve")

#: Taps of the second problem.
TAPS = 4096
SAMPLES = 24
SEED = 20260
_BLOCK = 1 << 20

#: Names of the problems, and who takes part.
PROBLEMS = {
    "full": ("fftconvolve", "da.fft", "scipy"),
    "taps": ("fftconvolve", "oaconvolve", "da.fft", "scipy", "scipy.oaconvolve"),
}


# --- contenders: a function that gives the result, from arrays and their blocks -------------------


def _by_hand(x: da.Array, y: da.Array) -> da.Array:
    full = x.shape[0] + y.shape[0] - 1
    n = scipy.fft.next_fast_len(full, True)
    spectra = [da.fft.rfft(a.rechunk({0: -1}), n=n) for a in (x, y)]
    whole: Any = da.fft.irfft(spectra[0] * spectra[1], n=n)[:full]
    return whole.rechunk({0: x.chunksize[0]})  # type: ignore[no-any-return]


def _short(a: Array, lazy: da.Array) -> Any:
    """An array of a few taps as it is, a long one in blocks."""
    return a if a.size <= TAPS else lazy


Inputs = tuple[Array, Array, da.Array, da.Array]

CONTENDERS: dict[str, Callable[[Inputs], Any]] = {
    "fftconvolve": lambda i: signal.fftconvolve(i[2], _short(i[1], i[3])).persist(),
    "oaconvolve": lambda i: signal.oaconvolve(i[2], _short(i[1], i[3])).persist(),
    "da.fft": lambda i: _by_hand(i[2], i[3]).persist(),
    "scipy": lambda i: scipy.signal.fftconvolve(i[0], i[1]),
    "scipy.oaconvolve": lambda i: scipy.signal.oaconvolve(i[0], i[1]),
}


# --- one run, in a process of its own -------------------------------------------------------------


def _inputs(problem: str, size: int, ways: int) -> Inputs:
    rng = np.random.default_rng(SEED)
    x = rng.random(size) - 0.5
    y = rng.random(size if problem == "full" else min(TAPS, size)) - 0.5
    width = -(-size // ways)
    lazy = [_in_blocks(a, width, f"bench-{name}") for a, name in ((x, "x"), (y, "y"))]
    return x, y, lazy[0], lazy[1]


def _in_blocks(a: Array, width: int, name: str) -> da.Array:
    """A dask array whose blocks are views of an array in memory."""
    starts = range(0, a.size, width)
    graph = {(name, i): a[start : start + width] for i, start in enumerate(starts)}
    chunks = tuple(min(width, a.size - start) for start in starts)
    return da.Array(graph, name, (chunks,), dtype=a.dtype)


def _exact(x: Array, y: Array, place: int) -> float:
    """A sample of the convolution by its definition; sums of short sums, for accuracy."""
    first, last = max(0, place - y.size + 1), min(x.size, place + 1)
    sums = []
    for start in range(first, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        sums.append(float(np.sum(x[start:stop] * y[place - stop + 1 : place - start + 1][::-1])))
    return float(np.sum(np.array(sums)))


def _error(x: Array, y: Array, result: Any) -> float:
    """Largest error of samples and of the sum, over the root mean square that is expected."""
    full = x.size + y.size - 1
    places = np.random.default_rng(SEED + 1).integers(0, full, SAMPLES)
    found = np.array([float(np.asarray(result[int(place)])) for place in places])
    rms = np.sqrt(min(x.size, y.size)) / 12
    errors = abs(found - np.array([_exact(x, y, int(place)) for place in places])) / rms
    total = abs(float(result.sum()) - float(x.sum()) * float(y.sum())) / (rms * np.sqrt(full))
    return max(float(errors.max()), total) if result.shape == (full,) else 1e300


def measure(problem: str, contender: str, size: int, ways: int, threads: int) -> dict[str, Any]:
    """Return times, memory and error of one contender; call it in a new process.

    Parameters
    ----------
    problem, contender : str
        Of `PROBLEMS` and `CONTENDERS`.
    size : int
        Samples of the long arrays.
    ways : int
        Blocks that they are cut into.
    threads : int
        Tasks that dask runs at a time.
    """
    inputs = _inputs(problem, size, ways)
    run, seconds, peak = CONTENDERS[contender], [], 0
    with dask.config.set(scheduler="threads", num_workers=threads):
        _ = run(_inputs("taps", min(size, 1 << 14), 4))  # imports and compiled code
        gc.collect()
        held = machine.reset_peak()
        for number in range(2):
            started = time.perf_counter()
            result = run(inputs)
            seconds.append(time.perf_counter() - started)
            if number == 0:
                peak = machine.peak_bytes() - held
                if seconds[0] > LONG and contender not in OURS:
                    break
                del result
                gc.collect()
        error = _error(inputs[0], inputs[1], result)
    tolerance = 64 * float(np.finfo(float).eps) * np.log2(2 * size)
    return {
        "cold": seconds[0], "warm": seconds[-1], "peak_bytes": peak, "times": len(seconds),
        "input_bytes": inputs[0].nbytes + inputs[1].nbytes, "error": error,
        "tolerance": tolerance, "ok": bool(error <= tolerance),
    }


# --- all runs -------------------------------------------------------------------------------------


def _child(arguments: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "dask_bigfft.bench.convolution", "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        return {"error_text": last[0][:300], "ok": False}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a table shows of a contender's runs."""
    good = [run for run in runs if "error_text" not in run]
    names = ("cold", "warm", "peak_bytes", "error")
    found: dict[str, Any] = {
        name: statistics.median(run[name] for run in good) if good else None for name in names
    }
    right = len(good) == len(runs) and all(run["ok"] for run in runs)
    return {**found, "ok": right, "runs": len(good)}


def targets(results: dict[str, dict[str, Any]]) -> list[tuple[str, float, bool]]:
    """Return what is wanted: twice the speed of da.fft by hand, half its memory above the inputs.

    Parameters
    ----------
    results : dict
        For each problem, medians by contender.

    Returns
    -------
    list of tuple
        What, the ratio found (peer over ours, at least 2 is wanted), and whether it was reached.
    """
    found = []
    for problem, table in results.items():
        peer = table.get("da.fft", {})
        for name in OURS:
            ours = table.get(name, {})
            for what in ("warm", "cold", "peak_bytes"):
                if peer.get(what) and ours.get(what):
                    ratio = peer[what] / ours[what]
                    found.append((f"{problem}: {what}, da.fft over {name}", ratio, ratio >= 2))
    return found


def _table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| problem | contender | warm, s | cold, s | peak above inputs, MiB | error | runs |",
             "|---|---|---|---|---|---|---|"]
    for problem, table in results.items():
        for name, row in table.items():
            if row["warm"] is None:
                lines.append(f"| {problem} | {name} | did not run | | | | 0 |")
                continue
            lines.append(
                f"| {problem} | {name} | {row['warm']:.3g} | {row['cold']:.3g} | "
                f"{row['peak_bytes'] / 2**20:.0f} | {row['error']:.1e}"
                f"{'' if row['ok'] else ' WRONG'} | {row['runs']} |"
            )
    lines += ["", f"Medians of runs, each a process of its own; what is not ours and takes more "
              f"than {LONG:.0f} s convolves once, which counts as warm, too. Wanted: at least 2."]
    lines += [f"- {what}: {ratio:.2f}{'' if met else ', missed'}"
              for what, ratio, met in targets(results)]
    return "\n".join(lines)


@dataclass
class Findings:
    """What has been found so far, and where it is written.

    Parameters
    ----------
    log2, ways, threads : int
        Samples as a power of two, blocks, and threads.
    out : Path or None
        JSON of all runs; a table goes beside it.
    """

    log2: int
    ways: int
    threads: int
    out: Path | None
    runs: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, int, int]:
        """What a child is given beside problem and contender."""
        return 1 << self.log2, self.ways, self.threads

    @property
    def medians(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What a table shows."""
        return {
            problem: {name: _medians(runs) for name, runs in table.items()}
            for problem, table in self.runs.items()
        }

    def write(self, *, complete: bool = False) -> None:
        """Write all that is known; `complete` says that nothing is to come."""
        if self.out is None:
            return
        self.out.parent.mkdir(parents=True, exist_ok=True)
        shown = {"machine": machine.describe(), "load": machine.load(), "complete": complete,
                 "log2": self.log2, "ways": self.ways, "threads": self.threads, "runs": self.runs,
                 "medians": self.medians}
        text = _table(self.medians) + ("" if complete else "\n\nNot complete yet.")
        self.out.write_text(json.dumps(shown, indent=1), encoding="utf-8")
        self.out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.convolution")
    add = parser.add_argument
    add("--only", choices=list(PROBLEMS), help="one of the problems (default: both)")
    add("--log2", type=int, default=26, metavar="P", help="2**P samples (default: 26)")
    add("--ways", type=int, default=16, metavar="N", help="blocks of an array (default: 16)")
    add("--repeat", type=int, default=5, metavar="N", help="processes of each (default: 5)")
    add("--slow-repeat", type=int, default=1, metavar="N",
        help="processes of a contender that has proved slow (default: 1)")
    add("--threads", type=int, default=2, metavar="N", help="threads of dask (default: 2)")
    add("--out", type=Path, metavar="PATH", help="JSON of all runs; a table goes beside it")
    add("--child", nargs=5, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if all answers were right, else 1."""
    args = _parser().parse_args(argv)
    if args.child is not None:
        problem, contender, *numbers = args.child
        print(json.dumps(measure(problem, contender, *map(int, numbers))))
        return 0
    found = Findings(args.log2, args.ways, args.threads, args.out)
    for problem in [args.only] if args.only else PROBLEMS:
        found.runs[problem] = {name: [] for name in PROBLEMS[problem]}
        for turn in range(args.repeat):
            for name, runs in found.runs[problem].items():
                slow = any(run.get("cold", LONG) >= LONG for run in runs)
                if name in OURS or not slow or turn < args.slow_repeat:
                    runs.append(_child([problem, name, *map(str, found.numbers)]))
                    found.write()
    found.write(complete=True)
    print(_table(found.medians))
    return int(not all(row["ok"] for table in found.medians.values() for row in table.values()))


if __name__ == "__main__":
    sys.exit(main())
