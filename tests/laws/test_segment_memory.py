"""The memory contract of averages over segments: measured peak <= forecast <= limit."""

import json

import pytest
from laws.test_memory import MIB, OBJECTS, measured

RUN = """
import json, sys
import dask, dask.array as da, numpy as np
from dask_bigfft import signal
from dask_bigfft.memory.pages import return_freed
from laws.prompt import Prompt

shape, chunks, dtype, limit, options = json.loads(sys.argv[1])
dask.config.set({"scheduler": "threads", "num_workers": 2, "pool": Prompt(2)})
return_freed()  # what glibc keeps of it depends on which thread had which block


def field(shape):
    x = da.ones(shape, chunks=chunks, dtype=dtype)
    return x * x.dtype.type(2)  # blocks of ones hold one number each


def density(x, count):
    if count == 2:
        return signal.csd(x, x + x.dtype.type(1), memory_limit=limit, **options)[1]
    return signal.welch(x, memory_limit=limit, **options)[1]


count = options.pop("arrays", 1)
density(field([2 * n for n in chunks]), count).compute()  # makes what is made once
x = field(shape)
plan = signal.plan_segments(x, x + 1 if count == 2 else None, memory_limit=limit, **options)
y = density(x, count)
print("ready", flush=True)
sys.stdin.readline()
y = y.persist()
print(json.dumps({"peak": plan.expected.peak_host, "nbytes": x.nbytes}), flush=True)
sys.stdin.readline()
"""

LONG = [2**24], [2**21]
WIDE = [2048, 8192], [512, 2048]

#: Shape, chunks, dtype, memory limit and options, and the least part of the forecast that is used.
CASES = {
    "a long array": (*LONG, "f8", "62 MiB", {"nperseg": 1024}, 0.7),
    "two arrays": (*LONG, "f4", "100 MiB", {"nperseg": 1024, "arrays": 2}, 0.7),
    "lines": (*LONG, "c8", "62 MiB", {"nperseg": 1024, "detrend": "linear"}, 0.7),
    "integers": (*LONG, "i2", "62 MiB", {"nperseg": 1000, "nfft": 2048}, 0.5),
    "long segments": (*LONG, "f8", "200 MiB", {"nperseg": 2**19}, 0.4),
    "rows": (*WIDE, "f8", "62 MiB", {"nperseg": 256}, 0.5),
    "columns": (*WIDE, "f4", "62 MiB", {"nperseg": 256, "axis": 0}, 0.5),
    "a median": (*LONG, "f4", "200 MiB", {"nperseg": 1024, "average": "median"}, 0.5),
    "medians": (*WIDE, "f4", "100 MiB", {"nperseg": 256, "average": "median"}, 0.4),
}


@pytest.mark.parametrize("case", CASES)
def test_segments_take_no_more_than_forecast(case):
    *job, least = CASES[case]
    limit = int(job[3].removesuffix(" MiB")) * MIB
    peak, figures = measured(RUN, json.dumps(job))
    assert figures["peak"] <= limit
    assert least * figures["peak"] <= peak.nbytes <= figures["peak"] + OBJECTS
