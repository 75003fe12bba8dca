"""Candidates for a plan: every way to put the steps of all axes into rounds.

The lengths of the digits of a split axis follow from the other axes that are whole in their rounds.
The blocks of a round follow from the cuts before it (`layouts`).
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.factors import (
    balanced_split,
    divisors,
    smooth_length,
    transposed_digits,
)
from dask_bigfft.decomposition.layout import AxisLayout, Group, Layout, NoCommonDigits, plain_layout
from dask_bigfft.decomposition.rounds import Round, exchange_shape
from dask_bigfft.decomposition.steps import AxisProgram, axis_program
from dask_bigfft.planner.layouts import Assignment, BlockCutter, Sizes
from dask_bigfft.planner.plan_data import (
    Exchange,
    Machine,
    Request,
    flattened,
    largest_block,
    written_in_order,
)
from dask_bigfft.planner.rows import is_split, reads_rows, row_factors, split_result
from dask_bigfft.planner.seconds import Model, Stage, flops, is_real
from dask_bigfft.transforms.spec import TransformSpec

Factors = tuple[int, ...]


def nearest_divisors(n: int, ideal: float) -> list[int]:
    """Return the proper divisors of n just below and just above `ideal`."""
    inner = [d for d in divisors(n) if 1 < d < n]
    place = bisect.bisect_right(inner, ideal)
    return inner[max(0, place - 1) : place + 1]


def few_source_factors(n: int, most: int) -> list[Factors]:
    """Return three digits of an axis in very many chunks, for blocks of few source blocks each.

    A block of the first round is gathered from at least as many chunks as its digit is long. The
    second digit is short, too: a chunk of the first round has many of its values, and much of the
    third digit.

    Parameters
    ----------
    n : int
        Length of the axis.
    most : int
        Blocks that a block may be gathered from.

    Examples
    --------
    >>> few_source_factors(2**39, 4096)[0], few_source_factors(7, 4096)
    ((4096, 512, 262144), [])
    """
    first = max((d for d in divisors(n) if d <= most), default=1)
    seconds = {d for ideal in (512, 1536) for d in nearest_divisors(n // first, ideal)}
    return [(first, d, n // first // d) for d in sorted(seconds) if first > 1]


def program_of(
    spec: TransformSpec, axis: int, factors: Factors, *, bluestein: bool = False
) -> AxisProgram:
    """Return the program of one axis of a transform."""
    i = spec.axes.index(axis)
    return axis_program(
        axis,
        spec.lengths[i],
        factors,
        kind=spec.kind if axis == spec.axes[-1] else "c2c",
        sign=spec.sign,
        order_in=spec.orders_in[i],
        order_out=spec.orders_out[i],
        digits=spec.digits_of(axis),
        bluestein=bluestein,
        waves=spec.waves if bluestein else None,
    )


def with_padding(source: Layout, programs: dict[int, AxisProgram]) -> Layout:
    """Return the source with the digits of programs, which include Bluestein's padding."""
    axes = [
        AxisLayout((Group(programs[a].source, axis.groups[0].chunks),)) if a in programs else axis
        for a, axis in enumerate(source.axes)
    ]
    return Layout(tuple(axes))


def assignments(spec: TransformSpec, steps: dict[int, int], rounds: int) -> Iterator[Assignment]:
    """Yield the assignments of the steps of all axes to exactly `rounds` rounds.

    Real input is halved in the first round, real output is made in the last.
    """
    choices = []
    for axis in spec.axes:
        places = list(itertools.combinations(range(rounds), steps[axis]))
        if axis == spec.real_axis and spec.kind == "r2c":
            places = [p for p in places if p[0] == 0]
        if axis == spec.real_axis and spec.kind == "c2r":
            places = [p for p in places if p[-1] == rounds - 1]
        choices.append(places)
    for chosen in itertools.product(*choices):
        if len({r for places in chosen for r in places}) == rounds:
            yield dict(zip(spec.axes, chosen, strict=True))


def digits_of_splits(axes: Sequence[int], count: int, most: int) -> Iterator[dict[int, int]]:
    """Yield digit counts per axis, with `count` of the axes split into 2 to `most` digits."""
    for chosen in itertools.combinations(axes, count):
        for numbers in itertools.product(range(2, most + 1), repeat=count):
            yield dict.fromkeys(axes, 1) | dict(zip(chosen, numbers, strict=True))


#: First of two digits of an axis on several GPUs, which cuFFT transforms at a large stride: 2^31
#: values take 48 ms in 256 x 2^23 and 65 in 2^15 x 2^16 (four H200).
FIRST_ON_GPUS = 256

#: Maximum fan-in of a block. Beyond it blocks are made larger.
MAX_FAN_IN = 4096

#: Maximum number of digits of an axis in the search (Pease's variant may need more).
MOST_DIGITS = 3

#: Maximum price of a candidate that is followed, in units of the cheapest.
DEARER = 1.5

#: Penalty of a plan whose blocks are twice as large as wanted.
OVERSIZE = 0.5


@dataclass(frozen=True)
class Candidate:
    """Rounds with their blocks, the result's blocks, and the price with its penalty for size."""

    programs: tuple[AxisProgram, ...]
    rounds: tuple[Round, ...]
    result: Layout
    seconds: float
    travelling: int
    from_rows: bool = False
    penalty: float = 1.0
    strided: int = 0

    @property
    def rank(self) -> tuple[float, int, int, int, int, int, float, tuple[int, ...]]:
        """Sort key: price, then steps, rounds, exchanges, strides, similar sizes, and early steps.

        Gu, Siegel and Li (2011, section 6.2) reorder steps to get rounds of similar sizes.
        """
        counts = tuple(-len(round_.steps) for round_ in self.rounds)
        work = [flops(round_) for round_ in self.rounds]
        largest = round(max(work) / max(sum(work), 1.0), 1)
        steps = -sum(counts)
        most = -min(counts)
        seconds = float(f"{self.seconds:.2g}")
        first = seconds, steps, len(counts), self.travelling, self.strided
        return *first, most, largest, counts


class Candidates:
    """Candidates of one request, under one size of blocks."""

    def __init__(
        self,
        spec: TransformSpec,
        request: Request,
        machine: Machine,
        storage: str = "memory",
        near: bool = False,
    ) -> None:
        self.spec = spec
        self.request = request
        self.machine = machine
        self.storage = storage
        #: Whether the first round reads a stored array itself though its blocks come in as it has
        #: them: what a task that does nothing but read needs of memory is then not needed.
        self.near = near
        dtype = spec.work_dtype.name
        self.model = Model(machine, request.kernel, dtype, storage, request.verify, request.device)
        self.itemsize = spec.work_dtype.itemsize
        pairs = zip(spec.axes, spec.lengths, strict=True)
        whole = {axis: program_of(spec, axis, (n,)) for axis, n in pairs}
        #: Blocks of the input array.
        self.source = with_padding(plain_layout(spec.shape, request.chunks), whole)
        windows = {axis: (start, count) for axis, start, count in spec.windows}
        in_place = self.on_gpu or machine.holding > 1
        self.cutter = BlockCutter(request.variant, windows, request.wanted, in_place)
        #: Size of the largest input block in complex elements.
        self.largest_in = largest_block(spec, request)
        #: Price beyond which candidates are not followed: a multiple of the cheapest so far.
        self.bound = math.inf
        self.dearer = DEARER
        self.kept: dict[Sizes, list[Candidate]] = {}

    @property
    def on_gpu(self) -> bool:
        """Return whether rounds are done on devices; verified ones are not."""
        possible = self.request.device in ("auto", "gpu") and self.request.verify == "none"
        return possible and bool(self.model.devices)

    def build(
        self, programs: dict[int, AxisProgram], assignment: Assignment, sizes: Sizes
    ) -> Candidate | None:
        """Return the candidate of an assignment; None if its blocks do not fit."""
        source = with_padding(self.source, programs)

        def cost(before: Layout, after: Layout) -> float:
            moves = before is not source or not self._reads_rows(source, after)
            stage = Stage(before, None, after, moves=moves)
            blocks = max(1, after.blocks)
            nbytes = after.size * self.itemsize / blocks
            read = self.model.read(stage.shape, nbytes) if self.on_gpu else None
            return self.model.stage(stage).seconds if read is None else read * blocks

        try:
            ways = self.cutter.rounds(programs, assignment, source, sizes, cost, self.bound)
            found = [self._candidate(programs, source, rounds, sizes) for rounds in ways]
        except NoCommonDigits:  # of the rounds and of the requested order
            return None
        best = min((c for c in found if c is not None), key=lambda c: c.seconds, default=None)
        if best is not None:
            self.bound = min(self.bound, self.dearer * best.seconds)
        return best

    def _candidate(
        self,
        programs: dict[int, AxisProgram],
        source: Layout,
        rounds: tuple[Round, ...],
        sizes: Sizes,
    ) -> Candidate | None:
        """Return the candidate of some rounds, with its result and price."""
        last = rounds[-1].target
        flat = flattened(last)
        result = self.cutter.result(programs, last, flat)
        split = flat != result and self._as_split(programs, last, result)
        result = split or result
        after = None if flat == result else result
        from_rows = self._reads_rows(source, rounds[0].source)
        layouts = [source, *(layout for r in rounds for layout in (r.source, r.target))]
        pairs = zip(layouts[::2], [*layouts[1::2], after], strict=True)
        shapes = [exchange_shape(a, b) for a, b in pairs if b is not None]
        if max(shape.fan_in for shape in shapes) > MAX_FAN_IN:
            return None
        moves = (not from_rows, *(True,) * (len(rounds) - 1), not split)
        shared = None
        name = self.spec.out_dtype.str
        if after is not None and self.on_gpu and self.machine.shared and self.spec.kind == "c2c":
            shared = written_in_order(rounds, Exchange(last, after, name, name))
        route = self.model.route(source, rounds, after, moves, shared)
        seconds = sum(found.seconds for found in route)
        largest = max(r.source.largest // (2 if is_real(r) else 1) for r in rounds)
        penalty = 1 + OVERSIZE * max(0.0, largest / (sizes.last * sizes.target) - 1)
        seconds *= penalty
        in_order = tuple(programs[axis] for axis in self.spec.axes)
        travelling = sum(
            moved and not shape.local for shape, moved in zip(shapes, moves, strict=False)
        )
        # cuFFT needs 6 times as long for two axes that are both strided as for others (H200).
        last_axes = [max(step.axis for step in r.steps) for r in rounds if len(r.steps) > 1]
        several = self.machine.holding > 1
        ndim = len(self.spec.shape)
        strided = several * sum(axis + 1 < ndim for axis in last_axes)
        return Candidate(in_order, rounds, result, seconds, travelling, from_rows, penalty, strided)

    def _reads_rows(self, source: Layout, first: Layout) -> bool:
        """Return whether the first round reads rows of the stored array, without scratch files."""
        stored = self.request.stored
        spec = self.spec
        if stored is None or self.storage != "disk" or spec.kind == "c2r":
            return False
        if exchange_shape(source, first).local and not self.near:
            return False
        return reads_rows(stored, source, first, np.dtype(spec.dtype).itemsize)

    def _as_split(
        self, programs: dict[int, AxisProgram], last: Layout, result: Layout
    ) -> Layout | None:
        """Return the result in chunks that split the last round's blocks; None if impossible."""
        spec = self.spec
        halved = spec.real_axis is not None and len(programs[spec.real_axis].steps) > 1
        if self.storage != "disk" or halved:
            return None
        if is_split(last, result):
            return result
        if self.request.stored is None or self.request.wanted is not None or spec.windows:
            return None
        return split_result(last, result, self.row)

    def split_candidates(
        self, digits: dict[int, int], rounds: int, sizes: Sizes, padded: dict[int, Factors]
    ) -> Iterator[Candidate]:
        """Yield candidates with given numbers of digits per axis.

        `padded` has the digits of the axes that use Bluestein's algorithm.
        """
        spec = self.spec
        alone = sum(count > 1 for count in digits.values()) == 1
        steps = digits | {axis: 2 * len(factors) - 1 for axis, factors in padded.items()}
        for assignment in assignments(spec, steps, rounds):
            whole = dict[int, int]()
            choices = list[list[Factors]]()
            for axis, n in zip(spec.axes, spec.lengths, strict=True):
                if digits.get(axis) == 1:
                    place = assignment[axis][0]
                    whole[place] = whole.get(place, 1) * n
            for axis, n in zip(spec.axes, spec.lengths, strict=True):
                if axis in padded:
                    choices.append([padded[axis]])
                elif axis == self.rectangle:
                    choices.append(self._rectangle_factors(digits[axis]))
                elif digits[axis] == 1:
                    choices.append([(n,)])
                elif padded:
                    choices.append([found] if (found := balanced_split(n, digits[axis])) else [])
                else:
                    factors = self._choices(axis, assignment[axis], whole, sizes.target)
                    # The first ones are the digits of the requested order.
                    choices.append(factors if alone else factors[:1])
            for chosen in itertools.product(*choices):
                programs = {
                    axis: program_of(spec, axis, f, bluestein=axis in padded)
                    for axis, f in zip(spec.axes, chosen, strict=True)
                }
                if self._mirrors_padding(programs, assignment, rounds):
                    continue
                if (candidate := self.build(programs, assignment, sizes)) is not None:
                    yield candidate

    def _choices(
        self, axis: int, places: tuple[int, ...], whole: dict[int, int], target: int
    ) -> list[Factors]:
        """Return digit lengths of a split axis that are worth trying.

        The digits of the requested order come first. `whole` is the product of the lengths of the
        unsplit axes in each round. Digits are chosen so that rounds have similar sizes (Gu, Siegel
        and Li 2011, section 6.2).
        """
        spec = self.spec
        count = len(places)
        found = list[Factors]()
        i = spec.axes.index(axis)
        n = spec.lengths[i]
        digits = spec.digits_of(axis)
        for order, named in ((spec.orders_in[i], digits[::-1]), (spec.orders_out[i], digits)):
            if order == "transposed" and len(named) == count:
                found.append(named)
        several = count == 2 and self.machine.holding > 1
        if count == 2:
            ideal = math.sqrt(n * whole.get(places[1], 1) / whole.get(places[0], 1))
            near = nearest_divisors(n, FIRST_ON_GPUS if several else ideal)
            # On GPUs a short second digit is tried first: rows in natural order are then wide.
            found += [(d, n // d) for d in (near[::-1] if self.on_gpu else near)]
        split = balanced_split(n, count)
        if split is not None and not several:
            found += [split, split[::-1]]
            if count > 2:
                found.append((*split[: count // 2], split[-1], *split[count // 2 : -1]))
        chunks = len(self.request.chunks[axis])
        stored = self.request.stored
        if self.request.variant == "pease":
            found = [f for f in found if len(set(f)) == 1]
        elif self.request.variant == "auto" and count == 3 and chunks > MAX_FAN_IN:
            found += few_source_factors(n, MAX_FAN_IN)
        elif self.request.variant == "auto" and count == 2 and self.storage == "disk" and stored:
            natural = {spec.orders_in[i], spec.orders_out[i]} == {"natural"}
            found += row_factors(n, target, self.row) if natural else []
        return list(dict.fromkeys(found))

    @property
    def row(self) -> int:
        """Minimum elements of a row that is read alone."""
        stored = self.request.stored
        return max(1, -(-(0 if stored is None else stored.row_nbytes) // self.itemsize))

    @cached_property
    def rectangle(self) -> int | None:
        """The real axis if its half spectrum is stored in digits, which the rounds must produce.

        From other digits it would take a mirror image and thus an exchange.
        """
        spec = self.spec
        axis = self.spec.real_axis
        if axis is None:
            return None
        order = spec.orders_in[-1] if spec.kind == "c2r" else spec.orders_out[-1]
        return axis if order == "transposed" and len(spec.digits_of(axis)) > 1 else None

    def _rectangle_factors(self, count: int) -> list[Factors]:
        digits = self.spec.digits_of(self.spec.axes[-1])
        backwards = self.spec.kind == "c2r" or self.spec.orders_in[-1] == "transposed"
        return [digits[::-1] if backwards else digits] if len(digits) == count else []

    def in_place(self) -> list[Candidate]:
        """Return candidates for axes that are whole in every block."""
        digits = dict.fromkeys(self.spec.axes, 1)
        if self.rectangle is not None:
            digits[self.rectangle] = len(self.spec.digits_of(self.rectangle))
        rounds = max(digits.values())
        return list(self.split_candidates(digits, rounds, Sizes(2**62, 2**62), {}))

    def splits(self, sizes: Sizes) -> list[Candidate]:
        """Return all candidates without Bluestein's algorithm, few rounds and splits first."""
        spec = self.spec
        axes = self.spec.axes
        pease = self.request.variant == "pease"
        one_cut_axis = len(axes) == 1 and len(self.request.chunks[axes[0]]) > 1
        orders = zip(spec.lengths, spec.orders_in, spec.orders_out, strict=True)
        in_digits = [len(transposed_digits(n)) > 1 for n, *order in orders if "transposed" in order]
        # If whole axes fit, splits of one of several only pay where they save a crossing of a bus.
        best_whole = len(axes) > 1 and not any(in_digits) and not self.on_gpu
        found = list[Candidate]()
        enough = None
        for rounds in range(1, self.request.max_rounds + 1):
            if enough is not None and rounds > enough:
                break
            for count in range(len(axes) + 1):
                # Axes whose result is in digits may be split although fewer splits would do.
                many = count > max(1, sum(in_digits))
                if many and any(len(c.rounds) == rounds for c in found):
                    break
                whole = found and max(len(program.factors) for program in found[0].programs) == 1
                if count == 1 and found and (len(axes) > 3 or (best_whole and whole)):
                    break
                most = rounds if pease else min(rounds, MOST_DIGITS)
                if pease and count == 0 and one_cut_axis:
                    continue  # an axis gathered whole has no geometry
                for digits in digits_of_splits(axes, count, most):
                    if self.rectangle is not None and digits[self.rectangle] == 1:
                        continue
                    if max(digits.values()) > rounds or sum(digits.values()) < rounds:
                        continue
                    found += self.split_candidates(digits, rounds, sizes, {})
            if found and enough is None:
                enough = rounds + 1
        return found

    def bluestein(self, sizes: Sizes) -> list[Candidate]:
        """Return candidates that use Bluestein's algorithm for axes without a useful split."""
        spec = self.spec
        padded: dict[int, Factors] = {}
        for axis, n in zip(spec.axes, spec.lengths, strict=True):
            awkward = len(transposed_digits(n)) == len(spec.digits_of(axis)) == 1
            if spec.waves is not None or (n > sizes.target and awkward):
                padded[axis] = transposed_digits(smooth_length(2 * n - 1))
        if not padded:
            return []
        found: list[Candidate] = []
        regular = [axis for axis in spec.axes if axis not in padded]
        most = max(3, self.request.max_rounds)  # fewer than three cannot do it
        for rounds, count in itertools.product(range(3, most + 1), range(len(regular) + 1)):
            for digits in digits_of_splits(regular, count, 2):
                found += self.split_candidates(digits, rounds, sizes, padded)
            if found:
                break
        return found

    def _mirrors_padding(
        self, programs: dict[int, AxisProgram], assignment: Assignment, rounds: int
    ) -> bool:
        """Return whether a split half spectrum would be completed while another axis is padded.

        -k modulo N is not a map between the digits of a padded length.
        """
        real = self.spec.real_axis
        halved = self.spec.kind == "r2c" and real is not None and len(programs[real].factors) > 1
        if not halved or self.rectangle is not None:  # which is not completed in digits
            return False
        return any(
            programs[axis].bluestein and assignment[axis][-1] == rounds - 1
            for axis in self.spec.axes
            if axis != real
        )
