"""How many tasks run at a time in this process: what work that runs alone may share out.

Imports dask's configuration and `events`, which looks a distributed worker up if there is one.
"""

import os

import dask.config

from dask_bigfft.events import current_worker

__all__ = ["task_threads"]

#: Dask's names of the scheduler that runs one task after the other.
ONE_AT_A_TIME = ("sync", "synchronous", "single-threaded")


def task_threads() -> int:
    """Return how many tasks run at a time here: on a worker its threads, else those of dask's pool.

    >>> with dask.config.set(num_workers=3):
    ...     task_threads()
    3
    >>> with dask.config.set(scheduler="sync"):
    ...     task_threads()
    1
    """
    worker = current_worker()
    if worker is not None:
        return int(worker.state.nthreads)
    if dask.config.get("scheduler", None) in ONE_AT_A_TIME:
        return 1
    return int(dask.config.get("num_workers", None) or os.cpu_count() or 1)
