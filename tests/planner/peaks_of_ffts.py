"""A program that prints how much memory calls of an FFT library take beside their array, in bytes.

Its arguments are the library, and lengths, rows and columns of arrays as JSON.
"""

import json
import sys

import numpy as np

from dask_bigfft.kernels.libraries import get_library


def resident(name):
    """A figure of the memory of this process, `VmRSS` or the peak `VmHWM`, in kiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def peak_of_call(
    library,
    n,
    rows,
    columns,
):
    x = np.ones((rows, n, columns), complex)
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    library.c2c(x, (1,), -1)
    return (resident("VmHWM") - before) << 10


def main(name, cases):
    library = get_library(name)
    peaks = []
    for n, rows, columns in json.loads(cases):
        peak_of_call(library, 64, 2, 1)
        peaks.append(peak_of_call(library, n, rows, columns))
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
