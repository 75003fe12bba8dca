"""Settings of zarr, which other packages change when they are imported."""

import pytest


@pytest.fixture(autouse=True)
def chunks_of_zeros_are_not_stored():
    """Undo what cubed sets for the whole process."""
    zarr = pytest.importorskip("zarr")
    with zarr.config.set({"array.write_empty_chunks": False}):
        yield
