"""The numbers of a problem in memory, and how an answer to it is checked.

An answer is held against two judges. *Direct*: some frequencies summed from the definition, and
the energy (Parseval). *Reference*: the relative L2 error against a library that shares no code
with the one on trial. A second array of that size has no room, so both are compared as sketches:
the array in up to 2**16 segments, each the sum of its elements with fixed random signs. The
squared difference of two sketches is on average that of the arrays, and for arrays of at most
2**16 elements exactly that.

Imports NumPy and `problems`.
"""

import math
import mmap
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.bench.problems import Problem

__all__ = ["Area", "Check", "Data", "direct_dft", "sketch"]

Array = npt.NDArray[Any]

SEGMENTS = 1 << 16
SAMPLES = 16
_BLOCK_BYTES = 1 << 25
_SEED = 20260


class Area:
    """Memory of one array, in huge pages where there are any; its pages can be given back."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if sys.platform == "win32":
            self._pages = mmap.mmap(-1, nbytes)
        else:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._pages = mmap.mmap(-1, nbytes, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self.array: Array = np.frombuffer(self._pages, dtype).reshape(shape)

    def touch(self) -> None:
        """Put memory behind every page; the contents are lost."""
        self.array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE] = 0

    def release(self) -> None:
        """Give the memory back to the system; the contents are lost, the addresses stay."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Check:
    """What was found out about one answer; errors are relative.

    Parameters
    ----------
    relative_l2 : float or None
        Against the reference, None where no other library is installed.
    samples : float
        Largest error of a sampled frequency, over the root mean square of all.
    energy : float
        Error of the energy.
    tolerance : float
        What each of them may be.
    reference : str
        The library behind `relative_l2`.
    """

    relative_l2: float | None
    samples: float
    energy: float
    tolerance: float
    reference: str

    @property
    def ok(self) -> bool:
        """Whether the answer is right. NaN is not."""
        found = [self.samples, self.energy]
        found += [] if self.relative_l2 is None else [self.relative_l2]
        return all(error <= self.tolerance for error in found)


class Data:
    """Input and room for a result of a problem, and what is known of the right answer.

    Parameters
    ----------
    problem : Problem
        Whose numbers.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._in = Area(problem.shape, problem.dtype)
        self.room = Area(problem.out_shape, problem.out_dtype)
        self.references: dict[str, Array] = {}
        self._places: list[tuple[int, ...]] = []
        self._exact: Array = np.empty(0)
        self._energy = 0.0

    @property
    def x(self) -> Array:
        """The input."""
        return self._in.array

    @property
    def out(self) -> Array:
        """Room for a result, contiguous."""
        return self.room.array

    def fill(self) -> None:
        """Write the input: random, of mean 0, always the same."""
        rng = np.random.default_rng(_SEED)
        real: Any = np.float32 if self.problem.out_dtype == "complex64" else np.float64
        flat: Array = self.x.reshape(-1).view(real)
        rng.random(out=flat, dtype=real)
        flat -= 0.5

    def judge(self) -> None:
        """Sum the sampled frequencies and the energy of the input from their definitions."""
        rng = np.random.default_rng(_SEED + 1)
        shape = self.problem.out_shape
        self._places = [tuple(int(rng.integers(n)) for n in shape) for _ in range(SAMPLES)]
        self._places[0] = (0,) * len(shape)
        self._exact = direct_dft(self.x, self._places)
        self._energy = _energy(self.x, None)

    def check(self, answer: Array, library: str) -> Check:
        """Return what is wrong with an answer, held against other code than `library`."""
        problem = self.problem
        tolerance = 8 * float(np.finfo(answer.dtype).eps) * math.log2(problem.size)
        last = problem.shape[-1] if problem.real else None
        rms = math.sqrt(self._energy)
        found = np.array([answer[place] for place in self._places], np.complex128)
        samples = float(np.max(np.abs(found - self._exact))) / rms
        energy = abs(_energy(answer, last) / self._energy / problem.size - 1)
        reference = next((name for name in self.references if name != library), "")
        error = None
        if reference:
            right = self.references[reference]
            error = float(np.linalg.norm(sketch(answer) - right) / np.linalg.norm(right))
        return Check(error, samples, energy, tolerance, reference)


def _blocks(rows: Array) -> Iterator[slice]:
    """Parts of the first axis that fit comfortably into memory in double precision."""
    step = max(1, _BLOCK_BYTES // (16 * max(1, math.prod(rows.shape[1:]))))
    for start in range(0, len(rows), step):
        yield slice(start, min(len(rows), start + step))


def _energy(array: Array, real_length: int | None) -> float:
    """Sum of squares; of the whole spectrum where only half of it is there."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(-1, 1)
    total = 0.0
    for part in _blocks(rows):
        values = np.ascontiguousarray(rows[part])
        wide = np.complex128 if values.dtype.kind == "c" else np.float64
        values = values.astype(wide, copy=False)
        whole = float(np.vdot(values, values).real)
        if real_length is not None:
            single = [0] if real_length % 2 else [0, -1]
            edges = np.ascontiguousarray(values[:, single])
            whole = 2 * whole - float(np.vdot(edges, edges).real)
        total += whole
    return total


def sketch(array: Array) -> Array:
    """Return random sums of the elements, whose L2 distances are those of arrays on average.

    >>> a = np.arange(4.0)
    >>> np.allclose(np.abs(sketch(a)), a)
    True
    """
    flat = array.reshape(-1)
    width = -(-flat.size // SEGMENTS)
    signs = np.random.default_rng(_SEED + 2).choice([-1.0, 1.0], width)
    whole = flat.size // width
    rows = flat[: whole * width].reshape(whole, width)
    found = np.zeros(whole + 1, np.complex128)
    for part in _blocks(rows):
        found[part] = rows[part].astype(np.complex128, copy=False) @ signs
    tail = flat[whole * width :]
    found[whole] = tail @ signs[: tail.size]
    return found[: whole + bool(tail.size)]


def _phases(n: int, frequencies: Array, places: Array) -> Array:
    """exp(-2j pi place frequency / n), the integers reduced first: places x frequencies."""
    index = np.multiply.outer(places.astype(np.int64), frequencies.astype(np.int64)) % n
    result: Array = np.exp(index * (-2j * math.pi / n))
    return result


def direct_dft(x: Array, places: list[tuple[int, ...]]) -> Array:
    """Return some frequencies of a transform over all axes, summed from the definition.

    >>> direct_dft(np.array([1.0, 2.0, 4.0]), [(0,)]).tolist()
    [(7+0j)]
    """
    wanted = np.array(places, np.int64)
    if x.ndim == 1:
        return _direct_line(x, wanted[:, 0])
    n = x.shape[-1]
    phases = _phases(n, wanted[:, -1], np.arange(n))
    rows = x.reshape(-1, n)
    sums = np.empty((len(rows), len(wanted)), np.complex128)
    for part in _blocks(rows):
        sums[part] = rows[part].astype(np.complex128, copy=False) @ phases
    sums = sums.reshape(*x.shape[:-1], len(wanted))
    for axis in reversed(range(x.ndim - 1)):
        phases = _phases(x.shape[axis], wanted[:, axis], np.arange(x.shape[axis]))
        sums = np.einsum("...nk,nk->...k", sums, phases)
    return sums


def _direct_line(x: Array, wanted: Array) -> Array:
    """One long axis: sums of rows of 4096, each turned by the phase of where the row begins."""
    n, width = x.size, min(x.size, 4096)
    inner = _phases(n, wanted, np.arange(width))
    whole = n // width
    rows = x[: whole * width].reshape(whole, width)
    total = np.zeros(len(wanted), np.complex128)
    for part in _blocks(rows):
        sums = rows[part].astype(np.complex128, copy=False) @ inner
        starts = np.arange(part.start, part.stop) * width
        total += np.sum(sums * _phases(n, wanted, starts), axis=0)
    tail = x[whole * width :].astype(np.complex128)
    start = _phases(n, wanted, np.array([whole * width]))[0]
    found: Array = total + start * (tail @ inner[: tail.size])
    return found
