"""Filters: a spectrum times a transfer function, and back.

One plan has both transforms and the product between them (`planner.operators`)::

    x --exchange, rounds--> spectrum, product --rounds, exchange--> filtered

Two plans with a product of blocks between them remain for bands of lazy transfer functions, and for
long axes whose length has no useful split.
"""

import cmath
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_bigfft.api.arguments import inner_extras, parse_array
from dask_bigfft.api.calls import applied, by_block
from dask_bigfft.api.kinds import keeps_rows
from dask_bigfft.api.plans import make_plan, read_directly
from dask_bigfft.arrays import Array
from dask_bigfft.dask_private import is_lazy
from dask_bigfft.errors import (
    ArgumentTypeError,
    PlanError,
    parse_as,
    parse_type,
    raise_invalid,
)
from dask_bigfft.events import running_client
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.products import in_precision
from dask_bigfft.kernels.views import allocate_like, is_on_gpu
from dask_bigfft.planner.plan import Plan, with_reason
from dask_bigfft.planner.rows import BY_CALLER, ResultWriting, Stored
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    nonempty,
    parse_signal_options,
    several_axes,
)
from dask_bigfft.signal.transfer import (
    TransferArray,
    TransferFunction,
    TransferInMemory,
    to_host_memory,
    try_function,
)
from dask_bigfft.signal.transforms import (
    ProductTimer,
    SpectrumAxis,
    Transforms,
    is_measured,
    planned,
    product_timer,
    spectrum_axes,
    without_measuring,
)
from dask_bigfft.transforms.bands import Spectrum, Window, with_negatives
from dask_bigfft.transforms.spec import parse_several, parse_some

__all__ = ["fourier_filter"]

Spacing = float | Sequence[float]


def parse_spacing(name: str, d: Any, count: int) -> tuple[float, ...]:
    """Return the sample distance of each of `count` axes, from one number or a sequence."""
    is_number = np.isscalar(d) or getattr(d, "ndim", None) == 0
    is_sequence = isinstance(d, Sequence | np.ndarray) and not is_number
    number = d[()] if isinstance(d, np.ndarray) and is_number else d
    distances = tuple(d) if is_sequence else (number,) * count
    allowed = "a distance of two samples above 0"
    if count > 1:
        allowed += f", or a sequence of {count}, one for each of the {count} axes in `axes`"
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


@keeps_rows("transfer")
def fourier_filter(
    x: Any,
    transfer: Any,
    axes: Axes = None,
    *,
    s: Sequence[int] | int | None = None,
    spacing: Spacing = 1.0,
    band: Mapping[int, tuple[float, float]] | tuple[float, float] | None = None,
    band_index: Mapping[int, tuple[int, int]] | tuple[int, int] | None = None,
    at_zero: complex | None = None,
    real: bool | None = None,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return an array whose spectrum is that of `x` times a transfer function.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read. It is assumed to be periodic.
    transfer : callable or array-like
        A function takes an array of frequencies for each axis, in the order of `axes`, in cycles
        per unit of `spacing`. The arrays are float64, have as many axes as `x` and broadcast
        against each other; the result has to broadcast against them, too. The function must be
        element-wise, because it gets the frequencies of a part of a block alone, in any order. Its
        values are never stored. On a GPU it gets CuPy arrays.

        An array (NumPy, CuPy or dask) has to broadcast against the spectrum in natural order, which
        is ``fft.rfftn(x, s, axes)`` for real `x`, else ``fft.fftn(x, s, axes)``. A NumPy array is
        read in the order of the spectrum. So is a dask array if it is not larger than a block,
        which every task then gets as a whole. The blocks of a larger one are exchanged into the
        order of the spectrum, and it may be larger than memory. `dask_bigfft.plan` says which. An
        array on a GPU stays there if `x` is there, too, and comes to host memory if not.
    axes : int or sequence of int, optional
        Axes of the transform, all by default.
    s : int or sequence of int, optional
        Lengths of the transform, for which `x` is cropped or padded with zeros; those of `x` by
        default. The result has these lengths.
    spacing : float or sequence of float
        Distance of two samples along all axes, or a sequence with that of each axis in `axes`.
    band : mapping of axis to pair, or pair for one axis, optional
        Lowest and highest frequency along some axes, ends included, in cycles per unit of
        `spacing`. All others count as zeros, and are neither exchanged nor transformed back. For
        real results the last of `axes` has frequencies from 0 on, and the bands of other axes are
        symmetric, such as (-0.1, 0.1).
    band_index : mapping of axis to pair, or pair for one axis, optional
        The same by start and stop in the frequencies in ascending order. An axis has one of both.
    at_zero : number, optional
        Value of a function where all frequencies are 0, as 0 for ``1 / f**2``.
    real : bool, optional
        False for a complex result of real `x`. By default the result is real if `x` is.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        `chunks` of the result, by default the input's where these cost no exchange. The others are
        as transforms in `fft` take them, for both transforms together. With `verify`, the FFTs
        before and after the product are checked apart. The product is computed twice and compared,
        which does not find a value of the function that is wrong both times.

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
    chosen_filter = parse_filter(
        array,
        transfer,
        axes,
        s=s,
        spacing=spacing,
        at_zero=at_zero,
        real=real,
        band=band,
        band_index=band_index,
    )
    return filtered(array, chosen_filter, options)


@dataclass(frozen=True)
class Filter:
    """A transfer function, and the transform whose spectrum it multiplies.

    Parameters
    ----------
    transfer : TransferFunction, TransferArray or TransferInMemory
        What the spectrum is multiplied by.
    axes, lengths : tuple of int
        Axes of the transform, and its length along each.
    is_real : bool
        True for a real result.
    windows : mapping of int to (int, int)
        Start and count, in natural order, of the frequencies that are kept along some axes.
    lengths_back : mapping of int to int
        Length of the result along some axes, for which the spectrum is cropped or padded.
    """

    transfer: TransferFunction | TransferArray | TransferInMemory
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    is_real: bool
    windows: Mapping[int, Window] = field(default_factory=dict)
    lengths_back: Mapping[int, int] = field(default_factory=dict)

    @property
    def operand(self) -> Any:
        """The transfer function as `api.calls.applied` takes it."""
        transfer = self.transfer
        return transfer.lazy if isinstance(transfer, TransferArray) else transfer

    def spectrum(self, axis: int) -> Spectrum:
        """Return the frequencies along an axis of the spectrum."""
        is_half = self.is_real and axis == self.axes[-1]
        return Spectrum(self.lengths[self.axes.index(axis)], is_half)

    @property
    def limits(self) -> dict[int, tuple[float, float]]:
        """Lowest and highest frequency that are kept along some axes, in cycles per sample."""
        limits = {}
        for axis, window in self.windows.items():
            spectrum = self.spectrum(axis)
            lowest, highest = spectrum.frequencies(window)
            limits[axis] = (lowest / spectrum.length, highest / spectrum.length)
        return limits

    def in_bands(self, bands: Mapping[str, Any], spacing: Any, ndim: int) -> "Filter":
        """Return the filter of the frequencies in bands, arguments of `fourier_filter` by name."""
        distances = parse_spacing("spacing", spacing, len(self.axes))
        windows: dict[int, Window] = {}
        for argument, given in bands.items():
            if given is None:
                continue
            named = given
            if len(self.axes) == 1 and not isinstance(given, Mapping):
                named = {self.axes[0]: given}
            pairs = "(start, stop)" if argument == "band_index" else "(low, high)"
            parse_type(argument, named, Mapping, f"a mapping of axis to {pairs}")
            axes = parse_some(argument, named, self.axes, ndim)
            for axis, limits in zip(axes, named.values(), strict=True):
                if axis in windows:
                    raise_invalid(argument, given, f"no axis of `band`, as axis {axis} is")
                distance = distances[self.axes.index(axis)]
                windows[axis] = self._window(argument, given, axis, limits, distance)
        return replace(self, windows=windows)

    def _window(
        self,
        argument: str,
        given: Any,
        axis: int,
        limits: Any,
        distance: float,
    ) -> Window:
        """Return the window of an axis with the frequencies of a band.

        Parameters
        ----------
        argument, given
            Name and value of the argument with the bands of all axes.
        axis : int
            The axis.
        limits : pair
            Limits of its band, as frequencies or as places.
        distance : float
            Distance of two samples along the axis.
        """
        spectrum = self.spectrum(axis)
        if argument == "band_index":
            window = spectrum.parse_indices(limits)
        else:
            window = spectrum.parse_band(limits, distance)
        is_one_sided = self.is_real and not spectrum.is_half
        if is_one_sided and with_negatives(window, spectrum.length)[1] > window[1]:
            allowed = f"a symmetric band of axis {axis}, (-f, f), for a real result; real=False"
            raise_invalid(argument, given, f"{allowed} allows others")
        return window

    def transforms(self, array: da.Array) -> Transforms:
        """Return the transforms of an array in natural order, with the halved axis last.

        Any axis can be halved for a function. One in a single chunk is best.
        """
        axes = self.axes
        if isinstance(self.transfer, TransferFunction) and not self.windows:
            axes = tuple(sorted(axes, key=lambda axis: (array.numblocks[axis] == 1, axis)))
        length_of = dict(zip(self.axes, self.lengths, strict=True))
        bands = [(a, self.spectrum(a).indices(window)) for a, window in self.windows.items()]
        return Transforms(
            axes,
            tuple(length_of[axis] for axis in axes),
            self.is_real,
            bands=tuple(bands),
        )

    def plan(
        self,
        array: da.Array,
        options: SignalOptions,
        token: str,
        stored: Stored | None = None,
        writing: ResultWriting = BY_CALLER,
    ) -> Plan:
        """Return the plan of both transforms of an array, with the product between them.

        Parameters
        ----------
        array : dask.array.Array
            The input.
        options : SignalOptions
            The caller's keywords.
        token : str
            Identity of the transfer function.
        stored, writing
            As `make_plan` takes them.
        """
        transforms = self.transforms(array)
        extras = inner_extras(options, chunks=options.get("chunks"))
        factor = self.transfer.lazy.spec if isinstance(self.transfer, TransferArray) else None
        return make_plan(
            array,
            "rfftn" if self.is_real else "fftn",
            transforms.lengths,
            transforms.axes,
            transfer=token,
            factor=factor,
            windows_between=self.windows,
            lengths_back=self.lengths_back,
            stored=stored,
            writing=writing,
            **extras,
        )


def parse_filter(
    array: da.Array,
    transfer: Any,
    axes: Axes,
    *,
    s: Any = None,
    spacing: Any = 1.0,
    at_zero: complex | None = None,
    real: bool | None = None,
    band: Any = None,
    band_index: Any = None,
) -> Filter:
    """Return the filter of an array, given the arguments of `fourier_filter`."""
    if array.ndim == 0:
        raise_invalid("x", "shape ()", "at least one axis")
    along = several_axes(axes, array.ndim)
    nonempty(array, along)
    lengths = _parse_lengths(s, array, along)
    distances = parse_spacing("spacing", spacing, len(along))
    is_real = _parse_real(real, array)
    parsed: TransferFunction | TransferArray | TransferInMemory
    if callable(transfer):
        parsed = TransferFunction(
            transfer,
            along,
            lengths,
            distances,
            _parse_at_zero(at_zero),
            balanced=is_real,
        )
    elif at_zero is None:
        parsed = _parse_transfer_array(
            transfer,
            array,
            along,
            lengths,
            is_real,
        )
    else:
        raise_invalid("at_zero", at_zero, "None for a transfer function that is an array")
    chosen_filter = Filter(
        parsed,
        along,
        lengths,
        is_real,
    )
    bands = {"band": band, "band_index": band_index}
    chosen_filter = chosen_filter.in_bands(bands, spacing, array.ndim)
    if isinstance(parsed, TransferFunction):
        try_function(
            parsed,
            array.ndim,
            is_real,
            limits=chosen_filter.limits,
        )
    elif isinstance(parsed, TransferInMemory):
        _require_finite_in_band(parsed.array, chosen_filter.windows)
    return chosen_filter


def _parse_at_zero(at_zero: Any) -> complex | None:
    """Return the value of a transfer function where all frequencies are 0."""
    if at_zero is None:
        return None
    allowed = "a finite number, or None"
    is_number = isinstance(at_zero, numbers.Number) and not isinstance(at_zero, bool | np.bool_)
    if not is_number and getattr(at_zero, "ndim", None) != 0:
        raise_invalid("at_zero", at_zero, allowed, kind=ArgumentTypeError)
    value = parse_as(complex, "at_zero", at_zero, allowed)
    if not cmath.isfinite(value):
        raise_invalid("at_zero", at_zero, allowed)
    return value if value.imag else value.real


def _parse_lengths(s: Any, array: da.Array, along: tuple[int, ...]) -> tuple[int, ...]:
    """Return the length of the transform along each axis."""
    if s is None:
        return tuple(array.shape[axis] for axis in along)
    lengths = parse_several("s", s)
    if len(lengths) != len(along):
        raise_invalid("s", s, f"a length above 0 for each of the axes {along}")
    pairs = zip(along, lengths, strict=True)
    lengths = tuple(array.shape[axis] if n is None else n for axis, n in pairs)
    if min(lengths, default=1) < 1:
        raise_invalid("s", s, f"a length above 0 for each of the axes {along}")
    return lengths


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
) -> TransferArray | TransferInMemory:
    """Return a transfer function that is an array, with as many axes as the spectrum."""
    multiplier = _numbers_of(transfer, array)
    length_of = dict(zip(along, lengths, strict=True))
    halved = along[-1] if is_real else None
    shape = tuple(length_of.get(axis, n) for axis, n in enumerate(array.shape))
    if halved is not None:
        shape = (*shape[:halved], lengths[-1] // 2 + 1, *shape[halved + 1 :])
    if not _broadcasts_to(multiplier.shape, shape):
        allowed = f"a shape that broadcasts against the spectrum, {shape}"
        raise_invalid("transfer", f"shape {multiplier.shape}", allowed)
    if not is_on_gpu(array._meta):
        multiplier = to_host_memory(multiplier)
    missing = len(shape) - multiplier.ndim
    if is_lazy(transfer) or is_on_gpu(transfer) or _is_sent(multiplier):
        lazy_array = multiplier[(np.newaxis,) * missing]
        return TransferArray(lazy_array, length_of, halved).in_precision_of(array.dtype)
    values = np.array(transfer)[(np.newaxis,) * missing]
    return TransferInMemory(values, length_of, halved)


def _require_finite_in_band(values: Array, windows: Mapping[int, Window]) -> None:
    """Raise an error with the first value of a transfer function in memory that is not finite.

    Values outside of the `windows` that are kept along some axes do not count.
    """
    is_finite = np.isfinite(values)
    for axis, (start, count) in windows.items():
        length = values.shape[axis]
        if length > 1:
            is_outside = np.ones(length, bool)
            is_outside[(start + np.arange(count)) % length] = False
            is_finite |= np.expand_dims(is_outside, tuple(range(1, values.ndim - axis)))
    if is_finite.all():
        return
    index = tuple(map(int, np.argwhere(~is_finite)[0]))
    raise_invalid("transfer", f"{values[index]} at index {index}", "finite values")


def _numbers_of(transfer: Any, array: da.Array) -> da.Array:
    """Return a transfer function as a lazy array of numbers, of the library of `array`."""
    allowed = "a function of frequencies, or an array of numbers"
    if isinstance(transfer, np.ma.MaskedArray):
        allowed += " without a mask, such as `transfer.filled(0)`"
        raise_invalid("transfer", "a masked array", allowed, kind=ArgumentTypeError)
    try:
        multiplier = transfer if type(transfer) is type(array) else da.asanyarray(transfer)
    except (AttributeError, TypeError, ValueError):
        raise_invalid("transfer", transfer, allowed, kind=ArgumentTypeError)
    if multiplier.dtype.kind not in "biufc":
        raise_invalid(
            "transfer",
            f"dtype {multiplier.dtype}",
            allowed,
            kind=ArgumentTypeError,
        )
    return cast("da.Array", multiplier)


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether an array of a shape broadcasts against one of another, which it fits in.

    >>> _broadcasts_to((1, 5), (3, 4, 5)), _broadcasts_to((2, 5), (1, 5))
    (True, False)
    """
    if len(shape) > len(target):
        return False
    last = target[len(target) - len(shape) :]
    return all(n in (1, length) for n, length in zip(shape, last, strict=True))


#: Maximum bytes of an array that is sent to the workers of a cluster as a whole.
MOST_SENT_NBYTES = 1 << 24


def _is_sent(array: da.Array) -> bool:
    """Return whether an array would be sent to workers, and is too large for that."""
    return running_client() is not None and array.nbytes > MOST_SENT_NBYTES


def filtered(array: da.Array, chosen_filter: Filter, options: SignalOptions) -> da.Array:
    """Return the lazy result of a filter of an array, given the caller's keywords."""
    return planned_filter(array, chosen_filter, options).applied(array)


@dataclass(frozen=True)
class PlannedFilter:
    """A filter and its plan, which can be applied to several arrays in the same blocks.

    Parameters
    ----------
    filter : Filter
        The filter.
    plan : Plan or None
        Plan of both transforms with the product; None if two plans do it.
    options : SignalOptions
        The caller's keywords.
    reason : str
        Why there are two plans.
    """

    filter: Filter
    plan: Plan | None
    options: SignalOptions
    reason: str = ""

    def applied(self, array: da.Array) -> da.Array:
        """Return the lazy result of the filter of an array."""
        if self.plan is not None:
            return applied(read_directly(array), self.plan, transfer=self.filter.operand)
        return _filtered_by_two_plans(
            array,
            self.filter,
            self.options,
            self.reason,
        )


def planned_filter(
    array: da.Array,
    chosen_filter: Filter,
    options: SignalOptions,
) -> PlannedFilter:
    """Return a filter with its plan for an array, given the caller's keywords.

    One plan does it, unless the transfer function is a lazy array of which a band is kept, or an
    axis whose length has no useful split does not fit a block.
    """
    plan = None
    reason = _reason_for_two_plans(array, chosen_filter)
    if not reason:
        try:
            plan = chosen_filter.plan(array, options, tokenize(chosen_filter.transfer))
        except PlanError as error:
            reason = str(error)
    return PlannedFilter(
        chosen_filter,
        plan,
        options,
        reason,
    )


def _reason_for_two_plans(array: da.Array, chosen_filter: Filter) -> str:
    """Return the reason why one plan cannot have both transforms; empty if it may."""
    transfer = chosen_filter.transfer
    if not isinstance(transfer, TransferArray):
        return ""
    if chosen_filter.windows:
        return "a band of a lazy transfer function is kept"
    if type(transfer.array) is not type(array):
        return "the transfer function is an array of another library"
    return ""


def filtered_by_one_plan(
    array: da.Array,
    chosen_filter: Filter,
    options: SignalOptions,
) -> da.Array:
    """Return the lazy result of a filter by one plan.

    Raises
    ------
    PlanError
        If there is no such plan.
    """
    plan = chosen_filter.plan(array, options, tokenize(chosen_filter.transfer))
    return applied(array, plan, transfer=chosen_filter.operand)


def _filtered_by_two_plans(
    array: da.Array,
    chosen_filter: Filter,
    options: SignalOptions,
    reason: str,
) -> da.Array:
    """Return the inverse transform of a spectrum that was multiplied in blocks.

    The plan of the forward transform gives the `reason` why there are two plans.
    """
    transfer = chosen_filter.transfer
    if isinstance(transfer, TransferInMemory):
        lazy_array = da.from_array(transfer.array)
        transfer = TransferArray(lazy_array, transfer.lengths, transfer.halved)
    if isinstance(transfer, TransferArray):
        transfer = transfer.within(chosen_filter.windows)
    natural = chosen_filter.transforms(array)
    whole_axes = [axis for axis in natural.axes if axis not in chosen_filter.windows]
    movable = tuple(axis for axis in whole_axes if transfer.takes_any_order(axis))
    transforms, forward = planned(
        array,
        natural,
        options,
        movable=movable,
    )
    forward = with_reason(forward, f"the first of two plans: {reason}")
    spectrum = applied(array, forward)
    product = _multiplied(
        spectrum,
        transfer,
        spectrum_axes(forward),
        product_timer(spectrum, forward),
    )
    lengths = zip(chosen_filter.axes, chosen_filter.lengths, strict=True)
    keeps_lengths = all(array.shape[axis] == length for axis, length in lengths)
    preserved = array.chunks if options.get("chunks") is None and keeps_lengths else None
    inverse = _inverse_plan(
        product,
        transforms,
        options,
        preserved,
        has_band=bool(chosen_filter.windows),
    )
    return applied(product, inverse)


def _inverse_plan(
    product: da.Array,
    transforms: Transforms,
    options: SignalOptions,
    preserved: tuple[tuple[int, ...], ...] | None,
    has_band: bool,
) -> Plan:
    """Return the plan of the inverse transform of a product.

    Parameters
    ----------
    product, transforms, options
        The spectrum, its transforms, and the caller's keywords.
    preserved : tuple of tuple of int, optional
        Chunks of the filter's input, which the result gets if they cost no exchange.
    has_band : bool
        True if the spectrum has only a band. Its blocks are fewer, and the input's chunks are taken
        also where they cost an exchange.
    """
    estimated = without_measuring(options)
    plan = transforms.inverse(product, estimated, {})
    if preserved is not None:
        preserving = transforms.inverse(product, {**estimated, "chunks": preserved}, {})
        if has_band or len(preserving.travelling) <= len(plan.travelling):
            plan = preserving
            options = {**options, "chunks": preserved}
    if is_measured(options):
        return transforms.inverse(product, options, {})
    return plan


def _multiplied(
    spectrum: da.Array,
    transfer: TransferFunction | TransferArray,
    axes: tuple[SpectrumAxis, ...],
    timer: ProductTimer,
) -> da.Array:
    """Return a spectrum times a transfer function."""
    if isinstance(transfer, TransferArray):
        aligned = transfer.in_chunks_of(spectrum)
        return by_block(
            _times_array,
            spectrum,
            aligned,
            dtype=spectrum.dtype,
            timer=timer,
        )
    return by_block(
        _times_function,
        spectrum,
        dtype=spectrum.dtype,
        transfer=transfer,
        axes=axes,
        timer=timer,
    )


@on_own_gpu
def _times_function(
    block: Array,
    transfer: TransferFunction,
    axes: Sequence[SpectrumAxis],
    timer: ProductTimer,
    block_id: tuple[int, ...],
) -> Array:
    """Return a block of a spectrum times a function of its frequencies."""
    with timer.measured(block.nbytes):
        tile_axes = {axis.axis: axis.on_tile(block_id, block) for axis in axes}
        on_tile = transfer.on_tile(tile_axes, like=block)
        out: Array = allocate_like(block, block.shape, block.dtype)
        on_tile.multiply(block, (slice(None),) * block.ndim, out)
        on_tile.require_finite()
        return out


@on_own_gpu
def _times_array(
    block: Array,
    values: Array,
    timer: ProductTimer,
    block_id: tuple[int, ...],
) -> Array:
    """Return a block of a spectrum times values that broadcast against it."""
    with timer.measured(block.nbytes):
        if not bool(np.all(np.isfinite(values))):
            raise_invalid("transfer", f"block {block_id} of the array", "finite values")
        out = allocate_like(block, block.shape, block.dtype)
        return cast(Array, np.multiply(block, in_precision(values, block.dtype), out=out))
