"""The memories of several devices of one process, and the ways between them.

`Peers` says what an exchange between devices needs: memory on a device, copies on it, copies by way
of the host, copies from device to device by the copy engine, and a kernel on one device that reads
and writes the memory of another. `SimulatedPeers` does it in NumPy and counts every byte;
`CupyPeers` with CuPy. Devices are *logical*: several may lie on one GPU, each with memory of its
own, as far as may be used of it.

Source: Nandapalan, Jaros, Treeby and Rendell, *Implementation of 3D FFTs across multiple GPUs in
shared memory environments*, PDCAT 2012, section V.

Imports `kernels`, `errors` and this room.
"""

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dask_bigfft.devices.cuda import cupy, in_pool
from dask_bigfft.devices.cupy_device import errors_of_cuda
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.kernels.copies import strided_view

__all__ = ["CupyPeers", "Peers", "SimulatedPeers", "Traffic"]


@dataclass
class Traffic:
    """Bytes that an exchange between devices moved.

    Attributes
    ----------
    net : int
        That had to get from one device to another.
    host, direct : int
        That crossed the bus between a device and the host, and from device to device.
    """

    net: int = 0
    host: int = 0
    direct: int = 0

    @property
    def ratio(self) -> float:
        """Bytes moved for each that had to be: 2 by the host, 1.5 staged, 1 otherwise."""
        return (self.host + self.direct) / self.net if self.net else 0.0


class Peers(Protocol):
    """What an exchange between devices needs. Arrays are dense where nothing else is said."""

    def empty(self, device: int, size: int, dtype: np.dtype[Any]) -> Any:
        """Memory for some elements on a device; raises `DeviceMemoryError` if there is none."""

    def free(self, device: int, values: Any) -> None:
        """Give memory back that `empty` returned, or that a block had."""

    def room(self, device: int) -> int:
        """Bytes that may still be had on a device."""

    def most(self, device: int) -> int:
        """Most bytes of a device that were in use, as far as that was looked at."""

    def reaches(self, device: int, other: int) -> bool:
        """Whether a device can read the memory of another one."""

    def view(self, values: Any, start: int, counts: Sequence[int], strides: Sequence[int]) -> Any:
        """Strided view that begins some bytes after the first element; strides in bytes."""

    def copy(self, device: int, source: Any, target: Any) -> None:
        """Copy views by a kernel on a device, which may read the memory of another one."""

    def clear(self, device: int, values: Any) -> None:
        """Fill an array with zeros."""

    def conjugate(self, device: int, view: Any) -> None:
        """Conjugate a view in place."""

    def trade(self, device: int, own: Any, other: Any) -> None:
        """Let two views change places by a kernel on the device of the first one."""

    def send(self, source: int, values: Any, target: int, out: Any) -> None:
        """Copy an array from one device to another by the copy engine."""

    def to_host(self, device: int, values: Any) -> Any:
        """Return a copy of an array in host memory."""

    def from_host(self, device: int, values: Any, out: Any) -> None:
        """Copy an array from host memory."""


@dataclass
class SimulatedPeers:
    """Several devices made of NumPy.

    Parameters
    ----------
    nbytes : tuple of int
        Memory of each.
    apart : set of (int, int)
        Pairs of which the first cannot read the second.
    """

    nbytes: tuple[int, ...]
    apart: set[tuple[int, int]] = field(default_factory=set)
    used: list[int] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    crossed: dict[tuple[Any, Any], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.used, self.peak = [0] * len(self.nbytes), [0] * len(self.nbytes)

    def empty(self, device: int, size: int, dtype: np.dtype[Any]) -> Any:
        """Memory that holds NaN."""
        values = np.empty(size, dtype)
        if values.nbytes > self.room(device):
            raise DeviceMemoryError(
                f"{values.nbytes} bytes asked of simulated device {device}, which has "
                f"{self.nbytes[device]} and uses {self.used[device]}"
            )
        self.used[device] += values.nbytes
        self.peak[device] = max(self.peak[device], self.used[device])
        values.view(np.uint8).fill(0xFF)
        return values

    def free(self, device: int, values: Any) -> None:
        """Count it back, and poison it: nobody may read it."""
        self.used[device] -= values.nbytes
        values.reshape(-1).view(np.uint8).fill(0xFF)

    def room(self, device: int) -> int:
        """Bytes that nobody uses."""
        return self.nbytes[device] - self.used[device]

    def most(self, device: int) -> int:
        """Since this was made; blocks that it was told of included."""
        return max(self.peak[device], self.used[device])

    def reaches(self, device: int, other: int) -> bool:
        """Whether the pair is not said to be apart."""
        return (device, other) not in self.apart

    def view(self, values: Any, start: int, counts: Sequence[int], strides: Sequence[int]) -> Any:
        """A NumPy view."""
        return strided_view(values, start, counts, strides)

    def copy(self, device: int, source: Any, target: Any) -> None:
        """At once."""
        target[...] = source

    def clear(self, device: int, values: Any) -> None:
        """At once."""
        values.fill(0)

    def conjugate(self, device: int, view: Any) -> None:
        """At once."""
        np.conjugate(view, out=view)

    def trade(self, device: int, own: Any, other: Any) -> None:
        """Element by element, as registers would hold them."""
        for index in np.ndindex(own.shape[:-1]):
            mine = own[index].copy()
            own[index] = other[index]
            other[index] = mine

    def send(self, source: int, values: Any, target: int, out: Any) -> None:
        """At once, if the two reach each other."""
        if not self.reaches(target, source):
            raise DeviceError(f"device {target} cannot read device {source}")
        self._cross(source, target, values.nbytes)
        out[...] = values

    def to_host(self, device: int, values: Any) -> Any:
        """A copy."""
        self._cross(device, "host", values.nbytes)
        return values.copy()

    def from_host(self, device: int, values: Any, out: Any) -> None:
        """At once."""
        self._cross("host", device, values.nbytes)
        out[...] = values

    def _cross(self, source: Any, target: Any, nbytes: int) -> None:
        self.crossed[source, target] = self.crossed.get((source, target), 0) + nbytes


@dataclass
class CupyPeers:
    """Devices of this process, by CuPy.

    Parameters
    ----------
    ordinals : tuple of int
        GPU of each logical device.
    nbytes : tuple of int or None
        Bytes that may be used of each; None for all that is free.
    """

    ordinals: tuple[int, ...]
    nbytes: tuple[int, ...] | None = None
    used: list[int] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)
    pools: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.used, self.peak = [0] * len(self.ordinals), [0] * len(self.ordinals)
        self.pools = [0] * len(self.ordinals)

    def _on(self, device: int) -> Any:
        return cupy().cuda.Device(self.ordinals[device])

    def empty(self, device: int, size: int, dtype: np.dtype[Any]) -> Any:
        """Memory of CuPy's pool."""
        nbytes = size * dtype.itemsize
        if self.nbytes is not None and nbytes > self.room(device):
            raise DeviceMemoryError(
                f"{nbytes} bytes asked of device {device}, of which {self.nbytes[device]} may be "
                f"used and {self.used[device]} are"
            )
        with self._on(device), errors_of_cuda():
            values = cupy().empty(size, dtype)
            self.pools[device] = max(self.pools[device], in_pool())
        self.used[device] += nbytes
        self.peak[device] = max(self.peak[device], self.used[device])
        return values

    def free(self, device: int, values: Any) -> None:
        """Count it back; CuPy frees what nobody refers to."""
        self.used[device] -= int(values.nbytes)

    def room(self, device: int) -> int:
        """Bytes that may be used, or that the GPU and CuPy's pool have."""
        if self.nbytes is not None:
            return self.nbytes[device] - self.used[device]
        with self._on(device):
            free = int(cupy().cuda.runtime.memGetInfo()[0])
            return free + int(cupy().get_default_memory_pool().free_bytes())

    def most(self, device: int) -> int:
        """Of CuPy's pool, whoever uses it: now, and whenever memory was taken here."""
        with self._on(device):
            return max(self.pools[device], in_pool())

    def reaches(self, device: int, other: int) -> bool:
        """Whether the GPU says so; a GPU reaches itself."""
        one, two = self.ordinals[device], self.ordinals[other]
        return one == two or bool(cupy().cuda.runtime.deviceCanAccessPeer(one, two))

    def view(self, values: Any, start: int, counts: Sequence[int], strides: Sequence[int]) -> Any:
        """A CuPy view."""
        steps = tuple(map(int, strides))
        at = values.data + int(start)
        return cupy().ndarray(tuple(map(int, counts)), values.dtype, memptr=at, strides=steps)

    def _seen(self, device: int, view: Any) -> Any:
        """An array as a kernel on a device sees it, which is the current one."""
        cp, own, other = cupy(), self.ordinals[device], int(view.device.id)
        if own == other:
            return view
        _let_read(own, other)
        pairs = zip(view.shape, view.strides, strict=True)
        size = view.itemsize + sum((n - 1) * step for n, step in pairs)
        memory = cp.cuda.UnownedMemory(view.data.ptr, size, view, own)
        at = cp.cuda.MemoryPointer(memory, 0)
        return cp.ndarray(view.shape, view.dtype, memptr=at, strides=view.strides)

    def copy(self, device: int, source: Any, target: Any) -> None:
        """By CuPy's elementwise kernel."""
        with self._on(device), errors_of_cuda():
            cupy().copyto(self._seen(device, target), self._seen(device, source))
            cupy().cuda.get_current_stream().synchronize()

    def clear(self, device: int, values: Any) -> None:
        """By CuPy."""
        with self._on(device), errors_of_cuda():
            values.fill(0)
            cupy().cuda.get_current_stream().synchronize()

    def conjugate(self, device: int, view: Any) -> None:
        """By CuPy."""
        with self._on(device), errors_of_cuda():
            cupy().conj(view, out=view)
            cupy().cuda.get_current_stream().synchronize()

    def trade(self, device: int, own: Any, other: Any) -> None:
        """Through registers: no memory beside the two views."""
        with self._on(device), errors_of_cuda():
            _trade_kernel()(own, self._seen(device, other), size=own.size)
            cupy().cuda.get_current_stream().synchronize()

    def send(self, source: int, values: Any, target: int, out: Any) -> None:
        """By the copy engine."""
        one, two = self.ordinals[source], self.ordinals[target]
        with self._on(target), errors_of_cuda():
            if one != two and self.reaches(target, source):
                _let_read(two, one)  # without it the copy goes by the host
            stream = cupy().cuda.get_current_stream()
            cupy().cuda.runtime.memcpyPeerAsync(
                out.data.ptr, two, values.data.ptr, one, values.nbytes, stream.ptr
            )
            stream.synchronize()

    def to_host(self, device: int, values: Any) -> Any:
        """A copy in pinned memory."""
        with self._on(device), errors_of_cuda():
            memory = cupy().cuda.alloc_pinned_memory(values.nbytes)
            out = np.frombuffer(memory, values.dtype, values.size)
            values.get(out=out)
            return out

    def from_host(self, device: int, values: Any, out: Any) -> None:
        """From the pinned memory that `to_host` took."""
        with self._on(device), errors_of_cuda():
            out.set(values)
            cupy().cuda.get_current_stream().synchronize()


#: Pairs of GPUs the first of which reads the second.
_opened: set[tuple[int, int]] = set()
_opening = threading.Lock()


def _let_read(device: int, other: int) -> None:
    """Let kernels and copies of the current device read the memory of another one."""
    runtime = cupy().cuda.runtime
    with _opening:
        if (device, other) in _opened:
            return
        try:
            runtime.deviceEnablePeerAccess(other)
        except runtime.CUDARuntimeError as error:
            if "AlreadyEnabled" not in str(error):
                raise
        _opened.add((device, other))


@functools.cache
def _trade_kernel() -> Any:
    """The kernel that lets two arrays change places: each thread holds one element of both."""
    body = "T kept = a[i]; a[i] = b[i]; b[i] = kept"
    return cupy().ElementwiseKernel("", "raw T a, raw T b", body, "bigfft_trade")
