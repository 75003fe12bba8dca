"""How long compiling took is said."""

import time

import numba
import numpy as np
import pytest
from support import heard, python

from dask_bigfft.events import during, emit, measured
from dask_bigfft.kernels.compiled import load_numba


def test_compiling_is_said_and_counts_for_no_phase():
    def slow(x):
        total = 0.0
        for i in range(x.size):
            total += np.sqrt(x[i])
        return total

    load_numba()
    slow.__module__ = "dask_bigfft.kernels.of_this_test"
    function = numba.njit(nogil=True)(slow)
    x = np.ones(9)
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


#: A thread imports a module of numba while another has begun with numba itself.
AT_ONCE = """
import faulthandler, sys, threading, time, numpy as np
from dask_bigfft.kernels import checks
faulthandler.dump_traceback_later(60, exit=True)
begun = threading.Event()

class Slow:
    def find_spec(name, *_):
        if name.startswith("numba.") and not begun.is_set():
            begun.set()
            time.sleep(0.2)

def second():
    begun.wait()
    checks.checksum(np.ones(9))

sys.meta_path.insert(0, Slow)
threading.Thread(target=second).start()
import dask_bigfft.kernels.copy_loops
"""


def test_threads_may_import_numba_at_once():
    python("-c", AT_ONCE)
