"""Who takes which piece of the blocks that are being worked on: CPU threads and devices together.

A block in a round is cut along one dimension that is not transformed. CPU threads take tiles from
its beginning, devices pieces from its end, whoever is free takes next, until they meet::

    rows   0 ..............................................................  n
           cpu cpu cpu cpu ->                    <- device device device device

The static share, worked out from the model, says where they would meet if the model was right, and
decides how much is taken at a time: about half of what a taker could do while all together finish
what is left, in pieces that are halved towards the end. Nobody takes a piece that the others will
have done sooner with all the rest. So at the end nobody waits for longer than one piece takes.
(Chen and Li 2013 divide by a model alone; taking in shrinking portions is guided self-scheduling,
Polychronopoulos and Kuck, IEEE Trans. Computers C-36, 1987.)

There are no threads here: `hybrid` asks under a lock, and a test walks the same state on a clock.

Imports nothing of the package.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["KINDS", "OpenBlock", "Taken", "Taking"]

Kind = Literal["cpu", "device"]

KINDS: tuple[Kind, ...] = ("cpu", "device")

#: Of what a taker could do while all finish what is left, the part that it takes at once.
PORTION = 0.5

#: Weight of the latest piece in what is known of a kind's speed.
LEARNING = 0.3

#: Times that a piece may differ from what is known to be believed.
OUTLIER = 2.0

#: Pieces that a device is given at once at most.
MOST_PIECES = 8


@dataclass(eq=False)
class OpenBlock:
    """A block in a round, and what of it nobody has taken.

    Parameters
    ----------
    rows : int
        Length of the dimension along which it is cut.
    row_nbytes : int
        Bytes of one row of it, whatever lies before and after that dimension.
    tile : int
        Rows that a CPU thread takes at a time.
    piece : int
        Rows of a device's piece; 0: no device can take part.
    least : int
        Rows that a device's piece has at least.
    pace : dict
        Seconds that one taker of each kind needs for a byte, by the model at first, corrected as
        pieces are done; blocks of one round have it in common.
    """

    rows: int
    row_nbytes: int
    tile: int
    piece: int
    least: int
    pace: dict[Kind, float]
    left: list[tuple[int, int]] = field(default_factory=list)
    flying: int = 0
    taken: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def __post_init__(self) -> None:
        self.left = [(0, self.rows)] if self.rows else []

    @property
    def left_rows(self) -> int:
        """Rows that nobody has taken."""
        return sum(high - low for low, high in self.left)

    @property
    def finished(self) -> bool:
        """Whether every row is done."""
        return not self.left and not self.flying

    def least_rows(self, kind: Kind) -> int:
        """Rows of the smallest piece that a kind takes."""
        return min(self.left_rows, self.tile if kind == "cpu" else self.least)


@dataclass(frozen=True)
class Taken:
    """Rows of a block that somebody works on.

    Parameters
    ----------
    block : OpenBlock
        Whose.
    kind : {"cpu", "device"}
        Who.
    low, high : int
        From where to where.
    width : int
        Rows of each piece.
    """

    block: OpenBlock
    kind: Kind
    low: int
    high: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return (self.high - self.low) * self.block.row_nbytes


class Taking:
    """The blocks that are open, and who works on them. Used by one thread at a time."""

    def __init__(self) -> None:
        self.blocks: list[OpenBlock] = []
        self.working: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    def open(self, block: OpenBlock) -> None:
        """A block may be worked on from now on."""
        self.blocks.append(block)

    def close(self, block: OpenBlock) -> None:
        """Nobody takes anything of a block any more."""
        self.blocks.remove(block)

    def take(self, kind: Kind, block: OpenBlock) -> Taken | None:
        """Give somebody the next piece of a block; None if there is nothing for him now."""
        if not block.left or (kind == "device" and not block.piece):
            return None
        rows, width = self._portion(kind, block)
        if rows == 0:
            return None
        end = 0 if kind == "cpu" else len(block.left) - 1
        low, high = block.left[end]
        rows = min(rows, high - low)
        rows = max(rows // width * width, min(rows, width))
        width = min(width, rows)
        cut = (low, low + rows) if kind == "cpu" else (high - rows, high)
        rest = (low + rows, high) if kind == "cpu" else (low, high - rows)
        block.left[end : end + 1] = [rest] if rest[0] < rest[1] else []
        block.flying += 1
        self.working[kind] += 1
        return Taken(block, kind, *cut, width)

    def _portion(self, kind: Kind, block: OpenBlock) -> tuple[int, int]:
        """Rows to take, and rows of each piece; nothing where the others are done sooner."""
        left = sum(found.left_rows * found.row_nbytes for found in self.blocks)
        mine, least = block.pace[kind], block.least_rows(kind)
        others = sum(self.working[other] / block.pace[other] for other in KINDS if other != kind)
        if others and least * block.row_nbytes * mine > left / others:
            return 0, 0
        together = left / (others + (self.working[kind] + 1) / mine)
        wanted = int(PORTION * together / mine / block.row_nbytes)
        if kind == "cpu":
            return block.tile, block.tile
        width = block.piece
        while width > wanted and width // 2 >= block.least:
            width //= 2
        return max(width, min(wanted, MOST_PIECES * width)), width

    def done(self, taken: Taken, seconds: float) -> None:
        """Somebody has done what he took, in so many seconds."""
        self._landed(taken)
        taken.block.taken[taken.kind] += taken.high - taken.low
        if seconds > 0:
            self._learn(taken, seconds / taken.nbytes)

    @staticmethod
    def _learn(taken: Taken, new: float) -> None:
        """Correct what is known of a kind's speed.

        A small piece takes a device as long to begin with as a large one: it is no evidence that
        the device is slow. And what happens once, such as making FFT plans, is not believed.
        """
        pace, old = taken.block.pace, taken.block.pace[taken.kind]
        small = taken.kind == "device" and taken.high - taken.low < taken.block.piece
        if not (small and new > old):
            new = min(max(new, old / OUTLIER), old * OUTLIER)
            pace[taken.kind] = (1 - LEARNING) * old + LEARNING * new

    def give_back(self, taken: Taken) -> None:
        """Somebody could not do what he took: CPU threads have to, if it was a device."""
        self._landed(taken)
        if taken.kind == "device":
            taken.block.piece = 0
        taken.block.left.append((taken.low, taken.high))
        taken.block.left.sort()

    def _landed(self, taken: Taken) -> None:
        taken.block.flying -= 1
        self.working[taken.kind] -= 1
