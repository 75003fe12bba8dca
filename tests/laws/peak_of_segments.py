"""A program that averages over segments, with a pause before and after.

Its argument is a job: shape, chunks, dtype, memory limit and options.
"""

import dask
import dask.array as da
import distributed  # noqa: F401  # dask imports it to look for a client
from laws.prompt import Prompt

from dask_bigfft import signal
from dask_bigfft.system import return_freed


def field(shape, chunks, dtype):
    x = da.ones(shape, chunks=chunks, dtype=dtype)
    return x * x.dtype.type(2)  # blocks of ones hold one number each


def density(
    x,
    count,
    limit,
    options,
):
    """The power density of one array, or the cross density of two."""
    if count == 2:
        return signal.csd(
            x,
            x + x.dtype.type(1),
            memory_limit=limit,
            **options,
        )[1]
    return signal.welch(x, memory_limit=limit, **options)[1]


def of_segments(pause, job):
    shape, chunks, dtype, limit, options = job
    dask.config.set({"scheduler": "threads", "num_workers": 2, "pool": Prompt(2)})
    return_freed()  # what glibc keeps of it depends on which thread had which block
    count = options.pop("arrays", 1)
    small = field([2 * n for n in chunks], chunks, dtype)
    density(small, count, limit, options).compute()  # makes what is made once
    x = field(shape, chunks, dtype)
    second = x + 1 if count == 2 else None
    plan = signal.plan_segments(
        x,
        second,
        memory_limit=limit,
        **options,
    )
    y = density(x, count, limit, options)
    pause()
    y = y.persist()
    pause({"peak": plan.expected.peak_host, "nbytes": x.nbytes})
