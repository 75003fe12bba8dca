"""Preparation and monitoring of transforms on a `dask.distributed` cluster.

This file is the client's side::

    register -> worker.py     prepares each worker and counts its work
                scheduler.py  follows every run and collects the workers' counters for clients,
                              /bigfft/json, and gauges for Prometheus
                dashboard.py  the page /bigfft

The scheduler sends the plugins for workers to every worker, also to new and restarted ones. For
that, a worker imports this file and `worker`, and little else, because it may have little memory.
What only the client or the scheduler needs is imported there.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import dask
from dask.utils import parse_bytes
from distributed import Client, as_completed, futures_of
from distributed.protocol.pickle import loads

from dask_bigfft.cluster.worker import METRIC, MemoryPlugin, WatchWorker
from dask_bigfft.config import own_version
from dask_bigfft.errors import ClusterError, parse_count, raise_invalid
from dask_bigfft.events import RECORD, PlanRecord, raise_if_asynchronous

if TYPE_CHECKING:
    from dask_bigfft.watch.progress import Display

__all__ = ["register", "unregister"]
__dir__ = __all__.copy  # so that completion shows these names alone

#: Expression for the version in a process; it works without the package, by built-in names only.
_THERE = "__import__('importlib.util').util.find_spec('dask_bigfft')"
_ASK = f"{_THERE} and __import__('dask_bigfft').__version__"

#: Seconds between two queries of a cluster.
POLL = 0.3


def register(
    client: Client,
    *,
    prefault: int | None = None,
    pinned: int | None = None,
    block_size: int | None = None,
) -> None:
    """Prepare a cluster for transforms and monitor them.

    Workers open their devices and configure their arena before their first task. They count their
    work and show its phases in dask's fine performance metrics. The scheduler gets the page
    ``/bigfft`` in the menu of its dashboard, ``/bigfft/json``, and gauges for Prometheus. New and
    restarted workers are prepared, too.

    A worker without devices needs less than 30 MiB for this, beside the bytes of `prefault`.

    A second call changes only the numbers of bytes that are given and differ from the earlier ones.
    All workers then free their idle memory and prepare the new amount. Devices stay open, and
    counters keep their values.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    prefault : int, optional
        Bytes of each worker's arena to prefault before its first task, including pinned bytes. The
        default is the registered number, or none: memory is then allocated at its first use and
        kept.
    pinned : int, optional
        Bytes of host memory to pin before the first task of each worker that has devices. The
        default is the registered number, or none.
    block_size : int, optional
        Bytes of the blocks that use this memory. It is prepared in buffers of this size, which fit
        blocks of two thirds of it and more. The default is the registered number, or dask's
        ``array.chunk-size``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the client is not a `distributed.Client`, or asynchronous, or if a number of bytes is
        invalid.
    ClusterError
        If the scheduler or a worker lacks this package, or has another version.

    See Also
    --------
    unregister : Reverts this.
    """
    from dask_bigfft.cluster.scheduler import WatchScheduler  # needs 90 MiB, for the dashboard

    if not isinstance(client, Client):
        raise_invalid("client", client, "a distributed.Client that is connected to a cluster")
    raise_if_asynchronous(client)
    if prefault is not None:
        prefault = parse_count("prefault", prefault, 0)
    if pinned is not None:
        pinned = parse_count("pinned", pinned, 0)
    if block_size is not None:
        block_size = parse_count("block_size", block_size, 1)
    check_versions(client, own_version())
    registered = client.run_on_scheduler(_memory_numbers)
    old_prefault, old_pinned, old_block_size = registered or (
        0,
        0,
        parse_bytes(dask.config.get("array.chunk-size")),
    )
    numbers = (
        old_prefault if prefault is None else prefault,
        old_pinned if pinned is None else pinned,
        old_block_size if block_size is None else block_size,
    )
    if registered not in (None, numbers):
        client.unregister_worker_plugin(MemoryPlugin.name)
    # Devices come first, because memory allocated after they are opened is pinned.
    for plugin in (WatchWorker(), MemoryPlugin(*numbers), WatchScheduler()):
        client.register_plugin(plugin)
    client.run(_tell, on_error="return")


async def _tell(dask_worker: Any) -> None:
    """Send the worker's metrics to the scheduler at once.

    A plan that is made before the next heartbeat would not know of the worker's devices.
    """
    await dask_worker.heartbeat()


def _memory_numbers(dask_scheduler: Any = None) -> tuple[int, int, int] | None:
    """Return the registered numbers of bytes; None if nothing is registered."""
    registered = dask_scheduler.worker_plugins.get(MemoryPlugin.name)
    return None if registered is None else loads(registered).numbers


def check_versions(client: Client, version: str) -> None:
    """Raise an error if a process of the cluster has another version of the package.

    Raises
    ------
    ClusterError
        Lists all processes that differ.
    """
    versions = {"the scheduler": client.run_on_scheduler(eval, _ASK)}
    for address, answer in client.run(eval, _ASK, on_error="return").items():
        versions[f"worker {address}"] = answer
    wrong = "; ".join(
        f"{process}: {answer or 'not there'}"
        for process, answer in versions.items()
        if answer != version
    )
    if wrong:
        raise ClusterError(
            f"dask_bigfft differs between this client, which has version {version}, and its "
            f"cluster ({wrong}): install the same version in all of them and start them again"
        )


def unregister(client: Client) -> None:
    """Revert `register`: remove the plugins and the dashboard page, and free idle memory.

    Nothing happens if nothing is registered.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    """
    raise_if_asynchronous(client)
    for name in client.run_on_scheduler(_leave):
        client.unregister_worker_plugin(name)


async def _leave(dask_scheduler: Any = None) -> list[str]:
    """Remove the scheduler's plugin; return the names of the workers' plugins."""
    plugin = dask_scheduler.plugins.get(METRIC)
    if plugin is not None:
        await plugin.close()
        dask_scheduler.remove_plugin(METRIC)
    return [name for name in dask_scheduler.worker_plugins if name.startswith(METRIC)]


# --- a client's view of its runs ------------------------------------------------------------


def state(client: Any) -> dict[str, Any]:
    """Return the runs and workers known to the scheduler of a registered cluster."""
    return cast("dict[str, Any]", client.sync(client.scheduler.bigfft_state))


def cluster_records(client: Any, token: str) -> dict[str, PlanRecord]:
    """Return the measurements of a plan by the address of each worker that has some.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    token : str
        Token of the plan in task names.
    """
    raise_if_asynchronous(client)
    records = client.run(_record, token)
    return {address: record for address, record in records.items() if record is not None}


def _record(token: str, dask_worker: Any = None) -> PlanRecord | None:
    return RECORD.plan(token, str(dask_worker.address))


@contextlib.contextmanager
def following(client: Any, display: "Display") -> Iterator[None]:
    """Context manager that shows all transforms of the cluster that begin inside it.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    display : Display
        Display of the progress.
    """
    register(client)
    begun = float(state(client)["time"])
    stop = threading.Event()

    def show(last: bool = False) -> None:
        with contextlib.suppress(OSError):  # the next look may find the scheduler again
            runs = [run for run in state(client)["runs"] if run["started"] >= begun]
            display.show(runs, last)

    def look() -> None:
        while not stop.wait(POLL):
            show()

    thread = threading.Thread(target=look, name="bigfft-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        show(last=True)


def wait_for(client: Any, collections: Any) -> None:
    """Wait for futures, or for the futures of collections, and raise the first error of a task.

    An error or Ctrl-C cancels all futures.
    """
    futures = futures_of(collections)
    try:
        for future in as_completed(futures):
            if future.status != "finished":
                future.result()
    except BaseException:
        client.cancel(futures)
        raise
