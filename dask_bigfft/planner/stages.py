"""Stages of a plan: an exchange of blocks, and the round after it, if there is one.

`SharedLayouts` are the shared buffers of blocks, and the rounds that work in them. Between tasks of
one process an exchange need not copy. The round before it writes its blocks into one array of a
connected group, and the round after it reads its blocks there as strided views. A round that keeps
the shape of its blocks can work in place, and the next exchange may use the same buffer again. A
one-dimensional transform in natural order then comes out in order without a copy::

    (n2, k1)  --FFT over n2, in place-->  (k2, k1) = k1 + N1 k2, flat
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.planner.tile_plan import LEAST_WRITTEN_NBYTES
from dask_bigfft.tiles.program import program_of
from dask_bigfft.transforms.exchanges import ExchangeShape, Mirror, exchange_shape, packed_dtype
from dask_bigfft.transforms.layout import HashedOnce, Layout
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.shared_layouts import Place, fits, place_of, shared_layout_of
from dask_bigfft.transforms.spec import TransformSpec


@dataclass(frozen=True)
class Exchange:
    """Exchange between two rounds: blocks of `source` become blocks of `target`.

    Parameters
    ----------
    source, target : Layout
        Blocks before and after.
    dtype, source_dtype : str
        Dtypes of the target's blocks and of the source's.
    mirror : Mirror or None
        Mirror image that completes half a spectrum in the exchange.
    """

    source: Layout
    target: Layout
    dtype: str
    source_dtype: str
    mirror: Mirror | None = None

    @cached_property
    def shape(self) -> ExchangeShape:
        """Fan-in, C, W and groups."""
        return exchange_shape(self.source, self.target)

    @cached_property
    def local(self) -> bool:
        """Return whether nothing travels."""
        return self.shape.local and (self.mirror is None or self.source.blocks == 1)

    @property
    def is_identity(self) -> bool:
        """True if the target blocks are the source blocks."""
        is_same_layout = self.source == self.target and self.mirror is None
        return is_same_layout and self.source_dtype == self.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all target blocks."""
        return self.target.size * np.dtype(self.dtype).itemsize

    @property
    def moved_nbytes(self) -> int:
        """Bytes of the values of the target blocks that source blocks have: without padding."""
        if self.mirror is not None:
            return self.nbytes
        pairs = zip(self.source.axes, self.target.axes, strict=True)
        size = math.prod(min(before.size, after.size) for before, after in pairs)
        return size * np.dtype(self.dtype).itemsize

    @property
    def block_nbytes(self) -> int:
        """Bytes of the largest target block."""
        return self.target.largest * np.dtype(self.dtype).itemsize

    @property
    def shard_dtype(self) -> np.dtype[Any]:
        """Dtype of packed shards."""
        return packed_dtype(np.dtype(self.source_dtype), np.dtype(self.dtype))

    @property
    def shard_nbytes(self) -> int:
        """Bytes of all packed shards."""
        return self.target.size * self.shard_dtype.itemsize


@dataclass(frozen=True)
class SharedAxis:
    """Shared memory of the blocks before and after an exchange.

    Parameters
    ----------
    layout : Layout
        One block for each connected group. The blocks before and after are views of it.
    home : int
        Exchange for which the memory was allocated: this one, or an earlier one whose blocks were
        transformed in place.
    """

    layout: Layout
    home: int

    def place(self, layout: Layout) -> Place:
        """Return the position of the first block of a layout."""
        return place_of(self.layout, layout, (0,) * len(layout.axes))


@dataclass(frozen=True)
class SharedLayouts:
    """The shared layouts of a plan.

    Parameters
    ----------
    exchanges : tuple of (SharedAxis or None)
        For each exchange.
    inside : tuple of (Layout or None)
        For each round that works in place, the layout of its shared buffer afterwards.
    """

    exchanges: tuple[SharedAxis | None, ...]
    inside: tuple[Layout | None, ...]


def no_shared_layouts(exchanges: int, rounds: int) -> SharedLayouts:
    """Return the shared layouts of a plan whose blocks have memory of their own."""
    return SharedLayouts((None,) * exchanges, (None,) * rounds)


@dataclass(frozen=True)
class Stage(HashedOnce):
    """An exchange, and the round that follows it.

    Parameters
    ----------
    exchange : Exchange
        The exchange.
    round_ : Round or None
        The round on its blocks; None for the exchange alone.
    result_dtype : str
        Dtype of the blocks after the round.
    reads, writes : SharedAxis or None
        Shared buffer of the exchange, which then copies nothing, and of the blocks after the
        round.
    works_in_place : bool
        Whether the round's results replace what it reads in the shared buffer.
    moves : bool
        Whether shards go through scratch files, with storage ``"disk"``.
    """

    exchange: Exchange
    round_: Round | None
    result_dtype: str
    reads: SharedAxis | None = None
    writes: SharedAxis | None = None
    works_in_place: bool = False
    moves: bool = True

    @property
    def target(self) -> Layout:
        """The blocks after the round."""
        return self.exchange.target if self.round_ is None else self.round_.target

    @property
    def reads_one_array(self) -> bool:
        """True if the round finds each block in one array: an input block or a shared buffer."""
        return self.reads is not None or self.exchange.is_identity

    @property
    def works_in_shared(self) -> bool:
        """True if blocks share the memory of those before the exchange, and keep it."""
        return self.reads is not None and (self.round_ is None or self.works_in_place)

    @property
    def is_done_before(self) -> bool:
        """True for an exchange without a round whose blocks were written to their place."""
        return self.reads is not None and self.round_ is None

    @property
    def result_nbytes(self) -> int:
        """Bytes of all blocks after the round."""
        return self.target.size * np.dtype(self.result_dtype).itemsize

    @property
    def result_block_nbytes(self) -> int:
        """Bytes of the largest block after the round."""
        return self.target.largest * np.dtype(self.result_dtype).itemsize

    @property
    def result_strides(self) -> tuple[int, ...]:
        """Strides of a block after the round, in elements of its shared buffer if it has one."""
        if self.works_in_place and self.reads is not None:
            place = self.reads.place(self.exchange.target)
        elif self.writes is not None:
            place = self.writes.place(self.target)
        else:
            return contiguous_strides(self.target.full_shape)
        buffer_strides = contiguous_strides(place.shape)
        return tuple(buffer_strides[dim] for dim in place.order)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array in elements.

    >>> contiguous_strides((8, 6, 4))
    (24, 4, 1)
    """
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(shape)]))


def stages_of(
    sources: Sequence[Layout],
    rounds: Sequence[Round],
    result: Layout | None,
    dtypes: Sequence[str],
) -> tuple[Stage, ...]:
    """Return the stages of rounds, and of the exchange after them.

    Parameters
    ----------
    sources : sequence of Layout
        Blocks before each exchange.
    rounds : sequence of Round
        In order.
    result : Layout or None
        Blocks of the result; None if the last round makes them.
    dtypes : sequence of str
        Dtype of the input, of the blocks before and after each round, and of the result.
    """
    stages: list[Stage] = []
    for number, round_ in enumerate(rounds):
        source_dtype, dtype, result_dtype = dtypes[2 * number : 2 * number + 3]
        exchange = Exchange(
            sources[number],
            round_.source,
            dtype,
            source_dtype,
        )
        stages.append(Stage(exchange, round_, result_dtype))
    if result is not None:
        source_dtype, dtype = dtypes[-2:]
        exchange = Exchange(
            sources[-1],
            result,
            dtype,
            source_dtype,
        )
        stages.append(Stage(exchange, None, dtype))
    return tuple(stages)


def with_buffers(
    stages: Sequence[Stage],
    shared_layouts: SharedLayouts,
    moves: Sequence[bool],
) -> tuple[Stage, ...]:
    """Return stages with shared buffers, and with the exchanges that need no scratch files.

    Parameters
    ----------
    stages : sequence of Stage
        All stages of a plan.
    shared_layouts : SharedLayouts
        Their shared buffers.
    moves : sequence of bool
        For each exchange, whether shards go through scratch files, with storage ``"disk"``.
    """
    buffers = [*shared_layouts.exchanges, None]
    buffered_stages: list[Stage] = []
    for number, stage in enumerate(stages):
        writes = None
        works_in_place = False
        if stage.round_ is not None:
            writes = buffers[number + 1]
            works_in_place = shared_layouts.inside[number] is not None
        if writes is not None and writes.home != number + 1:
            writes = None  # the round works in place in a buffer of an earlier exchange
        buffered_stage = stage.changed(
            reads=buffers[number],
            writes=writes,
            works_in_place=works_in_place,
            moves=moves[number],
        )
        buffered_stages.append(buffered_stage)
    return tuple(buffered_stages)


def block_dtypes(spec: TransformSpec, rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the dtype of the blocks before and after each round, and of the result."""
    dtypes: list[str] = []
    before = _dtype_before_rounds(spec, rounds).str
    for round_ in rounds:
        after = spec.real_dtype.str if round_.makes_real else spec.work_dtype.str
        dtypes += [before, after]
        before = after
    return (*dtypes, spec.out_dtype.str)


def _dtype_before_rounds(spec: TransformSpec, rounds: Sequence[Round]) -> np.dtype[Any]:
    """Return the dtype of the blocks before the first round, which may take real values."""
    if any(round_.takes_real for round_ in rounds):
        return spec.real_dtype
    is_real = np.dtype(spec.dtype).kind != "c"
    # The first FFTs of a complex transform take real values directly if they are of all axes.
    if rounds and is_real and spec.kind == "c2c" and program_of(rounds[0]).begins_with_all:
        return spec.real_dtype
    return spec.work_dtype


# --- shared buffers -------------------------------------------------------------------------


def shared_on_cpu(stages: Sequence[Stage], result: Layout) -> SharedLayouts:
    """Return the shared buffers of blocks if CPU threads do the rounds.

    The input's blocks exist already, so that the first exchange shares none.

    Parameters
    ----------
    stages : sequence of Stage
        All stages of a plan.
    result : Layout
        Blocks of the result.
    """
    shared_axes: list[SharedAxis | None] = [None]
    inside: list[Layout | None] = []
    if stages[0].round_ is not None:
        inside.append(None)
    reused: SharedAxis | None = None  # buffer of the exchange before, in which a round worked
    for number, stage in enumerate(stages[1:], 1):
        shared = reused or _shared(stage.exchange, number)
        shared_axes.append(shared)
        if stage.round_ is None:
            break
        following = stages[number + 1] if number + 1 < len(stages) else None
        after, reused = _after_in_place(
            stage,
            shared,
            following,
            result,
        )
        inside.append(after)
    return SharedLayouts(tuple(shared_axes), tuple(inside))


def _after_in_place(
    stage: Stage,
    shared: SharedAxis | None,
    following: Stage | None,
    result: Layout,
) -> tuple[Layout | None, SharedAxis | None]:
    """Return the shared layout after a round in place, and the buffer of the following exchange.

    Both are None if the round cannot work in its shared buffer, or if neither the following
    exchange nor the result can use that afterwards.
    """
    assert stage.round_ is not None
    if shared is None or stage.exchange.dtype != stage.result_dtype:
        return None, None
    after = _after(shared.layout, stage.round_)
    if after is None:
        return None, None
    if following is None:
        return (after if fits(after, result) else None), None
    reused = _shared(following.exchange, shared.home, after)
    return (None, None) if reused is None else (after, reused)


def _shared(exchange: Exchange, home: int, layout: Layout | None = None) -> SharedAxis | None:
    """Return the shared buffer of an exchange, or None; `layout` if its source blocks have one."""
    converts = exchange.mirror is not None or exchange.dtype != exchange.source_dtype
    if exchange.local or converts:
        return None
    shared_layout = shared_layout_of(exchange.source, exchange.target, layout)
    return None if shared_layout is None else SharedAxis(shared_layout, home)


def written_in_order(rounds: Sequence[Round], last: Exchange) -> SharedLayouts:
    """Return the shared layouts of rounds on GPUs: where rows are wide, one for the result.

    The last round then writes in natural order, so that the exchange after it, `last`, moves
    nothing.
    """
    count = len(rounds)
    last_round = rounds[-1]
    shared = _shared(last, count)
    if shared is not None:
        row_nbytes = shared.place(last_round.target).width * np.dtype(last.dtype).itemsize
        if row_nbytes < LEAST_WRITTEN_NBYTES:
            shared = None
    separate = (None,) * count
    return SharedLayouts((*separate, shared), separate)


def _after(shared_layout: Layout, round_: Round) -> Layout | None:
    """Return the shared layout after a round in place; None if the round cannot work in place."""
    if round_.windows:
        return None
    for step in round_.steps:
        if step.kind != "c2c" or step.source.size != step.target.size:
            return None
    after = transformed(shared_layout, round_.steps)
    return after if fits(after, round_.target) else None
