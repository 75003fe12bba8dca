"""Where a plan will run: its machine, its profile, and the FFT libraries that it may use there.

Workers of a cluster are asked once each. Without a cluster those libraries may be used that work in
this process. With one SciPy, and those that work here and on every worker in the same version:
others may differ in the last bit. The fastest library is known from the profile that plans are made
with, where that has speeds of all of them (a cluster's has those of its slowest worker), else it is
measured here: their order is mostly the same on another processor.

Imports `gpu`, `graph`, `kernels`, `planner`, `profiles`, `config`, `errors`, `memory_settings` and
`threads`.
"""

import asyncio
import collections
import contextlib
import hashlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import dask.config
import numpy as np

from dask_bigfft import config, files
from dask_bigfft.errors import FallbackWarning, PlanError, refuse
from dask_bigfft.events import task_threads
from dask_bigfft.gpu.dispatch import METRIC, software
from dask_bigfft.graph.paused import watch_worker
from dask_bigfft.kernels.libraries import best_of, fastest_library, get_library, usable
from dask_bigfft.memory_settings import (
    WorkerMemory,
    assumed_memory,
    machine_nbytes,
    measured_memory,
    shuffle_nbytes,
)
from dask_bigfft.planner.plan_data import Machine
from dask_bigfft.planner.profile import DEFAULT, SCHEMA, Profile

log = logging.getLogger(__name__)


def cluster_place(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return a short name of a cluster: of its hosts and their threads, not of its ports.

    >>> cluster_place([{"host": "a", "nthreads": 2}, {"host": "b", "nthreads": 2}])
    '2f4e00787d'
    """
    hosts = sorted((str(worker.get("host")), int(worker.get("nthreads", 1))) for worker in workers)
    return hashlib.sha256(json.dumps(hosts).encode()).hexdigest()[:10]


def profile_path(place: str = "") -> Path:
    """Return where the profile of this machine lies, or that of a cluster."""
    folder = Path(config.get("bigfft.wisdom.directory"))
    return folder / (f"profile-{place}.json" if place else "profile.json")


def save_profile(profile: Profile, path: Path) -> bool:
    """Write a profile with the name of this machine; return whether that could be done."""
    content = json.loads(profile.to_json())
    return files.write(path, {**content, "machine": files.machine()})


@lru_cache(maxsize=32)
def _profile(path: Path, written: int, anywhere: bool) -> Profile | None:
    """Return the profile in a file of some age; one that cannot be used is reported once."""

    def checked(found: Any) -> Profile | None:
        if not anywhere and found["machine"] != files.machine():
            log.warning("%s is of another machine and ignored: %s", path, found["machine"])
            return None
        return Profile.from_json(json.dumps(found))

    profile = files.read(path, SCHEMA, checked)
    if anywhere and profile is None:  # somebody wants it, and may not know its version
        log.warning(
            "the profile %s cannot be used, `dask-bigfft calibrate --output FILE` writes one of "
            "version %d: plans are made for a common machine",
            path,
            SCHEMA,
        )
    return profile


def known_profile(*places: str) -> Profile:
    """Return the first profile that there is: that of the settings, those of places, the default.

    Parameters
    ----------
    *places : str
        As `cluster_place` names them; an empty one is this machine.
    """
    named = config.get("bigfft.planner.profile")
    for path in map(profile_path, places) if named is None else [Path(named)]:
        try:
            found = _profile(path, path.stat().st_mtime_ns, named is not None)
        except OSError:
            if named is not None:
                log.warning("the profile %s does not exist: plans are made for a common one", path)
            continue
        if found is not None:
            return found
    return DEFAULT


#: Seconds that workers have to answer, and those that have not when they are asked again: they may
#: have to import the package first, on a machine that is busy.
PATIENCE = (10.0, 30.0)

#: Seconds for which no worker of a cluster is asked after one of them has not answered.
PAUSE = 60.0

#: Question, address and folder of a worker; the folder is another one after a restart.
_Key = tuple[Callable[..., Any], str, str]

#: By client: the answers of its workers.
_known: WeakKeyDictionary[Any, dict[_Key, Any]] = WeakKeyDictionary()

#: By client: until when its workers are not asked again.
_paused: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def workers_of(client: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the scheduler's information on each worker, by address."""
    found: Mapping[str, Mapping[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def workers_answers(client: Any, ask: Callable[..., Any]) -> dict[str, Any]:
    """Return the answer of each worker by address; None for those that have not answered.

    A worker that is slow is asked a second time, with more patience. One that has gone meanwhile is
    left out, and one that has come is asked.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    ask : callable
        Of a module, so that workers find it. It takes no arguments but `dask_worker`, does not
        return None, and is called in the worker's event loop.
    """
    known = _known.setdefault(client, {})

    def keys() -> dict[str, _Key]:
        workers = workers_of(client).items()
        return {address: (ask, address, str(w.get("local_directory"))) for address, w in workers}

    asks = not client.asynchronous and time.monotonic() >= _paused.get(client, 0.0)
    there = keys()
    for seconds in PATIENCE if asks else ():
        late = {address: key for address, key in there.items() if key not in known}
        if late:
            found = client.sync(_answers, client, ask, late, seconds)
            known |= {late[address]: answer for address, answer in found.items()}
            there = keys()
    if asks and not set(there.values()) <= known.keys():
        _paused[client] = time.monotonic() + PAUSE
    return {address: known.get(key) for address, key in there.items()}


async def _answers(
    client: Any, ask: Callable[..., Any], addresses: Iterable[str], seconds: float
) -> dict[str, Any]:
    """Answers of workers by address, without those that are late, lost or fail."""
    found = {}

    async def one(address: str) -> None:
        with contextlib.suppress(OSError):  # also TimeoutError
            call = client.run(ask, workers=[address], on_error="return")
            answer = (await asyncio.wait_for(call, seconds)).get(address)
            if answer is not None and not isinstance(answer, BaseException):
                found[address] = answer

    await asyncio.gather(*map(one, addresses))
    return found


def current_machine(memory_limit: int | None) -> Machine:
    """Return what is known of where the graph will run.

    Raises
    ------
    PlanError
        If a worker has no memory for any plan.
    """
    client = running_client()
    workers = () if client is None else workers_of(client).values()
    if not workers:
        limit = memory_limit or machine_nbytes()
        return Machine(limit, task_threads(), 1, profile=known_profile(""), shared=_shared())
    least = None if memory_limit else smallest_worker()
    if least is not None and least.budget <= 0:
        raise PlanError(f"no plan fits: {least}; give workers more memory")
    return Machine(
        memory_limit if least is None else least.budget,
        max(worker["nthreads"] for worker in workers),
        len(workers),
        shuffle_nbytes(),
        profile_of(workers),
        by_cards=workers_devices(workers),
    )


def smallest_worker() -> WorkerMemory | None:
    """Return the memory of the worker that has least for a plan; None without a limit.

    Workers that do not answer are assumed to be like this process.
    """
    client = running_client()
    workers = {} if client is None else workers_of(client)
    limits = {address: worker.get("memory_limit") for address, worker in workers.items()}
    answers = workers_answers(client, _tell_memory) if any(limits.values()) else {}
    found = [answers.get(one) or assumed_memory(int(n)) for one, n in limits.items() if n]
    return min(found, key=lambda memory: memory.budget, default=None)


async def _tell_memory(dask_worker: Any) -> WorkerMemory | tuple[()]:
    """Memory of a worker, which from now on does not stay paused for ever."""
    watch_worker(dask_worker)
    return measured_memory(dask_worker)


def workers_devices(workers: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Return how many workers have how many devices, fewest first; nothing where that is not known.

    It is known of workers that were registered, once they have told; else of those that declare a
    resource ``GPU``, or whose driver dask has found: then the others have none.

    Parameters
    ----------
    workers : iterable of dict
        What the scheduler says of each.

    Examples
    --------
    >>> workers_devices([{"resources": {"GPU": 2}}, {"resources": {}}, {}])
    ((0, 2), (2, 1))
    >>> workers_devices([{}, {}])
    ()
    """
    told = [worker.get("metrics", {}).get(METRIC) for worker in workers]
    if None not in told:
        known = [len(found["devices"]) for found in told]
    elif not any(known := [_declared(worker) for worker in workers]):
        return ()
    return tuple(sorted(collections.Counter(known).items()))


def _declared(worker: Mapping[str, Any]) -> int:
    """Devices of a worker by what it was started with."""
    amounts = {name.upper(): amount for name, amount in worker.get("resources", {}).items()}
    return int(amounts.get("GPU", "gpu" in worker))


def workers_place() -> str:
    """Return the short name of the cluster that a graph would run on now; empty without one."""
    client = running_client()
    return "" if client is None else cluster_place(workers_of(client).values())


def profile_of(workers: Collection[Mapping[str, Any]]) -> Profile:
    """Return the speeds that plans for a cluster of some workers are made with.

    Parameters
    ----------
    workers : collection of dict
        What the scheduler says of each.
    """
    here = all(str(w.get("host", "")).startswith(("127.", "localhost", "::1")) for w in workers)
    return known_profile(cluster_place(workers), *([""] if here else []))


def _shared() -> bool:
    """Return whether blocks lie together in the one process that works on them."""
    scheduler = dask.config.get("scheduler", None)
    if scheduler in ("processes", "multiprocessing") or not config.get("bigfft.exchange.in-place"):
        return False
    return config.get("bigfft.exchange.carrier") in ("auto", "shared")


def running_client() -> Any:
    """Return the client that `compute` would use, if there is one."""
    distributed = sys.modules.get("distributed")
    scheduler = dask.config.get("scheduler", None)
    if distributed is None or (isinstance(scheduler, str) and "distributed" not in scheduler):
        return None  # a client that is the default writes "dask.distributed" there
    try:
        return distributed.default_client()
    except ValueError:
        return None


def refuse_asynchronous(client: Any) -> None:
    """Refuse a client whose answers have to be awaited, which nothing here can do.

    Transforms themselves can be computed by it.
    """
    if client is not None and client.asynchronous:
        allowed = (
            "a client made without asynchronous=True, in a thread other than that of an event "
        )
        refuse("client", client, f"{allowed}loop: another one for the same scheduler will do")


def device_software() -> dict[str, str]:
    """Return what decides about the last bit of what devices compute where a graph would run now.

    By name, such as ``"cupy"``. Nothing where there is no device.
    """
    return told_everywhere(software)


def told_everywhere(ask: Callable[..., dict[str, str]], *arguments: Any) -> dict[str, str]:
    """Return what a function tells by name where a graph would run now.

    Of workers that differ that is all that they have; without a cluster it is this process'.

    Parameters
    ----------
    ask : callable
        Of a module, so that workers find it.
    *arguments
        What it is called with.
    """
    client = running_client()
    answers = [] if client is None else list(client.run(ask, *arguments).values())
    found: dict[str, set[str]] = {}
    for answer in answers or [ask(*arguments)]:
        for name, value in answer.items():
            found.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}


def possible_carrier() -> str:
    """Return where a plan may keep blocks between rounds.

    Scratch files are taken unasked only where one machine runs everything: elsewhere nobody knows
    whether all processes see the same files.
    """
    asked = config.get("bigfft.exchange.carrier")
    if asked == "disk":
        return "disk"
    client = running_client()
    hosts = set() if client is None else {one.get("host") for one in workers_of(client).values()}
    return "auto" if asked == "auto" and len(hosts) <= 1 else "memory"


#: What every worker has.
EVERYWHERE = "scipy"


def fastest_everywhere(dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the fastest FFT library that can be used wherever tasks would run now, and a reason.

    The reason is empty, unless another library may be faster and workers could not be asked for it.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex.

    Warns
    -----
    FallbackWarning
        If workers have not answered.
    """
    client = running_client()
    if client is None:
        return fastest_library(dtype), ""
    names, fallback = _common(client, dtype)
    if len(names) == 1:
        return names[0], fallback
    speeds = profile_of(workers_of(client).values()).libraries
    known = {one.name: one.flops for one in speeds if one.dtype == dtype.name}
    rates = {name: known[name] for name in names if name in known}
    return best_of(rates) if len(rates) == len(names) else fastest_library(dtype, names), fallback


def usable_libraries(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Return the names of the FFT libraries that can be used wherever tasks would run now.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex; libraries that do not work in it are left out.
    """
    return _common(running_client(), dtype)[0]


def _here(dtype: np.dtype[Any]) -> dict[str, str]:
    """Libraries that work in this process, with their versions."""
    return {
        name: version for name, version in usable().items() if dtype in get_library(name).dtypes
    }


def _common(client: Any, dtype: np.dtype[Any]) -> tuple[tuple[str, ...], str]:
    """Libraries of this process and all workers, and why they are fewer than they might be.

    The default is taken in whatever versions.
    """
    here = _here(dtype)
    if client is None or len(here) == 1:
        return tuple(here), ""
    answers, fallback = workers_answers(client, usable), ""
    missing = [address for address, answer in answers.items() if answer is None]
    if client.asynchronous:
        fallback = f"{EVERYWHERE} instead of 'auto': an asynchronous client cannot ask its workers"
    elif missing:
        fallback = (
            f"{EVERYWHERE} instead of 'auto': {len(missing)} of {len(answers)} workers have "
            f"not told which FFT libraries they have ({', '.join(missing[:3])})"
        )
        text = f"kernel {fallback}; results of other plans may differ in the last bits"
        warnings.warn(text, FallbackWarning, stacklevel=2)
    told = [answer.items() for answer in answers.values() if answer is not None]
    there = frozenset.intersection(*map(frozenset, told)) if told and not missing else frozenset()
    shared = (n for n, version in here.items() if n == EVERYWHERE or (n, version) in there)
    return tuple(shared), fallback
