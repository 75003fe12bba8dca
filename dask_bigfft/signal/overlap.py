"""Convolution block by block, with halos as wide as the kernel.

Sample i of the full convolution of x with m samples of h needs x[i - m + 1] to x[i]. A block of x
that holds samples a..b-1 makes samples a + f to b + f - 1, where f is the start of the mode's
window. It needs m - 1 - f samples before it and f after it::

    x      ......|....a-------b....|......
              halo             halo
    result       |    a+f-----b+f  |

The first and last blocks also make the samples before and after the array.
"""

from dataclasses import replace
from typing import Any, cast

import dask.array as da
import numpy as np

from dask_bigfft.api.calls import by_block
from dask_bigfft.arrays import Array
from dask_bigfft.gpu.cuda import scipy_signal
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.views import is_on_gpu, plain_array
from dask_bigfft.signal.arguments import Inputs, Window, long_enough, window, with_halo
from dask_bigfft.transforms.spec import work_dtype

#: Dtypes of sums for dtypes that SciPy does not sum along several axes.
SUMMED_IN = {"e": np.float32, "?": np.int64}


#: Longest kernel that `numpy.convolve` gets, below the 10,000 products for which OpenBLAS starts
#: threads for each sample of the result.
LONGEST_KERNEL = 4096


def _by_definition(x: Array, h: Array) -> Any:
    """Return the full convolution as sums of products."""
    convolve = scipy_signal(x).convolve
    if x.ndim > 1 or min(x.size, h.size) <= LONGEST_KERNEL:
        return convolve(
            x,
            h,
            "full",
            "direct",
        )
    long, short = (x, h) if x.size >= h.size else (h, x)
    full = np.zeros_like(x, shape=(x.size + h.size - 1,))
    for start in range(0, short.size, LONGEST_KERNEL):
        piece = short[start : start + LONGEST_KERNEL]
        full[start : start + long.size + piece.size - 1] += convolve(
            long,
            piece,
            "full",
            "direct",
        )
    return full


@on_own_gpu
def _convolved(
    x: Array,
    h: Array,
    windows: tuple[Window, ...],
    direct: bool,
    block_id: tuple[int, ...],
    blocks: tuple[int, ...],
    out_dtype: np.dtype[Any],
) -> Any:
    """Return a block of the result from a block with its halo."""
    if not is_on_gpu(x):
        x = plain_array(x, block_id)
    if direct:
        dtype = np.result_type(x, h)
        summed_dtype = SUMMED_IN.get(dtype.char, dtype)
        x = x.astype(summed_dtype, copy=False)
        h = h.astype(summed_dtype, copy=False)
        full = _by_definition(x, h)
    else:
        # SciPy transforms each array in its own precision.
        real_dtype = np.empty(0, out_dtype).real.dtype
        axes = tuple(w.axis for w in windows)
        full = scipy_signal(x).oaconvolve(
            x.astype(np.result_type(x.dtype, real_dtype), copy=False),
            h.astype(np.result_type(h.dtype, real_dtype), copy=False),
            "full",
            axes,
        )
    crop = [slice(None)] * full.ndim
    for w in windows:
        is_first = block_id[w.axis] == 0
        is_last = block_id[w.axis] == blocks[w.axis] - 1
        crop[w.axis] = _samples_of_block(
            w,
            x.shape[w.axis],
            is_first,
            is_last,
        )
    return full[tuple(crop)].astype(out_dtype, copy=False)


def _samples_of_block(
    w: Window,
    length: int,
    is_first: bool,
    is_last: bool,
) -> slice:
    """Return a block's own samples of the full convolution of the block and its halo.

    >>> _samples_of_block(Window(0, 8, 3, 1, 8), length=6, is_first=False, is_last=False)
    slice(2, 6, None)
    """
    start = w.start if is_first else w.second - 1
    count = length
    if not is_first:
        count -= w.second - 1 - w.start  # samples of the previous block
    if is_last:
        count += w.count - w.first
    else:
        count -= w.start  # samples of the next block
    return slice(start, start + count)


def _by_blocks(inputs: Inputs, direct: bool, dtype: np.dtype[Any]) -> da.Array:
    """Return the convolution of the first input with the shorter second one, block by block.

    The second one has a single chunk along convolved axes.
    """
    x = inputs.first
    h = inputs.second
    h_chunks: dict[int, Any] = {}
    for axis, lengths in enumerate(x.chunks):
        is_multiplied = axis not in inputs.axes and x.shape[axis] == h.shape[axis]
        h_chunks[axis] = lengths if is_multiplied else -1
    h = h.rechunk(h_chunks)
    long_chunks: dict[int, Any] = {}
    for w in inputs.windows:
        least = max(w.second - 1, w.first - w.count + 1)  # of "valid", the last chunk has a sample
        long_chunks[w.axis] = long_enough(x.chunks[w.axis], least)
    x = x.rechunk(long_chunks)
    depth: dict[int, Any] = {}
    for w in inputs.windows:
        if x.numblocks[w.axis] > 1:  # a single chunk may be shorter than the kernel
            depth[w.axis] = (w.second - 1 - w.start, w.start)
    # Along an axis on which the inputs broadcast, the result is as long as the longer one.
    chunks = [max(pair, key=sum) for pair in zip(x.chunks, h.chunks, strict=True)]
    for w in inputs.windows:
        *before, last = x.chunks[w.axis]
        chunks[w.axis] = (*before, last + w.count - w.first)
    return by_block(
        _convolved,
        with_halo(x, depth),
        h,
        dtype=dtype,
        chunks=tuple(chunks),
        windows=inputs.windows,
        direct=direct,
        blocks=x.numblocks,
        out_dtype=dtype,
    )


def by_overlap(inputs: Inputs, direct: bool) -> da.Array:
    """Return the convolution of an array with a short one, by FFTs or sums within blocks.

    The short one may be either of the inputs. The result has the values of the windows, which must
    not be cyclic; `inputs.crop` is left to the caller. A window that starts beyond the reach of the
    short array, or ends too early, is cropped from the full convolution.
    """
    dtype = _dtype_of_result(inputs, direct)
    if any(w.first < w.second for w in inputs.windows):  # `_by_blocks` takes the longer one first
        windows = tuple(replace(w, first=w.second, second=w.first) for w in inputs.windows)
        inputs = replace(
            inputs,
            first=inputs.second,
            second=inputs.first,
            windows=windows,
        )
    if all(w.start < w.second and w.count >= w.first - w.second + 1 for w in inputs.windows):
        return _by_blocks(inputs, direct, dtype)
    windows = tuple(
        window(
            w.axis,
            w.first,
            w.second,
            "full",
        )
        for w in inputs.windows
    )
    full = _by_blocks(replace(inputs, windows=windows), direct, dtype)
    crop = [slice(None)] * full.ndim
    for w in inputs.windows:
        crop[w.axis] = slice(w.start, w.start + w.count)
    return cast("da.Array", full[tuple(crop)])


def _dtype_of_result(inputs: Inputs, direct: bool) -> np.dtype[Any]:
    """Return the dtype of a convolution: that of the inputs for sums, else one of FFTs."""
    dtype = np.result_type(inputs.first.dtype, inputs.second.dtype)
    if direct:
        return dtype
    complex_dtype = np.result_type(work_dtype(inputs.first.dtype), work_dtype(inputs.second.dtype))
    return complex_dtype if dtype.kind == "c" else np.empty(0, complex_dtype).real.dtype
