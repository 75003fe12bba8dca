"""Calibration: a machine is measured once, in half a minute, so that plans know its speeds.

`threads` fits the prices of the CPU to whole transforms; `gpus` measures GPUs and the bus,
`system` fresh pages and the disk, `cluster` the speeds that workers share, and it makes one profile
of many workers'.

Imports the rest of this folder, `planning` and `planner`.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.config

from dask_bigfft import config
from dask_bigfft.calibration.cluster import disks_of, hosts_of, network_speeds, slowest, workers_of
from dask_bigfft.calibration.gpus import device_speeds, ordinals_of, peer_speeds
from dask_bigfft.calibration.system import DISK_NBYTES, disk_speeds, page_speed
from dask_bigfft.calibration.threads import DTYPES, thread_prices
from dask_bigfft.errors import ArgumentTypeError, DeviceError, is_path, parse_count, refuse
from dask_bigfft.gpu.find import leases
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.kernels.wisdom import fastest_library
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planning import profiles

__all__ = ["calibrate", "measure", "usual_nbytes", "usual_threads"]

log = logging.getLogger(__name__)

#: Bytes of arrays below which times are those of calls alone.
LEAST_NBYTES = 1 << 14

#: Bytes of arrays that are transformed by default, least and most, and for each thread.
USUAL_NBYTES, MOST_NBYTES, OF_A_THREAD = 32 << 20, 256 << 20, 8 << 20

#: Part of the machine's memory that one of these arrays may be.
PART_OF_MEMORY = 32


def measure(
    threads: int, nbytes: int, repeat: int, folder: str | None, kernels: Sequence[str] | None = None
) -> Profile:
    """Return the profile of the machine that this runs on, measured now.

    Parameters
    ----------
    threads : int
        Threads at work.
    nbytes : int
        Bytes of the arrays that are transformed.
    repeat : int
        Runs that count.
    folder : str or None
        Folder of a scratch file, for the speed of the disk; None leaves that out.
    kernels : sequence of str, optional
        FFT libraries; by default all that are installed.
    """
    few = min(1.0, nbytes / USUAL_NBYTES)
    found: dict[str, Any] = {"touch": page_speed(threads, int(few * (128 << 20)))}
    if folder is not None:
        found |= disk_speeds(Path(folder), int(few * DISK_NBYTES))
    names = list(usable() if kernels is None else kernels)
    first = fastest_library(DTYPES[0], names)
    names.sort(key=lambda name: name != first)
    found |= thread_prices(threads, nbytes, repeat, names)
    found |= _devices(min(nbytes, USUAL_NBYTES) * 8)
    return Profile(f"{os.cpu_count()} cores, {threads} threads", threads, **found)


def _devices(nbytes: int) -> dict[str, Any]:
    """Return the devices of this process for a profile; nothing where one does not work."""
    lent = leases()
    engines = () if lent is None else lent.engines
    found = []
    for engine in engines:
        engine.recover()
        try:
            found.append(device_speeds(engine.device, nbytes))
        except DeviceError as error:
            log.warning("a device was not measured: %s", error)
            return {}
    if not found:
        return {}
    speeds = peer_speeds(ordinals_of([engine.device for engine in engines]), nbytes)
    for engine in engines:
        engine.recover()  # what was sent lies in a pool
    return {"devices": tuple(found), "peers": speeds}


def usual_nbytes(threads: int, memory: int | None = None) -> int:
    """Return the bytes of the arrays that so many threads transform by default.

    Fewer where the `memory` that they have is small.
    """
    found = min(MOST_NBYTES, max(USUAL_NBYTES, OF_A_THREAD * threads))
    return found if memory is None else min(found, max(LEAST_NBYTES, memory // PART_OF_MEMORY))


def usual_threads() -> int:
    """Return the threads that dask has for the tasks of a process by default."""
    return int(dask.config.get("num_workers", None) or os.cpu_count() or 1)


def calibrate(
    client: Any = None,
    path: str | os.PathLike[str] | None = None,
    *,
    nbytes: int | None = None,
    repeat: int = 3,
) -> Profile:
    """Measure a machine's speeds and keep them, so that plans are made for it.

    Takes up to half a minute, during which nothing else should run. A few dozen small transforms
    with the installed FFT libraries give the prices of copies, FFTs, checks, tasks, tiles, shards
    and exchanges. Fresh pages, the disk of the scratch folder and GPUs are measured apart: the bus,
    pinning, their memory and FFTs, and what GPUs send each other.

    Parameters
    ----------
    client : distributed.Client, optional
        Of a cluster: all its workers are measured at the same time, with the FFT libraries that all
        of them have, and the network between them. Of each quantity the slowest worker's counts;
        of disks what the workers of a host write and read together, at the slowest host. By default
        this process is measured.
    path : path, optional
        Where the profile goes, in a folder that exists; what is there is replaced. The setting
        ``bigfft.planner.profile`` finds it there. By default a file in the folder
        ``bigfft.wisdom.directory``, which is made if need be, and plans use it from then on.
    nbytes : int, optional
        Bytes of the arrays that are transformed, at least 16 KiB. By default 8 MiB for each
        thread, 32 MiB at least, but no more than a 32nd of the machine's memory.
    repeat : int
        Runs of each transform, at least 1; the median counts.

    Returns
    -------
    Profile
        What was measured; `Profile.to_json` shows it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Before anything is measured, for what is not allowed; `path` where it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     profile = calibrate(path=f"{folder}/mine.json", nbytes=1 << 16, repeat=1)
    >>> profile.copy > 0, profile.library("scipy", "complex128").flops > 0
    (True, True)
    """
    if client is not None and (
        not hasattr(client, "scheduler_info") or getattr(client, "asynchronous", False)
    ):
        refuse(
            "client",
            client,
            "a distributed.Client that is not asynchronous, or None for this process",
            kind=ArgumentTypeError,
        )
    repeat = parse_count("repeat", repeat)
    if nbytes is not None:
        nbytes = parse_count("nbytes", nbytes, LEAST_NBYTES)
    if path is not None:
        _refuse_unwritable(path)
    folder = config.get("bigfft.scratch.directory")
    if client is None:
        threads = usual_threads()
        nbytes = nbytes or usual_nbytes(threads, machine_nbytes())
        place, profile = "", measure(threads, nbytes, repeat, folder)
    else:
        workers = workers_of(client)
        if not workers:
            refuse("client", client, "a client of a cluster that has workers")
        place = profiles.cluster_place(workers.values())
        profile = _of_cluster(client, workers, nbytes, repeat, folder)
    target = profiles.profile_path(place) if path is None else Path(path)
    if not profiles.save_profile(profile, target):
        refuse("path", str(target), "a file that can be written")
    return profile


def _refuse_unwritable(given: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be made or replaced, before a minute goes by."""
    if not isinstance(given, str | os.PathLike):
        refuse("path", given, "the path of a file", kind=ArgumentTypeError)
    if not is_path(given):
        refuse("path", os.fspath(given), "the path of a file, without null bytes")
    path = Path(given)
    folder = path.absolute().parent
    if not folder.is_dir():
        refuse("path", str(path), f"a file in a folder that exists, which {folder} is not")
    if path.is_dir() or not os.access(folder, os.W_OK):
        refuse("path", str(path), "a file that can be written")


def _of_cluster(
    client: Any, workers: dict[str, Any], nbytes: int | None, repeat: int, folder: str
) -> Profile:
    """The slowest of all workers in each respect, while all work, and what they share."""
    hosts, installed = hosts_of(workers), client.run(usable)
    common = [
        name
        for name in next(iter(installed.values()))
        if all(name in names for names in installed.values())
    ]
    asked = []
    for addresses in hosts.values():
        threads = {address: max(1, int(workers[address]["nthreads"])) for address in addresses}
        for address, own in threads.items():  # those of a host as much as one that has it alone
            part = usual_nbytes(sum(threads.values())) * own // sum(threads.values())
            asked.append(
                client.submit(
                    measure,
                    own,
                    nbytes or part,
                    repeat,
                    None,
                    common,
                    workers=[address],
                    allow_other_workers=False,
                    pure=False,
                )
            )
    found = slowest(client.gather(asked))
    few = min(1.0, (nbytes or USUAL_NBYTES) / USUAL_NBYTES)
    shared: dict[str, Any] = {
        **disks_of(client, hosts, folder, int(few * DISK_NBYTES)),
        **network_speeds(client, list(workers), nbytes or USUAL_NBYTES, repeat),
    }
    return replace(found, name=_cluster_name(hosts, found), **shared)


def _cluster_name(hosts: dict[str, list[str]], found: Profile) -> str:
    """Return the name of a cluster: its workers and hosts."""
    workers, most = sum(map(len, hosts.values())), max(map(len, hosts.values()))
    shared = f", up to {most} share one and its disk" if most > 1 else ""
    where = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"{workers} workers on {where}{shared}: the slowest of {found.name}"
