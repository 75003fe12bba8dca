"""Analytic signals and envelopes."""

from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft import fft
from dask_bigfft.api.arguments import inner_extras, parse_array
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_kind, keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    ArgumentTypeError,
    parse_choice,
    parse_count,
    parse_flag,
    raise_invalid,
)
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.signal.arguments import (
    SignalOptions,
    in_chunks,
    nonempty,
    parse_signal_options,
    without_empty,
)
from dask_bigfft.signal.filters import fourier_filter
from dask_bigfft.signal.sampling import resample
from dask_bigfft.transforms.spec import parse_axes

__all__ = ["envelope", "hilbert"]

Residual = Literal["lowpass", "all"]


@dataclass(frozen=True)
class Analytic:
    """Transfer function that doubles positive frequencies and removes negative ones.

    Parameters
    ----------
    length : int
        Length N of the transform. Frequency N/2 of an even length is neither.
    """

    length: int

    def __call__(self, frequency: Array) -> Array:
        """Return 2, 0, or 1 for frequencies that have no sign, in cycles per sample."""
        index = frequency * self.length
        is_unpaired = index == 0
        if self.length % 2 == 0:
            is_unpaired = is_unpaired | (np.abs(index) > self.length / 2 - 0.5)
        return np.where(is_unpaired, 1.0, np.where(index > 0, 2.0, 0.0))


@keeps_rows()
def hilbert(
    x: Any,
    N: int | None = None,
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the analytic signal of a real array, whose imaginary part is the Hilbert transform.

    Parameters
    ----------
    x : dask array or array-like
        Real, of any chunking; only read. It is assumed to be periodic.
    N : int, optional
        Length of the transform, for which `x` is cropped or padded with zeros.
    axis : int
        Axis of the samples.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fourier_filter`.

    Returns
    -------
    dask.array.Array
        Lazy, complex, as `scipy.signal.hilbert` returns it; of single precision for
        single-precision `x`. A NaN makes its line NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    See Also
    --------
    envelope : Its absolute value.

    Examples
    --------
    >>> hilbert([1.0, 0.0, -1.0, 0.0]).compute().round(6) + 0.0
    array([ 1.+0.j,  0.+1.j, -1.+0.j,  0.-1.j])
    """
    parse_signal_options(options)
    array = parse_array(x, "fft")
    if array.dtype.kind == "c":
        raise_invalid("x", f"dtype {array.dtype}", "real numbers", kind=ArgumentTypeError)
    (along,) = parse_axes("axis", (axis,), array.ndim)
    length = array.shape[along] if N is None else parse_count("N", N, 1, 2**62)
    nonempty(array, (along,))
    return fourier_filter(
        array,
        Analytic(length),
        along,
        s=length,
        real=False,
        **options,
    )


# --- envelopes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bins:
    """Transfer function of the bins of a spectrum.

    Parameters
    ----------
    length : int
        Length N of the transform.
    ranges : tuple of (int, int, float)
        First bin in natural order, end of the bins, and their factor. All others are removed.
    is_even : bool
        True if the factor of bin N - k is that of bin k.
    """

    length: int
    ranges: tuple[tuple[int, int, float], ...]
    is_even: bool

    def __call__(self, frequency: Array) -> Array:
        """Return the factors at frequencies in cycles per sample."""
        index = np.rint(frequency * self.length) % self.length
        if self.is_even:
            index = np.minimum(index, self.length - index)
        factors: Array = np.zeros_like(index)
        for start, stop, factor in self.ranges:
            factors = np.where((index >= start) & (index < stop), factor, factors)
        return factors


@dataclass(frozen=True)
class InputBand:
    """Band of the frequencies whose envelope is computed, in bins of a transform.

    Parameters
    ----------
    length : int
        Length n of the transform.
    start, stop : int
        First bin and end of the bins, from -n // 2 to (n + 1) // 2.
    """

    length: int
    start: int
    stop: int

    @classmethod
    def parse(cls, bp_in: Any, length: int) -> "InputBand":
        """Return the band of an argument of `envelope`."""
        low = -(length // 2)
        high = (length + 1) // 2
        allowed = f"two of the integers from {low} to {high} in ascending order, or None"
        is_pair = isinstance(bp_in, tuple | list) and len(bp_in) == 2
        if not is_pair:
            raise_invalid("bp_in", bp_in, allowed, kind=ArgumentTypeError)
        for limit in bp_in:
            is_integer = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
            if limit is not None and not is_integer:
                raise_invalid("bp_in", bp_in, allowed, kind=ArgumentTypeError)
        start = low if bp_in[0] is None else int(bp_in[0])
        stop = high if bp_in[1] is None else int(bp_in[1])
        if not low <= start < stop <= high:
            raise_invalid("bp_in", bp_in, allowed)
        return cls(length, start, stop)

    @property
    def has_unpaired(self) -> bool:
        """True if bin -n/2 is in the band, which has no positive counterpart."""
        return self.length % 2 == 0 and self.start == -self.length // 2

    def ranges(self, is_real: bool) -> tuple[tuple[int, int, float], ...]:
        """Return bins in natural order and their factors.

        Of real samples, positive frequencies count twice and negative ones not at all.

        >>> InputBand(8, -2, 3).ranges(is_real=False)
        ((6, 8, 1.0), (0, 3, 1.0))
        >>> InputBand(8, -4, 3).ranges(is_real=True)
        ((4, 5, 1.0), (0, 1, 1.0), (1, 3, 2.0))
        """
        ranges = []
        if is_real:
            if self.has_unpaired:
                ranges.append((self.length // 2, self.length // 2 + 1, 1.0))
            if self.start <= 0 < self.stop:
                ranges.append((0, 1, 1.0))
            ranges.append((max(self.start, 1), self.stop, 2.0))
        else:
            ranges.append((self.start + self.length, min(self.stop, 0) + self.length, 1.0))
            ranges.append((max(self.start, 0), self.stop, 1.0))
        return tuple((start, stop, factor) for start, stop, factor in ranges if start < stop)

    def residual(self, kind: str) -> tuple[tuple[int, int, float], ...]:
        """Return the bins of a residual of a kind in natural order: those outside of the band.

        "lowpass" has only those below the band, from the lowest negative frequency on.

        >>> InputBand(8, 1, 3).residual("all"), InputBand(8, 1, 3).residual("lowpass")
        (((0, 1, 1.0), (3, 8, 1.0)), ((0, 1, 1.0), (4, 8, 1.0)))
        """
        n = self.length
        first_negative = (n + 1) // 2
        removed = [(0, self.stop), (self.start % n, n)]
        if self.start > 0 or self.stop <= 0:
            removed = [(self.start % n, self.stop if self.stop > 0 else self.stop + n)]
        elif self.start == 0:
            removed = [(0, n)]
        if kind == "lowpass":
            if self.stop > 0:
                removed.append((self.stop, first_negative))
            else:
                removed += [(self.start % n, n), (0, first_negative)]
        ranges = []
        first = 0
        for start, stop in sorted(removed):
            if first < start:
                ranges.append((first, start, 1.0))
            first = max(first, stop)
        if first < n:
            ranges.append((first, n, 1.0))
        return tuple(ranges)


@keeps_kind
def envelope(
    z: Any,
    bp_in: tuple[int | None, int | None] = (1, None),
    *,
    n_out: int | None = None,
    squared: bool = False,
    residual: Residual | None = "lowpass",
    axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the envelope of an array in a band, and the rest of the array.

    Parameters
    ----------
    z : dask array or array-like
        Real or complex, of any chunking; only read. It is assumed to be periodic.
    bp_in : tuple of int or None
        First frequency of the band, and the end of the band, in multiples of 1 / n for n samples.
        None stands for the lowest one, -(n // 2), and for the end of all. The default leaves out
        the mean.
    n_out : int, optional
        Number of samples of the result, by default that of `z`.
    squared : bool
        True for the square of the envelope.
    residual : {"lowpass", "all"}, optional
        Part of `z` that is returned, too: the frequencies below the band, or all outside of it.
        None returns only the envelope.
    axis : int
        Axis of the samples.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fourier_filter`; `chunks` are those of the envelope.

    Returns
    -------
    dask.array.Array
        Lazy, as `scipy.signal.envelope` returns it: envelope and residual along a new first axis,
        which can be unpacked, or the envelope alone. Real for real `z`; of single precision for
        single-precision `z`. A NaN makes its line NaN. An envelope alone is always real; with the
        residual of complex `z` it is complex, with imaginary parts of 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    If `n_out` is less than the number of frequencies in the band, the highest of them are dropped
    from the envelope, as by SciPy.

    See Also
    --------
    hilbert : Analytic signal, whose absolute value is ``envelope(z, (None, None), residual=None)``.

    Examples
    --------
    >>> wave = 5 + np.cos(np.arange(8) * np.pi / 2)
    >>> amplitude, mean = envelope(wave).compute().round(6)
    >>> amplitude, mean
    (array([1., 1., 1., 1., 1., 1., 1., 1.]), array([5., 5., 5., 5., 5., 5., 5., 5.]))
    """
    parse_signal_options(options)
    array = without_empty(parse_array(z, "fft"))
    (along,) = parse_axes("axis", (axis,), array.ndim)
    (n,) = nonempty(array, (along,), "z")
    band = InputBand.parse(bp_in, n)
    count = n if n_out is None else parse_count("n_out", n_out, 1, 2**62)
    is_squared = parse_flag("squared", squared)
    if residual is not None:
        parse_choice("residual", residual, "lowpass", "all")
    band_signal = _analytic_in_band(
        array,
        along,
        band,
        count,
        options,
    )
    amplitude = by_block(
        _amplitude,
        band_signal,
        dtype=np.empty(0, band_signal.dtype).real.dtype,
        squared=is_squared,
    )
    amplitude = in_chunks(amplitude, options.get("chunks"))
    if residual is None:
        return amplitude
    is_real = array.dtype.kind != "c"
    residual_bins = Bins(n, band.residual(residual), is_even=is_real)
    residual_signal: Any = fourier_filter(
        array,
        residual_bins,
        along,
        real=is_real,
        **options,
    )
    if count != n:
        residual_signal = resample(residual_signal, count, axis=along, **options)
    return cast("da.Array", da.stack([amplitude, residual_signal.rechunk(amplitude.chunks)]))


def _analytic_in_band(
    array: da.Array,
    along: int,
    band: InputBand,
    count: int,
    options: SignalOptions,
) -> da.Array:
    """Return an array whose absolute value is that of the analytic signal in a band.

    At the array's own samples it is the analytic signal. At another number `count` of samples the
    band is shifted to begin at frequency 0, which does not change absolute values. If `count` is
    less than the number of frequencies in the band, the highest of them are dropped.
    """
    is_real = array.dtype.kind != "c"
    ranges = band.ranges(is_real)
    n = band.length
    if count == n:
        return fourier_filter(
            array,
            Bins(n, ranges, is_even=False),
            along,
            real=False,
            **options,
        )
    extras: Any = inner_extras(options, norm="forward")
    places = (band.start + n // 2, band.stop + n // 2)
    spectrum: Any = fft.fft(array, axis=along, band_index=places, **extras)
    bins = da.arange(band.start, band.stop, chunks=(spectrum.chunks[along],)) % n
    factors: Any = da.zeros_like(bins, dtype=np.empty(0, spectrum.dtype).real.dtype)
    for start, stop, factor in ranges:
        factors = da.where((bins >= start) & (bins < stop), factor, factors)
    shape = [1] * array.ndim
    shape[along] = band.stop - band.start
    product = spectrum * factors.astype(np.empty(0, spectrum.dtype).real.dtype).reshape(shape)
    return fft.ifft(product, n=count, axis=along, **extras)


@on_own_gpu
def _amplitude(signal: Array, squared: bool) -> Array:
    """Return the absolute values of an analytic signal, or their squares."""
    if not squared:
        return np.abs(signal)
    amplitude: Array = signal.real**2
    amplitude += signal.imag**2
    return amplitude
