"""A plan where it is executed, and what all tasks of blocks have in common.

`PlanRun` keeps the exchange maps and the FFT library. They are made on first use and not pickled.
"""

import contextlib
import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers import buffers
from dask_bigfft.errors import raise_invalid
from dask_bigfft.events import current_worker, during, emit, task_threads
from dask_bigfft.exchange import gather
from dask_bigfft.exchange.shards import ExchangeMap, exchange_map
from dask_bigfft.gpu import dispatch
from dask_bigfft.kernels.indices import axis_index
from dask_bigfft.kernels.libraries import FFTLibrary, get_library
from dask_bigfft.kernels.loop import in_windows, run_round
from dask_bigfft.kernels.transfer import TransferBlock
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import BlockView, is_on_gpu, plain_array, refuse_wrapped
from dask_bigfft.memory.limits import configure_arena
from dask_bigfft.memory.paused import watch_worker_of_task
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.stages import Exchange
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Chirp

if TYPE_CHECKING:
    from dask_bigfft.kernels.checks import Verification

Indices = tuple[Block, ...]

#: Arrays of any kind by block.
ByBlock = dict[Block, Any]

#: Blocks of operands by their numbers.
Operands = Mapping[int, Array]

#: Function that returns the view of a block; it may be called several times.
ViewMaker = Callable[[], BlockView]

#: Function that a task calls.
TaskFunction = Callable[..., Any]


def emit_phase(event: str, block: Block, nbytes: int, started: float) -> None:
    """Emit the event of a phase of a block that began at a time and ends now."""
    seconds = time.perf_counter() - started
    emit(
        event,
        block=block,
        nbytes=nbytes,
        seconds=seconds,
    )


class PlanRun:
    """Plan where it is executed.

    Parameters
    ----------
    plan : Plan
        Plan that is executed.
    token : str
        Token of the plan in task names and events.
    """

    #: Maximum number of bytes that the arena keeps for this run; None leaves it to the settings.
    arena_nbytes: int | None = None

    def __init__(self, plan: Plan, token: str = "") -> None:
        self.plan = plan
        self.token = token
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
        numbers = range(len(self.plan.rounds) + 1)
        if self.plan.device == "cpu":
            return [self.place for _ in numbers]
        shares = self.plan.shares
        return [self.place.for_share(shares[number : number + 1]) for number in numbers]

    def exchange(self, number: int) -> Exchange:
        """Return an exchange of the plan."""
        return self.plan.stages[number].exchange

    def stays(self, number: int) -> bool:
        """Return whether an exchange leaves each block unchanged."""
        exchange = self.exchange(number)
        return exchange.local and exchange.mirror is None and exchange.source == exchange.target

    def overwrites(self, number: int) -> bool:
        """Return whether a round may overwrite its source blocks.

        A verified round may have to be repeated, so it keeps them.
        """
        is_requested = self.plan.overwrite and self.plan.verify == "none"
        return is_requested and number == 0 and self.stays(number)

    def map(self, number: int) -> ExchangeMap:
        """Return the shards of an exchange.

        In a task of a worker, the worker is watched and its arena configured, too.
        """
        worker = current_worker()
        if worker is not None:
            watch_worker_of_task(worker)
        if worker is not None or self.arena_nbytes is not None:  # else the call did it
            configure_arena(worker, self.arena_nbytes)
        with self._lock:
            shards = self._maps.get(number)
            if shards is None:
                exchange = self.exchange(number)
                shards = exchange_map(exchange.source, exchange.target, exchange.mirror)
                self._maps[number] = shards
            return shards

    def view(
        self,
        number: int,
        block: Block,
        source_of: Callable[[Block], Any],
        packed: bool = False,
        home: int | None = None,
    ) -> BlockView:
        """Return the view of a block after an exchange.

        Parameters
        ----------
        number : int
            Number of the exchange.
        block : tuple of int
            Index of the block.
        source_of, packed
            As in `exchange.gather.view_of`.
        home : int, optional
            GPU on which the block is gathered; None for that of the first source, if it is on one.
        """
        view = gather.view_of(
            self.map(number),
            block,
            np.dtype(self.exchange(number).dtype),
            source_of,
            packed,
        )
        sources = itertools.chain.from_iterable(table.sources for table in view.tables)
        if home is None and not any(map(is_on_gpu, sources)):
            return view

        from dask_bigfft.gpu.gather import view_on_gpu  # takes 30 ms, which CPUs need not

        return view_on_gpu(view, home)

    def finish(
        self,
        number: int,
        block: Block,
        view_of: ViewMaker,
        operands: Operands,
        spent: float = 0.0,
    ) -> Array:
        """Return the block after an exchange and the round that follows, if there is one.

        The block is verified if the plan says so. The round's time includes the seconds that were
        `spent` on memory for its result.
        """
        started = time.perf_counter() - spent
        if number == len(self.plan.rounds):
            values = self._gathered(number, view_of())
            emit_phase("unpack", block, values.nbytes, started)
            return values
        values = self.transformed(
            number,
            block,
            view_of,
            operands,
        )
        if number == len(self.plan.rounds) - 1 and self.plan.ends_in_round:
            pairs = zip(self.plan.rounds[number].target.axes, block, strict=True)
            values = values.reshape([math.prod(axis.shape(i)) for axis, i in pairs])
            is_new = type(values) is np.ndarray and not self.overwrites(number)
            if self.plan.result.blocks == 1 and is_new:  # `assembled` then need not copy it
                buffers.advance(self.token, buffers.RESULT, [values])
        emit_phase("round", block, values.nbytes, started)
        return values

    def _gathered(self, number: int, view: BlockView) -> Array:
        """Return the block after the last exchange, gathered by a device or by the CPU."""
        values: Array | None = None
        if view.on_gpu:
            from dask_bigfft.gpu.gather import part_of_source

            values = part_of_source(view) if view.tables else None
        elif self.on_devices(number):
            blocks = self.exchange(number).target.blocks
            values = dispatch.moved_on_device(view, self.places[number], blocks)
        return view.gather() if values is None else values

    def on_devices(self, number: int) -> bool:
        """Return whether devices may compute a round on blocks in host memory."""
        device = self.places[number].device
        return device != "cpu" and (device != "auto" or dispatch.missing() is None)

    def transformed(
        self,
        number: int,
        block: Block,
        view_of: ViewMaker,
        operands: Operands,
    ) -> Array:
        """Return the block after a round on a device or on the CPU, verified if the plan says."""
        return _RoundOfBlock(
            self,
            number,
            block,
            operands,
        ).result(view_of)

    def recorded(self, number: int, block: Block) -> tuple[Any] | None:
        """Return the recorded result of a block after exchange `number`, in a tuple, or None."""
        return None

    def deliver(self, number: int, block: Block, values: Array) -> Array:
        """Return the result of a block's task after exchange `number`; by default, the block."""
        return values


def _transfer_operands(
    plan: Plan,
    stage: int,
    block: Block,
    operands: Operands,
) -> Operands:
    """Return the operands of a round that multiplies, with arrays as transfer functions.

    An array has the values at the places of the block's spectrum.
    """
    spectrum = plan.rounds[stage].spectrum
    transfers: dict[int, Any] = dict(operands)
    for number, operand in plan.operands_of(stage).items():
        if operand.plan is not None and operand.factor is not None:
            transfers[number] = TransferBlock(
                operands[number],
                spectrum,
                block,
                operand.axes,
                operand.factor,
            )
    return transfers


class _RoundOfBlock:
    """Round of one block, on devices or on CPU threads.

    Parameters
    ----------
    run : PlanRun
        Plan that is executed.
    number : int
        Number of the round, from 0.
    block : tuple of int
        Index of the block.
    operands : mapping
        Blocks of operands by their numbers.
    """

    def __init__(
        self,
        run: PlanRun,
        number: int,
        block: Block,
        operands: Operands,
    ) -> None:
        self.run = run
        self.number = number
        self.block = block
        self.round = run.plan.rounds[number]
        self.operands = operands
        if self.round.multiplies:
            self.operands = _transfer_operands(run.plan, number, block, operands)
        self.dtype = np.dtype(run.plan.stages[number].result_dtype)

    def result(self, view_of: ViewMaker) -> Array:
        """Return the block after the round, verified if the plan says so."""
        if self.run.plan.verify != "none":
            return self._verified(view_of)
        view = view_of()
        is_whole = view.on_gpu or self.run.plan.device == "hybrid"
        values = self._on_device(view, self.round.without_windows if is_whole else self.round)
        if values is not None:
            return self._in_windows(values)
        with self._spare_threads() as library:
            values = run_round(
                self.round,
                self.block,
                view,
                library,
                self.dtype,
                self.operands,
            )
        self._report("round_cpu", values)
        return values

    def _verified(self, view_of: ViewMaker) -> Array:
        """Return the block after the round, which is repeated where checks fail."""
        with self._spare_threads() as library:
            if self.run.on_devices(self.number):
                whole_round = self.round.without_windows
                checks = self._checks(whole_round, library)
                runner = functools.partial(self._on_device, round_=whole_round)
                values = checks.run_elsewhere(view_of, runner)
                if values is not None:
                    return self._in_windows(values)
            return self._checks(self.round, library).run(view_of)

    def _checks(self, round_: Round, library: FFTLibrary) -> "Verification":
        """Return the checks of the block in a round."""
        from dask_bigfft.kernels.checks import Verification  # 7 ms, for plans that verify

        return Verification(
            self.run.plan.verify,
            round_,
            self.block,
            library,
            self.dtype,
            self.operands,
            self.number + 1,
        )

    def _on_device(self, view: BlockView, round_: Round) -> Array | None:
        """Return the block after a round, in its windows or not; None if the CPU has to do it.

        That is so without a device, for a block that is not worth one, and where the CPU does all
        of a block that it could share with a device.
        """
        if not view.on_gpu and not self.run.on_devices(self.number):
            return None
        overwrites = self.run.overwrites(self.number)
        job = dispatch.job_of(
            round_,
            self.block,
            view.dtype,
            self.dtype,
            inside=overwrites,
        )
        if round_.multiplies and any(step.kind == "r2c" for step in round_.steps):
            has_stored = any(isinstance(own, TransferBlock) for own in self.operands.values())
            job = replace(job, multiplies_half=has_stored)
        if view.on_gpu:
            from dask_bigfft.gpu.on_gpu import round_on_gpu

            return round_on_gpu(job, view, self.operands)  # type: ignore[no-any-return]
        place = self.run.places[self.number]
        if place.device == "hybrid" and self.run.plan.verify == "none":
            from dask_bigfft.gpu.work_sharing import shared_with_device

            with self._spare_threads() as library:
                values = shared_with_device(
                    job,
                    view,
                    library,
                    self.operands,
                    place,
                )
            if values is not None:
                return values
        values = dispatch.on_device(
            job,
            view,
            self.operands,
            place,
        )
        self._report("round_device", values)
        return values

    def _in_windows(self, values: Array) -> Array:
        """Return the windows of a device's block that the round stores."""
        windows = self.round.windows
        is_cropped = self.round.crops and values.shape == self.round.target.shape(self.block)
        if not windows or is_cropped:
            return values
        if is_on_gpu(values):
            from dask_bigfft.gpu.on_gpu import windows_on_gpu

            return windows_on_gpu(values, windows)  # type: ignore[no-any-return]
        return in_windows(values, windows)

    def _spare_threads(self) -> contextlib.AbstractContextManager[FFTLibrary]:
        return spare_threads(self.run.library, self.round.target.blocks)

    def _report(self, event: str, values: Array | None) -> None:
        """Report which device computed a whole block of a hybrid round."""
        if values is not None and self.run.plan.device == "hybrid":
            emit(event, nbytes=values.nbytes)


_lock = threading.Lock()
_running_rounds = 0


@contextlib.contextmanager
def spare_threads(library: FFTLibrary, blocks: int) -> Iterator[FFTLibrary]:
    """Yield the library with the spare threads for one block of a round with some blocks.

    Blocks of other rounds that run at the same time count as well.
    """
    global _running_rounds
    with _lock:
        _running_rounds += 1
        contenders = max(blocks, _running_rounds)
    try:
        yield library.using(max(1, task_threads() // contenders))
    finally:
        with _lock:
            _running_rounds -= 1


# --- tasks ----------------------------------------------------------------------------------


def checked(
    run: PlanRun,
    number: int,
    index: Block,
    values: Any,
) -> Array:
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
    if is_on_gpu(values):
        from dask_bigfft.gpu.on_gpu import as_block

        block: Array = as_block(values)
    else:
        block = plain_array(values, index)
    if run.plan.verify != "none" and is_on_gpu(block):
        allowed = "'none' for blocks on a GPU, or blocks in host memory"
        raise_invalid("verify", run.plan.verify, allowed)
    exchange = run.exchange(number)
    shape = exchange.source.shape(index)
    if block.shape != shape:
        allowed = f"the shape {shape} that the dask array's chunks declare"
        allowed += "; compute_chunk_sizes() corrects them"
        raise_invalid("a", f"block {index} of shape {block.shape}", allowed)
    dtype = np.dtype(exchange.source_dtype)
    if block.dtype.kind == "c" and dtype.kind != "c":
        allowed = f"the real dtype {dtype} that the dask array declares"
        raise_invalid("a", f"block {index} of dtype {block.dtype}", allowed)
    return block


def reported(task: TaskFunction) -> TaskFunction:
    """Return a task ``(run, number, ...)`` whose events carry the plan and the round."""

    @functools.wraps(task)
    def reporting(run: PlanRun, number: int, *inputs: Any) -> Any:
        with during(run.token, max(number, 0) + 1):
            return task(run, number, *inputs)

    return reporting


def block_task(function: TaskFunction) -> TaskFunction:
    """Return a task that computes a block after an exchange and its round by a function.

    The task's arguments are ``(run, number, block, operand_numbers, *operands, *inputs)``, with one
    operand for each number; the function gets the operands by number. A recorded result is not
    computed again, and `PlanRun.deliver` returns the result of a new block.
    """

    def task(
        run: PlanRun,
        number: int,
        block: Block,
        operand_numbers: tuple[int, ...],
        *operands_and_inputs: Any,
    ) -> Any:
        recorded = run.recorded(number, block)
        if recorded is not None:
            return recorded[0]
        count = len(operand_numbers)
        operands = dict(zip(operand_numbers, operands_and_inputs[:count], strict=True))
        values = function(
            run,
            number,
            block,
            operands,
            *operands_and_inputs[count:],
        )
        return run.deliver(number, block, values)

    return reported(functools.wraps(function)(task))


@block_task
def generate_filter(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    chirp: Chirp,
) -> Array:
    """Return a block of a Bluestein filter after its first round, given the filter's values."""
    axis = run.plan.rounds[0].source.axes[0]
    places = axis_index(axis, block[0], stage=0)
    padded_length = math.prod(digit.radix for digit in axis.digits)

    def view() -> BlockView:
        values = chirp_filter(
            places.table(),
            padded_length,
            chirp.length,
            chirp.sign,
            np.dtype(run.plan.dtypes[0]),
            chirp.step,
            chirp.offset,
        )
        return BlockView.of(np.ascontiguousarray(values), owned=True)

    return run.finish(
        number,
        block,
        view,
        operands,
    )
