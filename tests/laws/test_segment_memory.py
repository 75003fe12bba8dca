"""The memory contract of averages over segments: measured peak <= forecast <= limit."""

import pytest
from laws.peak_of_segments import of_segments
from laws.peaks import measured
from laws.test_memory import MIB, OBJECTS

LONG = [2**23], [2**21]
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
    peak, figures = measured(of_segments, job)
    assert figures["peak"] <= limit
    assert least * figures["peak"] <= peak.nbytes <= figures["peak"] + OBJECTS
