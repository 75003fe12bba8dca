"""CUDA source of what is done to a piece between its FFTs: text, made to measure, no card needed.

Each function returns the source of one kernel for a *structure*: how many dimensions there are and
which of them factors depend on (`gpu_factors`). The numbers (lengths, strides) are arguments, so
that a structure is compiled once. Every kernel is one pass over the device's memory: what copies
may multiply on the way.

What runs over a whole piece once is loaded and stored so that the cache keeps nothing of it
(``__ldcs``, ``__stcs``): see `gpu_plans`.

Imports this room.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dask_bigfft.kernels.gpu_factors import (
    COMMON,
    Factors,
    Weighing,
    element,
    weight_call,
    weight_source,
)

#: Name of every kernel in its source.
KERNEL = "bigfft"

#: Threads of a block of the grid.
THREADS = 256

#: Edge of the square tile that a transpose turns in shared memory.
TILE = 32

#: Elements that a thread copies at a time, so that as many loads are under way.
AT_A_TIME = 4

#: Options of the compiler that all sources need.
OPTIONS = ("--std=c++17", "-device-int128")

_UNITS = {2: "unsigned short", 4: "u32", 8: "uint2", 16: "uint4"}


@dataclass(frozen=True, slots=True)
class Multiplying:
    """Structure of a multiplication, in place, of an array by computed factors."""

    ndim: int
    wide: bool
    factors: Factors


def _unravel(ndim: int, wide: bool, used: Collection[int]) -> str:
    """Statements that take the flat place `i` apart into `i0`, `i1`, as far as they are used."""
    kind, lines = "u64" if wide else "u32", [f"    {'u64' if wide else 'u32'} rest = i;"]
    first = min(used, default=ndim)
    for dim in reversed(range(first, ndim)):
        if dim == 0:
            lines.append("    const u64 i0 = rest;")
        else:
            lines.append(f"    const {kind} quotient{dim} = rest / n{dim};")
            lines.append(f"    const u64 i{dim} = rest - quotient{dim} * n{dim};")
            lines.append(f"    rest = quotient{dim};")
    return "\n".join(lines)


def multiply_source(structure: Multiplying) -> str:
    """Source of: each element (or its conjugate) times a scale and factors made on the way.

    Parameters of the kernel, in this order: the array, its number of elements, its lengths, and
    those of the factors.
    """
    factors, place = structure.factors, "u64" if structure.wide else "u32"
    lengths = [f"u64 n{dim}_" for dim in range(structure.ndim)]
    parameters = ", ".join([f"{factors.element}* x", "u64 count", *lengths, *factors.parameters])
    narrow = "\n".join(f"const {place} n{dim} = ({place})n{dim}_;" for dim in range(structure.ndim))
    weight = weight_call(factors, {dim: f"i{dim}" for dim in factors.used})
    return f"""{COMMON}{weight_source(factors)}
extern "C" __global__ void {KERNEL}({parameters}) {{
{narrow}
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {{
    const {place} i = ({place})at;
{_unravel(structure.ndim, structure.wide, factors.used)}
    const {factors.element} v = __ldcs(x + at);
    const Weight by = {weight};
    __stcs(x + at, weighted(v, by));
}}
}}
"""


def product_source(repeated: tuple[bool, ...], double: bool) -> str:
    """Source of: an array times another one, whose dimensions marked `repeated` have length 1.

    Parameters of the kernel: the array, its number of elements, its lengths, the other array.
    """
    ndim, kind = len(repeated), element(double)
    used = {dim for dim, again in enumerate(repeated) if not again}
    lengths = "".join(f", u64 n{dim}" for dim in range(ndim))
    other = "0"
    for dim in sorted(used):
        other = f"({other}) * n{dim} + i{dim}"
    return f"""{COMMON}
extern "C" __global__ void {KERNEL}({kind}* x, u64 count{lengths}, const {kind}* other) {{
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {{
{_unravel(ndim, True, used)}
    const {kind} v = __ldcs(x + i), o = other[{other}];
    double2 a, b;
    a.x = v.x; a.y = v.y; b.x = o.x; b.y = o.y;
    a = times(a, b);
    {kind} r;
    r.x = a.x; r.y = a.y;
    __stcs(x + i, r);
}}
}}
"""


@dataclass(frozen=True, slots=True)
class _Carried:
    """What copies carry: bits as they are, or complex numbers that are multiplied on the way."""

    itemsize: int
    by: Weighing | None

    @property
    def unit(self) -> str:
        """Type of an element."""
        return _UNITS[self.itemsize] if self.by is None else self.by.factors.element

    @property
    def source(self) -> str:
        """Functions that the kernel calls."""
        return COMMON + ("" if self.by is None else weight_source(self.by.factors))

    @property
    def parameters(self) -> str:
        """Parameters of the kernel behind its others."""
        return "" if self.by is None else "".join(f", {name}" for name in self.by.parameters)

    def weight(self, groups: dict[int, str]) -> str:
        """The factor of an element, given the expression of the index of each group."""
        return "" if self.by is None else self.by.call(groups)

    def value(self, weight: str) -> str:
        """Element `u` as it is stored, given its factor."""
        return "value[u]" if self.by is None else f"weighted(value[u], {weight})"


def copy_source(ndim: int, itemsize: int, passing: str = "", by: Weighing | None = None) -> str:
    """Source of: a copy of elements whose dimensions have strides on both sides.

    Elements have `itemsize` bytes. It also reads and writes pinned host memory where rows are too
    narrow for the copy engines: several loads of a thread are under way at a time. The cache keeps
    nothing of the sides that `passing` names ("s" the source, "t" the target). Groups that `by`
    speaks of are the dimensions. Parameters of the kernel: source, target, number of elements, for
    each dimension its length and both strides, in elements, and those of `by`.
    """
    carried = _Carried(itemsize, by)
    load = "__ldcs(from + {})" if "s" in passing else "from[{}]"
    store = "__stcs(to + place[u], {})" if "t" in passing else "to[place[u]] = {}"
    parameters = "".join(f", u64 n{d}, long long s{d}, long long t{d}" for d in range(ndim))
    source = " + ".join(f"(long long)i{d} * s{d}" for d in range(ndim)) or "0"
    target = " + ".join(f"(long long)i{d} * t{d}" for d in range(ndim)) or "0"
    parts = _unravel(ndim, True, range(ndim))
    weight = carried.weight({d: f"i{d}" for d in range(ndim)})
    weights = "" if by is None else f" Weight by[{AT_A_TIME}];"
    return f"""{carried.source}
extern "C" __global__ void {KERNEL}(const {carried.unit}* from, {carried.unit}* to,
                                    u64 count{parameters}{carried.parameters}) {{
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x; first < count;
     first += {AT_A_TIME} * step) {{
    {carried.unit} value[{AT_A_TIME}];{weights}
    long long place[{AT_A_TIME}];
    #pragma unroll
    for (int u = 0; u < {AT_A_TIME}; u++) {{
        const u64 i = first + u * step;
        if (i < count) {{
{parts}
            value[u] = {load.format(source)};
            place[u] = {target};
            {weight and f"by[u] = {weight};"}
        }}
    }}
    #pragma unroll
    for (int u = 0; u < {AT_A_TIME}; u++)
        if (first + u * step < count) {store.format(carried.value("by[u]"))};
}}
}}
"""


def transpose_source(batch: int, itemsize: int, by: Weighing | None = None) -> str:
    """Source of: n x m elements turned into m x n, for each place of `batch` other dimensions.

    Groups that `by` speaks of are the other dimensions, then rows and columns of the source.
    Parameters of the kernel: source, target, n (rows of the source), m (its columns), the stride
    of a source row and of a target row, for each other dimension its length and both strides, all
    in elements, and those of `by`. Block x of the grid runs over tiles, block y over the other
    dimensions.
    """
    carried, lines = _Carried(itemsize, by), THREADS // TILE
    assert lines * AT_A_TIME == TILE
    parameters = "".join(f", u64 n{d}, long long s{d}, long long t{d}" for d in range(batch))
    source = " + ".join(f"(long long)i{d} * s{d}" for d in range(batch)) or "0"
    target = " + ".join(f"(long long)i{d} * t{d}" for d in range(batch)) or "0"
    count = " * ".join(f"n{d}" for d in range(batch)) or "1"
    groups = {d: f"i{d}" for d in range(batch)} | {batch: "r", batch + 1: "c"}
    return f"""{carried.source}
extern "C" __global__ void {KERNEL}(const {carried.unit}* from, {carried.unit}* to, u64 n, u64 m,
                                    long long source_row, long long target_row{parameters}
                                    {carried.parameters}) {{
__shared__ {carried.unit} tile[{TILE}][{TILE} + 1];
const u64 across = (m + {TILE - 1}) / {TILE}, tiles = across * ((n + {TILE - 1}) / {TILE});
const u64 others = {count};
const u32 lane = threadIdx.x % {TILE}, line = threadIdx.x / {TILE};
for (u64 i = blockIdx.y; i < others; i += gridDim.y) {{
{_unravel(batch, True, range(batch))}
    const {carried.unit}* s = from + ({source});
    {carried.unit}* t = to + ({target});
    for (u64 at = blockIdx.x; at < tiles; at += gridDim.x) {{
        const u64 row = at / across * {TILE}, column = at % across * {TILE};
        const u64 c = column + lane;
        {carried.unit} value[{AT_A_TIME}];
        #pragma unroll
        for (int u = 0; u < {AT_A_TIME}; u++) {{
            const u64 r = row + line + u * {lines};
            if (r < n && c < m)
                value[u] = __ldcs(s + (long long)r * source_row + (long long)c);
        }}
        #pragma unroll
        for (int u = 0; u < {AT_A_TIME}; u++) {{
            const u64 r = row + line + u * {lines};
            if (r < n && c < m)
                tile[line + u * {lines}][lane] = {carried.value(carried.weight(groups))};
        }}
        __syncthreads();
        for (u32 k = line; k < {TILE}; k += {lines})
            if (column + k < m && row + lane < n)
                __stcs(t + (long long)(column + k) * target_row + (long long)(row + lane),
                       tile[lane][k]);
        __syncthreads();
    }}
}}
}}
"""
