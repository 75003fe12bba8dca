"""When the blocks of a computation began and ended, and what lies between: what no block takes.

Threads report each block when they have done it. So it is known when the first of a graph began,
how long threads were without a block between two of a round, how long between the last of a round
and the first of the next, and what of a block were copies and FFTs.

Imports `events`, `graph` and the planner's plans.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da

from dask_bigfft.events import add_sink, counting_work, remove_sink
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.plan import Plan

__all__ = ["Span", "Timeline", "taken"]

#: Blocks, and what of them are copies, and FFTs with what is multiplied; the rest is Python's.
BLOCKS, COPIES, FFTS = ("round", "unpack"), ("gather", "scatter"), ("fft", "twiddle")


@dataclass(frozen=True)
class Span:
    """The blocks of a round, or of an exchange alone, from the first one's begin to the last end.

    Parameters
    ----------
    number : int
        Of the round, from 1.
    blocks, lanes : int
        How many, and threads that worked on them.
    before : float
        Seconds since the last block of the round before was done, or since the graph was begun; 0
        where it began earlier, as exchanges among some of the blocks wait for these alone.
    idle : float
        Seconds, of all lanes, between blocks, and before the first one of a lane.
    tail : float
        Seconds, of all lanes, after the last block of a lane.
    busy, copies, ffts : float
        Seconds of threads for blocks, and what of these were copies and FFTs.
    worked : tuple of float
        Seconds in which threads had a processor, for blocks, for copies, and for FFTs: without what
        they waited for the interpreter.
    """

    number: int
    blocks: int
    lanes: int
    before: float
    idle: float
    tail: float
    busy: float
    copies: float
    ffts: float
    worked: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Timeline:
    """One computation.

    Parameters
    ----------
    seconds, after : float
        In all, and after the last block.
    spans : tuple of Span
        Its rounds.
    """

    seconds: float
    after: float
    spans: tuple[Span, ...]


class _Watch:
    """A sink that notes when blocks were begun and done, and adds up their parts."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[tuple[int, float, float]]] = {}
        self.parts: dict[tuple[int, str], float] = {}
        self.worked: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        if "index" not in numbers or "seconds" not in numbers:
            return
        now, number = time.perf_counter(), int(numbers["index"])
        seconds = float(numbers["seconds"])
        worked = float(numbers.get("worked", 0.0))
        with self._lock:
            self.worked[number, name] = self.worked.get((number, name), 0.0) + worked
            if name in BLOCKS:
                block = threading.get_ident(), now - seconds, now
                self.blocks.setdefault(number, []).append(block)
            else:
                self.parts[number, name] = self.parts.get((number, name), 0.0) + seconds

    def of(self, found: Mapping[tuple[int, str], float], number: int) -> tuple[float, float, float]:
        """Seconds of the blocks of a round, of their copies, and of their FFTs."""
        blocks, copies, ffts = (
            sum(found.get((number, name), 0.0) for name in names)
            for names in (BLOCKS, COPIES, FFTS))
        return blocks, copies, ffts


def _span(
    watch: _Watch, number: int, blocks: Sequence[tuple[int, float, float]], since: float
) -> Span:
    first, last = min(begun for _, begun, _ in blocks), max(done for *_, done in blocks)
    busy = sum(done - begun for _, begun, done in blocks)
    ends: dict[int, float] = {}
    for thread, _, done in blocks:
        ends[thread] = max(done, ends.get(thread, done))
    tail = sum(last - end for end in ends.values())
    _, copies, ffts = watch.of(watch.parts, number)
    idle = len(ends) * (last - first) - busy - tail
    worked = watch.of(watch.worked, number)
    return Span(
        number, len(blocks), len(ends), max(0.0, first - since), idle, tail, busy, copies, ffts,
        worked)


def taken(x: da.Array, plan: Plan) -> Timeline:
    """Run a plan on an array in this process, and return what that took.

    Parameters
    ----------
    x : dask.array.Array
        Whose blocks are in memory.
    plan : Plan
        Of it.
    """
    result, watch = transformed_array(x, plan, "shared"), _Watch()
    add_sink(watch.take)
    try:
        with counting_work():
            started = time.perf_counter()
            kept = result.persist()
            ended = time.perf_counter()
    finally:
        remove_sink(watch.take)
    del kept
    spans, since = [], started
    for number, blocks in sorted(watch.blocks.items()):
        spans.append(_span(watch, number, blocks, since))
        since = max(done for *_, done in blocks)
    return Timeline(ended - started, ended - since, tuple(spans))

