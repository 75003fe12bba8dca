"""Parsing of a call's arguments.

Each `parse_*` returns the checked value of an argument, or of its setting. An error names the
argument.
"""

import inspect
import itertools
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast, get_args

import dask
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.array.utils import meta_from_array
from dask.base import is_dask_collection
from dask.utils import parse_bytes

from dask_bigfft import config
from dask_bigfft.carriers.names import Chunks
from dask_bigfft.config import is_int
from dask_bigfft.dask_private import ARRAY_EXPRESSIONS, is_lazy, slices_from_chunks
from dask_bigfft.errors import (
    ArgumentTypeError,
    has_unit,
    parse_type,
    raise_invalid,
)
from dask_bigfft.events import running_client
from dask_bigfft.gpu.dispatch import missing
from dask_bigfft.graph.assembly import SHARED_NBYTES, snapshot
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.machine import environment
from dask_bigfft.planner.request import DeviceChoice
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import Order, scaled
from dask_bigfft.transforms.spec import (
    TRANSFORMS,
    TransformSpec,
    complete_factors,
    parse_dtype,
    parse_name,
    parse_some,
)

Rounds = tuple[tuple[tuple[int, int], ...], ...]

_ALLOWED_ROUNDS = "a sequence with a mapping of axis to factor for each round"


class Extras(TypedDict, total=False):
    """Keywords of every transform beside those of `numpy.fft`; None stands for the setting."""

    order: Order | Sequence[Order] | None
    chunks: Any
    memory_limit: int | str | None
    rounds: Sequence[Mapping[int, int] | int] | None
    digits: Sequence[int] | Mapping[int, Sequence[int]] | None
    # by numbers of axes; in `dask_bigfft.xarray` by names of dimensions
    band: tuple[float, float] | Mapping[Any, tuple[float, float]] | None
    band_index: tuple[int, int] | Mapping[Any, tuple[int, int]] | None
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


def explicit_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function with each keyword of its options as a parameter.

    Help and completion show these names, where ``**options`` shows none.

    >>> from typing import Unpack
    >>> def lowpass(x, *, cutoff, **options: Unpack[Options]): ...
    >>> list(explicit_signature(lowpass).parameters)
    ['x', 'cutoff', 'chunks', 'memory_limit', 'kernel']
    """
    signature = inspect.signature(function)
    parameters = []
    for parameter in signature.parameters.values():
        classes = get_args(parameter.annotation)  # Unpack has the class of the keywords
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD or not classes:
            parameters.append(parameter)
            continue
        for name, hint in classes[0].__annotations__.items():
            keyword = inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=hint,
            )
            parameters.append(keyword)
    return signature.replace(parameters=parameters)


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
    if not is_lazy(a):
        a = array_like(a)
    if kind is not None or a.dtype.hasobject:  # dask finds no chunks for objects
        parse_dtype(np.dtype(a.dtype), TRANSFORMS[parse_name(kind or "fft")][0])
    if not is_lazy(a):
        a = _lazy_array(a)
    for axis, chunks in enumerate(a.chunks):
        if any(map(math.isnan, chunks)):
            allowed = "known chunk sizes: call compute_chunk_sizes() first"
            raise_invalid("a.chunks", f"unknown sizes along axis {axis}", allowed)
    return cast("da.Array", a)


def _lazy_array(a: Any) -> da.Array:
    """Return a dask array of an array-like, with a copy of what is in memory.

    `dask.array.from_array` copies, too, in one thread, which takes 0.3 s for 1 GiB: most of it are
    page faults. Several threads copy large arrays here. They do so for real and complex numbers
    in native byte order, of which transforms need no converted copy.
    """
    name = f"bigfft_input-{uuid.uuid4().hex}"
    is_plain = type(a) is np.ndarray and a.dtype.kind in "fc" and a.dtype.isnative
    if not is_plain or a.nbytes < SHARED_NBYTES or ARRAY_EXPRESSIONS:
        return cast("da.Array", da.from_array(a, name=name))
    values = snapshot(a)
    chunks = _chunks_in_memory(a)
    keys = itertools.product([name], *(range(len(sizes)) for sizes in chunks))
    blocks = {key: values[cut] for key, cut in zip(keys, slices_from_chunks(chunks), strict=True)}
    return da.Array(blocks, name, chunks, dtype=a.dtype)


def _chunks_in_memory(a: Any) -> Chunks:
    """Return chunks of dask's size: equal parts of the first axis if it is long enough.

    Dask cuts all long axes, into parts of which the last one may have a single element. Its threads
    would not be balanced, and blocks of the first round would have to be gathered.
    """
    count = -(-a.nbytes // parse_bytes(dask.config.get("array.chunk-size")))
    if count > len(a):
        return cast("Chunks", normalize_chunks("auto", a.shape, dtype=a.dtype))
    edges = [len(a) * part // count for part in range(count + 1)]
    rows = tuple(high - low for low, high in itertools.pairwise(edges))
    return rows, *((size,) for size in a.shape[1:])


def array_like(a: Any) -> Any:
    """Return an array-like with dtype and shape: one with chunks or on a GPU, else a NumPy one."""
    has_blocks = hasattr(a, "chunks") or hasattr(a, "__cuda_array_interface__")
    if has_blocks and hasattr(a, "dtype") and hasattr(a, "shape") and not isinstance(a, type):
        return a
    try:
        return np.asanyarray(a)
    except (ValueError, TypeError) as error:  # such as lists of unlike lengths
        raise_invalid("a", a, f"an array or what numpy.asarray takes ({error})")


def _refuse_containers(a: Any) -> None:
    """Raise an error for containers that hold more than numbers, such as masks or coordinates."""
    block = meta_from_array(a._meta) if is_lazy(a) else a
    allowed = _instead_of_container(a, block)
    if allowed is not None:
        type_name = f"{type(block).__module__}.{type(block).__qualname__}"
        raise_invalid(
            "a",
            type_name,
            allowed,
            kind=ArgumentTypeError,
        )


def _instead_of_container(a: Any, block: Any) -> str | None:
    """Return the text that says what to pass instead of a container; None for arrays.

    `block` is a block of a lazy array, and the array itself of others.
    """
    library = type(a).__module__.partition(".")[0]
    if library == "xarray":
        return "an array: pass .data, the array inside, or use dask_bigfft.xarray"
    if has_unit(block):
        return "an array without a unit: pass a.magnitude, and multiply the result by the unit"
    if is_dask_collection(a) and not is_lazy(a):
        return "a dask.array.Array, or an array-like"
    if library == "cubed":
        text = "an array of dask; dask_bigfft.run takes arrays of cubed, whose Done.open() "
        return text + "returns an array of cubed"
    if isinstance(a, str | os.PathLike) or (library == "zarr" and not hasattr(a, "shape")):
        return "an array; dask_bigfft.run takes paths and places of stored arrays"
    if isinstance(block, np.matrix):
        return "an array, which has any number of axes: pass numpy.asarray(a)"
    if isinstance(block, np.ma.MaskedArray):
        return "an array without a mask: fill it, as numpy.ma.filled(a, 0) does"
    if hasattr(block, "todense"):
        return "a dense array: take what todense() makes of it, or of each block by map_blocks"
    return None


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
    factors_of_rounds = _parse_factors(rounds, spec)
    for axis in spec.axes:
        rounds_of_axis = [factors for factors in factors_of_rounds if axis in factors]
        factors_of_axis = _factors_of_axis(
            axis,
            [factors[axis] for factors in rounds_of_axis],
            rounds,
            spec,
            variant,
        )
        for factors, factor in zip(rounds_of_axis, factors_of_axis, strict=True):
            factors[axis] = factor
    _check_real_axis(rounds, factors_of_rounds, spec)
    return tuple(tuple(factors.items()) for factors in factors_of_rounds)


def _factors_of_axis(
    axis: int,
    factors: Sequence[int],
    rounds: Any,
    spec: TransformSpec,
    variant: str,
) -> tuple[int, ...]:
    """Return the factors of an axis, in the order of the rounds, with -1 filled in.

    Parameters
    ----------
    axis, factors
        The axis, and its factors, one of which may be -1.
    rounds, spec, variant
        Arguments of `parse_rounds`.

    Raises
    ------
    ArgumentError
        If the transform cannot have these factors.
    """
    if not factors or factors.count(-1) > 1:
        allowed = f"one or more factors of axis {axis}, at most one of them -1"
        raise_invalid("rounds", rounds, allowed)
    completed = complete_factors(axis, factors, spec.length_of(axis))
    _check_factors(
        axis,
        completed,
        spec,
        variant,
    )
    return completed


def _check_real_axis(
    rounds: Any,
    factors_of_rounds: Sequence[Mapping[int, int]],
    spec: TransformSpec,
) -> None:
    """Raise an error unless real values are in the first round, or in the last one."""
    if spec.kind == "r2c" and spec.real_axis not in factors_of_rounds[0]:
        raise_invalid("rounds", rounds, f"the real axis {spec.real_axis} in the first round")
    if spec.kind == "c2r" and spec.real_axis not in factors_of_rounds[-1]:
        raise_invalid("rounds", rounds, f"the real axis {spec.real_axis} in the last round")


def _parse_factors(rounds: Any, spec: TransformSpec) -> list[dict[int, int]]:
    """Return a mapping of axis to factor for each round, in which a factor may be -1."""
    if isinstance(rounds, str) or not isinstance(rounds, Sequence) or not rounds:
        raise_invalid(
            "rounds",
            rounds,
            _ALLOWED_ROUNDS,
            kind=ArgumentTypeError,
        )
    return [_factors_of_round(factors, rounds, spec) for factors in rounds]


def _factors_of_round(factors: Any, rounds: Any, spec: TransformSpec) -> dict[int, int]:
    """Return the mapping of axis to factor of one round; an error shows all `rounds`.

    If one axis is transformed, its factor alone stands for the mapping.
    """
    if is_int(factors) and len(spec.axes) == 1:
        factors = {spec.axes[0]: factors}
    if not _is_factor_mapping(factors):
        raise_invalid(
            "rounds",
            rounds,
            f"{_ALLOWED_ROUNDS}, integers",
            kind=ArgumentTypeError,
        )
    if not all(factor >= 1 or factor == -1 for factor in factors.values()):
        allowed = "factors of at least 1, or -1 for the remaining factor of an axis"
        raise_invalid("rounds", rounds, allowed)
    axes = parse_some(
        "rounds",
        factors,
        spec.axes,
        len(spec.shape),
    )
    return dict(zip(axes, map(int, factors.values()), strict=True))


def _is_factor_mapping(factors: Any) -> bool:
    """Return whether an entry of `rounds` is a mapping to integers, and not empty."""
    if not isinstance(factors, Mapping) or not factors:
        return False
    return all(map(is_int, factors.values()))


def _check_factors(
    axis: int,
    factors: tuple[int, ...],
    spec: TransformSpec,
    variant: str,
) -> None:
    """Raise an error for factors that contradict the variant or the digits of the spectrum."""
    if variant == "pease" and len(set(factors)) > 1:
        allowed = "equal factors of every axis for variant 'pease', whose exchanges are alike"
        raise_invalid("rounds", {axis: factors}, allowed)
    order_in, order_out = spec.orders_of(axis)
    if "transposed" not in (order_in, order_out):
        return
    digits = spec.digits_of(axis)
    spectrum_digits = factors if order_out == "transposed" else factors[::-1]
    if spectrum_digits != digits:
        allowed = f"factors that give the spectrum along axis {axis} the digits {digits} in "
        allowed += f"transposed order, or digits={spectrum_digits} at both ends"
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
        raise_invalid(
            argument,
            value,
            allowed,
            kind=ArgumentTypeError,
        )
    return cast("int", config.get("bigfft.memory-limit", argument, value))


def refuse_unequal_digits(spec: TransformSpec, chunks: Chunks) -> None:
    """Raise an error if the length of an axis in several chunks has no two or more equal digits.

    Pease's variant needs lengths r**m, m at least 2. The sizes of the chunks do not matter.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    chunks : tuple of tuple of int
        Chunks of the input.

    Raises
    ------
    ArgumentError
        For `variant`, with the first such axis and its length.
    """
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        if len(chunks[axis]) > 1 and math.gcd(*factorize(length).values()) == 1:
            allowed = f"lengths r**m, m at least 2, of axes in several chunks: axis {axis} has"
            raise_invalid("variant", "pease", f"{allowed} length {length}")


def parse_kernel(kernel: Any, dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the name of an installed FFT library for a dtype, and the reason for a fallback.

    "auto" stands for the fastest library; on a cluster every worker must have it. The reason is a
    text for `explain()`, empty if there is no fallback.
    """
    parse_type(
        "kernel",
        kernel,
        str | None,
        "the name of an FFT library",
    )
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
    chunks: Any,
    before: Chunks,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Chunks | None:
    """Return the chunks of the result, or None for the chunks of the last round.

    Parameters
    ----------
    chunks
        ``"auto"``, ``"preserve"``, any dask chunks, or a mapping of axes to chunks (the other axes
        are preserved). None is the setting. As in dask's `rechunk`, None for an axis preserves its
        chunks.
    before
        Chunks of the input.
    shape, dtype
        Shape and dtype of the result.
    """
    chunks = config.get("bigfft.chunks") if chunks is None else chunks
    if isinstance(chunks, str) and chunks == "auto":
        return None
    preserved = tuple(scaled(cut, size) for cut, size in zip(before, shape, strict=True))
    if isinstance(chunks, str) and chunks == "preserve":
        return preserved
    requested = chunks
    if isinstance(chunks, Mapping):
        requested = _chunks_of_all_axes(chunks, preserved)
    elif isinstance(chunks, tuple | list) and len(chunks) == len(shape):
        requested = _with_preserved(chunks, preserved)
    return normalized_chunks(
        chunks,
        requested,
        shape,
        dtype,
        "'auto', 'preserve', or ",
    )


def _chunks_of_all_axes(chunks: Mapping[Any, Any], preserved: Chunks) -> tuple[Any, ...]:
    """Return the chunks of each axis, given those of some axes, and those of all others."""
    ndim = len(preserved)
    if not all(is_int(axis) and -ndim <= axis < ndim for axis in chunks):
        raise_invalid("chunks", chunks, f"axes {-ndim}..{ndim - 1}")
    chunks_by_axis = {axis % ndim: axis_chunks for axis, axis_chunks in chunks.items()}
    if len(chunks_by_axis) < len(chunks):
        raise_invalid("chunks", chunks, "every axis at most once")
    return _with_preserved([chunks_by_axis.get(axis) for axis in range(ndim)], preserved)


def _with_preserved(chunks: Sequence[Any], preserved: Chunks) -> tuple[Any, ...]:
    """Return the chunks of each axis, which are preserved where they are None."""
    pairs = zip(chunks, preserved, strict=True)
    return tuple(own if axis_chunks is None else axis_chunks for axis_chunks, own in pairs)


def normalized_chunks(
    given: Any,
    chunks: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    others: str = "",
) -> Chunks:
    """Return chunks in dask's normal form; an error shows the `given` ones, and names `others`."""
    try:
        cuts = normalize_chunks(chunks, shape, dtype=dtype)
        whole_cuts = tuple(tuple(map(int, cut)) for cut in cuts)
        if whole_cuts != cuts or any(min(cut, default=0) < 0 for cut in whole_cuts):
            raise ValueError("in whole numbers")
        if tuple(map(sum, whole_cuts)) != tuple(shape):
            raise ValueError("of as many entries")
    except (ValueError, TypeError, NotImplementedError, ArithmeticError) as error:
        raise_invalid(
            "chunks", given, f"{others}dask chunks of the result, whose shape is {shape} ({error})"
        )
    return whole_cuts


def inner_extras(options: Options, **named: Any) -> Extras:
    """Return the keywords of an internal transform: those given but `chunks`, and named ones."""
    passed = {name: value for name, value in options.items() if name != "chunks"}
    return {"chunks": "auto", **passed, **named}  # type: ignore[typeddict-item]
