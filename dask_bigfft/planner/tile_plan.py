"""`TilePlan`: the tiles and passes of a round that a GPU does on a block in host memory.

A block whose round fits a tile crosses the bus once each way. A larger one takes several passes:
the same partition of digits into rounds as between blocks, with tiles instead of blocks, and the
host block, which takes strided reads and writes, instead of the exchange (Gu, Siegel and
Li 2011)::

    block of (Y, X)   {Y1}: tile = all of Y1, some of (Y2, X)   ->  written where it was read
                      {Y2, X}: tile = some of Y1, all of (Y2, X) ->  written as (Y2, Y1, X)

A digit stays in its place, transformed; the last pass writes the digits of a split dimension in
their natural order, which needs memory apart from the block (or a pass that swaps two digits).

The cost model, `explain()` and the executor use the same plan, which `passes` finds. Numbers of
buffers and tiles, and the use of streams, can be set by hand (`DeviceSettings`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from dask_bigfft.errors import DeviceError
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import even_chunks, even_width
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.steps import Kind, Step

#: Characters of the dtypes that GPUs compute in: single and double precision.
COMPUTED = "fdFD"

#: Alignment of arrays on the GPU in bytes. FFT libraries need less.
ALIGNMENT = 256

#: Minimum length that is split if it has a prime factor above `MOST_PRIME`. cuFFT pads such FFTs,
#: which takes much memory, and refuses lengths of 2^31 and more.
AWKWARD = 1 << 27

#: Largest prime factor for which GPU libraries have kernels.
MOST_PRIME = 127

#: Factors for the number of tiles that are tried.
FINER = (1 / 8, 1 / 4, 1 / 2, 1, 4)

#: Maximum fraction of the staging buffers of one direction for a tile. The next one is gathered
#: while the GPU loads it, and the submitting thread does not wait within a tile.
RING_SHARE = 1 / 2

#: `TileLimits.run_nbytes`, `ends` and `following` where threads gather rows into staging buffers.
#: Threads lose less by narrow rows than copy engines do. The first tile is gathered, and the last
#: one scattered, without overlap (H200, 16 cores).
STAGED_RUN_NBYTES = 1024
STAGED_ENDS = 3
STAGED_FOLLOWING = 16

#: Minimum bytes of a row of a block that a GPU reads in place. Threads copy narrower ones.
NARROWEST_NBYTES = 1 << 10

#: Minimum bytes of a row that it writes to several blocks of a result. Narrower ones take as long
#: as one more pass over the bus: two passes of 16 GiB took 1.10 s in rows of 8 KiB and 1.17 s in
#: rows of 4 KiB, three passes in wide rows 1.14 s (H200).
LEAST_WRITTEN_NBYTES = 8 << 10

#: Minimum row width in bytes for which a copy engine writes to another GPU; kernels read others.
#: Beside FFTs the engine moves 338 GB/s in rows of 4 KiB, kernels of 48 to 264 blocks 175 to 245
#: (two H100, NVLink). All-to-all of 1.5 GiB for each of four H200, begun 0 to 0.1 ms apart, takes
#: 4.2 to 4.6 ms if GPUs write in turn; 4.2 to 5.2, and 5.9 to 9.6 in an unlucky order, if they do
#: not; 4.2 to 14.5 if they read.
LINK_ROW_NBYTES = 4096

#: Minimum bytes of a row that a copy engine reads; a kernel reads narrower ones. While the other
#: direction copies whole blocks, an engine reads rows of 4, 8 and 16 KiB at 33, 48 and 49 GB/s, a
#: kernel at 38, 36 and 34. Kernels write at 29 whatever the width, and engines at 33, 47 and 46
#: (H200). Beside FFTs, engines copy such rows at 22, 30 and 30 GB/s in either direction, in host
#: pages of any size and in one stream or two. Rows of 4 KiB side by side in host memory, which have
#: gaps on the device alone, go at 51 GB/s by engines in both directions at once, and at 35 by a
#: kernel.
ENGINE_ROW_NBYTES = 8 << 10

#: Minimum bytes of a tile where the number of tiles is set.
LEAST_TILE = 1 << 16


def aligned(nbytes: int) -> int:
    """Return the next multiple of the alignment of arrays.

    >>> aligned(1), aligned(256)
    (256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def copy_method(runs: int, width: int, writes: bool) -> Literal["direct", "strided", "kernel"]:
    """Return the copy method of runs of pinned host memory, by their number and width in bytes.

    A copy engine copies one run directly and several in strided calls. A kernel reads narrow runs.

    >>> copy_method(1, 64, False), copy_method(9, 1 << 14, False), copy_method(9, 64, False)
    ('direct', 'strided', 'kernel')
    """
    if runs == 1:
        return "direct"
    return "strided" if writes or width >= ENGINE_ROW_NBYTES else "kernel"


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of a GPU's pipeline. With None the engine decides.

    Parameters
    ----------
    buffers : int or None
        Tiles on the GPU at a time (k of Lee and Kim, Electronics 12, 2023).
    passes : int or None
        Approximate number of tiles of a block in each pass over the bus.
    streams : {"role", "tile"} or None
        One stream each for copies in, FFTs and copies out, or one for each buffer, in which a tile
        is loaded, transformed and stored (Gu, Siegel and Li 2011).
    cpu_share : float or None
        The CPU's share of the rows of each block of a hybrid transform.
    """

    buffers: int | None = None
    passes: int | None = None
    streams: Literal["role", "tile"] | None = None
    cpu_share: float | None = None

    def __post_init__(self) -> None:
        for name in ("buffers", "passes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"DeviceSettings.{name} is {value!r}")


#: Nothing is set.
AS_IS = DeviceSettings()


@dataclass(frozen=True)
class TileLimits:
    """Memory that tiles may need, and sizes that they should have.

    Parameters
    ----------
    nbytes : int
        Bytes of the GPU that buffers and work area take together.
    slots : int
        Buffers: one loads, one computes, one stores.
    most, least : int
        Maximum bytes of a tile if a smaller one is as good, and minimum bytes if the block is only
        cut to keep all three engines busy.
    pieces : int
        Minimum number of tiles of a pass if the block is large enough.
    run_nbytes, call_nbytes : int
        Bytes that cross the bus in the overhead of a contiguous run, and in the time of a call.
    finer : tuple of float
        Factors for `pieces` that are tried.
    ends : float
        Tiles without overlap at the beginning and end of all blocks.
    following : int
        Number of following blocks beyond which more do not matter.
    """

    nbytes: int
    slots: int = 3
    most: int = 1 << 30
    least: int = 1 << 22
    pieces: int = 8
    run_nbytes: int = 8192
    call_nbytes: int = 1 << 18
    finer: tuple[float, ...] = FINER
    ends: float = 1
    following: int = 4

    def tuned(self, settings: DeviceSettings) -> "TileLimits":
        """Return the limits with the settings by hand."""
        limits = replace(self, slots=settings.buffers or self.slots)
        if settings.passes is None:
            return limits
        least = min(self.least, LEAST_TILE)
        return replace(
            limits,
            pieces=settings.passes,
            least=least,
            finer=(1,),
        )

    def staged(self, nbytes: int, settings: DeviceSettings) -> "TileLimits":
        """Return the limits of a block that travels through staging buffers.

        Parameters
        ----------
        nbytes : int
            Bytes of the staging buffers of one direction.
        settings : DeviceSettings
            Settings by hand. With a number of passes, which `tuned` turns into a size of tiles
            afterwards, the size stays as it is.

        Examples
        --------
        >>> TileLimits(1 << 31).staged(1 << 28, DeviceSettings()).most >> 20
        128
        """
        most = min(self.most, max(self.least, int(RING_SHARE * nbytes)))
        return replace(
            self,
            most=self.most if settings.passes is not None else most,
            run_nbytes=min(self.run_nbytes, STAGED_RUN_NBYTES),
            finer=(*self.finer, 2 * self.finer[-1]),
            ends=STAGED_ENDS,
            following=STAGED_FOLLOWING,
        )


def digit_of_step(step: int, digit_count: int) -> int:
    """Return the number of the digit that a step of a line transforms.

    A line that turns back is transformed back after its last digit, which is transformed once.

    >>> [digit_of_step(step, 3) for step in range(5)]
    [0, 1, 2, 1, 0]
    """
    return min(step, 2 * (digit_count - 1) - step)


@dataclass(frozen=True)
class Line:
    """A dimension of a block that a round transforms.

    Parameters
    ----------
    dim : int
        Dimension of the block.
    length : int
        Length of the FFTs.
    kind : {"c2c", "r2c", "c2r"}
        Of the FFTs.
    filtered : bool
        Whether the transformed digit is multiplied by a spectrum, which is then on the GPU, too.
    multiplied : bool
        Whether the block is multiplied by a transfer function where all such lines are transformed.
    """

    dim: int
    length: int
    kind: Kind = "c2c"
    filtered: bool = False
    multiplied: bool = False

    @property
    def turns_back(self) -> bool:
        """Return whether the line is transformed back after a product."""
        return self.filtered or self.multiplied

    @property
    def whole(self) -> bool:
        """Return whether one FFT may be as long as the line. Else it is split if possible.

        >>> [Line(0, n).whole for n in (2**31, 2**31 + 2**20, 2**31 - 1)]
        [True, False, True]
        """
        if self.turns_back or self.kind != "c2c" or self.length < AWKWARD:
            return True
        factors = factorize(self.length)
        return max(factors) <= MOST_PRIME or sum(factors.values()) == 1

    def steps(self, digit_count: int) -> int:
        """Return the number of steps for a number of digits, those of the way back included."""
        return 2 * digit_count - 1 if self.turns_back else digit_count


#: Digits of each line in the order in which they are transformed, and the pass of each step.
Scheme = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class TileRequest:
    """The properties of a round on a block that its tile plan depends on.

    Parameters
    ----------
    shape : tuple of int
        Shape of the block before the round.
    lines : tuple of Line
        Transformed dimensions.
    itemsize : int
        Bytes of a complex number.
    inside : bool
        Whether a round that keeps its shape must work in the memory of the block.
    order : tuple of int
        Dimensions in the order in which they are written, in a single pass.
    blocks : int
        Consecutive blocks, of which one loads while another is stored.
    shards : int
        Approximate number of calls that load a tile.
    mirrored : bool
        Whether some shards are reversed in host memory, and are turned on the GPU.
    scheme : (digits, passes) or None
        The decomposition, if set by hand.
    """

    shape: tuple[int, ...]
    lines: tuple[Line, ...]
    itemsize: int
    inside: bool = False
    order: tuple[int, ...] = ()
    blocks: int = 1
    shards: int = 1
    mirrored: bool = False
    scheme: Scheme | None = None


@dataclass(frozen=True)
class TilePass:
    """One pass of a block over the bus and back.

    Parameters
    ----------
    steps : tuple of (int, int)
        Transforms: the index of a line, and of a step of it.
    view, after : tuple of int
        Shape of the block in digits, before and after.
    tile : tuple of int
        Shape of the largest tile, in `view`.
    order : tuple of int
        Dimensions of `after` in the order in which they are written.
    reads, writes : (int, int)
        C and W: contiguous runs of a tile in host memory, and elements in each.
    places : tuple of int
        Bytes of each GPU buffer of a tile: for the tile, for results that need another buffer, and
        for filters or mirror images.
    swap : (int, int) or None
        Dimensions that change places in the block's own memory, without FFTs.
    itemsizes : (int, int)
        Bytes of an element when read and written. Real values are half as wide.
    mirrored : bool
        Whether the last buffer is for reversed shards.
    """

    steps: tuple[tuple[int, int], ...]
    view: tuple[int, ...]
    after: tuple[int, ...]
    tile: tuple[int, ...]
    order: tuple[int, ...]
    reads: tuple[int, int]
    writes: tuple[int, int]
    places: tuple[int, ...]
    itemsizes: tuple[int, int]
    swap: tuple[int, int] | None = None
    mirrored: bool = False

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Extents of the tiles along each dimension of `view`."""
        pairs = zip(self.view, self.tile, strict=True)
        return tuple(even_chunks(n, -(-n // max(1, extent))) for n, extent in pairs)

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        counts = []
        for n, extent in zip(self.view, self.tile, strict=True):
            width = even_width(n, -(-n // max(1, extent)))
            counts.append(max(1, -(-n // max(1, width))))
        if self.swap is None:
            return math.prod(counts)
        # Two tiles change places at a time: those on one side of the diagonal, and on it.
        side = counts[self.swap[0]]
        pairs = side * (side + 1) // 2
        return math.prod(counts) // side**2 * pairs

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes that cross the bus to the GPU, and back."""
        size_in, size_out = self.itemsizes
        return math.prod(self.view) * size_in, math.prod(self.after) * size_out

    @property
    def runs(self) -> tuple[int, int]:
        """Contiguous runs of host memory that all tiles are read from, and written to."""
        return self.tiles * self.reads[0], self.tiles * self.writes[0]

    @property
    def copies(self) -> tuple[str, str]:
        """Copy methods from and to pinned host memory."""
        size_in, size_out = self.itemsizes
        read_runs, read_width = self.reads
        written_runs, written_width = self.writes
        return (
            copy_method(read_runs, read_width * size_in, writes=False),
            copy_method(written_runs, written_width * size_out, writes=True),
        )

    @cached_property
    def reorders(self) -> bool:
        """Return whether digits are written in another order than they are read."""
        return self.order != tuple(range(len(self.order)))


@dataclass(frozen=True)
class TilePlan:
    """All passes of a round on a block.

    ``digits`` are those of each line, in the order in which they are transformed; ``buffers`` is
    the number of tiles that are on the GPU at a time.
    """

    digits: tuple[tuple[int, ...], ...]
    passes: tuple[TilePass, ...]
    buffers: int

    @cached_property
    def buffer_nbytes(self) -> int:
        """Bytes of a buffer, which holds the largest tile of any pass."""
        return max(sum(tile_pass.places) for tile_pass in self.passes)

    def names(self, letters: Sequence[str]) -> list[str]:
        """Return the name of each pass, such as ``{Y2, X}``, given a letter for each line.

        ``swap`` is a pass that only reorders.
        """

        def name(line: int, step: int) -> str:
            digit_count = len(self.digits[line])
            if digit_count == 1:
                return letters[line]
            return f"{letters[line]}{digit_of_step(step, digit_count) + 1}"

        names = []
        for tile_pass in self.passes:
            if tile_pass.swap is not None:
                names.append("swap")
            else:
                steps = ", ".join(name(line, step) for line, step in tile_pass.steps)
                names.append(f"{{{steps}}}")
        return names


def request_of(
    round_: Round,
    shape: tuple[int, ...],
    source: str,
    target: str,
    scheme: Scheme | None = None,
) -> TileRequest:
    """Return the request for a tile plan of a round on a block.

    Parameters
    ----------
    round_ : Round
        The round.
    shape : tuple of int
        Shape of the block before the round.
    source, target : str
        Dtypes of the block before and after.
    scheme : (digits, passes) or None
        The decomposition, if set by hand.

    Raises
    ------
    DeviceError
        If the values are not of single or double precision.
    """
    dtypes = [np.dtype(source), np.dtype(target)]
    itemsize = max(dtype.itemsize for dtype in dtypes)
    has_spectrum = any(step.kind != step.last_kind for step in round_.steps)
    for dtype, name in zip(dtypes, (source, target), strict=True):
        if dtype.char not in COMPUTED:
            raise DeviceError(f"devices compute in single and double precision, not in {name}")
        if dtype.kind == "f" and (source != target or has_spectrum):
            itemsize = 2 * dtype.itemsize  # real values become complex on the way
    lines = []
    for step in round_.steps:
        line = Line(
            round_.dim(step),
            step.length,
            step.kind,
            filtered=step.convolve is not None,
            multiplied=step.between is not None,
        )
        lines.append(line)
    return TileRequest(
        shape,
        tuple(lines),
        itemsize,
        blocks=round_.source.blocks,
        scheme=scheme,
    )


@lru_cache(maxsize=256)
def apart(round_: Round) -> tuple[Round, ...]:
    """Return equivalent consecutive rounds, with steps of real values in a round of their own.

    Half a spectrum is completed by its mirror image along one axis. This holds only before other
    axes are transformed (c2r: after them). A step from real to real values with a transfer function
    inside becomes two steps around those of the other axes.
    """
    groups: dict[str, list[Step]] = {"r2c": [], "c2c": [], "c2r": []}
    for step in round_.steps:
        if step.kind == step.last_kind:
            groups[step.kind].append(step)
            continue
        forward_step, step_back = step.halves
        groups["r2c"].append(forward_step)
        groups["c2r"].append(step_back)
    rounds: list[Round] = []
    source = round_.source
    for steps in filter(None, map(tuple, groups.values())):
        target = transformed(source, steps)
        rounds.append(Round(steps, source, target))
        source = target
    if len(rounds) < 2:
        return (round_,)
    rounds[-1] = replace(rounds[-1], target=round_.target)
    if round_.multiplies:
        number = 1 if groups["c2c"] and groups["r2c"] else 0
        rounds[number] = replace(rounds[number], multiplies=True, bands=round_.bands)
    return tuple(rounds)
