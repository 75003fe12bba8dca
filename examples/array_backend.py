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
    """Return the seconds of each function; they take turns, of which the first does not count."""
    times = [[] for _ in functions]
    for turn in range(repetitions + 1):
        for function, seconds_of_function in zip(functions, times, strict=True):
            start = time.perf_counter()
            result = function()
            elapsed = time.perf_counter() - start
            del result
            if turn > 0:
                seconds_of_function.append(elapsed)
    return times


def full_by_numpy(shape, chunks):
    """Return blocks of ones with memory of their own: da.ones alone has one element a block."""
    return da.ones(shape, chunks=chunks).map_blocks(np.copy)


def full_by_arena(shape, chunks):
    with dask.config.set({"array.backend": "bigfft"}):
        return da.ones(shape, chunks=chunks)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=256, help="size of the array, default 256")
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()

    rows = int((arguments.mib * 2**20 / 8) ** 0.5) // 8 * 8
    shape = (rows, rows)
    chunks = (rows // 8, rows)
    random = da.random.default_rng(0)
    ordinary = random.standard_normal(shape, chunks=chunks).map_blocks(np.copy).persist()
    in_arena = ordinary.to_backend("bigfft").persist()

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
            lambda: fft.rfft2(in_arena).persist(),
        ),
    ]
    print(f"float64 array of {shape} in 8 blocks, medians of {arguments.repetitions} in turn\n")
    print("| seconds | C library | arena | ratio (least..most) |\n|---|---|---|---|")
    for name, *functions in jobs:
        by_numpy, by_arena = seconds(functions, arguments.repetitions)
        ratios = sorted(a / b for a, b in zip(by_numpy, by_arena, strict=True))
        numpy_median = statistics.median(by_numpy)
        arena_median = statistics.median(by_arena)
        print(
            f"| {name} | {numpy_median:.4f} | {arena_median:.4f} |"
            f" {numpy_median / arena_median:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}) |"
        )

    if not np.array_equal(fft.rfft2(ordinary).compute(), fft.rfft2(in_arena).compute()):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
