"""Parsing of a call's arguments, and the choice of its plan.

Each `parse_*` returns the checked value of an argument, or of its setting. An error names the
argument. `make_plan` makes a request of all arguments and chooses the plan for it.
"""

import contextlib
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, TypedDict, Unpack, cast

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.array.utils import meta_from_array
from dask.base import is_dask_collection

from dask_bigfft import config
from dask_bigfft.config import is_int
from dask_bigfft.dask_private import ARRAY_EXPRESSIONS
from dask_bigfft.errors import (
    ArgumentTypeError,
    MemoryLimitError,
    PlanError,
    has_unit,
    parse_flag,
    parse_type,
    raise_invalid,
)
from dask_bigfft.events import running_client, workers_of
from dask_bigfft.exchange.gather import all_segmented
from dask_bigfft.gpu.dispatch import device_count, known_nbytes, missing
from dask_bigfft.graph.carriers import Chunks
from dask_bigfft.graph.layer import gpus_of
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.machine import environment
from dask_bigfft.machine.tuner import SHARE, tuned
from dask_bigfft.planner.cost import peak_host, with_forecast
from dask_bigfft.planner.plan import (
    Plan,
    fits_gpu,
    merged_request,
    request_in_tiles,
    request_on_gpus,
    roomy_request,
    whole_request,
    with_merging,
)
from dask_bigfft.planner.plan_data import DeviceChoice, Machine, Request, overwritten
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.rows import BY_CALLER, ResultWriting, Stored
from dask_bigfft.planner.search import changes_that_fit, find_plan
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings
from dask_bigfft.planner.work_sharing import decided
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import Order, scaled
from dask_bigfft.transforms.spec import (
    TRANSFORMS,
    TransformSpec,
    complete_factors,
    parse_dtype,
    parse_name,
    parse_some,
    transform_spec,
)
from dask_bigfft.transforms.steps import CosineSum

#: Cached search for a plan.
_found_plan = lru_cache(maxsize=128)(find_plan)


def chosen_plan(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    kernels: tuple[str, ...] | None,
    overwrite: bool,
) -> Plan:
    """Return the plan for a transform.

    Small transforms are done in one block each. Many tiny blocks are merged first, if the plan then
    fits into the same memory. Blocks that are mostly padding become larger than the input's.

    Parameters
    ----------
    spec, request, machine
        The arguments of `find_plan`.
    kernels
        FFT libraries to measure plans with; None takes the cheapest plan by the model.
    overwrite
        True if the contents of the array may be destroyed.

    Raises
    ------
    PlanError
        If no plan meets the memory limit.
    """
    inside = overwrite and machine.workers == 1
    small, tiny = config.get("bigfft.planner.small"), config.get("bigfft.planner.min-chunk")
    if machine.holding:  # a block for each of them
        cuts = not ARRAY_EXPRESSIONS  # which would copy all blocks to one GPU
        request, small, tiny = request_on_gpus(spec, request, machine.holding, cuts), 0, 0
    here, found = _with_devices(machine, request), None

    def search(asked: Request) -> Plan:
        return _searched(spec, asked, here, kernels, inside)

    if not overwrite and fits_gpu(spec, request, here):  # one block crosses the bus once
        request, small, tiny = request_on_gpus(spec, request, 1), 0, 0
    whole = whole_request(spec, request, machine, small, tiny)
    with contextlib.suppress(PlanError):  # then blocks are smaller, or not merged
        if whole is not request:
            found = _accepted(search(whole), request)
    request = roomy_request(spec, request, tiny)
    with contextlib.suppress(PlanError):
        if not found and (merged := merged_request(spec, request, machine, tiny)) is not None:
            plan = search(merged)
            wanted = None if request.wanted in (merged.wanted, plan.chunks) else request.wanted
            found = _accepted(with_merging(plan, request.chunks, wanted), request)
    tiles = request if inside else request_in_tiles(spec, request, here)
    try:
        found = found or _in_tiles(request, tiles, search)
    except MemoryLimitError as error:
        on = replace(here, gpus=0) if request.device == "hybrid" else here
        changes = (f", or {change}" for change in changes_that_fit(spec, request, on))
        raise MemoryLimitError("".join([str(error), *changes])) from None
    if request.device == "hybrid" and found.device == "gpu":  # data that fits crosses the bus once
        alone = chosen_plan(spec, replace(request, device="gpu"), machine, kernels, overwrite)
        return replace(alone, shares=(1.0,) * len(alone.rounds))
    if found.machine.gpus or found.shares:
        by_hand = (config.get(f"bigfft.gpu.{name}") for name in ("buffers", "tiles", "streams"))
        settings = DeviceSettings(*(None if value in (0, "auto") else value for value in by_hand))
        if settings != AS_IS:
            found = replace(found, settings=replace(settings, cpu_share=found.settings.cpu_share))
    if overwrite != found.overwrite:  # else the plan keeps what it has cached
        found = _overwriting(found) if overwrite else replace(found, overwrite=False)
    on_devices = inside and found.machine.gpus
    return _inside_blocks(found) if on_devices and found.storage == "memory" else found


def _overwriting(plan: Plan) -> Plan:
    """Return a plan that may destroy its source blocks, with the memory that it then needs."""
    found, expected = replace(plan, overwrite=True), plan.expected
    peak = expected.peak_host - peak_host(plan) + peak_host(found)
    return replace(found, expected=replace(expected, peak_host=peak))


def _inside_blocks(plan: Plan) -> Plan:
    """Return the plan with its rounds inside the blocks that come in, if these are cut for it."""
    inside = overwritten(plan) if plan.verify == "none" else None
    if inside is None:
        return plan
    exchanges = inside.exchanges[: len(inside.rounds)]
    if not all(all_segmented(exchange.source, exchange.target) for exchange in exchanges):
        return plan
    return with_forecast(inside)


def _plan_within(spec: TransformSpec, request: Request, machine: Machine) -> Plan:
    """Return the plan for a machine of a transform that may overwrite its blocks.

    Memory that is too little for blocks before and after a round may be enough for one of them.
    """
    limit = machine.memory_limit
    if limit is not None:
        with contextlib.suppress(PlanError):
            roomy = _found_plan(spec, request, replace(machine, memory_limit=None))
            inside = _overwriting(roomy)
            if inside.machine.gpus:
                inside = _inside_blocks(inside)
            if inside.expected.peak_host <= limit:
                return replace(roomy, machine=machine)
    return _found_plan(spec, request, machine)


def _accepted(plan: Plan, request: Request) -> Plan | None:
    """Return the plan; None if it exceeds the memory limit, or uses the disk unasked."""
    unasked = plan.storage == "disk" and request.storage == "auto"
    return plan if plan.fits_memory and not unasked else None


def _in_tiles(request: Request, tiles: Request, search: Callable[[Request], Plan]) -> Plan:
    """Return the best plan, in blocks as large as a GPU's tiles where that pays.

    It does if it saves a crossing of the bus, or costs none where an axis is split.
    """
    found = search(request)
    if tiles == request:
        return found

    def crossings(plan: Plan) -> int:
        return len(plan.exchanges) - sum(map(bool, plan.shared_layouts.exchanges))

    with contextlib.suppress(PlanError):
        other = _accepted(search(tiles), request)
        padded = other is not None and any(program.bluestein for program in other.programs)
        split = any(len(program.factors) > 1 for program in found.programs)
        if other is not None and not padded and crossings(other) < crossings(found) + split:
            return other
    return found


def _searched(
    spec: TransformSpec,
    request: Request,
    here: Machine,
    kernels: tuple[str, ...] | None,
    inside: bool,
) -> Plan:
    """Return the best plan without merging blocks: by measurement, else by the model."""
    if request.device == "hybrid" and not here.gpus:
        request = replace(request, device="cpu")  # no worker has a device
    by_hand = config.get("bigfft.hybrid.cpu-share") if request.device == "hybrid" else None
    kernels = kernels if by_hand is None else None
    tried = tuned(spec, request, here, kernels) if kernels else None
    if tried is not None:
        return tried
    if request.device == "hybrid":
        least = config.get("bigfft.hybrid.min-speedup")
        found = decided(spec, request, replace(here, gpus=0), here.gpus, least, by_hand)
    elif inside:
        found = _plan_within(spec, request, here)
    else:
        found = _found_plan(spec, request, here)
    text = f"; not measured: array and result take more than {100 * SHARE:.0f} % of the memory"
    return replace(found, reason=found.reason + text) if kernels else found


def _with_devices(machine: Machine, request: Request) -> Machine:
    """Return the machine with the number of devices of each process that a plan may use.

    On a cluster this is the smallest number that a worker has reported. Hybrid plans take the
    largest number, because each worker uses its own devices. Workers that have not reported are
    assumed to have the devices that the request needs.
    """
    device, client = request.device, running_client()
    if device == "cpu" or machine.holding:
        return machine
    limits = [n for n in (request.device_nbytes, known_nbytes()) if n is not None]
    if limits:
        devices = tuple(
            replace(one, nbytes=min(one.nbytes, *limits))
            for one in machine.profile.devices or (DeviceProfile(),)
        )
        machine = replace(machine, profile=replace(machine.profile, devices=devices))
    if client is None:
        return replace(machine, gpus=device_count())
    known = environment.workers_devices(workers_of(client).values())
    least = int(device == "gpu" or (device == "hybrid" and not known))
    return replace(machine, gpus=max([*(known[-1:] if device == "hybrid" else known[:1]), least]))


Rounds = tuple[tuple[tuple[int, int], ...], ...]


class Extras(TypedDict, total=False):
    """Keywords of every transform beside those of `numpy.fft`; None stands for the setting."""

    order: Order | Sequence[Order] | None
    chunks: Any
    memory_limit: int | str | None
    rounds: Sequence[Mapping[int, int] | int] | None
    digits: Sequence[int] | Mapping[int, Sequence[int]] | None
    variant: Literal["auto", "dif", "dit", "stockham", "pease"] | None
    kernel: str | None
    device: DeviceChoice | None
    device_memory_limit: int | str | None
    overwrite_x: bool | None
    verify: Literal["none", "energy", "checksum"] | None
    planner: Literal["estimate", "measure"] | None


class Options(TypedDict, total=False):
    """Keywords of functions that use transforms internally; None stands for the setting."""

    chunks: Any
    memory_limit: int | str | None
    kernel: str | None


# --- arrays ---------------------------------------------------------------------------------


def parse_array(a: Any, kind: str | None = None) -> da.Array:
    """Return a dask array: `a` itself, or an array-like in chunks.

    Parameters
    ----------
    a
        A dask array is returned unchanged. An array with chunks (Zarr, HDF5) is read lazily.
        Anything else becomes a NumPy array. The contents are never hashed.
    kind
        Name of a transform; the array must have one of its dtypes.

    Examples
    --------
    >>> parse_array([1.0, 2.0]).shape
    (2,)
    """
    _refuse_containers(a)
    if not isinstance(a, da.Array):
        arrays = all(hasattr(a, name) for name in ("dtype", "shape"))
        lazy = arrays and (hasattr(a, "chunks") or hasattr(a, "__cuda_array_interface__"))
        try:
            a = a if lazy and not isinstance(a, type) else np.asanyarray(a)
        except (ValueError, TypeError) as error:  # such as lists of unlike lengths
            raise_invalid("a", a, f"an array or what numpy.asarray takes ({error})")
    if kind is not None or a.dtype.hasobject:  # dask finds no chunks for objects
        parse_dtype(np.dtype(a.dtype), TRANSFORMS[parse_name(kind or "fft")][0])
    if not isinstance(a, da.Array):
        a = da.from_array(a, name=f"bigfft_input-{uuid.uuid4().hex}")
    for axis, chunks in enumerate(a.chunks):
        if any(c != c for c in chunks):
            allowed = "known chunk sizes: call compute_chunk_sizes() first"
            raise_invalid("a.chunks", f"unknown sizes along axis {axis}", allowed)
    return cast("da.Array", a)


def _refuse_containers(a: Any) -> None:
    """Raise an error for containers that hold more than numbers, such as masks or coordinates."""
    block, allowed = meta_from_array(a) if isinstance(a, da.Array) else a, None
    if type(a).__module__.partition(".")[0] == "xarray":
        allowed = "an array: pass .data, the array inside, or use dask_bigfft.xarray"
    elif has_unit(block):
        allowed = "an array without a unit: pass a.magnitude, and multiply the result by the unit"
    elif is_dask_collection(a) and not isinstance(a, da.Array):
        allowed = "a dask.array.Array, or an array-like"
    elif isinstance(block, np.matrix):
        allowed = "an array, which has any number of axes: pass numpy.asarray(a)"
    elif isinstance(block, np.ma.MaskedArray):
        allowed = "an array without a mask: fill it, as numpy.ma.filled(a, 0) does"
    elif hasattr(block, "todense"):
        allowed = "a dense array: take what todense() makes of it, or of each block by map_blocks"
    if allowed is not None:
        found = f"{type(block).__module__}.{type(block).__qualname__}"
        raise_invalid("a", found, allowed, kind=ArgumentTypeError)


# --- rounds ---------------------------------------------------------------------------------


def parse_rounds(rounds: Any, spec: TransformSpec, variant: str) -> Rounds | None:
    """Return factors per round as (axis, factor) pairs, whose products are the lengths.

    Parameters
    ----------
    rounds
        A sequence with a mapping of axis to factor for each round, or only the factor if one axis
        is transformed. -1 stands for the remaining factor of an axis.
    spec, variant
        The transform, and the name of the data movement.
    """
    rounds = config.get("bigfft.rounds") if rounds is None else rounds
    if rounds is None:
        return None
    refuse = partial(raise_invalid, "rounds", rounds)
    allowed = "a sequence with a mapping of axis to factor for each round"
    if isinstance(rounds, str) or not isinstance(rounds, Sequence) or not rounds:
        refuse(allowed, kind=ArgumentTypeError)
    found = []
    for named in rounds:
        if is_int(named) and len(spec.axes) == 1:
            named = {spec.axes[0]: named}
        if not isinstance(named, Mapping) or not named or not all(map(is_int, named.values())):
            refuse(f"{allowed}, integers", kind=ArgumentTypeError)
        if not all(n >= 1 or n == -1 for n in named.values()):
            refuse("factors of at least 1, or -1 for the remaining factor of an axis")
        along = parse_some("rounds", named, spec.axes, len(spec.shape))
        found.append(dict(zip(along, map(int, named.values()), strict=True)))
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        factors = [named[axis] for named in found if axis in named]
        if not factors or factors.count(-1) > 1:
            refuse(f"one or more factors of axis {axis}, at most one of them -1")
        completed = complete_factors(axis, factors, length)
        _check_factors(axis, completed, spec, variant)
        for named, n in zip((one for one in found if axis in one), completed, strict=True):
            named[axis] = n
    where = {"r2c": ("first", found[0]), "c2r": ("last", found[-1])}
    if spec.kind in where and spec.real_axis not in where[spec.kind][1]:
        refuse(f"the real axis {spec.real_axis} in the {where[spec.kind][0]} round")
    return tuple(tuple(named.items()) for named in found)


def _check_factors(axis: int, factors: tuple[int, ...], spec: TransformSpec, variant: str) -> None:
    """Raise an error for factors that contradict the variant or the digits of the spectrum."""
    if variant == "pease" and len(set(factors)) > 1:
        allowed = "equal factors of every axis for variant 'pease', whose exchanges are alike"
        raise_invalid("rounds", {axis: factors}, allowed)
    i = spec.axes.index(axis)
    if "transposed" not in (spec.orders_in[i], spec.orders_out[i]):
        return
    digits = spec.digits_of(axis)
    spectrum = factors if spec.orders_out[i] == "transposed" else factors[::-1]
    if spectrum != digits:
        allowed = f"factors that give the spectrum along axis {axis} the digits {digits} in "
        allowed += f"transposed order, or digits={spectrum} at both ends"
        raise_invalid("rounds", {axis: factors}, allowed)


# --- the other extras -----------------------------------------------------------------------


def parse_limit(argument: str, value: Any) -> int | None:
    """Return an argument in bytes, by default the value of the setting of the same name.

    >>> parse_limit("device_memory_limit", "2 GiB")
    2147483648
    """
    if value is None:
        return cast("int | None", config.argument(argument))
    numbers = int | float | str | np.integer | np.floating
    if not isinstance(value, numbers) or isinstance(value, bool | np.timedelta64):
        allowed = "a positive number of bytes, or a string such as '2 GiB'"
        raise_invalid(argument, value, allowed, kind=ArgumentTypeError)
    return cast("int", config.get("bigfft.memory-limit", argument, value))


def refuse_uneven(spec: TransformSpec, before: Chunks) -> None:
    """Raise an error if an axis in several chunks has no equal digits, which Pease's variant needs.

    Parameters
    ----------
    spec
        The transform.
    before
        Chunks of the input.
    """
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        if len(before[axis]) > 1 and math.gcd(*factorize(length).values()) == 1:
            allowed = f"lengths r**m, m at least 2, of axes in several chunks: axis {axis} has"
            raise_invalid("variant", "pease", f"{allowed} length {length}")


def parse_kernel(kernel: Any, dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the name of an installed FFT library for a dtype, and the reason for a fallback.

    "auto" stands for the fastest library; on a cluster every worker must have it.
    """
    parse_type("kernel", kernel, str | None, "the name of an FFT library")
    kernel = config.argument("kernel", kernel)
    if kernel == "auto":
        return environment.fastest_everywhere(dtype)
    library = get_library(kernel)
    if dtype not in library.dtypes:
        known = ", ".join(sorted(map(str, library.dtypes)))
        raise_invalid("kernel", kernel, f"a library that works in {dtype}; this one knows {known}")
    return library.name, ""


def parse_device(device: Any, dtype: np.dtype[Any]) -> DeviceChoice:
    """Return the device for rounds.

    Parameters
    ----------
    device
        ``"auto"``, ``"cpu"``, ``"gpu"`` or ``"hybrid"``. Without a client, the last two need a GPU
        in this process.
    dtype
        Complex dtype of the rounds.
    """
    device = config.argument("device", device)
    if device in ("gpu", "hybrid"):
        if dtype.char not in "FD":
            allowed = f'"cpu" for {dtype}: GPUs have single and double precision'
            raise_invalid("device", device, allowed)
        reason = missing() if running_client() is None else None
        if reason is not None:
            raise_invalid("device", device, f'a GPU, or "cpu": {reason}')
    return cast("DeviceChoice", device)


def parse_chunks(
    chunks: Any, before: Chunks, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Chunks | None:
    """Return the chunks of the result, or None for the chunks of the last round.

    Parameters
    ----------
    chunks
        ``"auto"``, ``"preserve"``, any dask chunks, or a mapping of axes to chunks (the other axes
        are preserved).
    before
        Chunks of the input.
    shape, dtype
        Shape and dtype of the result.
    """
    chunks = config.get("bigfft.chunks") if chunks is None else chunks
    if isinstance(chunks, str) and chunks == "auto":
        return None
    kept = tuple(scaled(cut, size) for cut, size in zip(before, shape, strict=True))
    if isinstance(chunks, str) and chunks == "preserve":
        return kept
    wanted = chunks
    if isinstance(chunks, Mapping):
        allowed = f"axes {-len(shape)}..{len(shape) - 1}"
        if not all(is_int(a) and -len(shape) <= a < len(shape) for a in chunks):
            raise_invalid("chunks", chunks, allowed)
        by_axis = {axis % len(shape): cut for axis, cut in chunks.items()}
        wanted = tuple(by_axis.get(axis, cut) for axis, cut in enumerate(kept))
    return normalized_chunks(chunks, wanted, shape, dtype, "'auto', 'preserve', or ")


def normalized_chunks(
    given: Any, chunks: Any, shape: tuple[int, ...], dtype: np.dtype[Any], others: str = ""
) -> Chunks:
    """Return chunks in dask's normal form; an error shows the `given` ones, and names `others`."""
    try:
        cuts = normalize_chunks(chunks, shape, dtype=dtype)
        found = tuple(tuple(map(int, cut)) for cut in cuts)
        if found != cuts or any(min(cut, default=0) < 0 for cut in found):
            raise ValueError("in whole numbers")
        if tuple(map(sum, found)) != tuple(shape):
            raise ValueError("of as many entries")
    except (ValueError, TypeError, NotImplementedError, ArithmeticError) as error:
        raise_invalid(
            "chunks", given, f"{others}dask chunks of the result, whose shape is {shape} ({error})"
        )
    return found


def parse_options(options: Mapping[str, Any], known: type = Options) -> None:
    """Raise an error for keywords that a class of keywords does not have."""
    for unknown in options.keys() - known.__annotations__.keys():
        allowed = f"another keyword: {', '.join(known.__annotations__)}"
        raise_invalid(unknown, options[unknown], allowed, kind=ArgumentTypeError)


def inner_extras(options: Options, **named: Any) -> Extras:
    """Return the keywords of an internal transform: those given but `chunks`, and named ones."""
    passed = {name: value for name, value in options.items() if name != "chunks"}
    return {"chunks": "auto", **passed, **named}  # type: ignore[typeddict-item]


def make_plan(
    a: da.Array,
    name: str,
    n_or_s: Any = None,
    axis_or_axes: Any = None,
    norm: str | None = None,
    windows: Mapping[int, tuple[int, int]] | None = None,
    signal_digits: tuple[int, ...] | None = None,
    waves: CosineSum | None = None,
    stored: Stored | None = None,
    writing: ResultWriting = BY_CALLER,
    **extras: Unpack[Extras],
) -> Plan:
    """Return the plan of a transform of a dask array.

    Parameters
    ----------
    a, name, n_or_s, axis_or_axes, norm, **extras
        Arguments of a transform in `dask_bigfft.fft`.
    windows : mapping, optional
        Start and count of the returned values by axis; they follow `start` cyclically.
    signal_digits : tuple of int, optional
        Digits of the signal along its one axis; its spectrum has them reversed.
    waves : CosineSum, optional
        Sum over cosines or sines along one axis, in place of an FFT; runs on the CPU.
    stored : Stored, optional
        Layout of the array in files that the first round can read directly.
    writing : ResultWriting
        Memory that writing a chunk of the result takes.
    """
    config.check()
    requested = extras.get
    order: Any = requested("order")
    order = config.get("bigfft.order") if order is None else order
    variant = config.argument("variant", requested("variant"))
    digits = requested("digits")
    spec = transform_spec(name, a.shape, a.dtype, n_or_s, axis_or_axes, norm, order, digits)
    rounds = parse_rounds(requested("rounds"), spec, variant)
    if signal_digits is not None:
        (axis,) = spec.axes
        orders: tuple[Order, ...] = ("transposed",)
        spec = replace(spec, orders_in=orders, orders_out=orders, digits=((axis, signal_digits),))
    spec = replace(spec, windows=tuple((a, *part) for a, part in sorted((windows or {}).items())))
    spec = replace(spec, dims=spec.dims or (() if stored is None else stored.dims))
    if waves is not None:
        spec = replace(spec, waves=waves, name="dst" if waves.turns else "dct")
        extras["device"] = "cpu"
    before = tuple(tuple(map(int, cut)) for cut in a.chunks)
    if variant == "pease" and rounds is None:
        refuse_uneven(spec, before)
    kernel, fallback = parse_kernel(requested("kernel"), spec.work_dtype)
    resumable = stored is not None and stored.resumable
    request = Request(
        chunks=before,
        wanted=parse_chunks(requested("chunks"), before, spec.out_shape, spec.out_dtype),
        rounds=rounds,
        variant=variant,
        kernel=kernel,
        verify=config.argument("verify", requested("verify")),
        max_rounds=config.get("bigfft.planner.max-rounds"),
        floor_bytes=config.get("bigfft.planner.whole-axis-floor"),
        storage="disk" if resumable else environment.possible_storage(),
        device=parse_device(requested("device"), spec.work_dtype),
        device_nbytes=parse_limit("device_memory_limit", requested("device_memory_limit")),
        stored=stored,
        writing=writing,
        piece_nbytes=config.get("bigfft.scratch.min-write"),
    )
    memory_limit = parse_limit("memory_limit", requested("memory_limit"))
    on_gpus = is_on_gpu(a._meta)
    if on_gpus and request.verify != "none":
        allowed = "'none' for blocks on a GPU, or blocks in host memory"
        raise_invalid("verify", request.verify, allowed)
    machine = environment.current_machine(memory_limit, on_gpus)
    machine = replace(machine, shared=False) if resumable else machine
    if on_gpus and running_client() is None:
        speeds, count = machine.profile.inside_gpus, gpus_of(a)
        machine = Machine(memory_limit, count, profile=speeds, holding=count)
    measured = None
    if config.argument("planner", requested("planner")) == "measure":
        free = (requested("kernel") or config.get("bigfft.kernel")) == "auto"
        measured = environment.common_libraries(spec.work_dtype)[0] if free else (kernel,)
    overwrite_x = requested("overwrite_x")
    overwrite = overwrite_x is not None and parse_flag("overwrite_x", overwrite_x)
    try:
        found = chosen_plan(spec, request, machine, measured, overwrite)
    except PlanError as error:
        least = None if memory_limit or on_gpus else environment.smallest_worker()
        if least is None:
            raise
        raise PlanError(f"{error}. {least}") from error
    return replace(found, fallback=fallback) if fallback else found
