"""Coherence and transfer function: ratios of spectra that are averaged over segments."""

from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.arrays import Array
from dask_bigfft.errors import parse_choice
from dask_bigfft.signal.arguments import SignalOptions, parse_pair, refuse_unsupported
from dask_bigfft.signal.segments import csd, welch

__all__ = ["coherence", "transfer_function"]


def _spectra(
    pairs: list[tuple[da.Array, da.Array]],
    keywords: dict[str, Any],
) -> tuple[Array, list[Any]]:
    """Return the frequencies, and the averaged spectrum of each pair of arrays."""
    frequencies: Any = None
    spectra = []
    for first, second in pairs:
        if first is second:
            frequencies, spectrum = welch(first, **keywords)
        else:
            frequencies, spectrum = csd(first, second, **keywords)
        spectra.append(spectrum)
    return frequencies, spectra


@keeps_kind
def coherence(
    x: Any,
    y: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> tuple[Array, da.Array]:
    """Return the squared coherence of two arrays, from 0 to 1.

    Parameters
    ----------
    x, y : dask array or array-like
        Of one shape and any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, axis, chunks, ..., planner
        See `csd`.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy: ``abs(Pxy)**2 / Pxx / Pyy`` as `scipy.signal.coherence` returns it; of single
        precision for single-precision arrays, NaN where a spectrum is 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, or a memory limit that is too small.

    See Also
    --------
    transfer_function : The ratio with its phase.

    Examples
    --------
    >>> x = da.random.default_rng(0).standard_normal(1000, chunks=300)
    >>> _, coherent = coherence(x, 2 * x, nperseg=100)
    >>> coherent.mean().compute().round(6)
    np.float64(1.0)
    """
    first, second = parse_pair(x, y)
    refuse_unsupported(options, first, "coherence", forecast=True)
    keywords: dict[str, Any] = {
        "fs": fs,
        "window": window,
        "nperseg": nperseg,
        "noverlap": noverlap,
        "nfft": nfft,
        "detrend": detrend,
        "axis": axis,
        **options,
    }
    pairs = [(first, second), (first, first), (second, second)]
    frequencies, (cross, of_x, of_y) = _spectra(pairs, keywords)
    return frequencies, cast("da.Array", abs(cross) ** 2 / of_x / of_y)


@keeps_kind
def transfer_function(
    x: Any,
    y: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    axis: int = -1,
    *,
    estimator: Literal["H1", "H2"] = "H1",
    **options: Unpack[SignalOptions],
) -> tuple[Array, da.Array]:
    """Return the response of a linear system at each frequency, from its input and output.

    Parameters
    ----------
    x, y : dask array or array-like
        Input and output of the system, of one shape and any chunking.
    fs, window, nperseg, noverlap, nfft, detrend, axis, chunks, ..., planner
        See `csd`.
    estimator : {"H1", "H2"}
        "H1" is ``Pxy / Pxx``, for noise in the output. "H2" is ``Pyy / Pyx``, for noise in the
        input.

    Returns
    -------
    ndarray
        Frequencies.
    dask.array.Array
        Lazy, complex: amplitude and phase of the output relative to the input; of single precision
        for single-precision arrays, NaN where a spectrum is 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, or a memory limit that is too small.

    Examples
    --------
    >>> x = da.random.default_rng(0).standard_normal(1000, chunks=300)
    >>> _, response = transfer_function(x, 2 * x, nperseg=100)
    >>> response.real.mean().compute().round(6)
    np.float64(2.0)
    """
    parse_choice("estimator", estimator, "H1", "H2")
    first, second = parse_pair(x, y)
    refuse_unsupported(options, first, "transfer_function", forecast=True)
    keywords: dict[str, Any] = {
        "fs": fs,
        "window": window,
        "nperseg": nperseg,
        "noverlap": noverlap,
        "nfft": nfft,
        "detrend": detrend,
        "axis": axis,
        **options,
    }
    if estimator == "H1":
        frequencies, (cross, of_x) = _spectra([(first, second), (first, first)], keywords)
        response: Any = cross / of_x
    else:
        frequencies, (of_y, cross) = _spectra([(second, second), (second, first)], keywords)
        response = of_y / cross
    # The cross spectrum of an array with itself is its power spectrum, which is real.
    dtype = np.result_type(response.dtype, np.complex64)
    return frequencies, cast("da.Array", response.astype(dtype))
