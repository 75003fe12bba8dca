"""The arrays that an arena lends: how one is made, and what happens when it dies.

It imports NumPy, the package's errors and `pages` of this folder.
"""

import math
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse
from dask_bigfft.memory.pages import Buffer

ALIGNMENT_NBYTES = 64
"""Every block with a numeric dtype begins at a multiple of this."""

NUMERIC_KINDS = frozenset("biufc")
"""Kinds of dtypes that are told in full by their string, and whose bytes may hold anything."""


class Returned(deque[Buffer]):
    """Buffers whose block has died and which no drain has seen yet.

    It outlives its arena as long as a block does; `abandoned` then tells the block's finalizer
    that no drain will come.
    """

    abandoned = False


class Loan:
    """What the base of a lent array is: owns the block's buffer, and gives it back at its end.

    NumPy reads `__array_interface__` to make the array and keeps the loan as its base; every view
    refers to that array, so the loan dies with the last of them. A method `__del__` rather than
    `weakref.finalize`: it needs no registry under a lock, costs a fifth, and what it uses hangs
    on the loan itself, so it is safe while the interpreter shuts down.
    """

    __slots__ = ("__array_interface__", "_returned", "buffer")

    def __init__(
        self, buffer: Buffer, returned: Returned, shape: tuple[int, ...], typestr: str
    ) -> None:
        self.buffer = buffer
        self._returned = returned
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (buffer.address, False),
        }

    def __del__(self) -> None:
        returned = self._returned
        returned.append(self.buffer)
        if returned.abandoned:
            returned.clear()


def loan_of(array: npt.NDArray[Any]) -> Loan | None:
    """Return the loan that an array, or what it is a view of, lies in; None if it is not lent."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, Loan) else None


def is_lent(array: npt.NDArray[Any]) -> bool:
    """Whether an array, or what it is a view of, lies in memory of an arena.

    >>> is_lent(np.zeros(3)[1:])
    False
    """
    return loan_of(array) is not None


def parse_shape(shape: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return the lengths of the axes as a tuple, of one length if `shape` is an integer.

    Raises
    ------
    ArgumentError
        If a length is negative.

    Examples
    --------
    >>> parse_shape(3), parse_shape([2, 3])
    ((3,), (2, 3))
    """
    # The protocol comes last: asking it costs more than a lend.
    if isinstance(shape, tuple):
        lengths = tuple(map(operator.index, shape))
    elif isinstance(shape, (int, SupportsIndex)):
        lengths = (operator.index(shape),)
    else:
        lengths = tuple(map(operator.index, shape))
    if lengths and min(lengths) < 0:
        refuse("shape", lengths, "lengths of at least 0")
    return lengths


def ordinary_block(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array from the C library, aligned if its bytes may hold anything."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes or dtype.kind not in NUMERIC_KINDS:
        return np.empty(shape, dtype)
    room = np.empty(nbytes + ALIGNMENT_NBYTES, np.uint8)
    offset = -room.__array_interface__["data"][0] % ALIGNMENT_NBYTES
    return np.ndarray(shape, dtype, room, offset)
