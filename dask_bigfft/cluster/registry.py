"""Making a cluster ready for transforms, and undoing it.

Plugins go to the scheduler, which sends those for workers to every worker that is there, is
restarted, or comes later. `plugins` is the place where further worker plugins are added.

Imports `planning` and this room.
"""

from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Client
from distributed.protocol.pickle import loads

from dask_bigfft.cluster.devices import PinnedTransferPlugin, StreamWorkerPlugin
from dask_bigfft.cluster.scheduler import WatchScheduler
from dask_bigfft.cluster.worker import METRIC, PrefaultPlugin, WatchWorker, own_version
from dask_bigfft.errors import ClusterError, parse_count, refuse
from dask_bigfft.planning.environment import refuse_asynchronous

__all__ = ["plugins", "register", "unregister"]

#: Asks a process for its version; only built-in names travel, so it works without the package.
_ASK = "__import__('dask_bigfft').__version__"


#: Bytes of a worker that are to be ready, and of the blocks that they are for.
Ready = tuple[int, int]


def plugins(version: str, prefault: Ready, pinned: Ready) -> list[Any]:
    """Return the plugins in the order in which they are registered, workers' first.

    Devices come first: memory that is taken from then on is pinned.
    """
    return [
        StreamWorkerPlugin(),
        PinnedTransferPlugin(*pinned),
        PrefaultPlugin(*prefault),
        WatchWorker(version),
        WatchScheduler(version),
    ]


def register(
    client: Client,
    *,
    prefault: int | None = None,
    pinned: int | None = None,
    block_size: int | None = None,
) -> None:
    """Make a cluster ready for transforms, and let them be seen.

    Workers open their devices, configure their arena and load compiled code before their first
    task, count what they do, and show the phases in dask's fine performance metrics. The scheduler
    gets the page ``/bigfft`` on its dashboard, linked from the menu, ``/bigfft/json``, and gauges
    for Prometheus. Workers that are restarted or come later are made ready, too.

    Where a cluster has been registered before, only numbers of bytes that are given and differ from
    those before do anything: all workers give back the memory that no block uses, and make ready
    what is asked for now. Devices stay open, and what was counted stays.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    prefault : int, optional
        Bytes of each worker's arena to be made ready before its first task, those that are pinned
        among them; by default what was registered before, or none: memory is taken when it is first
        needed, and kept.
    pinned : int, optional
        Bytes of host memory that are made ready for the devices of each worker that has any, before
        its first task; by default what was registered before, or none.
    block_size : int, optional
        Bytes of the blocks that this memory is for: it is made ready in buffers of that size, which
        are lent to blocks of two thirds of it and more (unless they are pinned, also in parts to
        smaller ones). By default what was registered before, or dask's ``array.chunk-size``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the client is an asynchronous one, or a number of bytes is none.
    ClusterError
        If the scheduler or a worker has not got this package, or another version of it.

    See Also
    --------
    unregister : Undoes it.
    """
    if not isinstance(client, Client):
        refuse("client", client, "a distributed.Client that is connected to a cluster")
    refuse_asynchronous(client)
    for name, nbytes in (("prefault", prefault), ("pinned", pinned)):
        if nbytes is not None:
            parse_count(name, nbytes, 0)
    if block_size is not None:
        parse_count("block_size", block_size, 1)
    usual = parse_bytes(dask.config.get("array.chunk-size"))
    version = own_version()
    check_versions(client, version)
    known = client.run_on_scheduler(_numbers)
    ready = dict[str, Ready]()
    for plugin, given in ((PrefaultPlugin, prefault), (PinnedTransferPlugin, pinned)):
        nbytes, size = known.get(plugin.name, (0, usual))
        ready[plugin.name] = (
            nbytes if given is None else given,
            size if block_size is None else block_size,
        )
    if known and ready != known:
        for name in known:  # both leave before either comes: they share the arena
            client.unregister_worker_plugin(name)
    for found in plugins(version, ready[PrefaultPlugin.name], ready[PinnedTransferPlugin.name]):
        client.register_plugin(found)
    client.run(_tell, on_error="return")


async def _tell(dask_worker: Any) -> None:
    """Tell the scheduler what the plugins measure, which plans for the cluster ask it for.

    Otherwise that waits for the next heartbeat, and a plan made meanwhile does not know of devices.
    """
    await dask_worker.heartbeat()


def _numbers(dask_scheduler: Any = None) -> dict[str, Ready]:
    """What the scheduler's plugins make ready on workers, by the plugin's name."""
    registered = dask_scheduler.worker_plugins
    names = (PrefaultPlugin.name, PinnedTransferPlugin.name)
    there = {name: loads(registered[name]) for name in names if name in registered}
    return {name: (int(found.nbytes), int(found.block)) for name, found in there.items()}


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
    refuse_asynchronous(client)
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
