"""Small calls, warm: ours against `da.fft` after ``rechunk(-1)``, in alternating turns; starts.

In the JSON `graph` is the time in which ours plans and makes the lazy result, part of its seconds.
One result of each call is compared with NumPy's.
"""

import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.problems import alternate, seconds_of
from benchmarks.rows import cluster
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


#: Arguments of an interpreter, by name.
STARTS = {
    "import dask_bigfft.fft": ("-c", "import dask_bigfft.fft"),
    "help": ("-m", "dask_bigfft", "--help"),
    "error": ("-m", "dask_bigfft", "plan", ".", "--kind", "none"),
}


def start(words: Sequence[str], repeat: int) -> dict[str, Any]:
    both = {"bigfft": words, "dask": ("-c", "import dask.array")}
    run = partial(subprocess.run, capture_output=True)
    works = {name: partial(run, [sys.executable, *some]) for name, some in both.items()}
    return {k: core.median(v) for k, v in alternate(works, repeat).items()} | {"ok": True}


def measure(call: tuple[Any, ...], repeat: int) -> dict[str, Any]:
    kind, shape, dtype, chunks, *axis = call
    a = np.random.default_rng(1).standard_normal((*shape, 2)).view("c16")[..., 0]
    a = (a if dtype[0] == "c" else a.real).astype(dtype)
    x = da.from_array(a, chunks=chunks, name=False).persist()
    more = {"axis": axis[0]} if axis else {}
    many = range(a.ndim)[-2 if kind.endswith("2") else 0 :]
    whole = dict.fromkeys(many if kind.endswith(("2", "n")) else axis or [-1], -1)
    made = {
        "bigfft": lambda: getattr(fft, kind)(x, **more),
        "dask": lambda: getattr(da.fft, kind)(x.rechunk(whole), **more),
    }
    truth = getattr(np.fft, kind)(a.astype(np.result_type(a, "f8")), **more)
    error = float(np.linalg.norm(made["bigfft"]().compute() - truth) / np.linalg.norm(truth))
    works = {name: lambda m=made[name]: m().compute() for name in made}
    alternate(works, 3)
    times = alternate(works, repeat)
    return {name: core.median(found) for name, found in times.items()} | {
        "graph": statistics.median(seconds_of(made["bigfft"])[0] for _ in range(repeat)),
        "cost": core.ratio(times["bigfft"], times["dask"]),
        "error": error,
        "ok": error < (1e-5 if a.dtype.char in "fF" else 1e-13),
    }


def main(argv: Sequence[str]) -> int:
    args = core.arguments("small", __doc__, repeat=30).parse_args(argv)
    results = core.Results(args, "small")
    names = {" ".join(map(str, call)): call for call in CALLS}
    wanted = core.chosen([*names, *STARTS], args.only)
    for name in results.missing("start", [name for name in STARTS if name in wanted]):
        results.add("start", name, **start(STARTS[name], args.repeat))
    places = {
        "threads": lambda _: dask.config.set(scheduler="threads", num_workers=args.threads),
        "workers": lambda folder: cluster(args.threads, folder),
    }
    for where, place in places.items():
        with TemporaryDirectory() as folder, place(Path(folder)):
            for name in results.missing(where, [name for name in names if name in wanted]):
                results.add(where, name, **measure(names[name], args.repeat))
    return int(not results.ok)
