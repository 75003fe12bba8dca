"""The GPUs of this process, and copies on and between them.

Imports `errors` and this room.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dask_bigfft.gpu.cuda import cupy, in_pool
from dask_bigfft.gpu.cupy_device import errors_of_cuda
from dask_bigfft.gpu.on_card import is_on_card

__all__ = ["Gpus", "Segment", "gpus", "home_of", "use"]

Block = tuple[int, ...]

#: One strided copy: source view, target view, and whether the values are conjugated.
Segment = tuple[Any, Any, bool]


class Gpus:
    """The GPUs of this process by CuPy, numbered as CUDA does, and copies on and between them.

    Tests override methods (`testing.gpus`).
    """

    def ordinal(self, gpu: int) -> int:
        """Return the CUDA device of a GPU's number."""
        return gpu

    def _on(self, gpu: int) -> Any:
        return cupy().cuda.Device(self.ordinal(gpu))

    def homes(self, blocks: Mapping[Block, Any]) -> dict[Block, int]:
        """Return the GPU of each block; empty unless all blocks lie on GPUs."""
        on_gpus = all(map(is_on_card, blocks.values()))
        return {index: self.home(values) for index, values in blocks.items()} if on_gpus else {}

    def home(self, values: Any) -> int:
        """Return the GPU of an array."""
        return int(values.device.id)

    def empty(
        self, gpu: int, shape: int | tuple[int, ...], dtype: np.dtype[Any], zeros: bool = False
    ) -> Any:
        """Return memory of CuPy's pool; raise `DeviceMemoryError` if there is none left."""
        with self._on(gpu), errors_of_cuda():
            return (cupy().zeros if zeros else cupy().empty)(shape, dtype)

    def most(self, gpu: int) -> int:
        """Return the bytes in use on a GPU, by arrays of CuPy's pool."""
        with self._on(gpu):
            return in_pool()

    def reaches(self, gpu: int, other: int) -> bool:
        """Return whether a GPU can read the memory of another one, or of itself."""
        own, far = self.ordinal(gpu), self.ordinal(other)
        return own == far or bool(cupy().cuda.runtime.deviceCanAccessPeer(own, far))

    def view(self, values: Any, start: int, counts: Sequence[int], strides: Sequence[int]) -> Any:
        """Return a strided view that begins `start` bytes after the first element."""
        at = values.data + int(start)
        return cupy().ndarray(tuple(counts), values.dtype, memptr=at, strides=tuple(strides))

    def copy(self, gpu: int, segments: Iterable[Segment]) -> None:
        """Copy segments by kernels on one GPU, which may read others, and wait for them.

        The kernels run in the thread's current stream, after what the current streams of the other
        GPUs have been given.
        """
        cp, ready = cupy(), {self.ordinal(gpu)}
        with self._on(gpu), errors_of_cuda():
            stream = cp.cuda.get_current_stream()
            for values, target, conjugate in segments:
                owner = int(values.device.id)
                if owner not in ready:
                    ready.add(owner)
                    _let_read(self.ordinal(gpu), owner)
                    with cp.cuda.Device(owner):
                        written = cp.cuda.get_current_stream().record()
                    stream.wait_event(written)
                if owner != self.ordinal(gpu):
                    values = _mapped(values, self.ordinal(gpu))
                if values.dtype.kind == "c" and target.dtype.kind != "c":
                    values = values.real
                if conjugate and values.dtype.kind == "c":
                    cp.conj(values, out=target)
                else:
                    target[...] = values
            stream.synchronize()

    def send(self, source: int, values: Any, target: int, out: Any, by_host: bool = False) -> None:
        """Copy a contiguous array to another GPU by the copy engine, or through pinned memory."""
        cp, own, far = cupy(), self.ordinal(target), self.ordinal(source)
        if by_host:
            with self._on(source), errors_of_cuda():
                pinned = cp.cuda.alloc_pinned_memory(values.nbytes)
                host = np.frombuffer(pinned, values.dtype, values.size)
                values.get(out=host)
        with self._on(target), errors_of_cuda():
            stream = cp.cuda.get_current_stream()
            if by_host:
                out.set(host)
            else:
                if own != far and self.reaches(target, source):
                    _let_read(own, far)  # without it the driver copies through the host
                pointers = out.data.ptr, own, values.data.ptr, far
                cp.cuda.runtime.memcpyPeerAsync(*pointers, values.nbytes, stream.ptr)
            stream.synchronize()


def _mapped(values: Any, ordinal: int) -> Any:
    """Return an array of another GPU as an array of this one: CuPy's kernels take no other."""
    size = values.itemsize + sum(
        (n - 1) * abs(step) for n, step in zip(values.shape, values.strides, strict=True)
    )
    memory = cupy().cuda.UnownedMemory(values.data.ptr, size, values, ordinal)
    at = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(values.shape, values.dtype, memptr=at, strides=values.strides)


#: Pairs of devices of which the first may read the second.
_opened: set[tuple[int, int]] = set()
_opening = threading.Lock()


def _let_read(ordinal: int, other: int) -> None:
    """Let the current device read the memory of another one."""
    runtime = cupy().cuda.runtime
    with _opening:
        if (ordinal, other) in _opened:
            return
        try:
            runtime.deviceEnablePeerAccess(other)
        except runtime.CUDARuntimeError as error:
            if "AlreadyEnabled" not in str(error):
                raise
        _opened.add((ordinal, other))


def home_of(number: int, blocks: int, count: int) -> int:
    """Return the GPU of a block by its number: equal batches of blocks on `count` GPUs.

    >>> [home_of(i, 6, 4) for i in range(6)]
    [0, 0, 1, 2, 2, 3]
    """
    return number * count // blocks


_gpus: list[Gpus] = [Gpus()]


def gpus() -> Gpus:
    """Return the GPUs of this process."""
    return _gpus[-1]


def use(found: Gpus | None) -> None:
    """Let this process have other GPUs than those of CuPy; None: CuPy's again."""
    _gpus[1:] = [] if found is None else [found]
