"""Clusters of real processes that start fast and can be killed one by one.

Scheduler, workers and clients are forked from one process that has imported everything. All listen
on loopback only.
"""

import asyncio
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler, Worker

from dask_bigfft.runs import run
from dask_bigfft.testing.traps import LONGEST, until

#: Settings that detect lost connections and retry them soon.
SETTINGS: Mapping[str, Any] = {
    "distributed.comm.timeouts.connect": "4s",
    "distributed.p2p.comm.retry.delay.min": "100ms",
    "distributed.p2p.comm.retry.delay.max": "1s",
}

#: Modules that every process has imported when it starts.
PRELOADED = ["dask_bigfft.testing.clusters", "dask_bigfft.testing.dying_runs", "zarr"]


def started(target: Callable[..., object], *args: Any, **kwargs: Any) -> BaseProcess:
    """Start a process with a function of an importable module, and return it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=args, kwargs=kwargs)
    process.start()
    return process


def _serve(kind: type[Scheduler | Worker], **options: Any) -> None:
    """Run a scheduler or a worker until it is closed."""

    async def serve() -> None:
        server: Any = kind(host="127.0.0.1", dashboard_address="127.0.0.1:0", **options)
        async with server:
            await server.finished()

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # faults are expected
    with dask.config.set(SETTINGS):
        asyncio.run(serve())


def run_on(file: str, said: str, *args: Any, **kwargs: Any) -> None:
    """Do a run from file to file on a cluster, and write the error into a file.

    Parameters
    ----------
    file : str
        Scheduler file of the cluster.
    said : str
        Output file, empty if there is no error.
    *args, **kwargs
        Arguments of `dask_bigfft.run`, and `settings` for dask.
    """
    text = ""
    with dask.config.set({**SETTINGS, **kwargs.pop("settings", {})}):
        try:
            Client(scheduler_file=file, timeout=LONGEST)
            run(*args, **kwargs)
        except Exception as error:
            text = f"{type(error).__name__} {error}"
    Path(said).write_text(text, encoding="utf-8")
    os._exit(1 if text else 0)  # does not wait for a scheduler that may be gone


class Processes(AbstractContextManager["Processes"]):
    """Cluster with a process for the scheduler and for each worker.

    Parameters
    ----------
    folder : Path
        Folder of their files.
    workers : int
        Number of workers.
    threads : int
        Threads of each worker.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        threads: int = 1,
    ) -> None:
        self.folder = folder
        self.threads = threads
        folder.mkdir(parents=True, exist_ok=True)
        self.file = str(folder / "scheduler.json")
        self._all = list[BaseProcess]()
        self._start_scheduler(0)
        for _ in range(workers):
            self.add_worker()

    def _start_scheduler(self, port: int) -> None:
        """Start a scheduler at a port, and wait until it can be reached."""
        self.scheduler = started(
            _serve,
            Scheduler,
            scheduler_file=self.file,
            port=port,
        )
        self._all[:1] = [self.scheduler]
        until(lambda: os.path.exists(self.file), "the scheduler does not begin")

    def restart_scheduler(self) -> None:
        """Start another scheduler at the address of the killed one."""
        self.scheduler.join()
        record = json.loads(Path(self.file).read_text(encoding="utf-8"))
        os.unlink(self.file)
        _, _, port = record["address"].rpartition(":")
        self._start_scheduler(int(port))

    def add_worker(self) -> None:
        """Start one more worker."""
        worker = started(
            _serve,
            Worker,
            nthreads=self.threads,
            local_directory=str(self.folder / "workers"),
            scheduler_file=self.file,
        )
        self._all.append(worker)

    @property
    def alive(self) -> list[BaseProcess]:
        """Workers that are running or stopped."""
        return [process for process in self._all[1:] if process.is_alive()]

    def close(self) -> None:
        """Kill all processes."""
        for process in self._all:
            process.kill()
        for process in self._all:
            process.join()

    def __exit__(self, *_: object) -> None:
        self.close()
