"""Which FFT libraries a graph may use where it will run now, and which of them `"auto"` is.

Without a cluster those that work in this process. With one SciPy, and those that work here and on
every worker in the same version: others may differ in the last bit. Each worker is asked once, if
the client may wait for an answer. Which library is the fastest is known from the profile that plans
are made with, where that has speeds of all of them (a cluster's has those of its slowest worker),
else it is measured here: their order is mostly the same on another processor.

Imports `kernels`, `planner` and `surroundings`; asks a running client's workers.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.kernels.wisdom import best_of, fastest_library
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planning.surroundings import profile_of, running_client

__all__ = ["fastest_everywhere", "usable_libraries"]

#: Seconds for which workers' answers are waited for: they may have to import the package first.
PATIENCE = 10.0

#: Seconds for which nobody is asked again after somebody has not answered.
PAUSE = 60.0

#: What every worker has.
DEFAULT = "scipy"

#: What the scheduler says of workers, by address; libraries of a worker, each with its version.
_Workers = Mapping[str, Mapping[str, Any]]
_Versions = frozenset[tuple[str, str]]

log = logging.getLogger(__name__)

#: By client: what its workers have told, by address and folder, another one after a restart.
_told: WeakKeyDictionary[Any, Mapping[tuple[str, str], _Versions]] = WeakKeyDictionary()

#: By client: until when its workers are not asked again.
_paused: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def fastest_everywhere(dtype: np.dtype[Any]) -> str:
    """Return the name of the fastest FFT library that can be used wherever tasks would run now.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex.
    """
    client = running_client()
    if client is None:
        return fastest_library(dtype)
    workers = _workers(client)
    names = _common(client, workers, dtype)
    if len(names) == 1:
        return names[0]
    rates = _known_rates(profile_of(workers.values()), names, dtype)
    return best_of(rates) if rates else fastest_library(dtype, names)


def usable_libraries(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Return the names of the FFT libraries that can be used wherever tasks would run now.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex; libraries that do not work in it are left out.
    """
    client = running_client()
    return tuple(_here(dtype)) if client is None else _common(client, _workers(client), dtype)


def _workers(client: Any) -> _Workers:
    found: _Workers = client.scheduler_info(n_workers=-1)["workers"]
    return found


def _here(dtype: np.dtype[Any]) -> dict[str, str]:
    """Libraries that work in this process, with their versions."""
    return {name: version for name, version in usable().items()
            if dtype in get_library(name).dtypes}


def _common(client: Any, workers: _Workers, dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Libraries that this process and all workers have, the default in whatever versions."""
    here = _here(dtype)
    there = _told_by_all(client, workers) if len(here) > 1 else frozenset()
    return tuple(name for name, version in here.items()
                 if name == DEFAULT or (name, version) in there)


def _told_by_all(client: Any, workers: _Workers) -> _Versions:
    """What all workers have; nothing where one has not told, or there is none."""
    keys = {address: (address, str(worker.get("local_directory")))
            for address, worker in workers.items()}
    known = _told.get(client, {})
    found = {key: known[key] for key in keys.values() if key in known}
    unknown = [address for address, key in keys.items() if key not in found]
    if unknown and not client.asynchronous and time.monotonic() >= _paused.get(client, 0.0):
        found |= {keys[address]: told for address, told in _asked(client, unknown).items()}
    _told[client] = found
    if not found or len(found) < len(keys):
        return frozenset()
    return frozenset.intersection(*found.values())


def _asked(client: Any, addresses: Sequence[str]) -> dict[str, _Versions]:
    """What workers have, by address; without those that do not answer, or cannot."""
    try:
        answers = client.sync(client.run, usable, workers=list(addresses), on_error="return",
                              callback_timeout=PATIENCE)
    except OSError:  # also TimeoutError: one that does not answer keeps all others
        answers = {}
    told = {address: frozenset(answer.items()) for address, answer in answers.items()
            if isinstance(answer, dict)}
    missing = [address for address in addresses if address not in told]
    if missing:
        _paused[client] = time.monotonic() + PAUSE
        log.warning("kernel='auto' is %s for now: %d of %d workers have not told which FFT "
                    "libraries they have (%s)", DEFAULT, len(missing), len(addresses),
                    ", ".join(missing[:3]))
    return told


def _known_rates(
    profile: Profile, names: Sequence[str], dtype: np.dtype[Any]
) -> dict[str, float]:
    """Rates of libraries by a profile; none where it lacks those of one."""
    speeds = {one.name: one for one in profile.libraries if one.dtype == dtype.name}
    if not all(name in speeds for name in names):
        return {}
    return {name: speeds[name].flops for name in names}
