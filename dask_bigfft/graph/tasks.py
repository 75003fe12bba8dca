"""Functions that the tasks of a graph call, and `PlanRun`, a plan where it is executed.

`PlanRun` keeps the exchange maps and the FFT library. They are made on first use and not pickled.
`Blocks` is the result of a barrier of the `shared` carrier.

Rounds of a transform that overwrites its input may write their blocks back into it::

    source blocks -> own -> barrier -> round (in place) -> settled -> the same blocks -> barrier ...

A round's block is then a composite of shards of the source blocks, and its task returns only the
number of bytes. `settled` returns the source blocks after every round that writes to them.
"""

import contextlib
import functools
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import (
    CarrierError,
    DeviceMemoryError,
    VerificationError,
    raise_invalid,
)
from dask_bigfft.events import current_worker, during, emit, task_threads, workers_of
from dask_bigfft.exchange.packing import pack, shard_checksum
from dask_bigfft.exchange.shards import ExchangeMap, exchange_map
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.gather import Crossing, by_turns, crosses, part_of_source, spread, view_of
from dask_bigfft.gpu.links import gpus
from dask_bigfft.gpu.on_gpu import as_block, roll_on_gpu, round_on_gpu
from dask_bigfft.gpu.peers import new_table_on, transport_of
from dask_bigfft.gpu.work_sharing import shared_with_device
from dask_bigfft.graph import in_place
from dask_bigfft.graph.in_place import SharedBuffer
from dask_bigfft.graph.paused import watch_worker_of_task
from dask_bigfft.kernels.checks import Verification
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import FFTLibrary, get_library
from dask_bigfft.kernels.loop import axis_index, roll, run_round
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import (
    BlockView,
    host_table,
    is_on_gpu,
    plain_array,
    refuse_wrapped,
)
from dask_bigfft.memory import allocate
from dask_bigfft.memory.limits import configure_arena
from dask_bigfft.planner.plan_data import Exchange, PlanData
from dask_bigfft.transforms.steps import Chirp

Indices = tuple[Block, ...]

#: Arrays of any kind by block.
ByBlock = dict[Block, Any]

#: Blocks of filters by their axes.
Filters = Mapping[int, Array]

#: Function that returns the view of a block; it may be called several times.
ViewMaker = Callable[[], BlockView]


class PlanRun:
    """Plan where it is executed.

    Parameters
    ----------
    plan : PlanData
        Plan that is executed.
    token : str
        Token of the plan in task names and events.
    """

    #: Maximum number of bytes that the arena keeps for this run; None leaves it to the settings.
    arena_most: int | None = None

    def __init__(self, plan: PlanData, token: str = "") -> None:
        self.plan, self.token = plan, token
        self._maps: dict[int, ExchangeMap] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanRun, (self.plan, self.token)

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        return "dask_bigfft.PlanRun", self.plan.in_full, self.token

    @cached_property
    def library(self) -> FFTLibrary:
        """FFT library of the plan, for the number of threads in the plan.

        The number does not depend on where the plan runs: with some libraries the last bit of a
        line depends on the tile size, and a resumed run must give the same bits.
        """
        return get_library(self.plan.kernel).among(self.plan.machine.threads)

    @cached_property
    def place(self) -> dispatch.Place:
        """Devices that compute the rounds. Filters are small and use the CPU.

        A device that computes all of a hybrid round is used where there is one.
        """
        plan = self.plan
        device = "auto" if plan.device == "gpu" and plan.shares else plan.device
        return dispatch.Place(device, plan.device_memory_limit, plan.settings)

    @cached_property
    def places(self) -> list[dispatch.Place]:
        """Devices of each round, and of the gather after the last one."""
        numbers, shares = range(len(self.plan.rounds) + 1), self.plan.shares
        if self.plan.device == "cpu":
            return [self.place for _ in numbers]
        return [self.place.for_share(shares[number : number + 1]) for number in numbers]

    def exchange(self, number: int) -> Exchange:
        """Return an exchange of the plan."""
        return self.plan.exchanges[number]

    def stays(self, number: int) -> bool:
        """Return whether an exchange leaves each block unchanged."""
        exchange = self.exchange(number)
        return exchange.local and exchange.mirror is None and exchange.source == exchange.target

    def overwrites(self, number: int) -> bool:
        """Return whether a round may overwrite its source blocks.

        A verified round may have to be repeated, so it keeps them.
        """
        requested = self.plan.overwrite and self.plan.verify == "none"
        return requested and number == 0 and self.stays(number)

    def map(self, number: int) -> ExchangeMap:
        """Return the shards of an exchange."""
        worker = current_worker()
        if worker is not None:
            watch_worker_of_task(worker)
        if worker is not None or self.arena_most is not None:  # else the call did it
            configure_arena(worker, self.arena_most)
        with self._lock:
            found = self._maps.get(number)
            if found is None:
                exchange = self.exchange(number)
                found = exchange_map(exchange.source, exchange.target, exchange.mirror)
                self._maps[number] = found
            return found

    def view(
        self, number: int, block: Block, source_of: Callable[[Block], Any], **options: Any
    ) -> BlockView:
        """Return the view of a block after an exchange; sources and options as in `view_of`."""
        dtype = np.dtype(self.exchange(number).dtype)
        return view_of(self.map(number), block, dtype, source_of, **options)

    def finish(
        self, number: int, block: Block, view_of: ViewMaker, filters: Filters, spent: float = 0.0
    ) -> Array:
        """Return the block after an exchange and the round that follows, if there is one.

        The block is verified if the plan says so. The round's time includes the seconds that were
        `spent` on memory for its result.
        """
        started = time.perf_counter() - spent
        if number == len(self.plan.rounds):
            done = self._gathered(number, view_of())
            seconds = time.perf_counter() - started
            emit("unpack", block=block, nbytes=done.nbytes, seconds=seconds)
            return done
        done = self.transformed(number, block, view_of, filters)
        if number == len(self.plan.rounds) - 1 and self.plan.ends_in_round:
            pairs = zip(self.plan.rounds[number].target.axes, block, strict=True)
            done = done.reshape([math.prod(axis.shape(i)) for axis, i in pairs])
        seconds = time.perf_counter() - started
        emit("round", block=block, nbytes=done.nbytes, seconds=seconds)
        return done

    def _gathered(self, number: int, view: BlockView) -> Array:
        """Return the block after the last exchange, gathered by a device or by the CPU."""
        found = None
        if view.on_gpu:
            found = part_of_source(view) if view.tables else None
        elif self.on_devices(number):
            blocks = self.exchange(number).target.blocks
            found = dispatch.moved_on_device(view, self.places[number], blocks)
        return view.gather() if found is None else found

    def on_devices(self, number: int) -> bool:
        """Return whether devices may compute a round on blocks in host memory."""
        device = self.places[number].device
        return device != "cpu" and (device != "auto" or dispatch.missing() is None)

    def transformed(self, number: int, block: Block, view_of: ViewMaker, filters: Filters) -> Array:
        """Return the block after a round on a device or on the CPU, verified if the plan says."""
        round_, mode = self.plan.rounds[number], self.plan.verify
        dtype, place = np.dtype(self.plan.dtypes[2 * number + 1]), self.places[number]

        def spare() -> contextlib.AbstractContextManager[FFTLibrary]:
            return spare_threads(self.library, round_.target.blocks)

        def by_device(view: BlockView) -> Array | None:
            """Return the block after the round without its rolls; None on the CPU."""
            if not view.on_gpu and not self.on_devices(number):
                return None
            job = dispatch.job_of(round_, block, view.dtype, dtype, inside=self.overwrites(number))
            if view.on_gpu:
                return round_on_gpu(job, view, filters)  # type: ignore[no-any-return]
            if place.device == "hybrid" and mode == "none":
                with spare() as library:
                    shared = shared_with_device(job, view, library, filters, place)
                if shared is not None:
                    return shared
            done = dispatch.on_device(job, view, filters, place)
            self._told("round_device", done)
            return done

        if mode == "none":
            view = view_of()
            done = by_device(view)
            if done is None:
                with spare() as library:
                    done = run_round(round_, block, view, library, dtype, filters)
                self._told("round_cpu", done)
                return done
        else:
            with spare() as library:
                checks = Verification(mode, round_, block, library, dtype, filters, number + 1)
                done = checks.run_elsewhere(view_of, by_device) if self.on_devices(number) else None
                if done is None:
                    return checks.run(view_of)
        if not round_.rolls:
            return done
        return (roll_on_gpu if is_on_gpu(done) else roll)(done, round_.rolls)

    def _told(self, event: str, done: Array | None) -> None:
        """Report which device computed a whole block of a hybrid round."""
        if done is not None and self.plan.device == "hybrid":
            emit(event, nbytes=done.nbytes)

    def done(self, number: int, block: Block) -> tuple[Any] | None:
        """Return the recorded result of a block after exchange `number`, in a tuple, or None."""
        return None

    def deliver(self, number: int, block: Block, values: Array) -> Array:
        """Return the result of the task of a block after exchange `number`: here, the block."""
        return values


_lock = threading.Lock()
_running = 0


@contextlib.contextmanager
def spare_threads(library: FFTLibrary, blocks: int) -> Iterator[FFTLibrary]:
    """Yield the library with the spare threads for one block of a round with some blocks.

    Blocks of other rounds that run at the same time count as well.
    """
    global _running
    with _lock:
        _running += 1
        at_work = max(blocks, _running)
    try:
        yield library.using(max(1, task_threads() // at_work))
    finally:
        with _lock:
            _running -= 1


class Blocks:
    """Handle of a barrier: blocks of this process by their index, `checked`.

    `common` is the shared buffer of all blocks, or None.
    """

    def __init__(self, run: PlanRun, number: int, indices: Indices, blocks: Iterable[Any]) -> None:
        pairs = zip(indices, blocks, strict=True)
        self.blocks = {index: checked(run, number, index, values) for index, values in pairs}
        self.common: SharedBuffer | None = None

    def __getitem__(self, block: Block) -> Array:
        return self.blocks[block]


def checked(run: PlanRun, number: int, index: Block, values: Any) -> Array:
    """Return a source block as an array, with the shape and kind that the plan expects.

    Copies use the plan's shapes: a block that is smaller than its metadata would be read beyond its
    end.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the metadata of the source array are wrong, or the block has no numbers, is masked,
        sparse or a quantity with a unit.
    """
    refuse_wrapped(values, index)
    block: Array = as_block(values) if is_on_gpu(values) else plain_array(values, index)
    if run.plan.verify != "none" and is_on_gpu(block):
        allowed = "'none' for blocks on a GPU, or blocks in host memory"
        raise_invalid("verify", run.plan.verify, allowed)
    exchange = run.exchange(number)
    expected, declared = exchange.source.shape(index), np.dtype(exchange.source_dtype)
    if block.shape != expected:
        allowed = f"the shape {expected} that the dask array's chunks declare"
        allowed += "; compute_chunk_sizes() corrects them"
        raise_invalid("a", f"block {index} of shape {block.shape}", allowed)
    if block.dtype.kind == "c" and declared.kind != "c":
        allowed = f"the real dtype {declared} that the dask array declares"
        raise_invalid("a", f"block {index} of dtype {block.dtype}", allowed)
    return block


Task = Callable[..., Any]


def barrier(
    run: PlanRun,
    number: int,
    indices: Indices,
    wanted: bool,
    common: SharedBuffer | None,
    *blocks: Array,
) -> Blocks:
    """Return a handle of all source blocks of a group, all of which exist now.

    Parameters
    ----------
    run, number
        Plan, and number of the exchange from 0.
    indices : tuple of block indices
        Indices of the blocks.
    wanted : bool
        Whether the user named the `shared` carrier.
    common : SharedBuffer or None
        Shared buffer that may hold all of them.

    Raises
    ------
    CarrierError
        In a task of a cluster, where sharing would move every block to every worker.
    """
    _refuse_cluster(run.token.partition("-")[0], wanted)  # a filter's token begins with its plan's
    found, shared = Blocks(run, number, indices, blocks), run.plan.shared_layouts.exchanges[number]
    if common is not None and shared is not None:
        layout = run.exchange(number).source
        if common.take(number, shared.layout, layout, found.blocks):
            found.common = common
    return found


def shared_memory(run: PlanRun, number: int, group: Block) -> SharedBuffer:
    """Return a shared buffer for the blocks of a group before an exchange.

    It is empty on workers of a cluster, where a task may be repeated, and before rounds on devices.
    """
    shared_layout = run.plan.shared_layouts.exchanges[number]
    read = run.plan.device != "cpu" and number < len(run.plan.rounds)
    if read and dispatch.missing() is None:
        shared_layout = None
    if shared_layout is None or current_worker() is not None:
        return SharedBuffer(run.token)
    with during(run.token, number):
        emit("begun")
    return SharedBuffer(run.token, shared_layout.layout, group, run.exchange(number).dtype)


def _refuse_cluster(token: str, wanted: bool) -> None:
    """Raise in a task of a cluster, unless it has a single worker and sharing is `wanted`.

    A task of a cluster may compute an array by a local scheduler. The worker then only knows the
    outer task, and blocks stay in its process.
    """
    worker = current_worker()
    try:
        if worker is None or token not in str(worker.get_current_task()):
            return
    except KeyError:
        return
    client = sys.modules["distributed"].get_client()
    if wanted and len(workers_of(client)) == 1:
        return
    raise CarrierError(
        f"this graph shares blocks inside one process, but it runs on worker {worker.address} of "
        "a cluster: it was turned into tasks before the cluster was known, or its carrier was "
        "named 'shared'. Call compute() or persist() on the unoptimised array while the client is "
        "there, or build it again with dask.config.set({'bigfft.exchange.carrier': 'tasks'})"
    )


def reported(task: Task) -> Task:
    """Return a task ``(run, number, ...)`` whose events carry the plan and the round."""

    @functools.wraps(task)
    def reporting(run: PlanRun, number: int, *inputs: Any) -> Any:
        with during(run.token, max(number, 0) + 1):
            return task(run, number, *inputs)

    return reporting


def block_task(make: Task) -> Task:
    """Return a task that makes a block after an exchange and its round by a function.

    The task's arguments are ``(run, number, block, filter_axes, *filters, *inputs)``; the function
    gets the filters by axis. A recorded result is not computed again, and `PlanRun.deliver` returns
    the result of a new block.
    """

    def task(run: PlanRun, number: int, block: Block, axes: tuple[int, ...], *inputs: Any) -> Any:
        done = run.done(number, block)
        if done is not None:
            return done[0]
        filters = dict(zip(axes, inputs, strict=False))
        return run.deliver(number, block, make(run, number, block, filters, *inputs[len(axes) :]))

    return reported(functools.wraps(make)(task))


@block_task
def run_block(
    run: PlanRun,
    number: int,
    block: Block,
    filters: Filters,
    sources: Indices | None,
    into: SharedBuffer | None,
    *inputs: Any,
) -> Array:
    """Return a block gathered from blocks in memory, after its round.

    The `inputs` are source blocks of the indices `sources`, or the handle of a barrier if that is
    None. `into` is the shared buffer for the block after the round.
    """
    blocks = inputs[0] if sources is None else Blocks(run, number, sources, inputs)
    on_gpu = any(map(is_on_gpu, itertools.islice(blocks.blocks.values(), 1)))
    place, started = None, time.perf_counter()
    if into is not None and not on_gpu:
        place = into.place(run.plan.rounds[number].target, block)
    spent = time.perf_counter() - started
    if blocks.common is not None:
        return _where_it_lies(run, number, block, blocks.common, place, filters, spent)
    own = _own(run, number, blocks.blocks) if run.stays(number) else None

    def view() -> BlockView:
        if own is not None:
            return BlockView.of(own, target=place)
        found = run.view(number, block, blocks.__getitem__)
        found.target = place
        return found

    if own is not None and place is None and run.overwrites(number):
        in_place.raise_if_poisoned(number, block, own)
        if own.flags.writeable:
            here = BlockView.of(own, owned=own.flags.c_contiguous, target=own)
            with in_place.poisoning(lambda: [own]):
                return run.finish(number, block, lambda: here, filters)
    with contextlib.nullcontext() if on_gpu else _turn(run, number, block):
        return run.finish(number, block, view, filters, spent)


def _turn(run: PlanRun, number: int, block: Block) -> contextlib.AbstractContextManager[object]:
    """Wait for a task's turn to prepare a block for a device, if one may take it."""
    if not run.on_devices(number):
        return contextlib.nullcontext()
    exchange = run.exchange(number)
    nbytes = math.prod(exchange.target.shape(block)) * np.dtype(exchange.dtype).itemsize
    return dispatch.getting_ready(run.places[number], nbytes, exchange.dtype)


def _where_it_lies(
    run: PlanRun,
    number: int,
    block: Block,
    common: SharedBuffer,
    into: Array | None,
    filters: Filters,
    spent: float,
) -> Array:
    """Return a block in a shared buffer, after the round that follows, if there is one."""
    shared_layout, exchange = run.plan.shared_layouts.exchanges[number], run.exchange(number)
    assert shared_layout is not None and common.array is not None  # noqa: PT018
    started = time.perf_counter() - spent
    values = in_place.view_in(common.array, shared_layout.layout, exchange.target, block)
    if number == len(run.plan.rounds):
        seconds = time.perf_counter() - started
        emit("unpack", block=block, nbytes=values.nbytes, seconds=seconds)
        in_place.advance(run.token, in_place.RESULT, (values,))
        return values
    after, left = run.plan.shared_layouts.inside[number], values
    view = BlockView.of(values, target=into if after is None else values)
    if after is None:
        return run.finish(number, block, lambda: view, filters, spent)
    if number + 1 == len(run.plan.exchanges):
        left = in_place.view_in(common.array, after, run.plan.result, block)
        in_place.advance(run.token, in_place.RESULT, (left,))

    def work() -> Array:
        done = run.transformed(number, block, lambda: view, filters)
        if not in_place.is_view(done, values):
            copy_array(values, done)
        seconds = time.perf_counter() - started
        emit("round", block=block, nbytes=values.nbytes, seconds=seconds)
        return left

    return common.once(number, block, work)


def _own(run: PlanRun, number: int, blocks: Mapping[Block, Array]) -> Array | None:
    """Return the source block as the target block, if both have the same memory layout."""
    if len(blocks) != 1:  # an array without elements has no sources
        return None
    (values,) = blocks.values()
    plain = not is_on_gpu(values) and values.dtype == np.dtype(run.exchange(number).dtype)
    return values if plain and values.flags.aligned else None


@reported
def pack_shard(
    run: PlanRun, number: int, block: Block, source: Block, values: Array
) -> Array | tuple[Array, int]:
    """Return the packed shard of a source block for a target block, with a checksum if wanted."""
    started = time.perf_counter()
    values = checked(run, number, source, values)
    dtype = np.dtype(run.exchange(number).dtype)
    new_table = new_table_on(gpus().home(values)) if is_on_gpu(values) else host_table
    packed = pack(run.map(number), block, source, values, dtype, new_table)
    checksums = run.plan.verify == "checksum"
    found = (packed, shard_checksum(packed, number, source, block)) if checksums else packed
    emit("pack", nbytes=packed.nbytes, seconds=time.perf_counter() - started)
    return found


@block_task
def run_block_of_shards(
    run: PlanRun, number: int, block: Block, filters: Filters, sources: Indices, *packed: Any
) -> Array:
    """Return a block assembled from packed shards, after its round."""
    return put_together(run, number, block, dict(zip(sources, packed, strict=True)), filters)


def put_together(
    run: PlanRun, number: int, block: Block, shards: Mapping[Block, Any], filters: Filters
) -> Array:
    """Return a block assembled from packed shards, after its round.

    Shards are arrays, or pairs of array and checksum, which is compared if the plan says so.
    """
    for source, (shard, known) in shards.items() if run.plan.verify == "checksum" else ():
        found = shard_checksum(shard, number, source, block)
        if found != int(known):
            emit("mismatch", nbytes=shard.nbytes)
            raise VerificationError(
                f"exchange {number + 1}, block {block}: the shard of block {source} is not what "
                f"was packed (checksum {found:016x}, not {known:016x})"
            )
    plain = {a: shard[0] if isinstance(shard, tuple) else shard for a, shard in shards.items()}
    view = functools.partial(run.view, number, block, plain.__getitem__, packed=True)
    return run.finish(number, block, view, filters)


@block_task
def generate_filter(
    run: PlanRun, number: int, block: Block, filters: Filters, chirp: Chirp
) -> Array:
    """Return a block of a Bluestein filter after its first round, given the filter's values."""
    plan = run.plan
    axis = plan.rounds[0].source.axes[0]
    places = axis_index(axis, block[0], 0)
    padded = math.prod(digit.radix for digit in axis.digits)
    shape, dtype = axis.shape(block[0]), np.dtype(plan.dtypes[0])

    def incoming() -> BlockView:
        numbers = chirp.length, chirp.sign, dtype, chirp.step, chirp.offset
        values = chirp_filter(places.reshape(shape), padded, *numbers)
        return BlockView.of(np.ascontiguousarray(values), owned=True)

    return run.finish(number, block, incoming, filters)


# --- blocks on GPUs of this process ----------------------------------------------------------


def transform_on_gpus(
    run: PlanRun, parts: tuple[Any, ...], transport: str, *blocks: Any
) -> ByBlock:
    """Return all blocks of a result, whose source blocks are on GPUs of this process.

    The calls enqueue work in the current streams of this thread. They are ordered with the user's
    own work there, and the host does not wait.

    Parameters
    ----------
    run : PlanRun
        The plan.
    parts : tuple of (index, number, slices)
        Source blocks by index, as parts of the blocks that are given, by number.
    transport : {"auto", "host", "staged", "swap", "direct"}
        Transport between GPUs; "auto" chooses by the speed of each link.
    *blocks
        Blocks that are given.

    Raises
    ------
    CarrierError
        In a task of a cluster, where one worker would get all blocks.
    """
    _refuse_cluster(run.token, False)
    plan, filters = run.plan, dict[int, dict[int, Any]]()
    for operand in plan.operands:
        alone = PlanRun(operand.plan, run.token)
        spectra = {
            block: generate_filter(alone, 0, block, (), operand.values)
            for block in operand.plan.rounds[0].target.indices()
        }
        spectra = _transformed(alone, spectra, transport, {}, 1)
        filters.setdefault(operand.number, {})[operand.axis] = spectra
    found = {index: blocks[number][cut] for index, number, cut in parts}
    return _transformed(run, found, transport, filters)


def _transformed(
    run: PlanRun,
    found: ByBlock,
    transport: str,
    filters: Mapping[int, Mapping[int, Mapping[Block, Any]]],
    first: int = 0,
) -> ByBlock:
    """Return all blocks after the exchanges and rounds of a plan, each on the GPU of its gather.

    GPUs copy from each other while they compute: memory for the blocks of an exchange is allocated
    when each GPU has begun the round that makes its sources, if there is enough. Copies of a source
    follow its round, and a round follows the copies of its block.
    """
    exchanges = {n: run.exchange(n) for n in range(first, len(run.plan.exchanges))}
    homes, crossing = gpus().homes(found), None

    @functools.cache
    def choice(source: int, target: int) -> Any:
        return transport_of(gpus(), source, target) if transport == "auto" else transport

    def crossing_at(number: int, sources: Mapping[Block, Any]) -> Crossing | None:
        """Return the blocks after an exchange with those sources, if it goes from GPU to GPU."""
        if number not in exchanges or not crosses(run.map(number), homes):
            return None
        made = Crossing(run.map(number), exchanges[number], homes, sources, choice)
        held.enter_context(made)
        made.take(sources)
        return made

    with contextlib.ExitStack() as held:
        for number, exchange in exchanges.items():
            with during(run.token, number + 1):
                blocks = Blocks(run, number, tuple(found), found.values())
                coming, after = None, ByBlock()
                if crossing is None:
                    crossing = crossing_at(number, blocks.blocks)
                homes = spread(exchange.target, homes)
                turns = by_turns(homes) or [[block] for block in exchange.target.indices()]
                for turn in turns:
                    moments = ByBlock()
                    for block in turn:
                        view: Callable[[], BlockView] = functools.partial(
                            run.view, number, block, blocks.__getitem__, home=homes.get(block)
                        )
                        if crossing is not None:
                            view = functools.partial(crossing.arrived, block)
                        found_at = filters.get(number, {}).items()
                        spectra = {axis: one[(block[axis],)] for axis, one in found_at}
                        after[block] = run.finish(number, block, view, spectra)
                        if crossing is None and block in homes:
                            moments[block] = gpus().now(homes[block])
                    if crossing is None and turn is turns[0]:
                        with contextlib.suppress(DeviceMemoryError):  # there may be some afterwards
                            coming = crossing_at(number + 1, {})
                    if coming is not None:
                        coming.take({block: after[block] for block in turn}, moments)
                if crossing is not None:
                    crossing.join()  # before the sources are freed
            found, crossing = {block: after[block] for block in exchange.target.indices()}, coming
            homes = gpus().homes(found)
    return found


# --- rounds that overwrite the source blocks ------------------------------------------------


@block_task
def own_block(run: PlanRun, number: int, block: Block, filters: Filters, values: Any) -> Array:
    """Return a block that may be overwritten: the source block, or a copy of it."""
    found = checked(run, number, block, values)
    if is_on_gpu(found):
        raise_invalid("overwrite_x", True, "False for blocks on a GPU, which are transformed there")
    dtype = np.dtype(run.exchange(number).dtype)
    flags = found.flags
    if found.dtype == dtype and flags.c_contiguous and flags.aligned and flags.writeable:
        return found
    copy = allocate(found.shape, dtype)
    copy[...] = found
    return copy


@reported
def run_inside(run: PlanRun, number: int, block: Block, blocks: Blocks) -> int:
    """Compute the round after exchange `number` in the source blocks; return the bytes done."""
    with _turn(run, number, block):
        started = time.perf_counter()
        round_, dtype = run.plan.rounds[number], np.dtype(run.exchange(number).dtype)
        view = run.view(number, block, blocks.__getitem__)
        shards = view.boxes(False)
        assert shards is not None  # checked when the plan was made
        for _, first in itertools.islice(shards.views(), 1):
            in_place.raise_if_poisoned(number, block, first)
        job = dispatch.job_of(round_, block, dtype, dtype, inside=True)
        with in_place.poisoning(lambda: (view for _, view in shards.views())):
            there = dispatch.inside_device(job, shards, run.place)
        if not there:
            gathered = BlockView.of(view.gather(), owned=True)
            done = dispatch.on_device(job, gathered, {}, run.place)
            if done is None:
                done = run_round(round_, block, gathered, run.library, dtype, {})
            values = done.reshape(shards.sizes)
            for place, part in shards.views():
                cut = zip(place, part.shape, strict=True)
                part[...] = values[tuple(slice(low, low + n) for low, n in cut)]
        seconds = time.perf_counter() - started
        emit("round", block=block, nbytes=shards.nbytes, seconds=seconds)
        return shards.nbytes


def settled(blocks: Blocks, *done: int) -> Blocks:
    """Return the handle of a group's blocks after all rounds that write to them."""
    return blocks
