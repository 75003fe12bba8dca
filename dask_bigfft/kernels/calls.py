"""What a round asks of an FFT library, worked out once for all blocks and tiles of the round.

Only what depends on a block's place, the factors of twiddles, chirps and filters, is worked out
for each block::

    Calls   r2c -> [chirp] -> c2c over all digits
                -> [filter, c2c back] -> [twiddle] -> [chirp] -> c2r
            (r2c and c2c in one call, where no chirp is between them)
    Work    what is in brackets: the tables of one step on one block

May import `decomposition` and this room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.errors import KernelError
from dask_bigfft.kernels.libraries import Scale

__all__ = ["Call", "Calls", "Factors", "Work", "axis_index", "calls_of", "factor", "works_of"]

Array = npt.NDArray[Any]
_Pair = tuple[Step, int]


def factor(divisor: Divisor, dtype: np.dtype[Any]) -> Any:
    """The number to multiply values of a dtype with, in double precision or better."""
    real = np.longdouble if dtype.char in "gG" else float
    return 1 / (real(divisor.whole) * np.sqrt(real(divisor.root)))


def _by_library(divisor: Divisor, n: int) -> tuple[Scale, Divisor]:
    """What of a division an FFT of n points in all does for nothing, and what is left."""
    if divisor == Divisor(n) and n > 1:
        return "full", Divisor()
    if divisor == Divisor(1, n) and n > 1:
        return "ortho", Divisor()
    return "none", divisor


# --- the round ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of the library.

    Parameters
    ----------
    kind : str
        "r2c", "c2c" or "c2r".
    dims : tuple of int
        Dimensions of a block that it transforms, that of real values last.
    sign : int
        Of the exponent.
    scale : Scale
        What the library multiplies with.
    left : Divisor or None
        What is to be divided by afterwards.
    length : int
        Of the real values, where there are some.
    """

    kind: str
    dims: tuple[int, ...]
    sign: int
    scale: Scale
    left: Divisor | None
    length: int = 0


@dataclass(frozen=True)
class Calls:
    """The calls that a round makes for each tile, in their order, and what follows from them.

    Parameters
    ----------
    r2c, c2c, c2r : tuple of Call
        FFTs that take real values, of complex ones, and that give real values.
    dims : tuple of int
        The dimension of every step's digit.
    begins_with_ffts : bool
        Whether the first thing to be done is one call of the library, for all axes.
    begins_with_r2c : bool
        Whether the first thing to be done is one FFT of real values.
    one_call : bool
        Whether one call, of whatever kind, is all that is to be done.
    """

    r2c: tuple[Call, ...]
    c2c: tuple[Call, ...]
    c2r: tuple[Call, ...]
    dims: tuple[int, ...]
    begins_with_ffts: bool
    begins_with_r2c: bool
    one_call: bool


@lru_cache(maxsize=256)
def calls_of(round_: Round) -> Calls:
    """Return what a round asks of an FFT library.

    Raises
    ------
    KernelError
        If the digit of a step is not the last group of its axis.
    """
    steps = round_.steps
    for step in steps:
        if round_.source.axes[step.axis].groups[-1].digits != (step.source,):
            raise KernelError("the digit of a step must be the last group of its axis")
    dims = tuple(round_.dim(step) for step in steps)
    pairs = list(zip(steps, dims, strict=True))
    by_sign: dict[int, list[_Pair]] = {}
    for step, dim in pairs:
        if step.kind == "c2c":
            by_sign.setdefault(step.sign, []).append((step, dim))
    r2c = tuple(_call([*_with(pair, by_sign), pair]) for pair in pairs if pair[0].kind == "r2c")
    c2c = tuple(_call(batch) for batch in by_sign.values())
    c2r = tuple(_call([pair]) for pair in pairs if pair[0].kind == "c2r")
    kinds = [step.kind for step in steps]
    begins = {(step.kind, step.sign, step.chirp_in) for step in steps}
    begins_with_ffts = bool(steps) and begins == {("c2c", steps[0].sign, None)}
    whole = all(map(_alike, steps)) and all(call.left is None for call in (*r2c, *c2c, *c2r))
    return Calls(
        r2c,
        c2c,
        c2r,
        dims,
        begins_with_ffts,
        kinds.count("r2c") == 1,
        whole and len(r2c) + len(c2c) + len(c2r) == 1,
    )


def _with(real: _Pair, by_sign: dict[int, list[_Pair]]) -> list[_Pair]:
    """Take away the complex steps that one call does together with one of real values."""
    sign = real[0].sign
    if any(step.chirp_in is not None for step, _ in by_sign.get(sign, [])):
        return []
    return by_sign.pop(sign, [])


def _call(batch: Sequence[_Pair]) -> Call:
    """One call for some steps of a sign, with the dimensions of their digits; a real one is last.

    It is of the last one's kind.
    """
    last, n = batch[-1][0], math.prod(step.length for step, _ in batch)
    scale, left = _by_library(reduce(mul, (_divisor(step) for step, _ in batch)), n)
    dims = tuple(dim for _, dim in batch)
    rest = None if left == Divisor() else left
    return Call(last.kind, dims, last.sign, scale, rest, last.length)


def _divisor(step: Step) -> Divisor:
    """What the FFT has to divide by: nothing if a chirp or a twiddle does it."""
    free = step.chirp_out is not None or step.twiddle is not None
    return Divisor() if free else step.divisor


def _alike(step: Step) -> bool:
    """Whether a step is an FFT and nothing else, so that every tile is treated alike."""
    return (
        step.twiddle is None and step.convolve is None
        and step.chirp_in is None and step.chirp_out is None
    )


# --- one block ------------------------------------------------------------------------------


def axis_index(axis: AxisLayout, block: int, stage: int, skip: int | None = None) -> Array:
    """Index made of an axis' digits of one stage, for each place of a block in stored order.

    Digits of other stages count nothing; the group number `skip` is left out.
    """
    index = np.zeros(1, np.int64)
    groups = zip(axis.groups, axis.intervals(block), axis.shape(block), strict=True)
    for g, (group, (low, _), size) in enumerate(groups):
        if g == skip:
            continue
        place = np.arange(low, low + size, dtype=np.int64)
        if group.offset:
            place = (place + group.offset) % group.size
        part = np.zeros(size, np.int64)
        for digit in reversed(group.digits):
            place, value = np.divmod(place, max(digit.size, 1))
            if digit.stage == stage:
                part += value * digit.stride
        index = np.add.outer(index, part).ravel()
    return index


@dataclass(frozen=True)
class Factors:
    """A table over an axis' other digits, one entry (or row of entries) for each of their values.

    ``shape`` are the dimensions of these digits, ``first`` the block's dimension of the first.
    """

    table: Array
    shape: tuple[int, ...]
    first: int

    def within(self, dim: int, part: slice) -> "Factors":
        """What of the table belongs to a tile cut along one of the block's dimensions."""
        if not self.first <= dim < self.first + len(self.shape):
            return self
        inner = self.table.shape[1:]
        cut = (slice(None),) * (dim - self.first) + (part,)
        kept = self.table.reshape(*self.shape, *inner)[cut]
        return Factors(kept.reshape(-1, *inner), kept.shape[: len(self.shape)], self.first)

    def rows(self, count: int) -> Array:
        """Entries for `count` rows of a tile: the table again and again."""
        repeats = (count // max(1, len(self.table)),) + (1,) * (self.table.ndim - 1)
        return np.tile(self.table, repeats)


@dataclass(frozen=True)
class Work:
    """A step that is more than an FFT, on one block.

    Its dimension, and what follows from its axis' other digits, where the step makes use of it.
    """

    step: Step
    dim: int
    index_in: Factors | None
    index_twiddle: Factors | None
    index_out: Factors | None
    spectrum: Factors | None

    def within(self, dim: int, part: slice) -> "Work":
        """The step on a tile cut along a dimension."""
        tables = self.index_in, self.index_twiddle, self.index_out, self.spectrum
        inside = [None if table is None else table.within(dim, part) for table in tables]
        return Work(self.step, self.dim, *inside)


def works_of(
    round_: Round, block: tuple[int, ...], filters: Mapping[int, Array]
) -> list[Work]:
    """Return the steps of a round that are more than FFTs, as they are on a block.

    Parameters
    ----------
    round_, block
        The round, and which block.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    """
    found = []
    for step, dim in zip(round_.steps, calls_of(round_).dims, strict=True):
        if _alike(step):
            continue
        before, after = round_.source.axes[step.axis], round_.target.axes[step.axis]
        last = len(before.groups) - 1
        i = block[step.axis]
        place = (before.shape(i)[:last], dim - last)
        spectrum = index_in = index_twiddle = index_out = None
        if step.convolve is not None:
            spectrum = Factors(filters[step.axis].reshape(-1, step.length), *place)
        if step.chirp_in is not None:
            index_in = Factors(axis_index(before, i, step.source.stage, last), *place)
        if step.twiddle is not None:
            index_twiddle = Factors(axis_index(after, i, step.target.stage - 1, last), *place)
        if step.chirp_out is not None:
            index_out = Factors(axis_index(after, i, step.target.stage, last), *place)
        found.append(Work(step, dim, index_in, index_twiddle, index_out, spectrum))
    return found
