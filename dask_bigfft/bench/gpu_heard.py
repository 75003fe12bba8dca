"""What a device is asked to copy and to compute, written down while it does it (`heard`).

Imports `gpu_data`, and `devices`.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.bench.gpu_data import owner
from dask_bigfft.devices.operations import DeviceArray, dense, places_of
from dask_bigfft.devices.protocol import Device, Stream
from dask_bigfft.devices.transfer import TO_DEVICE, TO_HOST, runs
from dask_bigfft.kernels.composite import Shards

Array = npt.NDArray[Any]

#: Methods of a device that compute.
COMPUTING = ("fft", "multiply", "product", "transpose")


@dataclass(frozen=True, slots=True)
class Asked:
    """A copy between a view of host memory and the card.

    Parameters
    ----------
    direction : {TO_DEVICE, TO_HOST}
        Where to.
    pinned : bool
        Whether the view is pinned.
    block, at : int
        Memory that the view lies in, by number, and bytes from there to the view.
    shape, strides : tuple of int
        Of the view.
    dtype : str
        Of its values.
    device : int
        Bytes from the beginning of the arena.
    places : tuple of int
        Strides there.
    """

    direction: int
    pinned: bool
    block: int
    at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    places: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def span(self) -> int:
        """Bytes of host memory from the first element to behind the last one."""
        pairs = zip(self.shape, self.strides, strict=True)
        return sum((n - 1) * stride for n, stride in pairs) + np.dtype(self.dtype).itemsize

    @property
    def end(self) -> int:
        """Bytes of the arena up to behind the last element."""
        pairs = zip(self.shape, self.places, strict=True)
        last = sum((n - 1) * place for n, place in pairs)
        return self.device + last + np.dtype(self.dtype).itemsize

    def lying(self, memory: Sequence[Array]) -> Array:
        """A view that lies in some memory as this one lay in its own."""
        block = memory[self.block % len(memory)]
        at = min(self.at % block.nbytes, block.nbytes - self.span)
        return np.ndarray(self.shape, self.dtype, block, at // 64 * 64, self.strides)


@dataclass
class Heard:
    """What a device was asked to copy, and what to compute: methods and what they were given."""

    pinned: Callable[[Array], bool]
    copies: list[Asked] = field(default_factory=list)
    kernels: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    blocks: dict[int, int] = field(default_factory=dict)
    largest: int = 0

    def add(self, direction: int, host: Array | Shards, array: DeviceArray) -> None:
        """Write a copy down; shards are as many."""
        if isinstance(host, Shards):
            places = places_of(host)
            pinned = self.pinned(host.view(0))
            offsets = (array.offset + host.places @ places).tolist()
            for source, address, there in zip(
                host.sources, host.addresses.tolist(), offsets, strict=True
            ):
                block, at = self._place(source, address)
                self.copies.append(Asked(
                    direction, pinned, block, at, host.shape, host.strides, host.dtype.str, there,
                    places))
            return
        if not host.size:
            return
        places = array.strides or dense(host.shape, host.itemsize)
        block, at = self._place(host, int(host.__array_interface__["data"][0]))
        self.copies.append(Asked(
            direction, self.pinned(host), block, at, host.shape, host.strides, host.dtype.str,
            array.offset, places))

    def _place(self, array: Array, address: int) -> tuple[int, int]:
        """Number of the memory that an array lies in, and how far behind its first byte."""
        array = owner(array)
        first = int(array.__array_interface__["data"][0])
        self.largest = max(self.largest, array.nbytes)
        return self.blocks.setdefault(first, len(self.blocks)), address - first

    def nbytes(self, direction: int) -> int:
        """Bytes one way."""
        return sum(found.nbytes for found in self.copies if found.direction == direction)

    @property
    def end(self) -> int:
        """Bytes of the arena up to behind the last element that was used."""
        arrays = (a for _, given in self.kernels for a in given if isinstance(a, DeviceArray))
        ends = (array.offset + array.span for array in arrays)
        return max(max((copy.end for copy in self.copies), default=256), max(ends, default=0))

    def row_nbytes(self, direction: int) -> int:
        """Bytes of a row, in the harmonic mean: rows that so many bytes make up."""
        rows = 0.0
        for found in self.copies:
            if found.direction == direction:
                rows += found.nbytes / _width(found.shape, found.strides, found.places, found.dtype)
        return int(self.nbytes(direction) / rows) if rows else 0


def _width(
    shape: tuple[int, ...], strides: tuple[int, ...], places: tuple[int, ...], dtype: str
) -> int:
    """Bytes of the rows of a view, wherever it lies."""
    view = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)
    return runs(view, places)[0]


@contextmanager
def heard(device: Device, pinned: Callable[[Array], bool]) -> Iterator[Heard]:
    """Write down what a device is asked for meanwhile; it does it as ever."""
    found, inside = Heard(pinned), threading.local()
    there, back = device.h2d, device.d2h

    def h2d(stream: Stream, source: Array | Shards, target: DeviceArray) -> None:
        once(TO_DEVICE, source, target, partial(there, stream, source, target))

    def d2h(stream: Stream, source: DeviceArray, target: Array | Shards) -> None:
        once(TO_HOST, target, source, partial(back, stream, source, target))

    def once(
        direction: int, host: Array | Shards, array: DeviceArray, go: Callable[[], None]
    ) -> None:
        if getattr(inside, "asked", False):  # a device that takes shards one by one
            go()
            return
        found.add(direction, host, array)
        inside.asked = True
        try:
            go()
        finally:
            inside.asked = False

    def computing(name: str) -> Callable[..., None]:
        method = getattr(device, name)

        def compute(stream: Stream, *given: Any) -> None:
            found.kernels.append((name, given))
            method(stream, *given)

        return compute

    instead = {"h2d": h2d, "d2h": d2h, **{name: computing(name) for name in COMPUTING}}
    for name, method in instead.items():
        setattr(device, name, method)
    try:
        yield found
    finally:
        for name in instead:
            delattr(device, name)
