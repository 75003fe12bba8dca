"""A backend of `scipy.fft` for dask arrays of any chunking, with lazy results.

Give this module to SciPy::

    with scipy.fft.set_backend(dask_bigfft.scipy_backend):
        spectrum = scipy.fft.rfftn(x, workers=2)

SciPy's own backend does other arrays, and functions that this library lacks. Of the arguments that
only SciPy has, ``workers`` must be valid and is ignored, because dask's scheduler determines the
number of tasks. ``overwrite_x`` is ignored, because inputs are only read. ``plan`` may be a result
of `dask_bigfft.plan` for the same transform.

The protocol is that of uarray: ``__ua_domain__``, ``__ua_cache__`` and ``__ua_function__``.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dask.array as da
import numpy as np
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.api import calls
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.integrations import fftlog
from dask_bigfft.planner.plan import Plan
from dask_bigfft.transforms.spec import TRANSFORMS

__ua_domain__ = "numpy.scipy.fft"


class _Forgetful(dict[Any, Any]):
    """Mapping that ignores assignments.

    SciPy 1.17 stores the context of a thread with a backend by thread number, and crashes when the
    system reuses the number for another thread.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore the assignment."""


__ua_cache__ = _Forgetful()

# SciPy's own backend remains available if this one is the global backend
# (scipy.fft.set_global_backend), because registered backends are tried last.
scipy.fft.register_backend("scipy")


def __ua_function__(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Return the lazy result of a function of `scipy.fft`, or NotImplemented."""
    name = method.__name__
    ours = getattr(fft, name, None) or getattr(fftlog, name, None)
    arguments = inspect.signature(method).bind(*args, **kwargs).arguments
    array = arguments.pop(next(iter(arguments)))  # in the order of the signature
    if not isinstance(array, da.Array) or ours is None:
        return NotImplemented
    workers = arguments.pop("workers", None)
    if workers is not None:
        with scipy.fft.set_workers(workers):  # refuses what SciPy refuses
            pass
    plan = arguments.pop("plan", None)
    arguments.pop("overwrite_x", None)
    if array.dtype == np.float16:  # SciPy's results are of single precision throughout
        array = array.astype(np.float32)
    if name not in TRANSFORMS:
        return ours(array, **arguments)
    call = inspect.signature(ours).bind(array, **arguments)
    return _transform(name, call, plan)


def _transform(name: str, call: inspect.BoundArguments, plan: Any) -> da.Array:
    """Return a transform for bound arguments, with a given plan unless it is None."""
    call.apply_defaults()
    array, lengths, axes, norm, _ = call.args
    if axes is None and call.arguments.get("s") is not None:
        axes = range(-np.size(lengths), 0)  # as NumPy, which warns
    if plan is None:
        return calls.transform(
            name,
            array,
            lengths=lengths,
            axes=axes,
            norm=norm,
            out=None,
            extras={},
        )
    if not isinstance(plan, Plan):
        allowed = "None, or a plan of this library"
        raise_invalid(
            "plan",
            type(plan).__name__,
            allowed,
            kind=ArgumentTypeError,
        )
    return calls.transform_as_planned(
        name,
        array,
        lengths=lengths,
        axes=axes,
        norm=norm,
        plan=plan,
    )
