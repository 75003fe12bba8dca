r"""Filters: a spectrum times a transfer function, and back.

Spectra stay in the order that takes the fewest exchanges for both transforms, and blocks are
multiplied in place::

    x --exchange, rounds--> spectrum --transfer function--> --rounds, exchange--> filtered
"""

import math
from collections.abc import Sequence
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import applied, by_block
from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.gpu.on_gpu import on_own_gpu
from dask_bigfft.kernels.views import allocate_like
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    nonempty,
    parse_signal_options,
    several_axes,
)
from dask_bigfft.signal.transfer import TransferArray, TransferFunction, try_function
from dask_bigfft.signal.transforms import (
    ProductPhase,
    SpectrumAxis,
    Transforms,
    is_measured,
    planned,
    product_phase,
    spectrum_axes,
    without_measuring,
)
from dask_bigfft.transforms.spec import parse_several

__all__ = ["fourier_filter"]

Spacing = float | Sequence[float]


def parse_spacing(name: str, d: Any, count: int) -> tuple[float, ...]:
    """Return the sample distance of each axis, from one number or a sequence."""
    is_number = np.isscalar(d) or getattr(d, "ndim", None) == 0
    is_sequence = isinstance(d, Sequence | np.ndarray) and not is_number
    distances = tuple(d) if is_sequence else (d,) * count
    allowed = "a distance of samples above 0, or one for each axis"
    if len(distances) != count:
        raise_invalid(name, d, allowed)
    for distance in distances:
        is_time = isinstance(distance, bool | np.timedelta64)
        if is_time or not isinstance(distance, int | float | np.number):
            raise_invalid(
                name,
                d,
                allowed,
                kind=ArgumentTypeError,
            )
        if not 0 < float(distance) < math.inf:
            raise_invalid(name, d, allowed)
    return tuple(float(distance) for distance in distances)


def parse_samples(
    x: Any,
    axes: Axes,
    d: Any,
    options: SignalOptions,
) -> tuple[da.Array, tuple[int, ...], tuple[float, ...]]:
    """Return an array, the axes of a transform, and the sample distance along each of them."""
    parse_signal_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    return array, along, parse_spacing("d", d, len(along))


def fourier_filter(
    x: Any,
    transfer: Any,
    axes: Axes = None,
    *,
    s: Sequence[int] | int | None = None,
    spacing: Spacing = 1.0,
    at_zero: complex | None = None,
    real: bool | None = None,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return an array whose spectrum is that of `x` times a transfer function.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read. It is taken to be periodic.
    transfer : callable or array-like
        A function takes an array of frequencies for each axis, in the order of `axes`, in cycles
        per unit of `spacing`. The arrays are float64, have as many axes as `x` and broadcast
        against each other; the result has to broadcast against them, too. The function must be
        element-wise, because it gets the frequencies of each block alone, in any order. Its values
        are never stored.

        An array (NumPy, CuPy or dask) has to broadcast against the spectrum in natural order, which
        is ``fft.rfftn(x, s, axes)`` for real `x`, else ``fft.fftn(x, s, axes)``. Its blocks are
        exchanged if its chunks are not those of the spectrum.
    axes : int or sequence of int, optional
        Axes of the transform, all by default.
    s : int or sequence of int, optional
        Lengths of the transform, for which `x` is cropped or padded with zeros; those of `x` by
        default. The result has these lengths.
    spacing : float or sequence of float
        Distance of two samples, for all axes or for each.
    at_zero : number, optional
        Value of a function where all frequencies are 0, as 0 for ``1 / f**2``.
    real : bool, optional
        False for a complex result of real `x`. By default the result is real if `x` is.
    **options
        `chunks` of the result, `memory_limit`, `kernel`, `device`, `device_memory_limit`, `verify`
        and `planner`, as transforms in `fft` take them, for each of the two transforms. The result
        has the input's chunks where these cost no exchange.

    Returns
    -------
    dask.array.Array
        Lazy, in the precision of the transform of `x`, to which the values of the transfer function
        are cast.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments: a shape that does not broadcast, a function that is not element-wise,
        or that is not Hermitian for a real result. Functions are tried at a few frequencies when
        the graph is built. Where a value is not finite, the error names the frequency.

    Notes
    -----
    A function filters real `x` as ``real(ifftn(fftn(x) * H))`` does. The sign of frequency N/2 of
    an even length N is not determined. For real results the value there is the mean of the
    function's values for both signs, so that the result depends neither on the chunks nor on the
    axis that is halved. For complex results the sign is negative, as in `numpy.fft.fftfreq`.

    The name follows `scipy.ndimage.fourier_gaussian` and its siblings, which multiply a spectrum;
    `filter` is a function of Python.

    See Also
    --------
    fftconvolve : Convolution with a kernel in place of a transfer function.
    gradient, laplacian, poisson : Filters with transfer functions of their own.

    Examples
    --------
    >>> def smooth(f):
    ...     return np.exp(-((f / 0.1) ** 2))
    >>> x = da.ones(8, chunks=4) + da.from_array([1.0, -1.0] * 4, chunks=4)
    >>> fourier_filter(x, smooth).compute().round(6)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    parse_signal_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    nonempty(array, along)
    lengths = _parse_lengths(s, array, along)
    distances = parse_spacing("spacing", spacing, len(along))
    is_real = _parse_real(real, array)
    if callable(transfer):
        function = TransferFunction(
            transfer,
            along,
            lengths,
            distances,
            at_zero,
            balanced=is_real,
        )
        try_function(function, array.ndim, is_real)
        return filtered(
            array,
            function,
            along,
            lengths,
            is_real,
            options,
        )
    if at_zero is not None:
        raise_invalid("at_zero", at_zero, "None for a transfer function that is an array")
    multiplier = _parse_transfer_array(
        transfer,
        array,
        along,
        lengths,
        is_real,
    )
    return filtered(
        array,
        multiplier,
        along,
        lengths,
        is_real,
        options,
    )


def _parse_lengths(s: Any, array: da.Array, along: tuple[int, ...]) -> tuple[int, ...]:
    """Return the length of the transform along each axis."""
    if s is None:
        return tuple(array.shape[axis] for axis in along)
    lengths = parse_several("s", s)
    if len(lengths) != len(along) or min(lengths, default=1) < 1:
        raise_invalid("s", s, f"a length above 0 for each of the axes {along}")
    return tuple(lengths)


def _parse_real(real: Any, array: da.Array) -> bool:
    """Return whether the result is real."""
    if real is not None and not isinstance(real, bool | np.bool_):
        raise_invalid(
            "real",
            real,
            "True, False or None",
            kind=ArgumentTypeError,
        )
    is_complex = array.dtype.kind == "c"
    if real and is_complex:
        raise_invalid("real", real, f"False or None for x of {array.dtype}")
    return not is_complex if real is None else bool(real)


def _parse_transfer_array(
    transfer: Any,
    array: da.Array,
    along: tuple[int, ...],
    lengths: tuple[int, ...],
    is_real: bool,
) -> TransferArray:
    """Return a transfer function that is an array, with as many axes as the spectrum."""
    allowed = "a function of frequencies, or an array of numbers"
    try:
        multiplier = da.asanyarray(transfer)
    except (AttributeError, TypeError, ValueError):
        raise_invalid("transfer", transfer, allowed, kind=ArgumentTypeError)
    if multiplier.dtype.kind not in "biufc":
        raise_invalid(
            "transfer",
            f"dtype {multiplier.dtype}",
            allowed,
            kind=ArgumentTypeError,
        )
    shape = list(array.shape)
    for axis, length in zip(along, lengths, strict=True):
        shape[axis] = length
    if is_real:
        shape[along[-1]] = lengths[-1] // 2 + 1
    fits = multiplier.ndim <= len(shape) and all(
        size in (1, length)
        for size, length in zip(reversed(multiplier.shape), reversed(shape), strict=False)
    )
    if not fits:
        allowed = f"a shape that broadcasts against the spectrum, {tuple(shape)}"
        raise_invalid("transfer", f"shape {multiplier.shape}", allowed)
    missing = len(shape) - multiplier.ndim
    halved = along[-1] if is_real else None
    return TransferArray(multiplier[(np.newaxis,) * missing], halved)


def filtered(
    array: da.Array,
    transfer: TransferFunction | TransferArray,
    along: tuple[int, ...],
    lengths: tuple[int, ...],
    is_real: bool,
    options: SignalOptions,
) -> da.Array:
    """Return the inverse transform of the spectrum of an array times a transfer function.

    Parameters
    ----------
    array : dask.array.Array
        The input.
    transfer : TransferFunction or TransferArray
        What the spectrum is multiplied by.
    along, lengths : tuple of int
        Axes of the transform, and its length along each.
    is_real : bool
        True for a real result.
    options : SignalOptions
        The caller's keywords.
    """
    axes = along
    if isinstance(transfer, TransferFunction):  # any axis can be halved; one in one chunk is best
        axes = tuple(sorted(along, key=lambda axis: (array.numblocks[axis] == 1, axis)))
    length_of = dict(zip(along, lengths, strict=True))
    natural = Transforms(axes, tuple(length_of[axis] for axis in axes), is_real)
    movable = tuple(axis for axis in axes if transfer.takes_any_order(axis))
    transforms, forward = planned(
        array,
        natural,
        options,
        movable=movable,
    )
    spectrum = applied(array, forward)
    product = _multiplied(
        spectrum,
        transfer,
        spectrum_axes(forward),
        product_phase(spectrum, forward),
    )
    estimated = without_measuring(options)
    inverse = transforms.inverse(product, estimated, {})
    keeps_lengths = all(array.shape[axis] == length for axis, length in length_of.items())
    if options.get("chunks") is None and keeps_lengths:
        # the input's chunks, if they cost no exchange
        preserving = transforms.inverse(product, {**estimated, "chunks": array.chunks}, {})
        if len(preserving.travelling) <= len(inverse.travelling):
            inverse = preserving
            options = {**options, "chunks": array.chunks}
    if is_measured(options):
        inverse = transforms.inverse(product, options, {})
    return applied(product, inverse)


def _multiplied(
    spectrum: da.Array,
    transfer: TransferFunction | TransferArray,
    axes: tuple[SpectrumAxis, ...],
    phase: ProductPhase,
) -> da.Array:
    """Return a spectrum times a transfer function."""
    if isinstance(transfer, TransferArray):
        aligned = transfer.in_chunks_of(spectrum)
        return by_block(
            _times_array,
            spectrum,
            aligned,
            dtype=spectrum.dtype,
            phase=phase,
        )
    return by_block(
        _times_function,
        spectrum,
        dtype=spectrum.dtype,
        transfer=transfer,
        axes=axes,
        phase=phase,
    )


@on_own_gpu
def _times_function(
    block: Array,
    transfer: TransferFunction,
    axes: Sequence[SpectrumAxis],
    phase: ProductPhase,
    block_id: tuple[int, ...],
) -> Array:
    """Return a block of a spectrum times a function of its frequencies."""
    with phase.measured(block.nbytes):
        return _product(block, transfer.values(axes, block_id, block))


@on_own_gpu
def _times_array(
    block: Array,
    values: Array,
    phase: ProductPhase,
    block_id: tuple[int, ...],
) -> Array:
    """Return a block of a spectrum times values that broadcast against it."""
    with phase.measured(block.nbytes):
        if not bool(np.all(np.isfinite(values))):
            raise_invalid("transfer", f"block {block_id} of the array", "finite values")
        return _product(block, values)


def _product(block: Array, values: Array) -> Array:
    """Return a block times values that are cast to its precision."""
    real_dtype = block.real.dtype
    dtype = block.dtype if values.dtype.kind == "c" else real_dtype
    out = allocate_like(block, block.shape, block.dtype)
    return cast(Array, np.multiply(block, values.astype(dtype, copy=False), out=out))
