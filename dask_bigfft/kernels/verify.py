"""Rounds that are checked while they work: Parseval's energy, and a linear checksum.

A round is watched from both ends of its tiles: what comes in is weighed when a tile is gathered,
what goes out before it is stored, both still in cache (`kernels.checks` says what is summed). What
is gathered is weighed on the way, where the copy waits for memory and its energy costs next to
nothing; what is transposed is weighed after that, in cache. What a library reads where it lies is
weighed first, which has it in cache when the FFT begins, in tiles so small that they are still
there with their results. What goes out is weighed while it is twiddled, or stored where that can
be done once more.
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

May import `decomposition`, `errors`, `events` and this room.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.errors import VerificationError
from dask_bigfft.events import emit
from dask_bigfft.kernels.checks import Check, Found, Unmatched, facts_of
from dask_bigfft.kernels.comparing import near_values, same_values
from dask_bigfft.kernels.cpu import run_round
from dask_bigfft.kernels.incoming import Incoming
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.lying import Lying

Array = npt.NDArray[Any]
Block = tuple[int, ...]


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
