"""`install` replaces the functions of `dask.array.fft` by our transforms, until `uninstall`.

NumPy dispatches its functions of dask arrays to `dask.array.fft` by name. So `numpy.fft.fft(x)` and
libraries that call it (xrft, xarray) also use these transforms.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import dask.array.fft as dask_fft
import numpy as np

from dask_bigfft import fft

#: The replaced functions: all that `dask.array.fft` and this library have in common.
NAMES = tuple(name for name in fft.__all__ if name != "next_fast_len" and hasattr(dask_fft, name))


_lock = threading.Lock()
_calls: list[None] = []  # of `install` that are not undone
_replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _routed(ours: Callable[..., Any], before: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that dispatches to ours, or to dask's for arrays that ours refuses."""
    first = next(iter(inspect.signature(ours).parameters))

    @functools.wraps(ours)
    def function(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (_inside(args[0]), *args[1:])
        x = args[0] if args else kwargs.get(first)
        chosen = before if isinstance(x, da.Array) and _only_dasks(x) else ours
        return chosen(*args, **kwargs)

    return function


def _inside(x: Any) -> Any:
    """Return the array inside an xarray object, like dask's functions."""
    return x.data if type(x).__module__.partition(".")[0] == "xarray" else x


def _only_dasks(x: da.Array) -> bool:
    """Return True if chunk sizes are unknown, or blocks are masked or sparse."""
    unknown = any(c != c for cut in x.chunks for c in cut)
    module = type(x._meta).__module__.partition(".")[0]
    return unknown or isinstance(x._meta, np.ma.MaskedArray) or module not in ("numpy", "cupy")


def install() -> None:
    """Make `dask.array.fft`, and `numpy.fft` for dask arrays, use the transforms of this library.

    Axes in several chunks then work where dask's own functions refuse them. All functions that
    `dask.array.fft` shares with `dask_bigfft.fft` are replaced, in the whole process and for all
    threads; functions that were imported from there by name before do not change. Masked
    and sparse blocks, and unknown chunk sizes along other axes, still go to dask's own functions.

    Calls are counted: as many calls of `uninstall` undo them. The setting ``bigfft.install``
    makes one call when `dask_bigfft` is imported.

    Examples
    --------
    >>> import dask.array as da
    >>> install()
    >>> abs(da.fft.fft(da.ones(4, chunks=2))).compute()
    array([4., 0., 0., 0.])
    >>> uninstall()
    """
    with _lock:
        _calls.append(None)
        for name in NAMES if len(_calls) == 1 else ():
            before = getattr(dask_fft, name)
            _replaced[name] = before, _routed(getattr(fft, name), before)
            setattr(dask_fft, name, _replaced[name][1])


def uninstall() -> None:
    """Undo one call of `install`; after the last one, restore `dask.array.fft`.

    Without a previous call of `install` this does nothing.
    """
    with _lock:
        if _calls:
            _calls.pop()
        if not _calls:
            for name, (before, ours) in _replaced.items():
                if getattr(dask_fft, name) is ours:  # somebody may have put a third one there
                    setattr(dask_fft, name, before)
            _replaced.clear()


@contextmanager
def installed() -> Iterator[None]:
    """Use the transforms of this library within a context, which may be nested.

    Examples
    --------
    >>> import dask.array as da
    >>> with installed():
    ...     spectrum = da.fft.rfft(da.ones(4, chunks=1))
    >>> abs(spectrum).compute()
    array([4., 0., 0.])
    """
    install()
    try:
        yield
    finally:
        uninstall()
