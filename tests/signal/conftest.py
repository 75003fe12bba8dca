"""What tests of convolutions and spectra share."""

import dask
import pytest


@pytest.fixture
def small(sync):
    """Axes of a few elements fall apart as long ones do."""
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        yield
