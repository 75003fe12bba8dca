"""What a device has to do for the engine: a few operations in streams, and frozen descriptions.

Operations are put into streams and return at once. Those of one stream run in order; those of
different streams in any order that the events permit. Nothing here says how: `simulated` runs
NumPy, another file CuPy.

A device has one arena, reserved once. An array on the device is a `DeviceArray`: a dense
C-ordered part of that arena, named by its offset. Operations are described by frozen dataclasses
without arrays or addresses, so that what is made for one (an FFT plan, a compiled kernel) can be
kept under its description.

Imports `kernels`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dask_bigfft.kernels.composite import Composite, Shards

Array = npt.NDArray[Any]
Kind = Literal["c2c", "r2c", "c2r"]

#: Offsets of arrays in the arena are multiples of it; FFT libraries ask for less.
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A C-ordered array in the device's arena, dense unless it says otherwise.

    Parameters
    ----------
    offset : int
        Bytes from the beginning of the arena, a multiple of `ALIGNMENT`.
    shape : tuple of int
        Lengths of the dimensions.
    dtype : str
        As ``numpy.dtype.str`` has it, such as ``"<c16"``.
    strides : tuple of int, optional
        Of a part of a larger array, in bytes; only copies to and from the host take such.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def span(self) -> int:
        """Bytes from its first element to behind its last one."""
        if self.strides is None or not self.size:
            return self.nbytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return last + np.dtype(self.dtype).itemsize


def each(shards: Shards, array: DeviceArray) -> Iterator[tuple[Array, DeviceArray]]:
    """Views of shards, and where in a dense array that holds their whole part each belongs."""
    strides = places_of(shards)
    for place, view in shards.views():
        offset = array.offset + sum(i * s for i, s in zip(place, strides, strict=True))
        yield view, DeviceArray(offset, view.shape, array.dtype, strides)


def places_of(shards: Shards) -> tuple[int, ...]:
    """Strides in bytes of a dense array that holds the part which shards are of."""
    return dense(tuple(cut.stop - cut.start for cut in shards.part), shards.dtype.itemsize)


def dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of a dense C-ordered array in bytes.

    >>> dense((8, 6, 4), 8)
    (192, 32, 8)
    """
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Term:
    """What one dimension of an array adds to an index.

    The place ``i`` along dimension ``dim`` adds
    ``((start + i) // divisor % modulus) * stride``, all in exact integers.

    Parameters
    ----------
    dim : int
        Dimension of the array.
    start : int
        Place of the array's first element in what it was cut from.
    divisor, modulus : int
        Which digit of the place is meant; ``divisor`` 1 and a ``modulus`` beyond every place mean
        the place itself.
    stride : int
        What one step of the digit adds.
    """

    dim: int
    start: int
    divisor: int
    modulus: int
    stride: int


@dataclass(frozen=True, slots=True)
class Twiddle:
    """The factor exp(sign * 2j*pi * left * right / modulus).

    ``left`` and ``right`` are sums of terms; their product stays below ``modulus`` <= 2**53, and
    below four times that where a chirp makes zeros of what lies behind its end.
    """

    modulus: int
    sign: int
    left: tuple[Term, ...]
    right: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class ChirpFactor:
    """The factor exp(sign * 1j*pi * n**2 / length); where n >= `end`, 0 whatever is there.

    ``n`` is the sum of terms; ``n**2`` needs reducing mod 2*length in more than 64 bits.
    ``half`` is for half a spectrum: twice as much, but where n is 0 or half the length.
    """

    length: int
    sign: int
    place: tuple[Term, ...]
    half: bool = False

    @property
    def end(self) -> int:
        """How many values there are."""
        return self.length // 2 + 1 if self.half else self.length


@dataclass(frozen=True, slots=True)
class FFT:
    """FFTs along some dimensions of a dense array, not normalised.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        ``c2c`` works in place or from one array to another; ``r2c`` and ``c2r`` from one array
        to another along a single dimension, and ``c2r`` may overwrite its source.
    source, target : tuple of int
        Shapes before and after.
    dims : tuple of int
        The dimensions, rising.
    sign : {-1, 1}
        Sign in the exponent: always -1 for ``r2c`` and +1 for ``c2r``.
    dtype : str
        Of the complex side.
    """

    kind: Kind
    source: tuple[int, ...]
    target: tuple[int, ...]
    dims: tuple[int, ...]
    sign: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Multiply:
    """Factors that a complex array is multiplied with in place, in one pass.

    Each element becomes ``(its conjugate, if conjugate) * scale * every twiddle * every chirp``.
    The factors are computed in double precision whatever the array's.
    """

    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    conjugate: bool = False
    twiddles: tuple[Twiddle, ...] = ()
    chirps: tuple[ChirpFactor, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """Multiply an array in place by another one, whose dimensions of length 1 are repeated."""

    shape: tuple[int, ...]
    other: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Transpose:
    """Copy to another place with the dimensions in another order: ``target = source.T(axes)``.

    Dimension ``i`` of the target is dimension ``axes[i]`` of the source. Elements are multiplied on
    the way by the factors of `by`, which is of the source's shape.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: str
    by: Multiply | None = None


@dataclass(frozen=True, slots=True)
class Strided:
    """Copy elements of one array to places of another one, at any distances on both sides.

    Element (i, j, ...) of a box comes from ``start + i*strides[0] + j*strides[1] + ...`` of the one
    array and goes to the like place of the other, both counted in elements. No two go to one place.

    Parameters
    ----------
    counts : tuple of int
        Lengths of the box.
    source, target : tuple of int
        Strides in either array; below 0 a dimension is reversed.
    source_start, target_start : int
        Place of the first element.
    dtype : str
        Of both arrays.
    by : Multiply, optional
        Factors, of an array of shape `counts`, that elements are multiplied by on the way.
    """

    counts: tuple[int, ...]
    source: tuple[int, ...]
    source_start: int
    target: tuple[int, ...]
    target_start: int
    dtype: str
    by: Multiply | None = None


Compute = FFT | Multiply | Product | Transpose | Strided


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device's memory: in all, and free for us now."""

    total: int
    free: int


class Stream(Protocol):
    """A queue of operations that run in order."""

    @property
    def name(self) -> str:
        """What it is for: ``"h2d"``, ``"compute"``, ``"d2h"``, or ``"piece"`` for all of it."""


class Event(Protocol):
    """A mark in a stream that other streams and the host can wait for."""

    @property
    def name(self) -> str:
        """What it says, such as ``"loaded"``."""


class Device(Protocol):
    """What the engine needs of a device.

    The engine calls from several threads, one at a time, but for `ring_nbytes` and `synchronize`,
    which any thread may call at any time; the latter must not hold the interpreter's lock while it
    waits. None of the other operations waits for another, but that `h2d` and `d2h` of host memory
    that is not pinned may wait for a staging buffer; an event recorded after a `d2h` is reached
    when the values are in the host array.
    """

    @property
    def name(self) -> str:
        """Name of the hardware."""

    @property
    def software(self) -> dict[str, str]:
        """What decides about the last bit of what it computes, by name: versions of libraries."""

    @property
    def libraries(self) -> int:
        """Bytes of its memory that libraries take beside the arena: kernels, plans of most FFTs."""

    @property
    def tables(self) -> int:
        """Bytes that the plans made so far take beyond that, for lengths with large primes."""

    def memory(self) -> DeviceMemory:
        """Memory in all and free now. What `reserve` holds is not free."""

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena, whose contents are undefined.

        The one before has been released. Raises `DeviceMemoryError` if it does not fit.
        """

    def release(self) -> None:
        """Give the arena back once all that is in the streams is done."""

    def drop_caches(self) -> None:
        """Give back all memory that is kept for later (plans, pools); streams are idle."""

    def close(self) -> None:
        """Give everything back. The device is not used any more."""

    def stream(self, name: str) -> Stream:
        """Make a stream; streams wait for each other only by events."""

    def event(self, name: str) -> Event:
        """Make an event."""

    def record(self, event: Event, stream: Stream, stored: bool = True) -> None:
        """Put a mark into a stream; the event stands for its latest mark.

        Who waits for it finds what was copied to the host there; unless `stored` is false: then
        only the device is done with what it was copied from.
        """

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what follows in a stream wait for the event's latest mark made before this call.

        An event that has no mark holds nothing up.
        """

    def synchronize(self, event: Event) -> None:
        """Wait on the host for the event's latest mark."""

    def synchronize_all(self) -> None:
        """Wait on the host until all streams are idle."""

    def ahead(self, stream: Stream, source: Array | Shards) -> None:
        """Take in what `h2d` will be asked to copy in a stream, in the order of these calls.

        The very same object is passed then. Its values are there when what the stream waits for
        now is reached, and nothing writes to it before it is copied: so a device that stages what
        is not pinned may begin with that.
        """

    def h2d(self, stream: Stream, source: Array | Shards, target: DeviceArray) -> None:
        """Copy a host array of the same shape and dtype to the device, or shards of one.

        The host array may have any strides above 0 that fall from the first dimension to the
        last. The engine keeps it alive and untouched until an event after it is reached. The
        target may be a part of a larger array: its offset is only aligned to its elements then,
        and it may have strides. Shards are copied as `each` says.
        """

    def d2h(self, stream: Stream, source: DeviceArray, target: Array | Shards) -> None:
        """Copy to a host array; as `h2d`."""

    def clear(self, stream: Stream, array: DeviceArray) -> None:
        """Put zeros into a dense array, in any stream."""

    def work_nbytes(self, op: FFT) -> int:
        """Bytes of work area that an FFT needs.

        Called with idle streams before the first `fft` of that description, and the first one after
        `drop_caches`, so that the plan is made here. Raises `DeviceMemoryError` if it does not fit.
        """

    def fft(
        self, stream: Stream, op: FFT, source: DeviceArray, target: DeviceArray, work: DeviceArray
    ) -> None:
        """Transform; `work` are at least `work_nbytes` bytes that hold nothing before and after."""

    def multiply(self, stream: Stream, op: Multiply, array: DeviceArray) -> None:
        """Multiply in place by factors that are computed; the array may begin at any element."""

    def product(
        self, stream: Stream, op: Product, array: DeviceArray, other: DeviceArray
    ) -> None:
        """Multiply in place by another array."""

    def transpose(
        self, stream: Stream, op: Transpose, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy with the dimensions in another order, multiplied on the way if that is asked."""

    def strided(
        self, stream: Stream, op: Strided, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy elements to other places of another array, as `transpose`; both begin anywhere."""

    def stage(self, buffers: int | None, nbytes: int | None, part: int | None = None) -> None:
        """Set the ring through which host memory travels that is not pinned.

        `buffers` are those of each way, `nbytes` the bytes of each, and `part` how many of these
        are used at a time, which takes no other ring; None is what the device has by itself, and
        whole buffers. Called when nothing is being submitted.
        """

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the ring, one way, if host memory travels through it; else 0.

        Any thread may ask at any time.
        """

    @property
    def staged(self) -> bool:
        """Whether anything has gone through that ring since the device was opened."""

    def clock(self) -> float:
        """Seconds since some moment, as the host sees them."""
