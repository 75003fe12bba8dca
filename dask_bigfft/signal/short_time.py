"""Short-time transforms: spectra of overlapping slices of a record, and back.

Slices lie in blocks and across their edges, as the segments of averages do (see `segment_plan`). A
block of the result has the slices that begin in a block of the samples::

    samples      |a----------------b|c------------------d|
    slices        |------|            |------|
                      |------|            |------|
                          |---+--|
    result       |p----------------q|r------------------s|

The inverse adds slices where they overlap. A task has the slices of its block, and those at the end
of the block before that reach into it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast, get_args

import dask.array as da
import numpy as np
import scipy.signal

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, parse_choice, parse_count, raise_invalid
from dask_bigfft.kernels.views import empty_like, is_on_gpu
from dask_bigfft.signal.arguments import (
    SignalOptions,
    in_chunks,
    long_enough,
    parse_pair,
    parse_signal_options,
    refuse_unsupported,
    without_empty,
)
from dask_bigfft.signal.segment_plan import SegmentPlan
from dask_bigfft.signal.segment_tasks import GPU_TILE_SAMPLES, TILE_SAMPLES
from dask_bigfft.signal.segments import around_edges, machine_of, parse_detrend, parse_rate
from dask_bigfft.signal.short_time_tasks import (
    SamplesOfSpectra,
    SliceFFT,
    SpectraOfSlices,
    last_slices,
    samples_of_block,
    slices_of_block,
)
from dask_bigfft.transforms.spec import parse_axes, work_dtype

__all__ = ["istft", "spectrogram", "stft"]

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


def parse_window(arguments: WindowArguments) -> scipy.signal.ShortTimeFFT:
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


def parse_window_keywords(keywords: Mapping[str, Any], fs: float) -> scipy.signal.ShortTimeFFT:
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
    try:
        values = np.array(window)
    except (TypeError, ValueError):
        raise_invalid(name, window, allowed, kind=ArgumentTypeError)
    if values.dtype.kind not in "biufc":
        raise_invalid(name, window, allowed, kind=ArgumentTypeError)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise_invalid(name, window, allowed)
    return values if values.dtype.kind in "fc" else values.astype(float)


def _slice_fft(transform: scipy.signal.ShortTimeFFT, window: Array) -> SliceFFT:
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


# --- from samples to spectra ----------------------------------------------------------------


@dataclass(frozen=True)
class SliceArguments:
    """Arguments of a short-time transform that choose its slices, as `stft` has them."""

    p0: Any
    p1: Any
    k_offset: Any
    padding: Any
    axis: Any
    detr: Any = None


def _spectra(
    arrays: tuple[da.Array, ...],
    function: str,
    arguments: WindowArguments,
    choice: SliceArguments,
    options: SignalOptions,
) -> da.Array:
    """Return the spectra of the slices of one array, or products of those of two."""
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
    is_complex = any(a.dtype.kind == "c" for a in arrays)
    if transform.onesided_fft and is_complex:
        raise_invalid("fft_mode", transform.fft_mode, "'twosided' or 'centered' for complex x")
    padded = tuple(_sliced(without_empty(a), transform, choice, axis) for a in arrays)
    is_power = function == "spectrogram"
    complex_dtype = np.result_type(*(work_dtype(a.dtype) for a in arrays))
    real_dtype = np.empty(0, complex_dtype).real.dtype
    on_gpu = is_on_gpu(arrays[0]._meta)
    tile_samples = GPU_TILE_SAMPLES if on_gpu else TILE_SAMPLES
    work = SpectraOfSlices(
        fft=_slice_fft(transform, transform.win.conj()),
        axis=axis,
        detrend=_parse_trend(choice.detr, transform.m_num),
        squared=is_power,
        work_dtype=complex_dtype if is_complex else real_dtype,
        dtype=real_dtype if is_power and len(arrays) == 1 else complex_dtype,
        tile_samples=tile_samples,
    )
    chunks = list(padded[0].chunks)
    chunks[axis] = long_enough(chunks[axis], transform.m_num - 1)
    plan = SegmentPlan(
        function=function,
        average="all",
        axis=axis,
        chunks=tuple(chunks),
        joined=any(a.chunks != tuple(chunks) for a in padded),
        dtypes=tuple(a.dtype.str for a in padded),
        out_dtype=work.dtype.str,
        nperseg=transform.m_num,
        noverlap=transform.m_num - transform.hop,
        nfft=transform.mfft,
        frequencies=transform.f_pts,
        tile_samples=tile_samples,
        machine=machine_of(options, on_gpu),
    )
    plan.refuse_above_limit()
    spectra = _by_block([a.rechunk(plan.chunks) for a in padded], plan, work)
    return in_chunks(spectra, options.get("chunks"))


def _parse_trend(detr: Any, nperseg: int) -> Callable[[Array], Array] | None:
    """Return a function that subtracts the trend of slices along the last axis."""
    trend = parse_detrend(detr, nperseg, "detr")
    if trend is None or trend is False:
        return None
    return without_mean if isinstance(trend, str) else cast("Callable[[Array], Array]", trend)


def without_mean(slices: Array) -> Array:
    """Return slices minus their mean along the last axis."""
    centred: Array = slices - np.mean(slices, axis=-1, keepdims=True)
    return centred


def _sliced(
    a: da.Array,
    transform: scipy.signal.ShortTimeFFT,
    choice: SliceArguments,
    axis: int,
) -> da.Array:
    """Return the samples of the slices of an array, from the first of the first slice on.

    Slices that stick out of the array are padded as SciPy does: an array that is cropped at the
    last slice is continued from there.
    """
    n = a.shape[axis]
    least = transform.m_num - transform.m_num_mid
    if n < least:
        raise_invalid("x", f"{n} samples", f"at least half as many as in win: {least}")
    padding = parse_choice("padding", choice.padding, *PADDINGS)
    p0, p1 = parse_slices(choice.p0, choice.p1, transform, n)
    offset = parse_count("k_offset", choice.k_offset, -(2**62), 2**62)
    start = p0 * transform.hop - transform.m_num_mid + offset
    length = (p1 - p0 - 1) * transform.hop + transform.m_num
    stop = start + length + transform.hop  # to which SciPy pads
    low = max(start, 0)
    high = min(stop, n)
    if low >= high:
        raise_invalid("k_offset", offset, f"an offset by which slices meet the {n} samples of x")
    before = low - start
    after = stop - high
    before_axis = (slice(None),) * axis
    inner = without_empty(a[(*before_axis, slice(low, high))])
    padded = _padded(
        inner,
        axis,
        before,
        after,
        padding,
    )
    samples: da.Array = padded[(*before_axis, slice(length))]
    return samples


def parse_slices(
    p0: Any,
    p1: Any,
    transform: scipy.signal.ShortTimeFFT,
    n: int,
) -> tuple[int, int]:
    """Return the first slice, and the end of the slices, of `n` samples."""
    first = transform.p_min
    end = transform.p_max(n)
    if p0 is not None:
        first = parse_count("p0", p0, first, end - 1)
    if p1 is not None:
        end = parse_count("p1", p1, first + 1, end)
    return int(first), int(end)


def _padded(
    a: da.Array,
    axis: int,
    before: int,
    after: int,
    padding: str,
) -> da.Array:
    """Return an array with some samples before and after those along an axis, as `numpy.pad`."""
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

    if size <= max(before, after):  # reflected more than once
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
    arrays: list[da.Array],
    plan: SegmentPlan,
    work: SpectraOfSlices,
) -> da.Array:
    """Return the spectra of slices, frequencies along the axis of the samples and slices last."""
    axis = plan.axis
    ndim = arrays[0].ndim
    sources = list(arrays)
    across = (*plan.across, range(0))
    if any(across):
        sources += [around_edges(a, axis, plan.edge, with_end=True) for a in arrays]
    chunks = list(plan.chunks)
    pairs = zip(plan.inside, across, strict=True)
    chunks[axis] = tuple(len(inside) + len(own_across) for inside, own_across in pairs)
    spectra: Any = da.map_blocks(
        slices_of_block,
        *sources,
        dtype=work.dtype,
        meta=empty_like(arrays[0]._meta, ndim + 1, work.dtype),
        chunks=(*chunks, (plan.frequencies,)),
        new_axis=[ndim],
        inside=plan.inside,
        across=plan.across,
        work=work,
    )
    order = [*range(ndim + 1)]
    order[axis] = ndim
    order[ndim] = axis
    return without_empty(spectra.transpose(order))


@keeps_kind
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
    **options
        Other keywords of `fftconvolve`, with values that ask for nothing else than SciPy block by
        block: `kernel` "scipy", `device` "cpu", `verify` "none" and `planner` "estimate". Others
        are refused.

    Returns
    -------
    dask.array.Array
        Lazy: frequencies along the axis of the samples, slices along a new last axis. It is what
        ``ShortTimeFFT(win, hop, fs, ...).stft(x, ...)`` returns, in single precision for
        single-precision `x`. A block has the slices that begin in a block of `x`.

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
    return _spectra(
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


@keeps_kind
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
        Subtract the mean of each slice, or the line of the least squares, before the window. A
        function gets slices along its argument's last axis.
    fft_mode, mfft, scale_to, phase_shift, p0, p1, k_offset, padding, axis, **options
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
    return _spectra(
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


# --- from spectra to samples ----------------------------------------------------------------


@keeps_kind
def istft(
    S: Any,
    win: Any,
    hop: int,
    fs: float,
    *,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    dual_win: Any = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    k0: int = 0,
    k1: int | None = None,
    f_axis: int = -2,
    t_axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the inverse of a short-time Fourier transform.

    Parameters
    ----------
    S : dask array or array-like
        Spectra of slices, of any chunking; only read.
    win, hop, fs, fft_mode, mfft, scale_to, phase_shift
        Arguments of the `stft` that has made them.
    dual_win : array-like, optional
        Window that slices are multiplied by before they are added, by default the canonical one.
    k0, k1 : int, optional
        First sample of the result, and the end of the samples. By default they are those from
        sample 0 to the end of the last slice: give the length of the original record as `k1`.
    f_axis, t_axis : int
        Axes of the frequencies and of the slices. The first slice is the first one that `stft`
        makes by default.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result.
    **options
        See `stft`; `memory_limit` is refused.

    Returns
    -------
    dask.array.Array
        Lazy: samples along the axis of the frequencies, as
        ``ShortTimeFFT(win, hop, fs, dual_win=dual_win, ...).istft(S, k0, k1)`` returns them; real
        for a half of the frequencies. A block has the samples from the first slice of a block of
        `S` to that of the next block.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, and where windows leave gaps, so that there is no inverse.

    Examples
    --------
    >>> x = da.arange(100, chunks=30) * 1.0
    >>> spectra = stft(x, np.hanning(20), 5, 1.0)
    >>> istft(spectra, np.hanning(20), 5, 1.0, k1=100).compute().round(6)[-3:]
    array([97., 98., 99.])
    """
    parse_signal_options(options)
    array = parse_array(S, "fft")
    refuse_unsupported(options, array, "istft")
    arguments = WindowArguments(
        win,
        hop,
        fs,
        fft_mode,
        mfft,
        scale_to,
        phase_shift,
        dual_win,
    )
    transform = parse_window(arguments)
    if array.ndim < 2:
        raise_invalid("S", f"{array.ndim} axes", "an axis of frequencies and one of slices")
    (frequencies,) = parse_axes("f_axis", (f_axis,), array.ndim)
    (slices,) = parse_axes("t_axis", (t_axis,), array.ndim)
    if frequencies == slices:
        raise_invalid("t_axis", t_axis, f"another axis than f_axis={f_axis}")
    rows = [axis for axis in range(array.ndim) if axis not in (frequencies, slices)]
    spectra = array.transpose([*rows, frequencies, slices])
    samples = _samples(
        spectra,
        transform,
        _parse_dual(transform),
        k0,
        k1,
    )
    place = frequencies if frequencies < samples.ndim else slices
    order = [*range(samples.ndim - 1)]
    order.insert(place, samples.ndim - 1)
    return in_chunks(samples.transpose(order), options.get("chunks"))


def _parse_dual(transform: scipy.signal.ShortTimeFFT) -> Array:
    """Return the dual window; refuse windows that have none."""
    try:
        return cast("Array", transform.dual_win)
    except ValueError:
        allowed = f"a window whose slices, one every hop={transform.hop} samples, leave no gap"
        raise_invalid("win", transform.win, allowed)


def _samples(
    spectra: da.Array,
    transform: scipy.signal.ShortTimeFFT,
    dual_window: Array,
    k0: Any,
    k1: Any,
) -> da.Array:
    """Return samples along the last axis, of frequencies along the second-last and slices."""
    hop = transform.hop
    nperseg = transform.m_num
    middle = transform.m_num_mid
    points = transform.f_pts
    if spectra.shape[-2] != points:
        raise_invalid("S", f"{spectra.shape[-2]} frequencies", f"{points} for this window")
    least = nperseg - middle
    slices = spectra.shape[-1]
    if slices < transform.p_num(least):
        need = f"at least {transform.p_num(least)} for this window"
        raise_invalid("S", f"{slices} slices", need)
    end_slice = slices + transform.p_min
    k_max = (end_slice - 1) * hop + least
    start = parse_count("k0", k0, transform.k_min, k_max - least)
    stop = k_max
    if k1 is not None:
        stop = parse_count("k1", k1, max(start + least, least), k_max)
    # The slices that SciPy adds. Those before the first one do not reach sample k0.
    first = start // hop + (transform.p_min if start >= 0 else 0)
    first = max(first, transform.p_min)
    end = min(transform.p_max(stop), end_slice)
    used = slice(first - transform.p_min, end - transform.p_min)
    added = _overlapped(without_empty(spectra[..., used]), transform, dual_window)
    origin = first * hop - middle
    missing = stop - origin - added.shape[-1]
    if missing > 0:  # samples behind the last slice
        zeros = da.zeros_like(added, shape=(*added.shape[:-1], missing))
        added = da.concatenate([added, zeros], axis=-1)
    samples: da.Array = added[..., start - origin : stop - origin]
    return samples


def _overlapped(
    spectra: da.Array,
    transform: scipy.signal.ShortTimeFFT,
    dual_window: Array,
) -> da.Array:
    """Return the sum of all slices, from the start of the first to the end of the last."""
    on_gpu = is_on_gpu(spectra._meta)
    hop = int(transform.hop)
    complex_dtype = work_dtype(spectra.dtype)
    dtype = np.empty(0, complex_dtype).real.dtype if transform.onesided_fft else complex_dtype
    work = SamplesOfSpectra(
        fft=_slice_fft(transform, dual_window),
        dtype=dtype,
        tile_samples=GPU_TILE_SAMPLES if on_gpu else TILE_SAMPLES,
    )
    reach = work.pieces - 1  # slices of a block that overlap the next one
    cut = long_enough(spectra.chunks[-1], reach)
    blocks = spectra.astype(complex_dtype).rechunk({-2: -1, -1: cut})
    sources = [blocks]
    if reach and len(cut) > 1:
        # The tail of a block goes to the next one. The first block gets its own, and ignores it.
        tails: Any = by_block(
            last_slices,
            blocks,
            dtype=complex_dtype,
            chunks=(*blocks.chunks[:-1], (reach,) * len(cut)),
            count=reach,
        )
        sources.append(da.concatenate([tails[..., :reach], tails[..., :-reach]], axis=-1))
    *lengths, last = (count * hop for count in cut)
    chunks = (*blocks.chunks[:-2], (*lengths, last + transform.m_num - hop))
    added: Any = da.map_blocks(
        samples_of_block,
        *sources,
        dtype=dtype,
        meta=empty_like(blocks._meta, blocks.ndim - 1, dtype),
        chunks=chunks,
        drop_axis=blocks.ndim - 2,
        blocks=len(cut),
        work=work,
    )
    return cast("da.Array", added)
