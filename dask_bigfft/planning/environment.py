"""Environment of a graph: the machine or cluster that it will run on, as far as known.

Imports `gpu`, `graph`, `planner`, `profiles`, `workers`, `config`, `errors`, `memory_settings`
and `threads`; looks up a running client.
"""

import collections
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import dask.config

from dask_bigfft import config
from dask_bigfft.errors import PlanError, refuse
from dask_bigfft.gpu.find import METRIC, software
from dask_bigfft.graph.paused import watch_worker
from dask_bigfft.memory_settings import (
    WorkerMemory,
    assumed_memory,
    machine_nbytes,
    measured_memory,
    shuffle_nbytes,
)
from dask_bigfft.planner.plan import Machine
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planning.profiles import cluster_place, known_profile
from dask_bigfft.planning.workers import workers_answers, workers_of
from dask_bigfft.threads import task_threads

__all__ = [
    "current_machine",
    "device_software",
    "possible_carrier",
    "profile_of",
    "refuse_asynchronous",
    "running_client",
    "smallest_worker",
    "told_everywhere",
    "workers_devices",
    "workers_place",
]


def current_machine(memory_limit: int | None) -> Machine:
    """Return what is known of where the graph will run.

    Raises
    ------
    PlanError
        If a worker has no memory for any plan.
    """
    client = running_client()
    if client is not None:
        workers = workers_of(client).values()
        if workers:
            least = None if memory_limit else smallest_worker()
            if least is not None and least.budget <= 0:
                raise PlanError(f"no plan fits: {least}; give workers more memory")
            limit = memory_limit if least is None else least.budget
            threads = max(w["nthreads"] for w in workers)
            return Machine(
                limit,
                threads,
                len(workers),
                shuffle_nbytes(),
                profile_of(workers),
                by_cards=workers_devices(workers),
            )
    profile = known_profile("")
    limit = memory_limit or machine_nbytes()
    return Machine(limit, task_threads(), 1, profile=profile, shared=_shared())


def smallest_worker() -> WorkerMemory | None:
    """Return the memory of the worker that has least for a plan; None without a limit.

    Workers that do not answer are assumed to be like this process.
    """
    client = running_client()
    limits = (
        {}
        if client is None
        else {
            address: int(worker["memory_limit"])
            for address, worker in workers_of(client).items()
            if worker.get("memory_limit")
        }
    )
    answers = workers_answers(client, _tell_memory) if limits else {}
    found = [answers.get(address) or assumed_memory(limit) for address, limit in limits.items()]
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
    else:
        known = [_declared(worker) for worker in workers]
        if not any(known):
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
    return known_profile(cluster_place(workers), *([""] if _all_here(workers) else []))


def _all_here(workers: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether all workers are on this machine, as far as their addresses tell."""
    return all(str(w.get("host", "")).startswith(("127.", "localhost", "::1")) for w in workers)


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
        refuse(
            "client",
            client,
            "a client made without asynchronous=True, in a thread other than "
            "that of an event loop: another one for the same scheduler will do",
        )


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
    if not answers:
        return ask(*arguments)
    names = sorted({name for answer in answers for name in answer})
    return {
        name: ", ".join(sorted({answer[name] for answer in answers if name in answer}))
        for name in names
    }


def possible_carrier() -> str:
    """Return where a plan may keep blocks between rounds.

    Scratch files are taken unasked only where one machine runs everything: elsewhere nobody knows
    whether all processes see the same files.
    """
    asked = config.get("bigfft.exchange.carrier")
    if asked == "disk":
        return "disk"
    client = running_client()
    workers = () if client is None else client.scheduler_info(n_workers=-1)["workers"].values()
    one_machine = len({worker.get("host") for worker in workers}) <= 1
    return "auto" if asked == "auto" and one_machine else "memory"
