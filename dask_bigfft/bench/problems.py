"""The named problems: what the benchmark times, the smoke test runs tiny, and a test plans.

Names tell all: ``3d-512x512x256-c128-x16`` is `fftn` of that shape in complex128, cut 16 ways. 1D
arrays are cut into intervals, the others along their first axis.

Imports the standard library and the package's errors.
"""

import fnmatch
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dask_bigfft.errors import refuse

__all__ = ["PROBLEMS", "Problem", "select"]

Kind = Literal["fft", "fftn", "rfftn"]

#: Shortest axes of a scaled problem: the first one still has to be cut 64 ways.
_LEAST_FIRST, _LEAST, _LEAST_1D = 64, 4, 4096


@dataclass(frozen=True)
class Problem:
    """One transform of one array.

    Parameters
    ----------
    name : str
        Stays the same when the problem is scaled.
    family : str
        Problems that are drawn into one picture.
    kind : {"fft", "fftn", "rfftn"}
        What is asked.
    shape : tuple of int
        Of the input.
    dtype : str
        Of the input.
    ways : int
        In how many blocks it is cut.
    prime : bool
        Whether the length stays prime when it is scaled.
    """

    name: str
    family: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    ways: int
    prime: bool = False

    @property
    def real(self) -> bool:
        """Whether the input is real."""
        return self.kind == "rfftn"

    @property
    def out_dtype(self) -> str:
        """Of the result."""
        return {"float32": "complex64", "float64": "complex128"}.get(self.dtype, self.dtype)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.shape[:-1], self.shape[-1] // 2 + 1) if self.real else self.shape

    @property
    def size(self) -> int:
        """Number of elements that come in."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the larger one of input and result."""
        single, is_real = self.out_dtype == "complex64", self.real
        wide = 8 if single else 16
        narrow = wide // 2 if is_real else wide
        return max(self.size * narrow, math.prod(self.out_shape) * wide)

    @property
    def flops(self) -> float:
        """By the usual count: 5 N log2 N, half of it for real input."""
        return (2.5 if self.real else 5.0) * self.size * math.log2(self.size)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Of the input.

        >>> Problem("p", "1D", "fft", (10,), "complex64", 4).chunks
        ((3, 3, 3, 1),)
        """
        length = self.shape[0]
        step = -(-length // self.ways)
        first = tuple(min(step, length - start) for start in range(0, length, step))
        return (first, *((n,) for n in self.shape[1:]))

    def scaled(self, scale: float) -> "Problem":
        """Return the problem with about `scale` times the elements, in lengths of its own sort.

        >>> Problem("p", "2D", "fftn", (8192, 8192), "complex64", 16).scaled(1 / 1024).shape
        (256, 256)
        """
        if scale >= 1:
            return self
        factor = scale ** (1 / len(self.shape))
        least = (_LEAST_1D,) if len(self.shape) == 1 else (_LEAST_FIRST, *(_LEAST,) * 2)
        shape = tuple(
            min(n, max(low, 1 << round(math.log2(n * factor))))
            for n, low in zip(self.shape, least, strict=False)
        )
        if self.prime:
            shape = (_largest_prime(shape[0]),)
        return replace(self, shape=shape)


def _largest_prime(limit: int) -> int:
    """The largest prime of at most `limit`.

    >>> _largest_prime(2**12), _largest_prime(2**22)
    (4093, 4194301)
    """
    return next(
        n for n in range(limit, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1))
    )


def _short(dtype: str) -> str:
    """A dtype in a name: c128."""
    return dtype[0] + dtype.lstrip("complexfat")


def _cut(
    family: str, kind: Kind, shape: tuple[int, ...], dtype: str, label: str = ""
) -> Iterable[Problem]:
    prefix = {"rfftn": "r3d", "fft": "1d", "fftn": f"{len(shape)}d"}[kind]
    label = label or "x".join(map(str, shape))
    for ways in (16, 64):
        name = f"{prefix}-{label}-{_short(dtype)}-x{ways}"
        yield Problem(name, family, kind, shape, dtype, ways, "prime" in label)


def _all() -> Iterable[Problem]:
    for dtype in ("complex128", "complex64"):
        for power in (24, 26, 27):
            yield from _cut(f"1D {dtype}", "fft", (2**power,), dtype, f"2p{power}")
    prime = (_largest_prime(2**22),)
    yield from _cut("1D prime", "fft", prime, "complex128", "prime")
    for plane in ((8192, 8192), (1024, 65536)):
        yield from _cut("2D", "fftn", plane, "complex128")
    yield from _cut("3D", "fftn", (512, 512, 512), "complex64")
    yield from _cut("3D", "fftn", (512, 512, 256), "complex128")
    for tall in ((65536, 1024), (8192, 128, 64)):
        yield from _cut("tall", "fftn", tall, "complex128")
    yield from _cut("3D real", "rfftn", (512, 512, 512), "float32")
    yield from _cut("3D real", "rfftn", (512, 512, 256), "float64")


#: Every problem by its name, in the order in which they run.
PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in _all()}


def select(patterns: Iterable[str]) -> list[Problem]:
    """Return the problems whose names match one of the patterns, all for none.

    Raises
    ------
    ArgumentError
        If a pattern matches nothing.

    Examples
    --------
    >>> [problem.name for problem in select(["3d-512x512x5*"])]
    ['3d-512x512x512-c64-x16', '3d-512x512x512-c64-x64']
    """
    wanted: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(PROBLEMS, pattern)
        if not found:
            refuse("only", pattern, f"a name or pattern of: {', '.join(PROBLEMS)}")
        wanted.update(found)
    return [p for name, p in PROBLEMS.items() if not wanted or name in wanted]
