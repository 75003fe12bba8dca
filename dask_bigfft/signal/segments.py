"""Spectra averaged over segments (P. D. Welch, IEEE Trans. Audio Electroacoust. 15, 1967).

Segments begin at multiples of nperseg - noverlap. SciPy computes the spectra of those inside a
block, and a task returns only their sum. Those across the edge of two blocks have tasks of their
own (see `segment_plan`)::

    block --------> sum of spectra -----------------+--> average
        `-> ends --> samples around edges --> sum --'

For a median, tasks return the spectra of all segments, and one exchange collects them frequency by
frequency. Its bias is that of B. Allen et al. (Phys. Rev. D 85, 2012, appendix B).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np
import scipy  # its modules are imported at first use
import scipy.fft

from dask_bigfft.api.arguments import parse_array, parse_chunks, parse_limit
from dask_bigfft.api.calls import by_block, note_plan
from dask_bigfft.api.kinds import keeps_kind, keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    ArgumentTypeError,
    parse_as,
    parse_choice,
    parse_count,
    parse_flag,
    raise_invalid,
)
from dask_bigfft.events import task_threads
from dask_bigfft.kernels.views import empty_like, is_on_gpu
from dask_bigfft.machine.environment import current_machine
from dask_bigfft.planner.request import Machine
from dask_bigfft.signal.arguments import (
    SignalOptions,
    long_enough,
    parse_pair,
    parse_signal_options,
    refuse_unsupported,
    without_empty,
)
from dask_bigfft.signal.segment_plan import SegmentPlan
from dask_bigfft.signal.segment_tasks import (
    GPU_TILE_SAMPLES,
    TILE_SAMPLES,
    SpectraOfSegments,
    edges_of_block,
    median_of_block,
    spectra_of_block,
    without_line,
    without_mean,
)
from dask_bigfft.transforms.layout import even_chunks
from dask_bigfft.transforms.spec import parse_axes

__all__ = ["csd", "welch"]

Average = Literal["mean", "median"]


def median_bias(count: int) -> float:
    """Return the expected median of `count` exponentially distributed numbers of mean 1.

    >>> [round(median_bias(count), 4) for count in (1, 2, 3, 4, 1001)]
    [1.0, 1.0, 0.8333, 0.8333, 0.6936]
    """
    even = 2.0 * np.arange(1, (count - 1) // 2 + 1)
    return float(1 + np.sum(1 / (even + 1) - 1 / even))


def parse_rate(fs: Any) -> float:
    rate = parse_as(
        float,
        "fs",
        fs,
        "a positive number",
    )
    if not 0 < rate < math.inf:
        raise_invalid("fs", fs, "a positive number")
    return rate


def _parse_window(window: Any, nperseg: int, onesided: bool) -> Any:
    """Return a window as a name or a tuple, or as an array of its values."""
    allowed = (
        f"a name or a tuple that scipy.signal.get_window knows, or nperseg={nperseg} numbers"
        f"{', real ones' if onesided else ''}"
    )
    is_named = isinstance(window, str | tuple)
    try:
        values = scipy.signal.get_window(window, nperseg) if is_named else np.array(window)
    except (ValueError, TypeError, IndexError):
        raise_invalid("window", window, allowed)
    if values.shape != (nperseg,) or values.dtype.kind not in ("biuf" if onesided else "biufc"):
        raise_invalid("window", window, allowed)
    return window if is_named else values


def parse_detrend(detrend: Any, nperseg: int, name: str = "detrend") -> Any:
    """Return SciPy's `detrend` for segments along the last axis; errors name the argument."""
    if detrend is None or detrend is False:
        return detrend
    if isinstance(detrend, str):
        if detrend in ("linear", "l"):
            return without_line
        if detrend in ("constant", "c"):
            return without_mean
    allowed = "'constant', 'linear', False or a function of segments that keeps their shape"
    if not callable(detrend):
        raise_invalid(name, detrend, allowed)
    try:
        keeps_shape = np.shape(detrend(np.ones((2, nperseg)))) == (2, nperseg)
    except Exception as error:
        raise_invalid(
            name,
            detrend,
            f"{allowed} ({error})",
            kind=ArgumentTypeError,
        )
    if not keeps_shape:
        raise_invalid(name, detrend, allowed)
    return detrend


@dataclass(frozen=True)
class SegmentArguments:
    """Arguments of `welch` and `csd`, as `csd` describes them."""

    fs: Any = 1.0
    window: Any = "hann"
    nperseg: Any = None
    noverlap: Any = None
    nfft: Any = None
    detrend: Any = "constant"
    return_onesided: Any = True
    scaling: Any = "density"
    axis: Any = -1
    average: Any = "mean"


def _keywords(arguments: SegmentArguments, n: int, real: bool) -> dict[str, Any]:
    """Return SciPy's keywords for an axis of `n` samples."""
    parse_choice(
        "scaling",
        arguments.scaling,
        "density",
        "spectrum",
    )
    window = arguments.window
    nperseg = arguments.nperseg
    if nperseg is None:
        is_named = isinstance(window, str | tuple)
        nperseg = min(256 if is_named else np.size(window) or 256, n)
    nperseg = parse_count("nperseg", nperseg)
    if nperseg > n:
        allowed = f"an integer of at most {n}, the length of axis {arguments.axis}"
        raise_invalid("nperseg", nperseg, allowed)
    noverlap = nperseg // 2 if arguments.noverlap is None else arguments.noverlap
    noverlap = parse_count(
        "noverlap",
        noverlap,
        0,
        nperseg - 1,
    )
    nfft = nperseg if arguments.nfft is None else arguments.nfft
    onesided = parse_flag("return_onesided", arguments.return_onesided) and real
    return {
        "fs": parse_rate(arguments.fs),
        "window": _parse_window(window, nperseg, onesided),
        "nperseg": nperseg,
        "noverlap": noverlap,
        "nfft": parse_count(
            "nfft",
            nfft,
            nperseg,
            2**31,
        ),
        "detrend": parse_detrend(arguments.detrend, nperseg),
        "return_onesided": onesided,
        "scaling": arguments.scaling,
    }


def machine_of(options: SignalOptions, on_gpu: bool) -> Machine:
    """Return the memory limit and the threads of a process."""
    memory_limit = parse_limit("memory_limit", options.get("memory_limit"))
    if on_gpu:  # whose memory no setting limits
        return Machine(memory_limit, task_threads())
    return current_machine(memory_limit)


@dataclass(frozen=True)
class SegmentCall:
    """A validated call of `welch` or `csd`.

    Parameters
    ----------
    arrays : tuple of dask.array.Array
        One or two arrays in the blocks of the plan.
    plan : SegmentPlan
        Segments and blocks.
    keywords : dict
        SciPy's keywords.
    options : SignalOptions
        Keywords of the caller.
    """

    arrays: tuple[da.Array, ...]
    plan: SegmentPlan
    keywords: dict[str, Any]
    options: SignalOptions

    @property
    def frequencies(self) -> Array:
        """Frequencies of the spectra."""
        is_onesided = self.keywords["return_onesided"]
        fftfreq = scipy.fft.rfftfreq if is_onesided else scipy.fft.fftfreq
        return cast("Array", fftfreq(self.keywords["nfft"], 1 / self.keywords["fs"]))


def parse_average(
    arrays: tuple[da.Array, ...],
    function: str,
    arguments: SegmentArguments,
    options: SignalOptions,
) -> SegmentCall:
    """Return the validated call of a function on one or two arrays."""
    parse_signal_options(options)
    on_gpu = is_on_gpu(arrays[0]._meta)
    refuse_unsupported(
        options,
        arrays[0],
        function,
        forecast=True,
    )
    parse_choice(
        "average",
        arguments.average,
        "mean",
        "median",
    )
    (axis,) = parse_axes("axis", (arguments.axis,), arrays[0].ndim)
    if arrays[0] is arrays[-1]:
        arrays = arrays[:1]
    arrays = tuple(map(without_empty, arrays))
    if arrays[0].shape[axis] == 0:
        need = f"at least one sample along axis {axis}"
        raise_invalid("x", f"shape {arrays[0].shape}", need)
    real = all(a.dtype.kind != "c" for a in arrays)
    keywords = _keywords(arguments, arrays[0].shape[axis], real)
    nperseg = keywords["nperseg"]
    nfft = keywords["nfft"]
    chunks = list(arrays[0].chunks)
    chunks[axis] = long_enough(chunks[axis], nperseg - 1)
    complex_dtype = np.result_type(*(a.dtype for a in arrays), np.complex64)
    real_dtype = np.empty(0, complex_dtype).real.dtype
    plan = SegmentPlan(
        function=function,
        average=arguments.average,
        axis=axis,
        chunks=tuple(chunks),
        joined=any(a.chunks != tuple(chunks) for a in arrays),
        dtypes=tuple(a.dtype.str for a in arrays),
        out_dtype=(real_dtype if len(arrays) == 1 else complex_dtype).str,
        nperseg=nperseg,
        noverlap=keywords["noverlap"],
        nfft=nfft,
        frequencies=nfft // 2 + 1 if keywords["return_onesided"] else nfft,
        tile_samples=GPU_TILE_SAMPLES if on_gpu else TILE_SAMPLES,
        machine=machine_of(options, on_gpu),
    )
    plan.refuse_above_limit()
    return SegmentCall(
        tuple(a.rechunk(plan.chunks) for a in arrays),
        plan,
        keywords,
        options,
    )


def _spectra(call: SegmentCall) -> da.Array:
    """Return sums of spectra of segments, or for a median all spectra.

    They run along the axis of the samples, and frequencies along a new last axis.
    """
    plan = call.plan
    axis = call.plan.axis
    summed = plan.average == "mean"
    work = SpectraOfSegments(
        axis=axis,
        keywords=call.keywords,
        frequencies=plan.frequencies,
        dtype=np.dtype(plan.out_dtype),
        summed=summed,
        tile_samples=plan.tile_samples,
    )

    def spectra(arrays: Sequence[da.Array], starts: list[range]) -> Any:
        chunks = list(arrays[0].chunks)
        chunks[axis] = tuple(1 if summed else len(own) for own in starts)
        spectra_or_sums: Any = da.map_blocks(
            spectra_of_block,
            *arrays,
            dtype=work.dtype,
            meta=empty_like(arrays[0]._meta, arrays[0].ndim + 1, work.dtype),
            chunks=(*chunks, (plan.frequencies,)),
            new_axis=[arrays[0].ndim],
            starts=starts,
            work=work,
        )
        return spectra_or_sums if summed else without_empty(spectra_or_sums)

    inside = spectra(call.arrays, plan.inside)
    if not any(plan.across):
        return cast("da.Array", inside)
    around = [around_edges(a, axis, plan.edge) for a in call.arrays]
    both: da.Array = da.concatenate([inside, spectra(around, plan.across)], axis=axis)
    return both


def around_edges(
    a: da.Array,
    axis: int,
    count: int,
    *,
    with_end: bool = False,
) -> da.Array:
    """Return an array with a block for each edge between blocks, `count` samples on both sides.

    If `with_end`, a last block has the last `count` samples of the array.
    """
    before = a.chunks[:axis]
    cut = a.chunks[axis]
    after = a.chunks[axis + 1 :]
    own_edges = tuple(2 * count for _ in cut)
    chunks = (*before, own_edges, *after)
    ends: Any = by_block(
        edges_of_block,
        a,
        dtype=a.dtype,
        chunks=chunks,
        axis=axis,
        count=count,
    )
    size = ends.shape[axis]
    stop = size if with_end else size - count
    inner = (*(slice(None) for _ in before), slice(count, stop))
    last = (count,) if with_end else ()
    around: da.Array = ends[inner].rechunk({axis: (*own_edges[1:], *last)})
    return around


def _averaged(call: SegmentCall) -> tuple[Array, da.Array]:
    """Return the frequencies, and the average of the (cross) spectra of segments."""
    note_plan(call.plan)
    axis = call.plan.axis
    spectra: Any = _spectra(call)
    average = _mean(spectra, call) if call.plan.average == "mean" else _median(spectra, call)
    last = average.ndim - 1  # array expressions have no moveaxis
    average = average.transpose((*range(axis), last, *range(axis, last)))
    chunks = call.options.get("chunks")
    if chunks is not None:
        cuts = parse_chunks(
            chunks,
            call.arrays[0].chunks,
            average.shape,
            average.dtype,
        )
        average = average if cuts is None else average.rechunk(cuts)
    return call.frequencies, cast("da.Array", average)


def _mean(spectra: Any, call: SegmentCall) -> Any:
    """Return the mean over segments, from sums for each block."""
    axis = call.plan.axis
    if spectra.numblocks[axis] > 1:
        total = spectra.sum(axis=axis)
    else:
        total = spectra[(*[slice(None)] * axis, 0)]
    return total / np.dtype(call.plan.out_dtype).type(call.plan.count)


def _median(spectra: Any, call: SegmentCall) -> Any:
    """Return the median over segments, in as many chunks of frequencies as the plan has of samples.

    The plan has joined chunks that are shorter than a segment.
    """
    plan = call.plan
    frequencies = even_chunks(plan.frequencies, len(plan.chunks[plan.axis]))
    collected = spectra.rechunk({plan.axis: -1, -1: frequencies})
    chunks = list(collected.chunks)
    chunks[plan.axis] = (1,)
    medians = by_block(  # `drop_axis` would make dask copy each block
        median_of_block,
        collected,
        axis=plan.axis,
        bias=median_bias(plan.count),
        tile_samples=plan.tile_samples,
        chunks=tuple(chunks),
        dtype=np.dtype(plan.out_dtype),
    )
    return medians[(*[slice(None)] * plan.axis, 0)]


@keeps_kind
def csd(
    x: Any,
    y: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: Literal["density", "spectrum"] = "density",
    axis: int = -1,
    average: Average = "mean",
    **options: Unpack[SignalOptions],
) -> tuple[Array, da.Array]:
    """Return the cross spectrum of two arrays, averaged over segments.

    Parameters
    ----------
    x, y : dask array or array-like
        Of one shape and any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis
        See `scipy.signal.csd`. A function `detrend` gets segments along its argument's last axis.
        `nperseg` must not exceed the length of the axis, where SciPy warns and takes the length.
    average : {"mean", "median"}
        Average over segments. A median is less sensitive to outliers, but needs an exchange of the
        spectra of all segments.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result.
    memory_limit : int or str, optional
        Bytes that one process may use, such as ``"4 GiB"``. A forecast above it is an error.
    kernel, device, device_memory_limit, verify, planner : optional
        As for `fftconvolve`, with the values that `oaconvolve` allows.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: the cross spectrum, whole along the axis (in parts for a median).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, or a memory limit that is too small.

    Notes
    -----
    Memory is that of one block for each thread, and little more. A median also takes that of the
    spectra of all segments, for the rows that threads work on, and of a block of them for each
    thread.

    See Also
    --------
    plan_segments : Forecast of the memory.

    Examples
    --------
    >>> frequencies, power = csd(np.ones(32), np.ones(32), nperseg=4, detrend=False)
    >>> frequencies
    array([0.  , 0.25, 0.5 ])
    """
    arguments = SegmentArguments(
        fs=fs,
        window=window,
        nperseg=nperseg,
        noverlap=noverlap,
        nfft=nfft,
        detrend=detrend,
        return_onesided=return_onesided,
        scaling=scaling,
        axis=axis,
        average=average,
    )
    return _averaged(
        parse_average(
            parse_pair(x, y),
            "csd",
            arguments,
            options,
        )
    )


@keeps_rows()
def welch(
    x: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: Literal["density", "spectrum"] = "density",
    axis: int = -1,
    average: Average = "mean",
    **options: Unpack[SignalOptions],
) -> tuple[Array, da.Array]:
    """Return the power spectrum of an array, averaged over segments.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average, chunks, \
..., planner
        See `csd`. The defaults are SciPy's: segments of 256 samples that overlap by half, Hann's
        window, the mean of each segment subtracted.

    Returns
    -------
    ndarray
        Frequencies, in the unit of `fs`.
    dask.array.Array
        Lazy: the power spectrum, real, whole along the axis (in parts for a median). By default
        the one-sided density, in squared units of `x` per unit of `fs`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, or a memory limit that is too small.

    See Also
    --------
    plan_segments : Forecast of the memory.

    Examples
    --------
    >>> x = da.random.default_rng(0).standard_normal(10_000, chunks=1000)
    >>> frequencies, power = welch(x, fs=2.0)
    >>> float(power.mean().compute().round(1))
    1.0
    """
    arguments = SegmentArguments(
        fs=fs,
        window=window,
        nperseg=nperseg,
        noverlap=noverlap,
        nfft=nfft,
        detrend=detrend,
        return_onesided=return_onesided,
        scaling=scaling,
        axis=axis,
        average=average,
    )
    arrays = (parse_array(x, "fft"),)
    return _averaged(
        parse_average(
            arrays,
            "welch",
            arguments,
            options,
        )
    )
