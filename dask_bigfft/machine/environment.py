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
from dask_bigfft.planner.profile import DEFAULT, SCHEMA, Profile
from dask_bigfft.planner.request import Machine

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

    def checked(content: Any) -> Profile | None:
        if not anywhere and content["machine"] != files.machine():
            log.warning("%s is of another machine and ignored: %s", path, content["machine"])
            return None
        return Profile.from_json(json.dumps(content))

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
            profile = _profile(path, path.stat().st_mtime_ns, named is not None)
        except OSError:
            if named is not None:
                log.warning("the profile %s does not exist: plans are made for a common one", path)
            continue
        if profile is not None:
            return profile
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
    known_answers = _known.setdefault(client, {})

    def query_keys() -> dict[str, _Key]:
        keys: dict[str, _Key] = {}
        for address, worker in workers_of(client).items():
            keys[address] = (ask, address, str(worker.get("local_directory")))
        return keys

    may_ask = not client.asynchronous and time.monotonic() >= _paused.get(client, 0.0)
    keys = query_keys()
    if may_ask:
        for seconds in PATIENCE:
            late = {address: key for address, key in keys.items() if key not in known_answers}
            if late:
                answers = client.sync(_answers, client, ask, late, seconds)
                for address, answer in answers.items():
                    known_answers[late[address]] = answer
                keys = query_keys()
        if not set(keys.values()) <= known_answers.keys():
            _paused[client] = time.monotonic() + PAUSE
    return {address: known_answers.get(key) for address, key in keys.items()}


async def _answers(
    client: Any,
    ask: Callable[..., Any],
    addresses: Iterable[str],
    seconds: float,
) -> dict[str, Any]:
    """Return the answers by address; workers that are late, lost or fail are missing."""
    answers = {}

    async def ask_worker(address: str) -> None:
        with contextlib.suppress(OSError):  # also TimeoutError
            call = client.run(ask, workers=[address], on_error="return")
            answer = (await asyncio.wait_for(call, seconds)).get(address)
            if answer is not None and not isinstance(answer, BaseException):
                answers[address] = answer

    await asyncio.gather(*map(ask_worker, addresses))
    return answers


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
        return Machine(
            memory_limit=limit,
            threads=task_threads(),
            workers=1,
            profile=known_profile(""),
            shared=_shared(),
        )
    smallest = None if memory_limit or on_gpus else smallest_worker()
    if smallest is not None and smallest.budget <= 0:
        raise PlanError(f"no plan fits: {smallest}; give workers more memory")
    return Machine(
        memory_limit=memory_limit if smallest is None else smallest.budget,
        threads=max(worker["nthreads"] for worker in workers),
        workers=len(workers),
        buffers=shuffle_nbytes(),
        profile=profile_of(workers),
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
    reports = [worker.get("metrics", {}).get(METRIC) for worker in workers]
    if None not in reports:
        return sorted(len(report["devices"]) for report in reports)
    declared = [_declared(worker) for worker in workers]
    return sorted(declared) if any(declared) else []


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
    hosts = [str(worker.get("host", "")) for worker in workers]
    places = [cluster_place(workers)]
    if all(host.startswith(("127.", "localhost", "::1")) for host in hosts):
        places.append("")  # workers on this machine
    return known_profile(*places)


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
    values_by_name: dict[str, set[str]] = {}
    for answer in answers or [ask(*arguments)]:
        for name, value in answer.items():
            values_by_name.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in sorted(values_by_name.items())}


def possible_storage() -> str:
    """Return the storage that a plan may use between rounds: ``"auto"``, ``"disk"``, ``"memory"``.

    "auto" includes scratch files, but only on one machine: processes of several machines may not
    see the same files.
    """
    requested = config.get("bigfft.exchange.carrier")
    if requested == "disk":
        return "disk"
    client = running_client()
    workers = () if client is None else workers_of(client).values()
    hosts = {worker.get("host") for worker in workers}
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
    measured = {speed.name: speed.flops for speed in speeds if speed.dtype == dtype.name}
    rates = {name: measured[name] for name in names if name in measured}
    if len(rates) == len(names):
        return best_of(rates), fallback
    return fastest_library(dtype, names), fallback


def _own_libraries(dtype: np.dtype[Any]) -> dict[str, str]:
    """Return the versions of the libraries that work in this process, by name."""
    versions = usable().items()
    return {name: version for name, version in versions if dtype in get_library(name).dtypes}


def common_libraries(dtype: np.dtype[Any]) -> tuple[tuple[str, ...], str]:
    """Return the libraries that this process and all workers have, and the reason for a fallback.

    SciPy may differ in its version between processes.

    Parameters
    ----------
    dtype : numpy.dtype
        A complex dtype; libraries that do not support it are left out.
    """
    client = running_client()
    own_versions = _own_libraries(dtype)
    if client is None or len(own_versions) == 1:
        return tuple(own_versions), ""
    answers = workers_answers(client, usable)
    fallback = ""
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
    common: frozenset[tuple[str, str]] = frozenset()  # names and versions that all workers have
    if answers and not missing:
        common = frozenset.intersection(*(frozenset(a.items()) for a in answers.values()))
    names = []
    for name, version in own_versions.items():
        if name == EVERYWHERE or (name, version) in common:
            names.append(name)
    return tuple(names), fallback
