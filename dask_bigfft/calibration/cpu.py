"""Speeds of a CPU, measured by probes: gathers by row width, and what Python sees to.

Imports `decomposition`, `planner`, `kernels`, SciPy and this room.
"""

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from dask_bigfft.calibration.probes import Probe, Stage, measured_stages
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.cost import joints_in, model_of
from dask_bigfft.planner.plan import Exchange, Plan
from dask_bigfft.planner.profile import Curve
from dask_bigfft.planner.traffic import Traffic, tiles_of, traffic
from dask_bigfft.planner.work import flops, is_turned

__all__ = [
    "OF_A_THREAD",
    "TALL",
    "WAYS",
    "Effort",
    "Points",
    "Sample",
    "add",
    "checking_speeds",
    "compile_copies",
    "curve",
    "gather_speeds",
    "measured",
    "sampled",
]

#: A tall plane of about 2^21 numbers, whose columns are longer than a tile, in narrow rows, and
#: whose rows are short.
TALL = (43200, 48)

#: Blocks that a probe is cut into.
WAYS = 8

#: Bytes of a probe for each thread, so that all of them are more than what caches hold, and of
#: probes by which Python's seconds are measured, at most, which one thread works on.
OF_A_THREAD, HANDLED_NBYTES = 8 << 20, 32 << 20

#: What Python sees to, and the passes that count where its seconds are measured, unless it is late,
#: and where checks are, at least.
HANDLED = ("block", "gathered_block", "lying_block", "shard", "tile", "tables")
PASSES, OF_CHECKS = 2, 3

#: Part of what a probe takes below which nothing can be told from chance.
FAINT = 0.01


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Parameters
    ----------
    threads : int
        Threads at work.
    nbytes : int
        Bytes of a probe.
    repeat : int
        Passes that count.
    until : float
        Time by the performance counter from which on a single pass does.
    seen : list of Sample
        Takes whatever was measured.
    """

    threads: int
    nbytes: int = 32 << 20
    repeat: int = 3
    until: float = math.inf
    seen: list["Sample"] = field(default_factory=list, compare=False, repr=False)

    @property
    def passes(self) -> int:
        """Passes that count of what is measured now."""
        return self.repeat if time.perf_counter() < self.until else 1

    @property
    def elements(self) -> int:
        """Complex numbers of a probe, in double precision: a power of two."""
        return 1 << max(10, (self.nbytes // 16).bit_length() - 1)


def measured(probe: Probe, effort: Effort) -> tuple[Plan, Sequence[Stage]]:
    """The plan of a probe, cut so that no thread is idle, and what its stages took."""
    ways = max(probe.ways, min(effort.threads, probe.shape[probe.cut]))
    plan = replace(probe, ways=ways).plan(effort.threads)
    return plan, measured_stages(plan, effort.threads, effort.passes)


@dataclass(frozen=True)
class Sample:
    """An exchange of a probe with its round, and what they took.

    Parameters
    ----------
    exchange : Exchange
        Of the plan.
    round : Round or None
        The round that follows; none after the last exchange.
    flow : Traffic or None
        How the round reads and writes its blocks.
    row : float
        Bytes of the rows that are read.
    stage : Stage
        Seconds.
    """

    exchange: Exchange
    round: Round | None
    flow: Traffic | None
    row: float
    stage: Stage

    @property
    def rate(self) -> float:
        """Flops per second of the round's FFTs."""
        assert self.round is not None
        return flops(self.round) / self.stage.fft


def sampled(probe: Probe, effort: Effort) -> Iterator[Sample]:
    """What the stages of a probe took, and what each of them did."""
    plan, stages = measured(probe, effort)
    model, joints = model_of(plan), joints_in(plan)
    elsewhere = get_library(probe.kernel).supports_out
    for number, (exchange, stage) in enumerate(zip(plan.exchanges, stages, strict=True)):
        if number == len(plan.rounds):
            row = model.row_nbytes(exchange.shape, exchange.target, None)
            if joints.exchanges[number] is None:  # else nothing was copied
                yield _kept(Sample(exchange, None, None, row, stage), effort)
            continue
        round_, after = plan.rounds[number], (*joints.exchanges, None)[number + 1]
        writes = after if after is not None and after.home == number + 1 else None
        inside = joints.inside[number] is not None
        flow = traffic(
            round_, model.itemsize, elsewhere, joints.exchanges[number], writes, inside,
            exchange.source == round_.source, effort.threads,
        )
        row = flow.row
        if flow.read == "shards":
            row = model.row_nbytes(exchange.shape, exchange.target, round_)
        yield _kept(Sample(exchange, round_, flow, row, stage), effort)


def _kept(sample: Sample, effort: Effort) -> Sample:
    effort.seen.append(sample)
    return sample


Points = dict[str, dict[float, list[float]]]


def curve(points: Mapping[float, Sequence[float]]) -> Curve:
    """A curve through the medians of what was measured at each size."""
    return Curve(tuple((size, statistics.median(points[size])) for size in sorted(points)))


def add(points: Points, name: str, size: float, speed: float) -> None:
    """Enter a speed at a size into the points of a curve."""
    points.setdefault(name, {}).setdefault(size, []).append(speed)


# --- gathers --------------------------------------------------------------------------------


def _plane(long: int, wide: int, ways: int) -> Iterator[Probe]:
    """A plane in rows, cut in so many, each way."""
    columns, rows = ((0, long),), ((1, wide),)
    yield Probe("fftn", (long, wide), "c16", 0, ways, (columns, rows))
    yield Probe("fftn", (long, wide), "c16", 0, ways, (rows, columns))


def _planes(elements: int) -> Iterator[Probe]:
    """Planes in rows, each way: columns are gathered first, or found where they lie."""
    for long in (8192, 2048, 512, 64):
        if long >= 16 and elements // long >= 16:
            yield from _plane(long, elements // long, WAYS)
    if elements >> 21:
        yield from _plane(TALL[0] * (elements >> 21), TALL[1], WAYS)


def _boxes(elements: int) -> Iterator[Probe]:
    """Boxes whose last round leaves nothing to cut into tiles: blocks that are gathered whole."""
    for long, ways in ((64, 8), (64, 32), (128, 16)):
        wide = elements // long**2
        if wide >= ways:
            digits = (((2, wide),), ((0, long), (1, long)))
            yield Probe("fftn", (long, long, wide), "c16", 0, ways, digits, together=False)


def _lines(elements: int) -> Iterator[Probe]:
    """Lines cut into intervals: exchanges of theirs turn rows into columns."""
    for first in (256, 2048, 16384):
        if elements // first >= 16:
            digits = (((0, first),), ((0, elements // first),))
            yield Probe("fftn", (elements,), "c16", 0, WAYS, digits)


def _gathered(sample: Sample, points: Points, threads: int) -> None:
    """Enter what a sample says of copies and twiddles."""
    stage, flow, exchange = sample.stage, sample.flow, sample.exchange
    if stage.gather:
        speed = exchange.nbytes / stage.gather
        if flow is not None and flow.read == "block":
            add(points, "copy", 0.0, speed)
        elif flow is not None and flow.read == "lying":
            add(points, "lying_turned" if flow.turned else "lying", sample.row, speed)
        elif not exchange.local:
            turned = is_turned(exchange.source, exchange.target)
            into = "turned" if turned else "straight"
            round_ = sample.round
            tiled = round_ is not None and tiles_of(round_, 16, threads=threads) is not None
            add(points, into if tiled else f"{into}_whole", sample.row, speed)
    if stage.stored and flow is not None and flow.stored:
        add(points, "stored", float(flow.stored), exchange.nbytes / stage.stored)
    if stage.work("twiddle"):
        add(points, "twiddle", 0.0, exchange.nbytes / stage.work("twiddle"))


def compile_copies(effort: Effort) -> None:
    """Try all kinds of copies, so that they are compiled when they are measured."""
    kinds = (_planes(effort.elements), _lines(effort.elements))
    probes = (probe for kind in kinds for probe in itertools.islice(kind, 1))
    for probe, dtype in itertools.product(probes, ("c16", "c8")):
        measured(replace(probe, dtype=dtype, together=False), effort)


def gather_speeds(effort: Effort) -> dict[str, Any]:
    """Return what a `Profile` says of copies, twiddles and Python, by the names of its fields.

    Parameters
    ----------
    effort : Effort
        How much is measured.
    """
    points: Points = {}
    sizes = 2 * effort.elements  # more than the caches that all cores share
    apart = (replace(probe, together=False) for probe in _lines(sizes))
    for probe in (*_planes(sizes), *_boxes(sizes), *_lines(sizes), *apart):
        for sample in sampled(probe, effort):
            _gathered(sample, points, effort.threads)
    found: dict[str, Any] = {"alone": _alone(effort), **_handling(effort)}
    found |= _narrow(points, 2 * sizes, effort)
    for name, speeds in points.items():
        flat = name in ("copy", "twiddle")
        found[name] = statistics.median(speeds[0.0]) if flat else curve(speeds)
    return found


def _narrow(points: Points, elements: int, effort: Effort) -> dict[str, float]:
    """How many times as long bytes take in elements of half the size, in and out of turn."""
    narrow: Points = {}
    for probe in (*_planes(elements), *_lines(elements)):
        if min(probe.shape) >= 2048 or len(probe.shape) == 1:
            for sample in sampled(replace(probe, dtype="c8"), effort):
                _gathered(sample, narrow, effort.threads)
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for name in ("straight", "turned", "lying", "lying_turned", "stored"):
        for size, speeds in narrow.get(name, {}).items():
            known = curve(points[name]).at(size) if name in points else speeds[0]
            ratios["turned" in name].append(known / statistics.median(speeds))
    return {
        name: statistics.median(ratios[turned] or [1.0])
        for name, turned in (("narrow", False), ("narrow_turned", True))
    }


def _handling(effort: Effort) -> dict[str, float]:
    """Seconds of Python for a block, by how it is read, a shard of a gather, and a tile.

    By one thread: several would wait for each other, which the model reckons with. Blocks are
    as large as those that matter, which drive out of the caches what Python needs. Weighted so
    that each stage counts as much as it takes.
    """
    nbytes = min(effort.nbytes, HANDLED_NBYTES)
    alone = Effort(1, nbytes, PASSES, effort.until)
    rows: list[list[float]] = []
    for probe in _handled(alone.elements):
        rows += [handled(sample) for sample in sampled(probe, alone)]
    seconds = np.maximum([sample_seconds for *_, sample_seconds in rows], 1e-9)
    counts = np.array([row[:-1] for row in rows]) / seconds[:, None]
    found, _ = nnls(counts, np.ones(len(rows)))
    return dict(zip(HANDLED, map(float, found), strict=True))


def handled(sample: Sample) -> list[float]:
    """How many blocks, shards and tiles Python saw to in a sample, as `HANDLED`; seconds."""
    blocks, flow, exchange = sample.exchange.target.blocks, sample.flow, sample.exchange
    kind = "gathered_block"
    if flow is not None and flow.read != "shards":
        kind = "lying_block" if flow.lies else "block"
    of_kind = [blocks * (name == kind) for name in HANDLED[:3]]
    shards = exchange.shape.shards if kind == "gathered_block" and not exchange.local else 0
    tiles = 0 if flow is None else blocks * flow.tiles
    return [*of_kind, shards, tiles, kind == "gathered_block", sample.stage.rest]


def _handled(elements: int) -> Iterator[Probe]:
    """Planes with few and many blocks, shards and tiles, each way."""
    for long, ways in ((512, 4), (512, 32), (512, 64), (64, 16)):
        wide = elements // long
        if long >= ways and wide >= ways:
            yield from _plane(long, wide, ways)
    deep = elements // (64 * 64)
    if deep >= 16:
        box = (deep, 64, 64)
        yield Probe("rfftn", box, "c16", 0, 8, (((1, 64), (2, 64)), ((0, deep),)))


def _alone(effort: Effort) -> float:
    """How many times as fast one thread copies as each of all threads."""
    if effort.threads == 1:
        return 1.0
    (probe, *_) = _planes(effort.elements)
    plan = probe.plan(effort.threads)
    together, alone = (
        measured_stages(plan, threads, effort.passes)[0].gather for threads in (effort.threads, 1)
    )
    return max(1.0, together / max(alone, 1e-9))


def checking_speeds(effort: Effort) -> dict[str, float]:
    """Return what a `Profile` says of checks, by the names of its fields.

    The least of some passes counts, as the first one compiles them.

    Parameters
    ----------
    effort : Effort
        How much is measured.
    """
    (probe, *_) = _planes(effort.elements)
    modes, once = ("none", "energy", "checksum"), replace(effort, repeat=1)
    taken = dict.fromkeys(modes, math.inf)
    for _ in range(max(OF_CHECKS, effort.repeat)):
        for mode in modes:  # in turn, since what is looked for is small beside what all of them do
            _, stages = measured(replace(probe, verify=mode), once)
            taken[mode] = min(taken[mode], sum(stage.whole for stage in stages))
    plain, nbytes = taken["none"], 2 * len(probe.rounds) * 16 * effort.elements
    return {mode: nbytes / max(taken[mode] - plain, FAINT * plain) for mode in modes[1:]}
