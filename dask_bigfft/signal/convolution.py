"""Convolution and correlation of dask arrays of any size, by their spectra or block by block.

Here are the functions that users call; `by_spectra` and `overlap` do the work.

Imports `errors`, `planning` and this room.
"""

import math
from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft.errors import refuse
from dask_bigfft.planning.arguments import Options, parse_options
from dask_bigfft.signal.arguments import Axes, Inputs, Mode, parse_inputs
from dask_bigfft.signal.by_spectra import by_spectra
from dask_bigfft.signal.overlap import direct_blocks, overlapped

__all__ = ["convolve", "correlate", "fftconvolve", "oaconvolve"]


def _convolution(
    in1: Any, in2: Any, mode: Any, axes: Axes, correlated: bool, options: Options
) -> da.Array:
    """The convolution through spectra, and the cases that need none."""
    parse_options(options)
    inputs = parse_inputs(in1, in2, mode, axes, correlated=correlated)
    trivial: da.Array | None = _without_spectra(inputs, correlated)
    if trivial is not None:
        return trivial
    return inputs.cropped(by_spectra(inputs, correlated, options))


def _without_spectra(inputs: Inputs, correlated: bool) -> Any:
    """Empty inputs, and axes on which there is only a product to be made."""
    first, second = inputs.first, inputs.second
    if first.size == 0 or second.size == 0:
        return da.zeros((0,), dtype=np.result_type(first.dtype, second.dtype, np.float32))
    if inputs.windows:
        return None
    return inputs.cropped(first * (second.conj() if correlated else second))


def fftconvolve(
    in1: Any, in2: Any, mode: Mode = "full", axes: Axes = None, **options: Unpack[Options]
) -> da.Array:
    """Return the convolution of two arrays through their spectra.

    Parameters
    ----------
    in1, in2 : dask array or array-like
        With the same number of axes, of any chunking; only read.
    mode : {"full", "same", "valid"}
        All of the convolution (default), its centre with the shape of `in1`, or what does not
        depend on zeros around the inputs.
    axes : int or sequence of int, optional
        The axes that are convolved, all by default. Along others the inputs have the same length,
        or one of them has length 1.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Of the result: by default those that the last exchange makes without further work.
    memory_limit : int or str, optional
        Bytes that one process may use for any one of the transforms.
    kernel : str, optional
        FFT library that works inside blocks.

    Returns
    -------
    dask.array.Array
        Lazy; of single precision where both inputs are, else of double (or long double) precision.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A `ValueError`, a `TypeError`: inputs, a mode or axes that do not go together.

    Notes
    -----
    As `scipy.signal.fftconvolve` does. Spectra stay in transposed order, so that one cut axis
    takes six exchanges; a small second array (or first one), in one chunk, is transformed where
    the blocks of the other spectrum lie, which leaves four.

    See Also
    --------
    oaconvolve : Faster where one array is much shorter than the other's chunks.

    Examples
    --------
    >>> fftconvolve([1.0, 2.0, 3.0], [0.0, 1.0, 0.5]).compute().round(6) + 0.0
    array([0. , 1. , 2.5, 4. , 1.5])
    """
    return _convolution(in1, in2, mode, axes, False, options)


def oaconvolve(in1: Any, in2: Any, mode: Mode = "full", axes: Axes = None) -> da.Array:
    """Return the convolution of an array with a much shorter one, block by block.

    Parameters
    ----------
    in1, in2 : dask array or array-like
        With the same number of axes; the shorter one is gathered into one block.
    mode, axes
        As `fftconvolve` takes them.

    Returns
    -------
    dask.array.Array
        Lazy; chunks are those of the longer array, the last one longer or shorter as the mode asks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `fftconvolve` does.

    Notes
    -----
    As `scipy.signal.oaconvolve` does. Each block takes as many samples of its neighbours as the
    shorter array reaches (overlap-save), and is convolved by SciPy in pieces that fit a cache:
    nothing is exchanged beyond neighbours, and no spectrum of the whole array is made.

    Examples
    --------
    >>> x = da.ones(6, chunks=3)
    >>> oaconvolve(x, [1.0, 1.0]).compute().round(6)
    array([1., 2., 2., 2., 2., 2., 1.])
    """
    inputs = parse_inputs(in1, in2, mode, axes)
    trivial: da.Array | None = _without_spectra(inputs, correlated=False)
    return trivial if trivial is not None else inputs.cropped(overlapped(inputs))


def _parse_method(method: Any) -> str:
    if not isinstance(method, str) or method not in ("auto", "fft", "direct"):
        refuse("method", method, "'auto', 'fft' or 'direct'")
    return method


def _is_short(inputs: Inputs) -> bool:
    """Whether one input reaches less far than a chunk of the other."""
    swapped = inputs.first.size < inputs.second.size
    long, short = (inputs.second, inputs.first) if swapped else (inputs.first, inputs.second)
    return all(
        2 * short.shape[axis] <= min(long.chunks[axis]) or long.numblocks[axis] == 1
        for axis in inputs.axes
    ) and short.size <= max(1, math.prod(map(max, long.chunks)))


def _by_method(
    in1: Any, in2: Any, mode: Any, method: Any, correlated: bool, options: Options
) -> da.Array:
    """The convolution or correlation over all axes, rounded where the inputs are integers."""
    parse_options(options)
    method = _parse_method(method)
    inputs = parse_inputs(in1, in2, mode, None, correlated=correlated, strict=True)
    trivial = _without_spectra(inputs, correlated)
    kinds = inputs.first.dtype.kind + inputs.second.dtype.kind
    wanted = np.result_type(inputs.first.dtype, inputs.second.dtype)
    if trivial is not None:
        return cast("da.Array", trivial.astype(wanted))
    if method == "direct" or (method == "auto" and _is_short(inputs)):
        turned = inputs
        if correlated:
            reverse = [slice(None)] * inputs.second.ndim
            for axis in inputs.axes:
                reverse[axis] = slice(None, None, -1)
            other = inputs.second[tuple(reverse)].conj()
            turned = Inputs(inputs.first, other, inputs.windows, inputs.crop)
        work = direct_blocks(turned) if method == "direct" else overlapped(turned)
    else:
        work = by_spectra(inputs, correlated, options)
    found: Any = inputs.cropped(work)
    if method != "direct" and not set(kinds) & set("fc"):
        found = da.rint(found)
    return cast("da.Array", found.astype(wanted))


Method = Literal["auto", "fft", "direct"]


def convolve(
    in1: Any, in2: Any, mode: Mode = "full", method: Method = "auto", **options: Unpack[Options]
) -> da.Array:
    """Return the convolution of two arrays over all axes.

    Parameters
    ----------
    in1, in2 : dask array or array-like
        With the same number of axes.
    mode : {"full", "same", "valid"}
        As `fftconvolve` takes it.
    method : {"auto", "fft", "direct"}
        Through spectra ("fft"), by the sum that defines it, block by block ("direct", exact for
        integers), or block by block where one array is short, else through spectra ("auto").
    **options
        `chunks`, `memory_limit` and `kernel`, as `fftconvolve` takes them.

    Returns
    -------
    dask.array.Array
        Lazy, of the inputs' common dtype: integers stay integers, rounded.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `fftconvolve` does.

    Examples
    --------
    >>> convolve([1, 2, 3], [0, 1]).compute()
    array([0, 1, 2, 3])
    """
    return _by_method(in1, in2, mode, method, False, options)


def correlate(
    in1: Any, in2: Any, mode: Mode = "full", method: Method = "auto", **options: Unpack[Options]
) -> da.Array:
    """Return the cross-correlation of two arrays over all axes.

    Parameters
    ----------
    in1, in2, mode, method, **options
        As `convolve` takes them.

    Returns
    -------
    dask.array.Array
        Lazy: ``z[k] = sum_n x[n + k - (n2 - 1)] * conj(y[n])``, x and y being the inputs, n2 the
        length of y, as `scipy.signal.correlate` has it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As `fftconvolve` does.

    Notes
    -----
    Nothing is reversed: the product takes the conjugate of one spectrum, and the last gather
    begins at the first lag.

    Examples
    --------
    >>> correlate([1, 2, 3], [0, 1]).compute()
    array([1, 2, 3, 0])
    """
    return _by_method(in1, in2, mode, method, True, options)
