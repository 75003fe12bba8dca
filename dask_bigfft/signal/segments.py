"""Spectra averaged over segments (P. D. Welch, IEEE Trans. Audio Electroacoust. 15, 1967).

Segments begin at multiples of nperseg - noverlap. Each belongs to the block in which it begins,
which takes what it lacks from the blocks after it; SciPy makes the spectra of a block's segments,
and only their mean leaves it::

    blocks     |a-----------b|..halo..|
    segments    |-----|
                    |-----|
                        |-----|

Imports `planning` and this room, and SciPy's spectra of arrays in memory.
"""

from typing import Any, Literal, cast

import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from dask_bigfft.errors import refuse
from dask_bigfft.planning import parse_array
from dask_bigfft.signal.spectra import sum_of_blocks
from dask_bigfft.transforms.spec import parse_axes

__all__ = ["csd", "welch"]

Array = npt.NDArray[Any]
Average = Literal["mean"]


def _joined(chunks: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Chunks joined so that none is shorter than what a neighbour takes of it."""
    found = [0]
    for chunk in chunks:
        if found[-1] >= least:
            found.append(0)
        found[-1] += int(chunk)
    if len(found) > 1 and found[-1] < least:
        found[-2:] = [sum(found[-2:])]
    return tuple(found)


def _segments(
    x: Array, y: Array, axis: int, bounds: tuple[int, ...], total: int, keywords: dict[str, Any],
    count: int, out_dtype: np.dtype[Any], same: bool, block_id: tuple[int, ...],
) -> Array:
    """Sum of the cross spectra of the segments that begin in a block."""
    low, high = bounds[block_id[axis]], bounds[block_id[axis] + 1]
    nperseg, step = keywords["nperseg"], keywords["nperseg"] - keywords["noverlap"]
    first = -(-low // step) * step
    last = min(high - 1, total - nperseg) // step * step
    shape = list(x.shape)
    shape[axis] = count
    if first > last or x.size == 0:
        return np.zeros(shape, out_dtype)
    cut = (slice(None),) * axis + (slice(first - low, last + nperseg - low),)
    a = x[cut]
    _, mean = scipy.signal.csd(a, a if same else y[cut], axis=axis, **keywords)
    return np.asarray(mean * ((last - first) // step + 1), out_dtype)


def _parse_length(name: str, value: Any, default: int, least: int, most: int) -> int:
    value = default if value is None else value
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not (
        least <= value <= most
    ):
        refuse(name, value, f"an integer from {least} to {most}")
    return int(value)


def _spectra(
    first: da.Array, second: da.Array, fs: Any, window: Any, nperseg: Any, noverlap: Any,
    nfft: Any, detrend: Any, return_onesided: bool, scaling: Any, axis: Any, average: Any,
) -> tuple[Array, Any]:
    """Frequencies, and the mean of the segments' cross spectra."""
    if average != "mean":
        refuse("average", average, "'mean': a median needs the spectra of all segments at once")
    if scaling not in ("density", "spectrum"):
        refuse("scaling", scaling, "'density' or 'spectrum'")
    (axis,) = parse_axes("axis", (axis,), first.ndim)
    n = first.shape[axis]
    given = len(window) if isinstance(window, np.ndarray | list) else None
    nperseg = _parse_length("nperseg", nperseg, min(given or 256, n), 1, max(n, 1))
    noverlap = _parse_length("noverlap", noverlap, nperseg // 2, 0, nperseg - 1)
    nfft = _parse_length("nfft", nfft, nperseg, nperseg, 2**31)
    real = first.dtype.kind != "c" and second.dtype.kind != "c"
    onesided = bool(return_onesided) and real
    keywords = {
        "fs": fs, "window": window, "nperseg": nperseg, "noverlap": noverlap, "nfft": nfft,
        "detrend": detrend, "return_onesided": onesided, "scaling": scaling,
    }
    frequencies = (scipy.fft.rfftfreq if onesided else scipy.fft.fftfreq)(nfft, 1 / fs)
    cut = _joined(first.chunks[axis], nperseg - 1)
    wide = [_with_halo(a, axis, cut, nperseg - 1, first) for a in (first, second)]
    same = first is second
    chunks = list(wide[0].chunks)
    chunks[axis] = (len(frequencies),) * len(cut)
    dtype = np.result_type(first.dtype, second.dtype, np.complex64)
    if same:
        dtype = np.empty(0, dtype).real.dtype
    sums = da.map_blocks(
        _segments, *wide, axis=axis, bounds=(0, *np.cumsum(cut).tolist()), total=n,
        keywords=keywords, count=len(frequencies), out_dtype=dtype, same=same,
        chunks=tuple(chunks), dtype=dtype, meta=np.empty((0,) * first.ndim, dtype),
    )
    segments = (n - nperseg) // (nperseg - noverlap) + 1
    return frequencies, sum_of_blocks(sums, axis) / np.asarray(segments, dtype)


def _with_halo(a: da.Array, axis: int, cut: tuple[int, ...], depth: int, like: da.Array) -> Any:
    """The array in chunks, each with some samples of the next one behind it."""
    chunks = tuple(cut if i == axis else found for i, found in enumerate(like.chunks))
    array = a.rechunk(chunks)
    return da.overlap.overlap(array, {axis: (0, depth)}, boundary="none", allow_rechunk=False)


def csd(
    x: Any, y: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None,
    noverlap: int | None = None, nfft: int | None = None, detrend: Any = "constant",
    return_onesided: bool = True, scaling: Literal["density", "spectrum"] = "density",
    axis: int = -1, average: Average = "mean",
) -> tuple[Array, da.Array]:
    """Return the cross spectrum of two arrays, averaged over segments.

    Parameters
    ----------
    x, y : dask array or array-like
        Of one shape and any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis
        As `scipy.signal.csd` takes them.
    average : {"mean"}
        How segments are averaged; a median would need all their spectra at once.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: the cross spectrum, whole along the axis.

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
    first, second = parse_array(x, "fft"), parse_array(y, "fft")
    if first.shape != second.shape:
        refuse("y", f"shape {second.shape}", f"the shape of x: {first.shape}")
    found = _spectra(first, second, fs, window, nperseg, noverlap, nfft, detrend,
                     return_onesided, scaling, axis, average)
    return found[0], cast("da.Array", found[1])


def welch(
    x: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None,
    noverlap: int | None = None, nfft: int | None = None, detrend: Any = "constant",
    return_onesided: bool = True, scaling: Literal["density", "spectrum"] = "density",
    axis: int = -1, average: Average = "mean",
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
        Lazy: the power spectrum, real, whole along the axis.

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
    found = _spectra(array, array, fs, window, nperseg, noverlap, nfft, detrend,
                     return_onesided, scaling, axis, average)
    return found[0], cast("da.Array", found[1])
