"""The environment of a plan: its machine, its profile, and the usable FFT libraries.

Each worker of a cluster is queried once. Without a cluster a plan may use every library that works
in this process. On a cluster it may use SciPy, and the libraries that this process and every worker
have in the same version, because other versions may differ in the last bit.

The fastest library follows from the profile if the profile has the speeds of all candidates.
Otherwise the libraries are measured in this process: their order rarely differs between processors.
"""

import asyncio
import hashlib
import json
import logging
import os
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
from dask_bigfft.carriers.base import Carrier
from dask_bigfft.carriers.choice import carrier_type
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
    threads_of_hosts: list[tuple[str, int]] = []
    for worker in workers:
        host = str(worker.get("host"))
        threads = int(worker.get("nthreads", 1))
        threads_of_hosts.append((host, threads))
    threads_of_hosts.sort()
    text = json.dumps(threads_of_hosts)
    digest = hashlib.sha256(text.encode())
    return digest.hexdigest()[:10]


def profile_path(place: str = "") -> str:
    """Return the path of the profile of this machine, or of a cluster."""
    name = f"profile-{place}.json" if place else "profile.json"
    return os.path.join(config.get("bigfft.wisdom.directory"), name)


def save_profile(profile: Profile, path: Path) -> bool:
    """Write a profile with the name of this machine; return False if that failed."""
    content = json.loads(profile.to_json())
    content["machine"] = files.machine()
    return files.write_json(path, content)


@lru_cache(maxsize=32)
def _profile(path: str, modified: int, anywhere: bool) -> Profile | None:
    """Return the profile in a file, or None; log once why a file cannot be used.

    Parameters
    ----------
    path : str
        The file.
    modified : int
        Time of its last modification: a profile that is written again is read again.
    anywhere : bool
        Whether the profile may be of another machine, because the user named the file.
    """

    def checked(content: Any) -> Profile | None:
        """Return the profile in the content of the file, unless it is of another machine."""
        if not anywhere and content["machine"] != files.machine():
            log.warning("%s is of another machine and ignored: %s", path, content["machine"])
            return None
        return Profile.from_json(json.dumps(content))

    profile = files.read_json(Path(path), SCHEMA, checked)
    if anywhere and profile is None:
        log.warning(
            "the profile %s cannot be used, `dask-bigfft calibrate --output FILE` writes one of "
            "version %d: plans are made for a common machine",
            path,
            SCHEMA,
        )
    return profile


def known_profile(*places: str) -> Profile:
    """Return the profile in the settings, else the first one of some places, else the default.

    Parameters
    ----------
    *places : str
        Names by `cluster_place`; an empty name means this machine.
    """
    named = config.get("bigfft.planner.profile")
    is_named = named is not None
    paths = [named] if is_named else [profile_path(place) for place in places]
    for path in paths:
        try:
            modified = os.stat(path).st_mtime_ns
        except OSError:
            if is_named:
                log.warning("the profile %s does not exist: plans are made for a common one", path)
            continue
        profile = _profile(path, modified, is_named)
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
    keys = _query_keys(client, ask)
    is_paused = time.monotonic() < _paused.get(client, 0.0)
    if not client.asynchronous and not is_paused:
        for seconds in PATIENCE:
            late = {address: key for address, key in keys.items() if key not in known_answers}
            if not late:
                break
            answers = client.sync(
                _answers,
                client,
                ask,
                late,
                seconds,
            )
            for address, answer in answers.items():
                known_answers[late[address]] = answer
            keys = _query_keys(client, ask)  # workers have left or joined meanwhile
        if any(key not in known_answers for key in keys.values()):
            _paused[client] = time.monotonic() + PAUSE
    return {address: known_answers.get(key) for address, key in keys.items()}


def _query_keys(client: Any, ask: Callable[..., Any]) -> dict[str, _Key]:
    """Return the key of a query to each worker, by address."""
    keys: dict[str, _Key] = {}
    for address, worker in workers_of(client).items():
        folder = str(worker.get("local_directory"))
        keys[address] = (ask, address, folder)
    return keys


async def _answers(
    client: Any,
    ask: Callable[..., Any],
    addresses: Iterable[str],
    seconds: float,
) -> dict[str, Any]:
    """Return the answers by address; workers that are late, lost or fail are missing."""
    answers: dict[str, Any] = {}

    async def ask_worker(address: str) -> None:
        """Add the answer of one worker, if it has one in time."""
        call = client.run(ask, workers=[address], on_error="return")
        try:
            answers_by_address = await asyncio.wait_for(call, seconds)
        except OSError:  # also TimeoutError
            return
        answer = answers_by_address.get(address)
        if answer is not None and not isinstance(answer, BaseException):
            answers[address] = answer

    await asyncio.gather(*map(ask_worker, addresses))
    return answers


def current_machine(memory_limit: int | None, is_limited: bool = True) -> Machine:
    """Return the machine or cluster that will run a graph made now.

    Parameters
    ----------
    memory_limit : int or None
        Bytes that a process may use; None stands for those of this machine, or of the workers.
    is_limited : bool
        Whether the memory of workers is a limit. Blocks on GPUs need none of it.

    Raises
    ------
    PlanError
        If a worker has too little memory for any plan.
    """
    client = running_client()
    workers = () if client is None else workers_of(client).values()
    if not workers:
        nbytes = machine_nbytes()
        # Copies of zarr and xarray come on top of plans, too.
        limit = memory_limit or max(nbytes - 2 * IMPORTS_NBYTES, nbytes // 2)
        return Machine(
            memory_limit=limit,
            threads=task_threads(),
            workers=1,
            profile=known_profile(""),
            shared=_shared(),
        )
    smallest = smallest_worker() if is_limited and not memory_limit else None
    if smallest is not None and smallest.budget <= 0:
        raise PlanError(f"no plan fits: {smallest}; give workers more memory")
    return Machine(
        memory_limit=memory_limit if smallest is None else smallest.budget,
        threads=max(worker["nthreads"] for worker in workers),
        workers=len(workers),
        buffers=shuffle_nbytes() if _carrier_class().uses_shuffles else None,
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
    limited_workers: dict[str, Mapping[str, Any]] = {}
    for address, worker in workers.items():
        if worker.get("memory_limit"):
            limited_workers[address] = worker
    if not limited_workers:
        return None
    answers = workers_answers(client, _tell_memory)
    memories: list[WorkerMemory] = []
    for address, worker in limited_workers.items():
        memories.append(_memory_of(worker, answers.get(address)))
    usable_memories = [memory for memory in memories if memory.budget > 0]
    return min(usable_memories or memories, key=lambda memory: memory.budget)


def _memory_of(worker: Mapping[str, Any], answer: WorkerMemory | None) -> WorkerMemory:
    """Return the memory of a worker with a limit, as reported, as answered, or as assumed."""
    metrics = worker.get("metrics", {})
    numbers = metrics.get(MEMORY_METRIC)
    if numbers:
        return WorkerMemory(**numbers)
    return answer or assumed_memory(int(worker["memory_limit"]))


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
    reports = []
    for worker in workers:
        metrics = worker.get("metrics", {})
        reports.append(metrics.get(METRIC))
    if None not in reports:
        return sorted(len(report["devices"]) for report in reports)
    declared = sorted(map(_declared, workers))
    return declared if any(declared) else []


def _declared(worker: Mapping[str, Any]) -> int:
    """Return the number of devices that a worker was started with."""
    resources = worker.get("resources", {})
    for name, amount in resources.items():
        if name.upper() == "GPU":
            return int(amount)
    return int("gpu" in worker)


def workers_place() -> str:
    """Return the short name of the current cluster; empty without one."""
    client = running_client()
    return "" if client is None else cluster_place(workers_of(client).values())


#: How the names of this machine begin, where workers listen on loopback.
_LOOPBACK = ("127.", "localhost", "::1")


def profile_of(workers: Collection[Mapping[str, Any]]) -> Profile:
    """Return the profile for plans on a cluster.

    Parameters
    ----------
    workers : collection of dict
        The scheduler's information on each worker.
    """
    hosts = [str(worker.get("host", "")) for worker in workers]
    is_on_this_machine = all(host.startswith(_LOOPBACK) for host in hosts)
    place = cluster_place(workers)
    if is_on_this_machine:
        return known_profile(place, "")
    return known_profile(place)


def _shared() -> bool:
    """Return True if one process holds all blocks and may work on them in shared memory."""
    scheduler = dask.config.get("scheduler", None)
    if scheduler in ("processes", "multiprocessing"):
        return False
    if not config.get("bigfft.exchange.in-place"):
        return False
    return _carrier_class().is_in_process


def _carrier_class() -> type[Carrier]:
    """Return the class of the carrier of the settings."""
    return carrier_type(config.get("bigfft.exchange.carrier"))


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
    answers: list[dict[str, str]] = []
    if client is not None:
        answers_by_address = client.run(ask, *arguments)
        answers += answers_by_address.values()
    if not answers:  # no cluster, or one without workers
        own_answer = ask(*arguments)
        answers.append(own_answer)
    values_by_name: dict[str, set[str]] = {}
    for answer in answers:
        for name, value in answer.items():
            values = values_by_name.setdefault(name, set())
            values.add(value)
    texts: dict[str, str] = {}
    for name, values in sorted(values_by_name.items()):
        texts[name] = ", ".join(sorted(values))
    return texts


def possible_storage() -> str:
    """Return the storage that a plan may use between rounds: ``"auto"``, ``"disk"``, ``"memory"``.

    "auto" includes scratch files, but only on one machine: processes of several machines may not
    see the same files.
    """
    storage = _carrier_class().storage
    if storage != "auto":
        return storage
    client = running_client()
    workers = () if client is None else workers_of(client).values()
    hosts = {worker.get("host") for worker in workers}
    return "auto" if len(hosts) <= 1 else "memory"


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
    workers = workers_of(client).values()
    measured_flops = {}
    for speeds in profile_of(workers).libraries:
        if speeds.dtype == dtype.name:
            measured_flops[speeds.name] = speeds.flops
    if any(name not in measured_flops for name in names):
        return fastest_library(dtype, names), fallback
    candidates = {name: measured_flops[name] for name in names}
    return best_of(candidates), fallback


def _own_libraries(dtype: np.dtype[Any]) -> dict[str, str]:
    """Return the versions of the libraries that work in this process, by name."""
    own_versions: dict[str, str] = {}
    for name, version in usable().items():
        library = get_library(name)
        if dtype in library.dtypes:
            own_versions[name] = version
    return own_versions


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
    fallback = _reason_for_fallback(client, answers)
    names = []
    for name, version in own_versions.items():
        versions = {(answer or {}).get(name) for answer in answers.values()}
        if name == EVERYWHERE or versions == {version}:
            names.append(name)
    return tuple(names), fallback


def _reason_for_fallback(client: Any, answers: Mapping[str, Any]) -> str:
    """Return why the libraries of all workers are not known, or an empty text.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    answers : mapping
        Versions of the libraries of each worker by address; None without an answer.

    Warns
    -----
    FallbackWarning
        If some workers have not answered.
    """
    if client.asynchronous:
        return f"{EVERYWHERE} instead of 'auto': an asynchronous client cannot ask its workers"
    missing = [address for address, answer in answers.items() if answer is None]
    if not missing:
        return ""
    fallback = (
        f"{EVERYWHERE} instead of 'auto': {len(missing)} of {len(answers)} workers have "
        f"not told which FFT libraries they have ({', '.join(missing[:3])})"
    )
    text = f"kernel {fallback}; results of other plans may differ in the last bits"
    warnings.warn(text, FallbackWarning, stacklevel=3)
    return fallback
