"""Exchanges between blocks that live on several devices of one process.

Every block has a home device, and so has every block that is made of them. What one block gives to
another on a different device travels by one of four routes (Nandapalan et al. 2012, section V)::

    host     by way of host memory                                        2x the bytes
    staged   of two shards that change places one by host, one direct   1.5x
    swap     by the copy engine into a second buffer, which then         1x, twice the memory
             takes the place of the first (pointer swap)
    kernel   by a kernel that reads the other device's memory            1x, in place

Where every block gives every other as much as it gets (slabs of equal size: the batches and pencils
of the paper), `host`, `staged` and `kernel` let *pencils* change places inside the blocks, and a
block is then put in order on its device with one more block's memory in all::

    device 0   | 00 | 01 |        | 00 | 10 |        target block 0
    device 1   | 10 | 11 |  --->  | 01 | 11 |  --->  target block 1

Other exchanges go into second buffers by any route.

Imports `planner`, `devices` and this room.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dask_bigfft.devices.peers import Peers, Traffic
from dask_bigfft.exchange.product import Block, Product
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.planner.profile import Profile

__all__ = ["ROUTES", "Route", "fits", "home", "pairs_up", "peer_exchange", "route_of", "shards_of"]

Route = Literal["host", "staged", "swap", "kernel"]
ROUTES: tuple[Route, ...] = ("host", "staged", "swap", "kernel")


#: A link that is so many times as fast as the bus is one of its own. There the kernel, which needs
#: no second buffer, took 0.6 to 0.8 of the time of the pointer swap (two H200).
LINK = 2


@dataclass(frozen=True)
class Copy:
    """One strided copy of a shard, starts and strides in bytes."""

    counts: tuple[int, ...]
    source: tuple[int, tuple[int, ...]]
    target: tuple[int, tuple[int, ...]]
    conjugate: bool


#: What one block gives to another: by source and target.
Shards = dict[tuple[Block, Block], list[Copy]]


def home(number: int, blocks: int, devices: int) -> int:
    """Return the home of a block, by its number: batches of blocks, as even as possible.

    >>> [home(i, 6, 4) for i in range(6)]
    [0, 0, 1, 2, 2, 3]
    """
    return number * devices // blocks


def route_of(
    profile: Profile, peers: Peers, source: int, target: int, second_buffer: bool
) -> Route:
    """Return how shards travel between two devices where nobody has said so.

    By the host where neither reads the other or the profile says that it is quicker, staged where
    only one does; else directly: by the kernel if the profile knows a link beside the bus, or there
    is no room for a second buffer.
    """
    there, back = peers.reaches(target, source), peers.reaches(source, target)
    if not (there or back):
        return "host"
    if there != back:
        return "staged"
    speed = profile.peer(source, target)
    known = profile.devices
    if speed is not None and known:
        bus = min(known[min(d, len(known) - 1)].h2d for d in (source, target))
        if speed < bus / 2:
            return "host"
        if speed > LINK * bus:
            return "kernel"
    return "swap" if second_buffer else "kernel"


def shards_of(
    exchange: ExchangeMap, itemsize: int, targets: Iterable[Block] | None = None
) -> Shards:
    """Return what every block gives to every other, all of them dense."""
    found: Shards = {}
    strides = {b: _strides(exchange.source.shape(b), itemsize) for b in exchange.source.indices()}
    for target in exchange.target.indices() if targets is None else targets:
        own = _strides(exchange.target.shape(target), itemsize)
        for tables, conjugate in exchange.tables(target):
            product = Product(tables, conjugate)
            of_sources = np.array([strides[b] for b in product.blocks], np.int64)
            places = product.in_sources(exchange, of_sources[product.which])
            rows = product.rows(exchange, places, own, None)
            for i, which in enumerate(product.which.tolist()):
                copy = Copy(
                    tuple(rows.counts[i].tolist()),
                    (int(rows.source_starts[i]), tuple(rows.source_strides[i].tolist())),
                    (int(rows.target_starts[i]), tuple(rows.target_strides[i].tolist())),
                    conjugate,
                )
                found.setdefault((product.blocks[which], target), []).append(copy)
    return found


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    steps = itertools.accumulate((max(n, 1) for n in reversed(shape[1:])), int.__mul__,
                                 initial=itemsize)
    return tuple(reversed(list(steps)))


def pairs_up(
    exchange: ExchangeMap, shards: Shards, sources: Iterable[Block] | None = None,
    targets: Iterable[Block] | None = None
) -> dict[Block, Block] | None:
    """Return the target block that lies in each source block's memory, if pencils can trade places.

    Both sides have as many blocks of the same sizes, numbered alike, and what a block gives to
    another has the shape of what it gets from it, and is not changed on the way.
    """
    sources = list(exchange.source.indices() if sources is None else sources)
    targets = list(exchange.target.indices() if targets is None else targets)
    if len(sources) != len(targets):
        return None
    partner = dict(zip(sources, targets, strict=True))
    back = {target: source for source, target in partner.items()}
    for source, target in partner.items():
        if np.prod(exchange.source.shape(source)) != np.prod(exchange.target.shape(target)):
            return None
    for (source, target), copies in shards.items():
        other = shards.get((back[target], partner[source]))
        if other is None or any(copy.conjugate for copy in copies):
            return None
        if [copy.counts for copy in copies] != [copy.counts for copy in other]:
            return None
    given: dict[Block, int] = dict.fromkeys(sources, 0)
    for (source, _), copies in shards.items():
        given[source] += sum(int(np.prod(copy.counts)) for copy in copies)
    whole = all(given[b] == np.prod(exchange.source.shape(b)) for b in sources)
    return partner if whole else None


def peer_exchange(
    exchange: ExchangeMap,
    blocks: Mapping[Block, Any],
    home_of: Callable[[Block], int],
    target_home: Callable[[Block], int],
    peers: Peers,
    route: Callable[[int, int], Route],
    *,
    inside: bool,
    targets: Sequence[Block] | None = None,
) -> tuple[dict[Block, Any], Traffic]:
    """Return the target blocks, each on its home device and dense, and what was moved.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    blocks : mapping of block index to array
        The source blocks, dense, of one dtype; they are given back to `peers`.
    home_of, target_home : callable
        Device of a source block, and of a target block.
    peers : Peers
        The devices.
    route : callable
        How shards travel from one device to another.
    inside : bool
        Whether the memory of the source blocks may be written, so that pencils can trade places.
    targets : sequence of block indices, optional
        The target blocks that are made of these sources, by default all.

    Raises
    ------
    DeviceMemoryError
        If a device has no room for what the routes take.
    """
    dtype = next(iter(blocks.values())).dtype
    targets = list(exchange.target.indices() if targets is None else targets)
    shards = shards_of(exchange, dtype.itemsize, targets)
    move = _Move(exchange, blocks, targets, shards, home_of, target_home, peers, route, Traffic())
    partner = pairs_up(exchange, shards, blocks, targets) if inside else None
    homes = [*map(home_of, blocks)]
    second = any(route(a, b) == "swap" for a, b in itertools.permutations(sorted(set(homes)), 2))
    if partner is not None and not second and all(
        home_of(source) == target_home(target) for source, target in partner.items()
    ):
        return move.inside(partner), move.traffic
    return move.into_second_buffers(), move.traffic


@dataclass
class _Move:
    """One exchange between devices, while it goes on."""

    exchange: ExchangeMap
    blocks: Mapping[Block, Any]
    targets: list[Block]
    shards: Shards
    home_of: Callable[[Block], int]
    target_home: Callable[[Block], int]
    peers: Peers
    route: Callable[[int, int], Route]
    traffic: Traffic

    # --- pencils trade places -----------------------------------------------------------------

    def inside(self, partner: dict[Block, Block]) -> dict[Block, Any]:
        """All pencils trade places, then each block is put in order, one more block at a time."""
        sources = list(partner)
        for a, b in itertools.combinations(sources, 2):
            mine = self.shards.get((a, partner[b]), [])
            theirs = self.shards.get((b, partner[a]), [])
            for one, other in zip(mine, theirs, strict=True):
                self._trade(a, one, b, other)
        return self._put_in_order(partner)

    def _trade(self, a: Block, one: Copy, b: Block, other: Copy) -> None:
        peers, here, there = self.peers, self.home_of(a), self.home_of(b)
        own = peers.view(self.blocks[a], one.source[0], one.counts, one.source[1])
        far = peers.view(self.blocks[b], other.source[0], other.counts, other.source[1])
        if here == there:
            peers.trade(here, own, far)
            return
        route, nbytes = self.route(here, there), int(own.nbytes)
        self.traffic.net += 2 * nbytes
        if route == "kernel":
            peers.trade(here, own, far)
            self.traffic.direct += 2 * nbytes
            return
        kept = self._to_host(here, own)
        if route == "host":
            came = self._to_host(there, far)
            self._from_host(here, came, own)
        else:  # the memory that the first one has left is free for the second
            self._direct(there, far, here, own)
        self._from_host(there, kept, far)

    def _put_in_order(self, partner: dict[Block, Block]) -> dict[Block, Any]:
        """Gather each target block from its own memory; the memory left is the next one's."""
        peers, found = self.peers, dict[Block, Any]()
        spare: dict[tuple[int, int], Any] = {}
        into: dict[Block, list[Block]] = {}
        for giver, target in self.shards:
            into.setdefault(target, []).append(giver)
        for source, target in partner.items():
            device, values = self.home_of(source), self.blocks[source]
            out = spare.pop((device, values.size), None)
            if out is None:
                out = peers.empty(device, values.size, values.dtype)
            for giver in into[target]:
                # What `giver` sent was written over what went to its partner: so it lies there.
                gave = self.shards[source, partner[giver]]
                for copy, place in zip(self.shards[giver, target], gave, strict=True):
                    came = peers.view(values, place.source[0], place.counts, place.source[1])
                    goes = peers.view(out, copy.target[0], copy.counts, copy.target[1])
                    peers.copy(device, came, goes)
            found[target] = out.reshape(self.exchange.target.shape(target))
            spare[device, values.size] = values.reshape(-1)
        for (device, _), values in spare.items():
            peers.free(device, values)
        return found

    # --- second buffers -----------------------------------------------------------------------

    def into_second_buffers(self) -> dict[Block, Any]:
        """Every target block has memory of its own, in which shards arrive; then they swap."""
        peers, found = self.peers, dict[Block, Any]()
        dtype = next(iter(self.blocks.values())).dtype
        for target in self.targets:
            size = int(np.prod(self.exchange.target.shape(target)))
            found[target] = peers.empty(self.target_home(target), size, dtype)
            peers.clear(self.target_home(target), found[target])  # padding stays
        for (source, target), copies in self.shards.items():
            for copy in copies:
                self._bring(source, target, copy, found[target])
        for source, values in self.blocks.items():
            peers.free(self.home_of(source), values)
        return {b: values.reshape(self.exchange.target.shape(b)) for b, values in found.items()}

    def _bring(self, source: Block, target: Block, copy: Copy, out: Any) -> None:
        peers, here, there = self.peers, self.home_of(source), self.target_home(target)
        came = peers.view(self.blocks[source], copy.source[0], copy.counts, copy.source[1])
        goes = peers.view(out, copy.target[0], copy.counts, copy.target[1])
        if here != there:
            route, nbytes = self.route(here, there), int(came.nbytes)
            self.traffic.net += nbytes
            if route == "kernel":
                self.traffic.direct += nbytes
                peers.copy(there, came, goes)
            elif route == "host" or (route == "staged" and here < there):
                self._from_host(there, self._to_host(here, came), goes)
            else:
                self._direct(here, came, there, goes)
        else:
            peers.copy(here, came, goes)
        if copy.conjugate:
            peers.conjugate(there, goes)

    # --- one view -----------------------------------------------------------------------------

    def _dense(self, device: int, view: Any) -> Any:
        """A view's values in memory of their own on their device, if they lie apart."""
        packed = self.peers.empty(device, view.size, view.dtype)
        self.peers.copy(device, view, packed.reshape(view.shape))
        return packed

    def _to_host(self, device: int, view: Any) -> Any:
        packed = self._dense(device, view)
        kept = self.peers.to_host(device, packed)
        self.peers.free(device, packed)
        self.traffic.host += int(view.nbytes)
        return kept

    def _from_host(self, device: int, values: Any, view: Any) -> None:
        packed = self.peers.empty(device, view.size, view.dtype)
        self.peers.from_host(device, values, packed)
        self.peers.copy(device, packed.reshape(view.shape), view)
        self.peers.free(device, packed)
        self.traffic.host += int(view.nbytes)

    def _direct(self, source: int, view: Any, target: int, out: Any) -> None:
        packed = self._dense(source, view)
        arrived = self.peers.empty(target, view.size, view.dtype)
        self.peers.send(source, packed, target, arrived)
        self.peers.copy(target, arrived.reshape(view.shape), out)
        self.peers.free(source, packed)
        self.peers.free(target, arrived)
        self.traffic.direct += int(view.nbytes)


def fits(
    exchange: ExchangeMap, target_home: Callable[[Block], int], peers: Peers, itemsize: int,
    targets: Iterable[Block] | None = None
) -> bool:
    """Whether every device has room for second buffers, and for a shard on its way."""
    needs: dict[int, int] = {}
    shard = 0  # is no larger than a block, and lies packed where it leaves and where it arrives
    for target in exchange.target.indices() if targets is None else targets:
        nbytes = int(np.prod(exchange.target.shape(target))) * itemsize
        needs[target_home(target)] = needs.get(target_home(target), 0) + nbytes
        shard = max(shard, nbytes)
    return all(peers.room(device) >= nbytes + shard for device, nbytes in needs.items())

