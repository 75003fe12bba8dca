"""Settings under which laws hold."""

import pytest
from laws.law import small_tiles


@pytest.fixture(params=[None, 200])
def tiles(request, monkeypatch):
    """Tiles as they are, and so small that a block has many."""
    if request.param is not None:
        small_tiles(monkeypatch, request.param)
