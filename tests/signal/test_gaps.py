"""Filling of gaps against the iteration in NumPy, and its forecast against eigenvalues."""

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from records import CASES

import dask_bigfft
from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, MemoryLimitError
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


def band_limited(
    shape,
    highest,
    dtype,
):
    """Return an array of a few waves of up to `highest` periods along each axis."""
    spectrum = np.zeros(shape, complex)
    corner = tuple(slice(highest + 1) for _ in shape)
    spectrum[corner] = random_array(
        spectrum[corner].shape,
        "c16",
        4,
    )
    x = np.fft.ifftn(spectrum)
    return (x if np.dtype(dtype).kind == "c" else x.real).astype(dtype)


def iterated(
    x,
    mask,
    limits,
    count,
):
    """Return what some iterations of Papoulis and Gerchberg make of an array, and their misfits."""
    keeps = True
    for axis, limit in enumerate(limits):
        shape = [1] * x.ndim
        shape[axis] = -1
        keeps = keeps & (np.abs(np.fft.fftfreq(x.shape[axis])) <= limit).reshape(shape)
    known = np.where(
        mask,
        0,
        x,
    )
    filled = known
    misfits = []
    for _ in range(count):
        limited = np.fft.ifftn(np.fft.fftn(filled) * keeps)
        limited = limited if x.dtype.kind == "c" else limited.real
        better = np.where(
            mask,
            limited,
            known,
        )
        misfits.append(np.linalg.norm(better - limited) / (np.linalg.norm(known) or 1))
        filled = better
    return filled, misfits


@CASES
@given(
    data=st.data(),
    dtype=st.sampled_from(["f8", "f4", "c16", "c8"]),
    ndim=st.integers(1, 2),
    count=st.integers(1, 3),
)
def test_the_iteration_is_that_of_papoulis_and_gerchberg(
    data,
    dtype,
    ndim,
    count,
):
    shape = [data.draw(st.sampled_from([1, 2, 7, 16, 30])) for _ in range(ndim)]
    x = random_array(
        shape,
        dtype,
        4,
    )
    mask = np.random.default_rng(data.draw(st.integers(0, 99))).random(shape) < 0.3
    damaged = np.where(
        mask,
        x.dtype.type(np.nan),
        x,
    )
    limits = [0.11, 0.26][:ndim]
    filled, misfits = signal.fill_gaps(
        da.from_array(damaged, data.draw(chunkings(shape))),
        mask if data.draw(st.booleans()) else None,
        band=limits,
        iterations=count,
        tolerance=1 - 1e-9,
    )
    assert (filled.dtype, filled.shape) == (dtype, x.shape)
    try:
        values, steps = dask.compute(filled, misfits)
    except ArgumentError as error:
        assert "convergence factor of at least" in str(error)  # noqa: PT017
        reject()  # such a case does not count
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    expected, expected_steps = iterated(
        wide,
        mask,
        limits,
        count,
    )
    error = 1e-5 if dtype in ("f4", "c8") else 1e-12
    np.testing.assert_allclose(
        values,
        expected,
        rtol=0,
        atol=error * np.abs(x).max(),
    )
    np.testing.assert_array_equal(values[~mask], x[~mask])
    np.testing.assert_allclose(
        steps,
        expected_steps,
        rtol=1e-3,
        atol=1e-6,
    )


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_gaps_are_filled_with_band_limited_values(dtype):
    x = band_limited(
        (40, 24),
        2,
        dtype,
    )
    mask = np.random.default_rng(0).random(x.shape) < 0.2
    a = da.from_array(
        np.where(
            mask,
            np.nan,
            x,
        ).astype(dtype),
        chunks=(13, 10),
    )
    filled, misfits = signal.fill_gaps(
        a,
        band=[2.5 / 40, 2.5 / 24],
        iterations=25,
    )
    values, steps = dask.compute(filled, misfits)
    assert np.abs(values - x).max() < 1e-3 * np.abs(x).max()
    assert steps[-1] < 1e-3 < steps[0]


def test_gaps_that_the_band_cannot_fill_are_refused():
    x = np.ones(100)
    mask = np.zeros(100, bool)
    mask[30:60] = True
    filled, _ = signal.fill_gaps(
        da.from_array(x, chunks=30),
        mask,
        band=0.1,
    )
    with pytest.raises(ArgumentError, match=r"band.*convergence factor of at least 0\.9"):
        filled.compute()


def test_the_forecast_is_the_largest_eigenvalue():
    n = 60
    mask = np.zeros(n, bool)
    mask[20:26] = True
    mask[40:43] = True
    is_low = np.abs(np.fft.fftfreq(n)) <= 0.06
    projection = np.fft.ifft(np.fft.fft(np.eye(n), axis=0) * is_low[:, None], axis=0).real
    largest = np.linalg.eigvalsh(projection[np.ix_(mask, mask)]).max()
    with pytest.raises(ArgumentError) as refused:
        signal.fill_gaps(
            np.ones(n),
            mask,
            band=0.06,
            tolerance=1e-9,
        )[0].compute()
    factor = float(str(refused.value).split("at least ")[1].split(",")[0])
    assert abs(factor - largest) < 0.01 * largest


def test_an_array_without_gaps_stays():
    x = random_array(
        (40,),
        "f8",
        0,
    )
    filled, misfits = signal.fill_gaps(
        da.from_array(x, chunks=9),
        band=0.2,
        iterations=2,
    )
    np.testing.assert_array_equal(filled, x)
    outside = np.fft.fft(x)[np.abs(np.fft.fftfreq(40)) > 0.2]
    misfit = np.linalg.norm(outside) / np.linalg.norm(np.fft.fft(x))
    np.testing.assert_allclose(misfits, misfit, rtol=1e-10)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rechunked", [True, False])
def test_sources_are_read_again_where_they_do_not_fit(masked, rechunked):
    x = band_limited((64, 48), 2, "f8")
    mask = np.random.default_rng(0).random(x.shape) < 0.2
    reads = []

    def read(block):
        reads.append(block.nbytes)
        return block

    damaged = da.from_array(np.where(mask, np.nan, x), chunks=(8, 48))
    source = damaged.map_blocks(read, dtype="f8", meta=np.empty((0, 0)))
    if rechunked:
        source = source.rechunk((4, 48))
    options = {"band": [2.5 / 64, 2.5 / 48], "iterations": 3, "tolerance": 0.9}
    options["mask"] = mask if masked else None
    options["device"] = "cpu"  # a plan for a GPU takes more memory
    expected = dask.compute(*signal.fill_gaps(source, **options))
    assert len(reads) == 8  # once each
    reads.clear()
    with dask.config.set({"bigfft.exchange.carrier": "disk"}):
        lazy = signal.fill_gaps(source, memory_limit=int(2.2 * x.nbytes), **options)
        filled, misfits = dask.compute(*lazy)
    assert len(reads) > 8
    np.testing.assert_allclose(filled, expected[0], atol=1e-12 * np.abs(x).max())
    np.testing.assert_allclose(misfits, expected[1], rtol=1e-9)


REFUSED = [
    (
        {"band": -1},
        ArgumentError,
        "band",
    ),
    (
        {"band": [1, 2]},
        ArgumentError,
        "band",
    ),
    (
        {"band": "low"},
        ArgumentTypeError,
        "band",
    ),
    (
        {"band": 0.7},
        ArgumentError,
        "band.*at most the highest frequency",
    ),
    (
        {"band": 2.6, "spacing": 0.2},
        ArgumentError,
        "band.*2.5",
    ),
    (
        {"band": 0.1, "memory_limit": "100 B"},
        MemoryLimitError,
        "memory_limit",
    ),
    (
        {"band": 0.1, "iterations": 0},
        ArgumentError,
        "iterations",
    ),
    (
        {"band": 0.1, "tolerance": 1},
        ArgumentError,
        "tolerance",
    ),
    (
        {"band": 0.1, "spacing": 0},
        ArgumentError,
        "spacing",
    ),
]


@pytest.mark.parametrize(("changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    changed,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        signal.fill_gaps(**{"x": da.ones(20, chunks=6), **changed})


def test_the_plan_has_the_memory_of_two_iterations_that_overlap():
    x = da.zeros((256, 256), chunks=(16, 256))
    in_memory = dask_bigfft.plan(x, "fill_gaps", band=0.1, iterations=7)
    assert "11 equal filters" in in_memory.reason  # 4 of them forecast the convergence
    assert in_memory.expected.peak_host > 3 * x.nbytes  # of two iterations and the source
    limit = int(1.5 * x.nbytes)
    limited = dask_bigfft.plan(x, "fill_gaps", band=0.1, memory_limit=limit, device="cpu")
    assert 0.1 * limit < limited.expected.peak_host <= limit
    assert limited.machine.memory_limit == limit
    for _, rejected in limited.rejected:
        assert rejected.peak_host <= limit


def test_the_plan_counts_the_tasks_of_many_iterations():
    x = da.zeros((4096, 2048), chunks=(16, 2048))
    with dask.config.set(scheduler="threads"):
        few, many = (
            dask_bigfft.plan(x, "fill_gaps", band=0.1, iterations=count) for count in (1, 30)
        )
    tasks_nbytes = many.expected.peak_host - few.expected.peak_host
    assert 10_000 < tasks_nbytes / (29 * 256) < 20_000  # of a block in an iteration


def test_a_limit_that_two_iterations_share_is_named():
    x = da.zeros((512, 512, 256), chunks=(8, 512, 256), dtype="f4")
    named = r"share `memory_limit`='60 MiB', and for one .*need at least 2.*MiB"
    two_threads = dask.config.set(scheduler="threads", num_workers=2)
    with two_threads, pytest.raises(MemoryLimitError, match=named):
        signal.fill_gaps(x, band=0.1, memory_limit="60 MiB", device="cpu")


def test_small_chunks_of_files_are_read_together(tmp_path):
    x = band_limited((256, 64), 3, "f8")
    x[::5, ::7] = np.nan
    in_memory = da.from_array(x, chunks=(1, 64))
    in_memory.to_zarr(tmp_path / "x.zarr")
    stored = da.from_zarr(tmp_path / "x.zarr")
    options = {"band": 0.1, "tolerance": 0.9, "iterations": 2, "memory_limit": "1 MiB"}
    options["device"] = "cpu"
    filled, _ = signal.fill_gaps(stored, **options)
    expected, _ = signal.fill_gaps(in_memory, **options)
    assert filled.chunks == stored.chunks
    assert len(filled.__dask_graph__()) < len(expected.__dask_graph__()) / 2
    np.testing.assert_allclose(filled, expected, rtol=0, atol=1e-12)
