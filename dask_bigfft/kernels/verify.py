"""Rounds that are checked while they work: Parseval's energy, and a linear checksum.

A round is watched from both ends of its tiles: what comes in is weighed when a tile is gathered,
what goes out before it is stored, both still in cache::

    energy      sum |y|^2 = gain * sum |x|^2, gain = product of the lengths / divisor^2
    checksum    beside that, for every tile:  sum r*FFT(x) = sum FFT(r)*x

with seeded random weights r (`kernels.weights`); twiddles are taken back before. What is gathered
is weighed on the way, where the copy waits for memory and its energy costs next to nothing; what is
transposed, and what a library reads where it lies, is weighed after that, in cache. What goes out
is weighed while it is twiddled, or stored where that can be done once more. Half a spectrum counts
twice but for its entries 0 and N/2, of which an inverse real transform uses the real part only.
Rounds with chirps (Bluestein's algorithm) keep no energy: they are done twice and compared, to the
bit; within rounding errors where each time CPU threads or a card may have done other parts of them.

A tile that holds NaN or infinity cannot be checked, and that is said. What does not match is done
once more, from where its block comes from, and if it does not match again, that is an error. So in
rounds in place a tile is stored when it has been found right. Where the block that comes in stays
as it is, a library that can reads it there and answers in the tile's place, which is then weighed.

===================================  ======  ========
what goes wrong inside a round       energy  checksum
===================================  ======  ========
an exponent, a high mantissa bit     finds   finds
a sign, a conjugate, a permutation           finds
a twiddle that is left out                   finds
a bit below the rounding error
===================================  ======  ========

Memory that changes between rounds is found by the checksum of a packed shard (`exchange.packing`),
with this mode and where shards travel: blocks that processes share are not looked at in between.

Sources: Parseval's theorem; for linear checksums Jou and Abraham, Proc. IEEE 74, 1986, and Wang
and Jha, IEEE Trans. Computers 43, 1994.

May import `decomposition`, `memory` and this room.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import mul
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.errors import VerificationError
from dask_bigfft.events import emit
from dask_bigfft.kernels.calls import axis_index
from dask_bigfft.kernels.cpu import run_round
from dask_bigfft.kernels.incoming import Incoming, parts
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.lying import Lying
from dask_bigfft.kernels.sums import Turn, energy, energy_of_real, weighted_sum
from dask_bigfft.kernels.twiddle import twiddle
from dask_bigfft.kernels.weights import Weights, split, weights_of, with_rows

Array = npt.NDArray[Any]
Block = tuple[int, ...]

#: Rounding errors by which two ways of doing a round may differ, times the logarithm of its size;
#: and values that are compared at a time.
NEAR, COMPARED = 16, 1 << 16

#: What is found of a tile before its round: energy, what of it will come out, and the checksum.
Found = tuple[float, float, complex | None]


@lru_cache(maxsize=8)
def _eps(dtype: np.dtype[Any]) -> float:
    return max(float(np.finfo(dtype).eps), float(np.finfo(np.float64).eps))


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
        """Energy of a tile (its weight, and what of it will come out), and its checksum.

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
        return whole, seen, checksum

    def after(
        self, result: Array, before: Found, dim: int, part: slice | None,
        total: float | None = None,
    ) -> None:
        """Compare a tile's result, cut along `dim`, with what was found before.

        `total` is its sum of squared magnitudes, where it is known.
        """
        whole, seen, wanted = before
        if not math.isfinite(whole):
            self.undecided = True
            return
        if wanted is not None:
            checksum, total = self._summed(result, False, dim, part)
        facts, error = self.facts, self._error
        if error is None:
            error = self._error = _eps(result.dtype) * facts.digits
        found, gain = _weighed(result, facts.halves, total), facts.gain
        if not abs(found - gain * seen) <= error * gain * whole:
            raise Unmatched(f"the energy is {found!r} and should be {gain * seen!r}")
        if wanted is None:
            return
        off, allowed = abs(checksum - wanted), error * math.sqrt(max(found, 0) * facts.length)
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


class _Watched:
    """A block on its way in that is weighed before its round, and its result after it."""

    #: Who else takes the block where it lies would not weigh it; see `given`.
    as_is: Array | None = None

    def __init__(self, check: Check) -> None:
        self.check, self.weighs = check, check.mode == "energy"
        self.stays, self.given = True, cast("Array | None", None)
        self.incoming: Incoming
        self._before: Found | None = None
        self._out: Array | None = None
        self._done: set[int] = set()

    @property
    def watch(self) -> Self:
        """Itself; kept as an attribute, it would keep the block's memory until it is collected."""
        return self

    def begin(self, incoming: Incoming) -> None:
        """Take the block, for the first time or once more: in place, what is stored stays."""
        self.incoming, self._before = incoming, None
        self.shape, self.dtype = incoming.shape, incoming.dtype
        incoming.weighs = self.weighs
        self.stays = not (isinstance(incoming, Lying) and incoming.into is incoming.values)
        if self.stays:
            self._done.clear()
        lies = incoming.as_is
        dense = lies is not None and lies.flags.c_contiguous
        self.given = lies if self.stays and dense else None

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round, the same each time."""
        if self._out is None:
            self._out = self.incoming.place(shape, dtype)
        return self._out

    def turned(self, order: tuple[int, ...]) -> tuple[Self, Array] | None:
        """The block with its dimensions in another order, and where its result goes."""
        found = self.incoming.turned(order) if isinstance(self.incoming, Lying) else None
        if found is None:
            return None
        self.incoming, out = found
        self.shape = self.incoming.shape
        self.check.turn(order)
        return self, out

    def composite(self) -> None:
        """Who takes a block shard by shard would not weigh it."""
        return None

    def whole(self, out: Array | None = None, *, threads: int = 1) -> Array:
        """The block, in other memory than where it comes from."""
        inside = isinstance(self.incoming, Lying) and out is self.incoming.values
        values = self.incoming.whole(None if inside else out, threads=threads)
        self.before(values)
        return values

    def tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        """Its tiles."""
        return self.incoming.tiles(dim, width, out)

    def is_done(self, part: slice) -> bool:
        """Whether a tile has been stored already."""
        return part.start in self._done

    def before(self, tile: Array) -> None:
        """Weigh what comes in."""
        self._before = self.check.before(tile, self.incoming.energy)

    def after(
        self, result: Array, dim: int, part: slice | None, energy: float | None = None
    ) -> None:
        """Compare the result of what came in last."""
        if self._before is None:
            return
        self.check.after(result, self._before, dim, part, energy)
        self._before = None
        if part is not None:
            self._done.add(part.start)

    def finish(self, result: Array) -> None:
        """Compare the result of a block that went through in one, elsewhere."""
        if self._before is not None:
            self.after(self.check.unrolled(result), 0, None)


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


Runner = Callable[..., Array]


def verified_round(
    mode: str,
    round_: Round,
    block: Block,
    incoming_of: Callable[[], Incoming],
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Mapping[int, Array] | None = None,
    *,
    number: int = 0,
    names: Sequence[Block] = (),
    run: Runner = run_round,
    exact: bool = True,
) -> Array:
    """Return a block after a round, checked, and done once more where the check failed.

    Parameters
    ----------
    mode : {"energy", "checksum"}
        Which check.
    round_, block, library, out_dtype, filters
        As `run_round` takes them.
    incoming_of : callable
        Returns the block as the round's source layout has it, anew each time.
    number : int
        Of the round, from 1, for errors.
    names : sequence of block indices
        What the block is made of, for errors, if that is not itself.
    run : callable
        Does the round.
    exact : bool
        Whether it does each time the same to the bit.

    Raises
    ------
    VerificationError
        If the round does not come out right twice.
    """
    found = []
    watched = _Watched(Check(mode, round_, block, library))
    arguments = (library, out_dtype, filters)
    for _ in range(2):
        try:
            if not facts_of(round_).keeps_energy:
                return _done_twice(round_, block, incoming_of, *arguments, run, exact)
            watched.begin(incoming_of())
            return _checked(round_, block, watched, *arguments, run)
        except Unmatched as error:
            found.append(str(error))
            emit("mismatch", index=number)
    name = f"round {number}, {_named(names or (block,))}"
    raise VerificationError(f"{name}: {found[0]}; done once more: {found[1]}")


def _named(blocks: Sequence[Block]) -> str:
    """What errors call a block, or several that are worked on together."""
    return f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}"


def _checked(
    round_: Round, block: Block, watched: _Watched, library: FFTLibrary,
    out_dtype: np.dtype[Any], filters: Mapping[int, Array] | None, run: Runner
) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        result = run(round_, block, watched, library, out_dtype, filters)
        watched.finish(result)
    if watched.check.undecided:
        emit("unverified", nbytes=result.nbytes)
        warnings.warn(
            f"block {block} holds NaN, infinity or values too large to be squared: "
            "it is transformed, but cannot be verified",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


def _done_twice(
    round_: Round, block: Block, incoming_of: Callable[[], Incoming], library: FFTLibrary,
    out_dtype: np.dtype[Any], filters: Mapping[int, Array] | None, run: Runner, exact: bool
) -> Array:
    one, other = (
        run(round_, block, _apart(incoming_of()), library, out_dtype, filters) for _ in range(2)
    )
    if not same_values(one, other) and (exact or not near_values(one, other)):
        raise Unmatched("two runs differ")
    return one


def _apart(incoming: Incoming) -> Incoming:
    """A block whose result goes to memory of its own."""
    if isinstance(incoming, Lying):
        return Lying(incoming.values)
    if hasattr(incoming, "into"):
        incoming.into = None
    return incoming


def same_values(one: Array, other: Array) -> bool:
    """Whether all bytes are the same; of long doubles, of which some mean nothing, the values."""
    if one.dtype.char in "gG":
        return bool(np.array_equal(one, other, equal_nan=True))
    ours, theirs = (values.reshape(-1).view(np.uint8) for values in (one, other))
    return bool(np.array_equal(ours, theirs))


def near_values(one: Array, other: Array) -> bool:
    """Whether values differ by no more than what FFT libraries round differently.

    An error of rounding is one of the largest values of a line, so it is held against the root
    mean square of all. What is not finite has to be so in both.
    """
    ours, theirs = one.reshape(-1), other.reshape(-1)
    rounding = NEAR * math.log2(max(2, ours.size)) * float(np.finfo(one.dtype).eps)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(ours)
        if not np.array_equal(finite, np.isfinite(theirs)):
            return False
        if not finite.all():
            ours, theirs = ours[finite], theirs[finite]
        scale = math.sqrt(energy(ours) / max(1, ours.size))
        for part in parts(ours.size, COMPARED):
            size = np.abs(ours[part])
            allowed = rounding * (size + (scale if math.isfinite(scale) else size.max()))
            if (np.abs(ours[part] - theirs[part]) > allowed).any():
                return False
    return True
