r"""Convolution and correlation through spectra: there, a product, and back.

With one cut axis, natural order in and out of every transform would take nine exchanges. In
transposed order it is six, because a product does not care in which order frequencies lie::

    in1 --exchange, round--> --exchange, round--> spectrum  \
                                                             x --round--> --exchange, round--> -->
    in2 --exchange, round--> --exchange, round--> spectrum  /

and four where in2 is small (`kernel_spectrum`). Zeros are never stored before the first round:
the first gather pads, and the last one takes the window that a mode asks for.

Imports `config`, `decomposition`, `planner`, `planning` and this room.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.delayed import delayed

from dask_bigfft import config
from dask_bigfft.decomposition.factors import transposed_digits
from dask_bigfft.decomposition.layout import scaled
from dask_bigfft.front import applied, by_block
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planning.arguments import Options, parse_kernel
from dask_bigfft.signal.arguments import Inputs, fast_length, work_dtype
from dask_bigfft.signal.kernel_spectrum import KernelAxis, filtered, product, spectrum_block
from dask_bigfft.signal.transforms import Transforms, planned


def _kernel_axes(
    transforms: Transforms, plan: Plan, kernel: da.Array
) -> tuple[KernelAxis, ...] | None:
    """What a kernel needs to be transformed where the spectrum's blocks lie, if it is small."""
    largest = max(math.prod(chunk) for chunk in itertools.product(*map(set, plan.chunks)))
    itemsize = plan.spec.work_dtype.itemsize
    if kernel.size * kernel.dtype.itemsize > largest * itemsize:
        return None
    for axis, size in enumerate(kernel.shape):
        if axis not in transforms.axes and size != 1 and len(plan.chunks[axis]) > 1:
            return None
        if axis not in transforms.axes and size > plan.spec.shape[axis]:
            return None
    found = []
    for axis, n, order in zip(transforms.axes, transforms.lengths, transforms.orders, strict=True):
        digits = transposed_digits(n) if order == "transposed" else (n,)
        half = transforms.real and axis == transforms.axes[-1]
        bounds = (0, *itertools.accumulate(plan.chunks[axis]))
        found.append(KernelAxis(axis, n, digits, half, bounds, kernel.shape[axis]))
    return tuple(found) if all(along.is_local for along in found) else None


def _product(
    first: da.Array,
    second: da.Array,
    transforms: Transforms,
    there: Plan,
    swapped: bool,
    conjugate: tuple[bool, bool],
    options: Options,
) -> Any:
    """The product of two spectra; that of `second` is made where it is needed if it is small."""
    spectrum = applied(first, there)
    turned = conjugate[::-1] if swapped else conjugate
    dtype = np.result_type(spectrum.dtype, work_dtype(second))
    axes = _kernel_axes(transforms, there, second)
    if axes is not None and any(spectrum.numblocks[a] > 1 for a in transforms.others(second.ndim)):
        library = _library(there, dtype, options)
        made = _kernel_array(second.rechunk(-1), axes, there, library, dtype)
        return _multiplied(spectrum, made, turned)
    if axes is not None:
        how = {"axes": axes, "conjugate": turned, "library": there.kernel}
        return by_block(filtered, spectrum, second.rechunk(-1), dtype=dtype, **how)
    if first.name == second.name:  # with itself: one spectrum will do
        return _multiplied(spectrum, spectrum, turned)
    wanted = tuple(
        cut if sum(cut) == (n if axis in transforms.axes else second.shape[axis]) else "auto"
        for axis, (cut, n) in enumerate(zip(there.chunks, there.spec.out_shape, strict=True))
    )
    later = _after(second, spectrum)
    other = applied(later, transforms.forward(later, options, chunks=wanted))
    return _multiplied(spectrum, other, turned)


def _library(there: Plan, dtype: np.dtype[Any], options: Options) -> str:
    """The FFT library for spectra of a dtype, in which that of the plan may not work."""
    if dtype == there.spec.work_dtype:
        return there.kernel
    return parse_kernel(options.get("kernel"), dtype)[0]


def _kernel_array(
    kernel: da.Array, axes: tuple[KernelAxis, ...], there: Plan, library: str, dtype: np.dtype[Any]
) -> da.Array:
    """The spectrum of a small kernel, each block of which serves many of the other spectrum's.

    These differ along axes that are not transformed, and each would make it anew.
    """
    make = delayed(spectrum_block, pure=True)
    (values,) = kernel.to_delayed().ravel()
    cuts: list[tuple[int, ...]] = [(n,) for n in kernel.shape]
    for along in axes:
        cuts[along.axis] = there.chunks[along.axis]
    blocks = np.empty([len(cut) for cut in cuts], object)
    for block in np.ndindex(blocks.shape):
        shape = tuple(cut[i] for cut, i in zip(cuts, block, strict=True))
        found = make(values, axes, block, library, dtype)
        blocks[block] = da.from_delayed(found, shape, meta=np.empty((0,) * kernel.ndim, dtype))
    return cast("da.Array", da.block(blocks.tolist()))


def _mark(block: Any) -> Any:
    return np.zeros((1,) * block.ndim, np.int8)


def _kept(block: Any, mark: Any) -> Any:
    return block


def _after(a: Any, first: Any) -> Any:
    """The array, whose blocks wait until another array is there.

    Its transform then does not begin beside the other one's: at no time do both have the blocks
    before and after an exchange in memory.
    """
    marks = first.map_blocks(_mark, chunks=tuple((1,) * n for n in first.numblocks), dtype=np.int8)
    return a.map_blocks(_kept, marks.sum(), dtype=a.dtype, meta=a._meta)


def _multiplied(a: da.Array, b: da.Array, conjugate: tuple[bool, bool]) -> Any:
    """The product of two arrays, block by block; either may have length 1 along an axis."""
    index, dtype = tuple(range(a.ndim)), np.result_type(a.dtype, b.dtype)
    meta = np.empty((0,) * a.ndim, dtype)
    pairs = (index, a, index, b, index)
    return da.blockwise(product, *pairs, conjugate=conjugate, dtype=dtype, meta=meta)


def by_spectra(inputs: Inputs, correlated: bool, options: Options) -> da.Array:
    """The convolution, or the correlation, through spectra."""
    first, second = inputs.first, inputs.second
    real = first.dtype.kind != "c" and second.dtype.kind != "c"
    if not real:
        first, second = (a.astype(work_dtype(a)) for a in (first, second))
    swapped = first.size < second.size
    large, small = (second, first) if swapped else (first, second)
    # The axis that is halved comes last: best one that lies whole in blocks.
    windows = sorted(inputs.windows, key=lambda w: (large.numblocks[w.axis] == 1, w.axis))
    alone = len(windows) == 1
    axes = tuple(w.axis for w in windows)
    lengths = tuple(
        fast_length(w.least, alone and large.numblocks[w.axis] > 1, real) for w in windows
    )
    transforms, there = planned(large, axes, lengths, real, options)
    conjugate = (False, correlated)
    spectrum = _product(large, small, transforms, there, swapped, conjugate, options)
    starts = {
        w.axis: ((w.start - (w.second - 1 if correlated else 0)) % n, w.count)
        for w, n in zip(windows, lengths, strict=True)
    }
    kept: Options = {**options, "chunks": _result_chunks(inputs, options.get("chunks"))}
    back = transforms.inverse(spectrum, kept, starts)
    if _takes_turns(there, back):
        spectrum = _after(spectrum, spectrum)
    return cast("da.Array", applied(spectrum, back))


def _takes_turns(there: Plan, back: Plan) -> bool:
    """Whether the way back had best begin when all of the product is there.

    Its blocks then lie where those of the way there lay together. Where blocks go through files or
    to other processes, they had best go at once.
    """
    return there.machine.shared and all(any(p.joints.exchanges) for p in (there, back))


def _result_chunks(inputs: Inputs, chunks: Any) -> Any:
    """Chunks as asked for, where those of the input are meant those of the first one."""
    chunks = config.get("bigfft.chunks") if chunks is None else chunks
    if not isinstance(chunks, Mapping) and not (isinstance(chunks, str) and chunks == "preserve"):
        return chunks
    shapes = zip(inputs.first.shape, inputs.second.shape, strict=True)
    lengths = [max(pair) for pair in shapes]
    for w in inputs.windows:
        lengths[w.axis] = w.count
    kept = dict(enumerate(map(scaled, inputs.first.chunks, lengths)))
    return {**kept, **chunks} if isinstance(chunks, Mapping) else tuple(kept.values())
