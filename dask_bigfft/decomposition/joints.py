"""Blocks that lie together: one array for all blocks that an exchange connects.

Where two layouts hold the same digits, cut differently, an array that is cut only where both are
holds the blocks of either as strided views of itself::

    rows of one layout        the joint's block        columns of the other
    | a a a a |                 | a a a a |              | a a : : |
    | b b b b |   --write-->    | b b b b |   --read-->  | b b : : |

Whoever writes its blocks into such an array has exchanged them. A `Layout` says how the digits lie
there, in blocks of its own: one for each connected group of the exchange.

Pure: imports this room.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.decomposition.rounds import axis_components

Block = tuple[int, ...]


def merged(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """The digits with neighbours joined where they are one digit of the index.

    >>> merged((Digit(1, 4, 3, 3), Digit(1, 1, 4, 4)))
    (Digit(stage=1, stride=1, size=12, radix=12),)
    """
    found: list[Digit] = []
    for digit in digits:
        last = found[-1] if found else None
        follows = last is not None and last.stage == digit.stage and not digit.is_partial
        if last is not None and follows and last.stride == digit.stride * digit.radix:
            size, radix = last.size * digit.size, last.radix * digit.radix
            found[-1] = Digit(digit.stage, digit.stride, size, radix)
        else:
            found.append(digit)
    return tuple(found)


def _plain(group: Group) -> bool:
    """Whether a group stores all of its digits' values, once and in order, in no empty chunk."""
    whole = group.bounds[-1] == group.size and min(group.chunks, default=0) > 0
    return whole and not group.offset and not group.arrangement


def _alike(a: AxisLayout, b: AxisLayout) -> bool:
    """Whether two layouts of an axis store the same digits in the same dimensions, in any order."""
    one, other = ({group.digits for group in axis.groups} for axis in (a, b))
    return one == other and len(one) == len(a.groups) == len(b.groups)


@lru_cache(maxsize=1024)
def _fits(joint: AxisLayout, axis: AxisLayout) -> bool:
    """Whether every block of a layout of an axis is a view of one of the joint's blocks."""
    if not all(map(_plain, (*joint.groups, *axis.groups))):
        return False
    if _alike(joint, axis):
        cuts = {group.digits: set(group.bounds) for group in axis.groups}
        return all(set(group.bounds) <= cuts[group.digits] for group in joint.groups)
    one = len(axis.groups) == joint.blocks == 1
    return one and merged(joint.digits) == merged(axis.digits)


def fits(joint: Layout, layout: Layout) -> bool:
    """Whether every block of a layout is a view of one of the joint's blocks."""
    return all(_fits(a, b) for a, b in zip(joint.axes, layout.axes, strict=True))


def joint_of(before: Layout, after: Layout) -> Layout | None:
    """A joint that has the blocks of both layouts, one block for each connected group, or None.

    Its digits lie in the order that they have before, so that whole rows are written.
    """
    axes = []
    for a, b in zip(before.axes, after.axes, strict=True):
        axis = _joint_axis(a, b)
        fitting = axis is not None and _fits(axis, a) and _fits(axis, b)
        if axis is None or not fitting or axis_components(a, b).count != axis.blocks:
            return None
        axes.append(axis)
    return Layout(tuple(axes))


def _joint_axis(a: AxisLayout, b: AxisLayout) -> AxisLayout | None:
    if _alike(a, b):
        cuts = {group.digits: set(group.bounds) for group in b.groups}
        return AxisLayout(tuple(_cut_at(g, cuts[g.digits]) for g in a.groups))
    if len(b.groups) == 1:  # flat: the digits in the order that they have there
        falling = sorted(a.groups, key=lambda group: -group.digits[0].stride)
        return AxisLayout(tuple(Group(g.digits, (g.size,)) for g in falling))
    return None


def _cut_at(group: Group, places: set[int]) -> Group:
    bounds = sorted(places & set(group.bounds))
    chunks = tuple(b - a for a, b in itertools.pairwise(bounds))
    return Group(group.digits, chunks)


def groups_match(joint: Layout, source: Layout, target: Layout) -> bool:
    """Whether the joint has one block for each connected group of an exchange."""
    axes = zip(joint.axes, source.axes, target.axes, strict=True)
    return all(axis_components(a, b).count == axis.blocks for axis, a, b in axes)


@dataclass(frozen=True)
class Place:
    """Where a block lies in a block of a joint.

    Parameters
    ----------
    shape : tuple of int
        Shape in which the joint's block is looked at: dimensions that the block has in one are
        joined.
    cuts : tuple of slice
        What of it is the block, per dimension.
    order : tuple of int
        Which of these dimensions each dimension of the block is.
    """

    shape: tuple[int, ...]
    cuts: tuple[slice, ...]
    order: tuple[int, ...]


def joint_block(joint: Layout, layout: Layout, block: Block) -> Block:
    """Index of the joint's block in which a block of a layout lies."""
    axes = zip(joint.axes, layout.axes, block, strict=True)
    return tuple(a.block_of(tuple(k for k, _ in _cuts(a, b, i))) for a, b, i in axes)


@lru_cache(maxsize=4096)
def place_of(joint: Layout, layout: Layout, block: Block) -> Place:
    """Where a block of a layout lies in the joint's block that has it; does not check `fits`."""
    shape: list[int] = []
    cuts: list[slice] = []
    order: list[int] = []
    for a, b, i in zip(joint.axes, layout.axes, block, strict=True):
        first = len(shape)
        if not _alike(a, b):
            (interval,) = b.intervals(i)
            shape.append(a.size)
            cuts.append(slice(*interval))
            order.append(first)
            continue
        found = list(_cuts(a, b, i))
        shape += [group.chunks[k] for group, (k, _) in zip(a.groups, found, strict=True)]
        cuts += [cut for _, cut in found]
        dims = {group.digits: first + d for d, group in enumerate(a.groups)}
        order += [dims[group.digits] for group in b.groups]
    return Place(tuple(shape), tuple(cuts), tuple(order))


def _cuts(joint: AxisLayout, axis: AxisLayout, block: int) -> Iterator[tuple[int, slice]]:
    """For each group of the joint, its chunk in which a block lies, and where in it."""
    if not _alike(joint, axis):
        yield from ((0, slice(0, group.size)) for group in joint.groups)
        return
    intervals = dict(zip((g.digits for g in axis.groups), axis.intervals(block), strict=True))
    for group in joint.groups:
        low, high = intervals[group.digits]
        chunk = bisect_right(group.bounds, low) - 1
        yield chunk, slice(low - group.bounds[chunk], high - group.bounds[chunk])
