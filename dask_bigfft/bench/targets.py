"""What is wanted of each problem, and whether a run reached it.

Also the arithmetic behind the report: ratios within a round, their interval, the roofline.
Imports NumPy only.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "Ratio",
    "Target",
    "best_kernel",
    "median",
    "ratio",
    "roofline_seconds",
    "targets",
    "usable",
]

#: Bootstrap samples of the median.
_SAMPLES = 2000

#: Wanted ratios, seconds of the peer over ours, by family: peer, of which kernel, at least.
_LONG = (
    ("fftw-estimate", "", 1.5), ("fftw-estimate", "scipy", 1.2), ("scipy", "", 2.5),
    ("da.fft", "", 4.0),
)
_MANY_AXES = (("ducc0", "", 0.9), ("da.fft", "", 3.0))
_WANTED: dict[str, tuple[tuple[str, str, float], ...]] = {
    "2D": _MANY_AXES, "3D": _MANY_AXES, "tall": _MANY_AXES, "3D real": _MANY_AXES,
}
_LONG_NAMES = ("1d-2p26-c128", "1d-2p27-c128")


@dataclass(frozen=True)
class Ratio:
    """A median of ratios and its 95% interval by bootstrap, with the extremes."""

    median: float
    low: float
    high: float
    least: float
    most: float


@dataclass(frozen=True)
class Target:
    """Something wanted: the figure found, its bound, and whether that is a least or a most."""

    what: str
    found: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.found >= self.bound if self.at_least else self.found <= self.bound


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the median of the ratios of what ran in the same round.

    >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]).median
    2.0
    """
    found = np.array([a / b for a, b in zip(above, below, strict=False)])
    drawn = np.random.default_rng(0).choice(found, (_SAMPLES, len(found)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    ends = float(found.min()), float(found.max())
    return Ratio(float(np.median(found)), float(low), float(high), *ends)


def usable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The contenders that gave right answers and were timed, by name."""
    found = entry.get("warm", {}).get("contenders", {})
    return {name: c for name, c in found.items() if c["ok"] and c["seconds"]}


def median(entry: Mapping[str, Any], name: str) -> float | None:
    """Return the median of the seconds of a contender, None where it was not timed."""
    found = usable(entry).get(name)
    return None if found is None else statistics.median(found["seconds"])


def best_kernel(entry: Mapping[str, Any]) -> str | None:
    """Return the kernel with the least median of ``persist()``."""
    ours = [name for name, c in usable(entry).items() if c["ours"] and name.endswith("/persist")]
    by_time = sorted(ours, key=lambda name: statistics.median(usable(entry)[name]["seconds"]))
    return by_time[0].partition("/")[0] if by_time else None


def roofline_seconds(entry: Mapping[str, Any], kernel: str) -> float:
    """Return memory passes at copy speed plus flops at the in-cache rate of a kernel.

    The best speeds that were seen while the problem was measured: it is to be a bound.
    """
    warm = entry["warm"]
    copying = min(warm["copy"]["seconds"]) / warm["copy"]["bytes"]
    rate = max(warm["fft_flops_per_second"][kernel])
    return float(sum(warm["plan"]["pass_bytes"]) * copying + entry["problem"]["flops"] / rate)


def targets(entry: Mapping[str, Any]) -> list[Target]:
    """Return what is wanted of a problem, as far as it was measured."""
    best = best_kernel(entry)
    if best is None:
        return []
    found = list(_against_peers(entry, best))
    name, timed = entry["problem"]["name"], usable(entry)
    if f"{best}/compute" in timed:
        copying = statistics.median(entry["warm"]["copy"]["seconds"])
        most = statistics.median(timed[f"{best}/persist"]["seconds"]) + 1.5 * copying
        seconds = statistics.median(timed[f"{best}/compute"]["seconds"])
        found.append(Target(f"{name}: compute(), s", seconds, most, False))
    return found + _cold_targets(entry)


def _against_peers(entry: Mapping[str, Any], best: str) -> list[Target]:
    problem, timed = entry["problem"], usable(entry)
    wanted = _WANTED.get(problem["family"], ())
    wanted = _LONG if problem["name"].startswith(_LONG_NAMES) else wanted
    found = []
    for peer, kernel, least in wanted:
        ours = f"{kernel or best}/persist"
        if peer in timed and ours in timed:
            value = ratio(timed[peer]["seconds"], timed[ours]["seconds"]).median
            found.append(Target(f"{problem['name']}: {peer} over {ours}", value, least, True))
    return found


def _cold_targets(entry: Mapping[str, Any]) -> list[Target]:
    """Peak, fresh bytes and time of the cold runs that were right; medians."""
    found, name = [], entry["problem"]["name"]
    for mode in ("persist", "compute"):
        runs = [c for c in entry.get("cold", []) if c.get("ok") and c["mode"] == mode]
        if not runs:
            continue
        peak = statistics.median(c["peak_bytes"] / c["array_bytes"] for c in runs)
        fresh = statistics.median(c["fresh_bytes"] / c["array_bytes"] for c in runs)
        if mode == "persist":
            found.append(Target(f"{name}: peak, arrays", peak, 2.2, False))
        found.append(Target(f"{name}: fresh pages ({mode}), arrays", fresh, 2.0, False))
        before = median(entry, f"{runs[0]['kernel']}/{mode}")
        if before is not None:
            allowed = [
                1.2 * (before + c["fresh_bytes"] / c["touch_bytes_per_second"]) for c in runs
            ]
            seconds = statistics.median(c["seconds"] for c in runs)
            most = statistics.median(allowed)
            found.append(Target(f"{name}: cold {mode}(), s", seconds, most, False))
    return found
