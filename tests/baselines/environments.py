"""The machines that plans are made for: equal settings, GPUs and workers on every real machine."""

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import yaml
from distributed import Client, LocalCluster

import dask_bigfft
from dask_bigfft.testing.devices import simulated_devices

from .requests import Request


@functools.cache
def default_settings() -> dict[str, Any]:
    """Return the settings that the package ships."""
    path = Path(dask_bigfft.__file__).with_name("bigfft.yaml")
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return settings


@contextlib.contextmanager
def fixed_settings(folder: Path, threads: int = 4, **settings: Any) -> Iterator[None]:
    """Set every setting to its default or to the given value, and the number of threads.

    Measurements of this machine are out of reach: `folder` has none.
    """
    fixed = {
        "bigfft.wisdom.directory": str(folder),
        "bigfft.scratch.directory": str(folder),
        "bigfft.kernel": "scipy",
        "num_workers": threads,
    }
    with (
        dask.config.set(default_settings()),
        dask.config.set({**fixed, **settings}),
        dask.config.set(scheduler=None, pool=None),
    ):
        yield


@contextlib.contextmanager
def cluster_of(workers: int, threads: int, **options: Any) -> Iterator[Client]:
    """Start a cluster in this process, and make it the one that plans are made for."""
    defaults = {
        "processes": False,
        "dashboard_address": "127.0.0.1:0",
        "memory_limit": "16 GiB",
    }
    cluster = LocalCluster(n_workers=workers, threads_per_worker=threads, **{**defaults, **options})
    with cluster, Client(cluster) as client:
        yield client


@contextlib.contextmanager
def environment_of(request: Request, folder: Path) -> Iterator[None]:
    """Set the settings of a request and simulate its GPUs. Its cluster is not started."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(fixed_settings(folder, request.threads, **request.settings))
        if request.gpus:
            stack.enter_context(simulated_devices(request.gpu_nbytes, request.gpus))
        yield


def by_cluster(requests: list[Request]) -> dict[tuple[int, int], list[Request]]:
    """Return requests by the processes and threads of their cluster, (1, 0) without one."""
    groups: dict[tuple[int, int], list[Request]] = {}
    for request in requests:
        size = (request.workers, request.threads) if request.workers > 1 else (1, 0)
        groups.setdefault(size, []).append(request)
    return groups


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Make a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="bigfft-baselines-") as name:
        yield Path(name)
