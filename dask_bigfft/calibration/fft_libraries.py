"""Speeds of the FFT libraries of a CPU, measured by probes, by length.

Imports `decomposition`, `planner`, `kernels`, dask's configuration and this room.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import dask.config
import numpy as np

from dask_bigfft.calibration.cpu import (
    CALLS,
    TALL,
    WAYS,
    Effort,
    Points,
    Sample,
    add,
    curve,
    fewer,
    sampled,
)
from dask_bigfft.calibration.pace import Pace, shared_out
from dask_bigfft.calibration.probes import Probe, measured_stages
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.profile import Curve, LibrarySpeeds
from dask_bigfft.planner.traffic import block_of, tiles_of
from dask_bigfft.planner.work import step_flops

__all__ = ["library_speeds"]

#: What parts of what is measured of a library take, in units of each other.
SHARES = {"lengths": 5.0, "powers of two": 4.0, "real values": 1.0, "whole blocks": 1.0,
          "spare threads": 1.0, "fewer threads": 1.5}

#: Planes of about 2^21 numbers in which libraries are measured: most lengths are products of small
#: primes, each of few factors of 5, which cost more than others. Powers of two are held against
#: them: libraries treat short and long ones in different ways.
PLANES = ((36, 60000), (240, 9000), (1440, 1440), (15000, 135))
POWERS = ((256, 8192), (2048, 1024), (4096, 512), (32768, 64))

Planes = Sequence[tuple[int, int]]

#: Rows of planes that are too narrow for tiles.
NARROW = 128

#: Passes that count, at least, where libraries work in tiles: these are short calls, after each of
#: which a thread needs the interpreter, so that what they take differs by a half.
TILED = 7

#: Lengths of real rows, and sides of squares whose columns do not meet in a cache.
REALS, SIDES = (160, 1024), (500, 1000)


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


def _transformed(sample: Sample, points: Points, itemsize: int, call: float) -> None:
    """Enter what a sample says of FFTs."""
    if (name := _place(sample, itemsize)) is not None:
        assert sample.round is not None
        (step,) = sample.round.steps
        add(points, name, float(step.length), sample.rate(call))


def library_speeds(
    name: str, dtype: str, effort: Effort, known: LibrarySpeeds | None = None
) -> LibrarySpeeds:
    """Return how fast a library is in rounds.

    Parameters
    ----------
    name, dtype : str
        Of the library, and of its complex numbers.
    effort : Effort
        How much is measured.
    known : LibrarySpeeds, optional
        The same in another dtype: how threads share what there is, and what is left of speeds in
        whole blocks, are taken from there, and fewer lengths are measured.
    """
    elements = 16 * effort.elements // np.dtype(dtype).itemsize
    pace = Pace(effort.until, SHARES)
    with pace.part("lengths") as until:
        planes: Planes = (*PLANES, TALL) if known is None else PLANES
        found = _lengths(name, dtype, planes, elements, replace(effort, until=until))
    with pace.part("powers of two") as until:
        planes = POWERS if known is None else POWERS[::2]
        found = _powers(found, planes, elements, replace(effort, until=until))
    with pace.part("real values") as until:
        found = replace(found, real=_real(found, elements, replace(effort, until=until)))
    if known is not None:
        return replace(found, whole=known.whole, spare=known.spare, fewer=known.fewer)
    with pace.part("whole blocks") as until:
        found = replace(found, whole=_whole(found, elements, replace(effort, until=until)))
    with pace.part("spare threads") as until:
        found = replace(found, spare=_spare(found, elements, replace(effort, until=until)))
    with pace.part("fewer threads") as until:
        return replace(found, fewer=_fewer_in(found, elements, replace(effort, until=until)))


def _samples(probes: Iterable[Probe], effort: Effort) -> Iterator[Sample]:
    """What the stages of some probes took, each as often as a library has to be tried."""
    for probe, until in shared_out(list(probes), effort.until):
        yield from sampled(probe, replace(_often(probe, effort), until=until))


def _lengths(
    name: str, dtype: str, planes: Planes, elements: int, effort: Effort
) -> LibrarySpeeds:
    """A library with its speeds by length."""
    itemsize, points = np.dtype(dtype).itemsize, Points()
    elsewhere, call = get_library(name).elsewhere, _call(name, dtype, effort)
    probes = _transforms(planes, elements, dtype, name, elsewhere)
    for sample in _samples(probes, effort):
        _transformed(sample, points, itemsize, call)
    curves = {kind: curve(speeds) for kind, speeds in points.items()}
    for kind, other in (("along", "direct_along"), ("across", "direct_across")):
        curves.setdefault(kind, curves.get(other) or curves["along"])
    return LibrarySpeeds(
        name, np.dtype(dtype).name, curves["along"], curves["across"], elsewhere=elsewhere,
        direct_along=curves.get("direct_along"), direct_across=curves.get("direct_across"),
        away_along=curves.get("away_along"), away_across=curves.get("away_across"), call=call,
    )


def _call(name: str, dtype: str, effort: Effort) -> float:
    """Seconds of Python in a call of a library: tiny blocks take nothing else."""
    probe = Probe("fftn", (64, 16), dtype, 0, 32, (((1, 16),),), name)
    (sample,) = sampled(probe, Effort(1, effort.nbytes, CALLS))
    return sample.stage.fft / 32


def _powers(
    found: LibrarySpeeds, planes: Planes, elements: int, effort: Effort
) -> LibrarySpeeds:
    """A library with its speed at powers of two, in units of that at other lengths."""
    points: Points = {}
    dtype, itemsize = found.dtype, np.dtype(found.dtype).itemsize
    for sample in _samples(
        _transforms(planes, elements, dtype, found.name, found.elsewhere), effort
    ):
        if (name := _place(sample, itemsize)) is not None:
            assert sample.round is not None
            (step,) = sample.round.steps
            ratio = _expected(found, sample) / sample.ffts(found.call)
            along = name.endswith("along")
            add(points, "along" if along else "across", float(step.length), ratio)
    curves = {name: curve(ratios) for name, ratios in points.items()}
    one = found.powers
    return replace(found, powers=curves.get("along", one), powers_across=curves.get("across", one))


def _transforms(
    planes: Planes, elements: int, dtype: str, name: str, elsewhere: bool
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
    whole = uncut and get_library(probe.kernel).elsewhere
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
    sides = [side for side in SIDES if elements >= side**2]
    for side, until in shared_out(sides, effort.until):
        batch = max(elements // side**2, effort.threads)  # a block for each thread
        sample = _one(found, (batch, side, side), replace(effort, until=until), axes=(1, 2))
        nbytes = float(side**2 * itemsize)
        if len(points) == 1:
            points.append((nbytes / 2, 1.0))
        points.append((nbytes, _expected(found, sample) / sample.ffts(found.call)))
    return Curve(tuple(points))


def _real(found: LibrarySpeeds, elements: int, effort: Effort) -> Curve:
    """Time of FFTs of real numbers, in units of those of half as many complex ones."""
    points = []
    lengths = REALS if elements >= 2 * max(REALS) else (16,)
    for n, until in shared_out(lengths, effort.until):
        sample = _one(found, (2 * elements // n, n), replace(effort, until=until), "rfftn")
        points.append((float(n), sample.ffts(found.call) / _expected(found, sample)))
    return Curve(tuple(points))


def _spare(found: LibrarySpeeds, elements: int, effort: Effort) -> float:
    """What each thread more adds to FFTs of one block, in units of the first."""
    if effort.threads == 1:
        return 0.0
    n = 1000 if elements >= 2000 else 16
    probe = Probe("fftn", (elements // n, n), found.dtype, 0, 1, (((1, n),),), found.name)
    plan, taken = probe.plan(effort.threads), []
    for threads, until in shared_out((1, effort.threads), effort.until):
        with dask.config.set(num_workers=threads):
            taken.append(measured_stages(plan, 1, effort.repeat, until)[0].fft)
    return min(1.0, max(0.0, taken[0] / taken[1] - 1) / (effort.threads - 1))


def _fewer_in(found: LibrarySpeeds, elements: int, effort: Effort) -> Curve:
    """How many times as fast FFTs are while fewer threads work, by how many."""
    n = 1000 if elements >= 1000 * effort.threads else 16
    ways = max(WAYS, effort.threads)
    probe = Probe("fftn", (elements // n, n), found.dtype, 0, ways, (((1, n),),), found.name)
    return fewer(probe.plan(effort.threads), effort, "fft")
