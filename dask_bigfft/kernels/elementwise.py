"""Element-wise expressions of a spectrum, which operators evaluate tile by tile.

An expression is a list of calls. Each names its arguments: the spectrum, a factor, or the result of
an earlier call. A call gets the values at the frequencies of a part of a tile, so that results of
calls stay in a core's cache::

    spectrum, h -> difference = subtract(spectrum, h) -> product = multiply(difference, h)

Where a real axis is split, the spectrum has frequencies of both signs along it, but factors only of
one. At the others the expression is evaluated for the conjugate of the spectrum and for the factors
at the opposite frequency. Its value there is the conjugate of that.

Factors that are computed with the graph come as the bytes of one array, in the order of `packed`.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.kernels.products import Slices
from dask_bigfft.kernels.transfer import (
    AxisOnTile,
    TileTransfer,
    indices_of_part,
    values_at,
)
from dask_bigfft.transforms.bands import Window

#: Name of the spectrum in an expression.
SPECTRUM = "<spectrum>"


@dataclass(frozen=True)
class Named:
    """Argument of a call: the spectrum, a factor or the result of a call, by its name."""

    name: str


@dataclass(frozen=True)
class Call:
    """Call of an element-wise function.

    Parameters
    ----------
    result : str
        Name of the result.
    function : callable
        A ufunc, or another function of arrays that broadcast against each other.
    arguments : tuple
        `Named` values, and values themselves.
    keywords : mapping
        Keywords of the function.
    """

    result: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    @property
    def is_product(self) -> bool:
        """True if the result is the product of the two arguments."""
        return self.function in (operator.mul, np.multiply) and not self.keywords

    @property
    def is_conjugate(self) -> bool:
        """True if the result is the complex conjugate of the only argument."""
        return self.function is np.conjugate and len(self.arguments) == 1 and not self.keywords


@dataclass(frozen=True)
class PackedFactor:
    """Factor whose bytes are a part of an array: its name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the factor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Expression:
    """Element-wise expression of a spectrum.

    Parameters
    ----------
    calls : tuple of Call
        In order; the last one returns the value of the expression.
    factors : mapping of str to ndarray
        Arrays in natural order by name, with as many axes as the spectrum. Each axis has the length
        of the spectrum, or length 1. Some axes may have other `windows`.
    lengths : mapping of int to int
        Length N of the transform along each transformed axis.
    halved : int, optional
        Axis of which the spectrum and the factors have half of the frequencies.
    scale : float
        What the spectrum of a tile is multiplied by before.
    windows : mapping of int to (int, int)
        Frequency at the first place of the factors along some axes, and number of their places, for
        factors of a band or of a shifted spectrum.
    packed : tuple of PackedFactor
        Factors that are computed with the graph.
    array : ndarray
        Their bytes, one after the other, or the only one of them.
    """

    calls: tuple[Call, ...]
    factors: Mapping[str, Array]
    lengths: Mapping[int, int]
    halved: int | None
    scale: float = 1.0
    windows: Mapping[int, Window] = field(default_factory=dict)
    packed: tuple[PackedFactor, ...] = ()
    array: Array = field(default_factory=lambda: np.empty(0))

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> "ExpressionOnTile":
        """Return the expression at the frequencies of a tile; see `kernels.transfer`."""
        indices = {axis: own.host_indices for axis, own in axes.items()}
        return ExpressionOnTile(self, indices, like)

    @cached_property
    def uses(self) -> Counter[str]:
        """Number of arguments of all calls that each named value is."""
        arguments = itertools.chain(*(call.arguments for call in self.calls))
        return Counter(argument.name for argument in arguments if isinstance(argument, Named))

    @cached_property
    def all_factors(self) -> Mapping[str, Array]:
        """Factors by name, with those that were computed with the graph."""
        if not self.packed:
            return self.factors
        factors = dict(self.factors)
        stored_bytes = np.ascontiguousarray(self.array).reshape(-1).view(np.uint8)
        start = 0
        for part in self.packed:
            stop = start + part.nbytes
            factors[part.name] = stored_bytes[start:stop].view(part.dtype).reshape(part.shape)
            start = stop
        return factors

    def places(self, indices: Mapping[int, Array]) -> dict[int, Array]:
        """Return the places in the factors of frequencies along each axis."""
        places = dict(indices)
        for axis, (first, count) in self.windows.items():
            cyclic = (indices[axis] - first) % self.lengths[axis]
            places[axis] = np.minimum(cyclic, count - 1)  # values outside of a band do not matter
        return places

    def value(self, spectrum: Array, factors: Mapping[str, Array]) -> Array:
        """Return the value of the expression, given the values of the spectrum and of factors.

        Values are freed after their last use.
        """
        values: dict[str, Any] = {SPECTRUM: spectrum, **factors}
        uses = self.uses.copy()
        value: Array = spectrum
        for call in self.calls:
            arguments = []
            for argument in call.arguments:
                if not isinstance(argument, Named):
                    arguments.append(argument)
                    continue
                arguments.append(values[argument.name])
                uses[argument.name] -= 1
                if not uses[argument.name]:
                    del values[argument.name]
            value = call.function(*arguments, **call.keywords)
            values[call.result] = value
        return value


@dataclass(frozen=True, eq=False)
class ExpressionOnTile(TileTransfer):
    """Expression of a spectrum at the frequencies of a tile.

    Parameters
    ----------
    expression : Expression
        The expression.
    indices : mapping of int to ndarray
        Indices of the frequencies along each axis, in host memory.
    like : array
        Array on the device of the tile.
    """

    expression: Expression
    indices: Mapping[int, Array]
    like: Array

    def multiply(
        self,
        spectrum: Array,
        part: Slices,
        out: Array,
        scale: float = 1.0,
    ) -> None:
        """Write the value of the expression for a part of the spectrum of the tile to `out`."""
        expression = self.expression
        indices = indices_of_part(self.indices, part)
        values = spectrum[part]
        if expression.scale != 1:
            values = values * values.real.dtype.type(expression.scale)
        is_negative = self._is_negative(indices)
        if is_negative is None:
            value = expression.value(values, self._factors(indices))
        else:
            on_device = np.asarray(is_negative, like=self.like)
            factors = self._factors_of_both_signs(indices, is_negative)
            values = np.where(on_device, np.conj(values), values)
            value = expression.value(values, factors)
            value = np.where(on_device, np.conj(value), value)
        product = out[part]
        product[...] = value
        if scale != 1:
            np.multiply(product, scale, out=product)

    def _is_negative(self, indices: Mapping[int, Array]) -> Array | None:
        """Return whether frequencies along the halved axis are negative; None if none is."""
        halved = self.expression.halved
        if halved is None:
            return None
        is_negative: Array = indices[halved] > self.expression.lengths[halved] // 2
        return is_negative if is_negative.any() else None

    def _factors(self, indices: Mapping[int, Array]) -> dict[str, Array]:
        """Return the factors at some frequencies, on the device of the tile."""
        places = self.expression.places(indices)
        factors: dict[str, Array] = {}
        for name, factor in self.expression.all_factors.items():
            factors[name] = np.asarray(values_at(factor, places), like=self.like)
        return factors

    def _factors_of_both_signs(
        self,
        indices: Mapping[int, Array],
        is_negative: Array,
    ) -> dict[str, Array]:
        """Return the factors, with those at the opposite frequency where one is negative."""
        opposite = dict(indices)
        for axis, length in self.expression.lengths.items():
            opposite[axis] = -indices[axis] % length
        halved = self.expression.halved
        assert halved is not None
        half = self.expression.lengths[halved] // 2
        positive = {**indices, halved: np.minimum(indices[halved], half)}
        opposite[halved] = np.minimum(opposite[halved], half)
        opposite = self.expression.places(opposite)
        positive = self.expression.places(positive)
        factors: dict[str, Array] = {}
        for name, factor in self.expression.all_factors.items():
            values = np.where(is_negative, values_at(factor, opposite), values_at(factor, positive))
            factors[name] = np.asarray(values, like=self.like)
        return factors
