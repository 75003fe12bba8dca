"""Transforms on a `dask.distributed` cluster: made ready, watched, and shown.

A client asks here, and looks at its runs while they go on::

    register -> worker.py     makes each worker ready and counts what it does
                scheduler.py  follows every run, gathers the workers' counters and gives them out:
                              state and following here, /bigfft/json, gauges for Prometheus
                dashboard.py  the page /bigfft

Plugins go to the scheduler, which sends those for workers to every worker that is there, is
restarted, or comes later.

Imports `planning`, `watch` and this room.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Client, as_completed, futures_of
from distributed.protocol.pickle import loads

from dask_bigfft.cluster.scheduler import WatchScheduler
from dask_bigfft.cluster.worker import METRIC, MemoryPlugin, WatchWorker, own_version
from dask_bigfft.errors import ClusterError, parse_count, refuse
from dask_bigfft.events import RECORD, PlanRecord
from dask_bigfft.planning.environment import refuse_asynchronous
from dask_bigfft.watch.progress import Display

__all__ = ["register", "unregister"]

#: Asks a process for its version; only built-in names travel, so it works without the package.
_THERE = "__import__('importlib.util').util.find_spec('dask_bigfft')"
_ASK = f"{_THERE} and __import__('dask_bigfft').__version__"

#: Seconds between two looks at a cluster.
POLL = 0.3


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
    given = {"prefault": prefault, "pinned": pinned, "block_size": block_size}
    for name, nbytes in given.items():
        if nbytes is not None:
            parse_count(name, nbytes, 1 if name == "block_size" else 0)
    check_versions(client, own_version())
    known = client.run_on_scheduler(_memory_numbers)
    before = known or (0, 0, parse_bytes(dask.config.get("array.chunk-size")))
    wanted = tuple(
        old if new is None else new for new, old in zip(given.values(), before, strict=True)
    )
    if known not in (None, wanted):
        client.unregister_worker_plugin(MemoryPlugin.name)
    # Devices come first: memory that is taken from then on is pinned.
    for plugin in (WatchWorker(), MemoryPlugin(*wanted), WatchScheduler()):
        client.register_plugin(plugin)
    client.run(_tell, on_error="return")


async def _tell(dask_worker: Any) -> None:
    """Send the scheduler the worker's metrics, which plans for the cluster ask for.

    Otherwise that waits for the next heartbeat, and a plan made meanwhile does not know of devices.
    """
    await dask_worker.heartbeat()


def _memory_numbers(dask_scheduler: Any = None) -> tuple[int, int, int] | None:
    """Return the numbers of bytes that workers make ready; None where nothing is registered."""
    registered = dask_scheduler.worker_plugins.get(MemoryPlugin.name)
    if registered is None:
        return None
    plugin = loads(registered)
    return plugin.prefault, plugin.pinned, plugin.block


def check_versions(client: Client, version: str) -> None:
    """Refuse a cluster that has another version of the package than this process has.

    Raises
    ------
    ClusterError
        With all processes that differ.
    """
    found = {"the scheduler": client.run_on_scheduler(eval, _ASK)}
    answers = client.run(eval, _ASK, on_error="return")
    found |= {f"worker {address}": answer for address, answer in answers.items()}
    wrong = "; ".join(
        f"{place}: {answer or 'not there'}" for place, answer in found.items() if answer != version
    )
    if wrong:
        raise ClusterError(
            f"dask_bigfft differs between this client, which has version {version}, and its "
            f"cluster ({wrong}): install the same version in all of them and start them again"
        )


def unregister(client: Client) -> None:
    """Undo `register`: plugins leave and give back idle memory, the page leaves the menu.

    Nothing happens where nothing is registered.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    """
    refuse_asynchronous(client)
    for name in client.run_on_scheduler(_leave):
        client.unregister_worker_plugin(name)


async def _leave(dask_scheduler: Any = None) -> list[str]:
    """Take the scheduler's plugin away; return the names of the workers' plugins."""
    plugin = dask_scheduler.plugins.get(METRIC)
    if plugin is not None:
        await plugin.close()
        dask_scheduler.remove_plugin(METRIC)
    return [name for name in dask_scheduler.worker_plugins if name.startswith(METRIC)]


# --- a client's view of its runs ------------------------------------------------------------


def state(client: Any) -> dict[str, Any]:
    """Return all runs and workers that a cluster's scheduler knows; `register` has been called."""
    found: dict[str, Any] = client.sync(client.scheduler.bigfft_state)
    return found


def cluster_records(client: Any, token: str) -> dict[str, PlanRecord]:
    """Return the measurements of a plan on each worker that is there and has some.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    token : str
        Of the plan in task names.
    """
    refuse_asynchronous(client)
    found = client.run(_record, token)
    return {address: record for address, record in found.items() if record is not None}


def _record(token: str, dask_worker: Any = None) -> PlanRecord | None:
    return RECORD.plan(token, str(dask_worker.address))


@contextlib.contextmanager
def following(client: Any, display: Display | None) -> Iterator[None]:
    """Show, while the block of code lasts, the transforms that begin in it, whoever sends them.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    display : Display or None
        Where.
    """
    if display is None:
        yield
        return
    register(client)
    begun = float(state(client)["time"])
    stop = threading.Event()

    def runs() -> list[dict[str, Any]]:
        return [run for run in state(client)["runs"] if run["started"] >= begun]

    def look() -> None:
        while not stop.wait(POLL):
            with contextlib.suppress(OSError):  # the next look may find the scheduler again
                display.show(runs())

    thread = threading.Thread(target=look, name="bigfft-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with contextlib.suppress(OSError):
            display.show(runs(), last=True)


def wait_for(client: Any, collections: Any) -> None:
    """Wait for futures, or for collections that have some, and raise what a task has raised.

    Whatever ends the waiting early, Ctrl-C too, cancels all of them.
    """
    futures = futures_of(collections)
    try:
        for future in as_completed(futures):
            if future.status != "finished":
                future.result()
    except BaseException:
        client.cancel(futures)
        raise
