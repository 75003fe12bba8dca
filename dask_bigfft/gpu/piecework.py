"""What is written down for a piece: the copies that bring it, the operations, the copies back.

Frozen descriptions without arrays or addresses; `work` writes them, `pipeline` submits them.

Imports `decomposition` and this room.
"""

from dataclasses import dataclass

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.gpu.crossings import Crossing
from dask_bigfft.gpu.operations import Compute, DeviceArray
from dask_bigfft.gpu.ragged import HostView, Slices, Window

Block = tuple[int, ...]


@dataclass(frozen=True)
class Trip:
    """One crossing of a block, as far as what is computed depends on it.

    Parameters
    ----------
    round : Round
        The round on blocks.
    block : tuple of int
        Which block.
    dims : tuple of int
        Dimension of the block that each step of the round transforms.
    factors : tuple of tuple of int
        Digits of each of these dimensions.
    crossing : Crossing
        Shapes, and which digits are transformed.
    inner : Round
        The crossing as a round: dimensions of the block as axes, pieces as blocks.
    dtype : str
        Of complex values.
    real : bool
        Whether what is convolved was half a spectrum, and its real parts are the result.
    window : Window or None
        Of what is written: the part that the block has.
    """

    round: Round
    block: Block
    dims: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    crossing: Crossing
    inner: Round
    dtype: str
    real: bool = False
    window: Window | None = None


@dataclass(frozen=True)
class Computation:
    """One operation on a piece: from where to where, and for a product by what."""

    op: Compute
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class Filter:
    """The part of an axis' spectrum that a piece is multiplied with."""

    axis: int
    shape: tuple[int, ...]
    part: Slices
    array: DeviceArray


@dataclass(frozen=True)
class Move:
    """A part of a host view, and the array on the device that it is copied to or from."""

    part: Slices
    array: DeviceArray


@dataclass(frozen=True)
class PieceWork:
    """All that is done with one piece, in a slot that begins at offset 0.

    Parameters
    ----------
    view : HostView
        How the host block is seen before.
    comes : tuple of Move
        What of it is copied to the device.
    source : DeviceArray
        Where the piece lies then.
    filters : tuple of Filter
        What is copied with it.
    computations : tuple of Computation
        In order.
    result : DeviceArray
        The piece at the end.
    stored_view : HostView
        How the host block is seen afterwards, dimensions in the order in which they are stored.
    goes : tuple of Move
        What of it is copied back.
    scratch : DeviceArray, optional
        Where what lies backwards is copied to, before it is turned.
    """

    view: HostView
    comes: tuple[Move, ...]
    source: DeviceArray
    filters: tuple[Filter, ...]
    computations: tuple[Computation, ...]
    result: DeviceArray
    stored_view: HostView
    goes: tuple[Move, ...]
    scratch: DeviceArray | None = None

    @property
    def part(self) -> Slices:
        """What of the host block comes, or the first part of it."""
        return self.comes[0].part

    @property
    def stored(self) -> Slices:
        """Where what goes is stored, or the first part of it."""
        return self.goes[0].part
