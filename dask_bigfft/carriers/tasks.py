"""The carrier `tasks`: every shard is a task, which works between any processes.

::

    source blocks -> a task for every shard -> gather + round
"""

import functools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.base import Carrier, Stage
from dask_bigfft.carriers.run import Indices, Operands, PlanRun, block_task, checked, reported
from dask_bigfft.errors import CarrierError, VerificationError
from dask_bigfft.events import emit
from dask_bigfft.exchange.packing import pack, shard_checksum
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.gpu.links import gpus
from dask_bigfft.gpu.peers import new_table_on
from dask_bigfft.kernels.views import host_table, is_on_gpu

#: Maximum number of shard tasks of one exchange.
MAX_SHARD_TASKS = 2_000_000


class Tasks(Carrier):
    """Carrier with a task for every shard."""

    def add_travelling(self, stage: Stage) -> None:
        """Add the tasks of an exchange: one for every shard, and one for every target block."""
        exchange = stage.exchange
        if exchange.shape.shards > MAX_SHARD_TASKS:
            raise CarrierError(
                f"exchange {stage.number} needs {exchange.shape.shards} shard tasks, more than "
                f"{MAX_SHARD_TASKS}: use larger chunks"
            )
        pack_name = stage.names("pack", stage.number)
        shards = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
        for block in exchange.target.indices():
            sources = tuple(sorted(shards.sources(block)))
            packed = []
            for source, values in zip(sources, stage.refs(sources), strict=True):
                shard = stage.put(
                    pack_name,
                    (*block, *source),
                    pack_shard,
                    stage.run,
                    stage.number,
                    block,
                    source,
                    values,
                )
                packed.append(shard)
            self.add_block(
                stage,
                block,
                run_block_of_shards,
                sources,
                *packed,
            )


# --- tasks ----------------------------------------------------------------------------------


@reported
def pack_shard(
    run: PlanRun,
    number: int,
    block: Block,
    source: Block,
    values: Array,
) -> Array | tuple[Array, int]:
    """Return the packed shard of a source block for a target block; with checksum if verified."""
    started = time.perf_counter()
    values = checked(
        run,
        number,
        source,
        values,
    )
    dtype = np.dtype(run.exchange(number).dtype)
    new_table = new_table_on(gpus().home(values)) if is_on_gpu(values) else host_table
    shard = pack(
        run.map(number),
        block,
        source,
        values,
        dtype,
        new_table,
    )
    checksum = None
    if run.plan.verify == "checksum":
        checksum = shard_checksum(
            shard,
            number,
            source,
            block,
        )
    emit("pack", nbytes=shard.nbytes, seconds=time.perf_counter() - started)
    return shard if checksum is None else (shard, checksum)


@block_task
def run_block_of_shards(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    sources: Indices,
    *packed: Any,
) -> Array:
    """Return a block assembled from packed shards, after its round."""
    shards = dict(zip(sources, packed, strict=True))
    return put_together(
        run,
        number,
        block,
        shards,
        operands,
    )


def put_together(
    run: PlanRun,
    number: int,
    block: Block,
    shards: Mapping[Block, Any],
    operands: Operands,
) -> Array:
    """Return a block assembled from packed shards, after its round.

    Shards are arrays, or pairs of array and checksum, which is compared if the plan says so.
    """
    if run.plan.verify == "checksum":
        _compare_checksums(number, block, shards)
    arrays = {}
    for source, shard in shards.items():
        arrays[source] = shard[0] if isinstance(shard, tuple) else shard
    view = functools.partial(
        run.view,
        number,
        block,
        arrays.__getitem__,
        packed=True,
    )
    return run.finish(
        number,
        block,
        view,
        operands,
    )


def _compare_checksums(
    number: int, block: Block, shards: Mapping[Block, tuple[Array, int]]
) -> None:
    """Raise if a shard is not what was packed."""
    for source, (shard, packed_checksum) in shards.items():
        checksum = shard_checksum(
            shard,
            number,
            source,
            block,
        )
        if checksum != int(packed_checksum):
            emit("mismatch", nbytes=shard.nbytes)
            raise VerificationError(
                f"exchange {number + 1}, block {block}: the shard of block {source} is not what "
                f"was packed (checksum {checksum:016x}, not {int(packed_checksum):016x})"
            )
