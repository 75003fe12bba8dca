"""Calibration: measures the speeds of a machine once, in half a minute, for the cost model.

`loops` compiles and stores all loops first. `threads` fits the CPU's prices to timed transforms.
`gpus` measures GPUs and the bus. `cluster` combines the profiles of workers and measures disks and
network.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.config
from dask.system import CPU_COUNT

from dask_bigfft import config
from dask_bigfft.calibration import cluster
from dask_bigfft.calibration.gpus import device_speeds
from dask_bigfft.calibration.loops import store_loops
from dask_bigfft.calibration.threads import DTYPES, thread_prices
from dask_bigfft.errors import ArgumentTypeError, DeviceError, parse_count, raise_invalid
from dask_bigfft.events import raise_if_asynchronous, workers_of
from dask_bigfft.gpu.dispatch import leases
from dask_bigfft.kernels.fastest import fastest_library
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.machine import environment
from dask_bigfft.memory.limits import machine_nbytes
from dask_bigfft.planner.profile import DeviceProfile, Profile

log = logging.getLogger(__name__)

#: What is known about workers, by address: threads, memory limit, host.
Workers = Mapping[str, Mapping[str, Any]]

#: Minimum bytes of the arrays: smaller ones measure only the overhead of calls.
LEAST_NBYTES = 1 << 14

#: Minimum of the default bytes of the arrays.
USUAL_NBYTES = 32 << 20

#: Maximum of the default bytes of the arrays.
MOST_NBYTES = 512 << 20

#: Default bytes of the arrays divided by the square of the threads. The number of tasks grows with
#: the threads, and their Python code runs in one thread at a time. With the square, that code keeps
#: its share of the time, and arrays exceed the caches of large machines.
NBYTES_FACTOR = 2 << 20

#: Memory of a host divided by the maximum bytes of an array.
PART_OF_MEMORY = 32


def measure(
    threads: int,
    nbytes: int,
    repeat: int,
    kernels: Sequence[str],
) -> Profile:
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
    fastest = fastest_library(DTYPES[0], kernels)
    names = sorted(kernels, key=lambda name: name != fastest)
    speeds = thread_prices(threads, nbytes, repeat, names)
    speeds["devices"] = _devices(8 * min(nbytes, USUAL_NBYTES))
    return Profile(f"{CPU_COUNT} cores, {threads} threads", threads, **speeds)


def _devices(nbytes: int) -> tuple[DeviceProfile, ...]:
    """Return the speeds of this process's devices; none if a device fails."""
    device_leases = leases()
    if device_leases is None:
        return ()
    engines = device_leases.engines
    for engine in engines:
        engine.recover()
    try:
        return tuple(device_speeds(engine.device, nbytes) for engine in engines)
    except DeviceError as error:
        log.warning("a device was not measured: %s", error)
        return ()


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
    For GPUs these are the bus, narrow rows, memory, FFTs, and the start of an operation. All loops
    are compiled and stored before, in another process, so that no later call waits for one. That
    takes half a minute more, once for each version of the package.

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
    workers = _workers(client)
    if not workers:
        raise_invalid("client", client, "a client of a cluster that has workers")
    place = "" if client is None else environment.cluster_place(workers.values())
    profile = _measured(client, workers, nbytes, repeat)
    target = Path(environment.profile_path(place) if path is None else path)
    if not environment.save_profile(profile, target):
        raise_invalid("path", str(target), "a file that can be written")
    return profile


def _workers(client: Any) -> Workers:
    """Return threads and memory of a client's workers by address, or of this process."""
    if client is not None:
        return workers_of(client)
    threads = dask.config.get("num_workers", None) or CPU_COUNT
    return {"": {"nthreads": threads, "memory_limit": machine_nbytes()}}


def _refuse_unwritable(path: str | os.PathLike[str]) -> None:
    """Raise an error for a file that cannot be written, before the measurements begin."""
    if not isinstance(path, str | os.PathLike):
        raise_invalid(
            "path",
            path,
            "the path of a file",
            kind=ArgumentTypeError,
        )
    file = Path(path).absolute()
    is_file = config.is_path(path) and not file.is_dir()
    folder = file.parent
    if not is_file or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise_invalid("path", str(path), "a file that can be written, in a folder that exists")


def _measured(
    client: Any,
    workers: Workers,
    nbytes: int | None,
    repeat: int,
) -> Profile:
    """Return the profile of the slowest worker in each quantity, with disks and network."""
    on_workers = partial(cluster.on_workers, client)
    hosts = _hosts(workers)
    threads = {}
    for address, worker in workers.items():
        threads[address] = max(1, int(worker["nthreads"]))
    sizes = _default_sizes(workers, hosts, threads)
    kernels = _common_kernels(on_workers, workers)
    on_workers(store_loops, {addresses[0]: () for addresses in hosts.values()})
    arguments = {}
    for address in sizes:
        arguments[address] = (threads[address], nbytes or sizes[address], repeat, kernels)
    slowest = cluster.slowest(list(on_workers(measure, arguments).values()))
    size = nbytes or USUAL_NBYTES
    disk_nbytes = int(min(1.0, size / USUAL_NBYTES) * cluster.DISK_NBYTES)
    folder = config.get("bigfft.scratch.directory")
    shared: dict[str, Any] = cluster.disk_speeds(on_workers, hosts, folder, disk_nbytes)
    if client is not None:
        shared |= cluster.network_speeds(client, list(workers), size, repeat)
        hosts_text = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
        shared["name"] = f"{len(workers)} workers on {hosts_text}: the slowest of {slowest.name}"
    return replace(slowest, **shared)


def _hosts(workers: Workers) -> dict[str, list[str]]:
    """Return the addresses of the workers of each host."""
    hosts: dict[str, list[str]] = {}
    for address, worker in workers.items():
        host = str(worker.get("host"))
        addresses = hosts.setdefault(host, [])
        addresses.append(address)
    return hosts


def _default_sizes(
    workers: Workers,
    hosts: Mapping[str, Sequence[str]],
    threads: Mapping[str, int],
) -> dict[str, int]:
    """Return the default bytes of each worker's arrays.

    The workers of a host share the size for a single worker of that host.
    """
    sizes = {}
    for addresses in hosts.values():
        memory_nbytes = 0  # which it stays without memory limits
        host_threads = 0
        for address in addresses:
            memory_nbytes += int(workers[address].get("memory_limit") or 0)
            host_threads += threads[address]
        host_nbytes = NBYTES_FACTOR * host_threads**2
        host_nbytes = min(MOST_NBYTES, max(USUAL_NBYTES, host_nbytes))
        if memory_nbytes >= PART_OF_MEMORY:
            host_nbytes = min(host_nbytes, memory_nbytes // PART_OF_MEMORY)
        for address in addresses:
            sizes[address] = max(LEAST_NBYTES, host_nbytes * threads[address] // host_threads)
    return sizes


def _common_kernels(on_workers: cluster.CallWorkers, workers: Iterable[str]) -> list[str]:
    """Return the FFT libraries that all workers have, in the order of the first worker."""
    no_arguments: dict[str, tuple[Any, ...]] = dict.fromkeys(workers, ())
    versions_of_workers = list(on_workers(usable, no_arguments).values())
    common_names = []
    for name in versions_of_workers[0]:
        if all(name in versions for versions in versions_of_workers):
            common_names.append(name)
    return common_names
