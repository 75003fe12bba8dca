"""Which blocks of a plan lie together in memory, and which rounds work there.

Between tasks of one process an exchange need not copy: the round before it writes its blocks into
one array of all blocks of a connected group, and the round after it finds its blocks there as
strided views. A round that keeps the shape of its blocks can leave them in the same place, and the
next exchange may find its own blocks there again: a one-dimensional transform in natural order
comes out in the right order without being copied::

    (n2, k1)  --FFT over n2, in place-->  (k2, k1) = k1 + N1 k2, flat

Pure: imports `decomposition`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dask_bigfft.decomposition.joints import fits, groups_match, joint_of
from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.planner.exchange import Exchange


@dataclass(frozen=True)
class Joint:
    """Shared memory of the blocks before and after an exchange.

    Parameters
    ----------
    layout : Layout
        One block for each connected group; the blocks before and after are views of these.
    home : int
        Exchange before which the memory was taken: the exchange itself, or one before it whose
        blocks were transformed in place.
    """

    layout: Layout
    home: int


@dataclass(frozen=True)
class Joints:
    """The joints of a plan.

    Parameters
    ----------
    exchanges : tuple of (Joint or None)
        For each exchange.
    inside : tuple of (Layout or None)
        For each round, if it works where its blocks lie: the joint's layout after it.
    """

    exchanges: tuple[Joint | None, ...]
    inside: tuple[Layout | None, ...]


def no_joints(exchanges: int, rounds: int) -> Joints:
    """Return the joints of a plan whose blocks have memory of their own."""
    return Joints((None,) * exchanges, (None,) * rounds)


def joints_of(
    rounds: Sequence[Round], exchanges: Sequence[Exchange], dtypes: Sequence[str], result: Layout
) -> Joints:
    """Return the joints of a plan whose blocks all lie in one process.

    Parameters
    ----------
    rounds, exchanges : sequences
        Of the plan.
    dtypes : sequence of str
        Of the blocks before and after each round, and of the result.
    result : Layout
        Blocks of the result.
    """
    found: list[Joint | None] = [None]
    inside: list[Layout | None] = [None] if rounds else []
    held: Joint | None = None
    for number, exchange in enumerate(exchanges[1:], 1):
        joint = held if held is not None else _fresh(exchange, number)
        held, after = None, None
        found.append(joint)
        if number == len(rounds):
            break
        if joint is not None and dtypes[2 * number] == dtypes[2 * number + 1]:
            after = _after(joint.layout, rounds[number])
        if joint is not None and after is not None:
            if number + 1 < len(exchanges):
                held = _kept(after, joint, exchanges[number + 1])
            if held is None and (number + 1 < len(exchanges) or not fits(after, result)):
                after = None
        inside.append(after)
    return Joints(tuple(found), tuple(inside))


def _movable(exchange: Exchange) -> bool:
    """Return whether an exchange moves values as they are, between blocks."""
    same = exchange.mirror is None and exchange.dtype == exchange.source_dtype
    return same and not exchange.local


def _fresh(exchange: Exchange, number: int) -> Joint | None:
    layout = joint_of(exchange.source, exchange.target) if _movable(exchange) else None
    return None if layout is None else Joint(layout, number)


def _after(joint: Layout, round_: Round) -> Layout | None:
    """The joint after a round in place, if the round can be done so."""
    steps = round_.steps
    keeps = all(step.kind == "c2c" and step.source.size == step.target.size for step in steps)
    if round_.rolls or not keeps:
        return None
    after = transformed(joint, steps)
    return after if fits(after, round_.target) else None


def _kept(after: Layout, joint: Joint, exchange: Exchange) -> Joint | None:
    """The joint of an exchange whose blocks before lie in a joint already."""
    if not _movable(exchange) or not fits(after, exchange.target):
        return None
    matches = groups_match(after, exchange.source, exchange.target)
    return Joint(after, joint.home) if matches else None
