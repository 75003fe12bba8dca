"""Probes of a CPU: small transforms whose blocks are worked on as in a graph, but without one.

A probe is a plan whose rounds are named, so that what is measured is what will run: the same
gathers, tiles, common memory, libraries and twiddles, with all threads of a process at work.

Imports `decomposition`, `exchange`, `graph`, `planner`, `transforms`, `kernels` and `memory`.
"""

import statistics
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.joints import joint_block
from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.events import add_sink, counting_work, remove_sink
from dask_bigfft.exchange.common import Common
from dask_bigfft.graph.blocks import Blocks
from dask_bigfft.graph.groups import Groups
from dask_bigfft.graph.run import Run
from dask_bigfft.graph.tasks import barrier_in_common, common_memory, run_block
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.memory import lend
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.record import current_worker
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["Probe", "Stage", "measured_stages"]


Array = npt.NDArray[Any]
Block = tuple[int, ...]


@dataclass(frozen=True)
class Probe:
    """A small transform.

    Parameters
    ----------
    kind : str
        ``"fftn"`` or ``"rfftn"``.
    shape : tuple of int
        Of the array.
    dtype : str
        Complex dtype that is computed in.
    cut : int
        Axis that is cut into blocks.
    ways : int
        Number of blocks.
    rounds : tuple of mappings of axis to factor
        The rounds.
    kernel : str
        FFT library.
    together : bool
        Whether blocks lie together between rounds, where they can.
    verify : {"none", "energy", "checksum"}
        What is checked.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    cut: int
    ways: int
    rounds: tuple[tuple[tuple[int, int], ...], ...]
    kernel: str = "scipy"
    together: bool = True
    verify: str = "none"

    def plan(self, threads: int) -> Plan:
        """The plan, on the CPU."""
        axes = tuple(sorted({axis for named in self.rounds for axis, _ in named}))
        came = np.empty(0, self.dtype).real.dtype if self.kind == "rfftn" else np.dtype(self.dtype)
        spec = transform_spec(self.kind, self.shape, came, None, axes)
        chunks = tuple(
            even_chunks(n, self.ways) if axis == self.cut else (n,)
            for axis, n in enumerate(self.shape)
        )
        request = Request(chunks, rounds=self.rounds, kernel=self.kernel, device="cpu",
                          verify=self.verify)
        shared = self.together and current_worker() is None  # which has no common memory
        return find_plan(spec, request, Machine(threads=threads, shared=shared))


@dataclass(frozen=True)
class Stage:
    """What an exchange and its round took: seconds of threads, added up, by sub-phase.

    Parameters
    ----------
    seconds : float
        In all.
    parts : mapping of str to float
        ``gather``, ``twiddle`` and so on.
    wall : float
        Seconds of the clock.
    worked : mapping of str to float
        Seconds in which threads had a processor, by sub-phase, and of whole blocks as ``round`` or
        ``unpack``: without what they waited for the interpreter.
    """

    seconds: float
    parts: Mapping[str, float]
    wall: float
    worked: Mapping[str, float] = field(default_factory=dict)

    def work(self, part: str) -> float:
        """Seconds in which threads had a processor for a part; of the clock where nobody knows."""
        return self.worked.get(part) or self.parts.get(part, 0.0)

    @property
    def gather(self) -> float:
        """Seconds of gathering."""
        return self.work("gather")

    @property
    def fft(self) -> float:
        """Seconds of FFTs."""
        return max(self.work("fft"), 1e-9)

    @property
    def stored(self) -> float:
        """Seconds of storing tiles apart from where they were worked on."""
        return self.work("scatter")

    @property
    def whole(self) -> float:
        """Seconds in which threads had a processor for anything."""
        return sum(self.worked.get(name, 0.0) for name in ("round", "unpack")) or self.seconds

    @property
    def rest(self) -> float:
        """Seconds of everything else: what Python does.

        By the clock, or with a processor, which counts what a task does before it looks at the
        clock, but nothing that others do meanwhile: the less of both.
        """
        by_clock = self.seconds - sum(self.parts.values())
        worked = self.whole - sum(self.work(part) for part in self.parts)
        return max(min(by_clock, worked), 0.0)


class _Watch:
    """A sink that adds up the seconds of one token's events by index and name."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.seconds: dict[tuple[int, str], float] = {}
        self.worked: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        if numbers.get("plan") == self.token:
            key = int(numbers["index"]), name
            with self._lock:
                for found, number in ((self.seconds, "seconds"), (self.worked, "worked")):
                    found[key] = found.get(key, 0.0) + float(numbers.get(number, 0.0))

    def stage(self, number: int, wall: float) -> Stage:
        """What was seen of an exchange and its round."""
        parts, worked = (
            {name: value for (index, name), value in found.items() if index == number}
            for found in (self.seconds, self.worked))
        whole = parts.pop("round", 0.0) + parts.pop("unpack", 0.0)
        return Stage(whole, parts, wall, worked)


def _source(plan: Plan, pool: ThreadPoolExecutor) -> dict[Block, Array]:
    """Blocks that come in, made by all threads: one alone takes as long as what is measured."""
    def filled(index: Block) -> Array:
        values = lend(plan.source.shape(index), np.dtype(plan.spec.dtype))
        values.fill(1)
        return values

    indices = list(plan.source.indices())
    return dict(zip(indices, pool.map(filled, indices), strict=True))


class _Pass:
    """One pass through all exchanges and rounds of a plan, as tasks of a graph would do it."""

    def __init__(self, plan: Plan, pool: ThreadPoolExecutor) -> None:
        self.plan, self.pool = plan, pool
        self.run = Run(plan, f"calibration-{uuid.uuid4().hex}")
        shared = plan.machine.shared
        self.joints = plan.joints.exchanges if shared else (None,) * len(plan.exchanges)
        self.commons: dict[tuple[int, Block], Common] = {}
        self._lock = threading.Lock()

    def stages(self) -> list[Stage]:
        """What each exchange took, with its round."""
        watch, blocks, walls = _Watch(self.run.token), _source(self.plan, self.pool), []
        add_sink(watch.take)
        try:
            for number in range(len(self.plan.exchanges)):
                self.run.map(number)
                started = time.perf_counter()
                inputs = dict(self._inputs(number, blocks))
                done = list(self.pool.map(lambda item: self._block(number, *item), inputs.items()))  # noqa: B023
                walls.append(time.perf_counter() - started)
                blocks = dict(zip(inputs, done, strict=True))
        finally:
            remove_sink(watch.take)
        return [watch.stage(number, wall) for number, wall in enumerate(walls, 1)]

    def _common(self, number: int, group: Block) -> Common:
        """The memory of a group of the blocks before an exchange."""
        with self._lock:  # else two threads make two memories, and their blocks do not lie together
            if (number, group) not in self.commons:
                self.commons[number, group] = common_memory(self.run, number, group)
            return self.commons[number, group]

    def _inputs(self, number: int, blocks: dict[Block, Array]) -> Iterator[tuple[Block, Any]]:
        """What the task of each block is given: its source blocks, or a handle of all of them."""
        exchange, joint = self.plan.exchanges[number], self.joints[number]
        for group, sources, targets in Groups(exchange):
            found = [blocks[i] for i in sources]
            handle: Any = None
            if joint is not None:
                common = self._common(joint.home, group)
                handle = barrier_in_common(self.run, number, tuple(sources), False, common, *found)
            elif not exchange.local:
                handle = Blocks(dict(zip(sources, found, strict=True)))
            for target in targets:
                yield target, dict(zip(sources, found, strict=True)) if handle is None else handle

    def _block(self, number: int, target: Block, given: Any) -> Array:
        following = (*self.joints, None)[number + 1]
        into = None
        if following is not None and following.home == number + 1:
            made = self.plan.rounds[number].target
            into = self._common(number + 1, joint_block(following.layout, made, target))
        if isinstance(given, Blocks):
            sources, inputs = None, (given,)
        else:
            sources, inputs = tuple(given), tuple(given.values())
        found: Array = run_block(self.run, number, target, (), sources, into, *inputs)
        return found


def measured_stages(plan: Plan, threads: int, repeat: int = 3) -> Sequence[Stage]:
    """Return what each exchange of a plan took, with its round; medians of some passes.

    Parameters
    ----------
    plan : Plan
        Of a `Probe`.
    threads : int
        Blocks that are worked on at a time.
    repeat : int
        Passes that count, after one that does not.
    """
    compile_at_once()
    with ThreadPoolExecutor(threads) as pool, counting_work():
        passes = [_Pass(plan, pool).stages() for _ in range(repeat + 1)][1:]
    return [_middle(stages) for stages in zip(*passes, strict=True)]


def _middle(stages: Sequence[Stage]) -> Stage:
    """The median of each part of a stage, and of what Python does, in some passes."""
    parts, worked = (
        {name: statistics.median_low(one.get(name, 0.0) for one in ones)
         for name in {name: None for one in ones for name in one}}
        for ones in ([stage.parts for stage in stages], [stage.worked for stage in stages]))
    rest = statistics.median_low(stage.rest for stage in stages)
    wall = statistics.median_low(stage.wall for stage in stages)
    return Stage(rest + sum(parts.values()), parts, wall, worked)
