"""Runs that read and write arrays of Icechunk repositories, in one commit or none.

A place is a `zarr.storage.StorePath`: the store of a session, and the name of an array in it. All
chunks are written in the session, of which nobody sees anything before the commit at the end. An
interrupted run commits nothing.
"""

import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import dask.array as da

from dask_bigfft.dask_private import is_lazy, values_in_graph
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.events import raise_if_asynchronous, running_client, uses_processes
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import request as requests
from dask_bigfft.runs.request import Done, RunRequest, layout_of_result
from dask_bigfft.runs.resumable import refuse_changed_source, source_identity
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.sources import zarr_package


def is_in_repository(place: Any) -> bool:
    """Return whether a value is a place in the store of an Icechunk session."""
    store = getattr(place, "store", None)
    is_of_icechunk = type(store).__module__.partition(".")[0] == "icechunk"
    return is_of_icechunk and isinstance(place, zarr_package().storage.StorePath)


def array_in_repository(place: Any) -> Any:
    """Return the lazy array at a place, with its names of dimensions if xarray is installed."""
    is_read_elsewhere = running_client() is not None or uses_processes()
    if is_read_elsewhere and not place.store.session.read_only:
        allowed = "a place in a read-only session: other processes read it"
        raise_invalid("source", place.path, allowed)
    stored = _node_at(place)
    if stored is None:
        raise_invalid("source", place.path, "the path of an array in the session's store")
    _refuse_group("source", place, stored)
    array = da.from_array(stored, chunks=stored.chunks)
    names = getattr(stored.metadata, "dimension_names", None)
    if not names or None in names:
        return array
    try:
        import xarray as xr
    except ImportError:
        return array
    return xr.DataArray(array, dims=names, attrs=dict(stored.attrs))


def _node_at(place: Any) -> Any:
    """Return the array or the group at a place; None where nothing is stored."""
    try:
        return zarr_package().open(place, mode="r")
    except FileNotFoundError:
        return None


def _refuse_group(argument: str, place: Any, node: Any) -> None:
    """Raise an error if the node at the place of an argument is a group."""
    if isinstance(node, zarr_package().Group):
        kind = "a group" if place.path else "the root group"
        raise_invalid(argument, place.path, f"the path of an array; this is {kind}")


def _refuse_occupied(place: Any, overwrite: bool) -> None:
    """Raise an error if the result must not replace what its place has, or is inside an array."""
    zarr = zarr_package()
    node = _node_at(place)
    _refuse_group("destination", place, node)
    if node is not None and not overwrite:
        raise_invalid("destination", place.path, "a name without an array, or overwrite=True")
    for parent in PurePosixPath(place.path).parents:
        path = "" if parent == PurePosixPath() else str(parent)
        if isinstance(_node_at(zarr.storage.StorePath(place.store, path)), zarr.Array):
            need = f"a path outside of arrays, which {path!r} is"
            raise_invalid("destination", place.path, need)


def _refuse_source_at(place: Any, arrays: Iterator[Any]) -> None:
    """Raise an error if a run reads a place that it replaces, or a place inside or around it.

    The new array would be in the place of its source before that is read.

    Parameters
    ----------
    place : zarr.storage.StorePath
        The destination.
    arrays : iterator of Array
        Stored arrays that the run reads.
    """
    destination = PurePosixPath(place.path)
    for array in arrays:
        if array.store_path.store != place.store:
            continue
        source = PurePosixPath(array.path)
        if source == destination or source in destination.parents or destination in source.parents:
            need = f"a path apart from the source, {array.path!r}, which this session reads"
            need += "; to replace an array, read it in a session of its own"
            raise_invalid("destination", place.path, need)


def _stored_arrays(request: RunRequest, x: da.Array) -> Iterator[Any]:
    """Yield the Zarr arrays that a run reads, as far as graphs show them."""
    stored_type = zarr_package().Array
    for operand in (x, request.transfer):
        if not is_lazy(operand):
            continue
        for value in values_in_graph(operand):
            stored = _unwrapped(value)
            if isinstance(stored, stored_type):
                yield stored


def _unwrapped(value: Any) -> Any:
    """Return the stored array in the nested wrappers of xarray; other values unchanged."""
    while type(value).__module__ == "xarray.core.indexing" and hasattr(value, "array"):
        value = value.array
    return value.get_array() if type(value).__module__ == "xarray.backends.zarr" else value


def parse_session(place: Any) -> Any:
    """Return the writable session of a destination, without changes of its own."""
    session = place.store.session
    if session.read_only:
        raise_invalid("destination", str(place), "a place in a writable session")
    if session.has_uncommitted_changes:
        raise_invalid(
            "destination",
            str(place),
            "a place in a session without uncommitted changes: the run commits its own",
        )
    return session


def write_in_one_commit(request: RunRequest) -> Done:
    """Do a run whose result becomes an array of a repository, and return its report."""
    started = time.perf_counter()
    client = running_client()
    raise_if_asynchronous(client)
    for argument in ("scratch", "resume", "checksum"):
        if getattr(request, argument):
            allowed = "its default: a run into a repository is not resumed"
            raise_invalid(argument, getattr(request, argument), allowed, kind=ArgumentTypeError)
    place = request.repository
    session = parse_session(place)
    source_is_stored = request.array is None
    if source_is_stored and request.missing_chunks == "refuse":
        sources.refuse_missing_chunks(request.source, request.component)
    _refuse_occupied(place, request.overwrite)
    x, plan = requests.planned_input(request)
    _refuse_source_at(place, _stored_arrays(request, x))
    identity = source_identity(request, content=False) if source_is_stored else {}
    result = request.result(x, plan)
    try:
        if client is None and not uses_processes():
            array = _created(request, x, plan, place.store)
            da.store(result, array, lock=False)
        else:
            from icechunk.dask import store_dask

            fork = session.fork()
            array = _created(request, x, plan, fork.store)
            session.merge(store_dask(sources=[result], targets=[array]))
        if source_is_stored:
            now = source_identity(request, content=False)
            refuse_changed_source(identity, now, has_scratch=False)
    except BaseException:
        session.discard_changes()
        raise
    try:
        session.commit(f"{plan.spec.title}: {place.path}")
    except Exception as error:  # such as a conflict with a later commit
        text = f"`destination`={place.path!r}: the result is in the session, but not committed. "
        text += "Call `rebase` and `commit` of the session, or run again in a new session"
        error.add_note(text)
        raise
    return request.done(plan, started)


def _created(
    request: RunRequest,
    x: da.Array,
    plan: Plan,
    store: Any,
) -> Any:
    """Return the new, empty array of a result in the store of a session."""
    name = request.repository.path
    shape, blocks, dtype = layout_of_result(plan, x)
    targets.check_dtype(dtype)
    targets.check_inner(request.inner_chunks, blocks)
    labels = request.labels(plan)
    record = requests.attributes(plan, request.norm)
    return zarr_package().create_array(
        store,
        name=name,
        shape=shape,
        chunks=request.inner_chunks or blocks,
        shards=None if request.inner_chunks is None else blocks,
        dtype=dtype,
        compressors=request.compressors,
        attributes={**labels.attributes, targets.ATTRIBUTE: record},
        dimension_names=list(labels.names) or None,
        overwrite=request.overwrite,
    )
