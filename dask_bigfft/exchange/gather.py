"""Views of the target blocks of an exchange, whose shards are in source blocks or packed.

A GPU takes a block as boxes of its source blocks, without a gather (`boxes_of`). Along each axis
the pieces of an exchange are boxes of the block's digits. If a block of the result ends within a
digit, they are boxes of a larger block around it that has whole digits::

    block of 7..18, digits of 4        . . . 7       around it: 4..19, of which the block has
                                       8 ...11       3..14
                                      12 ...15
                                      16 17 18 .

The boxes of a mirror image have negative steps.
"""

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block, Ints, Region
from dask_bigfft.errors import raise_invalid
from dask_bigfft.events import emit
from dask_bigfft.exchange.shards import AxisPieces, ExchangeMap, Product, firsts
from dask_bigfft.gpu.on_gpu import ArrayCopy, Gpus, Run, Segment, gpus, home_of
from dask_bigfft.gpu.operations import dense
from dask_bigfft.kernels.copies import Segments, regular_strides, strided_view
from dask_bigfft.kernels.segmented import Edge, SegmentedView, Stretches, WindowView
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.planner.plan_data import Exchange
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.tiles.pieces import Pieces, Side, stacked
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.rounds import packed_dtype

#: Transports between GPUs.
TRANSPORTS = ("host", "staged", "swap", "direct")

#: Function that returns the transport from the first GPU to the second.
Choice = Callable[[int, int], str]

#: Minimum ratio of link speed to bus speed at which `direct` is faster than `swap`: 6 on two H200.
LINK = 2

#: Held while a message is sent, so that a GPU needs buffers for only one message.
_sending = threading.Lock()


def transport_of(found: Gpus, source: int, target: int) -> str:
    """Return the fastest transport from one GPU to another by the measured speed of their link."""
    there, back = found.reaches(target, source), found.reaches(source, target)
    if not (there and back):
        return "staged" if there or back else "host"
    speed, bus = found.speed(source, target), DeviceProfile.h2d
    if speed < bus / 2:
        return "host"
    return "direct" if speed > LINK * bus else "swap"


class Copies:
    """Strided copies to arrays of one dtype on a GPU, which are enqueued together.

    Parameters
    ----------
    home : int
        GPU of the arrays.
    choice : callable, optional
        Transport from another GPU.
    aside : bool
        True to copy in side streams: the caller joins the GPUs before it makes the arrays, or gives
        `run` an event after the work that made the sources. It calls `finish` before it uses the
        arrays, and joins the GPUs before the sources are freed.
    """

    def __init__(self, home: int, choice: Choice | None = None, aside: bool = False) -> None:
        self.home, self._gpus, self.aside = home, gpus(), aside
        self.choice = choice or functools.partial(transport_of, self._gpus)
        #: Event from which on the arrays may be written.
        self.begun: Any = None
        #: Copies by GPU and dtype of their sources.
        self.segments: dict[tuple[int, np.dtype[Any]], list[Segment]] = {}
        #: End of the copies in each side stream, and bytes moved between GPUs.
        self._ends, self._moved = dict[int, Any](), dict[str, int]()

    def run(self, moment: Any = None) -> None:
        """Enqueue the copies; those in side streams wait for an event, if any."""
        found, homes = self._gpus, {self.home, *(gpu for gpu, _ in self.segments)}
        if not self.aside:
            found.join(homes)
            self.begun = found.now(self.home) if len(homes) > 1 else None
        try:
            self._enqueue([event for event in (self.begun, moment) if event is not None])
        finally:
            self.segments.clear()
            if not self.aside:
                self.finish()
                found.join(homes)

    def _enqueue(self, events: list[Any]) -> None:
        for (gpu, dtype), segments in self.segments.items():
            choice = "direct" if gpu == self.home else self.choice(gpu, self.home)
            by_host = choice == "host" or (choice == "staged" and self._staged_by_host(gpu))
            kept = packed_dtype(dtype, segments[0].target.dtype)
            size = sum(math.prod(one.form[0]) for one in segments)
            if choice != "direct":
                self._send(gpu, segments, size, kept, by_host)
            elif gpu == self.home and not self.aside:
                self._gpus.copy(gpu, [one.arrays for one in segments])
            else:
                self._ends |= self._gpus.copy_aside(self.home, segments, events)
            if gpu != self.home:
                name, nbytes = "peer_host" if by_host else "peer_direct", size * kept.itemsize
                self._moved[name] = self._moved.get(name, 0) + (1 + by_host) * nbytes

    def finish(self) -> None:
        """Let the current stream wait for the copies, and report the bytes moved."""
        if self._ends:
            self._gpus.wait(self.home, self._ends.values())
        for name, nbytes in self._moved.items():
            emit(name, nbytes=nbytes, seconds=0.0)
        self._ends, self._moved = {}, {}

    def _staged_by_host(self, source: int) -> bool:
        """Return whether the transport `staged` copies from a GPU through the host.

        It does if the target's GPU cannot read the source's. If each can read the other, copies
        from the lower to the higher number go through the host.
        """
        there, back = self._gpus.reaches(self.home, source), self._gpus.reaches(source, self.home)
        return not there or (back and source < self.home)

    def _send(
        self, source: int, segments: list[Segment], size: int, dtype: np.dtype[Any], by_host: bool
    ) -> None:
        """Pack segments of another GPU into one message, send it and copy it into place."""
        found = self._gpus
        with _sending:
            packed, arrived = (found.empty(gpu, size, dtype) for gpu in (source, self.home))
            for gpu in (source, self.home):
                emit("device_memory", device=gpu, nbytes=found.used_nbytes(gpu))
            copies = [one.arrays for one in segments]
            pairs = list(zip(copies, _dense(packed, copies), strict=True))
            found.copy(source, [(values, part, False) for (values, _, _), part in pairs])
            found.send(source, packed, self.home, arrived, by_host)
            pairs = list(zip(copies, _dense(arrived, copies), strict=True))
            found.copy(self.home, [(part, place, turned) for (_, place, turned), part in pairs])
            found.join((source, self.home))  # before the messages are freed


class GpuTable:
    """Table of strided copies into a new array on a GPU, `target`, like `CopyTable` on the host.

    Parameters
    ----------
    copies : Copies
        What enqueues the copies, maybe with those to other arrays on the GPU.
    shape, dtype
        Shape and dtype of the new array.
    zeros : bool
        Whether the new array is filled with zeros first.
    """

    def __init__(self, copies: Copies, shape: Any, dtype: Any, zeros: bool = False) -> None:
        self.copies, self.home, self.run = copies, copies.home, copies.run
        self.target = gpus().empty(self.home, shape, dtype, zeros)
        copies.begun = gpus().now(self.home) if copies.aside else None

    def extend(self, sources: Sequence[Any], which: np.ndarray, rows: Segments) -> None:
        """Add many strided copies; `which` names the source of each."""
        keys = [(gpus().home(source), source.dtype) for source in sources]
        by_source = [self.copies.segments.setdefault(key, []) for key in keys]
        for i, row in zip(which.tolist(), rows.listed, strict=True):
            by_source[i].append(Segment(sources[i], self.target, row, rows.conjugate))

    def wait(self) -> Any:
        """Let the current stream wait for the copies, and return the array."""
        self.copies.finish()
        emit("device_memory", device=self.home, nbytes=gpus().used_nbytes(self.home))
        return self.target


def spread(target: Layout, homes: Mapping[Block, int]) -> dict[Block, int]:
    """Return the GPUs of the blocks after an exchange, given those of the blocks before it."""
    targets, used = list(target.indices()) if homes else [], sorted(set(homes.values()))
    if len(homes) == len(targets):  # each GPU holds as much after the exchange as before
        return dict(zip(targets, homes.values(), strict=True))
    return {t: used[home_of(i, len(targets), len(used))] for i, t in enumerate(targets)}


def by_turns(homes: Mapping[Block, int]) -> list[list[Block]]:
    """Return blocks in turns, with at most one block of each GPU.

    >>> by_turns({(0,): 0, (1,): 0, (2,): 1})
    [[(0,), (2,)], [(1,)]]
    """
    each: dict[int, list[Block]] = {}
    for block, home in homes.items():
        each.setdefault(home, []).append(block)
    turns = itertools.zip_longest(*each.values())
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
        self._tables, self._homes = dict[Block, GpuTable](), homes
        self._copies: dict[Block, list[tuple[GpuTable, Segments]]] = {b: [] for b in homes}
        if sources:
            self.join()
        dtype, before = np.dtype(exchange.dtype), np.dtype(exchange.source_dtype).itemsize
        strides = {b: dense(exchange.source.shape(b), before) for b in homes}
        strides |= {block: values.strides for block, values in sources.items()}
        places = spread(exchange.target, homes)
        copies = {home: Copies(home, choice, aside=True) for home in places.values()}
        for block in itertools.chain(*by_turns(places)):
            shape, products = exchange.target.shape(block), shards.products(block, False)
            zeros = sum(product.size for product in products) < math.prod(shape)
            table = self._tables[block] = GpuTable(copies[places[block]], shape, dtype, zeros)
            for product in products:
                sides = tuple(strides[b] for b in product.blocks), dense(shape, dtype.itemsize)
                rows = product.gathered(*sides, None)
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
        homes, after = self._homes, moments or {}
        count = 1 + max(homes.values())
        found = [(b, *copy) for b in sources for copy in self._copies.pop(b)]
        found.sort(key=lambda f: (f[1].home - homes[f[0]] - 1) % count)
        for (block, copies), some in itertools.groupby(found, lambda f: (f[0], f[1].copies)):
            source = sources[block]
            copies.segments[homes[block], source.dtype] = [
                Segment(source, table.target, row, rows.conjugate)
                for _, table, rows in some
                for row in rows.listed
            ]
            copies.run(after.get(block))

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


def crosses(exchange: ExchangeMap, homes: Mapping[Block, int]) -> bool:
    """Return True if shards of an exchange go from one GPU to another."""
    return len(set(homes.values())) > 1 and any(
        homes[source] != home
        for block, home in spread(exchange.target, homes).items()
        for product in exchange.products(block, False)
        for source in product.blocks
    )


def _dense(buffer: Any, copies: Sequence[ArrayCopy]) -> list[Any]:
    """Return the parts of a buffer that stores the sources of copies one after the other."""
    starts = itertools.accumulate((values.size for values, _, _ in copies), initial=0)
    pairs = zip(starts, (values for values, _, _ in copies), strict=False)
    return [buffer[a : a + values.size].reshape(values.shape) for a, values in pairs]


class SegmentTable:
    """Segments of a block: the shards of a product, in source blocks or packed.

    Parameters
    ----------
    product : Product
        Copies that the segments stand for.
    source_of : callable
        Source block of a block index, or its packed shard.
    used : dict, optional
        Number of elements of each packed shard that belong to earlier products.
    """

    def __init__(
        self, product: Product, source_of: Callable[[Block], Any], used: dict[Block, int] | None
    ) -> None:
        #: Source of each segment, and total number of values.
        self.which, self.size, self.product = product.which, product.size, product
        blocks = map(source_of, product.blocks)  # with strides of whole elements
        self.sources = [b if is_on_gpu(b) or regular_strides(b) else np.array(b) for b in blocks]
        #: Starts and strides of all copies in packed shards.
        self._packed = None if used is None else in_bytes(product, self.sources, used)

    def divides(self, dim: int) -> bool:
        """Return whether every shard is one run along a dimension of the block."""
        return self.product.along(dim) >= 0

    def segments(self, strides: tuple[int, ...], dim: int | None) -> Segments:
        """Return the copies into a block with these strides, to be cut along `dim` if given."""
        if self._packed is None:
            found = tuple(source.strides for source in self.sources)
            return self.product.gathered(found, strides, dim)
        return self.product.rows(self._packed, strides, dim)


def in_bytes(product: Product, shards: Sequence[Any], used: dict[Block, int]) -> tuple[Ints, Ints]:
    """Return starts and strides of all copies in packed shards, in bytes."""
    starts, steps = product.in_packed(used)
    sizes = np.array([shard.itemsize for shard in shards], np.int64)[product.which]
    return starts * sizes, steps * sizes[:, None]


def view_of(
    exchange: ExchangeMap,
    block: Block,
    dtype: np.dtype[Any],
    source_of: Callable[[Block], Any],
    packed: bool = False,
    home: int | None = None,
) -> BlockView:
    """Return the view of a target block.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    block : tuple of int
        Index of the target block.
    dtype
        Dtype of the target block.
    source_of : callable
        Returns the source block of an index, or its packed shard, which is only read.
    packed : bool
        Whether `source_of` returns packed shards, in which the mirror image is already conjugated.
    home : int, optional
        GPU on which the block is gathered; None for the GPU of the first source.
    """
    used: dict[Block, int] | None = {} if packed else None
    shape, products = exchange.target.shape(block), exchange.products(block, packed)
    tables = [SegmentTable(product, source_of, used) for product in products]
    sources = [source for table in tables for source in table.sources]
    on_gpu = [is_on_gpu(source) for source in sources]
    if any(on_gpu) and not all(on_gpu):
        kinds = "blocks on a GPU and blocks in host memory"
        raise_invalid("a", kinds, "an array whose blocks are all of one kind")

    def boxes(partial: bool) -> WindowView | None:
        if packed or any(source.dtype != dtype for source in sources):
            return None
        pairs = (zip(t.product.blocks, t.sources, strict=True) for t in tables)
        by_block = dict(itertools.chain.from_iterable(pairs))
        return boxes_of(exchange, products, by_block, shape, block if partial else None)

    if home is None and not any(on_gpu):
        return BlockView(shape, dtype, tables=tables, boxes=boxes)

    def new_table(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        padded = sum(table.size for table in tables) < math.prod(shape)
        place = gpus().home(sources[0]) if home is None else home
        return GpuTable(Copies(place), shape, dtype, padded)

    def runs() -> list[Run]:
        homes = {home, *map(gpus().home, sources)} - {None}
        return _runs_of(tables, shape, dtype) if len(homes) == 1 else []

    found = BlockView(shape, dtype, tables=tables, boxes=boxes, new_table=new_table, runs=runs)
    # Zeros on the GPU `home`, or the host memory of a simulated one, are no segments.
    return found if any(on_gpu) else gathered(found)


def gathered(view: BlockView) -> BlockView:
    """Return the view of a block after it was gathered."""
    return _owned(view.gather())


def _owned(array: Any) -> BlockView:
    """Return the view of a block that may be overwritten."""
    found = BlockView.of(array, owned=True)
    found.on_gpu = is_on_gpu(array)
    return found


def _runs_of(tables: Sequence[SegmentTable], shape: Block, dtype: np.dtype[Any]) -> list[Run]:
    """Return a block on a GPU as parts that are contiguous there and in the block, or no parts."""
    if len(tables) != 1:
        return []
    (table,) = tables
    found = table.segments(dense(shape, dtype.itemsize), None)
    whole = found.size == math.prod(shape)
    if not whole or any(source.dtype != dtype for source in table.sources):
        return []
    runs = found.runs(dtype.itemsize)
    return [Run(table.sources[n], *run) for n, run in zip(table.which.tolist(), runs, strict=False)]


def part_of_source(view: BlockView) -> Any | None:
    """Return a block on a GPU as a view of its source; None if it is not a box of one source."""
    (table, *others), itemsize = view.tables, view.dtype.itemsize
    if others or len(table.sources) != 1 or table.sources[0].dtype != view.dtype:
        return None
    strides = dense(view.shape, itemsize)
    rows = table.segments(strides, None)
    if len(rows.counts) != 1 or rows.conjugate:
        return None
    sides = rows.counts[0], rows.target_strides[0], rows.source_strides[0]
    dims = [dim for dim in zip(*(side.tolist() for side in sides), strict=True) if dim[0] != 1]
    whole = [dim for dim in zip(view.shape, strides, strict=True) if dim[0] != 1]
    if [dim[:2] for dim in dims] != whole:
        return None
    counts, steps = [dim[0] for dim in dims], [dim[2] for dim in dims]
    found = gpus().view(table.sources[0], int(rows.source_starts[0]), counts, steps)
    return found.reshape(view.shape)


def stored_regions(
    exchange: ExchangeMap, block: Block, memory: Array | Mapping[Block, Array]
) -> Iterator[tuple[Region, Array]]:
    """Yield the regions of a stored array that make a target block, each with its place in memory.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange. Each axis of a source block is one dimension, without a mirror.
    block : tuple of int
        Index of the target block.
    memory : ndarray, or mapping of block to ndarray
        The target block, or the packed shard of each source block.

    Yields
    ------
    region, place
        Slices of the stored array, and a view of that shape in `memory`.
    """
    used: dict[Block, int] = {}
    for product in exchange.products(block, packed=True):
        arrays: Iterable[Array]
        if isinstance(memory, np.ndarray):
            arrays = itertools.repeat(memory)
            starts, steps = product.in_target(memory.strides)
        else:
            shards = [memory[index] for index in product.blocks]
            arrays = (shards[i] for i in product.which.tolist())
            starts, steps = in_bytes(product, shards, used)
        for copy, (values, start) in enumerate(zip(arrays, starts.tolist(), strict=False)):
            runs, widths, strides = _stored_runs(product, copy, steps[copy].tolist(), values)
            for axis_runs in itertools.product(*runs):
                lows = [low for low, _ in axis_runs]
                region = tuple(slice(low, low + n) for low, n in zip(lows, widths, strict=True))
                place = start + sum(offset for _, offset in axis_runs)
                yield region, strided_view(values, place, widths, strides)


def _stored_runs(
    product: Product, copy: int, steps: list[int], values: Array
) -> tuple[list[list[tuple[int, int]]], list[int], list[int]]:
    """Return the runs of a copy along each axis of the stored array, see `_runs`.

    `steps` are the strides of all digits in `values`, which are the memory of the copy.
    """
    source = product.blocks[product.which[copy]]
    runs = []
    widths = []
    strides = []
    first_digit = 0
    for axis, pieces in enumerate(product.axes):
        digits = pieces.counts.shape[1]
        origin = product.exchange.source.axes[axis].groups[0].bounds[source[axis]]
        own_steps = steps[first_digit : first_digit + digits]
        row = int(product.chosen[axis, copy])
        own_runs, width, stride = _runs(pieces, row, origin, own_steps, values.itemsize)
        runs.append(own_runs)
        widths.append(width)
        strides.append(stride)
        first_digit += digits
    return runs, widths, strides


def _runs(
    pieces: Pieces, row: int, origin: int, steps: list[int], itemsize: int
) -> tuple[list[tuple[int, int]], int, int]:
    """Return the contiguous runs of a piece along an axis of the stored array.

    The result is a list of the first value of each run and its offset in memory, in bytes, the
    number of values in a run, and their stride in memory. `steps` are the digits' strides there.
    """
    source = pieces.sides[0]
    columns = (pieces.counts[row].tolist(), source.steps[row].tolist(), steps)
    digits = [digit for digit in zip(*columns, strict=True) if digit[0] != 1]
    width = 1
    stride = itemsize
    while digits and digits[-1][1] == width and (width == 1 or digits[-1][2] == width * stride):
        count, _, step = digits.pop()
        if width == 1:
            stride = step
        width *= count
    runs = [(origin + int(source.starts[row, 0]), 0)]
    for count, step, memory_step in digits:
        runs = [
            (low + i * step, offset + i * memory_step) for low, offset in runs for i in range(count)
        ]
    return runs, width, stride


# --- boxes ----------------------------------------------------------------------------------

#: Maximum number of shards of a composite view; blocks with more are gathered.
MOST_SHARDS = 4096

#: Maximum ratio of the size with whole digits (see above) to the size of the block. Only values of
#: the block cross the bus.
MOST_AROUND = 2

Axis = tuple[list[tuple[Edge, ...]], Stretches]


def boxes_of(
    exchange: ExchangeMap,
    products: list[Product],
    sources: Mapping[Block, Array],
    shape: tuple[int, ...],
    block: Block | None = None,
) -> WindowView | None:
    """Return a block, or a part of a larger one, as a composite of its sources; None if impossible.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    products : list of Product
        Copies that fill the block: the shards, and those of the conjugated mirror image.
    sources : mapping of block index to ndarray
        Source blocks, of the block's dtype.
    shape : tuple of int
        Shape of the block.
    block : tuple of int, optional
        Index of the block, if it may end within digits.
    """
    conjugates = [product.conjugate for product in products]
    if not math.prod(shape) or conjugates not in ([False], [False, True]):
        return None
    edges: list[Edge] = []
    groups: list[int] = []
    bounds: list[tuple[int, int]] = []
    axes: list[Stretches] = []
    image: list[Stretches] = []
    flipped: set[int] = set()
    source_dims = firsts(exchange.source_dims)
    target_dims = firsts(exchange.target_dims)
    for axis, (pieces, *mirrored) in enumerate(zip(*(p.axes for p in products), strict=True)):
        turned = None if not mirrored else _unflipped(mirrored[0])
        if mirrored and turned is None:
            return None
        both = pieces if turned is None else stacked([pieces, turned[0]])
        first_dim = target_dims[axis]
        sizes = shape[first_dim : first_dim + exchange.target_dims[axis]]
        ends = tuple((0, n) for n in sizes)
        found = _axis(axis, both, source_dims[axis], sizes)
        if found is None and block is not None:
            along = exchange.direct[axis]
            found, ends = _around(axis, both, source_dims[axis], along, block[axis])
        if found is None:
            return None
        per_dim, stretches = found
        bounds += ends
        own = tuple(edge + len(edges) for edge in stretches.edges)
        stretches = replace(stretches, edges=own)
        axes.append(stretches.rows(slice(0, len(pieces))))
        if turned is not None:
            image.append(stretches.rows(slice(len(pieces), None)))
            if turned[1]:
                flipped.update(own)
        edges += [edge for group in per_dim for edge in group]
        groups += [len(group) for group in per_dim]
    view = SegmentedView(
        tuple(edges), tuple(groups), tuple(axes), sources, tuple(image), frozenset(flipped)
    )
    return WindowView(view, tuple(bounds)) if view.count <= MOST_SHARDS else None


def _around(
    axis: int, pieces: Pieces, source_dim: int, along: AxisPieces, block: int
) -> tuple[Axis | None, tuple[tuple[int, int], ...]]:
    """Return edges and boxes of the whole digits around an axis block, and its bounds there."""
    (group, *others) = along.target.groups
    if others or len(group.digits) > 1 or group.offset or group.arrangement:
        return None, ()
    low, high = group.interval(block)
    if not 0 < high - low == group.chunks[block]:
        return None, ()
    begin, end = _outer(low, high, along.points[group.digits[0].stage])
    if end - begin > MOST_AROUND * (high - low):
        return None, ()
    source, target = pieces.sides
    target = replace(target, starts=target.starts + (low - begin))
    around = replace(pieces, sides=(source, target))
    return _axis(axis, around, source_dim, (end - begin,)), ((low - begin, high - begin),)


def _outer(low: int, high: int, points: tuple[int, ...]) -> tuple[int, int]:
    """Return the smallest interval around another one that begins and ends with whole digits.

    >>> _outer(7, 19, (1, 4, 24)), _outer(5, 7, (1, 4, 24)), _outer(20, 27, (1, 4, 24))
    ((4, 20), (5, 7), (20, 28))
    """
    for number, point in enumerate(points):
        begin, end = low // point * point, -(-high // point) * point
        if all(end - begin <= outer for outer in points[number + 1 :]):
            return begin, end
    return low, high


def _unflipped(pieces: Pieces) -> tuple[Pieces, bool] | None:
    """Return pieces with positive steps, and whether they were negative; None if only some were."""
    source, target = pieces.sides
    has_several = pieces.counts > 1
    is_back = (source.steps < 0) & has_several
    if is_back.any() and (has_several & ~is_back).any():
        return None
    starts = source.starts.copy()
    for digit, dim in enumerate(source.dims):
        last = (pieces.counts[:, digit] - 1) * source.steps[:, digit]
        starts[:, dim] += np.minimum(last, 0)
    ascending = Side(source.blocks, starts, np.abs(source.steps), source.dims)
    return replace(pieces, sides=(ascending, target)), bool(is_back.any())


def all_segmented(source: Layout, target: Layout) -> bool:
    """Return whether every block of an exchange consists of slabs of its sources.

    A slab includes all values of every digit except one.
    """
    exchange = ExchangeMap(source, target)
    source_dims = firsts(exchange.source_dims)
    for axis, along in enumerate(exchange.direct):
        for block in range(along.target.blocks):
            pieces = along.into(block)
            if not len(pieces):
                return False
            boxes = _axis(axis, pieces, source_dims[axis], along.target.shape(block))
            if boxes is None or not _are_slabs(*boxes):
                return False
    return True


def _are_slabs(per_dim: list[tuple[Edge, ...]], stretches: Stretches) -> bool:
    sizes = [edge.size for group in per_dim for edge in group]
    cut = np.count_nonzero((stretches.highs - stretches.lows < sizes).any(axis=0))
    return bool(cut < 2) and int(stretches.sizes.sum()) == math.prod(sizes)


def _axis(axis: int, pieces: Pieces, source_dim: int, shape: tuple[int, ...]) -> Axis | None:
    """Return the edges of each dimension of an axis, and its boxes; None if pieces are no boxes."""
    source, target = pieces.sides
    steps = np.stack([source.steps, target.steps])
    if (steps <= 0).any() or (steps != steps[:, :1]).any():
        return None
    per_dim: list[tuple[Edge, ...]] = []
    ranges: list[Ints] = []
    for dim, n in enumerate(shape):
        grid = _grid(axis, pieces, source_dim, dim, n)
        if grid is None:
            return None
        edges, own_ranges = grid
        per_dim.append(edges)
        ranges += own_ranges
    lows, highs = np.moveaxis(np.stack(ranges, axis=1), 2, 0)
    dims = tuple(source_dim + dim for dim in range(source.starts.shape[1]))
    boxes = Stretches(tuple(range(len(ranges))), lows, highs, source.blocks, dims, source.starts)
    return _joined(per_dim, boxes)


def _grid(
    axis: int, pieces: Pieces, source_dim: int, dim: int, n: int
) -> tuple[tuple[Edge, ...], list[Ints]] | None:
    """Return edges of a dimension, and the range of each piece; None if pieces are no boxes."""
    source, target = pieces.sides
    most = pieces.counts.max(axis=0)
    digits = [digit for digit, own_dim in enumerate(target.dims) if own_dim == dim]
    digits.sort(key=lambda digit: (-target.steps[0, digit], -most[digit]))
    edges: list[Edge] = []
    ranges: list[Ints] = []
    rest = target.starts[:, dim]
    outer = n
    for digit in digits:
        step = int(target.steps[0, digit])
        counts = pieces.counts[:, digit]
        if outer % step or outer == step:
            if most[digit] > 1:
                return None
            continue  # the step of a digit with one value is irrelevant
        lows = rest // step
        rest = rest % step
        outer = step
        size = n // step // math.prod(edge.size for edge in edges)
        if (lows + counts > size).any():
            return None
        own_dim = source_dim + source.dims[digit]
        edges.append(Edge(size, axis, own_dim, int(source.steps[0, digit])))
        ranges.append(np.stack([lows, lows + counts], axis=-1))
    if outer > 1 or rest.any():
        return None
    if not edges:
        edges = [Edge(n, axis, source_dim, 1)]
        ranges = [np.tile(np.array([[0, 1]], np.int64), (len(pieces), 1))]
    return tuple(edges), ranges


def _joined(per_dim: list[tuple[Edge, ...]], stretches: Stretches) -> Axis:
    """Return an axis with edges joined that are contiguous in the sources, if boxes allow it."""
    kept, lows, highs = list[tuple[Edge, ...]](), list[Ints](), list[Ints]()
    columns = zip(stretches.lows.T, stretches.highs.T, strict=True)
    for group in per_dim:
        found: list[Edge] = []
        for edge in group:
            low, high = next(columns)
            last = found[-1] if found else None
            if last and last.dim == edge.dim and last.step == edge.size * edge.step:
                n = edge.size
                one, whole = highs[-1] - lows[-1] == 1, (low == 0) & (high == n)
                if (one | whole).all():
                    found[-1] = replace(edge, size=last.size * n)
                    lows[-1], highs[-1] = lows[-1] * n + low, (highs[-1] - 1) * n + high
                    continue
            found.append(edge)
            lows.append(low)
            highs.append(high)
        kept.append(tuple(found))
    edges = tuple(range(len(lows)))
    return kept, replace(
        stretches, edges=edges, lows=np.stack(lows, axis=1), highs=np.stack(highs, axis=1)
    )
