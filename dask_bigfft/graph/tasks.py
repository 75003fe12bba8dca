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
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.errors import ArgumentTypeError, CarrierError, VerificationError, refuse
from dask_bigfft.events import current_worker, during, emit, task_threads
from dask_bigfft.exchange.gather import TRANSPORTS, Choice, transport_of, view_of
from dask_bigfft.exchange.packing import pack, shard_checksum
from dask_bigfft.exchange.parts import stacked_layout, stacking
from dask_bigfft.exchange.shards import ExchangeMap, exchange_map
from dask_bigfft.gpu.dispatch import (
    Place,
    getting_ready,
    job_of,
    missing,
    moved_on_device,
    on_device,
)
from dask_bigfft.gpu.on_gpu import as_block, gpus, home_of, roll_on_gpu, round_on_gpu
from dask_bigfft.gpu.work_sharing import shared_with_device
from dask_bigfft.graph.in_place import (
    RESULT,
    Common,
    advance,
    lying,
    refuse_spent,
    refuse_spoiled,
    same_memory,
    spoiling,
)
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
from dask_bigfft.planner.plan_data import Exchange, Joints, no_joints
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
        self._places: dict[int, Place] = {}
        self._stored: dict[int, Layout] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["Run"], tuple[Plan | FilterPlan | ShiftPlan, str, bool]]:
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

    @property
    def place(self) -> Place:
        """Where rounds are done. Filters are small, and made once.

        Devices that do all of what CPU threads might have shared are taken where there are some.
        """
        plan = self.plan if isinstance(self.plan, Plan) else None
        if plan is None:
            return Place("cpu")
        device = "auto" if plan.device == "gpu" and plan.shares else plan.device
        return Place(device, plan.device_memory_limit, plan.settings)

    def place_of(self, number: int) -> Place:
        """Where a round is done."""
        found = self._places.get(number)
        if found is None:
            found = self.place
            if isinstance(self.plan, Plan):
                found = found.for_share(self.plan.shares[number : number + 1])
            self._places[number] = found
        return found

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
                found = exchange_map(self.stored(number), exchange.target, exchange.mirror)
                self._maps[number] = found
            return found

    def stacking(self, number: int) -> Stacked | None:
        """How a device stacks the blocks before an exchange, if it does."""
        plan = self.plan
        if not self.private or not 0 < number < len(plan.exchanges) or plan.verify != "none":
            return None
        if isinstance(plan, Plan) and plan.inside:
            return None  # blocks stay where they are
        cpu = not self.on_devices(number - 1) or missing() is not None
        return None if cpu or plan.rounds[number - 1].rolls else stacking(self.exchange(number))

    def stored(self, number: int) -> Layout:
        """The blocks before an exchange as they lie in memory."""
        found = self._stored.get(number)
        if found is None:
            found, stacked = self.exchange(number).source, self.stacking(number)
            if stacked is not None:
                found = stacked_layout(found, stacked)
            self._stored[number] = found
        return found

    @property
    def joints(self) -> Joints:
        """Which blocks lie together."""
        plan = self.plan
        if isinstance(plan, Plan):
            return plan.joints
        return no_joints(len(plan.exchanges), len(plan.rounds))

    def finish(
        self,
        number: int,
        block: Block,
        view_of: Callable[[], BlockView],
        filters: Mapping[int, Array],
        here: Array | None = None,
        flat: Array | None = None,
    ) -> Array:
        """Return the block after the round that follows an exchange, verified if the plan says so.

        `here` is where it has to be, `flat` the same place as a block of the result has it.
        """
        round_ = self.plan.rounds[number]
        started = time.perf_counter()
        done = self.transformed(number, round_, block, view_of, filters)
        if here is not None and not same_memory(done, here):
            copy_array(here, done)
            done = here
        if number == len(self.plan.rounds) - 1 and self.plan.ends_in_round:
            done = done.reshape(round_.target.flat_shape(block)) if flat is None else flat
        emit("round", nbytes=done.nbytes, seconds=time.perf_counter() - started)
        return done

    def transformed(
        self,
        number: int,
        round_: Round,
        block: Block,
        view_of: Callable[[], BlockView],
        filters: Mapping[int, Array],
    ) -> Array:
        """Return the block after a round on a device or on the CPU, verified if the plan says."""
        mode, dtype = self.plan.verify, np.dtype(self.plan.dtypes[2 * number + 1])
        if mode == "none":
            view = view_of()
            done = self._on_device(number, round_, block, dtype, filters, view)
            if done is None:
                with with_spare_threads(self.library, round_.target.blocks) as library:
                    done = run_round(round_, block, view, library, dtype, filters)
                self._told("round_cpu", done)
                return done
        else:
            with with_spare_threads(self.library, round_.target.blocks) as library:
                checks = Verification(mode, round_, block, library, dtype, filters, number + 1)
                runner = functools.partial(self._on_device, number, round_, block, dtype, filters)
                done = None
                if self.on_devices(number):
                    done = checks.run_elsewhere(view_of, runner)
                if done is None:
                    return checks.run(functools.partial(_in_host_memory, mode, view_of))
        return (roll_on_gpu if is_on_gpu(done) else roll)(done, round_.rolls)

    def on_devices(self, number: int) -> bool:
        """Return whether devices may do a round on blocks in host memory, or are asked to."""
        if not isinstance(self.plan, Plan) or self.plan.device == "cpu":
            return False
        device = self.place_of(number).device
        return device != "cpu" and (device != "auto" or missing() is None)

    def _on_device(
        self,
        number: int,
        round_: Round,
        block: Block,
        dtype: np.dtype[Any],
        filters: Mapping[int, Array],
        view: BlockView,
    ) -> Array | None:
        """Return the block after a round on a device, but for its rolls; None on the CPU."""
        if not view.on_gpu and not self.on_devices(number):
            return None
        job = job_of(round_, block, view.dtype, dtype, inside=self.overwrites(number))
        if view.on_gpu:
            return round_on_gpu(job, view.gather, filters)  # type: ignore[no-any-return]
        done, place = None, self.place_of(number)
        if place.device == "hybrid" and self.plan.verify == "none":
            with with_spare_threads(self.library, round_.target.blocks) as library:
                done = shared_with_device(job, view, library, filters, place)
        if done is None:
            done = on_device(job, view, filters, place, self.stacking(number + 1))
            self._told("round_device", done)
        return done

    def _told(self, event: str, done: Array | None) -> None:
        """Report who has done a whole block, where CPU threads and devices share a round."""
        if done is not None and isinstance(self.plan, Plan) and self.plan.device == "hybrid":
            emit(event, nbytes=done.nbytes)

    def moved(self, number: int, view: BlockView) -> Array:
        """Return the block after the last exchange, gathered by a device on the way, or here."""
        found = None
        if not view.on_gpu and self.on_devices(number):
            blocks = self.exchange(number).target.blocks
            found = moved_on_device(view, self.place_of(number), blocks)
        return view.gather() if found is None else found

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


class with_spare_threads:
    """Give out the library as a round on one of some blocks may use it, while that is done.

    Parameters
    ----------
    library : FFTLibrary
        Makes the FFTs.
    blocks : int
        Of the round. Where blocks of other rounds are worked on meanwhile, these count as well.
    """

    __slots__ = ("blocks", "library")

    def __init__(self, library: FFTLibrary, blocks: int) -> None:
        self.library, self.blocks = library, blocks

    def __enter__(self) -> FFTLibrary:
        threads = task_threads()
        global _running
        with _lock:
            _running += 1
            at_work = max(self.blocks, _running)
        return self.library.using(max(1, threads // at_work))

    def __exit__(self, *_: object) -> None:
        global _running
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
        self.common: Common | None = None
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
    if block.shape != expected and block.shape != run.stored(number).shape(index):
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
    return block.reshape(run.stored(number).shape(index))


Task = Callable[..., Any]


def barrier(token: str, indices: tuple[Block, ...], wanted: bool, *blocks: Array) -> Blocks:
    """Return a handle of all source blocks of a group; all of them exist now.

    Parameters
    ----------
    token : str
        Of the plan in task names.
    indices : tuple of block indices
        Of the blocks.
    wanted : bool
        Whether the `shared` carrier was asked for by name.

    Raises
    ------
    CarrierError
        In a task of a cluster, where sharing would move every block to every worker.
    """
    _refuse_cluster(token, wanted)
    return Blocks(dict(zip(indices, blocks, strict=True)))


def common_memory(run: Run, number: int, group: Block) -> Common:
    """Return memory for the blocks of a group before an exchange; none where it does not help.

    That is on workers of a cluster, where a task may be done again, and where devices do rounds.
    """
    joint = run.joints.exchanges[number]
    used = isinstance(run.plan, Plan) and run.plan.device != "cpu" and missing() is None
    if joint is None or used or current_worker() is not None:
        return Common()
    with during(run.token, number):
        emit("begun")
    return Common(joint.layout, group, run.exchange(number).dtype)


def barrier_in_common(
    run: Run, number: int, indices: tuple[Block, ...], wanted: bool, common: Common, *blocks: Array
) -> Blocks:
    """Return a handle of all source blocks of a group, which may lie in common memory.

    Parameters
    ----------
    run, number
        The plan, and the exchange, from 0.
    indices, wanted
        As `barrier` takes them.
    common : Common
        The group's memory.
    """
    found = barrier(run.token, indices, wanted, *blocks)
    joint = run.joints.exchanges[number]
    assert joint is not None
    holds = common.holds(joint.layout, run.exchange(number).source, found.blocks)
    if not holds:
        refuse_spent(run.token, number, found.blocks)
    if common.enter(number, holds):
        found.common = common
        advance(run.token, number + 1, found.blocks.values())
    return found


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
    found = barrier(run.token, sources, False, *blocks)
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
    worker = _worker_of(token)
    if worker is None:
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


def _worker_of(token: str) -> Any:
    """The worker that was sent the calling task of a plan, or None.

    A task of a cluster may compute an array by a scheduler of its own: then the worker knows that
    task only, and not in the threads that the scheduler starts. Blocks stay in its process.
    """
    worker = current_worker()
    if worker is None:
        return None
    try:
        key = worker.get_current_task()
    except KeyError:
        return None
    return worker if token in str(key) else None


def reported(task: Task) -> Task:
    """Return a task ``(run, number, ...)`` whose events carry the plan and the round."""

    @functools.wraps(task)
    def reporting(run: Run, number: int, *inputs: Any) -> Any:
        with during(run.token, number + 1):
            return task(run, number, *inputs)

    return reporting


@reported
def run_block(
    run: Run,
    number: int,
    block: Block,
    filter_axes: tuple[int, ...],
    sources: Any,
    into: Common | None,
    *inputs: Any,
) -> Array:
    """Return a block gathered in exchange `number` and taken through the round that follows.

    Parameters
    ----------
    run : Run
        The plan.
    number : int
        Exchange, from 0.
    block : tuple of int
        Which block.
    filter_axes : tuple of int
        Axes whose filters come first among the inputs.
    sources : tuple of block indices or None
        What the other inputs are: source blocks of these indices; None for a handle.
    into : Common or None
        Memory in which the block is to lie with others, after the round.
    """
    filters = dict(zip(filter_axes, inputs, strict=False))
    given = inputs[len(filter_axes) :]
    exchange = run.exchange(number)
    place = None if into is None else into.place(run.plan.rounds[number].target, block)
    if sources is None and given[0].common is not None:
        return _where_it_lies(run, number, block, given[0].common, place, filters)
    dtype, started = np.dtype(exchange.dtype), time.perf_counter()
    blocks = given[0] if sources is None else Blocks(dict(zip(sources, given, strict=True)))
    own = _own(run, number, blocks.blocks) if run.stays(number) else None

    def view() -> BlockView:
        if own is not None:
            return BlockView.of(own, target=place)
        source_of = functools.partial(blocks.checked, run, number)
        home, choice = blocks.homes.get(block), blocks.choice
        found = view_of(run.map(number), block, dtype, source_of, False, home, choice)
        found.target = place
        return found

    if own is not None and run.overwrites(number):
        refuse_spoiled(number, block, own)
        if own.flags.writeable:
            here = BlockView.of(own, owned=own.flags.c_contiguous, target=own)
            with spoiling(lambda: [own]):
                return run.finish(number, block, lambda: here, filters)
    with _turn(run, number, block, blocks):
        if number < len(run.plan.rounds):
            return run.finish(number, block, view, filters)
        values = run.moved(number, view())
    emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
    return values


def _turn(
    run: Run, number: int, block: Block, blocks: Blocks
) -> contextlib.AbstractContextManager[None]:
    """The turn of a task to look at a block of host memory, if a device may take it."""
    on_gpu = any(map(is_on_gpu, itertools.islice(blocks.blocks.values(), 1)))
    if on_gpu or not run.on_devices(number):
        return contextlib.nullcontext()
    exchange = run.exchange(number)
    nbytes = math.prod(exchange.target.shape(block)) * np.dtype(exchange.dtype).itemsize
    place = run.place_of(number) if number < len(run.plan.rounds) else run.place
    return getting_ready(place, nbytes, exchange.dtype)


def _where_it_lies(
    run: Run,
    number: int,
    block: Block,
    common: Common,
    into: Array | None,
    filters: dict[int, Array],
) -> Array:
    """A block that lies in common memory, taken through the round that follows, if one does."""
    joint, exchange = run.joints.exchanges[number], run.exchange(number)
    assert joint is not None
    assert common.array is not None
    started = time.perf_counter()
    values = lying(common.array, joint.layout, exchange.target, block)
    if number == len(run.plan.rounds):
        emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
        advance(run.token, RESULT, (values,))
        return values
    after, flat = run.joints.inside[number], None
    if after is not None and isinstance(run.plan, Plan) and number + 1 == len(run.plan.exchanges):
        flat = lying(common.array, after, run.plan.result, block)
        advance(run.token, RESULT, (flat,))

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
    if run.plan.verify == "checksum":
        found = packed, shard_checksum(packed, number, source, block)
    emit("pack", nbytes=packed.nbytes, seconds=time.perf_counter() - started)
    return found if run.plan.verify == "checksum" else packed


@reported
def run_block_of_shards(
    run: Run,
    number: int,
    block: Block,
    filter_axes: tuple[int, ...],
    sources: tuple[Block, ...],
    *inputs: Any,
) -> Array:
    """Return a block put together from packed shards and taken through the round that follows."""
    filters = dict(zip(filter_axes, inputs, strict=False))
    shards = dict(zip(sources, inputs[len(filter_axes) :], strict=True))
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
    """Return a block put together from packed shards and taken through the round that follows."""
    dtype = np.dtype(run.exchange(number).dtype)

    def view() -> BlockView:
        return view_of(run.map(number), block, dtype, shards.__getitem__, packed=True)

    return taken_through(run, number, block, view, filters)


def taken_through(
    run: Run, number: int, block: Block, view: Callable[[], BlockView], filters: dict[int, Array]
) -> Array:
    """Return a block that is gathered, taken through the round that follows, if one does."""
    if number < len(run.plan.rounds):
        return run.finish(number, block, view, filters)
    started = time.perf_counter()
    values = view().gather()
    emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
    return values


def generate_filter(run: Run, block: Block) -> Array:
    """Return a block of a Bluestein filter after its first round."""
    plan, known = run.plan, run.done(0, block)
    assert isinstance(plan, FilterPlan)
    if known is not None:
        return known[0]  # type: ignore[no-any-return]
    round_ = plan.rounds[0]
    axis = round_.source.axes[0]
    places = axis_index(axis, block[0], 0)
    padded = math.prod(digit.radix for digit in axis.digits)
    dtype = np.dtype(plan.dtypes[0])

    def incoming() -> BlockView:
        values = chirp_filter(
            places.reshape(axis.shape(block[0])),
            padded,
            plan.chirp.length,
            plan.chirp.sign,
            dtype,
            plan.chirp.step,
            plan.chirp.offset,
        )
        return BlockView.of(np.ascontiguousarray(values), owned=True)

    with during(run.token, 1):
        return run.deliver(0, block, run.finish(0, block, incoming, {}))
