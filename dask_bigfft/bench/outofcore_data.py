"""The problems of `outofcore`: arrays larger than memory, and how answers are checked.

Imports NumPy, and zarr when it is needed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20240101


@dataclass(frozen=True)
class OutOfCore:
    """A problem: `shape` and `chunks` are of the array that comes in."""

    name: str
    kind: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk."""
        return math.prod(self.chunks) * np.dtype(self.dtype).itemsize

    @property
    def tolerance(self) -> float:
        """Relative error that is allowed."""
        return 2e-5 if self.dtype == "c8" else 1e-12


#: By scale: 12 and 8 GiB; less than 1 GiB each; a few MiB.
PROBLEMS = {
    "full": (
        OutOfCore("3d", "fftn", (1024, 1536, 1024), (16, 1536, 1024), "c8"),
        OutOfCore("1d", "fft", (2**29,), (2**23,), "c16"),
    ),
    "medium": (
        OutOfCore("3d", "fftn", (512, 448, 512), (32, 448, 512), "c8"),
        OutOfCore("1d", "fft", (2**25,), (2**22,), "c16"),
    ),
    "small": (
        OutOfCore("3d", "fftn", (64, 96, 128), (4, 96, 128), "c8"),
        OutOfCore("1d", "fft", (2**18,), (2**13,), "c16"),
    ),
}

#: Memory of everything, imports and page cache included.
BUDGETS = {"full": "2 GiB", "medium": "1 GiB", "small": "640 MiB"}


# --- data and answers -----------------------------------------------------------------------


def frequencies(problem: OutOfCore) -> list[tuple[int, ...]]:
    """Return the frequencies that are checked: the first, the last, and some in between."""
    rng = np.random.default_rng(SEED)
    inner = [tuple(int(rng.integers(n)) for n in problem.shape) for _ in range(4)]
    return [(0,) * len(problem.shape), tuple(n - 1 for n in problem.shape), *inner]


def block_values(problem: OutOfCore, number: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the numbers of a chunk, the same in every process."""
    rng = np.random.Generator(np.random.Philox(key=SEED + number))
    real = np.float32 if problem.dtype == "c8" else np.float64
    found = np.empty((*shape, 2), real)
    rng.standard_normal(out=found, dtype=real)
    return found.view(problem.dtype)[..., 0]


def direct(
    values: npt.NDArray[Any], first: int, total: int, at: tuple[int, ...]
) -> complex:
    """Return what values from `first` on along the first axis give to one frequency.

    Phases are exact integers modulo the length before the sine.
    """
    found = values
    for axis in range(values.ndim - 1, 0, -1):
        n = values.shape[axis]
        phase = np.exp(-2j * np.pi * (np.arange(n) * at[axis] % n) / n)
        found = found @ phase
    places = (np.arange(len(found)) + first) * at[0] % total
    return complex(found.astype(complex) @ np.exp(-2j * np.pi * places / total))


def make_source(problem: OutOfCore, path: Path) -> dict[str, Any]:
    """Write the array; return its energy, and the frequencies by a direct DFT."""
    array = import_module("zarr").create_array(
        str(path), shape=problem.shape, chunks=problem.chunks, dtype=problem.dtype,
        compressors=None,
    )
    energy, wanted = 0.0, dict.fromkeys(frequencies(problem), 0j)
    step, total = problem.chunks[0], problem.shape[0]
    for number, first in enumerate(range(0, total, step)):
        count = min(step, total - first)
        values = block_values(problem, number, (count, *problem.shape[1:]))
        array[first : first + count] = values
        energy += float(np.vdot(values, values).real) if problem.dtype == "c16" else float(
            np.sum(np.abs(values.astype("c16")) ** 2))
        for at in wanted:
            wanted[at] += direct(values, first, total, at)
    return {"energy": energy, "wanted": wanted}


def check_answer(problem: OutOfCore, path: Path, truth: dict[str, Any]) -> dict[str, float]:
    """Return how far an answer is off: at the checked frequencies, and by Parseval's theorem."""
    array = import_module("zarr").open_array(str(path), mode="r")
    size = math.sqrt(truth["energy"])  # of a typical element of the spectrum
    wanted = truth["wanted"]
    if isinstance(wanted, list):  # as JSON has it
        wanted = {tuple(at): complex(real, imag) for at, real, imag in wanted}
    worst = max(abs(complex(array[at]) - value) / size for at, value in wanted.items())
    energy = 0.0
    for region in _regions(array):
        values = array[region]
        energy += float(np.sum(values.real.astype("f8") ** 2 + values.imag.astype("f8") ** 2))
    parseval = abs(energy / math.prod(problem.shape) / truth["energy"] - 1)
    return {"frequencies": worst, "parseval": parseval}


def _regions(array: Any) -> Iterator[tuple[slice, ...]]:
    for index in np.ndindex(*(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))):
        yield tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, array.chunks, strict=True))
