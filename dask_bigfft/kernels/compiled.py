"""The decorator under which this room's loops are compiled.

Imports numba.
"""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function compiled by numba, without the GIL, and kept on disk for other processes.

    Where there is no folder to keep it in, each process compiles it.
    """
    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # numba's "cannot cache function": neither beside the file nor at home
        return numba.njit(nogil=True, **options)(function)
