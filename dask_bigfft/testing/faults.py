"""Fault injectors: FFT libraries and rounds that fail a given number of times.

Tests use them to show which check finds which fault.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.loop import BoundFactor, BoundOperation, transform_tile
from dask_bigfft.tiles.program import Twiddle

Damage = Callable[[Array], object]


def flip(values: Array, bit: str) -> None:
    """Flip one bit of the largest real number in an array, in place.

    Parameters
    ----------
    values : ndarray of float or complex, single or double
        May be strided.
    bit : {"exponent", "sign", "mantissa", "last"}
        The lowest bit of the exponent, the sign, the highest or the lowest bit of the mantissa.

    Examples
    --------
    >>> x = np.array([1.0, 6.0])
    >>> flip(x, "sign"); flip(x[:1], "exponent"); x
    array([ 0.5, -6. ])
    """
    real = values.real
    mantissa_bits = np.finfo(real.dtype).nmant
    shifts = {
        "exponent": mantissa_bits,
        "sign": 8 * real.itemsize - 1,
        "mantissa": mantissa_bits - 1,
        "last": 0,
    }
    bits = real.view(f"u{real.itemsize}")
    largest = np.unravel_index(np.argmax(np.abs(real)), real.shape)
    bits[largest] ^= bits.dtype.type(1 << shifts[bit])


def _swap(values: Array) -> None:
    """Exchange the first and the last value of an array, in place."""
    first = (0,) * values.ndim
    last = (-1,) * values.ndim
    first_value = values[first]
    values[first] = values[last]
    values[last] = first_value


#: Kinds of damage to values, by name.
DAMAGES: dict[str, Damage] = {
    "exponent bit": partial(flip, bit="exponent"),
    "sign bit": partial(flip, bit="sign"),
    "mantissa bit": partial(flip, bit="mantissa"),
    "last bit": partial(flip, bit="last"),
    "swap": _swap,
    "conjugate": lambda values: np.conjugate(values, out=values),
}


class Times:
    """Counter that triggers a number of faults after some calls without a fault."""

    def __init__(self, times: int, after: int = 0) -> None:
        self.left = times + after
        self.times = times
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        """Return True if this call should fail."""
        with self._lock:
            self.left -= 1
            return 0 <= self.left < self.times


class Faulty:
    """FFT library with damaged results.

    Parameters
    ----------
    library : FFTLibrary
        Library that computes the results.
    damage : callable
        Changes a result in place.
    when : callable
        Returns True if the next result is to be damaged.
    """

    def __init__(
        self,
        library: FFTLibrary,
        damage: Damage,
        when: Callable[[], bool],
    ) -> None:
        self._library = library
        self._damage = damage
        self._when = when

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._library, name)
        if name in ("using", "among"):
            return lambda *arguments: Faulty(attribute(*arguments), self._damage, self._when)
        if name not in ("c2c", "run"):
            return attribute

        def damaged(*arguments: Any, **options: Any) -> Array:
            values: Array = attribute(*arguments, **options)
            if self._when():
                self._damage(values)
            return values

        return damaged


def dropping(when: Callable[[], bool]) -> Callable[..., Array]:
    """Return a function like `transform_tile` that omits twiddles when `when` returns True."""

    def is_twiddle(operation: BoundOperation) -> bool:
        return isinstance(operation, BoundFactor) and isinstance(operation.operation, Twiddle)

    def transform(
        tile: Array,
        operations: Sequence[BoundOperation],
        library: FFTLibrary,
        **options: Any,
    ) -> Array:
        if when():
            operations = [operation for operation in operations if not is_twiddle(operation)]
        return transform_tile(tile, operations, library, **options)

    return transform
