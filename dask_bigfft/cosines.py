"""The cosine and sine transforms of `scipy.fft` on dask arrays of any chunking.

Axes are transformed one after the other. SciPy transforms an axis that is whole in every block, or
that is best gathered into whole lines. An axis that is split into digits goes through an FFT with
as many exchanges as an FFT of real data::

    array --arrangement--> factors, round --exchange--> round, factors --arrangement--> result

On GPUs, every axis goes through a complex FFT of a period of its waves.
"""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, Unpack, cast

import dask.array as da
import numpy as np
import scipy.fft

from dask_bigfft import config
from dask_bigfft.api.arguments import (
    Extras,
    Options,
    inner_extras,
    parse_array,
    parse_chunks,
)
from dask_bigfft.api.calls import applied, by_block, rearranged, transforms_by
from dask_bigfft.api.plans import make_plan
from dask_bigfft.errors import ArgumentTypeError, parse_as, parse_flag, raise_invalid
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels import twiddle
from dask_bigfft.kernels.views import allocate_like, is_on_gpu, plain_array
from dask_bigfft.planner.merging import FEWER, MANY, MOST_PADDED
from dask_bigfft.transforms.cosines import Cosines, Type, array_axis, point_axis, point_chunks
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Layout,
    even_chunks,
    plain_layout,
    size_of,
)
from dask_bigfft.transforms.spec import TransformSpec, transform_spec, work_dtype
from dask_bigfft.transforms.steps import Divisor

#: Lengths or axes.
Axes = SupportsIndex | Sequence[SupportsIndex] | None


@transforms_by
def _over_one_axis(
    name: str,
    x: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the lazy result of a transform of one axis called by its name."""
    return _transform(
        name,
        x,
        type=type,
        s=n,
        axes=axis,
        norm=norm,
        overwrite_x=overwrite_x,
        workers=workers,
        orthogonalize=orthogonalize,
        **options,
    )


def _transform(
    name: str,
    x: Any,
    type: int = 2,
    s: Axes = None,
    axes: Axes = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the lazy result of a transform called by its name."""
    if workers is not None and not hasattr(workers, "__index__"):
        allowed = "None or a number: dask's scheduler decides"
        raise_invalid("workers", workers, allowed, kind=ArgumentTypeError)
    is_inverse = name.startswith("i")
    kind = _parse_type(type, is_inverse)
    array = parse_array(x, "fft")
    similar = "fftn" if name.endswith("n") else "fft"
    spec = transform_spec(similar, array.shape, array.dtype, s, axes, norm)
    plans = _plans(
        spec,
        sine="s" in name,
        kind=kind,
        norm=norm,
        orthogonalize=orthogonalize,
    )
    if is_inverse:  # by the forward transform of the opposite type
        norm = _opposite(norm)
    inner = inner_extras(options, order="natural")
    if array.dtype.kind == "c":
        real = _all_axes(array.real, plans, norm, inner)
        imag = _all_axes(array.imag, plans, norm, inner)
        dtype = np.result_type(real.dtype, np.complex64)
        values = by_block(_complex_block, real, imag, dtype=dtype)
    else:
        values = _all_axes(array, plans, norm, inner)
    chunks = parse_chunks(
        options.get("chunks"),
        array.chunks,
        values.shape,
        values.dtype,
    )
    if chunks is None:
        return values
    return _gathered(values, chunks)


_over_several_axes = transforms_by(_transform)


@_over_one_axis
def dct() -> None:
    """Return the discrete cosine transform of one axis.

    Parameters
    ----------
    x : dask array or array-like
        Input of any chunking; it is only read. Both parts of complex input are transformed.
    type : {1, 2, 3, 4}
        Type of the transform.
    n : int, optional
        Length of the transform: the axis is cropped or padded with zeros.
    axis : int
        The axis.
    norm : {"backward", "ortho", "forward"}, optional
        As in `scipy.fft.dct`.
    overwrite_x, workers
        Accepted for compatibility; the input is not overwritten, and dask's scheduler sets threads.
    orthogonalize : bool, optional
        True to scale the first or last values so that the matrix is orthogonal. The default is True
        with ``norm="ortho"``. It also holds for complex input, for which SciPy ignores it.
    chunks, memory_limit, kernel
        `chunks` of the result, `memory_limit` and `kernel`, as in the transforms of `fft`.

    Returns
    -------
    dask.array.Array
        Lazy, real for real input; of single precision where the input is, else of double (or long
        double) precision.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    A split axis goes through an FFT: types II and III of N real points (J. Makhoul, IEEE Trans.
    Acoust. Speech Signal Process. 28, 1980), type IV of N/2 complex points (N real points for odd
    N), type I of 2(N - 1) or 2(N + 1) real points. Exchanges move no more bytes than those of
    `rfft` (type I: twice as many).

    If the FFT's length has a large prime factor, the sum of the definition becomes a convolution of
    2N - 1 points (L. I. Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970). It moves as many
    bytes as `rfft` of a prime length. For type I this depends on N - 1 or N + 1: a length of 8,192
    moves 4.3 times the bytes of `rfft` of that length, 8,193 twice.

    For CuPy blocks, each axis goes through a complex FFT of a period of the waves, which is 2N
    points (type I: 2(N - 1) or 2(N + 1)).

    Examples
    --------
    >>> dct([1.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([2.    , 1.8478, 1.4142, 0.7654])
    """


@_over_one_axis
def idct() -> None:
    """Return the inverse of `dct`.

    Parameters
    ----------
    x, type, n, axis, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `dct` takes them.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> idct([4.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([0.5, 0.5, 0.5, 0.5])
    """


@_over_one_axis
def dst() -> None:
    """Return the discrete sine transform of one axis.

    Parameters
    ----------
    x, type, n, axis, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `dct` takes them.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> dst([1.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([0.7654, 1.4142, 1.8478, 2.    ])
    """


@_over_one_axis
def idst() -> None:
    """Return the inverse of `dst`.

    Parameters
    ----------
    x, type, n, axis, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `dct` takes them.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> idst([4.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([0.3827, 0.9239, 0.9239, 0.3827])
    """


@_over_several_axes
def dctn() -> None:
    """Return the discrete cosine transform of several axes.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `dct` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> dctn([[1.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[4.    , 2.8284],
           [2.8284, 2.    ]])
    """


@_over_several_axes
def idctn() -> None:
    """Return the inverse of `dctn`.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `idct` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `idct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> idctn([[4.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[0.25, 0.25],
           [0.25, 0.25]])
    """


@_over_several_axes
def dstn() -> None:
    """Return the discrete sine transform of several axes.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `dst` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `dst` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> dstn([[1.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[2.    , 2.8284],
           [2.8284, 4.    ]])
    """


@_over_several_axes
def idstn() -> None:
    """Return the inverse of `dstn`.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, chunks, memory_limit, kernel
        As `idst` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `idst` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> idstn([[4.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """


_INVERSE: dict[int, Type] = {
    1: 1,
    2: 3,
    3: 2,
    4: 4,
}


# --- one axis -------------------------------------------------------------------------------


def _rearranged(
    a: da.Array,
    axis: int,
    source: AxisLayout,
    target: AxisLayout,
    part: str,
) -> Any:
    """Return the array with one axis rearranged, in one exchange."""
    axes = plain_layout(a.shape, a.chunks).axes
    before = Layout((*axes[:axis], source, *axes[axis + 1 :]))
    after = Layout((*axes[:axis], target, *axes[axis + 1 :]))
    return rearranged(a, before, after, part)


def _gathered(a: da.Array, chunks: tuple[Chunks, ...]) -> da.Array:
    """Return the array in other chunks, in one exchange."""
    before = plain_layout(a.shape, a.chunks)
    after = plain_layout(a.shape, chunks)
    if before == after:
        return a
    return rearranged(a, before, after, "gather")


def _largest(chunks: Sequence[int]) -> int:
    """Return the length of the largest chunk, at least 1."""
    return max(map(int, chunks), default=1) or 1


def _width(a: da.Array, axis: int, length: int) -> int:
    """Return the samples of an axis in each block: those of the input, or more with much padding.

    Otherwise a padded short array in a few chunks would get very many blocks.
    """
    width = _largest(a.chunks[axis])
    min_nbytes = config.get("bigfft.planner.min-chunk")
    other_chunks = [chunks for i, chunks in enumerate(a.chunks) if i != axis]
    blocks = math.prod(map(len, other_chunks))
    has_much_padding = length >= FEWER * a.shape[axis] and blocks * length > MANY * width
    if not min_nbytes or not has_much_padding:
        return width
    lines = math.prod(map(_largest, other_chunks))
    itemsize = np.result_type(a.dtype, np.complex64).itemsize
    target_width = max(min_nbytes // (lines * itemsize), blocks * length // MOST_PADDED)
    target_width = min(target_width, length)
    return target_width if target_width >= FEWER * width else width


def _split_axis(
    a: da.Array,
    plan: Cosines,
    axis: int,
    divisor: Divisor,
    inner: Extras,
) -> Any:
    """Return the transform of a split axis, by an FFT of points in digits."""
    width = _width(a, axis, plan.length)
    plan = _with_digits(a, plan, axis, width, inner)
    if len(plan.digits) == 1 and not plan.halved:
        return _by_waves(a, plan, axis, divisor, inner)
    values = size_of(point_axis(plan, (1,), out=False).digits)
    point_counts = point_chunks(plan, -(-values // width))
    arranged = _rearranged(
        a,
        axis,
        source=array_axis(plan, tuple(map(int, a.chunks[axis])), out=False),
        target=point_axis(plan, point_counts, out=False),
        part="arrange",
    )
    dtype = a.dtype if plan.name == "rfft" else np.result_type(a.dtype, np.complex64)
    points = _multiplied(
        arranged,
        twiddle.before_points,
        plan=plan,
        axis=axis,
        points=point_counts,
        dtype=dtype,
    )
    fft_plan = make_plan(
        points,
        plan.name,
        n_or_s=plan.points,
        axis_or_axes=axis,
        norm="forward" if plan.name == "irfft" else None,
        signal_digits=plan.digits if len(plan.digits) > 1 else None,
        **inner,
    )
    spectrum = applied(points, fft_plan)
    spectrum_counts = tuple(map(int, spectrum.chunks[axis]))
    unarranged = _multiplied(
        spectrum,
        twiddle.after_points,
        plan=plan,
        axis=axis,
        points=spectrum_counts,
        dtype=a.dtype,
        width=2 if plan.pairs_out else 1,
        divisor=divisor,
    )
    chunks = even_chunks(plan.length, -(-plan.length // width))
    return _rearranged(
        unarranged,
        axis,
        source=point_axis(plan, spectrum_counts, out=True),
        target=array_axis(plan, chunks, out=True),
        part="unpack",
    )


def _by_waves(
    a: da.Array,
    plan: Cosines,
    axis: int,
    divisor: Divisor,
    inner: Extras,
) -> Any:
    """Return the transform of an axis as the sum of its definition.

    A length that has no useful split is done by Bluestein's algorithm, which exchanges no more than
    a real FFT would. On GPUs the sum is an FFT of a whole period.
    """
    # `plan.waves` is half the sum.
    values = _with_ends(a, plan, axis, 2, out=False)
    if is_on_gpu(a._meta):
        window = (0, plan.length)
        sum_plan = make_plan(
            values,
            "fft",
            plan.waves.period,
            axis,
            windows={axis: window},
            **inner,
        )
    else:
        sum_plan = make_plan(values, "fft", plan.length, axis, waves=plan.waves, **inner)
    sums = applied(values, sum_plan)
    return _with_ends(
        sums,
        plan,
        axis,
        twiddle.factor(divisor, a.dtype),
        out=True,
    )


def _with_ends(
    a: Any,
    plan: Cosines,
    axis: int,
    factor: Any,
    *,
    out: bool,
) -> Any:
    """Return the array times a factor, and times more factors at both ends of an axis.

    The ends are those of the result if `out`, else those of the input.

    On GPUs the phases are applied, too, that make a complex FFT of the sum.
    """
    arguments: dict[str, Any] = {
        "axis": axis,
        "bounds": _bounds(a.chunks[axis]),
        "length": plan.length,
        "factor": factor,
        "ends": twiddle.ends_of(plan, out=out),
    }
    if not is_on_gpu(a._meta):
        return by_block(twiddle.ends_scaled, a, dtype=a.dtype, **arguments)

    from dask_bigfft.gpu.on_gpu import waved_on_gpu

    dtype = np.empty(0, a.dtype).real.dtype if out else np.result_type(a.dtype, np.complex64)
    return by_block(
        waved_on_gpu,
        a,
        dtype=dtype,
        waves=plan.waves,
        out=out,
        **arguments,
    )


def _bounds(chunks: Sequence[int]) -> tuple[int, ...]:
    """Return the beginning of each chunk, and the end of the last one.

    >>> _bounds((3, 2))
    (0, 3, 5)
    """
    return (0, *itertools.accumulate(map(int, chunks)))


def _with_digits(
    a: da.Array,
    plan: Cosines,
    axis: int,
    width: int,
    inner: Extras,
) -> Cosines:
    """Return the transform with the digits of its FFT, if transposed order has none.

    They stay natural where the FFT becomes a convolution (Bluestein).
    """
    if len(plan.digits) > 1:
        return plan
    chunks = list(a.chunks)
    chunks[axis] = even_chunks(plan.points, -(-plan.points // width))
    shape = [sum(axis_chunks) for axis_chunks in chunks]
    points: Any = da.empty(shape, dtype=a.dtype, chunks=tuple(chunks))
    program = make_plan(points, "rfft", plan.points, axis, **inner).programs[0]
    if program.bluestein:
        return plan
    return replace(plan, digits=plan.halving(program.factors))


def _multiplied(
    a: Any,
    work: Any,
    plan: Cosines,
    axis: int,
    points: Chunks,
    dtype: np.dtype[Any],
    width: int = 1,
    **keywords: Any,
) -> Any:
    """Return the array times factors along an axis, block by block.

    `points` are the FFT's points of each block, of `width` values each in the result.
    """
    values = tuple(width * count for count in points)
    return by_block(
        work,
        a,
        dtype=dtype,
        chunks=(*a.chunks[:axis], values, *a.chunks[axis + 1 :]),
        plan=plan,
        axis=axis,
        bounds=_bounds(points),
        **keywords,
    )


def _one_axis(
    a: da.Array,
    plan: Cosines,
    axis: int,
    norm: str | None,
    inner: Extras,
) -> Any:
    """Return the transform of one axis in several chunks."""
    divisor = twiddle.divisor_of(plan, norm)
    if is_on_gpu(a._meta):
        return _by_waves(a, plan, axis, divisor, inner)
    fft_plan = make_plan(a, "rfft", plan.length, axis, None, **inner)
    if len(fft_plan.programs[0].steps) > 1:
        return _split_axis(a, plan, axis, divisor, inner)
    # One round takes whole lines, and its chunks along the other axes unless these are padded.
    gathered_chunks = []
    for dim, layout in enumerate(fft_plan.rounds[0].source.axes):
        size = a.shape[dim]
        chunks = (size,) if dim == axis else layout.groups[0].chunks
        if sum(chunks) != size:
            chunks = even_chunks(size, len(chunks))
        gathered_chunks.append(chunks)
    lines = _gathered(a, tuple(gathered_chunks))
    return _whole_axes(lines, plan, {axis: plan.length}, norm)


def _whole_axes(
    a: Any,
    plan: Cosines,
    lengths: dict[int, int],
    norm: str | None,
) -> Any:
    """Return SciPy's transform of axes that are whole in every block."""
    chunks = list(a.chunks)
    for axis, length in lengths.items():
        chunks[axis] = (length,)
    return by_block(
        _in_block,
        a,
        dtype=a.dtype,
        chunks=tuple(chunks),
        plan=plan,
        lengths=lengths,
        norm=norm,
    )


def _in_block(
    block: Any,
    plan: Cosines,
    lengths: dict[int, int],
    norm: str | None,
    block_id: tuple[int, ...],
) -> Any:
    """Return SciPy's transform of a block in host memory."""
    if is_on_gpu(block):
        allowed = "CuPy's `meta` for CuPy blocks, as x.map_blocks(cupy.asarray) has it"
        raise_invalid("x", "a dask array with NumPy's `meta`", allowed)
    block = plain_array(block, block_id)
    if block.size == 0:  # along another axis
        shape = [lengths.get(axis, size) for axis, size in enumerate(block.shape)]
        return np.zeros(shape, block.dtype)
    transform: Any = scipy.fft.dstn if plan.sine else scipy.fft.dctn
    return transform(
        block,
        type=plan.type,
        s=tuple(lengths.values()),
        axes=tuple(lengths),
        norm=norm,
        workers=1,
        orthogonalize=plan.orthogonalize,
    )


# --- several axes ---------------------------------------------------------------------------


def _parse_type(value: Any, is_inverse: bool) -> Type:
    """Return the type of the transform; for an inverse transform the type of its equivalent."""
    number = parse_as(operator.index, "type", value, "1, 2, 3 or 4")
    if number not in _INVERSE:
        raise_invalid("type", value, "1, 2, 3 or 4")
    if is_inverse:
        return _INVERSE[number]
    return cast("Type", number)


def _opposite(norm: str | None) -> str | None:
    """Return the norm of a forward transform that scales as an inverse one does."""
    if norm == "ortho":
        return norm
    return "backward" if norm == "forward" else "forward"


def _plans(
    spec: TransformSpec,
    *,
    sine: bool,
    kind: Type,
    norm: str | None,
    orthogonalize: bool | None,
) -> dict[int, Cosines]:
    """Return the transform of each axis."""
    if orthogonalize is None:
        orthogonalize = norm == "ortho"
    else:
        orthogonalize = parse_flag("orthogonalize", orthogonalize)
    plans = {}
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        if kind == 1 and not sine and length < 2:
            too_short = f"axis {axis} of length {length}"
            raise_invalid("x", too_short, "at least 2 elements for type 1")
        plans[axis] = Cosines(sine, kind, length, orthogonalize)
    return plans


@on_own_gpu
def _complex_block(real: Any, imag: Any) -> Any:
    """Return the complex block of two parts.

    ``real + 1j * imag`` would turn 0 times infinity into NaN.
    """
    values = allocate_like(real, real.shape, np.result_type(real.dtype, np.complex64))
    values.real[...] = real
    values.imag[...] = imag
    return values


def _all_axes(
    array: da.Array,
    plans: dict[int, Cosines],
    norm: str | None,
    inner: Extras,
) -> da.Array:
    """Return a real transform: of all axes that are whole in every block, then of the others."""
    real_dtype = np.empty(0, work_dtype(array.dtype)).real.dtype
    values: da.Array = array.astype(real_dtype)
    groups: dict[tuple[int, bool], dict[int, int]] = {}
    split_axes = []
    for axis, plan in plans.items():
        if array.numblocks[axis] == 1 and not is_on_gpu(array._meta):
            groups.setdefault((plan.type, plan.sine), {})[axis] = plan.length
        else:
            split_axes.append(axis)
    for lengths in groups.values():
        first_axis = next(iter(lengths))
        values = _whole_axes(values, plans[first_axis], lengths, norm)
    for axis in sorted(split_axes, key=lambda axis: (array.numblocks[axis], axis)):
        plan = plans[axis]
        window = (*[slice(None)] * axis, slice(plan.length))  # a longer axis is cropped
        values = _one_axis(values[window], plan, axis, norm, inner)
    return values
