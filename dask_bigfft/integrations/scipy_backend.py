"""A backend of `scipy.fft`: its functions take dask arrays, in any chunking, and stay lazy.

Give this module to SciPy::

    with scipy.fft.set_backend(dask_bigfft.scipy_backend):
        spectrum = scipy.fft.rfftn(x, workers=2)

What is no dask array, and functions that this library lacks, go on to SciPy's own backend. Of the
arguments that only SciPy has, ``workers`` must be a number that SciPy takes and is not used (dask's
scheduler decides how many tasks run), ``overwrite_x`` is not used (inputs are only read), and
``plan`` may be what `dask_bigfft.plan` returned for the same transform.

The protocol is that of uarray: ``__ua_domain__``, ``__ua_cache__`` and ``__ua_function__``.

Imports `fft`, `front`, and the logarithmic transforms of this room.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dask.array as da
import numpy as np
import scipy.fft

from dask_bigfft import fft, front
from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.integrations import fftlog
from dask_bigfft.planner.plan import Plan
from dask_bigfft.transforms.spec import NAMES

__all__: list[str] = []

__ua_domain__ = "numpy.scipy.fft"


class _Forgetful(dict[Any, Any]):
    """Mapping that keeps nothing.

    SciPy keeps the context that a thread has set a backend in by the thread's number, which the
    system gives to another thread in time, and that one then crashes in it (SciPy 1.17).
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep nothing."""


__ua_cache__ = _Forgetful()

# What we leave to SciPy finds it also where this backend has taken the place of SciPy's own
# (scipy.fft.set_global_backend); registered ones are asked last.
scipy.fft.register_backend("scipy")

#: Arguments that only SciPy has.
_SCIPYS = ("overwrite_x", "workers", "plan")


def __ua_function__(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the lazy result of a function of `scipy.fft`, or NotImplemented."""
    x = next(iter((*args, *kwargs.values())), None)
    name = method.__name__
    ours = getattr(fftlog, name, None) or getattr(fft, name, None)
    if not isinstance(x, da.Array) or ours is None:
        return NotImplemented
    given = inspect.signature(method).bind(*args, **kwargs).arguments
    first = next(iter(given))
    array = given.pop(first)
    scipys = {key: given.pop(key, None) for key in _SCIPYS}
    if scipys["workers"] is not None:
        with scipy.fft.set_workers(scipys["workers"]):  # refuses what SciPy refuses
            pass
    if array.dtype == np.float16:  # SciPy's results are of single precision throughout
        array = array.astype(np.float32)
    if name not in NAMES:
        return ours(array, **given)
    return _transform(name, array, given, scipys["plan"])


def _transform(name: str, x: da.Array, given: dict[str, Any], plan: Any) -> da.Array:
    """A transform with SciPy's defaults."""
    one = "axis" in inspect.signature(getattr(fft, name)).parameters
    lengths = given.get("n" if one else "s")
    default = -1 if one else (-2, -1) if name.endswith("2") else None
    axes = given.get("axis" if one else "axes", default)
    if axes is None and lengths is not None and not one:
        axes = range(-np.size(lengths), 0)  # as NumPy, which warns
    norm = given.get("norm")
    if plan is None:
        return front.transform(name, x, lengths, axes, norm, None, {})
    if not isinstance(plan, Plan):
        allowed = "None, or a plan of this library"
        refuse("plan", type(plan).__name__, allowed, kind=ArgumentTypeError)
    return front.transform_as_planned(name, x, lengths, axes, norm, plan)
