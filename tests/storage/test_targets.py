"""Zarr arrays that runs write, and begin again."""

import numpy as np
import pytest

from dask_bigfft.storage import targets

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("grouped", [False, True])
def test_an_array_that_is_opened_again_stores_zeros_and_leaves_the_settings(
    tmp_path,
    monkeypatch,
    grouped,
):
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
    settings = []
    opened = zarr.open

    def watched(*args, **kwargs):
        settings.append(zarr.config.get("array.write_empty_chunks"))
        return opened(*args, **kwargs)

    monkeypatch.setattr(zarr, "open", watched)
    target = targets.reopened(path, partial)
    assert settings == [False]
    assert (target.root is target.array) == (not grouped)
    target.array[...] = 0
    stored = partial / "y" if grouped else partial
    assert {chunk.name for chunk in (stored / "c").iterdir()} == {"0", "1"}
