"""Transforms on a `dask.distributed` cluster: made ready, watched, and shown.

::

    register -> worker.py     makes each worker ready and counts what it does
                scheduler.py  follows every run and gathers the workers' counters
                routes.py     /bigfft/json and gauges      dashboard.py  the page /bigfft
    follow.py   a client looks at its runs while they go on
"""

from dask_bigfft.cluster.registry import register, unregister

__all__ = ["register", "unregister"]
