"""Tile programs: the operations of a round on a tile, as a short list without positions.

::

    r2c -> [chirp] -> c2c over all digits -> [filter, c2c back] -> [twiddle] -> [chirp] -> c2r

A round with the transfer function of an operator multiplies the whole tile once::

    r2c -> c2c over all digits -> transfer -> c2c back -> [twiddle] -> c2r

An operation names dimensions of the tile. A factor is a function of the *index* of an element, a
sum of terms of the positions along some dimensions. Positions count from the *origin* of a tile,
which is an argument of the program's executor. So one program serves all blocks and tiles of a
round, and only origins and shapes differ.

A round is made into a program once (`program_of`), and an executor lowers the program to library
calls and loops.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from operator import mul
from typing import Literal

from dask_bigfft.transforms.bands import AxisBand
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.transforms.rounds import Round, StoredWindow
from dask_bigfft.transforms.steps import (
    Chirp,
    Divisor,
    Kind,
    Step,
    axis_program,
    operator_program,
)

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


def constant_index(value: int) -> Index:
    """Return the index that has one value everywhere."""
    digit = NO_MODULUS // 2
    return (
        Term(
            0,
            divisor=digit,
            modulus=2,
            stride=value,
            offset=digit,
        ),
    )


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
    lines : tuple of StoredWindow
        Windows of other dimensions outside of which lines do not matter: they are zeros, or are not
        stored after the round.
    """

    kind: Kind
    dims: Shape
    lengths: Shape
    sign: int
    divisor: Divisor = ONE
    lines: tuple[StoredWindow, ...] = ()

    @property
    def share(self) -> float:
        """Share of the lines that matter."""
        return math.prod(window.count / window.size for window in self.lines)

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
    operand : int
        Number of the spectrum among the operands of the plan.
    axis : int
        Axis of the array that is filtered.
    dim : int
        Dimension of the tile that has the first digit of the filtered step.
    first : int
        First dimension of the tile that belongs to the axis.
    lengths : tuple of int
        Lengths of the digits, which are in consecutive dimensions of the tile.
    """

    operand: int
    axis: int
    dim: int
    first: int
    lengths: Shape


@dataclass(frozen=True)
class AxisFrequencies:
    """Frequencies of an axis at the elements of a tile.

    Parameters
    ----------
    axis, length : int
        Axis of the array, and the length N of its transform.
    index : tuple of Term
        Index k of the frequency, 0 to N - 1, from the positions in the tile; index of the element
        for an axis that is not transformed.
    band : AxisBand or None
        Frequencies outside of which the product is 0.
    """

    axis: int
    length: int
    index: Index
    band: AxisBand | None = None


@dataclass(frozen=True)
class Transfer:
    """Product of a tile with the transfer function of an operator.

    Parameters
    ----------
    operand : int
        Number of the transfer function among the operands of the plan.
    axes : tuple of AxisFrequencies
        All axes of the array.
    first_dims : tuple of int
        First dimension of the tile that belongs to each axis of the array, and the number of
        dimensions.
    """

    operand: int
    axes: tuple[AxisFrequencies, ...]
    first_dims: Shape


Operation = FFT | Multiply | Product | Transfer


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

    @property
    def factors(self) -> Iterator[Twiddle | ChirpFactor]:
        """All computed factors, in order."""
        for operation in self.operations:
            if isinstance(operation, Multiply):
                yield from operation.factors

    @property
    def divisor(self) -> Divisor:
        """Product of the divisors of all operations."""
        ffts = [operation for operation in self.operations if isinstance(operation, FFT)]
        divisors = [fft.divisor for fft in ffts] + [factor.divisor for factor in self.factors]
        return reduce(mul, divisors, ONE)

    def twiddle_of(self, dim: int) -> Twiddle | None:
        """Return the twiddle of the digit in a dimension, if it has one."""
        for factor in self.factors:
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
        first = self.first_fft
        is_real = first is not None and first.kind == "r2c"
        return is_real and self.kinds.count("r2c") == 1

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of the FFTs, in order."""
        return tuple(fft.kind for fft in self.operations if isinstance(fft, FFT))

    @cached_property
    def changes_type(self) -> bool:
        """True if values become complex or real on the way, even if they are real at both ends."""
        return any(kind != "c2c" for kind in self.kinds)


# --- from a round to its program ------------------------------------------------------------------


#: The digits that a pass transforms: number of a step of the round, and of its own step.
PassSteps = tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def program_of(round_: Round) -> Program:
    """Return the program of a round whose FFTs are not split."""
    digits = tuple((step.length,) for step in round_.steps)
    steps = tuple((number, 0) for number in range(len(digits)))
    (program,) = programs_of(round_, digits, (steps,))
    return program


@lru_cache(maxsize=256)
def programs_of(
    round_: Round,
    digits: tuple[Shape, ...],
    passes: tuple[PassSteps, ...],
) -> tuple[Program, ...]:
    """Return the programs of the passes of a round over a block.

    An FFT may be split into digits, each of which is a dimension of the tile and is transformed by
    a pass of its own.

    Parameters
    ----------
    round_ : Round
        The round.
    digits : tuple of tuple of int
        For each step of the round, the digits of its FFT in the order of their transforms.
    passes : tuple of tuple of (int, int)
        For each pass, the numbers of steps of the round, and of their own steps (`own_steps`).
    """
    first_dims = first_tile_dims(round_, digits)
    lines: list[_Line] = []
    for step, lengths in zip(round_.steps, digits, strict=True):
        block_dim = round_.dim(step)
        lines.append(
            _Line(
                round_,
                step,
                lengths,
                block_dim,
                first_dims,
            )
        )
    # The digit in each dimension of a line, as far as its steps are done.
    places = [line.source_digits for line in lines]
    programs: list[Program] = []
    for numbers in passes:
        pass_steps = []
        for line_number, own_number in numbers:
            pass_steps.append(_next_step(lines[line_number], own_number, places[line_number]))
        transfer = None
        is_product = any(step.own.between is not None for step in pass_steps)
        if all(step.between is None for step in round_.steps):  # at the end
            is_product = round_.multiplies and numbers == passes[-1]
        if is_product:
            transfer = _transfer(round_, pass_steps, first_dims)
        programs.append(_pass_program(pass_steps, transfer))
    return tuple(programs)


def first_tile_dims(round_: Round, digits: Sequence[Shape]) -> tuple[int, ...]:
    """Return the first dimension of a tile for each dimension of a block, and their number.

    Parameters are those of `programs_of`.
    """
    counts = [1] * sum(len(axis.groups) for axis in round_.source.axes)
    for step, lengths in zip(round_.steps, digits, strict=True):
        counts[round_.dim(step)] = len(lengths)
    return tuple(itertools.accumulate(counts, initial=0))


def own_steps(block_dim: int, step: Step, lengths: Shape) -> tuple[Step, ...]:
    """Return the steps of a step whose FFT is split into digits of some lengths.

    There is one step per digit. A convolution has one less than twice as many, because its steps
    after the middle one transform back, and so has a step with a product inside.
    """
    if step.between is not None:
        return operator_program(
            block_dim,
            lengths,
            kind=step.kind,
            sign=step.sign,
        ).steps
    is_convolution = step.convolve is not None
    program = axis_program(
        block_dim,
        step.length,
        lengths,
        kind=step.kind,
        sign=step.sign,
        bluestein=is_convolution,
    )
    if not is_convolution or step.sign == program.steps[0].sign:
        return program.steps
    return tuple(replace(own, sign=-own.sign) for own in program.steps)


class _Line:
    """Step of a round, and the dimensions of a tile that have its digits.

    Parameters
    ----------
    round_, step : Round, Step
        The round, and one of its steps.
    lengths : tuple of int
        Lengths of the digits in the order of their transforms.
    block_dim : int
        Dimension of a block that the step transforms.
    first_dims : tuple of int
        First dimension of a tile for each dimension of a block.
    """

    def __init__(
        self,
        round_: Round,
        step: Step,
        lengths: Shape,
        block_dim: int,
        first_dims: Shape,
    ) -> None:
        self.round = round_
        self.step = step
        self.lengths = lengths
        self.block_dim = block_dim
        self.first_dims = first_dims
        #: First dimension of the tile that has a digit of the step.
        self.first_dim = first_dims[block_dim]
        self.steps = own_steps(block_dim, step, lengths)
        #: Stage of the digits after all steps.
        self.last_stage = 2 if step.turns_back else 1

    @property
    def source_digits(self) -> list[Digit]:
        """Digit in each dimension of the line before its first step."""
        first_steps = self.steps[: len(self.lengths)]
        return [step.source for step in first_steps]

    @property
    def axis_first_dim(self) -> int:
        """First dimension of a tile that belongs to the axis of the step."""
        return self.first_dims[self._axis_first_block_dim]

    @property
    def _axis_first_block_dim(self) -> int:
        return sum(len(axis.groups) for axis in self.round.source.axes[: self.step.axis])

    def others(self, layout: Layout, stage: int) -> Index:
        """Return the index of a stage from the axis' other dimensions."""
        axis = layout.axes[self.step.axis]
        terms = axis_terms(
            axis,
            stage,
            self._axis_first_block_dim,
            skip=self.block_dim,
        )
        return tuple(replace(term, dim=self.first_dims[term.dim]) for term in terms)

    def own(self, digits: Sequence[Digit], stage: int, stride: int = 1) -> Index:
        """Return the index of a stage from the digits of the step, times a stride."""
        terms: list[Term] = []
        for dim, digit in enumerate(digits, self.first_dim):
            if digit.stage == stage and digit.size > 1:
                terms.append(
                    Term(
                        dim,
                        1,
                        NO_MODULUS,
                        digit.stride * stride,
                    )
                )
        # A digit with a single value is at position 0.
        return tuple(terms) or (
            Term(
                self.first_dim,
                1,
                NO_MODULUS,
                stride,
            ),
        )


@dataclass(frozen=True)
class _PassStep:
    """Own step of a step of a round, in a pass.

    Parameters
    ----------
    line : _Line
        The step of the round.
    number : int
        Number of the own step.
    dim : int
        Dimension of the tile that is transformed.
    digits_before, digits_after : tuple of Digit
        Digits in the dimensions of the line before and after the step.
    """

    line: _Line
    number: int
    dim: int
    digits_before: tuple[Digit, ...]
    digits_after: tuple[Digit, ...]

    @property
    def own(self) -> Step:
        """The own step."""
        return self.line.steps[self.number]

    @property
    def begins(self) -> bool:
        """True if this is the first own step."""
        return self.number == 0

    @property
    def ends(self) -> bool:
        """True if this is the last own step."""
        return self.number == len(self.line.steps) - 1

    @property
    def fft_divisor(self) -> Divisor:
        """Divisor of the FFT: that of the whole step if no factor after it divides."""
        step = self.line.step
        if not self.ends or step.twiddle is not None or step.chirp_out is not None:
            return ONE
        return step.divisor

    def frequency_terms(self) -> Index:
        """Return the terms of the frequency at the product with a transfer function."""
        digits = list(self.digits_after)
        between = self.own.between
        if between is not None:
            digits[self.dim - self.line.first_dim] = between
        frequency = self.line.step.between or self.line.step.target
        return self.line.own(digits, stage=1, stride=frequency.stride)

    def chirps_in(self) -> Iterator[ChirpFactor]:
        """Yield the chirp that multiplies the input of the line."""
        line = self.line
        if self.begins and line.step.chirp_in is not None:
            digit = line.step.source
            own = line.own(self.digits_before, stage=0, stride=digit.stride)
            others = line.others(line.round.source, digit.stage)
            yield ChirpFactor(line.step.chirp_in, own, others)

    def twiddles_between(self) -> Iterator[Twiddle]:
        """Yield the twiddle over the digits of the line that are still to be transformed."""
        own = self.own
        if own.twiddle is not None:
            # After a convolution or a product it belongs to the inverse FFT.
            others = self.line.own(self.digits_after, stage=own.target.stage - 1)
            yield Twiddle(
                own.twiddle,
                own.last_sign,
                (
                    Term(
                        self.dim,
                        1,
                        NO_MODULUS,
                        1,
                    ),
                ),
                others,
            )

    def twiddles_after(self) -> Iterator[Twiddle]:
        """Yield the twiddle over the other digits of the axis that are still to be transformed."""
        line = self.line
        step = line.step
        if self.ends and step.twiddle is not None:
            own = line.own(self.digits_after, stage=line.last_stage)
            others = line.others(line.round.target, step.target.stage - 1)
            divisor = ONE if step.chirp_out is not None else step.divisor
            yield Twiddle(
                step.twiddle,
                step.last_sign,
                own,
                others,
                divisor,
            )

    def chirps_out(self) -> Iterator[ChirpFactor]:
        """Yield the chirp that multiplies the output of the line."""
        line = self.line
        step = line.step
        if self.ends and step.chirp_out is not None:
            own = line.own(self.digits_after, line.last_stage, step.target.stride)
            others = line.others(line.round.target, step.target.stage)
            yield ChirpFactor(
                step.chirp_out,
                own,
                others,
                step.divisor,
            )


def _next_step(line: _Line, number: int, digits: list[Digit]) -> _PassStep:
    """Return a step of a line, and replace the digit that it transforms.

    `digits` has the digit in each dimension of the line, before the step and then after it.
    """
    own = line.steps[number]
    position = digits.index(own.source)
    digits_before = tuple(digits)
    digits[position] = own.target
    return _PassStep(
        line=line,
        number=number,
        dim=line.first_dim + position,
        digits_before=digits_before,
        digits_after=tuple(digits),
    )


def _pass_program(steps: Sequence[_PassStep], transfer: Transfer | None) -> Program:
    """Return the program of a pass, with a product in it if there is a transfer function."""
    operations: list[Operation] = []
    operations += [_fft("r2c", [step]) for step in steps if step.own.kind == "r2c"]
    _add_factors(operations, [step.chirps_in() for step in steps])
    operations += _complex_ffts(steps)
    operations += _filters(steps)
    if transfer is not None:
        operations.append(transfer)
        operations += _complex_ffts([step for step in steps if step.own.between], back=True)
    factors: list[Iterator[Twiddle | ChirpFactor]] = []
    factors += [step.twiddles_between() for step in steps]
    factors += [step.twiddles_after() for step in steps]
    factors += [step.chirps_out() for step in steps]
    _add_factors(operations, factors)
    operations += _real_results(steps)
    return Program(tuple(_joined(operations)), tuple(step.dim for step in steps))


def _real_results(steps: Sequence[_PassStep]) -> Iterator[FFT]:
    """Yield the FFTs to real values."""
    for step in steps:
        if step.own.last_kind == "c2r":
            yield _fft("c2r", [step], back=step.own.between is not None)


def _complex_ffts(steps: Sequence[_PassStep], back: bool = False) -> Iterator[FFT]:
    """Yield the complex FFTs: one for each sign, or one for each step where lines do not matter.

    With `back` they are those after the product with a transfer function.
    """
    complex_steps = [step for step in steps if step.own.kind == "c2c"]
    round_ = steps[0].line.round if steps else None
    if round_ is not None and round_.leaves_out_lines and not round_.multiplies:
        yield from _ffts_of_some_lines(steps, complex_steps, round_)
        return
    for sign in dict.fromkeys(step.own.sign for step in complex_steps):
        yield _fft("c2c", [step for step in complex_steps if step.own.sign == sign], back)


def _transfer(round_: Round, steps: Sequence[_PassStep], first_dims: Shape) -> Transfer:
    """Return the product with the transfer function of an operator in a pass.

    Parameters
    ----------
    round_ : Round
        The round.
    steps : sequence of _PassStep
        Steps of the pass.
    first_dims : tuple of int
        First dimension of the tile for each dimension of a block, and their number.
    """
    step_of_axis = {step.line.step.axis: step for step in steps}
    axes: list[AxisFrequencies] = []
    first_dims_of_axes: list[int] = []
    block_dim = 0
    for axis, layout in enumerate(round_.spectrum.axes):
        first_dims_of_axes.append(first_dims[block_dim])
        step = step_of_axis.get(axis)
        skip = None if step is None else step.line.block_dim
        terms = axis_terms(layout, 1, block_dim, skip)
        index = tuple(replace(term, dim=first_dims[term.dim]) for term in terms)
        if step is not None:
            index += step.frequency_terms()
        ends = [digit.stride * digit.radix for digit in layout.digits if digit.stage == 1]
        if not ends:  # the axis is not transformed
            index = axis_terms(layout, 0, first_dims[block_dim])
            ends = [digit.radix for digit in layout.digits]
        band = next((band for band in round_.bands if band.axis == axis), None)
        axes.append(
            AxisFrequencies(
                axis,
                max(ends),
                index,
                band,
            )
        )
        block_dim += len(layout.groups)
    return Transfer(0, tuple(axes), (*first_dims_of_axes, first_dims[-1]))


def _ffts_of_some_lines(
    steps: Sequence[_PassStep], complex_steps: Sequence[_PassStep], round_: Round
) -> Iterator[FFT]:
    """Yield one FFT for each complex step of a pass, of the lines that matter.

    After a step, the lines outside of its window do not matter; before it, those outside of the
    window that was stored do not. So the steps with small windows come first or last.
    """
    windows = [window.read for window in round_.windows]
    stored = {window.dim: window for window in windows if window.count < window.size}
    nonzero = {window.dim: window for window in round_.windows_in}

    def lost_share(step: _PassStep) -> float:
        """Return the share of lines for other steps if this one comes first, less that if last."""
        after = stored.get(step.dim)
        before = nonzero.get(step.dim)
        share_after = 1.0 if after is None else after.count / after.size
        return share_after - (1.0 if before is None else before.count / before.size)

    lines: dict[int, StoredWindow] = dict(nonzero)
    for step in steps:
        if step.own.kind == "r2c":
            lines.pop(step.dim, None)
            if step.dim in stored:
                lines[step.dim] = stored[step.dim]
    for step in sorted(complex_steps, key=lost_share):
        lines.pop(step.dim, None)
        yield replace(_fft("c2c", [step]), lines=tuple(lines.values()))
        if step.dim in stored:
            lines[step.dim] = stored[step.dim]


def _filters(steps: Sequence[_PassStep]) -> Iterator[Operation]:
    """Yield the product with the spectrum of each filter, and the FFT back that follows."""
    for step in steps:
        if step.own.convolve is not None:
            line = step.line
            yield Product(
                operand=line.step.operand,
                axis=line.step.axis,
                dim=line.first_dim,
                first=line.axis_first_dim,
                lengths=line.lengths,
            )
            yield FFT(
                "c2c",
                (step.dim,),
                (step.own.length,),
                -line.step.sign,
            )


def _add_factors(
    operations: list[Operation],
    factors: Sequence[Iterator[Twiddle | ChirpFactor]],
) -> None:
    """Append one product with all factors, if there are any."""
    multiply = Multiply(tuple(itertools.chain.from_iterable(factors)))
    if multiply.factors:
        operations.append(multiply)


def axis_terms(
    axis: AxisLayout,
    stage: int,
    first_dim: int,
    skip: int | None = None,
) -> Index:
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
            yield Term(
                dim,
                divisor,
                modulus,
                digit.stride,
                group.offset,
                size,
            )
        divisor *= max(digit.size, 1)


def _fft(kind: Kind, steps: Sequence[_PassStep], back: bool = False) -> FFT:
    """Return the FFTs of several steps of one kind and sign, as one operation.

    With `back` they are the FFTs after the product with a transfer function.
    """
    divisor = ONE
    for step in steps:
        if back or step.own.between is None:
            divisor *= step.fft_divisor
    return FFT(
        kind,
        dims=tuple(step.dim for step in steps),
        lengths=tuple(step.own.length for step in steps),
        sign=steps[0].own.last_sign if back else steps[0].own.sign,
        divisor=divisor,
    )


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
    if plain.lines:
        return False
    return (real.kind, plain.kind) == ("r2c", "c2c") and real.sign == plain.sign
