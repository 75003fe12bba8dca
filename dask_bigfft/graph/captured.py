"""Element-wise expressions of one spectrum, read from a dask graph.

::

    PlanLayer, shift, rechunk -> Blockwise multiply -> Blockwise add -> shift back -> array
                  array, rechunk ----^    number ----^

Between the spectrum and the array stand only NumPy's ufuncs and Python's arithmetic, on numbers, on
NumPy arrays in the graph, and on arrays that the graph computes without the spectrum. A shift of
the spectrum is undone at the end. Or two spectra are multiplied, of which one may be conjugated.
Other graphs are not captured, and no layer is changed.
"""

import itertools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import dask.array as da
import numpy as np
from dask.array import chunk

from dask_bigfft.arrays import Array, Block
from dask_bigfft.dask_private import (
    ArrayName,
    HighLevelGraph,
    array_of_layer,
    elementwise_call,
    is_expression,
    reads_elementwise_graphs,
    rechunk_source,
    stored_blocks,
)
from dask_bigfft.graph.layer import PlanLayer
from dask_bigfft.kernels.elementwise import SPECTRUM, Call, Named
from dask_bigfft.planner.shifted import Offsets, offsets_of, shift_of

#: Python's operators, and functions of NumPy and dask that are element-wise but no ufuncs.
FUNCTIONS = frozenset(
    [
        operator.abs,
        operator.add,
        operator.and_,
        operator.eq,
        operator.floordiv,
        operator.ge,
        operator.gt,
        operator.invert,
        operator.le,
        operator.lt,
        operator.mod,
        operator.mul,
        operator.ne,
        operator.neg,
        operator.or_,
        operator.pos,
        operator.pow,
        operator.sub,
        operator.truediv,
        operator.xor,
        chunk.astype,
        np.angle,
        np.clip,
        np.imag,
        np.nan_to_num,
        np.real,
        np.sinc,
        np.where,
    ]
)

#: Index of an element of an array.
Place = tuple[int, ...]

#: Maximum number of calls in an expression.
MOST_CALLS = 100

#: Maximum bytes of an array that is copied because its blocks are not parts of one array.
COPIED_NBYTES = 1 << 24


class NotCaptured(Exception):
    """Reason why an expression is not captured."""


@dataclass(frozen=True)
class CapturedSpectrum:
    """Result of a plan in an expression, which may be shifted.

    Parameters
    ----------
    layer : PlanLayer
        Layer of the plan.
    shift : PlanLayer or None
        Layer of its shift, if that is not part of the plan.
    """

    layer: PlanLayer
    shift: PlanLayer | None = None

    @property
    def first(self) -> dict[int, int]:
        """Index of the first element in natural order, by axis, where it is not 0."""
        layout = self.layer.plan.result
        first = offsets_of(layout)
        if self.shift is not None:
            for axis, offset in offsets_of(self.shift.plan.result).items():
                first[axis] = (first.get(axis, 0) + offset) % layout.axes[axis].groups[0].size
        return first

    @property
    def layers(self) -> list[PlanLayer]:
        """Layers of all arrays with the spectrum, shifted or not, that a variable may have."""
        layers = [self.layer] if self.shift is None else [self.layer, self.shift]
        unshifted = self.layer.unshifted
        while unshifted is not None:
            layers.append(unshifted)
            unshifted = unshifted.unshifted
        return layers


@dataclass(frozen=True)
class SecondSpectrum:
    """Spectrum that multiplies another one.

    Parameters
    ----------
    spectrum : CapturedSpectrum
        The spectrum.
    source : dask.array.Array
        Array that it is made of.
    is_conjugated : bool
        Whether its conjugate is the factor.
    """

    spectrum: CapturedSpectrum
    source: da.Array
    is_conjugated: bool


@dataclass(frozen=True)
class CapturedExpression:
    """Element-wise expression of the result of a plan.

    Parameters
    ----------
    spectrum : CapturedSpectrum
        The result of the plan.
    source : dask.array.Array
        Array that the plan transforms.
    shift_back : mapping of int to int
        First element by axis of the expression's value in the array, which is a shift of it.
    calls : tuple of Call
        Calls of the expression, in order.
    factors : mapping of str to ndarray
        Arrays in memory by name, with as many axes as the spectrum.
    lazy_factors : mapping of str to dask.array.Array
        Arrays that the graph computes by name, with as many axes as the spectrum.
    multiplier : dask.array.Array or None
        What the spectrum is multiplied by, if the expression is such a product, as a lazy array.
    second : SecondSpectrum or None
        Spectrum of another array by which the spectrum is multiplied; there are no factors then.
    """

    spectrum: CapturedSpectrum
    source: da.Array
    shift_back: Offsets
    calls: tuple[Call, ...]
    factors: Mapping[str, Array] = field(default_factory=dict)
    lazy_factors: Mapping[str, da.Array] = field(default_factory=dict)
    multiplier: da.Array | None = None
    second: SecondSpectrum | None = None

    @property
    def text(self) -> str:
        """The functions in order, such as ``mul, add``."""
        names = [getattr(call.function, "__name__", "?") for call in self.calls]
        return ", ".join(names)


def spectrum_layer(x: da.Array) -> PlanLayer | None:
    """Return the layer of the transform whose result an array is, in any chunks; else None."""
    if is_expression(x) or not isinstance(x.dask, HighLevelGraph):
        return None
    layer = x.dask.layers.get(_unchunked(x.dask, x.name))
    return layer if isinstance(layer, PlanLayer) and layer.plan.is_transform else None


def captured_expression(x: da.Array) -> CapturedExpression | None:
    """Return the expression of a spectrum that an array is, or None if it is of another kind.

    Raises
    ------
    NotCaptured
        If the array is an expression of a spectrum, but not of this spectrum, of numbers and of
        arrays that do not depend on it alone.
    """
    if is_expression(x) or not isinstance(x.dask, HighLevelGraph):
        return None
    graph = x.dask
    name = _unchunked(graph, x.name)
    last_layer = graph.layers.get(name)
    shift_back: Offsets | None = {}
    if isinstance(last_layer, PlanLayer):
        shift_back = shift_of(last_layer.plan)
        name = _unchunked(graph, last_layer.source)
    if shift_back is None or not _is_call(graph, name) or not reads_elementwise_graphs():
        return None
    reader = _Reader(graph)
    reader.read(name)
    if not reader.spectra:
        return None
    if reader.refusal:
        raise NotCaptured(reader.refusal)
    if len(reader.spectra) > 1:
        return _product_of_spectra(x, reader, shift_back)
    (spectrum,) = reader.spectra.values()
    return _expression_of(
        x,
        spectrum,
        reader,
        shift_back,
    )


def _expression_of(
    x: da.Array,
    spectrum: CapturedSpectrum,
    reader: "_Reader",
    shift_back: Offsets,
) -> CapturedExpression:
    """Return the expression of one spectrum that was read, with its arrays.

    Raises
    ------
    NotCaptured
        If an array depends on the spectrum, or changes its shape.
    """
    graph = x.dask
    spectrum_shape = tuple(map(sum, spectrum.layer.plan.chunks))
    if spectrum_shape != x.shape:
        raise NotCaptured(f"the spectrum has another shape, {spectrum_shape}")
    factors: dict[str, Array] = {}
    lazy_factors: dict[str, da.Array] = {}
    for name in sorted(reader.factor_names):
        stored = stored_blocks(graph.layers.get(name), name)
        array = None if stored is None else _joined(stored)
        if array is not None:
            factors[name] = _with_axes(array, name, x.shape)
        else:
            lazy_array = _computed_array(graph, name, spectrum.layer)
            lazy_factors[name] = _with_axes(lazy_array, name, x.shape)
    multiplier = None
    multiplier_name = _name_of_multiplier(reader.calls)
    if lazy_factors and multiplier_name is not None:
        lazy_array = _computed_array(graph, multiplier_name, spectrum.layer)
        multiplier = _with_axes(lazy_array, multiplier_name, x.shape)
    return CapturedExpression(
        spectrum,
        _source_of(x, spectrum),
        shift_back,
        tuple(reader.calls.values()),
        factors,
        lazy_factors,
        multiplier,
    )


def _source_of(x: da.Array, spectrum: CapturedSpectrum) -> da.Array:
    """Return the array of which a spectrum in the graph of another array is made."""
    layer = spectrum.layer
    chunks = layer.plan.chunks_in
    return da.Array(
        x.dask.cull_layers({layer.source}),
        layer.source,
        chunks,
        meta=np.empty_like(
            x._meta,
            np.dtype(layer.plan.spec.dtype),
            shape=(0,) * len(chunks),
        ),
    )


def _product_of_spectra(x: da.Array, reader: "_Reader", shift_back: Offsets) -> CapturedExpression:
    """Return the product of two spectra, of which one may be conjugated.

    Raises
    ------
    NotCaptured
        If the expression is another one.
    """
    refusal = "several spectra are in it, and it is not the product of two"
    if len(reader.spectra) != 2 or reader.factor_names:
        raise NotCaptured(refusal)
    first_read, second_read = reader.spectra
    spectra = {
        Named(SPECTRUM): reader.spectra[first_read],
        Named(second_read): reader.spectra[second_read],
    }
    *inner_calls, last = reader.calls.values()
    conjugates = {
        Named(call.result): call.arguments[0] for call in inner_calls if call.is_conjugate
    }
    multiplied = [conjugates.get(argument, argument) for argument in last.arguments]
    is_simple = len(conjugates) == len(inner_calls) <= 1
    if not last.is_product or not is_simple or {*multiplied} != {*spectra}:
        raise NotCaptured(refusal)
    if conjugates:
        (second,) = conjugates.values()
    else:
        second = min(spectra, key=lambda name: math.prod(spectra[name].layer.plan.spec.shape))
    (first,) = spectra.keys() - {second}
    return CapturedExpression(
        spectra[first],
        _source_of(x, spectra[first]),
        shift_back,
        tuple(reader.calls.values()),
        second=SecondSpectrum(
            spectra[second],
            _source_of(x, spectra[second]),
            bool(conjugates),
        ),
    )


def _unchunked(graph: HighLevelGraph, name: str) -> str:
    """Return the name of the array from which an array was made by changes of chunks alone."""
    source: str | None = name
    while source is not None:
        name = source
        source = rechunk_source(graph, name)
        if source is None and name.startswith("bigfft_cut-"):
            (source,) = graph.dependencies[name]
    return name


def _is_call(graph: HighLevelGraph, name: str) -> bool:
    """Return whether an array is the result of an element-wise function."""
    call = elementwise_call(graph.layers.get(name))
    return call is not None and _is_elementwise(call.function)


def _is_elementwise(function: Any) -> bool:
    """Return whether a function is known to be element-wise."""
    if isinstance(function, np.ufunc):
        is_numpys = getattr(np, function.__name__, None) is function
        return is_numpys and function.signature is None and function.nout == 1
    try:
        return function in FUNCTIONS
    except TypeError:  # not hashable
        return False


@dataclass
class _Reader:
    """Reader of an expression, from its last call to its arrays.

    Parameters
    ----------
    graph : HighLevelGraph
        Graph of the expression.
    spectra : dict
        Spectra that were met, by name.
    calls : dict
        Calls by the name of their result, each behind those that it needs.
    factor_names : set of str
        Names of all other arrays.
    refusal : str
        Reason why the expression cannot be captured; empty if it can.
    call_count : int
        Number of calls that were met. It is counted before their arguments are read, so that it
        limits the depth of the expression, too.
    """

    graph: HighLevelGraph
    spectra: dict[str, CapturedSpectrum] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    factor_names: set[str] = field(default_factory=set)
    refusal: str = ""
    call_count: int = 0

    def read(self, name: str) -> Named:
        """Read an array and all that it depends on; return it as the argument of a call."""
        name = _unchunked(self.graph, name)
        layer = self.graph.layers.get(name)
        spectrum = self._spectrum(layer)
        if spectrum is not None:
            self.spectra[name] = spectrum
            is_first = name == next(iter(self.spectra))
            return Named(SPECTRUM if is_first else name)
        if name in self.calls:
            return Named(name)
        call = elementwise_call(layer)
        if call is None or not _is_elementwise(call.function):
            self.factor_names.add(name)
            return Named(name)
        if self.call_count >= MOST_CALLS:
            self.refusal = f"it has more than {MOST_CALLS} operations"
            return Named(name)
        self.call_count += 1
        arguments = []
        for argument in call.arguments:
            if isinstance(argument, ArrayName):
                arguments.append(self.read(argument.name))
            else:
                arguments.append(self._value(argument))
        self.calls[name] = Call(
            name,
            call.function,
            tuple(arguments),
            dict(call.keywords),
        )
        return Named(name)

    def _spectrum(self, layer: Any) -> CapturedSpectrum | None:
        """Return the spectrum that a layer makes or shifts, or None if it does something else."""
        if not isinstance(layer, PlanLayer):
            return None
        if layer.plan.is_transform:
            return CapturedSpectrum(layer)
        if shift_of(layer.plan) is None:
            return None
        source = self.graph.layers.get(_unchunked(self.graph, layer.source))
        if not isinstance(source, PlanLayer) or not source.plan.is_transform:
            return None
        return CapturedSpectrum(source, layer)

    def _value(self, value: Any) -> Any:
        """Return a number that is an argument of a call; NumPy's as scalars of its types."""
        if isinstance(value, np.ndarray) and value.ndim == 0:
            return value[()]
        if not isinstance(value, Number | np.generic | None):
            self.refusal = f"an argument is of {type(value).__name__}"
        return value


def _computed_array(graph: HighLevelGraph, name: str, spectrum: PlanLayer) -> da.Array:
    """Return an array that the graph computes without a spectrum.

    Raises
    ------
    NotCaptured
        If it needs the spectrum, or is no array of numbers in host memory.
    """
    array = array_of_layer(graph, name)
    if array is None or np.isnan(array.shape).any() or array.dtype.kind not in "biufc":
        raise NotCaptured(f"the array {name!r} is not one of numbers in host memory")
    for layer in array.dask.layers.values():
        is_transform = isinstance(layer, PlanLayer) and layer.plan.is_transform
        if is_transform and layer.source == spectrum.source:
            raise NotCaptured(f"the array {name!r} is computed of the spectrum")
    return array


def _with_axes(array: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Return an array with as many axes as the spectrum, whose shape is given."""
    if array.ndim > len(shape):
        raise NotCaptured(f"the array {name!r} has more axes than the spectrum")
    array = array[(np.newaxis,) * (len(shape) - array.ndim)]
    if not all(own in (1, length) for own, length in zip(array.shape, shape, strict=True)):
        raise NotCaptured(f"the array {name!r} of shape {array.shape} changes the shape")
    return array


def _name_of_multiplier(calls: Mapping[str, Call]) -> str | None:
    """Return the name of the array by which the last of some calls multiplies the spectrum.

    None if the spectrum has another argument, or is in another call.
    """
    spectrum = Named(SPECTRUM)
    count = sum(call.arguments.count(spectrum) for call in calls.values())
    *_, last = calls.values()
    if count != 1 or not last.is_product or spectrum not in last.arguments:
        return None
    (other,) = (argument for argument in last.arguments if argument != spectrum)
    return other.name if isinstance(other, Named) else None


def _joined(blocks: Mapping[Block, Array]) -> Array | None:
    """Return the array of which an array's blocks are parts, by index.

    It is a view where blocks are slices of one array. Others are copied if they are small.
    """
    if not blocks:
        return None
    first = blocks[min(blocks)]
    if len(blocks) == 1:
        return first
    starts = _starts(blocks)
    if starts is None:
        return None
    last = max(blocks)
    shape = tuple(start + n for start, n in zip(starts[last], blocks[last].shape, strict=True))
    if _are_slices(blocks, starts):
        return np.lib.stride_tricks.as_strided(first, shape, first.strides, writeable=False)
    if sum(block.nbytes for block in blocks.values()) > COPIED_NBYTES:
        return None
    joined = np.empty(shape, np.result_type(*blocks.values()))
    for index, block in blocks.items():
        region = tuple(slice(a, a + n) for a, n in zip(starts[index], block.shape, strict=True))
        joined[region] = block
    return joined


def _starts(blocks: Mapping[Block, Array]) -> dict[Block, Place] | None:
    """Return the place of the first element of each block; None for an incomplete grid."""
    counts = tuple(max(along) + 1 for along in zip(*blocks, strict=True))
    if set(blocks) != set(itertools.product(*map(range, counts))):
        return None
    starts_of_axes: list[list[int]] = []
    for axis, count in enumerate(counts):
        origin = [0] * len(counts)
        axis_starts = [0]
        for number in range(count):
            origin[axis] = number
            axis_starts.append(axis_starts[-1] + blocks[tuple(origin)].shape[axis])
        starts_of_axes.append(axis_starts)
    starts = {}
    for index in blocks:
        starts[index] = tuple(starts_of_axes[axis][number] for axis, number in enumerate(index))
    return starts


def _are_slices(blocks: Mapping[Block, Array], starts: Mapping[Block, Place]) -> bool:
    """Return whether blocks are slices of one array, at their places."""
    first = blocks[min(blocks)]
    if first.base is None:
        return False
    for index, block in blocks.items():
        offset = sum(a * step for a, step in zip(starts[index], first.strides, strict=True))
        is_in_place = block.ctypes.data == first.ctypes.data + offset
        if block.base is not first.base or block.strides != first.strides or not is_in_place:
            return False
        if block.dtype != first.dtype:
            return False
    return True
