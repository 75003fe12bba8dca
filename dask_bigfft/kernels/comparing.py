"""Whether two blocks hold the same: to the bit, or within what FFT libraries round differently.

May import this room.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.kernels.incoming import parts
from dask_bigfft.kernels.sums import energy

Array = npt.NDArray[Any]

#: Two ways of doing a round may differ by so many rounding errors, times the logarithm of its size;
#: and so many values are compared at a time.
NEAR, COMPARED = 16, 1 << 16


def same_values(one: Array, other: Array) -> bool:
    """Whether all bytes are the same; of long doubles, of which some mean nothing, the values."""
    if one.dtype.char in "gG":
        return bool(np.array_equal(one, other, equal_nan=True))
    ours, theirs = (values.reshape(-1).view(np.uint8) for values in (one, other))
    return bool(np.array_equal(ours, theirs))


def near_values(one: Array, other: Array) -> bool:
    """Whether values differ by no more than what FFT libraries round differently.

    An error of rounding is one of the largest values of a line, so it is held against the root
    mean square of all. What is not finite has to be so in both.
    """
    ours, theirs = one.reshape(-1), other.reshape(-1)
    rounding = NEAR * math.log2(max(2, ours.size)) * float(np.finfo(one.dtype).eps)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(ours)
        if not np.array_equal(finite, np.isfinite(theirs)):
            return False
        if not finite.all():
            ours, theirs = ours[finite], theirs[finite]
        scale = _scale(ours)
        for part in parts(ours.size, COMPARED):
            allowed = rounding * (np.abs(ours[part]) + scale)
            if (np.abs(ours[part] - theirs[part]) > allowed).any():
                return False
    return True


def _scale(values: Array) -> Any:
    """Root mean square of values; the largest of those whose squares are too large or too small."""
    total, limits = energy(values), np.finfo(values.dtype)
    if float(limits.tiny / limits.eps) * values.size < total < math.inf:
        return math.sqrt(total / values.size)
    return max((np.abs(values[part]).max() for part in parts(values.size, COMPARED)), default=0.0)
