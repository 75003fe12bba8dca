"""What a run has done, and how a part of it is taken back: what it is made of, back to the source.

Imports `errors`, `exchange`, `graph` and `planner`.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from dask_bigfft.errors import DamagedShardError
from dask_bigfft.exchange.records import recorded_blocks
from dask_bigfft.exchange.scratch import Scratch
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import run_json

__all__ = ["finished_blocks", "forget_damaged", "forget_lost", "result_files"]

Block = tuple[int, ...]


def finished_blocks(
    scratch: Path, plan: Plan
) -> tuple[tuple[int, frozenset[tuple[int, ...]]], ...]:
    """Return what is done, by the number of the exchange that it was done for."""
    run = run_json.digest(scratch)
    found = [
        (number, recorded_blocks(scratch, exchange_folder("", number), run))
        for number, moves in enumerate(plan.moves)
        if moves
    ]
    return (*found, (len(plan.exchanges), recorded_blocks(scratch, None, run)))


def forget_damaged(scratch: Path, plan: Plan, error: DamagedShardError) -> None:
    """Take back the records of shards that are damaged, and of all that is needed to make them.

    What a block was made of is deleted once its shards are written, so the blocks before it have
    to write theirs once more, and so on back to a file that is still there, or to the source.
    The spectrum of a filter, which is made from nothing, is made anew as a whole.
    """
    filter_ = error.exchange.removesuffix(exchange_folder("", error.number))
    if filter_:
        for found in scratch.glob(f"{filter_}exchange*"):
            shutil.rmtree(found)
        return
    files = _without_finished(scratch, plan)
    for block in error.sources:
        files.forget(exchange_folder("", error.number), block)
    _forget_sources(files, plan, error.number - 1, set(error.sources))


def _without_finished(scratch: Path, plan: Plan) -> Scratch:
    """Return the scratch files, of which those of finished blocks are gone.

    What an earlier repair has left of them is not whole.
    """
    files = Scratch(scratch, sync=False, kept=True)
    for finished, done in finished_blocks(scratch, plan):
        for block in done if finished else ():
            files.free(exchange_folder("", finished - 1), block)
    return files


def _forget_sources(files: Scratch, plan: Plan, number: int, blocks: set[Block]) -> None:
    """Take back what files of target blocks of an exchange are made of, where they are gone."""
    while blocks and number >= 0 and plan.moves[number]:
        exchange, folder = plan.exchanges[number], exchange_folder("", number)
        gone = [block for block in blocks if not files.path(folder, block).exists()]
        shards = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
        blocks = {source for block in gone for source in shards.sources(block)}
        for block in blocks:
            files.forget(folder, block)
        number -= 1


def result_files(plan: Plan) -> tuple[int | None, dict[Block, Block]]:
    """Return where the blocks of the result come from and go with.

    Returns
    -------
    int or None
        Exchange whose files they come from, each of which goes when what is made of it is stored.
    dict
        Of each chunk of the result that is a part of a block of the last round, that block.
    """
    last, moves = len(plan.moves) - 1, plan.moves
    if moves[last] or len(moves) <= len(plan.rounds) or plan.exchanges[last].local:
        return (last if moves[last] else None), {}
    shards = ExchangeMap(plan.exchanges[last].source, plan.exchanges[last].target)
    parts = {block: next(iter(shards.sources(block))) for block in plan.result.indices()}
    return (last - 1 if moves[last - 1] else None), parts


def forget_lost(scratch: Path, plan: Plan, lost: Sequence[Block]) -> None:
    """Take back that blocks of the result are stored, and all that is needed to make them.

    Their records go last: a run that is killed meanwhile comes here once more.
    """
    files = _without_finished(scratch, plan)
    number, parts = result_files(plan)
    if number is not None:
        made_of = {parts.get(block, block) for block in lost}
        for block in made_of:
            files.free(exchange_folder("", number), block)
        _forget_sources(files, plan, number, made_of)
    for block in lost:
        files.forget_stored(block)
