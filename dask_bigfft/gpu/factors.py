"""By what the elements of a piece are multiplied: twiddles, chirps and a scale.

Twiddles and chirps are of the index that an element has in its axis. That is made of the digits
which the piece has of it, along one dimension or several, and of those that its block has.

Imports `decomposition` and this room.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dask_bigfft.decomposition.layout import Digit, Layout
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.gpu.operations import ChirpFactor, Multiply, Term, Twiddle
from dask_bigfft.gpu.piecework import Block, Trip

#: As the modulus of a term: the place is used as it is.
NO_MODULUS = 1 << 62


def _digit_terms(digits: tuple[Digit, ...], start: int, stage: int, dim: int) -> Iterator[Term]:
    """What one dimension, that holds some digits, adds to the index of a stage."""
    divisor = 1
    for place, digit in reversed(list(enumerate(digits))):
        if digit.stage == stage and digit.size > 1:
            modulus = digit.size if place else NO_MODULUS
            yield Term(dim, start, divisor, modulus, digit.stride)
        divisor *= max(digit.size, 1)


class PieceFactors:
    """Factors of one piece in one crossing.

    Parameters
    ----------
    trip : Trip
        The crossing.
    piece : tuple of int
        Which piece.
    """

    def __init__(self, trip: Trip, piece: Block) -> None:
        self.trip, axes = trip, trip.inner.source.axes
        #: Dimension of the piece at which each dimension of the block begins.
        self.firsts = list(itertools.accumulate((len(a.groups) for a in axes), initial=0))[:-1]
        intervals = [axis.intervals(i) for axis, i in zip(axes, piece, strict=True)]
        #: Where in the block the piece begins, along each of its dimensions.
        self.starts = [low for found in intervals for low, _ in found]

    def before(self, shape: tuple[int, ...], begun: Sequence[Step]) -> Multiply | None:
        """What comes before complex FFTs, of a piece of some shape, where some steps begin."""
        conjugate = any(step.kind == "r2c" and step.sign > 0 for step in begun)
        chirps = []
        for step in begun:
            if step.chirp_in is not None:
                chirp = step.chirp_in
                place = self._index(self.trip.round.source, step, step.source.stage)
                place += self._digits(step, 0, step.source.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place, self.trip.real))
        return self._multiply(shape, 1.0, conjugate, (), tuple(chirps))

    def after(self, shape: tuple[int, ...], ended: Sequence[Step]) -> Multiply | None:
        """What comes after complex FFTs, of a piece of some shape, where some steps end."""
        divisor, target = Divisor(), self.trip.round.target
        twiddles, chirps = [], []
        for inner in self.trip.inner.steps:
            if inner.twiddle is not None:
                left = Term(self.trip.inner.dim(inner), 0, 1, NO_MODULUS, 1)
                right = self._still_to_come(inner)
                sign = inner.sign if inner.convolve is None else -inner.sign
                twiddles.append(Twiddle(inner.twiddle, sign, (left,), right))
        for step in ended:
            sign = step.sign if step.convolve is None else -step.sign
            divisor *= step.divisor
            if step.twiddle is not None:
                right = self._index(target, step, step.target.stage - 1)
                left_terms = self._digits(step, self._made(step), 1)
                twiddles.append(Twiddle(step.twiddle, sign, left_terms, right))
            if step.chirp_out is not None:
                chirp = step.chirp_out
                place = self._index(target, step, step.target.stage)
                place += self._digits(step, self._made(step), step.target.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place))
        conjugate = any(step.kind == "c2r" and step.sign < 0 for step in ended)
        if conjugate:  # of the product: the factors' signs turn as well
            twiddles = [replace(found, sign=-found.sign) for found in twiddles]
            chirps = [replace(found, sign=-found.sign) for found in chirps]
        scale = 1.0 / (divisor.whole * math.sqrt(divisor.root))
        return self._multiply(shape, scale, conjugate, tuple(twiddles), tuple(chirps))

    def turned_back(self, step: Step) -> tuple[Twiddle, ...]:
        """What the conjugate of values is multiplied by that have been so by the step's twiddle.

        Of N values, conj(X[k] w^(k r)) times w^(N r) is conj(X[k]) w^((N - k) r).
        """
        if step.twiddle is None:
            return ()
        right = self._index(self.trip.round.target, step, step.target.stage - 1)
        stored = self.trip.crossing.order.index
        behind = tuple(replace(term, dim=stored(term.dim)) for term in right)
        length = Term(0, NO_MODULUS, NO_MODULUS, NO_MODULUS, step.length)  # at every place
        return (Twiddle(step.twiddle, step.sign, (length,), behind),)

    def _multiply(
        self,
        shape: tuple[int, ...],
        scale: float,
        conjugate: bool,
        twiddles: tuple[Twiddle, ...],
        chirps: tuple[ChirpFactor, ...],
    ) -> Multiply | None:
        if scale == 1.0 and not (conjugate or twiddles or chirps):
            return None
        return Multiply(shape, self.trip.dtype, scale, conjugate, twiddles, chirps)

    def dim(self, step: Step) -> int:
        """Dimension of the piece at which the digits of a step of the round begin."""
        return self.firsts[self.trip.dims[self.trip.round.steps.index(step)]]

    @staticmethod
    def _made(step: Step) -> int:
        """Stage of a step's own digits when all of it is done."""
        return 1 if step.convolve is None else 2

    def _digits(self, step: Step, stage: int, stride: int) -> tuple[Term, ...]:
        """Index of a step's digit, of which the piece may have several digits."""
        dim = self.trip.dims[self.trip.round.steps.index(step)]
        layout = self.trip.inner.source if stage == 0 else self.trip.inner.target
        found = []
        for place, group in enumerate(layout.axes[dim].groups, self.firsts[dim]):
            terms = _digit_terms(group.digits, self.starts[place], stage, place)
            found += [replace(term, stride=term.stride * stride) for term in terms]
        return tuple(found)

    def _still_to_come(self, inner: Step) -> tuple[Term, ...]:
        """Index made of the digits of a split dimension that are still to be transformed."""
        groups = self.trip.inner.target.axes[inner.axis].groups
        return tuple(
            term
            for place, group in enumerate(groups, self.firsts[inner.axis])
            for term in _digit_terms(
                group.digits, self.starts[place], inner.target.stage - 1, place
            )
        )

    def _index(self, layout: Layout, step: Step, stage: int) -> tuple[Term, ...]:
        """Index made of the digits of one stage of the other dimensions of a step's axis."""
        axis, block = layout.axes[step.axis], self.trip.block[step.axis]
        first = sum(len(other.groups) for other in layout.axes[: step.axis])
        own = self.trip.dims[self.trip.round.steps.index(step)]
        found: list[Term] = []
        pairs = zip(axis.groups, axis.intervals(block), strict=True)
        for dim, (group, (low, _)) in enumerate(pairs, first):
            if dim != own:
                place = self.firsts[dim]
                found += _digit_terms(group.digits, low + self.starts[place], stage, place)
        return tuple(found)
