"""Making a cluster ready for transforms, and undoing it.

Plugins go to the scheduler, which sends those for workers to every worker that is there, is
restarted, or comes later. `plugins` is the place where further worker plugins are added.

Imports this room.
"""

from typing import Any

from distributed import Client

from dask_bigfft.cluster.devices import PinnedTransferPlugin, StreamWorkerPlugin
from dask_bigfft.cluster.scheduler import WatchScheduler
from dask_bigfft.cluster.worker import METRIC, WatchWorker, own_version
from dask_bigfft.errors import ClusterError, refuse

__all__ = ["plugins", "register", "unregister"]

#: Asks a process for its version; only built-in names travel, so it works without the package.
_ASK = "__import__('dask_bigfft').__version__"


def plugins(version: str, prefault: int, pinned: int = 0) -> list[Any]:
    """Return the plugins in the order in which they are registered, workers' first.

    Devices come first: memory that is taken from then on is pinned.
    """
    return [
        StreamWorkerPlugin(), PinnedTransferPlugin(pinned),
        WatchWorker(version, prefault), WatchScheduler(version),
    ]


def register(client: Client, *, prefault: int = 0, pinned: int = 0) -> None:
    """Make a cluster ready for transforms, and let them be seen.

    Workers open their devices, configure their arena and load compiled code before their first
    task, count what they do, and show the phases in dask's fine performance metrics. The scheduler
    gets the page ``/bigfft`` on its dashboard, linked from the menu, ``/bigfft/json``, and gauges
    for Prometheus. Workers that are restarted or come later are made ready, too. Calling it again
    does nothing.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    prefault : int
        Bytes of each worker's arena to be made ready before its first task; by default none: memory
        is taken when it is first needed, and kept.
    pinned : int
        Bytes of host memory that are made ready for the devices of each worker that has any, before
        its first task.

    Raises
    ------
    ClusterError
        If the scheduler or a worker has not got this package, or another version of it.

    See Also
    --------
    unregister : Undoes it.
    """
    if not isinstance(client, Client):
        refuse("client", client, "a distributed.Client that is connected to a cluster")
    for name, nbytes in (("prefault", prefault), ("pinned", pinned)):
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            refuse(name, nbytes, "a number of bytes of at least 0")
    version = own_version()
    check_versions(client, version)
    for plugin in plugins(version, prefault, pinned):
        client.register_plugin(plugin)


def check_versions(client: Client, version: str) -> None:
    """Refuse a cluster that has another version of the package than this process has.

    Raises
    ------
    ClusterError
        With all processes that differ.
    """
    found = {"the scheduler": _of_scheduler(client)}
    answers = client.run(eval, _ASK, on_error="return")
    found |= {f"worker {address}": answer for address, answer in answers.items()}
    wrong = {
        place: "not there" if isinstance(answer, BaseException) else str(answer)
        for place, answer in found.items()
        if answer != version
    }
    if wrong:
        listed = "; ".join(f"{place}: {answer}" for place, answer in wrong.items())
        raise ClusterError(
            f"dask_bigfft differs between this client, which has version {version}, and its "
            f"cluster ({listed}): install the same version in all of them and start them again"
        )


def _of_scheduler(client: Client) -> Any:
    try:
        return client.run_on_scheduler(eval, _ASK)
    except ImportError as error:
        return error


def unregister(client: Client) -> None:
    """Undo `register`: plugins leave and give back idle memory, the page leaves the menu.

    Nothing happens where nothing is registered.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    """
    names = client.run_on_scheduler(_leave)
    for name in names:
        client.unregister_worker_plugin(name)


async def _leave(dask_scheduler: Any = None) -> list[str]:
    """Take the scheduler's plugin away; return the names of the workers' plugins."""
    plugin = dask_scheduler.plugins.get(METRIC)
    if plugin is not None:
        await plugin.close()
        dask_scheduler.remove_plugin(METRIC)
    return [name for name in dask_scheduler.worker_plugins if name.startswith(METRIC)]
