"""CUDA kernels of products with transfer functions: frequencies, values, and sums over samples.

Each is one pass over the GPU's memory and one launch. Array functions of CuPy would take a dozen of
each for the same numbers.

The source text depends only on the structure, as in `kernels`. Functions launch in the current
stream.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.gpu import kernels
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.kernels import AT_A_TIME, GRID, KERNEL, SHARED, THREADS
from dask_bigfft.kernels.indices import PlaceIndex

#: Types of numbers in kernels, by the characters of their dtypes.
_TYPES = {
    "f": "float",
    "d": "double",
    "F": "float2",
    "D": "double2",
}

#: Types of the parts of complex numbers.
_REALS = {"float2": "float", "double2": "double"}

#: Numbers from which indices need 64 bits.
_WIDE = 1 << 31

#: Threads that read neighbouring elements at once.
WARP = 32


# --- frequencies --------------------------------------------------------------------------------


class _TermForm(NamedTuple):
    """Operations of a term of an index: its dimension, and whether it needs each operation."""

    dim: int
    is_shifted: bool
    is_divided: bool
    is_reduced: bool


def frequencies(
    index: PlaceIndex,
    part: slice,
    length: int,
    step: float,
    middle: int | None,
) -> Any:
    """Return the frequencies at some places of an axis of a tile, as a CuPy array.

    Parameters
    ----------
    index : PlaceIndex
        Indices 0 to N - 1 of the frequencies.
    part : slice
        Places in the axis of the tile, in C order.
    length, step, middle
        As for `dask_bigfft.signal.transfer.frequencies_along`, which returns them for an array of
        indices.
    """
    count = part.stop - part.start
    size = count + (middle is not None)
    values = cupy().empty(size, np.float64)
    opposite = 0 if middle is None else part.start + middle
    forms: list[_TermForm] = []
    # Arguments in the order of the parameters in `_frequency_source`.
    numbers: list[int] = [size, count, part.start, opposite, length, *index.shape]
    for term in index.terms:
        dim = term.dim - index.first_dim
        first = index.origin[dim]
        end = term.size if term.offset else first + index.shape[dim]
        is_reduced = end > term.divisor * term.modulus
        forms.append(_TermForm(dim, bool(term.offset), term.divisor > 1, is_reduced))
        numbers += [first, term.stride]
        if term.offset:
            numbers += [term.offset, term.size]
        if term.divisor > 1:
            numbers.append(term.divisor)
        if is_reduced:
            numbers.append(term.modulus)
    is_wide = 2 * max(numbers) >= _WIDE
    source = _frequency_source(len(index.shape), tuple(forms), "u64" if is_wide else "u32")
    kind = np.uint64 if is_wide else np.uint32
    arguments = (np.uint64(values.data.ptr), np.float64(step), *map(kind, numbers))
    blocks = max(1, min(GRID, -(-size // (AT_A_TIME * THREADS))))
    kernels.kernel(source)((blocks,), (THREADS,), arguments)
    return values


@functools.lru_cache(maxsize=256)
def _frequency_source(ndim: int, forms: Sequence[_TermForm], kind: str) -> str:
    """Return the source of the kernel for an index of some dimensions and terms.

    Parameters
    ----------
    ndim : int
        Number of dimensions of the axis.
    forms : sequence of _TermForm
        The terms.
    kind : {"u32", "u64"}
        Type of all indices.
    """
    names = ["size", "count", "start", "opposite", "length"]
    names += [f"n{dim}" for dim in range(ndim)]
    sums: list[str] = []
    for number, form in enumerate(forms):
        names += [f"first{number}", f"stride{number}"]
        digit = f"(first{number} + i{form.dim})"
        if form.is_shifted:
            names += [f"offset{number}", f"size{number}"]
            digit = f"(({digit} + offset{number}) % size{number})"
        if form.is_divided:
            names.append(f"divisor{number}")
            digit = f"({digit} / divisor{number})"
        if form.is_reduced:
            names.append(f"modulus{number}")
            digit = f"({digit} % modulus{number})"
        sums.append(f"{digit} * stride{number}")
    parameters = ", ".join(f"{kind} {name}" for name in names)
    digits = "\n".join(
        f"    const {kind} i{dim} = rest % n{dim}; rest /= n{dim};"
        for dim in reversed(range(1, ndim))
    )
    return f"""{SHARED}
extern "C" __global__ void {KERNEL}(double* to, double step, {parameters}) {{
for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < size;
     i += (u64)gridDim.x * blockDim.x) {{
    const bool is_opposite = i >= count;
    {kind} rest = is_opposite ? opposite : start + ({kind})i;
{digits}
    const {kind} i0 = rest;
    const {kind} k = {" + ".join(sums) or "0"};
    long long cycles = (long long)k;
    if (k >= (length + 1) / 2) cycles -= (long long)length;
    to[i] = (double)cycles * (is_opposite ? -step : step);
}}
}}
"""


# --- products -----------------------------------------------------------------------------------


class CheckedProducts:
    """Products of a spectrum on a GPU with values, which are checked as they are multiplied.

    A kernel writes to pinned memory if a value is not finite, so that the host waits for the
    products only, and not for later work of the GPU.
    """

    def __init__(self) -> None:
        #: 1 in pinned memory if a value was not finite; None before the first product.
        self._has_wrong: npt.NDArray[np.uint8] | None = None
        #: Event after the last product; None if the host has waited for it.
        self._end: Any = None

    def multiply(
        self,
        values: Any,
        spectrum: Any,
        out: Any,
        middles: Mapping[int, int],
        scale: float = 1.0,
    ) -> None:
        """Enqueue the product of values in the precision of a spectrum with it.

        Parameters
        ----------
        values : cupy.ndarray
            Real or complex. They broadcast against the spectrum.
        spectrum, out : cupy.ndarray
            The spectrum and the product, which may be the same array.
        middles : mapping of int to int
            Places along axes for which the mean of the value there and of the last one is taken.
            Along these axes there is one value more than the spectrum has.
        scale : float
            Number by which the product is multiplied.
        """
        if not spectrum.size:
            return
        if self._has_wrong is None:
            pinned_memory = cupy().cuda.alloc_pinned_memory(1)
            self._has_wrong = np.frombuffer(pinned_memory, np.uint8, 1)
            self._has_wrong[0] = 0
        if values.dtype.char not in _TYPES:
            values = values.astype(np.float64)
        _multiply(
            values,
            spectrum,
            out,
            middles,
            scale,
            self._has_wrong.ctypes.data,
        )
        event = cupy().cuda.Event(disable_timing=True)
        self._end = cupy().cuda.get_current_stream().record(event)

    def are_finite(self) -> bool:
        """Wait for the products, and return whether all values so far were finite."""
        self._wait()
        return self._has_wrong is None or not self._has_wrong[0]

    def _wait(self) -> None:
        """Wait for the products."""
        if self._end is not None:
            self._end.synchronize()
            self._end = None

    def __del__(self) -> None:
        """Wait for products that nobody has checked, before their pinned memory is freed."""
        self._wait()


def _multiply(
    values: Any,
    spectrum: Any,
    out: Any,
    middles: Mapping[int, int],
    scale: float,
    has_wrong: int,
) -> None:
    """Enqueue a product; see `CheckedProducts`. `has_wrong` is an address."""
    row_count = math.prod(spectrum.shape[:-1])
    width = spectrum.shape[-1]
    # Many rows have a warp each, so that few threads are idle at their ends.
    lanes = WARP if row_count > GRID else THREADS
    lanes = min(lanes, 1 << (width - 1).bit_length())
    lines = THREADS // lanes
    # Arguments in the order of the parameters in `_product_source`.
    numbers: list[Any] = [np.float64(scale), np.uint64(row_count), np.uint32(lanes)]
    for axis, length in enumerate(spectrum.shape):
        is_constant = values.shape[axis] == 1
        numbers.append(np.uint64(length))
        numbers.append(np.int64(0 if is_constant else values.strides[axis] // values.itemsize))
        numbers.append(np.int64(spectrum.strides[axis] // spectrum.itemsize))
        numbers.append(np.int64(out.strides[axis] // out.itemsize))
        if axis in middles:
            numbers.append(np.uint64(middles[axis]))
    source = _product_source(
        _TYPES[values.dtype.char],
        _TYPES[spectrum.dtype.char],
        spectrum.ndim,
        tuple(sorted(middles)),
        "u32" if max(row_count, width) < _WIDE else "u64",
    )
    columns = max(1, min(GRID, -(-width // (AT_A_TIME * lanes))))
    grid = (columns, max(1, min(GRID // columns, -(-row_count // lines))))
    addresses = [np.uint64(array.data.ptr) for array in (values, spectrum, out)]
    addresses.append(np.uint64(has_wrong))
    kernels.kernel(source)(grid, (THREADS,), (*addresses, *numbers))


@functools.lru_cache(maxsize=256)
def _product_source(
    value_type: str,
    spectrum_type: str,
    ndim: int,
    middle_axes: Sequence[int],
    kind: str,
) -> str:
    """Return the source of the kernel for a product.

    Parameters
    ----------
    value_type, spectrum_type : str
        Types of the values and of the spectrum.
    ndim : int
        Number of axes.
    middle_axes : sequence of int
        Axes with a place whose value is a mean.
    kind : {"u32", "u64"}
        Type of indices.
    """
    parameters = [f"const {value_type}* values", f"const {spectrum_type}* from"]
    parameters += [f"{spectrum_type}* to", "unsigned char* has_wrong"]
    parameters += ["double scale", "u64 rows", "u32 lanes"]
    for axis in range(ndim):
        parameters += [f"u64 n{axis}", f"long long v{axis}"]
        parameters += [f"long long s{axis}", f"long long t{axis}"]
        if axis in middle_axes:
            parameters.append(f"u64 middle{axis}")
    last = ndim - 1
    digits: list[str] = []
    for axis in reversed(range(1, last)):
        digits.append(
            f"    const {kind} i{axis} = rest % ({kind})n{axis}; rest /= ({kind})n{axis};"
        )
    if last:
        digits.append(f"    const {kind} i0 = rest;")
    source_row, out_row = (
        " + ".join(f"(long long)i{axis} * {side}{axis}" for axis in range(last)) or "0"
        for side in "st"
    )
    is_complex = value_type.endswith("2")
    real = _REALS[spectrum_type]
    return f"""{SHARED}
extern "C" __global__ void {KERNEL}({", ".join(parameters)}) {{
const u32 lane = threadIdx.x % lanes, line = threadIdx.x / lanes, lines = blockDim.x / lanes;
bool is_wrong = false;
for (u64 row = (u64)blockIdx.y * lines + line; row < rows; row += (u64)gridDim.y * lines) {{
    {kind} rest = ({kind})row;
{chr(10).join(digits)}
    const {spectrum_type}* row_from = from + ({source_row});
    {spectrum_type}* row_to = to + ({out_row});
    for ({kind} i{last} = ({kind})blockIdx.x * lanes + lane; i{last} < n{last};
         i{last} += gridDim.x * lanes) {{
        const {spectrum_type} x = __ldcs(row_from + (long long)i{last} * s{last});
{_value_statements(value_type, ndim, middle_axes)}
        {spectrum_type} y;
        {_product_statements(is_complex, real)}
        y.x *= ({real})scale; y.y *= ({real})scale;
        __stcs(row_to + (long long)i{last} * t{last}, y);
    }}
}}
if (is_wrong) *has_wrong = 1;
}}
"""


def _value_statements(value_type: str, ndim: int, middle_axes: Sequence[int]) -> str:
    """Return the statements that compute the value `h` of a transfer function and check it.

    It is the mean of all values that have the middle or the last place along each middle axis.
    """
    is_complex = value_type.endswith("2")
    counts = [f"        const int c{a} = i{a} == middle{a} ? 2 : 1;" for a in middle_axes]
    loops = [f"        for (int a{a} = 0; a{a} < c{a}; a{a}++)" for a in middle_axes]
    places: list[str] = []
    for axis in range(ndim):
        index = f"i{axis}"
        if axis in middle_axes:
            index = f"(a{axis} ? n{axis} : i{axis})"
        places.append(f"(long long){index} * v{axis}")
    check = "isfinite(value.x) && isfinite(value.y)" if is_complex else "isfinite(value)"
    share: list[str] = []
    weight = ""
    if middle_axes:  # shares are added, because the sum of large values may overflow
        count = " * ".join(f"c{axis}" for axis in middle_axes)
        share.append(f"        const double share = 1.0 / ({count});")
        weight = " * share"
    add = f"h += value{weight};"
    if is_complex:
        add = f"h.x += value.x{weight}; h.y += value.y{weight};"
    lines = [
        "        double2 h; h.x = 0; h.y = 0;" if is_complex else "        double h = 0;",
        *counts,
        *share,
        *loops,
        "        {",
        f"            const {value_type} value = values[{' + '.join(places)}];",
        f"            is_wrong |= !({check});",
        f"            {add}",
        "        }",
    ]
    return "\n".join(lines)


def _product_statements(is_complex: bool, real: str) -> str:
    """Return the statements that multiply `x` by `h` in the precision of the spectrum."""
    if not is_complex:
        return f"const {real} w = ({real})h; y.x = x.x * w; y.y = x.y * w;"
    return (
        f"const {real} a = ({real})h.x, b = ({real})h.y; "
        "y.x = x.x * a - x.y * b; y.y = x.x * b + x.y * a;"
    )


# --- sums over the samples of a convolution kernel ----------------------------------------------

#: Neighbouring frequencies that a thread sums for, with each sample loaded once.
GROUP = 8


def phases(index: Any, length: int, samples: range, dtype: np.dtype[Any]) -> Any:
    """Return exp(-2 pi i m k / N) for samples m in rows and frequencies k in columns.

    The number of columns is rounded up to a multiple of `GROUP`. No sum uses those behind the last
    frequency.

    Parameters
    ----------
    index : cupy.ndarray of int64
        The frequencies.
    length : int
        Number N of frequencies.
    samples : range
        Consecutive samples, which may be negative.
    dtype : dtype
        Dtype of the result, complex.
    """
    columns = -(-index.size // GROUP) * GROUP
    table = cupy().empty((len(samples), columns), dtype)
    source = _phase_source(_TYPES[table.dtype.char])
    addresses = [np.uint64(array.data.ptr) for array in (table, index)]
    numbers = [table.size, columns, index.size, samples.start % length, length]
    grid = (max(1, min(GRID, -(-table.size // THREADS))),)
    kernels.kernel(source)(grid, (THREADS,), (*addresses, *map(np.uint64, numbers)))
    return table


@functools.lru_cache(maxsize=2)
def _phase_source(table_type: str) -> str:
    """Return the source of the kernel for phases, given the type of the result."""
    return f"""{SHARED}
extern "C" __global__ void {KERNEL}(
    {table_type}* to, const long long* index, u64 size, u64 columns, u64 count, u64 first,
    u64 length
) {{
for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < size;
     i += (u64)gridDim.x * blockDim.x) {{
    const u64 column = i % columns;
    const u64 k = column < count ? (u64)index[column] : 0;
    const u64 sample = (first + i / columns) % length;
    const double2 w = turn((u64)((unsigned __int128)sample * k % length), length, -1.0);
    to[i].x = w.x; to[i].y = w.y;
}}
}}
"""


def sums(values: Any, table: Any, axis: int, count: int) -> Any:
    """Return the sums of samples times their phases, in place of the samples of an axis.

    Parameters
    ----------
    values : cupy.ndarray
        Samples along the axis, real or complex.
    table : cupy.ndarray
        `phases` of the samples, in the precision of the values.
    axis : int
        The axis.
    count : int
        Number of frequencies.
    """
    shape = list(values.shape)
    shape[axis] = count
    result = cupy().empty(shape, table.dtype)
    _sum(
        values,
        table,
        axis,
        first_column=0,
        spectrum=None,
        out=result,
        scale=1.0,
    )
    return result


def multiply_by_sums(
    spectrum: Any,
    out: Any,
    values: Any,
    table: Any,
    axis: int,
    first_column: int,
    scale: float = 1.0,
) -> None:
    """Multiply a spectrum by `sums`, which are not stored.

    Parameters
    ----------
    spectrum, out : cupy.ndarray
        The spectrum and the product, which may be the same array.
    values : cupy.ndarray
        As for `sums`. They broadcast against the spectrum along the other axes.
    table, axis
        As for `sums`.
    first_column : int
        Column of the table for the first place along the axis.
    scale : float
        Number by which the product is multiplied.
    """
    _sum(
        values,
        table,
        axis,
        first_column,
        spectrum,
        out,
        scale,
    )


def _sum(
    values: Any,
    table: Any,
    axis: int,
    first_column: int,
    spectrum: Any | None,
    out: Any,
    scale: float,
) -> None:
    """Enqueue `sums`, or the product of a spectrum with them; only the product has a `scale`."""
    if not out.size:
        return
    arrays = [values, table, out]
    strides = [_strides_of(values), _strides_of(out)]
    if spectrum is not None:
        arrays.append(spectrum)
        strides.append(_strides_of(spectrum))
    first_group = first_column // GROUP
    groups = -(-(first_column + out.shape[axis]) // GROUP) - first_group
    threads = out.size // out.shape[axis] * groups
    samples = table.shape[0]
    groups_of_table = table.shape[1] // GROUP
    shift = first_column - first_group * GROUP
    sample_stride = values.strides[axis] // values.itemsize
    # Arguments in the order of `_sum_parameters`.
    arguments: list[Any] = [np.uint64(array.data.ptr) for array in arrays]
    arguments += map(np.uint64, [threads, samples, groups_of_table, groups, first_group])
    arguments += [np.int64(shift), np.float64(scale), np.int64(sample_stride)]
    for dim, length in enumerate(out.shape):
        arguments.append(np.uint64(length))
        for own_strides in strides:
            arguments.append(np.int64(own_strides[dim]))
    source = _sum_source(
        _TYPES[values.dtype.char],
        _TYPES[out.dtype.char],
        out.ndim,
        axis,
        spectrum is not None,
        "u32" if threads < _WIDE else "u64",
    )
    grid = (max(1, min(GRID, -(-threads // THREADS))),)
    kernels.kernel(source)(grid, (THREADS,), tuple(arguments))


def _strides_of(array: Any) -> list[int]:
    """Return the strides in elements, 0 along axes of length 1."""
    pairs = zip(array.shape, array.strides, strict=True)
    return [0 if length == 1 else stride // array.itemsize for length, stride in pairs]


@functools.lru_cache(maxsize=256)
def _sum_source(
    value_type: str,
    out_type: str,
    ndim: int,
    axis: int,
    multiplies: bool,
    kind: str,
) -> str:
    """Return the source of the kernel for sums over samples.

    A thread has one place along all axes but one, and the frequencies of a group along this one.

    Parameters
    ----------
    value_type, out_type : str
        Types of the samples, and of the table and the result.
    ndim, axis : int
        Number of axes, and the one that is summed.
    multiplies : bool
        Whether a spectrum is multiplied by the sums.
    kind : {"u32", "u64"}
        Type of indices.
    """
    sides = "vts" if multiplies else "vt"
    digits: list[str] = []
    for dim in reversed(range(ndim)):
        length = "groups" if dim == axis else f"n{dim}"
        digits.append(
            f"    const {kind} i{dim} = rest % ({kind}){length}; rest /= ({kind}){length};"
        )
    others = [dim for dim in range(ndim) if dim != axis]
    places = {
        side: " + ".join(f"(long long)i{dim} * {side}{dim}" for dim in others) or "0"
        for side in sides
    }
    real = _REALS[out_type]
    add = "re[j] += w.x * x; im[j] += w.y * x;"
    if value_type.endswith("2"):
        add = "re[j] += w.x * x.x - w.y * x.y; im[j] += w.x * x.y + w.y * x.x;"
    result = "y.x = re[j]; y.y = im[j];"
    if multiplies:
        result = f"""const {out_type} z = spectrum[{places["s"]} + k * s{axis}];
        y.x = (z.x * re[j] - z.y * im[j]) * ({real})scale;
        y.y = (z.x * im[j] + z.y * re[j]) * ({real})scale;"""
    parameters = ", ".join(_sum_parameters(value_type, out_type, ndim, sides))
    return f"""{SHARED}
struct alignas(16) Group {{ {out_type} w[{GROUP}]; }};
extern "C" __global__ void {KERNEL}({parameters}) {{
for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < size;
     i += (u64)gridDim.x * blockDim.x) {{
    {kind} rest = ({kind})i;
{chr(10).join(digits)}
    const {value_type}* own = values + ({places["v"]});
    const Group* group = (const Group*)table + first_group + i{axis};
    {real} re[{GROUP}], im[{GROUP}];
    for (int j = 0; j < {GROUP}; j++) {{ re[j] = 0; im[j] = 0; }}
    for (u64 n = 0; n < samples; n++, own += sample_stride, group += row) {{
        const {value_type} x = *own;
        const Group phase = *group;
        for (int j = 0; j < {GROUP}; j++) {{
            const {out_type} w = phase.w[j];
            {add}
        }}
    }}
    for (int j = 0; j < {GROUP}; j++) {{
        const long long k = (long long)i{axis} * {GROUP} + j - shift;
        if (k < 0 || k >= (long long)n{axis}) continue;
        {out_type} y;
        {result}
        to[{places["t"]} + k * t{axis}] = y;
    }}
}}
}}
"""


def _sum_parameters(value_type: str, out_type: str, ndim: int, sides: str) -> list[str]:
    """Return the parameters of the kernel for sums over samples.

    Parameters
    ----------
    value_type, out_type, ndim
        As for `_sum_source`.
    sides : str
        A letter for each array with a stride for each axis: the samples, the result, the spectrum.
    """
    parameters = [f"const {value_type}* values", f"const {out_type}* table", f"{out_type}* to"]
    if "s" in sides:
        parameters.append(f"const {out_type}* spectrum")
    parameters += ["u64 size", "u64 samples", "u64 row", "u64 groups", "u64 first_group"]
    parameters += ["long long shift", "double scale", "long long sample_stride"]
    for dim in range(ndim):
        parameters.append(f"u64 n{dim}")
        parameters += [f"long long {side}{dim}" for side in sides]
    return parameters
