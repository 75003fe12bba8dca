"""What is summed of a tile before its round and after it, and how the two are compared.

::

    energy      sum |y|^2 = gain * sum |x|^2, gain = product of the lengths / divisor^2
    checksum    beside that, for every tile:  sum r*FFT(x) = sum FFT(r)*x

with seeded random weights r (`kernels.weights`); twiddles are taken back before. Half a spectrum
counts twice but for its entries 0 and N/2, of which an inverse real transform uses the real part
only. Squares of values that are very small lose their digits, or are 0: sums may be off by as much
as all of them could have lost.

Sources: Parseval's theorem; for linear checksums Jou and Abraham, Proc. IEEE 74, 1986, and Wang
and Jha, IEEE Trans. Computers 43, 1994.

May import `decomposition` and this room.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.kernels.calls import axis_index
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.sums import Turn, energy, energy_of_real, weighted_sum
from dask_bigfft.kernels.twiddle import twiddle
from dask_bigfft.kernels.weights import Weights, split, weights_of, with_rows

Array = npt.NDArray[Any]
Block = tuple[int, ...]

#: Squares of a value that are added up at most: of both parts, twice for half a spectrum.
SQUARES = 4


class Found(NamedTuple):
    """What is found of a tile before its round."""

    #: Energy, what of it will come out, and what squares may have lost of it.
    whole: float
    seen: float
    lost: float
    checksum: complex | None


@lru_cache(maxsize=8)
def _eps(dtype: np.dtype[Any]) -> float:
    return max(float(np.finfo(dtype).eps), float(np.finfo(np.float64).eps))


@lru_cache(maxsize=8)
def _tiny(dtype: np.dtype[Any]) -> float:
    return max(float(np.finfo(dtype).tiny), float(np.finfo(np.float64).tiny))


def _lost(values: Array) -> float:
    """What the squares of values may lack, since they lose digits below the least normal number."""
    return SQUARES * values.size * _tiny(values.dtype)


class Unmatched(Exception):
    """What a check has found."""


@dataclass(frozen=True)
class Facts:
    """What the checks of a round need to know of it, the same for all blocks and both modes."""

    #: Steps, each with its dimension.
    steps: tuple[tuple[int, Step], ...]
    #: Product of the lengths, and what the round divides by.
    length: int
    divisor: float
    #: What energy is multiplied with, and how many times the rounding error a sum may be off.
    gain: float
    digits: float
    #: Whether the values after the round are real.
    real: bool
    #: Dimensions whose steps twiddle.
    turned: frozenset[int]
    #: The steps that make half a spectrum and take one, with their dimensions, if there are any.
    halves: tuple[Step, int] | None
    joins: tuple[Step, int] | None
    #: Whether it only permutes and scales energy, in a way that its ends show.
    keeps_energy: bool


@lru_cache(maxsize=256)
def facts_of(round_: Round) -> Facts:
    """Return what checks need to know of a round."""
    steps = tuple((round_.dim(step), step) for step in round_.steps)
    length = math.prod(step.length for _, step in steps)
    whole = reduce(mul, (step.divisor for _, step in steps), Divisor())
    divisor = whole.whole * math.sqrt(whole.root)
    of_kind = {step.kind: (step, dim) for dim, step in steps if step.kind != "c2c"}
    turned = frozenset(dim for dim, step in steps if step.twiddle is not None)
    real = "c2r" in of_kind
    plain = all(
        (step.chirp_in, step.chirp_out, step.convolve) == (None,) * 3 for _, step in steps
    )
    return Facts(
        steps, length, divisor, length / divisor**2, 16 + 4 * math.log2(length), real, turned,
        of_kind.get("r2c"), of_kind.get("c2r"), plain and not (real and turned),
    )


class Check:
    """The checks of one round on one block.

    Parameters
    ----------
    mode : {"energy", "checksum"}
        Which.
    round_ : Round
        What is done.
    block : tuple of int
        Which block.
    library : FFTLibrary
        Makes the FFTs.
    """

    def __init__(self, mode: str, round_: Round, block: Block, library: FFTLibrary) -> None:
        self.mode, self.round, self.block, self.library = mode, round_, block, library
        self.facts = facts_of(round_)
        #: Of each step that twiddles: index made of the digits still to come, for all its rows.
        self._rests: dict[int, Array] = {}
        self._ready: dict[Any, tuple[int, Weights]] = {}
        #: How far sums may be off, of values of one.
        self._error: float | None = None
        #: Whether something could not be checked.
        self.undecided = False

    def turn(self, order: tuple[int, ...]) -> None:
        """Take tiles with their dimensions in another order, of rounds that are one complex FFT."""
        facts = facts_of(self.round)
        steps = tuple((order.index(dim), step) for dim, step in facts.steps)
        self.facts = replace(facts, steps=steps)

    # --- what comes in, what goes out ---

    def before(self, tile: Array, total: float | None = None) -> Found:
        """Energy of a tile, and its checksum.

        `total` is the sum of squared magnitudes, where it is known.
        """
        checksum: complex | None = None
        if self.mode == "checksum":
            checksum, total = self._summed(tile, True)
            checksum = (checksum.real if self.facts.real else checksum) / self.facts.divisor
        joins = self.facts.joins
        whole = seen = _weighed(tile, joins, total)
        if joins is not None and math.isfinite(whole):
            seen -= self._unseen(tile, *joins)
        return Found(whole, seen, _lost(tile), checksum)

    def after(
        self, result: Array, before: Found, dim: int, part: slice | None,
        total: float | None = None,
    ) -> None:
        """Compare a tile's result, cut along `dim`, with what was found before.

        `total` is its sum of squared magnitudes, where it is known.
        """
        whole, seen, lost, wanted = before
        if not math.isfinite(whole):
            self.undecided = True
            return
        if wanted is not None:
            checksum, total = self._summed(result, False, dim, part)
        facts, error = self.facts, self._error
        if error is None:
            error = self._error = _eps(result.dtype) * facts.digits
        found, gain = _weighed(result, facts.halves, total), facts.gain
        more = _lost(result)
        if not abs(found - gain * seen) <= error * gain * whole + gain * lost + more:
            raise Unmatched(f"the energy is {found!r} and should be {gain * seen!r}")
        if wanted is None:
            return
        most = (max(found, 0) + more) * facts.length
        off, allowed = abs(checksum - wanted), error * math.sqrt(most)
        if not off <= allowed:
            raise Unmatched(f"a linear checksum is off by {off:.3g}, more than {allowed:.3g}")

    def unrolled(self, result: Array) -> Array:
        """The result from its first element on, where it is stored from another one on."""
        for along, first in self.round.rolls:
            result = np.roll(result, first, axis=along)
        return result

    # --- energy ---

    def _unseen(self, tile: Array, step: Step, dim: int) -> float:
        """Energy that an inverse real transform ignores: of imaginary parts of real entries."""
        places = [0, step.length // 2] if step.length % 2 == 0 else [0]
        planes, scale = np.ascontiguousarray(tile.take(places, axis=dim)), 1
        for along, other in self.facts.steps:
            if other is not step:
                planes = self.library.c2c(planes, (along,), other.sign)
                scale *= other.length
        return energy(np.ascontiguousarray(planes.imag)) / scale

    # --- linear checksums ---

    def _summed(
        self, values: Array, inward: bool, dim: int = 0, part: slice | None = None
    ) -> tuple[complex, float]:
        """Values of a tile summed with weights, twiddles taken back, and their energy."""
        values = np.ascontiguousarray(values)
        key = values.shape, values.dtype, inward
        found = self._ready.get(key)
        if found is None:
            facts = self.facts
            first = split(values.shape, frozenset() if inward else facts.turned)
            found = first, weights_of(values.shape, values.dtype, first, facts.steps, inward)
            self._ready[key] = found
        first, weights = found
        turn: Turn | None = None
        for along, step in () if inward else self.facts.steps:
            if step.twiddle is None:
                continue
            rest = self._rest(step, along, dim, part)
            if along >= first:
                turn = Turn(rest, step.twiddle, -step.sign)
            else:
                shape = values.shape[:first]
                weights = with_rows(weights, _untwiddled(weights.rows, shape, along, step, rest))
        return weighted_sum(values, weights, turn)

    def _rest(self, step: Step, along: int, dim: int, part: slice | None) -> Array:
        """Index made of the digits still to come of a step's axis, for each row of a tile."""
        after, i = self.round.target.axes[step.axis], self.block[step.axis]
        last = len(after.groups) - 1
        index = self._rests.get(along)
        if index is None:
            index = self._rests[along] = axis_index(after, i, step.target.stage - 1, last)
        if part is None or not along - last <= dim < along:
            return index
        kept = index.reshape(after.shape(i)[:last])
        return kept[(slice(None),) * (dim - along + last) + (part,)].ravel()


def _weighed(values: Array, half: tuple[Step, int] | None, total: float | None) -> float:
    """Energy of all values, with half a spectrum (of a step and its dimension) counted in full.

    `total` is the plain sum, where it is known.
    """
    if half is None:
        return energy(values) if total is None else total
    step, dim = half
    return energy_of_real(values, dim, step.length, total)


def _untwiddled(
    rows: Array, shape: tuple[int, ...], along: int, step: Step, rest: Array
) -> Array:
    """Weights of lines, times what takes a step's twiddle back; `shape` is that of the lines."""
    assert step.twiddle is not None
    found = rows.astype(complex).reshape(
        math.prod(shape[:along]), shape[along], math.prod(shape[along + 1 :])
    )
    twiddle(found, np.tile(rest, len(found) // len(rest)), step.twiddle, -step.sign)
    return found.reshape(-1)
