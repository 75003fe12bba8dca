"""Shards that wait on a worker: the budget that they take, and how they lie in files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed.shuffle._pickle import pickle_bytelist

from dask_bigfft.exchange.p2p import ALIGNMENT, MemoryBudget, Run


def test_no_more_is_reserved_than_there_is_room_for() -> None:
    pressed = [False, True, False, False]
    room = MemoryBudget(100, iter(pressed).__next__)
    assert [room.take(40) for _ in pressed] == [True, False, True, False]
    assert room.nbytes == 80
    room.give_back(80)
    assert room.nbytes == 0


@pytest.mark.parametrize("dtype", ["f4", "c8", "c16", "g"])
def test_values_are_aligned_in_files(dtype: str, tmp_path: Path) -> None:
    """Whatever lengths pickles have, and however often a file is added to."""
    written, run = [], Run.__new__(Run)
    vars(run).update(_folder=tmp_path, local_address="here")
    for turn in range(9):
        parts: list[Any] = [((turn, 10**k), k, np.full(3 * turn + k, k, dtype)) for k in (1, 2, 3)]
        # As distributed hands them over: several lists of parts at a time.
        frames = [frame for some in (parts[:2], parts[2:]) for frame in pickle_bytelist(some)]
        run._write_frames(frames, "0_1")
        written += [parts[:2], parts[2:]]
    found, nbytes = Run.read(SimpleNamespace(), tmp_path / "0_1")
    assert nbytes == (tmp_path / "0_1").stat().st_size
    assert len(found) == len(written)
    for lists in zip(found, written, strict=True):
        for (source, checksum, values), wanted in zip(*lists, strict=True):
            assert (source, checksum) == wanted[:2]
            assert values.flags.aligned
            np.testing.assert_array_equal(values, wanted[2], strict=True)
        assert lists[0][0][2].ctypes.data % ALIGNMENT == 0
