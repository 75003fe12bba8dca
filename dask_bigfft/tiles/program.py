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
from collections.abc import Iterable, Iterator, Sequence
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

    With an offset the position is ``(position + offset) % size``.

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
    # The highest digit of a large offset is 1 at all positions.
    highest = NO_MODULUS // 2
    return (
        Term(
            0,
            divisor=highest,
            modulus=2,
            stride=value,
            offset=highest,
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
        return math.prod(window.share for window in self.lines)

    @property
    def by_library(self) -> tuple[Scale, Divisor]:
        """Scale that a library applies itself, and the division that remains."""
        points = math.prod(self.lengths)
        if points > 1 and self.divisor == Divisor(points):
            return "full", ONE
        if points > 1 and self.divisor == Divisor(1, points):
            return "ortho", ONE
        return "none", self.divisor

    def with_complex(self, complex_fft: "FFT") -> "FFT":
        """Return these FFTs and complex ones over other dimensions, as one operation.

        The complex dimensions come first.
        """
        return replace(
            self,
            dims=complex_fft.dims + self.dims,
            lengths=complex_fft.lengths + self.lengths,
            divisor=complex_fft.divisor * self.divisor,
        )


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
    scale : float
        Number by which the product is multiplied, where FFTs divide by nothing.
    """

    operand: int
    axes: tuple[AxisFrequencies, ...]
    first_dims: Shape
    scale: float = 1.0


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
    def is_one_call_over_one_dim(self) -> bool:
        """True if one library call over one dimension is the whole program."""
        return self.is_one_call and len(self.dims) == 1

    @cached_property
    def is_complex_fft(self) -> bool:
        """True if one library call for complex FFTs is the whole program."""
        return self.is_one_call and self.begins_with_all

    @cached_property
    def begins_with_fft(self) -> bool:
        """True if the first operation is an FFT that reads all values of a tile."""
        return self.begins_with_all or self.begins_with_r2c

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


#: The digits that a pass transforms: number of a step of the round, and of its digit step.
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
    a pass of its own. The digit steps of a step are done in order.

    Parameters
    ----------
    round_ : Round
        The round.
    digits : tuple of tuple of int
        For each step of the round, the digits of its FFT in the order of their transforms.
    passes : tuple of tuple of (int, int)
        For each pass, the numbers of steps of the round, and of their digit steps.
    """
    first_dims = first_tile_dims(round_, digits)
    steps_of_round = split_steps(round_, digits, first_dims)
    transforms_back = any(step.between is not None for step in round_.steps)
    programs: list[Program] = []
    for numbers in passes:
        steps = [steps_of_round[step].digit_step(digit_step) for step, digit_step in numbers]
        # The product is before the first FFT back, or at the end of the round.
        has_product = round_.multiplies and numbers == passes[-1]
        if transforms_back:
            has_product = any(step.has_product for step in steps)
        transfer = _transfer(round_, steps, first_dims) if has_product else None
        programs.append(_pass_program(round_, steps, transfer))
    return tuple(programs)


def first_tile_dims(round_: Round, digits: Sequence[Shape]) -> tuple[int, ...]:
    """Return the first dimension of a tile for each dimension of a block, and their number.

    Parameters are those of `programs_of`.
    """
    counts = [1] * round_.source.first_dims[-1]
    for step, lengths in zip(round_.steps, digits, strict=True):
        counts[round_.dim(step)] = len(lengths)
    return tuple(itertools.accumulate(counts, initial=0))


def split_steps(
    round_: Round,
    digits: Sequence[Shape],
    first_dims: Shape,
) -> "list[SplitStep]":
    """Return the steps of a round, whose FFTs are split into digits.

    Parameters
    ----------
    round_, digits
        See `programs_of`.
    first_dims : tuple of int
        First dimension of a tile for each dimension of a block, and their number.
    """
    split: list[SplitStep] = []
    for step, lengths in zip(round_.steps, digits, strict=True):
        block_dim = round_.dim(step)
        split.append(
            SplitStep(
                round_,
                step,
                lengths,
                first_dims,
                block_dim,
                steps=digit_steps(block_dim, step, lengths),
            )
        )
    return split


def digit_steps(axis: int, step: Step, lengths: Shape) -> tuple[Step, ...]:
    """Return the digit steps of a step: those over single digits that together are the step.

    There is one per digit. A convolution has one less than twice as many, because its steps after
    the middle one transform back, and so has a step with a product inside.

    Parameters
    ----------
    axis : int
        Axis of the new steps.
    step : Step
        The step.
    lengths : tuple of int
        Lengths of the digits in the order of their transforms.
    """
    if step.between is not None:
        return operator_program(
            axis,
            lengths,
            kind=step.kind,
            sign=step.sign,
        ).steps
    is_convolution = step.convolve is not None
    program = axis_program(
        axis,
        step.length,
        lengths,
        kind=step.kind,
        sign=step.sign,
        bluestein=is_convolution,
    )
    if not is_convolution or step.sign == program.steps[0].sign:
        return program.steps
    return tuple(replace(digit_step, sign=-digit_step.sign) for digit_step in program.steps)


@dataclass(frozen=True, eq=False)
class SplitStep:
    """Step of a round whose FFT is split into digits, each in a dimension of the tile.

    Parameters
    ----------
    round : Round
        The round.
    step : Step
        The step.
    lengths : tuple of int
        Lengths of the digits in the order of their transforms.
    first_dims : tuple of int
        First dimension of a tile for each dimension of a block.
    block_dim : int
        Dimension of a block that is transformed.
    steps : tuple of Step
        The digit steps, in order.
    """

    round: Round
    step: Step
    lengths: Shape
    first_dims: Shape
    block_dim: int
    steps: tuple[Step, ...]

    @property
    def last_number(self) -> int:
        """Number of the last digit step."""
        return len(self.steps) - 1

    @property
    def first_dim(self) -> int:
        """First dimension of the tile that has a digit of the step."""
        return self.first_dims[self.block_dim]

    @property
    def axis_first_dim(self) -> int:
        """First dimension of the tile that belongs to the axis of the step."""
        return self.first_dims[self._axis_first_block_dim]

    @property
    def _axis_first_block_dim(self) -> int:
        """First dimension of a block that belongs to the axis of the step."""
        return self.round.source.first_dims[self.step.axis]

    @property
    def last_stage(self) -> int:
        """Stage of the digits after all steps."""
        return 2 if self.step.turns_back else 1

    def digit_step(self, number: int) -> "_DigitStep":
        """Return one of the digit steps, with the digits before and after it."""
        digits = [step.source for step in self.steps[: len(self.lengths)]]
        for step in self.steps[:number]:
            digits[digits.index(step.source)] = step.target
        step = self.steps[number]
        place = digits.index(step.source)
        digits_after = digits.copy()
        digits_after[place] = step.target
        return _DigitStep(
            self,
            number,
            step,
            dim=self.first_dim + place,
            digits_before=digits,
            digits_after=digits_after,
        )

    def digit_index(self, digits: Sequence[Digit], stage: int, stride: int = 1) -> Index:
        """Return the index that the digits of one stage make, times a stride.

        Parameters
        ----------
        digits : sequence of Digit
            The digit in each dimension of the tile that belongs to the step.
        stage : int
            Stage of the index; digits of other stages are ignored.
        stride : int
            Factor of the index.
        """
        terms: list[Term] = []
        for dim, digit in enumerate(digits, self.first_dim):
            if digit.stage == stage and digit.size > 1:
                terms.append(_position(dim, digit.stride * stride))
        # Without such a digit the index is 0. Its term still tells the dimension of the step, in
        # which the only digit has a single value.
        return tuple(terms) or (_position(self.first_dim, stride),)

    def other_index(self, layout: Layout, stage: int) -> Index:
        """Return the index of a stage from the other dimensions of the axis.

        Parameters
        ----------
        layout : Layout
            Blocks of the round before or after.
        stage : int
            Stage of the index in this layout.
        """
        terms = axis_terms(
            layout.axes[self.step.axis],
            stage,
            self._axis_first_block_dim,
            skip=self.block_dim,
        )
        return _on_tile(terms, self.first_dims)


def _position(dim: int, stride: int) -> Term:
    """Return the position along a dimension, times a stride."""
    return Term(
        dim,
        divisor=1,
        modulus=NO_MODULUS,
        stride=stride,
    )


def _on_tile(terms: Index, first_dims: Shape) -> Index:
    """Return terms with the dimensions of a tile in place of those of a block."""
    return tuple(replace(term, dim=first_dims[term.dim]) for term in terms)


@dataclass(frozen=True, eq=False)
class _DigitStep:
    """Step over one digit of a split step: its FFTs, and the factors before and after them.

    Parameters
    ----------
    split_step : SplitStep
        The step of the round.
    number : int
        Number of this step among its digit steps.
    step : Step
        The step over one digit.
    dim : int
        Dimension of the tile that is transformed.
    digits_before, digits_after : list of Digit
        Digit in each dimension of the split step, before and after this step.
    """

    split_step: SplitStep
    number: int
    step: Step
    dim: int
    digits_before: list[Digit]
    digits_after: list[Digit]

    @property
    def has_product(self) -> bool:
        """True if the product with a transfer function is inside."""
        return self.step.between is not None

    @property
    def is_last(self) -> bool:
        """True if this is the last digit step."""
        return self.number == self.split_step.last_number

    @property
    def first_fft(self) -> FFT:
        """FFTs over the digit: those before a product, which leave the divisor to the last ones."""
        step = self.step
        divisor = ONE if step.turns_back else self._fft_divisor
        return self._fft(step.kind, step.sign, divisor)

    @property
    def last_fft(self) -> FFT:
        """FFTs over the digit after a product, else the only ones."""
        step = self.step
        return self._fft(step.last_kind, step.last_sign, self._fft_divisor)

    def _fft(self, kind: Kind, sign: int, divisor: Divisor) -> FFT:
        """Return FFTs over the digit."""
        return FFT(
            kind,
            dims=(self.dim,),
            lengths=(self.step.length,),
            sign=sign,
            divisor=divisor,
        )

    @property
    def _fft_divisor(self) -> Divisor:
        """Divisor of the last FFT: that of the whole step if no factor after it divides."""
        whole_step = self.split_step.step
        has_factor = whole_step.twiddle is not None or whole_step.chirp_out is not None
        return whole_step.divisor if self.is_last and not has_factor else ONE

    @property
    def filter(self) -> Product:
        """Product with the spectrum of a filter, after the first FFT of a convolution."""
        split_step = self.split_step
        return Product(
            operand=split_step.step.operand,
            axis=split_step.step.axis,
            dim=split_step.first_dim,
            first=split_step.axis_first_dim,
            lengths=split_step.lengths,
        )

    @property
    def frequency_index(self) -> Index:
        """Frequency along the dimensions of the split step, at the product inside or at the end."""
        split_step = self.split_step
        digits = list(self.digits_after)
        if self.step.between is not None:
            digits[self.dim - split_step.first_dim] = self.step.between
        frequency_digit = split_step.step.between or split_step.step.target
        return split_step.digit_index(digits, stage=1, stride=frequency_digit.stride)

    @property
    def chirp_in(self) -> ChirpFactor | None:
        """Chirp that multiplies the input of the split step, if it has one."""
        split_step = self.split_step
        step = split_step.step
        if self.number > 0 or step.chirp_in is None:
            return None
        return ChirpFactor(
            step.chirp_in,
            own=split_step.digit_index(self.digits_before, stage=0, stride=step.source.stride),
            others=split_step.other_index(split_step.round.source, step.source.stage),
        )

    @property
    def inner_twiddle(self) -> Twiddle | None:
        """Twiddle with the digits of the split step that are still to be transformed, if any."""
        step = self.step
        if step.twiddle is None:
            return None
        return Twiddle(
            step.twiddle,
            step.last_sign,  # after a product the twiddle belongs to the FFT back
            own=(_position(self.dim, 1),),
            others=self.split_step.digit_index(self.digits_after, stage=step.target.stage - 1),
        )

    @property
    def outer_twiddle(self) -> Twiddle | None:
        """Twiddle with the other digits of the axis that are still to be transformed, if any."""
        split_step = self.split_step
        step = split_step.step
        if not self.is_last or step.twiddle is None:
            return None
        return Twiddle(
            step.twiddle,
            step.last_sign,
            own=split_step.digit_index(self.digits_after, split_step.last_stage),
            others=split_step.other_index(split_step.round.target, step.target.stage - 1),
            divisor=ONE if step.chirp_out is not None else step.divisor,
        )

    @property
    def chirp_out(self) -> ChirpFactor | None:
        """Chirp that multiplies the output of the split step, if it has one."""
        split_step = self.split_step
        step = split_step.step
        if not self.is_last or step.chirp_out is None:
            return None
        return ChirpFactor(
            step.chirp_out,
            own=split_step.digit_index(
                self.digits_after,
                split_step.last_stage,
                stride=step.target.stride,
            ),
            others=split_step.other_index(split_step.round.target, step.target.stage),
            divisor=step.divisor,
        )


def _pass_program(
    round_: Round,
    steps: Sequence[_DigitStep],
    transfer: Transfer | None,
) -> Program:
    """Return the program of a pass of a round, with a product if there is a transfer function."""
    operations: list[Operation] = []
    operations += [step.first_fft for step in steps if step.step.kind == "r2c"]
    operations += _multiplications([step.chirp_in for step in steps])
    operations += _complex_operations(round_, steps, transfer)
    factors_after: list[Twiddle | ChirpFactor | None] = []
    factors_after += [step.inner_twiddle for step in steps]
    factors_after += [step.outer_twiddle for step in steps]
    factors_after += [step.chirp_out for step in steps]
    operations += _multiplications(factors_after)
    operations += [step.last_fft for step in steps if step.step.last_kind == "c2r"]
    return Program(tuple(_joined(operations)), tuple(step.dim for step in steps))


def _multiplications(factors: Sequence[Twiddle | ChirpFactor | None]) -> list[Multiply]:
    """Return one product with all factors, or none if all of them are None."""
    own_factors = tuple(factor for factor in factors if factor is not None)
    return [Multiply(own_factors)] if own_factors else []


def _complex_operations(
    round_: Round,
    steps: Sequence[_DigitStep],
    transfer: Transfer | None,
) -> Iterator[Operation]:
    """Yield the complex FFTs of a pass, then each product and the complex FFTs back after it."""
    yield from _first_complex_ffts(round_, steps)
    complex_steps = [step for step in steps if step.step.kind == "c2c"]
    for step in complex_steps:
        if step.step.convolve is not None:
            yield step.filter
            yield step.last_fft
    if transfer is not None:
        yield transfer
        yield from _at_once([step.last_fft for step in complex_steps if step.has_product])


def _first_complex_ffts(round_: Round, steps: Sequence[_DigitStep]) -> Iterable[FFT]:
    """Return the complex FFTs of a pass before its products."""
    complex_ffts = [step.first_fft for step in steps if step.step.kind == "c2c"]
    if round_.multiplies or not round_.leaves_out_lines:
        return _at_once(complex_ffts)
    real_dims = [step.dim for step in steps if step.step.kind == "r2c"]
    return _ffts_of_some_lines(round_, real_dims, complex_ffts)


def _at_once(complex_ffts: Sequence[FFT]) -> list[FFT]:
    """Return complex FFTs over different dimensions, as one operation for each sign."""
    together: dict[int, FFT] = {}
    for fft in complex_ffts:
        others = together.get(fft.sign)
        together[fft.sign] = fft if others is None else fft.with_complex(others)
    return list(together.values())


def _transfer(round_: Round, steps: Sequence[_DigitStep], first_dims: Shape) -> Transfer:
    """Return the product with the transfer function of an operator in a pass.

    Parameters
    ----------
    round_ : Round
        The round.
    steps : sequence of _DigitStep
        Steps of the pass.
    first_dims : tuple of int
        First dimension of the tile for each dimension of a block, and their number.
    """
    step_of_axis = {step.split_step.step.axis: step for step in steps}
    band_of_axis = {band.axis: band for band in round_.bands}
    spectrum = round_.spectrum
    axes: list[AxisFrequencies] = []
    for axis, layout in enumerate(spectrum.axes):
        stage = max(digit.stage for digit in layout.digits)  # 0: the axis is not transformed
        step = step_of_axis.get(axis)
        terms = axis_terms(
            layout,
            stage,
            spectrum.first_dims[axis],
            skip=None if step is None else step.split_step.block_dim,
        )
        index = _on_tile(terms, first_dims)
        if step is not None:
            index += step.frequency_index
        ends = [digit.stride * digit.radix for digit in layout.digits if digit.stage == stage]
        axes.append(
            AxisFrequencies(
                axis,
                length=max(ends),
                index=index,
                band=band_of_axis.get(axis),
            )
        )
    return Transfer(
        operand=0,
        axes=tuple(axes),
        first_dims=tuple(first_dims[dim] for dim in spectrum.first_dims),
    )


def _ffts_of_some_lines(
    round_: Round,
    real_dims: Sequence[int],
    complex_ffts: Sequence[FFT],
) -> Iterator[FFT]:
    """Yield the complex FFTs of a pass, each of the lines that matter to it.

    Along a dimension that is still to be transformed, lines outside of the window that is not zero
    do not matter. Along one that is transformed already, lines outside of the window that is stored
    do not. FFTs that leave the fewest lines to the others come first.

    Parameters
    ----------
    round_ : Round
        The round.
    real_dims : sequence of int
        Dimensions of FFTs of real values, which are done before.
    complex_ffts : sequence of FFT
        The complex FFTs, each over one dimension.
    """
    nonzero = {window.dim: window for window in round_.windows_in}
    stored: dict[int, StoredWindow] = {}
    for window in round_.windows:
        if window.read.count < window.size:
            stored[window.dim] = window.read

    def change_of_share(fft: FFT) -> float:
        """Return the share of lines for other FFTs after this one, less that before it."""
        (dim,) = fft.dims
        share_after = stored[dim].share if dim in stored else 1.0
        share_before = nonzero[dim].share if dim in nonzero else 1.0
        return share_after - share_before

    # Windows outside of which lines do not matter now.
    windows = {dim: window for dim, window in nonzero.items() if dim not in real_dims}
    windows |= {dim: stored[dim] for dim in real_dims if dim in stored}
    for fft in sorted(complex_ffts, key=change_of_share):
        (dim,) = fft.dims
        windows.pop(dim, None)
        yield replace(fft, lines=tuple(windows.values()))
        if dim in stored:
            windows[dim] = stored[dim]


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


def _joined(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations with an FFT of real values and complex ones after it as one FFT."""
    joined: list[Operation] = []
    for operation in operations:
        last = joined[-1] if joined else None
        if isinstance(last, FFT) and isinstance(operation, FFT) and _may_join(last, operation):
            joined[-1] = last.with_complex(operation)
        else:
            joined.append(operation)
    return joined


def _may_join(fft: FFT, next_fft: FFT) -> bool:
    """Return whether a library does an FFT of real values and the complex one after it at once."""
    is_real_first = fft.kind == "r2c" and next_fft.kind == "c2c"
    return is_real_first and fft.sign == next_fft.sign and not next_fft.lines
