"""Who takes which piece of the blocks that are being worked on: CPU threads and devices together.

A block in a round is cut along one dimension that is not transformed. CPU threads take tiles from
its beginning, devices pieces from its end, whoever is free takes next, until they meet::

    rows   0 ..............................................................  n
           cpu cpu cpu cpu ->                    <- device device device device

The static share, worked out from the model, says where they would meet if the model was right, and
decides how much is taken at a time: about half of what a taker could do while all together finish
what is left, in pieces that are halved towards the end. A portion is one trip through the
interpreter, for which all threads queue: the fewer there are, the less they wait for each other.
Nobody takes a piece that the others will have done sooner with all the rest. A device takes whole
pieces, or halves of them; what is left of a block that is smaller than the least of these is for
CPU threads. So at the end nobody waits for longer than one piece takes. (Chen and Li 2013 divide by
a model alone; taking in shrinking portions is guided self-scheduling, Polychronopoulos and Kuck,
IEEE Trans. Computers C-36, 1987.)

There are no threads here: `hybrid` asks under a lock, and a test walks the same state on a clock.

Imports nothing of the package.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["KINDS", "OpenBlock", "Taken", "Taking"]

Kind = Literal["cpu", "device"]

KINDS: tuple[Kind, ...] = ("cpu", "device")

#: A taker takes this part at once of what it could do until all that is left is done.
PORTION = 0.5

#: Weight of the latest piece in what is known of a kind's speed.
LEARNING = 0.3

#: A piece whose time differs from what is known by more than so many times is not believed.
OUTLIER = 2.0

#: Pieces that a device is given at once at most.
MOST_PIECES = 8

#: Bytes that one CPU thread takes at once at most, and that a team of them does.
MOST_TILES_NBYTES, MOST_TOGETHER_NBYTES = 32 << 20, 128 << 20

#: Teams, each of several CPU threads that are one taker: while one comes back for more, the other
#: works.
TEAMS = 2


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
        Rows of a CPU thread's tile.
    piece : int
        Rows of a device's piece; 0: no device can take part.
    least : int
        Rows that a device's piece has at least.
    pace : dict
        Seconds that one CPU thread, and one feeder, needs for a byte, by the model at first,
        corrected as pieces are done; blocks of one round have it in common.
    team : int
        CPU threads that are one taker, and do what they take as a single tile, however much it is.
        One: a taker is a thread, which goes from tile to tile.
    """

    rows: int
    row_nbytes: int
    tile: int
    piece: int
    least: int
    pace: dict[Kind, float]
    team: int = 1
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

    def seconds(self, kind: Kind) -> float:
        """Seconds that one taker needs for a byte."""
        return self.pace[kind] / (self.team if kind == "cpu" else 1)

    def least_rows(self, kind: Kind) -> int:
        """Rows of the smallest piece that a kind takes."""
        if kind == "cpu":
            return min(self.left_rows, self.team * self.tile)
        return self.narrowed(self.least) if self.piece else 0

    def narrowed(self, rows: int) -> int:
        """Rows of the largest of a device's pieces, or halves of them, that are not more.

        No other numbers of rows come to a device: each wants FFT plans of its own, which can only
        be made while nothing runs.
        """
        width = self.piece
        while width > rows and width // 2 >= self.least:
            width //= 2
        return width

    def left_for(self, kind: Kind) -> int:
        """Rows that nobody has taken and a kind may take: no less than the least for a device."""
        if kind == "cpu":
            return self.left_rows
        least = self.least_rows(kind)
        return sum(high - low for low, high in self.left if 0 < least <= high - low)


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
    """The blocks that are open, and who works on them. Used by one thread at a time.

    Parameters
    ----------
    staff : dict, optional
        Takers of each kind that there will be, if they are not all at work yet.
    """

    def __init__(self, staff: dict[Kind, int] | None = None) -> None:
        self.staff: dict[Kind, int] = dict.fromkeys(KINDS, 0) if staff is None else staff
        self.blocks: list[OpenBlock] = []
        #: Bytes of blocks that will be opened when there is room for them.
        self.coming = 0
        self.working: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    @property
    def left(self) -> int:
        """Bytes of open blocks that nobody has taken."""
        return self.left_for("cpu")

    def left_for(self, kind: Kind) -> int:
        """Bytes of open blocks that nobody has taken and a kind may take."""
        return sum(found.left_for(kind) * found.row_nbytes for found in self.blocks)

    def open(self, block: OpenBlock) -> None:
        """A block may be worked on from now on."""
        self.blocks.append(block)

    def close(self, block: OpenBlock) -> None:
        """Nobody takes anything of a block any more."""
        self.blocks.remove(block)

    def offers(self, kind: Kind, block: OpenBlock) -> bool:
        """Whether there is something of a block for a kind now."""
        return self._portion(kind, block)[0] > 0

    def take(self, kind: Kind, block: OpenBlock) -> Taken | None:
        """Give somebody the next piece of a block; None if there is nothing for him now."""
        rows, width = self._portion(kind, block)
        if rows == 0:
            return None
        end = _end(kind)
        low, high = block.left[end]
        cut = (low, low + rows) if kind == "cpu" else (high - rows, high)
        rest = (low + rows, high) if kind == "cpu" else (low, high - rows)
        block.left[end] = rest
        if rest[0] == rest[1]:
            del block.left[end]
        block.flying += 1
        self.working[kind] += 1
        return Taken(block, kind, *cut, width)

    def _portion(self, kind: Kind, block: OpenBlock) -> tuple[int, int]:
        """Rows to take, and rows of each piece; nothing where the others are done sooner."""
        if not block.left_for(kind):
            return 0, 0
        left = self.left + self.coming
        mine, least, staff = block.seconds(kind), block.least_rows(kind), dict(self.staff)
        for other in KINDS:
            theirs = self.left_for(other) + self.coming
            speed = self.working[other] / block.seconds(other)
            if other != kind and theirs and least * block.row_nbytes * mine * speed > theirs:
                return 0, 0
        if block.team > 1:
            staff["cpu"] = TEAMS
        rate = sum(
            max(self.working[each] + (each == kind), staff[each]) / block.seconds(each)
            for each in KINDS
        )
        together, (low, high) = left / rate, block.left[_end(kind)]
        wanted = int(PORTION * together / mine / block.row_nbytes)
        if kind == "cpu":
            most = MOST_TILES_NBYTES if block.team == 1 else MOST_TOGETHER_NBYTES
            wanted = min(wanted, most // max(1, block.row_nbytes))
            rows = max(1, wanted // (block.team * block.tile)) * block.team * block.tile
            rows = min(rows, high - low)
            return rows, min(rows, block.tile) if block.team == 1 else rows
        width = block.narrowed(min(wanted, high - low))
        if width > high - low:
            return 0, 0
        return max(1, min(wanted, high - low, MOST_PIECES * width) // width) * width, width

    def done(self, taken: Taken, seconds: float) -> None:
        """Somebody has done what he took, in so many seconds."""
        self._landed(taken)
        taken.block.taken[taken.kind] += taken.high - taken.low
        if seconds > 0:
            team = taken.block.team if taken.kind == "cpu" else 1
            self._learn(taken, team * seconds / taken.nbytes)

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


def _end(kind: Kind) -> int:
    """Where in the list of what is left of a block a kind takes from."""
    return 0 if kind == "cpu" else -1
