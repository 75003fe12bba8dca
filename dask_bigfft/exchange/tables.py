"""Tables of strided copies into a new block, on the host or on a GPU.

A block on a GPU is gathered from segments, parts of source blocks some of which may lie on other
GPUs. Segments of another GPU come by one of four transports (Nandapalan et al. 2012, section V)::

    host     packed, through host memory, copied into place              2x the bytes
    staged   of the two directions of a pair, one by host, one by swap   1.5x
    swap     packed, sent by the copy engine, copied into place          1x
    kernel   read in place by the kernel that gathers                    1x, no buffers

The paper's schemes in place need source and target blocks of equal sizes. Here every target block
is new memory (the second buffer of the pointer swap) that takes the place of the source blocks.

Source: Nandapalan, Jaros, Treeby and Rendell, *Implementation of 3D FFTs across multiple GPUs in
shared memory environments*, PDCAT 2012.

Imports `planner`, `gpu`, `kernels`, `memory` and `events`.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from dask_bigfft.decomposition.rounds import packed_dtype
from dask_bigfft.events import emit
from dask_bigfft.gpu.on_gpu import Gpus, Segment, gpus, is_on_gpu
from dask_bigfft.kernels.copies import CopyTable, Segments
from dask_bigfft.memory import lend
from dask_bigfft.planner.profile import DEFAULT, Profile

Transport = Literal["host", "staged", "swap", "kernel"]
TRANSPORTS: tuple[Transport, ...] = ("host", "staged", "swap", "kernel")

#: Transport from the first GPU to the second.
Choice = Callable[[int, int], Transport]

#: From this ratio of link speed to bus speed on, `kernel` is faster than `swap` (two H200: a ratio
#: of 6, and 0.6 to 0.8 of the time).
LINK = 2

#: Held while a message is on its way, so that a GPU has buffers for one message at a time.
_sending = threading.Lock()


def transport_of(profile: Profile, found: Gpus, source: int, target: int) -> Transport:
    """Return the transport from one GPU to another that suits the measured speeds."""
    there, back = found.reaches(target, source), found.reaches(source, target)
    if not (there and back):
        return "staged" if there or back else "host"
    speed, known = profile.peer(source, target), profile.devices
    if speed is None or not known:
        return "swap"
    bus = min(known[min(gpu, len(known) - 1)].h2d for gpu in (source, target))
    if speed < bus / 2:
        return "host"
    return "kernel" if speed > LINK * bus else "swap"


class GpuTable:
    """Strided copies into a new array on a GPU, collected as a `CopyTable` does on the host.

    Parameters
    ----------
    home : int
        GPU of the new array.
    shape, dtype
        Of the new array, `target`.
    choice : callable
        Transport from another GPU.
    zeros : bool
        Whether the new array begins as zeros.
    """

    def __init__(
        self,
        home: int,
        shape: int | tuple[int, ...],
        dtype: np.dtype[Any],
        choice: Choice,
        zeros: bool = False,
    ) -> None:
        self.home, self.choice, self._gpus = home, choice, gpus()
        self.target = self._gpus.empty(home, shape, dtype, zeros)
        self._segments: dict[tuple[int, np.dtype[Any]], list[Segment]] = {}

    def extend(self, sources: Sequence[Any], which: np.ndarray, rows: Segments) -> None:
        """Add many strided copies; `which` names the source of each."""
        by_source = [
            self._segments.setdefault((self._gpus.home(source), source.dtype), [])
            for source in sources
        ]
        columns = (
            which,
            rows.counts,
            rows.source_starts,
            rows.source_strides,
            rows.target_starts,
            rows.target_strides,
        )
        view = self._gpus.view
        for i, counts, *places in zip(*(column.tolist() for column in columns), strict=True):
            values = view(sources[i], places[0], counts, places[1])
            target = view(self.target, places[2], counts, places[3])
            by_source[i].append((values, target, rows.conjugate))

    def run(self, weigh: bool = False) -> None:
        """Do the copies, and wait for them: other threads use streams of their own."""
        near: list[Segment] = []
        for (gpu, dtype), segments in self._segments.items():
            choice = "kernel" if gpu == self.home else self.choice(gpu, self.home)
            by_host = choice == "host" or (choice == "staged" and gpu < self.home)
            kept = packed_dtype(dtype, self.target.dtype)
            size = sum(values.size for values, _, _ in segments)
            if choice == "kernel":
                near += segments
            else:
                self._send(gpu, segments, size, kept, by_host)
            if gpu != self.home:
                nbytes = (1 + by_host) * size * kept.itemsize
                emit("peer_host" if by_host else "peer_direct", nbytes=nbytes, seconds=0.0)
                emit("device_memory", device=self.home, nbytes=self._gpus.most(self.home))
        self._gpus.copy(self.home, near)

    def _send(
        self, source: int, segments: list[Segment], size: int, dtype: np.dtype[Any], by_host: bool
    ) -> None:
        """Pack segments of another GPU into one message, send it and copy it into place."""
        found = self._gpus
        with _sending:
            packed, arrived = (found.empty(gpu, size, dtype) for gpu in (source, self.home))
            for gpu in (source, self.home):
                emit("device_memory", device=gpu, nbytes=found.most(gpu))
            pairs = list(zip(segments, _dense(packed, segments), strict=True))
            found.copy(source, [(values, part, False) for (values, _, _), part in pairs])
            found.send(source, packed, self.home, arrived, by_host)
            pairs = list(zip(segments, _dense(arrived, segments), strict=True))
            found.copy(self.home, [(part, place, turned) for (_, place, turned), part in pairs])


def _dense(buffer: Any, segments: Sequence[Segment]) -> list[Any]:
    """Return the parts of a buffer in which segments lie one after the other."""
    shapes = [values.shape for values, _, _ in segments]
    sizes = [int(np.prod(shape)) for shape in shapes]
    starts = itertools.accumulate(sizes, initial=0)
    return [buffer[a : a + n].reshape(s) for a, n, s in zip(starts, sizes, shapes, strict=False)]


Table = CopyTable | GpuTable


def table_for(
    like: Any,
    shape: int | tuple[int, ...],
    dtype: np.dtype[Any],
    home: int | None = None,
    choice: Choice | None = None,
    zeros: bool = False,
) -> Any:
    """Return an empty table of copies into a new array, on the GPU `home` or beside `like`."""
    if home is None and not is_on_gpu(like):
        return CopyTable(lend(shape, dtype))
    if choice is None:
        choice = functools.partial(transport_of, DEFAULT, gpus())
    return GpuTable(gpus().home(like) if home is None else home, shape, dtype, choice, zeros)
