"""Candidates for a plan: every way to put the steps of all axes into rounds.

The lengths of the digits of a split axis follow from the other axes that are whole in their rounds.
The blocks of a round follow from the cuts before it (`layouts`).
"""

import bisect
import itertools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_bigfft.planner.layouts import Assignment, BlockCutter, Sizes
from dask_bigfft.planner.operators import blocks_before_next, with_inverse
from dask_bigfft.planner.request import Machine, Request, largest_block
from dask_bigfft.planner.rows import is_split, reads_rows, row_factors, split_result
from dask_bigfft.planner.seconds import Model
from dask_bigfft.planner.stages import (
    Exchange,
    SharedLayouts,
    Stage,
    block_dtypes,
    no_shared_layouts,
    stages_of,
    with_buffers,
    written_in_order,
)
from dask_bigfft.transforms.bands import windows_by_axis
from dask_bigfft.transforms.exchanges import exchange_shape
from dask_bigfft.transforms.factors import (
    balanced_split,
    divisors,
    smooth_length,
    transposed_digits,
)
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Group,
    Layout,
    NoCommonDigits,
    flattened,
    plain_layout,
)
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.spec import TransformSpec
from dask_bigfft.transforms.steps import AxisProgram, axis_program, operator_program

Factors = tuple[int, ...]


def nearest_divisors(n: int, ideal: float) -> list[int]:
    """Return the proper divisors of n just below and just above `ideal`."""
    proper_divisors = [d for d in divisors(n) if 1 < d < n]
    place = bisect.bisect_right(proper_divisors, ideal)
    return proper_divisors[max(0, place - 1) : place + 1]


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
    if first == 1:
        return []
    cofactor = n // first
    seconds = {*nearest_divisors(cofactor, 512), *nearest_divisors(cofactor, 1536)}
    return [(first, second, cofactor // second) for second in sorted(seconds)]


def program_of(
    spec: TransformSpec,
    axis: int,
    factors: Factors,
    *,
    bluestein: bool = False,
    fused: bool = True,
) -> AxisProgram:
    """Return the program of one axis of a transform or, `fused` or not, of an operator."""
    if spec.transfer:
        return operator_program(
            axis,
            factors,
            kind=spec.kind_of(axis),
            sign=spec.sign,
            fused=fused,
            length_back=dict(spec.lengths_back).get(axis),
        )
    order_in, order_out = spec.orders_of(axis)
    return axis_program(
        axis,
        spec.length_of(axis),
        factors,
        kind=spec.kind_of(axis),
        sign=spec.sign,
        order_in=order_in,
        order_out=order_out,
        digits=spec.digits_of(axis),
        bluestein=bluestein,
        waves=spec.waves if bluestein else None,
    )


def with_padding(source: Layout, programs: dict[int, AxisProgram]) -> Layout:
    """Return the source with the digits of programs, which include Bluestein's padding."""
    axes = list(source.axes)
    is_padded = False
    for axis, program in programs.items():
        (group,) = axes[axis].groups
        if group.digits != program.source:
            axes[axis] = AxisLayout((Group(program.source, group.chunks, group.offset),))
            is_padded = True
    return Layout(tuple(axes)) if is_padded else source


def input_layout(spec: TransformSpec, chunks: Sequence[Chunks]) -> Layout:
    """Return the blocks of the input; an axis may store a window of its values."""
    pairs = zip(spec.axes, spec.lengths, strict=True)
    whole = {axis: program_of(spec, axis, (n,)) for axis, n in pairs}
    layout = with_padding(plain_layout(spec.shape, chunks), whole)
    axes = list(layout.axes)
    for axis, start, _ in spec.windows_in:
        group = replace(axes[axis].groups[0], offset=start)
        axes[axis] = AxisLayout((group,))
    return Layout(tuple(axes))


def assignments(spec: TransformSpec, steps: dict[int, int], rounds: int) -> Iterator[Assignment]:
    """Yield the assignments of the steps of all axes to exactly `rounds` rounds.

    Real input is halved in the first round, real output is made in the last.
    """
    choices = []
    for axis in spec.axes:
        own_rounds = list(itertools.combinations(range(rounds), steps[axis]))
        if axis == spec.real_axis:
            own_rounds = _for_real_axis(own_rounds, spec, rounds)
        choices.append(own_rounds)
    for chosen in itertools.product(*choices):
        if len(set(itertools.chain(*chosen))) == rounds:
            yield dict(zip(spec.axes, chosen, strict=True))


def _for_real_axis(
    choices: list[tuple[int, ...]],
    spec: TransformSpec,
    rounds: int,
) -> list[tuple[int, ...]]:
    """Return those of some assignments that the real axis may have."""
    if spec.kind == "r2c":
        return [numbers for numbers in choices if numbers[0] == 0]
    if spec.kind == "c2r":
        return [numbers for numbers in choices if numbers[-1] == rounds - 1]
    return choices


def digits_of_splits(axes: Sequence[int], count: int, most: int) -> Iterator[dict[int, int]]:
    """Yield digit counts per axis, with `count` of the axes split into 2 to `most` digits."""
    for chosen in itertools.combinations(axes, count):
        for numbers in itertools.product(range(2, most + 1), repeat=count):
            yield dict.fromkeys(axes, 1) | dict(zip(chosen, numbers, strict=True))


def _balanced_choices(n: int, count: int) -> list[Factors]:
    """Return the most balanced digits of a length in different orders; empty if it has none."""
    split = balanced_split(n, count)
    if split is None:
        return []
    choices = [split, split[::-1]]
    if count > 2:  # the largest in the middle
        choices.append((*split[: count // 2], split[-1], *split[count // 2 : -1]))
    return choices


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


def _runs(stage: Stage) -> int:
    """Return the number of contiguous runs that the exchange of a stage reads."""
    shape = stage.exchange.shape
    return 0 if shape.local else shape.runs * shape.blocks_out


@dataclass(frozen=True)
class Candidate:
    """Rounds with their blocks, the result's blocks, and the price with its penalty for size.

    `flops` are the floating point operations of each round. `shards` is the number of shards of the
    first exchange, which no buffer replaces, and `runs` that of contiguous runs that all exchanges
    read. Both are 0 on GPUs, whose tiles are read otherwise: 2^31 complex64 values with 2^15 in the
    first round have fewer runs than with 2^16, but take 1.2 times as long (H200).
    """

    programs: tuple[AxisProgram, ...]
    rounds: tuple[Round, ...]
    flops: tuple[float, ...]
    result: Layout
    seconds: float
    travelling: int
    from_rows: bool = False
    penalty: float = 1.0
    strided: int = 0
    shards: int = 0
    runs: int = 0

    @property
    def rank(self) -> tuple[float, int, int, int, int, int, int, int, float, tuple[int, ...]]:
        """Sort key of a candidate.

        It is the price, then steps, rounds, exchanges, strides, shards and runs (both in powers of
        two), similar sizes, and early steps. Gu, Siegel and Li (2011, section 6.2) reorder steps to
        get rounds of similar sizes.
        """
        counts = tuple(len(round_.steps) for round_ in self.rounds)
        largest_share = max(self.flops) / max(sum(self.flops), 1.0)
        return (
            float(f"{self.seconds:.2g}"),
            sum(counts),
            len(counts),
            self.travelling,
            self.strided,
            self.shards.bit_length(),
            self.runs.bit_length(),
            max(counts),
            round(largest_share, 1),
            tuple(-count for count in counts),
        )


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
        #: True if the first round reads a stored array itself though its blocks come in as it has
        #: them: what a task that does nothing but read needs of memory is then not needed.
        self.near = near
        dtype = spec.work_dtype.name
        self.model = Model(
            machine,
            request.kernel,
            dtype,
            storage,
            request.verify,
            request.device,
        )
        self.itemsize = spec.work_dtype.itemsize
        #: Blocks of the input array.
        self.source = input_layout(spec, request.chunks)
        self.cutter = BlockCutter(
            variant=request.variant,
            windows=windows_by_axis(spec.windows),
            windows_in=frozenset(axis for axis, _, _ in spec.windows_in),
            wanted_chunks=request.wanted_chunks,
            on_gpu=self.on_gpu or machine.holding > 1,
            crops=machine.holding <= 1,
            like=request.chunks if spec.transfer else None,
            bands={band.axis: band for band in spec.bands_between},
        )
        #: Size of the largest input block in complex elements.
        self.largest_in = largest_block(spec, request)
        #: Price beyond which candidates are not followed: a multiple of the cheapest so far.
        self.bound = math.inf
        self.dearer = DEARER
        #: Candidates without Bluestein's algorithm that were already listed, by size of blocks.
        self.splits_by_sizes: dict[Sizes, list[Candidate]] = {}

    @property
    def on_gpu(self) -> bool:
        """Return whether rounds are done on devices; verified ones are not."""
        possible = self.request.device in ("auto", "gpu") and self.request.verify == "none"
        return possible and bool(self.model.devices)

    def build(
        self,
        programs: dict[int, AxisProgram],
        assignment: Assignment,
        sizes: Sizes,
    ) -> Candidate | None:
        """Return the candidate of an assignment; None if its blocks do not fit."""
        source = with_padding(self.source, programs)
        candidates: list[Candidate] = []
        try:
            for rounds in self._rounds(programs, assignment, source, sizes):
                candidate = self._candidate(
                    programs,
                    source,
                    rounds,
                    sizes,
                )
                if candidate is not None:
                    candidates.append(candidate)
        except NoCommonDigits:  # of the rounds and of the requested order
            return None
        cheapest = min(candidates, key=lambda candidate: candidate.seconds, default=None)
        if cheapest is not None:
            self.bound = min(self.bound, self.dearer * cheapest.seconds)
        return cheapest

    def _rounds(
        self,
        programs: dict[int, AxisProgram],
        assignment: Assignment,
        source: Layout,
        sizes: Sizes,
    ) -> list[tuple[Round, ...]]:
        """Return the rounds of an assignment, for the few cheapest ways to cut their blocks."""

        def cost(before: Layout, after: Layout) -> float:
            """Return the seconds of an exchange."""
            moves = before is not source or not self._reads_rows(source, after)
            return self._exchange_seconds(before, after, moves)

        ways = self.cutter.rounds(
            programs,
            assignment,
            source,
            sizes,
            cost,
            self.bound,
        )
        if not self.spec.transfer:
            return ways
        windows = self.cutter.windows if self.cutter.crops else {}
        bands = self.spec.bands_between
        return [with_inverse(programs, rounds, windows, bands) for rounds in ways]

    def _exchange_seconds(self, before: Layout, after: Layout, moves: bool) -> float:
        """Return the seconds of an exchange; for devices those of loading the blocks.

        `moves` is False if the blocks are read where the array is stored.
        """
        dtype = self.model.dtype
        exchange = Exchange(
            before,
            after,
            dtype,
            dtype,
        )
        if self.on_gpu:
            load = self.model.read(exchange)
            if load is not None:
                return load * max(1, after.blocks)
        stage = Stage(
            exchange,
            None,
            dtype,
            moves=moves,
        )
        return self.model.stage(stage).seconds

    def _candidate(
        self,
        programs: dict[int, AxisProgram],
        source: Layout,
        rounds: tuple[Round, ...],
        sizes: Sizes,
    ) -> Candidate | None:
        """Return the candidate of some rounds, with its result and price.

        None if a block would be gathered from too many blocks.
        """
        from_rows = self._reads_rows(source, rounds[0].source)
        moves = [not from_rows, *[True] * (len(rounds) - 1)]
        last = rounds[-1].target
        flat = flattened(last)  # None if the last blocks are no intervals of whole axes
        result = self.cutter.result(programs, last, flat)
        needs_exchange = flat != result
        if needs_exchange:
            split = self._as_split(programs, last, result)
            moves.append(split is None)
            if split is not None:
                result = split
        stages = stages_of(
            [source, *blocks_before_next(rounds, self.spec.lengths_back)],
            rounds,
            result if needs_exchange else None,
            dtypes=(self.spec.dtype, *block_dtypes(self.spec, rounds)),
        )
        if max(stage.exchange.shape.fan_in for stage in stages) > MAX_FAN_IN:
            return None
        stages = with_buffers(stages, self._shared_layouts(stages, rounds), moves)
        seconds = sum(self.model.stage(stage).seconds for stage in stages)
        penalty = self._oversize_penalty(rounds, sizes)
        return Candidate(
            programs=tuple(programs[axis] for axis in self.spec.axes),
            rounds=rounds,
            flops=tuple(map(self.model.flops, rounds)),
            result=result,
            seconds=penalty * seconds,
            travelling=sum(stage.moves and not stage.exchange.shape.local for stage in stages),
            from_rows=from_rows,
            penalty=penalty,
            strided=self._strided_rounds(rounds),
            shards=0 if self.on_gpu else stages[0].exchange.shape.shards,
            runs=0 if self.on_gpu else sum(map(_runs, stages)),
        )

    def _shared_layouts(
        self,
        stages: Sequence[Stage],
        rounds: tuple[Round, ...],
    ) -> SharedLayouts:
        """Return the shared buffers of rounds on GPUs; the price of others leaves them out."""
        ends_in_exchange = stages[-1].round_ is None
        in_order = self.on_gpu and self.machine.shared and self.spec.kind == "c2c"
        if ends_in_exchange and in_order:
            return written_in_order(rounds, stages[-1].exchange)
        return no_shared_layouts(len(stages), len(rounds))

    def _oversize_penalty(self, rounds: tuple[Round, ...], sizes: Sizes) -> float:
        """Return the factor of the price of rounds whose blocks are larger than wanted."""
        elements = [
            round_.source.largest // 2 if round_.takes_real else round_.source.largest
            for round_ in rounds
        ]
        excess = max(elements) / (sizes.last * sizes.target) - 1
        return 1 + OVERSIZE * max(0.0, excess)

    def _strided_rounds(self, rounds: tuple[Round, ...]) -> int:
        """Return the number of rounds on several GPUs whose FFTs are all strided.

        cuFFT needs 6 times as long for two axes that are both strided as for others (H200).
        """
        if self.machine.holding <= 1:
            return 0
        last_axis = len(self.spec.shape) - 1
        several_axes = [round_ for round_ in rounds if len(round_.steps) > 1]
        return sum(all(step.axis != last_axis for step in round_.steps) for round_ in several_axes)

    def _reads_rows(self, source: Layout, first: Layout) -> bool:
        """Return whether the first round reads rows of the stored array, without scratch files."""
        stored = self.request.stored
        spec = self.spec
        if stored is None or self.storage != "disk" or spec.kind == "c2r":
            return False
        if exchange_shape(source, first).local and not self.near:
            return False
        return reads_rows(
            stored,
            source,
            first,
            np.dtype(spec.dtype).itemsize,
        )

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
        if self.request.stored is None or self.request.wanted_chunks is not None or spec.windows:
            return None
        return split_result(last, result, self.row)

    def split_candidates(
        self,
        digits: dict[int, int],
        rounds: int,
        sizes: Sizes,
        padded: dict[int, Factors],
    ) -> Iterator[Candidate]:
        """Yield candidates with given numbers of digits per axis.

        `padded` has the digits of the axes that use Bluestein's algorithm.
        """
        spec = self.spec
        steps = digits | {axis: 2 * len(factors) - 1 for axis, factors in padded.items()}
        for assignment in assignments(spec, steps, rounds):
            choices = self._factor_choices(
                digits,
                assignment,
                sizes,
                padded,
            )
            for factors_of_axes in itertools.product(*choices):
                programs = self._programs(
                    factors_of_axes,
                    assignment,
                    rounds,
                    padded,
                )
                if self._mirrors_padding(programs, assignment, rounds):
                    continue
                candidate = self.build(programs, assignment, sizes)
                if candidate is not None:
                    yield candidate

    def _programs(
        self,
        factors_of_axes: Sequence[Factors],
        assignment: Assignment,
        rounds: int,
        padded: Container[int],
    ) -> dict[int, AxisProgram]:
        """Return the program of each axis, given its digits.

        `padded` has the axes that use Bluestein's algorithm.
        """
        spec = self.spec
        last_axes = {axis for axis in spec.axes if assignment[axis][-1] == rounds - 1}
        # Where a length changes, the product stands at the end of the forward round.
        turns_back = last_axes.isdisjoint(axis for axis, _ in spec.lengths_back)
        programs = {}
        for axis, factors in zip(spec.axes, factors_of_axes, strict=True):
            programs[axis] = program_of(
                spec,
                axis,
                factors,
                bluestein=axis in padded,
                fused=turns_back and axis in last_axes,
            )
        return programs

    def _factor_choices(
        self,
        digits: dict[int, int],
        assignment: Assignment,
        sizes: Sizes,
        padded: dict[int, Factors],
    ) -> list[list[Factors]]:
        """Return the digit lengths that are worth trying for each axis."""
        choices: list[list[Factors]] = []
        for axis, n in zip(self.spec.axes, self.spec.lengths, strict=True):
            if axis in padded:
                choices.append([padded[axis]])
            elif axis == self.rectangle:
                choices.append(self._rectangle_factors(digits[axis]))
            elif digits[axis] == 1:
                choices.append([(n,)])
            elif padded:
                split = balanced_split(n, digits[axis])
                choices.append([] if split is None else [split])
            else:
                whole = self._whole_lengths(digits, assignment)
                factors = self._choices(
                    axis,
                    assignment[axis],
                    whole,
                    sizes.target,
                )
                is_only_split = sum(count > 1 for count in digits.values()) == 1
                # The first ones are the digits of the requested order.
                choices.append(factors if is_only_split else factors[:1])
        return choices

    def _whole_lengths(self, digits: dict[int, int], assignment: Assignment) -> dict[int, int]:
        """Return the product of the lengths of the axes that are not split, by their round."""
        products: dict[int, int] = {}
        for axis, n in zip(self.spec.axes, self.spec.lengths, strict=True):
            if digits.get(axis) == 1:
                (number,) = assignment[axis]
                products[number] = products.get(number, 1) * n
        return products

    def _choices(
        self,
        axis: int,
        rounds: tuple[int, ...],
        whole: dict[int, int],
        target: int,
    ) -> list[Factors]:
        """Return digit lengths of a split axis that are worth trying.

        `rounds` are the rounds of the digits, and `whole` is the product of the lengths of the
        unsplit axes in each round. The digits of the requested order come first. The list is empty
        if no digits suit the variant.
        """
        count = len(rounds)
        n = self.spec.length_of(axis)
        choices = self._requested_digits(axis, count)
        if count == 2:
            choices += self._pairs(n, rounds, whole)
        if count != 2 or self.machine.holding <= 1:
            choices += _balanced_choices(n, count)
        if self.request.variant == "pease":
            choices = [factors for factors in choices if len(set(factors)) == 1]
        if self.request.variant == "auto":
            choices += self._choices_by_chunks(
                axis,
                n,
                count,
                target,
            )
        return list(dict.fromkeys(choices))

    def _choices_by_chunks(
        self,
        axis: int,
        n: int,
        count: int,
        target: int,
    ) -> list[Factors]:
        """Return digit lengths of an axis in very many chunks, or of one that is read in rows."""
        request = self.request
        if count == 3 and len(request.chunks[axis]) > MAX_FAN_IN:
            return few_source_factors(n, MAX_FAN_IN)
        order_in, order_out = self.spec.orders_of(axis)
        is_natural = order_in == order_out == "natural"
        is_stored = self.storage == "disk" and request.stored is not None
        if count == 2 and is_stored and is_natural:
            return [*row_factors(n, target, self.row)]
        return []

    def _requested_digits(self, axis: int, count: int) -> list[Factors]:
        """Return the digits of the requested orders of an axis, if there are `count` of them."""
        digits = self.spec.digits_of(axis)
        if len(digits) != count:
            return []
        order_in, order_out = self.spec.orders_of(axis)
        requested: list[Factors] = []
        if order_in == "transposed":
            requested.append(digits[::-1])
        if order_out == "transposed":
            requested.append(digits)
        return requested

    def _pairs(self, n: int, rounds: tuple[int, ...], whole: dict[int, int]) -> list[Factors]:
        """Return pairs of digits that give two rounds similar sizes.

        See Gu, Siegel and Li (2011, section 6.2). On several GPUs the first digit is short.
        """
        if self.machine.holding > 1:
            ideal: float = FIRST_ON_GPUS
        else:
            ideal = math.sqrt(n * whole.get(rounds[1], 1) / whole.get(rounds[0], 1))
        firsts = nearest_divisors(n, ideal)
        if self.on_gpu:
            # A short second digit is tried first: rows in natural order are then wide.
            firsts.reverse()
        return [(first, n // first) for first in firsts]

    @property
    def row(self) -> int:
        """Minimum elements of a row that is read alone."""
        if self.request.stored is None:
            return 1
        return max(1, -(-self.request.stored.row_nbytes // self.itemsize))

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
        """Return the digits of the real axis, if there are `count` of them."""
        digits = self.spec.digits_of(self.spec.axes[-1])
        if len(digits) != count:
            return []
        is_reversed = self.spec.kind == "c2r" or self.spec.orders_in[-1] == "transposed"
        return [digits[::-1] if is_reversed else digits]

    def in_place(self) -> list[Candidate]:
        """Return candidates for axes that are whole in every block."""
        digits = dict.fromkeys(self.spec.axes, 1)
        if self.rectangle is not None:
            digits[self.rectangle] = len(self.spec.digits_of(self.rectangle))
        rounds = max(digits.values())
        return list(
            self.split_candidates(
                digits,
                rounds,
                Sizes(2**62, 2**62),
                {},
            )
        )

    def splits(self, sizes: Sizes) -> list[Candidate]:
        """Return all candidates without Bluestein's algorithm, few rounds and splits first."""
        candidates: list[Candidate] = []
        most_rounds = self.request.max_rounds
        rounds = 1
        while rounds <= most_rounds:
            had_none = not candidates
            self._add_splits(candidates, rounds, sizes)
            if candidates and had_none:
                # One more round than the fewest may be cheaper, two more are not.
                most_rounds = min(most_rounds, rounds + 1)
            rounds += 1
        return candidates

    def _add_splits(self, candidates: list[Candidate], rounds: int, sizes: Sizes) -> None:
        """Add the candidates of a number of rounds, as long as splits of more axes can pay."""
        axes = self.spec.axes
        is_pease = self.request.variant == "pease"
        most_digits = rounds if is_pease else min(rounds, MOST_DIGITS)
        for split_axes in range(len(axes) + 1):
            if self._is_enough(candidates, rounds, split_axes):
                return
            if is_pease and split_axes == 0 and self._is_one_cut_axis:
                continue  # an axis gathered whole has no geometry
            for digits in digits_of_splits(axes, split_axes, most_digits):
                if self._fills_rounds(digits, rounds):
                    candidates += self.split_candidates(
                        digits,
                        rounds,
                        sizes,
                        {},
                    )

    def _fills_rounds(self, digits: dict[int, int], rounds: int) -> bool:
        """Return whether numbers of digits per axis can fill a number of rounds."""
        if self.rectangle is not None and digits[self.rectangle] == 1:
            return False
        if any(digits[axis] > 1 for axis, _ in self.spec.lengths_back):
            return False
        return max(digits.values()) <= rounds <= sum(digits.values())

    def _is_enough(self, candidates: list[Candidate], rounds: int, split_axes: int) -> bool:
        """Return whether splits of `split_axes` or more axes need not be tried."""
        axes_in_digits = self._axes_in_digits
        # Axes whose result is in digits may be split although fewer splits would do.
        if split_axes > max(1, axes_in_digits):
            return any(len(candidate.rounds) == rounds for candidate in candidates)
        if split_axes != 1 or not candidates:
            return False
        axes = self.spec.axes
        if len(axes) > 3:
            return True
        # If whole axes fit, splits of one of several only pay where they save a crossing of a bus.
        if len(axes) == 1 or axes_in_digits or self.on_gpu:
            return False
        return all(len(program.factors) == 1 for program in candidates[0].programs)

    @cached_property
    def _axes_in_digits(self) -> int:
        """Number of axes whose input or result is in digits."""
        spec = self.spec
        count = 0
        for n, *orders in zip(
            spec.lengths,
            spec.orders_in,
            spec.orders_out,
            strict=True,
        ):
            if "transposed" in orders and len(transposed_digits(n)) > 1:
                count += 1
        return count

    @property
    def _is_one_cut_axis(self) -> bool:
        """True for a transform of one axis that has several chunks."""
        axes = self.spec.axes
        return len(axes) == 1 and len(self.request.chunks[axes[0]]) > 1

    def bluestein(self, sizes: Sizes) -> list[Candidate]:
        """Return candidates that use Bluestein's algorithm for axes without a useful split."""
        padded = self._padded_digits(sizes)
        if not padded:
            return []
        candidates: list[Candidate] = []
        regular = [axis for axis in self.spec.axes if axis not in padded]
        most = max(3, self.request.max_rounds)  # fewer than three cannot do it
        for rounds, count in itertools.product(range(3, most + 1), range(len(regular) + 1)):
            for digits in digits_of_splits(regular, count, 2):
                candidates += self.split_candidates(
                    digits,
                    rounds,
                    sizes,
                    padded,
                )
            if candidates:
                break
        return candidates

    def _padded_digits(self, sizes: Sizes) -> dict[int, Factors]:
        """Return the digits of the padded lengths of the axes that need Bluestein's algorithm."""
        spec = self.spec
        if spec.transfer:
            return {}
        padded: dict[int, Factors] = {}
        for axis, n in zip(spec.axes, spec.lengths, strict=True):
            has_no_split = len(transposed_digits(n)) == len(spec.digits_of(axis)) == 1
            if spec.waves is not None or (n > sizes.target and has_no_split):
                padded[axis] = transposed_digits(smooth_length(2 * n - 1))
        return padded

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
