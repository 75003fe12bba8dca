"""What the tasks of a graph run: a plan where it is executed, and its rounds block by block.

`Run` is the plan there; it keeps the exchange maps and the FFT library, which are made on first use
and never travel. `Blocks` is what a barrier of the `shared` carrier returns.

Imports `planner`, `gpu`, `exchange`, `kernels` and `events`; looks a distributed worker up if there
is one.
"""

import contextlib
import functools
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.errors import ArgumentTypeError, CarrierError, VerificationError, refuse
from dask_bigfft.events import current_worker, during, emit, task_threads
from dask_bigfft.exchange.gather import TRANSPORTS, Choice, transport_of, view_of
from dask_bigfft.exchange.packing import pack, shard_checksum
from dask_bigfft.exchange.parts import stacked_layout, stacking
from dask_bigfft.exchange.shards import ExchangeMap, exchange_map
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.on_gpu import as_block, gpus, home_of, roll_on_gpu, round_on_gpu
from dask_bigfft.gpu.work_sharing import shared_with_device
from dask_bigfft.graph import in_place
from dask_bigfft.graph.paused import watch_worker_of_task
from dask_bigfft.kernels.checks import Verification
from dask_bigfft.kernels.composite import Stacked
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import FFTLibrary, get_library
from dask_bigfft.kernels.loop import axis_index, roll, run_round
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.plan import FilterPlan, Plan, ShiftPlan
from dask_bigfft.planner.plan_data import Exchange, Joints
from dask_bigfft.planner.profile import DEFAULT

Array = npt.NDArray[Any]
Block = tuple[int, ...]


class Run:
    """A plan, one of its filters or a shift, where it is executed.

    Parameters
    ----------
    plan : Plan, FilterPlan or ShiftPlan
        What is executed.
    token : str
        Of the plan in task names; events carry it.
    private : bool
        Whether blocks between rounds stay in this process, and nobody else sees them: then they
        may lie in memory as suits the exchange that takes them.
    """

    #: Bytes that the arena may keep for this run; None where the settings alone decide.
    arena_most: int | None = None

    def __init__(
        self, plan: Plan | FilterPlan | ShiftPlan, token: str = "", private: bool = False
    ) -> None:
        self.plan, self.token, self.private = plan, token, private
        self._maps: dict[int, ExchangeMap] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self.plan, self.token, self.private)

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        plan = self.plan.in_full() if isinstance(self.plan, Plan) else repr(self.plan)
        return "dask_bigfft.Run", plan, self.token

    @cached_property
    def library(self) -> FFTLibrary:
        """FFT library of the plan, as its threads use it.

        As many as the plan was made for, wherever it runs: some libraries round the last bit of a
        line otherwise in tiles of other sizes, and a run that is resumed gives the same bits.
        """
        threads = self.plan.machine.threads if isinstance(self.plan, Plan) else 1
        return get_library(self.plan.kernel).among(threads)

    @cached_property
    def place(self) -> dispatch.Place:
        """Where rounds are done. Filters are small, and made once.

        Devices that do all of what CPU threads might have shared are taken where there are some.
        """
        plan = self.plan if isinstance(self.plan, Plan) else None
        if plan is None:
            return dispatch.Place("cpu")
        device = "auto" if plan.device == "gpu" and plan.shares else plan.device
        return dispatch.Place(device, plan.device_memory_limit, plan.settings)

    @cached_property
    def _places(self) -> list[dispatch.Place]:
        shares = self.plan.shares if isinstance(self.plan, Plan) else ()
        numbers = range(len(self.plan.rounds) + 1)
        return [self.place.for_share(shares[number : number + 1]) for number in numbers]

    def place_of(self, number: int) -> dispatch.Place:
        """Return where a round is done, or the gather after the last one."""
        return self._places[number]

    def exchange(self, number: int) -> Exchange:
        """An exchange of the plan."""
        return self.plan.exchanges[number]

    def stays(self, number: int) -> bool:
        """Whether an exchange leaves each block as it is."""
        exchange = self.exchange(number)
        return exchange.local and exchange.mirror is None and exchange.source == exchange.target

    def overwrites(self, number: int) -> bool:
        """Whether a round may work in the memory of the blocks that come in.

        What is verified may have to be done once more, which takes what came in.
        """
        plan = self.plan
        asked = isinstance(plan, Plan) and plan.overwrite and plan.verify == "none"
        return asked and number == 0 and self.stays(number)

    def map(self, number: int) -> ExchangeMap:
        """The shards of an exchange."""
        worker = current_worker()
        if worker is not None:
            watch_worker_of_task(worker)
        if worker is not None or self.arena_most is not None:  # else the call has done so
            configure_arena(worker, self.arena_most)
        with self._lock:
            found = self._maps.get(number)
            if found is None:
                exchange = self.exchange(number)
                found = exchange_map(self.stored[number], exchange.target, exchange.mirror)
                self._maps[number] = found
            return found

    def view(
        self,
        number: int,
        block: Block,
        source_of: Callable[[Block], Any],
        packed: bool = False,
        home: int | None = None,
        choice: Choice | None = None,
    ) -> BlockView:
        """Return the view of a block after an exchange, as `view_of` takes its sources."""
        dtype = np.dtype(self.exchange(number).dtype)
        return view_of(self.map(number), block, dtype, source_of, packed, home, choice)

    @cached_property
    def stacked(self) -> list[Stacked | None]:
        """How a device stacks the blocks before each exchange, and after the last, if it does."""
        plan = self.plan
        found: list[Stacked | None] = [None] * (len(plan.exchanges) + 1)
        inside = isinstance(plan, Plan) and plan.inside  # blocks stay where they are
        if self.private and not inside and plan.verify == "none" and dispatch.missing() is None:
            for number in range(1, len(plan.exchanges)):
                if self.on_devices(number - 1) and not plan.rounds[number - 1].rolls:
                    found[number] = stacking(self.exchange(number))
        return found

    @cached_property
    def stored(self) -> list[Layout]:
        """The blocks before each exchange as they lie in memory."""
        pairs = zip(self.plan.exchanges, self.stacked, strict=False)
        return [e.source if s is None else stacked_layout(e.source, s) for e, s in pairs]

    @property
    def joints(self) -> Joints:
        """Which blocks lie together."""
        assert isinstance(self.plan, Plan)
        return self.plan.joints

    def finish(
        self,
        number: int,
        block: Block,
        view_of: Callable[[], BlockView],
        filters: Mapping[int, Array],
        here: Array | None = None,
        flat: Array | None = None,
    ) -> Array:
        """Return the block after an exchange and the round that follows, if one does.

        It is verified if the plan says so. `here` is where it has to be, `flat` the same place as a
        block of the result has it.
        """
        started = time.perf_counter()
        if number == len(self.plan.rounds):
            done = self._gathered(number, view_of())
            emit("unpack", nbytes=done.nbytes, seconds=time.perf_counter() - started)
            return done
        done = self._transformed(number, block, view_of, filters)
        if here is not None and not in_place.same_memory(done, here):
            copy_array(here, done)
            done = here
        if number == len(self.plan.rounds) - 1 and self.plan.ends_in_round:
            flat_shape = self.plan.rounds[number].target.flat_shape(block)
            done = done.reshape(flat_shape) if flat is None else flat
        emit("round", nbytes=done.nbytes, seconds=time.perf_counter() - started)
        return done

    def _gathered(self, number: int, view: BlockView) -> Array:
        """Return the block after the last exchange, gathered by a device on the way, or here."""
        found = None
        if not view.on_gpu and self.on_devices(number):
            blocks = self.exchange(number).target.blocks
            found = dispatch.moved_on_device(view, self.place_of(number), blocks)
        return view.gather() if found is None else found

    def on_devices(self, number: int) -> bool:
        """Return whether devices may do a round on blocks in host memory, or are asked to."""
        if not isinstance(self.plan, Plan) or self.plan.device == "cpu":
            return False
        device = self.place_of(number).device
        return device != "cpu" and (device != "auto" or dispatch.missing() is None)

    def _transformed(
        self,
        number: int,
        block: Block,
        view_of: Callable[[], BlockView],
        filters: Mapping[int, Array],
    ) -> Array:
        """Return the block after a round on a device or on the CPU, verified if the plan says."""
        round_, mode = self.plan.rounds[number], self.plan.verify
        dtype, place = np.dtype(self.plan.dtypes[2 * number + 1]), self.place_of(number)
        spare = functools.partial(spare_threads, self.library, round_.target.blocks)

        def by_device(view: BlockView) -> Array | None:
            """Return the block after the round, but for its rolls; None on the CPU."""
            if not view.on_gpu and not self.on_devices(number):
                return None
            job = dispatch.job_of(round_, block, view.dtype, dtype, inside=self.overwrites(number))
            if view.on_gpu:
                return round_on_gpu(job, view.gather, filters)  # type: ignore[no-any-return]
            if place.device == "hybrid" and mode == "none":
                with spare() as library:
                    shared = shared_with_device(job, view, library, filters, place)
                if shared is not None:
                    return shared
            done = dispatch.on_device(job, view, filters, place, self.stacked[number + 1])
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
                    return checks.run(functools.partial(_in_host_memory, mode, view_of))
        return (roll_on_gpu if is_on_gpu(done) else roll)(done, round_.rolls)

    def _told(self, event: str, done: Array | None) -> None:
        """Report who has done a whole block, where CPU threads and devices share a round."""
        if done is not None and isinstance(self.plan, Plan) and self.plan.device == "hybrid":
            emit(event, nbytes=done.nbytes)

    def done(self, number: int, block: Block) -> tuple[Any] | None:
        """What the task of a block after exchange `number` would return, if that is known."""
        return None

    def deliver(self, number: int, block: Block, values: Array) -> Array:
        """Hand on what a task has made of a block after exchange `number`: here, the block."""
        return values


def _in_host_memory(mode: str, view_of: Callable[[], BlockView]) -> BlockView:
    """Return the view of a block, which is refused on a card, where nothing is verified."""
    view = view_of()
    if view.on_gpu:
        refuse("verify", mode, "'none' for blocks on a card, or blocks in host memory")
    return view


_lock = threading.Lock()
_running = 0


@contextlib.contextmanager
def spare_threads(library: FFTLibrary, blocks: int) -> Iterator[FFTLibrary]:
    """Give out the library as a round on one of some blocks may use it, while that is done.

    Where blocks of other rounds are worked on meanwhile, these count as well.
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
    """Handle of a barrier: blocks that lie in this process, by their index.

    `common` is the memory in which all of them lie together, if they do. `homes` are the GPUs on
    which target blocks are gathered, where source blocks lie on several, and `choice` the transport
    from one GPU to another.
    """

    def __init__(self, blocks: Mapping[Block, Array]) -> None:
        self.blocks = dict(blocks)
        self.common: in_place.Common | None = None
        self.homes: dict[Block, int] = {}
        self.choice: Choice | None = None
        self._checked: dict[Block, Array] = {}

    def __getitem__(self, block: Block) -> Array:
        return self.blocks[block]

    def checked(self, run: "Run", number: int, index: Block) -> Array:
        """Return a block as `checked` does, which is asked once for all that are made of it."""
        found = self._checked.get(index)
        if found is None:
            found = self._checked[index] = checked(run, number, index, self.blocks[index])
        return found


def checked(run: "Run", number: int, index: Block, values: Any) -> Array:
    """Return a source block as an array, if it is what the plan was made for.

    Copies go by the plan's shapes: a block that is smaller than its metadata say would be read
    beyond its end.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is not: the metadata of the dask array that came in are wrong.
    """
    if np.ma.is_masked(values):
        refuse(
            "a",
            f"block {index}, in which values are masked",
            "an array without a mask: fill it, as dask.array.ma.filled(a, 0) does",
            kind=ArgumentTypeError,
        )
    block: Array = as_block(values) if is_on_gpu(values) else np.asarray(values)
    exchange = run.exchange(number)
    expected = exchange.source.shape(index)
    if block.shape != expected and block.shape != run.stored[number].shape(index):
        refuse(
            "a",
            f"block {index} of shape {block.shape}",
            f"the shape {expected} that the dask "
            "array's chunks declare; compute_chunk_sizes() corrects them",
        )
    if number == 0 and isinstance(run.plan, Plan) and block.dtype.kind == "c":
        declared = np.dtype(run.plan.spec.dtype)
        if declared.kind != "c":
            refuse(
                "a",
                f"block {index} of dtype {block.dtype}",
                f"the real dtype {declared} that the dask array declares",
            )
    return block.reshape(run.stored[number].shape(index))


Task = Callable[..., Any]


def barrier(
    run: Run,
    number: int,
    indices: tuple[Block, ...],
    wanted: bool,
    common: in_place.Common | None,
    *blocks: Array,
) -> Blocks:
    """Return a handle of all source blocks of a group; all of them exist now.

    Parameters
    ----------
    run, number
        The plan, and the exchange, from 0.
    indices : tuple of block indices
        Of the blocks.
    wanted : bool
        Whether the `shared` carrier was asked for by name.
    common : Common or None
        Memory in which all of them may lie together.

    Raises
    ------
    CarrierError
        In a task of a cluster, where sharing would move every block to every worker.
    """
    _refuse_cluster(run.token.partition("-")[0], wanted)  # names of a filter have its plan's
    found = Blocks(dict(zip(indices, blocks, strict=True)))
    if common is not None:
        joint, layout = run.joints.exchanges[number], run.exchange(number).source
        assert joint is not None
        if common.take(run.token, number, joint.layout, layout, found.blocks):
            found.common = common
    return found


def common_memory(run: Run, number: int, group: Block) -> in_place.Common:
    """Return memory for the blocks of a group before an exchange; none where it does not help.

    That is on workers of a cluster, where a task may be done again, and where devices do rounds.
    """
    joint = run.joints.exchanges[number]
    used = isinstance(run.plan, Plan) and run.plan.device != "cpu" and dispatch.missing() is None
    if joint is None or used or current_worker() is not None:
        return in_place.Common()
    with during(run.token, number):
        emit("begun")
    return in_place.Common(joint.layout, group, run.exchange(number).dtype)


def barrier_on_gpus(
    run: Run,
    number: int,
    sources: tuple[Block, ...],
    targets: tuple[Block, ...],
    transport: str,
    *blocks: Array,
) -> Blocks:
    """Return a handle of all source blocks of a group, which may lie on several GPUs.

    Parameters
    ----------
    run, number
        The plan, and the exchange, from 0.
    sources, targets : tuple of block indices
        Blocks of the group before and after the exchange.
    transport : {"auto", "host", "staged", "swap", "kernel"}
        How segments travel between GPUs; "auto" as the plan's profile suggests.
    """
    found = barrier(run, number, sources, False, None, *blocks)
    homes = gpus().homes(found.blocks)
    used = sorted(set(homes.values()))
    if len(used) < 2:
        return found
    found.homes = {t: used[home_of(i, len(targets), len(used))] for i, t in enumerate(targets)}
    if len(sources) == len(targets):  # as much memory on each GPU after the exchange as before
        found.homes = {t: homes[s] for s, t in zip(sources, targets, strict=True)}
    named = next((known for known in TRANSPORTS if known == transport), None)
    profile = run.plan.machine.profile if isinstance(run.plan, Plan) else DEFAULT
    found.choice = lambda source, target: named or transport_of(profile, gpus(), source, target)
    return found


def _refuse_cluster(token: str, wanted: bool) -> None:
    """Stop in a task that a worker was sent, but for one that is alone where this is `wanted`.

    A task of a cluster may compute an array by a scheduler of its own: then the worker knows that
    task only, and not in the threads that the scheduler starts. Blocks stay in its process.
    """
    worker = current_worker()
    try:
        if worker is None or token not in str(worker.get_current_task()):
            return
    except KeyError:
        return
    client = sys.modules["distributed"].get_client()
    if wanted and len(client.scheduler_info(n_workers=-1)["workers"]) == 1:
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
    def reporting(run: Run, number: int, *inputs: Any) -> Any:
        with during(run.token, max(number, 0) + 1):
            return task(run, number, *inputs)

    return reporting


def block_task(make: Task) -> Task:
    """Return the task of a block after an exchange and its round, which a function makes.

    The task is ``(run, number, block, filter_axes, *filters, *inputs)``; the function gets the
    filters by axis. What is recorded as done is not made again, and what is made is handed on as
    the run does it.
    """

    def task(run: Run, number: int, block: Block, axes: tuple[int, ...], *inputs: Any) -> Any:
        done = run.done(number, block)
        if done is not None:
            return done[0]
        filters = dict(zip(axes, inputs, strict=False))
        return run.deliver(number, block, make(run, number, block, filters, *inputs[len(axes) :]))

    return reported(functools.wraps(make)(task))


@block_task
def run_block(
    run: Run,
    number: int,
    block: Block,
    filters: dict[int, Array],
    sources: tuple[Block, ...] | None,
    into: in_place.Common | None,
    *inputs: Any,
) -> Array:
    """Return a block gathered from blocks in memory, and taken through its round.

    The `inputs` are source blocks of the indices `sources`, or the handle of a barrier if that is
    None. `into` is memory in which the block is to lie with others, after the round.
    """
    place = None if into is None else into.place(run.plan.rounds[number].target, block)
    if sources is None and inputs[0].common is not None:
        return _where_it_lies(run, number, block, inputs[0].common, place, filters)
    blocks = inputs[0] if sources is None else Blocks(dict(zip(sources, inputs, strict=True)))
    own = _own(run, number, blocks.blocks) if run.stays(number) else None

    def view() -> BlockView:
        if own is not None:
            return BlockView.of(own, target=place)
        source_of = functools.partial(blocks.checked, run, number)
        home = blocks.homes.get(block)
        found = run.view(number, block, source_of, home=home, choice=blocks.choice)
        found.target = place
        return found

    if own is not None and run.overwrites(number):
        in_place.refuse_spoiled(number, block, own)
        if own.flags.writeable:
            here = BlockView.of(own, owned=own.flags.c_contiguous, target=own)
            with in_place.spoiling(lambda: [own]):
                return run.finish(number, block, lambda: here, filters)
    with _turn(run, number, block, blocks):
        return run.finish(number, block, view, filters)


def _turn(
    run: Run, number: int, block: Block, blocks: Blocks
) -> contextlib.AbstractContextManager[object]:
    """The turn of a task to look at a block of host memory, if a device may take it."""
    on_gpu = any(map(is_on_gpu, itertools.islice(blocks.blocks.values(), 1)))
    if on_gpu or not run.on_devices(number):
        return contextlib.nullcontext()
    exchange = run.exchange(number)
    nbytes = math.prod(exchange.target.shape(block)) * np.dtype(exchange.dtype).itemsize
    return dispatch.getting_ready(run.place_of(number), nbytes, exchange.dtype)


def _where_it_lies(
    run: Run,
    number: int,
    block: Block,
    common: in_place.Common,
    into: Array | None,
    filters: dict[int, Array],
) -> Array:
    """A block that lies in common memory, taken through the round that follows, if one does."""
    joint, exchange = run.joints.exchanges[number], run.exchange(number)
    assert joint is not None and common.array is not None  # noqa: PT018
    started = time.perf_counter()
    values = in_place.lying(common.array, joint.layout, exchange.target, block)
    if number == len(run.plan.rounds):
        emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
        in_place.advance(run.token, in_place.RESULT, (values,))
        return values
    after, flat = run.joints.inside[number], None
    if after is not None and isinstance(run.plan, Plan) and number + 1 == len(run.plan.exchanges):
        flat = in_place.lying(common.array, after, run.plan.result, block)
        in_place.advance(run.token, in_place.RESULT, (flat,))

    def work() -> Array:
        here = None if after is None else values
        view = BlockView.of(values, target=into if after is None else values)
        return run.finish(number, block, lambda: view, filters, here, flat)

    return work() if after is None else common.once(number, block, work)


def _own(run: Run, number: int, blocks: Mapping[Block, Array]) -> Array | None:
    """The source block itself as the target block, if it lies in memory as that one would."""
    if len(blocks) != 1:  # an array without elements has no sources
        return None
    (index,) = blocks
    values, exchange = checked(run, number, index, blocks[index]), run.exchange(number)
    if is_on_gpu(values) or values.dtype != np.dtype(exchange.dtype):
        return None
    return values if values.flags.aligned else None


@reported
def pack_shard(
    run: Run, number: int, block: Block, source: Block, values: Array
) -> Array | tuple[Array, int]:
    """Return what a source block gives to a target block, packed; its checksum, too, if wanted."""
    started = time.perf_counter()
    values = checked(run, number, source, values)
    packed = pack(run.map(number), block, source, values, np.dtype(run.exchange(number).dtype))
    checksums = run.plan.verify == "checksum"
    found = (packed, shard_checksum(packed, number, source, block)) if checksums else packed
    emit("pack", nbytes=packed.nbytes, seconds=time.perf_counter() - started)
    return found


@block_task
def run_block_of_shards(
    run: Run,
    number: int,
    block: Block,
    filters: dict[int, Array],
    sources: tuple[Block, ...],
    *packed: Any,
) -> Array:
    """Return a block put together from packed shards, and taken through its round."""
    shards = dict(zip(sources, packed, strict=True))
    if run.plan.verify == "checksum":
        compare(number, block, shards)
        shards = {source: shard for source, (shard, _) in shards.items()}
    return put_together(run, number, block, shards, filters)


def compare(number: int, block: Block, shards: Mapping[Block, tuple[Array, int]]) -> None:
    """Raise if a shard is not what was packed for a block."""
    for source, (shard, known) in shards.items():
        found = shard_checksum(shard, number, source, block)
        if found != int(known):
            emit("mismatch", nbytes=shard.nbytes)
            raise VerificationError(
                f"exchange {number + 1}, block {block}: the shard of block {source} is not what "
                f"was packed (checksum {found:016x}, not {known:016x})"
            )


def put_together(
    run: Run, number: int, block: Block, shards: Mapping[Block, Array], filters: dict[int, Array]
) -> Array:
    """Return a block put together from packed shards, and taken through its round."""
    view = functools.partial(run.view, number, block, shards.__getitem__, packed=True)
    return run.finish(number, block, view, filters)


@block_task
def generate_filter(run: Run, number: int, block: Block, filters: dict[int, Array]) -> Array:
    """Return a block of a Bluestein filter after its first round."""
    plan = run.plan
    assert isinstance(plan, FilterPlan)
    round_ = plan.rounds[0]
    axis = round_.source.axes[0]
    places = axis_index(axis, block[0], 0)
    padded = math.prod(digit.radix for digit in axis.digits)
    chirp, shape, dtype = plan.chirp, axis.shape(block[0]), np.dtype(plan.dtypes[0])

    def incoming() -> BlockView:
        numbers = chirp.length, chirp.sign, dtype, chirp.step, chirp.offset
        values = chirp_filter(places.reshape(shape), padded, *numbers)
        return BlockView.of(np.ascontiguousarray(values), owned=True)

    return run.finish(number, block, incoming, filters)
