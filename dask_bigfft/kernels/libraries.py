"""The FFT libraries, as plugs of one form: in place, one thread, an explicit sign and scale.

Imports NumPy, `errors`, `record` and this room; a library only when it is asked for by name
(`backends` says how each is called), or when somebody wants to know which ones work. None is used
that answers wrongly on this machine (`answers`).

Tasks run side by side in the threads of a worker, so every library is held to one thread, unless a
caller whose block runs alone asks for more (`FFTLibrary.using`). What a caller may rely on,
whichever it chooses:

- ``sign`` is that of the exponent, and ``scale`` says what the sum is multiplied by, whatever the
  sign; the words "forward" and "backward" stay at the front door;
- c2c of memory that may be written answers in that memory; r2c and c2r leave theirs alone;
- any strides will do, single precision stays single, and an empty array never reaches the library.
"""

import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentError, KernelError, refuse
from dask_bigfft.events import measured
from dask_bigfft.kernels.answers import wrong_answer
from dask_bigfft.kernels.backends import (
    ALL_DTYPES,
    BACKENDS,
    COMPLEX_TO_REAL,
    REAL_TO_COMPLEX,
    SHORT_DTYPES,
    Backend,
    Scale,
    regular,
    same_memory,
    with_length,
)
from dask_bigfft.record import current_place

__all__ = ["FFTLibrary", "Scale", "available", "get_library", "usable"]

Array = npt.NDArray[Any]

log = logging.getLogger(__name__)


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
    _backend: Backend
    #: Whether c2c takes real values and makes use of that.
    takes_real: bool = False
    #: Whether transforms can write their result to other memory as fast as in place.
    supports_out: bool = False
    #: Threads of this process that use it side by side, each for tiles of blocks of its own.
    beside: int = 1

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

    def among(self, threads: int) -> "FFTLibrary":
        """Return the library as one of some threads uses it, which share the interpreter.

        Parameters
        ----------
        threads
            How many work on blocks side by side: the more, the larger are the tiles of each.
        """
        return self if threads == self.beside else replace(self, beside=threads)

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
            Complex memory of the result's shape that shares nothing with `x`, which a library with
            `supports_out` writes and returns; `x` is then only read. Others ignore it.
        """
        wide = self._check(REAL_TO_COMPLEX.get(x.dtype, x.dtype))
        if wide != x.dtype:
            return self._real(x, wide, dims, sign, scale, out)
        if x.size == 0 or not dims:
            return x
        if out is not None and self.supports_out:
            with measured("fft", x.nbytes):
                return self._backend.c2c(regular(x), self._dims(x, dims), sign, scale, out)
        # mkl_fft would write to read-only memory all the same.
        work = regular(x) if x.flags.writeable else np.array(x)
        with measured("fft", x.nbytes):
            result = self._backend.c2c(work, self._dims(x, dims), sign, scale, None)
        if not x.flags.writeable:
            return result
        if not same_memory(result, x):
            x[...] = result
        return x

    def again(
        self, dims: tuple[int, ...], sign: int, scale: Scale
    ) -> Callable[[Array, Array | None], Array] | None:
        """Return what does the same `c2c` of many arrays, one after the other, at less cost each.

        It takes an array that may be written, and memory for its transform that shares nothing
        with it, or None, as `c2c` does. None where a library has no `supports_out`.

        Parameters
        ----------
        dims, sign, scale
            As `c2c` takes them; axes are not negative.
        """
        if not self.supports_out:
            return None
        call = self._backend.c2c

        def transformed(x: Array, out: Array | None) -> Array:
            if out is None and x.dtype.kind != "c":
                return self.c2c(x, dims, sign, scale)
            with measured("fft", x.nbytes):
                return call(regular(x), dims, sign, scale, x if out is None else out)

        return transformed

    def _real(
        self, x: Array, wide: np.dtype[Any], dims: tuple[int, ...], sign: int, scale: Scale,
        out: Array | None,
    ) -> Array:
        """Transform real values: half the work for the libraries that know how."""
        if x.size == 0 or not dims or not self.takes_real:
            return self.c2c(x.astype(wide), dims, sign, scale, out)
        kept = out if self.supports_out else None
        with measured("fft", x.nbytes):
            return self._backend.c2c(regular(x), self._dims(x, dims), sign, scale, kept)

    def _dims(self, x: Array, dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d % x.ndim for d in dims)

    def r2c(
        self,
        x: Array,
        dim: int,
        sign: int,
        scale: Scale = "none",
        out: Array | None = None,
        others: tuple[int, ...] = (),
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
        others
            Axes over which the result is transformed then: n counts their lengths, too.
        """
        complex_dtype = self._check(REAL_TO_COMPLEX.get(x.dtype, x.dtype))
        dim %= x.ndim
        if x.size == 0:
            return np.zeros(with_length(x.shape, dim, x.shape[dim] // 2 + 1), complex_dtype)
        with measured("fft", x.nbytes):
            dims = (*self._dims(x, others), dim)
            into = out if self.supports_out else None
            return self._backend.r2c(regular(x), dims, sign, scale, into)

    def c2r(
        self,
        x: Array,
        dim: int,
        n: int,
        sign: int,
        scale: Scale = "none",
        out: Array | None = None,
    ) -> Array:
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
        scale, out
            As for `c2c`; `out` is real.
        """
        real_dtype = COMPLEX_TO_REAL[self._check(x.dtype)]
        dim %= x.ndim
        if x.shape[dim] != n // 2 + 1:
            allowed = f"a length whose half spectrum has {x.shape[dim]} entries"
            refuse("n", n, allowed, kind=KernelError)
        if x.size == 0 or n == 0:
            return np.zeros(with_length(x.shape, dim, n), real_dtype)
        with measured("fft", x.nbytes):
            kept = out if self.supports_out else None
            return self._backend.c2r(regular(x), dim, n, sign, scale, kept)

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


def usable() -> dict[str, str]:
    """Return the versions of the libraries that work here, by name, the default first.

    What is installed and cannot be loaded is left out, and what answers wrongly here.

    Examples
    --------
    >>> next(iter(usable()))
    'scipy'
    """
    return {name: _version(name) for name in available() if _loads(name)}


def _loads(name: str) -> bool:
    try:
        get_library(name)
    except (ArgumentError, KernelError, OSError):  # wrong, broken, or bound to another's functions
        return False
    return True


@cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def get_library(name: str = "auto") -> FFTLibrary:
    """Return the FFT library called `name`, importing it on the first call.

    Parameters
    ----------
    name
        "scipy", "mkl_fft", "ducc0", "pyfftw", or "auto": SciPy, which is always there.

    Raises
    ------
    ArgumentError
        Where there is no such library, it is not installed, or it answers wrongly on this machine
        (`answers`); in a task of a cluster the error names the worker.

    Examples
    --------
    >>> get_library("auto").name
    'scipy'
    """
    wanted = "scipy" if name == "auto" else name
    if wanted not in _LOADERS:
        refuse("kernel", name, _allowed())
    try:
        with _loading:  # two first calls at once would make two libraries
            found = _load(wanted)
    except ImportError:
        refuse("kernel", name, _allowed())
    if isinstance(found, str):
        refuse("kernel", name, f"{_allowed()}. Here it answers wrongly: {found}")
    return found


def _allowed() -> str:
    """What a library may be called, and which ones there are in this process."""
    place = current_place()
    where = f"installed on worker {place}" if place else "installed"
    return f"'auto' or one of {', '.join(_LOADERS)}; {where}: {', '.join(available())}"


_loading = threading.Lock()


@cache
def _load(name: str) -> FFTLibrary | str:
    """The library, or what it answers wrongly here."""
    library = _LOADERS[name]()
    wrong = None if name == "scipy" else wrong_answer(library._backend)
    if wrong is None:
        return library
    log.info("%s is not used on this machine: %s", name, wrong)
    return wrong


def _library(
    name: str,
    license: str,
    dtypes: frozenset[np.dtype[Any]],
    takes_real: bool = False,
    supports_out: bool = False,
) -> Callable[[], FFTLibrary]:
    return lambda: FFTLibrary(
        name, license, dtypes, BACKENDS[name](), takes_real, supports_out
    )


# The first is the default. Long double reaches FFTW only in some builds of pyFFTW: left out.
_LOADERS: dict[str, Callable[[], FFTLibrary]] = {
    "scipy": _library("scipy", "BSD-3-Clause", ALL_DTYPES, takes_real=True),
    "mkl_fft": _library("mkl_fft", "BSD-3-Clause AND LicenseRef-Intel-Simplified", SHORT_DTYPES),
    "ducc0": _library("ducc0", "GPL-2.0-or-later", ALL_DTYPES, True, True),
    "pyfftw": _library("pyfftw", "BSD-3-Clause AND GPL-2.0-or-later", SHORT_DTYPES),
}
