"""Short-time transforms: spectra of overlapping slices of a record.

Slices lie in blocks and across their edges, as the segments of averages do (see `segment_plan`). A
block of the result has the slices that begin in a block of the samples::

    samples      |a----------------b|c------------------d|
    slices        |------|            |------|
                      |------|            |------|
                          |---+--|
    result       |p----------------q|r------------------s|
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast, get_args

import dask.array as da
import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import by_block, note_plan
from dask_bigfft.api.kinds import keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, parse_choice, parse_count, raise_invalid
from dask_bigfft.kernels.views import empty_like, is_on_gpu
from dask_bigfft.planner.rows import ResultWriting
from dask_bigfft.signal.arguments import (
    SignalOptions,
    in_chunks,
    long_enough,
    parse_pair,
    parse_signal_options,
    refuse_unsupported,
    without_empty,
)
from dask_bigfft.signal.segment_plan import NOT_STORED, SegmentPlan
from dask_bigfft.signal.segment_tasks import GPU_TILE_SAMPLES, TILE_SAMPLES
from dask_bigfft.signal.segments import around_edges, machine_of, parse_detrend, parse_rate
from dask_bigfft.signal.short_time_tasks import (
    SliceFFT,
    SpectraOfSlices,
    slices_of_block,
)
from dask_bigfft.signal.slice_reading import Extent, SliceBlocks
from dask_bigfft.storage.sources import Reader
from dask_bigfft.transforms.spec import parse_axes, work_dtype

__all__ = ["spectrogram", "stft"]

FFTMode = Literal["twosided", "centered", "onesided", "onesided2X"]
Scaling = Literal["magnitude", "psd"]
Padding = Literal["zeros", "edge", "even", "odd"]

#: Keywords of `numpy.pad` for each padding.
PADDINGS: dict[str, dict[str, Any]] = {
    "zeros": {"mode": "constant"},
    "edge": {"mode": "edge"},
    "even": {"mode": "reflect", "reflect_type": "even"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
}


@dataclass(frozen=True)
class WindowArguments:
    """Arguments of a short-time transform that describe its window and FFTs, as `stft` has them."""

    win: Any
    hop: Any
    fs: Any
    fft_mode: Any
    mfft: Any
    scale_to: Any
    phase_shift: Any
    dual_win: Any = None


def parse_window(arguments: WindowArguments) -> "scipy.signal.ShortTimeFFT":
    """Return SciPy's description of a short-time transform."""
    window = _parse_values("win", arguments.win)
    size = len(window)
    mfft = size
    if arguments.mfft is not None:
        mfft = parse_count(
            "mfft",
            arguments.mfft,
            size,
            2**31,
        )
    shift = arguments.phase_shift
    if shift is not None:
        shift = parse_count(
            "phase_shift",
            shift,
            1 - mfft,
            mfft - 1,
        )
    dual = arguments.dual_win
    if dual is not None:
        dual = _parse_values("dual_win", dual)
        if len(dual) != size:
            raise_invalid("dual_win", f"{len(dual)} numbers", f"as many as in win: {size}")
    fft_mode = _parse_mode(arguments, window, dual)
    return scipy.signal.ShortTimeFFT(
        window,
        parse_count(
            "hop",
            arguments.hop,
            1,
            2**62,
        ),
        parse_rate(arguments.fs),
        fft_mode=fft_mode,
        mfft=mfft,
        dual_win=dual,
        scale_to=arguments.scale_to,
        phase_shift=shift,
    )


def _parse_mode(
    arguments: WindowArguments,
    window: Array,
    dual: Array | None,
) -> FFTMode:
    """Return the mode of the FFTs; refuse one that windows or their scaling do not allow."""
    fft_mode = parse_choice("fft_mode", arguments.fft_mode, *get_args(FFTMode))
    if arguments.scale_to is not None:
        parse_choice("scale_to", arguments.scale_to, *get_args(Scaling))
    elif fft_mode == "onesided2X":
        raise_invalid("scale_to", None, "'magnitude' or 'psd' for fft_mode='onesided2X'")
    windows = [window] if dual is None else [window, dual]
    if fft_mode.startswith("onesided") and any(values.dtype.kind == "c" for values in windows):
        raise_invalid("fft_mode", fft_mode, "'twosided' or 'centered' for a complex window")
    return cast("FFTMode", fft_mode)


def parse_window_keywords(keywords: Mapping[str, Any], fs: float) -> "scipy.signal.ShortTimeFFT":
    """Return SciPy's description of a short-time transform, from the keywords of a call."""
    arguments = WindowArguments(
        win=keywords.get("win"),
        hop=keywords.get("hop"),
        fs=fs,
        fft_mode=keywords.get("fft_mode", "onesided"),
        mfft=keywords.get("mfft"),
        scale_to=keywords.get("scale_to"),
        phase_shift=keywords.get("phase_shift", 0),
    )
    return parse_window(arguments)


def _parse_values(name: str, window: Any) -> Array:
    """Return a copy of the values of a window, as floating-point or complex numbers."""
    allowed = "one or more finite numbers along one axis"
    if isinstance(window, str):
        kind = window.partition(":")[0]
        allowed += f", as scipy.signal.get_window({kind!r}, 256) returns 256 of them"
    try:
        values = np.array(window)
    except (TypeError, ValueError):
        raise_invalid(name, window, allowed, kind=ArgumentTypeError)
    if values.dtype.kind not in "biufc":
        raise_invalid(name, window, allowed, kind=ArgumentTypeError)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise_invalid(name, window, allowed)
    return values if values.dtype.kind in "fc" else values.astype(float)


def slice_fft(transform: "scipy.signal.ShortTimeFFT", window: Array) -> SliceFFT:
    """Return the FFT of slices of a short-time transform that are multiplied by a window."""
    roll = 0
    if transform.phase_shift is not None:
        roll = (transform.phase_shift + transform.m_num_mid) % transform.m_num
    factor = 1.0
    if transform.fft_mode == "onesided2X":
        factor = float(np.sqrt(2)) if transform.scaling == "psd" else 2.0
    return SliceFFT(
        window=np.array(window),
        hop=int(transform.hop),
        nfft=int(transform.mfft),
        roll=int(roll),
        mode="onesided" if transform.onesided_fft else transform.fft_mode,
        factor=factor,
    )


@dataclass(frozen=True)
class SliceArguments:
    """Arguments of a short-time transform that choose its slices, as `stft` has them."""

    p0: Any
    p1: Any
    k_offset: Any
    padding: Any
    axis: Any
    detr: Any = None


@dataclass(frozen=True)
class SliceCall:
    """A validated call of `stft` or `spectrogram`.

    Parameters
    ----------
    arrays : tuple of dask.array.Array
        Samples of the slices of one or two arrays, in the blocks of the plan.
    plan : SegmentPlan
        Slices and blocks.
    work : SpectraOfSlices
        What is computed of the slices of a block.
    """

    arrays: tuple[da.Array, ...]
    plan: SegmentPlan
    work: SpectraOfSlices

    def spectra(self) -> da.Array:
        """Return the spectra, frequencies along the axis of the samples and slices last."""
        self.plan.refuse_above_limit()
        note_plan(self.plan)
        return _by_block(self.arrays, self.plan, self.work)


def parse_call(
    arrays: tuple[da.Array, ...],
    function: str,
    arguments: WindowArguments,
    choice: SliceArguments,
    options: SignalOptions,
    *,
    slices_per_block: int | None = None,
    reader: Reader | None = None,
    writing: ResultWriting = NOT_STORED,
    is_stored: bool = False,
) -> SliceCall:
    """Return the validated call of a function on one or two arrays.

    With `slices_per_block`, each block but the last one has so many slices, or more if it would be
    shorter than a window. With a `reader` of the array no block is too short, since each is read
    with all samples of its slices. With `is_stored` the tasks store their blocks, which takes the
    memory of `writing`.
    """
    parse_signal_options(options)
    refuse_unsupported(
        options,
        arrays[0],
        function,
        forecast=True,
    )
    transform = parse_window(arguments)
    (axis,) = parse_axes("axis", (choice.axis,), arrays[0].ndim)
    if arrays[0] is arrays[-1]:
        arrays = arrays[:1]
    if transform.onesided_fft and any(a.dtype.kind == "c" for a in arrays):
        raise_invalid("fft_mode", transform.fft_mode, "'twosided' or 'centered' for complex x")
    work = _spectra_of_slices(
        arrays,
        function,
        transform,
        axis=axis,
        detr=choice.detr,
    )
    extent = parse_extent(arrays[0].shape[axis], transform, choice)
    overlapping = reader is not None and extent.is_padded_at_ends
    padded = tuple(_padded(without_empty(a), extent, choice, axis) for a in arrays)
    chunks = list(padded[0].chunks)
    chunks[axis] = _chunks_of_slices(
        chunks[axis],
        extent,
        transform,
        slices_per_block,
        overlapping,
    )
    plan = SegmentPlan(
        function=function,
        average="all",
        axis=axis,
        chunks=tuple(chunks),
        joined=not overlapping and any(a.chunks != tuple(chunks) for a in padded),
        dtypes=tuple(a.dtype.str for a in arrays),
        out_dtype=work.dtype.str,
        nperseg=transform.m_num,
        noverlap=transform.m_num - transform.hop,
        nfft=transform.mfft,
        frequencies=transform.f_pts,
        tile_samples=work.tile_samples,
        machine=machine_of(options, is_on_gpu(arrays[0]._meta)),
        overlapping=overlapping,
        cut_nbytes=0 if overlapping or slices_per_block is None else _largest_nbytes(arrays[0]),
        writing=writing,
        is_stored=is_stored,
    )
    if reader is not None and overlapping:
        return SliceCall((_read_blocks(reader, plan, extent, choice),), plan, work)
    return SliceCall(tuple(a.rechunk(plan.chunks) for a in padded), plan, work)


def _largest_nbytes(a: da.Array) -> int:
    """Return the bytes of the largest block of an array."""
    return int(math.prod(map(max, a.chunks)) * a.dtype.itemsize)


def _read_blocks(
    reader: Reader,
    plan: SegmentPlan,
    extent: Extent,
    choice: SliceArguments,
) -> da.Array:
    """Return the lazy samples of a record in blocks with all samples of their slices."""
    blocks = SliceBlocks(
        reader=reader,
        axis=plan.axis,
        extent=extent,
        starts=plan.bounds[:-1],
        counts=plan.read_lengths,
        padding=PADDINGS[choice.padding],
    )
    return blocks.array(plan.chunks)


def _spectra_of_slices(
    arrays: tuple[da.Array, ...],
    function: str,
    transform: "scipy.signal.ShortTimeFFT",
    *,
    axis: int,
    detr: Any,
) -> SpectraOfSlices:
    """Return what a function computes of the slices of a block of one or two arrays.

    The result is real for the power of one array, and complex otherwise.
    """
    is_power = function == "spectrogram"
    is_complex = any(a.dtype.kind == "c" for a in arrays)
    complex_dtype = np.result_type(*(work_dtype(a.dtype) for a in arrays))
    real_dtype = np.empty(0, complex_dtype).real.dtype
    return SpectraOfSlices(
        fft=slice_fft(transform, transform.win.conj()),
        axis=axis,
        detrend=parse_detrend(detr, transform.m_num, "detr") or None,
        squared=is_power,
        work_dtype=complex_dtype if is_complex else real_dtype,
        dtype=real_dtype if is_power and len(arrays) == 1 else complex_dtype,
        tile_samples=GPU_TILE_SAMPLES if is_on_gpu(arrays[0]._meta) else TILE_SAMPLES,
    )


def _chunks_of_slices(
    chunks: tuple[int, ...],
    extent: Extent,
    transform: "scipy.signal.ShortTimeFFT",
    slices_per_block: int | None,
    overlapping: bool,
) -> tuple[int, ...]:
    """Return the chunks of padded samples: their own if `slices_per_block` is None.

    Blocks that would be shorter than a window less one sample are joined, unless they overlap.
    """
    if slices_per_block is None:
        return long_enough(chunks, transform.m_num - 1)
    length = slices_per_block * transform.hop
    if not overlapping:
        (cut,) = da.core.normalize_chunks(length, (extent.length,))
        return long_enough(cut, transform.m_num - 1)
    slices = (extent.length - transform.m_num) // transform.hop + 1
    whole_blocks = (slices - 1) // slices_per_block
    return (length,) * whole_blocks + (extent.length - whole_blocks * length,)


def least_samples(transform: "scipy.signal.ShortTimeFFT") -> int:
    """Return the number of samples that an array needs for slices: half of the window's."""
    return int(transform.m_num - transform.m_num_mid)


def parse_extent(
    n: int,
    transform: "scipy.signal.ShortTimeFFT",
    choice: SliceArguments,
) -> Extent:
    """Return the samples from which slices are cut, from the first slice's first on.

    Samples outside of the array are made by padding as SciPy makes them: where the slices end
    before the array, it is cropped there first, so that reflections are those of what is left.
    """
    least = least_samples(transform)
    if n < least:
        raise_invalid("x", f"{n} samples", f"at least half as many as in win: {least}")
    parse_choice("padding", choice.padding, *PADDINGS)
    p0, p1 = parse_slices(choice.p0, choice.p1, transform, n)
    offset = parse_count("k_offset", choice.k_offset, -(2**62), 2**62)
    start = p0 * transform.hop - transform.m_num_mid + offset
    length = (p1 - p0 - 1) * transform.hop + transform.m_num
    stop = start + length + transform.hop  # to which SciPy pads
    low = max(start, 0)
    high = min(stop, n)
    if low >= high:
        raise_invalid("k_offset", offset, f"an offset by which slices meet the {n} samples of x")
    return Extent(
        low=int(low),
        high=int(high),
        before=int(low - start),
        after=int(stop - high),
        length=int(length),
    )


def parse_slices(
    p0: Any,
    p1: Any,
    transform: "scipy.signal.ShortTimeFFT",
    n: int,
) -> tuple[int, int]:
    """Return the first slice, and the end of the slices, of `n` samples.

    None stands for SciPy's `p_min` and `p_max`. An argument outside of these is refused.
    """
    first = transform.p_min
    end = transform.p_max(n)
    if p0 is not None:
        first = parse_count("p0", p0, first, end - 1)
    if p1 is not None:
        end = parse_count("p1", p1, first + 1, end)
    return int(first), int(end)


def _padded(
    a: da.Array,
    extent: Extent,
    choice: SliceArguments,
    axis: int,
) -> da.Array:
    """Return the samples of all slices of an array."""
    all_before = (slice(None),) * axis
    inner = without_empty(a[(*all_before, slice(extent.low, extent.high))])
    padded = _with_padding(
        inner,
        extent,
        choice.padding,
        axis,
    )
    samples: da.Array = padded[(*all_before, slice(extent.length))]
    return samples


def _with_padding(
    a: da.Array,
    extent: Extent,
    padding: str,
    axis: int,
) -> da.Array:
    """Return an array with some samples before and after those along an axis, as `numpy.pad`."""
    before = extent.before
    after = extent.after
    if before == 0 and after == 0:
        return a
    size = a.shape[axis]
    all_before = (slice(None),) * axis

    def padded_part(part: slice, widths: tuple[int, int], inner: slice) -> Any:
        samples = a[(*all_before, part)].rechunk({axis: -1})
        chunks = list(samples.chunks)
        chunks[axis] = (len(range(*inner.indices(samples.shape[axis] + sum(widths)))),)
        pad_widths = [(0, 0)] * a.ndim
        pad_widths[axis] = widths
        return by_block(
            _pad_block,
            samples,
            dtype=a.dtype,
            chunks=tuple(chunks),
            pad_widths=tuple(pad_widths),
            inner=(*all_before, inner),
            keywords=PADDINGS[padding],
        )

    if not extent.is_padded_at_ends:
        return cast("da.Array", padded_part(slice(None), (before, after), slice(None)))
    parts = [a]
    if before:
        parts.insert(0, padded_part(slice(before + 1), (before, 0), slice(before)))
    if after:
        last = slice(size - after - 1, size)
        parts.append(padded_part(last, (0, after), slice(after + 1, None)))
    joined: da.Array = da.concatenate(parts, axis=axis)
    return joined


def _pad_block(
    block: Array,
    pad_widths: tuple[tuple[int, int], ...],
    inner: tuple[slice, ...],
    keywords: dict[str, Any],
) -> Array:
    """Return a part of a padded block."""
    padded: Array = np.pad(block, pad_widths, **keywords)[inner]
    return padded


def _by_block(
    arrays: tuple[da.Array, ...],
    plan: SegmentPlan,
    work: SpectraOfSlices,
) -> da.Array:
    """Return the spectra of slices, frequencies along the axis of the samples and slices last."""
    axis = plan.axis
    ndim = arrays[0].ndim
    sources = list(arrays)
    if any(plan.across):
        sources += [around_edges(a, axis, plan.edge, with_end=True) for a in arrays]
    chunks = list(plan.chunks)
    chunks[axis] = plan.block_counts
    spectra: Any = da.map_blocks(
        slices_of_block,
        *sources,
        dtype=work.dtype,
        meta=empty_like(arrays[0]._meta, ndim + 1, work.dtype),
        chunks=(*chunks, (plan.frequencies,)),
        new_axis=[ndim],
        inside=plan.inside,
        across=plan.across_ends,
        work=work,
        is_even=plan.overlapping,
    )
    order = [*range(ndim + 1)]
    order[axis] = ndim
    order[ndim] = axis
    return without_empty(spectra.transpose(order))


@keeps_rows()
def stft(
    x: Any,
    win: Any,
    hop: int,
    fs: float,
    *,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    p0: int | None = None,
    p1: int | None = None,
    k_offset: int = 0,
    padding: Padding = "zeros",
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the short-time Fourier transform: the spectra of overlapping slices of an array.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read.
    win : array-like
        Values of the window, such as those of `scipy.signal.get_window`.
    hop : int
        Samples from a slice to the next one. It may exceed the length of the window.
    fs : float
        Sampling rate.
    fft_mode, mfft, scale_to, phase_shift
        See `scipy.signal.ShortTimeFFT`.
    p0, p1, k_offset, padding
        See `scipy.signal.ShortTimeFFT.stft`.
    axis : int
        Axis of the samples.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result.
    memory_limit : int or str, optional
        Bytes that one process may use, such as ``"4 GiB"``. A forecast above it is an error.
    kernel, device, device_memory_limit, verify, planner : optional
        As for `fftconvolve`, with the values that `oaconvolve` allows.

    Returns
    -------
    dask.array.Array
        Lazy: frequencies along the axis of the samples, slices along a new last axis. It is what
        ``ShortTimeFFT(win, hop, fs, ...).stft(x, ...)`` returns, in single precision for
        single-precision `x`. A block has the slices that begin in a block of `x`, and the first
        one those that begin before it: for Zarr, which needs even chunks, give `chunks`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, or a memory limit that is too small.

    Notes
    -----
    Memory is that of a few blocks for each thread. The window is cast to the precision of `x`. A
    NaN makes all frequencies NaN of every slice that contains it.

    `scipy.signal.ShortTimeFFT` has the frequencies (``f``) and times (``t``) of the result.

    See Also
    --------
    istft : Inverse.
    spectrogram : Squares of the spectra.

    Examples
    --------
    >>> x = da.ones(1000, chunks=300)
    >>> spectra = stft(x, np.hanning(50), 10, 1.0)
    >>> spectra.shape, spectra.chunks[1]
    ((26, 105), (35, 30, 30, 10))
    """
    call = parse_call(
        (parse_array(x, "fft"),),
        "stft",
        WindowArguments(
            win,
            hop,
            fs,
            fft_mode,
            mfft,
            scale_to,
            phase_shift,
        ),
        SliceArguments(
            p0,
            p1,
            k_offset,
            padding,
            axis,
        ),
        options,
    )
    return in_chunks(call.spectra(), options.get("chunks"))


@keeps_rows("y")
def spectrogram(
    x: Any,
    win: Any,
    hop: int,
    fs: float,
    y: Any = None,
    detr: Any = None,
    *,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    p0: int | None = None,
    p1: int | None = None,
    k_offset: int = 0,
    padding: Padding = "zeros",
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the squared spectra of overlapping slices, or the cross spectra of two arrays.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read.
    win, hop, fs
        See `stft`.
    y : dask array or array-like, optional
        Of the shape of `x`, for products of the spectra of `x` with the conjugates of those of `y`.
    detr : {"constant", "linear"} or callable, optional
        Subtract the mean of each slice, or a line fitted by least squares, before the window. A
        function gets slices along its argument's last axis.
    fft_mode, mfft, scale_to, phase_shift, p0, p1, k_offset, padding, axis, chunks, ..., planner
        See `stft`.

    Returns
    -------
    dask.array.Array
        Lazy; real, or complex for two arrays; otherwise as `stft` has it. It is what
        ``ShortTimeFFT(win, hop, fs, ...).spectrogram(x, y, detr, ...)`` returns.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, or a memory limit that is too small.

    See Also
    --------
    welch : Average over slices.

    Examples
    --------
    >>> x = np.cos(np.arange(64) * np.pi / 4)
    >>> power = spectrogram(x, np.ones(16), 16, 1.0, p0=1, p1=3)
    >>> power.compute().round(6)[:, 0] + 0.0
    array([ 0.,  0., 64.,  0.,  0.,  0.,  0.,  0.,  0.])
    """
    arrays = (parse_array(x, "fft"),) if y is None or y is x else parse_pair(x, y)
    call = parse_call(
        arrays,
        "spectrogram",
        WindowArguments(
            win,
            hop,
            fs,
            fft_mode,
            mfft,
            scale_to,
            phase_shift,
        ),
        SliceArguments(
            p0,
            p1,
            k_offset,
            padding,
            axis,
            detr,
        ),
        options,
    )
    return in_chunks(call.spectra(), options.get("chunks"))
