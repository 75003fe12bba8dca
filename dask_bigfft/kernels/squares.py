"""Sums of squares, compiled: what energies are made of.

Imports numba and this room.
"""

from dask_bigfft.kernels.compiled import compiled

__all__ = ["FAST", "STRETCH", "squares", "squares_of_line", "squares_of_lines"]

#: Values that are summed in their own precision before the sum is added to the others in double.
STRETCH = 4096

#: What the compiler may do with sums; not that it may take NaN for impossible.
FAST = {"reassoc", "contract", "nsz", "arcp"}


def _squares(x):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        total += v * v
    return total


#: Sum of the squares of a real array of one dimension, in its own precision.
squares = compiled(_squares, fastmath=FAST)


@compiled
def squares_of_line(x):  # type: ignore[no-untyped-def]
    """Sum of squares of a line, in double precision."""
    total = 0.0
    for start in range(0, len(x), STRETCH):
        total += squares(x[start : start + STRETCH])
    return total


@compiled
def squares_of_lines(x):  # type: ignore[no-untyped-def]
    """Sum of squares of all lines, in double precision."""
    total = 0.0
    for i in range(x.shape[0]):
        total += squares_of_line(x[i])
    return total
