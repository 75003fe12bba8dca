"""Runs the text of a CUDA kernel on the CPU, by a C++ compiler: each thread of a block a thread.

What is C++ in it means the same there; what is CUDA's (indices, barriers, shared memory, loads and
stores) is defined here.
"""

import ctypes
import functools
import hashlib
import math
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

from dask_bigfft.gpu.operations import Multiply
from dask_bigfft.tiles.program import ChirpFactor, Term, Twiddle
from dask_bigfft.transforms.steps import Chirp

BIG = 1 << 62

COMPILER = shutil.which("c++") or shutil.which("g++")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

BEFORE = r"""
#include <math.h>
#include <pthread.h>
struct float2 { float x, y; };
struct alignas(16) double2 { double x, y; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Index { unsigned x, y, z; };
static thread_local Index threadIdx, blockIdx;
static Index gridDim, blockDim;
static pthread_barrier_t line;
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
static void __syncthreads() { pthread_barrier_wait(&line); }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
static int __ffsll(long long x) { return __builtin_ffsll(x); }
static void sincospi(double x, double* s, double* c) {
    const long double pi = 3.14159265358979323846264338327950288L;
    *s = sinl(pi * x); *c = cosl(pi * x);
}
"""

AFTER = r"""
struct Call { unsigned number; void** a; };
static void* thread(void* given) {
    void** a = ((Call*)given)->a;
    threadIdx = {((Call*)given)->number, 0, 0};
    for (unsigned y = 0; y < gridDim.y; y++) for (unsigned x = 0; x < gridDim.x; x++) {
        blockIdx = {x, y, 0};
        bigfft(ARGUMENTS);
        __syncthreads();
    }
    return 0;
}
extern "C" int launch(unsigned gx, unsigned gy, unsigned threads, void** a) {
    gridDim = {gx, gy, 1}; blockDim = {threads, 1, 1};
    pthread_barrier_init(&line, 0, threads);
    pthread_t running[1024]; Call calls[1024];
    for (unsigned t = 0; t < threads; t++) {
        calls[t] = {t, a};
        if (pthread_create(running + t, 0, thread, calls + t)) return 1;
    }
    for (unsigned t = 0; t < threads; t++) pthread_join(running[t], 0);
    return 0;
}
"""

#: How numbers are passed, by the type of the parameter.
PASSED = {
    "u64": "u8",
    "u32": "u4",
    "long long": "i8",
    "double": "f8",
}


def parameters(source):
    """Type of each parameter of the kernel."""
    (signature,) = re.findall(r"void bigfft\((.*?)\) \{", source, re.DOTALL)
    return [re.sub(r"\w+$", "", parameter.strip()).strip() for parameter in signature.split(",")]


@functools.cache
def compiled(source, folder):
    """The launcher of a kernel."""
    place = folder / hashlib.sha256(source.encode()).hexdigest()
    arguments = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(parameters(source)))
    text = BEFORE + source + AFTER.replace("ARGUMENTS", arguments)
    place.with_suffix(".cpp").write_text(text)
    command = [COMPILER, "-std=c++17", "-shared", "-fPIC", "-pthread", "-w", "-fno-strict-aliasing"]
    command += ["-o", str(place), str(place.with_suffix(".cpp"))]
    process = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return ctypes.CDLL(str(place)).launch


#: Held by the thread that launches a kernel, whose grid is a global variable.
_launching = threading.Lock()


def kernels_of(folder):
    """What stands in the place of `kernels.kernel`; the folder is for compiled files."""

    def kernel(source):
        def run(grid, block, arguments):
            kinds = parameters(source)
            assert len(kinds) == len(arguments)
            for kind, number in zip(kinds, arguments, strict=True):
                expected = "u8" if kind.endswith("*") else PASSED[kind]
                assert np.dtype(type(number)) == np.dtype(expected), (kind, type(number))
            (threads,) = block
            (x, y) = (*grid, 1)[:2]
            numbers = [np.asarray(number) for number in arguments]
            pointers = (ctypes.c_void_p * len(numbers))(*(scalar.ctypes.data for scalar in numbers))
            with _launching:
                assert compiled(source, folder)(x, y, threads, pointers) == 0

        return run

    return kernel


def factors(
    shape,
    dtype,
    conjugate=True,
    chirped=True,
):
    """Factors that depend on all dimensions of an array: places, digits of places, a chirp."""
    last = len(shape) - 1
    digits = tuple(Term(d, 2, 3, 4 + d, offset=5) for d in range(last)) or (Term(0, 1, 9, 1, 1),)
    twiddles = (
        Twiddle(10007 * 2**20, -1, (Term(last, 1, BIG, 3, offset=6),), digits),
        Twiddle(2**45, 1, (Term(0, 1, BIG, 33, offset=2**20),), (Term(last, 1, BIG, 1),)),
    )
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    place = tuple(Term(d, 1, BIG, step) for d, step in enumerate(steps))
    length = max(1, math.prod(shape) - 2)
    chirps = (
        ChirpFactor(Chirp(length, 1), place[:1], place[1:]),
        ChirpFactor(Chirp(4 * length, -1, step=2, offset=3, turns=1), place, ()),
    )
    all_factors = (*twiddles, *chirps) if chirped else twiddles
    return Multiply(shape, np.dtype(dtype).str, 0.5, conjugate, all_factors)
