"""What users do with a spectrum, each with every scheduler: right, and the input stays as it is."""

import contextlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from support import local
from uses.table import FIELD, SPECTRUM, USES, field

from dask_bigfft import fft

SCHEDULERS = ("synchronous", "threads", "processes", "distributed")


@pytest.fixture(params=SCHEDULERS, scope="module")
def scheduler(request):
    """Every task of a test runs on one scheduler, of two threads, processes or workers."""
    settings = {"bigfft.planner.whole-axis-floor": 1}
    with contextlib.ExitStack() as stack:
        if request.param == "processes":
            context = get_context("spawn")
            settings["pool"] = stack.enter_context(ProcessPoolExecutor(2, mp_context=context))
        if request.param == "distributed":
            stack.enter_context(local())
        else:
            settings |= {"scheduler": request.param, "num_workers": 2}
        stack.enter_context(dask.config.set(settings))
        yield request.param


@pytest.fixture(autouse=True)
def input_is_unchanged():
    before = FIELD.copy()
    yield
    np.testing.assert_array_equal(FIELD, before)


def assert_same(results, expected):
    if not isinstance(expected, tuple):
        results = (results,)
        expected = (expected,)
    for ours, numpys in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-10, atol=1e-10)


def spectrum():
    y = fft.fft2(field())
    assert y.npartitions > 1
    return y


@pytest.mark.parametrize("name", USES)
def test_use(scheduler, name):
    used = USES[name].ours(spectrum())
    together = used if isinstance(used, tuple) else (used,)
    results = dask.compute(*together)
    assert_same(results if isinstance(used, tuple) else results[0], USES[name].expected(SPECTRUM))


def test_persisted_then_used(scheduler):
    y = spectrum().persist()
    for _ in range(2):
        assert_same((y.compute(), y[3:5].compute()), (SPECTRUM, SPECTRUM[3:5]))
    assert_same(fft.ifft2(y).real.compute(), FIELD)


def test_parts_persisted_one_after_the_other(scheduler):
    y = spectrum()
    rows = [y[first : first + 8].persist() for first in (0, 8, 16)]
    assert_same(da.concatenate(rows).compute(), SPECTRUM)


def test_to_zarr_at_once_and_later(scheduler, tmp_path):
    y = spectrum().rechunk((8, 10))
    y.to_zarr(str(tmp_path / "now.zarr"))
    later = (2 * y).to_zarr(str(tmp_path / "later.zarr"), compute=False)
    dask.compute(later)
    assert_same(zarr.open(str(tmp_path / "now.zarr"))[...], SPECTRUM)
    assert_same(da.from_zarr(str(tmp_path / "later.zarr")).compute(), 2 * SPECTRUM)


def test_stored(scheduler, tmp_path):
    """In one call into two arrays, and read from there by the next transform."""
    y = spectrum()
    targets = [zarr.create_array(str(tmp_path / n), shape=y.shape, dtype="c16") for n in "ab"]
    da.store([y, y.conj()], targets)
    assert_same(fft.ifft2(da.from_zarr(targets[0])).real.compute(), FIELD)
    assert_same(tuple(target[...] for target in targets), (SPECTRUM, SPECTRUM.conj()))


def test_computed_in_turn_by_one_graph(scheduler):
    """What is computed first does not change what is computed next."""
    y = spectrum()
    z = fft.ifft2(y * 2)
    for collection, numpys in ((y, SPECTRUM), (z, 2 * FIELD), (y, SPECTRUM)):
        assert_same(collection.compute(), numpys)
        assert_same(collection.compute(optimize_graph=False), numpys)
