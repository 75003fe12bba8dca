"""NaN and infinity pass through as they do in SciPy: where they go, and nowhere else."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.testing.strategies import random_array

#: One-dimensional transforms of every kind.
KINDS = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "dct", "dst"]
LENGTH = 96
ROWS = 8


def data(kind, value):
    """Rows, two of which have a value that is not finite: in the middle, and in a mirrored half."""
    dtype = "c16" if kind in ("fft", "ifft", "irfft", "hfft") else "f8"
    x = random_array((LENGTH, ROWS), dtype, 8)
    x[LENGTH // 2, 3] = x[LENGTH - 2, 6] = value
    return x


@pytest.mark.parametrize("carrier", ["shared", "disk"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_rows_that_are_finite_stay_so(
    kind,
    value,
    carrier,
    tmp_path_factory,
):
    """Along an axis that is split, where an exchange could bring them to other rows."""
    x = data(kind, value)
    options = {
        "bigfft.exchange.carrier": carrier,
        "bigfft.planner.whole-axis-floor": 1,
        "bigfft.scratch.directory": str(tmp_path_factory.mktemp("scratch")),
    }
    with dask.config.set(options), np.errstate(invalid="ignore"):
        array = da.from_array(x, chunks=(12, 4))
        transformed = getattr(fft, kind)(array, axis=0).compute(scheduler="sync")
        wanted = getattr(scipy.fft, kind)(x, axis=0)
    good = np.isfinite(x).all(axis=0)
    assert good.sum() == ROWS - 2
    np.testing.assert_allclose(transformed[:, good], wanted[:, good], atol=1e-12)
    for row in np.flatnonzero(~good):
        assert not np.isfinite(transformed[:, row]).any(), (kind, row)
        assert not np.isfinite(wanted[:, row]).any(), (kind, row)


@pytest.mark.parametrize("kind", ["dct", "dst", "dctn", "idstn"])
@pytest.mark.parametrize("chunks", [(96, 8), (12, 4)])
def test_parts_of_cosine_transforms_keep_theirs(kind, chunks):
    x = data(kind, 1.0).astype(complex)
    x.imag = data(kind, np.inf)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}), np.errstate(invalid="ignore"):
        coefficients = getattr(fft, kind)(da.from_array(x, chunks=chunks)).compute(scheduler="sync")
        wanted = getattr(scipy.fft, kind)(x)
    assert np.isfinite(wanted.real).all()
    np.testing.assert_allclose(coefficients.real, wanted.real, atol=1e-11)
    assert not np.isfinite(coefficients.imag).all()
