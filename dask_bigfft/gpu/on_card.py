"""Rounds on blocks that are on a card already: CuPy arrays stay CuPy arrays.

The block is one piece, in crossings that have no copies (one, but for lengths that cuFFT refuses);
what is computed is the same as for pieces of host blocks. What cannot stay where it is goes into
fresh memory of CuPy's pool, so the most that is needed is the block, the block after the round, and
the work area of its FFTs.

Imports `errors`, `events` and this room.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.cuda import cupy, current, free_pinned, in_pool, number_of
from dask_bigfft.gpu.cuda_operations import Operations
from dask_bigfft.gpu.cupy_device import errors_of_cuda
from dask_bigfft.gpu.jobs import Job
from dask_bigfft.gpu.operations import FFT, DeviceArray, Multiply, Product, Transpose
from dask_bigfft.gpu.tile_work import Computation, TileWork
from dask_bigfft.planner.tile_plan import TileLimits

__all__ = ["as_block", "forget_plans", "is_on_card", "roll_on_card", "round_on_card"]

_NO_LIMIT = 1 << 62

#: One piece, one crossing.
_WHOLE = TileLimits(_NO_LIMIT, slots=1, most=_NO_LIMIT, least=_NO_LIMIT, pieces=1)


def is_on_card(values: Any) -> bool:
    """Whether an array lies in the memory of a CUDA device."""
    return hasattr(values, "__cuda_array_interface__")


def as_block(values: Any) -> Any:
    """Return a block as an array, where it is: a CuPy array, or a NumPy array.

    >>> as_block([1.0, 2.0])
    array([1., 2.])
    """
    if not is_on_card(values):
        return np.asarray(values)
    return values if isinstance(values, cupy().ndarray) else cupy().asarray(values)


@dataclass
class _Card:
    """Plans and kernels for the tasks' own stream of one card; one task submits at a time."""

    operations: Operations = field(default_factory=Operations)
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)


_cards: dict[int, _Card] = {}
_lock = threading.Lock()


def _card(ordinal: int) -> _Card:
    with _lock:
        return _cards.setdefault(ordinal, _Card())


def forget_plans() -> None:
    """Give back what is kept for later on all cards."""
    with _lock:  # a fork has the objects, but not the cards
        own = [ordinal for ordinal, card in _cards.items() if card.process == os.getpid()]
        held = {ordinal: _cards.pop(ordinal) for ordinal in own}
    for ordinal, card in held.items():
        with card.lock, cupy().cuda.Device(ordinal):
            card.operations.drop_plans()
    if held:
        free_pinned()  # what blocks that changed cards by the host have left there


def round_on_card(job: Job, gather: Callable[[], Any], filters: Mapping[int, Any]) -> Any:
    """Return a block after a round, on the card on which it is gathered.

    Parameters
    ----------
    job : Job
        What to do.
    gather : callable
        Returns the block: a CuPy array, contiguous and free to overwrite. It is called again
        where memory ran out and has been made.
    filters : mapping of int to array
        Spectrum of the convolution's filter, for the axes that need one; host arrays are copied.

    Raises
    ------
    DeviceMemoryError
        If the card has not enough memory.
    """
    with errors_of_cuda():
        try:
            return _attempt(job, gather(), filters)
        except (DeviceMemoryError, cupy().cuda.memory.OutOfMemoryError):
            emit("fallback", nbytes=0)
        _make_room()
        return _attempt(job, gather(), filters)


def _make_room() -> None:
    """Give back what is kept for later on the current card."""
    cp = cupy()
    card = _card(int(cp.cuda.runtime.getDevice()))
    with card.lock:
        cp.cuda.get_current_stream().synchronize()
        card.operations.drop_plans()
        cp.get_default_memory_pool().free_all_blocks()


def _attempt(job: Job, values: Any, filters: Mapping[int, Any]) -> Any:
    shape = job.round.target.shape(job.block)
    if not values.size or not math.prod(shape):
        return cupy().zeros(shape, job.target)
    if values.dtype.str != job.source:
        with values.device:
            values = values.astype(job.source)
    tiles = replace(job, inside=False).tiles(_WHOLE)
    if tiles.plan.tiles != len(tiles.plan.passes):
        raise DeviceError(f"a block on a card is one tile, not those of {tiles.notation}")
    with current(values.device):
        card = _card(values.device.id)
        with card.lock:
            for number in range(len(tiles.plan.passes)):
                (work,) = tiles.works(number)
                places = _Places(values, work, filters)
                _compute(card.operations, work.computations, places)
                values = places.array(work.result)
            cupy().cuda.get_current_stream().synchronize()
    return values.reshape(shape)


def _compute(
    operations: Operations, computations: tuple[Computation, ...], places: "_Places"
) -> None:
    """All operations, in the stream of the task."""
    operations.trim()
    ffts = [found.op for found in computations if isinstance(found.op, FFT)]
    nbytes = max((operations.work_nbytes(op) for op in ffts), default=0)
    area = cupy().empty(nbytes, np.uint8)
    here = int(cupy().cuda.runtime.getDevice())
    emit("device_memory", device=number_of(here), nbytes=in_pool())
    for found in computations:
        op, source, target = found.op, places.at(found.source), places.at(found.target)
        if isinstance(op, FFT):
            operations.fft(op, source, target, int(area.data.ptr))
        elif isinstance(op, Multiply):
            operations.multiply(op, target)
        elif isinstance(op, Product):
            operations.product(op, target, source)
        elif isinstance(op, Transpose):
            operations.transpose(op, source, target)
        else:
            operations.strided(op, source, target)


class _Places:
    """Memory for the arrays of a piece: an offset of the piece is a buffer of its own here."""

    def __init__(self, values: Any, work: TileWork, filters: Mapping[int, Any]) -> None:
        cp, sizes = cupy(), dict[int, int]()
        for array in self._arrays(work):
            sizes[array.offset] = max(sizes.get(array.offset, 0), array.nbytes)
        first = work.source.offset
        self._buffers: dict[int, Any] = {}
        for found in work.filters:
            spectrum = cp.asarray(filters[found.axis]).reshape(found.shape)[found.part]
            self._buffers[found.array.offset] = cp.ascontiguousarray(spectrum)
        for offset, nbytes in sizes.items():
            if offset not in self._buffers and (offset != first or nbytes > values.nbytes):
                self._buffers[offset] = cp.empty(nbytes, np.uint8)
        if first in self._buffers:
            self.array(work.source)[...] = values.reshape(work.source.shape)
        else:
            self._buffers[first] = values

    @staticmethod
    def _arrays(work: TileWork) -> Iterator[DeviceArray]:
        yield work.source
        yield work.result
        for found in work.computations:
            yield found.source
            yield found.target

    def at(self, array: DeviceArray) -> int:
        """Where an array begins."""
        return int(self._buffers[array.offset].data.ptr)

    def array(self, array: DeviceArray) -> Any:
        """An array as CuPy has it."""
        memory = self._buffers[array.offset].data
        return cupy().ndarray(array.shape, np.dtype(array.dtype), memptr=memory)


def roll_on_card(values: Any, rolls: tuple[tuple[int, int], ...]) -> Any:
    """Return a block stored from another element on along some of its dimensions.

    `rolls` are pairs of a dimension, and the element that comes first in it.
    """
    if not rolls:
        return values
    with values.device:
        dims, firsts = zip(*rolls, strict=True)
        done = cupy().roll(values, tuple(-first for first in firsts), dims)
        cupy().cuda.get_current_stream().synchronize()
        return done
