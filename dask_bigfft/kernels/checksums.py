"""A checksum of bytes that costs less than reading them from memory.

The bytes are words v of 32 bits, and ``checksum = sum v_i * (1 + (i + 1) * C) mod 2^64`` with an
even constant C. All weights are odd, so a change within one word is always found. So are two words
that change places, in up to 2^31 words: with C twice an odd number, their difference times that of
their places times C is less than 2^64 in its odd part's power of two. What changes more at a time
goes unseen with a probability of about 2^-64. The sum goes through memory at the speed of a copy
or faster, many times that of a CRC.

Such weighted sums are those of J. G. Fletcher (IEEE Trans. Communications 30, 1982), there modulo
2^k - 1; ZFS checks its data with them modulo 2^64.

May import NumPy and this room.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.kernels.compiled import compiled

__all__ = ["checksum"]

Array = npt.NDArray[Any]

_MODULUS = 1 << 64

#: C: twice an odd number.
FACTOR = 2 * 0x5851F42D4C957F2D % _MODULUS

#: What each byte of length counts, so that zeros at the end are seen.
LENGTH = 0x9E3779B97F4A7C15


def _sum_of(words, factor):  # type: ignore[no-untyped-def]
    total, weight = np.uint64(0), np.uint64(1)
    for i in range(len(words)):
        total += np.uint64(words[i]) * (weight + np.uint64(i + 1) * factor)
    return total


_weighted = compiled(_sum_of)


def checksum(values: Array) -> int:
    """Return a checksum of an array's bytes, of 64 bits.

    Parameters
    ----------
    values : ndarray, contiguous
        Of any dtype and shape, neither of which counts.

    Examples
    --------
    >>> one, other = np.array([1, 2], np.uint32), np.array([2, 1], np.uint32)
    >>> checksum(one) == checksum(other)
    False
    >>> checksum(one) == (1 * (1 + FACTOR) + 2 * (1 + 2 * FACTOR) + 8 * LENGTH) % 2**64
    True
    """
    data = values.reshape(-1).view(np.uint8)
    if data.ctypes.data % 4 or len(data) % 4:
        padded = np.zeros(-(-len(data) // 4) * 4, np.uint8)
        padded[: len(data)] = data
        found = _weighted(padded.view(np.uint32), np.uint64(FACTOR))
    else:
        found = _weighted(data.view(np.uint32), np.uint64(FACTOR))
    return (int(found) + len(data) * LENGTH) % _MODULUS
