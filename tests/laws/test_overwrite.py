"""`overwrite_x`: the same answers in little more memory than the data take."""

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft, plan
from dask_bigfft.carriers import inside
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

LIMITS = TileLimits(0, least=1 << 14, run_nbytes=64)


def owned(values):
    """A dask array of one block, which is the NumPy array itself."""
    name = f"owned-{id(values)}"
    chunks = tuple((n,) for n in values.shape)
    return da.Array(
        {(name, *(0,) * values.ndim): values},
        name,
        chunks,
        dtype=values.dtype,
    )


def values(*shape):
    return random_array(shape, "c16", 1)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "fft", "rfftn", "irfftn", "hfftn"])
def test_a_block_is_transformed_in_its_own_memory(name, device):
    x = values(48, 60, 20)
    x = x.real.copy() if name == "rfftn" else x
    expected = getattr(scipy.fft, name)(x)
    with simulated_devices(1 << 18, limits=LIMITS):
        transformed = getattr(fft, name)(owned(x), overwrite_x=True, device=device).compute()
    # Results of another shape or dtype are right, in memory of their own.
    if transformed.shape == x.shape and transformed.dtype == x.dtype:
        np.testing.assert_array_equal(x, transformed)
    assert np.linalg.norm(transformed - expected) < 1e-14 * np.linalg.norm(expected)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_by_default_and_where_it_cannot_be_the_input_stays(device):
    x = values(48, 60)
    original = x.copy()
    readonly = x.copy()
    readonly.flags.writeable = False
    with simulated_devices(1 << 14, limits=LIMITS):
        for lazy in (
            fft.fft2(owned(x), device=device),
            fft.fft2(owned(x), overwrite_x=False, device=device),
            fft.fft2(owned(readonly), overwrite_x=True, device=device),
            fft.fft2(owned(x), s=(50, 60), overwrite_x=True, device=device),
            fft.fft2(owned(x.astype("c8")), overwrite_x=True, device=device),
        ):
            transformed = lazy.compute()
            expected = scipy.fft.fft2(original, s=transformed.shape)
            assert np.linalg.norm(transformed - expected) < 1e-6 * np.linalg.norm(expected)
            np.testing.assert_array_equal(x, original)
            np.testing.assert_array_equal(readonly, original)


@pytest.mark.parametrize(
    ("shape", "beside"),
    [
        ((512, 512), 2),
        ((64, 48, 90), 2),
        ((1 << 20,), 1),
        ((1 << 14, 4, 4), 2),
    ],
)
def test_near_in_place(shape, beside):
    """Lee and Kim: data larger than the device in the memory of the data and the ring.

    Where an axis falls apart on its way, its digits are put into order by a crossing more.

    The simulated device needs no ring, but stands in this process' memory itself: what its
    operations take for a moment counts as its own, and is at most `beside` times its memory. A
    line is so long that Python's objects, up to 0.3 MiB as its collector runs, are less than a
    twentieth.
    """
    x = values(*shape)
    expected = scipy.fft.fftn(x)
    nbytes = x.nbytes // 8
    with simulated_devices(nbytes, limits=LIMITS) as (device,), dask.config.set(scheduler="sync"):
        warm = owned(values(*shape))
        fft.fftn(warm, overwrite_x=True, device="gpu").persist()  # reserves the device's memory
        crossed = sum(span.operation == "h2d" for span in device.trace)
        assert crossed > 4
        lazy = fft.fftn(owned(x), overwrite_x=True, device="gpu")
        before = default_arena().counters()
        tracemalloc.start()
        lazy.persist()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        after = default_arena().counters()
    assert np.linalg.norm(x - expected) < 1e-14 * np.linalg.norm(expected)
    assert after.allocations == before.allocations  # no block apart from the data
    assert peak <= 0.05 * x.nbytes + beside * nbytes


def owned_blocks(x, rows):
    """A dask array of blocks of some rows, which are arrays of their own; and these."""
    name = f"owned-{id(x)}-{rows}"
    blocks = [x[low : low + rows].copy() for low in range(0, len(x), rows)]
    rest = (0,) * (x.ndim - 1)
    graph = {(name, i, *rest): block for i, block in enumerate(blocks)}
    chunks = (tuple(map(len, blocks)), *((n,) for n in x.shape[1:]))
    return da.Array(graph, name, chunks, dtype=x.dtype), blocks


def test_tasks_in_place_take_turns(monkeypatch):
    turns = []
    turn_for_device = inside.turn_for_device

    def noted(*arguments):
        turns.append(arguments)
        return turn_for_device(*arguments)

    monkeypatch.setattr(inside, "turn_for_device", noted)
    with simulated_devices(1 << 18, limits=LIMITS):
        a, _ = owned_blocks(random_array((64, 64), "c16", 1), 16)
        fft.fft2(a, overwrite_x=True, device="gpu").compute()
    assert [number for _, number, _ in turns].count(1) == 4  # the second round, block by block


MANY = {
    "slabs": ("fftn", (64, 23, 19), 8, {}),
    "uneven slabs": ("ifftn", (60, 23, 19), 7, {}),
    "rows": ("fft2", (96, 80), 12, {}),
    "one axis in digits": ("fft", (1 << 14,), 1 << 11, {"order": "transposed"}),
    "back from digits": ("ifft", (1 << 14,), 1 << 11, {"order": "transposed"}),
}


@pytest.mark.parametrize("nbytes", [1 << 18, 1 << 15, 64])
@pytest.mark.parametrize("case", MANY)
def test_many_blocks_are_transformed_in_their_own_memory(case, nbytes):
    """However small the device is, down to one that takes no block at all."""
    name, shape, rows, keywords = MANY[case]
    x = values(*shape)
    a, blocks = owned_blocks(x, rows)
    with simulated_devices(nbytes, limits=LIMITS, seed=nbytes):
        expected = getattr(fft, name)(da.from_array(x, a.chunks), device="cpu", **keywords)
        lazy = getattr(fft, name)(
            a,
            overwrite_x=True,
            device="gpu",
            **keywords,
        )
        (persisted,) = dask.persist(lazy)
        assert persisted.chunks == a.chunks
        np.testing.assert_allclose(persisted.compute(), expected.compute(), atol=1e-11)
        for delayed, block in zip(persisted.to_delayed().ravel(), blocks, strict=True):
            assert np.shares_memory(delayed.compute(), block)


def test_a_memory_limit_counts_what_overwriting_needs():
    x = values(512, 61, 59)
    a, blocks = owned_blocks(x, 64)
    with simulated_devices(1 << 23, limits=LIMITS):
        beside = plan(a, "fftn", device="gpu")
        inside = plan(
            a,
            "fftn",
            device="gpu",
            overwrite_x=True,
        )
        assert inside.inside
        assert inside.expected.peak_host < 0.7 * beside.expected.peak_host
        limit = int(1.1 * inside.expected.peak_host)
        assert plan(a, "fftn", device="gpu", memory_limit=limit).storage == "disk"
        lazy = fft.fftn(
            a,
            device="gpu",
            overwrite_x=True,
            memory_limit=limit,
        )
        (persisted,) = dask.persist(lazy)
        assert np.shares_memory(persisted.to_delayed().ravel()[0].compute(), blocks[0])
        np.testing.assert_allclose(persisted.compute(), scipy.fft.fftn(x), atol=1e-9)
        too_little = int(0.8 * inside.expected.peak_host)
        limited_plan = plan(
            a,
            "fftn",
            device="gpu",
            overwrite_x=True,
            memory_limit=too_little,
        )
        assert (limited_plan.storage, limited_plan.inside) == ("disk", False)


@pytest.mark.parametrize(
    ("shape", "device"),
    [
        ((64, 64, 128), "cpu"),
        ((64, 64, 128), "gpu"),
        ((1 << 19,), "gpu"),
    ],
)
def test_one_block_needs_little_more_than_itself(shape, device):
    x = values(*shape)
    expected = scipy.fft.fftn(x)
    limit = int(2.5 * x.nbytes)
    keywords = {"overwrite_x": True, "device": device, "memory_limit": limit}
    with simulated_devices(1 << 20, limits=LIMITS):
        assert plan(owned(x), "fftn", **keywords).expected.peak_host < limit
        (persisted,) = dask.persist(fft.fftn(owned(x), **keywords))
    assert np.shares_memory(persisted.to_delayed().ravel()[0].compute(), x)
    np.testing.assert_allclose(x, expected, atol=1e-10)


def test_a_shared_result_is_written_beside_the_input():
    """Two rounds on the CPU: the first one writes the memory that the second one transforms."""
    x = values(512, 256)
    a, blocks = owned_blocks(x, 64)
    cpu_plan = plan(
        a,
        "fft2",
        device="cpu",
        overwrite_x=True,
    )
    assert cpu_plan.shared_layouts.exchanges[1] is not None
    assert cpu_plan.expected.peak_host > 1.4 * x.nbytes
    spectrum = fft.fft2(a, device="cpu", overwrite_x=True).compute()
    np.testing.assert_allclose(spectrum, scipy.fft.fft2(x), atol=1e-9)
    np.testing.assert_array_equal(np.concatenate(blocks), x)


def test_large_blocks_are_forecast_near_in_place():
    with simulated_devices(1 << 34):
        for gib in (2, 16):
            a = da.zeros((8, gib << 26), chunks=(1, -1), dtype="c16")
            for axes in ((1,), (0, 1)):
                keywords = {"axes": axes, "memory_limit": f"{9 * gib} GiB"}
                gpu_plan = plan(
                    a,
                    "fftn",
                    device="gpu",
                    overwrite_x=True,
                    **keywords,
                )
                assert gpu_plan.expected.peak_host < 1.01 * a.nbytes


@pytest.mark.parametrize("rows", [16, 20])
def test_many_blocks_that_are_not_ours_stay(rows):
    x = values(64, 48)
    a, blocks = owned_blocks(x, rows)
    for block in blocks:
        block.flags.writeable = False
    with simulated_devices(1 << 16, limits=LIMITS):
        double = fft.fft2(a, overwrite_x=True, device="gpu").compute()
        columns = fft.fft2(
            a,
            overwrite_x=True,
            device="gpu",
            chunks=(64, 16),
        ).compute()
        single = fft.fft2(a.astype("c8"), overwrite_x=True, device="gpu").compute()
    np.testing.assert_array_equal(np.concatenate(blocks), x)
    for spectrum in (double, columns, single):
        np.testing.assert_allclose(spectrum, scipy.fft.fft2(x), atol=1e-3)
    np.testing.assert_allclose(double, scipy.fft.fft2(x), atol=1e-11)
