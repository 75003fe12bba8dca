"""An empty folder of wisdom for each test."""

import dask
import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        yield tmp_path
