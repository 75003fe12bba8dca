"""`progress` and `report`: a user's view of a run, while it goes on and afterwards."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import dask.config
from dask.base import is_dask_collection, persist

from dask_bigfft.cluster import cluster_records, following, wait_for
from dask_bigfft.errors import refuse
from dask_bigfft.events import RECORD, task_threads
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planning.environment import running_client
from dask_bigfft.watch.progress import Display, LocalProgress, display_here
from dask_bigfft.watch.report import Report, RunReport

__all__ = ["progress", "report"]

#: Arrays that were shown last: their transforms, which a persisted array does not know any more.
_shown: dict[str, dict[str, Plan]] = {}
_KEPT = 64


def progress(*arrays: Any, stream: TextIO | None = None) -> Any:
    """Compute arrays, and show meanwhile how far their transforms are.

    Shows rounds, bytes, GB/s and the time left: as a line on a terminal, as a few lines in a file,
    as bars in a notebook. Works with dask's schedulers for one machine and with the distributed
    client that is there, whose cluster is then made ready by `dask_bigfft.cluster.register`.

    Ctrl-C stops it: no task is started any more, those that run end first, and what they have made
    is given back.

    Parameters
    ----------
    *arrays : dask collections
        What is computed, as by `dask.persist`: blocks stay in memory, where the scheduler is. None
        at all gives a context manager, which shows what is computed in the block of code.
    stream : text stream, optional
        Where to show it as text; by default stderr, or the notebook's cell.

    Returns
    -------
    The array with its blocks computed, a tuple of them if there are several, or a context manager.

    See Also
    --------
    report : What was measured, afterwards.

    Examples
    --------
    >>> import io
    >>> import dask.array as da
    >>> from dask_bigfft import fft
    >>> y = fft.fft(da.ones(4096, chunks=512))
    >>> with progress(stream=io.StringIO()):
    ...     total = abs(y).sum().compute()
    >>> float(total)
    4096.0
    """
    display = display_here(stream)
    if not arrays:
        return _showing(display)
    for array in arrays:
        if not is_dask_collection(array):
            refuse("arrays", type(array).__name__, "dask collections, such as dask arrays")
        _remember(array)
    with _showing(display):
        found = persist(*arrays)
        client = running_client()
        if client is not None:
            wait_for(client, found)
    return found[0] if len(found) == 1 else found


@contextlib.contextmanager
def _showing(display: Display) -> Iterator[None]:
    """Show what is computed meanwhile, and let nothing run on when it is interrupted."""
    client = running_client()
    if client is not None:
        with following(client, display):
            yield
        return
    with LocalProgress(display), _own_pool():
        yield


@contextlib.contextmanager
def _own_pool() -> Iterator[None]:
    """Let dask's threads be ours, unless somebody else has chosen some: then they can be stopped.

    Dask's own pool goes on with what it was given when a computation is interrupted.
    """
    scheduler, pool = (dask.config.get(key, None) for key in ("scheduler", "pool"))
    if pool is not None or scheduler not in (None, "threads", "threaded"):
        yield
        return
    count = task_threads()
    with ThreadPoolExecutor(count, thread_name_prefix="bigfft") as own:
        try:
            with dask.config.set(pool=own, num_workers=count):
                yield
        except BaseException:
            own.shutdown(wait=True, cancel_futures=True)
            raise


def _remember(array: Any) -> dict[str, Plan]:
    """Return the plans of an array's transforms by token, also after it was persisted."""
    name = str(getattr(array, "name", ""))
    found = transforms_in(array)
    if found:
        _shown[name] = found
        if len(_shown) > _KEPT:
            del _shown[next(iter(_shown))]
    return found or _shown.get(name, {})


def report(y: Any) -> Report:
    """Return what the transforms of an array took, against what was forecast.

    Parameters
    ----------
    y : dask array
        As it was before it was computed, or what `progress` has returned. It was computed in this
        process, or on the cluster that the client is connected to.

    Returns
    -------
    Report
        Prints as text; in a notebook it is a table and a picture. `Report.timeline` gives the
        picture as SVG.

    Raises
    ------
    ArgumentError
        If the array has no transform that is known here.

    Examples
    --------
    >>> import dask.array as da
    >>> from dask_bigfft import fft
    >>> y = fft.fft(da.ones(4096, chunks=512))
    >>> _ = y.compute(scheduler="sync")
    >>> print(report(y))  # doctest: +ELLIPSIS
    fft of (4096,) complex128: {X1} {X2}
      time     ...
    """
    plans = _remember(y) if is_dask_collection(y) else {}
    if not plans:
        wanted = "a dask array with a transform of dask_bigfft in its graph: the lazy array, not"
        refuse("y", type(y).__name__, f"{wanted} what persist() has made of it")
    client = running_client()
    runs = []
    for token, plan in plans.items():
        here = RECORD.plan(token)
        places = {} if here is None else {"": here}
        if here is None and client is not None:
            places = cluster_records(client, token)
        runs.append(RunReport(plan, token, places))
    runs.sort(key=lambda run: run.spans[0].start if run.spans else 0.0)
    return Report(tuple(runs))
