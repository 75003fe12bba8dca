"""Which worker a shuffle's target block belongs to, and which of them one task may do.

Pure: imports nothing of the package.
"""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Turns"]

#: Workers among whom blocks are even to the block, where they take turns of several, and part of
#: the blocks that are given one by one for that at most: each of these is a task.
MOST_WORKERS, PART = 128, 8


@dataclass(frozen=True)
class Turns:
    """The target blocks of an exchange, by rank, as workers get them: in turn.

    Where a turn is of several blocks, the last blocks are given one by one, first to those who
    have had a turn less, so that no worker has more than one block more than another.

    Parameters
    ----------
    count : int
        Blocks of all shuffles of the exchange.
    width : int
        Blocks of a turn.

    Examples
    --------
    >>> [Turns(7).owner(rank, 3) for rank in range(7)]
    [0, 1, 2, 0, 1, 2, 0]
    >>> list(Turns(9000, 2).cuts(8740, 8747))  # the last 256 are single
    [(8740, 8742), (8742, 8744), (8744, 8745), (8745, 8746), (8746, 8747)]
    """

    count: int
    width: int = 1

    @property
    def single(self) -> int:
        """Rank from which on blocks are given one by one."""
        apart = min(MOST_WORKERS * self.width, self.count // PART)
        return (self.count - apart) // self.width * self.width

    def owner(self, rank: int, workers: int) -> int:
        """Number of the worker, of so many, that a block belongs to."""
        first = self.single
        if rank < first:
            return rank // self.width % workers
        late, rest = first // self.width % workers, rank - first
        lacking = (workers - late) * self.width if late else 0
        if rest < lacking:
            return late + rest % (workers - late)
        return (rest - lacking) % workers

    def cuts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Cut ranks from `first` to before `last` into those of one turn each."""
        while first < last:
            end = first // self.width * self.width + self.width
            end = first + 1 if first >= self.single else min(last, end)
            yield first, end
            first = end
