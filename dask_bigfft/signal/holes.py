r"""Arrays with holes: convolution that leaves them out.

A single NaN makes a whole spectrum NaN. `convolve_masked` convolves the values with zeros in their
holes, and the array of their weights, which is 0 in holes and 1 elsewhere. The ratio is the mean of
the values that are known. Both are layers of one array along a new first axis, so that one
convolution does it, and a block of it has all that a block of the result needs::

    x --> known values  \
     `--> weights       /  layers --> convolution --> ratio
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array, parse_chunks
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.api.plans import read_directly, reader_of
from dask_bigfft.arrays import Array
from dask_bigfft.dask_private import with_own_tasks
from dask_bigfft.errors import (
    ArgumentTypeError,
    MemoryLimitError,
    parse_as,
    parse_choice,
    parse_flag,
    raise_invalid,
)
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.transfer import contiguous_parts
from dask_bigfft.kernels.views import allocate_like, empty_like, is_on_gpu
from dask_bigfft.planner.cost import graph_nbytes
from dask_bigfft.planner.plan import with_more_memory
from dask_bigfft.planner.rows import ResultWriting
from dask_bigfft.signal.arguments import (
    ConvolutionOptions,
    SignalOptions,
    parse_mask,
    parse_signal_options,
    without_empty,
)
from dask_bigfft.signal.convolution import PlannedProduct, convolve, planned_convolution
from dask_bigfft.signal.segments import machine_of
from dask_bigfft.transforms.spec import work_dtype

__all__ = ["convolve_masked"]

#: Minimum sum of a kernel to be normalized. Smaller and negative sums are refused, as by astropy.
MIN_NORMALIZED_SUM = 1e-2

#: Sums of a kernel that count as 0 where it is not normalized.
ZERO_SUM = 1e-8

#: Elements of a block that are computed at a time, so that temporary arrays stay in cache.
PART_SIZE = 1 << 16

#: Memory of a plan in blocks of the array that it reads, for each thread and beside all threads. A
#: block of both layers is twice as large. A thread needs four of these, which padding enlarges by
#: an eighth, and one more waits for its task.
BLOCKS_OF_THREAD = 9
BLOCKS_BESIDE = 2

#: Tasks of a block beside those of the plan: two of the array, two of a mask, layers, and the mean.
TASKS_OF_BLOCK = 6

#: Memory of a task beside a block of both convolutions: means, weights, and holes that are read.
BESIDE_RESULT = ResultWriting(copies=2, copies_at_ends=2)


def _parse_real_array(x: Any, name: str) -> da.Array:
    """Return an array of real floating-point numbers without empty chunks."""
    array = read_directly(parse_array(x, "fft"))
    if array.dtype.kind == "c":
        raise_invalid(name, f"dtype {array.dtype}", "real numbers", kind=ArgumentTypeError)
    dtype = np.empty(0, work_dtype(array.dtype)).real.dtype
    return without_empty(array.astype(dtype))


def in_larger_blocks(array: da.Array, most_nbytes: float) -> da.Array:
    """Return an array whose neighbouring chunks are read at once, if they are small and in files.

    Along the first axis that is cut, as many chunks become one block as fit in some bytes.
    """
    reader = reader_of(array)
    axes = [axis for axis, count in enumerate(array.numblocks) if count > 1]
    if reader is None or not axes:
        return array
    chunk_nbytes = math.prod(array.chunksize) * array.dtype.itemsize
    joined = int(most_nbytes // chunk_nbytes)
    if joined < 2:
        return array
    chunks = list(array.chunks)
    cuts = chunks[axes[0]]
    chunks[axes[0]] = tuple(
        sum(cuts[first : first + joined]) for first in range(0, len(cuts), joined)
    )
    larger: Any = da.from_array(reader, tuple(chunks), name=f"{array.name}-{joined}")
    return cast("da.Array", larger)


@on_own_gpu
def _missing(x: Array, mask: Array | None = None) -> Array:
    """Return True where values are masked, NaN or infinite."""
    missing: Array = np.isfinite(x)
    np.logical_not(missing, out=missing)
    if mask is not None:
        missing |= np.asarray(mask, like=x)
    return missing


def _nbytes(arrays: tuple[da.Array, ...]) -> int:
    """Return the bytes of several arrays."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


@dataclass(frozen=True)
class GapSources:
    """An array with gaps, and where they are.

    Parameters
    ----------
    arrays : tuple of dask.array.Array
        The array, and a mask in its blocks unless gaps are NaN or infinite.
    fit_memory : bool
        True if the arrays stay in memory between their uses.
    """

    arrays: tuple[da.Array, ...]
    fit_memory: bool

    @classmethod
    def of(
        cls,
        array: da.Array,
        missing: da.Array | None,
        options: SignalOptions,
        others_nbytes: int | None = None,
    ) -> "GapSources":
        """Return the sources of an array.

        Parameters
        ----------
        array, missing : dask.array.Array
            The array, and a mask or None.
        options : SignalOptions
            Keywords with the memory limit.
        others_nbytes : int, optional
            Bytes of all else in a process, by default three times those of the sources.
        """
        arrays = (array,) if missing is None else (array, missing)
        machine = machine_of(options, is_on_gpu(array._meta))
        own_nbytes = _nbytes(arrays) // machine.workers
        others = 3 * own_nbytes if others_nbytes is None else others_nbytes
        limit = machine.memory_limit
        return cls(arrays, fit_memory=limit is None or own_nbytes + others <= limit)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return _nbytes(self.arrays)

    def read(self, turn: int) -> tuple[da.Array, ...]:
        """Return the arrays for another use, which `turn` numbers.

        If they do not fit, they have tasks of their own for each use, so that no block stays in
        memory from one to the next. Results of transforms are not computed again.
        """
        if self.fit_memory:
            return self.arrays
        return tuple(with_own_tasks(array, f"{array.name} {turn}") for array in self.arrays)


@on_own_gpu
def _known(
    x: Array,
    mask: Array | None = None,
    *,
    in_holes: float,
    offset: float,
) -> Array:
    """Return values minus an offset, with another value in holes."""
    values = np.where(_missing(x, mask), x.dtype.type(in_holes), x)
    values -= x.dtype.type(offset)
    return values


@on_own_gpu
def _known_and_weights(
    x: Array,
    mask: Array | None = None,
    *,
    offset: float,
    counts_holes: bool,
) -> Array:
    """Return two layers: values minus an offset, 0 in place of holes; and weights.

    With `counts_holes`, the second layer is 1 in holes and 0 elsewhere.
    """
    layers: Array = allocate_like(x, (2, *x.shape), x.dtype)
    part_size = x.size if is_on_gpu(x) else PART_SIZE
    for part in contiguous_parts(x.shape, part_size):
        missing = _missing(x[part], None if mask is None else mask[part])
        values = layers[0][part]
        values[...] = x[part]
        np.copyto(values, x.dtype.type(0), where=missing)
        if offset:
            values -= x.dtype.type(offset)
        if not counts_holes:
            np.logical_not(missing, out=missing)
        layers[1][part] = missing
    return layers


@dataclass(frozen=True)
class WeightedMean:
    """Mean of known values from the convolutions of values and of weights, the two layers.

    Parameters
    ----------
    factor : float
        Factor of the values.
    outside : float
        Number that is added to them.
    weight_sum : float or None
        Sum of all weights from which the convolution of the holes is subtracted; None if weights
        are convolved.
    least : float
        Weight below which the mean is NaN. If it is 0, the mean is 0 where the weight is that of
        rounding errors.
    """

    factor: float
    outside: float
    weight_sum: float | None
    least: float

    def of_layers(self, layers: Array) -> Array:
        """Return the mean for each element of two layers.

        Layer 0 is the convolution of the values, 0 in holes. Layer 1 is that of the weights, or of
        the holes if there is a `weight_sum`.
        """
        shape = layers.shape[1:]
        means: Array = allocate_like(layers, shape, layers.dtype)
        part_size = layers.size if is_on_gpu(layers) else PART_SIZE
        for part in contiguous_parts(shape, part_size):
            self._store(layers[0][part], layers[1][part], out=means[part])
        return means

    def _store(self, values: Array, weights: Array, out: Array) -> None:
        """Store the mean for each element of a part of two layers."""
        number = values.dtype.type
        np.multiply(values, number(self.factor), out=out)
        if self.outside:
            out += number(self.outside)
        if self.weight_sum is not None:
            weights = number(self.weight_sum) - weights
        with np.errstate(divide="ignore", invalid="ignore"):
            out /= weights
        if self.least > 0:
            out[weights < self.least] = np.nan
        else:
            out[weights < 10 * np.finfo(values.dtype).eps] = 0


@on_own_gpu
def _mean_of_layers(layers: Array, mean: WeightedMean) -> Array:
    """Return the weighted mean of a block of two layers."""
    return mean.of_layers(layers)


@on_own_gpu
def _with_nan(values: Array, x: Array, mask: Array | None = None) -> Array:
    """Return values with NaN where those of x are missing."""
    return np.where(_missing(x, mask), values.dtype.type(np.nan), values)


@dataclass(frozen=True)
class ScaledKernel:
    """A kernel divided by a number, and the factor of its convolution.

    Parameters
    ----------
    numbers : ndarray
        The kernel divided by a number.
    factor : float
        The divisor, which the factor undoes, or 1.
    """

    numbers: Array
    factor: float

    @property
    def total(self) -> float:
        """Sum of the divided kernel."""
        return float(self.numbers.sum())

    @classmethod
    def of(cls, numbers: Array, normalize_kernel: Any, interpolates: bool) -> "ScaledKernel":
        """Return a kernel of finite numbers with its divisor.

        ========================  ===================================  ============================
        normalize_kernel          divisor                              factor
        ========================  ===================================  ============================
        True                      sum of the kernel                    1
        False                     the sum, or 1 if the sum is about 0  the divisor, which it undoes
        a function of the kernel  its result                           the divisor, which it undoes
        ========================  ===================================  ============================

        With True, a sum below `MIN_NORMALIZED_SUM` is refused. With False, a sum of about 0 is
        refused if `interpolates`. A function may return any finite number but 0.
        """
        if callable(normalize_kernel):
            divisor = _parse_divisor(normalize_kernel(numbers))
            return cls(numbers / divisor, divisor)
        total = float(numbers.sum())
        if parse_flag("normalize_kernel", normalize_kernel):
            if total < MIN_NORMALIZED_SUM:
                need = f"a sum of at least {MIN_NORMALIZED_SUM}, or normalize_kernel=False"
                raise_invalid("kernel", f"sum {total}", need)
            return cls(numbers / total, 1.0)
        if abs(total) >= ZERO_SUM:
            return cls(numbers / total, total)
        if interpolates:
            need = "a sum other than 0 for nan_treatment='interpolate'"
            raise_invalid("kernel", f"sum {total}", need)
        return cls(numbers, 1.0)


def _parse_divisor(returned: Any) -> float:
    """Return the number by which a function of the kernel says to divide it."""
    allowed = "a function that returns a number"
    divisor = parse_as(float, "normalize_kernel", returned, allowed)
    if divisor == 0 or not math.isfinite(divisor):
        need = "a function that returns a finite number other than 0"
        raise_invalid("normalize_kernel", f"a function that returned {divisor}", need)
    return divisor


def _parse_kernel(kernel: Any, ndim: int) -> Array:
    """Return the numbers of a kernel, with 0 in place of those that are not finite."""
    allowed = f"an array in memory of {ndim} axes of real numbers"
    values = getattr(kernel, "array", kernel)  # of astropy's kernels
    if isinstance(values, da.Array):
        raise_invalid("kernel", kernel, allowed, kind=ArgumentTypeError)
    parsed = parse_as(lambda numbers: np.array(numbers), "kernel", values, allowed)
    if parsed.dtype.kind not in "biuf":
        raise_invalid("kernel", f"dtype {parsed.dtype}", allowed, kind=ArgumentTypeError)
    if parsed.ndim != ndim or parsed.size == 0:
        raise_invalid("kernel", f"shape {parsed.shape}", allowed)
    numbers = parsed.astype(float)
    numbers[~np.isfinite(numbers)] = 0
    return numbers


@dataclass(frozen=True)
class Exterior:
    """The values outside an array.

    Parameters
    ----------
    boundary : {"fill", "wrap"}
        One number, or the values at the opposite end of the array.
    fill_value : float
        The number, which may be NaN.
    """

    boundary: str
    fill_value: float

    @property
    def is_cyclic(self) -> bool:
        """True if the array goes on periodically."""
        return self.boundary == "wrap"

    @property
    def is_known(self) -> bool:
        """True if no value outside is missing."""
        return self.is_cyclic or math.isfinite(self.fill_value)

    @property
    def offset(self) -> float:
        """Number that is subtracted from the array, so that values outside are 0."""
        return 0.0 if self.is_cyclic or not self.is_known else self.fill_value

    def contribution(self, kernel: ScaledKernel) -> float:
        """Return the convolution of the offset."""
        return self.offset * kernel.total * kernel.factor


def _convolved_without_plan(
    x: da.Array,
    kernel: Array,
    options: SignalOptions,
    *,
    is_cyclic: bool,
) -> da.Array:
    """Return the convolution with a kernel of odd lengths, block by block or by several plans.

    An array that goes on periodically gets a halo.
    """
    like = np.asarray(kernel.astype(x.dtype), like=x._meta)
    if not is_cyclic:
        return convolve(x, like, mode="same", **options)
    widths = [(n // 2, n // 2) for n in kernel.shape]
    source: Any = da.pad(x, widths, mode="wrap")
    return convolve(source, like, mode="valid", **options)


def _centred(kernel: Array) -> Array:
    """Return a kernel with odd lengths, whose middle is that of the kernel at place n // 2."""
    return np.pad(kernel, [(0, 1 - n % 2) for n in kernel.shape])


def _planned(
    x: da.Array,
    kernel: Array,
    options: SignalOptions,
    *,
    is_cyclic: bool,
    has_layers: bool,
) -> PlannedProduct | None:
    """Return the planned convolution of `_convolved`; None if no single plan does it."""
    samples = kernel if is_cyclic else _centred(kernel)
    like = np.asarray(samples.astype(x.dtype), like=x._meta)
    plan_with = partial(
        planned_convolution,
        x,
        like,
        "same",
        writing=BESIDE_RESULT,
        is_cyclic=is_cyclic,
    )
    try:
        planned = plan_with(options=options)
    except MemoryLimitError:
        if not is_cyclic:
            raise
        return None
    if planned is not None and has_layers and len(planned.plan.chunks[0]) > 1:
        return plan_with(options={**options, "chunks": x.chunks})
    return planned


def _convolved(
    x: da.Array,
    kernel: Array,
    options: SignalOptions,
    *,
    is_cyclic: bool,
    has_layers: bool,
) -> tuple[da.Array, int | None]:
    """Return the convolution with a kernel whose middle is place n // 2, in the shape of x.

    Also return the forecast of its memory in bytes, None if it works block by block.

    Parameters
    ----------
    x : dask.array.Array
        The array.
    kernel : ndarray
        With as many axes.
    options : SignalOptions
        Keywords of `convolve`.
    is_cyclic : bool
        True for the values at the opposite end outside the array, False for zeros.
    has_layers : bool
        True if a plan has to give one chunk along the first axis.
    """
    planned = _planned(x, kernel, options, is_cyclic=is_cyclic, has_layers=has_layers)
    if planned is None:
        centred = _centred(kernel)
        return _convolved_without_plan(x, centred, options, is_cyclic=is_cyclic), None
    tasks = planned.plan.expected.tasks + TASKS_OF_BLOCK * math.prod(x.numblocks)
    plan = with_more_memory(planned.plan, graph_nbytes(planned.plan, tasks))
    return replace(planned, plan=plan).result(), plan.expected.peak_host


@keeps_kind
def convolve_masked(
    x: Any,
    kernel: Any,
    mask: Any = None,
    nan_treatment: Literal["interpolate", "fill"] = "interpolate",
    boundary: Literal["fill", "wrap"] = "fill",
    fill_value: float = 0.0,
    preserve_nan: bool = False,
    normalize_kernel: bool | Callable[..., Any] = True,
    min_wt: float = 0.0,
    **options: Unpack[ConvolutionOptions],
) -> da.Array:
    """Return the convolution of the known values of an array with holes.

    Parameters
    ----------
    x : dask array or array-like
        Real, of any chunking; only read. Holes are NaN or infinite, or masked.
    kernel : array-like
        In memory, real, with as many axes as `x`. Its middle is place n // 2 of n along each axis.
    mask : array-like, optional
        Booleans that broadcast against `x`, True where values are missing.
    nan_treatment : {"interpolate", "fill"}
        Divide by the convolution of the weights, which are 0 in holes, or put `fill_value` there.
    boundary : {"fill", "wrap"}
        Values outside the array: `fill_value`, or those at the opposite end.
    fill_value : float
        Value outside the array, and in holes for ``nan_treatment="fill"``. With NaN and
        "interpolate", values outside the array are missing, too.
    preserve_nan : bool
        True to make holes NaN again.
    normalize_kernel : bool or callable
        True to divide the kernel by its sum, or a function that returns the divisor.
    min_wt : float
        Weights below it make the result NaN. With 0, results without any weight are 0.
    chunks, memory_limit, device, device_memory_limit, verify, planner : optional
        As for `convolve`. The setting `bigfft.kernel` chooses the FFT library.

    Returns
    -------
    dask.array.Array
        Lazy, in the shape of `x`, as `astropy.convolution.convolve_fft` returns it; of single
        precision for single-precision `x`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments; for a kernel whose sum is 0 where it has to be divided by it.

    Notes
    -----
    Values and weights are convolved together, in twice the memory and time of `convolve`. All of it
    is one plan that keeps to `memory_limit`. Dask's graph comes on top of that, some 8 tasks of
    3 kB for a chunk of `x`; the forecast of the plan counts it. Below a limit, several chunks of
    files are read as one block if that is faster, and the result has chunks of such blocks by
    default. For a kernel that is longer than `x` there are several plans, each of which keeps to
    it. If memory is too small for `x`, the tasks that make it run again for ``preserve_nan=True``,
    whose result has the chunks of `x` by default.

    For ``boundary="wrap"`` the transforms are as long as `x`. Lengths with large prime factors
    along cut axes take more time and memory than others. If it is more than the limit, `x` gets a
    halo, which no forecast counts.

    See Also
    --------
    fill_gaps : Band-limited values in the holes.

    Examples
    --------
    >>> convolve_masked([1.0, np.nan, 3.0], [1.0, 1.0, 1.0]).compute().round(6)
    array([0.5, 2. , 1.5])
    """
    parse_signal_options(options)
    array = _parse_real_array(x, "x")
    missing = parse_mask(mask, array)
    treatment = parse_choice("nan_treatment", nan_treatment, "interpolate", "fill")
    interpolates = treatment == "interpolate"
    parse_choice("boundary", boundary, "fill", "wrap")
    parse_flag("preserve_nan", preserve_nan)
    fill = parse_as(float, "fill_value", fill_value, "a number")
    least = parse_as(float, "min_wt", min_wt, "a number")
    if math.isnan(least):
        raise_invalid("min_wt", min_wt, "a number")
    if not interpolates and not math.isfinite(fill):
        raise_invalid("fill_value", fill_value, "a finite number for nan_treatment='fill'")
    exterior = Exterior(boundary, fill)
    numbers = _parse_kernel(kernel, array.ndim)
    scaled_kernel = ScaledKernel.of(numbers, normalize_kernel, interpolates)
    if exterior.is_cyclic:
        _refuse_longer(numbers, array)
    if array.size == 0:
        return array
    sources = (array,) if missing is None else (array, missing)
    # For `preserve_nan` holes are read again block by block.
    keeps_chunks = preserve_nan or exterior.is_cyclic
    chunks = _chunks_of_result(array, options, keeps_chunks=keeps_chunks)
    own_options: SignalOptions = {**cast("SignalOptions", options), "chunks": chunks}
    if interpolates:
        result, nbytes = _interpolated(sources, scaled_kernel, exterior, least, own_options)
    else:
        result, nbytes = _filled(sources, scaled_kernel, exterior, own_options)
    if not preserve_nan:
        return result
    return _with_holes(
        result,
        array,
        missing,
        own_options,
        nbytes,
    )


def _with_holes(
    result: da.Array,
    array: da.Array,
    missing: da.Array | None,
    options: SignalOptions,
    others_nbytes: int | None,
) -> da.Array:
    """Return a result with NaN in the holes of an array; for the parameters see `GapSources.of`."""
    gap_sources = GapSources.of(
        array,
        missing,
        options,
        others_nbytes,
    )
    aligned = (source.rechunk(result.chunks) for source in gap_sources.read(1))
    return by_block(_with_nan, result, *aligned, dtype=array.dtype)


def _chunks_of_result(
    array: da.Array,
    options: ConvolutionOptions,
    *,
    keeps_chunks: bool,
) -> Any:
    """Return the chunks that a caller asks for, else those of the array or None for a plan's."""
    if options.get("chunks") is None:
        return array.chunks if keeps_chunks else None
    return parse_chunks(
        options["chunks"],
        array.chunks,
        array.shape,
        array.dtype,
    )


def _refuse_longer(kernel: Array, array: da.Array) -> None:
    """Raise an error if a kernel is longer than the array along an axis."""
    if any(n > m for n, m in zip(kernel.shape, array.shape, strict=True)):
        need = f"at most the shape of x, {array.shape}, for boundary='wrap'"
        raise_invalid("kernel", f"shape {kernel.shape}", need)


def _layers(sources: tuple[da.Array, ...], exterior: Exterior) -> da.Array:
    """Return known values and weights, the two layers along a new first axis."""
    array = sources[0]
    return by_block(
        _known_and_weights,
        *sources,
        dtype=array.dtype,
        meta=empty_like(array._meta, array.ndim + 1, array.dtype),
        chunks=((2,), *array.chunks),
        new_axis=[0],
        offset=exterior.offset,
        counts_holes=exterior.is_known,
    )


def _in_fastest_blocks(
    sources: tuple[da.Array, ...],
    kernel: ScaledKernel,
    exterior: Exterior,
    options: SignalOptions,
) -> tuple[da.Array, ...]:
    """Return the sources, in larger blocks if they are stored and the plan is faster then.

    A plan that keeps all blocks in memory gains little, and its result would have larger chunks.
    """
    array = sources[0]
    machine = machine_of(options, is_on_gpu(array._meta))
    if machine.memory_limit is None:
        return sources
    blocks = BLOCKS_OF_THREAD * machine.threads + BLOCKS_BESIDE
    larger = in_larger_blocks(array, machine.memory_limit / blocks)
    if larger is array:
        return sources

    def seconds(candidate: tuple[da.Array, ...]) -> float:
        """Return the forecast of a plan with scratch files; infinite if there is none."""
        try:
            planned = _planned(
                _layers(candidate, exterior),
                kernel.numbers[np.newaxis],
                options,
                is_cyclic=exterior.is_cyclic,
                has_layers=True,
            )
        except MemoryLimitError:
            return math.inf
        if planned is None or planned.plan.storage != "disk":
            return math.inf
        return planned.plan.expected.seconds

    in_larger = (larger, *(source.rechunk(larger.chunks) for source in sources[1:]))
    own_seconds = seconds(sources)
    if own_seconds == math.inf or own_seconds <= seconds(in_larger):
        return sources
    return in_larger


def _interpolated(
    sources: tuple[da.Array, ...],
    kernel: ScaledKernel,
    exterior: Exterior,
    least: float,
    options: SignalOptions,
) -> tuple[da.Array, int | None]:
    """Return the weighted means of known values, and the forecast of `_convolved`.

    Weights below `least` make a mean NaN.
    """
    chunks = options.get("chunks")
    of_layers: SignalOptions = {**options, "chunks": None if chunks is None else ((2,), *chunks)}
    fastest = _in_fastest_blocks(sources, kernel, exterior, of_layers)
    array = fastest[0]
    convolved, nbytes = _convolved(
        _layers(fastest, exterior),
        kernel.numbers[np.newaxis],
        of_layers,
        is_cyclic=exterior.is_cyclic,
        has_layers=True,
    )
    layers_together = convolved.rechunk({0: -1})
    means = by_block(
        _mean_of_layers,
        layers_together,
        dtype=array.dtype,
        meta=empty_like(array._meta, array.ndim, array.dtype),
        chunks=layers_together.chunks[1:],
        drop_axis=[0],
        mean=WeightedMean(
            factor=kernel.factor,
            outside=exterior.contribution(kernel),
            weight_sum=kernel.total if exterior.is_known else None,
            least=least,
        ),
    )
    return means, nbytes


def _filled(
    sources: tuple[da.Array, ...],
    kernel: ScaledKernel,
    exterior: Exterior,
    options: SignalOptions,
) -> tuple[da.Array, int | None]:
    """Return the convolution with `fill_value` in holes, and the forecast of `_convolved`."""
    array = sources[0]
    values = by_block(
        _known,
        *sources,
        dtype=array.dtype,
        in_holes=exterior.fill_value,
        offset=exterior.offset,
    )
    convolution, nbytes = _convolved(
        values,
        kernel.numbers * kernel.factor,
        options,
        is_cyclic=exterior.is_cyclic,
        has_layers=False,
    )
    outside = exterior.contribution(kernel)
    if not outside:
        return convolution, nbytes
    return convolution + array.dtype.type(outside), nbytes
