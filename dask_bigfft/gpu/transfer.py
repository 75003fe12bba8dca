"""How a view of host memory travels: the driver calls that copy it, and which way is taken.

A piece is a part of a block: rows that lie apart in the block and side by side on the device. The
copy engines of a card take such a part as it is, in one call for up to three dimensions (Chen and
Li, Proc. ICPADS, 2013, call that asynchronous strided copies), so that no processor touches it.
What they do not like are narrow rows. This module says how wide the rows of a view are, and how it
falls apart into calls; who makes the calls is no business of it.

Imports `operations` of this room.
"""

import ctypes
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from dask_bigfft.gpu.operations import Array, dense

#: Largest distance of two rows that one strided call takes, in bytes.
MAX_PITCH_NBYTES = 2**31 - 1

#: What the driver calls directions.
TO_DEVICE, TO_HOST = 1, 2


@dataclass(frozen=True, slots=True)
class Copy:
    """One call of the driver: planes of rows, apart on the host, dense on the device.

    Parameters
    ----------
    host, device : int
        Bytes from the first element of the view, and of the array on the device, to where it
        begins.
    width : int
        Bytes of a row.
    height, depth : int
        Rows in a plane, and planes.
    pitch, plane : int
        Bytes from row to row and from plane to plane on the host; `plane` is a multiple of
        `pitch` where there is more than one plane.
    device_pitch, device_plane : int
        The same on the device.
    """

    host: int
    device: int
    width: int
    height: int = 1
    depth: int = 1
    pitch: int = 0
    plane: int = 0
    device_pitch: int = 0
    device_plane: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        return self.width * self.height * self.depth


@dataclass(frozen=True, slots=True)
class Run:
    """A dimension of a view: how often it repeats, how many bytes apart, and on the device."""

    count: int
    stride: int
    place: int


def runs(view: Array, places: tuple[int, ...] | None = None) -> tuple[int, tuple[Run, ...]]:
    """Width of the rows of a view in bytes, and how these lie, outermost first.

    Rows are contiguous on both sides; `places` are the strides on the device in bytes, without
    them the array there is dense. Dimensions that continue one another on both sides are one; what
    is left is as few as can be. A view whose last dimension is not contiguous has rows of one
    element.

    Examples
    --------
    >>> import numpy as np
    >>> block = np.zeros((8, 6, 4), "f8")
    >>> runs(block), runs(block[:, 2:4])
    ((1536, ()), (64, (Run(count=8, stride=192, place=64),)))
    >>> runs(block[:, :, 1:2])
    (8, (Run(count=48, stride=32, place=8),))
    >>> runs(block[:, 2:4], (768, 32, 8))
    (64, (Run(count=8, stride=192, place=768),))
    """
    merged: list[Run] = []
    if places is None:
        places = dense(view.shape, view.itemsize)
    for count, stride, place in zip(view.shape, view.strides, places, strict=True):
        if count == 1:
            continue
        last = merged[-1] if merged else None
        if last and last.stride == count * stride and last.place == count * place:
            merged[-1] = Run(last.count * count, stride, place)
        else:
            merged.append(Run(count, stride, place))
    if merged and merged[-1].stride == merged[-1].place == view.itemsize:
        return merged[-1].count * view.itemsize, tuple(merged[:-1])
    return view.itemsize, tuple(merged)


def row_nbytes(view: Array, places: tuple[int, ...] | None = None) -> int:
    """Bytes of the rows in which a view lies, as `runs`: the wider, the faster its copies.

    >>> import numpy as np
    >>> row_nbytes(np.zeros((16, 1024), "c16")[:, :512])
    8192
    """
    return runs(view, places)[0]


def copies(view: Array, places: tuple[int, ...] | None = None) -> Iterator[Copy]:
    """The driver calls that copy a view to or from an array of its shape on the device.

    Parameters
    ----------
    view : ndarray
        Its strides are positive and fall from the first dimension to the last, but for dimensions
        of length 1.
    places : tuple of int, optional
        Strides of the array on the device, in bytes; by default it is dense.

    Examples
    --------
    >>> import numpy as np
    >>> block = np.zeros((8, 6, 4), "f8")
    >>> [(c.width, c.height, c.depth) for c in copies(block[2:])]
    [(1152, 1, 1)]
    >>> [(c.width, c.height, c.depth, c.pitch, c.plane) for c in copies(block[:, :3, :2])]
    [(16, 3, 8, 32, 192)]
    >>> [(c.width, c.height, c.pitch, c.device_pitch) for c in copies(block[:, 2], (320, 8))]
    [(32, 8, 192, 320)]
    """
    if view.size == 0:
        return
    width, outer = runs(view, places)
    inner, looped = _in_one_call(outer)
    row = inner[-1] if inner else Run(1, 0, 0)
    plane = inner[0] if len(inner) > 1 else Run(1, 0, 0)
    for at in itertools.product(*(range(run.count) for run in looped)):
        host = sum(i * run.stride for i, run in zip(at, looped, strict=True))
        device = sum(i * run.place for i, run in zip(at, looped, strict=True))
        yield Copy(
            host,
            device,
            width,
            row.count,
            plane.count,
            row.stride,
            plane.stride,
            row.place,
            plane.place,
        )


def _in_one_call(outer: tuple[Run, ...]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The innermost dimensions that one call copies, and those that need a call for each value."""
    if not outer or max(outer[-1].stride, outer[-1].place) > MAX_PITCH_NBYTES:
        return (), outer
    row, plane = outer[-1], outer[-2] if len(outer) > 1 else None
    if plane and plane.stride % row.stride == 0 and plane.place % row.place == 0:
        return outer[-2:], outer[:-2]
    return outer[-1:], outer[:-1]


def calls(view: Array, places: tuple[int, ...] | None = None) -> int:
    """Number of driver calls that a view needs.

    >>> import numpy as np
    >>> calls(np.zeros((4, 4, 4, 4))[:3, :3, :3, :3])
    3
    """
    _, looped = _in_one_call(runs(view, places)[1])
    return math.prod(run.count for run in looped) if view.size else 0


def slabs(view: Array, nbytes: int) -> Iterator[tuple[tuple[slice, ...], int]]:
    """Parts of a view of at most `nbytes` each, in the order in which a dense copy holds them.

    Each comes as an index into the view, and the bytes that lie before it in the dense copy. A
    single element may be larger than `nbytes`.

    Examples
    --------
    >>> import numpy as np
    >>> [at for _, at in slabs(np.zeros((3, 4), "f8"), 32)]
    [0, 32, 64]
    >>> [at for _, at in slabs(np.zeros((2, 4), "f8"), 16)]
    [0, 16, 32, 48]
    """
    shape, inner = view.shape, view.itemsize
    whole = len(shape)  # dimensions from here on fit whole into a part
    while whole > 0 and inner * shape[whole - 1] <= nbytes:
        whole -= 1
        inner *= shape[whole]
    if whole == 0:
        if view.size:
            yield (slice(None),) * len(shape), 0
        return
    cut = whole - 1
    width, at = max(1, nbytes // inner), 0
    for place in itertools.product(*(range(n) for n in shape[:cut])):
        before = tuple(slice(i, i + 1) for i in place)
        for low in range(0, shape[cut], width):
            high = min(shape[cut], low + width)
            rest = (slice(None),) * (len(shape) - whole)
            yield (*before, slice(low, high), *rest), at
            at += (high - low) * inner


# --- the structure that the three-dimensional copy takes ------------------------------------


class _Position(ctypes.Structure):
    _fields_ = [("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t)]


class _Pitched(ctypes.Structure):
    _fields_ = [
        ("ptr", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("xsize", ctypes.c_size_t),
        ("ysize", ctypes.c_size_t),
    ]


class _Extent(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t)]


class Memcpy3D(ctypes.Structure):
    """``cudaMemcpy3DParms``: what the driver's three-dimensional copy is told."""

    _fields_ = [
        ("srcArray", ctypes.c_void_p),
        ("srcPos", _Position),
        ("srcPtr", _Pitched),
        ("dstArray", ctypes.c_void_p),
        ("dstPos", _Position),
        ("dstPtr", _Pitched),
        ("extent", _Extent),
        ("kind", ctypes.c_int),
    ]


def memcpy3d(copy: Copy, host: int, device: int, kind: int) -> Memcpy3D:
    """Return the structure for a copy between a host view and an array at these addresses.

    `kind` is `TO_DEVICE` or `TO_HOST`.
    """
    apart = _Pitched(host + copy.host, copy.pitch, copy.width, copy.plane // copy.pitch)
    rows = copy.device_plane // copy.device_pitch
    there = _Pitched(device + copy.device, copy.device_pitch, copy.width, rows)
    source, target = (apart, there) if kind == TO_DEVICE else (there, apart)
    extent = _Extent(copy.width, copy.height, copy.depth)
    return Memcpy3D(None, _Position(), source, None, _Position(), target, extent, kind)
