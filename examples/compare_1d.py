"""Compare transforms of one long axis in one run: examples/compare_1d.py

Complex data of length 2^26 in 16 chunks in memory, natural order in and out, on two threads. Each
repetition runs every contestant once, in turn, so that what slows the machine slows all of them.
The answers are checked; what is printed are medians of ratios within a repetition, with least and
most. What is timed: ours and `da.fft` from the call to the end of `persist()`, the result in
blocks, ours in memory that it kept from before; SciPy (one axis: it uses one thread) the call, into
fresh memory, which is part of its time; NumPy the call, into memory that is ready.
"""

import argparse
import json
import os
import platform
import statistics
import time
from importlib import metadata
from importlib.util import find_spec

import dask
import dask.array as da
import numpy as np
import psutil
import scipy.fft

import dask_bigfft
from dask_bigfft import fft

OURS = "dask_bigfft, {}"
SCIPY = "scipy.fft.fft"
NUMPY = "numpy.fft.fft(out=)"
DASK = "da.fft.fft(x.rechunk(-1))"
PEERS = (SCIPY, NUMPY, DASK)


def kernels():
    """Return the FFT libraries to run: SciPy, and ducc0 where it is installed."""
    return ["scipy", "ducc0"] if find_spec("ducc0") else ["scipy"]


def contestants(x, whole):
    """Return what is compared: names and calls that return a result."""
    found = {
        OURS.format(kernel): lambda kernel=kernel: fft.fft(x, kernel=kernel).persist()
        for kernel in kernels()
    }
    found[SCIPY] = lambda: scipy.fft.fft(whole)
    out = np.empty_like(whole)
    found[NUMPY] = lambda: np.fft.fft(whole, out=out)
    found[DASK] = lambda: da.fft.fft(x.rechunk(-1)).persist()
    return found


def relative_error(found, wanted):
    """Return the L2 norm of the difference over that of what is wanted, in pieces."""
    found = da.asarray(found).rechunk(2**20)
    wanted = da.from_array(wanted, chunks=2**20, name=False)
    apart, size = dask.compute((abs(found - wanted) ** 2).sum(), (abs(wanted) ** 2).sum())
    return float(np.sqrt(apart / size))


def measure(n, repetitions):
    """Return seconds of each contestant by repetition, and errors against SciPy."""
    x = da.random.default_rng(26).standard_normal(2 * n, chunks=-(-2 * n // 16) // 2 * 2)
    x = x.map_blocks(
        lambda block: block.view(complex),
        dtype=complex,
        chunks=(tuple(size // 2 for size in x.chunks[0]),),
    ).persist()
    whole = x.compute()
    calls = contestants(x, whole)
    wanted = scipy.fft.fft(whole)
    errors = {name: relative_error(call(), wanted) for name, call in calls.items()}  # warms up
    del wanted
    seconds = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.perf_counter()
            result = call()
            seconds[name].append(time.perf_counter() - start)
            del result
    return seconds, errors


def ratios(seconds, peer):
    """Return median, least and most of a peer's time over that of each contestant."""
    found = {}
    for name, taken in seconds.items():
        each = [theirs / ours for theirs, ours in zip(seconds[peer], taken, strict=True)]
        found[name] = (statistics.median(each), min(each), max(each))
    return found


def machine():
    """Return what it ran on."""
    names = []
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    libraries = [name for name in ("numpy", "scipy", "dask", "ducc0") if find_spec(name)]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in libraries},
        "dask_bigfft": dask_bigfft.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**26, help="length, default 2^26")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="file that the measurements are written to")
    arguments = parser.parse_args()

    with dask.config.set(scheduler="threads", num_workers=arguments.threads):
        seconds, errors = measure(arguments.n, arguments.repetitions)
    peers = [ratios(seconds, peer) for peer in PEERS]
    where = machine()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    print(
        f"N = {arguments.n} complex128 in 16 chunks, {arguments.threads} threads, natural order,"
        f" warm, {arguments.repetitions} repetitions in turn\n"
    )
    heads = "".join(f" times as fast as `{peer}` |" for peer in PEERS)
    print(f"| | seconds, median |{heads} relative L2 distance from SciPy |")
    print("|---" * (3 + len(PEERS)) + "|")
    for name, taken in seconds.items():
        cells = "".join(
            f" {mid:.2f} ({least:.2f}..{most:.2f}) |"
            for mid, least, most in (found[name] for found in peers)
        )
        print(f"| `{name}` | {statistics.median(taken):.3f} |{cells} {errors[name]:.1e} |")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {
                    "machine": where,
                    "n": arguments.n,
                    "threads": arguments.threads,
                    "seconds": seconds,
                    "errors": errors,
                },
                file,
                indent=1,
            )
    if not max(errors.values()) < 1e-14:
        raise SystemExit("an answer is wrong")


if __name__ == "__main__":
    main()
