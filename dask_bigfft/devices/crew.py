"""Who works on the blocks that CPU threads and devices share: who is free takes the next piece.

The thread of a task opens its block, when little is left of those that are open, and waits until it
is done. Helpers, threads of this room, take tiles of the block that was opened first; feeders, two
for each device, pieces of the one that was opened last, while they hold a lease. Where only one is
left they meet in it. What `taking` says decides who takes how much.

Some cores are left to the feeders of each device, and as many threads as can be share single calls
of the FFT library: whoever feeds a device makes dozens of short calls for each piece, and after
every one of them queues for the interpreter behind all threads that have just finished a tile.

Imports `planner`, `events`, `record` and this room.
"""

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.hybrid import Pace, Shared
from dask_bigfft.devices.leases import Leases
from dask_bigfft.devices.operations import Array
from dask_bigfft.devices.taking import KINDS, TEAMS, Kind, Taken, Taking
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.planner.work_sharing import FEEDERS, gathering_threads, lanes
from dask_bigfft.record import current_worker

__all__ = ["Crew", "crew_of"]

#: Rounds whose speeds are remembered.
KEPT_PACES = 64

#: Blocks that are kept open, with so much left to take: so many for each device, one for helpers.
AHEAD = 1

#: Seconds for which a thread that has nothing to do waits for more: who starts a thread waits until
#: it runs, a millisecond each where many want the interpreter, and all of a round wait for that.
LINGER = 5.0


class Crew:
    """The takers of a process: helpers on the CPU, and feeders of the devices.

    Parameters
    ----------
    leases : Leases
        The devices.
    cores : int
        CPU threads that work at a time, feeders among them.
    """

    def __init__(self, leases: Leases, cores: int) -> None:
        self.leases, self.cores = leases, max(1, cores)
        self._paces: OrderedDict[Any, dict[Kind, float]] = OrderedDict()
        feeders = FEEDERS * len(leases.engines)
        self.taking = Taking({"cpu": self.lanes, "device": feeders})
        self.open: list[Shared] = []
        self.gathering = gathering_threads(self.cores)
        #: Helpers and feeders that there are, helpers with a tile, and threads that gather.
        self.helpers = self.feeders = self.tilers = self.gatherers = 0
        self.lock = threading.Lock()
        self._turns, self._tile, self._piece = (threading.Condition(self.lock) for _ in range(3))
        #: Bytes of blocks whose tasks wait to open them, and of those that are being opened.
        self._waiting: deque[int] = deque()
        self._opening = 0
        #: Tasks of a round that have come.
        self._come: OrderedDict[Any, int] = OrderedDict()

    @property
    def lanes(self) -> int:
        """CPU threads that may work on tiles: some are left for the feeders of each device."""
        return lanes(self.cores, len(self.leases.engines))

    @property
    def team(self) -> int:
        """CPU threads that are one taker, where the FFT library shares its calls out."""
        return max(1, self.lanes // TEAMS)

    @property
    def room(self) -> int:
        """CPU threads that may work on tiles now."""
        return max(1, self.lanes - self.gatherers)

    def pace(self, round_: Any, forecast: Callable[[], Pace]) -> dict[Kind, float]:
        """What is known of the speeds in a round: as measured, at first as forecast."""
        with self.lock:
            found = self._paces.get(round_)
        if found is None:
            known = forecast()
            found = {"cpu": known.cpu, "device": known.device}
        with self.lock:
            found = self._paces.setdefault(round_, found)
            self._paces.move_to_end(round_)
            while len(self._paces) > KEPT_PACES:
                self._paces.popitem(last=False)
            return found

    def run(
        self, round_: Any, blocks: int, nbytes: int, opened: Callable[[], Shared | None]
    ) -> Array | None:
        """Return a block after a round that all have done together; called by its task.

        Parameters
        ----------
        round_ : hashable
            Which round of which plan.
        blocks : int
            Blocks of it that tasks are started for side by side, at most.
        nbytes : int
            Of the block.
        opened : callable
            Returns the round on the block, ready to be shared, when it is this block's turn; None
            where it cannot be shared.
        """
        self._await_turn(round_, blocks, nbytes)
        shared = None
        try:
            shared = opened()
        finally:
            with self.lock:
                self._opening -= nbytes
                if shared is not None:
                    self.open.append(shared)
                    self.taking.open(shared.open)
                    self._staff()
                self._expect(round_, blocks, nbytes)
                self._go_on()
        if shared is None:
            return None
        try:
            shared.ended.wait()
        finally:
            with self.lock:
                shared.open.left.clear()
                self.taking.close(shared.open)
                self.open.remove(shared)
                self._go_on()
        if shared.error is not None:
            raise shared.error
        for kind in KINDS:
            part = shared.out.nbytes * shared.open.taken[kind] // shared.open.rows
            emit(f"round_{kind}", nbytes=part)
        return shared.out

    def _await_turn(self, round_: Any, blocks: int, nbytes: int) -> None:
        """Wait until a block may be opened."""
        with self.lock:
            self._come[round_] = self._come.pop(round_, 0) + 1
            while len(self._come) > KEPT_PACES:
                self._come.popitem(last=False)
            self._waiting.append(nbytes)
            self._expect(round_, blocks, nbytes)
            try:
                self._turns.wait_for(lambda: self._wants(nbytes))
                self._opening += nbytes
            finally:
                self._waiting.remove(nbytes)

    def _expect(self, round_: Any, blocks: int, nbytes: int) -> None:
        """Reckon with blocks that wait, and with those whose tasks will be here in no time."""
        missing = max(0, blocks - self._come.get(round_, 0))
        self.taking.coming = sum(self._waiting) + self._opening + missing * nbytes

    def _wants(self, nbytes: int) -> bool:
        """Whether so little is left that another block should be opened; with the lock."""
        wanted = 1 + AHEAD * len(self.leases.engines)
        return self.taking.left + self._opening < wanted * nbytes

    def _go_on(self) -> None:
        """Let the task that has waited longest open its block, if it should; with the lock."""
        if self._waiting and self._wants(self._waiting[0]):
            self._turns.notify()

    def _take(self, kind: Kind, among: Iterable[Shared]) -> tuple[Shared, Taken] | None:
        """What somebody works on next; with the lock."""
        for found in among:
            taken = self.taking.take(kind, found.open)
            if taken is not None:
                self._go_on()
                return found, taken
        return None

    def _landed(self, shared: Shared) -> None:
        """Say that a portion is done, or cannot be; with the lock."""
        if shared.error is not None:
            shared.open.left.clear()
        if shared.open.finished:
            shared.ended.set()
        if self.taking.left:  # perhaps for somebody who was too slow for it before
            self._tile.notify()
            self._piece.notify()

    def _staff(self) -> None:
        """Wake takers, or start as many as have something to do; with the lock."""
        self._tile.notify_all()
        self._piece.notify_all()
        wanted = self.taking.staff["device"]
        for _ in range(wanted - self.feeders if any(s.open.piece for s in self.open) else 0):
            self.feeders += 1
            threading.Thread(target=self._feed, name="bigfft-feeder", daemon=True).start()
        for _ in range(self.lanes - self.helpers):
            self.helpers += 1
            threading.Thread(target=self._help, name="bigfft-helper", daemon=True).start()

    # --- CPU threads ------------------------------------------------------------------------

    def _help(self) -> None:
        """Take tiles until there have been none for a while."""
        while True:
            with self.lock:
                found = self._next_tile()
                while found is None:
                    woken = self._tile.wait(LINGER)
                    found = self._next_tile()
                    if found is None and not woken:
                        self.helpers -= 1
                        return
            self._tiles(*found)
            del found  # the block is its task's alone

    def _next_tile(self) -> tuple[Shared, Taken] | None:
        """The next tiles for a CPU thread; with the lock."""
        found = self._take("cpu", [s for s in self.open if self._fits(s.open.team)])
        if found is not None:
            self.tilers += found[0].open.team
        return found

    def _fits(self, team: int) -> bool:
        """Whether so many CPU threads more may work on tiles."""
        return self.tilers == 0 or self.tilers + team <= self.room

    def _tiles(self, shared: Shared, taken: Taken) -> None:
        """Work on tiles of a block, from those that are taken, until there are none."""
        hand = _Hand(self, shared, taken)
        try:
            with shared.telling():
                shared.tiles(hand)
        except BaseException as error:  # of the task that waits, not of this thread
            hand.fail(error)

    # --- devices ----------------------------------------------------------------------------

    def _feed(self) -> None:
        """Give pieces to a device until there have been none for it for a while."""
        while True:
            with self.lock:
                found = self._to_feed()
                while found is None:
                    woken = self._piece.wait(LINGER)
                    found = self._to_feed()
                    if found is None and not woken:
                        self.feeders -= 1
                        return
            self._feed_one(found)
            del found

    def _to_feed(self) -> Shared | None:
        """The block that a device may take a piece of, the latest; with the lock."""
        offered = (s for s in reversed(self.open) if self.taking.offers("device", s.open))
        return next(offered, None)

    def _feed_one(self, shared: Shared) -> None:
        """Give a device one part of a block, if there is still one for it."""
        try:
            with self.leases.lease(shared.need) as engine:
                self._part(shared, engine)
        except DeviceMemoryError:
            with self.lock:
                shared.open.piece = 0
                self._tile.notify_all()

    def _part(self, shared: Shared, engine: Engine) -> None:
        gatherers = self.gathering if shared.gathers(engine) else 0
        with self.lock:
            found = self._take("device", [shared])
            if found is None:
                return
            self.gatherers += gatherers
        taken, started, failed = found[1], time.perf_counter(), True
        try:
            with shared.telling():
                shared.on_device(engine, taken, self.gathering)
            failed = False
        except DeviceMemoryError:
            with shared.telling():
                emit("fallback", nbytes=taken.nbytes)  # CPU threads take the part
        except BaseException as error:  # of the task that waits, not of this thread
            shared.error = error
        with self.lock:
            self.gatherers -= gatherers
            if failed:
                self.taking.give_back(taken)
            else:
                self.taking.done(taken, time.perf_counter() - started)
            self._landed(shared)


class _Hand:
    """The tiles that one CPU thread takes of a block, one portion after the other."""

    def __init__(self, crew: Crew, shared: Shared, taken: Taken) -> None:
        self.crew, self.shared = crew, shared
        self.taken: Taken | None = taken
        self.at, self.started = taken.low, time.perf_counter()

    def __iter__(self) -> "_Hand":
        return self

    def __next__(self) -> slice:
        if self.taken is None:
            raise StopIteration
        if self.at >= self.taken.high:  # back for more: the tiles are done
            self._done(self.taken)
        if self.taken is None:
            raise StopIteration
        low = self.at
        self.at = min(low + self.taken.width, self.taken.high)
        return slice(low, self.at)

    def _done(self, taken: Taken) -> None:
        """Hand in the portion, and take another one of the same block if there is one."""
        now, crew, shared = time.perf_counter(), self.crew, self.shared
        with crew.lock:
            crew.taking.done(taken, now - self.started)
            found = None
            if crew.tilers <= crew.room and shared.error is None:
                found = crew._take("cpu", [shared])
            if found is None:
                crew.tilers -= shared.open.team
                self.taken = None
            else:
                self.taken, self.at, self.started = found[1], found[1].low, now
            crew._landed(shared)

    def fail(self, error: BaseException) -> None:
        """The tiles could not be done: the block's task says why."""
        crew = self.crew
        with crew.lock:
            self.shared.error = error
            if self.taken is not None:
                crew.taking.give_back(self.taken)
                crew.tilers -= self.shared.open.team
            crew._landed(self.shared)


def crew_of(leases: Leases) -> Crew:
    """Return the takers for the devices of this process, or of the worker that calls."""
    worker = current_worker()
    cores = (os.cpu_count() or 1) if worker is None else int(worker.state.nthreads)
    return Crew(leases, cores)
