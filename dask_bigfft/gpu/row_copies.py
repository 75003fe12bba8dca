"""Many strided copies on a GPU in one launch, from a table of rows that are contiguous.

A block is gathered from hundreds of blocks. With a launch for each of them the host takes longer
than the GPU, and a kernel for any strides is slower than one for rows.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_bigfft.arrays import Ints
from dask_bigfft.gpu import kernels
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.kernels import AT_A_TIME, GRID, KERNEL, SHARED, THREADS
from dask_bigfft.gpu.operations import runs
from dask_bigfft.kernels.copies import Segments

#: Strided copies from an array on a GPU to another: source, target, and the copies.
TableCopy = tuple[Any, Any, Segments]

#: Minimum number of bytes in a row. Narrower rows are often those of a transpose.
LEAST_ROW_NBYTES = 64

#: Maximum number of dimensions in which rows repeat.
MAX_DIMS = 4

#: Maximum number of copies in a launch, the limit of CUDA for the second index of a grid.
MAX_COPIES = (1 << 16) - 1

#: Number of lines from which they need 64 bits.
WIDE = 1 << 32

#: Columns of a table before those of the dimensions: addresses on both sides, and bytes in a row.
HEAD = 3

#: Columns of a dimension: the number of rows, and their distances on both sides in bytes.
OF_A_DIM = 3

#: Types that a thread copies at a time, by their bytes.
_UNITS = {
    1: "unsigned char",
    2: "unsigned short",
    4: "u32",
    8: "uint2",
    16: "uint4",
}


def copied_by_rows(copies: Sequence[TableCopy]) -> bool:
    """Enqueue copies within the current GPU, in the current stream; return False if it cannot.

    It cannot if a copy converts its values, or has rows of less than `LEAST_ROW_NBYTES`.
    """
    tables: list[Ints] = []
    for source, target, segments in copies:
        if source.dtype != target.dtype or segments.conjugate:
            return False
        table = row_table(segments, target.itemsize)
        if table is None:
            return False
        placed_table = table.copy()
        placed_table[:, 0] += source.data.ptr
        placed_table[:, 1] += target.data.ptr
        tables.append(placed_table)
    rows = np.concatenate(tables) if tables else np.empty((0, HEAD), np.int64)
    if len(rows) > MAX_COPIES:
        return False
    if len(rows):
        _launch(rows)
    return True


@functools.lru_cache(maxsize=4096)
def row_table(segments: Segments, itemsize: int) -> Ints | None:
    """Return the rows of copies, without addresses; None if some are too narrow.

    A row of the table is a copy: its starts, the bytes of its rows, and `MAX_DIMS` times the number
    of rows along a dimension and their distances. The outermost dimensions are 1 if there are less.
    """
    table = np.zeros((len(segments.counts), HEAD + OF_A_DIM * MAX_DIMS), np.int64)
    table[:, HEAD::OF_A_DIM] = 1
    for table_row, copy in zip(table, segments.listed, strict=True):
        counts, source_start, source_strides, target_start, target_strides = copy
        width, repetition = runs(
            counts,
            source_strides,
            itemsize,
            target_strides,
        )
        if width < LEAST_ROW_NBYTES or len(repetition) > MAX_DIMS:
            return None
        table_row[:HEAD] = (source_start, target_start, width)
        first_dim = MAX_DIMS - len(repetition)
        for dim, numbers in enumerate(repetition, first_dim):
            column = HEAD + OF_A_DIM * dim
            table_row[column : column + OF_A_DIM] = numbers
    return table


def _launch(rows: Ints) -> None:
    """Enqueue the copies of a table with addresses."""
    dims = rows[:, HEAD:].reshape(len(rows), MAX_DIMS, OF_A_DIM)
    counts = dims[:, :, 0]
    is_used = (counts > 1).any(axis=0)
    first_dim = int(np.argmax(is_used)) if is_used.any() else MAX_DIMS - 1
    alignment = np.gcd.reduce(rows[:, :HEAD], axis=None)
    step_alignment = np.gcd.reduce(dims[:, :, 1:], axis=None)  # steps of unused dimensions are 0
    unit = math.gcd(16, int(alignment), int(step_alignment))
    units = int(rows[:, 2].max()) // unit
    lanes = min(THREADS, 1 << (units - 1).bit_length())
    lines = THREADS // lanes
    most_lines = int(counts.prod(axis=1).max()) * -(-units // lanes)
    blocks = max(1, min(GRID // len(rows), -(-most_lines // (lines * AT_A_TIME))))
    on_gpu = cupy().asarray(rows)
    is_narrow = AT_A_TIME * (most_lines + GRID * lines) < WIDE
    kernel = kernels.kernel(_source(unit, first_dim, "u32" if is_narrow else "u64"))
    kernel((blocks, len(rows)), (THREADS,), (np.uint64(on_gpu.data.ptr), np.uint32(lanes)))


@functools.lru_cache(maxsize=64)
def _source(unit: int, first_dim: int, kind: str) -> str:
    """Return the source of the kernel that copies `unit` bytes at a time.

    A block of the grid copies lines of the copy that is its second index. A line is a part of a row
    with a unit for each of some threads (`lanes`). Dimensions of the table before `first_dim` are
    1. Numbers of lines are of a `kind`, u32 or u64.
    """
    dims = range(first_dim, MAX_DIMS)
    columns = HEAD + OF_A_DIM * MAX_DIMS
    numbers: list[str] = []
    digits: list[str] = []
    for dim in dims:
        column = HEAD + OF_A_DIM * dim
        numbers.append(
            f"const {kind} n{dim} = copy[{column}]; "
            f"const long long s{dim} = copy[{column + 1}], t{dim} = copy[{column + 2}];"
        )
    for dim in reversed(dims):
        index = "rest" if dim == first_dim else f"rest % n{dim}"
        digits.append(f"const {kind} i{dim} = {index}; rest /= n{dim};")
    count = " * ".join(f"n{dim}" for dim in dims)
    source = " + ".join(f"(long long)i{dim} * s{dim}" for dim in dims)
    target = " + ".join(f"(long long)i{dim} * t{dim}" for dim in dims)
    return f"""{SHARED}
typedef {_UNITS[unit]} Unit;
extern "C" __global__ void {KERNEL}(const long long* table, u32 lanes) {{
const long long* copy = table + (u64)blockIdx.y * {columns};
const char* from = (const char*)copy[0];
char* to = (char*)copy[1];
const u64 width = (u64)copy[2] / {unit};
{chr(10).join(numbers)}
const {kind} lines_of_row = (width + lanes - 1) / lanes, count = {count} * lines_of_row;
const u32 lane = threadIdx.x % lanes, line = threadIdx.x / lanes, lines = blockDim.x / lanes;
const {kind} step = ({kind})gridDim.x * lines;
for ({kind} first = ({kind})blockIdx.x * lines + line; first < count;
     first += {AT_A_TIME} * step) {{
    Unit value[{AT_A_TIME}];
    Unit* place[{AT_A_TIME}];
    bool is_inside[{AT_A_TIME}];
    #pragma unroll
    for (int u = 0; u < {AT_A_TIME}; u++) {{
        {kind} rest = first + u * step;
        is_inside[u] = rest < count;
        const u64 i = (u64)(rest % lines_of_row) * lanes + lane; rest /= lines_of_row;
        {chr(10).join(digits)}
        is_inside[u] &= i < width;
        place[u] = (Unit*)(to + ({target})) + i;
        if (is_inside[u]) value[u] = __ldcs((const Unit*)(from + ({source})) + i);
    }}
    #pragma unroll
    for (int u = 0; u < {AT_A_TIME}; u++)
        if (is_inside[u]) __stcs(place[u], value[u]);
}}
}}
"""
