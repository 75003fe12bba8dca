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
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft import config
from dask_bigfft.api.arguments import parse_chunks
from dask_bigfft.errors import raise_invalid
from dask_bigfft.exchange import folders
from dask_bigfft.files import WriteBehind, sync_path
from dask_bigfft.runs.labels import (
    labels_of,
    labels_of_array,
    numbers,
    of_slices,
    spacing_of,
)
from dask_bigfft.runs.request import (
    Done,
    RunRequest,
    check_space_of_result,
    lock_folder_of,
)
from dask_bigfft.runs.sinks import Sink, Store
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.signal.segment_plan import SegmentPlan
from dask_bigfft.signal.segments import machine_of, parse_rate
from dask_bigfft.signal.short_time import (
    SliceArguments,
    SliceCall,
    WindowArguments,
    parse_call,
    parse_window,
)
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.formats import UNREADABLE
from dask_bigfft.storage.targets import ATTRIBUTE, Labels, Target
from dask_bigfft.transforms.spec import parse_axes, work_dtype

#: Bytes of a block of the result, unless a longer one is needed for a window.
BLOCK_NBYTES = 16 << 20

#: The same at the least, for a small memory limit.
LEAST_NBYTES = 1 << 16


class ColumnSink(Sink):
    """Sink of the columns of a result from one on."""

    def __init__(
        self,
        target: Target,
        first_column: int,
        writes: WriteBehind,
    ) -> None:
        super().__init__(target, writes=writes)
        self.first_column = first_column
        self.shape = (*self.shape[:-1], self.shape[-1] - first_column)

    def __setitem__(self, index: tuple[slice, ...], values: Any) -> None:
        *rows, columns = index
        start = columns.start + self.first_column
        stop = columns.stop + self.first_column
        super().__setitem__((*rows, slice(start, stop)), values)


@dataclass(frozen=True)
class ShortTimeRun:
    """Run of a short-time transform on a record as it is now.

    Parameters
    ----------
    request : RunRequest
        Request of the run.
    x : dask.array.Array
        The record.
    labels : Labels
        Names, attributes and coordinates of the record.
    reader : Reader or None
        Reader of the record, if any of its samples can be read without their neighbours.
    """

    request: RunRequest
    x: da.Array
    labels: Labels
    reader: sources.Reader | None

    @cached_property
    def axis(self) -> int:
        """Axis of the samples."""
        axis = -1 if self.request.axis is None else self.request.axis
        (number,) = numbers((axis,), lambda: self.labels.names, "axis")
        (parsed,) = parse_axes("axis", (number,), self.x.ndim)
        return parsed

    @property
    def samples(self) -> int:
        """Number of samples along the axis."""
        return int(self.x.shape[self.axis])

    @cached_property
    def rate(self) -> float:
        """Sampling rate: that of the coordinate, or the given one, or 1."""
        fs = self.request.slices.fs
        if fs is not None:
            fs = parse_rate(fs)
        spacing = spacing_of(self.labels, self.axis, is_needed=fs is None)
        if spacing is None:
            return 1.0 if fs is None else fs
        rate = 1 / abs(spacing)
        if fs is not None and not np.isclose(rate, fs, rtol=1e-9, atol=0):
            name = self.labels.names[self.axis]
            raise_invalid("fs", fs, f"None, or {rate:.9g} as the coordinate {name} of the source")
        return rate

    @cached_property
    def window(self) -> WindowArguments:
        """Window and FFTs."""
        slices = self.request.slices
        return WindowArguments(
            win=slices.win,
            hop=slices.hop,
            fs=self.rate,
            fft_mode=slices.fft_mode,
            mfft=slices.mfft,
            scale_to=slices.scale_to,
            phase_shift=slices.phase_shift,
        )

    @cached_property
    def transform(self) -> "scipy.signal.ShortTimeFFT":
        """SciPy's description of the transform."""
        return parse_window(self.window)

    @property
    def count(self) -> int:
        """Number of slices."""
        return int(self.transform.p_num(self.samples))

    def call(
        self,
        blocks: tuple[int, ...],
        first_column: int = 0,
    ) -> SliceCall:
        """Return the call for the columns from one on, in blocks of the result."""
        slices = self.request.slices
        row_chunks: dict[int, int] = {}
        for axis, length in enumerate(blocks[:-1]):
            if axis != self.axis:
                row_chunks[axis] = length
        options = {
            name: value
            for name, value in self.request.options.items()
            if value is not None and name != "chunks"
        }
        return parse_call(
            (self.x.rechunk(row_chunks),),
            self.request.kind,
            self.window,
            SliceArguments(
                p0=int(self.transform.p_min) + first_column,
                p1=None,
                k_offset=0,
                padding=slices.padding,
                axis=self.axis,
                detr=slices.detr,
            ),
            cast("SignalOptions", options),
            slices_per_block=blocks[-1],
            reader=self.reader,
            writing=self.request.writing(self.x.dtype),
            is_stored=True,
        )

    def blocks(self) -> tuple[int, ...]:
        """Return the shape of a block of a new result.

        Blocks are halved until the forecast of the memory is below the limit.
        """
        nbytes = BLOCK_NBYTES
        while True:
            blocks = self._blocks_of(nbytes)
            plan = self.call(blocks).plan
            limit = plan.machine.memory_limit
            is_fixed = self.request.options.get("chunks") is not None or nbytes <= LEAST_NBYTES
            if is_fixed or limit is None or plan.expected.peak_host <= limit:
                plan.refuse_above_limit()
                return blocks
            nbytes //= 2

    def _blocks_of(self, nbytes: int) -> tuple[int, ...]:
        """Return the shape of a block of a new result that has about some bytes."""
        shape = self.shape
        dtype = self.dtype
        chunks = self.request.options.get("chunks")
        if chunks is not None:
            own_chunks = tuple((length,) for length in shape)
            cuts = parse_chunks(chunks, own_chunks, shape, dtype) or own_chunks
            return tuple(max(cut, default=1) or 1 for cut in cuts)
        blocks = [max(cut, default=1) or 1 for cut in self.x.chunks]
        blocks[self.axis] = shape[self.axis]
        least = max(1, math.ceil((self.transform.m_num - 1) / self.transform.hop))
        while math.prod(blocks) * least * dtype.itemsize > nbytes:
            rows = [0 if axis == self.axis else length for axis, length in enumerate(blocks)]
            longest = int(np.argmax(rows))
            if rows[longest] <= 1:
                break
            blocks[longest] = -(-blocks[longest] // 2)
        column = math.prod(blocks) * dtype.itemsize
        columns = max(least, nbytes // column)
        if not self.request.append:  # a longer record will need longer blocks
            columns = min(columns, shape[-1])
        return (*blocks, columns)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        rows = list(self.x.shape)
        rows[self.axis] = int(self.transform.f_pts)
        return (*rows, self.count)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result."""
        complex_dtype = work_dtype(self.x.dtype)
        if self.request.kind == "spectrogram":
            return np.empty(0, complex_dtype).real.dtype
        return complex_dtype

    def first_changed(self, samples: int) -> int:
        """Return a column before which all are those of the record when it was shorter.

        It is the first one that differs, or an earlier one if the padding behind the record needs
        the samples of its slice: those before the first slice that is asked for are not read.

        Parameters
        ----------
        samples : int
            Number of samples that the record had.
        """
        size = self.transform.m_num
        if samples < 2 * size:  # padding at the start may be made of samples at the end
            return 0
        hop = self.transform.hop
        last_whole = (samples - size + self.transform.m_num_mid) // hop
        behind = size + hop  # most samples of padding
        last_ahead = (self.samples - behind - 1 + self.transform.m_num_mid) // hop
        return max(0, int(min(last_whole + 1, last_ahead) - self.transform.p_min))

    def result_labels(self) -> Labels:
        """Return names, attributes and coordinates of the result."""
        slices = self.request.slices
        keywords = {
            "win": slices.win,
            "hop": slices.hop,
            "fft_mode": slices.fft_mode,
            "mfft": slices.mfft,
            "scale_to": slices.scale_to,
            "phase_shift": slices.phase_shift,
        }
        labels = of_slices(
            self.labels,
            self.x,
            self.axis,
            self.request.kind,
            keywords,
        )
        return self.request.without_group(labels)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that all parts of a result have in common, as JSON values."""
        transform = self.transform
        values = np.array(self.window.win, complex)
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
        rows = [length for axis, length in enumerate(self.x.shape) if axis != self.axis]
        return {
            "kind": self.request.kind,
            "axis": self.axis,
            "win": f"{len(values)} values {digest}",
            "hop": int(transform.hop),
            "fs": float(transform.fs),
            "fft_mode": str(transform.fft_mode),
            "mfft": int(transform.mfft),
            "scale_to": self.request.slices.scale_to,
            "phase_shift": self.request.slices.phase_shift,
            "padding": self.request.slices.padding,
            "detr": self.request.slices.detr,
            "source": f"{self.x.dtype} in rows {rows}",
        }

    def record(self) -> dict[str, Any]:
        """Return the attributes of a result."""
        return {
            "version": config.own_version(),
            "kind": self.request.kind,
            "axis": self.axis,
            "samples": self.samples,
            "arguments": self.arguments(),
        }

    def done(
        self,
        plan: SegmentPlan,
        started: float,
        first_column: int,
    ) -> Done:
        """Return the report of a run that began at `started` and made columns from one on."""
        columns = self.count - first_column
        column = math.prod(self.shape[:-1]) * self.dtype.itemsize
        return Done(
            path=self.request.destination,
            plan=plan,
            dtype=str(self.x.dtype),
            read=math.prod(plan.shape) * self.x.dtype.itemsize if columns else 0,
            written=columns * column,
            seconds=time.perf_counter() - started,
            already=columns == 0,
            component=targets.read_attributes(self.request.destination).get("array"),
            columns=(first_column, self.count),
            library=self.request.library,
        )


def opened(request: RunRequest) -> ShortTimeRun:
    """Return the run of a request on its record as it is now."""
    if request.array is not None:
        return ShortTimeRun(request, request.open(), labels_of_array(request.array), None)
    labels = labels_of(request.source, request.component)
    reader = request.reader()
    if reader.anywhere:
        return ShortTimeRun(request, request.open(), labels, reader)
    if request.block_size is not None or request.options.get("chunks") == "preserve":
        return ShortTimeRun(request, request.open(), labels, None)
    nbytes = _cut_nbytes(request, math.prod(reader.shape) * reader.dtype.itemsize)
    return ShortTimeRun(request, reader.array(nbytes), labels, None)


def _cut_nbytes(request: RunRequest, nbytes: int) -> int:
    """Return the bytes of the blocks of a source of `nbytes` bytes that are cut and merged."""
    machine = machine_of(cast("SignalOptions", request.options), on_gpu=False)
    most = min(BLOCK_NBYTES, sources.block_bytes(nbytes))
    if machine.memory_limit is not None:  # threads have a few copies of such a block each
        most = min(most, machine.memory_limit // (8 * machine.threads))
    return max(most, LEAST_NBYTES)


def planned(request: RunRequest) -> SegmentPlan:
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
    run: ShortTimeRun,
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
        _store_columns(call, target, 0, store)
        target.finish(request.overwrite)
    except BaseException:
        targets.discard(partial)
        raise
    return run.done(call.plan, started, 0)


def _store_columns(
    call: SliceCall,
    target: Target,
    first_column: int,
    store: Store,
) -> None:
    """Store the spectra of a call as the columns of a result from one on."""
    # The last block of a call may have to be cut.
    spectra = cast("da.Array", call.spectra().rechunk(target.blocks))
    with WriteBehind(call.plan.blocks_behind) as writes:
        store(spectra, ColumnSink(target, first_column, writes))


# --- continuation ---------------------------------------------------------------------------


def _appended(
    run: ShortTimeRun,
    store: Store,
    started: float,
) -> Done:
    """Continue a result whose record has grown, or end an append that was interrupted.

    A complete result of a record that has not grown stays as it is.
    """
    request = run.request
    record = targets.read_attributes(request.destination)
    samples = _parse_record(run, record)
    try:
        target = targets.reopened(request.destination, request.destination)
    except UNREADABLE as error:
        raise_invalid("destination", str(request.destination), f"a readable array ({error})")
    _refuse_other_layout(run, target)
    blocks = target.blocks
    if record["complete"] and run.samples == samples:
        return run.done(run.call(blocks).plan, started, run.count)
    columns = blocks[-1]
    first_column = run.first_changed(samples) // columns * columns
    new_nbytes = math.prod(run.shape[:-1]) * (run.count - first_column) * run.dtype.itemsize
    check_space_of_result(request, max(0, new_nbytes), run.dtype)
    call = None
    if first_column < run.count:
        call = run.call(blocks, first_column)
        call.plan.refuse_above_limit()
    _mark(target, {**record, "complete": False})
    target.array.resize(run.shape)
    if call is not None:
        _store_columns(call, target, first_column, store)
    _replace_coordinates(target, run.result_labels(), request.compressors)
    _sync_columns(target, first_column // columns)
    _mark(target, {**record, **run.record(), "complete": True})
    plan = run.call(blocks).plan if call is None else call.plan
    return run.done(plan, started, min(first_column, run.count))


def _parse_record(run: ShortTimeRun, record: Mapping[str, Any]) -> int:
    """Return the samples that a stored result was made of; refuse another one than the request's.

    Of an interrupted append it is the number before that.
    """
    request = run.request
    path = str(request.destination)
    if "arguments" not in record or "samples" not in record or "complete" not in record:
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
    samples = int(record["samples"])
    if run.samples < samples:
        need = f"at least the {samples} samples that {path} was made of, for append=True"
        raise_invalid("source", f"{request.source} of {run.samples} samples", need)
    return samples


def _refuse_other_layout(run: ShortTimeRun, target: Target) -> None:
    """Raise an error if chunks or compressors are asked for that a stored result does not have."""
    request = run.request
    array = target.array
    if array.dtype != run.dtype or array.shape[:-1] != run.shape[:-1]:
        need = f"{array.dtype} of shape {array.shape[:-1]}, as {request.destination} has"
        raise_invalid("source", f"with a result of {run.dtype} {run.shape[:-1]}", need)
    if request.inner_chunks is not None and tuple(request.inner_chunks) != array.chunks:
        raise_invalid("inner_chunks", request.inner_chunks, f"{array.chunks} for append=True")
    if request.options.get("chunks") is not None:
        blocks = run._blocks_of(BLOCK_NBYTES)
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


def _sync_columns(target: Target, first_block: int) -> None:
    """Sync the files of the blocks of some columns to disk."""
    shape = target.array.shape
    numbers_of_blocks = [-(-n // block) for n, block in zip(shape, target.blocks, strict=True)]
    numbers_of_blocks[-1] -= first_block
    for *rows, column in np.ndindex(*numbers_of_blocks):
        path = target.chunk_file((*rows, column + first_block))
        if path.exists():
            sync_path(path)
            sync_path(path.parent)
