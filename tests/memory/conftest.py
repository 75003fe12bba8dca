"""The arena that a test works on."""

import pytest
from memory.arenas import MIB

from dask_bigfft.memory.arena import HostArena


@pytest.fixture
def arena():
    return HostArena(64 * MIB)
