"""The fastest FFT library of a machine, found by timing tiles and kept in a file."""

import logging
import math
import threading
import time
from collections.abc import Container, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft import config, files
from dask_bigfft.kernels.libraries import (
    FFTLibrary,
    available,
    get_library,
    usable,
    version_of,
)

log = logging.getLogger(__name__)

#: Shapes of tiles and transformed dimensions: lines, columns, planes that fit a cache, one plane
#: that does not, and lines along the outermost dimension.
TILES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((64, 1024), (1,)),
    ((1024, 64), (0,)),
    ((8, 8192), (1,)),
    ((60, 1080), (1,)),
    ((2, 256, 512), (1, 2)),
    ((1, 1024, 1024), (1, 2)),
    ((512, 4, 128), (0,)),
)

#: Minimum speed-up over the libraries before it in the list for a library to be preferred.
BETTER = 1.05

#: Seconds of timing per library and tile.
SECONDS = 0.02

SCHEMA = 2

_lock = threading.Lock()


def fastest_library(dtype: Any, among: Container[str] | None = None) -> str:
    """Return the name of the fastest installed FFT library for a complex dtype.

    The first call on a machine takes a fraction of a second for each library. Later processes load
    and test the fastest one alone.

    Parameters
    ----------
    dtype : dtype
        Complex.
    among : container of str, optional
        Allowed names; by default all usable libraries.

    Examples
    --------
    >>> fastest_library("G") in ("scipy", "ducc0")
    True
    """
    folder = config.get("bigfft.wisdom.directory")
    with _lock:
        rates = _rates(np.dtype(dtype), folder)
    candidates = {name: rate for name, rate in rates.items() if among is None or name in among}
    return best_of(candidates)


def best_of(rates: Mapping[str, float]) -> str:
    """Return the first library that no later one clearly beats, the default if there is none."""
    best = next(iter(rates), "scipy")
    for name, rate in rates.items():
        if rate > BETTER * rates[best]:
            best = name
    return best


@cache
def _rates(dtype: np.dtype[Any], folder: str) -> Mapping[str, float]:
    """Return rates by library from the file, or from a measurement that is then stored there."""
    versions = {name: version_of(name) for name in available()}
    path = Path(folder, "kernels.json")
    context = {"machine": files.machine(), "versions": versions}
    known = files.read_json(path, SCHEMA, _checked) or {}
    entry = known.get(dtype.name)
    if entry is not None and entry["context"] == context:
        stored = {name: float(rate) for name, rate in entry["rates"].items()}
        if best_of(stored) in usable(dtype, [best_of(stored)]):  # the others are not even imported
            return stored
    names = list(usable(dtype))
    if len(names) < 2:
        return dict.fromkeys(names, 0.0)
    rates = measured_rates(names, dtype)
    shown = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in rates.items())
    log.info("GFLOP/s of FFT libraries in %s: %s", dtype, shown)
    entries = {**known, dtype.name: {"context": context, "rates": rates}}
    files.write_json(path, {"schema": SCHEMA, "dtypes": entries})
    return rates


def measured_rates(names: Sequence[str], dtype: Any) -> dict[str, float]:
    """Return floating point operations per second of libraries, the geometric mean over some tiles.

    5 n log2 n operations are counted for n points. The runs of the libraries alternate, and the
    fastest run of each counts, to reduce the effect of other load. Each runs at least once.

    Parameters
    ----------
    names : sequence of str
        Names of libraries.
    dtype : dtype
        Complex.
    """
    libraries = [get_library(name) for name in names]
    logs = dict.fromkeys(names, 0.0)
    for shape, dims in TILES:
        tile = np.empty(shape, dtype)
        work = 5 * tile.size * math.log2(math.prod(shape[dim] for dim in dims))
        best = dict.fromkeys(names, math.inf)
        for library in libraries:
            _seconds(library, tile, dims)  # plans
        end = time.perf_counter() + SECONDS * len(names)
        while math.inf in best.values() or time.perf_counter() < end:
            for library in libraries:
                best[library.name] = min(best[library.name], _seconds(library, tile, dims))
        for name, seconds in best.items():
            logs[name] += math.log(work / seconds) / len(TILES)
    return {name: math.exp(value) for name, value in logs.items()}


def _seconds(library: FFTLibrary, tile: Any, dims: tuple[int, ...]) -> float:
    tile.fill(1)
    started = time.perf_counter()
    library.c2c(tile, dims, -1)
    return max(time.perf_counter() - started, 1e-9)


def _checked(contents: Any) -> dict[str, Any]:
    """Return the entries of the file by dtype; raise an error if they are not valid."""
    dtypes = dict(contents["dtypes"])
    for entry in dtypes.values():
        rates = entry["rates"]
        known = set(rates) <= set(entry["context"]["versions"])
        if not rates or not known or not all(float(rate) > 0 for rate in rates.values()):
            raise ValueError("rates")
    return dtypes
