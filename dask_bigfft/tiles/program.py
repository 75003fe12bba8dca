"""Tile programs: the operations of a round on a tile, as a short list without positions.

::

    r2c -> [chirp] -> c2c over all digits -> [filter, c2c back] -> [twiddle] -> [chirp] -> c2r

An operation names dimensions of the tile. A factor is a function of the *index* of an element, a
sum of terms of the positions along some dimensions. Positions count from the *origin* of a tile,
which is an argument of the program's executor. So one program serves all blocks and tiles of a
round, and only origins and shapes differ.

A round is made into a program once (`program_of`), and an executor lowers the program to library
calls and loops.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from operator import mul
from typing import Literal

from dask_bigfft.transforms.layout import AxisLayout, Group, Layout
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Chirp, Divisor, Kind, Step

Shape = tuple[int, ...]

#: Scale that a library applies to FFTs of n points in all: 1, 1/sqrt(n) or 1/n.
Scale = Literal["none", "ortho", "full"]

#: Divisor of an operation that does not divide.
ONE = Divisor()

#: Modulus of an outermost digit, beyond all positions.
NO_MODULUS = 1 << 62


@dataclass(frozen=True)
class Term:
    """Digit of the position along a dimension, ``position // divisor % modulus``, times a stride.

    Parameters
    ----------
    dim : int
        Dimension of the tile.
    divisor, modulus : int
        Part of the position that the digit is.
    stride : int
        Increment of the index per step of the digit.
    offset : int
        Added to the position, modulo `size`, where values are stored cyclically shifted.
    size : int
        Number of positions along the dimension.
    """

    dim: int
    divisor: int
    modulus: int
    stride: int
    offset: int = 0
    size: int = NO_MODULUS


#: An index: the sum of its terms.
Index = tuple[Term, ...]


@dataclass(frozen=True)
class Twiddle:
    """Factor ``exp(sign * 2j*pi * own * others / modulus)``, divided by the divisor.

    `own` is the index of the digit that the round transforms, `others` that of the digits that are
    still to be transformed.
    """

    modulus: int
    sign: int
    own: Index
    others: Index
    divisor: Divisor = ONE


@dataclass(frozen=True)
class ChirpFactor:
    """Chirp of an index, 0 from the length of the chirp on, divided by the divisor.

    The index is the sum of `own`, the digit that the round transforms, and of `others`.
    """

    chirp: Chirp
    own: Index
    others: Index
    divisor: Divisor = ONE


@dataclass(frozen=True)
class FFT:
    """FFTs over some dimensions at once, then a division.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        Kind of the FFT over the last one of `dims`; the others are complex.
    dims, lengths : tuple of int
        Dimensions of the tile, and the lengths of the FFTs.
    sign : {-1, 1}
        Sign in the exponent.
    divisor : Divisor
        Divisor of the result.
    """

    kind: Kind
    dims: Shape
    lengths: Shape
    sign: int
    divisor: Divisor = ONE

    @property
    def by_library(self) -> tuple[Scale, Divisor]:
        """Scale that a library applies itself, and the division that remains."""
        points = math.prod(self.lengths)
        if points > 1 and self.divisor == Divisor(points):
            return "full", ONE
        if points > 1 and self.divisor == Divisor(1, points):
            return "ortho", ONE
        return "none", self.divisor


@dataclass(frozen=True)
class Multiply:
    """Products with factors that are computed from the indices of the elements."""

    factors: tuple[Twiddle | ChirpFactor, ...]


@dataclass(frozen=True)
class Product:
    """Product with the spectrum of a filter along one axis.

    Parameters
    ----------
    axis : int
        Axis of the array that is filtered.
    dim : int
        Dimension of the tile that the round transforms.
    first : int
        First dimension of the tile that belongs to the axis.
    """

    axis: int
    dim: int
    first: int


Operation = FFT | Multiply | Product


@dataclass(frozen=True)
class Program:
    """Operations on each tile of a round, in order.

    Parameters
    ----------
    operations : tuple of Operation
        The operations.
    dims : tuple of int
        Dimensions that are transformed, and therefore whole in each tile.
    """

    operations: tuple[Operation, ...]
    dims: Shape

    def twiddle_of(self, dim: int) -> Twiddle | None:
        """Return the twiddle of the digit in a dimension, if it has one."""
        for operation in self.operations:
            factors = operation.factors if isinstance(operation, Multiply) else ()
            for factor in factors:
                if isinstance(factor, Twiddle) and factor.own[0].dim == dim:
                    return factor
        return None

    @cached_property
    def is_one_call(self) -> bool:
        """True if one library call is the whole program."""
        if len(self.operations) != 1:
            return False
        (operation,) = self.operations
        return isinstance(operation, FFT) and operation.by_library[1] == ONE

    @cached_property
    def first_fft(self) -> FFT | None:
        """The first operation if it is an FFT."""
        first = self.operations[0] if self.operations else None
        return first if isinstance(first, FFT) else None

    @cached_property
    def begins_with_all(self) -> bool:
        """True if the first operation does complex FFTs over all transformed dimensions."""
        first = self.first_fft
        if first is None or first.kind != "c2c":
            return False
        return len(first.dims) == len(self.dims)

    @cached_property
    def begins_with_r2c(self) -> bool:
        """True if the first operation is the only FFT of real values."""
        ffts = [operation for operation in self.operations if isinstance(operation, FFT)]
        first = self.first_fft
        is_real = first is not None and first.kind == "r2c"
        return is_real and sum(fft.kind == "r2c" for fft in ffts) == 1


# --- from a round to its program ------------------------------------------------------------------


@lru_cache(maxsize=256)
def program_of(round_: Round) -> Program:
    """Return the program of a round."""
    steps = [_RoundStep(round_, step, round_.dim(step)) for step in round_.steps]
    operations: list[Operation] = []
    for own in steps:
        if own.step.kind == "r2c":
            operations.append(_fft("r2c", [own]))
    chirps_in = [own.chirp_in() for own in steps if own.step.chirp_in is not None]
    if chirps_in:
        operations.append(Multiply(tuple(chirps_in)))
    complex_steps = [own for own in steps if own.step.kind == "c2c"]
    for sign in dict.fromkeys(own.step.sign for own in complex_steps):
        operations.append(_fft("c2c", [own for own in complex_steps if own.step.sign == sign]))
    for own in steps:
        if own.step.convolve is not None:
            operations.append(Product(own.step.axis, own.dim, own.first_dim))
            operations.append(FFT("c2c", (own.dim,), (own.step.length,), -own.step.sign))
    twiddles = [own.twiddle() for own in steps if own.step.twiddle is not None]
    chirps_out = [own.chirp_out() for own in steps if own.step.chirp_out is not None]
    if twiddles or chirps_out:
        operations.append(Multiply((*twiddles, *chirps_out)))
    for own in steps:
        if own.step.kind == "c2r":
            operations.append(_fft("c2r", [own]))
    return Program(tuple(_joined(operations)), tuple(own.dim for own in steps))


@dataclass(frozen=True)
class _RoundStep:
    """Step of a round, and the dimension of a block that has its digit."""

    round_: Round
    step: Step
    dim: int

    @property
    def first_dim(self) -> int:
        """First dimension of a block that belongs to the axis of the step."""
        return sum(len(axis.groups) for axis in self.round_.source.axes[: self.step.axis])

    @property
    def own_divisor(self) -> Divisor:
        """Divisor of the step's FFT: no factor after it divides."""
        if self.step.twiddle is not None or self.step.chirp_out is not None:
            return ONE
        return self.step.divisor

    def chirp_in(self) -> ChirpFactor:
        """Return the chirp that multiplies the step's input."""
        assert self.step.chirp_in is not None
        digit = self.step.source
        own = (Term(self.dim, 1, NO_MODULUS, digit.stride),)
        others = self._others(self.round_.source, digit.stage)
        return ChirpFactor(self.step.chirp_in, own, others)

    def twiddle(self) -> Twiddle:
        """Return the twiddle that follows, over the digits that are still to be transformed."""
        step = self.step
        assert step.twiddle is not None
        own = (Term(self.dim, 1, NO_MODULUS, 1),)
        others = self._others(self.round_.target, step.target.stage - 1)
        # After a convolution it belongs to the inverse FFT.
        sign = step.sign if step.convolve is None else -step.sign
        divisor = ONE if step.chirp_out is not None else step.divisor
        return Twiddle(step.twiddle, sign, own, others, divisor)

    def chirp_out(self) -> ChirpFactor:
        """Return the chirp that multiplies the step's output."""
        assert self.step.chirp_out is not None
        digit = self.step.target
        own = (Term(self.dim, 1, NO_MODULUS, digit.stride),)
        others = self._others(self.round_.target, digit.stage)
        return ChirpFactor(self.step.chirp_out, own, others, self.step.divisor)

    def _others(self, layout: Layout, stage: int) -> Index:
        """Return the index of a stage from the axis' other dimensions."""
        axis = layout.axes[self.step.axis]
        return axis_terms(axis, stage, self.first_dim, skip=self.dim)


def axis_terms(axis: AxisLayout, stage: int, first_dim: int, skip: int | None = None) -> Index:
    """Return the index of the digits of one stage, from the dimensions of an axis of a block.

    Parameters
    ----------
    axis : AxisLayout
        Layout of the axis.
    stage : int
        Stage of the index; digits of other stages are ignored.
    first_dim : int
        First dimension of the block that belongs to the axis.
    skip : int, optional
        Dimension that is left out.

    Examples
    --------
    >>> from dask_bigfft.transforms.layout import Digit, whole
    >>> axis = AxisLayout((whole(Digit(0, 4, 3, 3)), whole(Digit(0, 1, 4, 4))))
    >>> [(term.dim, term.stride) for term in axis_terms(axis, stage=0, first_dim=2)]
    [(2, 4), (3, 1)]
    """
    terms: list[Term] = []
    for dim, group in enumerate(axis.groups, first_dim):
        if dim != skip:
            terms += _group_terms(group, stage, dim)
    return tuple(terms)


def _group_terms(group: Group, stage: int, dim: int) -> Iterator[Term]:
    """Yield the terms of the digits of one stage in a dimension of a block, innermost first."""
    size = group.size if group.offset else NO_MODULUS
    divisor = 1
    for number, digit in reversed(list(enumerate(group.digits))):
        if digit.stage == stage and digit.size > 1:
            modulus = digit.size if number else NO_MODULUS
            yield Term(dim, divisor, modulus, digit.stride, group.offset, size)
        divisor *= max(digit.size, 1)


def _fft(kind: Kind, steps: Sequence[_RoundStep]) -> FFT:
    """Return the FFTs of several steps of one kind and sign, as one operation."""
    dims = tuple(own.dim for own in steps)
    lengths = tuple(own.step.length for own in steps)
    divisor = reduce(mul, (own.own_divisor for own in steps))
    return FFT(kind, dims, lengths, steps[0].step.sign, divisor)


def _joined(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations with an FFT of real values and complex ones after it as one FFT."""
    joined: list[Operation] = []
    for operation in operations:
        last = joined[-1] if joined else None
        if isinstance(last, FFT) and isinstance(operation, FFT) and _may_join(last, operation):
            joined[-1] = replace(
                last,
                dims=operation.dims + last.dims,
                lengths=operation.lengths + last.lengths,
                divisor=operation.divisor * last.divisor,
            )
        else:
            joined.append(operation)
    return joined


def _may_join(real: FFT, plain: FFT) -> bool:
    """Return whether a library does an FFT of real values and the complex one after it at once."""
    return (real.kind, plain.kind) == ("r2c", "c2c") and real.sign == plain.sign
