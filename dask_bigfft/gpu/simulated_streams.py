"""The streams of a simulated device, and its clock: the order of what waits is drawn from a seed.

Operations wait in their streams until the host waits for something. Then they run one by one, in
any order that the events permit. The clock knows three engines that work at the same time, each in
the order of the calls: copies each way, and computing.

Imports `planner`, `errors` and this room.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu.protocol import Event, Stream
from dask_bigfft.planner.profile import DeviceProfile


@dataclass(frozen=True)
class Span:
    """Work that an engine (``h2d``, ``compute`` or ``d2h``) did, and when, by the clock."""

    engine: str
    operation: str
    start: float
    end: float


@dataclass
class SimulatedEvent:
    """A mark: how often it was made, how often it was reached, and when the latest is reached.

    And when the host has what was copied to it before.
    """

    name: str
    made: int = 0
    reached: int = 0
    time: float = 0.0
    stored: float = 0.0


@dataclass
class SimulatedStream:
    """Operations that wait, and when the clock says that they will be done.

    And what the host is to wait for: until all that was copied to it is there, and before it puts
    more into the stream.
    """

    name: str
    waiting: deque[tuple[Callable[[], bool], Callable[[], None]]] = field(default_factory=deque)
    time: float = 0.0
    stored: float = 0.0
    awaited: float = 0.0


class SimulatedStreams:
    """Streams, events and a clock, and nothing that runs in them yet.

    Parameters
    ----------
    seed : int
        Draws the order in which operations run.
    profile : DeviceProfile
        Speeds, for the clock.
    dry : bool
        Whether only the clock runs.
    """

    def __init__(self, seed: int, profile: DeviceProfile, dry: bool) -> None:
        self.profile, self.dry = profile, dry
        self.trace: list[Span] = []
        self._streams: list[SimulatedStream] = []
        self._lock = threading.RLock()
        self._engines = {"h2d": 0.0, "compute": 0.0, "d2h": 0.0}
        self._host_time = 0.0
        self._random = random.Random(seed)
        self._favour: dict[str, float] = {}

    def stream(self, name: str) -> SimulatedStream:
        """Make a stream."""
        with self._lock:
            stream = SimulatedStream(name)
            self._streams.append(stream)
            # Some streams run far ahead of others, differently for every seed.
            self._favour[name] = self._random.choice((0.01, 1.0, 100.0))
            return stream

    def event(self, name: str) -> SimulatedEvent:
        """Make an event."""
        return SimulatedEvent(name)

    def record(self, event: Event, stream: Stream, stored: bool = True) -> None:
        """Put a mark into a stream."""
        assert isinstance(event, SimulatedEvent)
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            event.made += 1
            event.time = stream.time
            event.stored = max(stream.stored, stream.awaited) if stored else 0.0
            mark = event.made

            def reach() -> None:
                event.reached = max(event.reached, mark)

            stream.waiting.append((lambda: True, reach))

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream wait for the event's latest mark."""
        assert isinstance(event, SimulatedEvent)
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            mark = event.made
            stream.time = max(stream.time, event.time)
            stream.awaited = max(stream.awaited, event.stored)
            stream.waiting.append((lambda: event.reached >= mark, lambda: None))

    def synchronize(self, event: Event) -> None:
        """Run what waits until the event's latest mark is reached."""
        assert isinstance(event, SimulatedEvent)
        mark = event.made
        while True:
            with self._lock:
                if event.reached >= mark:
                    self._host_time = max(self._host_time, event.time, event.stored)
                    return
                self._run_one()

    def synchronize_all(self) -> None:
        """Run everything that waits."""
        with self._lock:
            while any(stream.waiting for stream in self._streams):
                self._run_one()
            ends = [max(stream.time, stream.stored) for stream in self._streams]
            self._host_time = max([self._host_time, *ends])

    def _run_one(self) -> None:
        """Run one that may be next."""
        ready = [s for s in self._streams if s.waiting and s.waiting[0][0]()]
        if not ready:
            raise DeviceError("streams wait for each other, or for a mark that was never made")
        weights = [self._favour[stream.name] for stream in ready]
        stream = self._random.choices(ready, weights)[0]
        stream.waiting.popleft()[1]()

    def _put(self, stream: Stream, operation: str, seconds: float, run: Callable[[], None]) -> None:
        """Put an operation into a stream, and its time on the clock of its engine."""
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            self._timed(stream, operation, seconds)
            self._queue(stream, run)

    def _timed(self, stream: SimulatedStream, operation: str, seconds: float) -> float:
        """Let an operation take its time; when it is done."""
        engine = operation if operation in self._engines else "compute"
        self._host_time = max(self._host_time, stream.awaited) + self.profile.call
        start = max(self._engines[engine], stream.time, self._host_time)
        self._engines[engine] = stream.time = start + seconds
        self.trace.append(Span(engine, operation, start, start + seconds))
        return stream.time

    def _queue(self, stream: SimulatedStream, run: Callable[[], None]) -> None:
        """Let an operation wait in a stream; maybe one of all that wait is run."""
        stream.waiting.append((lambda: True, (lambda: None) if self.dry else run))
        if self._random.random() < 0.1:
            self._run_one()

    def clock(self) -> float:
        """Seconds of simulated time that have passed for the host."""
        with self._lock:
            return self._host_time

    def wait_until(self, seconds: float) -> None:
        """Let simulated time pass for the host, up to a moment, while it does something else."""
        with self._lock:
            self._host_time = max(self._host_time, seconds)
