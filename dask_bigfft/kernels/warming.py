"""When copies are compiled: where a process has so many to do that compiling pays.

Compiling a loop takes seconds, once on a machine. NumPy's own copies take a fraction of that for
the first `FIRST` bytes, and both copy the same bits, so nothing depends on which of them it was.

Imports numpy.
"""

from collections import Counter

import numpy as np

__all__ = ["EACH", "FIRST", "at_once", "count", "pays"]

#: Bytes of a pair of types that a process leaves to NumPy.
FIRST = 1 << 29

#: Bytes that a copy counts beside its own: NumPy takes some microseconds to begin one.
EACH = 1 << 14

_counted: Counter[tuple[np.dtype, np.dtype]] = Counter()
_left = [FIRST]


def count(source: np.dtype, target: np.dtype, copies: int, nbytes: int) -> None:
    """Take in how many copies there are to do between two types, and of how many bytes in all."""
    if not pays(source, target):
        _counted[source, target] += copies * EACH + nbytes


def pays(source: np.dtype, target: np.dtype) -> bool:
    """Whether copies between two types are worth compiling by now."""
    return _counted[source, target] >= _left[0]


def at_once() -> None:
    """Compile what is copied from now on: who measures speeds wants those of a warm process."""
    _left[0] = 0
