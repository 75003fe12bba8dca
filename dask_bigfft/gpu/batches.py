"""Batches of FFTs as cuFFT plans them: lengths, and the layout of both sides in memory."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask_bigfft.gpu.cuda import cupy

#: Smallest number that needs the 64-bit interface.
WIDE = 2**31


Ints = tuple[int, ...]


class Side(NamedTuple):
    """Layout of one side of a batch in memory, in elements of that side.

    These are the stored lengths, the stride along the last dimension, and the distance between
    transforms.
    """

    embed: Ints
    stride: int
    distance: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of FFTs, as planned by cuFFT.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        The transform.
    n : tuple of int
        Lengths.
    source, target : Side
        Layout before and after.
    count : int
        Number of transforms.
    double : bool
        True for double precision.
    """

    kind: str
    n: Ints
    source: Side
    target: Side
    count: int
    double: bool

    @property
    def wide(self) -> bool:
        """Return True if a number or the position of an element needs 64 bits."""
        last = max(
            math.prod(side.embed) * side.stride + self.count * side.distance
            for side in (self.source, self.target)
        )
        return last >= WIDE


def make_plan(batch: Batch, wide: bool) -> Any:
    """Return a plan of CuPy for a batch, with 64-bit sizes if `wide` is true."""
    cufft = cupy().cuda.cufft
    if not wide:
        name = {"c2c": "ZZ", "r2c": "DZ", "c2r": "ZD"}[batch.kind]
        if not batch.double:
            name = name.replace("Z", "C").replace("D", "R")
        kind = getattr(cufft, f"CUFFT_{name[0]}2{name[1]}")
        return cufft.PlanNd(
            batch.n,
            *batch.source,
            *batch.target,
            kind,
            batch.count,
            "C",
            0,
            None,
        )
    real, complex_ = ("d", "D") if batch.double else ("f", "F")
    before = real if batch.kind == "r2c" else complex_
    after = real if batch.kind == "c2r" else complex_
    return cufft.XtPlanNd(
        batch.n,
        *batch.source,
        before,
        *batch.target,
        after,
        batch.count,
        complex_,
        order="C",
        last_axis=0,
        last_size=None,
    )


class _At:
    """Address as an array argument of CuPy's plans, in ``data.ptr``."""

    __slots__ = ("data", "ptr")

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr
        self.data = self


def execute(plan: Any, source: int, target: int, sign: int) -> None:
    """Enqueue a plan of CuPy in the current stream; the arrays are addresses."""
    cufft = cupy().cuda.cufft
    direction = cufft.CUFFT_INVERSE if sign > 0 else cufft.CUFFT_FORWARD
    plan.fft(_At(source), _At(target), direction)
