"""Speeds of a CPU, measured by probes: gathers by row width, FFT libraries by length.

Imports `planner`, `kernels` and this room.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.calibration.probes import Probe, Stage, measured_stages
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.cost import model_of
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import Curve, LibrarySpeeds
from dask_bigfft.planner.seconds import flops, is_turned

__all__ = ["Effort", "gather_speeds", "library_speeds"]

#: Lengths at which libraries are measured.
LENGTHS = (16, 128, 1024, 8192, 65536)

#: Blocks that a probe is cut into.
WAYS = 8


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
    """The plan of a probe, and what its stages took."""
    plan = probe.plan(effort.threads)
    return plan, measured_stages(plan, effort.threads, effort.repeat)


# --- gathers --------------------------------------------------------------------------------


def _planes(elements: int) -> Iterator[Probe]:
    """Planes in rows that become planes in columns: rows of a gather from 128 bytes on."""
    for long in (8192, 2048, 512, 64):
        if long >= 16 and elements // long >= 16:
            wide = elements // long
            yield Probe("fftn", (long, wide), "c16", 0, WAYS, (((1, wide),), ((0, long),)))


def _boxes(elements: int) -> Iterator[Probe]:
    """Boxes whose last round leaves nothing to cut into tiles: blocks that are gathered whole."""
    for long, ways in ((64, 8), (64, 32), (128, 16)):
        wide = elements // long**2
        if wide >= ways:
            digits = (((2, wide),), ((0, long), (1, long)))
            yield Probe("fftn", (long, long, wide), "c16", 0, ways, digits)


def _lines(elements: int) -> Iterator[Probe]:
    """Lines cut into intervals: every exchange of theirs turns rows into columns."""
    for first in (256, 2048, 16384):
        if elements // first >= 16:
            digits = (((0, first),), ((0, elements // first),))
            yield Probe("fftn", (elements,), "c16", 0, WAYS, digits)


def _curve(points: Mapping[float, Sequence[float]]) -> Curve:
    """A curve through the medians of what was measured at each size."""
    return Curve(tuple((size, statistics.median(points[size])) for size in sorted(points)))


def gather_speeds(effort: Effort) -> dict[str, Any]:
    """Return what a `Profile` says of copies and twiddles, by the names of its fields.

    Parameters
    ----------
    effort : Effort
        How much is measured.
    """
    points: dict[str, dict[float, list[float]]] = {}
    copies, twiddles = [], []
    sizes = 2 * effort.elements  # more than the caches that all cores share
    for probe in (*_planes(sizes), *_boxes(sizes), *_lines(sizes)):
        plan, stages = measured(probe, effort)
        model = model_of(plan)
        for number, (exchange, stage) in enumerate(zip(plan.exchanges, stages, strict=True)):
            round_ = plan.rounds[number] if number < len(plan.rounds) else None
            speed = exchange.nbytes / max(stage.gather, 1e-9)
            if exchange.local:
                copies.append(speed)
            else:
                turned = is_turned(exchange.source, exchange.target)
                into = "turned" if turned else "straight"
                into += "" if model.in_tiles(round_) else "_whole"
                row = model.row_nbytes(exchange.shape, exchange.target, round_)
                points.setdefault(into, {}).setdefault(row, []).append(speed)
            if stage.parts.get("twiddle"):
                twiddles.append(exchange.nbytes / stage.parts["twiddle"])
    found: dict[str, Any] = {"alone": _alone(effort), **_handling(effort.repeat)}
    found |= {name: _curve(speeds) for name, speeds in points.items() if speeds}
    for name, speeds in (("copy", copies), ("twiddle", twiddles)):
        if speeds:
            found[name] = statistics.median(speeds)
    return found


def _handling(repeat: int) -> dict[str, float]:
    """Seconds of Python for a block and for a shard.

    By one thread on small blocks: several would wait for each other, which the model reckons with.
    """
    small = Effort(1, 1 << 20, 1)
    alone, each = [], []
    for ways in (8, 32):
        probe = Probe("fftn", (256, 256), "c16", 0, ways, (((1, 256),), ((0, 256),)))
        passes = [measured(probe, small)[1] for _ in range(3 + repeat)]
        # What else the machine does only makes it longer.
        local, exchange = (min(stages[i].rest for stages in passes) for i in (0, 1))
        alone.append(local / ways)
        each.append((exchange - local) / ways**2)
    return {"block": min(alone), "shard": max(0.0, min(each))}


def _alone(effort: Effort) -> float:
    """How many times as fast one thread copies as each of all threads."""
    if effort.threads == 1:
        return 1.0
    (probe, *_) = _planes(effort.elements)
    plan = probe.plan(effort.threads)
    together, alone = (
        measured_stages(plan, threads, effort.repeat)[1].gather for threads in (effort.threads, 1)
    )
    return max(1.0, together / max(alone, 1e-9))


# --- FFT libraries --------------------------------------------------------------------------


def _speed(probe: Probe, effort: Effort) -> float:
    """Flops per second of a thread in the only round of a probe."""
    plan, (stage, *_) = measured(probe, effort)
    return flops(plan.rounds[0]) / stage.fft


def library_speeds(name: str, dtype: str, effort: Effort) -> LibrarySpeeds:
    """Return how fast a library is in rounds.

    Parameters
    ----------
    name, dtype : str
        Of the library, and of its complex numbers.
    effort : Effort
        How much is measured.
    """
    elements = 16 * effort.elements // np.dtype(dtype).itemsize
    along: dict[float, list[float]] = {}
    across: dict[float, list[float]] = {}
    for n in LENGTHS:
        batch = elements // n
        if batch < 2:
            continue
        ways = min(WAYS, batch)
        rows = Probe("fftn", (batch, n), dtype, 0, ways, (((1, n),),), name)
        along[float(n)] = [_speed(rows, effort)]
        if n <= 8192:
            columns = Probe("fftn", (n, batch), dtype, 1, ways, (((0, n),),), name)
            across[float(n)] = [_speed(columns, effort)]
    found = LibrarySpeeds(
        name, np.dtype(dtype).name, Curve(tuple((n, v[0]) for n, v in along.items())),
        Curve(tuple((n, v[0]) for n, v in across.items())),
        elsewhere=get_library(name).elsewhere,
    )
    return LibrarySpeeds(
        found.name, found.dtype, found.along, found.across, _whole(found, elements, effort),
        _real(found, elements, effort), found.elsewhere,
    )


def _whole(found: LibrarySpeeds, elements: int, effort: Effort) -> Curve:
    """What is left of the speed in tiles where blocks cannot be cut into such."""
    itemsize = np.dtype(found.dtype).itemsize
    points = [(1.0, 1.0)]
    for side in (512, 1024):
        batch = elements // side**2
        if batch < 1:
            break
        digits = (((1, side), (2, side)),)
        probe = Probe("fftn", (batch, side, side), found.dtype, 0, batch, digits, found.name)
        half = 5 * math.log2(side)
        in_tiles = 2 * half / (half / found.along.at(side) + half / found.across.at(side))
        nbytes = float(side**2 * itemsize)
        if len(points) == 1:
            points.append((nbytes / 2, 1.0))
        points.append((nbytes, _speed(probe, effort) / in_tiles))
    return Curve(tuple(points))


def _real(found: LibrarySpeeds, elements: int, effort: Effort) -> float:
    """Time of FFTs of real numbers, in units of those of half as many complex ones."""
    n = 1024 if elements >= 2048 else 16
    batch = 2 * elements // n
    probe = Probe(
        "rfftn", (batch, n), found.dtype, 0, min(WAYS, batch), (((1, n),),), found.name
    )
    return found.along.at(n) / _speed(probe, effort)
