"""Memory of FFT libraries, beside the arrays that they transform.

A library copies lines of a transform before it works on them, several at a time where the vector
registers of a core hold several values (*lanes*), and it caches roots of unity for each length.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import LONG_BYTES
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Step


@dataclass(frozen=True)
class CopiedLines:
    """Lines that a library copies in a call, as complex numbers.

    Parameters
    ----------
    least : int
        Lines of any call.
    per_lane : int
        Lines for each value of a vector register of 16 bytes.
    """

    least: int
    per_lane: int


@dataclass(frozen=True)
class LibraryMemory:
    """Memory of an FFT library.

    Parameters
    ----------
    rows, columns : CopiedLines
        Copies of complex lines that are contiguous, and of strided ones.
    real : CopiedLines
        Copies of real lines.
    large_prime : CopiedLines
        Copies of lines whose length has a large prime factor.
    cached, cached_large_prime : int
        Roots that are cached for a length in the process, in lengths; for lengths with a large
        prime factor.
    """

    rows: CopiedLines
    columns: CopiedLines
    real: CopiedLines
    large_prime: CopiedLines
    cached: int
    cached_large_prime: int


#: Measured memory of each library in `kernels.libraries.LIBRARIES`.
MEASURED_MEMORY = {
    "scipy": LibraryMemory(
        rows=CopiedLines(0, 4),
        columns=CopiedLines(0, 4),
        real=CopiedLines(0, 2),
        large_prime=CopiedLines(0, 8),
        cached=1,
        cached_large_prime=6,
    ),
    "ducc0": LibraryMemory(
        rows=CopiedLines(1, 0),
        columns=CopiedLines(1, 4),
        real=CopiedLines(0, 8),
        large_prime=CopiedLines(6, 4),
        cached=0,
        cached_large_prime=0,
    ),
    "mkl_fft": LibraryMemory(
        rows=CopiedLines(2, 0),
        columns=CopiedLines(10, 0),
        real=CopiedLines(10, 0),
        large_prime=CopiedLines(16, 0),
        cached=0,
        cached_large_prime=0,
    ),
    "pyfftw": LibraryMemory(
        rows=CopiedLines(1, 0),
        columns=CopiedLines(1, 0),
        real=CopiedLines(1, 0),
        large_prime=CopiedLines(6, 0),
        cached=1,
        cached_large_prime=1,
    ),
}

#: Memory of a library that was not measured: the most that another one takes.
UNKNOWN = LibraryMemory(
    rows=CopiedLines(2, 4),
    columns=CopiedLines(10, 4),
    real=CopiedLines(10, 8),
    large_prime=CopiedLines(16, 8),
    cached=1,
    cached_large_prime=6,
)


def has_large_prime(n: int) -> bool:
    """Return whether libraries may transform a length as a convolution.

    >>> has_large_prime(2**20), has_large_prime(999983)
    (False, True)
    """
    return max(factorize(n), default=1) ** 2 > n > 64


def library_bytes(
    kernel: str,
    rounds: Iterable[Round],
    itemsize: int,
    threads: int = 1,
) -> int:
    """Return the bytes of an FFT library: copies of lines in each thread, and cached roots.

    Parameters
    ----------
    kernel : str
        Name of the library.
    rounds : iterable of Round
        Rounds of the plan.
    itemsize : int
        Bytes of a complex number.
    threads : int
        Tasks at a time. With fewer blocks each block uses several threads of the library.
    """
    library = MEASURED_MEMORY.get(kernel, UNKNOWN)
    copied_values = 0.0  # of the step that copies most
    cached_values: dict[tuple[int, bool], float] = {}
    for round_ in rounds:
        for step in round_.steps:
            lines = _lines_of(round_, step)
            calls = threads
            if lines.per_block == 1:  # which no two threads share
                calls = min(threads, lines.blocks)
            copied_lines = _copied_lines(
                library,
                lines,
                itemsize,
                threads,
            )
            copied_values = max(copied_values, calls * lines.length * copied_lines)
            roots = lines.length * _cached_lines(library, lines)
            cached_values[lines.length, lines.are_real] = roots
    return math.ceil((copied_values + sum(cached_values.values())) * itemsize)


class _Lines(NamedTuple):
    """Lines of the blocks of a round that a step transforms.

    Parameters
    ----------
    length, per_block : int
        Length of a line, and number of lines of a block.
    are_real, are_contiguous : bool
        Whether values are real at one end, and whether those of a line are neighbours.
    has_large_prime : bool
        Whether libraries may transform them as convolutions.
    blocks : int
        Number of blocks.
    """

    length: int
    per_block: int
    are_real: bool
    are_contiguous: bool
    has_large_prime: bool
    blocks: int


def _lines_of(round_: Round, step: Step) -> _Lines:
    """Return the lines that a step of a round transforms."""
    shape = round_.source.full_shape
    dim = round_.dim(step)
    stride = math.prod(shape[dim + 1 :])
    return _Lines(
        length=step.length,
        per_block=math.prod(shape[:dim]) * stride,
        are_real=step.kind != "c2c",
        are_contiguous=stride <= 1,
        has_large_prime=has_large_prime(step.length),
        blocks=round_.target.blocks,
    )


def _cached_lines(library: LibraryMemory, lines: _Lines) -> float:
    """Return the roots that a library caches for some lines, in lengths of a line."""
    if lines.has_large_prime:
        return library.cached_large_prime
    return library.cached / 2 if lines.are_real else library.cached


def _copied_lines(
    library: LibraryMemory,
    lines: _Lines,
    itemsize: int,
    threads: int,
) -> int:
    """Return the complex lines that a call copies in one thread of the library."""
    lanes = max(1, 16 // itemsize)
    if lines.has_large_prime:
        copies = library.large_prime
        return copies.least + copies.per_lane * lanes
    copies = _copies_of(
        library,
        lines,
        itemsize,
        threads,
    )
    copied = copies.least + copies.per_lane * lanes
    if lines.per_block == 1:
        return min(copied, 1)
    return min(copied, 2) if lines.per_block < 2 * lanes else copied


def _copies_of(
    library: LibraryMemory,
    lines: _Lines,
    itemsize: int,
    threads: int,
) -> CopiedLines:
    """Return the copies of lines whose length has no large prime factor."""
    if lines.are_real:
        return library.real
    if not lines.are_contiguous:
        return library.columns
    is_long = lines.length * itemsize >= LONG_BYTES
    if is_long and lines.blocks >= threads:  # long lines are copied one by one
        return CopiedLines(max(library.rows.least, 1), 0)
    return library.rows
