"""Steps of one axis: the FFT of each digit, and the twiddles and chirps around it.

For N = F1*F2*...*Fm in the order in which the digits are transformed, step j replaces the
input digit n_j (stride F_{j+1}*...*F_m) by the output digit k_j (stride F_1*...*F_{j-1}) and
multiplies by the twiddle

    W_M^(k_j * r),   M = F_j*...*F_m,   r = the index made of the digits still to come.

Real input is halved on the first digit (k1 = 0..F1//2), real output is made on the last.

A length that has no useful split is transformed by Bluestein's algorithm as a convolution of
smooth length M >= 2N - 1 (L. I. Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970):

    X[k] = c[k] * sum_n (x[n] c[n]) * conj(c[k - n]),   c[n] = exp(-i pi n^2 / N).

Its forward and inverse FFT of length M are steps like any other; the last forward and the
first inverse step work on the same digit and are one step (*convolve*), so the reordering
between them never happens.

An operator is a forward FFT, a product over all axes and an inverse FFT. The inverse transforms the
digits in reverse order, so that its steps mirror those of the forward FFT. Where the last forward
step of an axis is in the round of the product, it and the first inverse step are one step
(*between*), too.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from dask_bigfft.transforms.factors import transposed_digits
from dask_bigfft.transforms.layout import Digit, Order, flat_digits, half

Kind = Literal["c2c", "r2c", "c2r"]

#: Metadata of a field that is written to JSON only where it is set.
OPTIONAL = MappingProxyType({"optional": True})


@dataclass(frozen=True)
class Chirp:
    """The factor ``i**turns * exp(sign * i*pi * (step*n + offset)**2 / length)`` of place n."""

    length: int
    sign: int
    step: int = 1
    offset: int = 0
    turns: int = 0


@dataclass(frozen=True)
class CosineSum:
    """Sum over cosines or sines along one axis, in place of a Fourier transform.

    The real part of ``i**turns * sum_n x[n] exp(-2i*pi * (n + first/2) * (k + second/2) / period)``
    for as many k as there are n. Bluestein's algorithm takes any such product of indices apart,
    p*q = (p**2 + q**2 - (q - p)**2)/2, so halves and any period cost no more than a transform of
    that many points does.

    Parameters
    ----------
    period : int
        Of the waves, in samples.
    first, second : int
        What is added to the indices, in halves.
    turns : int
        Quarter turns: 0 for cosines, 1 for sines.
    """

    period: int
    first: int
    second: int
    turns: int = 0

    def chirps(self) -> tuple[Chirp, Chirp, Chirp]:
        """Return the chirps before the convolution, of the convolution, and after it.

        >>> [c.offset for c in CosineSum(8, 1, 0).chirps()]
        [1, -1, 0]
        """
        length = 4 * self.period
        return (
            Chirp(length, -1, 2, self.first),
            Chirp(length, +1, 2, self.second - self.first),
            Chirp(length, -1, 2, self.second, self.turns),
        )


@dataclass(frozen=True)
class Divisor:
    """The divisor ``whole * sqrt(root)``, kept exact until it is used.

    >>> Divisor(2) * Divisor(3, 5)
    Divisor(whole=6, root=5)
    """

    whole: int = 1
    root: int = 1

    def __mul__(self, other: "Divisor") -> "Divisor":
        return Divisor(self.whole * other.whole, self.root * other.root)

    @property
    def value(self) -> float:
        """The divisor in double precision."""
        return self.whole * math.sqrt(self.root)


@dataclass(frozen=True)
class Step:
    """Transform of one digit of an axis, with the factors before and after it.

    Parameters
    ----------
    axis : int
        Axis of the array.
    source, target : Digit
        The digit before and after.
    kind : {"c2c", "r2c", "c2r"}
        Transform of the digit.
    sign : {-1, 1}
        Sign in the exponent.
    divisor : Divisor
        Divisor of the step: that of the whole transform in one of its steps (`rounds.divided`).
    twiddle : int or None
        Modulus M of the twiddle that follows.
    convolve : Chirp or None
        Chirp with whose spectrum the transformed digit is multiplied, before it is
        transformed back with the opposite sign. The spectrum bears the 1/M of the inverse.
    chirp_in, chirp_out : Chirp or None
        Chirp that multiplies the step's input or output.
    operand : int
        Number of the spectrum of `convolve` among the operands of the plan.
    between : Digit or None
        For the step of an operator with the product inside: the digit at the product. The digit is
        then transformed back with the opposite sign, real values to real values.
    """

    axis: int
    source: Digit
    target: Digit
    kind: Kind = "c2c"
    sign: int = -1
    divisor: Divisor = Divisor()
    twiddle: int | None = None
    convolve: Chirp | None = None
    chirp_in: Chirp | None = None
    chirp_out: Chirp | None = None
    operand: int = 0
    between: Digit | None = field(default=None, metadata=OPTIONAL)

    @property
    def length(self) -> int:
        """Length of the FFTs."""
        return self.source.radix

    @property
    def turns_back(self) -> bool:
        """True if the digit is transformed back after a product, by which the step ends."""
        return self.convolve is not None or self.between is not None

    @property
    def last_sign(self) -> int:
        """Sign in the exponent of the last FFT of the step, and of its twiddle."""
        return -self.sign if self.turns_back else self.sign

    @property
    def last_kind(self) -> Kind:
        """Kind of the last FFT of the step."""
        return "c2r" if self.kind == "r2c" and self.between is not None else self.kind

    @property
    def halves(self) -> tuple["Step", "Step"]:
        """The step to the digit at the product inside, and the step back from that digit."""
        assert self.between is not None
        forward_step = replace(
            self,
            target=self.between,
            twiddle=None,
            divisor=Divisor(),
            between=None,
        )
        step_back = replace(
            self,
            source=self.between,
            kind=self.last_kind,
            sign=self.last_sign,
            between=None,
        )
        return forward_step, step_back

    @property
    def has_chirps(self) -> bool:
        """True for steps of Bluestein's algorithm that multiply by a chirp, or by its spectrum."""
        return (self.chirp_in, self.convolve, self.chirp_out) != (None, None, None)

    @cached_property
    def factors(self) -> int:
        """Number of twiddles, spectra and chirps by which values are multiplied."""
        return 4 - (self.twiddle, self.convolve, self.chirp_in, self.chirp_out).count(None)


def _follow(digits: Sequence[Digit]) -> bool:
    """Return True if digits follow one another as in a contiguous axis.

    >>> _follow([Digit(0, 4, 3, 3), Digit(0, 1, 4, 4)])
    True
    """
    pairs = itertools.pairwise(digits)
    return all(outer.stride == inner.stride * inner.radix for outer, inner in pairs)


@dataclass(frozen=True)
class AxisProgram:
    """All steps of one axis, and its digits in the input and in the result.

    Parameters
    ----------
    axis, length : int
        Axis of the array and length N of its transform.
    factors : tuple of int
        Lengths of the digits in the order in which they are transformed.
    steps : tuple of Step
        In order; one per digit (Bluestein: one less than twice the digits, operators: twice the
        digits, or one less if a step has the product inside).
    source, target : tuple of Digit
        Digits of the axis in the input and in the result, outermost first.
    mirror : int or None
        N where a half spectrum has to be completed by X[N - k] = conj X[k], else None.
    bluestein : bool
        Whether the axis is transformed by Bluestein's algorithm.
    """

    axis: int
    length: int
    factors: tuple[int, ...]
    steps: tuple[Step, ...]
    source: tuple[Digit, ...]
    target: tuple[Digit, ...]
    mirror: int | None = None
    bluestein: bool = False

    @property
    def input_digits(self) -> tuple[Digit, ...]:
        """Digits of the input that steps transform, outermost first.

        They are in the order of the input if it has just these digits, else in that of the steps.
        """
        digits = tuple(step.source for step in self.steps if step.source.stage == 0)
        return self.source if set(self.source) == set(digits) else digits

    def in_place(self, count: int) -> tuple[Digit, ...]:
        """Return the digits after the first `count` steps if none is moved, outermost first.

        Not for Bluestein's algorithm, and only for the forward steps of operators. After all steps,
        digits that follow one another as in a whole axis are one digit again.
        """
        targets = {step.source: step.target for step in self.steps[:count]}
        digits = tuple(targets.get(digit, digit) for digit in self.input_digits)
        if count < len(self.steps) or len(self.target) > 1:
            return digits
        is_whole_axis = _follow(digits) and not any(digit.is_partial for digit in digits)
        return self.target if is_whole_axis else digits

    @property
    def stays(self) -> bool:
        """True if the input has its digits at the places of `in_place`."""
        digits = self.in_place(0)
        return digits == self.source or (len(self.source) == 1 and _follow(digits))

    @property
    def completes_input(self) -> bool:
        """True if half a spectrum is completed before the first step."""
        if self.mirror is None or len(self.source) > 1:
            return False
        return self.bluestein or (self.steps[-1].kind == "c2r" and len(self.steps) > 1)

    @property
    def completes_result(self) -> bool:
        """True if half a spectrum is completed after the last step."""
        if self.mirror is None or len(self.target) > 1:
            return False
        return self.steps[0].kind == "r2c" and len(self.steps) > 1


def _cooley_tukey(
    axis: int,
    factors: tuple[int, ...],
    kind: Kind,
    sign: int,
    stage: int = 0,
) -> tuple[Step, ...]:
    """Return the steps of an axis of length ``prod(factors)``; `stage` is that of its input.

    >>> steps = _cooley_tukey(0, (4, 3), "r2c", -1)
    >>> [(step.kind, step.source.size, step.target.size) for step in steps]
    [('r2c', 4, 3), ('c2c', 3, 3)]
    """
    kinds: list[Kind] = ["c2c"] * len(factors)
    if kind == "r2c":
        kinds[0] = "r2c"
    if kind == "c2r":
        kinds[-1] = "c2r"
    source_stride = math.prod(factors)
    target_stride = 1
    steps = []
    for number, radix in enumerate(factors):
        is_last = number == len(factors) - 1
        step_kind = kinds[number]
        twiddle = None if is_last else source_stride
        source_stride //= radix
        source = Digit(
            stage,
            source_stride,
            size=half(radix) if step_kind == "c2r" else radix,
            radix=radix,
        )
        target = Digit(
            stage + 1,
            target_stride,
            size=half(radix) if step_kind == "r2c" else radix,
            radix=radix,
        )
        step = Step(
            axis,
            source,
            target,
            step_kind,
            sign,
            twiddle=twiddle,
        )
        steps.append(step)
        target_stride *= radix
    return tuple(steps)


def _bluestein_steps(
    axis: int, factors: tuple[int, ...], chirps: tuple[Chirp, Chirp, Chirp]
) -> tuple[Step, ...]:
    """Return forward steps, convolution and inverse steps on a smooth length ``prod(factors)``."""
    chirp_in, chirp_between, chirp_out = chirps
    forward = _cooley_tukey(axis, factors, "c2c", -1)
    inverse = _cooley_tukey(axis, factors[::-1], "c2c", +1, stage=1)
    middle = replace(_joined(forward[-1], inverse[0]), convolve=chirp_between)
    steps = [*forward[:-1], middle, *inverse[1:]]
    steps[0] = replace(steps[0], chirp_in=chirp_in)
    steps[-1] = replace(steps[-1], chirp_out=chirp_out)
    return tuple(steps)


def _joined(step: Step, step_back: Step) -> Step:
    """Return the step that transforms a digit forth and back, without what is between."""
    return replace(step, target=step_back.target, twiddle=step_back.twiddle)


def axis_program(
    axis: int,
    length: int,
    factors: tuple[int, ...],
    *,
    kind: Kind = "c2c",
    sign: int = -1,
    order_in: Order = "natural",
    order_out: Order = "natural",
    digits: tuple[int, ...] | None = None,
    bluestein: bool = False,
    waves: CosineSum | None = None,
) -> AxisProgram:
    """Return the program of an axis of `length` by FFTs of the lengths `factors`.

    The product of the factors must be `length`; with ``bluestein`` it must be a smooth length of at
    least 2*length - 1. The caller checks this. `digits` give a transposed order that is not the
    canonical one. `waves` need ``bluestein``; their chirps replace those of a Fourier transform.

    Examples
    --------
    >>> program = axis_program(0, 12, (3, 4))
    >>> [(s.source.stride, s.target.stride, s.twiddle) for s in program.steps]
    [(4, 1, 12), (1, 3, None)]
    """
    if bluestein:
        chirp = Chirp(length, sign)
        chirps = (chirp, Chirp(length, -sign), chirp)
        if waves is not None:
            chirps = waves.chirps()
        return _bluestein_program(
            axis,
            length,
            factors,
            kind,
            chirps,
        )
    digits_in = digits
    digits_out = digits
    if order_in == order_out == "transposed":
        digits_in = digits or transposed_digits(length)
        digits_out = digits_in[::-1]
    return AxisProgram(
        axis,
        length,
        factors,
        steps=_cooley_tukey(axis, factors, kind, sign),
        source=flat_digits(0, length, order_in, real=kind == "c2r", digits=digits_in),
        target=flat_digits(1, length, order_out, real=kind == "r2c", digits=digits_out),
        mirror=None if kind == "c2c" else length,
    )


def _bluestein_program(
    axis: int,
    length: int,
    factors: tuple[int, ...],
    kind: Kind,
    chirps: tuple[Chirp, Chirp, Chirp],
) -> AxisProgram:
    """Return the program of an axis by Bluestein's algorithm, for `axis_program`.

    Only the values of the axis are stored in the input and in the result, or half a spectrum of
    them, and not the padding.
    """
    padded_length = math.prod(factors)
    size_in = half(length) if kind == "c2r" else length
    size_out = half(length) if kind == "r2c" else length
    return AxisProgram(
        axis,
        length,
        factors,
        steps=_bluestein_steps(axis, factors, chirps),
        source=(Digit(0, 1, size_in, padded_length),),
        target=(Digit(2, 1, size_out, padded_length),),
        mirror=length if kind == "c2r" else None,
        bluestein=True,
    )


def operator_program(
    axis: int,
    factors: tuple[int, ...],
    *,
    kind: Kind = "c2c",
    sign: int = -1,
    fused: bool = True,
    length_back: int | None = None,
) -> AxisProgram:
    """Return the program of an axis of an operator: an FFT of length ``prod(factors)`` and back.

    Parameters
    ----------
    axis : int
        Axis of the array.
    factors : tuple of int
        Lengths of the digits in the order of the forward FFT.
    kind : {"c2c", "r2c"}
        Kind of the forward FFT.
    sign : {-1, 1}
        Sign in the exponent of the forward FFT.
    fused : bool
        Whether the last forward and the first inverse step are one step, with the product inside.
    length_back : int, optional
        Length of the inverse FFT, if it is another one. There is one factor then.

    Examples
    --------
    >>> program = operator_program(0, (3, 4))
    >>> [(s.length, s.source.stage, s.target.stage) for s in program.steps]
    [(3, 0, 1), (4, 0, 2), (3, 1, 2)]
    """
    length = math.prod(factors)
    forward = _cooley_tukey(axis, factors, kind, sign)
    inverse_kind: Kind = "c2r" if kind == "r2c" else kind
    length_out = length
    factors_back = factors[::-1]
    if length_back is not None:
        length_out = length_back
        factors_back = (length_back,)
    inverse = _cooley_tukey(
        axis,
        factors_back,
        inverse_kind,
        -sign,
        stage=1,
    )
    steps = (*forward, *inverse)
    if fused:
        middle = replace(_joined(forward[-1], inverse[0]), between=forward[-1].target)
        steps = (*forward[:-1], middle, *inverse[1:])
    return AxisProgram(
        axis,
        length,
        factors,
        steps,
        source=(Digit(0, 1, length, length),),
        target=(Digit(2, 1, length_out, length_out),),
    )
