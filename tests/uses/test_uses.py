"""What users do with a spectrum: it is right, and the input stays as it is.

Each use meets each scheduler and each kind of arrays. `test_other_kinds.py` runs this file in
processes of the other kinds.
"""

import contextlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from kinds import KIND, KINDS, da, xarray_of_this_kind
from support import local
from uses.table import (
    CHUNKS,
    FIELD,
    LABELLED_FIELD,
    LABELLED_SPECTRUM,
    LABELLED_USES,
    SPECTRUM,
    USES,
    field,
    labelled_field,
)

import dask_bigfft.xarray
from dask_bigfft import fft

SCHEDULERS = ("synchronous", "threads", "processes", "distributed")

of_each_kind = pytest.mark.parametrize("kind", KINDS)


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


@pytest.fixture(autouse=True, scope="module")
def labelled_arrays():
    with xarray_of_this_kind():
        yield


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


def computed(used):
    """Return what a use computes, all of it at once."""
    results = dask.compute(*(used if isinstance(used, tuple) else (used,)))
    return results if isinstance(used, tuple) else results[0]


def spectrum():
    y = fft.fft2(field())
    assert type(y) is da.Array
    assert max(y.numblocks) > 1
    return y


def spectrum_without_transform():
    return da.from_array(SPECTRUM, chunks=CHUNKS)


@contextlib.contextmanager
def skipped_where_dask_lacks(same_without_transform, *arguments):
    """Skip a test with query planning that fails in the same way without a transform."""
    try:
        yield
    except Exception as error:
        if KIND != "dask with query planning" or isinstance(error, AssertionError):
            raise
        with pytest.raises(type(error)):
            same_without_transform(*arguments)
        pytest.skip(f"dask lacks it with query planning: {error!r:.80}")


@pytest.mark.pairs
@of_each_kind
@pytest.mark.parametrize("name", USES)
def test_use(kind, scheduler, name):
    use = USES[name].ours
    with skipped_where_dask_lacks(lambda: computed(use(spectrum_without_transform()))):
        results = computed(use(spectrum()))
    assert_same(results, USES[name].expected(SPECTRUM))


@pytest.mark.pairs
@of_each_kind
@pytest.mark.parametrize("name", LABELLED_USES)
def test_use_with_labels(kind, scheduler, name):
    lazy = dask_bigfft.xarray.fft(labelled_field(), ["y", "x"])
    assert type(lazy.data) is da.Array
    use = LABELLED_USES[name].ours
    chunked = LABELLED_SPECTRUM.chunk(freq_y=7, freq_x=8)
    with skipped_where_dask_lacks(lambda: computed(use(chunked))):
        results = computed(use(lazy))
    expected = LABELLED_USES[name].expected(LABELLED_SPECTRUM)
    if not isinstance(expected, tuple):
        results = (results,)
        expected = (expected,)
    for ours, other in zip(results, expected, strict=True):
        xr.testing.assert_allclose(ours, other, atol=1e-10)


# --- several steps ----------------------------------------------------------------------------


def persisted_then_used(folder, y):
    y = y.persist()
    for _ in range(2):
        assert_same((y.compute(), y[3:5].compute()), (SPECTRUM, SPECTRUM[3:5]))
    assert_same(fft.ifft2(y).real.compute(), FIELD)


def parts_persisted_one_after_the_other(folder, y):
    rows = [y[first : first + 8].persist() for first in (0, 8, 16)]
    assert_same(da.concatenate(rows).compute(), SPECTRUM)


def to_zarr_at_once_and_later(folder, y):
    y = y.rechunk((8, 10))
    y.to_zarr(str(folder / "now.zarr"))
    later = (2 * y).to_zarr(str(folder / "later.zarr"), compute=False)
    dask.compute(later)
    assert_same(zarr.open(str(folder / "now.zarr"))[...], SPECTRUM)
    assert_same(da.from_zarr(str(folder / "later.zarr")).compute(), 2 * SPECTRUM)


def stored(folder, y):
    """In one call into two arrays, and read from there by the next transform.

    Blocks are chunks of the files: dask-array has no lock between processes that write one chunk.
    """
    y = y.rechunk((8, 10))
    targets = [
        zarr.create_array(str(folder / n), shape=y.shape, chunks=(8, 10), dtype="c16") for n in "ab"
    ]
    da.store([y, y.conj()], targets)
    assert_same(fft.ifft2(da.from_zarr(targets[0])).real.compute(), FIELD)
    assert_same(tuple(target[...] for target in targets), (SPECTRUM, SPECTRUM.conj()))


def computed_in_turn_by_one_graph(folder, y):
    """What is computed first does not change what is computed next."""
    z = fft.ifft2(y * 2)
    for collection, numpys in ((y, SPECTRUM), (z, 2 * FIELD), (y, SPECTRUM)):
        assert_same(collection.compute(), numpys)
        assert_same(collection.compute(optimize_graph=False), numpys)


def labelled_file_and_back(folder, y):
    """The spectrum goes to a file, whose own chunks are transformed back."""
    path = str(folder / "spectrum.zarr")
    LABELLED_SPECTRUM.copy(data=y.rechunk((8, 10))).to_dataset(name="s").to_zarr(
        path, consolidated=False
    )
    back = xr.open_zarr(path, consolidated=False)["s"].bigfft.ifft().real
    xr.testing.assert_allclose(back.compute(), LABELLED_FIELD, atol=1e-10)


STEPS = (
    persisted_then_used,
    parts_persisted_one_after_the_other,
    to_zarr_at_once_and_later,
    stored,
    computed_in_turn_by_one_graph,
    labelled_file_and_back,
)


@pytest.mark.pairs
@of_each_kind
@pytest.mark.parametrize("steps", STEPS, ids=lambda steps: steps.__name__)
def test_steps(kind, scheduler, steps, tmp_path):
    (tmp_path / "again").mkdir()
    with skipped_where_dask_lacks(steps, tmp_path / "again", spectrum_without_transform()):
        steps(tmp_path, spectrum())
