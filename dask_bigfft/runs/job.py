"""A run from file to file: in one go, or in a scratch folder, where it can be resumed.

Imports `planning`, `storage`, `graph` and this room.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import dask.array as da

from dask_bigfft.errors import ArgumentTypeError, DamagedShardError, refuse
from dask_bigfft.graph.layer import scratch_place
from dask_bigfft.planning.environment import refuse_asynchronous, running_client
from dask_bigfft.runs.asked import (
    Asked,
    Done,
    attributes,
    done_by,
    lazy_result,
    nbytes_of_result,
    open_rows,
    planned_input,
    refuse_missing,
    refuse_places,
    result_dtype,
    warn,
)
from dask_bigfft.runs.resumable import (
    Sink,
    Store,
    go_on,
    locked,
    refuse_changed_source,
    source_identity,
)
from dask_bigfft.storage import targets
from dask_bigfft.storage.formats import plain_chunks


def store_now(result: da.Array, sink: Sink) -> None:
    """Store a result on the scheduler that is set."""
    da.store(result, cast("Any", sink), lock=False)


def execute(
    asked: Asked,
    store: Store = store_now,
    *,
    scratch: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checksum: bool = False,
) -> Done:
    """Carry out a run; see `run` for what is given."""
    refuse_asynchronous(running_client())
    refuse_places(asked.source, asked.component, asked.destination, scratch)
    if scratch is not None:
        with locked(scratch) as folder:
            return go_on(asked, store, folder, resume, overwrite, checksum)
    for name, value in (("resume", resume), ("checksum", checksum)):
        if value:
            refuse(name, value, "a scratch folder beside it", kind=ArgumentTypeError)
    targets.check_target(asked.destination, asked.source, overwrite=overwrite)
    started = time.perf_counter()
    refuse_missing(asked)
    x, plan = planned_input(asked)
    before = source_identity(asked.source, asked.component, content=False)
    shape, dtype = targets.uniform(plan.chunks) or (), result_dtype(plan, x)
    targets.check_room(asked.destination, nbytes_of_result(plan, x))
    place = replace(scratch_place(plan), rows=open_rows(asked)) if plan.from_rows else None
    result = lazy_result(x, plan, place)
    record = attributes(plan, asked.norm)
    with targets.writing(
        asked.destination, result.shape, shape, dtype, record, asked.inner_chunks, overwrite
    ) as target:
        sink = Sink(target.array, shape, plain=plain_chunks(target.array, target.partial))
        try:
            store(result, sink)
        except DamagedShardError as error:  # its files are gone: all is done once more
            warn(error)
            store(result, sink)
        now = source_identity(asked.source, asked.component, content=False)
        refuse_changed_source(before, now, kept=False)
    return done_by(asked, plan, started)
