"""Spectra averaged over segments (P. D. Welch, IEEE Trans. Audio Electroacoust. 15, 1967).

Segments begin at multiples of nperseg - noverlap. Each belongs to the block in which it begins. A
block has a halo with samples of the next blocks. SciPy computes the spectra of its segments, and a
task returns only their sum::

    blocks     |a-----------b|..halo..|
    segments    |-----|
                    |-----|
                        |-----|

For a median, tasks return the spectra of all segments, and one exchange collects them frequency by
frequency. Its bias is that of B. Allen et al. (Phys. Rev. D 85, 2012, appendix B).
"""

import itertools
import math
from functools import partial
from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np
import scipy.fft
import scipy.signal

from dask_bigfft.arguments import parse_array, parse_chunks
from dask_bigfft.arrays import Array
from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.errors import (
    ArgumentTypeError,
    parse_as,
    parse_choice,
    parse_count,
    parse_flag,
    raise_invalid,
)
from dask_bigfft.gpu.cuda import scipy_signal
from dask_bigfft.gpu.on_gpu import on_own_gpu
from dask_bigfft.kernels.views import empty_like
from dask_bigfft.signal.arguments import (
    SignalOptions,
    long_enough,
    parse_pair,
    parse_signal_options,
    refuse_unsupported,
    with_halo,
    without_empty,
)
from dask_bigfft.transforms.spec import parse_axes

__all__ = ["csd", "welch"]

Average = Literal["mean", "median"]


@on_own_gpu
def _segments(
    *blocks: Array,
    block_id: tuple[int, ...],
    begun: list[range],
    axis: int,
    count: int,
    out_dtype: np.dtype[Any],
    keywords: dict[str, Any],
    summed: bool,
) -> Any:
    """Return the cross spectra of the segments that begin in a block, or their sum.

    Segments run along `axis`, and frequencies along a new last axis. `begun` has the first samples
    of segments within each block, `count` is the number of frequencies, and `keywords` are SciPy's.
    """
    starts = begun[block_id[axis]]
    if not starts or blocks[0].size == 0:
        shape = list(blocks[0].shape)
        shape[axis] = 1 if summed else len(starts)
        return np.zeros_like(blocks[0], out_dtype, shape=(*shape, count))
    cut = (slice(None),) * axis + (slice(starts[0], starts[-1] + keywords["nperseg"]),)
    common = np.result_type(*(a.dtype for a in blocks))  # small integers give single precision
    spectra = [
        scipy_signal(a).spectrogram(a[cut].astype(common), axis=axis, mode="complex", **keywords)[2]
        for a in blocks
    ]
    found = np.swapaxes(np.conjugate(spectra[0]) * spectra[-1], axis, -1)
    if keywords["return_onesided"]:  # add the power of the missing half
        found[..., 1 : -1 if keywords["nfft"] % 2 == 0 else None] *= 2
    found = (found.real if out_dtype.kind == "f" else found).astype(out_dtype, copy=False)
    return np.sum(found, axis=axis, keepdims=True) if summed else found


@on_own_gpu
def _median(spectra: Array, axis: int, bias: float) -> Any:
    """Return the medians of real and imaginary parts along an axis."""
    found = np.median(spectra.real, axis=axis)
    if spectra.dtype.kind == "c":
        found = found + 1j * np.median(spectra.imag, axis=axis)
    return (found / bias).astype(spectra.dtype, copy=False)


def median_bias(count: int) -> float:
    """Return the expected median of `count` exponentially distributed numbers of mean 1.

    >>> [round(median_bias(count), 4) for count in (1, 2, 3, 4, 1001)]
    [1.0, 1.0, 0.8333, 0.8333, 0.6936]
    """
    even = 2.0 * np.arange(1, (count - 1) // 2 + 1)
    return float(1 + np.sum(1 / (even + 1) - 1 / even))


def _parse_rate(fs: Any) -> float:
    rate = parse_as(float, "fs", fs, "a positive number")
    if not 0 < rate < math.inf:
        raise_invalid("fs", fs, "a positive number")
    return rate


def _parse_window(window: Any, nperseg: int, onesided: bool) -> Any:
    """Return a window as a name or a tuple, or as an array of its values."""
    allowed = (
        f"a name or a tuple that scipy.signal.get_window knows, or nperseg={nperseg} numbers"
        f"{', real ones' if onesided else ''}"
    )
    named = isinstance(window, str | tuple)
    try:
        values = scipy.signal.get_window(window, nperseg) if named else np.asarray(window)
    except (ValueError, TypeError, IndexError):
        raise_invalid("window", window, allowed)
    if values.shape != (nperseg,) or values.dtype.kind not in ("biuf" if onesided else "biufc"):
        raise_invalid("window", window, allowed)
    return window if named else values


def _parse_detrend(detrend: Any, nperseg: int) -> Any:
    allowed = "'constant', 'linear', False or a function of segments that keeps their shape"
    named = isinstance(detrend, str) and detrend in ("constant", "c", "linear", "l")
    known = named or detrend is None or detrend is False
    if callable(detrend):
        try:
            known = np.shape(detrend(np.ones((2, nperseg)))) == (2, nperseg)
        except Exception as error:
            raise_invalid("detrend", detrend, f"{allowed} ({error})", kind=ArgumentTypeError)
    if not known:
        raise_invalid("detrend", detrend, allowed)
    return detrend


def _without_line(segments: Array, axis: int) -> Any:
    """Return segments minus the line of least squares along an axis.

    `scipy.signal.detrend` solves for it by LAPACK, whose threads would compete with dask's.
    """
    count = segments.shape[axis]
    shape = [1] * segments.ndim
    shape[axis] = count
    centred = (np.arange(count) - (count - 1) / 2).reshape(shape)
    time = np.asarray(centred.astype(segments.real.dtype), like=segments)
    norm = max(1.0, count * (count**2 - 1) / 12)  # the sum of squares of the times
    slope = np.sum(segments * time, axis=axis, keepdims=True) / norm
    return segments - np.mean(segments, axis=axis, keepdims=True) - slope * time


def _keywords(n: int, real: bool, given: tuple[Any, ...]) -> dict[str, Any]:
    """Return SciPy's keywords for an axis of `n` samples."""
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling = given
    parse_choice("scaling", scaling, "density", "spectrum")
    length = 256 if isinstance(window, str | tuple) else np.size(window) or 256
    nperseg = min(length, n) if nperseg is None else nperseg
    nperseg = parse_count("nperseg", nperseg, 1, max(n, 1))
    noverlap = nperseg // 2 if noverlap is None else noverlap
    noverlap = parse_count("noverlap", noverlap, 0, nperseg - 1)
    onesided = parse_flag("return_onesided", return_onesided) and real
    return {
        "fs": _parse_rate(fs),
        "window": _parse_window(window, nperseg, onesided),
        "nperseg": nperseg,
        "noverlap": noverlap,
        "nfft": parse_count("nfft", nperseg if nfft is None else nfft, nperseg, 2**31),
        "detrend": _parse_detrend(detrend, nperseg),
        "return_onesided": onesided,
        "scaling": scaling,
    }


def _averaged(
    *arrays: da.Array,
    axis: Any,
    average: Any,
    given: tuple[Any, ...],
    function: str,
    options: SignalOptions,
) -> tuple[Array, da.Array]:
    """Return frequencies, and the average of the (cross) spectra of segments."""
    parse_signal_options(options)
    refuse_unsupported(options, arrays[0], function)
    parse_choice("average", average, "mean", "median")
    (axis,) = parse_axes("axis", (axis,), arrays[0].ndim)
    arrays = arrays[:1] if arrays[0] is arrays[-1] else arrays
    arrays = tuple(map(without_empty, arrays))
    n, shown = arrays[0].shape[axis], arrays[0].chunks
    keywords = _keywords(n, all(a.dtype.kind != "c" for a in arrays), given)
    if keywords["detrend"] in ("linear", "l"):
        keywords["detrend"] = partial(_without_line, axis=axis)
    nperseg = keywords["nperseg"]
    named = scipy.fft.rfftfreq if keywords["return_onesided"] else scipy.fft.fftfreq
    frequencies = named(keywords["nfft"], 1 / keywords["fs"])
    # For a median, each block has at least one segment.
    cut = long_enough(shown[axis], nperseg - 1 if average == "mean" else 2 * nperseg)
    chunks = (*shown[:axis], cut, *shown[axis + 1 :])
    wide = [with_halo(a.rechunk(chunks), {axis: (0, nperseg - 1)}) for a in arrays]
    dtype = np.result_type(*(a.dtype for a in arrays), np.complex64)
    dtype = np.empty(0, dtype).real.dtype if len(arrays) == 1 else dtype
    bounds, step = (0, *itertools.accumulate(map(int, cut))), nperseg - keywords["noverlap"]
    begun = [
        range(-(-low // step) * step - low, min(high - 1, n - nperseg) - low + 1, step)
        for low, high in itertools.pairwise(bounds)
    ]
    mean, total = average == "mean", sum(map(len, begun))
    segments = tuple(1 if mean else len(starts) for starts in begun)
    spectra: Any = da.map_blocks(
        _segments,
        *wide,
        dtype=dtype,
        meta=empty_like(arrays[0]._meta, arrays[0].ndim + 1, dtype),
        chunks=(*shown[:axis], segments, *shown[axis + 1 :], (len(frequencies),)),
        new_axis=[arrays[0].ndim],
        begun=begun,
        axis=axis,
        count=len(frequencies),
        out_dtype=dtype,
        keywords=keywords,
        summed=mean,
    )
    if mean:
        result = spectra.sum(axis=axis) / dtype.type(total)
    else:  # the result has as many chunks of frequencies as the input of samples
        spectra = spectra.rechunk({axis: -1, -1: even_chunks(len(frequencies), len(begun))})
        meta, bias = empty_like(arrays[0]._meta, arrays[0].ndim, dtype), median_bias(total)
        result = spectra.map_blocks(
            _median, axis=axis, bias=bias, drop_axis=axis, dtype=dtype, meta=meta
        )
    last = result.ndim - 1  # array expressions have no moveaxis
    result = result.transpose((*range(axis), last, *range(axis, last)))
    requested = options.get("chunks")
    if requested is not None:
        cuts = parse_chunks(requested, arrays[0].chunks, result.shape, result.dtype)
        result = result if cuts is None else result.rechunk(cuts)
    return frequencies, cast("da.Array", result)


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
        See `scipy.signal.csd`.
    average : {"mean", "median"}
        Average over segments. A median is less sensitive to outliers, but needs an exchange of the
        spectra of all segments.
    **options
        `chunks` of the result, and other keywords of `fftconvolve` with values that ask for nothing
        else than SciPy block by block, see `oaconvolve`. Others are refused.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: the cross spectrum, whole along the axis (in parts for a median).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> frequencies, power = csd(np.ones(32), np.ones(32), nperseg=4, detrend=False)
    >>> frequencies
    array([0.  , 0.25, 0.5 ])
    """
    given = (fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling)
    pair = parse_pair(x, y)
    return _averaged(
        *pair, axis=axis, average=average, given=given, function="csd", options=options
    )


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
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average, **options
        See `csd`.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: the power spectrum, real, whole along the axis (in parts for a median).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> x = da.random.default_rng(0).standard_normal(10_000, chunks=1000)
    >>> frequencies, power = welch(x, fs=2.0)
    >>> float(power.mean().compute().round(1))
    1.0
    """
    given = (fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling)
    array = parse_array(x, "fft")
    return _averaged(
        array, axis=axis, average=average, given=given, function="welch", options=options
    )
