"""A stand-in for CuPy's plans and for cuFFT: transforms by SciPy that use their work areas."""

import contextlib
import ctypes
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import scipy.fft
from devices.blocks import memory

#: Transforms of fewer bytes need no work area, as most small ones of cuFFT.
LEAST_NBYTES = 1 << 16


def elements(
    address,
    n,
    embed,
    stride,
    distance,
    count,
    dtype,
):
    """Every element of every transform of a batch, as a view of its memory."""
    steps = [math.prod(embed[axis + 1 :]) * stride for axis in range(len(n))]
    shape, steps = (count, *n), (distance, *steps)
    size = 1 + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    flat = memory(address, (size,), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in steps])


class Pointer:
    """A place in memory."""

    def __init__(self, owner, ptr, nbytes):
        self.owner = owner
        self.ptr = ptr
        self.nbytes = nbytes

    def __add__(self, nbytes):
        return Pointer(self.owner, self.ptr + nbytes, self.nbytes - nbytes)

    def memset(self, value, nbytes):
        assert nbytes <= self.nbytes
        ctypes.memset(self.ptr, value, nbytes)

    def copy_from_host(self, source, nbytes):
        assert nbytes <= self.nbytes
        ctypes.memmove(self.ptr, source, nbytes)

    def copy_to_host(self, target, nbytes):
        assert nbytes <= self.nbytes
        ctypes.memmove(target, self.ptr, nbytes)


def allocated(nbytes):
    values = np.zeros(nbytes + 256, np.uint8)
    first = values.ctypes.data + -values.ctypes.data % 256
    return Pointer(values, first, nbytes)


class Plan:
    """A plan of cuFFT's that is done by SciPy, and writes to its work area first."""

    def __init__(
        self,
        gpu,
        n,
        source,
        target,
        kind,
        count,
    ):
        self.gpu = gpu
        self.n = n
        self.sides = (source, target)
        self.kind = kind
        self.count = count
        self.handle = len(gpu.handles)
        gpu.handles.append(self)
        nbytes = math.prod(n) * count * (16 if kind[0] in "DZ" else 8)
        self.need = nbytes if gpu.least_nbytes <= nbytes < 1 << 30 else 0
        allocate = allocated if gpu.mistake == "own allocator" else gpu.allocate
        self.memory = allocate(self.need)
        self.area = self.first = self.memory.ptr

    def fft(self, come, go, direction):
        mistake = self.gpu.mistake
        if self.need:
            ctypes.memset(self.area, 1, self.need + (mistake == "too long"))
        half = (*self.n[:-1], self.n[-1] // 2 + 1)
        ends = []
        for side, array, kind in zip(self.sides, (come, go), self.kind.split("2"), strict=True):
            real = kind in "DR"
            assert array.data.ptr % (16 if kind in "DZ" else 8) == 0  # cuFFT refuses others
            n = self.n if real or self.kind in ("Z2Z", "C2C") else half
            dtype = {
                "Z": "c16",
                "C": "c8",
                "D": "f8",
                "R": "f4",
            }[kind]
            ends.append(elements(array.data.ptr, n, *side, self.count, dtype))
        x, y = ends
        if self.kind in ("D2Z", "R2C"):
            y[...] = scipy.fft.rfft(x, axis=1)
        elif self.kind in ("Z2D", "C2R"):
            y[...] = scipy.fft.irfft(
                x,
                self.n[0],
                axis=1,
                norm="forward",
            )
        else:
            y[...] = scipy.fft.fftn(x, axes=range(1, x.ndim))
        if mistake == "results" and self.area != self.first:
            y[...] *= 1 + 1e-4


class Stream(contextlib.nullcontext):
    """A stream whose work is done at once; it counts what it is asked for."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def synchronize(self):
        self.calls["waits"] += 1

    def wait_event(self, event):
        assert event.is_recorded
        self.calls["events"] += 1

    def record(self, event):
        event.is_recorded = True


class GPU:
    """As much of CuPy and cuFFT as FFTs take; it counts the plans of each kind, and the waits.

    Parameters
    ----------
    plan_nbytes : int
        Bytes of device memory that a plan takes.
    least_nbytes : int
        Bytes of the smallest transform that needs a work area.
    mistake : str
        What is unlike CuPy and cuFFT as they are known.
    """

    __version__ = "14.0"

    def __init__(self, plan_nbytes=0, least_nbytes=LEAST_NBYTES, mistake=""):
        self.plans = Counter()
        self.calls = Counter()
        self.handles = []
        self.free = 1 << 30
        self.plan_nbytes = plan_nbytes
        self.least_nbytes = least_nbytes
        self.mistake = mistake
        self.allocate = allocated
        kinds = {f"CUFFT_{name}": name for name in ("C2C", "R2C", "C2R", "Z2Z", "D2Z", "Z2D")}
        stream = Stream(self.calls)
        memory_module = SimpleNamespace(
            Memory=self.taken,
            UnownedMemory=lambda at, n, owner: Pointer(owner, at, n),
            MemoryPointer=lambda memory, offset: memory + offset,
            OutOfMemoryError=type("OutOfMemoryError", (Exception,), {}),
        )
        self.cuda = SimpleNamespace(
            cufft=SimpleNamespace(
                PlanNd=self.plan,
                XtPlanNd=self.wide,
                CUFFT_FORWARD=-1,
                CUFFT_INVERSE=1,
                CuFFTError=type("CuFFTError", (Exception,), {"result": 6}),
                getVersion=lambda: 12000,
                **kinds,
            ),
            memory=memory_module,
            Stream=SimpleNamespace(null=stream),
            Event=lambda disable_timing: SimpleNamespace(is_recorded=False),
            runtime=SimpleNamespace(
                CUDARuntimeError=type("CUDARuntimeError", (Exception,), {}),
                memGetInfo=lambda: (self.free, 1 << 30),
                getDevice=lambda: 0,
                getDeviceProperties=lambda ordinal: {"name": b"stand-in"},
                driverGetVersion=lambda: 13000,
            ),
            using_allocator=self.using,
            get_current_stream=lambda: stream,
        )

    @property
    def waits(self):
        return self.calls["waits"]

    def taken(self, nbytes):
        """Return new memory of the device."""
        if self.mistake == "memory":
            raise self.cuda.memory.OutOfMemoryError
        self.free -= nbytes
        return allocated(nbytes)

    @contextlib.contextmanager
    def using(self, allocate):
        self.allocate = allocate
        yield
        self.allocate = allocated

    def plan(self, n, e0, s0, d0, e1, s1, d1, kind, count, *rest):
        self.plans["of 32 bits"] += 1
        return self.new_plan(n, (e0, s0, d0), (e1, s1, d1), kind, count)

    def wide(self, n, e0, s0, d0, before, e1, s1, d1, after, count, complex_, **rest):
        self.plans["of 64 bits"] += 1
        names = {"f": "R", "d": "D", "F": "C", "D": "Z"}
        kind = f"{names[before]}2{names[after]}"
        return self.new_plan(n, (e0, s0, d0), (e1, s1, d1), kind, count)

    def new_plan(self, *arguments):
        if self.mistake == "error":
            raise self.cuda.cufft.CuFFTError("CUFFT_INTERNAL_ERROR")
        self.free -= self.plan_nbytes
        return Plan(self, *arguments)

    def cufftSetWorkArea(self, handle, work):
        """Do what the function of the C library does."""
        if self.mistake == "status":
            return 1
        if self.mistake != "ignored":
            self.handles[handle.value].area = work.value
        return 0
