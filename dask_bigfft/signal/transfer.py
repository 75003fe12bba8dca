"""Transfer functions: what multiplies a spectrum, as a function of frequencies or as an array.

A `TransferFunction` is evaluated for each part of the spectrum, in any order, and its values are
not stored. An array is in natural order. A `TransferInMemory` is read in the order of the spectrum.
A `TransferArray` is lazy: tasks read it like a `TransferInMemory` if it is small, and a large one
is exchanged into the order of the spectrum. Between two plans it gets the chunks of a spectrum in
natural order.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any, NoReturn

import dask.array as da
import numpy as np

from dask_bigfft.api.calls import by_block
from dask_bigfft.arrays import Array
from dask_bigfft.dask_private import functions_of
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, raise_invalid
from dask_bigfft.gpu.cuda import in_gpu_memory, passed_by_kernel
from dask_bigfft.gpu.transfer_kernels import CheckedProducts
from dask_bigfft.gpu.transfer_kernels import frequencies as frequencies_on_gpu
from dask_bigfft.kernels.products import Slices, in_precision, multiply_checked
from dask_bigfft.kernels.transfer import (
    SHORT,
    AxisOnTile,
    LazyTransfer,
    TileTransfer,
    in_host_memory,
    indices_of_part,
    raise_not_finite,
    require_finite,
    values_at,
)
from dask_bigfft.kernels.views import empty_like, is_on_gpu
from dask_bigfft.planner.plan import WHOLE_NBYTES
from dask_bigfft.transforms.bands import Window
from dask_bigfft.transforms.spec import FactorSpec, work_dtype

#: Frequencies at which a function is tried, in cycles per sample.
TRIED = (0.0, 0.01, 0.13, 0.37, 0.49, -0.49, -0.37, -0.13, -0.01)

#: Two ways to cut the tried frequencies of an axis into parts, by the first place of each part.
TILINGS = ((0, 4), (0, 1, 6))

#: Number of further frequencies of each axis at which a function of real values is tried together
#: with its value at the opposite frequency.
TRIED_PAIRS = 512

#: Relative difference of two values that are taken to be equal.
TOLERANCE = 1e-6

#: Difference of two values in parts of the largest one that may be due to rounding.
ROUNDING = 1e-9


def to_host_memory(array: da.Array) -> da.Array:
    """Return a lazy array whose blocks are in host memory."""
    if not is_on_gpu(array._meta):
        return array
    return by_block(
        in_host_memory,
        array,
        dtype=array.dtype,
        meta=np.empty((0,) * array.ndim, array.dtype),
    )


def to_gpu(array: da.Array, like: Array) -> da.Array:
    """Return a lazy array whose blocks are on the current GPU, given a CuPy array."""
    if is_on_gpu(array._meta):
        return array
    return by_block(
        in_gpu_memory,
        array,
        dtype=array.dtype,
        meta=empty_like(like, array.ndim, array.dtype),
    )


@dataclass(frozen=True)
class TransferFunction:
    """Element-wise function of the frequencies along each axis.

    Parameters
    ----------
    function : callable
        Takes an array of frequencies for each axis. The arrays broadcast against each other.
    axes : tuple of int
        Axis of each argument of the function.
    lengths : tuple of int
        Length N of the transform along each axis.
    spacing : tuple of float
        Distance d of two samples along each axis, so that two frequencies differ by 1/(N d).
    at_zero : complex, optional
        Value where all frequencies are 0, in place of the function's.
    balanced : bool
        True if the value at frequency N/2 of an even length N, whose sign is not determined, is the
        mean of the function's values for both signs. Else the sign is negative, as in
        `numpy.fft.fftfreq`.
    """

    function: Callable[..., Any]
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    spacing: tuple[float, ...]
    at_zero: complex | None
    balanced: bool

    def takes_any_order(self, axis: int) -> bool:
        """Return True, because each block gets its own frequencies."""
        return True

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> "FunctionOnTile":
        """Return the function at the frequencies of a tile; see `kernels.transfer`."""
        return FunctionOnTile(self, axes, like)

    def at(self, frequencies: Sequence[Array]) -> Array:
        """Return the values at some frequencies, which broadcast against these.

        Signs at N/2 are not averaged.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            With the first frequency whose value is not finite; for values that are no numbers.
        """
        values = self.unchecked(frequencies)
        if self.at_zero is not None and _contain_zero(frequencies):
            values = self.with_zero(values, frequencies)
        if _are_finite(values):
            return values
        is_finite = np.isfinite(values)
        if not bool(np.all(is_finite)):
            place = tuple(int(i) for i in np.argwhere(~is_finite)[0])
            shape = np.broadcast_shapes(*(frequency.shape for frequency in frequencies))
            cycles = tuple(float(np.broadcast_to(f, shape)[place]) for f in frequencies)
            text = f"{values[place]} at frequency {cycles}"
            allowed = "finite values; `at_zero` gives the value where all frequencies are 0"
            raise_invalid("transfer", text, allowed)
        return values

    def with_zero(self, values: Any, frequencies: Sequence[Array]) -> Any:
        """Return values at some frequencies, with `at_zero` where the frequency is 0."""
        is_zero = reduce(np.logical_and, [frequency == 0 for frequency in frequencies])
        return np.where(is_zero, self.at_zero, values)

    def unchecked(self, frequencies: Sequence[Array]) -> Array:
        """Return what the function returns, as an array with the axes of the frequencies."""
        with np.errstate(all="ignore"):  # what is not finite is an error of its own
            returned = self.function(*frequencies)
        values: Array = np.asarray(returned, like=frequencies[0])
        if values.dtype.kind not in "biufc":
            allowed = "a function that returns numbers"
            raise_invalid(
                "transfer",
                f"values of {values.dtype}",
                allowed,
                kind=ArgumentTypeError,
            )
        return values.reshape((1,) * (frequencies[0].ndim - values.ndim) + values.shape)


class FunctionOnTile(TileTransfer):
    """Values of a `TransferFunction` at the frequencies of a tile.

    On a GPU the frequencies are computed there, and values are checked as they are multiplied. No
    value is waited for before `require_finite`.

    Parameters
    ----------
    transfer : TransferFunction
        The function.
    axes : mapping of int to AxisOnTile
        Frequencies of each axis.
    like : array
        Array on the device of the tile.
    """

    def __init__(
        self,
        transfer: TransferFunction,
        axes: Mapping[int, AxisOnTile],
        like: Array,
    ) -> None:
        self.transfer = transfer
        self.axes = axes
        self.like = like
        self._products = CheckedProducts()
        #: Parts of the tile whose values were computed on a GPU.
        self._parts: list[Slices] = []
        #: Values of parts that are multiplied next, and the places of N/2 along axes of them.
        self._prepared: deque[tuple[Array, Mapping[int, int]]] = deque()
        #: Host memory of frequencies that a device reads.
        self._sources: list[Any] = []
        #: The last frequencies of each long argument in host memory, and the slice of them.
        self._last: dict[int, tuple[slice, Array]] = {}

    def prepare(self, part: Slices) -> None:
        """Compute the values in a part of a tile on a GPU; see `kernels.transfer`."""
        self._prepared.append(self._values(part))
        self._parts.append(part)

    def _values(self, part: Slices) -> tuple[Array, Mapping[int, int]]:
        """Return the values in a part, and the places of N/2 along axes of them.

        Along these axes the value for the opposite sign is appended. A single call of the function
        has both.
        """
        middles = self._middles(part)
        frequencies = self._frequencies_of_part(part, middles)
        values = self.transfer.unchecked(frequencies)
        replaces_zero = self.transfer.at_zero is not None
        if replaces_zero and not is_on_gpu(self.like):  # on a GPU it takes longer to look for it
            replaces_zero = _contain_zero(frequencies)
        if replaces_zero:
            values = self.transfer.with_zero(values, frequencies)
        own_middles = {axis: place for axis, place in middles.items() if values.shape[axis] > 1}
        return values, own_middles

    def multiply(
        self,
        spectrum: Array,
        part: Slices,
        out: Array,
        scale: float = 1.0,
    ) -> None:
        """Multiply a part of the spectrum of the tile; see `kernels.transfer`.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            For values in host memory that are not finite; for values that are no numbers.
        """
        if not is_on_gpu(self.like):
            values, middles = self._values(part)
            if out is not spectrum:
                out[part] = spectrum[part]
            if not multiply_checked(
                values,
                out,
                part,
                middles,
                scale,
            ):
                self._raise_not_finite([part])
            return
        if not self._prepared:
            self.prepare(part)
        values, middles = self._prepared.popleft()
        self._products.multiply(
            values,
            spectrum[part],
            out[part],
            middles,
            scale,
        )

    def require_finite(self) -> None:
        """Wait for the device, and raise an error with the first frequency of a wrong value."""
        if not self._products.are_finite():
            self._raise_not_finite(self._parts)

    def _raise_not_finite(self, parts: Sequence[Slices]) -> NoReturn:
        """Raise an error with the first frequency in some parts whose value is not finite."""
        for part in parts:
            self.transfer.at(self._frequencies_of_part(part, self._middles(part)))
        raise_invalid("transfer", "values that are not finite", "finite values")

    def _middles(self, part: Slices) -> dict[int, int]:
        """Return the place of N/2 in a part, for each axis that has it and is balanced there."""
        middles: dict[int, int] = {}
        for axis in self.transfer.axes:
            own = self.axes[axis]
            start, stop, _ = part[axis].indices(own.size)
            middle = own.middle
            if middle is not None and start <= middle < stop and self.transfer.balanced:
                middles[axis] = middle - start
        return middles

    def _frequencies_of_part(self, part: Slices, middles: Mapping[int, int]) -> list[Array]:
        """Return the frequencies of each argument in a part.

        Along an axis with a middle the one there is appended with the opposite sign.
        """
        frequencies: list[Array] = []
        for position, axis in enumerate(self.transfer.axes):
            start, stop, _ = part[axis].indices(self.axes[axis].size)
            frequencies.append(
                self._frequencies(position, slice(start, stop), middles.get(axis)),
            )
        return frequencies

    def _frequencies(self, position: int, cut: slice, middle: int | None) -> Array:
        """Return the frequencies in a part of an axis, and the one at `middle` with opposite sign.

        Parameters
        ----------
        position : int
            Number of the function's argument.
        cut : slice
            Part of the axis in the tile.
        middle : int, optional
            Place of the frequency whose opposite is appended.
        """
        last_cut, last = self._last.get(position, (None, None))
        if last is not None and last_cut == cut:
            return last
        axis = self.transfer.axes[position]
        own = self.axes[axis]
        length = self.transfer.lengths[position]
        step = 1.0 / (length * self.transfer.spacing[position])
        on_gpu = is_on_gpu(self.like)
        if on_gpu and own.place_index is not None:
            values = frequencies_on_gpu(
                own.place_index,
                cut,
                length,
                step,
                middle,
            )
            shape = [1] * len(own.shape)
            shape[axis] = -1
            computed: Array = values.reshape(shape)
            return computed
        is_short = own.size <= SHORT and not on_gpu
        along: Callable[..., Array] = _short_frequencies if is_short else frequencies_along
        frequencies = along(
            own,
            axis,
            cut.start,
            cut.stop,
            length,
            step,
            middle,
        )
        if is_short:
            return frequencies.copy()  # the function might write to it
        if not on_gpu:
            self._last[position] = (cut, frequencies)
        elif isinstance(frequencies, np.ndarray):
            frequencies, source = passed_by_kernel(frequencies)
            self._sources.append(source)
        return frequencies


def frequencies_along(
    on_tile: AxisOnTile,
    axis: int,
    start: int,
    stop: int,
    length: int,
    step: float,
    middle: int | None,
) -> Array:
    """Return the frequencies in a part of an axis on a tile, from an array of its indices.

    Parameters
    ----------
    on_tile : AxisOnTile
        The axis.
    axis : int
        Number of the axis.
    start, stop : int
        The part.
    length : int
        Length N of the transform.
    step : float
        Difference of two frequencies.
    middle : int, optional
        Place in the part whose frequency is appended with the opposite sign.
    """
    index = on_tile.indices[_along(axis, slice(start, stop))]
    signed = np.where(index >= (length + 1) // 2, index - length, index)
    if middle is not None:
        opposite = -signed[_along(axis, slice(middle, middle + 1))]
        signed = np.concatenate([signed, opposite], axis)
    frequencies: Array = signed * step
    return frequencies


#: Frequencies in parts of short axes on the last tiles in host memory, at most 2 MiB.
_short_frequencies = lru_cache(maxsize=32)(frequencies_along)


def _contain_zero(frequencies: Sequence[Array]) -> bool:
    """Return whether frequency 0 is among those of every axis."""
    return all(bool((frequency == 0).any()) for frequency in frequencies)


def _are_finite(values: Array) -> bool:
    """Return True if the sum of some values is finite, so that all of them are.

    The sum of finite values may not be finite. It takes about half of the time of `np.isfinite` for
    all of them.
    """
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()))


def _along(axis: int, cut: slice) -> Slices:
    """Return slices that cut an array along one axis."""
    return (*(slice(None),) * axis, cut)


@dataclass(frozen=True)
class TransferArray:
    """Array that broadcasts against the spectrum in natural order.

    Parameters
    ----------
    array : dask.array.Array
        With as many axes as the spectrum; each has its length, or length 1.
    lengths : mapping of int to int
        Length N of the transform along each transformed axis.
    halved : int, optional
        Axis of which the spectrum has half of the frequencies.
    """

    array: da.Array
    lengths: Mapping[int, int]
    halved: int | None

    @property
    def lazy(self) -> LazyTransfer:
        """The array as the transfer function of one plan."""
        chunks = tuple(tuple(map(int, cut)) for cut in self.array.chunks)
        return LazyTransfer(
            self.array,
            FactorSpec(chunks, np.dtype(self.array.dtype).str),
            TransferInMemory(np.empty(0), self.lengths, self.halved),
        )

    def in_precision_of(self, dtype: np.dtype[Any]) -> "TransferArray":
        """Return the array in the precision of the transform of a dtype.

        A large one is made as long as half a spectrum, whose other half has conjugate values.
        """
        own_dtype = work_dtype(dtype)
        if self.array.dtype.kind != "c":
            own_dtype = np.empty(0, own_dtype).real.dtype
        array: Any = self.array.astype(own_dtype)
        halved = self.halved
        if halved is not None and array.shape[halved] == 1 and array.nbytes > WHOLE_NBYTES:
            shape = list(array.shape)
            shape[halved] = self.lengths[halved] // 2 + 1
            array = functions_of(array).broadcast_to(array, tuple(shape))
        return replace(self, array=array)

    def takes_any_order(self, axis: int) -> bool:
        """Return whether the spectrum may be in transposed order along an axis.

        Along the halved axis that order has frequencies of both signs, of which the array gives
        only one: its values for the other need not be their conjugates.
        """
        return bool(self.array.shape[axis] == 1) and axis != self.halved

    def within(self, windows: Mapping[int, Window]) -> "TransferArray":
        """Return the array in cyclic windows of some axes."""
        array = self.array
        for axis, (start, count) in windows.items():
            length = array.shape[axis]
            if length == 1:
                continue
            ahead = (slice(None),) * axis
            end = start + count
            parts = [array[(*ahead, slice(start, min(end, length)))]]
            if end > length:
                parts.append(array[(*ahead, slice(0, end - length))])
            array = da.concatenate(parts, axis)
        return replace(self, array=array)

    def in_chunks_of(self, spectrum: da.Array) -> da.Array:
        """Return the array with the chunks of a spectrum."""
        chunks = tuple(
            (1,) if size == 1 else cut
            for size, cut in zip(self.array.shape, spectrum.chunks, strict=True)
        )
        aligned: da.Array = self.array.rechunk(chunks)
        return aligned


@dataclass(frozen=True, eq=False)
class TransferInMemory:
    """NumPy or CuPy array that broadcasts against the spectrum in natural order.

    Parameters
    ----------
    array : ndarray
        With as many axes as the spectrum; each has its length, or length 1.
    lengths : mapping of int to int
        Length N of the transform along each transformed axis.
    halved : int, optional
        Axis of which the array has half of the frequencies.
    """

    array: Array
    lengths: Mapping[int, int]
    halved: int | None

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> "ArrayOnTile":
        """Return the array at the frequencies of a tile; see `kernels.transfer`."""
        indices = {axis: own.host_indices for axis, own in axes.items()}
        if is_on_gpu(self.array):
            on_own_gpu = replace(self, array=np.asarray(self.array, like=like))
            return ArrayOnTile(on_own_gpu, indices, like)
        return ArrayOnTile(self, indices, like)

    def values(self, indices: Mapping[int, Array]) -> Array:
        """Return the values at some frequencies, which broadcast against them.

        Along the halved axis a spectrum has the conjugates at the opposite frequencies, which the
        inverse transform of half a spectrum takes to be there.

        Parameters
        ----------
        indices : mapping of int to ndarray
            Indices 0 to N - 1 of the frequencies along each axis, and of the elements along axes
            that are not transformed.
        """
        halved = self.halved
        if halved is None:
            return values_at(self.array, indices)
        length = self.lengths[halved]
        index = indices[halved].ravel()
        is_negative = index > length // 2
        if not is_negative.any():
            return values_at(self.array, indices)
        opposite = dict(indices)
        for axis, own_length in self.lengths.items():
            opposite[axis] = -indices[axis] % own_length
        opposite[halved] = length - index[is_negative]
        mirrored = np.conj(values_at(self.array, opposite))
        stored = values_at(self.array, {**indices, halved: index[~is_negative]})
        # Places of the frequencies in `both`; an axis of length 1 has one value for each sign.
        places = is_negative.astype(np.int64)
        if self.array.shape[halved] > 1:
            stored_size = stored.shape[halved]
            places[~is_negative] = np.arange(stored_size)
            places[is_negative] = np.arange(stored_size, index.size)
        both: Array = np.concatenate([stored, mirrored], halved)
        values: Array = both.take(np.asarray(places, like=both), halved)
        return values


@dataclass(frozen=True, eq=False)
class ArrayOnTile(TileTransfer):
    """Values of a `TransferInMemory` at the frequencies of a tile.

    Parameters
    ----------
    transfer : TransferInMemory
        The array.
    indices : mapping of int to ndarray
        Indices of the frequencies along each axis.
    like : array
        Array on the device of the tile.
    products : CheckedProducts
        Products with values on a GPU, which are not waited for before `require_finite`.
    """

    transfer: TransferInMemory
    indices: Mapping[int, Array]
    like: Array
    products: CheckedProducts = field(default_factory=CheckedProducts)

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile; see `kernels.transfer`."""
        values = self.transfer.values(indices_of_part(self.indices, part))
        require_finite(values)
        on_device: Array = np.asarray(in_precision(values, dtype), like=self.like)
        return on_device

    def multiply(
        self,
        spectrum: Array,
        part: Slices,
        out: Array,
        scale: float = 1.0,
    ) -> None:
        """Multiply a part of the spectrum of the tile; see `kernels.transfer`."""
        if not is_on_gpu(self.transfer.array):
            super().multiply(spectrum, part, out, scale)
            return
        values = self.transfer.values(indices_of_part(self.indices, part))
        self.products.multiply(
            values,
            spectrum[part],
            out[part],
            {},
            scale,
        )

    def require_finite(self) -> None:
        """Wait for the device, and raise an error if values are not finite."""
        if not self.products.are_finite():
            raise_not_finite()


def try_function(
    transfer: TransferFunction,
    ndim: int,
    real: bool,
    limits: Mapping[int, tuple[float, float]],
) -> None:
    """Raise an error if a function is not what can multiply a spectrum.

    Parameters
    ----------
    transfer : TransferFunction
        It is tried at a few frequencies of both signs.
    ndim : int
        Number of axes of the spectrum.
    real : bool
        True if the result is real, so that H(-f) has to be the conjugate of H(f).
    limits : mapping of int to (float, float)
        Lowest and highest frequency of a band along some axes, in cycles per sample. The function
        is not tried outside.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If the function does not take the frequencies, is not element-wise, has values that are no
        numbers or not finite, or is not Hermitian for a real result.
    """
    tried = []
    for axis in transfer.axes:
        shape = [1] * ndim
        shape[axis] = -1
        tried.append(_within(TRIED, limits.get(axis)).reshape(shape))
    frequencies = _in_cycles(transfer, tried)
    values = _tried(transfer, frequencies)
    tolerance = TOLERANCE * np.abs(values).max(initial=0)
    for position, starts in itertools.product(range(len(frequencies)), TILINGS):
        axis = transfer.axes[position]
        for start, stop in itertools.pairwise((*starts, frequencies[position].size)):
            tile = (*(slice(None),) * axis, slice(start, stop))
            part = list(frequencies)
            part[position] = frequencies[position][tile]
            if start < stop and not np.allclose(
                _tried(transfer, part),
                values[tile],
                TOLERANCE,
                tolerance,
            ):
                allowed = "an element-wise function, which has the same values for parts"
                raise_invalid("transfer", transfer.function, allowed)
    if real:
        _require_hermitian(transfer, frequencies)
        _require_hermitian(transfer, _in_cycles(transfer, _random(transfer.axes, ndim, limits)))


def _within(frequencies: Sequence[float], limits: tuple[float, float] | None) -> Array:
    """Return the frequencies that lie within limits, and both limits; all of them without limits.

    >>> _within((-0.2, 0.0, 0.1), (-0.1, 0.3))
    array([-0.1,  0. ,  0.1,  0.3])
    """
    if limits is None:
        return np.array(frequencies)
    low, high = limits
    inside = [frequency for frequency in frequencies if low < frequency < high]
    return np.unique([low, *inside, high])


def _in_cycles(transfer: TransferFunction, frequencies: Sequence[Array]) -> list[Array]:
    """Return frequencies in cycles per unit of the spacing, given those per sample."""
    pairs = zip(frequencies, transfer.spacing, strict=True)
    return [frequency / distance for frequency, distance in pairs]


def _random(
    axes: Sequence[int],
    ndim: int,
    limits: Mapping[int, tuple[float, float]],
) -> list[Array]:
    """Return random frequencies of each axis, in cycles per sample, the same in each process.

    Half of them are uniform on a logarithmic scale, because many functions change most near 0.
    """
    rng = np.random.default_rng(0)
    uniform = rng.uniform(0, 0.5, TRIED_PAIRS // 2)
    small = 0.5 * 10.0 ** rng.uniform(-5, 0, TRIED_PAIRS // 2)
    sizes = np.concatenate([uniform, small])
    shape = (TRIED_PAIRS,) + (1,) * (ndim - 1)
    frequencies = []
    for axis in axes:
        own = rng.permutation(sizes) * rng.choice((-1, 1), TRIED_PAIRS)
        if axis in limits:
            low, high = limits[axis]
            own = low + (own + 0.5) * (high - low)
        frequencies.append(own.reshape(shape))
    return frequencies


def _require_hermitian(transfer: TransferFunction, frequencies: Sequence[Array]) -> None:
    """Raise an error if values at some frequencies and at their opposites are not conjugates."""
    values = _tried(transfer, frequencies)
    opposite = _tried(transfer, [-frequency for frequency in frequencies])
    tolerance = ROUNDING * np.abs(values).max(initial=0)
    if not np.allclose(
        opposite,
        np.conj(values),
        TOLERANCE,
        tolerance,
    ):
        allowed = "H(-f) equal to the conjugate of H(f), or real=False for a complex result"
        raise_invalid("transfer", f"{transfer.function}, not Hermitian", allowed)


def _tried(transfer: TransferFunction, frequencies: Sequence[Array]) -> Array:
    """Return the values of a function at some frequencies, broadcast to their common shape."""
    shape = np.broadcast_shapes(*(frequency.shape for frequency in frequencies))
    try:
        values: Array = np.broadcast_to(transfer.at(frequencies), shape)
    except (ArgumentError, ArgumentTypeError):
        raise
    except (TypeError, ValueError) as error:
        shapes = ", ".join(str(frequency.shape) for frequency in frequencies)
        allowed = f"a function of arrays of shapes {shapes} that returns shape {shape} ({error})"
        raise_invalid(
            "transfer",
            transfer.function,
            allowed,
            kind=ArgumentTypeError,
        )
    return values
