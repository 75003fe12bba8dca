"""Speeds of a CPU, measured by probes: gathers by row width, FFT libraries by length.

Imports `decomposition`, `planner`, `kernels`, dask's configuration, SciPy and this room.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.config
import numpy as np
from scipy.optimize import nnls

from dask_bigfft.calibration.probes import Probe, Stage, measured_stages
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.cost import joints_in, model_of
from dask_bigfft.planner.plan import Exchange, Plan
from dask_bigfft.planner.profile import Curve, LibrarySpeeds
from dask_bigfft.planner.traffic import Traffic, block_of, tiles_of, traffic
from dask_bigfft.planner.work import flops, is_turned, step_flops

__all__ = ["Effort", "gather_speeds", "library_speeds"]

#: Planes of about 2^21 numbers in which libraries are measured: most lengths are products of small
#: primes, each of few factors of 5, which cost more than others. Powers of two are held against
#: them: libraries treat short and long ones in different ways.
PLANES = ((36, 60000), (240, 9000), (1440, 1440), (15000, 135))
POWERS = ((256, 8192), (2048, 1024), (4096, 512))

#: A tall one, whose columns are longer than a tile, in narrow rows, and whose rows are short.
TALL = (43200, 48)

#: Lengths of real rows.
REALS = (160, 1024)

#: Blocks that a probe is cut into.
WAYS = 8

#: What Python sees to, and the passes that count, at least, where its seconds are measured.
HANDLED = ("block", "gathered_block", "lying_block", "shard", "tile", "tables")
PASSES = 3

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
    """

    threads: int
    nbytes: int = 32 << 20
    repeat: int = 3

    @property
    def elements(self) -> int:
        """Complex numbers of a probe, in double precision: a power of two."""
        return 1 << max(10, (self.nbytes // 16).bit_length() - 1)


def measured(probe: Probe, effort: Effort) -> tuple[Plan, Sequence[Stage]]:
    """The plan of a probe, cut so that no thread is idle, and what its stages took."""
    ways = max(probe.ways, min(effort.threads, probe.shape[probe.cut]))
    plan = replace(probe, ways=ways).plan(effort.threads)
    return plan, measured_stages(plan, effort.threads, effort.repeat)


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
    elsewhere = get_library(probe.kernel).elsewhere
    for number, (exchange, stage) in enumerate(zip(plan.exchanges, stages, strict=True)):
        if number == len(plan.rounds):
            row = model.row_nbytes(exchange.shape, exchange.target, None)
            if joints.exchanges[number] is None:  # else nothing was copied
                yield Sample(exchange, None, None, row, stage)
            continue
        round_, after = plan.rounds[number], (*joints.exchanges, None)[number + 1]
        writes = after if after is not None and after.home == number + 1 else None
        inside = joints.inside[number] is not None
        flow = traffic(
            round_, model.itemsize, elsewhere, joints.exchanges[number], writes, inside,
            exchange.source == round_.source,
        )
        row = flow.row
        if flow.read == "shards":
            row = model.row_nbytes(exchange.shape, exchange.target, round_)
        yield Sample(exchange, round_, flow, row, stage)


Points = dict[str, dict[float, list[float]]]


def _curve(points: Mapping[float, Sequence[float]]) -> Curve:
    """A curve through the medians of what was measured at each size."""
    return Curve(tuple((size, statistics.median(points[size])) for size in sorted(points)))


def _add(points: Points, name: str, size: float, speed: float) -> None:
    points.setdefault(name, {}).setdefault(size, []).append(speed)


# --- gathers --------------------------------------------------------------------------------


def _planes(elements: int) -> Iterator[Probe]:
    """Planes in rows, each way: columns are gathered first, or found where they lie."""
    for long in (8192, 2048, 512, 64):
        if long >= 16 and elements // long >= 16:
            wide = elements // long
            columns, rows = ((0, long),), ((1, wide),)
            yield Probe("fftn", (long, wide), "c16", 0, WAYS, (columns, rows))
            yield Probe("fftn", (long, wide), "c16", 0, WAYS, (rows, columns))
    if elements >> 21:
        long, wide = TALL[0] * (elements >> 21), TALL[1]
        columns, rows = ((0, long),), ((1, wide),)
        yield Probe("fftn", (long, wide), "c16", 0, WAYS, (columns, rows))
        yield Probe("fftn", (long, wide), "c16", 0, WAYS, (rows, columns))


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


def _gathered(sample: Sample, points: Points) -> None:
    """Enter what a sample says of copies and twiddles."""
    stage, flow, exchange = sample.stage, sample.flow, sample.exchange
    if stage.gather:
        speed = exchange.nbytes / stage.gather
        if flow is not None and flow.read == "block":
            _add(points, "copy", 0.0, speed)
        elif flow is not None and flow.read == "lying":
            _add(points, "lying_turned" if flow.turned else "lying", sample.row, speed)
        elif not exchange.local:
            turned = is_turned(exchange.source, exchange.target)
            into = "turned" if turned else "straight"
            tiled = sample.round is not None and tiles_of(sample.round, 16) is not None
            _add(points, into if tiled else f"{into}_whole", sample.row, speed)
    if stage.stored and flow is not None and flow.stored:
        _add(points, "stored", float(flow.stored), exchange.nbytes / stage.stored)
    if stage.parts.get("twiddle"):
        _add(points, "twiddle", 0.0, exchange.nbytes / stage.parts["twiddle"])


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
            _gathered(sample, points)
    found: dict[str, Any] = {"alone": _alone(effort), **_handling(effort), **_checking(effort)}
    found |= _narrow(points, 2 * sizes, effort)
    for name, speeds in points.items():
        flat = name in ("copy", "twiddle")
        found[name] = statistics.median(speeds[0.0]) if flat else _curve(speeds)
    return found


def _narrow(points: Points, elements: int, effort: Effort) -> dict[str, float]:
    """How many times as long bytes take in elements of half the size, in and out of turn."""
    narrow: Points = {}
    for probe in (*_planes(elements), *_lines(elements)):
        if min(probe.shape) >= 2048 or len(probe.shape) == 1:
            for sample in sampled(replace(probe, dtype="c8"), effort):
                _gathered(sample, narrow)
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for name in ("straight", "turned", "lying", "lying_turned", "stored"):
        for size, speeds in narrow.get(name, {}).items():
            known = _curve(points[name]).at(size) if name in points else speeds[0]
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
    alone = replace(effort, threads=1, repeat=max(PASSES, effort.repeat))
    rows: list[list[float]] = []
    for probe in _handled(effort.elements):
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
    for long, ways in ((512, 4), (512, 16), (512, 32), (64, 16)):
        wide = elements // long
        if long >= ways and wide >= ways:
            columns, rows = ((0, long),), ((1, wide),)
            yield Probe("fftn", (long, wide), "c16", 0, ways, (columns, rows))
            yield Probe("fftn", (long, wide), "c16", 0, ways, (rows, columns))
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
        measured_stages(plan, threads, effort.repeat)[0].gather for threads in (effort.threads, 1)
    )
    return max(1.0, together / max(alone, 1e-9))


def _checking(effort: Effort) -> dict[str, float]:
    """Bytes per second of blocks that are verified, what comes in and what goes out together."""
    (probe, *_) = _planes(effort.elements)
    modes, once = ("none", "energy", "checksum"), replace(effort, repeat=1)
    taken = dict.fromkeys(modes, math.inf)
    for _ in range(max(PASSES, effort.repeat)):
        for mode in modes:  # in turn, since what is looked for is small beside what all of them do
            _, stages = measured(replace(probe, verify=mode), once)
            taken[mode] = min(taken[mode], sum(stage.seconds for stage in stages))
    plain, nbytes = taken["none"], 2 * len(probe.rounds) * 16 * effort.elements
    return {mode: nbytes / max(taken[mode] - plain, FAINT * plain) for mode in modes[1:]}


# --- FFT libraries --------------------------------------------------------------------------


def _place(sample: Sample, itemsize: int) -> str | None:
    """The curve that a sample with one step belongs to; None where it says nothing of these."""
    round_, flow = sample.round, sample.flow
    if round_ is None or flow is None or len(round_.steps) != 1:
        return None
    (step,) = round_.steps
    block = block_of(round_.source)
    last = max((dim for dim, n in enumerate(block) if n > 1), default=0)
    turned = flow.direct and flow.turned
    name = "along" if round_.dim(step) == last and not turned else "across"
    if not flow.direct and tiles_of(round_, itemsize) is None:  # what is too long for tiles
        return "direct_across" if name == "across" else None
    if flow.direct:
        return f"away_{name}" if flow.away else f"direct_{name}"
    return name


def _transformed(sample: Sample, points: Points, itemsize: int) -> None:
    """Enter what a sample says of FFTs."""
    if (name := _place(sample, itemsize)) is not None:
        assert sample.round is not None
        (step,) = sample.round.steps
        _add(points, name, float(step.length), sample.rate)


def library_speeds(name: str, dtype: str, effort: Effort) -> LibrarySpeeds:
    """Return how fast a library is in rounds.

    Parameters
    ----------
    name, dtype : str
        Of the library, and of its complex numbers.
    effort : Effort
        How much is measured.
    """
    itemsize = np.dtype(dtype).itemsize
    elements = 16 * effort.elements // itemsize
    elsewhere = get_library(name).elsewhere
    points: Points = {}
    for probe in _transforms((*PLANES, TALL), elements, dtype, name, elsewhere):
        for sample in sampled(probe, effort):
            _transformed(sample, points, itemsize)
    curves = {kind: _curve(speeds) for kind, speeds in points.items()}
    for kind, other in (("along", "direct_along"), ("across", "direct_across")):
        curves.setdefault(kind, curves.get(other) or curves["along"])
    found = LibrarySpeeds(
        name, np.dtype(dtype).name, curves["along"], curves["across"], elsewhere=elsewhere,
        direct_along=curves.get("direct_along"), direct_across=curves.get("direct_across"),
        away_along=curves.get("away_along"), away_across=curves.get("away_across"),
    )
    found = _powers(found, _transforms(POWERS, elements, dtype, name, elsewhere), effort)
    return replace(
        found, whole=_whole(found, elements, effort), real=_real(found, elements, effort),
        spare=_spare(found, elements, effort),
    )


def _powers(found: LibrarySpeeds, probes: Iterator[Probe], effort: Effort) -> LibrarySpeeds:
    """A library with its speed at powers of two, in units of that at other lengths."""
    points: Points = {}
    itemsize = np.dtype(found.dtype).itemsize
    for probe in probes:
        for sample in sampled(probe, effort):
            if (name := _place(sample, itemsize)) is not None:
                assert sample.round is not None
                (step,) = sample.round.steps
                ratio = _expected(found, sample) / sample.stage.fft
                along = name.endswith("along")
                _add(points, "along" if along else "across", float(step.length), ratio)
    curves = {name: _curve(ratios) for name, ratios in points.items()}
    one = found.powers
    return replace(found, powers=curves.get("along", one), powers_across=curves.get("across", one))


def _transforms(
    planes: Sequence[tuple[int, int]], elements: int, dtype: str, name: str, elsewhere: bool
) -> Iterator[Probe]:
    """Planes whose columns lie where they were left, and what a library does in tiles."""
    for n, most in planes:
        wide = most * elements >> 21
        if min(n, wide) < 2 * WAYS:
            continue
        rows, columns = ((1, wide),), ((0, n),)
        yield Probe("fftn", (n, wide), dtype, 0, WAYS, (rows, columns), name)
        if elsewhere:  # the other one goes elsewhere, too, and the first one stays in its place
            yield Probe("fftn", (n, wide), dtype, 1, WAYS, (columns, rows), name)
        if elsewhere and (n, most) != TALL:  # where something else is done, they work in tiles
            both = ((0, 4), (1, wide // 4))
            yield Probe("fftn", (4 * n, wide // 4), dtype, 0, WAYS, (columns, both), name)
            line = (((0, n),), ((0, wide),))
            yield Probe("fftn", (n * wide,), dtype, 0, WAYS, line, name)


def _one(found: LibrarySpeeds, shape: tuple[int, ...], effort: Effort, kind: str = "fftn",
         axes: tuple[int, ...] = (1,)) -> Sample:
    """A sample of FFTs of rows that lie whole in every block."""
    digits = (tuple((axis, shape[axis]) for axis in axes),)
    probe = Probe(kind, shape, found.dtype, 0, min(WAYS, shape[0]), digits, found.name)
    return next(sampled(probe, effort))


def _expected(found: LibrarySpeeds, sample: Sample) -> float:
    """Seconds of a sample's FFTs by what is known of a library's speed in tiles."""
    round_, flow = sample.round, sample.flow
    assert round_ is not None
    assert flow is not None
    block = block_of(round_.source)
    last = max((dim for dim, n in enumerate(block) if n > 1), default=0)
    turned, seconds = flow.direct and flow.turned, 0.0
    for step, count in step_flops(round_):
        dim = round_.dim(step)
        inner, apart = dim == last and not turned, flow.steps[dim] if flow.direct else 0
        seconds += count / found.rate(
            step.length, innermost=inner, direct=flow.direct, away=flow.away, step=apart)
    return seconds


def _whole(found: LibrarySpeeds, elements: int, effort: Effort) -> Curve:
    """What is left of the speed in tiles where blocks cannot be cut into such."""
    itemsize = np.dtype(found.dtype).itemsize
    points = [(1.0, 1.0)]
    for side in (500, 1000):  # whose columns do not meet in a cache
        if elements < side**2:
            break
        batch = max(elements // side**2, effort.threads)  # a block for each thread
        sample = _one(found, (batch, side, side), effort, axes=(1, 2))
        nbytes = float(side**2 * itemsize)
        if len(points) == 1:
            points.append((nbytes / 2, 1.0))
        points.append((nbytes, _expected(found, sample) / sample.stage.fft))
    return Curve(tuple(points))


def _real(found: LibrarySpeeds, elements: int, effort: Effort) -> Curve:
    """Time of FFTs of real numbers, in units of those of half as many complex ones."""
    points = []
    for n in REALS if elements >= 2 * max(REALS) else (16,):
        sample = _one(found, (2 * elements // n, n), effort, "rfftn")
        points.append((float(n), sample.stage.fft / _expected(found, sample)))
    return Curve(tuple(points))


def _spare(found: LibrarySpeeds, elements: int, effort: Effort) -> float:
    """What each thread more adds to FFTs of one block, in units of the first."""
    if effort.threads == 1:
        return 0.0
    n = 1000 if elements >= 2000 else 16
    probe = Probe("fftn", (elements // n, n), found.dtype, 0, 1, (((1, n),),), found.name)
    plan, taken = probe.plan(effort.threads), []
    for threads in (1, effort.threads):
        with dask.config.set(num_workers=threads):
            taken.append(measured_stages(plan, 1, effort.repeat)[0].fft)
    return min(1.0, max(0.0, taken[0] / taken[1] - 1) / (effort.threads - 1))
