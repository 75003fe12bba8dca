"""A program that builds the graph of a large transform, and ends before its first task.

Its arguments are shape and chunks as JSON, and the method that computes. It prints the number of
tasks and the peak of memory in bytes.
"""

import json
import resource
import sys

import dask
import dask.array as da
from dask.callbacks import Callback

import dask_bigfft


class FirstTask(Exception):
    """Raised instead of the first task; its argument is the number of tasks."""


def stop(key, dsk, state):
    raise FirstTask(len(dsk))


def main(case, method):
    shape, chunks = json.loads(case)
    x = da.zeros(tuple(shape), chunks=tuple(chunks), dtype=complex)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dask.config.set({"bigfft.memory-limit": "1 PiB"})
    y = dask_bigfft.fft.fftn(x)
    try:
        with Callback(pretask=stop):
            getattr(y, method)(scheduler="threads")
    except FirstTask as first:
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(first.args[0], (after - before) * 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
