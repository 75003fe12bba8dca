"""Loops are compiled where nothing can be kept on disk, too."""

from types import SimpleNamespace

import numba
import numpy as np

from dask_bigfft.kernels import compiled as module


def test_without_a_folder_to_keep_code_in(monkeypatch):
    asked = []

    def nowhere(**options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(**options)

    monkeypatch.setattr(module, "numba", SimpleNamespace(njit=nowhere))

    def doubled(x):
        return 2 * x

    assert module.compiled(doubled, inline="always")(np.float64(4)) == 8
    assert asked == [
        {"nogil": True, "cache": True, "inline": "always"}, {"nogil": True, "inline": "always"}]
