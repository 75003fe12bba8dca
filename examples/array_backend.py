"""Measure dask's array backend "bigfft": examples/array_backend.py

Blocks in the arena are ordinary NumPy arrays. This measures the time to create and free them, to
copy arrays into them, and to transform them, against blocks in memory from the C library.
"""

import argparse
import statistics
import time

import dask
import dask.array as da
import numpy as np
from dask.array.backends import array_creation_dispatch

from dask_bigfft import fft
from dask_bigfft.integrations.array_backend import ArenaBackend

# An installed package announces its backend to dask; a checkout does not.
array_creation_dispatch.register_backend("bigfft", ArenaBackend())


def seconds(functions, repetitions):
    """Seconds of each function, one after the other in turn; a first turn does not count."""
    found = []
    for _ in range(repetitions + 1):
        row = []
        for function in functions:
            start = time.perf_counter()
            kept = function()
            row.append(time.perf_counter() - start)
            del kept
        found.append(row)
    return zip(*found[1:], strict=True)


def full_by_numpy(shape, chunks):
    """Blocks of ones with memory of their own: da.ones alone has one element a block."""
    return da.ones(shape, chunks=chunks).map_blocks(np.copy)


def full_by_arena(shape, chunks):
    with dask.config.set({"array.backend": "bigfft"}):
        return da.ones(shape, chunks=chunks)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=256, help="size of the array, default 256")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()

    rows = int((given.mib * 2**20 / 8) ** 0.5) // 8 * 8
    shape = (rows, rows)
    chunks = (rows // 8, rows)
    random = da.random.default_rng(0)
    ordinary = random.standard_normal(shape, chunks=chunks).map_blocks(np.copy).persist()
    lent = ordinary.to_backend("bigfft").persist()

    jobs = [
        (
            "make and drop blocks",
            lambda: full_by_numpy(shape, chunks).persist(),
            lambda: full_by_arena(shape, chunks).persist(),
        ),
        (
            "copy blocks",
            lambda: ordinary.map_blocks(np.copy).persist(),
            lambda: ordinary.to_backend("bigfft").persist(),
        ),
        (
            "transform: rfft2",
            lambda: fft.rfft2(ordinary).persist(),
            lambda: fft.rfft2(lent).persist(),
        ),
    ]
    print(f"float64 array of {shape} in 8 blocks, medians of {given.repetitions} in turn\n")
    print("| seconds | C library | arena | ratio (least..most) |\n|---|---|---|---|")
    for name, *functions in jobs:
        first, second = seconds(functions, given.repetitions)
        ratios = sorted(a / b for a, b in zip(first, second, strict=True))
        a = statistics.median(first)
        b = statistics.median(second)
        print(f"| {name} | {a:.4f} | {b:.4f} | {a / b:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}) |")

    if not np.array_equal(fft.rfft2(ordinary).compute(), fft.rfft2(lent).compute()):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
