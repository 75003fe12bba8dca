"""``python -m dask_bigfft.bench.verification``: what the checks of `verify` cost.

The same transform without checks, with ``"energy"`` and with ``"checksum"``, in turn, many times,
in blocks that lie in memory; and one from a file to a file, with exchanges through scratch files,
as arrays larger than memory are transformed. Each turn begins with another mode, so that what the
machine does beside it falls on all alike. A cost is the ratio to the run without checks of the same
turn, minus 1; the median is given, with the interval that holds it with a probability of 95 % (by
ranks). Two runs without checks in each turn, held against each other, show the noise. Times are by
the clock, and those of the processor, which a busy machine disturbs less. What is asked is kept
where the whole interval is below, missed where it is above, else open.

Imports `machine`, `kernels` and the front door.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft import fft
from dask_bigfft.bench import machine
from dask_bigfft.kernels import warming

__all__ = ["PROBLEMS", "costs", "main", "median_interval", "verdict"]

#: By name: transform, shape, chunks, dtype.
PROBLEMS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], str]] = {
    "1d": ("fft", (2**24,), (2**20,), "c16"),
    "2d": ("fft2", (4096, 4096), (256, 4096), "c16"),
    "3d": ("fftn", (256, 256, 256), (16, 256, 256), "c8"),
    "3d real": ("rfftn", (256, 256, 512), (16, 256, 512), "f4"),
    "1d on disk": ("fft", (2**24,), (2**20,), "c16"),
    "2d on disk": ("fft2", (2048, 2048), (128, 2048), "c16"),
    "3d on disk": ("fftn", (512, 256, 256), (32, 256, 256), "c8"),
}

#: Problems whose source, scratch files and result lie on a disk.
ON_DISK = frozenset(name for name in PROBLEMS if name.endswith("on disk"))

#: Modes of a turn; the second "none" shows the noise.
MODES = ("none", "again", "energy", "checksum")

#: What may be added at most.
ALLOWED = {"energy": 0.05, "checksum": 0.15}


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the interval that holds it with a probability of 95 %, by ranks.

    >>> median_interval(list(range(1, 12)))
    (6, 2, 10)
    """
    ordered, n = sorted(values), len(values)
    low = 0
    while sum(math.comb(n, i) for i in range(low + 1)) / 2**n <= 0.025:
        low += 1
    low = max(0, low - 1)
    return statistics.median(ordered), ordered[low], ordered[n - 1 - low]


def _timed(
    x: da.Array, kind: str, mode: str, kernel: str, sink: npt.NDArray[Any] | None
) -> tuple[float, float]:
    y = getattr(fft, kind)(x, verify="none" if mode == "again" else mode, kernel=kernel)
    wall, used = time.perf_counter(), time.process_time()
    kept = y.persist() if sink is None else da.store(y, sink, lock=False)
    found = time.perf_counter() - wall, time.process_time() - used
    del kept
    return found


def _values(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype(dtype)
    if values.dtype.kind == "c":
        values += 1j * rng.standard_normal(shape).astype(values.real.dtype)
    return values


def _in_files(
    values: npt.NDArray[Any], folder: Path
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """An array in a file, to be read, and a file like it."""
    source, sink = (
        np.memmap(folder / name, values.dtype, "w+", shape=values.shape)
        for name in ("source", "sink")
    )
    source[...] = values
    return source, sink


def costs(
    problem: str, repeat: int, kernel: str = "auto", scale: int = 1
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return what each mode costs, as a part of the time without checks.

    Parameters
    ----------
    problem : str
        Of `PROBLEMS`.
    repeat : int
        Turns, after one that warms up.
    kernel : str
        FFT library.
    scale : int
        By which the first axis and its chunks are divided.

    Returns
    -------
    dict
        By mode, then ``"clock"`` or ``"processor"``: median, and its interval.
    """
    kind, shape, chunks, dtype = PROBLEMS[problem]
    shape, chunks = ((t[0] // scale, *t[1:]) for t in (shape, chunks))
    values, sink, settings = _values(shape, dtype), None, dict[str, str]()
    times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="bigfft-") as folder:
        if problem in ON_DISK:
            values, sink = _in_files(values, Path(folder))
            settings = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.directory": folder}
        x = da.from_array(values, chunks=chunks, name=False)
        with dask.config.set(settings):
            for turn in range(repeat + 1):
                first = turn % len(MODES)
                for mode in MODES[first:] + MODES[:first]:
                    found = _timed(x, kind, mode, kernel, sink)
                    if turn:
                        times[mode].append(found)
    return {
        mode: {
            name: median_interval([
                a[i] / b[i] - 1 for a, b in zip(times[mode], times["none"], strict=True)
            ])
            for i, name in enumerate(("clock", "processor"))
        }
        for mode in MODES[1:]
    }


def verdict(interval: tuple[float, float, float], allowed: float) -> str:
    """Return whether a cost keeps to what is asked, as far as its interval tells.

    >>> [verdict((0.06, low, high), 0.05) for low, high in ((0.01, 0.04), (0.06, 0.07), (0, 0.1))]
    ['kept', 'missed', 'open']
    """
    _, low, high = interval
    return "kept" if high <= allowed else "missed" if low > allowed else "open"


def _text(name: str, found: dict[str, dict[str, tuple[float, float, float]]]) -> str:
    lines = []
    for mode, by_clock in found.items():
        said = []
        for which, (mid, low, high) in by_clock.items():
            interval = f"{100 * mid:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"
            asked = f", {verdict((mid, low, high), ALLOWED[mode])}" if mode in ALLOWED else ""
            said.append(f"{which} {interval}{asked}")
        allowed = f"; asked: {100 * ALLOWED[mode]:.0f} %" if mode in ALLOWED else ""
        lines.append(
            f"{name}, {'none, again' if mode == 'again' else mode}: {', '.join(said)}{allowed}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return 0 if all costs are within what is asked, by the processor's time."""
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.verification")
    add = parser.add_argument
    add("--repeat", type=int, default=25, metavar="N", help="turns (default: 25)")
    add("--only", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS), metavar="NAME")
    add("--kernel", nargs="+", default=["scipy"], metavar="NAME",
        help="FFT libraries, one after the other (default: scipy)")
    add("--threads", type=int, default=2, metavar="N")
    add("--scale", type=int, default=1, metavar="N", help="divides the first axis")
    add("--out", type=Path, metavar="PATH", help="JSON")
    args = parser.parse_args(argv)
    warming.at_once()
    kernels: dict[str, dict[str, Any]] = {kernel: {} for kernel in args.kernel}
    found = {"machine": machine.describe(), "repeat": args.repeat, "kernels": kernels}
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        for kernel, problems in kernels.items():
            for name in args.only:
                problems[name] = costs(name, args.repeat, kernel, args.scale)
                print(_text(f"{kernel}, {name}", problems[name]), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(
        problem[mode]["processor"][0] > allowed
        for problems in kernels.values()
        for problem in problems.values()
        for mode, allowed in ALLOWED.items()
    ))


if __name__ == "__main__":
    sys.exit(main())
