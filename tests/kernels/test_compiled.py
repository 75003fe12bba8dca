"""Loops are compiled where nothing can be kept on disk, too."""

import numba
import numpy as np

from dask_bigfft.kernels.compiled import compiled


def test_without_a_folder_to_keep_code_in(monkeypatch):
    njit, asked = numba.njit, []

    def nowhere(**options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", nowhere)

    def doubled(x):
        return 2 * x

    assert compiled(doubled, inline="always")(np.float64(4)) == 8
    assert asked == [
        {"nogil": True, "cache": True, "inline": "always"}, {"nogil": True, "inline": "always"}]
