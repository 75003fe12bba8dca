"""The two orders of a spectrum: natural, and transposed (digit-reversed).

Imports NumPy, `errors` and `factors`. A transform in rounds leaves a split axis as the matrix of
its output digits; transposed order keeps that matrix as it lies and saves the last exchange::

    n = 6 = 2 x 3        k2=0  k2=1  k2=2
                   k1=0    0     2     4      places 0 1 2   hold frequencies 0 2 4
                   k1=1    1     3     5      places 3 4 5   hold frequencies 1 3 5

The digits are `transposed_digits(n)`, a function of the length alone.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.factors import parse_factors, transposed_digits
from dask_bigfft.errors import parse_count, parse_flag

__all__ = ["transposed_index"]


def transposed_index(
    n: int, *, real: bool = False, digits: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Return the frequency that each place of a spectrum in transposed order holds.

    Parameters
    ----------
    n
        Length of the axis of the signal.
    real
        Whether the spectrum is that of a real signal: then the first output digit runs over
        0..N1//2 only, so there are (N1//2 + 1)*(n//N1) places. Some frequencies lie there twice
        over, as k and as its mirror n - k (whose value is the conjugate): products place by place
        are valid, sums over places are not. A single digit gives the usual n//2 + 1 places.
    digits
        Digits N1..Nm of the spectrum where the transform was given `digits`; by default those that
        every spectrum of this length has.

    Returns
    -------
    ndarray of int64
        Place k1*N2*...*Nm + ... + km (row-major in the output digits) holds the frequency
        k1 + N1*k2 + N1*N2*k3 + ...

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Notes
    -----
    ``spectrum_transposed = spectrum_natural[transposed_index(n)]``.

    Examples
    --------
    >>> transposed_index(6)
    array([0, 2, 4, 1, 3, 5])
    >>> transposed_index(9, real=True)
    array([0, 3, 6, 1, 4, 7])
    >>> transposed_index(7, real=True)
    array([0, 1, 2, 3])
    >>> transposed_index(8, digits=(2, 2, 2))
    array([0, 4, 2, 6, 1, 5, 3, 7])
    """
    n = parse_count("n", n)
    real = parse_flag("real", real)
    digits = transposed_digits(n) if digits is None else parse_factors("digits", digits, n)
    weights = [math.prod(digits[:j]) for j in range(len(digits))]
    counts = [digits[0] // 2 + 1 if real else digits[0], *digits[1:]]
    index: npt.NDArray[Any] = np.zeros(1, dtype=np.int64)
    for count, weight in zip(counts, weights, strict=True):
        index = np.add.outer(index, weight * np.arange(count, dtype=np.int64)).ravel()
    return index
