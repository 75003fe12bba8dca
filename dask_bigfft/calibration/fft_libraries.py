"""Speeds of the FFT libraries of a CPU, measured by probes, by length.

Imports `planner`, `kernels`, dask's configuration and this room.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import dask.config
import numpy as np

from dask_bigfft.calibration.cpu import (
    TALL,
    WAYS,
    Effort,
    Points,
    Sample,
    add,
    curve,
    sampled,
)
from dask_bigfft.calibration.probes import Probe, measured_stages
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.profile import Curve, LibrarySpeeds
from dask_bigfft.planner.traffic import fastest_dim, tiles_of
from dask_bigfft.planner.work import step_flops

__all__ = ["library_like", "library_speeds"]

#: Planes of about 2^21 numbers in which libraries are measured: most lengths are products of small
#: primes, each of few factors of 5, which cost more than others. Powers of two are held against
#: them: libraries treat short and long ones in different ways.
SQUARE = (1440, 1440)
PLANES = ((36, 60000), (240, 9000), SQUARE, (15000, 135))
POWERS = ((256, 8192), (2048, 1024), (4096, 512), (32768, 64))

#: Rows of planes that are too narrow for tiles.
NARROW = 128

#: Passes that count, at least, where libraries work in tiles: these are short calls, after each of
#: which a thread needs the interpreter, so that what they take differs by a half.
TILED = 7

#: Lengths of real rows.
REALS = (160, 1024)


def _place(sample: Sample, itemsize: int, threads: int) -> str | None:
    """The curve that a sample with one step belongs to; None where it says nothing of these."""
    round_, flow = sample.round, sample.flow
    if round_ is None or flow is None or len(round_.steps) != 1:
        return None
    (step,) = round_.steps
    last = fastest_dim(round_.source)
    turned = flow.direct and flow.turned
    name = "along" if round_.dim(step) == last and not turned else "across"
    tiled = tiles_of(round_, itemsize, threads=threads) is not None
    if not flow.direct and not tiled:  # what is too long for tiles
        return "direct_across" if name == "across" else None
    if flow.direct:
        return f"away_{name}" if flow.away else f"direct_{name}"
    return name


def _transformed(sample: Sample, points: Points, itemsize: int, threads: int) -> None:
    """Enter what a sample says of FFTs."""
    if (name := _place(sample, itemsize, threads)) is not None:
        assert sample.round is not None
        (step,) = sample.round.steps
        add(points, name, float(step.length), sample.rate)


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
    elsewhere = get_library(name).supports_out
    points: Points = {}
    for probe in _transforms((*PLANES, TALL), elements, dtype, name, elsewhere):
        for sample in sampled(probe, _often(probe, effort)):
            _transformed(sample, points, itemsize, effort.threads)
    curves = {kind: curve(speeds) for kind, speeds in points.items()}
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
        spare=_spare(found, elements, effort), alone=_alone_in(found, elements, effort),
    )


def library_like(known: LibrarySpeeds, dtype: str, effort: Effort) -> LibrarySpeeds:
    """Return how fast a library is in another dtype, as far as a plane or two tell.

    Parameters
    ----------
    known : LibrarySpeeds
        How fast it is in a dtype.
    dtype : str
        The other one.
    effort : Effort
        How much is measured.
    """
    elements = 16 * effort.elements // np.dtype(dtype).itemsize
    found = replace(known, dtype=np.dtype(dtype).name)
    probes = _transforms((SQUARE,), elements, dtype, known.name, known.elsewhere)
    # In both now: what is known of one was measured when the machine may have been busier.
    pairs = [pair for probe in probes for pair in zip(
        sampled(probe, effort), sampled(replace(probe, dtype=known.dtype), effort), strict=True)
        if _place(pair[0], np.dtype(dtype).itemsize, effort.threads) is not None]
    shape = (elements // 16, 16)
    pairs = pairs or [(_one(found, shape, effort), _one(known, shape, effort))]
    times = statistics.median(one.rate / other.rate for one, other in pairs)
    speeds = ("along", "across", "direct_along", "direct_across", "away_along", "away_across")
    curves = {name: getattr(known, name) for name in speeds}
    faster: dict[str, Any] = {
        name: Curve(tuple((size, times * speed) for size, speed in curve.points))
        for name, curve in curves.items() if curve is not None
    }
    return replace(found, **faster)


def _powers(found: LibrarySpeeds, probes: Iterator[Probe], effort: Effort) -> LibrarySpeeds:
    """A library with its speed at powers of two, in units of that at other lengths."""
    points: Points = {}
    itemsize = np.dtype(found.dtype).itemsize
    for probe in probes:
        for sample in sampled(probe, _often(probe, effort)):
            if (name := _place(sample, itemsize, effort.threads)) is not None:
                assert sample.round is not None
                (step,) = sample.round.steps
                ratio = _expected(found, sample) / sample.stage.fft
                along = name.endswith("along")
                add(points, "along" if along else "across", float(step.length), ratio)
    curves = {name: curve(ratios) for name, ratios in points.items()}
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
        if elsewhere and most >= NARROW:  # where something else is done, they work in tiles
            both = ((0, 4), (1, wide // 4))
            yield Probe("fftn", (4 * n, wide // 4), dtype, 0, WAYS, (columns, both), name)
            line = (((0, n),), ((0, wide),))
            yield Probe("fftn", (n * wide,), dtype, 0, WAYS, line, name)


def _often(probe: Probe, effort: Effort) -> Effort:
    """As often as a library has to be tried: more often in tiles than on whole blocks."""
    uncut = all(n == probe.shape[axis] for named in probe.rounds for axis, n in named)
    whole = uncut and get_library(probe.kernel).supports_out
    return effort if whole else replace(effort, repeat=max(TILED, effort.repeat))


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
    last = fastest_dim(round_.source)
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
            taken.append(measured_stages(plan, 1, effort.passes)[0].parts["fft"])  # by all of them
    return min(1.0, max(0.0, taken[0] / taken[1] - 1) / (effort.threads - 1))


def _alone_in(found: LibrarySpeeds, elements: int, effort: Effort) -> float:
    """How many times as fast FFTs are in one thread as in each of all threads."""
    if effort.threads == 1:
        return 1.0
    n = 1000 if elements >= 1000 * effort.threads else 16
    ways = max(WAYS, effort.threads)
    probe = Probe("fftn", (elements // n, n), found.dtype, 0, ways, (((1, n),),), found.name)
    plan = probe.plan(effort.threads)
    together, alone = (
        measured_stages(plan, threads, effort.passes)[0].fft for threads in (effort.threads, 1)
    )
    return max(1.0, together / alone)
