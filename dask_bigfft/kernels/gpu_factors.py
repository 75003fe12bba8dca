"""CUDA source of the factors that elements are multiplied by: twiddles, chirps and a scale.

One function for a *structure*, which all kernels that multiply call: the one that works in place,
and those that copy an array in another order. It is told the index of an element along each
dimension that the factors depend on, whatever the order in which the kernel goes through them. The
numbers (moduli, strides, starts) are arguments, so that a structure is compiled once.

Phases are exact integers until the sine: t is reduced mod m, and to the nearest quarter turn, in
64-bit integers (128 where a chirp is squared), and only what is left, an eighth of a turn at most,
meets `sincospi`. All factors are in double precision, also those of single-precision data.

Imports the standard library only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

COMMON = r"""
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
class Factors:
    """Structure of what elements (or their conjugates) are multiplied by, beside a scale."""

    double: bool
    conjugate: bool
    factors: tuple[Factor, ...]

    @property
    def used(self) -> tuple[int, ...]:
        """The dimensions that the factors depend on, rising."""
        found = set[int]()
        for factor in self.factors:
            found |= {place.dim for place in (*factor.left, *(factor.right or ()))}
        return tuple(sorted(found))

    @property
    def element(self) -> str:
        """The type of an element."""
        return element(self.double)

    @property
    def parameters(self) -> list[str]:
        """Parameters of the function, and so of each kernel that calls it.

        The scale, and for each factor its modulus (a twiddle's, or a chirp's length) and sign, and
        for each term start and stride, and divisor and modulus where it is a digit.
        """
        found = ["double scale"]
        for f, factor in enumerate(self.factors):
            found += [f"u64 f{f}_modulus", f"double f{f}_sign"]
            found += _parameters(f"f{f}_left", factor.left)
            found += _parameters(f"f{f}_right", factor.right or ())
        return found


def element(double: bool) -> str:
    """Type of a complex number."""
    return "double2" if double else "float2"


def _parameters(name: str, places: tuple[Place, ...]) -> list[str]:
    """Parameters that a sum of terms needs."""
    found = list[str]()
    for t, place in enumerate(places):
        found += [f"u64 {name}_{t}_start", f"u64 {name}_{t}_stride"]
        if place.digit:
            found += [f"u64 {name}_{t}_divisor", f"u64 {name}_{t}_modulus"]
    return found


def _sum(name: str, places: tuple[Place, ...]) -> str:
    """Expression of a sum of terms."""
    parts = []
    for t, place in enumerate(places):
        at = f"{name}_{t}"
        term = f"({at}_start + i{place.dim})"
        if place.digit:
            term = f"({term} / {at}_divisor % {at}_modulus)"
        parts.append(f"{term} * {at}_stride")
    return " + ".join(parts) or "0ull"


def _statement(f: int, factor: Factor) -> str:
    """What multiplies `w` by a factor."""
    left = _sum(f"f{f}_left", factor.left)
    if factor.right is not None:
        right = _sum(f"f{f}_right", factor.right)
        return f"    w = times(w, turn(({left}) * ({right}), f{f}_modulus, f{f}_sign));"
    end, twice = f"n < f{f}_modulus", ""
    if factor.half:
        end = f"2 * n <= f{f}_modulus"
        twice = f"      if (n && 2 * n != f{f}_modulus) {{ w.x *= 2; w.y *= 2; }}\n"
    return (
        f"    {{ const u64 n = {left}; const u64 m = 2 * f{f}_modulus;\n{twice}"
        f"      if ({end}) w = times(w, turn(square_mod(n, m), m, f{f}_sign));\n"
        "      else beyond = true; }"
    )


def weight_source(factors: Factors) -> str:
    """Source of `weight`, which makes the factor of an element, and of `weighted`, which uses it.

    Examples
    --------
    >>> twiddle = Factor((Place(0, False),), (Place(1, False),))
    >>> source = weight_source(Factors(True, False, (twiddle,)))
    >>> "(f0_left_0_start + i0) * f0_left_0_stride" in source
    True
    """
    body = "\n".join(_statement(f, factor) for f, factor in enumerate(factors.factors))
    parameters = ", ".join([*(f"u64 i{dim}" for dim in factors.used), *factors.parameters])
    sign = "-" if factors.conjugate else ""
    product = "d = times(d, by.w);" if factors.factors else "d.x *= by.w.x; d.y *= by.w.x;"
    return f"""
struct Weight {{ double2 w; bool beyond; }};

__device__ __forceinline__ Weight weight({parameters}) {{
    double2 w;
    w.x = scale; w.y = 0;
    bool beyond = false;
{body}
    Weight found;
    found.w = w; found.beyond = beyond;
    return found;
}}

__device__ __forceinline__ {factors.element} weighted({factors.element} v, Weight by) {{
    double2 d;
    d.x = v.x; d.y = {sign}v.y;
    {product}
    {factors.element} r;
    r.x = d.x; r.y = d.y;
    if (by.beyond) {{ r.x = 0; r.y = 0; }}
    return r;
}}
"""


def weight_call(factors: Factors, indices: Mapping[int, str]) -> str:
    """A call of `weight`, given the expression of the index along each dimension that it needs."""
    return f"weight({', '.join([*(indices[dim] for dim in factors.used), *_names(factors)])})"


def _names(factors: Factors) -> Iterable[str]:
    return (parameter.split()[-1] for parameter in factors.parameters)


@dataclass(frozen=True, slots=True)
class Found:
    """Where a kernel that goes through groups of dimensions finds the index along one of them.

    Parameters
    ----------
    dim : int
        The dimension.
    group : int or None
        The group that it is in; None where its length is 1.
    divided, reduced : bool
        Whether other dimensions of the group are behind it, and before it.
    """

    dim: int
    group: int | None
    divided: bool = False
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class Weighing:
    """Structure of factors in a kernel that copies.

    Parameters
    ----------
    factors : Factors
        The factors.
    found : tuple of Found
        For each dimension that they depend on.
    wide : bool
        Whether the index of a group may need 64 bits.
    """

    factors: Factors
    found: tuple[Found, ...]
    wide: bool

    @property
    def parameters(self) -> list[str]:
        """Parameters of the kernel: those of the factors, and lengths to find indices with."""
        kind, lengths = "u64" if self.wide else "u32", list[str]()
        for one in self.found:
            lengths += [f"{kind} d{one.dim}_behind"] if one.divided else []
            lengths += [f"{kind} d{one.dim}_length"] if one.reduced else []
        return [*self.factors.parameters, *lengths]

    def call(self, groups: Mapping[int, str]) -> str:
        """A call of `weight`, given the expression of the index of each group."""
        kind, indices = "u64" if self.wide else "u32", dict[int, str]()
        for one in self.found:
            if one.group is None:
                indices[one.dim] = "0ull"
                continue
            index = f"({kind}){groups[one.group]}"
            index += f" / d{one.dim}_behind" if one.divided else ""
            index += f" % d{one.dim}_length" if one.reduced else ""
            indices[one.dim] = index
        return weight_call(self.factors, indices)
