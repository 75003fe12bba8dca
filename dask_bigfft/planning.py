"""From a call to a plan: arguments and settings in, `Plan` out, no data touched.

Imports `transforms`, `planner`, `config`, and looks up a running client.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import dask.array as da
import dask.config
import numpy as np
import psutil
from dask.array.core import normalize_chunks
from dask.utils import parse_bytes

from dask_bigfft import config
from dask_bigfft.decomposition.variants import VARIANTS
from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.search import Request, find_plan
from dask_bigfft.transforms.spec import TransformSpec, transform_spec

Chunks = tuple[tuple[int, ...], ...]
Rounds = tuple[tuple[tuple[int, int], ...], ...]


def parse_array(x: Any) -> da.Array:
    """Return a dask array: `x` itself, or an array-like in chunks, named without hashing it."""
    if not isinstance(x, da.Array):
        x = da.from_array(np.asanyarray(x), name=False)
    for axis, chunks in enumerate(x.chunks):
        if any(c != c for c in chunks):
            refuse("x.chunks", f"unknown sizes along axis {axis}",
                   "known chunk sizes; call x.compute_chunk_sizes() first")
    return cast("da.Array", x)


def parse_memory_limit(value: Any) -> int | None:
    """Return bytes from a number or a string such as ``"2 GiB"``."""
    if value is None:
        return cast("int | None", config.get("bigfft.memory-limit"))
    allowed = "a positive number of bytes, or a string such as '2 GiB'"
    if isinstance(value, bool) or not isinstance(value, int | float | str | np.integer):
        refuse("memory_limit", value, allowed, kind=ArgumentTypeError)
    try:
        found = int(parse_bytes(value) if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        refuse("memory_limit", value, allowed)
    if found <= 0:
        refuse("memory_limit", value, allowed)
    return found


def parse_rounds(rounds: Any, spec: TransformSpec) -> Rounds | None:
    """Return factors per round as (axis, length) pairs.

    A round is a mapping of axis to length (-1: what is left of the axis), or a number where one
    axis is transformed.
    """
    if rounds is None:
        return None
    if isinstance(rounds, str | Mapping) or not isinstance(rounds, Sequence) or not rounds:
        refuse("rounds", rounds, "a sequence with a mapping of axis to factor for each round",
               kind=ArgumentTypeError)
    left = dict(zip(spec.axes, spec.lengths, strict=True))
    found = []
    for named in rounds:
        if isinstance(named, int | np.integer) and len(spec.axes) == 1:
            named = {spec.axes[0]: named}
        if not isinstance(named, Mapping) or not named:
            refuse("rounds", rounds, "a mapping of axis to factor for each round",
                   kind=ArgumentTypeError)
        found.append(tuple(_factor(rounds, axis, n, left, spec) for axis, n in named.items()))
    for axis, rest in left.items():
        if rest != 1:
            length = dict(zip(spec.axes, spec.lengths, strict=True))[axis]
            refuse("rounds", rounds, f"factors of axis {axis} that multiply up to {length} "
                   f"(a factor {rest} is missing)")
    _check_real_axis(rounds, found, spec)
    return tuple(found)


def _factor(
    rounds: Any, axis: Any, n: Any, left: dict[int, int], spec: TransformSpec
) -> tuple[int, int]:
    ndim = len(spec.shape)
    if not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        refuse("rounds", rounds, f"axes {-ndim}..{ndim - 1}")
    axis = int(axis) % ndim
    if axis not in left:
        refuse("rounds", rounds, f"only transformed axes, {spec.axes}")
    if not isinstance(n, int | np.integer):
        refuse("rounds", rounds, "whole numbers as factors", kind=ArgumentTypeError)
    n = left[axis] if n == -1 else int(n)
    if n < 1 or left[axis] % n or (n == 1 and left[axis] != 1):
        refuse("rounds", rounds, f"factors of axis {axis} that divide its length; "
               f"{left[axis]} is left of it and {n} does not divide that")
    left[axis] //= n
    return axis, n


def _check_real_axis(rounds: Any, found: list[Any], spec: TransformSpec) -> None:
    axis = spec.real_axis
    if axis is None:
        return
    first, last = dict(found[0]), dict(found[-1])
    if spec.kind == "r2c" and axis not in first:
        refuse("rounds", rounds, f"the real axis {axis} in the first round")
    if spec.kind == "c2r" and axis not in last:
        refuse("rounds", rounds, f"the real axis {axis} in the last round")


def _named_digits(rounds: Rounds | None, spec: TransformSpec, forward: bool) -> dict[int, Any]:
    """Digits of the transposed order as named by rounds: in the order of the spectrum."""
    if rounds is None:
        return {}
    digits: dict[int, list[int]] = {axis: [] for axis in spec.axes}
    for named in rounds:
        for axis, n in named:
            digits[axis].append(n)
    orders = spec.orders_out if forward else spec.orders_in
    return {
        axis: tuple(d if forward else d[::-1])
        for (axis, d), order in zip(digits.items(), orders, strict=True)
        if order == "transposed"
    }


def parse_chunks(chunks: Any, x: da.Array, spec: TransformSpec) -> Chunks | None:
    """Return the chunks of the result, or None for what the last round gives."""
    if chunks is None:
        chunks = config.get("bigfft.chunks")
    if isinstance(chunks, str) and chunks == "auto":
        return None
    if isinstance(chunks, str) and chunks == "preserve":
        return tuple(
            cut if sum(cut) == n else _scaled(cut, n)
            for cut, n in zip(x.chunks, spec.out_shape, strict=True)
        )
    try:
        found = normalize_chunks(chunks, spec.out_shape, dtype=spec.out_dtype)
    except (ValueError, TypeError, NotImplementedError) as error:
        refuse("chunks", chunks, f"'auto', 'preserve' or dask chunks for {spec.out_shape} ({error})")
    return cast("Chunks", found)


def _scaled(chunks: tuple[int, ...], size: int) -> tuple[int, ...]:
    """As many chunks of another length in all, as even as they were."""
    total, ends, done = sum(chunks), [], 0
    for chunk in chunks:
        done += chunk
        ends.append(round(done * size / total) if total else size)
    starts = [0, *ends[:-1]]
    found = tuple(b - a for a, b in zip(starts, ends, strict=True) if b > a)
    return found or (size,)


def current_machine(memory_limit: int | None) -> Machine:
    """What is known of where the graph will run."""
    client = _running_client()
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if workers:
            limits = [w["memory_limit"] for w in workers if w.get("memory_limit")]
            least = min(limits, default=None)
            threads = max(w["nthreads"] for w in workers)
            return Machine(memory_limit or least, threads, len(workers))
    pool = dask.config.get("num_workers", None)
    if dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        pool = 1
    threads = pool or os.cpu_count() or 1
    return Machine(memory_limit or int(psutil.virtual_memory().total), int(threads), 1)


def _running_client() -> Any:
    """The client that `compute` would use, if there is one."""
    distributed = sys.modules.get("distributed")
    if distributed is None or isinstance(dask.config.get("scheduler", None), str):
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def make_plan(
    x: da.Array,
    name: str,
    n_or_s: Any = None,
    axis_or_axes: Any = None,
    norm: str | None = None,
    *,
    order: Any = None,
    chunks: Any = None,
    memory_limit: Any = None,
    rounds: Any = None,
    variant: str | None = None,
    kernel: str | None = None,
) -> Plan:
    """Return the plan of a transform of a dask array; arguments as at the front door."""
    order = config.get("bigfft.order") if order is None else order
    arguments = (name, x.shape, x.dtype, n_or_s, axis_or_axes, norm, order)
    if rounds is None:
        spec = transform_spec(*arguments)
        parsed = None
    else:
        spec, parsed = _spec_with_rounds(arguments, rounds)
    variant = config.get("bigfft.variant") if variant is None else variant
    if variant not in VARIANTS:
        refuse("variant", variant, f"one of {', '.join(VARIANTS)}")
    if variant == "pease" and parsed is not None:
        _check_pease(parsed)
    library = get_library(config.get("bigfft.kernel") if kernel is None else kernel)
    if spec.work_dtype not in library.dtypes:
        refuse("kernel", library.name, f"a library that knows {spec.work_dtype}")
    request = Request(
        chunks=tuple(tuple(map(int, c)) for c in x.chunks),
        wanted=parse_chunks(chunks, x, spec),
        rounds=parsed,
        variant=variant,
        kernel=library.name,
        max_rounds=config.get("bigfft.planner.max-rounds"),
        floor_bytes=config.get("bigfft.planner.whole-axis-floor"),
    )
    return find_plan(spec, request, current_machine(parse_memory_limit(memory_limit)))


def _spec_with_rounds(arguments: tuple[Any, ...], rounds: Any) -> tuple[TransformSpec, Rounds]:
    """Spec whose transposed order has the digits that the rounds name.

    The lengths do not depend on the digits, except that of half a spectrum in transposed order,
    which then follows from the rounds.
    """
    name, shape, dtype, n_or_s, axis_or_axes, norm, order = arguments
    forward = name.rstrip("2n") in ("fft", "rfft", "hfft")
    natural = transform_spec(name, shape, dtype, n_or_s, axis_or_axes, norm, "natural")
    parsed = parse_rounds(rounds, natural)
    assert parsed is not None
    orders = transform_spec(name, shape, dtype, n_or_s, axis_or_axes, norm, order) if forward else (
        natural
    )
    if not forward:
        from dask_bigfft.transforms.spec import parse_orders
        import dataclasses

        orders = dataclasses.replace(natural, orders_in=parse_orders(order, len(natural.axes)))
    digits = _named_digits(parsed, orders, forward)
    return transform_spec(
        name, shape, dtype, n_or_s, axis_or_axes, norm, order, digits
    ), parsed


def _check_pease(rounds: Rounds) -> None:
    factors: dict[int, set[int]] = {}
    for named in rounds:
        for axis, n in named:
            factors.setdefault(axis, set()).add(n)
    for axis, found in factors.items():
        if len(found) > 1:
            refuse("rounds", [dict(r) for r in rounds], f"equal factors of axis {axis} for "
                   "variant 'pease', which has one geometry for all exchanges")
