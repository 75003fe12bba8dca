"""One round on one block, on the CPU.

A block is worked through in tiles along its leading dimensions, so that a tile stays in cache
while it is transformed and multiplied::

    for each tile:  r2c -> chirp -> c2c over all digits
                    -> filter, c2c back -> twiddle -> chirp -> c2r

The digit of a step is the innermost dimension of its axis, so a row of the tile has one value of
the axis' other digits, and the factors of a row follow from that value alone.

May import `decomposition`, `memory` and this room.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Chirp, Step
from dask_bigfft.errors import KernelError
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.twiddle import multiply_chirp, twiddle
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]

#: Bytes of a tile: with the FFT's own tables it fits a core's L2 cache.
TILE_BYTES = 1 << 19


def _factor(chirp: Chirp) -> float:
    """What the scale of a transform multiplies with."""
    return {"none": 1.0, "ortho": chirp.length**-0.5, "full": 1.0 / chirp.length}[chirp.scale]


def axis_index(axis: AxisLayout, block: int, stage: int, skip: int | None = None) -> Array:
    """Index made of an axis' digits of one stage, for each place of a block in stored order.

    Digits of other stages count nothing; the group number `skip` is left out.
    """
    index = np.zeros(1, np.int64)
    groups = zip(axis.groups, axis.intervals(block), axis.shape(block), strict=True)
    for g, (group, (low, _), size) in enumerate(groups):
        if g == skip:
            continue
        place = np.arange(low, low + size, dtype=np.int64)
        part = np.zeros(size, np.int64)
        for digit in reversed(group.digits):
            place, value = np.divmod(place, max(digit.size, 1))
            if digit.stage == stage:
                part += value * digit.stride
        index = np.add.outer(index, part).ravel()
    return index


@dataclass(frozen=True)
class _Work:
    """A step on one block: its dimension, and the index of its axis' other digits by stage."""

    step: Step
    dim: int
    index_in: Array
    index_twiddle: Array
    index_out: Array
    spectrum: Array | None


def _works(round_: Round, block: tuple[int, ...], filters: Mapping[int, Array]) -> list[_Work]:
    found = []
    for step in round_.steps:
        dim = round_.dim(step)
        before, after = round_.source.axes[step.axis], round_.target.axes[step.axis]
        skip = len(before.groups) - 1
        if before.groups[skip].digits != (step.source,):
            raise KernelError("the digit of a step must be the last group of its axis")
        i = block[step.axis]
        spectrum = filters.get(step.axis) if step.convolve is not None else None
        found.append(
            _Work(
                step,
                dim,
                axis_index(before, i, step.source.stage, skip),
                axis_index(after, i, step.target.stage - 1, skip),
                axis_index(after, i, step.target.stage, skip),
                None if spectrum is None else spectrum.reshape(-1, step.length),
            )
        )
    return found


def _rows(tile: Array, dim: int) -> Array:
    """View of a contiguous tile as rows, digit, and what is inside of the digit."""
    shape = tile.shape
    rows = tile.view()
    rows.shape = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    return rows


class _Tile:
    """A tile of a block, and the steps it goes through.

    ``start`` is the tile's first row among the flattened leading dimensions, ``shift`` by how
    much flattening them moved the other dimensions.
    """

    def __init__(self, values: Array, works: list[_Work], start: int, shift: int) -> None:
        self.values, self.works, self.start, self.shift = values, works, start, shift

    def of_kind(self, kind: str) -> Iterator[tuple[_Work, int]]:
        return ((w, w.dim - self.shift) for w in self.works if w.step.kind == kind)

    def pick(self, table: Array, dim: int) -> Array:
        """Entries of a table (one per value of the axis' other digits) for the tile's rows."""
        start = self.start if dim == 1 else 0
        rows = math.prod(self.values.shape[:dim])
        picked: Array = table[(start + np.arange(rows)) % len(table)]
        return picked

    def chirp(self, dim: int, index: Array, stride: int, chirp: Chirp) -> None:
        rows, rest = _rows(self.values, dim), self.pick(index, dim)
        multiply_chirp(rows, rest, stride, chirp.length, chirp.sign, _factor(chirp))

    def multiply(self, work: _Work, dim: int, library: FFTLibrary) -> None:
        """Filter (and transform back) and twiddle."""
        step, sign = work.step, work.step.sign
        if work.spectrum is not None:
            rows = _rows(self.values, dim)
            rows *= self.pick(work.spectrum, dim)[:, :, None]
            self.values = library.c2c(self.values, (dim,), -sign, "full")
            sign = -sign
        if step.twiddle is not None:
            rest = self.pick(work.index_twiddle, dim)
            twiddle(_rows(self.values, dim), rest, step.twiddle, sign)

    def run(self, library: FFTLibrary) -> Array:
        for work, dim in self.of_kind("r2c"):
            step = work.step
            real = library.r2c(self.values, dim, step.sign, step.scale)
            self.values = np.ascontiguousarray(real)
        batches: dict[tuple[int, Any], list[int]] = {}
        for work, dim in self.of_kind("c2c"):
            step = work.step
            if step.chirp_in is not None:
                self.chirp(dim, work.index_in, step.source.stride, step.chirp_in)
            batches.setdefault((step.sign, step.scale), []).append(dim)
        for (sign, scale), dims in batches.items():
            self.values = library.c2c(self.values, tuple(dims), sign, scale)
        for kind in ("r2c", "c2c"):
            for work, dim in self.of_kind(kind):
                self.multiply(work, dim, library)
        for work, dim in self.of_kind("c2c"):
            if (step := work.step).chirp_out is not None:
                self.chirp(dim, work.index_out, step.target.stride, step.chirp_out)
        for work, dim in self.of_kind("c2r"):
            step = work.step
            self.values = library.c2r(self.values, dim, step.length, step.sign, step.scale)
        return self.values


def run_round(
    round_: Round,
    block: tuple[int, ...],
    values: Array,
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Mapping[int, Array] | None = None,
) -> Array:
    """Return a block after a round.

    Parameters
    ----------
    round_ : Round
        What to do.
    block : tuple of int
        Which block.
    values : ndarray, C-contiguous
        The block as the round's source layout has it; overwritten.
    library : FFTLibrary
        Makes the FFTs.
    out_dtype : dtype
        Of the block after the round.
    filters : dict of int to ndarray, optional
        Spectrum of the convolution's filter, for the axes that need one.

    Returns
    -------
    ndarray
        The block as the round's target layout has it: `values` itself where shape and dtype
        stay, else lent memory.
    """
    shape = round_.target.shape(block)
    same = shape == values.shape and out_dtype == values.dtype
    out = values if same else lend(shape, out_dtype)
    if out.size == 0 or values.size == 0:
        return out
    works = _works(round_, block, filters or {})
    leading = min((work.dim for work in works), default=0)
    rows = math.prod(shape[:leading])
    source = values.reshape(rows, *values.shape[leading:])
    target = out.reshape(rows, *shape[leading:])
    size = max(source[0].nbytes, target[0].nbytes)
    step = max(1, TILE_BYTES // size)
    for start in range(0, rows, step):
        part = slice(start, min(rows, start + step))
        result = _Tile(source[part], works, start, leading - 1).run(library)
        if not same or not np.may_share_memory(result, target[part]):
            target[part] = result
    return out
