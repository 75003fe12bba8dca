"""Cyclic shifts: of an array alone, or folded into the gathers of a transform beside it.

`fftshift` and `ifftshift` store an axis from another element on. That is a property of a layout
(the ``offset`` of a group), so an exchange between two layouts that differ in it is the shift. A
plan takes one over on either side without an exchange of its own where something travels anyway::

    input, shifted -> .. -> exchange -> rounds -> exchange -> .. -> result, shifted
                            ^ first that travels   ^ last that travels

If nothing travels, the first gather undoes the input's shift, and the round that makes the
result's elements stores them shifted.

Pure: imports `decomposition` and this room.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dask_bigfft.decomposition.layout import AxisLayout, Layout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.plan import Exchange, Plan

Offsets = Mapping[int, int]


@dataclass(frozen=True)
class ShiftPlan:
    """One exchange that stores some axes in another order: no round at all.

    Parameters
    ----------
    source, result : Layout
        Blocks before and after; for a shift cut alike, and axes of the result have offsets.
    dtype : str
        Of the elements.
    part : str
        What its tasks are called.
    """

    source: Layout
    result: Layout
    dtype: str
    part: str = "shift"

    rounds: tuple[Round, ...] = ()
    kernel: str = "scipy"
    verify: str = "none"

    #: The result's blocks come from an exchange.
    ends_in_round = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks."""
        return (self.dtype,)

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The shift."""
        return (Exchange(self.source, self.result, self.dtype, self.dtype),)

    @property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether anything travels."""
        return tuple(not exchange.local for exchange in self.exchanges)

    @property
    def is_shift(self) -> bool:
        """Return whether nothing but the first element of axes changes."""
        return rolled(self.source, self.offsets) == self.result

    @property
    def offsets(self) -> dict[int, int]:
        """Element with which each shifted axis of the result begins."""
        return offsets_of(self.result)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of the result."""
        return tuple(axis.groups[0].chunks for axis in self.result.axes)


def offsets_of(layout: Layout) -> dict[int, int]:
    """Offsets of the axes that have one."""
    found = {a: axis.groups[0].offset for a, axis in enumerate(layout.axes)}
    return {a: offset for a, offset in found.items() if offset}


def rolled(layout: Layout, offsets: Offsets) -> Layout:
    """The layout with the offsets of some axes set.

    >>> from dask_bigfft.decomposition.layout import plain
    >>> offsets_of(rolled(Layout((plain(4, (4,)), plain(6, (3, 3)))), {1: 8}))
    {1: 2}
    """
    axes = list(layout.axes)
    for a, offset in offsets.items():
        group = axes[a].groups[0]
        axes[a] = AxisLayout((replace(group, offset=offset % max(group.size, 1)),))
    return Layout(tuple(axes))


def whole_axes(layout: Layout) -> set[int]:
    """Axes of flat blocks that hold all of their digits, neither padded nor cropped."""
    return {
        a
        for a, axis in enumerate(layout.axes)
        if len(axis.groups) == 1 and axis.groups[0].bounds[-1] == axis.groups[0].size
    }


def shifted_plan(plan: Plan, before: Offsets, after: Offsets) -> Plan:
    """A plan for an input, and a result, that are stored shifted.

    Parameters
    ----------
    plan : Plan
        Of the same transform without shifts.
    before, after : mapping of int to int
        Element with which each axis of the input begins, and of the result. The input's axes
        are whole.

    Returns
    -------
    Plan
        With the forecast of what it does. Its chunks are those of `plan`.
    """
    chain = _Chain(plan)
    for a, offset in after.items():
        chain.roll_back(a, offset)
    for a, offset in before.items():
        chain.roll_on(a, offset)
    rounds = tuple(
        Round(round_.steps, *chain.layouts[2 * i + 1 : 2 * i + 3])
        for i, round_ in enumerate(plan.rounds)
    )
    source, result = chain.layouts[0], chain.layouts[-1]
    found = replace(plan, source=source, rounds=rounds, result=result)
    return replace(found, expected=forecast(found))


class _Chain:
    """The layouts of a plan in order: its source, each round's two, its result.

    An odd number is that of a round's blocks before its steps; an exchange lies before it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        pairs = [layout for r in plan.rounds for layout in (r.source, r.target)]
        self.layouts = [plan.source, *pairs, plan.result]

    def _passes(self, i: int, a: int) -> bool:
        """Return whether an axis comes from layout i to i + 1 as it is, in blocks that stay."""
        if self.layouts[i].axes[a] != self.layouts[i + 1].axes[a]:
            return False
        if i % 2:
            return all(step.axis != a for step in self.plan.rounds[i // 2].steps)
        exchanges = self.plan.exchanges
        return i // 2 >= len(exchanges) or exchanges[i // 2].local

    def _flat(self, i: int, a: int) -> bool:
        """Return whether layout i holds an axis as the result does."""
        return self.layouts[i].axes[a] == self.layouts[-1].axes[a]

    def roll_back(self, a: int, offset: int) -> None:
        """Set the offset of the result, and of the layouts before it that only hand it on."""
        last = len(self.layouts) - 1
        first = last
        if self.plan.ends_in_round and self._flat(last - 1, a):
            first = last - 1
            while first > 1 and self._passes(first - 1, a):
                first -= 1
        self._set(range(first, last + 1), a, offset)

    def roll_on(self, a: int, offset: int) -> None:
        """Set the offset of the source, and of the layouts after it that only hand it on."""
        rounds = self.plan.rounds
        last = len(rounds) - 1 if self.plan.ends_in_round else len(rounds)
        number = 0  # of the round whose blocks are looked at
        while number < last and self._passes(2 * number, a) and self._passes(2 * number + 1, a):
            number += 1
        self._set(range(2 * number + 1), a, offset)

    def _set(self, numbers: range, a: int, offset: int) -> None:
        for i in numbers:
            self.layouts[i] = rolled(self.layouts[i], {a: offset})
