"""Small calls, warm: ours against `da.fft` after ``rechunk(-1)``, in alternating turns.

In the JSON `graph` is the time in which ours plans and makes the lazy result, part of its seconds.
One result of each call is compared with NumPy's.
"""

import contextlib
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.rows import alternate, cluster, seconds_of
from dask_bigfft import fft

#: Transform, shape, dtype, chunks, and axes where not all, or the last one, are transformed.
CALLS: list[tuple[Any, ...]] = [
    ("fft", (1000,), "c16", 100),
    ("fft", (1 << 12,), "c16", 1 << 10),
    ("fft", (10_007,), "c16", 1001),
    ("fft", (10_000,), "c8", 1000),
    ("rfft", (100_000,), "f8", 10_000),
    ("irfft", (50_001,), "c16", 5001),
    ("fft", (1 << 16,), "c16", 1 << 12),
    ("fft", (1 << 18,), "c16", 1 << 14),
    ("rfft", (1 << 20,), "f8", 1 << 17),
    ("fft", (1 << 20,), "c8", 1 << 17),
    ("fft", (1 << 20,), "c16", 1 << 16),
    ("fft", (1 << 22,), "c16", 1 << 19),
    ("fft", (1 << 22,), "c16", 1 << 22),
    ("fft", (1 << 16,), "c16", 1 << 16),
    ("fft", (100, 1000), "c16", (10, 1000)),
    ("fft", (100, 1000), "c16", (10, 100)),
    ("rfft", (1000, 4096), "f4", (100, 1024)),
    ("fft", (64, 1 << 14), "c16", (8, 1 << 12)),
    ("fft", (1000, 1000), "c16", (250, 250), 0),
    ("fft2", (256, 256), "c16", 64),
    ("fft2", (1000, 1000), "c16", 250),
    ("rfft2", (1000, 1000), "f8", 250),
    ("fft2", (1009, 1013), "c16", 300),
    ("ifft2", (2048, 2048), "c8", 512),
    ("fft2", (20, 500, 500), "c16", (1, 250, 250)),
    ("rfft2", (50, 256, 256), "f4", (10, 128, 128)),
    ("fftn", (64, 64, 64), "c16", 32),
    ("fftn", (100, 100, 100), "c8", 50),
    ("rfftn", (128, 128, 128), "f4", (64, 128, 128)),
    ("fftn", (128, 128, 128), "c16", 64),
]


def calls(kind: str, a: np.ndarray, chunks: Any, axis: int | None) -> dict[str, Any]:
    """Return the calls by name: what makes the lazy results, and NumPy's result."""
    x = da.from_array(a, chunks=chunks, name=False).persist()
    more = {} if axis is None else {"axis": axis}
    many = range(a.ndim)[-2 if kind.endswith("2") else 0 :]
    axes = many if kind.endswith(("2", "n")) else [-1 if axis is None else axis]

    def theirs() -> da.Array:
        return getattr(da.fft, kind)(x.rechunk(dict.fromkeys(axes, -1)), **more)

    return {
        "bigfft": lambda: getattr(fft, kind)(x, **more),
        "dask": theirs,
        "truth": lambda: getattr(np.fft, kind)(a.astype(np.result_type(a, "f8")), **more),
    }


def measure(call: tuple[Any, ...], repeat: int) -> dict[str, Any]:
    kind, shape, dtype, chunks, *axis = call
    rng = np.random.default_rng(1)
    a = rng.standard_normal(shape).astype(dtype)
    if a.dtype.kind == "c":
        a += (1j * rng.standard_normal(shape)).astype(dtype)
    made = calls(kind, a, chunks, *(axis or [None]))
    found, truth = made["bigfft"]().compute(), made["truth"]()
    error = float(np.linalg.norm(found - truth) / np.linalg.norm(truth))
    works = {name: lambda m=made[name]: m().compute() for name in ("bigfft", "dask")}
    alternate(works, 3)
    times = alternate(works, repeat)
    graph = statistics.median(seconds_of(made["bigfft"])[0] for _ in range(repeat))
    found = {name: core.median(times[name]) for name in times}
    limit = 1e-5 if a.dtype.char in "fF" else 1e-13
    return {**found, "graph": graph, "cost": core.ratio(times["bigfft"], times["dask"])} | {
        "error": error,
        "ok": error < limit,
    }


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("small", __doc__, repeat=30)
    args = parser.parse_args(argv)
    results = core.Results(args, "small")
    names = {" ".join(map(str, call)): call for call in CALLS}
    for where in ("threads", "workers"):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            if where == "threads":
                stack.enter_context(dask.config.set(scheduler="threads", num_workers=args.threads))
            else:
                stack.enter_context(cluster(args.threads, folder))
            for name in core.chosen(names, args.only):
                if not results.over and not results.has(where, name):
                    results.add(where, name, **measure(names[name], args.repeat))
    return int(not results.ok)
