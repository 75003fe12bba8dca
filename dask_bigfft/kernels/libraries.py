"""FFT libraries behind one interface with explicit sign, scale and number of threads.

========  =================================  ====================================================
name      licence                            how it is called
========  =================================  ====================================================
scipy     BSD-3-Clause                       its private module as ducc0, else `NumPy`
mkl_fft   BSD-3-Clause, MKL Intel's own      axis by axis, with MKL's threads set meanwhile
ducc0     GPL-2.0-or-later                   ``out=x``, ``nthreads``
pyfftw    BSD-3-Clause, FFTW GPL             own pool of ESTIMATE plans, see `FFTWPlans`
========  =================================  ====================================================

A library is imported on first use. Libraries with wrong results on this machine are not used
(`self_test`). Tasks run in parallel in the threads of a worker, so every library uses one thread,
unless a block runs alone (`FFTLibrary.using`). All libraries have the same semantics:

- ``sign`` is the sign of the exponent, and ``scale`` the factor of the sum for either sign;
- c2c of writeable memory returns its result in that memory; r2c and c2r only read their input;
- inputs may have any strides, single precision stays single, and empty arrays are never passed on.
"""

import importlib
import importlib.metadata
import importlib.util
import logging
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import scipy.fft
from numpy.lib.stride_tricks import as_strided

from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentError, FallbackWarning, KernelError, raise_invalid
from dask_bigfft.events import current_place, measured
from dask_bigfft.kernels.copies import copy_array, regular_strides
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import allocate
from dask_bigfft.memory.arena import ordinary_block
from dask_bigfft.self_tests import ALLOWED, relative_error, wrong_result
from dask_bigfft.system import deep_binding, loaded_library
from dask_bigfft.transforms.layout import CACHE_LINE, LONG_BYTES, ROW_BYTES, TILE_BYTES, half

#: Factor of the sum: 1 for "none", 1/sqrt(n) for "ortho", 1/n for "full".
Scale = Literal["none", "ortho", "full"]


REAL_TO_COMPLEX = dict(zip(map(np.dtype, "fdg"), map(np.dtype, "FDG"), strict=True))
COMPLEX_TO_REAL = {wide: real for real, wide in REAL_TO_COMPLEX.items()}
ALL_DTYPES = frozenset(COMPLEX_TO_REAL)
SHORT_DTYPES = ALL_DTYPES - {np.dtype("G")}

#: Bytes above which several axes are transformed one by one in padded memory.
PADDED_BYTES = 8 << 20

#: Bytes of a cache that a column may fill without a copy in padded memory, by dtype. Rows of 2^k m
#: bytes, m odd, use one of 2^k / 64 sets of a cache, so that a column of n rows needs as much of it
#: as n 2^k bytes in a piece. With that many bytes pocketfft took 0.6 to 0.9 times as long in place
#: as in padded memory, but 1.1 times in single precision on an Intel Xeon with 2 MiB of L2. With
#: twice as many it took 1.4 times as long there, and 0.7 times on an AMD EPYC.
COLUMN_BYTES = {np.dtype("F"): 1 << 20, np.dtype("D"): 1 << 19, np.dtype("G"): 1 << 19}

#: Maximum number of rows of a column that is transformed without a copy in padded memory. Each row
#: has a cache line of its own, and often a page. In place pocketfft took 0.65 to 1.02 times as long
#: with 2048 and 4096 rows, and 1.0 to 1.55 times with 5000 to 16384 (Intel Xeon).
COLUMN_ROWS = 1 << 12

#: Distance of rows, or a multiple of it, at which they use the same sets of a first-level cache.
SET_BYTES = 1 << 12

log = logging.getLogger(__name__)


def with_length(shape: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    """Return a shape with another length along a dimension."""
    return (*shape[:dim], n, *shape[dim + 1 :])


def regular(x: Array) -> Array:
    """Return `x` as a plain array, copied if strides are zero or not multiples of the itemsize.

    mkl_fft refuses the former, and FFTW does not support the latter.
    """
    spread = all(s or n == 1 for s, n in zip(x.strides, x.shape, strict=True))
    return np.asarray(x) if spread and regular_strides(x) else np.array(x)


def same_memory(a: Array, b: Array) -> bool:
    """Return True if two arrays of one shape and dtype are views of the same elements."""
    if a is b or a.ctypes.data != b.ctypes.data:
        return a is b
    steps = zip(a.shape, a.strides, b.strides, strict=True)
    return a.strides == b.strides or all(s == t for n, s, t in steps if n > 1)


class Call(NamedTuple):
    """One call of a library.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        Complex to complex; real to half a spectrum over the last of the axes, then complex over the
        others; half a spectrum to real.
    dims : tuple of int
        Axes, none of them negative, that of real values last.
    sign : int
        Of the exponent, -1 or +1.
    scale : Scale
        Factor of the result.
    length : int
        Number of real values for c2r.
    """

    kind: str
    dims: tuple[int, ...]
    sign: int
    scale: Scale = "none"
    length: int = 0


class FFTLibrary:
    """One FFT library; `get_library` returns them.

    Pickles as its name, so it may travel inside a task. Subclasses implement `_run` for arrays that
    are not empty and of the right dtype: complex to complex in place, or in `out`.

    Attributes
    ----------
    name : str
        Name for `get_library`.
    license : str
        SPDX expression for the loaded code.
    dtypes : frozenset of dtype
        Supported complex dtypes.
    takes_real : bool
        True if c2c is faster for real values.
    supports_out : bool
        True if all calls can write to other memory as fast as in place.
    is_self_contained : bool
        True if the package contains all code that computes, so that its version identifies it.
    beside : int
        Number of threads of this process that use it in parallel, each for its own blocks.

    Examples
    --------
    >>> library = get_library("scipy")
    >>> library.c2c(np.array([1, 0, 0, 0], dtype=complex), (0,), -1)
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    >>> half = library.run(Call("r2c", (0,), -1), np.array([1.0, 2.0, 3.0]))
    >>> library.run(Call("c2r", (0,), +1, "full", 3), half)
    array([1., 2., 3.])
    """

    name: ClassVar[str]
    license: ClassVar[str]
    dtypes: ClassVar[frozenset[np.dtype[Any]]] = SHORT_DTYPES
    takes_real: ClassVar[bool] = False
    supports_out: ClassVar[bool] = False
    is_self_contained: ClassVar[bool] = False
    beside = 1
    threads = 1

    def __reduce__(self) -> tuple[Callable[[str], "FFTLibrary"], tuple[str]]:
        return get_library, (self.name,)

    def using(self, threads: int) -> Self:
        """Return the library with a number of inner threads per call, for blocks that run alone."""
        return self._with(threads=threads)

    def among(self, threads: int) -> Self:
        """Return the library for use by several threads in parallel, which have larger tiles."""
        return self._with(beside=threads)

    def _with(self, **values: int) -> Self:
        """Return a copy with other attributes."""
        library = object.__new__(type(self))
        vars(library).update(vars(self), **values)
        return library

    def _run(self, call: Call, x: Array, out: Array | None) -> Array:
        """Return the transform of an array that is not empty, in `out` if that is given."""
        raise NotImplementedError

    def run(self, call: Call, x: Array, out: Array | None = None) -> Array:
        """Return the transform of `x` described by a call.

        Parameters
        ----------
        call
            Description of the transform. Its axes are distinct; without axes, `x` is returned.
        x
            Complex, of n//2 + 1 entries along the axis for c2r, or real. c2c overwrites complex
            values unless they are read-only; else `x` is only read. Its elements must not share
            memory.
        out
            Memory of the result's shape and dtype that shares nothing with `x`, which libraries
            with `supports_out` write and return; `x` is then only read. Others ignore it.
        """
        self._refuse_dtype(call, x.dtype)
        if not x.size or not call.dims or (call.kind == "c2r" and not call.length):
            return _of_nothing(call, x)
        out = out if self.supports_out else None
        if call.kind == "c2c":
            return self._run_c2c(call, x, out)
        with measured("fft", x.nbytes):
            return self._run(call, regular(x), out)

    def _run_c2c(self, call: Call, x: Array, out: Array | None) -> Array:
        """Return a complex transform, in `out`, in the place of complex `x`, or in new memory."""
        is_real = x.dtype.kind != "c"
        if is_real and not self.takes_real:
            x = x.astype(REAL_TO_COMPLEX[x.dtype])
            is_real = False
        only_read = out is not None or is_real
        writeable = x.flags.writeable
        # mkl_fft would write to read-only memory all the same.
        values = regular(x) if only_read or writeable else np.array(x)
        with measured("fft", x.nbytes):
            result = self._run(call, values, out)
        if only_read or not writeable:
            return result
        if not same_memory(result, x):
            x[...] = result
        return x

    def _refuse_dtype(self, call: Call, dtype: np.dtype[Any]) -> None:
        """Raise an error if the library does not take a dtype."""
        if dtype in self.dtypes:
            return
        if call.kind != "c2r" and REAL_TO_COMPLEX.get(dtype) in self.dtypes:
            return
        allowed = f"one that {self.name} works in: {', '.join(sorted(map(str, self.dtypes)))}"
        raise_invalid("dtype", str(dtype), allowed, kind=KernelError)

    def c2c(
        self,
        x: Array,
        dims: tuple[int, ...],
        sign: int,
        scale: Scale = "none",
    ) -> Array:
        """Return the transform of complex or real `x` over some axes; see `run`."""
        return self.run(Call("c2c", tuple(d % x.ndim for d in dims), sign, scale), x)


def _of_nothing(call: Call, x: Array) -> Array:
    """Return the transform of an empty array, or over no axes."""
    if call.kind == "c2c":
        return x if x.dtype.kind == "c" else x.astype(REAL_TO_COMPLEX[x.dtype])
    dim = call.dims[-1]
    if call.kind == "c2r":
        length = call.length
        dtype = COMPLEX_TO_REAL[x.dtype]
    else:
        length = half(x.shape[dim])
        dtype = REAL_TO_COMPLEX.get(x.dtype, x.dtype)
    return np.zeros(with_length(x.shape, dim, length), dtype)


def _norm(sign: int, scale: Scale) -> str:
    """Return NumPy's `norm` for a scale: the name of the direction with the factor."""
    if scale == "ortho":
        return "ortho"
    return "backward" if (scale == "none") == (sign < 0) else "forward"


def _scaled(x: Array, n: int, scale: Scale) -> Array:
    """Return `x`, multiplied in place."""
    if scale != "none":
        x *= 1 / n if scale == "full" else 1 / math.sqrt(n)
    return x


class DuccInterface(FFTLibrary):
    """A library that is called like `ducc0.fft`; a subclass has the module in `_fft`."""

    dtypes = ALL_DTYPES
    takes_real = True
    supports_out = True
    is_self_contained = True
    _fft: Any
    _INORM: ClassVar = {"none": 0, "ortho": 1, "full": 2}

    def _run(self, call: Call, x: Array, out: Array | None) -> Array:
        if call.kind == "c2c" and out is None and x.dtype.kind == "c":
            out = x
        options: dict[str, Any] = {"lastsize": call.length} if call.kind == "c2r" else {}
        transform = getattr(self._fft, call.kind)
        result: Array = transform(
            x,
            axes=call.dims,
            out=out,
            forward=call.sign < 0,
            inorm=self._INORM[call.scale],
            nthreads=self.threads,
            **options,
        )
        return result if out is None else out  # the library returns another array object


class Ducc(DuccInterface):
    """`ducc0.fft`.

    It writes sixteen lines of real values at a time in single precision. They evict each other from
    a cache of eight ways if they use the same sets of it. Such results are written to padded memory
    and copied, in 0.6 times the time for rows of 4 KiB.
    """

    name = "ducc0"
    license = "GPL-2.0-or-later"

    def __init__(self) -> None:
        self._fft = importlib.import_module("ducc0").fft

    def _run(self, call: Call, x: Array, out: Array | None) -> Array:
        if call.kind != "c2r" or out is None or not _lines_share_sets(out, call.dims[-1]):
            return super()._run(call, x, out)
        padded = super()._run(call, x, _padded(out))
        copy_array(out, padded)
        return out


class DuccOfSciPy(DuccInterface):
    """ducc's FFT as SciPy contains it from 1.18 on, called like `ducc0.fft`.

    The module is private, so its functions are tried.
    """

    name = "scipy"
    license = "BSD-3-Clause"
    _MODULE = "scipy.fft._duccfft.pyduccfft"

    def __init__(self) -> None:
        self._fft = importlib.import_module(self._MODULE)
        for call in Call("c2c", (0,), 1), Call("r2c", (0,), 1), Call("c2r", (0,), 1, "full", 1):
            x = np.ones(1, float if call.kind == "r2c" else complex)
            self._run(call, x, np.zeros(1, float if call.kind == "c2r" else complex))


class PocketFFT(DuccOfSciPy):
    """pocketfft as SciPy contains it before 1.18, which has the interface of ducc.

    It copies two lines at a time, so neighbouring columns share cache lines, which are evicted in
    between if there are many rows, or if the distance of the rows is a multiple of a large power of
    two. Such columns are transformed tile by tile in memory with padded rows: up to twice as fast.
    Others are transformed in place, in two thirds of that time.
    """

    _MODULE = "scipy.fft._pocketfft.pypocketfft"

    def _run(self, call: Call, x: Array, out: Array | None) -> Array:
        if call.kind != "c2c" or x.dtype.kind != "c":
            return super()._run(call, x, out)
        result = x if out is None else out
        # Dimensions by falling stride, and those of the transform with the innermost one first.
        order = sorted(range(x.ndim), key=lambda dim: (x.shape[dim] > 1, -x.strides[dim]))
        dims = tuple(sorted(map(order.index, call.dims), reverse=True))
        self._run_by_stride(
            call._replace(dims=dims),
            x.transpose(order),
            result.transpose(order),
        )
        return result

    def _run_by_stride(self, call: Call, x: Array, target: Array) -> None:
        """Do complex FFTs of an array whose dimensions have falling strides, in the fastest way."""
        dims = call.dims
        last = x.ndim - 1
        is_dense = x.strides[last] == x.itemsize
        are_lines = is_dense and target.strides[last] == x.itemsize and dims == (last,)
        part = self._part(call, x, are_lines)
        if part is not None:
            dim, width = part
            self._run_in_parts(
                call,
                x,
                target,
                dim,
                width,
            )
        elif x.nbytes > PADDED_BYTES and len(dims) > 1:
            self._run(call._replace(dims=dims[:1]), x, target)
            self._run(call._replace(dims=dims[1:]), target, None)
        elif are_lines or x.nbytes > LONG_BYTES * len(dims) or _stay_in_cache((x, target), dims):
            super()._run(call, x, target)
        else:
            padded = _padded(x)
            if not is_dense or dims[0] != last:
                copy_array(padded, x)
                x = padded
            super()._run(call, x, padded)
            copy_array(target, padded)

    def _run_in_parts(
        self,
        call: Call,
        x: Array,
        target: Array,
        dim: int,
        width: int,
    ) -> None:
        """Transform parts of some width along a dimension, divided among the threads."""
        run = self.using(1)._run
        cuts = [(slice(None),) * dim + (cut,) for cut in intervals(x.shape[dim], width)]
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(lambda cut: run(call, x[cut], target[cut]), cuts))

    def _part(self, call: Call, x: Array, are_lines: bool) -> tuple[int, int] | None:
        """Return the dimension and the width of the parts in which `x` is transformed.

        None if it is transformed as a whole. The dimensions of `x` have falling strides.
        """
        last = x.ndim - 1
        least_widths = [1] * last + [ROW_BYTES // x.itemsize]
        free = [
            dim
            for dim in range(x.ndim)
            if dim not in call.dims and x.shape[dim] > least_widths[dim]
        ]
        if not free:
            return None
        if are_lines:
            in_parts = self.threads == 1 and x.shape[last] * x.itemsize >= LONG_BYTES
        else:
            in_parts = x.nbytes >= LONG_BYTES
        if not in_parts:
            return None
        dim = free[0]
        return dim, max(TILE_BYTES * x.shape[dim] // x.nbytes, least_widths[dim])


def _stay_in_cache(
    arrays: Iterable[Array],
    dims: tuple[int, ...],
) -> bool:
    """Return whether neighbours of a column find its cache lines in a cache, in each array.

    >>> _stay_in_cache([np.empty((512, 257), "c8")], dims=(0,))
    True
    >>> _stay_in_cache([np.empty((512, 512), "c8")], dims=(0,))
    False
    >>> _stay_in_cache([np.empty((8192, 257), "c8")], dims=(0,))
    False
    """
    for array in arrays:
        for dim in dims:
            rows = array.shape[dim]
            stride = array.strides[dim]
            power_of_two = stride & -stride
            is_long = rows > COLUMN_ROWS and stride >= CACHE_LINE
            if is_long or rows * power_of_two > COLUMN_BYTES[array.dtype]:
                return False
    return True


def _lines_share_sets(result: Array, dim: int) -> bool:
    """Return whether neighbouring lines of a small result use the same sets of a cache.

    Parameters
    ----------
    result : ndarray
        The result; lines in double precision are half as many at a time and fit the cache.
    dim : int
        Dimension of the lines.

    Examples
    --------
    >>> _lines_share_sets(np.empty((16, 1024), "f4"), 1)
    True
    >>> _lines_share_sets(np.empty((16, 1000), "f4"), 1)
    False
    """
    if result.itemsize > 4 or result.nbytes > LONG_BYTES:
        return False
    distances = [
        stride
        for other, (stride, size) in enumerate(zip(result.strides, result.shape, strict=True))
        if other != dim and size > 1
    ]
    return bool(distances) and min(distances) % SET_BYTES == 0


def _padded(x: Array) -> Array:
    """Return new memory of an array's shape, whose rows have an odd number of cache lines.

    Short rows are not padded: they would become several times as long, and no faster to transform.
    """
    row_nbytes = x.shape[-1] * x.itemsize
    if row_nbytes < ROW_BYTES:
        return allocate(x.shape, x.dtype)
    cache_lines = -(-row_nbytes // CACHE_LINE) | 1
    row_length = cache_lines * CACHE_LINE // x.itemsize
    return allocate((*x.shape[:-1], row_length), x.dtype)[..., : x.shape[-1]]


def _scipy() -> FFTLibrary:
    """Return SciPy's library that can write to given memory, else NumPy's.

    Warns
    -----
    FallbackWarning
        If SciPy's private functions are not as they are known, or give other results than its
        public ones.
    """
    problems: list[str] = []
    for kind in DuccOfSciPy, PocketFFT:  # a release has one of them
        try:
            library = kind()
        except (ImportError, AttributeError, TypeError) as error:
            problems.append(str(error))
            continue
        wrong = _wrong_result(library)
        if wrong is None:
            return library
        problems.append(wrong)
    text = f"numpy.fft is used in place of private functions of SciPy {scipy.__version__}, which "
    text += f"are not as dask_bigfft knows them ({'; '.join(problems)}): FFTs are slower"
    warnings.warn(text, FallbackWarning, stacklevel=2)
    return NumPy()


class NumPy(FFTLibrary):
    """`numpy.fft`, in place of SciPy's private module if that has changed.

    Base of libraries with real transforms of one axis, with the sign and scale of NumPy's.
    """

    name = "scipy"
    license = "BSD-3-Clause"
    dtypes = ALL_DTYPES
    _fft: Any = np.fft

    def _complex(
        self,
        x: Array,
        dims: tuple[int, ...],
        sign: int,
        scale: Scale,
    ) -> Array:
        """Do a complex transform in place."""
        run = self._fft.fft if sign < 0 else self._fft.ifft
        own = scale if len(dims) == 1 else "none"  # avoids rounding a factor for each axis
        for dim in dims:
            run(x, axis=dim, norm=_norm(sign, own), out=x)
        return x if own == scale else _scaled(x, math.prod(x.shape[d] for d in dims), scale)

    def _real(
        self,
        x: Array,
        dim: int,
        n: int,
        scale: Scale,
    ) -> Array:
        """Do r2c with sign -1, or c2r to `n` real values with sign +1."""
        run, sign = (self._fft.irfft, 1) if x.dtype.kind == "c" else (self._fft.rfft, -1)
        result: Array = run(x, n=n, axis=dim, norm=_norm(sign, scale))
        return result

    def _run(self, call: Call, x: Array, out: Array | None) -> Array:
        kind, dims, sign, scale, n = call
        if kind == "c2c":
            return self._complex(x, dims, sign, scale)
        *others, dim = dims
        if kind == "c2r":
            return self._real(x if sign > 0 else np.conjugate(x), dim, n, scale)
        result = self._real(x, dim, x.shape[dim], "none" if others else scale)
        if sign > 0:
            np.conjugate(result, out=result)
        if not others:
            return result
        result = self._complex(result, tuple(others), sign, "none")
        return _scaled(result, math.prod(x.shape[d] for d in dims), scale)


class MKL(NumPy):
    """`mkl_fft`, axis by axis: its n-dimensional calls misjudge the scale of a subset of axes."""

    name = "mkl_fft"
    license = "BSD-3-Clause AND LicenseRef-Intel-Simplified"
    dtypes = SHORT_DTYPES

    def __init__(self) -> None:
        self._fft: Any = importlib.import_module("mkl_fft")
        self._set_threads = _mkl_thread_setter()

    def _run(self, call: Call, x: Array, out: Array | None) -> Array:
        before = self._set_threads(self.threads)
        try:
            return super()._run(call, x, out)
        finally:
            self._set_threads(before)


def _mkl_thread_setter() -> Callable[[int], int]:
    """Return MKL's call that sets the threads of the calling thread and returns the old number.

    mkl-service wraps it but is not always there; the library that mkl_fft has loaded always is.
    """
    for version in ("3", "2"):
        with suppress(OSError):
            mkl = loaded_library(f"libmkl_rt.so.{version}")
            setter: Callable[[int], int] = mkl.MKL_Set_Num_Threads_Local
            return setter
    return int  # what MKL_NUM_THREADS says then holds


class FFTW(NumPy):
    """FFTW by pyFFTW's plan objects, with a separate pass for scaling."""

    name = "pyfftw"
    license = "BSD-3-Clause AND GPL-2.0-or-later"
    dtypes = SHORT_DTYPES

    def __init__(self) -> None:
        self._plans = FFTWPlans(_import_pyfftw())

    def _complex(
        self,
        x: Array,
        dims: tuple[int, ...],
        sign: int,
        scale: Scale,
    ) -> Array:
        direction = "FFTW_FORWARD" if sign < 0 else "FFTW_BACKWARD"
        self._plans.execute(x, x, dims, direction, self.threads)
        return _scaled(x, math.prod(x.shape[d] for d in dims), scale)

    def _real(
        self,
        x: Array,
        dim: int,
        n: int,
        scale: Scale,
    ) -> Array:
        if x.dtype.kind == "c":
            direction = "FFTW_BACKWARD"
            length = n
            dtype = COMPLEX_TO_REAL[x.dtype]
        else:
            direction = "FFTW_FORWARD"
            length = n // 2 + 1
            dtype = REAL_TO_COMPLEX[x.dtype]
        out = np.empty(with_length(x.shape, dim, length), dtype)
        self._plans.execute(x, out, (dim,), direction, self.threads)
        return _scaled(out, n, scale)


def _import_pyfftw() -> Any:
    """Return pyFFTW, imported so that it finds FFTW.

    From its first transform on, MKL offers the process its own functions under FFTW's names. They
    would be bound in place of FFTW's, and fail on some strides; deep binding prefers the latter.
    """
    with deep_binding():
        fftw = importlib.import_module("pyfftw")
    if not fftw.fftw_cc:  # MKL's say that no compiler made them
        allowed = "pyfftw imported before MKL is used; here it is bound to MKL's imitation of FFTW"
        raise_invalid("kernel", "pyfftw", allowed, kind=KernelError)
    return fftw


#: Maximum number of array layouts with cached plans, one plan for each thread that has used it.
MOST_LAYOUTS = 32


class FFTWPlans:
    """Idle FFTW plans, each used by one thread at a time; they hold no data.

    Neither cache of pyFFTW's own serves here. Its interfaces copy the input whenever they plan, and
    a cached plan keeps the last arrays alive, which for blocks is a leak. So plans are made, with
    ESTIMATE, which touches no data, for *stubs*: arrays with the shape and strides of the real ones
    but a few bytes of memory. They are swapped for the real arrays around one execution.

    ESTIMATE plans poorly for long strides: down the columns of 512 x 512 it ran at 1 GFLOP/s where
    MEASURE had 15. Rows are well served, and the kernels transpose their tiles into rows.

    FFTW's planner must run alone, and so must the destruction of a plan, which pyFFTW leaves to the
    garbage collector: both happen here under one lock. Executing is free of it and of the GIL.
    """

    def __init__(self, fftw: Any) -> None:
        self._fftw = fftw
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[Any, ...], list[tuple[Any, Array, Array]]] = OrderedDict()

    def execute(
        self,
        x: Array,
        out: Array,
        dims: tuple[int, ...],
        direction: str,
        threads: int = 1,
    ) -> None:
        """Transform `x` into `out` with some threads; both directions are without a scale.

        For a transform in place `out` is the object `x`, not another view of its memory.
        """
        # FFTW's SIMD wants no more than 16 bytes, what NumPy's own memory has.
        aligned = (x.ctypes.data | out.ctypes.data) % 16 == 0
        layout = (x.dtype, x.shape, x.strides, out.shape, out.strides)
        key = (layout, x is out, dims, direction, aligned, threads)
        plan, x_stub, out_stub = self._borrow(key, x, out)
        try:
            plan.update_arrays(x, out)
            plan.execute()
        finally:
            plan.update_arrays(x_stub, out_stub)
            self._give_back(key, (plan, x_stub, out_stub))

    def _borrow(self, key: tuple[Any, ...], x: Array, out: Array) -> tuple[Any, Array, Array]:
        _, in_place, dims, direction, aligned, threads = key
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                return idle.pop()
            x_stub = self._stub(x)
            out_stub = x_stub if in_place else self._stub(out)
            flags = ("FFTW_ESTIMATE",) if aligned else ("FFTW_ESTIMATE", "FFTW_UNALIGNED")
            plan = self._fftw.FFTW(
                x_stub,
                out_stub,
                axes=dims,
                direction=direction,
                flags=flags,
                threads=threads,
            )
            return plan, x_stub, out_stub

    def _give_back(self, key: tuple[Any, ...], entry: tuple[Any, Array, Array]) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(entry)
            self._idle.move_to_end(key)
            if len(self._idle) > MOST_LAYOUTS:
                self._idle.popitem(last=False)

    def _stub(self, like: Array) -> Array:
        """Return an array of the layout of `like` that must not be read: it has one element.

        Its address is an odd multiple of 16 bytes, so that the plan requires no more alignment.
        """
        memory = self._fftw.empty_aligned(128, np.uint8, n=64)[16 : 16 + like.itemsize]
        return as_strided(memory.view(like.dtype), like.shape, like.strides)


# --- self-test ---------------------------------------------------------------------------------

#: Lengths of columns in the self-test, and number of adjacent columns: neither one nor a multiple
#: of any processor's vector length.
LENGTHS = range(2, 65)
BESIDE = 7

#: Lengths of single lines in the self-test, some smooth, some with large prime factors.
LINES = (126, 1000, 4096, 8216, 12836, 13352, 16384)


def self_test(library: FFTLibrary) -> str | None:
    """Return a description of a transform with wrong results on this machine, None if all pass.

    Libraries choose their code by the processor. MKL 2026.2 transforms columns of 40 and 48 values
    in place wrongly on processors with AVX-512, and long single lines of spectra in single
    precision; with AVX2 it does both rightly.

    Parameters
    ----------
    library : FFTLibrary
        It is compared with SciPy in single and double precision.
    """
    for dtype in map(np.dtype, "FD"):
        for what, call, values, expected in _trials(np.random.default_rng(1)):
            place = dtype if values.dtype.kind == "c" else COMPLEX_TO_REAL[dtype]
            x = ordinary_block(values.shape, place)  # aligned like the memory of blocks
            x[...] = values
            off = relative_error(library._run(call, x, None), expected)
            if not off <= ALLOWED * float(np.finfo(dtype).eps):
                return f"{what} in {dtype} are off by {off:.1g}"
    return None


def _trials(rng: np.random.Generator) -> Iterator[tuple[str, Call, Array, Array]]:
    """Yield a description, a call, its input and its result: columns, and single lines."""
    for n in LENGTHS:
        x = rng.standard_normal((n, BESIDE)) + 1j * rng.standard_normal((n, BESIDE))
        yield f"columns of {n} values", Call("c2c", (0,), -1), x, scipy.fft.fft(x, axis=0)
    for n in LINES:
        x = rng.standard_normal((1, n)) + 1j * rng.standard_normal((1, n))
        half = scipy.fft.rfft(x.real)
        yield f"real lines of {n} values", Call("r2c", (1,), -1), x.real, half
        yield f"half spectra of {n} values", Call("c2r", (1,), 1, "full", n), half, x.real
        yield f"lines of {n} values", Call("c2c", (1,), 1), x, scipy.fft.ifft(x, norm="forward")


#: Shapes of the arrays of which every option is compared with public functions, and the axes.
OPTION_SHAPES = ((4, 5, 7), (5, 4, 8))
OPTION_DIMS = ((2,), (0,), (0, 1), (2, 0, 1))


def _wrong_result(library: FFTLibrary) -> str | None:
    """Return a description of wrong results of a library on this machine, None if all are right.

    A test takes some hundredths of a second. Libraries that call other packages are tested in every
    process, because those change without them.
    """

    def test() -> str | None:
        """Return a wrong result, None if there is none."""
        wrong = self_test(library)
        if wrong is None and isinstance(library, DuccOfSciPy):
            wrong = _option_test(library)
        return wrong

    if not library.is_self_contained:
        return test()
    versions = {"numpy": np.__version__, "scipy": scipy.__version__}
    if library.name not in versions:
        versions[library.name] = version_of(library.name)
    return wrong_result(library.name, versions, test)


def _option_test(library: FFTLibrary) -> str | None:
    """Return an option that is not followed, None if all are, in every precision of a library.

    Each call is made in place, and into other memory from columns that are not contiguous.
    """
    for call, values, expected in _option_trials(np.random.default_rng(2)):
        for dtype in sorted(library.dtypes, key=str):
            real = COMPLEX_TO_REAL[dtype]
            x = values.astype(dtype if values.dtype.kind == "c" else real)
            out = np.empty(expected.shape, dtype if expected.dtype.kind == "c" else real)
            into_other = library._run(call, np.asfortranarray(x), out)
            in_place = library._run(call, x, None)
            tolerance = ALLOWED * max(float(np.finfo(real).eps), float(np.finfo(float).eps))
            for result in in_place, into_other:
                off = relative_error(result, expected)
                if not (off <= tolerance and result.dtype == out.dtype):
                    return f"{call} in {dtype} is off by {off:.1g}"
    return None


def _option_trials(rng: np.random.Generator) -> Iterator[tuple[Call, Array, Array]]:
    """Yield calls of every kind, axes, sign and scale, with an input and the public result."""
    public: Any = scipy.fft
    for shape, dims, sign, scale in product(OPTION_SHAPES, OPTION_DIMS, (-1, 1), get_args(Scale)):
        x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        forward = _norm(-1, scale)
        backward = _norm(1, scale)
        if sign < 0:
            expected = public.fftn(x, axes=dims, norm=forward)
        else:
            expected = public.ifftn(x, axes=dims, norm=backward)
        yield Call("c2c", dims, sign, scale), x, expected
        expected = public.rfftn(x.real, axes=dims, norm=forward)
        if sign > 0:
            expected = expected.conj()
        yield Call("r2c", dims, sign, scale), x.real, expected
        dim = dims[-1]
        spectrum = public.rfft(x.real, axis=dim)
        values = spectrum if sign > 0 else spectrum.conj()
        expected = public.irfft(spectrum, shape[dim], axis=dim, norm=backward)
        yield Call("c2r", (dim,), sign, scale, shape[dim]), values, expected


def available() -> tuple[str, ...]:
    """Return the names of the libraries that are installed, the default first.

    Examples
    --------
    >>> available()[0]
    'scipy'
    """
    return tuple(name for name in LIBRARIES if importlib.util.find_spec(name) is not None)


def usable(dtype: Any = None, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the versions of the libraries that work here, by name, the default first.

    Libraries that cannot be loaded or give wrong results here are left out, and those that do not
    support a given complex dtype. With `names` only these are tried.

    Examples
    --------
    >>> next(iter(usable()))
    'scipy'
    """
    versions: dict[str, str] = {}
    for name in available() if names is None else names:
        with suppress(ArgumentError, KernelError, OSError):  # wrong, broken, or bound to another's
            dtypes = get_library(name).dtypes
            if dtype is None or dtype in dtypes:
                versions[name] = version_of(name)
    return versions


@cache
def version_of(name: str) -> str:
    """Return the version of an installed package, else ``"unknown"``."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def get_library(name: str = "auto") -> FFTLibrary:
    """Return the FFT library called `name`, importing it on the first call.

    Parameters
    ----------
    name
        A key of `LIBRARIES`, or "auto": SciPy, which is always there.

    Raises
    ------
    ArgumentError
        If there is no such library, it is not installed, or it gives wrong results on this machine;
        in a task of a cluster the error names the worker.

    Examples
    --------
    >>> get_library("auto").name
    'scipy'
    """
    try:
        with _loading:  # two first calls at once would make two libraries
            library = _load("scipy" if name == "auto" else name)
    except (ImportError, KeyError):
        raise_invalid("kernel", name, _allowed())
    if isinstance(library, str):
        raise_invalid("kernel", name, f"{_allowed()}. Here it answers wrongly: {library}")
    return library


def _allowed() -> str:
    """Return the allowed names of libraries, and those installed in this process."""
    place = current_place()
    where = f"installed on worker {place}" if place else "installed"
    return f"'auto' or one of {', '.join(LIBRARIES)}; {where}: {', '.join(available())}"


_loading = threading.Lock()


@cache
def _load(name: str) -> FFTLibrary | str:
    """Return the library, or the description of its wrong results."""
    library = LIBRARIES[name]()
    wrong = None if name == "scipy" else _wrong_result(library)
    if wrong is None:
        return library
    log.info("%s is not used on this machine: %s", name, wrong)
    return wrong


#: By name, the default first. Long double reaches FFTW only in some builds of pyFFTW: left out.
LIBRARIES: dict[str, Callable[[], FFTLibrary]] = {
    "scipy": _scipy,
    "mkl_fft": MKL,
    "ducc0": Ducc,
    "pyfftw": FFTW,
}
