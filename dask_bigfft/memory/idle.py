"""Idle buffers of an arena: a stack for each size, and large ones taken apart for smaller blocks.

Where nothing fits a request, an idle buffer that holds several of its size is lent in parts; when
all of these are idle again, it can be whole again::

    | array of many blocks |  --idle-->  | block | block | block | rest |  --idle-->  | whole |

So the blocks of a plan take the memory in which others lay together, and the other way round. The
books count parts as they count buffers, and a part goes back to the system by itself.

Imports `pages` of this folder. The arena's lock is held around every call.
"""

from bisect import bisect_left, insort
from collections import deque
from operator import attrgetter

from dask_bigfft.memory.pages import DIVISIBLE, Buffer, Part, parts_of

#: Parts in which a buffer is lent at most: a small block would keep a large one from its own.
MOST_PARTS = 64

#: The least that a buffer is taken apart for: tiles come and go while others want the whole.
LEAST_PART = 4 * 1024**2

#: Blocks of which part of an idle buffer are taken from the system before it is taken apart: a few
#: that come in between would keep it from blocks of its own size.
PATIENCE = 8

_serial = attrgetter("serial")


class Idle:
    """Buffers that wait for the next block.

    Attributes
    ----------
    stacks
        Buffers by size, the most recently used last.
    sizes
        The sizes in order.
    nbytes
        Bytes of all of them.
    least_part, patience
        The least that a buffer is taken apart for; an n-th of it is asked for in vain before.
    """

    def __init__(self) -> None:
        self.stacks: dict[int, deque[Buffer]] = {}
        self.sizes: list[int] = []
        self.nbytes = 0
        self.least_part, self.patience = LEAST_PART, PATIENCE
        # What was asked for in vain beside idle buffers, by their identity.
        self._passed: dict[int, int] = {}
        # Buffers that were taken apart, by identity, and how many parts they have.
        self._divided: dict[int, tuple[Buffer, int]] = {}
        self._serial = 0

    def keep(self, buffer: Buffer) -> None:
        """Add a buffer, the most recently used one."""
        self._serial += 1
        buffer.serial = self._serial
        self._stack(buffer.nbytes).append(buffer)
        self.nbytes += buffer.nbytes

    def take(self, size: int, largest: int, *, divide: bool = True) -> Buffer | None:
        """Return a buffer between two sizes: the smallest, of equals that used last; None if none.

        Parameters
        ----------
        size, largest
            Bytes.
        divide
            Whether larger buffers may be taken apart.
        """
        found = self._pop(size, largest)
        if found is None and self._join(size):
            found = self._pop(size, largest)
        if found is None and divide and self._divide(size):
            found = self._pop(size, largest)
        return found

    def count(self, size: int, largest: int) -> int:
        """Return how many buffers there are between two sizes."""
        return sum(len(self.stacks[fit]) for fit in self.sizes if size <= fit <= largest)

    def evict(self, target: int) -> list[Buffer]:
        """Return buffers, least recently used first, until at most `target` bytes stay."""
        doomed: list[Buffer] = []
        while self.nbytes > target:
            oldest = min(self.sizes, key=lambda size: self.stacks[size][0].serial)
            buffer = self.stacks[oldest][0]
            self._remove(buffer)
            if isinstance(buffer, Part):  # the others stay parts
                self._divided.pop(id(buffer.whole), None)
            doomed.append(buffer)
        return doomed

    def _stack(self, size: int) -> deque[Buffer]:
        found = self.stacks.get(size)
        if found is None:
            found = self.stacks[size] = deque()
            insort(self.sizes, size)
        return found

    def _insert(self, buffer: Buffer) -> None:
        """Add a buffer among those of its size by when it was used."""
        stack = self._stack(buffer.nbytes)
        stack.insert(bisect_left(stack, buffer.serial, key=_serial), buffer)
        self.nbytes += buffer.nbytes

    def _remove(self, buffer: Buffer) -> None:
        self.stacks[buffer.nbytes].remove(buffer)
        self._forget(buffer)

    def _forget(self, buffer: Buffer) -> None:
        """Take a buffer that left its stack off the books."""
        self._passed.pop(id(buffer), None)
        size = buffer.nbytes
        if not self.stacks[size]:
            del self.stacks[size]
            del self.sizes[bisect_left(self.sizes, size)]
        self.nbytes -= size

    def _pop(self, size: int, largest: int) -> Buffer | None:
        at = bisect_left(self.sizes, size)
        if at == len(self.sizes) or self.sizes[at] > largest:
            return None
        buffer = self.stacks[self.sizes[at]].pop()
        self._forget(buffer)
        return buffer

    def _join(self, size: int) -> bool:
        """Make buffers of at least some size whole whose parts are all idle."""
        idle: dict[int, list[Part]] = {}
        for stack in self.stacks.values() if self._divided else ():
            for buffer in stack:
                if isinstance(buffer, Part) and buffer.held is None:
                    idle.setdefault(id(buffer.whole), []).append(buffer)
        joined = False
        for key, (whole, count) in list(self._divided.items()):
            parts = idle.get(key, [])
            if whole.nbytes < size or len(parts) < count:
                continue
            whole.serial = max(map(_serial, parts))
            for part in parts:
                self._remove(part)
                part.whole = None  # the pages stay
            del self._divided[key]
            self._insert(whole)
            joined = True
        return joined

    def _divide(self, size: int) -> bool:
        """Take a buffer apart that holds several of some size, the one that is idle for longest."""
        if not DIVISIBLE or size < self.least_part:
            return False
        found = [
            buffer
            for fit in self.sizes[bisect_left(self.sizes, 2 * size) :]
            if fit <= MOST_PARTS * size
            for buffer in self.stacks[fit]
            if not isinstance(buffer, Part) and buffer.held is None
        ]
        if not found:
            return False
        whole = min(found, key=_serial)
        passed = self._passed.get(id(whole), 0) + size
        if passed * self.patience <= whole.nbytes:
            self._passed[id(whole)] = passed
            return False
        self._remove(whole)
        parts = parts_of(whole, size)
        self._divided[id(whole)] = whole, len(parts)
        for part in parts:
            self._insert(part)
        return True
