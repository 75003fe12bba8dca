"""The FFT libraries that a graph may use where it will run now, and the one that `"auto"` is.

Without a cluster those that work in this process. With one SciPy, and those that work here and on
every worker in the same version: others may differ in the last bit. The fastest library is known
from the profile that plans are made with, where that has speeds of all of them (a cluster's has
those of its slowest worker), else it is measured here: their order is mostly the same on another
processor.

Imports `errors`, `kernels`, `planner`, `environment` and `workers`.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_bigfft.errors import FallbackWarning
from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.kernels.wisdom import best_of, fastest_library
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planning.environment import profile_of, running_client
from dask_bigfft.planning.workers import workers_answers, workers_of

__all__ = ["fastest_everywhere", "usable_libraries"]

#: What every worker has.
DEFAULT = "scipy"


def fastest_everywhere(dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the fastest FFT library that can be used wherever tasks would run now, and a reason.

    The reason is empty, unless another library may be faster and workers could not be asked for it.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex.

    Warns
    -----
    FallbackWarning
        If workers have not answered.
    """
    client = running_client()
    if client is None:
        return fastest_library(dtype), ""
    names, fallback = _common(client, dtype)
    if len(names) == 1:
        return names[0], fallback
    rates = _known_rates(profile_of(workers_of(client).values()), names, dtype)
    return best_of(rates) if rates else fastest_library(dtype, names), fallback


def usable_libraries(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Return the names of the FFT libraries that can be used wherever tasks would run now.

    Parameters
    ----------
    dtype : numpy.dtype
        Complex; libraries that do not work in it are left out.
    """
    client = running_client()
    return tuple(_here(dtype)) if client is None else _common(client, dtype)[0]


def _here(dtype: np.dtype[Any]) -> dict[str, str]:
    """Libraries that work in this process, with their versions."""
    return {
        name: version for name, version in usable().items() if dtype in get_library(name).dtypes
    }


def _common(client: Any, dtype: np.dtype[Any]) -> tuple[tuple[str, ...], str]:
    """Libraries of this process and all workers, and why they are fewer than they might be.

    The default is taken in whatever versions.
    """
    here = _here(dtype)
    answers = workers_answers(client, usable) if len(here) > 1 else {}
    missing = [address for address, answer in answers.items() if answer is None]
    fallback = ""
    if client.asynchronous and len(here) > 1:
        fallback = f"{DEFAULT} instead of 'auto': an asynchronous client cannot ask its workers"
    elif missing:
        fallback = (
            f"{DEFAULT} instead of 'auto': {len(missing)} of {len(answers)} workers have "
            f"not told which FFT libraries they have ({', '.join(missing[:3])})"
        )
        warnings.warn(
            f"kernel {fallback}; results of other plans may differ in the last bits",
            FallbackWarning,
            stacklevel=2,
        )
    told = [frozenset(answer.items()) for answer in answers.values() if answer is not None]
    there = frozenset.intersection(*told) if told and not missing else frozenset()
    names = tuple(
        name for name, version in here.items() if name == DEFAULT or (name, version) in there
    )
    return names, fallback


def _known_rates(profile: Profile, names: Sequence[str], dtype: np.dtype[Any]) -> dict[str, float]:
    """Rates of libraries by a profile; none where it lacks those of one."""
    speeds = {one.name: one for one in profile.libraries if one.dtype == dtype.name}
    if not all(name in speeds for name in names):
        return {}
    return {name: speeds[name].flops for name in names}
