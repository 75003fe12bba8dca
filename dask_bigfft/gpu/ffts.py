"""FFTs on a GPU: the cuFFT calls for the FFTs of an array, and their plans.

cuFFT takes a batch of transforms with two strides: between elements, and between transforms. A
dimension in the middle of an array needs three. Then one plan is executed repeatedly, over the rows
before the dimension or over the elements after it, whichever are fewer.
"""

import functools
import math
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu import kernels
from dask_bigfft.gpu.batches import Batch, Side, execute
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.operations import FFT, Block, Dim
from dask_bigfft.gpu.work_areas import Plan, WorkAreas, work_areas
from dask_bigfft.planner.tile_plan import aligned
from dask_bigfft.transforms.factors import divisors

#: Largest number of dimensions of a plan.
MAX_RANK = 3

#: Largest batch in bytes, where few equal ones take its place. The work area of cuFFT may be four
#: times as large.
MOST_NBYTES = 1 << 30

#: Maximum number of batches, in units of the least number.
MORE_BATCHES = 4

#: Largest FFT of several dimensions in bytes, and as a share of the memory of a large GPU. Larger
#: ones are done dimension by dimension, because the work area would be as large.
LARGEST_NBYTES = 1 << 32
LARGEST_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class Call:
    """Batch that is executed `times` times, at steps of some elements.

    If `staged` is not None, the real side of the array is copied to or from a dense array of that
    shape. Its last dimension is the transformed one, padded, because cuFFT requires real transforms
    to start at an even number of real elements.
    """

    batch: Batch
    times: int = 1
    source_step: int = 0
    target_step: int = 0
    staged: tuple[int, int, int] | None = None


@functools.lru_cache(maxsize=256)
def fft_calls(
    op: FFT,
    most: int = MOST_NBYTES,
    largest: int = LARGEST_NBYTES,
) -> tuple[Call, ...]:
    """Return the calls that transform a dense array, in order.

    One call reads the source and writes the target: the last one of ``c2r``, and the first one of
    others. Calls before it work in the source, calls after it in the target.

    Parameters
    ----------
    op : FFT
        The transform.
    most : int
        Largest batch in bytes.
    largest : int
        Largest FFT of several dimensions in bytes.

    Examples
    --------
    >>> [(call.batch.n, call.batch.count, call.times) for call in
    ...  fft_calls(FFT("c2c", (4, 8, 16), (4, 8, 16), (1, 2), -1, "<c16"))]
    [((8, 16), 4, 1)]
    >>> [(call.batch.n, call.batch.source.stride, call.batch.count, call.times) for call in
    ...  fft_calls(FFT("c2c", (4, 8, 16), (4, 8, 16), (1,), -1, "<c16"))]
    [((8,), 16, 16, 4)]
    """
    dims = op.dims
    complex_shape = op.target if op.kind == "r2c" else op.source
    if math.prod(complex_shape) == 0:
        return ()
    complex_op = replace(
        op,
        kind="c2c",
        source=complex_shape,
        target=complex_shape,
    )
    calls: list[Call] = []
    last = len(dims)
    while last > 0:
        first = _first_neighbour(
            dims,
            last,
            complex_shape,
            largest // np.dtype(op.dtype).itemsize,
        )
        part = op if last == len(dims) else complex_op
        calls.append(_bounded(_along(part, dims[first], dims[last - 1]), most))
        last = first
    if op.kind == "c2r":
        calls.reverse()
    return tuple(calls)


def _first_neighbour(
    dims: Block,
    last: int,
    shape: Block,
    largest: int,
) -> int:
    """Return the first of the neighbouring dimensions before `last` that one plan transforms.

    Dimensions are counted by their position in `dims`; `shape` is that of the complex array, and
    `largest` is a number of elements.
    """
    first = last - 1
    behind = math.prod(shape[dims[first] + 1 :])
    while first > 0 and dims[first - 1] == dims[first] - 1 and last - first < MAX_RANK:
        if behind > 1 and math.prod(shape[: dims[first - 1]]) > 1:
            break  # one plan takes neighbours with nothing before them, or nothing behind
        size = math.prod(shape[dims[first - 1] : dims[last - 1] + 1])
        if size > largest:
            break
        first -= 1
    return first


def _bounded(call: Call, most: int) -> Call:
    """Return a call with batches of at most `most` bytes, if few equal ones are enough."""
    batch = call.batch
    if call.times > 1:
        return call
    if batch.kind != "c2c" and (batch.source.distance % 2 or batch.target.distance % 2):
        return call  # batches of real values would begin at odd elements
    nbytes = math.prod(batch.n) * (16 if batch.double else 8)
    least = min(batch.count, -(-batch.count * nbytes // most))
    few = (n for n in divisors(batch.count) if least <= n <= MORE_BATCHES * least)
    times = next(few, 1)
    if times == 1:
        return call
    count = batch.count // times
    return Call(
        replace(batch, count=count),
        times,
        source_step=count * batch.source.distance,
        target_step=count * batch.target.distance,
    )


def _along(op: FFT, first: int, last: int) -> Call:
    """Return the call for neighbouring dimensions, several only at an end of the array."""
    kind = op.kind
    double = np.dtype(op.dtype).itemsize == 16
    before = op.source[first : last + 1]
    after = op.target[first : last + 1]
    lengths = tuple(map(max, before, after))
    size_before = math.prod(before)
    size_after = math.prod(after)
    rows = math.prod(op.source[:first])
    inner = math.prod(op.source[last + 1 :])
    if inner == 1:
        source = Side(before, 1, size_before)
        target = Side(after, 1, size_after)
        return Call(Batch(kind, lengths, source, target, rows, double))
    if kind != "c2c" and rows > 1 and lengths[0] * inner % 2:
        return _staged(kind, lengths[0], rows, inner, double)
    if rows <= inner or kind != "c2c":  # neighbouring transforms are adjacent in memory
        source = Side(before, inner, 1)
        target = Side(after, inner, 1)
        batch = Batch(kind, lengths, source, target, inner, double)
        return Call(
            batch,
            rows,
            source_step=size_before * inner,
            target_step=size_after * inner,
        )
    source = Side(before, inner, size_before * inner)
    target = Side(after, inner, size_after * inner)
    batch = Batch(kind, lengths, source, target, rows, double)
    return Call(
        batch,
        inner,
        source_step=1,
        target_step=1,
    )


def _staged(
    kind: str,
    n: int,
    rows: int,
    inner: int,
    double: bool,
) -> Call:
    """Return the call for a real transform in an array whose rows start at odd elements."""
    padded = n + n % 2
    half = n // 2 + 1
    real_side = Side((padded,), 1, padded)
    real_step = inner * padded
    complex_side = Side((half,), inner, 1)
    complex_step = half * inner
    if kind == "c2r":
        batch = Batch(
            kind,
            (n,),
            complex_side,
            real_side,
            inner,
            double,
        )
        return Call(
            batch,
            rows,
            complex_step,
            real_step,
            (rows, inner, padded),
        )
    batch = Batch(
        kind,
        (n,),
        real_side,
        complex_side,
        inner,
        double,
    )
    return Call(
        batch,
        rows,
        real_step,
        complex_step,
        (rows, inner, padded),
    )


# --- plans ----------------------------------------------------------------------------------

#: Number of FFT plans that `trim` keeps; a round needs a few.
MAX_PLANS = 64


class FFTPlans:
    """FFT plans of one owner on one GPU, for one thread at a time, as cuFFT is not thread-safe.

    Plans use the work area given in the call (`work_areas`). CuPy's cache of plans is not used,
    because its plans may run in two streams at a time.

    Parameters
    ----------
    most : int
        Largest batch in bytes.
    max_plans : int
        Number of plans that `trim` leaves.
    """

    def __init__(self, most: int = MOST_NBYTES, max_plans: int = MAX_PLANS) -> None:
        self.most = most
        self.max_plans = max_plans
        self._plans: OrderedDict[Batch, Plan] = OrderedDict()

    @property
    def taken(self) -> int:
        """Device memory of the plans in bytes."""
        return sum(plan.taken for plan in self._plans.values())

    @functools.cached_property
    def largest(self) -> int:
        """Largest FFT of several dimensions in bytes, on the GPU that is current at first use."""
        _, total = cupy().cuda.runtime.memGetInfo()
        return max(LARGEST_NBYTES, int(total * LARGEST_SHARE))

    @functools.cached_property
    def _work_areas(self) -> WorkAreas:
        """Work areas of the GPU that is current at first use."""
        return work_areas()

    def prepare(self, op: FFT) -> int:
        """Make the plans of an FFT, and return the size of their work area in bytes.

        Plans are cached until `trim` or `drop`, since making one again during FFTs would need
        memory that is not counted.
        """
        work_nbytes = 0
        for call in fft_calls(op, self.most, self.largest):
            if call.batch in self._plans:
                self._plans.move_to_end(call.batch)
            else:
                self._plans[call.batch] = self._work_areas.new_plan(call.batch)
            need = aligned(self._plans[call.batch].need) + _staging_nbytes(call)
            work_nbytes = max(work_nbytes, need)
        return work_nbytes

    def fft(
        self,
        op: FFT,
        source: int,
        target: int,
        work: int,
    ) -> None:
        """Transform in the current stream; the arrays are addresses."""
        calls = fft_calls(op, self.most, self.largest)
        for call in calls:
            in_source = op.kind == "c2r" and call is not calls[-1]
            result = source if in_source else target
            self._call(
                call,
                op,
                source,
                result,
                work,
            )
            source = result

    def _call(
        self,
        call: Call,
        op: FFT,
        source: int,
        target: int,
        work: int,
    ) -> None:
        """Enqueue one call of an FFT; a staged real side is copied to or from the work area."""
        kind = call.batch.kind
        complex_nbytes = np.dtype(op.dtype).itemsize
        real_nbytes = complex_nbytes // 2
        source_nbytes = real_nbytes if kind == "r2c" else complex_nbytes
        target_nbytes = real_nbytes if kind == "c2r" else complex_nbytes
        plan = self._plans.get(call.batch)
        if plan is None:
            raise DeviceError(f"no plan was made for {call.batch} before it is needed")
        staging = work + aligned(plan.need)
        plan_source = source
        plan_target = target
        if call.staged is not None and kind == "r2c":
            plan_source = staging
            kernels.copy(
                _staging_dims(call),
                real_nbytes,
                source,
                staging,
            )
        elif call.staged is not None:
            plan_target = staging
        with self._work_areas.used(plan, work):
            for i in range(call.times):
                source_address = plan_source + i * call.source_step * source_nbytes
                target_address = plan_target + i * call.target_step * target_nbytes
                execute(plan.raw, source_address, target_address, op.sign)
        if call.staged is not None and kind == "c2r":
            kernels.copy(
                kernels.back(_staging_dims(call)),
                real_nbytes,
                staging,
                target,
            )

    def trim(self) -> None:
        """Drop the least recently used plans above `max_plans`, while nothing runs."""
        while len(self._plans) > self.max_plans:
            self._plans.popitem(last=False)

    def drop(self) -> None:
        """Drop all plans, while nothing runs."""
        self._plans.clear()


def _staging_dims(call: Call) -> list[Dim]:
    """Return the dimensions of the copy of a call's real side to the work area, in elements."""
    assert call.staged is not None
    rows, inner, padded = call.staged
    (n,) = call.batch.n
    return [(rows, n * inner, inner * padded, ()), (inner, 1, padded, ()), (n, inner, 1, ())]


def _staging_nbytes(call: Call) -> int:
    """Return the bytes of the dense copy of a call's real side."""
    real = 8 if call.batch.double else 4
    return 0 if call.staged is None else aligned(math.prod(call.staged) * real)
