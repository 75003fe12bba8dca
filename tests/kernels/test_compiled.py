"""How long compiling took is said."""

import time

import numba
import numpy as np
import pytest
from support import heard

from dask_bigfft.events import during, emit, measured
from dask_bigfft.kernels.compiled import listen


def test_compiling_is_said_and_counts_for_no_phase():
    def slow(x):
        total = 0.0
        for i in range(x.size):
            total += np.sqrt(x[i])
        return total

    listen()
    slow.__module__ = "dask_bigfft.kernels.of_this_test"
    function, x = numba.njit(nogil=True)(slow), np.ones(9)
    with heard() as events, during("0a1b", 2):
        started = time.perf_counter()
        with measured("twiddle", x.nbytes):
            function(x)
        whole = time.perf_counter() - started
        emit("round", nbytes=x.nbytes, seconds=whole)
        with measured("fft", x.nbytes):
            function(x)
    names = [name for name, _ in events]
    assert names == ["compiling", "compile", "round", "twiddle", "fft"]
    times = {name: numbers.get("seconds") for name, numbers in events}
    assert {numbers["plan"] for _, numbers in events} == {"0a1b"}
    assert times["compile"] + times["round"] == pytest.approx(whole)
    assert times["compile"] + times["twiddle"] <= whole
