"""Copies whose stores go around the caches.

A processor that stores to memory reads it first, a cache line at a time, and what it stored takes
the place of other things in its caches. For memory that a card reads next, and for what comes from
it, both are waste. Stores around the caches copied 63 GB/s where NumPy's copied 40 (16 threads of
the machine in `ci/results/gpu.md`).

Imports numba and this room.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dask_bigfft.kernels.compiled import compiled

__all__ = ["Rows", "copy_rows"]

#: Bytes that are stored at a time: a line of the caches.
LINE = 64

#: Numbers, one for each dimension of rows.
Column = tuple[int, ...]

#: As numba's decorator, which changes what functions take.
_inlined: Any = intrinsic


@_inlined
def _stream(typingctx, target, source, lines):  # type: ignore[no-untyped-def]
    """Copy lines between addresses, of which the target's is a multiple of `LINE`."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        to, from_, count = arguments
        word = ir.IntType(64)
        line = ir.VectorType(word, LINE // 8).as_pointer()
        metadata = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        with cgutils.for_range(builder, count, intp=word) as loop:
            at = builder.mul(loop.index, ir.Constant(word, LINE))
            values = builder.load(builder.inttoptr(builder.add(from_, at), line), align=1)
            place = builder.inttoptr(builder.add(to, at), line)
            builder.store(values, place, align=LINE).set_metadata("nontemporal", metadata)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code


@_inlined
def _fence(typingctx):  # type: ignore[no-untyped-def]
    """Let nobody see what follows before what was streamed."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@_inlined
def _bytes(typingctx, target, source, count):  # type: ignore[no-untyped-def]
    """Copy a few bytes between addresses."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        byte = ir.IntType(8).as_pointer()
        to, from_ = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, from_, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code


@compiled
def copy_rows(target, source, width, counts, to, from_, low, high, streamed):  # type: ignore[no-untyped-def]
    """Copy the bytes from `low` to `high - 1` of rows, as `Rows` says; all numbers are unsigned."""
    line = np.uint64(LINE)
    row = low // width
    skip = low - row * width
    at = low
    while at < high:
        count = min(width - skip, high - at)
        rest, t, s = row, target + skip, source + skip
        for d in range(len(counts) - 1, -1, -1):
            i = rest % counts[d]
            rest //= counts[d]
            t += i * to[d]
            s += i * from_[d]
        if streamed:
            head = min(count, (line - t % line) % line)
            _bytes(t, s, head)
            lines = (count - head) // line
            _stream(t + head, s + head, lines)
            done = head + lines * line
            _bytes(t + done, s + done, count - done)
        else:
            _bytes(t, s, count)
        at += count
        row += np.uint64(1)
        skip = np.uint64(0)
    _fence()


@dataclass(frozen=True, eq=False)
class Rows:
    """A copy of rows from one array to another, of which threads may do a part each.

    Parameters
    ----------
    target, source : ndarray
        They have no bytes in common.
    width : int
        Bytes of a row, contiguous in both.
    rows : list of (int, int, int)
        How often rows repeat, outermost dimension first, and the bytes from one to the next in
        the target and in the source.
    streamed : bool
        Whether stores go around the caches.

    Examples
    --------
    >>> block, out = np.arange(8192.0).reshape(4, 2048), np.zeros((4, 1024))
    >>> Rows(out, block, 8192, [(4, 8192, 16384)]).nbytes
    32768
    """

    target: npt.NDArray[Any]
    source: npt.NDArray[Any]
    width: int
    rows: list[tuple[int, int, int]]
    streamed: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.width * math.prod(count for count, _, _ in self.rows)

    @property
    def numbers(self) -> tuple[int, int, int, Column, Column, Column]:
        """Addresses, width, and of each dimension of rows: how many, and their distances."""
        target, source = (a.__array_interface__["data"][0] for a in (self.target, self.source))
        counts, to, from_ = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        return target, source, self.width, counts, to, from_
