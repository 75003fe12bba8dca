"""Rounds on blocks that CPU threads and devices do together: a block, and what each does of it.

A part that a device had no memory for goes back, and CPU threads take it: blocks are gathered part
by part from sources that are only read, so nothing is lost.
`crew` has the threads, and `taking` says who takes how much.

Imports `decomposition`, `kernels`, `memory`, `events`, `errors` and this room.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from dask_bigfft.decomposition.tiles import ROW_BYTES, TILE_BYTES
from dask_bigfft.devices.engine import Engine, Prepared
from dask_bigfft.devices.jobs import Job, Part, Source
from dask_bigfft.devices.leases import Need
from dask_bigfft.devices.operations import Array
from dask_bigfft.devices.pieces import PiecePlan
from dask_bigfft.devices.taking import Kind, OpenBlock, Taken
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import during, working_for
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.cpu import in_one_call, run_tiles
from dask_bigfft.kernels.incoming import Divisible, parts
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.memory import lend

__all__ = ["Pace", "Shared", "largest", "shared"]


#: Bytes of a part that a device takes at least, in units of what a piece has at least: it is called
#: for each, and the others wait for the last one no longer than that takes.
PARTS = 4

#: Tiles are so much larger than where CPU threads work alone: each takes the interpreter for a
#: while, which feeders of devices need, too.
WIDER = 4

@dataclass(frozen=True)
class Pace:
    """Seconds that one CPU thread, and one feeder of a device, need for a byte of a block."""

    cpu: float
    device: float


@dataclass(eq=False)
class Shared:
    """A round on a block that several takers work on.

    Parameters
    ----------
    job : Job
        The round on the block; what it rolls is rolled later.
    incoming : Divisible
        The block on its way in.
    library : FFTLibrary
        Makes the CPU's FFTs.
    filters : mapping
        Spectrum of the convolution's filter, for the axes that need one.
    out : ndarray
        The block after the round.
    tiling : (int, int)
        Dimension along which it is cut, and the width of a CPU thread's tile.
    open : OpenBlock
        What of it is left.
    need : Need
        What a device's part takes.
    nbytes : int or None
        Bytes of a device that may be used.
    source : Source
        The block as a device reads it, without a copy where that is possible.
    """

    job: Job
    incoming: Divisible
    library: FFTLibrary
    filters: Mapping[int, Array]
    out: Array
    tiling: tuple[int, int]
    open: OpenBlock
    need: Need
    nbytes: int | None
    source: Source
    work: tuple[str, int] | None = field(default_factory=working_for)
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: dict[Engine, tuple[Prepared, Composite | None]] = field(default_factory=dict)
    _found: tuple[Array, Callable[[slice], None] | None, Array] | None = None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Events of this thread carry the plan and the round."""
        with during(*self.work) if self.work is not None else contextlib.nullcontext():
            yield

    def tiles(self, cuts: Iterator[slice]) -> None:
        """Do some tiles, here and now."""
        job = self.job
        run_tiles(
            job.round, job.block, self.incoming, self.library, self.out, self.tiling, cuts,
            self.filters,
        )

    def _on(self, engine: Engine) -> tuple[Prepared, Composite | None]:
        """How an engine does the block, and the block as it reads it in place, if it can."""
        found = self._ready.get(engine)
        if found is None:
            prepared = engine.prepared(self.job, self.nbytes)
            found = prepared, self.source.in_place(prepared.plan, engine.limits)
            self._ready[engine] = found
        return found

    def gathers(self, engine: Engine) -> bool:
        """Whether a part has to be gathered before a device can read it."""
        given = self.incoming.as_is
        if given is not None and given.dtype == self.job.source:
            return False
        return self._on(engine)[1] is None

    def on_device(self, engine: Engine, taken: Taken, threads: int) -> None:
        """Do a part, on a device."""
        (prepared, found), dim = self._on(engine), self.tiling[0]
        plan = prepared.plan
        width = min(taken.width, plan.schedule.crossings[0].extents[dim])
        part = Part(dim, taken.low, taken.high, width)
        source = found or self._gathered(slice(taken.low, taken.high), threads)
        engine.run_part(prepared, part, source, self.out, self.filters)

    def _buffers(self) -> tuple[Array, Callable[[slice], None] | None, Array]:
        """The block as it comes, what gathers a part of it, and the block as a device reads it."""
        with self._lock:
            if self._found is None:
                came, fill, dtype = self.incoming.as_is, None, np.dtype(self.job.source)
                if came is None:
                    shape, kind = self.incoming.shape, self.incoming.dtype
                    inside = self.out.shape == shape and self.out.dtype == kind
                    came = self.out if inside else lend(shape, kind)
                    fill = self.incoming.filling(self.tiling[0], came)
                read = came if came.dtype == dtype else lend(came.shape, dtype)
                self._found = came, fill, read
            return self._found

    def _gathered(self, part: slice, threads: int) -> Array:
        """Memory in which a part of the block lies in its place, by some threads."""
        came, fill, read = self._buffers()
        ahead = (slice(None),) * self.tiling[0]

        def bring(cut: slice) -> None:
            place = slice(part.start + cut.start, part.start + cut.stop)
            if fill is not None:
                fill(place)
            if read is not came:
                read[(*ahead, place)] = came[(*ahead, place)]

        rows = part.stop - part.start
        cuts = list(parts(rows, -(-rows // threads)))
        if len(cuts) == 1:
            bring(cuts[0])
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(bring, cuts))
        return read


def largest(job: Job, incoming: Divisible) -> int:
    """Bytes of a block before a round or after it, whichever is more."""
    after = math.prod(job.round.target.shape(job.block)) * np.dtype(job.target).itemsize
    return max(after, math.prod(incoming.shape) * incoming.dtype.itemsize)


def shared(
    job: Job, incoming: Divisible, library: FFTLibrary, filters: Mapping[int, Array],
    engine: Engine, source: Source, nbytes: int | None, pace: dict[Kind, float], team: int = 1
) -> Shared | None:
    """Return a round on a block, ready to be shared; None where its parts need each other.

    Parameters
    ----------
    job, incoming, library, filters, source, nbytes
        As `Shared` has them.
    engine : Engine
        A device, all of which are alike.
    pace : dict
        Seconds per byte of one CPU thread and one feeder, by the model or as measured.
    team : int
        CPU threads that take tiles together, where the FFT library can share a call out.
    """
    round_, limits = job.round, engine.limits
    out_dtype = np.dtype(job.target)
    shape, before = round_.target.shape(job.block), incoming.shape
    nbytes_most = largest(job, incoming)
    changes = shape != before or out_dtype != incoming.dtype
    tile_bytes = min(TILE_BYTES if changes else WIDER * TILE_BYTES, limits.least)
    found = _tiles(before, {round_.dim(step) for step in round_.steps}, nbytes_most, tile_bytes)
    if found is None or not incoming.divides(found[0]):
        return None
    try:
        plan, carve, *_ = engine.prepared(job, nbytes)
    except DeviceMemoryError:
        return None
    if shared_dim(plan) is None:
        return None
    dim, rows = found[0], before[found[0]]
    row_nbytes = -(-nbytes_most // rows)
    piece = plan.schedule.crossings[0].extents[dim]
    inner = math.prod(before[dim + 1 :]) * np.dtype(plan.dtype).itemsize
    run = -(-limits.run_nbytes // inner) if math.prod(before[:dim]) > 1 else 1
    least = min(piece, max(run, -(-PARTS * limits.least // row_nbytes)))
    if in_one_call(round_, incoming, library):
        library = library.using(team)
    else:
        team = 1
    block = OpenBlock(rows, row_nbytes, found[1], piece, least, pace, team)
    out = lend(shape, out_dtype)
    need = Need(carve.slots, carve.slot_nbytes)
    return Shared(job, incoming, library, filters, out, found, block, need, nbytes, source)


def shared_dim(plan: PiecePlan) -> int | None:
    """Return the dimension along which a block can be shared; None where parts need each other."""
    return _free_dim(plan.round.source.shape(plan.block), plan.dims) if plan.divides else None


def _free_dim(shape: tuple[int, ...], fixed: Collection[int]) -> int | None:
    """The outermost dimension that is not transformed."""
    return next((dim for dim, n in enumerate(shape) if dim not in fixed and n > 1), None)


def _tiles(
    shape: tuple[int, ...], fixed: set[int], nbytes: int, tile_bytes: int
) -> tuple[int, int] | None:
    """Dimension along which a block is shared, and the width of a CPU thread's tile.

    The outermost dimension that is not transformed. Tiles are single rows where these are larger
    than a tile should be, and wide enough to be stored where what lies outside is transformed.
    """
    dim = _free_dim(shape, fixed)
    if dim is None or not nbytes:
        return None
    rows, outside = shape[dim], math.prod(shape[:dim])
    widest = -(-ROW_BYTES * outside * rows // nbytes)
    return dim, min(rows, max(1, widest, tile_bytes * rows // nbytes))
