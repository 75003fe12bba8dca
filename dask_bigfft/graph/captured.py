"""Element-wise expressions of one spectrum, read from a dask graph.

::

    PlanLayer, rechunk -> Blockwise multiply -> Blockwise add -> array
           NumPy array, rechunk ----^    number ----^

Between the spectrum and the array stand only NumPy's ufuncs and Python's arithmetic, on numbers and
on NumPy arrays in the graph. Other graphs are not captured, and no layer is changed.
"""

import itertools
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
    elementwise_call,
    is_expression,
    reads_elementwise_graphs,
    rechunk_source,
    stored_blocks,
)
from dask_bigfft.graph.layer import PlanLayer
from dask_bigfft.kernels.elementwise import SPECTRUM, Call, Named

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

#: Maximum number of calls in an expression.
MOST_CALLS = 100

#: Maximum bytes of an array that is copied because its blocks are not parts of one array.
COPIED_NBYTES = 1 << 24


class NotCaptured(Exception):
    """Reason why an expression is not captured."""


@dataclass(frozen=True)
class CapturedExpression:
    """Element-wise expression of the result of a plan.

    Parameters
    ----------
    layer : PlanLayer
        Layer of the plan.
    source : dask.array.Array
        Array that the plan transforms.
    calls : tuple of Call
        Calls of the expression, in order.
    factors : mapping of str to ndarray
        Arrays of the expression by name, with as many axes as the spectrum.
    """

    layer: PlanLayer
    source: da.Array
    calls: tuple[Call, ...]
    factors: Mapping[str, Array]

    @property
    def text(self) -> str:
        """The functions in order, such as ``mul, add``."""
        names = [getattr(call.function, "__name__", "?") for call in self.calls]
        return ", ".join(names)


def spectrum_layer(x: da.Array) -> PlanLayer | None:
    """Return the layer of the plan whose result an array is, in any chunks; else None."""
    if is_expression(x) or not isinstance(x.dask, HighLevelGraph):
        return None
    layer = x.dask.layers.get(_unchunked(x.dask, x.name))
    return layer if isinstance(layer, PlanLayer) else None


def captured_expression(x: da.Array) -> CapturedExpression | None:
    """Return the expression of a spectrum that an array is, or None if it is of another kind.

    Raises
    ------
    NotCaptured
        If the array is an expression of a spectrum, but not of this spectrum, numbers and arrays in
        memory alone.
    """
    if is_expression(x) or not isinstance(x.dask, HighLevelGraph):
        return None
    graph = x.dask
    name = _unchunked(graph, x.name)
    if not _is_call(graph, name) or not reads_elementwise_graphs():
        return None
    reader = _Reader(graph)
    reader.read(name)
    if len(reader.spectra) != 1:
        if not reader.spectra:
            return None
        raise NotCaptured("two spectra are in it")
    (layer,) = reader.spectra.values()
    factors = {name: _factor(graph, name, x.shape) for name in reader.factor_names}
    if reader.refusal:
        raise NotCaptured(reader.refusal)
    chunks = layer.plan.chunks_in
    spectrum_shape = tuple(map(sum, layer.plan.chunks))
    if spectrum_shape != x.shape:
        raise NotCaptured(f"the spectrum has another shape, {spectrum_shape}")
    source_dtype = np.dtype(layer.plan.spec.dtype)
    source = da.Array(
        graph.cull_layers({layer.source}),
        layer.source,
        chunks,
        meta=np.empty_like(x._meta, source_dtype, shape=(0,) * len(chunks)),
    )
    return CapturedExpression(
        layer,
        source,
        tuple(reader.calls.values()),
        factors,
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
        Plan layers that were met, by name.
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
    spectra: dict[str, PlanLayer] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    factor_names: set[str] = field(default_factory=set)
    refusal: str = ""
    call_count: int = 0

    def read(self, name: str) -> Named:
        """Read an array and all that it depends on; return it as the argument of a call."""
        name = _unchunked(self.graph, name)
        layer = self.graph.layers.get(name)
        if isinstance(layer, PlanLayer):
            self.spectra[name] = layer
            return Named(SPECTRUM)
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

    def _value(self, value: Any) -> Any:
        """Return a number that is an argument of a call; NumPy's as scalars of its types."""
        if isinstance(value, np.ndarray) and value.ndim == 0:
            return value[()]
        if not isinstance(value, Number | np.generic | None):
            self.refusal = f"an argument is of {type(value).__name__}"
        return value


def _factor(graph: HighLevelGraph, name: str, shape: tuple[int, ...]) -> Array:
    """Return an array in memory with as many axes as the spectrum, whose shape is given."""
    blocks = stored_blocks(graph.layers.get(name), name)
    array = None if blocks is None else _joined(blocks)
    if array is None:
        raise NotCaptured(f"the array {name!r} is not a NumPy array in memory")
    if array.ndim > len(shape):
        raise NotCaptured(f"the array {name!r} has more axes than the spectrum")
    array = array[(np.newaxis,) * (len(shape) - array.ndim)]
    if not all(own in (1, length) for own, length in zip(array.shape, shape, strict=True)):
        raise NotCaptured(f"the array {name!r} of shape {array.shape} changes the shape")
    return array


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


def _starts(blocks: Mapping[Block, Array]) -> dict[Block, Block] | None:
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


def _are_slices(blocks: Mapping[Block, Array], starts: Mapping[Block, Block]) -> bool:
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
