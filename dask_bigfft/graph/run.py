"""`Run`: a plan where it is executed, and how a block is taken through one of its rounds.

It keeps the exchange maps and the FFT library, which are made on first use and never travel.

Imports `planner`, `gpu`, `exchange`, `kernels` and `events`.
"""

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.errors import refuse
from dask_bigfft.events import emit
from dask_bigfft.exchange.common import same_memory
from dask_bigfft.exchange.shards import ExchangeMap, exchange_map
from dask_bigfft.exchange.stacking import stacked_layout, stacking
from dask_bigfft.gpu.dispatch import Place, job_of, moved_on_device, on_device, shared_with_device
from dask_bigfft.gpu.find import missing
from dask_bigfft.gpu.on_gpu import is_on_gpu, roll_on_gpu, round_on_gpu
from dask_bigfft.graph.paused import watch_from_task
from dask_bigfft.graph.spare import with_spare_threads
from dask_bigfft.kernels.checks import Verification
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import FFTLibrary, get_library
from dask_bigfft.kernels.loop import roll, run_round
from dask_bigfft.kernels.stacked import Stacked
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.filters import FilterPlan
from dask_bigfft.planner.joints import Joints, no_joints
from dask_bigfft.planner.plan import Exchange, Plan
from dask_bigfft.planner.shifts import ShiftPlan

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
            found = replace(found, settings=found.settings.of_round(number))
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
        configure_arena(most=self.arena_most)
        watch_from_task()
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
        cpu = self.place_of(number - 1).device == "cpu" or missing() is not None
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
        done = self.transformed(number, round_, block, view_of, filters, (block,))
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
        blocks: tuple[Block, ...],
    ) -> Array:
        """Return the block after a round on a device or on the CPU, verified if the plan says so.

        `round_` is that of the plan, or done on `blocks` of it together, which errors name.
        """
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
                checks = Verification(
                    mode, round_, block, library, dtype, filters, number + 1, blocks
                )
                runner = functools.partial(self._on_device, number, round_, block, dtype, filters)
                done = None
                if self.on_devices(number):
                    done = checks.run_elsewhere(view_of, runner)
                if done is None:
                    return checks.run(functools.partial(_in_host_memory, mode, view_of))
        return (roll_on_gpu if is_on_gpu(done) else roll)(done, round_.rolls)

    def on_devices(self, number: int) -> bool:
        """Return whether devices may do a round on blocks in host memory, or are asked to."""
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
        if done is not None and self.place.device == "hybrid":
            emit(event, nbytes=done.nbytes)

    def moved(self, number: int, view: BlockView) -> Array:
        """Return the block after the last exchange, gathered by a device on the way, or here."""
        found = None
        if not view.on_gpu:
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
