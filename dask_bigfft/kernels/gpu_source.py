"""CUDA source of what is done to a piece between its FFTs: text, made to measure, no card needed.

Each function returns the source of one kernel for a *structure*: how many dimensions there are and
which of them the factors depend on. The numbers (lengths, moduli, strides) are arguments, so that
a structure is compiled once. Every kernel is one pass over the device's memory.

Phases are exact integers until the sine: t is reduced mod m, and to the nearest quarter turn, in
64-bit integers (128 where a chirp is squared), and only what is left, an eighth of a turn at most,
meets `sincospi`. All factors are in double precision, also those of single-precision data.

What runs over a whole piece once is loaded and stored so that the cache keeps nothing of it
(``__ldcs``, ``__stcs``): see `gpu_plans`.

Imports the standard library only.
"""

from dataclasses import dataclass

#: Name of every kernel in its source.
KERNEL = "bigfft"

#: Threads of a block of the grid.
THREADS = 256

#: Edge of the square tile that a transpose turns in shared memory.
TILE = 32

#: Options of the compiler that all sources need.
OPTIONS = ("--std=c++17", "-device-int128")

_COMMON = r"""
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
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A term of an index: its dimension, and whether it is a digit of the place there."""

    dim: int
    digit: bool


@dataclass(frozen=True, slots=True)
class Factor:
    """Structure of a factor: a twiddle of two indices, or a chirp of one (`right` is None).

    A chirp may be that of `half` a spectrum: it ends there, and is doubled but at 0 and its end.
    """

    left: tuple[Place, ...]
    right: tuple[Place, ...] | None
    half: bool = False


@dataclass(frozen=True, slots=True)
class Multiplying:
    """Structure of a multiplication of an array by computed factors."""

    ndim: int
    double: bool
    wide: bool
    conjugate: bool
    factors: tuple[Factor, ...]


def _element(double: bool) -> str:
    return "double2" if double else "float2"


def _unravel(ndim: int, wide: bool, used: set[int]) -> str:
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


def _index(name: str, places: tuple[Place, ...]) -> tuple[str, list[str]]:
    """Expression of a sum of terms, and the parameters that it needs."""
    parts, parameters = [], []
    for t, place in enumerate(places):
        at = f"{name}_{t}"
        parameters += [f"u64 {at}_start", f"u64 {at}_stride"]
        term = f"({at}_start + i{place.dim})"
        if place.digit:
            parameters += [f"u64 {at}_divisor", f"u64 {at}_modulus"]
            term = f"({term} / {at}_divisor % {at}_modulus)"
        parts.append(f"{term} * {at}_stride")
    return " + ".join(parts) or "0ull", parameters


def multiply_source(structure: Multiplying) -> str:
    """Source of: each element (or its conjugate) times a scale and factors made on the way.

    Parameters of the kernel, in this order: the array, its number of elements, its lengths, the
    scale, and for each factor its modulus (a twiddle's, or a chirp's length) and sign, and for
    each term start and stride, and divisor and modulus where it is a digit.

    Examples
    --------
    >>> twiddle = Factor((Place(0, False),), (Place(1, False),))
    >>> source = multiply_source(Multiplying(2, True, False, False, (twiddle,)))
    >>> "(f0_left_0_start + i0) * f0_left_0_stride" in source
    True
    """
    parameters, body, used = [], [], set[int]()
    for f, factor in enumerate(structure.factors):
        left, names = _index(f"f{f}_left", factor.left)
        parameters += [f"u64 f{f}_modulus", f"double f{f}_sign", *names]
        used |= {place.dim for place in factor.left}
        if factor.right is not None:
            right, names = _index(f"f{f}_right", factor.right)
            parameters += names
            used |= {place.dim for place in factor.right}
            body.append(f"    w = times(w, turn(({left}) * ({right}), f{f}_modulus, f{f}_sign));")
        else:
            end, twice = f"n < f{f}_modulus", ""
            if factor.half:
                end = f"2 * n <= f{f}_modulus"
                twice = f"      if (n && 2 * n != f{f}_modulus) {{ w.x *= 2; w.y *= 2; }}\n"
            body.append(
                f"    {{ const u64 n = {left}; const u64 m = 2 * f{f}_modulus;\n{twice}"
                f"      if ({end}) w = times(w, turn(square_mod(n, m), m, f{f}_sign));\n"
                "      else beyond = true; }"
            )
    lengths = [f"u64 n{dim}_" for dim in range(structure.ndim)]
    element, place = _element(structure.double), "u64" if structure.wide else "u32"
    everything = ", ".join([f"{element}* x", "u64 count", *lengths, "double scale", *parameters])
    narrow = "\n".join(
        f"const {place} n{dim} = ({place})n{dim}_;" for dim in range(structure.ndim)
    )
    sign = "-" if structure.conjugate else ""
    chirped = any(factor.right is None for factor in structure.factors)
    flag, clear = ("    bool beyond = false;\n", "    if (beyond) { r.x = 0; r.y = 0; }\n")
    flag, clear = (flag, clear) if chirped else ("", "")
    newline = "\n"
    return f"""{_COMMON}
extern "C" __global__ void {KERNEL}({everything}) {{
{narrow}
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {{
    const {place} i = ({place})at;
{_unravel(structure.ndim, structure.wide, used)}
    double2 w;
    w.x = scale; w.y = 0;
{flag}{newline.join(body)}
    const {element} v = __ldcs(x + at);
    double2 d;
    d.x = v.x; d.y = {sign}v.y;
    d = times(d, w);
    {element} r;
    r.x = d.x; r.y = d.y;
{clear}    __stcs(x + at, r);
}}
}}
"""


def product_source(repeated: tuple[bool, ...], double: bool) -> str:
    """Source of: an array times another one, whose dimensions marked `repeated` have length 1.

    Parameters of the kernel: the array, its number of elements, its lengths, the other array.
    """
    ndim = len(repeated)
    used = {dim for dim, again in enumerate(repeated) if not again}
    lengths = "".join(f", u64 n{dim}" for dim in range(ndim))
    other, element = "0", _element(double)
    for dim in sorted(used):
        other = f"({other}) * n{dim} + i{dim}"
    return f"""{_COMMON}
extern "C" __global__ void {KERNEL}({element}* x, u64 count{lengths}, const {element}* other) {{
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {{
{_unravel(ndim, True, used)}
    const {element} v = __ldcs(x + i), o = other[{other}];
    double2 a, b;
    a.x = v.x; a.y = v.y; b.x = o.x; b.y = o.y;
    a = times(a, b);
    {element} r;
    r.x = a.x; r.y = a.y;
    __stcs(x + i, r);
}}
}}
"""


_UNITS = {2: "unsigned short", 4: "u32", 8: "uint2", 16: "uint4"}


def copy_source(ndim: int, itemsize: int, passing: str = "") -> str:
    """Source of: a copy of elements whose dimensions have strides on both sides.

    Elements have `itemsize` bytes. It also reads and writes pinned host memory where rows are too
    narrow for the copy engines: several loads of a thread are under way at a time. The cache keeps
    nothing of the sides that `passing` names ("s" the source, "t" the target). Parameters of the
    kernel: source, target, number of elements, for each dimension its length and both strides, in
    elements.
    """
    unit = _UNITS[itemsize]
    load = "__ldcs(from + {})" if "s" in passing else "from[{}]"
    store = "__stcs(to + place[u], value[u])" if "t" in passing else "to[place[u]] = value[u]"
    parameters = "".join(f", u64 n{d}, long long s{d}, long long t{d}" for d in range(ndim))
    source = " + ".join(f"(long long)i{d} * s{d}" for d in range(ndim)) or "0"
    target = " + ".join(f"(long long)i{d} * t{d}" for d in range(ndim)) or "0"
    parts = _unravel(ndim, True, set(range(ndim)))
    return f"""{_COMMON}
extern "C" __global__ void {KERNEL}(const {unit}* from, {unit}* to, u64 count{parameters}) {{
const u64 step = (u64)gridDim.x * blockDim.x;
for (u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x; first < count; first += 4 * step) {{
    {unit} value[4];
    long long place[4];
    #pragma unroll
    for (int u = 0; u < 4; u++) {{
        const u64 i = first + u * step;
        if (i < count) {{
{parts}
            value[u] = {load.format(source)};
            place[u] = {target};
        }}
    }}
    #pragma unroll
    for (int u = 0; u < 4; u++)
        if (first + u * step < count) {store};
}}
}}
"""


def transpose_source(batch: int, itemsize: int) -> str:
    """Source of: n x m elements turned into m x n, for each place of `batch` other dimensions.

    Parameters of the kernel: source, target, n (rows of the source), m (its columns), the stride
    of a source row and of a target row, and for each other dimension its length and both strides,
    all in elements. Block x of the grid runs over tiles, block y over the other dimensions.
    """
    unit = _UNITS[itemsize]
    parameters = "".join(f", u64 n{d}, long long s{d}, long long t{d}" for d in range(batch))
    source = " + ".join(f"(long long)i{d} * s{d}" for d in range(batch)) or "0"
    target = " + ".join(f"(long long)i{d} * t{d}" for d in range(batch)) or "0"
    count = " * ".join(f"n{d}" for d in range(batch)) or "1"
    return f"""{_COMMON}
extern "C" __global__ void {KERNEL}(const {unit}* from, {unit}* to, u64 n, u64 m,
                                    long long source_row, long long target_row{parameters}) {{
__shared__ {unit} tile[{TILE}][{TILE} + 1];
const u64 across = (m + {TILE - 1}) / {TILE}, tiles = across * ((n + {TILE - 1}) / {TILE});
const u64 others = {count};
const u32 lane = threadIdx.x % {TILE}, line = threadIdx.x / {TILE};
for (u64 i = blockIdx.y; i < others; i += gridDim.y) {{
{_unravel(batch, True, set(range(batch)))}
    const {unit}* s = from + ({source});
    {unit}* t = to + ({target});
    for (u64 at = blockIdx.x; at < tiles; at += gridDim.x) {{
        const u64 row = at / across * {TILE}, column = at % across * {TILE};
        for (u32 k = line; k < {TILE}; k += {THREADS // TILE})
            if (row + k < n && column + lane < m)
                tile[k][lane] = __ldcs(
                    s + (long long)(row + k) * source_row + (long long)(column + lane));
        __syncthreads();
        for (u32 k = line; k < {TILE}; k += {THREADS // TILE})
            if (column + k < m && row + lane < n)
                __stcs(t + (long long)(column + k) * target_row + (long long)(row + lane),
                       tile[lane][k]);
        __syncthreads();
    }}
}}
}}
"""
