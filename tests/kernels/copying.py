"""Strided copies into an array, as their tests ask for them: the one place that knows tables."""

import contextlib

import numpy as np
import pytest

from dask_bigfft.kernels import copies
from dask_bigfft.kernels.copies import CopyTable, Segments


@contextlib.contextmanager
def copied_by(compiled):
    """Copy by compiled loops, as a process that has copied much, or by NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        pays = copies.COMPILED.__contains__ if compiled else lambda pair: False
        patch.setattr(copies, "pays", lambda pair, *_: pays(pair))
        yield


class Copies:
    """Copies that are done in one call, or in parts along one dimension.

    Parameters
    ----------
    target : ndarray
        Array that they go to.
    """

    def __init__(self, target):
        self.table = CopyTable(target)

    def add(
        self,
        source,
        counts,
        read,
        write,
        conjugate=False,
        along=-1,
        first=0,
        step=0,
    ):
        """Add a copy of some counts; a side is its first byte and its strides in bytes.

        It may run along the dimension of the parts, from place `first` on, whose step in the target
        is `step` bytes.
        """
        start, strides = read
        to, target_strides = write
        segments = Segments(
            counts=_rows(counts),
            source_starts=_column(start),
            source_strides=_rows(strides),
            target_starts=_column(to),
            target_strides=_rows(target_strides),
            firsts=_column(first),
            conjugate=conjugate,
            along=along,
            step=step,
        )
        self.table.extend([source], np.zeros(1, np.int64), segments)

    def run(self, *part):
        """Do all copies, or the part from one place to another, into memory that begins there."""
        self.table.run(*part)


def _column(value):
    return np.array([value], np.int64)


def _rows(values):
    return np.array(values, np.int64).reshape(1, -1)
