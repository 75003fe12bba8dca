"""A first look at dask_bigfft in a minute: examples/first_transform.py

A record of one axis in 16 chunks, which `dask.array.fft` refuses, is transformed; the plan says
what happens; the result is NumPy's.
"""

import argparse
import time

import dask.array as da
import numpy as np

import dask_bigfft
from dask_bigfft import fft


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2**22, help="length, default 2^22")
    n = parser.parse_args().n

    random = da.random.default_rng(2620)
    x = random.standard_normal(n, chunks=-(-n // 16)).persist()
    print(f"x has {n} samples in {x.numblocks[0]} chunks.\n")

    print("da.fft.fft(x) says:")
    try:
        da.fft.fft(x)
    except ValueError as error:
        print("   ", " ".join(str(error).split()).partition(". An FFT")[0], "\n")

    print("print(dask_bigfft.plan(x, 'fft').explain()) says, before any data is touched:\n")
    print(dask_bigfft.plan(x, "fft").explain(), "\n")

    start = time.perf_counter()
    spectrum = fft.fft(x)
    lazily = time.perf_counter() - start
    print(f"fft.fft(x) gives, after {lazily:.3f} s, a lazy array:\n    {spectrum}")

    start = time.perf_counter()
    values = spectrum.compute()
    print(f"spectrum.compute() takes {time.perf_counter() - start:.2f} s here, the first time.")

    expected = np.fft.fft(x.compute())
    error = np.linalg.norm(values - expected) / np.linalg.norm(expected)
    print(f"Its relative L2 distance from numpy.fft.fft is {error:.1e}.")

    if not error < 1e-14:
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
