"""The request for a plan: choices of the caller, and the machine that will run it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, Profile
from dask_bigfft.planner.rows import BY_CALLER, ResultWriting, Stored
from dask_bigfft.transforms.layout import Chunks
from dask_bigfft.transforms.spec import TransformSpec

#: Kind of executor of the rounds.
DeviceChoice = Literal["auto", "cpu", "gpu", "hybrid"]


@dataclass(frozen=True)
class Machine:
    """Processes, memory and speeds that a plan is made for.

    Parameters
    ----------
    memory_limit : int or None
        Bytes that one process may use; None if unknown.
    threads : int
        Tasks that run at a time in one process.
    workers : int
        Number of processes.
    buffers : int or None
        Bytes of shards that a process may hold in memory during a shuffle; None without shuffles.
    profile : Profile
        Measured speeds.
    gpus : int
        GPUs of each process that may be used.
    shared : bool
        Whether all tasks run in one process, so that blocks may share buffers.
    holding : int
        GPUs of this process that hold the blocks; 0 for blocks in host memory.
    """

    memory_limit: int | None = None
    threads: int = 1
    workers: int = 1
    buffers: int | None = None
    profile: Profile = DEFAULT
    gpus: int = 0
    shared: bool = False
    holding: int = 0

    @property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Speeds of each GPU of a process. An unmeasured one is assumed to be like the others."""
        if not self.gpus:
            return ()
        known = self.profile.devices or (DeviceProfile(),)
        return tuple(known[min(i, len(known) - 1)] for i in range(self.gpus))


@dataclass(frozen=True)
class Request:
    """Choices of the caller that a plan respects, beside the transform itself.

    Parameters
    ----------
    chunks : tuple of chunks
        Chunks of the input array.
    wanted_chunks : tuple of chunks or None
        Chunks of the result; None takes those of the last round.
    rounds : tuple of dict or None
        Factor of each axis in each round, named by the user.
    variant, kernel : str
        Data movement within an axis, and FFT library.
    max_rounds : int
        Rounds that a plan may have.
    floor_bytes : int
        Size of a block below which an awkward axis is gathered whole.
    storage : {"auto", "memory", "disk"}
        Storage of blocks between rounds. ``"auto"`` takes the disk if memory is too small.
    verify : str
        Checks of the running transform.
    device : {"auto", "cpu", "gpu", "hybrid"}
        Kind of executor of the rounds.
    scale : float
        Size of blocks in units of the input blocks.
    joined : bool
        Whether input chunks that are far smaller than blocks should be are joined in the rounds.
    device_nbytes : int or None
        Bytes of a GPU that may be used, if not all.
    stored : Stored or None
        Storage of an input array in files that the first round can read directly. The result then
        goes to files, too.
    writing : ResultWriting
        Memory that writing a chunk of the result takes.
    reopened : bool
        Whether the stored array is reopened in these chunks.
    piece_nbytes : int
        Minimum bytes of a write to a scratch file, if larger blocks can reach it; 0 keeps the
        blocks.
    """

    chunks: tuple[Chunks, ...]
    wanted_chunks: tuple[Chunks, ...] | None = None
    rounds: tuple[tuple[tuple[int, int], ...], ...] | None = None
    variant: str = "auto"
    kernel: str = "scipy"
    max_rounds: int = 4
    floor_bytes: int = 4 << 20
    storage: str = "memory"
    verify: str = "none"
    device: DeviceChoice = "auto"
    scale: float = 1.0
    joined: bool = False
    device_nbytes: int | None = None
    stored: Stored | None = None
    writing: ResultWriting = BY_CALLER
    reopened: bool = False
    piece_nbytes: int = 0


def block_count(chunks: Sequence[Chunks]) -> int:
    """Return the number of blocks of an array with these chunks."""
    return math.prod(map(len, chunks))


def extents(spec: TransformSpec, chunks: Sequence[Chunks]) -> list[int]:
    """Return the longest chunk of each axis; axes that are whole in a block are padded there."""
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    longest = []
    for axis, axis_chunks in enumerate(chunks):
        padded_length = lengths.get(axis, 0) if len(axis_chunks) == 1 else 0
        longest.append(max(0, padded_length, *axis_chunks))
    return longest


#: Maximum bytes of a tile, and number of tiles that a GPU holds, FFT work areas included.
MOST_TILE = 1 << 28
TILES_HELD = 8


def tile_nbytes(request: Request, machine: Machine) -> int:
    """Return the bytes of a tile on a GPU."""
    smallest_gpu = min((device.nbytes for device in machine.devices), default=0)
    return min(MOST_TILE, (request.device_nbytes or smallest_gpu) // TILES_HELD)


def padded_block(spec: TransformSpec, request: Request) -> int:
    """Return the size of the largest input block, padded, in complex elements."""
    size = math.prod(extents(spec, request.chunks))
    return max(1, size // 2 if spec.kind == "r2c" else size)  # a real element counts half


#: Bytes up to which padding makes the blocks of bands larger.
PADDED_BAND_NBYTES = 128 << 20


def largest_block(spec: TransformSpec, request: Request) -> int:
    """Return the size of blocks about as large as the input's, in complex elements.

    It is that of the largest input block, padded. Bands are padded by so much that their blocks do
    not become as large.
    """
    size = padded_block(spec, request)
    if spec.windows_in:
        stored = math.prod(max(cut, default=0) for cut in request.chunks)
        size = min(size, max(stored, PADDED_BAND_NBYTES // spec.work_dtype.itemsize))
    return size
