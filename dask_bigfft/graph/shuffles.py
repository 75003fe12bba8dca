"""What the tasks of a shuffle run: blocks packed and sent, and put together where they arrive.

Imports `exchange`, `events`, `errors` and this room.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.devices.on_card import is_on_card
from dask_bigfft.errors import CarrierError
from dask_bigfft.events import emit
from dask_bigfft.exchange import p2p
from dask_bigfft.exchange.p2p_shards import Message, Owner
from dask_bigfft.exchange.packing import Packed, shard_checksum
from dask_bigfft.graph.blocks import checked
from dask_bigfft.graph.run import Run
from dask_bigfft.graph.tasks import compare, put_together, reported, run_block

Array = npt.NDArray[Any]
Block = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Blocks that a task sends to one shuffle."""

    shuffle: str
    blocks: tuple[Block, ...]


#: Shuffles that a task has sent to, and the number of the attempt of each.
Attempts = dict[str, int]


def send_blocks(run: Run, number: int, sends: tuple[Send, ...], *values: Array) -> Attempts:
    """Send source blocks, given in the order in which they are named, in exchange `number`."""
    given = iter(values)
    return _sent(run, number, sends, lambda block: next(given))


def run_and_send(
    run: Run, number: int, sends: tuple[Send, ...], filter_axes: tuple[int, ...],
    sources: tuple[tuple[Block, ...], ...], *inputs: Array
) -> Attempts:
    """Take blocks through the round after exchange `number`, one by one, and send each on.

    `sources` are the blocks that each one is made of; they are among the inputs in this order,
    each block's filters before them.
    """
    given, blocks = iter(inputs), iter(sources)

    def made(block: Block) -> Array:
        own = next(blocks)
        count = len(filter_axes) + len(own)
        arguments = itertools.islice(given, count)
        found: Array = run_block(run, number, block, filter_axes, own, None, *arguments)
        return found

    return _sent(run, number + 1, sends, made)


def collect_and_send(
    run: Run, number: int, sends: tuple[Send, ...], filter_axes: tuple[int, ...], shuffle: str,
    attempt: int, *inputs: Array
) -> Attempts:
    """Put blocks of a shuffle together, one by one, take each through the round, and send it on."""
    given = iter(inputs)

    def made(block: Block) -> Array:
        spectra = itertools.islice(given, len(filter_axes))
        found: Array = run_block_of_shuffle(
            run, number, block, filter_axes, shuffle, attempt, *spectra
        )
        return found

    return _sent(run, number + 1, sends, made)


def _sent(
    run: Run, number: int, sends: tuple[Send, ...], made: Callable[[Block], Array]
) -> Attempts:
    """Send blocks as they are made; none is kept.

    Where a shuffle's attempt has changed meanwhile, the older one is returned: the barrier then
    has all of it sent again.
    """
    found = {}
    for send in sends:
        found[send.shuffle] = min(
            send_shards(run, number, block, send.shuffle, made(block)) for block in send.blocks
        )
    return found


def shuffle_barrier(shuffle: str, *sent: Attempts) -> int:
    """Wait until all that was sent to a shuffle has arrived; return the number of the attempt."""
    return p2p.barrier(shuffle, [attempts[shuffle] for attempts in sent])


@reported
def send_shards(run: Run, number: int, source: Block, shuffle: str, values: Array) -> int:
    """Pack a source block and send the shards to their workers; return the shuffle's attempt.

    Parameters
    ----------
    run : Run
        The plan.
    number : int
        Exchange, from 0.
    source : tuple of int
        Which block.
    shuffle : str
        Name of the shuffle.
    values : ndarray
        The block.
    """
    block, dtype = checked(run, number, source, values), np.dtype(run.exchange(number).dtype)
    if is_on_card(block):
        raise CarrierError(
            "blocks on a card do not travel by the carrier p2p: build the graph with "
            "dask.config.set({'bigfft.exchange.carrier': 'tasks'}), as is done by itself where the "
            "array's meta is a CuPy array"
        )

    def checksums(packed: Packed) -> Array:
        found = np.zeros(len(packed.blocks), np.uint64)
        if run.plan.verify == "checksum":
            for i, target in enumerate(packed.blocks.tolist()):
                found[i] = shard_checksum(packed.shard(i), number, source, tuple(target))
        return found

    def packed(
        owner_of: Callable[[Block], Owner], targets: tuple[Sequence[int], ...]
    ) -> dict[Owner, Message]:
        started = time.perf_counter()
        packing = run.packing(number, targets)
        found = packing.pack(source, block, dtype, owner_of)
        messages = {o: (m.blocks, m.bounds, m.values, checksums(m)) for o, m in found.items()}
        nbytes = sum(message.values.nbytes for message in found.values())
        emit("pack", nbytes=nbytes, seconds=time.perf_counter() - started)
        return messages

    return p2p.transfer(shuffle, source, packed)


@reported
def run_block_of_shuffle(
    run: Run, number: int, block: Block, filter_axes: tuple[int, ...], shuffle: str, attempt: int,
    *inputs: Array
) -> Array:
    """Return a block put together from a shuffle's shards and taken through the next round.

    Raises
    ------
    CarrierError
        If the shuffle does not have exactly the shards that the block is made of.
    """
    filters = dict(zip(filter_axes, inputs, strict=True))
    started = time.perf_counter()
    shards = p2p.collect(shuffle, attempt, block)
    nbytes = sum(shard.nbytes for shard, _ in shards.values())
    emit("unpack", nbytes=nbytes, seconds=time.perf_counter() - started)
    expected = run.map(number).sources(block)
    if shards.keys() != expected:
        raise CarrierError(
            f"exchange {number}: block {block} needs shards of {len(expected)} blocks, and the "
            f"shuffle {shuffle} has {len(shards)}, {len(expected - shards.keys())} of them missing"
        )
    if run.plan.verify == "checksum":
        compare(number, block, shards)
    plain = {source: shard for source, (shard, _) in shards.items()}
    done = put_together(run, number, block, plain, filters)
    p2p.release(shuffle, attempt, block)
    return done
