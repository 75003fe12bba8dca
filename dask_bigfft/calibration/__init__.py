"""Calibration: a machine is measured once, in about a minute, so that plans know its speeds.

::

    cpu, fft_libraries <- probes (work as in a graph)      crowds (many threads)
    system (pages, scheduler, disk)      cards      cluster (what workers share)
    runs (whole transforms) <- timelines (when blocks began and ended)
    several (one profile of many workers)

Imports the rest of this folder, `planning` and `planner`.
"""

import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.config
import numpy as np

from dask_bigfft import config
from dask_bigfft.calibration.cards import device_speeds, ordinals_of, peer_speeds, together
from dask_bigfft.calibration.cluster import disks_of, hosts_of, network_speeds, workers_of
from dask_bigfft.calibration.cpu import (
    OF_A_THREAD,
    Effort,
    checking_speeds,
    compile_copies,
    gather_speeds,
)
from dask_bigfft.calibration.crowds import in_company
from dask_bigfft.calibration.fft_libraries import library_like, library_speeds
from dask_bigfft.calibration.runs import between_blocks
from dask_bigfft.calibration.several import slowest
from dask_bigfft.calibration.system import (
    DISK_NBYTES,
    PAGES_NBYTES,
    disk_speeds,
    fresh_pages,
    page_speed,
    pair_seconds,
    scheduling_costs,
)
from dask_bigfft.devices.find import leases
from dask_bigfft.errors import (
    ArgumentTypeError,
    DeviceError,
    is_path,
    parse_count,
    refuse,
)
from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.kernels.wisdom import fastest_library
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner.profile import DEFAULT, LibrarySpeeds, Profile
from dask_bigfft.planning import profiles
from dask_bigfft.record import current_worker

__all__ = ["Effort", "calibrate", "measure", "usual_nbytes", "usual_threads"]

log = logging.getLogger(__name__)

#: Complex dtypes that libraries are measured in.
DTYPES = ("complex128", "complex64")

#: Seconds after which no further library is measured at length. One that is known in another dtype
#: gets a plane or two, which tell how much faster it is here; any other one is tried on little
#: data. None is left out: plans would take another library's speeds for its own. And the seconds
#: after which single passes do, with those of compiling.
ENOUGH, SINGLE = 21.0, 40.0

#: Seconds, with those of compiling, after which checks are not measured: the first time on a
#: machine that compiles them, too. They are then so many times as fast as copies, as they were
#: elsewhere (6 to 11, and 1.8 to 2.2 times).
CHECKS, ENERGY, CHECKSUM = 40.0, 8.0, 2.0

#: Seconds, with those of compiling, after which whole transforms run no more often than they must,
#: and, if it is so late before the first of them, only with the library that plans take.
WHOLE = 45.0

#: Seconds after which copies are measured by single passes: with many threads probes are large.
BRIEF = 7.0

#: Bytes of arrays that all kinds of copies are tried with before the clock is looked at: the first
#: calls on a machine compile them, which may take longer than all that is measured.
WARM_NBYTES = 1 << 18

#: How many times as much memory as an array has is taken and given back at first: a virtual machine
#: may have none yet, and then everything waits for it once, at an eighth of the speed.
AT_WORK = 8

#: Bytes of arrays that say anything of a machine: below, times are those of calls alone.
LEAST_NBYTES = 1 << 14

#: Bytes of arrays that are transformed where nothing is said, at least, and at most.
USUAL_NBYTES, MOST_NBYTES = 32 << 20, 1 << 30

#: Bytes of arrays whose transforms take a minute in all, where threads share the machine's memory,
#: and of each of more threads than that is enough for.
TIMELY_NBYTES, OF_MANY_THREADS = 128 << 20, 2 << 20

#: Part of the memory of the machine that one of these arrays may be: whole transforms have eight
#: times as much ready, and take as much again.
PART_OF_MEMORY = 32

#: Bytes of those of one of several workers of a host, at least.
PART_NBYTES = 16 << 20


def measure(
    effort: Effort, folder: str | None, kernels: Sequence[str] | None = None
) -> Profile:
    """Return the profile of the machine that this runs on, measured now.

    Parameters
    ----------
    effort : Effort
        How much is measured.
    folder : str or None
        Where a scratch file goes, for the speed of the disk; None leaves that out.
    kernels : sequence of str, optional
        FFT libraries; by default all that are installed.
    """
    started = time.perf_counter()
    fresh_pages(effort.threads, AT_WORK * effort.nbytes)
    compile_copies(Effort(effort.threads, min(effort.nbytes, WARM_NBYTES), 1))
    began = time.perf_counter()
    few = min(1.0, effort.nbytes / USUAL_NBYTES)
    found: dict[str, Any] = {
        **gather_speeds(replace(effort, until=began + BRIEF)),
        "touch": page_speed(effort.threads, int(few * PAGES_NBYTES)),
    }
    if folder is not None:
        found |= disk_speeds(Path(folder), int(few * DISK_NBYTES))
    log.info("copies, disk and pages: %.1f s", time.perf_counter() - began)
    names = list(usable() if kernels is None else kernels)
    libraries = _libraries(effort, names, began, started)
    log.info("FFT libraries, until %.1f s", time.perf_counter() - began)
    copied = min(effort.nbytes, USUAL_NBYTES) * 8
    copy = found.get("copy", DEFAULT.copy)
    found |= _devices(effort.threads, copy, copied)
    log.info("devices, until %.1f s", time.perf_counter() - began)
    if current_worker() is None:  # a cluster's tasks are its scheduler's
        found |= scheduling_costs(effort.repeat)
    found |= {"energy": ENERGY * copy, "checksum": CHECKSUM * copy}
    if time.perf_counter() - started < CHECKS:
        found |= checking_speeds(effort)
    log.info("checks, until %.1f s", time.perf_counter() - began)
    host = f"{os.cpu_count()} cores, {effort.threads} threads"
    found |= in_company(effort.seen, effort.threads, found)
    profile = Profile(host, effort.threads, libraries=tuple(libraries), **found)
    if current_worker() is not None:
        return profile
    known, until = [one.name for one in libraries if one.dtype == DTYPES[0]], started + WHOLE
    if time.perf_counter() > until:
        known = known[:1]
    between: dict[str, Any] = between_blocks(profile, effort.nbytes, effort.repeat, known, until)
    log.info("whole transforms, until %.1f s", time.perf_counter() - began)
    return replace(profile, **between)


def _libraries(
    effort: Effort, names: Sequence[str], began: float, started: float
) -> list[LibrarySpeeds]:
    """How fast FFT libraries are, the one that plans take first while there is time for it."""
    first = fastest_library(DTYPES[0], names)
    timely = replace(effort, until=min(began + ENOUGH, started + SINGLE))
    found: list[LibrarySpeeds] = []
    for dtype, name in itertools.product(DTYPES, sorted(names, key=lambda name: name != first)):
        if np.dtype(dtype) not in get_library(name).dtypes:
            continue
        other = [one for one in found if one.name == name]
        if time.perf_counter() - began < ENOUGH or not found:
            found.append(library_speeds(name, dtype, timely))
        elif other:
            found.append(library_like(other[0], dtype, effort))
        else:
            little = replace(timely, nbytes=min(effort.nbytes, USUAL_NBYTES))
            found.append(library_speeds(name, dtype, little))
    return found


def _devices(threads: int, copy: float, nbytes: int) -> dict[str, Any]:
    """What a profile says of the devices of this process; nothing where one does not work."""
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
    left = together(engines[0].device, threads, copy, nbytes)
    return {"devices": tuple(found), "together": left, "peers": speeds}


def usual_nbytes(threads: int, memory: int | None = None) -> int:
    """Bytes of the arrays that so many threads work on where nothing else is said.

    Fewer where the `memory` that they have is known, and not enough for whole transforms of these.
    """
    wanted = max(min(OF_A_THREAD * threads, TIMELY_NBYTES), OF_MANY_THREADS * threads)
    found = min(MOST_NBYTES, max(USUAL_NBYTES, wanted))
    return found if memory is None else min(found, max(LEAST_NBYTES, memory // PART_OF_MEMORY))


def usual_threads() -> int:
    """Threads that dask has for the tasks of a process where nothing else is said."""
    return int(dask.config.get("num_workers", None) or os.cpu_count() or 1)


def calibrate(
    client: Any = None,
    path: str | os.PathLike[str] | None = None,
    *,
    nbytes: int | None = None,
    repeat: int = 3,
) -> Profile:
    """Measure a machine's speeds and keep them, so that plans are made for it.

    Takes about a minute, during which nothing else should run. Measured are copies and gathers
    by row width, the installed FFT libraries by length, fresh pages, what tasks and shards cost,
    dask's ordering, the disk of the scratch folder, and devices: the bus by size and row width,
    both ways at once and each alone, also for memory that is not pinned, pinning, their memory and
    FFTs, what is left of the bus while threads copy, and what devices send each other. What checks
    cost comes last, and is reckoned from copies where it is late by then.

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
        Bytes of the arrays that are transformed, at least `LEAST_NBYTES`. By default 8 MiB for
        each thread, so that all threads together work on more than caches hold, but no more than
        a 32nd of the machine's memory.
    repeat : int
        Times that each counts, at least 1.

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
    >>> profile.copy > 0, profile.library("scipy", "complex128").along.at(64) > 0
    (True, True)
    """
    if client is not None and (
        not hasattr(client, "scheduler_info") or getattr(client, "asynchronous", False)
    ):
        refuse("client", client, "a distributed.Client that is not asynchronous, or None for this "
               "process", kind=ArgumentTypeError)
    repeat = parse_count("repeat", repeat)
    if nbytes is not None:
        nbytes = parse_count("nbytes", nbytes, LEAST_NBYTES)
    if path is not None:
        _refuse_unwritable(path)
    folder = config.get("bigfft.scratch.directory")
    if client is None:
        threads = usual_threads()
        nbytes = nbytes or usual_nbytes(threads, machine_nbytes())
        place, effort = "", Effort(threads, nbytes, repeat)
        with dask.config.set(scheduler="threads", pool=None):  # so that a number of threads counts
            profile = measure(effort, folder)
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
    hosts = hosts_of(workers)
    installed = client.run(usable)
    common = [name for name in installed[next(iter(installed))]
              if all(name in names for names in installed.values())]
    efforts = _efforts(workers, hosts, nbytes, repeat)
    asked = [
        client.submit(measure, effort, None, common,
                      workers=[address], allow_other_workers=False, pure=False)
        for address, effort in efforts.items()
    ]
    found = slowest(client.gather(asked))
    few = min(1.0, (nbytes or USUAL_NBYTES) / USUAL_NBYTES)
    shared: dict[str, Any] = {
        **disks_of(client, hosts, folder, int(few * DISK_NBYTES)),
        **network_speeds(client, list(workers), nbytes or USUAL_NBYTES, repeat),
        "pair": pair_seconds(repeat),  # ordering is done here, or on the scheduler
    }
    return replace(found, name=_cluster_name(hosts, found), **shared)


def _efforts(
    workers: dict[str, Any], hosts: dict[str, list[str]], nbytes: int | None, repeat: int
) -> dict[str, Effort]:
    """How much each worker measures: those of a host together as much as one that has it alone."""
    threads = {address: max(1, int(info["nthreads"])) for address, info in workers.items()}
    found = {}
    for addresses in hosts.values():
        every = sum(threads[address] for address in addresses)
        for address in addresses:
            part = usual_nbytes(every) * threads[address] // every
            found[address] = Effort(
                threads[address], nbytes or max(PART_NBYTES, part), repeat)
    return found


def _cluster_name(hosts: dict[str, list[str]], found: Profile) -> str:
    """What was measured of a cluster: how many workers share a host, its memory and its disk."""
    workers, most = sum(map(len, hosts.values())), max(map(len, hosts.values()))
    shared = f", up to {most} share one and its disk" if most > 1 else ""
    where = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"{workers} workers on {where}{shared}: the slowest of {found.name}"
