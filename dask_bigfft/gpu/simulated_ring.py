"""When values pass a ring of staging buffers, by the clock of a simulated device.

What `ring` does with buffers and threads, as times, in the order of the calls. Threads gather and
scatter at one speed, side by side. Whoever submits pieces waits while the buffers that are next are
taken, and until a gather is done; what a device was told of before is gathered as far as there are
buffers::

    gather   | a1 | a2 | b1 .......... | b2          b1 waits for the buffer of a1
    card          | a1 | a2 |     | b1 | b2
    submit   ...... a1 . a2 ........ b1 ... b2       and with it what is submitted behind it

Imports `ring` of this room.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dask_bigfft.gpu.ring import GATHERED

#: Lets the card copy some bytes from a moment on: when it is done, and when the host goes on.
Copying = Callable[[int, float], tuple[float, float]]


@dataclass
class Loading:
    """A view on its way into buffers: bytes that no thread is at, and when buffers are full."""

    of: object
    left: int
    filling: deque[tuple[float, int]] = field(default_factory=deque)


class RingClock:
    """The buffers of both ways, each with the moment from which on nobody uses it.

    Parameters
    ----------
    speed : float
        Bytes per second that threads copy each way.
    buffers, nbytes : int
        Buffers each way, and bytes of each.
    """

    def __init__(self, speed: float, buffers: int, nbytes: int) -> None:
        self.speed, self.buffers, self.nbytes, self.part = speed, buffers, nbytes, nbytes
        self._in, self._out = deque([0.0] * buffers), deque([0.0] * buffers)
        self._gathered = self._scattered = 0.0
        self._told: deque[Loading] = deque()

    def use(self, part: int | None) -> None:
        """Use so many bytes of a buffer at a time from now on; None: all of them."""
        self.part = min(part or self.nbytes, self.nbytes)

    def ahead(self, of: object, nbytes: int, now: float) -> None:
        """Take in what `load` will be asked for later, and begin to gather it."""
        self._told.append(Loading(of, nbytes))
        self._go_ahead(now)

    def forget(self) -> None:
        """Give up what was begun and not asked for."""
        while self._told:
            self._give_up(self._told.popleft())

    def load(self, of: object, nbytes: int, now: float, copy: Copying) -> float:
        """Take a view to the card; return when the host goes on."""
        loading = self._begun(of) or Loading(of, nbytes)
        while loading.filling or loading.left:
            while loading.left and len(loading.filling) < GATHERED and self._in:
                now = self._fill(loading, now)
            self._go_ahead(now)
            full, part = loading.filling.popleft()
            copied, now = copy(part, max(now, full))
            self._in.append(copied)
        return now

    def store(self, nbytes: int, now: float, copy: Copying) -> tuple[float, float]:
        """Bring a view from the card; return when the values are there, and the host goes on."""
        while nbytes:
            part = min(nbytes, self.part)
            self._go_ahead(now)
            copied, now = copy(part, max(now, self._out.popleft()))
            self._scattered = max(self._scattered, copied) + part / self.speed
            self._out.append(self._scattered)
            nbytes -= part
        return self._scattered, now

    def _fill(self, loading: Loading, now: float) -> float:
        """Let threads gather into the next buffer; return when the host goes on."""
        now, part = max(now, self._in.popleft()), min(loading.left, self.part)
        self._gathered = max(self._gathered, now) + part / self.speed
        loading.filling.append((self._gathered, part))
        loading.left -= part
        return now

    def _go_ahead(self, now: float) -> None:
        """Gather what was told of, into buffers that nobody uses now; one is left."""
        for loading in self._told:
            while loading.left and len(self._in) > 1 and self._in[0] <= now:
                self._fill(loading, now)
            if loading.left:
                return

    def _begun(self, of: object) -> Loading | None:
        """What was begun of a view; what should have come before does not come any more."""
        if not any(loading.of is of for loading in self._told):
            return None
        while (found := self._told.popleft()).of is not of:
            self._give_up(found)
        return found

    def _give_up(self, loading: Loading) -> None:
        self._in.extend(full for full, _ in loading.filling)
