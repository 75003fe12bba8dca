"""Captures: a transform back that becomes one plan with the transform forth and what is between.

A transform of an element-wise expression of one spectrum, as ``irfftn(rfftn(x) * h)``, becomes an
operator on the array that the spectrum is made of. The graph of the spectrum stays what it is: who
else reads it computes it.

Arrays of the expression that the graph computes become one operand of the plan: the bytes of small
ones, or a large one that multiplies the spectrum, or the array of a second spectrum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.api.arguments import Extras
from dask_bigfft.api.plans import described, make_plan
from dask_bigfft.arrays import Array
from dask_bigfft.errors import PlanError
from dask_bigfft.events import running_client
from dask_bigfft.graph.captured import (
    CapturedExpression,
    CapturedSpectrum,
    NotCaptured,
    captured_expression,
    spectrum_layer,
)
from dask_bigfft.graph.layer import PlanLayer
from dask_bigfft.kernels.elementwise import SPECTRUM, Call, Expression, Named, PackedFactor
from dask_bigfft.kernels.transfer import LazyTransfer
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import WHOLE_NBYTES, Plan, with_reason
from dask_bigfft.planner.shifted import offsets_of
from dask_bigfft.transforms.bands import Window, with_negatives
from dask_bigfft.transforms.rounds import Scale
from dask_bigfft.transforms.spec import FactorSpec, TransformSpec

#: Keywords of a transform that an operator takes, too.
SHARED_KEYWORDS = ("memory_limit", "kernel", "device", "device_memory_limit", "verify", "planner")

#: Names of the transforms whose spectra are captured, by kind and sign of the exponent.
CAPTURED_NAMES = {
    ("c2c", -1): "fftn",
    ("c2c", +1): "ifftn",
    ("r2c", -1): "rfftn",
    ("r2c", +1): "ihfftn",
}

#: Norm of an inverse transform by its scale.
NORMS: Mapping[Scale, str] = {"full": "backward", "ortho": "ortho", "none": "forward"}

#: Maximum forecast time of a plan of both transforms, relative to two plans. These do not include
#: what is between the transforms: tasks, and passes over memory.
MOST_RATIO = 1.25

#: Maximum bytes of arrays that are sent to the workers of a cluster as a whole, or, unless it was
#: asked for, to GPUs in parts.
SENT_NBYTES = 1 << 24


@dataclass(frozen=True)
class Capture:
    """A transform as it was planned, alone or with the forward transform before it.

    Parameters
    ----------
    array : dask.array.Array
        Input of the plan.
    plan : Plan
        The plan.
    spectrum : PlanLayer, optional
        Layer of the spectrum that the transform reads or was captured with.
    transfer : Expression or LazyTransfer, optional
        What is between the transforms; None for a transform alone.
    """

    array: da.Array
    plan: Plan
    spectrum: PlanLayer | None = None
    transfer: Expression | LazyTransfer | None = None


def captured(array: da.Array, inverse: Plan, extras: Extras) -> Capture:
    """Return a transform with the forward transform before it, if there is one to capture.

    Parameters
    ----------
    array : dask.array.Array
        Input of the transform.
    inverse : Plan
        Plan of the transform alone. If an expression of a spectrum is not captured, the reason is
        added to its own.
    extras : Extras
        Keywords of the transform.
    """
    mode = config.get("bigfft.capture")
    if mode == "never":
        return Capture(array, inverse)
    layer = spectrum_layer(array)
    if layer is not None:
        return Capture(array, inverse, layer)
    try:
        expression = captured_expression(array)
    except NotCaptured as refusal:
        return Capture(array, _with_refusal(inverse, refusal))
    if expression is None:
        return Capture(array, inverse)
    layer = expression.spectrum.layer
    try:
        _check_readers(expression.spectrum, mode)
        _check_spectra(layer.plan.spec, inverse.spec)
        _check_bands(layer.plan.spec, inverse.spec)
        _check_blocks(expression)
        _check_options(layer.plan, inverse, extras)
        if expression.second is not None:
            second = expression.second.spectrum
            _check_readers(second, mode)
            _check_second(expression.spectrum, second)
            _check_options(second.layer.plan, inverse, extras)
        return _operator(
            array,
            expression,
            inverse,
            extras,
        )
    except NotCaptured as refusal:
        return Capture(array, _with_refusal(inverse, refusal), layer)


def _with_refusal(inverse: Plan, refusal: NotCaptured) -> Plan:
    """Return a plan with the reason why the expression before it was not captured."""
    text = f"the expression of a spectrum before it is not captured: {refusal}"
    return with_reason(inverse, text)


def _check_readers(spectrum: CapturedSpectrum, mode: str) -> None:
    """Raise `NotCaptured` if there are other readers of a spectrum, or may be."""
    if any(layer.is_transformed for layer in spectrum.layers):
        raise NotCaptured("another transform reads the spectrum")
    if mode == "auto" and any(layer.is_referenced for layer in spectrum.layers):
        text = "a variable has the spectrum, so that it may have other readers"
        raise NotCaptured(f"{text} (bigfft.capture is 'auto')")


def _check_spectra(forward: TransformSpec, inverse: TransformSpec) -> None:
    """Raise `NotCaptured` if a transform is not the inverse of another one, but for the norm."""
    inverse_kind = {"c2c": "c2c", "r2c": "c2r"}.get(forward.kind)
    is_plain = bool(forward.axes) and forward.waves is None and not forward.transfer
    if not is_plain or inverse.kind != inverse_kind or inverse.sign == forward.sign:
        raise NotCaptured(f"{inverse.name} does not transform {forward.name} back")
    if {*forward.orders_out, *inverse.orders_in} != {"natural"}:
        raise NotCaptured("the spectrum is in transposed order")
    lengths = dict(zip(forward.axes, forward.lengths, strict=True))
    lengths_back = dict(zip(inverse.axes, inverse.lengths, strict=True))
    if lengths != lengths_back or forward.real_axis != inverse.real_axis:
        raise NotCaptured("both transforms have other axes or lengths")
    if forward.work_dtype != inverse.work_dtype:
        raise NotCaptured("the precision changes between both transforms")


def _check_second(spectrum: CapturedSpectrum, second: CapturedSpectrum) -> None:
    """Raise `NotCaptured` if a second spectrum is not like the one that it multiplies."""
    spec = spectrum.layer.plan.spec
    other = second.layer.plan.spec
    as_first = replace(
        other,
        name=spec.name,
        shape=spec.shape,
        dtype=spec.dtype,
        dims=spec.dims,
    )
    if as_first != spec or other.work_dtype != spec.work_dtype:
        raise NotCaptured("both spectra are of different transforms")
    if spec.windows or spec.scale != "none":
        raise NotCaptured("the two spectra are bands, or have a norm")
    if len(spec.shape) != len(other.shape):
        raise NotCaptured("a spectrum is broadcast")
    for axis, (n, m) in enumerate(zip(spec.shape, other.shape, strict=True)):
        if axis not in spec.axes and n != m:
            raise NotCaptured("a spectrum is broadcast")
    if spectrum.first or second.first or offsets_of(second.layer.plan.source):
        raise NotCaptured("one of two spectra is shifted")


def _nbytes(factors: Mapping[str, Any]) -> int:
    """Return the bytes of arrays."""
    return sum(factor.nbytes for factor in factors.values())


def _check_bands(forward: TransformSpec, inverse: TransformSpec) -> None:
    """Raise `NotCaptured` if not both transforms have the same bands of the spectrum."""
    if forward.windows_in or inverse.windows:
        raise NotCaptured("a band is not one of the spectrum")
    if forward.windows != inverse.windows_in:
        raise NotCaptured("both transforms have other bands")
    for axis, start, count in forward.windows:
        is_one_sided = forward.real_axis is not None and axis != forward.real_axis
        length = forward.spectrum(axis).length
        if is_one_sided and with_negatives((start, count), length)[1] > count:
            raise NotCaptured("the band of a real array is not symmetric")


def _windows_of(forward: TransformSpec) -> dict[int, Window]:
    """Return the bands of a spectrum by axis."""
    return {axis: (start, count) for axis, start, count in forward.windows}


def _check_blocks(expression: CapturedExpression) -> None:
    """Raise `NotCaptured` for blocks and arrays that an operator does not take."""
    forward = expression.spectrum.layer.plan
    if is_on_gpu(expression.source._meta):
        raise NotCaptured("the blocks are on GPUs")
    if offsets_of(forward.source):
        raise NotCaptured("the array is shifted before the forward transform")
    first = expression.spectrum.first
    windows = _windows_of(forward.spec)
    for axis, length in enumerate(forward.spec.out_shape):
        shift_back = expression.shift_back.get(axis, 0)
        start, _ = windows.get(axis, (0, length))
        is_shifted = (first.get(axis, 0) + shift_back - start) % max(length, 1) != 0
        if is_shifted or (axis in windows and shift_back):
            raise NotCaptured("a shift of the spectrum is not undone")
        if axis == forward.spec.real_axis and shift_back:
            raise NotCaptured("half a spectrum is shifted")
    nbytes = _nbytes(expression.factors)
    if running_client() is not None and nbytes > SENT_NBYTES:
        raise NotCaptured(f"{nbytes} bytes of arrays would be sent to each worker")


def _check_options(forward: Plan, inverse: Plan, extras: Extras) -> None:
    """Raise `NotCaptured` for options that an operator does not have, or not of both transforms."""
    if forward.overwrite or extras.get("overwrite_x"):
        raise NotCaptured("a transform may overwrite its input")
    if extras.get("rounds") is not None or config.get("bigfft.rounds") is not None:
        raise NotCaptured("the rounds are named")
    if config.argument("variant", extras.get("variant")) != "auto":
        raise NotCaptured("the variant is named")
    for name in ("kernel", "device", "device_memory_limit", "verify"):
        if getattr(forward, name) != getattr(inverse, name):
            raise NotCaptured(f"both transforms have another {name}")
    if forward.machine.memory_limit != inverse.machine.memory_limit:
        raise NotCaptured("both transforms have another memory_limit")


def _check_plan(plan: Plan, expression: CapturedExpression, inverse: Plan) -> None:
    """Raise `NotCaptured` if an operator may be slower than the plans of both transforms."""
    forward = expression.spectrum.layer.plan
    if plan.storage == "disk" and "disk" not in (forward.storage, inverse.storage):
        raise NotCaptured("a plan of both transforms needs the disk")
    seconds = forward.expected.seconds + inverse.expected.seconds
    if expression.second is not None:
        seconds += expression.second.spectrum.layer.plan.expected.seconds
    if plan.expected.seconds > MOST_RATIO * seconds:
        raise NotCaptured("two plans are forecast to be faster")
    uses_gpus = any(round_.share for round_ in plan.expected.rounds)
    nbytes = _nbytes(expression.factors) + _nbytes(expression.lazy_factors)
    if uses_gpus and nbytes > SENT_NBYTES and config.get("bigfft.capture") == "auto":
        raise NotCaptured("large arrays would be copied to GPUs (bigfft.capture is 'auto')")


def _operator(
    array: da.Array,
    expression: CapturedExpression,
    inverse: Plan,
    extras: Extras,
) -> Capture:
    """Return the operator of a forward transform, an expression, and a transform back.

    Raises
    ------
    NotCaptured
        If there is no plan of it, or one that is forecast to be slower than both plans.
    """
    spec = expression.spectrum.layer.plan.spec
    transfer = _transfer_of(expression)
    shared: Any = {name: value for name, value in extras.items() if name in SHARED_KEYWORDS}
    chunks = extras.get("chunks")
    if chunks is None:
        chunks = config.get("bigfft.chunks")
    is_auto = isinstance(chunks, str) and chunks == "auto"
    source = expression.source
    try:
        plan = make_plan(
            source,
            CAPTURED_NAMES[spec.kind, spec.sign],
            spec.lengths,
            spec.axes,
            NORMS[inverse.spec.scale],
            transfer=array.name,
            factor=transfer.spec if isinstance(transfer, LazyTransfer) else None,
            windows_between=_windows_of(spec),
            stored=described(source),
            chunks="auto" if is_auto else inverse.chunks,
            **shared,
        )
    except PlanError as error:
        raise NotCaptured(f"there is no plan of both transforms: {error}") from error
    _check_plan(plan, expression, inverse)
    text = f"H is captured: {expression.text} between {spec.name} and {inverse.spec.name}; another "
    text += "reader of that spectrum, or of the expression, repeats its transform"
    plan = with_reason(plan, text)
    return Capture(
        source,
        plan,
        expression.spectrum.layer,
        transfer,
    )


def _transfer_of(expression: CapturedExpression) -> Expression | LazyTransfer:
    """Return the transfer function of an operator for an expression.

    Raises
    ------
    NotCaptured
        If arrays that the graph computes are large, and do not multiply the spectrum.
    """
    second = expression.second
    if second is not None:
        chunks = tuple(tuple(map(int, cut)) for cut in second.source.chunks)
        samples = FactorSpec(
            chunks,
            second.source.dtype.str,
            "samples",
            second.is_conjugated,
        )
        return LazyTransfer(second.source, samples, None)
    spec = expression.spectrum.layer.plan.spec
    size = math.prod(spec.lengths)
    scales = {"none": 1.0, "ortho": 1 / math.sqrt(size), "full": 1 / size}
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    windows: dict[int, Window] = {}
    for axis, first in expression.spectrum.first.items():
        windows[axis] = (first, spec.out_shape[axis])
    transfer = Expression(
        expression.calls,
        expression.factors,
        lengths,
        halved=spec.real_axis,
        scale=scales[spec.scale],
        windows=_windows_of(spec) | windows,
    )
    lazy_factors = expression.lazy_factors
    if not lazy_factors:
        return transfer
    nbytes = _nbytes(lazy_factors)
    if nbytes > WHOLE_NBYTES and expression.multiplier is not None and not transfer.windows:
        return _lazy_product(expression.multiplier, transfer)
    if nbytes > SENT_NBYTES:
        raise NotCaptured(f"{nbytes} bytes of arrays that are computed would be sent to each task")
    return _with_packed(transfer, lazy_factors)


def _lazy_product(multiplier: da.Array, transfer: Expression) -> LazyTransfer:
    """Return the product of a spectrum and a lazy array, in place of an expression.

    Its blocks may be exchanged into the order of the spectrum. The array is made as long as half a
    spectrum, whose other half has conjugate values.
    """
    array: Any = multiplier
    if array.dtype.kind not in "fc":
        array = array.astype(float)
    if transfer.scale != 1:
        array = array * array.dtype.type(transfer.scale)
    halved = transfer.halved
    if halved is not None and array.shape[halved] == 1:
        shape = list(array.shape)
        shape[halved] = transfer.lengths[halved] // 2 + 1
        array = da.broadcast_to(array, tuple(shape))
    packed = PackedFactor(array.name, array.shape, array.dtype)
    call = Call("product", np.multiply, (Named(SPECTRUM), Named(packed.name)), {})
    product = replace(
        transfer,
        calls=(call,),
        factors={},
        scale=1.0,
        packed=(packed,),
    )
    chunks = tuple(tuple(map(int, cut)) for cut in array.chunks)
    return LazyTransfer(array, FactorSpec(chunks, array.dtype.str, "product"), product)


def _with_packed(transfer: Expression, factors: Mapping[str, da.Array]) -> LazyTransfer:
    """Return an expression with lazy arrays, which each task gets as a whole."""
    names = sorted(factors, key=lambda name: -factors[name].dtype.itemsize)  # all are aligned
    packed: list[PackedFactor] = []
    parts: list[Any] = []
    for name in names:
        array: Any = factors[name]
        own = PackedFactor(name, array.shape, array.dtype)
        packed.append(own)
        parts.append(
            array.rechunk(-1).map_blocks(
                bytes_of,
                chunks=((own.nbytes,),),
                drop_axis=list(range(1, array.ndim)),
                meta=np.empty(0, np.uint8),
            )
        )
    joined: Any = da.concatenate(parts).rechunk(-1)
    spec = FactorSpec(((int(joined.size),),), joined.dtype.str, "whole")
    return LazyTransfer(joined, spec, replace(transfer, packed=tuple(packed)))


def bytes_of(block: Array) -> Array:
    """Return the bytes of a block in C order."""
    stored_bytes: Array = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    return stored_bytes
