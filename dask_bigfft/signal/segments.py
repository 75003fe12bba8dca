"""Spectra averaged over segments (P. D. Welch, IEEE Trans. Audio Electroacoust. 15, 1967).

Segments begin at multiples of nperseg - noverlap. Each belongs to the block in which it begins,
which takes what it lacks from the blocks after it; SciPy makes the spectra of a block's segments,
and only their mean leaves it::

    blocks     |a-----------b|..halo..|
    segments    |-----|
                    |-----|
                        |-----|

For a median the spectra of all segments leave their blocks, and meet frequency by frequency in one
exchange; its bias is that of B. Allen et al. (Phys. Rev. D 85, 2012, appendix B).

Imports `planning`, `decomposition` and this room, and SciPy's spectra of arrays in memory.
"""

import itertools
import math
from typing import Any, Literal, cast

import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.errors import ArgumentTypeError, parse_flag, refuse
from dask_bigfft.planning.arguments import parse_array
from dask_bigfft.signal.arguments import long_enough, parse_pair, without_empty
from dask_bigfft.signal.spectra import sum_of_blocks
from dask_bigfft.transforms.spec import parse_axes

__all__ = ["csd", "welch"]

Array = npt.NDArray[Any]
Average = Literal["mean", "median"]


def _segments(
    x: Array,
    y: Array,
    axis: int,
    bounds: tuple[int, ...],
    total: int,
    keywords: dict[str, Any],
    count: int,
    out_dtype: np.dtype[Any],
    same: bool,
    block_id: tuple[int, ...],
) -> Array:
    """Sum of the cross spectra of the segments that begin in a block."""
    starts, cut = _beginning_in(bounds, block_id[axis], axis, total, keywords)
    shape = list(x.shape)
    shape[axis] = count
    if not starts or x.size == 0:
        return np.zeros(shape, out_dtype)
    a = x[cut]
    _, mean = scipy.signal.csd(a, a if same else y[cut], axis=axis, **keywords)
    return np.asarray(mean * len(starts), out_dtype)


def _starts(low: int, high: int, total: int, nperseg: int, step: int) -> range:
    """Where the segments begin that begin in a block.

    >>> list(_starts(10, 20, 23, 8, 4))
    [12]
    """
    return range(-(-low // step) * step, min(high - 1, total - nperseg) + 1, step)


def _beginning_in(
    bounds: tuple[int, ...], block: int, axis: int, total: int, keywords: dict[str, Any]
) -> tuple[range, tuple[slice, ...]]:
    """Where the segments begin that begin in a block, and what of the block they take."""
    nperseg, step = keywords["nperseg"], keywords["nperseg"] - keywords["noverlap"]
    low, high = bounds[block : block + 2]
    starts = _starts(low, high, total, nperseg, step)
    end = starts[-1] + nperseg - low if starts else 0
    return starts, (slice(None),) * axis + (slice(starts.start - low, end),)


def _each(
    x: Array,
    y: Array,
    axis: int,
    bounds: tuple[int, ...],
    total: int,
    keywords: dict[str, Any],
    count: int,
    out_dtype: np.dtype[Any],
    same: bool,
    block_id: tuple[int, ...],
) -> Array:
    """Cross spectra of the segments that begin in a block, along a last axis of their own."""
    starts, cut = _beginning_in(bounds, block_id[axis], axis, total, keywords)
    shape = [*x.shape, len(starts)]
    shape[axis] = count
    if x.size == 0:
        return np.zeros(shape, out_dtype)
    common = np.result_type(x, y)  # by itself an integer of few bits has a spectrum of single ones
    spectra = [
        scipy.signal.spectrogram(a[cut].astype(common), axis=axis, mode="complex", **keywords)[2]
        for a in ((x,) if same else (x, y))
    ]
    found = np.conjugate(spectra[0]) * spectra[-1]
    if keywords["return_onesided"]:  # the other half's power, but of 0 and of the highest one
        doubled: list[Any] = [slice(None)] * found.ndim
        doubled[axis] = slice(1, -1 if keywords["nfft"] % 2 == 0 else None)
        found[tuple(doubled)] *= 2
    return np.asarray(found.real if out_dtype.kind == "f" else found, out_dtype)


def _median(spectra: Array, bias: float) -> Array:
    """The median along the last axis, of real and imaginary parts by themselves."""
    if spectra.dtype.kind == "c":
        parts = np.median(spectra.real, axis=-1) + 1j * np.median(spectra.imag, axis=-1)
    else:
        parts = np.median(spectra, axis=-1)
    return np.asarray(parts / bias, spectra.dtype)


def median_bias(count: int) -> float:
    """Return the mean of the median of so many exponentially distributed numbers of mean 1.

    >>> [round(median_bias(count), 4) for count in (1, 2, 3, 4, 1001)]
    [1.0, 1.0, 0.8333, 0.8333, 0.6936]
    """
    even = 2.0 * np.arange(1, (count - 1) // 2 + 1)
    return float(1 + np.sum(1 / (even + 1) - 1 / even))


def _parse_length(name: str, value: Any, default: int, least: int, most: int) -> int:
    value = default if value is None else value
    if (
        not isinstance(value, int | np.integer)
        or isinstance(value, bool)
        or not (least <= value <= most)
    ):
        refuse(name, value, f"an integer from {least} to {most}")
    return int(value)


def _parse_rate(fs: Any) -> float:
    try:
        rate = float(fs)
    except (TypeError, ValueError):
        refuse("fs", fs, "a positive number", kind=ArgumentTypeError)
    if not 0 < rate < math.inf:
        refuse("fs", fs, "a positive number")
    return rate


def _parse_window(window: Any, nperseg: int, onesided: bool) -> Any:
    """A window by its name, as it is, or its values."""
    allowed = (
        f"a name or a tuple that scipy.signal.get_window knows, or nperseg={nperseg} numbers"
        f"{', real ones' if onesided else ''}"
    )
    if isinstance(window, str | tuple):
        try:
            scipy.signal.get_window(window, nperseg)
        except (ValueError, TypeError, IndexError):
            refuse("window", window, allowed)
        return window
    values = np.asarray(window)
    if values.shape != (nperseg,) or values.dtype.kind not in ("biuf" if onesided else "biufc"):
        refuse("window", window, allowed)
    return values


def _parse_detrend(detrend: Any, nperseg: int) -> Any:
    named = isinstance(detrend, str) and detrend in ("constant", "c", "linear", "l")
    allowed = "'constant', 'linear', False or a function of segments that keeps their shape"
    if not (named or detrend is None or detrend is False or callable(detrend)):
        refuse("detrend", detrend, allowed)
    if callable(detrend):
        try:
            kept = np.shape(detrend(np.ones((2, nperseg)))) == (2, nperseg)
        except Exception as error:
            refuse("detrend", detrend, f"{allowed} ({error})", kind=ArgumentTypeError)
        if not kept:
            refuse("detrend", detrend, allowed)
    return detrend


def _keywords(
    n: int,
    real: bool,
    fs: Any,
    window: Any,
    nperseg: Any,
    noverlap: Any,
    nfft: Any,
    detrend: Any,
    return_onesided: Any,
    scaling: Any,
) -> dict[str, Any]:
    """What SciPy is called with for segments of `n` samples, which are real or not."""
    if not isinstance(scaling, str) or scaling not in ("density", "spectrum"):
        refuse("scaling", scaling, "'density' or 'spectrum'")
    given = 256 if isinstance(window, str | tuple) else np.size(window) or 256
    nperseg = _parse_length("nperseg", nperseg, min(given, n), 1, max(n, 1))
    noverlap = _parse_length("noverlap", noverlap, nperseg // 2, 0, nperseg - 1)
    onesided = parse_flag("return_onesided", return_onesided) and real
    return {
        "fs": _parse_rate(fs),
        "window": _parse_window(window, nperseg, onesided),
        "nperseg": nperseg,
        "noverlap": noverlap,
        "nfft": _parse_length("nfft", nfft, nperseg, nperseg, 2**31),
        "detrend": _parse_detrend(detrend, nperseg),
        "return_onesided": onesided,
        "scaling": scaling,
    }


def _spectra(
    first: da.Array,
    second: da.Array,
    fs: Any,
    window: Any,
    nperseg: Any,
    noverlap: Any,
    nfft: Any,
    detrend: Any,
    return_onesided: bool,
    scaling: Any,
    axis: Any,
    average: Any,
) -> tuple[Array, Any]:
    """Frequencies, and the mean of the segments' cross spectra."""
    if not isinstance(average, str) or average not in ("mean", "median"):
        refuse("average", average, "'mean' or 'median'")
    (axis,) = parse_axes("axis", (axis,), first.ndim)
    same = first is second
    first = without_empty(first)
    second = first if same else without_empty(second)
    n = first.shape[axis]
    real = first.dtype.kind != "c" and second.dtype.kind != "c"
    keywords = _keywords(
        n, real, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling
    )
    nperseg, step = keywords["nperseg"], keywords["nperseg"] - keywords["noverlap"]
    named = scipy.fft.rfftfreq if keywords["return_onesided"] else scipy.fft.fftfreq
    frequencies = named(keywords["nfft"], 1 / keywords["fs"])
    # For a median each block has a segment.
    cut = long_enough(first.chunks[axis], nperseg - 1 if average == "mean" else 2 * nperseg)
    wide = [_with_halo(a, axis, cut, nperseg - 1, first) for a in (first, second)]
    dtype = np.result_type(first.dtype, second.dtype, np.complex64)
    if same:
        dtype = np.empty(0, dtype).real.dtype
    count, bounds = len(frequencies), (0, *np.cumsum(cut).tolist())
    work = {
        "axis": axis,
        "bounds": bounds,
        "total": n,
        "keywords": keywords,
        "count": count,
        "out_dtype": dtype,
        "same": same,
        "dtype": dtype,
    }
    chunks = [(count,) * len(cut) if i == axis else c for i, c in enumerate(wide[0].chunks)]
    if average == "mean":
        sums = da.map_blocks(
            _segments, *wide, chunks=tuple(chunks), meta=np.empty((0,) * first.ndim, dtype), **work
        )
        return frequencies, sum_of_blocks(sums, axis) / np.asarray((n - nperseg) // step + 1, dtype)
    begun = [len(_starts(*pair, n, nperseg, step)) for pair in itertools.pairwise(bounds)]
    return frequencies, _medians(wide, axis, chunks, begun, work)


def _medians(
    wide: list[Any], axis: int, chunks: list[Any], begun: list[int], work: dict[str, Any]
) -> Any:
    """Medians over all segments: frequencies are cut into as many parts as samples were."""
    ndim, dtype, count = len(chunks), work["dtype"], work["count"]
    parts = []
    for i, segments in enumerate(begun):  # a block after the other: each has an axis more
        here = (slice(None),) * axis + (slice(i, i + 1),)
        blocks = [a.blocks[here] for a in wide]
        cut = [(count,) if j == axis else c for j, c in enumerate(chunks)]
        own = {**work, "bounds": work["bounds"][i : i + 2]}
        parts.append(
            da.map_blocks(
                _each,
                *blocks,
                chunks=(*cut, (segments,)),
                new_axis=[ndim],
                meta=np.empty((0,) * (ndim + 1), dtype),
                **own,
            )
        )
    spectra = da.concatenate(parts, axis=ndim)
    spectra = spectra.rechunk({axis: even_chunks(count, len(begun)), ndim: -1})
    return spectra.map_blocks(
        _median,
        bias=median_bias(sum(begun)),
        drop_axis=ndim,
        dtype=dtype,
        meta=np.empty((0,) * ndim, dtype),
    )


def _with_halo(a: da.Array, axis: int, cut: tuple[int, ...], depth: int, like: da.Array) -> Any:
    """The array in chunks, each with some samples of the next one behind it."""
    chunks = tuple(cut if i == axis else found for i, found in enumerate(like.chunks))
    array = a.rechunk(chunks)
    return da.overlap.overlap(array, {axis: (0, depth)}, boundary="none", allow_rechunk=False)


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
) -> tuple[Array, da.Array]:
    """Return the cross spectrum of two arrays, averaged over segments.

    Parameters
    ----------
    x, y : dask array or array-like
        Of one shape and any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis
        As `scipy.signal.csd` takes them.
    average : {"mean", "median"}
        How segments are averaged. A median is less moved by outliers, and needs the spectra of all
        segments at once, frequency by frequency.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: the cross spectrum, whole along the axis (in parts for a median).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> frequencies, power = csd(np.ones(32), np.ones(32), nperseg=4, detrend=False)
    >>> frequencies
    array([0.  , 0.25, 0.5 ])
    """
    first, second = parse_pair(x, y)
    found = _spectra(
        first,
        second,
        fs,
        window,
        nperseg,
        noverlap,
        nfft,
        detrend,
        return_onesided,
        scaling,
        axis,
        average,
    )
    return found[0], cast("da.Array", found[1])


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
) -> tuple[Array, da.Array]:
    """Return the power spectrum of an array, averaged over segments.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average
        As `csd` takes them.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: the power spectrum, real, whole along the axis (in parts for a median).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> x = da.random.default_rng(0).standard_normal(10_000, chunks=1000)
    >>> frequencies, power = welch(x, fs=2.0)
    >>> float(power.mean().compute().round(1))
    1.0
    """
    array = parse_array(x, "fft")
    found = _spectra(
        array,
        array,
        fs,
        window,
        nperseg,
        noverlap,
        nfft,
        detrend,
        return_onesided,
        scaling,
        axis,
        average,
    )
    return found[0], cast("da.Array", found[1])
