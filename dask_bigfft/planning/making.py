"""A plan of a call: its arguments and the settings made into a request, and a plan for that.

Touches no data. Imports the rest of this folder, `planner`, `transforms` and `config`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import dask.array as da

from dask_bigfft import config
from dask_bigfft.decomposition.steps import Waves
from dask_bigfft.errors import PlanError, parse_flag
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.rows import Stored
from dask_bigfft.planning.arguments import (
    Extras,
    Order,
    complete_rounds,
    factors_along,
    parse_chunks,
    parse_device,
    parse_digits,
    parse_kernel,
    parse_memory_limit,
    parse_planner,
    parse_rounds,
    parse_variant,
    parse_verify,
    refuse_uneven,
)
from dask_bigfft.planning.choosing import Choice, chosen_plan
from dask_bigfft.planning.environment import current_machine, possible_carrier, smallest_worker
from dask_bigfft.transforms.spec import parse_name, parse_transform_axes, transform_spec


def make_plan(
    a: da.Array,
    name: str,
    n_or_s: Any = None,
    axis_or_axes: Any = None,
    norm: str | None = None,
    windows: Mapping[int, tuple[int, int]] | None = None,
    signal_digits: tuple[int, ...] | None = None,
    waves: Waves | None = None,
    stored: Stored | None = None,
    **extras: Unpack[Extras],
) -> Plan:
    """Return the plan of a transform of a dask array.

    Parameters
    ----------
    a, name, n_or_s, axis_or_axes, norm, **extras
        As at the front door.
    windows : mapping, optional
        Start and count, by axis, of the values that go out: those from `start` on, cyclically.
    signal_digits : tuple of int, optional
        Digits in which the signal lies along the one axis: its spectrum has them reversed.
    waves : Waves, optional
        Sums over cosines or sines along the one axis instead, on the CPU.
    stored : Stored, optional
        How the array lies in files that the first round can read by itself.
    """
    config.check()
    order = extras.get("order")
    order = config.get("bigfft.order") if order is None else order
    variant = parse_variant(extras.get("variant"))
    axes = parse_transform_axes(parse_name(name), a.ndim, n_or_s, axis_or_axes)
    rounds = parse_rounds(extras.get("rounds"), axes, a.ndim)
    factors = None if rounds is None else {axis: factors_along(rounds, axis) for axis in axes}
    digits = parse_digits(extras.get("digits"), axes, a.ndim)
    spec = transform_spec(
        name, a.shape, a.dtype, n_or_s, axis_or_axes, norm, order, factors, digits
    )
    if signal_digits is not None:
        (axis,) = axes
        orders: tuple[Order, ...] = ("transposed",)
        spec = replace(spec, orders_in=orders, orders_out=orders, digits=((axis, signal_digits),))
    kept = tuple((axis, start, count) for axis, (start, count) in sorted((windows or {}).items()))
    spec = replace(spec, windows=kept)
    if waves is not None:
        spec = replace(spec, waves=waves, name="dst" if waves.turns else "dct")
        extras["device"] = "cpu"
    before = tuple(tuple(map(int, cut)) for cut in a.chunks)
    if variant == "pease" and rounds is None:
        refuse_uneven(spec, before)
    limit = extras.get("device_memory_limit")
    kernel, fallback = parse_kernel(extras.get("kernel"), spec.work_dtype)
    device, nbytes = parse_device(extras.get("device"), limit, spec.work_dtype)
    request = Request(
        chunks=before,
        wanted=parse_chunks(extras.get("chunks"), before, spec),
        rounds=None if rounds is None else complete_rounds(rounds, spec, variant),
        variant=variant,
        kernel=kernel,
        verify=parse_verify(extras.get("verify")),
        max_rounds=config.get("bigfft.planner.max-rounds"),
        floor_bytes=config.get("bigfft.planner.whole-axis-floor"),
        carrier=possible_carrier(),
        device=device,
        device_nbytes=nbytes,
        stored=stored,
        piece_nbytes=config.get("bigfft.scratch.piece-size"),
    )
    memory_limit = parse_memory_limit(extras.get("memory_limit"))
    machine = current_machine(memory_limit)
    measure = parse_planner(extras.get("planner")) == "measure"
    overwrite = extras.get("overwrite_x")
    overwrite = overwrite is not None and parse_flag("overwrite_x", overwrite)
    choice = Choice(extras.get("kernel"), measure, overwrite)
    try:
        return replace(chosen_plan(spec, request, machine, choice), fallback=fallback)
    except PlanError as error:
        least = None if memory_limit else smallest_worker()
        if least is None:
            raise
        raise PlanError(f"{error}. {least}") from error
