"""Target blocks of an exchange whose sources are on GPUs.

A block is gathered on one GPU, from its own memory and other GPUs (`view_on_gpu`). In an exchange
between several GPUs, source blocks are copied into all target blocks as soon as they are made
(`Crossing`).
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dask_bigfft.arrays import Block
from dask_bigfft.errors import raise_invalid
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.gpu.links import gpus, home_of
from dask_bigfft.gpu.on_gpu import Run
from dask_bigfft.gpu.operations import dense
from dask_bigfft.gpu.peers import Choice, GpuTable, PeerCopies
from dask_bigfft.kernels.copies import Segments
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.planner.stages import Exchange
from dask_bigfft.transforms.layout import Layout

# --- one block ------------------------------------------------------------------------------


def view_on_gpu(view: BlockView, home: int | None) -> BlockView:
    """Return the view of a target block that is gathered on a GPU.

    Parameters
    ----------
    view : BlockView
        View of the block by `exchange.gather.view_of`. Its sources are all on GPUs, or all in host
        memory.
    home : int or None
        GPU on which the block is gathered; None for the GPU of the first source.
    """
    sources = [source for table in view.tables for source in table.sources]
    on_gpu = [is_on_gpu(source) for source in sources]
    if any(on_gpu) and not all(on_gpu):
        kinds = "blocks on a GPU and blocks in host memory"
        raise_invalid("a", kinds, "an array whose blocks are all of one kind")

    def new_table(shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuTable:
        padded = sum(table.size for table in view.tables) < math.prod(shape)
        own_home = gpus().home(sources[0]) if home is None else home
        return GpuTable(
            PeerCopies(own_home),
            shape,
            dtype,
            padded,
        )

    def runs() -> list[Run]:
        homes = {home, *map(gpus().home, sources)} - {None}
        return _runs_of(view) if len(homes) == 1 else []

    gpu_view = BlockView(
        view.shape,
        view.dtype,
        tables=view.tables,
        boxes=view.boxes,
        new_table=new_table,
        runs=runs,
    )
    # Zeros on the GPU `home`, or the host memory of a simulated one, are no segments.
    return gpu_view if any(on_gpu) else gathered(gpu_view)


def gathered(view: BlockView) -> BlockView:
    """Return the view of a block after it was gathered."""
    return _owned(view.gather())


def _owned(array: Any) -> BlockView:
    """Return the view of a block that may be overwritten."""
    view = BlockView.of(array, owned=True)
    view.on_gpu = is_on_gpu(array)
    return view


def _runs_of(view: BlockView) -> list[Run]:
    """Return a block on a GPU as parts that are contiguous there and in the block, or no parts."""
    if len(view.tables) != 1:
        return []
    (table,) = view.tables
    itemsize = view.dtype.itemsize
    segments = table.segments(dense(view.shape, itemsize), None)
    if segments.size != math.prod(view.shape):
        return []
    if any(source.dtype != view.dtype for source in table.sources):
        return []
    # There are no runs if some copy is not contiguous.
    runs = zip(table.which.tolist(), segments.runs(itemsize), strict=False)
    return [Run(table.sources[number], *run) for number, run in runs]


def part_of_source(view: BlockView) -> Any | None:
    """Return a block on a GPU as a view of its source; None if it is not a box of one source."""
    rows = _only_copy(view)
    if rows is None:
        return None
    ((counts, start, source_strides, _, target_strides),) = rows.listed
    digits = [digit for digit in zip(counts, target_strides, strict=True) if digit[0] != 1]
    strides = dense(view.shape, view.dtype.itemsize)
    dims = [dim for dim in zip(view.shape, strides, strict=True) if dim[0] != 1]
    if digits != dims:
        return None
    part_shape = [count for count, _ in digits]
    part_strides = [
        stride for count, stride in zip(counts, source_strides, strict=True) if count != 1
    ]
    source = view.tables[0].sources[0]
    return (
        gpus()
        .view(
            source,
            start,
            part_shape,
            part_strides,
        )
        .reshape(view.shape)
    )


def _only_copy(view: BlockView) -> Segments | None:
    """Return the strided copy that makes a block; None if it takes several, or a conversion."""
    (table, *other_tables) = view.tables
    if other_tables or len(table.sources) != 1 or table.sources[0].dtype != view.dtype:
        return None
    rows: Segments = table.segments(dense(view.shape, view.dtype.itemsize), None)
    return rows if len(rows.counts) == 1 and not rows.conjugate else None


# --- exchanges between several GPUs ---------------------------------------------------------


def spread(target: Layout, homes: Mapping[Block, int]) -> dict[Block, int]:
    """Return the GPUs of the blocks after an exchange, given those of the blocks before it.

    `homes` is in the order of the indices of the blocks before it. If there are as many blocks
    after the exchange, each stays on the GPU of the block with its number.
    """
    if not homes:
        return {}
    targets = list(target.indices())
    if len(homes) == len(targets):
        return dict(zip(targets, homes.values(), strict=True))
    used = sorted(set(homes.values()))
    return {
        block: used[home_of(number, len(targets), len(used))]
        for number, block in enumerate(targets)
    }


def by_turns(homes: Mapping[Block, int]) -> list[list[Block]]:
    """Return blocks in turns, with at most one block of each GPU.

    >>> by_turns({(0,): 0, (1,): 0, (2,): 1})
    [[(0,), (2,)], [(1,)]]
    """
    blocks_of_gpu: dict[int, list[Block]] = {}
    for block, home in homes.items():
        blocks_of_gpu.setdefault(home, []).append(block)
    turns = itertools.zip_longest(*blocks_of_gpu.values())
    return [[block for block in turn if block is not None] for turn in turns]


class Crossing(contextlib.AbstractContextManager["Crossing"]):
    """Blocks after an exchange between GPUs, into which blocks are copied as they are made.

    Parameters
    ----------
    shards : ExchangeMap
        Shards of the exchange.
    exchange : Exchange
        The exchange.
    homes : dict of block to int
        GPU of each source block.
    sources : dict of block to array
        Source blocks, for their strides; blocks that are not made yet are contiguous. Without any,
        the GPUs are not joined, and `take` needs events.
    choice : callable
        Transport between GPUs.
    """

    def __init__(
        self,
        shards: ExchangeMap,
        exchange: Exchange,
        homes: Mapping[Block, int],
        sources: Mapping[Block, Any],
        choice: Choice,
    ) -> None:
        self._homes = homes
        self._tables: dict[Block, GpuTable] = {}
        #: Copies from each source block.
        self._copies: dict[Block, list[tuple[GpuTable, Segments]]] = {block: [] for block in homes}
        if sources:
            self.join()
        dtype = np.dtype(exchange.dtype)
        strides = _strides_of(exchange, homes, sources)
        target_homes = spread(exchange.target, homes)
        used_gpus = set(target_homes.values())
        peer_copies = {home: PeerCopies(home, choice, aside=True) for home in used_gpus}
        for block in itertools.chain(*by_turns(target_homes)):
            shape = exchange.target.shape(block)
            products = shards.products(block, False)
            padded = sum(product.size for product in products) < math.prod(shape)
            table = GpuTable(
                peer_copies[target_homes[block]],
                shape,
                dtype,
                padded,
            )
            self._tables[block] = table
            for product in products:
                source_strides = tuple(strides[source] for source in product.blocks)
                rows = product.gathered(source_strides, dense(shape, dtype.itemsize), None)
                parts = rows.by_source(product.which, len(product.blocks))
                for source, part in zip(product.blocks, parts, strict=True):
                    self._copies[source].append((table, part))

    def take(
        self, sources: Mapping[Block, Any], moments: Mapping[Block, Any] | None = None
    ) -> None:
        """Enqueue the copies of some source blocks, each after an event.

        Each GPU writes to the others one after the other, no two of them to the same one at a time:
        its link would limit both.
        """
        homes = self._homes
        moments = moments or {}
        count = 1 + max(homes.values())
        copies = []
        for block in sources:
            for table, rows in self._copies.pop(block):
                copies.append((block, table, rows))
        copies.sort(key=lambda copy: (copy[1].home - homes[copy[0]] - 1) % count)
        by_gpu = itertools.groupby(copies, lambda copy: (copy[0], copy[1].copies))
        for (block, peer_copies), copies_to_gpu in by_gpu:
            source = sources[block]
            peer_copies.copies[homes[block], source.dtype] = [
                (source, table.target, rows) for _, table, rows in copies_to_gpu
            ]
            peer_copies.run(moments.get(block))

    def arrived(self, block: Block) -> BlockView:
        """Return the view of a target block, for which the current stream waits."""
        return _owned(self._tables.pop(block).wait())

    def join(self) -> None:
        """Let the current streams of all GPUs wait for all copies and for each other."""
        for table in self._tables.values():
            table.wait()
        gpus().join(sorted(set(self._homes.values())))

    def __exit__(self, error: object, *_: object) -> None:
        """Join the GPUs after an error, before memory is freed."""
        if error is not None:
            self.join()


def _strides_of(
    exchange: Exchange, blocks: Iterable[Block], sources: Mapping[Block, Any]
) -> dict[Block, Block]:
    """Return the strides of source blocks; those that are not made yet are contiguous."""
    itemsize = np.dtype(exchange.source_dtype).itemsize
    strides = {block: dense(exchange.source.shape(block), itemsize) for block in blocks}
    for block, values in sources.items():
        strides[block] = values.strides
    return strides


def crosses(exchange: ExchangeMap, homes: Mapping[Block, int]) -> bool:
    """Return True if shards of an exchange go from one GPU to another."""
    if len(set(homes.values())) < 2:
        return False
    for block, home in spread(exchange.target, homes).items():
        for product in exchange.products(block, False):
            if any(homes[source] != home for source in product.blocks):
                return True
    return False
