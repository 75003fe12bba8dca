"""A program that transforms an array, with a pause before and after: peaks of memory between them.

Its arguments are a problem of the benchmarks, its scale, a memory limit or None, and a folder for
scratch files.
"""

import dask
import dask.array as da
import distributed  # noqa: F401  # dask imports it to look for a client
import numpy as np
from laws.prompt import Prompt

import dask_bigfft
from benchmarks.problems import Problem
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.system import return_freed


def source(problem):
    return da.ones(problem.shape, chunks=problem.chunks, dtype=problem.dtype)


def of_arrays(
    pause,
    problem,
    scale,
    limit,
    folder,
):
    compile_at_once()
    dask.config.set(
        {
            "scheduler": "threads",
            "num_workers": 2,
            "pool": Prompt(2),
            "bigfft.scratch.directory": folder,
        }
    )
    return_freed()  # what glibc keeps of it depends on which thread had which block
    kind, shape, dtype, ways = problem
    problem = Problem(kind, shape, dtype, ways).scaled(scale)
    transform = getattr(dask_bigfft.fft, problem.kind)
    transform(source(problem.scaled(1e-4))).compute()  # compiles, and makes what is made once
    x = source(problem)
    if limit is None:
        x = x * x.dtype.type(2)  # blocks of ones hold one number each
    plan = dask_bigfft.plan(x, problem.kind, memory_limit=limit)
    tight = dask_bigfft.plan(x, problem.kind, memory_limit=plan.expected.peak_host)
    pause()
    y = transform(x, memory_limit=limit)
    if plan.storage == "disk":
        sink = np.lib.format.open_memmap(
            f"{folder}/sink.npy",
            "w+",
            y.dtype,
            y.shape,
        )
        da.store(y, sink, lock=False)
    else:
        y = y.persist()
    figures = {
        "peak": plan.expected.peak_host,
        "tight": tight.expected.peak_host,
        "storage": plan.storage,
        "nbytes": x.nbytes,
        "merged": plan.incoming is not None,
        "blocks": plan.result.blocks,
    }
    pause(figures)
