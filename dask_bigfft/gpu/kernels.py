"""CUDA kernels: strided copies with factors, in one pass over the GPU's memory.

Every kernel is a copy: a transpose, reversed rows of half a spectrum, a twiddle (source and target
are the same memory), or narrow rows of pinned host memory. The source text depends only on the
structure: the number of dimensions, and the dimensions on which factors depend. Lengths and strides
are arguments, so each structure is compiled once.

Phases are exact integers until the sine: t is reduced mod m, and to the nearest quarter turn, in
64-bit integers (128 bits for a squared chirp). `sincospi` gets at most an eighth of a turn. Factors
are in double precision, also for single-precision data.

Functions take addresses and launch in the current stream.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.operations import Dim, Multiply, Product, Strided, dense, joined, runs
from dask_bigfft.tiles.program import ChirpFactor, Index, Twiddle

#: Name of each kernel in its source.
KERNEL = "bigfft"

#: Threads of a block of the grid.
THREADS = 256

#: Rows that `touch` reads at a time.
TOUCHED = 128

#: Edge of the square tile of a transpose in shared memory.
TILE = 32

#: Elements per thread and iteration, to have several loads in flight. The threads of a block load a
#: whole tile in one iteration: TILE is AT_A_TIME * (THREADS // TILE).
AT_A_TIME = 4

#: Grid size of a kernel on device memory, enough to fill any GPU.
GRID = 132 * 16

#: Number of calls of kernels whose sources and numbers are kept. Making them takes longer than a
#: launch.
MAX_CALLS = 4096

#: Compiler options of all sources.
OPTIONS = ("--std=c++17", "-device-int128")

#: Smallest modulus without effect on any position.
_NO_MODULUS = 1 << 53

#: Largest size of a group of dimensions for 32-bit indices.
_NARROW = (1 << 32) - 1

_UNITS = {
    2: "unsigned short",
    4: "u32",
    8: "uint2",
    16: "uint4",
}

#: Types of numeric kernel arguments; pointers are addresses.
_NUMBERS: dict[str, Any] = {"u32": np.uint32, "long long": np.int64, "double": np.float64}

SHARED = r"""
typedef unsigned long long u64;
typedef unsigned int u32;

// exp(sign * 2 pi i * t / m) for m < 2^61 and t < 2^61.
__device__ __forceinline__ double2 turn(u64 t, u64 m, double sign) {
    const u64 four = 4 * t + m / 2;
    const u64 q = (m & (m - 1)) ? four / m : four >> (__ffsll((long long)m) - 1);
    const long long rest = (long long)(4 * t) - (long long)(q * m);
    double s, c;
    sincospi(0.5 * ((double)rest / (double)m), &s, &c);
    double2 w;
    w.x = (q & 1) ? s : c;
    w.y = (q & 1) ? c : s;
    const u64 quarter = q & 3;
    if (quarter == 1 || quarter == 2) w.x = -w.x;
    if (quarter == 2 || quarter == 3) w.y = -w.y;
    w.y *= sign;
    return w;
}

__device__ __forceinline__ double2 times(double2 a, double2 b) {
    double2 c;
    c.x = a.x * b.x - a.y * b.y;
    c.y = a.x * b.y + a.y * b.x;
    return c;
}

// n * n mod m for any n.
__device__ __forceinline__ u64 square_mod(u64 n, u64 m) {
    const u64 r = n % m;
    if (m <= 0xffffffffull) return r * r % m;
    return (u64)((unsigned __int128)r * r % m);
}

struct Weight { double2 w; bool beyond; };
"""


@functools.cache
def kernel(source: str) -> Any:
    """Return the compiled kernel of a source."""
    return cupy().RawKernel(source, KERNEL, options=OPTIONS)


#: Assumed speed of copies in bytes per second, which sets the pace of `touch`: that of PCIe 5. On a
#: faster bus the copies of narrow rows would wait.
PACE = 64e9

#: Reads a byte of each row, so that the entries of the page tables are in the GPU's cache. Rows are
#: read `TOUCHED` at a time, while the `TOUCHED` rows before them are copied in `ns`.
TOUCH = f"""
extern "C" __global__ void {KERNEL}(
    const char* at, u64 rows, u64 pitch, u64 count, u64 plane, u64 ns
) {{
    u64 now, due;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(due));
    due -= ns;
    for (u64 i = threadIdx.x; i < count; i += blockDim.x, due += ns) {{
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now < due);
        *(const volatile char*)(at + i % rows * pitch + i / rows * plane);
    }}
}}
"""


def touch(
    host: int,
    width: int,
    rows: int,
    planes: int,
    pitch: int,
    plane: int,
) -> None:
    """Read a byte of each row of planes of pinned memory, shortly before it is copied.

    This keeps pace with a single copy that begins at the same time. Of several copies in a row, and
    of those with few rows, rows are read earlier.
    """
    ns = TOUCHED * width / PACE * 1e9
    numbers = map(np.uint64, (host, rows, pitch, rows * planes, plane, int(ns)))
    kernel(SHARED + TOUCH)((1,), (TOUCHED,), tuple(numbers))


# --- factors --------------------------------------------------------------------------------


class _Kernel:
    """Kernel that copies elements and applies factors.

    Parameters
    ----------
    dims : sequence of Dim
        Dimensions of the loop, one index each; axes of length 1 are in none.
    itemsize : int
        Bytes of an element.
    by : Multiply or Product or None
        The factors; None copies bits.
    """

    def __init__(
        self,
        dims: Sequence[Dim],
        itemsize: int,
        by: Multiply | Product | None,
    ) -> None:
        self.by = by
        self.unit = _UNITS[itemsize]
        self.functions = ""
        self.statements = ""
        #: Dimensions of the factors whose index the statements use.
        self.index_dims = set[int]()
        #: Parameters of the kernel and their values, in order.
        self.parameters = list[str]()
        self.numbers = list[Any]()
        if by is not None:
            self.unit = "double2" if itemsize == 16 else "float2"
            self._multiplies(by, [axes for *_, axes in dims])
        self.add(f"const {self.unit}*", "from", 0)
        self.add(f"{self.unit}*", "to", 0)

    def add(self, kind: str, name: str, number: float) -> str:
        """Add a parameter, and return its name."""
        self.parameters.append(f"{kind} {name}")
        self.numbers.append(_NUMBERS.get(kind, np.uint64)(number))
        return name

    def dims(self, dims: Sequence[Dim]) -> tuple[str, str]:
        """Add lengths and strides; return the expressions for an element's source and target."""
        for d, (n, from_, to, _) in enumerate(dims):
            self.add("u64", f"n{d}", n)
            self.add("long long", f"s{d}", from_)
            self.add("long long", f"t{d}", to)
        source, target = (
            " + ".join(f"(long long)i{d} * {side}{d}" for d in range(len(dims))) or "0"
            for side in "st"
        )
        return source, target

    def call(self, body: str, grid: tuple[int, ...]) -> "_Call":
        """Return a call of the kernel."""
        head = f'extern "C" __global__ void {KERNEL}({", ".join(self.parameters)})'
        source = f"{SHARED}{self.functions}\n{head} {{{body}}}"
        names = [parameter.split()[-1] for parameter in self.parameters]
        return _Call(source, grid, tuple(self.numbers), tuple(names))

    def _multiplies(self, by: Multiply | Product, groups: Sequence[Any]) -> None:
        """Generate the source that applies the factors."""
        if isinstance(by, Product):
            conjugate = False
            factored = True
            statements = self._product(by)
        else:
            conjugate = by.conjugate
            factored = bool(by.factors)
            statements = self._factors(by)
        self.statements = self._indices(by, groups) + statements
        product = "d = times(d, by.w);" if factored else "d.x *= by.w.x; d.y *= by.w.x;"
        self.functions = f"""
__device__ __forceinline__ {self.unit} weighted({self.unit} v, Weight by) {{
    double2 d;
    d.x = v.x; d.y = {"-" if conjugate else ""}v.y;
    {product}
    {self.unit} r;
    r.x = d.x; r.y = d.y;
    if (by.beyond) {{ r.x = 0; r.y = 0; }}
    return r;
}}
"""

    def _index_name(self, dim: int) -> str:
        """Return the name of the index along a dimension of the factors, which will be computed."""
        self.index_dims.add(dim)
        return f"k{dim}"

    def _indices(self, by: Multiply | Product, groups: Sequence[Any]) -> str:
        """Return the statements that compute all indices of which `_index_name` gave the name.

        Lengths that they need become parameters of the kernel.
        """
        wide = any(math.prod(by.shape[d] for d in dims) > _NARROW for dims in groups)
        kind = "u64" if wide else "u32"
        group_of_dim = {dim: number for number, dims in enumerate(groups) for dim in dims}
        lines = []
        for dim in sorted(self.index_dims):
            index = "0ull"
            if dim in group_of_dim:
                number = group_of_dim[dim]
                index = self._index(
                    by,
                    groups[number],
                    dim,
                    f"({kind})i{number}",
                    kind,
                )
            lines.append(f"    const u64 k{dim} = {index};\n")
        return "".join(lines)

    def _index(
        self,
        by: Multiply | Product,
        dims: Sequence[int],
        dim: int,
        group_index: str,
        kind: str,
    ) -> str:
        """Return the expression for the index along a dimension of a group of dimensions.

        Lengths that it needs become parameters of the kernel.
        """
        expression = group_index
        inner_dims = dims[dims.index(dim) + 1 :]
        if inner_dims:
            size = math.prod(by.shape[inner] for inner in inner_dims)
            expression += f" / {self.add(kind, f'd{dim}_behind', size)}"
        if dims[0] != dim:
            expression += f" % {self.add(kind, f'd{dim}_length', by.shape[dim])}"
        return expression

    def _sum(self, name: str, terms: Index, by: Multiply) -> str:
        """Return the expression of an index."""
        parts: list[str] = []
        for number, term in enumerate(terms):
            prefix = f"{name}_{number}"
            start = by.start(term)
            end = start + by.shape[term.dim]
            index = self._index_name(term.dim)
            digit = f"({self.add('u64', f'{prefix}_start', start)} + {index})"
            if end > term.size:
                digit = f"({digit} % {self.add('u64', f'{prefix}_size', term.size)})"
                end = term.size
            stride = self.add("u64", f"{prefix}_stride", term.stride)
            if term.divisor != 1 or end > min(term.modulus, _NO_MODULUS):
                divisor = self.add("u64", f"{prefix}_divisor", term.divisor)
                modulus = self.add("u64", f"{prefix}_modulus", term.modulus)
                digit = f"({digit} / {divisor} % {modulus})"
            parts.append(f"{digit} * {stride}")
        return " + ".join(parts) or "0ull"

    def _factors(self, by: Multiply) -> str:
        """Return the statements that compute `w` from a scale and factors."""
        lines = [f"    w.x = {self.add('double', 'scale', by.scale)}; w.y = 0;"]
        for number, factor in enumerate(by.factors):
            if isinstance(factor, Twiddle):
                lines.append(self._twiddle(f"f{number}", factor, by))
            else:
                lines += self._chirp(f"f{number}", factor, by)
        return "\n".join(lines)

    def _twiddle(self, name: str, twiddle: Twiddle, by: Multiply) -> str:
        """Return the statement that multiplies `w` by a twiddle."""
        modulus = self.add("u64", f"{name}_modulus", twiddle.modulus)
        sign = self.add("double", f"{name}_sign", twiddle.sign)
        own = self._sum(f"{name}_own", twiddle.own, by)
        others = self._sum(f"{name}_others", twiddle.others, by)
        return f"    w = times(w, turn(({own}) * ({others}), {modulus}, {sign}));"

    def _chirp(self, name: str, factor: ChirpFactor, by: Multiply) -> list[str]:
        """Return the statements that multiply `w` by a chirp.

        The factor is ``i**turns * exp(sign*i*pi * n**2 / length)``, n = step*index + offset.
        """
        chirp = factor.chirp
        length = self.add("u64", f"{name}_length", chirp.length)
        sign = self.add("double", f"{name}_sign", chirp.sign)
        place = self._sum(name, factor.own + factor.others, by)
        if chirp.step != 1 or chirp.offset:
            step = self.add("u64", f"{name}_step", chirp.step)
            place = f"({place}) * {step} + {self.add('u64', f'{name}_offset', chirp.offset)}"
        lines = [
            f"    {{ const u64 n = {place};",
            f"      const u64 m = 2 * {length}; beyond |= n >= {length};",
            f"      if (!beyond) w = times(w, turn(square_mod(n, m), m, {sign})); }}",
        ]
        if chirp.turns % 4:
            turns = self.add("u64", f"{name}_turns", chirp.turns % 4)
            lines.append(f"    w = times(w, turn({turns}, 4, 1.0));")
        return lines

    def _product(self, by: Product) -> str:
        """Return the statements that read `w` from another array."""
        name = self.add(f"const {self.unit}*", "other", 0)
        place = "0"
        for dim, n in enumerate(by.other):
            if n != 1:
                index = self._index_name(dim)
                place = f"({place}) * {self.add('u64', f'o{dim}', n)} + ({index})"
        return f"    {{ const {self.unit} o = {name}[{place}]; w.x = o.x; w.y = o.y; }}"

    def weight(self, name: str) -> str:
        """Return the statements for the factor of an element from the indices of the groups."""
        if self.by is None:
            return ""
        return f"""{{
    double2 w;
    bool beyond = false;
{self.statements}
    {name}.w = w; {name}.beyond = beyond;
    }}"""

    def value(self, weight: str) -> str:
        """Return the expression of the stored element `u`, given its factor."""
        return "value[u]" if self.by is None else f"weighted(value[u], {weight})"


class _Call(NamedTuple):
    """Call of a kernel, without the addresses of its arrays.

    Parameters
    ----------
    source : str
        Source of the kernel.
    grid : tuple of int
        Size of the grid.
    numbers : tuple
        Arguments, with 0 for addresses.
    names : tuple of str
        Names of the parameters.
    """

    source: str
    grid: tuple[int, ...]
    numbers: tuple[Any, ...]
    names: tuple[str, ...]

    def launch(self, source: int, target: int, other: int = 0) -> None:
        """Launch the kernel in the current stream on arrays at these addresses."""
        addresses = {"from": source, "to": target, "other": other}
        arguments = list(self.numbers)
        for place, name in enumerate(self.names):
            if name in addresses:
                arguments[place] = np.uint64(addresses[name])
        kernel(self.source)(self.grid, (THREADS,), tuple(arguments))


def _unravel(ndim: int) -> str:
    """Return the statements that split the flat index `i` into `i0`, `i1`, ..."""
    lines = ["    u64 rest = i;"]
    for dim in reversed(range(1, ndim)):
        lines.append(f"    const u64 quotient{dim} = rest / n{dim};")
        lines.append(f"    const u64 i{dim} = rest - quotient{dim} * n{dim};")
        lines.append(f"    rest = quotient{dim};")
    return "\n".join([*lines, "    const u64 i0 = rest;"] if ndim else lines)


# --- copies ---------------------------------------------------------------------------------


def merged(counts: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[Dim]:
    """Return the fewest dimensions by falling target stride, without those of length 1.

    Examples
    --------
    >>> merged((2, 3, 4), (12, 4, 1), (3, 1, 6))
    [(4, 1, 6, (2,)), (6, 4, 1, (0, 1))]
    """
    order = sorted(range(len(counts)), key=lambda d: -abs(target[d]))
    return joined((counts[d], source[d], target[d], (d,)) for d in order)


def back(dims: Sequence[Dim]) -> list[Dim]:
    """Return the dimensions of the reverse copy."""
    return [(n, target, source, axes) for n, source, target, axes in dims]


def rows(
    shape: Sequence[int],
    source: Sequence[int],
    itemsize: int,
    target: Sequence[int],
    addresses: Sequence[int],
) -> tuple[list[Dim], int]:
    """Return the dimensions of a copy with strides in bytes in its largest unit, and that unit.

    The unit is 0 if an address or a stride is not aligned; dimensions are in bytes then.

    Examples
    --------
    >>> rows((8, 6), (96, 8), 8, (48, 8), (0, 256))
    ([(8, 6, 3, ()), (3, 1, 1, ())], 16)
    """
    width, outer = runs(
        tuple(shape),
        tuple(source),
        itemsize,
        tuple(target),
    )
    numbers = [width, *addresses, *(n for run in outer for n in run[1:])]
    unit = next((size for size in (16, 8, 4) if not any(n % size for n in numbers)), 0)
    step = max(1, unit)
    dims: list[Dim] = [(n, s // step, t // step, ()) for n, s, t in outer]
    return [*dims, (width // step, 1, 1, ())], unit


def copy(
    dims: Sequence[Dim],
    itemsize: int,
    source: int,
    target: int,
    blocks: int = GRID,
    by: Multiply | Product | None = None,
    other: int = 0,
) -> None:
    """Copy elements in the current stream, also from or to pinned host memory.

    Values that are multiplied in place bypass the caches.

    Parameters
    ----------
    dims : sequence of Dim
        Dimensions of the copy.
    itemsize : int
        Bytes of an element: 2, 4, 8 or 16; both addresses are multiples of it.
    source, target : int
        Addresses of the first element.
    blocks : int
        Largest grid size.
    by : Multiply or Product, optional
        Factors; None copies bits.
    other : int
        Address of the other array of a `Product`.
    """
    call = _copy_call(
        tuple(dims),
        itemsize,
        blocks,
        by,
        in_place=source == target,
    )
    call.launch(source, target, other)


@functools.lru_cache(maxsize=MAX_CALLS)
def _copy_call(
    dims: tuple[Dim, ...],
    itemsize: int,
    blocks: int,
    by: Multiply | Product | None,
    in_place: bool,
) -> _Call:
    """Return the call of a kernel that copies elements; see `copy`.

    Parameters
    ----------
    in_place : bool
        Whether source and target are the same memory.
    """
    copying = _Kernel(dims, itemsize, by)
    count = math.prod(n for n, *_ in dims)
    copying.add("u64", "count", count)
    from_, to = copying.dims(dims)
    load = f"__ldcs(from + {from_})" if in_place else f"from[{from_}]"
    value = copying.value("by[u]")
    store = f"__stcs(to + place[u], {value})" if in_place else f"to[place[u]] = {value}"
    return copying.call(
        f"""
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x; first < count;
     first += {AT_A_TIME} * step) {{
    {copying.unit} value[{AT_A_TIME}];{f" Weight by[{AT_A_TIME}];" if by else ""}
    long long place[{AT_A_TIME}];
    #pragma unroll
    for (int u = 0; u < {AT_A_TIME}; u++) {{
        const u64 i = first + u * step;
        if (i < count) {{
{_unravel(len(dims))}
            value[u] = {load};
            place[u] = {to};
            {copying.weight("by[u]")}
        }}
    }}
    #pragma unroll
    for (int u = 0; u < {AT_A_TIME}; u++)
        if (first + u * step < count) {store};
}}
""",
        (max(1, min(blocks, -(-count // (AT_A_TIME * THREADS)))),),
    )


@functools.lru_cache(maxsize=MAX_CALLS)
def _transpose_call(op: Strided, dims: tuple[Dim, ...], column_dim: Dim) -> _Call:
    """Return the call of a kernel that copies through square tiles in shared memory.

    The tiles are read and written densely.

    The x index of the grid runs over tiles, the y index over the other dimensions.

    Parameters
    ----------
    op : Strided
        The copy.
    dims : tuple of Dim
        Its dimensions. The last one is dense in the target: its target stride is 1.
    column_dim : Dim
        Another one of them, dense in the source: its source stride is 1.
    """
    row_dim = dims[-1]
    by = op.by
    others = [dim for dim in dims if dim is not row_dim and dim is not column_dim]
    transposing = _Kernel(
        (*others, row_dim, column_dim),
        np.dtype(op.dtype).itemsize,
        by,
    )
    n, source_row, _, _ = row_dim
    m, _, target_row, _ = column_dim
    batch = len(others)
    lines = THREADS // TILE
    transposing.add("u64", "n", n)
    transposing.add("u64", "m", m)
    transposing.add("long long", "source_row", source_row)
    transposing.add("long long", "target_row", target_row)
    from_, to = transposing.dims(others)
    tiles = -(-n // TILE) * -(-m // TILE)
    count = math.prod(dim[0] for dim in others)
    return transposing.call(
        f"""
__shared__ {transposing.unit} tile[{TILE}][{TILE} + 1];
const u64 across = (m + {TILE - 1}) / {TILE}, tiles = across * ((n + {TILE - 1}) / {TILE});
const u64 others = {" * ".join(f"n{d}" for d in range(batch)) or "1"};
const u32 lane = threadIdx.x % {TILE}, line = threadIdx.x / {TILE};
for (u64 i = blockIdx.y; i < others; i += gridDim.y) {{
{_unravel(batch)}
    const {transposing.unit}* s = from + ({from_});
    {transposing.unit}* t = to + ({to});
    for (u64 at = blockIdx.x; at < tiles; at += gridDim.x) {{
        const u64 row = at / across * {TILE}, column = at % across * {TILE};
        const u64 i{batch + 1} = column + lane;
        {transposing.unit} value[{AT_A_TIME}];
        #pragma unroll
        for (int u = 0; u < {AT_A_TIME}; u++) {{
            const u64 r = row + line + u * {lines};
            if (r < n && i{batch + 1} < m)
                value[u] = __ldcs(s + (long long)r * source_row + (long long)i{batch + 1});
        }}
        #pragma unroll
        for (int u = 0; u < {AT_A_TIME}; u++) {{
            const u64 i{batch} = row + line + u * {lines};
            if (i{batch} < n && i{batch + 1} < m) {{
                {"Weight by;" if by else ""}
                {transposing.weight("by")}
                tile[line + u * {lines}][lane] = {transposing.value("by")};
            }}
        }}
        __syncthreads();
        for (u32 k = line; k < {TILE}; k += {lines})
            if (column + k < m && row + lane < n)
                __stcs(t + (long long)(column + k) * target_row + (long long)(row + lane),
                       tile[lane][k]);
        __syncthreads();
    }}
}}
""",
        (min(tiles, GRID), max(1, min(count, GRID // min(tiles, GRID)))),
    )


def strided(op: Strided, source: int, target: int) -> None:
    """Enqueue a strided copy to another array in the current stream."""
    if not math.prod(op.counts):
        return
    itemsize = np.dtype(op.dtype).itemsize
    first_source = source + op.source_start * itemsize
    first_target = target + op.target_start * itemsize
    dims = merged(op.counts, op.source, op.target)
    column_dim = next((dim for dim in dims[:-1] if dim[1] == 1), None)
    if column_dim is not None and dims[-1][2] == 1:
        call = _transpose_call(op, tuple(dims), column_dim)
        call.launch(first_source, first_target)
    else:
        copy(
            dims,
            itemsize,
            first_source,
            first_target,
            by=op.by,
        )


def multiply(op: Multiply | Product, array: int, other: int = 0) -> None:
    """Enqueue a product in place with computed factors or another array."""
    if math.prod(op.shape):
        strides = dense(op.shape, 1)
        dims = merged(op.shape, strides, strides)
        copy(
            dims,
            np.dtype(op.dtype).itemsize,
            array,
            array,
            by=op,
            other=other,
        )
