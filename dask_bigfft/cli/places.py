"""Schedulers for the tasks of a command: threads, one thread, or a cluster.

distributed is imported only for a cluster.
"""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import dask.array as da
import dask.config
from dask.system import CPU_COUNT

from dask_bigfft.errors import DamagedShardError, raise_invalid
from dask_bigfft.watch.progress import Display, LocalProgress

#: Seconds allowed for closing a client or a cluster.
CLOSING = 60.0


@dataclass
class Place:
    """Thread pool or cluster that runs tasks."""

    pool: ThreadPoolExecutor | None = None
    client: Any = None
    cluster: Any = None

    def store(self, result: da.Array, target: Any, display: Display | None) -> None:
        """Store a result and show the progress. After an error all tasks are stopped.

        Damaged scratch files are an exception: the run repairs them and stores the result again.
        """
        stored: Any = da.store(result, target, lock=False, compute=False)
        try:
            if self.client is None:
                with LocalProgress(display) if display else contextlib.nullcontext():
                    stored.compute()
            else:
                self._store_on_cluster(stored, display)
        except DamagedShardError:
            raise
        except BaseException:
            self.stop()
            raise

    def _store_on_cluster(self, stored: Any, display: Display | None) -> None:
        """Compute a lazy value on the cluster and show the progress."""
        from dask_bigfft.cluster import following, wait_for

        with following(self.client, display) if display else contextlib.nullcontext():
            wait_for(self.client, self.client.persist(stored))

    def stop(self) -> None:
        """Wait for running tasks and cancel the others."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        with waiting(signal.SIGINT, signal.SIGTERM):  # an interrupted close may hang
            for closable in (self.client, self.cluster):
                if closable is not None:
                    with contextlib.suppress(TimeoutError):
                        closable.close(timeout=CLOSING)


@contextlib.contextmanager
def place(scheduler: str, workers: int | None) -> Iterator[Place]:
    """Yield the place where a command's tasks run; dask's settings and the planner then use it.

    Parameters
    ----------
    scheduler
        "sync", "threads", "processes", or the address of a scheduler.
    workers
        Number of threads or processes, all processors by default; None for "sync" and for a
        scheduler at an address, which have workers of their own.
    """
    if scheduler == "sync":
        with dask.config.set(scheduler="sync"):
            yield Place()
    elif scheduler == "threads":
        count = workers or CPU_COUNT
        pool = ThreadPoolExecutor(count, thread_name_prefix="bigfft")
        with pool, dask.config.set(scheduler="threads", pool=pool, num_workers=count):
            yield Place(pool)
    else:
        where = Place()
        try:
            if scheduler == "processes":
                where.cluster = _local_cluster(workers)
            where.client = _client(where.cluster, scheduler)
            yield where
        finally:
            where.stop()


def _client(cluster: Any, address: str) -> Any:
    """Return a client of a local cluster, or of the scheduler at an address."""
    from distributed import Client

    try:
        return Client(cluster or address, timeout=10)
    except (OSError, ValueError) as error:
        need = f"the address of a scheduler that answers ({error})"
        raise_invalid("scheduler", address, need)


def _local_cluster(workers: int | None) -> Any:
    """Return a new cluster of processes on this machine."""
    from distributed import LocalCluster

    threads = max(1, CPU_COUNT // workers) if workers else None
    # Ctrl-C reaches every process of a terminal, and killed workers cannot stop in order. Processes
    # that are started here inherit that they ignore it.
    with handled(signal.SIGINT, signal.SIG_IGN):
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            silence_logs="CRITICAL",
            dashboard_address="127.0.0.1:0",  # any free port
            scheduler_kwargs={"dashboard": False},
        )


@contextlib.contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Install a signal handler temporarily, if this is the main thread."""
    try:
        before = signal.signal(number, handler)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def waiting(*numbers: int) -> Iterator[None]:
    """Delay signals until the end of the block, also if it raises an error.

    A signal that arrives several times is delivered once. Outside of the main thread nothing is
    delayed.
    """
    pending: list[int] = []

    def postpone(number: int, frame: object) -> None:
        pending.append(number)

    try:
        with contextlib.ExitStack() as stack:
            for number in numbers:
                stack.enter_context(handled(number, postpone))
            yield
    finally:
        for number in dict.fromkeys(pending):
            signal.raise_signal(number)
