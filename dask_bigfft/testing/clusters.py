"""Clusters of real processes that begin within a moment, so that each may be ended in its own way.

Scheduler, workers and clients are children of one process that has imported everything. All listen
on loopback only. May import every room; no room imports it.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import dask
from distributed import Client, Scheduler, Worker

from dask_bigfft.runs import run
from dask_bigfft.testing.traps import LONGEST

__all__ = ["Processes", "run_on", "started"]

#: Settings with which lost connections are noticed, and tried again, soon.
SETTINGS: Mapping[str, Any] = {
    "distributed.comm.timeouts.connect": "4s",
    "distributed.p2p.comm.retry.delay.min": "100ms",
    "distributed.p2p.comm.retry.delay.max": "1s",
}

#: What every process has imported when it begins.
PRELOADED = ["dask_bigfft.testing.clusters", "dask_bigfft.testing.dying_runs", "zarr"]


def started(target: Callable[..., object], *args: Any, **kwargs: Any) -> BaseProcess:
    """Return a process that has begun with a function of an importable module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=args, kwargs=kwargs)
    process.start()
    return process


def _run(serve: Callable[[], Coroutine[Any, Any, None]], settings: Mapping[str, Any]) -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # faults are what is wanted
    with dask.config.set(settings):
        asyncio.run(serve())


def _schedule(file: str, settings: Mapping[str, Any], port: int = 0) -> None:
    async def serve() -> None:
        async with Scheduler(
            host="127.0.0.1", port=port, dashboard_address="127.0.0.1:0", scheduler_file=file
        ) as scheduler:
            await scheduler.finished()

    _run(serve, settings)


def _work(file: str, folder: str, settings: Mapping[str, Any], threads: int) -> None:
    async def serve() -> None:
        async with Worker(
            scheduler_file=file,
            nthreads=threads,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=folder,
        ) as worker:
            await worker.finished()

    _run(serve, settings)


def run_on(file: str, said: str, *args: Any, **kwargs: Any) -> None:
    """Do a run from file to file on a cluster, and write what is raised into a file.

    Parameters
    ----------
    file : str
        Scheduler file of the cluster.
    said : str
        File that is written; empty where nothing is raised.
    *args, **kwargs
        As `dask_bigfft.run` takes them; `settings` may hold settings of dask.
    """
    text = ""
    with dask.config.set({**SETTINGS, **kwargs.pop("settings", {})}):
        try:
            Client(scheduler_file=file, timeout=LONGEST)
            run(*args, **kwargs)
        except Exception as error:
            text = f"{type(error).__name__} {error}"
    Path(said).write_text(text, encoding="utf-8")
    os._exit(1 if text else 0)  # without waiting for a scheduler that may be gone


class Processes:
    """A scheduler and workers, every one a process of its own.

    Parameters
    ----------
    folder : Path
        Of their files.
    workers : int
        How many.
    settings : mapping
        Of dask, in all these processes.
    threads : int
        Of each worker.
    """

    def __init__(
        self, folder: Path, workers: int, settings: Mapping[str, Any] = SETTINGS, threads: int = 1
    ) -> None:
        self.folder, self.settings, self.threads = folder, settings, threads
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = str(folder / "scheduler.json")
        self._all: list[BaseProcess] = []
        self._start_scheduler(0)
        for _ in range(workers):
            self.add_worker()

    def _start_scheduler(self, port: int) -> None:
        self.scheduler = started(_schedule, self.file, self.settings, port)
        self._all[:1] = [self.scheduler]
        end = time.monotonic() + LONGEST
        while not os.path.exists(self.file):
            if time.monotonic() > end:
                raise TimeoutError("the scheduler does not begin")
            time.sleep(0.01)

    def restart_scheduler(self) -> None:
        """Begin another scheduler at the address of the one that was killed."""
        self.scheduler.join()
        address = json.loads(Path(self.file).read_text(encoding="utf-8"))["address"]
        os.unlink(self.file)
        self._start_scheduler(int(address.rpartition(":")[2]))

    def add_worker(self) -> None:
        """Begin one more worker."""
        local = str(self.folder / "workers")
        self._all.append(started(_work, self.file, local, self.settings, self.threads))

    @property
    def alive(self) -> list[BaseProcess]:
        """Workers that run, or are stopped."""
        return [process for process in self._all[1:] if process.is_alive()]

    def close(self) -> None:
        """End all processes at once."""
        for process in self._all:
            process.kill()
        for process in self._all:
            process.join()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
