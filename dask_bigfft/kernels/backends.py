"""How each FFT library is called: the backends of `kernels.libraries`.

========  =================================  ====================================================
name      licence                            how it is called
========  =================================  ====================================================
scipy     BSD-3-Clause                       ``overwrite_x``, ``workers``
mkl_fft   BSD-3-Clause, MKL Intel's own      axis by axis, with MKL's threads set meanwhile
ducc0     GPL-2.0-or-later                   ``out=x``, ``nthreads``
pyfftw    BSD-3-Clause, FFTW GPL             own pool of ESTIMATE plans, see `FFTWPlans`
========  =================================  ====================================================

Imports NumPy, SciPy and this room; the optional libraries where a backend is made.
"""

import copy
import ctypes
import importlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.tiles import LONG_BYTES
from dask_bigfft.kernels.fftw_plans import FFTWPlans, import_pyfftw

#: "none": the plain sum; "ortho": times 1/sqrt(n); "full": times 1/n.
Scale = Literal["none", "ortho", "full"]

Array = npt.NDArray[Any]

REAL_TO_COMPLEX: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
    np.dtype(np.longdouble): np.dtype(np.clongdouble),
}
COMPLEX_TO_REAL = {wide: real for real, wide in REAL_TO_COMPLEX.items()}
ALL_DTYPES: frozenset[np.dtype[Any]] = frozenset(COMPLEX_TO_REAL)
SHORT_DTYPES = ALL_DTYPES & {np.dtype(np.complex64), np.dtype(np.complex128)}


class Backend(Protocol):
    """One library; axes are not negative and no array is empty or of another dtype.

    The last of the axes of r2c is the real one, the others are transformed after it. Where `out`
    is given to a library that cannot answer elsewhere, it is ignored.
    """

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        """Complex to complex: in place, or in `out`."""

    def r2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        """Real to half a spectrum."""

    def c2r(
        self, x: Array, dim: int, n: int, sign: int, scale: Scale, out: Array | None
    ) -> Array:
        """Half a spectrum to `n` reals."""

    def using(self, threads: int) -> "Backend":
        """The same with a number of threads in each call."""


class _Threaded:
    """What the backends have in common: how many threads a call may use."""

    threads = 1

    def using(self, threads: int) -> Self:
        found = copy.copy(self)
        found.threads = threads
        return found


def with_length(shape: tuple[int, ...], dim: int, n: int) -> tuple[int, ...]:
    """Return a shape with another length along a dimension."""
    return (*shape[:dim], n, *shape[dim + 1 :])


def regular(x: Array) -> Array:
    """Return `x` as a plain array, copied where its strides are not whole elements or are zero.

    FFTW cannot say the former, mkl_fft refuses the latter.
    """
    whole = _in_whole_elements(x.strides, x.shape, x.itemsize)
    return np.asarray(x) if whole and x.flags.aligned else np.array(x)


@lru_cache(maxsize=1024)  # the tiles of a block are alike
def _in_whole_elements(strides: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> bool:
    pairs = zip(strides, shape, strict=True)
    return all(s % itemsize == 0 and (s or n == 1) for s, n in pairs)


def same_memory(a: Array, b: Array) -> bool:
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
    """`scipy.fft`, whatever backend the process has set for its own calls of it."""

    def __init__(self) -> None:
        self._fft = _scipy_itself()

    def c2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        name = "fftn" if sign < 0 else "ifftn"
        options = {"axes": dims, "norm": _norm(sign, scale), "overwrite_x": True}
        if self.threads > 1 or len(dims) > 1 or not _has_long_rows(x, dims[0]):
            return self._called(name, x, **options)
        for row in x.reshape(-1, 1, x.shape[dims[0]]):  # of several at a time it would copy all
            if not same_memory(done := self._called(name, row, **options | {"axes": (1,)}), row):
                row[...] = done
        return x

    def r2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        name = "rfftn" if sign < 0 else "ihfftn"
        return self._called(name, x, axes=dims, norm=_norm(sign, scale))

    def c2r(
        self, x: Array, dim: int, n: int, sign: int, scale: Scale, out: Array | None
    ) -> Array:
        name = "hfft" if sign < 0 else "irfft"
        return self._called(name, x, n=n, axis=dim, norm=_norm(sign, scale))

    def _called(self, name: str, x: Array, **options: Any) -> Array:
        result: Array = getattr(self._fft, name)(x, workers=self.threads, **options)
        return result


def _scipy_itself() -> Any:
    """The transforms of `scipy.fft` without its choice of a backend, if they are where they were.

    A global backend (dask's arrays have one in this package) could take a call otherwise. To set
    SciPy's own for each call is no way out: its context is remembered by the thread's number, which
    the system gives to another thread in time, and that one then crashes (SciPy 1.17).
    """
    names = ("fftn", "ifftn", "rfftn", "ihfftn", "hfft", "irfft")
    for place in ("scipy.fft._duccfft", "scipy.fft._pocketfft"):  # the former since SciPy 1.18
        with suppress(ImportError):
            own = importlib.import_module(place)
            if all(hasattr(own, name) for name in names):
                return own
    return importlib.import_module("scipy.fft")


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

    def r2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        result: Array = self._fft.r2c(x, axes=dims, out=out, **self._options(sign, scale))
        return result if out is None else out

    def c2r(
        self, x: Array, dim: int, n: int, sign: int, scale: Scale, out: Array | None
    ) -> Array:
        options = self._options(sign, scale)
        result: Array = self._fft.c2r(x, axes=(dim,), lastsize=n, out=out, **options)
        return result if out is None else out

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

    def r2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        *others, dim = dims
        own = "none" if others else scale
        with self._own_threads():
            result: Array = self._fft.rfft(x, axis=dim, norm=_norm(-1, own))
        if sign > 0:
            np.conjugate(result, out=result)
        if not others:
            return result
        self.c2c(result, tuple(others), sign, "none", None)
        return _scaled(result, math.prod(x.shape[d] for d in dims), scale)

    def c2r(
        self, x: Array, dim: int, n: int, sign: int, scale: Scale, out: Array | None
    ) -> Array:
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

    def r2c(
        self, x: Array, dims: tuple[int, ...], sign: int, scale: Scale, out: Array | None
    ) -> Array:
        *others, dim = dims
        half = np.empty(with_length(x.shape, dim, x.shape[dim] // 2 + 1), REAL_TO_COMPLEX[x.dtype])
        self._plans.execute(x, half, (dim,), "FFTW_FORWARD", self.threads)
        if sign > 0:
            np.conjugate(half, out=half)
        if others:
            self.c2c(half, tuple(others), sign, "none", None)
        return _scaled(half, math.prod(x.shape[d] for d in dims), scale)

    def c2r(
        self, x: Array, dim: int, n: int, sign: int, scale: Scale, out: Array | None
    ) -> Array:
        x = x if sign > 0 else np.conjugate(x)
        real = np.empty(with_length(x.shape, dim, n), COMPLEX_TO_REAL[x.dtype])
        self._plans.execute(x, real, (dim,), "FFTW_BACKWARD", self.threads)
        return _scaled(real, n, scale)


def _scaled(x: Array, n: int, scale: Scale) -> Array:
    """Return `x`, multiplied in place."""
    if scale != "none":
        x *= 1 / n if scale == "full" else 1 / math.sqrt(n)
    return x


#: By name; each is made when it is first asked for, and imports its library then.
BACKENDS: dict[str, Callable[[], Backend]] = {
    "scipy": _Scipy, "mkl_fft": _Mkl, "ducc0": _Ducc, "pyfftw": _Fftw,
}
