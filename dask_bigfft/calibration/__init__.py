"""Calibration: measures the speeds of a machine once, in half a minute, for the cost model.

`threads` fits the CPU's prices to timed transforms. `gpus` measures GPUs and the bus. `cluster`
combines the profiles of workers and measures disks and network.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.config
from dask.system import CPU_COUNT

from dask_bigfft import config, environment
from dask_bigfft.calibration import cluster
from dask_bigfft.calibration.gpus import device_speeds
from dask_bigfft.calibration.threads import DTYPES, thread_prices
from dask_bigfft.environment import raise_if_asynchronous
from dask_bigfft.errors import ArgumentTypeError, DeviceError, parse_count, raise_invalid
from dask_bigfft.events import workers_of
from dask_bigfft.gpu.dispatch import leases
from dask_bigfft.kernels.fastest import fastest_library
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner.profile import Profile

log = logging.getLogger(__name__)

#: Minimum bytes of the arrays: smaller ones measure only the overhead of calls.
LEAST_NBYTES = 1 << 14

#: Default bytes of the arrays: minimum, maximum, and the factor of the square of the threads. The
#: number of tasks grows with the threads, and their Python code runs in one thread at a time. With
#: the square, that code keeps its share of the time, and arrays exceed the caches of large
#: machines.
USUAL_NBYTES, MOST_NBYTES, FACTOR = 32 << 20, 512 << 20, 2 << 20

#: Memory of a host divided by the maximum bytes of an array.
PART_OF_MEMORY = 32


def measure(threads: int, nbytes: int, repeat: int, kernels: Sequence[str]) -> Profile:
    """Measure this process and return its profile, without disks.

    Parameters
    ----------
    threads : int
        Number of threads.
    nbytes : int
        Bytes of the arrays.
    repeat : int
        Number of timed runs.
    kernels : sequence of str
        FFT libraries.
    """
    first = fastest_library(DTYPES[0], kernels)
    names = sorted(kernels, key=lambda name: name != first)
    found = thread_prices(threads, nbytes, repeat, names)
    found |= _devices(8 * min(nbytes, USUAL_NBYTES))
    return Profile(f"{CPU_COUNT} cores, {threads} threads", threads, **found)


def _devices(nbytes: int) -> dict[str, Any]:
    """Return the devices of this process for a profile; empty if a device fails."""
    lent = leases()
    engines = () if lent is None else lent.engines
    for engine in engines:
        engine.recover()
    try:
        found = tuple(device_speeds(engine.device, nbytes) for engine in engines)
    except DeviceError as error:
        log.warning("a device was not measured: %s", error)
        return {}
    return {"devices": found}


def calibrate(
    client: Any = None,
    path: str | os.PathLike[str] | None = None,
    *,
    nbytes: int | None = None,
    repeat: int = 3,
) -> Profile:
    """Measure the speeds of a machine and save them, so that plans are made for it.

    Calibration takes up to half a minute, during which nothing else should run. A few dozen small
    transforms with the installed FFT libraries give the prices of copies, FFTs, checks, tasks,
    tiles, shards and exchanges. The disk of the scratch folder and GPUs are measured separately.
    For GPUs these are the bus, narrow rows, memory, FFTs, and the start of an operation.

    Parameters
    ----------
    client : distributed.Client, optional
        Client of a cluster to measure; by default this process is measured. All workers are
        measured at the same time, with the FFT libraries that all of them have, and so is the
        network. The slowest worker sets each quantity. The speed of a disk is the throughput of all
        workers of a host together, on the slowest host.
    path : path, optional
        File for the profile, in an existing folder; an existing file is replaced. Name it in the
        setting ``bigfft.planner.profile`` to use it. The default is a file in the folder
        ``bigfft.wisdom.directory``, which is made if needed; plans then use it automatically.
    nbytes : int, optional
        Bytes of the arrays, at least 16 KiB. The default is 2 MiB times the square of the threads,
        32 to 512 MiB, and at most a 32nd of the memory of all workers of a host.
    repeat : int
        Timed runs of each transform, at least 1; the median counts.

    Returns
    -------
    Profile
        The measured speeds; `Profile.to_json` shows them.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed or `path` cannot be written, before anything is measured.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     profile = calibrate(path=f"{folder}/mine.json", nbytes=1 << 16, repeat=1)
    >>> profile.copy > 0, profile.library("scipy", "complex128").flops > 0
    (True, True)
    """
    if client is not None and not hasattr(client, "scheduler_info"):
        allowed = "a distributed.Client, or None for this process"
        raise_invalid("client", client, allowed, kind=ArgumentTypeError)
    raise_if_asynchronous(client)
    repeat = parse_count("repeat", repeat)
    if nbytes is not None:
        nbytes = parse_count("nbytes", nbytes, LEAST_NBYTES)
    if path is not None:
        _refuse_unwritable(path)
    if client is None:
        threads = dask.config.get("num_workers", None) or CPU_COUNT
        workers: Any = {"": {"nthreads": threads, "memory_limit": machine_nbytes()}}
    else:
        workers = workers_of(client)
    if not workers:
        raise_invalid("client", client, "a client of a cluster that has workers")
    place = "" if client is None else environment.cluster_place(workers.values())
    profile = _measured(client, workers, nbytes, repeat)
    target = environment.profile_path(place) if path is None else Path(path)
    if not environment.save_profile(profile, target):
        raise_invalid("path", str(target), "a file that can be written")
    return profile


def _refuse_unwritable(given: str | os.PathLike[str]) -> None:
    """Raise an error for a file that cannot be written, before the measurements begin."""
    if not isinstance(given, str | os.PathLike):
        raise_invalid("path", given, "the path of a file", kind=ArgumentTypeError)
    path = Path(given).absolute()
    possible = config.is_path(given) and path.parent.is_dir() and not path.is_dir()
    if not possible or not os.access(path.parent, os.W_OK):
        raise_invalid("path", str(given), "a file that can be written, in a folder that exists")


def _measured(
    client: Any, workers: Mapping[str, Mapping[str, Any]], nbytes: int | None, repeat: int
) -> Profile:
    """Return the profile of the slowest worker in each quantity, with disks and network.

    The workers of a host share the array size of a single worker on that host.
    """
    each = partial(cluster.on_workers, client)
    hosts: dict[str, list[str]] = {}
    for address, worker in workers.items():
        hosts.setdefault(str(worker.get("host")), []).append(address)
    installed = list(each(usable, dict.fromkeys(workers, ())).values())
    common = [name for name in installed[0] if all(name in names for names in installed)]
    requested = {}
    for addresses in hosts.values():
        threads = {address: max(1, int(workers[address]["nthreads"])) for address in addresses}
        memory = sum(int(workers[address].get("memory_limit") or 0) for address in addresses)
        usual = min(MOST_NBYTES, max(USUAL_NBYTES, FACTOR * sum(threads.values()) ** 2))
        usual = min(usual, memory // PART_OF_MEMORY or usual)
        for address, own in threads.items():
            part = nbytes or max(LEAST_NBYTES, usual * own // sum(threads.values()))
            requested[address] = own, part, repeat, common
    found = cluster.slowest(list(each(measure, requested).values()))
    size = nbytes or USUAL_NBYTES
    on_disk = int(min(1.0, size / USUAL_NBYTES) * cluster.DISK_NBYTES)
    folder = config.get("bigfft.scratch.directory")
    shared: dict[str, Any] = cluster.disk_speeds(each, hosts, folder, on_disk)
    if client is not None:
        shared |= cluster.network_speeds(client, list(workers), size, repeat)
        where = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
        shared["name"] = f"{len(workers)} workers on {where}: the slowest of {found.name}"
    return replace(found, **shared)
