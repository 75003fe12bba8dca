"""Several simulated GPUs of one process, for machines with none or one."""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dask_bigfft.arrays import Block
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.links import ArrayCopy, Gpus, array_copies, home_of, use
from dask_bigfft.gpu.row_copies import TableCopy
from dask_bigfft.kernels.copies import strided_view
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.profile import DeviceProfile


class Batches(Gpus):
    """GPUs that hold equal batches of blocks, by block index."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self._at: dict[int, int] = {}

    def homes(self, blocks: Mapping[Block, Any]) -> dict[Block, int]:
        """Assign each block to the GPU of its batch."""
        gpus: dict[Block, int] = {}
        for index, block in enumerate(sorted(blocks)):
            gpu = home_of(index, len(blocks), self.count)
            self.put(gpu, blocks[block])
            gpus[block] = gpu
        return gpus

    def put(self, gpu: int, values: Any) -> None:
        """Record the GPU of an array."""
        self._at[_address(values)] = gpu

    def home(self, values: Any) -> int:
        """Return the recorded GPU of an array, by default the first one."""
        return self._at.get(_address(values), 0)


def _address(values: Any) -> int:
    """Return the address of an array in the memory of a GPU or of the host."""
    if is_on_gpu(values):
        return int(values.data.ptr)
    return int(values.__array_interface__["data"][0])


class SimulatedGpus(Batches):
    """GPUs simulated with NumPy, which count bytes.

    Parameters
    ----------
    nbytes : tuple of int
        Memory of each.
    apart : set of (int, int)
        Pairs of GPUs without peer access: the first cannot read the second.

    Attributes
    ----------
    used, peak : list of int
        Current and maximum bytes in use on each.
    speeds : dict
        Bytes per second from one to another.
    crossed : dict
        Bytes copied between two places. A place is the number of a GPU or ``"host"``.
    """

    def __init__(self, nbytes: Sequence[int], apart: Iterable[tuple[int, int]] = ()) -> None:
        super().__init__(len(nbytes))
        self.nbytes = tuple(nbytes)
        self.apart = set(apart)
        self.used = [0] * len(nbytes)
        self.peak = [0] * len(nbytes)
        self.crossed: dict[tuple[Any, Any], int] = {}
        self.speeds: dict[tuple[int, int], float] = {}
        #: GPU and bytes of each array, by its address.
        self._live: dict[int, tuple[int, int]] = {}
        self._lock = threading.RLock()  # arrays may be freed at any time, in any thread

    def put(self, gpu: int, values: Any) -> None:
        """Record the GPU of an array, and count its memory until it is freed.

        An array that is put on another GPU moves there with all of its memory.
        """
        with self._lock:
            super().put(gpu, values)
            address = _address(values)
            if address in self._live:
                earlier_gpu, nbytes = self._live[address]
                self.used[earlier_gpu] -= nbytes
            else:
                nbytes = values.nbytes
                weakref.finalize(values, self._free, address)
            self._live[address] = (gpu, nbytes)
            self.used[gpu] += nbytes
            self.peak[gpu] = max(self.peak[gpu], self.used[gpu])

    def _free(self, address: int) -> None:
        """Count the memory of an array as free."""
        with self._lock:
            gpu, nbytes = self._live.pop(address)
            self.used[gpu] -= nbytes

    def empty(
        self,
        gpu: int,
        shape: int | tuple[int, ...],
        dtype: np.dtype[Any],
        zeros: bool = False,
    ) -> Any:
        """Return NumPy memory filled with NaN, or with zeros."""
        with self._lock:
            values = np.empty(shape, dtype)
            if values.nbytes > self.nbytes[gpu] - self.used[gpu]:
                raise DeviceMemoryError(
                    f"{values.nbytes} bytes asked of simulated GPU {gpu}, which has "
                    f"{self.nbytes[gpu]} and uses {self.used[gpu]}"
                )
            values.reshape(-1).view(np.uint8).fill(0 if zeros else 0xFF)
            self.put(gpu, values)
            return values

    def used_nbytes(self, gpu: int) -> int:
        """Return the maximum bytes in use."""
        return self.peak[gpu]

    def reaches(self, gpu: int, other: int) -> bool:
        """Return True if a GPU can read another one."""
        return (gpu, other) not in self.apart

    def speed(self, source: int, target: int) -> float:
        """Return bytes per second from one GPU to another, by default those of a bus."""
        return self.speeds.get((source, target), DeviceProfile().h2d)

    def join(self, gpus: Iterable[int]) -> None:
        """Do nothing, because copies are done at once."""

    def view(
        self,
        values: Any,
        start: int,
        counts: Sequence[int],
        strides: Sequence[int],
    ) -> Any:
        """Return a NumPy view."""
        return strided_view(values, start, counts, strides)

    def now(self, gpu: int) -> None:
        """Return no event."""

    def wait(self, gpu: int, events: Iterable[Any]) -> None:
        """Do nothing."""

    def copy_tables(self, gpu: int, copies: Sequence[TableCopy]) -> None:
        """Do strided copies immediately."""
        self.copy(gpu, array_copies(copies))

    def copy_aside(
        self,
        gpu: int,
        copies: Sequence[TableCopy],
        events: Sequence[Any],
    ) -> dict[int, Any]:
        """Copy immediately."""
        self.copy(gpu, array_copies(copies))
        return {}

    def copy(self, gpu: int, copies: Iterable[ArrayCopy]) -> None:
        """Copy arrays immediately."""
        for values, target, conjugate in copies:
            if target.dtype.kind != "c":
                values = values.real
            target[...] = values.conj() if conjugate else values

    def send(
        self,
        source: int,
        values: Any,
        target: int,
        out: Any,
        by_host: bool = False,
    ) -> None:
        """Copy an array to another GPU immediately, and count the bytes."""
        if by_host:
            self._count(source, "host", values.nbytes)
            self._count("host", target, values.nbytes)
        elif self.reaches(target, source):
            self._count(source, target, values.nbytes)
        else:
            raise DeviceError(f"GPU {target} cannot read GPU {source}")
        out[...] = values

    def _count(
        self,
        source: int | str,
        target: int | str,
        nbytes: int,
    ) -> None:
        """Count bytes copied from one place to another."""
        places = (source, target)
        self.crossed[places] = self.crossed.get(places, 0) + nbytes


@contextlib.contextmanager
def several_gpus(gpus: Gpus) -> Iterator[Gpus]:
    """Replace the GPUs of this process within a context.

    Blocks that go through exchanges with carrier ``gpu/...`` are placed on them in batches.
    """
    use(gpus)
    try:
        yield gpus
    finally:
        use(None)
