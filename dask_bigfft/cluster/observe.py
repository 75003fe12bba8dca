"""`progress` and `report`: the progress of a run, and its measurements."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import dask.config
from dask.base import is_dask_collection, persist

from dask_bigfft.cluster import cluster_records, following, wait_for
from dask_bigfft.errors import raise_invalid
from dask_bigfft.events import RECORD, PlanRecord, running_client, task_threads
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.planner.plan import Plan
from dask_bigfft.watch.progress import Display, LocalProgress, display_here
from dask_bigfft.watch.report import Report, RunReport

#: Transforms of the latest arrays by name, because a persisted array has lost its plans.
_shown: dict[str, dict[str, Plan]] = {}

#: Maximum number of these arrays.
_MOST_SHOWN = 64


def progress(*arrays: Any, stream: TextIO | None = None) -> Any:
    """Compute arrays, and show the progress of their transforms.

    The display shows the stage, bytes, speed and remaining time: as a bar of tqdm on a terminal if
    tqdm is installed, as a few lines in a file, and as a table in a notebook. It works with dask's
    schedulers for one machine, and with the current distributed client, whose cluster is prepared
    by `dask_bigfft.cluster.register`.

    Ctrl-C stops the computation: running tasks finish, no others start, and the memory of their
    results is freed. With a context manager, running tasks may finish after the interrupt.

    Parameters
    ----------
    *arrays : dask collections
        Arrays to compute as by `dask.persist`, with their blocks kept in memory. Without arrays the
        result is a context manager that shows all computations inside it.
    stream : text stream, optional
        Stream for text; by default stderr, or the notebook's cell.

    Returns
    -------
    The array with its blocks computed, a tuple of them if there are several, or a context manager.

    See Also
    --------
    report : Measurements of finished transforms.

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
            raise_invalid("arrays", type(array).__name__, "dask collections, such as dask arrays")
        _remember(array)
    with _showing(display):
        computed_arrays = _persisted(arrays)
        client = running_client()
        if client is not None:
            wait_for(client, computed_arrays)
    return computed_arrays[0] if len(computed_arrays) == 1 else computed_arrays


def _showing(display: Display) -> Any:
    """Return a context manager that shows computations."""
    client = running_client()
    return LocalProgress(display) if client is None else following(client, display)


def _persisted(arrays: tuple[Any, ...]) -> Any:
    """Return the computed arrays. An interrupt is raised when running tasks have finished.

    In dask's own pool they would go on after it.
    """
    scheduler = dask.config.get("scheduler", None)
    pool = dask.config.get("pool", None)
    if running_client() or pool or scheduler not in (None, "threads", "threaded"):
        return persist(*arrays)
    with ThreadPoolExecutor(task_threads(), thread_name_prefix="bigfft") as own_pool:
        return persist(*arrays, pool=own_pool)


def _remember(array: Any) -> dict[str, Plan]:
    """Return the plans of an array's transforms by token, also of a persisted array."""
    name = str(getattr(array, "name", ""))
    plans = transforms_in(array)
    if not plans:
        return _shown.get(name, {})
    _shown[name] = plans
    if len(_shown) > _MOST_SHOWN:
        del _shown[next(iter(_shown))]
    return plans


def _records(token: str) -> dict[str, PlanRecord]:
    """Return the measurements of a plan by worker; those of this process have no address."""
    own_record = RECORD.plan(token)
    if own_record is not None:
        return {"": own_record}
    client = running_client()
    return {} if client is None else cluster_records(client, token)


def report(y: Any) -> Report:
    """Return the measurements of an array's transforms, compared with the forecast.

    Of a transform that was computed several times, they are those of the last run.

    Parameters
    ----------
    y : dask array
        The lazy array, or the result of `progress`. It was computed in this process, or on the
        cluster of the current client.

    Returns
    -------
    Report
        Report that prints as text, and shows a table and a picture in a notebook.
        `Report.timeline` returns the picture as SVG.

    Raises
    ------
    ArgumentError
        If the array has no known transform.

    Examples
    --------
    >>> import dask.array as da
    >>> from dask_bigfft import fft
    >>> y = fft.fft(da.ones(4096, chunks=512), rounds=[64, 64])
    >>> _ = y.compute(scheduler="sync")
    >>> print(report(y))  # doctest: +ELLIPSIS
    fft of (4096,) float64: {X1} {X2}
      time     ...
    """
    plans = _remember(y) if is_dask_collection(y) else {}
    if not plans:
        allowed = "a dask array with a transform of dask_bigfft in its graph: the lazy array, not "
        allowed += "what persist() has made of it"
        raise_invalid("y", type(y).__name__, allowed)
    runs = [RunReport(plan, token, _records(token)) for token, plan in plans.items()]
    runs.sort(key=lambda run: run.spans[0].start if run.spans else 0.0)
    return Report(tuple(runs))
