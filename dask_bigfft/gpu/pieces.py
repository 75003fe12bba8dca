"""`PiecePlan`: what is done with a block on a device, piece by piece.

Made where the block is, from a round, a block and what the device may use; so that workers with
unlike cards make unlike piece plans of one plan. The crossings come from `schedule`, what is
computed on a piece from `work`.

Imports `decomposition`, `planner`, `errors` and this room.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.factors import factorize
from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import AxisProgram, Step, axis_program
from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu.limits import PieceLimits
from dask_bigfft.gpu.operations import FFT
from dask_bigfft.gpu.piecework import Block, PieceWork, Trip
from dask_bigfft.gpu.problem import Line, Problem
from dask_bigfft.gpu.ragged import Window
from dask_bigfft.gpu.schedule import Schedule, find_schedule
from dask_bigfft.gpu.swaps import swap_works
from dask_bigfft.gpu.work import piece_work
from dask_bigfft.planner.notation import axis_letter

#: Characters of the dtypes that devices compute in: single and double precision.
COMPUTED = "fdFD"

#: Lengths from here on are not left to one FFT of the device if a prime factor of theirs is larger
#: than `MOST_PRIME`: cuFFT does such by longer ones, for which it wants much memory, and refuses
#: those of 2^31 and more.
AWKWARD = 1 << 27

#: Largest prime factor that FFT libraries of devices have kernels for.
MOST_PRIME = 127


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
    window : Window or None
        What the block has of one around it that the last crossing would write.
    """

    round: Round
    block: Block
    source: str
    target: str
    schedule: Schedule
    window: Window | None = None

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
            _program(dim, step, factors)
            for dim, step, factors in zip(
                self.dims, self.round.steps, self.schedule.factors, strict=True
            )
        ]
        by_dim = dict(zip(self.dims, programs, strict=True))
        axes = []
        for dim, n in enumerate(self.round.source.shape(self.block)):
            digits: tuple[Digit, ...] = (Digit(0, 1, n, n),)
            if dim in by_dim:
                program = by_dim[dim]
                digits = tuple(step.source for step in program.steps[: len(program.factors)])
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

    def shape(self, number: int) -> tuple[int, ...]:
        """Shape of what a crossing writes."""
        if number == len(self.schedule.crossings) - 1:
            found = self.round.target.shape(self.block)
            return found if self.window is None else self.window.shape
        crossing = self.schedule.crossings[number]
        return tuple(crossing.after[dim] for dim in crossing.order)

    def moves(self, number: int) -> bool:
        """Whether a crossing writes pieces to other places than it read them from.

        In another order; or of a spectrum of which half comes, or goes, and the digits have the
        other half as well: that lies elsewhere, also where both are as many values.
        """
        crossing, factors = self.schedule.crossings[number], self.schedule.factors
        for i, j in crossing.digits:
            halved = {"c2r": 0, "r2c": len(factors[i]) - 1}.get(self.round.steps[i].kind)
            if len(factors[i]) > 1 and j == halved:
                return True
        return crossing.reorders

    def works(self, number: int) -> Iterator[PieceWork]:
        """What is done with each piece in a crossing."""
        crossing = self.schedule.crossings[number]
        if crossing.swap is not None:
            yield from swap_works(crossing, self.dtype)
            return
        trip = self._trip(number)
        for piece in trip.inner.source.indices():
            yield piece_work(trip, piece)

    @property
    def divides(self) -> bool:
        """Whether pieces need nothing of each other: one crossing, written as it was read."""
        (first, *others) = self.schedule.crossings
        return (
            not others and not first.reorders and first.view == self.round.source.shape(self.block)
        )

    def within(self, dim: int, low: int, high: int, width: int) -> Iterator[PieceWork]:
        """What is done with a part of a block that `divides`, in pieces of some width.

        Parameters
        ----------
        dim : int
            Dimension of the block that is not transformed.
        low, high : int
            Where the part begins along it, and where it ends.
        width : int
            Of a piece at most; no wider than those of the plan.
        """
        crossing = self.schedule.crossings[0]
        widths = [min(width, high - at) for at in range(low, high, width)]
        ends = [n for n in (low, crossing.view[dim] - high) if n]
        cuts = (*ends[: low > 0], *widths, *ends[low > 0 :])
        chunks = (*crossing.chunks[:dim], cuts, *crossing.chunks[dim + 1 :])
        steps, layout = self.rounds[0].steps, _cut(self.rounds[0].source, chunks)
        trip = replace(self._trip(0), inner=Round(steps, layout, transformed(layout, steps)))
        first = int(low > 0)
        for piece in layout.indices():
            if first <= piece[dim] < first + len(widths):
                yield piece_work(trip, piece)

    def _trip(self, number: int) -> Trip:
        return Trip(
            self.round,
            self.block,
            self.dims,
            self.schedule.factors,
            self.schedule.crossings[number],
            self.rounds[number],
            self.dtype,
            self._real_parts,
            self.window if number == len(self.schedule.crossings) - 1 else None,
        )

    @property
    def _real_parts(self) -> bool:
        """Whether the block after the round is the real parts of a convolution."""
        filtered = any(step.convolve is not None for step in self.round.steps)
        return filtered and self.target != self.dtype

    @cached_property
    def ffts(self) -> frozenset[FFT]:
        """All different FFTs, whose plans have to exist before the first piece comes."""
        found: set[FFT] = set()
        for number, crossing in enumerate(self.schedule.crossings):
            if crossing.swap is not None:
                continue
            corners = itertools.product(*(_ends(len(cut)) for cut in crossing.chunks))
            trip = self._trip(number)
            for corner in corners:
                work = piece_work(trip, _block_of(trip.inner.source, corner))
                found.update(c.op for c in work.computations if isinstance(c.op, FFT))
        return frozenset(found)

    @property
    def notation(self) -> str:
        """Crossings in short, such as ``{Y1} {Y2, X}``; ``swap`` is one that only reorders."""
        letters = []
        for step in self.round.steps:
            letters.append(axis_letter(step.axis, len(self.round.source.axes)))
        return " ".join(
            "swap"
            if crossing.swap is not None
            else "{" + ", ".join(self._name(letters, i, j) for i, j in crossing.digits) + "}"
            for crossing in self.schedule.crossings
        )

    def _name(self, letters: list[str], line: int, step: int) -> str:
        last = len(self.schedule.factors[line]) - 1
        return letters[line] + (str(min(step, 2 * last - step) + 1) if last else "")

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
    order: tuple[int, ...] = (),
    shards: int = 1,
    mirrored: bool = False,
    stores: int = 1,
    window: Window | None = None,
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
    order : tuple of int
        Of a round without steps: dimensions in the order in which they are written.
    shards : int
        Source blocks that the block is read from.
    mirrored : bool
        Whether some of these lie backwards.
    stores : int
        Shards in which it is written.
    window : Window, optional
        What is written.

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
    lines = tuple(_line(round_, step, np.dtype(target).kind == "f") for step in round_.steps)
    shape, blocks = round_.source.shape(block), round_.source.blocks
    problem = Problem(shape, lines, itemsize, inside, order, blocks, shards, mirrored, stores)
    return PiecePlan(round_, block, source, target, find_schedule(problem, limits, work), window)


def _program(dim: int, step: Step, factors: tuple[int, ...]) -> AxisProgram:
    """The steps of a dimension in digits; of a convolution: there, filtered, and back."""
    filtered = step.convolve is not None
    program = axis_program(
        dim, step.length, factors, kind=step.kind, sign=step.sign, bluestein=filtered
    )
    if not filtered or step.sign == program.steps[0].sign:
        return program
    turned = tuple(replace(found, sign=-found.sign) for found in program.steps)
    return replace(program, steps=turned)


def _line(round_: Round, step: Step, real: bool) -> Line:
    filtered = step.convolve is not None
    whole = filtered or step.kind != "c2c" or not awkward(step.length)
    if filtered and step.source.is_partial:
        whole = False  # only digits are completed by zeros
    return Line(round_.dim(step), step.length, step.kind, filtered, whole, real and filtered)


def awkward(n: int) -> bool:
    """Whether a device had better do FFTs of this length in parts.

    >>> awkward(2**31), awkward(2**31 + 2**20), awkward(2**31 - 1)
    (False, True, False)
    """
    return n >= AWKWARD and max(factors := factorize(n)) > MOST_PRIME and sum(factors.values()) > 1
