"""Strided copies into arrays on a GPU, from its own memory and from other GPUs.

Copies from another GPU take one of four transports, of which Nandapalan et al. (2012) measured the
first three:

=========  ======================================================================
`host`     one message through pinned host memory
`staged`   one message, through the host in one direction if both GPUs can read
           each other
`swap`     one message from GPU to GPU, which a kernel then copies into place
`direct`   strided copies from GPU to GPU, without a message
=========  ======================================================================
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dask_bigfft.events import emit
from dask_bigfft.gpu.links import ArrayCopy, Gpus, array_copies, gpus
from dask_bigfft.gpu.row_copies import TableCopy
from dask_bigfft.kernels.copies import Segments
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.transforms.exchanges import packed_dtype

#: Transports between GPUs.
TRANSPORTS = ("host", "staged", "swap", "direct")

#: Function that returns the transport from the first GPU to the second.
Choice = Callable[[int, int], str]

#: Minimum ratio of link speed to bus speed at which `direct` is faster than `swap`: 6 on two H200.
LINK = 2

#: Held while a message is sent, so that a GPU needs buffers for only one message.
_sending = threading.Lock()


def transport_of(devices: Gpus, source: int, target: int) -> str:
    """Return the fastest transport from one GPU to another by the measured speed of their link."""
    reads_source = devices.reaches(target, source)
    reads_target = devices.reaches(source, target)
    if not (reads_source and reads_target):
        return "staged" if reads_source or reads_target else "host"
    link_speed = devices.speed(source, target)
    bus_speed = DeviceProfile.h2d
    if link_speed < bus_speed / 2:
        return "host"
    return "direct" if link_speed > LINK * bus_speed else "swap"


class PeerCopies:
    """Strided copies to arrays of one dtype on a GPU, which are enqueued together.

    Parameters
    ----------
    home : int
        GPU of the arrays.
    choice : callable, optional
        Transport from another GPU.
    aside : bool
        True to copy in side streams: the caller joins the GPUs before it makes the arrays, or gives
        `run` an event after the work that made the sources. It calls `finish` before it uses the
        arrays, and joins the GPUs before the sources are freed.
    """

    def __init__(self, home: int, choice: Choice | None = None, aside: bool = False) -> None:
        self.home = home
        self.aside = aside
        self._gpus = gpus()
        self.choice = choice or functools.partial(transport_of, self._gpus)
        #: Event from which on the arrays may be written.
        self.begun: Any = None
        #: Copies by GPU and dtype of their sources.
        self.copies: dict[tuple[int, np.dtype[Any]], list[TableCopy]] = {}
        #: End of the enqueued copies in each side stream, by GPU, until `finish`.
        self._ends: dict[int, Any] = {}
        #: Bytes of the enqueued copies between GPUs, by event, until `finish`.
        self._moved: dict[str, int] = {}

    def run(self, moment: Any = None) -> None:
        """Enqueue the copies; those in side streams wait for an event, if any."""
        homes = {self.home, *(gpu for gpu, _ in self.copies)}
        if not self.aside:
            self._gpus.join(homes)
            self.begun = self._gpus.now(self.home) if len(homes) > 1 else None
        try:
            self._enqueue([event for event in (self.begun, moment) if event is not None])
        finally:
            self.copies.clear()
            if not self.aside:
                self.finish()
                self._gpus.join(homes)

    def _enqueue(self, events: list[Any]) -> None:
        """Enqueue the copies from each GPU; note their ends and the bytes between GPUs.

        Those from another GPU take its transport. Those within the GPU of the arrays have none, and
        their bytes do not count.
        """
        for (gpu, dtype), copies in self.copies.items():
            if gpu == self.home:
                if self.aside:
                    self._ends |= self._gpus.copy_aside(self.home, copies, events)
                else:
                    self._gpus.copy_tables(gpu, copies)
                continue
            transport = self.choice(gpu, self.home)
            is_staged_by_host = transport == "staged" and self._staged_by_host(gpu)
            by_host = transport == "host" or is_staged_by_host
            message_dtype = packed_dtype(dtype, copies[0][1].dtype)  # also counts for `direct`
            size = sum(rows.size for _, _, rows in copies)
            if transport == "direct":
                self._ends |= self._gpus.copy_aside(self.home, copies, events)
            else:
                self._send(
                    gpu,
                    copies,
                    size,
                    message_dtype,
                    by_host,
                )
            event = "peer_host" if by_host else "peer_direct"
            transfers = 2 if by_host else 1
            nbytes = transfers * size * message_dtype.itemsize
            self._moved[event] = self._moved.get(event, 0) + nbytes

    def finish(self) -> None:
        """Let the current stream wait for the copies, and report the bytes moved."""
        if self._ends:
            self._gpus.wait(self.home, self._ends.values())
        for event, nbytes in self._moved.items():
            emit(event, nbytes=nbytes, seconds=0.0)
        self._ends = {}
        self._moved = {}

    def _staged_by_host(self, source: int) -> bool:
        """Return whether the transport `staged` copies from a GPU through the host.

        It does if the target's GPU cannot read the source's. If each can read the other, copies
        from the lower to the higher number go through the host.
        """
        if not self._gpus.reaches(self.home, source):
            return True
        return self._gpus.reaches(source, self.home) and source < self.home

    def _send(
        self,
        source: int,
        copies: list[TableCopy],
        size: int,
        dtype: np.dtype[Any],
        by_host: bool,
    ) -> None:
        """Pack the sources on another GPU into one message, send it and copy it into place."""
        arrays = array_copies(copies)
        with _sending:
            message = self._gpus.empty(source, size, dtype)
            arrived = self._gpus.empty(self.home, size, dtype)
            for gpu in (source, self.home):
                emit("device_memory", device=gpu, nbytes=self._gpus.used_nbytes(gpu))
            packing: list[ArrayCopy] = []
            unpacking: list[ArrayCopy] = []
            packed_parts = _dense_parts(message, arrays)
            arrived_parts = _dense_parts(arrived, arrays)
            parts = zip(
                arrays,
                packed_parts,
                arrived_parts,
                strict=True,
            )
            for (values, place, conjugate), packed_part, arrived_part in parts:
                packing.append((values, packed_part, False))
                unpacking.append((arrived_part, place, conjugate))
            self._gpus.copy(source, packing)
            self._gpus.send(
                source,
                message,
                self.home,
                arrived,
                by_host,
            )
            self._gpus.copy(self.home, unpacking)
            self._gpus.join((source, self.home))  # before the messages are freed


def _dense_parts(buffer: Any, copies: Sequence[ArrayCopy]) -> list[Any]:
    """Return the parts of a buffer that stores the sources of copies one after the other."""
    sources = [values for values, _, _ in copies]
    ends = list(itertools.accumulate(values.size for values in sources))
    return [
        buffer[end - values.size : end].reshape(values.shape)
        for values, end in zip(sources, ends, strict=True)
    ]


class GpuTable:
    """Table of strided copies into a new array on a GPU, like `CopyTable` on the host.

    Parameters
    ----------
    copies : PeerCopies
        Enqueues the copies, maybe with those to other arrays on the GPU.
    shape, dtype
        Shape and dtype of the new array.
    zeros : bool
        Whether the new array is filled with zeros first.

    Attributes
    ----------
    target : array
        The new array.
    """

    def __init__(
        self,
        copies: PeerCopies,
        shape: Any,
        dtype: Any,
        zeros: bool = False,
    ) -> None:
        self.copies = copies
        self.home = copies.home
        self.run = copies.run
        self.target = gpus().empty(
            self.home,
            shape,
            dtype,
            zeros,
        )
        copies.begun = gpus().now(self.home) if copies.aside else None

    def extend(self, sources: Sequence[Any], which: np.ndarray, rows: Segments) -> None:
        """Add many strided copies; `which` names the source of each."""
        for source, own_rows in zip(sources, rows.by_source(which, len(sources)), strict=True):
            copies = self.copies.copies.setdefault((gpus().home(source), source.dtype), [])
            copies.append((source, self.target, own_rows))

    def wait(self) -> Any:
        """Let the current stream wait for the copies, and return the array."""
        self.copies.finish()
        emit("device_memory", device=self.home, nbytes=gpus().used_nbytes(self.home))
        return self.target


def new_table_on(home: int) -> Callable[[Any, np.dtype[Any]], GpuTable]:
    """Return a function that returns the table of copies into a new array on a GPU."""
    return lambda shape, dtype: GpuTable(PeerCopies(home), shape, dtype)
