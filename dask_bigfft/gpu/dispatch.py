"""Where a round on a block is done: on a device if there is one for it, else on the CPU.

Imports `decomposition`, `planner`, `kernels`, `events`, `errors` and this room.
"""

import contextlib
import itertools
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dask_bigfft.decomposition.layout import Layout, plain
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.find import Leases, Need, leases, missing
from dask_bigfft.gpu.half_spectrum import Window
from dask_bigfft.gpu.jobs import Job, Source, converted, fits_inside, readable
from dask_bigfft.gpu.operations import Array
from dask_bigfft.gpu.tile_work import BlockTiles
from dask_bigfft.gpu.work_sharing import share_block
from dask_bigfft.kernels.composite import Composite, Stacked, Windowed
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.cost import admitted
from dask_bigfft.planner.seconds import LEAST_NBYTES
from dask_bigfft.planner.tile_plan import AS_IS, COMPUTED, DeviceSettings, TileLimits

__all__ = [
    "Place",
    "getting_ready",
    "inside_device",
    "job_of",
    "moved_on_device",
    "on_device",
    "shared_with_device",
    "takes",
]

Device = Literal["auto", "cpu", "gpu", "hybrid"]


@dataclass(frozen=True)
class Place:
    """Where rounds are done.

    Parameters
    ----------
    device : {"auto", "cpu", "gpu", "hybrid"}
        ``"auto"`` takes a device where there is one and the block is worth the trip; with
        ``"hybrid"`` the CPU and a device share a block.
    nbytes : int or None
        Bytes of a device that may be used.
    settings : DeviceSettings
        What is set of its pipeline.
    share : float
        The devices' share of a round that CPU and devices share, by the forecast.
    """

    device: Device = "auto"
    nbytes: int | None = None
    settings: DeviceSettings = AS_IS
    share: float = 0.5

    def for_share(self, share: tuple[float, ...]) -> "Place":
        """The place of a round of which devices do some share; none: nothing is known of that.

        Devices that are to do all of it are taken where there are some.
        """
        alone: dict[tuple[float, ...], Device] = {(0.0,): "cpu", (1.0,): "auto"}
        (part,) = share or (self.share,)
        return replace(self, device=alone.get(share, self.device), share=part)


def job_of(
    round_: Round,
    block: tuple[int, ...],
    source: np.dtype[Any],
    target: np.dtype[Any],
    *,
    inside: bool = False,
) -> Job:
    """Return the job of a round on a block, given its dtypes before and after.

    `inside` asks for passes that need no host memory apart from the block.
    """
    real = any(step.kind == "r2c" for step in round_.steps)
    if source.kind == "f" and target.kind == "c" and not real:
        source = target  # real input of complex FFTs becomes complex on the way
    return Job(round_, block, source.str, target.str, inside)


def getting_ready(place: Place, nbytes: int, dtype: str) -> AbstractContextManager[None]:
    """Let a task look at a block, in turn with others if a device is to take it.

    The turn is over when the task has a lease, or `on_device` finds that the CPU has to do it.

    Parameters
    ----------
    place : Place
        Where rounds are done.
    nbytes : int
        Bytes of the block.
    dtype : str
        Of the block.
    """
    # Tasks of hybrid rounds do not wait for devices.
    found = None if place.device == "hybrid" else _leases(place, nbytes, dtype)
    return contextlib.nullcontext() if found is None else found.getting_ready()


def on_device(
    job: Job,
    incoming: BlockView,
    filters: Mapping[int, Array] | None,
    place: Place,
    stacked: Stacked | None = None,
) -> Array | None:
    """Return a block after a round that was done on a device; None if the CPU has to do it.

    Parameters
    ----------
    job : Job
        The round on the block.
    incoming : BlockView
        The block on its way in; it is not touched before the device is leased.
    filters : mapping of int to ndarray or None
        Spectrum of the convolution's filter, for the axes that need one.
    place : Place
        Where rounds are done.
    stacked : Stacked, optional
        How the block had better lie in memory after the round; it has one dimension more if it
        does.

    Raises
    ------
    DeviceError
        If a device is demanded and there is none, or it fails.
    """
    nbytes = incoming.dtype.itemsize * math.prod(incoming.shape)
    found = _leases(place, nbytes, job.source, job.target)
    if found is None:
        return None
    source, job = _source(incoming, np.dtype(job.source)), replace(job, settings=place.settings)
    if stacked is not None:
        count = job.round.target.shape(job.block)[stacked.dim] // stacked.width
        source.stacked, job = stacked, replace(job, stores=count)
    if (shards := source.composite) is not None:
        # Steps that complete half a spectrum, or bring a filter, have other use for the place in
        # which a device turns what lies backwards.
        plain = all(step.kind == "c2c" and step.convolve is None for step in job.round.steps)
        job = replace(job, shards=shards.count, mirrored=bool(shards.image) and plain)
    # Without a lease the CPU takes blocks of hybrid rounds.
    timeout = 0.0 if place.device == "hybrid" else None
    return _run(found, job, source, place, nbytes, filters, timeout=timeout)


def _run(
    found: Leases,
    job: Job,
    source: Source,
    place: Place,
    nbytes: int,
    filters: Mapping[int, Array] | None = None,
    *,
    timeout: float | None = None,
    shards: Composite | None = None,
) -> Array | None:
    """Return a block of so many bytes after a round on a device; None: the CPU has to do it.

    Where `shards` are given, it is only done if the device reads these in place.
    """
    try:
        limits = found.limits(place.nbytes)
        if shards is None or _in_place(job.tiles(limits), shards, limits, source.inside):
            plans = [link.tiles(limits).plan for link in found.engines[0].links(job, limits)]
            tasks = admitted(nbytes)
            needs = [Need(plan.buffers, plan.buffer_nbytes, tasks) for plan in plans]
            with found.lease(max(needs, key=lambda need: need.nbytes), timeout) as engine:
                return engine.run(job, source, filters, nbytes=place.nbytes)
    except TimeoutError:
        pass
    except DeviceMemoryError:
        emit("fallback", nbytes=nbytes)
    found.ready()
    return None


def _in_place(tiles: BlockTiles, shards: Composite, limits: TileLimits, inside: bool) -> bool:
    """Whether a device reads shards in place, and writes there if that is asked."""
    return readable(tiles, shards, limits) is not None and (not inside or fits_inside(tiles))


def shared_with_device(
    job: Job, incoming: BlockView, library: FFTLibrary, filters: Mapping[int, Array], place: Place
) -> Array | None:
    """Return a block after a round that the CPU and a device shared; None if they cannot.

    Parameters
    ----------
    job : Job
        The round on the block; what it rolls is rolled later.
    incoming : BlockView
        The block on its way in.
    library : FFTLibrary
        Makes the CPU's FFTs.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    place : Place
        Where rounds are done.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    found = leases()
    if found is None or not math.prod(incoming.shape):
        return None
    if any(np.dtype(name).char not in COMPUTED for name in (job.source, job.target)):
        return None
    job = replace(job, settings=place.settings)
    return share_block(job, incoming, library, filters, found, place.nbytes, place.share)


def moved_on_device(incoming: BlockView, place: Place, blocks: int = 1) -> Array | None:
    """Return a block that only has to be put together, by way of a device; None: the CPU has to.

    The device reads the shards in the order in which they lie, and turns them on the way.

    Parameters
    ----------
    incoming : BlockView
        The block.
    place : Place
        Where rounds are done.
    blocks : int
        Blocks of its kind, which follow one another.

    Raises
    ------
    DeviceError
        If a device is demanded and there is none, or it fails.
    """
    dtype, nbytes = incoming.dtype, incoming.dtype.itemsize * math.prod(incoming.shape)
    found = _leases(place, nbytes, dtype.str)
    if found is None:
        return None
    shards = incoming.boxes(True)
    order = None if shards is None else shards.around.order
    if shards is None or order is None:
        found.ready()
        return None
    turned, back = shards.around.turned(order), tuple(map(order.index, range(len(order))))
    window = _window(shards)
    job = Job(
        _still(turned.sizes, back, blocks),
        (0,) * len(order),
        dtype.str,
        dtype.str,
        order=back,
        shards=turned.count,
        mirrored=bool(turned.image),
        settings=place.settings,
        window=window if shards.inner else None,
    )

    def gathered() -> Array:
        values = window.filled(incoming.gather(threads=os.cpu_count() or 1))
        return np.ascontiguousarray(values.transpose(order))

    source = Source(gathered, composite=turned)
    done = _run(found, job, source, place, nbytes, shards=turned)
    return None if done is None else done.reshape(incoming.shape)


def _window(shards: Windowed) -> Window:
    """What a block has of the one around it, in digits."""
    sizes = iter(shards.around.sizes)
    digits = (tuple(itertools.islice(sizes, count)) for count in shards.around.groups)
    return Window(tuple(digits), shards.bounds)


def inside_device(job: Job, shards: Composite, place: Place) -> bool:
    """Take shards of other blocks, which together are a block, through a round on a device.

    They are overwritten. False where the CPU has to do it; then they are as they were.

    Parameters
    ----------
    job : Job
        The round on the block, inside its own memory.
    shards : Composite
        The block.
    place : Place
        Where rounds are done.

    Raises
    ------
    DeviceError
        If a device is demanded and there is none, or it fails.
    """
    found = _leases(place, shards.nbytes, job.source, job.target)
    if found is None:
        return False
    job = replace(job, shards=shards.count, settings=place.settings)
    source = Source(_never, again=False, composite=shards, inside=True)
    return _run(found, job, source, place, shards.nbytes, shards=shards) is not None


def _never() -> Array:
    raise AssertionError("what is overwritten is not gathered")


def _still(sizes: tuple[int, ...], order: tuple[int, ...], blocks: int) -> Round:
    """A round without steps on blocks of some shape, which it leaves in another order."""

    def layout(shape: tuple[int, ...]) -> Layout:
        counts = (blocks, *(1 for _ in shape[1:]))
        cuts = zip(shape, counts, strict=True)
        return Layout(tuple(plain(n * count, (n,) * count) for n, count in cuts))

    return Round((), layout(sizes), layout(tuple(sizes[d] for d in order)))


def takes(device: Device, nbytes: int, *dtypes: str) -> bool:
    """Whether devices take a block of so many bytes, where there are some.

    >>> takes("auto", LEAST_NBYTES, "c16"), takes("auto", 64, "c16"), takes("gpu", 64, "c16")
    (True, False, True)
    """
    if device == "cpu" or any(np.dtype(name).char not in COMPUTED for name in dtypes):
        return False
    return nbytes >= (1 if device == "gpu" else LEAST_NBYTES)


def _leases(place: Place, nbytes: int, *dtypes: str) -> Leases | None:
    """The leases of devices that take a block; None if the CPU has to do it."""
    if place.device == "cpu":
        return None
    found = leases()
    if found is None and place.device == "gpu":
        raise DeviceError(f"device='gpu' is asked for, but {missing()}")
    return found if takes(place.device, nbytes, *dtypes) else None


def _source(incoming: BlockView, dtype: np.dtype[Any]) -> Source:
    """The block in the dtype that the device computes in, without a copy where that is possible."""
    found, threads = incoming.array, os.cpu_count() or 1
    if found is not None and not incoming.owned and found.flags.c_contiguous:
        if found.dtype == dtype:
            return Source(lambda: found, borrowed=True)
        return Source(lambda: converted(found, dtype, threads))
    boxes = incoming.boxes(False)
    return Source(
        lambda: converted(incoming.gather(threads=threads), dtype, threads),
        again=not incoming.owned,
        composite=None if boxes is None else boxes.around,
    )
