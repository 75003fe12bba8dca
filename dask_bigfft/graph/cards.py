"""Exchanges between blocks that lie on several cards of one process: one task for each group.

The task takes the source blocks, as a barrier does, and returns the target blocks on their home
devices. Blocks on one card, and in host memory, are handed on as they are, to be gathered by the
tasks that follow.

Imports `planner`, `exchange`, `devices` and this room.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.devices.cuda import available
from dask_bigfft.devices.on_card import is_on_card
from dask_bigfft.devices.peers import CupyPeers, Peers
from dask_bigfft.errors import DeviceError
from dask_bigfft.events import emit
from dask_bigfft.exchange.peers import ROUTES, Route, fits, home, peer_exchange, route_of
from dask_bigfft.graph.blocks import Blocks, checked
from dask_bigfft.graph.run import Run
from dask_bigfft.graph.tasks import barrier, reported, run_block
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import DEFAULT

Array = npt.NDArray[Any]
Block = tuple[int, ...]

__all__ = ["FINDER", "Arrived", "Homes", "Settled", "exchange_on_cards", "run_block_of_cards"]


class Arrived(Blocks):
    """Target blocks of an exchange, each on its home device."""


class Settled(BlockView):
    """A block that an exchange has made and nobody else uses, before a round."""

    def __init__(self, values: Any) -> None:
        super().__init__(values.shape, values.dtype, values, owned=True)
        self.on_gpu, self._given = is_on_card(values), False

    def gather(self, out: Array | None = None, threads: int = 1) -> Any:
        """Return the block, free to overwrite; on a GPU a second time it may be lost."""
        if self.on_gpu and self._given:
            raise DeviceError(
                "a card ran out of memory while it overwrote a block that came from another one: "
                "compute the transform again"
            )
        self._given = True
        return self.array


#: The devices of this process and the home of every block; None where all are on one device.
Homes = tuple[Peers, dict[Block, int]]


def homes_of(blocks: Mapping[Block, Any]) -> Homes | None:
    """Return the cards that some blocks live on, and which of them each does."""
    if not all(map(is_on_card, blocks.values())):
        return None
    ordinals: dict[Block, int] = {i: int(v.device.id) for i, v in blocks.items()}
    if len(set(ordinals.values())) < 2:
        return None
    peers = CupyPeers(available())
    place = {ordinal: i for i, ordinal in enumerate(peers.ordinals)}
    return peers, {i: place[ordinal] for i, ordinal in ordinals.items()}


class _Finder:
    """How homes are found; a test of several devices without a card puts its own in place."""

    homes: Callable[[Mapping[Block, Any]], Homes | None] = staticmethod(homes_of)


FINDER = _Finder()


@reported
def exchange_on_cards(
    run: Run, number: int, sources: tuple[Block, ...], targets: tuple[Block, ...],
    route: str, *given: Any
) -> Blocks:
    """Return the blocks of a group after an exchange, on their home devices.

    Parameters
    ----------
    run : Run
        The plan.
    number : int
        Exchange, from 0.
    sources, targets : tuple of block indices
        Blocks of the group, before and after.
    route : {"auto", "host", "staged", "swap", "kernel"}
        How shards travel from one device to another.
    """
    blocks = {i: checked(run, number, i, v) for i, v in zip(sources, given, strict=True)}
    found = FINDER.homes(blocks)
    if found is None:
        return barrier(run.token, sources, False, *given)
    (peers, homes), started = found, time.perf_counter()
    dtype = np.dtype(run.exchange(number).dtype)
    dense = {i: _dense(v, dtype) for i, v in blocks.items()}
    used = sorted(set(homes.values()))
    ours = {t: used[home(n, len(targets), len(used))] for n, t in enumerate(targets)}
    if len(sources) == len(targets):  # a block's memory can be that of its namesake
        ours = {t: homes[s] for s, t in zip(sources, targets, strict=True)}
    exchange = run.map(number)
    room = fits(exchange, ours.__getitem__, peers, dtype.itemsize, targets)
    made, traffic = peer_exchange(
        exchange, dense, homes.__getitem__, ours.__getitem__, peers,
        _chooser(run, peers, route, room), inside=number > 0, targets=targets,
    )
    for device in sorted({*homes.values(), *ours.values()}):
        emit("device_memory", device=device, nbytes=peers.most(device))
    emit("peer_host", nbytes=traffic.host, seconds=0.0)
    emit("peer_direct", nbytes=traffic.direct, seconds=0.0)
    emit("barrier", nbytes=traffic.net, seconds=time.perf_counter() - started)
    return Arrived(made)


@reported
def run_block_of_cards(
    run: Run, number: int, block: Block, filter_axes: tuple[int, ...], handle: Blocks, *inputs: Any
) -> Array:
    """Return a block that an exchange between cards has made, after the round that follows."""
    if not isinstance(handle, Arrived):
        done: Array = run_block(run, number, block, filter_axes, None, None, *inputs, handle)
        return done
    filters = dict(zip(filter_axes, inputs, strict=True))
    values: Array = handle.blocks.pop(block)  # freed when the round is done
    if number == len(run.plan.rounds):
        return values
    return run.finish(number, block, lambda: Settled(values), filters)


def _chooser(
    run: Run, peers: Peers, route: str, room: bool
) -> Callable[[int, int], Route]:
    """How shards travel between two devices: as asked for, or as the profile says."""
    asked = next((known for known in ROUTES if known == route), None)
    if asked is not None:
        return lambda a, b: asked
    profile = run.plan.machine.profile if isinstance(run.plan, Plan) else DEFAULT
    return lambda a, b: route_of(profile, peers, a, b, room)


def _dense(values: Any, dtype: np.dtype[Any]) -> Any:
    """A block in the exchange's dtype, contiguous, on its device."""
    with values.device if is_on_card(values) else contextlib.nullcontext():
        if values.dtype.kind == "c" and dtype.kind != "c":
            values = values.real
        values = values.astype(dtype, copy=False)
        return values if values.flags.c_contiguous else values.copy()
