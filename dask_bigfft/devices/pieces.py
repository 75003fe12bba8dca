"""`PiecePlan`: what is done with a block on a device, piece by piece.

Made where the block is, from a round, a block and what the device may use; so that workers with
unlike cards make unlike piece plans of one plan. The crossings come from `schedule`. This file says
what is computed on a piece: the same steps as `kernels.cpu` runs on a tile, as descriptions that a
device understands::

    r2c -> chirp -> c2c -> filter, c2c back -> twiddle, chirp, scale -> c2r -> transpose

Everything after an FFT is one `Multiply`. The steps of a dimension that was split are those of
`decomposition.steps`: a dimension is an axis to its own digits.

Imports `decomposition`, `planner`, `errors` and this room.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Scale, Step, axis_program
from dask_bigfft.devices.protocol import (
    FFT,
    ChirpFactor,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Term,
    Transpose,
    Twiddle,
)
from dask_bigfft.devices.schedule import (
    Crossing,
    Line,
    PieceLimits,
    Problem,
    Schedule,
    find_schedule,
)
from dask_bigfft.errors import DeviceError
from dask_bigfft.planner.plan import axis_letter

Block = tuple[int, ...]
Slices = tuple[slice, ...]

#: Characters of the dtypes that devices compute in: single and double precision.
COMPUTED = "fdFD"

#: As the modulus of a term: the place is used as it is.
NO_MODULUS = 1 << 62


@dataclass(frozen=True)
class Computation:
    """One operation on a piece: from where to where, and for a product by what."""

    op: Compute
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class Filter:
    """The part of an axis' spectrum that a piece is multiplied with."""

    axis: int
    shape: tuple[int, ...]
    part: Slices
    array: DeviceArray


@dataclass(frozen=True)
class PieceWork:
    """All that is done with one piece, in a slot that begins at offset 0.

    Parameters
    ----------
    view, part : tuple
        Shape in which the host block is seen, and the piece in it.
    source : DeviceArray
        Where the piece is copied to.
    filters : tuple of Filter
        What is copied with it.
    computations : tuple of Computation
        In order.
    result : DeviceArray
        What is copied back.
    after, order : tuple of int
        Shape in which the host block is seen afterwards, and the order in which its dimensions
        are stored.
    stored : tuple of slice
        The piece in it, dimensions in stored order.
    """

    view: tuple[int, ...]
    part: Slices
    source: DeviceArray
    filters: tuple[Filter, ...]
    computations: tuple[Computation, ...]
    result: DeviceArray
    after: tuple[int, ...]
    order: tuple[int, ...]
    stored: Slices

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in which the host block is seen by the copy back."""
        return tuple(self.after[dim] for dim in self.order)


def _scale(scale: Scale, length: int) -> float:
    return {"none": 1.0, "ortho": 1.0 / math.sqrt(length), "full": 1.0 / length}[scale]


def _digit_terms(
    digits: tuple[Digit, ...], start: int, stage: int, dim: int
) -> Iterator[Term]:
    """What one dimension, that holds some digits, adds to the index of a stage."""
    divisor = 1
    for place, digit in reversed(list(enumerate(digits))):
        if digit.stage == stage and digit.size > 1:
            modulus = digit.size if place else NO_MODULUS
            yield Term(dim, start, divisor, modulus, digit.stride)
        divisor *= max(digit.size, 1)


@dataclass(frozen=True)
class PiecePlan:
    """The crossings of a round on a block, and what is done in each.

    Parameters
    ----------
    round : Round
        What to do.
    block : tuple of int
        Which block.
    source, target : str
        Dtype of the block before and after.
    schedule : Schedule
        The crossings.
    """

    round: Round
    block: Block
    source: str
    target: str
    schedule: Schedule

    @cached_property
    def dtype(self) -> str:
        """Dtype of complex values."""
        return max(self.source, self.target, key=lambda name: np.dtype(name).kind == "c")

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Dimension of the block that each step transforms."""
        return tuple(self.round.dim(step) for step in self.round.steps)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The crossings as rounds: a block's dimensions as axes, its pieces as blocks."""
        programs = [
            axis_program(dim, step.length, factors, kind=step.kind, sign=step.sign)
            for dim, step, factors in zip(
                self.dims, self.round.steps, self.schedule.factors, strict=True
            )
        ]
        by_dim = dict(zip(self.dims, programs, strict=True))
        axes = []
        for dim, n in enumerate(self.round.source.shape(self.block)):
            digits: tuple[Digit, ...] = (Digit(0, 1, n, n),)
            if dim in by_dim:
                digits = tuple(step.source for step in by_dim[dim].steps)
            axes.append(AxisLayout(tuple(Group((digit,), (digit.size,)) for digit in digits)))
        layout, found = Layout(tuple(axes)), []
        for crossing in self.schedule.crossings:
            steps = tuple(programs[i].steps[j] for i, j in crossing.digits)
            cut = _cut(layout, crossing.chunks)
            found.append(Round(steps, cut, transformed(cut, steps)))
            layout = transformed(layout, steps)
        return tuple(found)

    @property
    def pieces(self) -> int:
        """Number of pieces of all crossings."""
        return sum(crossing.pieces for crossing in self.schedule.crossings)

    def written(self, number: int) -> str:
        """Dtype of what a crossing writes."""
        last = number == len(self.schedule.crossings) - 1
        return self.target if last else self.dtype

    def works(self, number: int) -> Iterator[PieceWork]:
        """What is done with each piece in a crossing."""
        for piece in self.rounds[number].source.indices():
            yield _Piece(self, number, piece).work()

    @property
    def ffts(self) -> frozenset[FFT]:
        """All different FFTs, whose plans have to exist before the first piece comes."""
        found: set[FFT] = set()
        for number, crossing in enumerate(self.schedule.crossings):
            corners = itertools.product(*(_ends(len(cut)) for cut in crossing.chunks))
            layout = self.rounds[number].source
            for corner in corners:
                piece = _block_of(layout, corner)
                work = _Piece(self, number, piece).work()
                found.update(c.op for c in work.computations if isinstance(c.op, FFT))
        return frozenset(found)

    @property
    def notation(self) -> str:
        """Crossings in short, such as ``{Y1} {Y2, X}``."""
        letters = []
        for step in self.round.steps:
            letters.append(axis_letter(step.axis, len(self.round.source.axes)))
        return " ".join(
            "{" + ", ".join(self._name(letters, i, j) for i, j in crossing.digits) + "}"
            for crossing in self.schedule.crossings
        )

    def _name(self, letters: list[str], line: int, digit: int) -> str:
        return letters[line] + (str(digit + 1) if len(self.schedule.factors[line]) > 1 else "")

    def __str__(self) -> str:
        lines = [f"{self.notation}: {len(self.schedule.crossings)} crossings"]
        for crossing in self.schedule.crossings:
            (c, w), (d, v) = crossing.reads, crossing.writes
            lines.append(f"  {crossing.pieces} pieces, read C={c} W={w}, written C={d} W={v}")
        return "\n".join(lines)


def _ends(count: int) -> tuple[int, ...]:
    """The first and the last chunk: all others are like the first."""
    return (0,) if count == 1 else (0, count - 1)


def _block_of(layout: Layout, corner: tuple[int, ...]) -> Block:
    """Block index of one chunk number per dimension."""
    found, first = [], 0
    for axis in layout.axes:
        last = first + len(axis.groups)
        found.append(axis.block_of(corner[first:last]))
        first = last
    return tuple(found)


def _cut(layout: Layout, chunks: tuple[tuple[int, ...], ...]) -> Layout:
    cuts = iter(chunks)
    return Layout(
        tuple(
            AxisLayout(tuple(Group(group.digits, next(cuts)) for group in axis.groups))
            for axis in layout.axes
        )
    )


def piece_plan(
    round_: Round,
    block: Block,
    source: str,
    target: str,
    limits: PieceLimits,
    *,
    work: int = 0,
    inside: bool = False,
) -> PiecePlan:
    """Return how a round on a block is done in pieces.

    Parameters
    ----------
    round_ : Round
        What to do.
    block : tuple of int
        Which block.
    source, target : str
        Dtype of the block before and after.
    limits : PieceLimits
        What pieces may need on the device.
    work : int
        Work area that FFTs are expected to need, in units of the largest slot.
    inside : bool
        Whether no host memory apart from the block may be used.

    Raises
    ------
    DeviceMemoryError
        If the pieces cannot be made small enough.
    DeviceError
        If the values are not of single or double precision.
    """
    itemsize = max(np.dtype(name).itemsize for name in (source, target))
    for name in (source, target):
        if np.dtype(name).char not in COMPUTED:
            raise DeviceError(f"devices compute in single and double precision, not in {name}")
        if np.dtype(name).kind == "f" and source != target:
            itemsize = 2 * np.dtype(name).itemsize
    lines = tuple(_line(round_, step) for step in round_.steps)
    problem = Problem(round_.source.shape(block), lines, itemsize, inside)
    return PiecePlan(round_, block, source, target, find_schedule(problem, limits, work))


def _line(round_: Round, step: Step) -> Line:
    filtered = step.convolve is not None
    splits = step.kind == "c2c" and not filtered
    return Line(round_.dim(step), step.length, step.kind, splits, filtered)


class _Piece:
    """One piece in one crossing, while what is done with it is written down."""

    def __init__(self, plan: PiecePlan, number: int, piece: Block) -> None:
        self.plan, self.piece = plan, piece
        self.crossing: Crossing = plan.schedule.crossings[number]
        self.inner = plan.rounds[number]
        axes = self.inner.source.axes
        #: Dimension of the piece at which each dimension of the block begins.
        self.firsts = list(itertools.accumulate((len(a.groups) for a in axes), initial=0))[:-1]
        intervals = [axis.intervals(i) for axis, i in zip(axes, piece, strict=True)]
        self.starts = [low for found in intervals for low, _ in found]
        steps, factors = plan.round.steps, plan.schedule.factors
        self.begun = [steps[i] for i, j in self.crossing.digits if j == 0]
        self.ended = [steps[i] for i, j in self.crossing.digits if j == len(factors[i]) - 1]
        self.offsets = list(itertools.accumulate(self.crossing.places, initial=0))
        self.filters: list[Filter] = []
        self.done: list[Computation] = []
        real = np.empty(0, plan.dtype).real.dtype.str
        comes = real if any(step.kind == "r2c" for step in self.begun) else plan.dtype
        self.real, self.source = real, DeviceArray(0, self.inner.source.shape(piece), comes)
        self.now, self.place = self.source, 0

    def work(self) -> PieceWork:
        """All that is done."""
        for step in self.begun:
            if step.kind == "r2c":
                self._real_fft(step, self.plan.dtype)
        self._before()
        self._ffts([step for step in self.inner.steps if step.kind == "c2c"])
        for step in self.ended:
            if step.convolve is not None:
                self._convolve(step)
        self._after()
        for step in self.ended:
            if step.kind == "c2r":
                self._real_fft(step, self.real)
        order = self.crossing.order
        if self.crossing.reorders:
            shape = tuple(self.now.shape[dim] for dim in order)
            self._elsewhere(Transpose(self.now.shape, order, self.now.dtype), shape, self.now.dtype)
        part = tuple(
            slice(low, low + n) for low, n in zip(self.starts, self.source.shape, strict=True)
        )
        changed = {self._dim(step) for step in self.plan.round.steps if step.kind != "c2c"}
        ends = [
            slice(0, n) if dim in changed and n != before else cut
            for dim, (n, before, cut) in enumerate(
                zip(self.crossing.after, self.crossing.view, part, strict=True)
            )
        ]
        return PieceWork(
            self.crossing.view, part, self.source, tuple(self.filters), tuple(self.done),
            self.now, self.crossing.after, order, tuple(ends[dim] for dim in order),
        )

    # --- operations -------------------------------------------------------------------------

    def _inside(self, op: Compute) -> None:
        self.done.append(Computation(op, self.now, self.now))

    def _elsewhere(self, op: Compute, shape: tuple[int, ...], dtype: str) -> None:
        """An operation whose result cannot lie where its source does."""
        self.place = 1 - self.place
        target = DeviceArray(self.offsets[self.place], shape, dtype)
        self.done.append(Computation(op, self.now, target))
        self.now = target

    def _real_fft(self, step: Step, dtype: str) -> None:
        dim, before = self._dim(step), self.now.shape
        n = step.length if step.kind == "c2r" else step.length // 2 + 1
        after = (*before[:dim], n, *before[dim + 1 :])
        sign = 1 if step.kind == "c2r" else -1
        op = FFT(step.kind, before, after, (dim,), sign, self.plan.dtype)
        self._elsewhere(op, after, dtype)

    def _ffts(self, steps: list[Step]) -> None:
        """Complex FFTs of one sign together."""
        by_sign: dict[int, list[int]] = {}
        for step in steps:
            by_sign.setdefault(step.sign, []).append(self.inner.dim(step))
        shape = self.now.shape
        for sign, dims in by_sign.items():
            self._inside(FFT("c2c", shape, shape, tuple(sorted(dims)), sign, self.plan.dtype))

    def _convolve(self, step: Step) -> None:
        """Multiply by the spectrum of a filter, and transform back."""
        axis = self.plan.round.source.axes[step.axis]
        first = self.plan.dims[self.plan.round.steps.index(step)] - len(axis.groups) + 1
        dims = range(first, first + len(axis.groups))
        shape = tuple(n if d in dims else 1 for d, n in enumerate(self.now.shape))
        part = tuple(
            slice(self.starts[d], self.starts[d] + self.now.shape[d]) for d in dims
        )
        offset = self.offsets[len(self.offsets) - 2 - len(self.filters)]
        array = DeviceArray(offset, shape, self.plan.dtype)
        whole = axis.shape(self.plan.block[step.axis])
        self.filters.append(Filter(step.axis, whole, part, array))
        op = Product(self.now.shape, shape, self.plan.dtype)
        self.done.append(Computation(op, array, self.now))
        dim, shape = self._dim(step), self.now.shape
        self._inside(FFT("c2c", shape, shape, (dim,), -step.sign, self.plan.dtype))

    def _before(self) -> None:
        """What is multiplied before complex FFTs."""
        conjugate = any(step.kind == "r2c" and step.sign > 0 for step in self.begun)
        chirps, scale = [], 1.0
        for step in self.begun:
            if step.chirp_in is not None:
                chirp = step.chirp_in
                place = self._index(self.plan.round.source, step, step.source.stage)
                place += self._digits(step, 0, step.source.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place))
                scale *= _scale(chirp.scale, chirp.length)
        self._multiply(scale, conjugate, (), tuple(chirps))

    def _after(self) -> None:
        """What is multiplied after complex FFTs."""
        scale, target = 1.0, self.plan.round.target
        twiddles, chirps = [], []
        for inner in self.inner.steps:
            if inner.twiddle is not None:
                left = Term(self.inner.dim(inner), 0, 1, NO_MODULUS, 1)
                right = self._still_to_come(inner)
                twiddles.append(Twiddle(inner.twiddle, inner.sign, (left,), right))
        for step in self.ended:
            sign = step.sign if step.convolve is None else -step.sign
            scale *= _scale(step.scale, step.length)
            if step.convolve is not None:
                scale *= _scale("full", step.length)
            if step.twiddle is not None:
                right = self._index(target, step, step.target.stage - 1)
                left_terms = self._digits(step, 1, 1)
                twiddles.append(Twiddle(step.twiddle, sign, left_terms, right))
            if step.chirp_out is not None:
                chirp = step.chirp_out
                place = self._index(target, step, step.target.stage)
                place += self._digits(step, 1, step.target.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place))
                scale *= _scale(chirp.scale, chirp.length)
        conjugate = any(step.kind == "c2r" and step.sign < 0 for step in self.ended)
        if conjugate:  # of the product: the factors' signs turn as well
            twiddles = [replace(found, sign=-found.sign) for found in twiddles]
            chirps = [replace(found, sign=-found.sign) for found in chirps]
        self._multiply(scale, conjugate, tuple(twiddles), tuple(chirps))

    def _multiply(
        self,
        scale: float,
        conjugate: bool,
        twiddles: tuple[Twiddle, ...],
        chirps: tuple[ChirpFactor, ...],
    ) -> None:
        if scale != 1.0 or conjugate or twiddles or chirps:
            shape, dtype = self.now.shape, self.plan.dtype
            self._inside(Multiply(shape, dtype, scale, conjugate, twiddles, chirps))

    # --- indices ----------------------------------------------------------------------------

    def _dim(self, step: Step) -> int:
        """Dimension of the piece at which the digits of a step of the round begin."""
        return self.firsts[self.plan.dims[self.plan.round.steps.index(step)]]

    def _digits(self, step: Step, stage: int, stride: int) -> tuple[Term, ...]:
        """Index of a step's digit, of which the piece may have several digits."""
        dim = self.plan.dims[self.plan.round.steps.index(step)]
        layout = self.inner.source if stage == 0 else self.inner.target
        found = []
        for place, group in enumerate(layout.axes[dim].groups, self.firsts[dim]):
            terms = _digit_terms(group.digits, self.starts[place], stage, place)
            found += [replace(term, stride=term.stride * stride) for term in terms]
        return tuple(found)

    def _still_to_come(self, inner: Step) -> tuple[Term, ...]:
        """Index made of the digits of a split dimension that are still to be transformed."""
        groups = self.inner.target.axes[inner.axis].groups
        return tuple(
            term
            for place, group in enumerate(groups, self.firsts[inner.axis])
            for term in _digit_terms(group.digits, self.starts[place], 0, place)
        )

    def _index(self, layout: Layout, step: Step, stage: int) -> tuple[Term, ...]:
        """Index made of the digits of one stage of the other dimensions of a step's axis."""
        axis, block = layout.axes[step.axis], self.plan.block[step.axis]
        first = sum(len(other.groups) for other in layout.axes[: step.axis])
        own = self.plan.dims[self.plan.round.steps.index(step)]
        found: list[Term] = []
        pairs = zip(axis.groups, axis.intervals(block), strict=True)
        for dim, (group, (low, _)) in enumerate(pairs, first):
            if dim != own:
                place = self.firsts[dim]
                found += _digit_terms(group.digits, low + self.starts[place], stage, place)
        return tuple(found)
