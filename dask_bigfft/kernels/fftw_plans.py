"""FFTW through pyFFTW: how it is imported, and a pool of its plans.

Imports NumPy, pyFFTW when it is asked for, and `errors`.
"""

import importlib
import os
import sys
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from dask_bigfft.errors import KernelError, refuse

Array = npt.NDArray[Any]


def import_pyfftw() -> Any:
    """Return pyFFTW, imported so that it finds FFTW.

    From its first transform on, MKL offers the process its own functions under FFTW's names. They
    would be bound in place of FFTW's, and fail on some strides; deep binding prefers the latter.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        fftw = importlib.import_module("pyfftw")
    finally:
        sys.setdlopenflags(flags)
    if not fftw.fftw_cc:  # MKL's say that no compiler made them
        allowed = "pyfftw imported before MKL is used; here it is bound to MKL's imitation of FFTW"
        refuse("kernel", "pyfftw", allowed, kind=KernelError)
    return fftw


class FFTWPlans:
    """Idle FFTW plans, each lent to one thread at a time; they hold no data.

    Neither cache of pyFFTW's own serves here. Its interfaces copy the input whenever they plan, and
    a cached plan keeps the last arrays alive, which for blocks is a leak. So plans are made, with
    ESTIMATE, which touches no data, for *stubs*: arrays with the shape and strides of the real ones
    but a few bytes of memory. They are swapped for the real arrays around one execution.

    ESTIMATE plans poorly for long strides: down the columns of 512 x 512 it ran at 1 GFLOP/s where
    MEASURE had 15. Rows are well served, and the kernels transpose their tiles into rows.

    FFTW's planner must run alone, and so must the destruction of a plan, which pyFFTW leaves to the
    garbage collector: both happen here under one lock. Executing is free of it and of the GIL.
    """

    def __init__(self, fftw: Any, limit: int = 64) -> None:
        self._fftw = fftw
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[Any, ...], list[tuple[Any, Array, Array]]] = OrderedDict()
        self._count = 0

    def execute(
        self, x: Array, out: Array, dims: tuple[int, ...], direction: str, threads: int = 1
    ) -> None:
        """Transform `x` into `out`, which may be `x`, with some threads."""
        # FFTW's SIMD wants no more than 16 bytes, what NumPy's own memory has.
        aligned = (x.ctypes.data | out.ctypes.data) % 16 == 0
        layout = (x.dtype, x.shape, x.strides, out.shape, out.strides)
        key = (layout, x is out, dims, direction, aligned, threads)
        plan, x_stub, out_stub = self._borrow(key, x, out)
        try:
            plan.update_arrays(x, out)
            plan.execute()
        finally:
            plan.update_arrays(x_stub, out_stub)
            self._give_back(key, (plan, x_stub, out_stub))

    def _borrow(self, key: tuple[Any, ...], x: Array, out: Array) -> tuple[Any, Array, Array]:
        _, in_place, dims, direction, aligned, threads = key
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                self._count -= 1
                return idle.pop()
            x_stub = self._stub(x)
            out_stub = x_stub if in_place else self._stub(out)
            flags = ("FFTW_ESTIMATE",) if aligned else ("FFTW_ESTIMATE", "FFTW_UNALIGNED")
            plan = self._fftw.FFTW(
                x_stub, out_stub, axes=dims, direction=direction, flags=flags, threads=threads
            )
            return plan, x_stub, out_stub

    def _give_back(self, key: tuple[Any, ...], entry: tuple[Any, Array, Array]) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(entry)
            self._idle.move_to_end(key)
            self._count += 1
            while self._count > self._limit:
                _, dropped = self._idle.popitem(last=False)
                self._count -= len(dropped)
                del dropped[:]

    def _stub(self, like: Array) -> Array:
        """Return an array of the layout of `like` that must not be read: it has one element.

        It lies at an odd multiple of 16 bytes, so that the plan asks for no better alignment.
        """
        memory = self._fftw.empty_aligned(128, np.uint8, n=64)[16 : 16 + like.itemsize]
        return as_strided(memory.view(like.dtype), like.shape, like.strides)
