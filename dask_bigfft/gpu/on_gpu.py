"""Rounds on blocks that are CuPy arrays.

Results are CuPy arrays, too. The block is one tile, in passes without copies (one pass, except for
lengths that cuFFT refuses), with the same computations as tiles of host blocks. Steps that cannot
run in place allocate from CuPy's pool, so at most the block, its result and the FFT work area are
needed. Everything is enqueued in the current streams of the thread. The host waits only for streams
that are not CuPy's default one; streams of different GPUs wait for each other where data goes
between them.
"""

import functools
import math
import os
import threading
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.cuda import cupy, current, errors_of_cuda, free_pinned, in_pool, synchronize
from dask_bigfft.gpu.ffts import FFTPlans
from dask_bigfft.gpu.operations import FFT, DeviceArray, Multiply, Transfer, pending
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.gpu.tile_work import Computation, Job, TileWork
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.tiles.program import NO_MODULUS, Term, Twiddle, constant_index
from dask_bigfft.transforms.rounds import StoredWindow
from dask_bigfft.transforms.steps import CosineSum

Block = tuple[int, ...]


_NO_LIMIT = 1 << 62

#: Largest length that cuFFT transforms at a large stride in one pass over memory. Longer ones cost
#: more than a copy: 16384 x 16384 complex64 in 8 slabs took 10.5 ms by parts, 7.3 gathered (H200).
SHORT = 8192

#: Limits that make one tile and one pass.
_WHOLE = TileLimits(
    _NO_LIMIT,
    slots=1,
    most=_NO_LIMIT,
    least=_NO_LIMIT,
    pieces=1,
)


def as_block(values: Any) -> Any:
    """Return an array on a GPU as a CuPy array on the same GPU."""
    # CuPy copies an array of another GPU to the current one.
    return values if isinstance(values, cupy().ndarray) else cupy().asarray(values)


# --- rounds -----------------------------------------------------------------------------------


@dataclass
class _Plans:
    """FFT plans of one GPU for the tasks' own streams; one task enqueues at a time."""

    ffts: FFTPlans = field(default_factory=FFTPlans)
    lock: threading.Lock = field(default_factory=threading.Lock)
    process: int = field(default_factory=os.getpid)


_plans: dict[int, _Plans] = {}


def _plans_of(ordinal: int) -> _Plans:
    return _plans.setdefault(ordinal, _Plans())


def forget_plans() -> None:
    """Drop the cached plans of all GPUs."""
    # A fork inherits the objects, but not the GPUs.
    own_plans = [
        (gpu, plans) for gpu, plans in list(_plans.items()) if plans.process == os.getpid()
    ]
    for ordinal, plans in own_plans:
        _plans.pop(ordinal, None)
        with plans.lock, cupy().cuda.Device(ordinal):
            plans.ffts.drop()
    if own_plans:
        free_pinned()  # left by copies between GPUs through the host


class Run(NamedTuple):
    """Contiguous part of a source block, and where it begins there and in a block, in bytes.

    It is a segment without strides. cuFFT reads such parts from the source, one after the other, so
    that no segment has to be copied.
    """

    source: Any
    start: int
    place: int
    nbytes: int


@errors_of_cuda()
def round_on_gpu(job: Job, view: BlockView, filters: Mapping[int, Any]) -> Any:
    """Return a block after a round, on the GPU where it is gathered.

    Parameters
    ----------
    job : Job
        The round on the block. If it is `inside`, a single source block may be overwritten.
    view : BlockView
        The block. If it is made of contiguous parts on its GPU, the first FFTs go from there to
        the block after them, so that nothing is copied; else it is gathered.
    filters : mapping of int to array
        Spectra of convolutions' filters, by their numbers; host arrays are copied. A transfer
        function is checked at once, unless it is a `PendingTransfer`.

    Raises
    ------
    DeviceMemoryError
        If the GPU has too little memory.
    """
    runs = view.runs() if view.dtype.str == job.source else []
    values: Any = None
    if job.inside:
        values = _whole_source(runs)
        job = replace(job, inside=False)
    works = list(_works(job, job.block))
    parts: list[Part] = []
    if works and runs and values is None:
        works[0], parts = _from_runs(works[0], runs)
    if values is None and not parts:
        values = _gathered(view, job.source)
        if not values.size or not math.prod(job.shapes[1]):
            return cupy().zeros(job.shapes[1], job.target)
    operands = pending(filters)
    device = runs[0].source.device if values is None else values.device
    plans = _plans_of(device.id)
    with current(device), plans.lock:
        for work in works:
            values = _computed_or_retried(
                plans.ffts,
                values,
                parts,
                work,
                operands,
            )
            parts = []
        synchronize()
        for number, operand in operands.items():
            if operand is not filters[number]:
                operand.require_finite()
    return values.reshape(job.shapes[1])


def _gathered(view: BlockView, dtype: str) -> Any:
    """Return a block on its GPU in a dtype."""
    values = as_block(view.gather())
    if values.dtype.str == dtype:
        return values
    with values.device:
        return values.astype(dtype)


def _whole_source(runs: Sequence[Run]) -> Any | None:
    """Return the source block that a block is, or None."""
    if len(runs) != 1 or runs[0].nbytes != runs[0].source.nbytes:
        return None
    return runs[0].source


def _computed_or_retried(
    plans: FFTPlans,
    values: Any,
    parts: Sequence["Part"],
    work: TileWork,
    filters: Mapping[int, Any],
) -> Any:
    """Do all operations on a tile; retry with all cached memory freed if there is too little."""
    compute_tile = functools.partial(
        _computed,
        plans,
        values,
        parts,
        work,
        filters,
    )
    try:
        return compute_tile()
    except (DeviceMemoryError, cupy().cuda.memory.OutOfMemoryError):  # before any FFT
        emit("fallback", nbytes=0)
        cupy().cuda.get_current_stream().synchronize()
        plans.drop()
        cupy().get_default_memory_pool().free_all_blocks()
        return compute_tile()


@functools.lru_cache(maxsize=256)
def _works(job: Job, block: Block) -> tuple[TileWork, ...]:
    """Return the passes of a round on a block; jobs on blocks of the same shapes are equal."""
    tiles = replace(job.tiles(_WHOLE), joins=True)
    works: list[TileWork] = []
    for number in range(len(tiles.plan.passes)):
        works += tiles.works(number)
    return tuple(works)


#: FFTs of whole lines, from an address to a place in a tile, in bytes.
Part = tuple[FFT, int, int]


def _from_runs(work: TileWork, runs: Sequence[Run]) -> tuple[TileWork, list[Part]]:
    """Return FFTs that go from the runs of a block to its tile, and the work that is left.

    They do the dimensions of the first FFT that the runs do not cut. There are none if the runs cut
    all of them.
    """
    (first, *others) = work.computations
    op = first.op
    if not isinstance(op, FFT) or op.kind == "c2r":  # which may overwrite its source
        return work, []
    complex_nbytes = np.dtype(op.dtype).itemsize
    if any((run.source.data.ptr + run.start) % complex_nbytes for run in runs):
        return work, []  # cuFFT reads whole complex numbers, of real values as well
    itemsize = np.dtype(first.source.dtype).itemsize
    cut_dim = _cut_dim(op, itemsize, runs)
    if cut_dim is None:
        return work, []
    other_dims = op.dims[: bisect(op.dims, cut_dim)]
    is_long = len(other_dims) == 1 and op.source[other_dims[0]] > SHORT
    if is_long and len(op.dims) == 2:
        return work, []
    # A row has all values of the dimensions after the cut one; a run has some rows.
    source_row = op.source[cut_dim + 1 :]
    target_row = op.target[cut_dim + 1 :]
    source_nbytes = math.prod(source_row) * itemsize
    target_nbytes = math.prod(target_row) * complex_nbytes
    parts: list[Part] = []
    for run in runs:
        count = run.nbytes // source_nbytes
        fft = replace(
            op,
            source=(count, *source_row),
            target=(count, *target_row),
            dims=tuple(dim - cut_dim for dim in op.dims if dim > cut_dim),
        )
        place = run.place // source_nbytes * target_nbytes
        parts.append((fft, run.source.data.ptr + run.start, place))
    if other_dims:
        other_fft = replace(
            op,
            kind="c2c",
            source=op.target,
            dims=other_dims,
        )
        others.insert(0, Computation(other_fft, first.target, first.target))
    return replace(work, source=first.target, computations=tuple(others)), parts


def _cut_dim(op: FFT, itemsize: int, runs: Sequence[Run]) -> int | None:
    """Return the outermost dimension of which all runs have whole rows; None if none is left."""
    for dim in range(max(op.dims)):
        row_nbytes = itemsize * math.prod(op.source[dim + 1 :])
        if not any(run.place % row_nbytes or run.nbytes % row_nbytes for run in runs):
            return dim
    return None


def _computed(
    plans: FFTPlans,
    values: Any,
    parts: Sequence[Part],
    work: TileWork,
    filters: Mapping[int, Any],
) -> Any:
    """Do all operations on a tile, in the stream of the task; return the result."""
    from dask_bigfft.gpu.cupy_gpu import compute  # imports numba

    plans.trim()
    ffts = [op for op, _, _ in parts]
    for computation in work.computations:
        if isinstance(computation.op, FFT):
            ffts.append(computation.op)
    work_nbytes = max(map(plans.prepare, ffts), default=0)
    buffers = _memory(values, work, filters)  # before the work area, so that the pool cuts less
    work_area = cupy().cuda.alloc(work_nbytes)
    work_address = int(work_area.ptr)
    emit("device_memory", device=int(cupy().cuda.runtime.getDevice()), nbytes=in_pool())

    def array(device_array: DeviceArray) -> Any:
        """Return an array of the tile."""
        memory = buffers[device_array.offset]
        return cupy().ndarray(device_array.shape, np.dtype(device_array.dtype), memptr=memory)

    def address(device_array: DeviceArray) -> int:
        """Return the address of an array of the tile."""
        return int(buffers[device_array.offset].ptr)

    for op, source_address, place in parts:
        compute(
            plans,
            op,
            int(source_address),
            address(work.source) + place,
            work_address,
        )
    if values is not None and buffers[work.source.offset].ptr != values.data.ptr:
        array(work.source)[...] = values.reshape(work.source.shape)
    for computation in work.computations:
        source = address(computation.source)
        operation = computation.op
        if isinstance(operation, Transfer):
            operation = replace(operation, function=filters[operation.product.operand])
        compute(
            plans,
            operation,
            source,
            address(computation.target),
            work_address,
        )
    return array(work.result)


def _memory(values: Any, work: TileWork, filters: Mapping[int, Any]) -> dict[int, Any]:
    """Return the memory for the arrays of a tile, with a separate buffer for each offset.

    The values are used as one of the buffers if they are large enough.
    """
    buffers: dict[int, Any] = {}
    for filter_part in work.filters:
        spectrum = cupy().asarray(filters[filter_part.operand]).reshape(filter_part.shape)
        part = cupy().ascontiguousarray(spectrum[filter_part.part])
        buffers[filter_part.array.offset] = part.data
    arrays = [work.source, work.result]
    for computation in work.computations:
        arrays += [computation.source, computation.target]
    sizes: dict[int, int] = {}
    for array in arrays:
        sizes[array.offset] = max(sizes.get(array.offset, 0), array.nbytes)
    for offset, nbytes in sizes.items():
        is_source = values is not None and offset == work.source.offset
        if is_source and nbytes <= values.nbytes:
            buffers[offset] = values.data
        elif offset not in buffers:
            buffers[offset] = cupy().cuda.alloc(nbytes)
    return buffers


@on_own_gpu
def windows_on_gpu(values: Any, windows: tuple[StoredWindow, ...]) -> Any:
    """Return cyclic windows of some dimensions of a block."""
    dims = tuple(window.dim for window in windows)
    shifts = tuple(-window.first for window in windows)
    rolled = cupy().roll(values, shifts, dims)
    parts = [slice(None)] * values.ndim
    for window in windows:
        if window.fold is not None:
            before = (slice(None),) * window.dim
            place, other_place = (slice(at, at + 1) for at in window.fold)
            rolled[(*before, place)] += rolled[(*before, other_place)]
        parts[window.dim] = slice(window.count)
    return cupy().ascontiguousarray(rolled[tuple(parts)])


@on_own_gpu
def waved_on_gpu(
    block: Any,
    axis: int,
    bounds: Block,
    length: int,
    factor: Any,
    ends: tuple[Any, Any],
    waves: CosineSum,
    out: bool,
    block_id: Block,
) -> Any:
    """Return a block times the phases with which an FFT gives a sum over cosines or sines.

    `CosineSum` has a product of two shifted indices in its exponent. An FFT of a whole period does
    the product of the indices themselves. What the shifts add depends on one index each: on the
    input's, or on the output's (`out`): the block is real before the FFT, and complex after it, of
    which the real part is returned. The phases are those of the formula in `CosineSum`. Other
    parameters are those of `twiddle.ends_scaled`.
    """
    from dask_bigfft.gpu.cupy_gpu import compute  # imports numba

    low = bounds[block_id[axis]]
    high = bounds[block_id[axis] + 1]
    is_sine = out and waves.turns > 0
    modulus = 2 * waves.period
    stride = waves.second
    constant = 0
    if out:
        modulus = 4 * waves.period
        stride = 2 * waves.first
        constant = waves.first * waves.second
    index = Term(axis, 1, NO_MODULUS, stride, offset=low)
    phases = Twiddle(
        modulus,
        -1,
        (index, *constant_index(constant)),
        constant_index(1),
    )
    dtype = np.result_type(block.dtype, np.complex64)
    by = Multiply(
        block.shape,
        dtype.str,
        scale=float(-factor if is_sine else factor),
        factors=(phases,),
    )
    values = block.astype(dtype)
    address = int(values.data.ptr)
    compute(
        _plans_of(block.device.id).ffts,
        by,
        address,
        address,
        0,
    )
    for end, place in zip(ends, (0, length - 1), strict=True):
        if low <= place < high and end != 1:
            part = values[(slice(None),) * axis + (slice(place - low, place - low + 1),)]
            cupy().multiply(part, float(end), out=part)
    if not out:
        return values
    # For sines, the value is the imaginary part.
    return cupy().ascontiguousarray(values.imag if is_sine else values.real)
