"""From the arguments of a transform to its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, cast

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_bigfft import config
from dask_bigfft.api.arguments import (
    Extras,
    Rounds,
    parse_chunks,
    parse_device,
    parse_kernel,
    parse_limit,
    parse_rounds,
    refuse_unequal_digits,
)
from dask_bigfft.dask_private import ARRAY_EXPRESSIONS, original_of
from dask_bigfft.errors import PlanError, parse_flag, raise_invalid
from dask_bigfft.events import running_client, workers_of
from dask_bigfft.exchange.gather import all_segmented
from dask_bigfft.gpu.dispatch import device_count, known_nbytes
from dask_bigfft.graph.layer import gpus_of
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.machine import environment
from dask_bigfft.planner.plan import Plan, with_reason
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.request import DeviceChoice, Machine, Request
from dask_bigfft.planner.rows import BY_CALLER, ResultWriting, Stored
from dask_bigfft.planner.strategies import (
    PlannerSettings,
    Problem,
    choose_plan,
    find_plan_by_model,
)
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings
from dask_bigfft.transforms.bands import axis_windows
from dask_bigfft.transforms.layout import Order
from dask_bigfft.transforms.spec import FactorSpec, TransformSpec, parse_scale, transform_spec
from dask_bigfft.transforms.steps import CosineSum

if TYPE_CHECKING:
    from dask_bigfft.storage.sources import Reader


def make_plan(
    a: da.Array,
    name: str,
    n_or_s: Any = None,
    axis_or_axes: Any = None,
    norm: str | None = None,
    windows: Mapping[int, tuple[int, int]] | None = None,
    signal_digits: tuple[int, ...] | None = None,
    waves: CosineSum | None = None,
    transfer: str = "",
    factor: FactorSpec | None = None,
    windows_between: Mapping[int, tuple[int, int]] | None = None,
    lengths_back: Mapping[int, int] | None = None,
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
        Sum over cosines or sines along one axis, in place of an FFT.
    transfer : str
        Token of the transfer function of an operator, whose forward transform has the name. Its
        inverse transform has the norm.
    factor : FactorSpec, optional
        Lazy array of which the transfer function is made.
    windows_between : mapping, optional
        Start and count of the frequencies of an operator that are kept, by axis.
    lengths_back : mapping, optional
        Length of the inverse transform of an operator by axis, where it is another one.
    stored : Stored, optional
        Layout of the array in files that the first round can read directly.
    writing : ResultWriting
        Memory that writing a chunk of the result takes.
    """
    config.check()
    variant = config.argument("variant", extras.get("variant"))
    order = extras.get("order")
    spec = transform_spec(
        name,
        a.shape,
        a.dtype,
        n_or_s,
        axis_or_axes,
        norm,
        config.get("bigfft.order") if order is None else order,
        digits=extras.get("digits"),
        band=extras.get("band"),
        band_index=extras.get("band_index"),
    )
    rounds = parse_rounds(extras.get("rounds"), spec, variant)
    if signal_digits is not None:
        spec = _with_digits_at_both_ends(spec, signal_digits)
    if windows:
        spec = replace(spec, windows=axis_windows(windows))
    if waves is not None:
        spec = replace(spec, waves=waves, name="dst" if waves.turns else "dct")
    if transfer:
        spec = _as_operator(
            spec,
            transfer,
            factor,
            windows_between=windows_between or {},
            lengths_back=lengths_back or {},
            norm=norm,
        )
    if stored is not None:
        spec = replace(spec, dims=spec.dims or stored.dims)
    return _specified_plan(
        a,
        spec,
        variant,
        rounds,
        stored,
        writing,
        extras,
    )


def plan_of_part(a: da.Array, spec: TransformSpec, **extras: Unpack[Extras]) -> Plan:
    """Return the plan of a specified transform, which gives a part of the result of another one."""
    variant = config.argument("variant", extras.get("variant"))
    rounds = parse_rounds(extras.get("rounds"), spec, variant)
    return _specified_plan(
        a,
        spec,
        variant,
        rounds,
        None,
        BY_CALLER,
        extras,
    )


def _specified_plan(
    a: da.Array,
    spec: TransformSpec,
    variant: str,
    rounds: Rounds | None,
    stored: Stored | None,
    writing: ResultWriting,
    extras: Extras,
) -> Plan:
    """Return the plan of a specified transform of an array; for the parameters see `_request`."""
    is_resumable = stored is not None and stored.resumable
    request, fallback = _request(
        a,
        spec,
        variant,
        rounds,
        stored,
        writing,
        extras,
    )
    memory_limit = parse_limit("memory_limit", extras.get("memory_limit"))
    machine = _machine_of(a, memory_limit, is_resumable)
    measured_kernels = _kernels_to_measure(spec, request, extras)
    overwrite_x = extras.get("overwrite_x")
    may_overwrite = overwrite_x is not None and parse_flag("overwrite_x", overwrite_x)
    try:
        plan = _chosen_plan(
            spec,
            request,
            machine,
            measured_kernels,
            may_overwrite,
        )
    except PlanError as error:
        is_limited_by_workers = not memory_limit and not is_on_gpu(a._meta)
        smallest = environment.smallest_worker() if is_limited_by_workers else None
        if smallest is None:
            raise
        raise PlanError(f"{error}. {smallest}") from error
    return plan.changed(fallback=fallback) if fallback else plan


def _with_digits_at_both_ends(spec: TransformSpec, digits: tuple[int, ...]) -> TransformSpec:
    """Return a transform of one axis whose input has some digits, and its result them reversed."""
    (axis,) = spec.axes
    orders: tuple[Order, ...] = ("transposed",)
    return replace(
        spec,
        orders_in=orders,
        orders_out=orders,
        digits=((axis, digits),),
    )


def _as_operator(
    spec: TransformSpec,
    transfer: str,
    factor: FactorSpec | None,
    windows_between: Mapping[int, tuple[int, int]],
    lengths_back: Mapping[int, int],
    norm: str | None,
) -> TransformSpec:
    """Return the operator that begins with a transform; for the parameters see `make_plan`."""
    return replace(
        spec,
        name="fourier_filter",
        transfer=transfer,
        factor=factor,
        scale=parse_scale(norm, forward=False),
        windows_between=axis_windows(windows_between),
        lengths_back=tuple(sorted(lengths_back.items())),
    )


def reader_of(array: da.Array) -> "Reader | None":
    """Return a reader of an array's files, if it is read from there and not in memory."""
    original = original_of(array)
    if isinstance(original, np.ndarray | None):
        return None

    from dask_bigfft.storage.sources import stored_reader

    return stored_reader(original, array)


def read_directly(array: da.Array) -> da.Array:
    """Return an array whose chunks are read into the arena, if their files hold nothing but values.

    The package of the files would read each chunk into memory of its own first. Fresh pages take
    more time than the copy.
    """
    reader = reader_of(array)
    if reader is None or reader.plain is None:
        return array
    read: Any = da.from_array(reader, array.chunks, name=f"bigfft_read-{tokenize(array.name)}")
    return cast("da.Array", read)


def described(array: da.Array) -> Stored | None:
    """Return the layout of an array in its files, if it can be read from there."""
    reader = reader_of(array)
    return None if reader is None else reader.described


def _request(
    a: da.Array,
    spec: TransformSpec,
    variant: str,
    rounds: Rounds | None,
    stored: Stored | None,
    writing: ResultWriting,
    extras: Extras,
) -> tuple[Request, str]:
    """Return the choices of the caller, and the reason for a fallback of the FFT library.

    The reason is empty if there is no fallback.

    Parameters
    ----------
    a : dask.array.Array
        The input.
    spec : TransformSpec
        The transform.
    variant, rounds
        Data movement within an axis, and factors per round if they were named.
    stored, writing, extras
        Arguments of `make_plan`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For keywords in `extras` that are not allowed; for `variant` "pease" without `rounds` if an
        axis in several chunks has a length that is no power r**m with m at least 2.
    """
    chunks = tuple(tuple(map(int, axis_chunks)) for axis_chunks in a.chunks)
    if variant == "pease" and rounds is None:
        refuse_unequal_digits(spec, chunks)
    kernel, fallback = parse_kernel(extras.get("kernel"), spec.work_dtype)
    is_resumable = stored is not None and stored.resumable
    request = Request(
        chunks=chunks,
        wanted_chunks=parse_chunks(
            extras.get("chunks"),
            chunks,
            spec.out_shape,
            spec.out_dtype,
        ),
        rounds=rounds,
        variant=variant,
        kernel=kernel,
        verify=_parse_verify(extras.get("verify"), is_on_gpu(a._meta)),
        max_rounds=config.get("bigfft.planner.max-rounds"),
        floor_bytes=config.get("bigfft.planner.whole-axis-floor"),
        storage="disk" if is_resumable else environment.possible_storage(),
        device=parse_device(extras.get("device"), spec.work_dtype),
        device_nbytes=parse_limit("device_memory_limit", extras.get("device_memory_limit")),
        stored=stored,
        writing=writing,
        piece_nbytes=config.get("bigfft.scratch.min-write"),
    )
    return request, fallback


def _parse_verify(verify: Any, is_on_gpus: bool) -> str:
    """Return the checks of the running transform; blocks on GPUs have none."""
    checks: str = config.argument("verify", verify)
    if is_on_gpus and checks != "none":
        raise_invalid("verify", checks, "'none' for blocks on a GPU, or blocks in host memory")
    return checks


def _kernels_to_measure(
    spec: TransformSpec,
    request: Request,
    extras: Extras,
) -> tuple[str, ...] | None:
    """Return the FFT libraries to measure plans with; None takes the cheapest by the model."""
    if config.argument("planner", extras.get("planner")) != "measure":
        return None
    if (extras.get("kernel") or config.get("bigfft.kernel")) == "auto":
        return environment.common_libraries(spec.work_dtype)[0]
    return (request.kernel,)


def _machine_of(a: da.Array, memory_limit: int | None, is_resumable: bool) -> Machine:
    """Return the machine that transforms an array, without GPUs for blocks in host memory."""
    is_on_gpus = is_on_gpu(a._meta)
    machine = environment.current_machine(memory_limit, is_limited=not is_on_gpus)
    if is_on_gpus and running_client() is None:
        count = gpus_of(a)
        speeds = machine.profile.inside_gpus
        return Machine(
            memory_limit,
            threads=count,
            profile=speeds,
            holding=count,
        )
    return replace(machine, shared=False) if is_resumable else machine


@dataclass(frozen=True)
class _Search:
    """Search for the best plan of a request, by measurements or by the model.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    settings : PlannerSettings
        Settings of the planner.
    kernels : tuple of str or None
        FFT libraries to measure plans with; None takes the cheapest plan by the model.
    works_inside : bool
        Whether rounds may write into the blocks of the input.
    """

    spec: TransformSpec
    settings: PlannerSettings
    kernels: tuple[str, ...] | None
    works_inside: bool

    def __call__(self, request: Request, machine: Machine) -> Plan:
        """Return the best plan for a request on a machine."""
        if request.device == "hybrid" and not machine.gpus:
            request = replace(request, device="cpu")  # no worker has a device
        is_set_by_hand = request.device == "hybrid" and self.settings.cpu_share is not None
        if not self.kernels or is_set_by_hand:
            return self._by_model(request, machine)

        from dask_bigfft.machine.tuner import SHARE, tuned

        measured_plan = tuned(
            self.spec,
            request,
            machine,
            self.kernels,
        )
        if measured_plan is not None:
            return measured_plan
        plan = self._by_model(request, machine)
        percent = f"{100 * SHARE:.0f} %"
        text = f"not measured: array and result take more than {percent} of the memory"
        return with_reason(plan, text)

    def _by_model(self, request: Request, machine: Machine) -> Plan:
        """Return the cheapest plan by the model."""
        return find_plan_by_model(
            self.spec,
            request,
            machine,
            self.settings,
            has_slabs=all_segmented if self.works_inside else None,
        )


def _chosen_plan(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    kernels: tuple[str, ...] | None,
    may_overwrite: bool,
) -> Plan:
    """Return the plan for a transform, chosen by the planner's strategies.

    Parameters
    ----------
    spec, request, machine
        The arguments of `find_plan`.
    kernels : tuple of str or None
        FFT libraries to measure plans with; None takes the cheapest plan by the model.
    may_overwrite : bool
        Whether the contents of the array may be destroyed.

    Raises
    ------
    PlanError
        If no plan meets the memory limit.
    """
    machine_with_gpus = _with_gpus(machine, request)
    settings = _planner_settings(has_gpus=machine_with_gpus.gpus > 0)
    search = _Search(
        spec,
        settings,
        kernels,
        works_inside=may_overwrite and machine.workers == 1,
    )
    gpu_machine = machine_with_gpus
    if request.device == "hybrid":
        gpu_machine = _with_gpus(machine, replace(request, device="gpu"))
    problem = Problem(
        spec=spec,
        request=request,
        machine=machine_with_gpus,
        gpu_machine=gpu_machine,
        may_overwrite=may_overwrite,
        settings=settings,
        search=search,
        has_slabs=all_segmented,
    )
    return choose_plan(problem)


def _planner_settings(has_gpus: bool) -> PlannerSettings:
    """Return the settings that strategies read; those of pipelines only if there are GPUs."""
    return PlannerSettings(
        whole_nbytes=config.get("bigfft.planner.small"),
        merged_nbytes=config.get("bigfft.planner.min-chunk"),
        min_speedup=config.get("bigfft.hybrid.min-speedup"),
        cpu_share=config.get("bigfft.hybrid.cpu-share"),
        pipeline=_pipeline_settings() if has_gpus else AS_IS,
        cuts_gpu_blocks=not ARRAY_EXPRESSIONS,  # which would copy all blocks to one GPU
    )


def _pipeline_settings() -> DeviceSettings:
    """Return the settings of GPU pipelines."""
    pipeline = {}
    for name in ("buffers", "tiles", "streams"):
        value = config.get(f"bigfft.gpu.{name}")
        pipeline[name] = None if value in (0, "auto") else value
    return DeviceSettings(pipeline["buffers"], pipeline["tiles"], pipeline["streams"])


def _with_gpus(machine: Machine, request: Request) -> Machine:
    """Return the machine with the GPUs of each process that a plan may use, and their usable bytes.

    Machines whose blocks are on GPUs are returned unchanged.
    """
    if request.device == "cpu" or machine.holding:
        return machine
    limits = [nbytes for nbytes in (request.device_nbytes, known_nbytes()) if nbytes is not None]
    if limits:
        devices = []
        for profile in machine.profile.devices or (DeviceProfile(),):
            devices.append(replace(profile, nbytes=min(profile.nbytes, *limits)))
        machine = replace(machine, profile=replace(machine.profile, devices=tuple(devices)))
    return replace(machine, gpus=_usable_gpus(request.device))


def _usable_gpus(device: DeviceChoice) -> int:
    """Return the number of GPUs of each process that a plan for a device may use.

    On a cluster this is the smallest number that a worker has reported, but at least one for
    "gpu". Hybrid plans take the largest number, because each worker uses its own GPUs. If no worker
    has reported, they assume one.
    """
    client = running_client()
    if client is None:
        return device_count()
    counts = environment.workers_devices(workers_of(client).values())  # in ascending order
    if device == "hybrid":
        return counts[-1] if counts else 1
    least = 1 if device == "gpu" else 0
    return max(counts[0], least) if counts else least
