"""The FFT libraries, as plugs of one form: in place, one thread, an explicit sign and scale.

Imports NumPy, SciPy and `errors`; the optional libraries only when they are asked for by name.
Tasks run side by side in the threads of a worker, so every library is held to one thread, unless a
caller whose block runs alone asks for more (`FFTLibrary.using`). What a caller may rely on,
whichever it chooses:

- ``sign`` is that of the exponent, and ``scale`` says what the sum is multiplied by, whatever the
  sign; the words "forward" and "backward" stay at the front door;
- c2c of memory that may be written answers in that memory; r2c and c2r leave theirs alone;
- any strides will do, single precision stays single, and an empty array never reaches the library.

========  =================================  ====================================================
name      licence                            how it is called
========  =================================  ====================================================
scipy     BSD-3-Clause                       ``overwrite_x``, ``workers``
mkl_fft   BSD-3-Clause, MKL Intel's own      axis by axis, with MKL's threads set meanwhile
ducc0     GPL-2.0-or-later                   ``out=x``, ``nthreads``
pyfftw    BSD-3-Clause, FFTW GPL             own pool of ESTIMATE plans, see `FFTWPlans`
========  =================================  ====================================================
"""

import copy
import ctypes
import importlib
import importlib.util
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.tiles import LONG_BYTES
from dask_bigfft.errors import KernelError, refuse
from dask_bigfft.events import measured
from dask_bigfft.kernels.fftw_plans import FFTWPlans, import_pyfftw

__all__ = ["FFTLibrary", "Scale", "available", "get_library"]

#: "none": the plain sum; "ortho": times 1/sqrt(n); "full": times 1/n.
Scale = Literal["none", "ortho", "full"]

Array = npt.NDArray[Any]

_REAL_TO_COMPLEX: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
    np.dtype(np.longdouble): np.dtype(np.clongdouble),
}
_COMPLEX_TO_REAL = {wide: real for real, wide in _REAL_TO_COMPLEX.items()}
_ALL_DTYPES: frozenset[np.dtype[Any]] = frozenset(_COMPLEX_TO_REAL)
_SHORT_DTYPES = _ALL_DTYPES & {np.dtype(np.complex64), np.dtype(np.complex128)}


class _Backend(Protocol):
    """One library; axes are not negative and no array is empty or of another dtype."""

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array: ...

    def r2c(
        self, x: Array, dim: int, sign: int, scale: Scale, out: Array | None
    ) -> Array: ...

    def c2r(self, x: Array, dim: int, n: int, sign: int, scale: Scale) -> Array: ...

    def using(self, threads: int) -> "_Backend": ...


class _Threaded:
    """What the backends have in common: how many threads a call may use."""

    threads = 1

    def using(self, threads: int) -> Self:
        found = copy.copy(self)
        found.threads = threads
        return found


@dataclass(frozen=True)
class FFTLibrary:
    """One FFT library behind the calls that kernels make; `get_library` gives them out.

    Pickles as its name, so it may travel inside a task.

    Examples
    --------
    >>> library = get_library("scipy")
    >>> library.c2c(np.array([1, 0, 0, 0], dtype=complex), (0,), -1)
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    >>> library.c2r(library.r2c(np.array([1.0, 2.0, 3.0]), 0, -1), 0, 3, +1, "full")
    array([1., 2., 3.])
    """

    #: What `get_library` knows it by.
    name: str
    #: SPDX expression of what is loaded.
    license: str
    #: The complex dtypes that it works in.
    dtypes: frozenset[np.dtype[Any]]
    #: Whether c2c answers in the memory that it was given, where that may be written.
    in_place: bool
    _backend: _Backend
    #: Whether c2c takes real values and makes use of that.
    takes_real: bool = False
    #: Whether c2c and r2c can answer in other memory as fast as in their own.
    elsewhere: bool = False

    def __reduce__(self) -> tuple[Callable[[str], "FFTLibrary"], tuple[str]]:
        return get_library, (self.name,)

    def using(self, threads: int) -> "FFTLibrary":
        """Return the library as it is for a block that runs alone.

        Parameters
        ----------
        threads
            How many of its own threads it uses in each call.
        """
        return self if threads == 1 else replace(self, _backend=self._backend.using(threads))

    def c2c(
        self,
        x: Array,
        dims: tuple[int, ...],
        sign: int,
        scale: Scale = "none",
        out: Array | None = None,
    ) -> Array:
        """Return the transform of `x` over the axes `dims`.

        Parameters
        ----------
        x
            Complex, overwritten unless it is read-only, or real, only read. Its elements must not
            share memory.
        dims
            Different axes; none returns `x`.
        sign
            Sign of the exponent, -1 or +1.
        scale
            What to multiply with, n being the product of the lengths: "none" 1, "ortho"
            1/sqrt(n), "full" 1/n.
        out
            Complex memory of the result's shape that shares nothing with `x`, which libraries that
            can answer `elsewhere` write and return; `x` is then only read. Others ignore it.
        """
        wide = self._check(_REAL_TO_COMPLEX.get(x.dtype, x.dtype))
        if wide != x.dtype:
            return self._real(x, wide, dims, sign, scale, out)
        if x.size == 0 or not dims:
            return x
        if out is not None and self.elsewhere:
            with measured("fft", x.nbytes):
                return self._backend.c2c(_regular(x), self._dims(x, dims), sign, scale, out)
        # mkl_fft would write to read-only memory all the same.
        work = _regular(x) if x.flags.writeable else np.array(x)
        with measured("fft", x.nbytes):
            result = self._backend.c2c(work, self._dims(x, dims), sign, scale, None)
        if not self.in_place or not x.flags.writeable:
            return result
        if not _same_memory(result, x):
            x[...] = result
        return x

    def _real(
        self, x: Array, wide: np.dtype[Any], dims: tuple[int, ...], sign: int, scale: Scale,
        out: Array | None,
    ) -> Array:
        """Transform real values: half the work for the libraries that know how."""
        if x.size == 0 or not dims or not self.takes_real:
            return self.c2c(x.astype(wide), dims, sign, scale, out)
        kept = out if self.elsewhere else None
        with measured("fft", x.nbytes):
            return self._backend.c2c(_regular(x), self._dims(x, dims), sign, scale, kept)

    def _dims(self, x: Array, dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d % x.ndim for d in dims)

    def r2c(
        self, x: Array, dim: int, sign: int, scale: Scale = "none", out: Array | None = None
    ) -> Array:
        """Return the frequencies 0..n//2 of real `x` over axis `dim`; `x` is only read.

        Parameters
        ----------
        x
            Real.
        dim
            The axis.
        sign
            Sign of the exponent, -1 or +1; +1 gives the conjugate of -1.
        scale, out
            As for `c2c`.
        """
        complex_dtype = self._check(_REAL_TO_COMPLEX.get(x.dtype, x.dtype))
        dim %= x.ndim
        if x.size == 0:
            return np.zeros(_with_length(x.shape, dim, x.shape[dim] // 2 + 1), complex_dtype)
        with measured("fft", x.nbytes):
            return self._backend.r2c(_regular(x), dim, sign, scale, out if self.elsewhere else None)

    def c2r(self, x: Array, dim: int, n: int, sign: int, scale: Scale = "none") -> Array:
        """Return the `n` reals whose frequencies 0..n//2 `x` holds on axis `dim`; `x` is only read.

        Parameters
        ----------
        x
            Complex, n//2 + 1 long on the axis. Imaginary parts of frequency 0, and n/2 where `n` is
            even, are ignored.
        dim
            The axis.
        n
            Length of the axis of the result.
        sign
            Sign of the exponent, -1 or +1.
        scale
            As for `c2c`.
        """
        real_dtype = _COMPLEX_TO_REAL[self._check(x.dtype)]
        dim %= x.ndim
        if x.shape[dim] != n // 2 + 1:
            allowed = f"a length whose half spectrum has {x.shape[dim]} entries"
            refuse("n", n, allowed, kind=KernelError)
        if x.size == 0 or n == 0:
            return np.zeros(_with_length(x.shape, dim, n), real_dtype)
        with measured("fft", x.nbytes):
            return self._backend.c2r(_regular(x), dim, n, sign, scale)

    def _check(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        if dtype not in self.dtypes:
            allowed = f"one that {self.name} works in: {', '.join(sorted(map(str, self.dtypes)))}"
            refuse("dtype", str(dtype), allowed, kind=KernelError)
        return dtype


def available() -> tuple[str, ...]:
    """Return the names of the libraries that are installed, the default first.

    Examples
    --------
    >>> available()[0]
    'scipy'
    """
    return tuple(name for name in _LOADERS if importlib.util.find_spec(name) is not None)


def get_library(name: str = "auto") -> FFTLibrary:
    """Return the FFT library called `name`, importing it on the first call.

    Parameters
    ----------
    name
        "scipy", "mkl_fft", "ducc0", "pyfftw", or "auto": SciPy, which is always there.

    Raises
    ------
    ArgumentError
        Where there is no such library, or it is not installed.

    Examples
    --------
    >>> get_library("auto").name
    'scipy'
    """
    wanted = "scipy" if name == "auto" else name
    allowed = f"'auto' or one of {', '.join(_LOADERS)}; installed: {', '.join(available())}"
    if wanted not in _LOADERS:
        refuse("kernel", name, allowed)
    try:
        with _loading:  # two first calls at once would make two libraries
            return _load(wanted)
    except ImportError:
        refuse("kernel", name, allowed)


_loading = threading.Lock()


@cache
def _load(name: str) -> FFTLibrary:
    return _LOADERS[name]()


def _with_length(shape: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    return (*shape[:dim], n, *shape[dim + 1 :])


def _regular(x: Array) -> Array:
    """Return `x` as a plain array, copied where its strides are not whole elements or are zero.

    FFTW cannot say the former, mkl_fft refuses the latter.
    """
    whole = all(
        s % x.itemsize == 0 and (s or n == 1) for s, n in zip(x.strides, x.shape, strict=True)
    )
    return np.asarray(x) if whole and x.flags.aligned else np.array(x)


def _same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape and dtype have each element in the same place."""
    return a is b or (a.strides == b.strides and a.ctypes.data == b.ctypes.data)


def _has_long_rows(x: Array, dim: int) -> bool:
    """Whether a complex array is made of several contiguous lines that are long."""
    rows = x.dtype.kind == "c" and bool(x.flags.c_contiguous) and math.prod(x.shape[dim + 1 :]) == 1
    return rows and x.nbytes > x.shape[dim] * x.itemsize >= LONG_BYTES


def _norm(sign: int, scale: Scale) -> str:
    """Return NumPy's word for `scale`: it names the direction that bears the factor."""
    if scale == "ortho":
        return "ortho"
    return "backward" if (scale == "none") == (sign < 0) else "forward"


class _Scipy(_Threaded):
    """`scipy.fft`, whatever backend the process has set for its own calls of it.

    Without that, a global backend (dask's arrays have one in this package) could take the call.
    """

    def __init__(self) -> None:
        self._fft: Any = importlib.import_module("scipy.fft")

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        name = "fftn" if sign < 0 else "ifftn"
        options = {"axes": dims, "norm": _norm(sign, scale), "overwrite_x": True}
        if self.threads > 1 or len(dims) > 1 or not _has_long_rows(x, dims[0]):
            return self._call(name, x, **options)
        for row in x.reshape(-1, 1, x.shape[dims[0]]):  # of several at a time it would copy all
            if not _same_memory(done := self._call(name, row, **options | {"axes": (1,)}), row):
                row[...] = done
        return x

    def r2c(self, x: Array, dim: int, sign: int, scale: Scale, out: Array | None) -> Array:
        name = "rfft" if sign < 0 else "ihfft"
        return self._call(name, x, axis=dim, norm=_norm(sign, scale))

    def c2r(self, x: Array, dim: int, n: int, sign: int, scale: Scale) -> Array:
        name = "hfft" if sign < 0 else "irfft"
        return self._call(name, x, n=n, axis=dim, norm=_norm(sign, scale))

    def _call(self, name: str, x: Array, **options: Any) -> Array:
        with self._fft.set_backend("scipy", only=True):
            result: Array = getattr(self._fft, name)(x, workers=self.threads, **options)
        return result


class _Ducc(_Threaded):
    """`ducc0.fft`."""

    _INORM = {"none": 0, "ortho": 1, "full": 2}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self._fft: Any = importlib.import_module("ducc0").fft

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        if out is None and x.dtype.kind == "c":
            out = x
        result: Array = self._fft.c2c(x, axes=dims, out=out, **self._options(sign, scale))
        return result if out is None else out  # which it returns as an array of its own

    def r2c(self, x: Array, dim: int, sign: int, scale: Scale, out: Array | None) -> Array:
        options = self._options(sign, scale)
        result: Array = self._fft.r2c(x, axes=(dim,), out=out, **options)
        return result

    def c2r(self, x: Array, dim: int, n: int, sign: int, scale: Scale) -> Array:
        options = self._options(sign, scale)
        result: Array = self._fft.c2r(x, axes=(dim,), lastsize=n, **options)
        return result

    def _options(self, sign: int, scale: Scale) -> dict[str, Any]:
        return {"forward": sign < 0, "inorm": self._INORM[scale], "nthreads": self.threads}


class _Mkl(_Threaded):
    """`mkl_fft`, axis by axis: its n-dimensional calls misjudge the scale of a subset of axes."""

    def __init__(self) -> None:
        self._fft: Any = importlib.import_module("mkl_fft")
        self._set_threads = _mkl_thread_setter()

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        run = self._fft.fft if sign < 0 else self._fft.ifft
        own = scale if len(dims) == 1 else "none"  # a factor for each axis would be rounded anew
        with self._own_threads():
            for dim in dims:
                run(x, axis=dim, norm=_norm(sign, own), out=x)
        return x if own == scale else _scaled(x, math.prod(x.shape[d] for d in dims), scale)

    def r2c(self, x: Array, dim: int, sign: int, scale: Scale, out: Array | None) -> Array:
        with self._own_threads():
            result: Array = self._fft.rfft(x, axis=dim, norm=_norm(-1, scale))
        return result if sign < 0 else np.conjugate(result, out=result)

    def c2r(self, x: Array, dim: int, n: int, sign: int, scale: Scale) -> Array:
        x = x if sign > 0 else np.conjugate(x)
        with self._own_threads():
            result: Array = self._fft.irfft(x, n=n, axis=dim, norm=_norm(+1, scale))
        return result

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        if self._set_threads is None:  # what MKL_NUM_THREADS says then holds
            yield
            return
        before = self._set_threads(self.threads)
        try:
            yield
        finally:
            self._set_threads(before)


def _mkl_thread_setter() -> Callable[[int], int] | None:
    """Return MKL's call that sets the threads of the calling thread and returns the old number.

    mkl-service wraps it but is not always there; the library that mkl_fft has loaded always is.
    """
    no_load = getattr(os, "RTLD_NOLOAD", 0)
    for version in ("3", "2"):
        try:
            mkl = ctypes.CDLL(f"libmkl_rt.so.{version}", mode=no_load | ctypes.DEFAULT_MODE)
        except OSError:
            continue
        setter: Callable[[int], int] = mkl.MKL_Set_Num_Threads_Local
        return setter
    return None


class _Fftw(_Threaded):
    """FFTW by pyFFTW's plan objects; it scales in a pass of its own."""

    def __init__(self) -> None:
        self._fftw: Any = import_pyfftw()
        self._plans = FFTWPlans(self._fftw)

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        direction = "FFTW_FORWARD" if sign < 0 else "FFTW_BACKWARD"
        self._plans.execute(x, x, dims, direction, self.threads)
        return _scaled(x, math.prod(x.shape[d] for d in dims), scale)

    def r2c(self, x: Array, dim: int, sign: int, scale: Scale, out: Array | None) -> Array:
        n = x.shape[dim]
        half = np.empty(_with_length(x.shape, dim, n // 2 + 1), _REAL_TO_COMPLEX[x.dtype])
        self._plans.execute(x, half, (dim,), "FFTW_FORWARD", self.threads)
        return _scaled(half if sign < 0 else np.conjugate(half, out=half), n, scale)

    def c2r(self, x: Array, dim: int, n: int, sign: int, scale: Scale) -> Array:
        x = x if sign > 0 else np.conjugate(x)
        out = np.empty(_with_length(x.shape, dim, n), _COMPLEX_TO_REAL[x.dtype])
        self._plans.execute(x, out, (dim,), "FFTW_BACKWARD", self.threads)
        return _scaled(out, n, scale)


def _scaled(x: Array, n: int, scale: Scale) -> Array:
    """Return `x`, multiplied in place."""
    if scale != "none":
        x *= 1 / n if scale == "full" else 1 / math.sqrt(n)
    return x


def _library(
    name: str,
    license: str,
    dtypes: frozenset[np.dtype[Any]],
    backend: Callable[[], _Backend],
    takes_real: bool = False,
    elsewhere: bool = False,
) -> Callable[[], FFTLibrary]:
    return lambda: FFTLibrary(name, license, dtypes, True, backend(), takes_real, elsewhere)


# The first is the default. Long double reaches FFTW only in some builds of pyFFTW: left out.
_LOADERS: dict[str, Callable[[], FFTLibrary]] = {
    "scipy": _library("scipy", "BSD-3-Clause", _ALL_DTYPES, _Scipy, takes_real=True),
    "mkl_fft": _library(
        "mkl_fft", "BSD-3-Clause AND LicenseRef-Intel-Simplified", _SHORT_DTYPES, _Mkl
    ),
    "ducc0": _library("ducc0", "GPL-2.0-or-later", _ALL_DTYPES, _Ducc, True, True),
    "pyfftw": _library("pyfftw", "BSD-3-Clause AND GPL-2.0-or-later", _SHORT_DTYPES, _Fftw),
}
