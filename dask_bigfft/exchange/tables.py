"""Copies from blocks to a block, on the host or on a card: whoever gathers need not know.

Imports `devices`, `kernels` and `memory`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.on_card import is_on_card
from dask_bigfft.kernels.copies import CopyTable, Segments
from dask_bigfft.memory import lend

Table = Any  # a CopyTable or a CardTable


class CardTable:
    """Strided copies on a card, collected as a `CopyTable` collects those on the host.

    Parameters
    ----------
    target : cupy.ndarray
        Block that is written.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self._copies: list[tuple[Any, int, Segments]] = []

    def extend(self, sources: Sequence[Any], which: np.ndarray, rows: Segments) -> None:
        """Add many strided copies; `which` names the source of each."""
        self._copies += [(sources[source], i, rows) for i, source in enumerate(which.tolist())]

    def run(self) -> None:
        """Do the copies, and wait for them: other threads use streams of their own."""
        with self.target.device:
            self._run()
            cupy().cuda.get_current_stream().synchronize()

    def _run(self) -> None:
        for source, i, rows in self._copies:
            counts = tuple(rows.counts[i].tolist())
            values = _view(source, rows.source_starts[i], counts, rows.source_strides[i])
            if values.dtype.kind == "c" and self.target.dtype.kind != "c":
                values = values.real
            elif rows.conjugate and values.dtype.kind == "c":
                values = values.conj()
            target = _view(self.target, rows.target_starts[i], counts, rows.target_strides[i])
            target[...] = values


def _view(array: Any, start: Any, counts: tuple[int, ...], strides: Any) -> Any:
    """View of a CuPy array's memory that begins `start` bytes after its first element."""
    steps = tuple(int(stride) for stride in strides)
    return cupy().ndarray(counts, array.dtype, memptr=array.data + int(start), strides=steps)


def table_for(like: Any, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Table:
    """Return an empty table of copies into memory of its own, beside the array `like`."""
    if not is_on_card(like):
        return CopyTable(lend(shape, dtype))
    with like.device:
        return CardTable(cupy().empty(shape, dtype))
