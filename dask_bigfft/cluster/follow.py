"""A client's view of transforms that run on its cluster.

Imports `watch` and this room.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Set
from typing import Any

from distributed import futures_of

from dask_bigfft.cluster.registry import register
from dask_bigfft.watch.display import Display

__all__ = ["follow", "following", "state", "wait_for"]

#: Seconds between two looks at a cluster.
POLL = 0.3


def state(client: Any, tokens: Set[str] | None = None) -> dict[str, Any]:
    """Return all runs and workers that a cluster's scheduler knows, or the runs of some plans.

    Parameters
    ----------
    client : distributed.Client
        Connected to a cluster where `register` has been called.
    tokens : set of str, optional
        Of plans, as they stand in task names.
    """
    wanted = None if tokens is None else sorted(tokens)
    found: dict[str, Any] = client.sync(client.scheduler.bigfft_state, tokens=wanted)
    return found


@contextlib.contextmanager
def following(
    client: Any, display: Display | None, tokens: Set[str] | None = None
) -> Iterator[None]:
    """Show, while the block of code lasts, the transforms that begin in it.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    display : Display or None
        Where.
    tokens : set of str, optional
        Of the plans to be shown; by default all that begin now, whoever has sent them.
    """
    if display is None:
        yield
        return
    register(client)
    begun = float(state(client, set())["time"])
    stop = threading.Event()

    def runs() -> list[dict[str, Any]]:
        return [run for run in state(client, tokens)["runs"] if run["started"] >= begun]

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
            display.close(runs())


def follow(client: Any, start: Callable[[], list[Any]], display: Display | None) -> None:
    """Wait for what `start` sends to a cluster, and show meanwhile how far it is.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    start : callable
        Returns the futures.
    display
        As for `following`.

    Raises
    ------
    Exception
        What a task has raised; the others are cancelled.
    """
    with following(client, display):
        wait_for(client, start())


def wait_for(client: Any, collections: Any) -> None:
    """Wait for futures, or for collections that have some, and raise what a task has raised.

    Whatever ends the waiting early, Ctrl-C too, cancels all of them.
    """
    futures = futures_of(collections)
    try:
        while not all(future.done() for future in futures):
            time.sleep(POLL / 3)
            if any(future.status in ("error", "cancelled", "lost") for future in futures):
                break
        for future in futures:
            if future.status != "finished":
                future.result()
    except BaseException:
        client.cancel(futures)
        raise
