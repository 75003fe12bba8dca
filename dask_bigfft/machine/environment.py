"""The environment of a plan: its machine, its profile, and the usable FFT libraries.

Each worker of a cluster is queried once. Without a cluster a plan may use every library that works
in this process. On a cluster it may use SciPy, and the libraries that this process and every worker
have in the same version, because other versions may differ in the last bit.

The fastest library follows from the profile if the profile has the speeds of all candidates.
Otherwise the libraries are measured in this process: their order rarely differs between processors.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
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
from dask_bigfft.errors import FallbackWarning, PlanError
from dask_bigfft.events import running_client, task_threads, workers_of
from dask_bigfft.gpu.dispatch import METRIC, software
from dask_bigfft.kernels.fastest import best_of, fastest_library
from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.memory.limits import (
    IMPORTS_NBYTES,
    MEMORY_METRIC,
    WorkerMemory,
    assumed_memory,
    machine_nbytes,
    memory_of_worker,
    shuffle_nbytes,
)
from dask_bigfft.memory.paused import watch_worker
from dask_bigfft.planner.plan_data import Machine
from dask_bigfft.planner.profile import DEFAULT, SCHEMA, Profile

log = logging.getLogger(__name__)


def cluster_place(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return a short name of a cluster, a hash of its hosts and their threads.

    >>> cluster_place([{"host": "a", "nthreads": 2}, {"host": "b", "nthreads": 2}])
    '2f4e00787d'
    """
    hosts = sorted((str(worker.get("host")), int(worker.get("nthreads", 1))) for worker in workers)
    return hashlib.sha256(json.dumps(hosts).encode()).hexdigest()[:10]


def profile_path(place: str = "") -> Path:
    """Return the path of the profile of this machine, or of a cluster."""
    folder = Path(config.get("bigfft.wisdom.directory"))
    return folder / (f"profile-{place}.json" if place else "profile.json")


def save_profile(profile: Profile, path: Path) -> bool:
    """Write a profile with the name of this machine; return False if that failed."""
    content = json.loads(profile.to_json())
    return files.write_json(path, {**content, "machine": files.machine()})


@lru_cache(maxsize=32)
def _profile(path: Path, written: int, anywhere: bool) -> Profile | None:
    """Return the profile in a file, cached by its time of writing; log an unusable one once."""

    def checked(found: Any) -> Profile | None:
        if not anywhere and found["machine"] != files.machine():
            log.warning("%s is of another machine and ignored: %s", path, found["machine"])
            return None
        return Profile.from_json(json.dumps(found))

    profile = files.read_json(path, SCHEMA, checked)
    if anywhere and profile is None:  # the user named the file
        log.warning(
            "the profile %s cannot be used, `dask-bigfft calibrate --output FILE` writes one of "
            "version %d: plans are made for a common machine",
            path,
            SCHEMA,
        )
    return profile


def known_profile(*places: str) -> Profile:
    """Return the first profile found: from the settings, from `places`, or the default.

    Parameters
    ----------
    *places : str
        Names by `cluster_place`; an empty name means this machine.
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


#: Time limits in seconds of the first and the second query of a worker. A worker may have to import
#: the package first, on a busy machine.
PATIENCE = (10.0, 30.0)

#: Seconds without queries to a cluster after one of its workers has not answered.
PAUSE = 60.0

#: Query, address and folder of a worker; a restarted worker has another folder.
_Key = tuple[Callable[..., Any], str, str]

#: Answers of the workers of each client.
_known: WeakKeyDictionary[Any, dict[_Key, Any]] = WeakKeyDictionary()

#: Time of the next allowed query of each client.
_paused: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def workers_answers(client: Any, ask: Callable[..., Any]) -> dict[str, Any]:
    """Return the answer of each worker by address; None for workers that have not answered.

    A slow worker is queried a second time, with a longer time limit. A worker that leaves meanwhile
    is left out; a worker that joins is queried, too.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    ask : callable
        A function of a module, so that workers can import it. It runs in the worker's event loop,
        takes only `dask_worker`, and does not return None.
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
    """Return the answers by address; workers that are late, lost or fail are missing."""
    found = {}

    async def one(address: str) -> None:
        with contextlib.suppress(OSError):  # also TimeoutError
            call = client.run(ask, workers=[address], on_error="return")
            answer = (await asyncio.wait_for(call, seconds)).get(address)
            if answer is not None and not isinstance(answer, BaseException):
                found[address] = answer

    await asyncio.gather(*map(one, addresses))
    return found


def current_machine(memory_limit: int | None, on_gpus: bool = False) -> Machine:
    """Return the machine or cluster that will run a graph made now.

    The memory of workers does not limit blocks that are `on_gpus`.

    Raises
    ------
    PlanError
        If a worker has too little memory for any plan.
    """
    client = running_client()
    workers = () if client is None else workers_of(client).values()
    if not workers:
        machine = machine_nbytes()
        # Copies of zarr and xarray come on top of plans, too.
        limit = memory_limit or max(machine - 2 * IMPORTS_NBYTES, machine // 2)
        return Machine(limit, task_threads(), 1, profile=known_profile(""), shared=_shared())
    least = None if memory_limit or on_gpus else smallest_worker()
    if least is not None and least.budget <= 0:
        raise PlanError(f"no plan fits: {least}; give workers more memory")
    return Machine(
        memory_limit if least is None else least.budget,
        max(worker["nthreads"] for worker in workers),
        len(workers),
        shuffle_nbytes(),
        profile_of(workers),
    )


def smallest_worker() -> WorkerMemory | None:
    """Return the memory of the worker with the smallest budget; None without a limit.

    Each worker is asked once, and then tells its present memory with its heartbeats. Workers that
    do not answer are assumed to hold nothing but libraries. Workers that are full get no tasks, so
    they count only if all are.
    """
    client = running_client()
    workers = {} if client is None else workers_of(client)
    limits = {address: worker.get("memory_limit") for address, worker in workers.items()}
    answers = workers_answers(client, _tell_memory) if any(limits.values()) else {}
    memories = []
    for address, limit in limits.items():
        if limit:
            numbers = workers[address].get("metrics", {}).get(MEMORY_METRIC)
            memory = WorkerMemory(**numbers) if numbers else answers.get(address)
            memories.append(memory or assumed_memory(int(limit)))
    usable_memories = [memory for memory in memories if memory.budget > 0]
    return min(usable_memories or memories, key=lambda memory: memory.budget, default=None)


async def _tell_memory(dask_worker: Any) -> WorkerMemory | tuple[()]:
    """Return the memory of a worker, and let `watch_worker` resume it if it gets paused."""
    watch_worker(dask_worker)
    return memory_of_worker(dask_worker)


def workers_devices(workers: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the number of devices of each worker, the fewest first.

    Registered workers report their devices with their metrics. Otherwise a worker's resource
    ``GPU`` counts, or a driver that dask has found on it. Without any of these the result is empty.

    Parameters
    ----------
    workers : iterable of dict
        The scheduler's information on each worker.

    Examples
    --------
    >>> workers_devices([{"resources": {"GPU": 2}}, {"resources": {}}, {}])
    [0, 0, 2]
    >>> workers_devices([{}, {}])
    []
    """
    told = [worker.get("metrics", {}).get(METRIC) for worker in workers]
    if None not in told:
        known = [len(found["devices"]) for found in told]
    elif not any(known := [_declared(worker) for worker in workers]):
        return []
    return sorted(known)


def _declared(worker: Mapping[str, Any]) -> int:
    """Return the number of devices that a worker was started with."""
    amounts = {name.upper(): amount for name, amount in worker.get("resources", {}).items()}
    return int(amounts.get("GPU", "gpu" in worker))


def workers_place() -> str:
    """Return the short name of the current cluster; empty without one."""
    client = running_client()
    return "" if client is None else cluster_place(workers_of(client).values())


def profile_of(workers: Collection[Mapping[str, Any]]) -> Profile:
    """Return the profile for plans on a cluster.

    Parameters
    ----------
    workers : collection of dict
        The scheduler's information on each worker.
    """
    here = all(str(w.get("host", "")).startswith(("127.", "localhost", "::1")) for w in workers)
    return known_profile(cluster_place(workers), *([""] if here else []))


def _shared() -> bool:
    """Return True if one process holds all blocks and may work on them in shared memory."""
    scheduler = dask.config.get("scheduler", None)
    if scheduler in ("processes", "multiprocessing") or not config.get("bigfft.exchange.in-place"):
        return False
    return config.get("bigfft.exchange.carrier") in ("auto", "shared")


def device_software() -> dict[str, str]:
    """Return the versions of device software that can change the last bit of a result.

    The keys are names such as ``"cupy"``. Without devices the result is empty.
    """
    return broadcast_event(software)


def broadcast_event(ask: Callable[..., dict[str, str]], *arguments: Any) -> dict[str, str]:
    """Return the answers of a function, by name, from all processes that would run a graph now.

    Values that differ between workers are joined by commas. Without a cluster this process answers.

    Parameters
    ----------
    ask : callable
        A function of a module, so that workers can import it.
    *arguments
        Its arguments.
    """
    client = running_client()
    answers = [] if client is None else list(client.run(ask, *arguments).values())
    found: dict[str, set[str]] = {}
    for answer in answers or [ask(*arguments)]:
        for name, value in answer.items():
            found.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}


def possible_storage() -> str:
    """Return the storage that a plan may use between rounds: ``"auto"``, ``"disk"``, ``"memory"``.

    "auto" includes scratch files, but only on one machine: processes of several machines may not
    see the same files.
    """
    requested = config.get("bigfft.exchange.carrier")
    if requested == "disk":
        return "disk"
    client = running_client()
    hosts = set() if client is None else {one.get("host") for one in workers_of(client).values()}
    return "auto" if requested == "auto" and len(hosts) <= 1 else "memory"


#: The FFT library that every worker has.
EVERYWHERE = "scipy"


def fastest_everywhere(dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the fastest FFT library that all processes have, and the reason for a fallback.

    The reason is empty unless workers could not be queried for a faster library.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex.

    Warns
    -----
    FallbackWarning
        If some workers have not answered.
    """
    client = running_client()
    if client is None:
        return fastest_library(dtype), ""
    names, fallback = common_libraries(dtype)
    if len(names) == 1:
        return names[0], fallback
    speeds = profile_of(workers_of(client).values()).libraries
    known = {one.name: one.flops for one in speeds if one.dtype == dtype.name}
    rates = {name: known[name] for name in names if name in known}
    return best_of(rates) if len(rates) == len(names) else fastest_library(dtype, names), fallback


def _here(dtype: np.dtype[Any]) -> dict[str, str]:
    """Return the versions of the libraries that work in this process, by name."""
    return {name: found for name, found in usable().items() if dtype in get_library(name).dtypes}


def common_libraries(dtype: np.dtype[Any]) -> tuple[tuple[str, ...], str]:
    """Return the libraries that this process and all workers have, and the reason for a fallback.

    SciPy may differ in its version between processes.

    Parameters
    ----------
    dtype : numpy.dtype
        A complex dtype; libraries that do not support it are left out.
    """
    client, here = running_client(), _here(dtype)
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
