r"""Cosine and sine transforms of types I to IV as FFTs of an axis in another order.

Each is an arrangement of the input, an FFT, and an arrangement of the output, with element-wise
factors before and after the FFT. C and S stand for cosine and sine, N for the length::

    type  FFT of                       arrangement
    II    N real points                even places, then odd ones backwards (Makhoul, IEEE Trans.
                                       Acoust. Speech Signal Process. 28, 1980); C[k] and C[N-k] are
                                       the real and imaginary part of one phase times X[k]
    III   the same backwards
    IV    N/2 complex points           x[2n] + i x[N-1-2n], C[2k] - i C[N-1-2k]
          N real points, for odd N     every fourth place of the extension, from its middle
    I     2(N - 1) or 2(N + 1) points  the even or odd extension

Type IV of odd length: let f be the input at odd places m = 2n + 1, continued even about 0 and odd
about 2N, h = (N - 1)/2, and X the FFT of the real (-1)^j f(N + 4j), j < N. From
(N + 4j)(N + 2k) / 8N = (N + 2k)/8 + j/2 + jk/N follows for all k from -h to h::

    C[h + k] = 2 Re(exp(-i pi (N + 2k)/4) X[k])

so that every point of half a spectrum gives the two values at equal distances from the middle
(S. C. Chan and K. L. Ho, IEEE Trans. Circuits Syst. II 39, 1992, for other index maps).

Where the FFT's length can not be split, types II, III, I, and IV of odd length are no FFT but the
sum of their definition, by Bluestein's algorithm, without rearrangement (`CosineSum`).

Sines are cosines of the input with every other sign changed, or of the reversed input. Where an
FFT has complex input or output, an arrangement has two values for each of its points: its real and
its imaginary part, told apart by a digit of their own.
"""

from dataclasses import dataclass, replace
from typing import Literal

from dask_bigfft.transforms.factors import transposed_digits
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Digit,
    Group,
    Range,
    even_chunks,
    flat_digits,
    size_of,
)
from dask_bigfft.transforms.steps import CosineSum

Type = Literal[1, 2, 3, 4]


@dataclass(frozen=True)
class Cosines:
    """A cosine or sine transform of one axis, without its scale.

    Parameters
    ----------
    sine : bool
        True for a sine transform.
    type : {1, 2, 3, 4}
        Type of the transform.
    length : int
        N.
    orthogonalize : bool
        True to scale the first or last values so that the matrix is orthogonal.
    digits : tuple of int, optional
        Digits of the FFT's input; its output has them reversed. The default are the digits of
        transposed order.
    """

    sine: bool
    type: Type
    length: int
    orthogonalize: bool = False
    digits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Fill in the default."""
        if not self.digits:
            object.__setattr__(self, "digits", self.halving(transposed_digits(self.points)))

    def halving(self, digits: tuple[int, ...]) -> tuple[int, ...]:
        """Return the digits of the FFT's input in the order that makes half a spectrum smaller.

        >>> Cosines(False, 2, 12).digits, Cosines(False, 3, 12).digits
        ((3, 4), (4, 3))
        """
        return tuple(sorted(digits, reverse=self.type == 3))

    @property
    def points(self) -> int:
        """Length of the FFT."""
        if self.type == 1:
            return 2 * (self.length + (1 if self.sine else -1))
        return self.length // 2 if self.halved else self.length

    @property
    def halved(self) -> bool:
        """True if two real values make one complex point: type IV of even length."""
        return self.type == 4 and self.length % 2 == 0

    @property
    def name(self) -> str:
        """Name of the FFT."""
        if self.halved:
            return "fft"
        return "irfft" if self.type == 3 else "rfft"

    @property
    def pairs_in(self) -> bool:
        """True if the input of the FFT is arranged in pairs of real and imaginary parts."""
        return self.type == 3 or self.halved

    @property
    def pairs_out(self) -> bool:
        """True if the output of the FFT is arranged in pairs of real and imaginary parts."""
        return self.type in (2, 4)

    def has_pairs(self, *, out: bool) -> bool:
        """Return whether the output, or the input, is arranged in pairs."""
        return self.pairs_out if out else self.pairs_in

    @property
    def waves(self) -> CosineSum:
        """The sum over cosines or sines that defines the transform, divided by 2.

        >>> Cosines(True, 2, 8).waves
        CosineSum(period=16, first=1, second=2, turns=1)
        """
        # Indices are counted in halves: 1 stands for half a sample.
        first = 1 if self.type in (2, 4) else 0
        second = 1 if self.type in (3, 4) else 0
        if self.sine:  # whole samples are counted from 1 on
            first = first or 2
            second = second or 2
        period = self.points if self.type == 1 else 2 * self.length
        return CosineSum(
            period,
            first,
            second,
            turns=int(self.sine),
        )

    def runs(self, *, out: bool) -> tuple[Range, ...]:
        """Return the places of the FFT's values in the input or output array.

        >>> [(run.place, run.step, run.count) for run in Cosines(False, 2, 5).runs(out=False)]
        [(0, 2, 3), (3, -2, 2)]
        """
        # Type III is type II backwards. The sine is the cosine of values whose sign changes with
        # every place on one side, the even one, and that are reversed on the other side.
        is_even_side = out if self.type in (3, 4) else not out
        runs = self._runs_of_cosine(out, is_even_side)
        if self.sine and self.type != 1 and not is_even_side:
            runs = tuple(_reversed(run, self.length) for run in runs)
        return tuple(run for run in runs if run.count > 0)

    def _runs_of_cosine(self, out: bool, is_even_side: bool) -> tuple[Range, ...]:
        """Return the runs of the cosine transform, or of type I of either; some may be empty."""
        if self.type == 1:
            return _extended(self.length, self.sine)
        if self.halved:
            return _from_both_ends(self.length)
        if self.type == 4:
            return _centred(self.length) if out else _quartered(self.length)
        if is_even_side:
            return _even_places_first(self.length)
        return _parts_from_both_ends(self.length)


def _reversed(run: Range, n: int) -> Range:
    """Return a run in the reversed array of n places."""
    return replace(run, place=n - 1 - run.place, step=-run.step)


def _extended(n: int, is_odd: bool) -> tuple[Range, ...]:
    """Return runs of the even extension of n values, or of the odd one, which has zeros between.

    >>> [(run.low, run.place, run.step, run.count) for run in _extended(3, is_odd=False)]
    [(0, 0, 1, 3), (3, 1, -1, 1)]
    """
    if is_odd:
        values = Range(
            low=1,
            count=n,
            place=0,
            step=1,
        )
        backwards = Range(
            low=n + 2,
            count=n,
            place=n - 1,
            step=-1,
        )
        return values, backwards
    values = Range(
        low=0,
        count=n,
        place=0,
        step=1,
    )
    backwards = Range(
        low=n,
        count=n - 2,
        place=n - 2,
        step=-1,
    )
    return values, backwards


def _even_places_first(n: int) -> tuple[Range, ...]:
    """Return runs with the even places, and then the odd ones backwards."""
    even_count = (n + 1) // 2
    odd_count = n - even_count
    even_places = Range(
        low=0,
        count=even_count,
        place=0,
        step=2,
    )
    odd_places = Range(
        low=even_count,
        count=odd_count,
        place=2 * odd_count - 1,
        step=-2,
    )
    return even_places, odd_places


def _from_both_ends(n: int) -> tuple[Range, ...]:
    """Return runs with the real part of point k at 2k, and the imaginary part at n - 1 - 2k."""
    points = n // 2
    real_parts = Range(
        low=0,
        count=points,
        place=0,
        step=2,
    )
    imaginary_parts = Range(
        low=points,
        count=points,
        place=n - 1,
        step=-2,
    )
    return real_parts, imaginary_parts


def _parts_from_both_ends(n: int) -> tuple[Range, ...]:
    """Return runs with the real part of point k at place k, and the imaginary part at n - k.

    Point 0 has no imaginary part.
    """
    real_parts = Range(
        low=0,
        count=n,
        place=0,
        step=1,
    )
    imaginary_parts = Range(
        low=n + 1,
        count=n - 1,
        place=n - 1,
        step=-1,
    )
    return real_parts, imaginary_parts


def _quartered(n: int) -> tuple[Range, ...]:
    """Return runs with point j at the folded place of n + 4j (even about 0, odd about 2n).

    >>> [(run.place, run.step, run.count) for run in _quartered(7)]
    [(3, 2, 2), (6, -2, 4), (1, 2, 1)]
    """
    # n + 4j reaches 2n at j = n/4 and 4n at j = 3n/4, where the folded places turn round.
    first_turn = -(-n // 4)
    second_turn = -(-3 * n // 4)
    rising = Range(
        low=0,
        count=first_turn,
        place=(n - 1) // 2,
        step=2,
    )
    falling = Range(
        low=first_turn,
        count=second_turn - first_turn,
        place=(3 * n - 1) // 2 - 2 * first_turn,
        step=-2,
    )
    rising_again = Range(
        low=second_turn,
        count=n - second_turn,
        place=2 * second_turn - (3 * n + 1) // 2,
        step=2,
    )
    return rising, falling, rising_again


def _centred(n: int) -> tuple[Range, ...]:
    """Return runs with the real part of point k at h + k, the imaginary part at h - k, |k| <= h.

    The middle h is (n - 1)/2.

    >>> [(run.low, run.place, run.step, run.count) for run in _centred(5)]
    [(0, 2, 1, 3), (3, 0, 1, 2), (6, 1, -1, 2), (8, 4, -1, 2)]
    """
    middle = n // 2
    # Points 0 to h of the FFT have the frequencies k = 0 to h, and the others those from -h to -1.
    real_parts = Range(
        low=0,
        count=middle + 1,
        place=middle,
        step=1,
    )
    real_parts_below = Range(
        low=middle + 1,
        count=middle,
        place=0,
        step=1,
    )
    imaginary_parts = Range(
        low=n + 1,
        count=middle,
        place=middle - 1,
        step=-1,
    )
    imaginary_parts_below = Range(
        low=n + middle + 1,
        count=middle,
        place=n - 1,
        step=-1,
    )
    return real_parts, real_parts_below, imaginary_parts, imaginary_parts_below


def array_axis(plan: Cosines, chunks: Chunks, *, out: bool) -> AxisLayout:
    """Return the layout of the input or output array: natural order, with an arrangement."""
    point = Digit(
        stage=0,
        stride=1,
        size=plan.points,
        radix=plan.points,
    )
    digits = (_part_digit(plan), point) if plan.has_pairs(out=out) else (point,)
    group = Group(digits, chunks, arrangement=plan.runs(out=out))
    return AxisLayout((group,))


def _part_digit(plan: Cosines) -> Digit:
    """Return the digit that tells the real part of a point, 0, and the imaginary part, 1, apart."""
    return Digit(
        stage=0,
        stride=plan.points,
        size=2,
        radix=2,
    )


def point_digits(plan: Cosines, *, out: bool) -> tuple[Digit, ...]:
    """Return the digits of the FFT's input or output, outermost first."""
    digits = plan.digits[::-1] if out else plan.digits
    halved_name = "rfft" if out else "irfft"
    return flat_digits(
        0,
        plan.points,
        "transposed",
        real=plan.name == halved_name,
        digits=digits,
    )


def point_axis(plan: Cosines, chunks: Chunks, *, out: bool) -> AxisLayout:
    """Return the layout of the FFT's input or output: real and imaginary parts are innermost."""
    digits = point_digits(plan, out=out)
    if plan.has_pairs(out=out):
        digits = (*digits, _part_digit(plan))
        chunks = tuple(2 * length for length in chunks)
    return AxisLayout((Group(digits, chunks),))


def point_chunks(plan: Cosines, parts: int) -> Chunks:
    """Return about `parts` chunks of the FFT's input that cut only its outermost digit."""
    outer, *inner = point_digits(plan, out=False)
    width = size_of(inner)
    outer_chunks = even_chunks(outer.size, parts)
    return tuple(length * width for length in outer_chunks)
