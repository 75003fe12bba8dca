r"""Convolution and correlation of dask arrays of any size, by spectra or block by block.

With one cut axis, transforms in natural order would take nine exchanges. Products of spectra can be
in transposed order, which takes six::

    in1 --exchange, round--> --exchange, round--> spectrum  \
                                                             x --round--> --exchange, round--> -->
    in2 --exchange, round--> --exchange, round--> spectrum  /

With a small in2, one plan with the product takes four (`kernel_spectrum`, `separable_kernel`).
Padding is part of the first gather, and cropping to the window of a mode is part of the last one.
If one array is much shorter, `overlap` works block by block.

Arrays that broadcast against each other have a plan for each transform, with a product of blocks
between them.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, cast, get_args

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_bigfft import config
from dask_bigfft.api.arguments import inner_extras, parse_chunks
from dask_bigfft.api.calls import applied
from dask_bigfft.api.kinds import keeps_kind, keeps_rows
from dask_bigfft.api.plans import make_plan
from dask_bigfft.arrays import Array
from dask_bigfft.dask_private import functions_of
from dask_bigfft.errors import MemoryLimitError, PlanError, parse_choice
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.transfer import LazyTransfer, OwnSpectrum
from dask_bigfft.kernels.views import allocate_like, is_on_gpu
from dask_bigfft.planner.plan import Plan, with_reason
from dask_bigfft.planner.rows import BY_CALLER, ResultWriting
from dask_bigfft.signal.arguments import (
    Axes,
    Inputs,
    Mode,
    SignalOptions,
    Window,
    cyclic_window,
    fast_length,
    parse_inputs,
    parse_signal_options,
    refuse_unsupported,
    unsupported_options,
)
from dask_bigfft.signal.kernel_spectrum import KernelSpectrum, is_small
from dask_bigfft.signal.overlap import by_overlap
from dask_bigfft.signal.separable_kernel import (
    LONGEST,
    MOST_SAMPLES,
    SeparableSpectrum,
    separated,
)
from dask_bigfft.signal.transfer import to_gpu, to_host_memory
from dask_bigfft.signal.transforms import ProductTimer, Transforms, planned, product_timer
from dask_bigfft.transforms.layout import scaled
from dask_bigfft.transforms.spec import FactorSpec, work_dtype
from dask_bigfft.transforms.steps import Divisor

__all__ = ["convolve", "correlate", "fftconvolve", "oaconvolve"]

Method = Literal["auto", "fft", "direct"]


@dataclass(frozen=True)
class PlannedProduct:
    """Convolution or correlation by one plan, which has the transforms of both arrays.

    Parameters
    ----------
    array : dask.array.Array
        Input of the plan.
    plan : Plan
        The plan.
    transfer : OwnSpectrum, LazyTransfer or SeparableSpectrum
        Spectrum by which the plan multiplies.
    """

    array: da.Array
    plan: Plan
    transfer: OwnSpectrum | LazyTransfer | SeparableSpectrum

    def result(self) -> da.Array:
        """Return the lazy result."""
        return applied(self.array, self.plan, transfer=self.transfer)


@dataclass(frozen=True)
class Product:
    """Convolution or correlation as a product of two spectra in one plan.

    Parameters
    ----------
    large, small : dask.array.Array
        The inputs in the precision of the result, the larger one first.
    transforms : Transforms
        Transforms of both.
    correlated : bool
        Whether the spectrum of the smaller one is conjugated.
    crops : mapping of int to (int, int)
        Start and count, in the cyclic result, of the values that are returned along some axes.
    options : SignalOptions
        The caller's keywords.
    writing : ResultWriting
        Memory that a task takes beside a block of the result.
    vectors : tuple of ndarray or None
        Vectors whose outer product the smaller input is, if it is a kernel in host memory.
    """

    large: da.Array
    small: da.Array
    transforms: Transforms
    correlated: bool
    crops: Mapping[int, tuple[int, int]]
    options: SignalOptions
    writing: ResultWriting
    vectors: tuple[Array, ...] | None

    def planned(self) -> PlannedProduct:
        """Return the product with its plan.

        Raises
        ------
        PlanError
            If there is no such plan.
        """
        if self.large.name == self.small.name:
            plan = self.plan(None, self.crops)
            own_spectrum = OwnSpectrum(self.correlated, _forward_divisor(plan))
            return PlannedProduct(self.large, plan, own_spectrum)
        lengths = self.lengths
        if self.vectors and max(lengths.values()) <= LONGEST:
            spectrum = SeparableSpectrum.of(
                self.vectors,
                lengths,
                self.starts,
                conjugated=self.correlated,
                dtype=work_dtype(self.large.dtype),
            )
            return PlannedProduct(self.large, self.plan(None, self.crops_from_zero), spectrum)
        with_kernel = None
        with contextlib.suppress(PlanError):  # more memory than the limit for an array as a whole
            with_kernel = self._with_kernel()
        return self._with_second_array() if with_kernel is None else with_kernel

    def _with_kernel(self) -> PlannedProduct | None:
        """Return the product if the smaller input is small enough to be a kernel, else None."""
        one_chunk = tuple((int(n),) for n in self.small.shape)
        factor = FactorSpec(one_chunk, np.dtype(self.small.dtype).str, "kernel")
        plan = self.plan(factor, self.crops_from_zero)
        if not is_small(plan, self.small.shape):
            return None
        template = KernelSpectrum(self.lengths, self.starts, self.correlated, plan.kernel)
        return PlannedProduct(self.large, plan, LazyTransfer(self.small, factor, template))

    def _with_second_array(self) -> PlannedProduct:
        """Return the product, with the forward transform of the smaller input in the plan."""
        small = self.small
        if is_on_gpu(self.large._meta):
            small = to_gpu(small, self.large._meta)
        chunks = tuple(tuple(map(int, cut)) for cut in small.chunks)
        factor = FactorSpec(
            chunks,
            np.dtype(small.dtype).str,
            "samples",
            self.correlated,
        )
        plan = self.plan(factor, self.crops)
        return PlannedProduct(self.large, plan, LazyTransfer(small, factor, None))

    @property
    def lengths(self) -> dict[int, int]:
        """Length of the transform along each transformed axis."""
        return dict(zip(self.transforms.axes, self.transforms.lengths, strict=True))

    @property
    def starts(self) -> dict[int, int]:
        """First value of the cyclic result that is returned, along each axis that is cropped."""
        return {axis: start for axis, (start, _) in self.crops.items()}

    @property
    def crops_from_zero(self) -> dict[int, tuple[int, int]]:
        """The crops of a result whose first value is the first one that is returned.

        A kernel that is computed for each tile moves the result there at no cost, so that rounds
        write complete pieces of it.
        """
        crops = {}
        for axis, (_, count) in self.crops.items():
            if count < self.lengths[axis]:
                crops[axis] = (0, count)
        return crops

    def plan(self, factor: FactorSpec | None, crops: Mapping[int, tuple[int, int]]) -> Plan:
        """Return the plan, with the smaller input as a factor or with none."""
        is_real = self.transforms.real
        return make_plan(
            self.large,
            "rfftn" if is_real else "fftn",
            self.transforms.lengths,
            self.transforms.axes,
            windows=crops,
            transfer=tokenize(self.small.name, self.correlated, self.starts),
            factor=factor,
            writing=self.writing,
            **inner_extras(self.options, chunks=self.options.get("chunks")),
        )


def _forward_divisor(plan: Plan) -> float:
    """Return the number by which an operator has divided the spectrum before the product."""
    (operand,) = plan.operands
    divisor = Divisor()
    for round_ in plan.rounds[: operand.stage + 1]:
        for step in round_.steps:
            if step.between is None:
                divisor *= step.divisor
    return divisor.value


def _by_one_plan(inputs: Inputs, correlated: bool, options: SignalOptions) -> da.Array:
    """Return the convolution or the correlation by one plan.

    Raises
    ------
    PlanError
        If one plan cannot do it.
    """
    # The correlation of the inputs in the other order is the conjugate, at negative lags.
    is_reversed = correlated and inputs.first.size < inputs.second.size
    product = _product_of_inputs(
        inputs,
        correlated,
        is_reversed,
        options,
    )
    result = product.planned().result()
    if not is_reversed:
        return result
    in_order = functions_of(result).flip(result, inputs.axes)
    is_real = product.transforms.real
    return _in_chunks(in_order if is_real else in_order.conj(), inputs, options)


def _product_of_inputs(
    inputs: Inputs,
    correlated: bool,
    is_reversed: bool,
    options: SignalOptions,
    writing: ResultWriting = BY_CALLER,
) -> Product:
    """Return the product of the spectra of two inputs.

    Parameters
    ----------
    inputs : Inputs
        The arrays.
    correlated : bool
        Whether the spectrum of the smaller one is conjugated.
    is_reversed : bool
        Whether the values of the result are in reverse.
    options, writing
        Parameters of `Product`.

    Raises
    ------
    PlanError
        If one plan cannot do it.
    """
    large, small = _larger_first(inputs)
    is_real = large.dtype.kind != "c" and small.dtype.kind != "c"
    windows = _halved_last(inputs, large)
    transforms = _padded_transforms(large, windows, is_real)
    crops = _crops(
        windows,
        transforms,
        correlated,
        is_reversed,
    )
    chunks = None if is_reversed else _result_chunks(inputs, options.get("chunks"))
    return Product(
        large,
        small,
        transforms,
        correlated,
        crops,
        options={**options, "chunks": chunks},
        writing=writing,
        vectors=_vectors(inputs.kernel, small.dtype),
    )


def _vectors(kernel: Array | None, precision: np.dtype) -> tuple[Array, ...] | None:
    """Return vectors whose outer product is a kernel, to a precision; None if there are none."""
    if kernel is None or kernel.size > MOST_SAMPLES:
        return None
    dtype = work_dtype(precision)
    if kernel.dtype.kind != "c":
        dtype = np.empty(0, dtype).real.dtype
    return separated(kernel.astype(dtype))


def planned_convolution(
    in1: Any,
    in2: Any,
    mode: Mode,
    options: SignalOptions,
    writing: ResultWriting,
    is_cyclic: bool = False,
) -> PlannedProduct | None:
    """Return the product that `convolve` computes by one plan; None if it works in another way.

    Parameters
    ----------
    in1, in2, mode, options
        Arguments of `convolve`.
    writing : ResultWriting
        Memory that a task takes beside a block of the result.
    is_cyclic : bool
        Whether `in1` goes on periodically; then `in2`, which is not longer, has its middle at place
        n // 2, and the result the shape of `in1`.

    Raises
    ------
    MemoryLimitError
        If no plan meets the memory limit.
    """
    inputs = parse_inputs(
        in1,
        in2,
        mode,
        None,
        strict=True,
    )
    if is_cyclic:
        windows = [cyclic_window(w.axis, w.first, w.second) for w in inputs.windows]
        inputs = replace(inputs, windows=tuple(windows))
    if not inputs.windows or _method(inputs, options) != "fft":
        return None
    try:
        product = _product_of_inputs(
            inputs,
            correlated=False,
            is_reversed=False,
            options=options,
            writing=writing,
        )
        return product.planned()
    except MemoryLimitError:
        raise
    except PlanError:
        return None


def _larger_first(inputs: Inputs) -> tuple[da.Array, da.Array]:
    """Return the inputs in the precision of the result, the larger one first.

    The other one comes to host memory if the larger one is there.

    Raises
    ------
    PlanError
        If the larger one is shorter along an axis on which both are multiplied, or if they are
        arrays of different libraries.
    """
    large, small = sorted((inputs.first, inputs.second), key=lambda a: a.size, reverse=True)
    if type(small) is not type(large):
        raise PlanError("the arrays are of different libraries")
    for axis, (n, m) in enumerate(zip(large.shape, small.shape, strict=True)):
        if axis not in inputs.axes and m > n:
            raise PlanError("both arrays are broadcast")
    if not is_on_gpu(large._meta):
        small = to_host_memory(small)
    return _in_common_precision(large, small)


def _in_common_precision(first: da.Array, second: da.Array) -> tuple[da.Array, da.Array]:
    """Return two arrays in the precision of their convolution; real ones stay real."""
    dtype = np.result_type(work_dtype(first.dtype), work_dtype(second.dtype))
    in_precision: list[da.Array] = []
    for array in (first, second):
        if work_dtype(array.dtype) != dtype:
            is_complex = array.dtype.kind == "c"
            array = array.astype(dtype if is_complex else np.empty(0, dtype).real.dtype)
        in_precision.append(array)
    return in_precision[0], in_precision[1]


def _halved_last(inputs: Inputs, large: da.Array) -> list[Window]:
    """Return the windows in the order of the transform, whose last axis is halved.

    An axis with a single chunk is best.
    """
    return sorted(inputs.windows, key=lambda w: (large.numblocks[w.axis] == 1, w.axis))


def _crops(
    windows: Sequence[Window],
    transforms: Transforms,
    correlated: bool,
    is_reversed: bool = False,
) -> dict[int, tuple[int, int]]:
    """Return the start and count, in the cyclic result, of the values of each window.

    Of a reversed result they are those of the same values, from the last one on.
    """
    crops = {}
    for w, length in zip(windows, transforms.lengths, strict=True):
        start = w.start - (w.second - 1) if correlated else w.start
        if is_reversed:
            start = 1 - start - w.count
        crop = (start % length, w.count)
        if crop != (0, length):
            crops[w.axis] = crop
    return crops


def _spectra(
    large: da.Array,
    small: da.Array,
    transforms: Transforms,
    forward: Plan,
    options: SignalOptions,
) -> tuple[da.Array, da.Array]:
    """Return two spectra with equal chunks.

    The first one is the result of the plan `forward`.
    """
    spectrum = applied(large, forward)
    if large.name == small.name:  # a convolution with itself needs one spectrum
        return spectrum, spectrum
    chunks: list[Any] = []
    for axis, lengths in enumerate(forward.chunks):
        is_transformed = axis in transforms.axes
        size = forward.spec.out_shape[axis] if is_transformed else small.shape[axis]
        chunks.append(lengths if sum(lengths) == size else "auto")
    later = _after(small, spectrum)
    return spectrum, applied(later, transforms.forward(later, options, chunks=tuple(chunks)))


def _mark(block: Any) -> Any:
    return np.zeros((1,) * block.ndim, np.int8)


def kept(block: Any, mark: Any) -> Any:
    """Return the first argument; dask names tasks after this function."""
    return block


def _after(a: Any, first: Any) -> Any:
    """Return the array with blocks that depend on all blocks of another array.

    Two transforms then do not overlap in time, which saves the memory of one exchange.
    """
    marks = first.map_blocks(_mark, chunks=tuple((1,) * n for n in first.numblocks), dtype=np.int8)
    return a.map_blocks(kept, marks.sum(), meta=a._meta)


def _by_spectra(inputs: Inputs, correlated: bool, options: SignalOptions) -> da.Array:
    """Return the convolution or the correlation by spectra."""
    try:
        return _by_one_plan(inputs, correlated, options)
    except PlanError as error:
        reason = str(error)
    first, second = _in_common_precision(inputs.first, inputs.second)
    real = first.dtype.kind != "c" and second.dtype.kind != "c"
    if not real:
        first = first.astype(work_dtype(first.dtype))
        second = second.astype(work_dtype(second.dtype))
    swapped = first.size < second.size
    large, small = (second, first) if swapped else (first, second)
    windows = _halved_last(inputs, large)
    transforms, forward = planned(large, _padded_transforms(large, windows, real), options)
    forward = with_reason(forward, f"the first of several plans: {reason}")
    spectra = _spectra(
        large,
        small,
        transforms,
        forward,
        options,
    )
    spectrum = _product(
        spectra,
        forward,
        swapped,
        correlated,
    )
    chunks = _result_chunks(inputs, options.get("chunks"))
    crops = _crops(windows, transforms, correlated)
    inverse = transforms.inverse(spectrum, {**options, "chunks": chunks}, crops)
    # After the complete product, the inverse transform reuses the shared buffers of the forward
    # transform. Blocks that travel through files or to other processes do not wait.
    shares_buffers = all(any(plan.shared_layouts.exchanges) for plan in (forward, inverse))
    if forward.machine.shared and shares_buffers:
        spectrum = _after(spectrum, spectrum)
    return applied(spectrum, inverse)


def _padded_transforms(a: da.Array, windows: Sequence[Window], real: bool) -> Transforms:
    """Return transforms that are long enough for the windows of a convolution."""
    has_one_axis = len(windows) == 1
    lengths = []
    for w in windows:
        is_cut = has_one_axis and a.numblocks[w.axis] > 1
        is_halved = real and w is windows[-1]
        lengths.append(w.first if w.is_cyclic else fast_length(w.least, is_cut, is_halved))
    return Transforms(tuple(w.axis for w in windows), tuple(lengths), real)


def _product(
    spectra: tuple[da.Array, da.Array],
    forward: Plan,
    swapped: bool,
    correlated: bool,
) -> Any:
    """Return the product of two spectra; for a correlation, with the second input's conjugate.

    The spectra are those of the larger and of the smaller input, which may be `swapped`.
    """
    first, second = reversed(spectra) if swapped else spectra
    index = tuple(range(first.ndim))
    dtype = np.result_type(first.dtype, second.dtype)
    return da.blockwise(
        _product_of_blocks,
        index,
        first,
        index,
        second,
        index,
        conjugate=correlated,
        timer=product_timer(spectra[0], forward),
        dtype=dtype,
        meta=np.empty_like(spectra[0]._meta, dtype),
    )


@on_own_gpu
def _product_of_blocks(
    a: Array,
    b: Array,
    conjugate: bool,
    timer: ProductTimer,
) -> Any:
    """Return the product of two blocks, optionally conjugating the second."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    out = allocate_like(a, shape, np.result_type(a.dtype, b.dtype))
    with timer.measured(out.nbytes):
        if not conjugate:
            return np.multiply(a, b, out=out)
        np.conjugate(b, out=out)
        return np.multiply(out, a, out=out)


def _result_chunks(inputs: Inputs, chunks: Any) -> Any:
    """Return the requested chunks of the result; "preserve" refers to the first input."""
    chunks = config.get("bigfft.chunks") if chunks is None else chunks
    if not isinstance(chunks, Mapping) and not (isinstance(chunks, str) and chunks == "preserve"):
        return chunks
    shapes = zip(inputs.first.shape, inputs.second.shape, strict=True)
    lengths = [max(pair) for pair in shapes]
    for w in inputs.windows:
        lengths[w.axis] = w.count
    preserved = dict(enumerate(map(scaled, inputs.first.chunks, lengths)))
    if isinstance(chunks, Mapping):
        return {**preserved, **chunks}
    return tuple(preserved.values())


# --- public functions ------------------------------------------------------------------------


def _convolution(
    inputs: Inputs,
    method: str,
    options: SignalOptions,
    *,
    correlated: bool = False,
) -> da.Array:
    """Return the convolution or correlation by `fft`, `direct`, `overlap` or `auto`.

    "auto" works block by block if one input is short and no option needs spectra. Inputs without
    convolved axes are multiplied. The result of an empty input has shape (0,).
    """
    first = inputs.first
    second = inputs.second
    if first.size == 0 or second.size == 0:
        empty: Any = da.zeros((0,), dtype=np.result_type(first.dtype, second.dtype, np.float32))
        return cast("da.Array", empty)
    if method == "auto":
        method = _method(inputs, options)
    if not inputs.windows:
        product: Any = first * (second.conj() if correlated else second)
        return cast("da.Array", product[inputs.crop])
    if method == "fft":
        return cast("da.Array", _by_spectra(inputs, correlated, options)[inputs.crop])
    if correlated:
        inputs = inputs.reversed()
    full: Any = by_overlap(inputs, direct=method == "direct")
    return _in_chunks(full[inputs.crop], inputs, options)


def _method(inputs: Inputs, options: SignalOptions) -> Literal["overlap", "fft"]:
    """Return the method that "auto" stands for."""
    needs_spectra = bool(unsupported_options(options, inputs.first, forecast=False))
    return "overlap" if _is_short(inputs) and not needs_spectra else "fft"


def _in_chunks(a: da.Array, inputs: Inputs, options: SignalOptions) -> da.Array:
    """Return a result in the chunks that the caller asks for."""
    chunks = options.get("chunks")
    if chunks is None:
        return a
    requested = _result_chunks(inputs, chunks)
    cuts = parse_chunks(
        requested,
        a.chunks,
        a.shape,
        a.dtype,
    )
    return a if cuts is None else cast("da.Array", a.rechunk(cuts))


@keeps_rows("in2")
def fftconvolve(
    in1: Any,
    in2: Any,
    mode: Mode = "full",
    axes: Axes = None,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the convolution of two arrays through their spectra.

    Parameters
    ----------
    in1, in2 : dask array or array-like
        With the same number of axes, of any chunking; only read.
    mode : {"full", "same", "valid"}
        The full convolution (default), its centre with the shape of `in1`, or the part that does
        not depend on zeros around the inputs.
    axes : int or sequence of int, optional
        The axes that are convolved, all by default. Along others the inputs have the same length,
        or one of them has length 1.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result, by default those of the last exchange.
    memory_limit : int or str, optional
        Maximum bytes that one process may use for each plan.
    kernel, device, device_memory_limit, verify, planner : optional
        As transforms in `fft` take them, for each plan.

    Returns
    -------
    dask.array.Array
        Lazy; of single precision where both inputs are, else of double (or long double) precision.
        Where one input has length 1 along all axes, it is their product in their common dtype, as
        in SciPy.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A `ValueError` or `TypeError` for inputs, a mode or axes that do not match.

    Notes
    -----
    This is `scipy.signal.fftconvolve` for dask arrays. Spectra stay in transposed order, so that
    one cut axis takes six exchanges. If one array is small, its spectrum is computed where that of
    the other one is multiplied, as in `fourier_filter`: one plan does it, with four exchanges. A
    kernel in memory that is an outer product of vectors, as a Gaussian or a box is, is transformed
    vector by vector.

    See Also
    --------
    oaconvolve : Faster where one array is much shorter than the other's chunks.

    Examples
    --------
    >>> fftconvolve([1.0, 2.0, 3.0], [0.0, 1.0, 0.5]).compute().round(6) + 0.0
    array([0. , 1. , 2.5, 4. , 1.5])
    """
    parse_signal_options(options)
    return _convolution(
        parse_inputs(
            in1,
            in2,
            mode,
            axes,
        ),
        "fft",
        options,
    )


@keeps_rows("in2")
def oaconvolve(
    in1: Any,
    in2: Any,
    mode: Mode = "full",
    axes: Axes = None,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the convolution of an array with a much shorter one, block by block.

    Parameters
    ----------
    in1, in2 : dask array or array-like
        With the same number of axes; the shorter one is gathered into one block.
    mode, axes
        See `fftconvolve`.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result.
    memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fftconvolve`. SciPy works block by block, so only these values are allowed:
        `kernel` "scipy", `device` "cpu", `verify` "none" and `planner` "estimate".

    Returns
    -------
    dask.array.Array
        Lazy; by default with the chunks of the longer array, the last one longer or shorter as the
        mode asks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        See `fftconvolve`.

    Notes
    -----
    This is `scipy.signal.oaconvolve` for dask arrays. Each block gets a halo of samples from its
    neighbours (overlap-save). SciPy convolves it in parts that fit a cache. Data is exchanged
    between neighbours only, and no spectrum of the whole array is computed.

    Examples
    --------
    >>> x = da.ones(6, chunks=3)
    >>> oaconvolve(x, [1.0, 1.0]).compute().round(6)
    array([1., 2., 2., 2., 2., 2., 1.])
    """
    parse_signal_options(options)
    inputs = parse_inputs(
        in1,
        in2,
        mode,
        axes,
    )
    refuse_unsupported(options, inputs.first, "oaconvolve")
    return _convolution(inputs, "overlap", options)


def _is_short(inputs: Inputs) -> bool:
    """Return whether one input is at most half as long as the other's chunks."""
    short, long = sorted((inputs.second, inputs.first), key=lambda a: a.size)
    return all(
        2 * short.shape[axis] <= min(long.chunks[axis]) or long.numblocks[axis] == 1
        for axis in inputs.axes
    ) and short.size <= max(1, math.prod(map(max, long.chunks)))


def _by_method(
    in1: Any,
    in2: Any,
    mode: Any,
    method: Any,
    correlated: bool,
    options: SignalOptions,
) -> da.Array:
    """Return the convolution or correlation over all axes, rounded for integer inputs."""
    parse_signal_options(options)
    method = parse_choice("method", method, *get_args(Method))
    inputs = parse_inputs(
        in1,
        in2,
        mode,
        None,
        correlated=correlated,
        strict=True,
    )
    if method == "direct":
        refuse_unsupported(options, inputs.first, "method 'direct'")
    convolution: Any = _convolution(
        inputs,
        method,
        options,
        correlated=correlated,
    )
    dtype = np.result_type(inputs.first.dtype, inputs.second.dtype)
    if convolution.dtype.kind == "f" and dtype.kind not in "fc":
        convolution = da.rint(convolution)
    return cast("da.Array", convolution.astype(dtype))


@keeps_kind
def convolve(
    in1: Any,
    in2: Any,
    mode: Mode = "full",
    method: Method = "auto",
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the convolution of two arrays over all axes.

    Parameters
    ----------
    in1, in2 : dask array or array-like
        With the same number of axes.
    mode : {"full", "same", "valid"}
        See `fftconvolve`.
    method : {"auto", "fft", "direct"}
        Through spectra ("fft"), by the sum that defines it, block by block ("direct", exact for
        integers), or block by block where one array is short, else through spectra ("auto").
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fftconvolve`. "auto" takes spectra if only these can follow an option, such as
        `memory_limit`, `verify` or `device="gpu"`, which "direct" refuses.

    Returns
    -------
    dask.array.Array
        Lazy, of the inputs' common dtype: integers stay integers, rounded.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        See `fftconvolve`.

    Examples
    --------
    >>> convolve([1, 2, 3], [0, 1]).compute()
    array([0, 1, 2, 3])
    """
    return _by_method(
        in1,
        in2,
        mode,
        method,
        False,
        options,
    )


@keeps_kind
def correlate(
    in1: Any,
    in2: Any,
    mode: Mode = "full",
    method: Method = "auto",
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the cross-correlation of two arrays over all axes.

    Parameters
    ----------
    in1, in2, mode, method, chunks, ..., planner
        See `convolve`.

    Returns
    -------
    dask.array.Array
        Lazy: ``z[k] = sum_n x[n + k - (n2 - 1)] * conj(y[n])``, x and y being the inputs, n2 the
        length of y, as in `scipy.signal.correlate`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        See `fftconvolve`.

    Notes
    -----
    No array is reversed. The product uses the conjugate of one spectrum, and the last gather
    begins at the first lag.

    Examples
    --------
    >>> correlate([1, 2, 3], [0, 1]).compute()
    array([1, 2, 3, 0])
    """
    return _by_method(
        in1,
        in2,
        mode,
        method,
        True,
        options,
    )
