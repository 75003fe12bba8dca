"""Neutral records of plans and task graphs, and the one place that reads their attributes.

A record is a mapping of a field to a short text. `plan_fields` and `plans_of` are the adapter: when
the classes of the package change, these two functions follow, and the texts stay.
"""

import hashlib
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import key_split

import dask_bigfft
from dask_bigfft import fft, signal
from dask_bigfft.runs import RunRequest, planned_input

from .environments import environment_of
from .requests import Request, runs_text

Record = dict[str, str]

#: Most tasks of a graph whose tasks are counted.
MOST_TASKS = 400

#: Longest text of a field; of a longer one the beginning and a digest are kept.
LONGEST = 360


class BlockOnGpu(np.ndarray):
    """NumPy array that says that it lies on a GPU: enough for plans, which touch no data."""

    __cuda_array_interface__ = property(lambda self: self.__array_interface__)


def lazy_array(
    shape: tuple[int, ...],
    chunks: Any,
    dtype: str,
    on_gpu: bool = False,
) -> da.Array:
    """Return a lazy array without data."""
    array = da.zeros(shape, chunks=chunks, dtype=dtype)
    if not on_gpu:
        return array
    meta = np.empty((0,) * len(shape), dtype).view(BlockOnGpu)
    return array.map_blocks(lambda block: block, dtype=array.dtype, meta=meta)


def stored_array(request: Request, folder: Path) -> da.Array:
    """Return a lazy array on a Zarr array without chunks, half of them without compression."""
    import zarr

    chunks = tuple(max(1, max(sizes)) for sizes in request.chunks)
    stored = zarr.create_array(
        store=source_path(request, folder),
        shape=request.shape,
        chunks=chunks,
        dtype=request.dtype,
        compressors="auto" if request.number % 2 else None,
        overwrite=True,
    )
    return da.from_zarr(stored)


def source_path(request: Request, folder: Path) -> Path:
    """Return the path of the stored array of a request."""
    return folder / f"{request.number}.zarr"


def function_named(name: str) -> Any:
    """Return a public function by its name, such as ``"fft.rfftn"``."""
    module, _, function = name.partition(".")
    return getattr({"fft": fft, "signal": signal}[module], function)


# --- adapter --------------------------------------------------------------------------------


def plans_of(array: da.Array) -> Iterator[tuple[str, Any]]:
    """Yield the carrier and the plan of each transform and shift in a graph, sources first."""
    graph = array.dask
    for name in graph._toposort_layers():
        layer = graph.layers[name]
        if hasattr(layer, "recipe"):
            yield layer.recipe.carrier, layer.recipe.plan


def plan_fields(plan: Any) -> Record:
    """Return what a plan, or a shift, says about its rounds and exchanges."""
    fields = {
        "layouts": " | ".join(layout_text(layout) for layout in plan_layouts(plan)),
        "dtypes": " ".join(plan.dtypes),
        "exchanges": " | ".join(exchange_texts(plan)),
        "shared buffers": shared_text(plan),
        "chunks": chunks_text(plan.chunks),
    }
    if not hasattr(plan, "expected"):  # a shift has no forecast
        return fields
    forecast = plan.expected
    fields |= {
        "rounds": plan.notation,
        "digits": digits_text(plan),
        "device": plan.device,
        "storage": plan.storage,
        "kernel": plan.kernel,
        "variant": plan.variant,
        "ways": " ".join(ways_of(plan)),
        "chunks of input": chunks_text(plan.chunks_in),
        "peak memory": str(forecast.peak_host),
        "scratch": str(forecast.scratch),
        "bytes exchanged": str(forecast.bytes_exchanged),
        "tasks": str(forecast.tasks),
        "flops": number_text(forecast.flops),
        "seconds": number_text(forecast.seconds),
        "seconds of rounds": " | ".join(round_text(part) for part in forecast.rounds),
        "runners-up": " | ".join(runner_up_text(name, other) for name, other in plan.rejected),
    }
    if plan.machine.gpus or plan.machine.holding:
        fields["passes"] = passes_text(plan.explain(details=True))
    return fields


def plan_of_run(request: Request, folder: Path) -> Any:
    """Return the plan of a run from file to file."""
    arguments = dict(request.arguments)
    kind = request.function.rpartition("fft.")[2]
    asked = RunRequest(
        source=source_path(request, folder),
        destination=folder / "result.zarr",
        kind=kind,
        s=arguments.pop("s", None),
        axes=arguments.pop("axes"),
        norm=arguments.pop("norm", None),
        options=arguments,
        missing_chunks="fill",
        scratch=folder / "scratch" if request.function.startswith("resumable") else None,
    )
    return planned_input(asked)[1]


def plan_layouts(plan: Any) -> list[Any]:
    """Return the layouts of a plan: source, before and after each round, result."""
    inner = [layout for step in plan.rounds for layout in (step.source, step.target)]
    return [plan.source, *inner, plan.result]


def layout_text(layout: Any) -> str:
    """Return the digits and chunks of each axis of a layout.

    A group of digits is ``size@stride*size@stride:chunks``, with ``%first`` if it is stored
    shifted.
    """
    axes = []
    for axis in layout.axes:
        groups = []
        for group in axis.groups:
            digits = "*".join(f"{digit.size}@{digit.stride}" for digit in group.digits)
            shift = f"%{group.offset}" if group.offset else ""
            groups.append(f"{digits}{shift}:{runs_text(group.chunks)}")
        axes.append(" ".join(groups))
    return "; ".join(axes)


def exchange_texts(plan: Any) -> Iterator[str]:
    """Yield what each exchange of a plan moves."""
    for exchange, moves in zip(plan.exchanges, plan.moves, strict=True):
        if exchange.local:
            yield "local"
            continue
        shape = exchange.shape
        words = [f"{exchange.source.blocks}>{exchange.target.blocks}"]
        words += [f"F{shape.fan_in}", f"C{shape.runs}", f"W{shape.width}", f"groups {shape.groups}"]
        words += ["mirrored"] if exchange.mirror is not None else []
        words += [] if moves else ["without shards"]
        yield " ".join(words)


def shared_text(plan: Any) -> str:
    """Return which exchanges go through shared buffers, by their homes, and rounds in place."""
    shared = plan.shared_layouts
    homes = ("-" if axis is None else str(axis.home) for axis in shared.exchanges)
    in_place = ("-" if layout is None else "in place" for layout in shared.inside)
    return f"{' '.join(homes)} | {' '.join(in_place)}"


def digits_text(plan: Any) -> str:
    """Return the factors of each transformed axis."""
    texts = []
    for program in plan.programs:
        bluestein = " by convolution" if program.bluestein else ""
        factors = "*".join(map(str, program.factors))
        texts.append(f"{program.axis}: {program.length}{bluestein} = {factors}")
    return "; ".join(texts)


def ways_of(plan: Any) -> list[str]:
    """Return the names of the special ways that a plan takes."""
    names = ("overwrite", "inside", "from_rows", "assembles", "reopened", "merges")
    ways = [name for name in names if getattr(plan, name)]
    machine = plan.machine
    ways += [f"{machine.gpus} GPUs"] if machine.gpus else []
    ways += [f"on {machine.holding} GPUs"] if machine.holding else []
    return ways


def round_text(forecast: Any) -> str:
    """Return the forecast of one round."""
    share = f" {forecast.share:.3g} on GPUs" if forecast.share else ""
    return f"{number_text(forecast.seconds)} {forecast.bound}{share}"


def runner_up_text(name: str, forecast: Any) -> str:
    """Return a plan that was not chosen."""
    return f"{name} {number_text(forecast.seconds)} {forecast.peak_host}"


def passes_text(explanation: str) -> str:
    """Return the tiles and buffers of rounds on GPUs, and the copies between GPUs."""
    lines = [" ".join(line.split()) for line in explanation.splitlines()]
    pattern = re.compile(r"round \d.*C = |round \d+: .* buffers|exchange \d+: .*shards")
    return " | ".join(line for line in lines if pattern.match(line))


def named_argument(error: Exception) -> str:
    """Return the argument that an error names at its beginning, or in its text."""
    quoted = re.search(r"`([\w.-]+)`", str(error))
    if quoted is not None:
        return quoted.group(1)
    known = re.search(r"\b(memory_limit|rounds|variant|digits|max-rounds)\b", str(error))
    return "" if known is None else known.group(1)


# --- texts ----------------------------------------------------------------------------------


def number_text(number: float) -> str:
    """Return five digits of a number: machines may differ in the last bits of a logarithm."""
    return f"{number:.5g}"


def chunks_text(chunks: Iterable[tuple[int, ...]]) -> str:
    """Return the chunks of an array."""
    return "; ".join(runs_text(sizes) for sizes in chunks)


def shortened(text: str) -> str:
    """Return a text, or the beginning of a long one and its digest.

    >>> shortened("abc" * 200)[-16:]
    'sha 1318642cb851'
    """
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[: LONGEST - 20]}.. sha {digest}"


# --- records --------------------------------------------------------------------------------


def input_of(request: Request, folder: Path) -> da.Array:
    """Return the array of a request."""
    if request.kind == "files":
        return stored_array(request, folder)
    on_gpu = request.kind == "blocks on gpus"
    return lazy_array(
        request.shape,
        request.chunks,
        request.dtype,
        on_gpu,
    )


def result_of(request: Request, array: da.Array) -> da.Array:
    """Return the lazy result of a request."""
    arguments = dict(request.arguments)
    names = request.function.split(" of ")
    if len(names) == 2:
        outer, inner = map(function_named, names)
        return outer(inner(array, **arguments), **arguments)
    function = function_named(request.function)
    if not request.second:
        return function(array, **arguments)
    chunks = request.chunks if request.second == request.shape else -1
    return function(array, lazy_array(request.second, chunks, request.dtype), **arguments)


def has_plan(request: Request) -> bool:
    """Return whether a request is one transform, which has a plan of its own."""
    return request.kind not in ("cosines", "shifts", "signal", "refused")


def plan_of(request: Request, array: da.Array, folder: Path) -> Any:
    """Return the plan of a request."""
    if "run " in request.function:
        return plan_of_run(request, folder)
    kind = request.function.removeprefix("fft.")
    return dask_bigfft.plan(array, kind, **request.arguments)


def graph_fields(result: da.Array, expected_tasks: int) -> Record:
    """Return the carriers of a graph, and how many tasks it has of each name."""
    carriers = [carrier for carrier, _ in plans_of(result)]
    fields = {"carriers": " ".join(carriers)}
    if expected_tasks > MOST_TASKS or result.npartitions > MOST_TASKS:
        return fields
    names: Counter[str] = Counter()
    for layer in result.dask.layers.values():
        if hasattr(layer, "recipe"):
            names.update(key_split(key) for key in dict(layer))
    counts = (f"{name} {count}" for name, count in sorted(names.items()))
    return fields | {"task names": ", ".join(counts)}


def record_of(request: Request, folder: Path) -> Record:
    """Return the record of a request."""
    with environment_of(request, folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            array = input_of(request, folder)
            fields = fields_of(request, array, folder)
        except Exception as error:
            kind = type(error)
            fields = {"error": f"{kind.__module__}.{kind.__qualname__} {named_argument(error)}"}
    return {name: shortened(text) for name, text in fields.items()}


def fields_of(request: Request, array: da.Array, folder: Path) -> Record:
    """Return the unabridged record of a request that is not refused."""
    if has_plan(request):
        plan = plan_of(request, array, folder)
        fields = plan_fields(plan)
        if "run " in request.function:
            return fields
        result = result_of(request, array)
        return fields | graph_fields(result, plan.expected.tasks)
    result = result_of(request, array)
    fields = {}
    blocks = 0
    for number, (_, plan) in enumerate(plans_of(result)):
        for name, text in plan_fields(plan).items():
            fields[f"{number} {name}"] = text
        sizes = (math.prod(map(len, plan.chunks)), plan.source.blocks)
        blocks += max(sizes)
    return fields | graph_fields(result, 4 * blocks)


def explained(request: Request, folder: Path) -> str:
    """Return what the plan of a request says about itself, or the argument that was refused."""
    with environment_of(request, folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plan = plan_of(request, input_of(request, folder), folder)
            return f"{plan.explain()}\n\n{plan.explain(details=True)}"
        except Exception as error:
            return f"{type(error).__name__} {named_argument(error)}"
