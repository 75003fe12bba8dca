"""Memory of FFT libraries beside the values that they transform.

A library copies lines that it cannot transform where they are: one at a time, or as many as its
vector instructions take together, and as many again for what it makes of them. Lengths with a large
prime factor become convolutions of at least twice the length. Some keep the roots of unity of each
length that they have met. For short lines nobody would notice; a line of 2^22 points is 64 MiB.

All of it was measured: the peak of a process above its values, for each library (SciPy 1.17, ducc0
0.42, mkl_fft 2.3 and pyFFTW 0.15), along rows and columns of 1 to 64 lines.

Pure: imports `decomposition`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dask_bigfft.decomposition.factors import factorize
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.tiles import LONG_BYTES

__all__ = ["kept_bytes", "work_bytes"]


@dataclass(frozen=True)
class _Lines:
    """Lines that a call takes, complex ones: so many, and so many more for each pair of lanes.

    A pair of lanes is what 16 bytes of a vector hold of two double precision numbers; of single
    precision there are two pairs.

    Parameters
    ----------
    rows, columns, real, chirp
        For lines that are contiguous, that are not, of real values, and of lengths with a large
        prime factor.
    kept, kept_chirp : float
        Lines that stay for each length, in the process.
    """

    rows: tuple[float, float]
    columns: tuple[float, float]
    real: tuple[float, float]
    chirp: tuple[float, float]
    kept: float
    kept_chirp: float


_LIBRARIES = {
    "scipy": _Lines((0, 4), (0, 4), (0, 2), (0, 8), 1, 6),
    "ducc0": _Lines((1, 0), (1, 4), (0, 8), (6, 4), 0, 0),
    "mkl_fft": _Lines((2, 0), (10, 0), (10, 0), (16, 0), 0, 0),
    "pyfftw": _Lines((1, 0), (1, 0), (1, 0), (6, 0), 1, 1),
}

_UNKNOWN = _Lines((2, 4), (10, 4), (10, 8), (16, 8), 1, 6)


def _has_large_prime(n: int) -> bool:
    """Return whether libraries may make a convolution of a length.

    >>> _has_large_prime(2**20), _has_large_prime(999983)
    (False, True)
    """
    return max(factorize(n), default=1) ** 2 > n > 64


def work_bytes(kernel: str, rounds: Iterable[Round], itemsize: int, threads: int = 1) -> int:
    """Return the bytes that a thread's calls of a library need at most, beside their values.

    Parameters
    ----------
    kernel : str
        Name of the library.
    rounds : iterable of Round
        What is done.
    itemsize : int
        Bytes of a complex number.
    threads : int
        Tasks at a time: of fewer blocks, each is done by several threads of the library.
    """
    library, lanes = _LIBRARIES.get(kernel, _UNKNOWN), max(1, 16 // itemsize)
    most = 0.0
    for round_ in rounds:
        shape = [max(g.chunks, default=0) for axis in round_.source.axes for g in axis.groups]
        for step in round_.steps:
            inner = math.prod(shape[round_.dim(step) + 1 :])
            base, more = library.rows if inner <= 1 else library.columns
            alone = round_.target.blocks < threads
            if inner <= 1 and not alone and step.length * itemsize >= LONG_BYTES:
                more = 0  # one line at a time
                base = max(base, 1)
            if step.kind != "c2c":
                base, more = library.real
            if _has_large_prime(step.length):
                base, more = library.chirp
            elif math.prod(shape) < 2 * lanes * step.length:  # fewer lines than lanes
                base, more = min(base + more * lanes, 2), 0
            most = max(most, step.length * (base + more * lanes))
    return math.ceil(most * itemsize)


def kept_bytes(kernel: str, rounds: Iterable[Round], itemsize: int) -> int:
    """Return the bytes that a library keeps in a process for the lengths of some rounds."""
    library = _LIBRARIES.get(kernel, _UNKNOWN)
    lengths = {step.length for round_ in rounds for step in round_.steps}
    lines = sum(n * (library.kept_chirp if _has_large_prime(n) else library.kept) for n in lengths)
    return math.ceil(lines * itemsize)
