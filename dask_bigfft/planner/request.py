"""Choices of the caller that a plan respects, beside the transform itself.

Pure: imports `decomposition`, `transforms` and this room.
"""

from dataclasses import dataclass
from typing import Literal

from dask_bigfft.decomposition.layout import Chunks
from dask_bigfft.planner.rows import Stored
from dask_bigfft.transforms.spec import TransformSpec

__all__ = ["Request", "largest_block"]


@dataclass(frozen=True)
class Request:
    """Choices of the caller that a plan respects, beside the transform itself.

    Parameters
    ----------
    chunks : tuple of chunks
        Of the array that comes in.
    wanted : tuple of chunks or None
        Of the array that goes out; None takes what the last round gives.
    rounds : tuple of dict or None
        Factor of each axis in each round, named by the user.
    variant, kernel : str
        Data movement within an axis, and FFT library.
    max_rounds : int
        Rounds that a plan may have.
    floor_bytes : int
        Size of a block below which an awkward axis is gathered whole.
    carrier : {"auto", "memory", "disk"}
        Where blocks are between rounds: ``"auto"`` takes the disk if memory is too small.
    verify : str
        Checks while the transform works.
    device : {"auto", "cpu", "gpu", "hybrid"}
        Where rounds are done.
    scale : float
        Size of blocks in units of those that come in.
    device_nbytes : int or None
        Bytes of a device that may be used, if fewer than it has.
    stored : Stored or None
        How the array that comes in lies in files that the first round can read by itself. The
        result then goes to files, too.
    anew : bool
        Whether the stored array is opened anew, in these chunks.
    piece_nbytes : int
        Bytes of the pieces in which scratch files are written, at least, if larger blocks make
        them so large; 0 leaves blocks as they are.
    """

    chunks: tuple[Chunks, ...]
    wanted: tuple[Chunks, ...] | None = None
    rounds: tuple[tuple[tuple[int, int], ...], ...] | None = None
    variant: str = "auto"
    kernel: str = "scipy"
    max_rounds: int = 4
    floor_bytes: int = 4 << 20
    carrier: str = "memory"
    verify: str = "none"
    device: Literal["auto", "cpu", "gpu", "hybrid"] = "auto"
    scale: float = 1.0
    device_nbytes: int | None = None
    stored: Stored | None = None
    anew: bool = False
    piece_nbytes: int = 0


def largest_block(spec: TransformSpec, request: Request) -> int:
    """Size of the largest block that comes in, in complex elements (real ones are half as wide).

    Axes that lie whole in it count as long as they are padded to.
    """
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    size = 1
    for axis, chunks in enumerate(request.chunks):
        largest = max(chunks, default=0)
        size *= max(largest, lengths.get(axis, 0)) if len(chunks) == 1 else largest
    return max(1, size // 2 if spec.kind == "r2c" else size)
