"""The way of a block through a round on CPU threads: its tiles, and which copies are avoided.

::

    Program, BlockMemory --way_of--> Way --+--> executor: kernels.loop
                                           +--> forecast: planner.seconds

A round copies a tile to a buffer, transforms it there, and stores the result. Some libraries read
one array and write another one (`supports_out`). Then the first FFT reads the block where it is, or
an FFT writes to the result. Tiles can also be copied to their place in the result and transformed
there.

The price of a program (`price`) is what its operations cost, however memory is used.
"""

import math
from dataclasses import dataclass
from typing import Literal

from dask_bigfft.tiles.program import FFT, Multiply, Program, Shape
from dask_bigfft.transforms.layout import tiling

#: Operation of a program that writes to the result.
WritingFFT = Literal["none", "first", "last"]


@dataclass(frozen=True)
class BlockMemory:
    """Memory of a block before and after a round.

    Parameters
    ----------
    shape, result_shape : tuple of int
        Shapes before and after.
    result_strides : tuple of int
        Strides of the result in elements.
    nbytes : int
        Bytes of the larger one of both.
    keeps_form : bool
        True if both have the same shape and dtype, as have the values between.
    source : {"array", "owned", "shards"}
        An array that is only read, an array that may be overwritten, or shards of several blocks.
    is_overwritten : bool
        True if the result is the same array as the block.
    """

    shape: Shape
    result_shape: Shape
    result_strides: Shape
    nbytes: int
    keeps_form: bool
    source: Literal["array", "owned", "shards"]
    is_overwritten: bool = False

    def is_contiguous(self, tiles: tuple[int, int] | None) -> bool:
        """Return whether the result is contiguous, and each of its tiles, however wide."""
        if not is_contiguous(self.result_shape, self.result_strides):
            return False
        return tiles is None or math.prod(self.result_shape[: tiles[0]]) == 1

    def has_contiguous_tiles(self, tiles: tuple[int, int] | None) -> bool:
        """Return whether tiles of the result are contiguous, given their dimension and width."""
        shape = self.result_shape
        if tiles is not None:
            dim, width = tiles
            shape = (*shape[:dim], min(width, shape[dim]), *shape[dim + 1 :])
        return is_contiguous(shape, self.result_strides)


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Return whether an array is contiguous in C order, given its strides in elements.

    >>> is_contiguous((1, 3), (6, 1)), is_contiguous((2, 3), (6, 1))
    (True, False)
    """
    if math.prod(shape) == 0:
        return True
    contiguous_stride = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != contiguous_stride:
            return False
        contiguous_stride *= size
    return True


@dataclass(frozen=True)
class Way:
    """Tiles of a block, and copies that are avoided.

    Parameters
    ----------
    memory : BlockMemory
        Memory of the block before and after.
    tiling : (int, int) or None
        Dimension along which the block is cut, and the maximum width of a tile; None for one tile.
    has_windows : bool
        True if windows of the transformed dimensions are stored, each in one or two parts.
    reads_in_place : bool
        True if the first FFT reads the block where it is.
    fills_result : bool
        True if tiles are copied to their place in the result, and transformed there.
    writing_fft : {"none", "first", "last"}
        The operation of the program that writes to the result, if the library can.
    apart : bool
        True if tiles and results have memory of their own until they are stored, see `is_apart`.
    changes_type : bool
        True if values become complex or real on the way.
    """

    memory: BlockMemory
    tiling: tuple[int, int] | None
    has_windows: bool
    reads_in_place: bool
    fills_result: bool
    writing_fft: WritingFFT
    apart: bool = False
    changes_type: bool = False

    @property
    def is_copied(self) -> bool:
        """True if the values of the block are copied before the first operation."""
        if self.reads_in_place or self.memory.source == "owned":
            return False
        return not (self.memory.is_overwritten and self.fills_result)

    @property
    def is_stored(self) -> bool:
        """True if tiles are copied to the result after the last operation."""
        if self.has_windows:
            return True
        return not (self.reads_in_place or self.fills_result or self.writing_fft != "none")

    def copied_nbytes(
        self,
        nbytes: int,
        result_nbytes: int,
        is_repeated: bool = False,
    ) -> int:
        """Return the bytes of copies of a block in one tile, beside the block and its result.

        Parameters
        ----------
        nbytes, result_nbytes : int
            Bytes of the block before and after.
        is_repeated : bool
            True if the block is transformed twice, and both results are compared.
        """
        gathered = nbytes if self.is_copied and not self.fills_result else 0
        # An FFT of real values has a result of its own, others work in place.
        is_in_copy = gathered > 0 and not self.changes_type
        needs_result = self.has_windows or not self.memory.keeps_form
        has_own_result = self.is_stored and needs_result and not is_in_copy
        computed = result_nbytes if has_own_result else 0
        if not is_repeated:
            return gathered + computed
        second_result = computed if has_own_result else gathered
        return gathered + computed + second_result


def is_apart(checked: bool, overwrites: bool, keeps_energy: bool) -> bool:
    """Return whether tiles and results have memory of their own until they are stored.

    A tile that is verified is loaded once more after a mismatch, so it must not be overwritten. It
    is transformed twice if its energy changes, and both results are compared.

    Parameters
    ----------
    checked : bool
        True if tiles are verified.
    overwrites : bool
        True if the result shares the memory of the block.
    keeps_energy : bool
        True if the round conserves energy.
    """
    return checked and (overwrites or not keeps_energy)


def block_tiling(
    program: Program,
    memory: BlockMemory,
    *,
    threads: int,
    supports_out: bool,
    has_windows: bool,
    apart: bool,
) -> tuple[int, int] | None:
    """Return the dimension and the width of the tiles of a block; None if it is not cut.

    Parameters are those of `way_of`.
    """
    # A library that returns new memory has two tiles in cache.
    writes_spectrum = program.begins_with_r2c and supports_out and not has_windows and not apart
    has_new_tiles = not writes_spectrum and not memory.keeps_form
    return tiling(
        memory.shape,
        set(program.dims),
        memory.nbytes,
        threads,
        has_new_tiles,
    )


def way_of(
    program: Program,
    memory: BlockMemory,
    *,
    threads: int,
    supports_out: bool,
    has_windows: bool = False,
    checked: bool = False,
    apart: bool = False,
    cut: tuple[int, int] | None = None,
) -> Way:
    """Return the way of a block.

    Parameters
    ----------
    program : Program
        Program of the round.
    memory : BlockMemory
        Memory of the block before and after.
    threads : int
        Number of blocks that are transformed at the same time.
    supports_out : bool
        True if the FFT library reads one array and writes to another one.
    has_windows : bool
        True if windows of the transformed dimensions are stored, each in one or two parts.
    checked : bool
        True if tiles are verified, and loaded once more after a mismatch.
    apart : bool
        True if tiles and results have memory of their own, see `is_apart`.
    cut : (int, int), optional
        Dimension and maximum width of tiles of a block that is shared with other executors.
    """
    tiles = cut
    if tiles is None:
        tiles = block_tiling(
            program,
            memory,
            threads=threads,
            supports_out=supports_out,
            has_windows=has_windows,
            apart=apart,
        )
    if apart:
        return Way(
            memory,
            tiles,
            has_windows=has_windows,
            reads_in_place=False,
            fills_result=False,
            writing_fft="none",
            apart=True,
            changes_type=program.changes_type,
        )
    reads_in_place = not checked and _reads_in_place(
        program,
        memory,
        tiles,
        supports_out,
        has_windows,
    )
    fills_result = not reads_in_place and _fills_result(memory, tiles)
    writing_fft: WritingFFT = "none"
    if supports_out and not has_windows:
        writing_fft = _writing_fft(
            program,
            memory,
            tiles,
            checked,
        )
    if reads_in_place and cut is None and not has_windows and program.is_one_call_over_one_dim:
        tiles = None  # tiles would gain nothing
    return Way(
        memory,
        tiles,
        has_windows=has_windows,
        reads_in_place=reads_in_place,
        fills_result=fills_result,
        writing_fft=writing_fft,
        changes_type=program.changes_type,
    )


def _reads_in_place(
    program: Program,
    memory: BlockMemory,
    tiles: tuple[int, int] | None,
    supports_out: bool,
    has_windows: bool,
) -> bool:
    """Return whether the first FFT reads a block where it is; its tiles are not verified."""
    is_only_read = memory.source == "array"
    if has_windows:
        # Windows are those of a result in new memory. An FFT of real values only reads its source.
        return program.begins_with_r2c and is_only_read
    if memory.is_contiguous(tiles):
        if memory.is_overwritten and program.is_complex_fft:
            return True  # any library does this in place
        first_can_read = program.is_one_call or program.begins_with_fft
    else:
        # The operations after the first one need contiguous tiles.
        first_can_read = program.is_one_call
    return first_can_read and is_only_read and supports_out


def _fills_result(memory: BlockMemory, tiles: tuple[int, int] | None) -> bool:
    """Return whether tiles can be copied to their place in the result, and transformed there."""
    if memory.is_overwritten and tiles is not None:
        return False  # they would be copied to where they are
    return memory.keeps_form and memory.is_contiguous(tiles)


def _writing_fft(
    program: Program,
    memory: BlockMemory,
    tiles: tuple[int, int] | None,
    checked: bool,
) -> WritingFFT:
    """Return the operation by which a library can write to the result."""
    if checked and not memory.is_contiguous(tiles):
        return "none"  # the sums of a verified tile need contiguous rows
    if program.kinds and program.kinds[-1] == "c2r":
        return "last"  # nothing follows an FFT to real values
    if not program.begins_with_fft:
        return "none"
    if tiles is not None and program.begins_with_r2c and len(program.dims) > 1:
        return "none"  # the complex FFTs after it are faster in a tile, in cache
    return "first" if program.is_one_call or memory.has_contiguous_tiles(tiles) else "none"


@dataclass(frozen=True)
class Price:
    """Work of a program.

    Parameters
    ----------
    flops : tuple of float
        Floating point operations of the FFTs over each of the program's dimensions.
    products : int
        Number of factors, spectra and transfer functions by which all values are multiplied.
    """

    flops: tuple[float, ...]
    products: int


def price(program: Program, size: int, result_size: int) -> Price:
    """Return the work of a program on all values of some blocks.

    An FFT of n complex values counts 5 n log2 n operations, one of real values half as many.

    Parameters
    ----------
    program : Program
        The program.
    size, result_size : int
        Number of values before and after.
    """
    flops = dict.fromkeys(program.dims, 0.0)
    complex_size: float = min(size, result_size)
    if "r2c" in program.kinds and "c2r" in program.kinds:
        complex_size = size / 2  # half a spectrum between real values
    products = 0
    for operation in program.operations:
        if isinstance(operation, FFT):
            for dim, length in zip(operation.dims, operation.lengths, strict=True):
                is_real = operation.kind != "c2c" and dim == operation.dims[-1]
                values = max(size, result_size) / 2 if is_real else complex_size
                flops[dim] += 5 * operation.share * values * math.log2(max(length, 2))
        elif isinstance(operation, Multiply):
            products += len(operation.factors)
        else:
            products += 1
    return Price(tuple(flops.values()), products)
