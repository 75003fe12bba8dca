"""`Profile`: the speeds of a machine, as they were measured or as a common machine has them.

A profile is data: it is measured elsewhere, handed in with `Machine`, kept as JSON, and read back
only if every number in it makes sense. Speeds are those of one thread while all threads of a
process are busy, since that is how a transform runs, by the time in which it had a processor: what
it waits for the interpreter the model reckons with. What one thread reaches alone is said by
`Profile.alone`.

Pure: imports `errors` and this room.
"""

import bisect
import itertools
import json
import math
from dataclasses import dataclass, fields

from dask_bigfft.errors import refuse
from dask_bigfft.planner.encoding import decode, encode

__all__ = ["DEFAULT", "Curve", "DeviceProfile", "LibrarySpeeds", "Peer", "Profile"]

#: Version of the JSON. A profile of another one is not read.
SCHEMA = 5

#: Least speed, and largest one, that are believed: what is reckoned with them stays finite.
LEAST, MOST = 1e-30, 1e30

#: Bytes after which places in memory share those in the nearest cache.
PAGE = 1 << 12


def _positive(owner: object, *names: str, zero: tuple[str, ...] = ()) -> None:
    for name in (*names, *zero):
        value = getattr(owner, name)
        if not (0 if name in zero else LEAST) <= value <= MOST:
            raise ValueError(f"{type(owner).__name__}.{name} is {value!r}")


@dataclass(frozen=True)
class Curve:
    """A speed that depends on a size: points, between them straight lines on logarithmic axes.

    Below the first point and above the last one the speed is theirs.

    Parameters
    ----------
    points : tuple of (float, float)
        Size and speed, sizes rising, all above 0.

    Examples
    --------
    >>> curve = Curve(((1.0, 10.0), (100.0, 1000.0)))
    >>> curve.at(0.1), round(curve.at(10)), curve.at(1e6)
    (10.0, 100, 1000.0)
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        numbers = [number for point in self.points for number in point]
        sizes = [size for size, _ in self.points]
        rising = all(a < b for a, b in itertools.pairwise(sizes))
        if not numbers or not rising or not all(LEAST <= n <= MOST for n in numbers):
            raise ValueError(f"not a curve of rising sizes and speeds above 0: {self.points}")

    @property
    def most(self) -> float:
        """The highest speed of its points."""
        return max(speed for _, speed in self.points)

    def at(self, size: float) -> float:
        """The speed at a size."""
        i = bisect.bisect_right(self.points, (size, math.inf))
        if i == 0:
            return self.points[0][1]
        if i == len(self.points):
            return self.points[-1][1]
        (a, before), (b, after) = self.points[i - 1], self.points[i]
        part = math.log(size / a) / math.log(b / a)
        return math.exp(math.log(before) * (1 - part) + math.log(after) * part)


def constant(speed: float) -> Curve:
    """A speed that depends on nothing."""
    return Curve(((1.0, speed),))


@dataclass(frozen=True)
class LibrarySpeeds:
    """How fast an FFT library is inside a round, in flops per second of one thread.

    5 n log2 n flops are counted for n complex points.

    Parameters
    ----------
    name, dtype : str
        Of the library, and of its complex numbers.
    along, across : Curve
        By length, down the innermost dimension, and down others; in tiles that fit a cache.
    direct_along, direct_across : Curve or None
        The same where the library reads and writes blocks where they lie, if it does, or where
        blocks are too long to be cut into tiles.
    away_along, away_across : Curve or None
        The same where results go to other memory, in one step, instead of the places of what was
        read: that is written without having been read, and much of it is not in a cache.
    powers : Curve
        By length, the speed down the innermost dimension at lengths that are powers of two, in
        units of that at others: libraries that take several lines at a time meet the same few
        places of a cache in all of them, as long as they do so.
    powers_across : Curve
        By length, the same down other dimensions, where neighbours lie a multiple of `PAGE` bytes
        apart: they fall on the same few places of a cache.
    whole : Curve
        By the bytes of a block that is not cut into tiles: what is left of these speeds, about 1 at
        most.
    real : Curve
        By length, the time of FFTs of real numbers, in units of those of half as many complex ones.
    elsewhere : bool
        Whether it reads a block where it lies, so that nothing is copied where nothing travels.
    spare : float
        What each thread more adds to FFTs of one block where there are fewer blocks than threads,
        in units of the first.
    alone : float
        How many times as fast a thread is when no other one works: all of them share the memory.
    company : float
        How many times as long its threads have a processor in a graph for what they copy and
        transform.
    """

    name: str
    dtype: str
    along: Curve
    across: Curve
    whole: Curve = Curve(((1.0, 1.0),))
    real: Curve = Curve(((1.0, 1.0),))
    elsewhere: bool = False
    direct_along: Curve | None = None
    direct_across: Curve | None = None
    away_along: Curve | None = None
    away_across: Curve | None = None
    powers: Curve = Curve(((1.0, 1.0),))
    powers_across: Curve = Curve(((1.0, 1.0),))
    spare: float = 0.0
    alone: float = 1.0
    company: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "alone", "company", zero=("spare",))

    def rate(
        self, length: int, *, innermost: bool, direct: bool = False, away: bool = False,
        step: int = 0,
    ) -> float:
        """Flops per second of FFTs of a length, down the innermost dimension or another one.

        `step` is how many bytes apart neighbours lie where a block is read as it lies; `away`
        whether the results go elsewhere. In tiles both follow from the length.
        """
        curve = self.along if innermost else self.across
        found = self.direct_along if innermost else self.direct_across
        if away:
            found = (self.away_along if innermost else self.away_across) or found
        curve = found if direct and found is not None else curve
        speed = curve.at(length)
        if 1 < length < (least := curve.points[0][0]):  # each number is still read and written
            speed *= math.log(length) / math.log(least)
        power = not length & (length - 1)
        if innermost:
            return speed * self.powers.at(length) if power else speed
        meets = step > 0 and step % PAGE == 0 if direct else power
        return speed * self.powers_across.at(length) if meets else speed


@dataclass(frozen=True)
class DeviceProfile:
    """Speeds of a device; by default those measured of an NVIDIA H200.

    Parameters
    ----------
    h2d, d2h : float
        Bytes per second over the bus, each way while the other one is busy, too.
    run : float
        Seconds that a copy takes for each contiguous run in host memory beside those for its bytes.
    memory : float
        Bytes per second of the device's own memory, read and written together.
    flops : float
        Floating point operations per second of FFTs.
    call : float
        Seconds that the host takes to start one operation.
    name : str
        Of the device.
    nbytes : int
        Bytes of its memory.
    pin : float
        Bytes per second at which fresh host memory comes and is pinned.
    ring : float
        Bytes per second, each way, of blocks that are not pinned.
    by_size, by_row : Curve or None
        Bytes per second each way by the bytes of a copy, and by those of its rows, where these were
        measured; `run` is drawn from the latter.
    h2d_by_size, h2d_by_row, d2h_by_size, d2h_by_row : Curve or None
        The same one way, while nothing goes the other: some hosts slow down where both are busy, as
        they are in rounds, which are reckoned with by the former.
    lengths : Curve or None
        Flops per second by length, where they were measured.
    """

    h2d: float = 50.6e9
    d2h: float = 50.6e9
    run: float = 0.17e-6
    memory: float = 3.9e12
    flops: float = 5e12
    call: float = 3e-6
    name: str = "NVIDIA H200"
    nbytes: int = 139 << 30
    pin: float = 2.5e10
    ring: float = 1.2e10
    by_size: Curve | None = None
    by_row: Curve | None = None
    h2d_by_size: Curve | None = None
    h2d_by_row: Curve | None = None
    d2h_by_size: Curve | None = None
    d2h_by_row: Curve | None = None
    lengths: Curve | None = None

    def __post_init__(self) -> None:
        speeds = ("h2d", "d2h", "memory", "flops", "nbytes", "pin", "ring")
        _positive(self, *speeds, zero=("run", "call"))

    def bus_seconds(self, nbytes: int, runs: int, speed: float) -> float:
        """Seconds of a copy between pinned memory and the device.

        Parameters
        ----------
        nbytes, runs : int
            What it copies, and in how many contiguous runs of host memory.
        speed : float
            Bytes per second of large copies its way: `h2d` or `d2h`.
        """
        if self.by_size is not None:
            speed *= self.by_size.at(max(nbytes, 1)) / self.by_size.most
        row = nbytes / max(runs, 1)
        if self.by_row is None or not self.by_row.points[0][0] <= row:
            return nbytes / speed + (runs - 1) * self.run
        return nbytes / speed + nbytes * (1 / self.by_row.at(row) - 1 / self.by_row.most)

    def fft_rate(self, length: int) -> float:
        """Flops per second of FFTs of a length."""
        return self.flops if self.lengths is None else self.lengths.at(length)


@dataclass(frozen=True)
class Peer:
    """How fast one device of a process reads the memory of another.

    Parameters
    ----------
    source, target : int
        The devices, by their place in `Profile.devices`.
    speed : float
        Bytes per second.
    """

    source: int
    target: int
    speed: float

    def __post_init__(self) -> None:
        _positive(self, "speed", zero=("source", "target"))


def _falling(byte: float, run: float) -> Curve:
    """Bytes per second by row width, of copies that take so long per byte and per row."""
    widths = [float(1 << power) for power in range(3, 23)]
    return Curve(tuple((width, 1 / (byte + run / width)) for width in widths))


#: Gathers of a common machine, priced so that an exchange more has to save two passes over memory:
#: exchanges are what does not scale.
COMMON_GATHER = _falling(5.5e-10, 1e-8)

#: What is not priced where nobody has measured it.
UNPRICED = constant(1e18)


@dataclass(frozen=True)
class Profile:
    """Speeds of a machine, or of the machines of a cluster.

    Parameters
    ----------
    name : str
        What was measured; an empty name stands for no machine: common speeds.
    threads : int
        Threads that were busy while it was measured.
    copy : float
        Bytes per second that a thread copies, in long rows.
    alone : float
        How many times as fast a thread copies when no other one works.
    straight, turned : Curve
        Bytes per second of a gather, tile by tile, by the bytes of its rows: where rows stay rows,
        and where they become columns.
    straight_whole, turned_whole : Curve
        The same for blocks that are gathered whole.
    lying, lying_turned : Curve
        The same where blocks lie together in memory, and are copied from there tile by tile.
    stored : Curve
        Bytes per second at which tiles are stored apart from where they were worked on, by the
        bytes of the rows there.
    narrow, narrow_turned : float
        How many times as long bytes take to be copied, so or so, in elements of 8 bytes as in such
        of 16.
    twiddle : float
        Bytes per second that are multiplied by twiddles, in elements of 16 bytes.
    energy, checksum : float
        Bytes per second of blocks that are verified so or so, what they come in with and what goes
        out counted together.
    touch : float
        Bytes per second at which fresh pages come.
    libraries : tuple of LibrarySpeeds
        Those that were measured. Others are as fast as `flops`.
    flops : float
        Flops per second of a library that nobody has measured.
    start, planned : float
        Seconds until the first task of a graph runs, and after the last; and those more for each
        of its tasks, which are put in order before.
    task : float
        Seconds of the scheduler, and of Python, for a task; one after the other.
    exchange : float
        Seconds in which threads wait for the last block of an exchange, and for the next task.
    uneven : float
        Part of a block's seconds in which threads wait for the last one of a round, on the whole,
        where each has one: some take longer.
    block, gathered_block, lying_block, shard, tile : float
        Seconds of Python for a block that is taken as it comes, one that is gathered, one that is
        found where it lies, a shard of a gather, and a tile; one after the other.
    tables : float
        Seconds of Python for an exchange whose blocks are gathered: what the first of them works
        out for all.
    brief : float
        Seconds for a task whose block lies where it should be; one after the other.
    packed : float
        Seconds of the scheduler, and of Python, for a shard that is a task of its own.
    company, waiting : float
        How many times as long threads take in a graph for what they copy (1 where calibration asks
        each library instead), and until the next task is handed to them, as by themselves.
    slack : float
        How many times as long threads take for what they copy and transform as they have a
        processor for it.
    wake : float
        Seconds by which Python takes longer after each copy and each FFT of a thread while others
        wait for the interpreter.
    pair : float
        Seconds of dask's ordering for each pair of blocks of an exchange.
    sent_task, sent_shard : float
        Seconds of a cluster's scheduler for a task, and of a worker for a shard that travels.
    network : float
        Bytes per second that a process receives while all of them do.
    write, read : float
        Bytes per second of the disk, and back, shared by all processes of a machine.
    devices : tuple of DeviceProfile
        The devices of a process.
    together : float
        Part of their speeds that is left to threads that copy, and to devices, while both work.
    shared_round, shared_block : float
        Seconds that a round takes longer because CPU threads and devices share it, and for each of
        its blocks: not all begin and end at the same time, and all of them hand out work.
    shared_tiles : float
        Part of their speeds that is left while both work where CPU threads go from tile to tile,
        each of which takes the interpreter, and not by calls that the FFT library shares out.
    peers : tuple of Peer
        Which of them read each other's memory, and how fast.
    """

    name: str = ""
    threads: int = 2
    copy: float = 1 / 1.5e-10
    alone: float = 1.0
    straight: Curve = COMMON_GATHER
    turned: Curve = COMMON_GATHER
    straight_whole: Curve = COMMON_GATHER
    turned_whole: Curve = COMMON_GATHER
    lying: Curve = COMMON_GATHER
    lying_turned: Curve = COMMON_GATHER
    stored: Curve = UNPRICED
    narrow: float = 1.0
    narrow_turned: float = 1.0
    twiddle: float = 1e10
    touch: float = 1e9
    libraries: tuple[LibrarySpeeds, ...] = ()
    flops: float = 1e10
    start: float = 0.0
    planned: float = 0.0
    task: float = 3e-4
    exchange: float = 2e-2
    uneven: float = 0.0
    block: float = 0.0
    gathered_block: float = 0.0
    lying_block: float = 0.0
    shard: float = 3e-5
    tile: float = 0.0
    tables: float = 0.0
    brief: float = 1e-4
    packed: float = 3.3e-4
    company: float = 1.0
    waiting: float = 1.0
    slack: float = 1.0
    wake: float = 0.0
    pair: float = 2.5e-8
    sent_task: float = 3e-4
    sent_shard: float = 1e-4
    network: float = 1e9
    write: float = 1e9
    read: float = 1e9
    devices: tuple[DeviceProfile, ...] = ()
    together: float = 0.75
    shared_round: float = 3e-2
    shared_block: float = 5e-4
    shared_tiles: float = 0.5
    peers: tuple[Peer, ...] = ()
    energy: float = 1e18
    checksum: float = 1e18

    def __post_init__(self) -> None:
        zero = ("start", "planned", "task", "exchange", "uneven", "block", "gathered_block",
                "lying_block", "shard", "tile", "tables", "brief", "packed", "pair", "sent_task",
                "sent_shard", "shared_round", "shared_block", "wake")
        _positive(self, "threads", "copy", "alone", "narrow", "narrow_turned", "twiddle", "touch",
                  "flops", "network", "write", "read",
                  "together", "shared_tiles", "company", "waiting", "slack", "energy", "checksum",
                  zero=zero)
        if max(self.together, self.shared_tiles) > 1:
            raise ValueError(f"Profile.together is {self.together!r}, .shared_tiles "
                             f"{self.shared_tiles!r}: parts of 1")
        for peer in self.peers:
            if max(peer.source, peer.target) >= len(self.devices):
                raise ValueError(f"{peer} of {len(self.devices)} devices")

    def library(self, name: str, dtype: str) -> LibrarySpeeds:
        """The speeds of a library in a complex dtype; those of another dtype if need be."""
        of_name = [found for found in self.libraries if found.name == name]
        exact = [found for found in of_name if found.dtype == dtype]
        for found in (*exact, *of_name):
            return found
        return LibrarySpeeds(name, dtype, constant(self.flops), constant(self.flops))

    def peer(self, source: int, target: int) -> float | None:
        """Bytes per second from one device to another, None where they cannot."""
        found = (p.speed for p in self.peers if (p.source, p.target) == (source, target))
        return next(found, None)

    def to_json(self) -> str:
        """Return the profile as JSON, from which `from_json` makes it again."""
        return json.dumps({"schema": SCHEMA, "profile": encode(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Return the profile that `to_json` wrote.

        Raises
        ------
        ArgumentError
            If the text is not such a profile, or its version is another one.
        """
        try:
            found = json.loads(text)
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']!r} is not {SCHEMA}")
            missing = {f.name for f in fields(cls)} - set(found["profile"])
            if missing:
                raise ValueError(f"no entries {sorted(missing)}")
            profile = decode(cls, found["profile"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            refuse("text", text[:60], f"the JSON of a profile ({error})")
        assert isinstance(profile, cls)
        return profile


#: What is reckoned with where nothing was measured: a common machine of a few cores.
DEFAULT = Profile()
