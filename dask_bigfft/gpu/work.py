"""What is computed on one piece: the steps of `kernels.loop`, as descriptions for a device.

::

    r2c -> chirp -> c2c -> filter, c2c back -> twiddle, chirp, divisor -> c2r -> transpose

Everything that follows an FFT is one `Multiply`; a transpose right behind it does that on its way,
in one pass over the device's memory. The steps of a dimension that was split are those of
`decomposition.steps`: a dimension of a block is an axis to its own digits.

Imports `decomposition` and this room.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from dask_bigfft.decomposition.steps import Step
from dask_bigfft.gpu.factors import PieceFactors
from dask_bigfft.gpu.operations import (
    FFT,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transpose,
    dense,
)
from dask_bigfft.gpu.piecework import Block, Computation, Filter, Move, PieceWork, Trip
from dask_bigfft.gpu.ragged import (
    Box,
    Half,
    HostView,
    Slices,
    below,
    completing,
    missing,
    unmirrored,
)

#: A dimension of which a block has only some digits, and the step that begins or ends there.
Ragged = tuple[Half, Step]

#: `missing` or another: parts of a box, their mirror images, and the last digit reversed.
Mirrored = Callable[[Box, tuple[int, ...], int], Iterator[tuple[Box, Box, int]]]

#: Shape of a mirror image, where it begins in its place, and first place and strides in the digits.
Image = tuple[tuple[int, ...], int, int, tuple[int, ...]]


def _slices(starts: list[int], shape: tuple[int, ...]) -> Slices:
    return tuple(slice(low, low + n) for low, n in zip(starts, shape, strict=True))


def _within(cut: Slices, part: Slices) -> Slices:
    """Where in a part a smaller one lies."""
    pairs = zip(cut, part, strict=True)
    return tuple(slice(c.start - p.start, c.stop - p.start) for c, p in pairs)


def _part_of(array: DeviceArray, part: Slices) -> DeviceArray:
    """A box of a dense array."""
    strides = dense(array.shape, np.dtype(array.dtype).itemsize)
    shape = tuple(cut.stop - cut.start for cut in part)
    offset = sum(cut.start * step for cut, step in zip(part, strides, strict=True))
    return DeviceArray(array.offset + offset, shape, array.dtype, strides)


def piece_work(trip: Trip, piece: Block) -> PieceWork:
    """What is done with one piece in a crossing."""
    return _Piece(trip, piece).work()


class _Piece:
    """One piece in one crossing, while what is done with it is written down."""

    def __init__(self, trip: Trip, piece: Block) -> None:
        self.trip, self.crossing, self.inner = trip, trip.crossing, trip.inner
        self.factors = PieceFactors(trip, piece)
        self.firsts, self.starts = self.factors.firsts, self.factors.starts
        steps, factors = trip.round.steps, trip.factors
        self.begun = [steps[i] for i, j in self.crossing.digits if j == 0]
        last = [
            len(f) - 1 if s.convolve is None else 2 * len(f) - 2
            for f, s in zip(factors, steps, strict=True)
        ]
        self.ended = [steps[i] for i, j in self.crossing.digits if j == last[i]]
        self.filtered = [
            steps[i]
            for i, j in self.crossing.digits
            if steps[i].convolve is not None and j == len(factors[i]) - 1
        ]
        self.offsets = list(itertools.accumulate(self.crossing.places, initial=0))
        self.filters: list[Filter] = []
        self.filter_places = 0
        self.done: list[Computation] = []
        real = np.empty(0, trip.dtype).real.dtype.str
        comes = real if any(step.kind == "r2c" for step in self.begun) else trip.dtype
        self.real, self.source = real, DeviceArray(0, self.inner.source.shape(piece), comes)
        self.now, self.place = self.source, 0

    def work(self) -> PieceWork:
        """All that is done."""
        part = _slices(self.starts, self.source.shape)
        comes: tuple[Move, ...] = (Move(part, self.source),)
        view = HostView(self.crossing.view)
        ragged = self._ragged(self.begun, "source")
        if ragged is not None:
            comes, view = self._half_comes(*ragged, part)
        for step in self.inner.steps:
            if step.kind == "r2c":
                self._real_fft(step, self.trip.dtype)
        self._multiply(self.factors.before(self.now.shape, self.begun))
        self._ffts([step for step in self.inner.steps if step.kind == "c2c"])
        for step in self.filtered:
            self._convolve(step)
        self._multiply(self.factors.after(self.now.shape, self.ended))
        for step in self.inner.steps:
            if step.kind == "c2r":
                self._real_fft(step, self.real)
        if self.trip.real and self.ended:
            self._real_parts()
        order = self.crossing.order
        if self.crossing.reorders:
            self._reorder(order)
        ends = [
            slice(0, n) if n != before else cut
            for n, before, cut in zip(self.crossing.after, self.crossing.view, part, strict=True)
        ]
        stored = tuple(ends[dim] for dim in order)
        after = HostView(tuple(self.crossing.after[dim] for dim in order))
        goes: tuple[Move, ...] = (Move(stored, self.now),)
        ragged, window = self._ragged(self.ended, "target"), self.trip.window
        if window is not None:
            within = [(cut, _within(cut, stored)) for cut in window.parts(stored)]
            goes = tuple(Move(cut, _part_of(self.now, own)) for cut, own in within)
            after = window.view
        if ragged is not None:
            goes, after = self._half_goes(*ragged, after.shape, stored)
        scratch = None
        if self.crossing.mirrored:
            scratch = DeviceArray(self._scratch(), (self.source.size,), self.trip.dtype)
        return PieceWork(
            view,
            comes,
            self.source,
            tuple(self.filters),
            tuple(self.done),
            self.now,
            after,
            goes,
            scratch,
        )

    # --- split dimensions of which a block has not all digits ------------------------------

    def _ragged(self, steps: list[Step], side: Literal["source", "target"]) -> Ragged | None:
        """The dimension of which the block has only some of the digits that a crossing takes."""
        for step in steps:
            radices = self.trip.factors[self.trip.round.steps.index(step)]
            digit = step.source if side == "source" else step.target
            if len(radices) > 1 and digit.is_partial:
                turned = side == "target" and step.convolve is None
                length = step.length // 2 + 1 if step.convolve is None else digit.size
                half = Half(self.factors.dim(step), radices[::-1] if turned else radices, length)
                return half, step
        return None

    def _half_comes(
        self, half: Half, step: Step, part: Slices
    ) -> tuple[tuple[Move, ...], HostView]:
        """How half a spectrum becomes digits: what is there, and the mirror image of it.

        What is convolved has zeros in its place, which the chirp makes.
        """
        mirrored = missing if step.kind == "c2r" else unmirrored
        moves, images, scratch = self._half_moves(half, part, self.source, mirrored)
        for shape, at, start, steps in images:
            by = Multiply(shape, self.trip.dtype, conjugate=True)
            copy = Strided(shape, dense(shape, 1), at, steps, start, self.trip.dtype, by)
            self.done.append(Computation(copy, scratch, self.source))
        return moves, half.view(self.crossing.view)

    def _half_goes(
        self, half: Half, step: Step, shape: tuple[int, ...], part: Slices
    ) -> tuple[tuple[Move, ...], HostView]:
        """How digits become half a spectrum: what lies in it, and the mirror image of the rest."""
        mirrored = completing if step.kind == "r2c" else unmirrored
        moves, images, scratch = self._half_moves(half, part, self.now, mirrored)
        twiddles = self.factors.turned_back(step)
        for counts, at, start, steps in images:
            by = Multiply(counts, self.trip.dtype, conjugate=True, twiddles=twiddles)
            copy = Strided(counts, steps, start, dense(counts, 1), at, self.trip.dtype, by)
            self.done.append(Computation(copy, self.now, scratch))
        return moves, half.view(shape)

    def _half_moves(
        self, half: Half, part: Slices, digits: DeviceArray, mirrored: Mirrored
    ) -> tuple[tuple[Move, ...], list[Image], DeviceArray]:
        """Copies between half a spectrum and digits, and where mirror images lie meanwhile."""
        box, itemsize = half.box(part), np.dtype(self.trip.dtype).itemsize
        found = [
            Move(half.cut(part, own), _part_of(digits, half.within(part, own)))
            for own in below(box, half.radices, half.length)
        ]
        images, at, begin = list[Image](), 0, self._scratch()
        for own, image, last in mirrored(box, half.radices, half.length):
            cut = half.cut(part, image)
            shape = tuple(c.stop - c.start for c in cut)
            found.append(Move(cut, DeviceArray(begin + at * itemsize, shape, self.trip.dtype)))
            images.append((shape, at, *half.reversed(digits.shape, part, own, last)))
            at += math.prod(shape)
        return tuple(found), images, DeviceArray(begin, (at,), self.trip.dtype)

    def _scratch(self) -> int:
        """Where the mirror image of half a spectrum lies: the last place of the slot."""
        return self.offsets[len(self.crossing.places) - 1]

    # --- operations -------------------------------------------------------------------------

    def _inside(self, op: Compute) -> None:
        self.done.append(Computation(op, self.now, self.now))

    def _multiply(self, op: Multiply | None) -> None:
        if op is not None:
            self._inside(op)

    def _elsewhere(self, op: Compute, shape: tuple[int, ...], dtype: str) -> None:
        """An operation whose result cannot lie where its source does."""
        self.place = 1 - self.place
        target = DeviceArray(self.offsets[self.place], shape, dtype)
        self.done.append(Computation(op, self.now, target))
        self.now = target

    def _reorder(self, order: Block) -> None:
        """Put dimensions in the order in which they are stored.

        What the piece is multiplied by just before is multiplied by on the way: one pass over the
        device's memory instead of two.
        """
        last = self.done[-1].op if self.done else None
        by = last if isinstance(last, Multiply) else None
        if by is not None:
            self.done.pop()
        op = Transpose(self.now.shape, order, self.now.dtype, by)
        self._elsewhere(op, tuple(self.now.shape[dim] for dim in order), self.now.dtype)

    def _real_fft(self, step: Step, dtype: str) -> None:
        dim, before = self.inner.dim(step), self.now.shape
        n = step.length if step.kind == "c2r" else step.length // 2 + 1
        after = (*before[:dim], n, *before[dim + 1 :])
        sign = 1 if step.kind == "c2r" else -1
        op = FFT(step.kind, before, after, (dim,), sign, self.trip.dtype)
        self._elsewhere(op, after, dtype)

    def _real_parts(self) -> None:
        """Copy the real parts to where they are dense."""
        shape, count = self.now.shape, self.now.size
        both = replace(self.now, shape=(2 * count,), dtype=self.real)
        self.place = 1 - self.place
        self.now = DeviceArray(self.offsets[self.place], shape, self.real)
        copy = Strided((count,), (2,), 0, (1,), 0, self.real)
        self.done.append(Computation(copy, both, self.now))

    def _ffts(self, steps: list[Step]) -> None:
        """Complex FFTs of one sign together."""
        by_sign: dict[int, list[int]] = {}
        for step in steps:
            by_sign.setdefault(step.sign, []).append(self.inner.dim(step))
        shape = self.now.shape
        for sign, dims in by_sign.items():
            self._inside(FFT("c2c", shape, shape, tuple(sorted(dims)), sign, self.trip.dtype))

    def _convolve(self, step: Step) -> None:
        """Multiply by the spectrum of a filter, and transform the last digit back."""
        number = self.trip.round.steps.index(step)
        axis, own = self.trip.round.source.axes[step.axis], self.trip.dims[number]
        factors, others = self.trip.factors[number], axis.shape(self.trip.block[step.axis])[:-1]
        if step.alone:  # the spectrum is of this digit, whatever is beside it
            others = ()
        first = self.firsts[own - len(others)]
        begin, end = self.firsts[own], self.firsts[own] + len(factors)
        dims, shape = range(first, end), self.now.shape
        # The spectrum has its index whole, which is that of the digits from the last to the first.
        order = (*range(begin), *reversed(range(begin, end)), *range(end, len(shape)))
        parts = [slice(low, low + n) for low, n in zip(self.starts, shape, strict=True)]
        kept = tuple(n if d in dims else 1 for d, n in enumerate(shape))
        array = self._filter_place(tuple(kept[d] for d in order))
        whole = (*others, *factors[::-1])
        part = tuple(parts[d] for d in order if d in dims)
        self.filters.append(Filter(step.axis, whole, part, array))
        if len(factors) > 1:
            turned = self._filter_place(kept)
            self.done.append(
                Computation(Transpose(array.shape, order, self.trip.dtype), array, turned)
            )
            array = turned
        op = Product(shape, kept, self.trip.dtype)
        self.done.append(Computation(op, array, self.now))
        last = end - 1
        self._inside(FFT("c2c", shape, shape, (last,), -step.sign, self.trip.dtype))

    def _filter_place(self, shape: tuple[int, ...]) -> DeviceArray:
        """The next place for a filter, from the last one of the slot on."""
        self.filter_places += 1
        return DeviceArray(self.offsets[-1 - self.filter_places], shape, self.trip.dtype)
