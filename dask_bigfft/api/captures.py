"""Captures: a transform back that becomes one plan with the transform forth and what is between.

A transform of an element-wise expression of one spectrum, as ``irfftn(rfftn(x) * h)``, becomes an
operator on the array that the spectrum is made of. The graph of the spectrum stays what it is: who
else reads it computes it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da

from dask_bigfft import config
from dask_bigfft.api.arguments import Extras
from dask_bigfft.api.plans import described, make_plan
from dask_bigfft.errors import PlanError
from dask_bigfft.events import running_client
from dask_bigfft.graph.captured import (
    CapturedExpression,
    NotCaptured,
    captured_expression,
    spectrum_layer,
)
from dask_bigfft.graph.layer import PlanLayer
from dask_bigfft.kernels.elementwise import Expression
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Plan
from dask_bigfft.transforms.rounds import Scale
from dask_bigfft.transforms.spec import TransformSpec

#: Keywords of a transform that an operator takes, too.
SHARED_KEYWORDS = ("memory_limit", "kernel", "device", "device_memory_limit", "verify", "planner")

#: Names of forward transforms by their kind and the sign of the exponent.
FORWARD_NAMES = {
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
    transfer : Expression, optional
        What is between the transforms; None for a transform alone.
    """

    array: da.Array
    plan: Plan
    spectrum: PlanLayer | None = None
    transfer: Expression | None = None


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
    try:
        _check_readers(expression.layer, mode)
        _check_spectra(expression.layer.plan.spec, inverse.spec)
        _check_blocks(expression)
        _check_options(expression.layer.plan, inverse, extras)
        return _operator(
            array,
            expression,
            inverse,
            extras,
        )
    except NotCaptured as refusal:
        return Capture(array, _with_refusal(inverse, refusal), expression.layer)


def _with_refusal(inverse: Plan, refusal: NotCaptured) -> Plan:
    """Return a plan with the reason why the expression before it was not captured."""
    text = f"the expression of a spectrum before it is not captured: {refusal}"
    return replace(inverse, reason=f"{inverse.reason}; {text}")


def _check_readers(layer: PlanLayer, mode: str) -> None:
    """Raise `NotCaptured` if there are other readers of a spectrum, or may be."""
    if layer.is_transformed:
        raise NotCaptured("another transform reads the spectrum")
    if mode == "auto" and layer.is_referenced:
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
    if forward.windows or inverse.windows_in:
        raise NotCaptured("the spectrum is a band")
    lengths = dict(zip(forward.axes, forward.lengths, strict=True))
    lengths_back = dict(zip(inverse.axes, inverse.lengths, strict=True))
    if lengths != lengths_back or forward.real_axis != inverse.real_axis:
        raise NotCaptured("both transforms have other axes or lengths")
    if forward.work_dtype != inverse.work_dtype:
        raise NotCaptured("the precision changes between both transforms")


def _factor_nbytes(expression: CapturedExpression) -> int:
    """Return the bytes of the arrays of an expression."""
    return sum(factor.nbytes for factor in expression.factors.values())


def _check_blocks(expression: CapturedExpression) -> None:
    """Raise `NotCaptured` for blocks and arrays that an operator does not take."""
    forward = expression.layer.plan
    if is_on_gpu(expression.source._meta):
        raise NotCaptured("the blocks are on GPUs")
    for axis in (*forward.source.axes, *forward.result.axes):
        if any(group.offset for group in axis.groups):
            raise NotCaptured("the forward transform is shifted")
    nbytes = _factor_nbytes(expression)
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
    forward = expression.layer.plan
    if plan.storage == "disk" and "disk" not in (forward.storage, inverse.storage):
        raise NotCaptured("a plan of both transforms needs the disk")
    seconds = forward.expected.seconds + inverse.expected.seconds
    if plan.expected.seconds > MOST_RATIO * seconds:
        raise NotCaptured("two plans are forecast to be faster")
    uses_gpus = any(round_.share for round_ in plan.expected.rounds)
    is_large = _factor_nbytes(expression) > SENT_NBYTES
    if uses_gpus and is_large and config.get("bigfft.capture") == "auto":
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
    forward = expression.layer.plan
    spec = forward.spec
    shared: Any = {name: value for name, value in extras.items() if name in SHARED_KEYWORDS}
    chunks = extras.get("chunks")
    if chunks is None:
        chunks = config.get("bigfft.chunks")
    is_auto = isinstance(chunks, str) and chunks == "auto"
    source = expression.source
    try:
        plan = make_plan(
            source,
            FORWARD_NAMES[spec.kind, spec.sign],
            spec.lengths,
            spec.axes,
            NORMS[inverse.spec.scale],
            transfer=array.name,
            stored=described(source),
            chunks="auto" if is_auto else inverse.chunks,
            **shared,
        )
    except PlanError as error:
        raise NotCaptured(f"there is no plan of both transforms: {error}") from error
    _check_plan(plan, expression, inverse)
    text = f"H is captured: {expression.text} between {spec.name} and {inverse.spec.name}; another "
    text += "reader of that spectrum repeats its transform"
    size = math.prod(spec.lengths)
    scales = {"none": 1.0, "ortho": 1 / math.sqrt(size), "full": 1 / size}
    transfer = Expression(
        expression.calls,
        expression.factors,
        dict(zip(spec.axes, spec.lengths, strict=True)),
        halved=spec.real_axis,
        scale=scales[spec.scale],
    )
    plan = replace(plan, reason=f"{plan.reason}; {text}")
    return Capture(
        source,
        plan,
        expression.layer,
        transfer,
    )
