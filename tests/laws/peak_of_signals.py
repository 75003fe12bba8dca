"""A program that stores the result of a signal function in nothing, with a pause before and after.

Its arguments are a folder for scratch files, and a job: function, shape, chunks, dtype, memory
limit and options.
"""

import dask
import dask.array as da
import distributed  # noqa: F401  # dask imports it to look for a client
import numpy as np
from laws.prompt import Prompt

from dask_bigfft import signal
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.memory import default_arena
from dask_bigfft.system import return_freed

SHORT_TIME = ("stft", "spectrogram", "istft")

WINDOW = {"win": np.hanning(1024), "hop": 256, "fs": 1.0}


class Nothing:
    """Sink that drops what is stored in it."""

    def __setitem__(self, index, values):
        pass


def with_holes(block, part):
    values = np.full_like(block, 2)
    holes = np.random.default_rng(0).random(block.shape, np.float32) < part
    values[holes] = np.nan
    return values


def field(shape, chunks, dtype, part):
    ones = da.ones(shape, chunks=chunks, dtype=dtype)
    if not part:
        return ones * ones.dtype.type(2)  # blocks of ones hold one number each
    return ones.map_blocks(with_holes, part, dtype=dtype, meta=ones._meta)


def result_of(function, shape, chunks, dtype, limit, options):
    """Return the lazy result, and the forecast of its memory."""
    if function in SHORT_TIME:
        x = field(shape, chunks, dtype, 0)
        arguments = {**WINDOW, **options, "memory_limit": limit}
        plan = signal.plan_segments(x, function=function, **arguments)
        return getattr(signal, function)(x, **arguments), plan.expected.peak_host
    x = field(shape, chunks, dtype, 0.2)
    file = options.pop("file", None)
    if file is not None:
        x.to_zarr(file, overwrite=True)
        x = da.from_zarr(file)
    if function == "convolve_masked":
        kernel = np.ones(options.pop("kernel"))
        result = signal.convolve_masked(x, kernel, memory_limit=limit, **options)
    else:
        result, _ = signal.fill_gaps(x, memory_limit=limit, **options)
    plan, *others = transforms_in(result).values()
    assert all(other == plan for other in others)  # of iterations
    return result, plan.expected.peak_host


def of_signals(pause, folder, job):
    compile_at_once()
    function, shape, chunks, dtype, limit, options = job
    settings = {
        "scheduler": "threads",
        "num_workers": 2,
        "pool": Prompt(2),
        "bigfft.scratch.directory": folder,
    }
    dask.config.set(settings)
    if function in SHORT_TIME:  # plans with scratch files do it
        return_freed()  # what glibc keeps of it depends on which thread had which block
    small = [min(size, 2 * chunk) for size, chunk in zip(shape, chunks, strict=True)]
    warm, _ = result_of(function, small, chunks, dtype, "1 GiB", dict(options))
    da.store(warm, Nothing(), lock=False)  # makes what is made once
    default_arena().trim()  # idle memory would count as that of imports
    y, peak = result_of(function, shape, chunks, dtype, limit, options)
    pause()
    da.store(y, Nothing(), lock=False)
    figures = {"peak": peak, "nbytes": int(np.prod(shape)) * np.dtype(dtype).itemsize}
    pause(figures)
