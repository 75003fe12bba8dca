"""`install` replaces the functions of `dask.array.fft` by our transforms, until `uninstall`.

NumPy dispatches its functions of dask arrays to `dask.array.fft` by name. So `numpy.fft.fft(x)` and
libraries that call it (xrft, xarray) also use these transforms. Namespaces of the array API have
copies of its names, as `array_api_compat.dask.array` does, and SciPy's own one.
"""

import functools
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import dask.array as da
import dask.array.fft as dask_fft
import numpy as np

from dask_bigfft import fft

#: The replaced functions: all that `dask.array.fft` and this library have in common.
NAMES = tuple(name for name in fft.__all__ if name != "next_fast_len" and hasattr(dask_fft, name))

#: End of the names of modules that copy `dask.array.fft`, in whatever library they are.
COPY = "array_api_compat.dask.array.fft"

_lock = threading.Lock()
#: One value for each call of `install` that is not undone.
_calls: list[None] = []
#: Dask's function and ours, by name, while ours are installed.
_replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _routed(ours: Callable[..., Any], dasks: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that dispatches to ours, or to dask's for arrays that ours refuses."""
    first = next(iter(inspect.signature(ours).parameters))

    def chosen(x: Any) -> Callable[..., Any]:
        return dasks if isinstance(x, da.Array) and _only_dasks(x) else ours

    @functools.wraps(ours)
    def function(*args: Any, **kwargs: Any) -> Any:
        if args:
            x = _inside(args[0])
            return chosen(x)(x, *args[1:], **kwargs)
        if first in kwargs:
            kwargs[first] = _inside(kwargs[first])
        return chosen(kwargs.get(first))(**kwargs)

    return function


def _inside(x: Any) -> Any:
    """Return the array inside an xarray object, like dask's functions."""
    if type(x).__module__.partition(".")[0] == "xarray":
        return x.data
    return x


def _only_dasks(x: da.Array) -> bool:
    """Return True if chunk sizes are unknown, or blocks are masked or sparse."""
    for chunks in x.chunks:
        if any(map(math.isnan, chunks)):
            return True
    package = type(x._meta).__module__.partition(".")[0]
    return isinstance(x._meta, np.ma.MaskedArray) or package not in ("numpy", "cupy")


def _namespaces() -> list[ModuleType]:
    """Return `dask.array.fft` and its copies that have been imported."""
    modules = list(sys.modules.items())  # other threads may import meanwhile
    return [dask_fft, *(module for name, module in modules if name.endswith(COPY))]


def _exchange(name: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Replace a function in all namespaces; where somebody has put a third one, that one stays."""
    for namespace in _namespaces():
        if getattr(namespace, name, None) is old:
            setattr(namespace, name, new)


def install() -> None:
    """Make `dask.array.fft`, and `numpy.fft` for dask arrays, use the transforms of this library.

    Axes in several chunks then work where dask's own functions refuse them. All functions that
    `dask.array.fft` shares with `dask_bigfft.fft` are replaced, in the whole process and for all
    threads; functions that were imported from there by name before do not change, except those in
    namespaces of the array API (`array_api_compat.dask.array.fft`, also inside SciPy). Masked and
    sparse blocks, and unknown chunk sizes along other axes, still go to dask's own functions.

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
        if len(_calls) > 1:
            return
        for name in NAMES:
            dasks = getattr(dask_fft, name)
            ours = _routed(getattr(fft, name), dasks)
            _replaced[name] = (dasks, ours)
            _exchange(name, dasks, ours)


def uninstall() -> None:
    """Undo one call of `install`; after the last one, restore `dask.array.fft`.

    Without a previous call of `install` this does nothing.
    """
    with _lock:
        if _calls:
            _calls.pop()
        if _calls:
            return
        for name, (dasks, ours) in _replaced.items():
            _exchange(name, ours, dasks)
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
