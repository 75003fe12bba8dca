"""Probes of a CPU: small transforms whose blocks are worked on as in a graph, but without one.

A probe is a plan whose rounds are named, so that what is measured is what will run: the same
gathers, tiles, libraries and twiddles, with all threads of a process at work.

Imports `graph`, `planner`, `transforms`, `kernels` and `memory`.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.graph.blocks import Blocks
from dask_bigfft.graph.tasks import Run, run_block
from dask_bigfft.memory import lend
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
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
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    cut: int
    ways: int
    rounds: tuple[tuple[tuple[int, int], ...], ...]
    kernel: str = "scipy"

    def plan(self, threads: int) -> Plan:
        """The plan, on the CPU."""
        axes = tuple(sorted({axis for named in self.rounds for axis, _ in named}))
        came = np.empty(0, self.dtype).real.dtype if self.kind == "rfftn" else np.dtype(self.dtype)
        spec = transform_spec(self.kind, self.shape, came, None, axes)
        chunks = tuple(
            even_chunks(n, self.ways) if axis == self.cut else (n,)
            for axis, n in enumerate(self.shape)
        )
        request = Request(chunks, rounds=self.rounds, kernel=self.kernel, device="cpu")
        return find_plan(spec, request, Machine(threads=threads))


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
    """

    seconds: float
    parts: Mapping[str, float]
    wall: float

    @property
    def gather(self) -> float:
        """Seconds of gathering."""
        return self.parts.get("gather", 0.0)

    @property
    def fft(self) -> float:
        """Seconds of FFTs, and of storing their tiles."""
        return max(self.parts.get("fft", 0.0) + self.parts.get("scatter", 0.0), 1e-9)

    @property
    def rest(self) -> float:
        """Seconds of everything else: what Python does."""
        return max(self.seconds - sum(self.parts.values()), 0.0)


class _Watch:
    """A sink that adds up the seconds of one token's events by index and name."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.seconds: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        if numbers.get("plan") == self.token:
            key = int(numbers["index"]), name
            with self._lock:
                before = self.seconds.get(key, 0.0)
                self.seconds[key] = before + float(numbers.get("seconds", 0.0))


def _source(plan: Plan) -> dict[Block, Array]:
    blocks = {}
    for index in plan.source.indices():
        values = lend(plan.source.shape(index), np.dtype(plan.spec.dtype))
        values.fill(1)
        blocks[index] = values
    return blocks


def _block(run: Run, number: int, local: bool, blocks: Blocks, target: Block) -> Array:
    """What the task of a block does: it gets its source block, or a handle of all of them."""
    if not local:
        found: Array = run_block(run, number, target, (), None, None, blocks)
        return found
    sources = tuple(run.map(number).sources(target))
    found = run_block(run, number, target, (), sources, None, *(blocks[i] for i in sources))
    return found


def _once(plan: Plan, token: str, pool: ThreadPoolExecutor) -> list[Stage]:
    """One pass through all exchanges and rounds of a plan."""
    run, watch, blocks, walls = Run(plan, token), _Watch(token), _source(plan), []
    add_sink(watch.take)
    try:
        for number, exchange in enumerate(plan.exchanges):
            work = partial(_block, run, number, exchange.local, Blocks(blocks))
            targets = list(exchange.target.indices())
            run.map(number)
            started = time.perf_counter()
            done = list(pool.map(work, targets))
            walls.append(time.perf_counter() - started)
            blocks = dict(zip(targets, done, strict=True))
    finally:
        remove_sink(watch.take)
    return [_stage(watch.seconds, number, wall) for number, wall in enumerate(walls, 1)]


def _stage(seconds: Mapping[tuple[int, str], float], number: int, wall: float) -> Stage:
    parts = {name: value for (index, name), value in seconds.items() if index == number}
    whole = parts.pop("round", 0.0) + parts.pop("unpack", 0.0)
    return Stage(whole, parts, wall)


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
    with ThreadPoolExecutor(threads) as pool:
        passes = [_once(plan, f"calibration-{i}", pool) for i in range(repeat + 1)][1:]
    return [
        sorted(stages, key=lambda stage: stage.seconds)[(len(stages) - 1) // 2]
        for stages in zip(*passes, strict=True)
    ]
