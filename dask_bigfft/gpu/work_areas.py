"""Work areas of cuFFT's plans: memory of the caller, or of each plan if the self-test fails.

CuPy allocates a work area with each plan. FFTs that run one after another need only one, so plans
are set to the caller's. CuPy has no function for that: an allocator that allocates nothing notes
the size of the area, and cuFFT's own function sets its address. A self-test compares this with
SciPy once for each version of CuPy, cuFFT and driver, and each model of GPU.
"""

import contextlib
import ctypes
import functools
import importlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.fft

from dask_bigfft import self_tests
from dask_bigfft.arrays import Array
from dask_bigfft.errors import DeviceError, DeviceMemoryError, FallbackWarning
from dask_bigfft.gpu.batches import Batch, Ints, Side, execute, make_plan
from dask_bigfft.gpu.cuda import cupy, errors_of_cuda, software

#: Address of the work area of a new plan, at which nothing is ever executed.
NOWHERE = 256


@dataclass
class Plan:
    """Plan of cuFFT.

    Parameters
    ----------
    raw
        The plan of CuPy.
    taken : int
        Bytes of device memory that the plan itself takes.
    need : int
        Bytes of the caller's work area.
    work : int
        Address of the caller's work area; 0 if none is set yet.
    done
        Event of CuPy after the last FFT with a work area of the plan's own.
    """

    raw: Any
    taken: int
    need: int = 0
    work: int = 0
    done: Any = None


class WorkAreas(Protocol):
    """Source of the work areas of plans."""

    def new_plan(self, batch: Batch) -> Plan:
        """Return a new plan, made while nothing runs."""

    def used(self, plan: Plan, work: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a plan is executed; `work` is the caller's work area."""


def _planned(
    batch: Batch,
    wide: bool,
    allocate: Callable[[int], Any],
) -> Plan:
    """Return a new plan of a batch, whose work area comes from an allocator."""
    cuda = cupy().cuda
    free_before, _ = cuda.runtime.memGetInfo()
    with cuda.using_allocator(allocate):
        raw = make_plan(batch, wide)
    # cuFFT copies tables in the null stream, for which our streams do not wait.
    cuda.Stream.null.synchronize()
    free_after, _ = cuda.runtime.memGetInfo()
    return Plan(raw, taken=max(0, int(free_before - free_after)))


class GivenWorkAreas:
    """Work areas of the caller, set before an execution."""

    def new_plan(self, batch: Batch) -> Plan:
        """Return a new plan without a work area."""
        cuda = cupy().cuda
        sizes: list[int] = []
        owner = object()

        def note(size: int) -> Any:
            """Note the size that is requested, without allocation."""
            sizes.append(size)
            memory = cuda.memory.UnownedMemory(NOWHERE, size, owner)
            return cuda.memory.MemoryPointer(memory, 0)

        plan = _planned(batch, batch.wide, note)
        plan.need = max(sizes, default=0)
        return plan

    @contextlib.contextmanager
    def used(self, plan: Plan, work: int) -> Iterator[None]:
        """Set the plan to the caller's work area."""
        if plan.need and plan.work != work:
            _set_work_area(plan.raw, work)
            plan.work = work
        yield


class OwnWorkAreas:
    """A work area for each plan, which is freed with the plan."""

    def new_plan(self, batch: Batch) -> Plan:
        """Return a new plan that takes its work area, too."""
        return _planned(batch, batch.wide, _device_memory)

    @contextlib.contextmanager
    def used(self, plan: Plan, work: int) -> Iterator[None]:
        """Wait for the plan's FFTs in other streams, which use the same work area."""
        cuda = cupy().cuda
        stream = cuda.get_current_stream()
        if plan.done is None:
            plan.done = cuda.Event(disable_timing=True)
        else:
            stream.wait_event(plan.done)
        yield
        stream.record(plan.done)


def _device_memory(nbytes: int) -> Any:
    """Return new memory beside CuPy's pool: to free it waits for the GPU."""
    memory = cupy().cuda.memory
    return memory.MemoryPointer(memory.Memory(nbytes), 0)


@functools.cache
def _library() -> Any:
    """Return the cuFFT library loaded by CuPy, for a call that CuPy lacks."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cufft").abs_path)


def _set_work_area(plan: Any, address: int) -> None:
    """Set a plan of CuPy to a work area."""
    handle = ctypes.c_int(plan.handle)
    status = _library().cufftSetWorkArea(handle, ctypes.c_void_p(address))
    if status:
        raise DeviceError(f"cuFFT refused a work area with status {status}")


# --- self-test ------------------------------------------------------------------------------

#: Held by the thread that tests, so that others wait for the verdict.
_testing = threading.Lock()


def work_areas() -> WorkAreas:
    """Return the work areas of plans on the current GPU.

    Warns
    -----
    FallbackWarning
        If plans cannot use work areas of the caller; once in a process and for each GPU.
    """
    with _testing:
        return _tested(int(cupy().cuda.runtime.getDevice()))


@functools.cache
def _tested(ordinal: int) -> WorkAreas:
    """Return the work areas of plans on a GPU, which is the current one."""
    versions = software([ordinal])
    versions["driver"] = str(cupy().cuda.runtime.driverGetVersion())
    gpu = versions["card"]
    wrong = self_tests.wrong_result(f"cuFFT's work areas on {gpu}", versions, self_test)
    if wrong is None:
        return GivenWorkAreas()
    text = f"each FFT plan on {gpu} has a work area of its own, because cuFFT {versions['cufft']} "
    text += f"with CuPy {versions['cupy']} does not use a shared one as dask_bigfft expects "
    text += f"({wrong}): FFTs take more memory of the GPU"
    warnings.warn(text, FallbackWarning, stacklevel=2)
    return OwnWorkAreas()


@dataclass(frozen=True)
class Trial:
    """FFTs that the self-test compares with SciPy.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        The transform; ``c2r`` has the sign 1, the others -1.
    n : tuple of int
        Lengths.
    count : int
        Number of transforms.
    double : bool
        True for double precision.
    strided : bool
        True if equal elements of all transforms are adjacent in memory.
    wide : bool
        True for cuFFT's 64-bit interface.
    """

    kind: str
    n: Ints
    count: int
    double: bool
    strided: bool = False
    wide: bool = False

    def __str__(self) -> str:
        precision = "double" if self.double else "single"
        return f"{self.count} {self.kind} FFTs of {self.n} in {precision} precision"

    def arrays(self) -> tuple[Array, Array]:
        """Return random values and their transforms in double precision, a transform in a row."""
        rng = np.random.default_rng(3)
        values = rng.standard_normal((self.count, *self.n))
        axes = range(1, values.ndim)
        if self.kind == "c2c":
            values = values + 1j * rng.standard_normal(values.shape)
            return values, scipy.fft.fftn(values, axes=axes)
        half = scipy.fft.rfftn(values, axes=axes)
        return (values, half) if self.kind == "r2c" else (half, values * math.prod(self.n))

    def in_memory(self, values: Array) -> Array:
        """Return an array in the trial's precision and order in memory."""
        is_complex = values.dtype.kind == "c"
        dtype = ("c16" if is_complex else "f8") if self.double else ("c8" if is_complex else "f4")
        ordered = np.moveaxis(values, 0, -1) if self.strided else values
        return np.ascontiguousarray(ordered, dtype)

    def side(self, values: Array) -> Side:
        """Return the layout of a side in memory."""
        embed = values.shape[1:]
        if self.strided:
            return Side(embed, self.count, 1)
        return Side(embed, 1, math.prod(embed))


#: A large prime length needs a work area for Bluestein's algorithm, and a large power of two for
#: what does not fit the memory of a multiprocessor. A real side begins at even elements.
TRIALS = (
    Trial("c2c", (20011,), 2, double=True),
    Trial("c2c", (20011,), 2, double=False, strided=True),
    Trial("c2c", (1 << 17,), 1, double=True, wide=True),
    Trial("c2c", (24, 40, 56), 2, double=False),
    Trial("r2c", (1 << 17,), 1, double=False),
    Trial("r2c", (20011,), 1, double=True),
    Trial("c2r", (1 << 17,), 1, double=True),
    Trial("c2r", (40022,), 1, double=False),
)

#: Bytes before and after a work area that no FFT may write to.
GUARD_NBYTES = 1 << 14

#: Value of each byte of memory that is not written to: floating-point numbers are NaN.
UNTOUCHED = 0xFF


class _Memory:
    """Memory of the GPU between guards."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._all = _device_memory(nbytes + 2 * GUARD_NBYTES)
        self.pointer = self._all + GUARD_NBYTES
        self.address = int(self.pointer.ptr)
        self.clear()

    def clear(self) -> None:
        """Set each byte to the value of memory that nothing has written to."""
        self._all.memset(UNTOUCHED, self.nbytes + 2 * GUARD_NBYTES)

    def store(self, values: Array) -> None:
        """Copy an array to the memory between the guards."""
        self.pointer.copy_from_host(values.ctypes.data, values.nbytes)

    def load(self, out: Array) -> None:
        """Copy the memory between the guards to an array."""
        self.pointer.copy_to_host(out.ctypes.data, out.nbytes)

    def is_touched(self) -> bool:
        """Return True if anything has written between the guards."""
        return _is_touched(self.pointer, self.nbytes)

    def guards_are_touched(self) -> bool:
        """Return True if anything has written beside the memory between the guards."""
        end = self.pointer + self.nbytes
        return _is_touched(self._all, GUARD_NBYTES) or _is_touched(end, GUARD_NBYTES)


def _is_touched(pointer: Any, nbytes: int) -> bool:
    """Return True if a byte of the GPU's memory differs from memory that nothing has written to."""
    content = np.empty(nbytes, np.uint8)
    pointer.copy_to_host(content.ctypes.data, nbytes)
    return content.tobytes() != bytes([UNTOUCHED]) * nbytes


def self_test() -> str | None:
    """Return a description of wrong results with given work areas on the current GPU, else None.

    A new plan has a work area in memory of this test, so that a plan which ignores the later ones
    does no harm.
    """
    is_used = False
    with cupy().cuda.Stream.null:  # copies with the host wait for it
        for trial in TRIALS:
            try:
                with errors_of_cuda():
                    is_used |= _uses_given_areas(trial)
            except DeviceMemoryError:
                raise  # it says nothing about work areas
            except (DeviceError, ImportError, OSError, AttributeError, TypeError) as error:
                return f"{trial}: {error}"
    return None if is_used else "no FFT has used a work area"


def _uses_given_areas(trial: Trial) -> bool:
    """Return True if the FFTs of a trial write to work areas of exactly the requested size.

    Raises
    ------
    DeviceError
        If results are wrong, or FFTs write to other memory.
    """
    areas: list[_Memory] = []

    def allocate(nbytes: int) -> Any:
        """Allocate the work area of the new plan."""
        areas.append(_Memory(nbytes))
        return areas[-1].pointer

    values, expected = trial.arrays()
    batch = Batch(
        trial.kind,
        trial.n,
        trial.side(values),
        trial.side(expected),
        trial.count,
        trial.double,
    )
    plan = _planned(batch, trial.wide, allocate)
    need = max((area.nbytes for area in areas), default=0)
    if need == 0:
        _check_result(trial, plan, values, expected)
        return False
    areas += [_Memory(need), _Memory(need)]
    is_used = True
    for area in areas[-2:]:
        _set_work_area(plan.raw, area.address)
        _check_result(trial, plan, values, expected)
        is_used &= area.is_touched()
        others = [other for other in areas if other is not area]
        if area.guards_are_touched() or any(other.is_touched() for other in others):
            raise DeviceError("an FFT writes beside its work area")
        area.clear()
    return is_used


def _check_result(
    trial: Trial,
    plan: Plan,
    values: Array,
    expected: Array,
) -> None:
    """Raise an error if a plan gives other results than SciPy, in place if the shape allows it."""
    stored = trial.in_memory(values)
    result = np.empty_like(trial.in_memory(expected))
    source = _Memory(stored.nbytes)
    target = source if trial.kind == "c2c" else _Memory(result.nbytes)
    source.store(stored)
    execute(plan.raw, source.address, target.address, 1 if trial.kind == "c2r" else -1)
    target.load(result)
    precision = np.finfo(result.dtype)
    off = self_tests.relative_error(result, trial.in_memory(expected))
    if not off <= self_tests.ALLOWED * float(precision.eps):
        raise DeviceError(f"results are off by {off:.1g}")
    if source.guards_are_touched() or target.guards_are_touched():
        raise DeviceError("an FFT writes beside its arrays")
