"""Short-time transforms from file to file, and their continuation when the record has grown.

The result has a column for each slice of the record. A longer record has more slices, and those at
its old end get samples in place of padding::

    record before    |-----------------|padding
    record now       |------------------------------|padding
    stored columns   |  chunk  |  chunk  |  chu|
    computed again                       |  chunk  |  chunk  |

An append writes whole chunks, from the one with the first column that changes. It locks the result
against other appends, and marks it incomplete before anything else, so that another append resumes
an interrupted one.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np

from dask_bigfft.errors import raise_invalid
from dask_bigfft.exchange import folders
from dask_bigfft.files import WriteBehind, sync_path
from dask_bigfft.runs.growing import BLOCK_NBYTES, LEAST_NBYTES, GrowingRun, shrunk_rows
from dask_bigfft.runs.inverse_short_time import SamplesRun
from dask_bigfft.runs.labels import (
    numbers,
    of_slices,
    spacing_of,
)
from dask_bigfft.runs.request import (
    INVERSE,
    Done,
    RunRequest,
    check_space_of_result,
    lock_folder_of,
)
from dask_bigfft.runs.sinks import Sink, Store
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.signal.segment_plan import OverlapAddPlan, SegmentPlan
from dask_bigfft.signal.segments import machine_of
from dask_bigfft.signal.short_time import (
    SliceArguments,
    SliceCall,
    least_samples,
    parse_call,
)
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.formats import UNREADABLE
from dask_bigfft.storage.targets import ATTRIBUTE, Labels, Target
from dask_bigfft.transforms.spec import parse_axes, work_dtype


class PartSink(Sink):
    """Sink of a result from the index `first` along an axis on."""

    def __init__(
        self,
        target: Target,
        axis: int,
        first: int,
        writes: WriteBehind,
    ) -> None:
        super().__init__(target, writes=writes)
        self.axis = axis
        self.first = first
        shape = list(self.shape)
        shape[axis] -= first
        self.shape = tuple(shape)

    def __setitem__(self, index: tuple[slice, ...], values: Any) -> None:
        moved = list(index)
        cut = index[self.axis]
        moved[self.axis] = slice(cut.start + self.first, cut.stop + self.first)
        super().__setitem__(tuple(moved), values)


@dataclass(frozen=True)
class ShortTimeRun(GrowingRun):
    """Run of a short-time transform on a record as it is now; its result grows by columns."""

    @cached_property
    def axis(self) -> int:
        """Axis of the samples."""
        axis = -1 if self.request.axis is None else self.request.axis
        (number,) = numbers((axis,), lambda: self.labels.names, "axis")
        (parsed,) = parse_axes("axis", (number,), self.x.ndim)
        return parsed

    @property
    def grown_axis(self) -> int:
        """Axis of the slices in the result."""
        return len(self.shape) - 1

    @property
    def source_length(self) -> int:
        """Number of samples along the axis."""
        return int(self.x.shape[self.axis])

    @property
    def unit(self) -> str:
        """Name of what the source has along the axis."""
        return "samples"

    def _coordinate_rate(self, *, is_needed: bool) -> float | None:
        """Return the sampling rate by the coordinate of the samples; None without one."""
        spacing = spacing_of(self.labels, self.axis, is_needed=is_needed)
        return None if spacing is None else 1 / abs(spacing)

    def call(
        self,
        blocks: tuple[int, ...],
        first: int = 0,
    ) -> SliceCall:
        """Return the call for the columns from `first` on, in blocks of the result."""
        slices = self.request.slices
        row_chunks: dict[int, int] = {}
        for axis, length in enumerate(blocks[:-1]):
            if axis != self.axis:
                row_chunks[axis] = length
        return parse_call(
            (self.x.rechunk(row_chunks),),
            self.request.kind,
            self.window,
            SliceArguments(
                p0=int(self.transform.p_min) + first,
                p1=None,
                k_offset=0,
                padding=slices.padding,
                axis=self.axis,
                detr=slices.detr,
            ),
            cast("SignalOptions", self.options),
            slices_per_block=blocks[-1],
            reader=self.reader,
            writing=self.request.writing(self.x.dtype),
            is_stored=True,
        )

    def computed(self, call: SliceCall) -> da.Array:
        """Return the lazy spectra of a call."""
        return call.spectra()

    def _default_blocks(self, nbytes: int) -> tuple[int, ...]:
        """Return the shape of a block of a new result that has about `nbytes` bytes."""
        shape = self.shape
        rows = [max(cut, default=1) or 1 for cut in self.x.chunks]
        rows[self.axis] = 1
        axes = tuple(axis for axis in range(self.x.ndim) if axis != self.axis)
        spectrum = shape[self.axis] * self.dtype.itemsize
        least = max(1, math.ceil((self.transform.m_num - 1) / self.transform.hop))
        rows = shrunk_rows(rows, axes, least * spectrum, nbytes)
        columns = max(least, nbytes // (math.prod(rows) * spectrum))
        if not self.request.append:  # a longer record will need longer blocks
            columns = min(columns, shape[-1])
        rows[self.axis] = shape[self.axis]
        return (*rows, columns)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        rows = list(self.x.shape)
        rows[self.axis] = int(self.transform.f_pts)
        samples = self.source_length
        if samples < least_samples(self.transform):
            allowed = f"at most twice the {samples} samples of the source along axis {self.axis}"
            raise_invalid("win", f"{self.transform.m_num} samples", allowed)
        return (*rows, int(self.transform.p_num(samples)))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result."""
        complex_dtype = work_dtype(self.x.dtype)
        if self.request.kind == "spectrogram":
            return np.empty(0, complex_dtype).real.dtype
        return complex_dtype

    def is_unchanged(self, record: Mapping[str, Any]) -> bool:
        """Return True for a record that has not grown."""
        return bool(self.source_length == record["samples"])

    def first_changed(self, record: Mapping[str, Any]) -> int:
        """Return a column before which all are those of the record when it was shorter.

        It is the first one that differs, or an earlier one if the padding behind the record needs
        the samples of its slice: those before the first slice that is asked for are not read.

        Parameters
        ----------
        record : mapping
            Attributes of the earlier result.
        """
        samples = record["samples"]
        size = self.transform.m_num
        if samples < 2 * size:  # padding at the start may be made of samples at the end
            return 0
        hop = self.transform.hop
        last_whole = (samples - size + self.transform.m_num_mid) // hop
        behind = size + hop  # most samples of padding
        last_ahead = (self.source_length - behind - 1 + self.transform.m_num_mid) // hop
        return max(0, int(min(last_whole + 1, last_ahead) - self.transform.p_min))

    def result_labels(self) -> Labels:
        """Return names, attributes and coordinates of the result."""
        labels = of_slices(
            self.labels,
            self.x,
            self.axis,
            self.request.kind,
            self.window_keywords,
            fs=None if self.request.slices.fs is None else self.rate,
        )
        return self.request.without_group(labels)

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments of this kind of run."""
        rows = [length for axis, length in enumerate(self.x.shape) if axis != self.axis]
        return {
            "axis": self.axis,
            "padding": self.request.slices.padding,
            "detr": self.request.slices.detr,
            "source": f"{self.x.dtype} in rows {rows}",
        }


def _kind_of(request: RunRequest) -> type[ShortTimeRun | SamplesRun]:
    """Return the class of the runs of a request's kind."""
    return SamplesRun if request.kind == INVERSE else ShortTimeRun


def opened(request: RunRequest) -> ShortTimeRun | SamplesRun:
    """Return the run of a request on its record as it is now."""
    kind = _kind_of(request)
    if request.array is not None:
        return kind(request, request.open(), request.source_labels(), None)
    labels = request.source_labels()
    reader = request.reader()
    if reader.anywhere:
        return kind(request, request.open(), labels, reader)
    if request.block_size is not None or request.options.get("chunks") == "preserve":
        return kind(request, request.open(), labels, None)
    nbytes = _cut_nbytes(request, math.prod(reader.shape) * reader.dtype.itemsize)
    return kind(request, reader.array(nbytes), labels, None)


def _cut_nbytes(request: RunRequest, nbytes: int) -> int:
    """Return the bytes of the blocks of a source of `nbytes` bytes that are cut and merged."""
    machine = machine_of(cast("SignalOptions", request.options), on_gpu=False)
    most = min(BLOCK_NBYTES, sources.block_bytes(nbytes))
    if machine.memory_limit is not None:  # threads have a few copies of such a block each
        most = min(most, machine.memory_limit // (8 * machine.threads))
    return max(most, LEAST_NBYTES)


def planned(request: RunRequest) -> SegmentPlan | OverlapAddPlan:
    """Return the plan of a whole run."""
    run = opened(request)
    return run.call(run.blocks()).plan


def execute_short_time(request: RunRequest, store: Store) -> Done:
    """Do a run, or continue its result, and return the report."""
    started = time.perf_counter()
    if request.array is None and request.missing_chunks == "refuse":
        sources.refuse_missing_chunks(request.source, request.component)
    if not request.append:
        return _whole(opened(request), store, started)
    if not request.destination.exists():
        targets.check_target(request.destination, request.source, overwrite=False)
    with _only_append(request.destination):
        run = opened(request)
        if request.destination.exists():
            return _appended(run, store, started)
        return _whole(run, store, started)


@contextlib.contextmanager
def _only_append(destination: Path) -> Iterator[None]:
    """Lock a result for this call; raise an error if another one is appending to it now.

    The lock is in a folder beside the result, because Zarr groups list what is in them.
    """
    path = destination.resolve()
    folder = path.with_name(f"{path.name}.appending")
    handle = lock_folder_of(
        "destination",
        destination,
        folder,
        purpose="be locked",
        allowed="a result to which no other run is appending now",
    )
    try:
        yield
    finally:
        folders.remove_folder(folder, handle)


def _whole(
    run: GrowingRun,
    store: Store,
    started: float,
) -> Done:
    """Do a run from the first column on."""
    request = run.request
    targets.check_target(request.destination, request.source, overwrite=request.overwrite)
    blocks = run.blocks()
    targets.check_dtype(run.dtype)
    targets.check_inner(request.inner_chunks, blocks)
    check_space_of_result(request, math.prod(run.shape) * run.dtype.itemsize, run.dtype)
    call = run.call(blocks)
    partial = targets.partial_of(request.destination, targets.name_of_run())
    try:
        target = targets.created(
            request.destination,
            partial,
            run.shape,
            blocks,
            run.dtype,
            record=run.record(),
            inner=request.inner_chunks,
            labels=run.result_labels(),
            compressors=request.compressors,
        )
        _store_part(run, call, target, 0, store)
        target.finish(request.overwrite)
    except BaseException:
        targets.discard(partial)
        raise
    return run.done(call.plan, started, 0)


def _store_part(
    run: GrowingRun,
    call: Any,
    target: Target,
    first: int,
    store: Store,
) -> None:
    """Store what a call computes as the result from the index `first` on."""
    # The last block of a call may have to be cut.
    result = cast("da.Array", run.computed(call).rechunk(target.blocks))
    with WriteBehind(call.plan.blocks_behind) as writes:
        store(result, PartSink(target, run.grown_axis, first, writes))


# --- continuation ---------------------------------------------------------------------------


def _appended(
    run: GrowingRun,
    store: Store,
    started: float,
) -> Done:
    """Continue a result whose record has grown, or end an append that was interrupted.

    A complete result of a record that has not grown stays as it is.
    """
    request = run.request
    record = targets.read_attributes(request.destination)
    _refuse_other_record(run, record)
    try:
        target = targets.reopened(request.destination, request.destination)
    except UNREADABLE as error:
        raise_invalid("destination", str(request.destination), f"a readable array ({error})")
    _refuse_other_layout(run, target)
    blocks = target.blocks
    axis = run.grown_axis
    stored_length = target.array.shape[axis]
    if record["complete"] and run.count < stored_length:
        need = f"None, or the end of at least the {stored_length} samples of the result"
        raise_invalid("k1", request.slices.k1, f"{need}, for append=True")
    if record["complete"] and run.is_unchanged(record):
        return run.done(run.call(blocks).plan, started, run.count)
    first = run.first_changed(record) // blocks[axis] * blocks[axis]
    nbytes_of_one = math.prod(run.shape) // run.count * run.dtype.itemsize
    new_nbytes = nbytes_of_one * (run.count - first)
    check_space_of_result(request, max(0, new_nbytes), run.dtype)
    call = None
    if first < run.count:
        call = run.call(blocks, first)
        call.plan.refuse_above_limit()
    _mark(target, {**record, "complete": False})
    target.array.resize(run.shape)
    if call is not None:
        _store_part(run, call, target, first, store)
    _replace_coordinates(target, run.result_labels(), request.compressors)
    _sync_part(target, axis, first // blocks[axis])
    _mark(target, {**record, **run.record(), "complete": True})
    plan = run.call(blocks).plan if call is None else call.plan
    return run.done(plan, started, min(first, run.count))


def _refuse_other_record(run: GrowingRun, record: Mapping[str, Any]) -> None:
    """Raise an error for a stored result that is another one than the request's."""
    request = run.request
    path = str(request.destination)
    is_other = record.get("kind") == request.kind and run.unit not in record
    if is_other or "arguments" not in record or "complete" not in record:
        need = f"what run() has made with kind={request.kind!r}, or a path where nothing exists yet"
        raise_invalid("destination", path, need)
    now = run.arguments()
    for name, recorded in record["arguments"].items():
        value = now.get(name)
        is_same = value == recorded
        if name == "fs":
            is_same = bool(np.isclose(float(now["fs"]), recorded, rtol=1e-9, atol=0))
        if not is_same:
            raise_invalid(name, value, f"{recorded!r}, as in {path}, for append=True")
    length = int(record[run.unit])
    if run.source_length < length:
        need = f"at least the {length} {run.unit} that {path} was made of, for append=True"
        raise_invalid("source", f"{request.source} of {run.source_length} {run.unit}", need)


def _refuse_other_layout(run: GrowingRun, target: Target) -> None:
    """Raise an error if chunks or compressors are asked for that a stored result does not have."""
    request = run.request
    array = target.array
    axis = run.grown_axis
    rows = (*array.shape[:axis], *array.shape[axis + 1 :])
    own_rows = (*run.shape[:axis], *run.shape[axis + 1 :])
    if array.dtype != run.dtype or rows != own_rows:
        need = f"{array.dtype} of shape {rows}, as {request.destination} has"
        raise_invalid("source", f"with a result of {run.dtype} {own_rows}", need)
    if request.inner_chunks is not None and tuple(request.inner_chunks) != array.chunks:
        raise_invalid("inner_chunks", request.inner_chunks, f"{array.chunks} for append=True")
    if request.options.get("chunks") is not None:
        blocks = run.blocks_of(BLOCK_NBYTES)
        if blocks != target.blocks:
            chunks = request.options["chunks"]
            raise_invalid("chunks", chunks, f"None, or {target.blocks} for append=True")
    if isinstance(request.compressors, str) and request.compressors == "auto":
        return
    codecs = targets.codecs_of(array)
    if targets.parse_compressors(request.compressors, array.dtype) != codecs:
        need = f"'auto', or those of the stored array for append=True: {codecs}"
        raise_invalid("compressors", request.compressors, need)


def _mark(target: Target, record: Mapping[str, Any]) -> None:
    """Write the attributes of a result, and sync them to disk."""
    target.root.attrs[ATTRIBUTE] = dict(record)
    target.sync_attributes()


def _replace_coordinates(
    target: Target,
    labels: Labels,
    compressors: Any,
) -> None:
    """Store the coordinates of a longer result in its group."""
    if target.root is target.array:
        return
    for name, (values, attributes) in labels.coordinates.items():
        target.root.create_array(
            name=name,
            data=values,
            attributes=attributes,
            dimension_names=[name],
            compressors=compressors,
            overwrite=True,
        )


def _sync_part(target: Target, axis: int, first_block: int) -> None:
    """Sync the files of a result from a block along an axis on to disk."""
    shape = target.array.shape
    numbers_of_blocks = [-(-n // block) for n, block in zip(shape, target.blocks, strict=True)]
    numbers_of_blocks[axis] = max(0, numbers_of_blocks[axis] - first_block)
    for index in np.ndindex(*numbers_of_blocks):
        block = list(index)
        block[axis] += first_block
        path = target.chunk_file(tuple(block))
        if path.exists():
            sync_path(path)
            sync_path(path.parent)
