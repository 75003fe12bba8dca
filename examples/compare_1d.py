"""Compare transforms of one long axis, first and warm: examples/compare_1d.py

Complex data of length 2^23 in 16 chunks in memory, natural order in and out, on two threads;
`--n 67108864` is a GiB, and takes minutes. Each contestant runs in a process of its own: a first
run, which is told apart, and warm ones. What is timed: ours and `da.fft` from the call to the end
of `persist()`, the result in blocks; SciPy (one axis: it uses one thread) the call, into new
memory; NumPy the call, into memory of the caller.

A process gives large blocks of freed memory back to the system by the defaults of glibc, and pays
page faults for the next ones. Ours keeps its memory itself. So the others run twice: with the
defaults ("freed") and with settings of glibc that keep freed memory ("kept"). The answers are
checked.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
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

OURS = "dask_bigfft"
SCIPY = "scipy.fft.fft"
NUMPY = "numpy.fft.fft(out=)"
DASK = "da.fft.fft(x.rechunk(-1))"
PEERS = (SCIPY, NUMPY, DASK)

#: Variables of glibc by what a process does with freed memory. One heap for all threads, because
#: a block above 64 MiB of another thread goes back whatever the other two say.
MEMORY = {
    "freed": {},
    "kept": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(2**40),
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
    },
}

#: Variables that limit the threads of libraries. Users have not set them.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Most frequencies of an answer that are compared.
SAMPLES = 2**13


def contestants():
    """Return what is compared: names, and what their processes do with freed memory."""
    kernels = ["scipy", "ducc0"] if find_spec("ducc0") else ["scipy"]
    ours = [(f"{OURS}, {kernel}", "freed") for kernel in kernels]
    return ours + [(peer, mode) for peer in PEERS for mode in MEMORY]


def call_of(name, whole):
    """Return the call of a contestant, which returns the transform of an array."""
    if name == SCIPY:
        return lambda: scipy.fft.fft(whole)
    if name == NUMPY:
        out = np.empty_like(whole)
        return lambda: np.fft.fft(whole, out=out)
    x = da.from_array(whole, chunks=-(-whole.size // 16), name=False).persist()
    if name == DASK:
        return lambda: da.fft.fft(x.rechunk(-1)).persist()
    kernel = name.removeprefix(f"{OURS}, ")
    return lambda: fft.fft(x, kernel=kernel).persist()


def random_values(n):
    """Return complex noise, the same in each process, without a copy that would be freed."""
    values = np.empty(n, complex)
    np.random.default_rng(26).standard_normal(out=values.view(float))
    return values


def relative_error(answer, values):
    """Return the relative L2 error of some frequencies, by the definition of the transform.

    The frequencies are ``shift + stride * k`` for each k below ``samples``. Their sum over n is the
    transform of length ``samples`` of the values times ``exp(-2j pi n shift / N)``, folded.
    """
    samples = math.gcd(values.size, SAMPLES)
    stride = values.size // samples
    shift = stride // 3
    rows = SAMPLES // samples
    folded = np.zeros(samples, complex)
    for first in range(0, stride, rows):
        part = values[samples * first : samples * (first + rows)]
        places = samples * first + np.arange(part.size)
        phases = np.exp(-2j * math.pi / values.size * (places * shift % values.size))
        folded += (part * phases).reshape(-1, samples).sum(axis=0)
    expected = np.fft.fft(folded)
    difference = np.asarray(answer[shift::stride]) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def measure(name, n, repetitions, threads):
    """Return the seconds of the first run and of warm runs in this process, and the error."""
    values = random_values(n)
    seconds = []
    with dask.config.set(scheduler="threads", num_workers=threads):
        call = call_of(name, values)
        for _ in range(1 + repetitions):
            result = None  # the memory of the last result is free for the next one
            start = time.perf_counter()
            result = call()
            seconds.append(time.perf_counter() - start)
        error = relative_error(result, values)
    return {"first": seconds[0], "warm": seconds[1:], "error": error}


def measure_in_process(
    name,
    memory,
    n,
    repetitions,
    threads,
):
    """Return what `measure` returns in a new process."""
    dropped = (*THREAD_VARIABLES, *MEMORY["kept"])
    variables = {key: value for key, value in os.environ.items() if key not in dropped}
    command = [sys.executable, __file__, "--contestant", name]
    command += ["--n", str(n), "--repetitions", str(repetitions), "--threads", str(threads)]
    process = subprocess.run(
        command,
        env=variables | MEMORY[memory],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {"name": name, "memory": memory, **json.loads(process.stdout)}


def processor():
    """Return the model of the processor, or its architecture."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            for line in file:
                if "model name" in line:
                    return line.partition(":")[2].strip()
    return platform.machine()


def machine():
    """Return processor, memory and versions of libraries."""
    libraries = [name for name in ("numpy", "scipy", "dask", "ducc0") if find_spec(name)]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in libraries},
        "dask_bigfft": dask_bigfft.__version__,
    }


def report(rows):
    """Print a table: seconds, and how many times as fast ours is by SciPy's kernel."""
    ours = statistics.median(rows[0]["warm"])
    print("| | freed memory | first run, s | warm, s | warm: least..most | warm / ours | error |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        warm = statistics.median(row["warm"])
        memory = "its own" if row["name"].startswith(OURS) else row["memory"]
        print(
            f"| `{row['name']}` | {memory} | {row['first']:.3f} | {warm:.3f} |"
            f" {min(row['warm']):.3f}..{max(row['warm']):.3f} | {warm / ours:.2f} |"
            f" {row['error']:.1e} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**23, help="length, default 2^23")
    parser.add_argument("--repetitions", type=int, default=3, help="warm runs, default 3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="file that the measurements are written to")
    parser.add_argument("--contestant", help="measure this one alone, in this process")
    arguments = parser.parse_args()
    n = arguments.n
    repetitions = arguments.repetitions
    threads = arguments.threads
    if arguments.contestant:
        print(json.dumps(measure(arguments.contestant, n, repetitions, threads)))
        return

    conditions = machine()
    print(", ".join(f"{key} {value}" for key, value in conditions.items()))
    print(
        f"N = {n} complex128 in 16 chunks, {threads} threads, natural order;"
        f" each in a process of its own, {repetitions} warm runs\n",
        flush=True,
    )
    rows = []
    for name, memory in contestants():
        rows.append(measure_in_process(name, memory, n, repetitions, threads))
    report(rows)
    if arguments.json:
        content = {
            "machine": conditions,
            "n": n,
            "threads": threads,
            "contestants": rows,
        }
        with open(arguments.json, "w") as file:
            json.dump(content, file, indent=1)
    if not all(row["error"] < 1e-14 for row in rows):
        raise SystemExit("an answer is wrong")


if __name__ == "__main__":
    main()
