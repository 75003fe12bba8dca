"""Zarr arrays that runs write, and begin again."""

import threading

import numpy as np
import pytest

from dask_bigfft.storage import targets

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("grouped", [False, True])
def test_an_array_that_is_opened_again_stores_zeros_and_leaves_the_settings(tmp_path, grouped):
    coordinates = {"x": (np.arange(8.0), {})} if grouped else {}
    labels = targets.Labels(names=("x",), variable="y", coordinates=coordinates)
    path, partial = tmp_path / "out.zarr", tmp_path / "partial"
    targets.created(
        path,
        partial,
        shape=(8,),
        blocks=(4,),
        dtype=np.dtype("f8"),
        record={},
        inner=None,
        labels=labels,
        compressors=None,
    )
    seen = []
    watching = threading.Event()

    def watch():
        while not watching.wait(0.0005):
            seen.append(zarr.config.get("array.write_empty_chunks"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        target = targets.reopened(path, partial)
    watching.set()
    watcher.join()
    assert not any(seen)
    assert seen
    assert (target.root is target.array) == (not grouped)
    target.array[...] = 0
    stored = partial / "y" if grouped else partial
    assert {chunk.name for chunk in (stored / "c").iterdir()} == {"0", "1"}
