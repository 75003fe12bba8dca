"""Whether an FFT library answers rightly on this machine, which it is asked before it is used.

Libraries choose their code by the processor, and nobody has tried all of it: MKL 2026.2 transforms
columns of 40 and 48 values in place wrongly on processors with AVX-512, and long single lines of
spectra in single precision; with AVX2 it does both rightly. So each is asked what rounds will ask
of it, in memory like theirs, and compared with SciPy.

Imports NumPy, SciPy, `memory` and this room.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from dask_bigfft.kernels.backends import Backend
from dask_bigfft.memory.blocks import ordinary_block

__all__ = ["wrong_answer"]

Array = npt.NDArray[Any]

#: Lengths of columns that are tried, all of them, and how many lie side by side: neither one nor
#: whole vectors of any processor.
LENGTHS, BESIDE = range(2, 65), 7

#: Lengths of single lines that are tried: some smooth, some of large prime factors.
LINES = (126, 1000, 4096, 8216, 12836, 13352, 16384)

#: How many rounding errors an answer may be off, relative to all of it.
ALLOWED = 64


def wrong_answer(backend: Backend) -> str | None:
    """Return what a library answers wrongly here, in words; None if nothing was found.

    Parameters
    ----------
    backend : Backend
        Of the library, which is compared with SciPy in single and double precision.
    """
    rng = np.random.default_rng(1)
    for dtype in map(np.dtype, "FD"):
        for what, found, expected in itertools.chain(
            _columns(backend, dtype, rng), _lines(backend, dtype, rng)
        ):
            off = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            if not off <= ALLOWED * float(np.finfo(dtype).eps):
                return f"{what} in {dtype} are off by {off:.1g}"
    return None


def _columns(
    backend: Backend, dtype: np.dtype[Any], rng: np.random.Generator
) -> Iterator[tuple[str, Array, Array]]:
    """Columns that are transformed where they lie."""
    for n in LENGTHS:
        columns = _placed(_random((n, BESIDE), rng), dtype)
        expected = scipy.fft.fft(columns, axis=0)
        yield f"columns of {n} values", backend.c2c(columns, (0,), -1, "none", None), expected


def _lines(
    backend: Backend, dtype: np.dtype[Any], rng: np.random.Generator
) -> Iterator[tuple[str, Array, Array]]:
    """Single lines: real ones, half spectra, and complex ones in place."""
    for n in LINES:
        line = _placed(_random((1, n), rng), dtype)
        real, whole = _placed(line.real, line.real.dtype), scipy.fft.ifft(line, norm="forward")
        half = _placed(scipy.fft.rfft(real), dtype)
        yield f"real lines of {n} values", backend.r2c(real, (1,), -1, "none", None), half
        yield f"half spectra of {n} values", backend.c2r(half, 1, n, 1, "full", None), real
        yield f"lines of {n} values", backend.c2c(line, (1,), 1, "none", None), whole


def _random(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def _placed(values: Array, dtype: np.dtype[Any]) -> Array:
    """A copy in memory that lies as that of blocks does."""
    place = ordinary_block(values.shape, dtype)
    place[...] = values
    return place
