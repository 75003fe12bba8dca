"""Shifts against NumPy: alone, on the result of a transform, and on its input; what they cost."""

import random

import dask
import dask.array as da
import numpy as np
import pytest
from lazy import is_shifted_alone, plan_of, plans_of

import dask_bigfft
from dask_bigfft import fft, plan, signal
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

RNG = np.random.default_rng(2725)


def tasks(*arrays):
    return [key for a in arrays for key in dict(a.dask) if "bigfft" in str(key)]


# --- alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
@pytest.mark.parametrize("shape", [(8,), (9,), (1,), (0, 3), (5, 6, 7), (2, 3)])
def test_shifts_are_numpys_and_keep_the_chunks(name, shape):
    x = np.arange(np.prod(shape)).reshape(shape)
    everything = [None, 0, -1, *[(i,) for i in range(len(shape))], tuple(range(len(shape))), ()]
    for chunks in (1, 2, 3, -1):
        a = da.from_array(x, chunks=chunks)
        for axes in everything:
            result = getattr(fft, name)(a, axes)
            np.testing.assert_array_equal(result.compute(), getattr(np.fft, name)(x, axes))
            assert result.chunks == a.chunks
            assert result.dtype == a.dtype


@pytest.mark.parametrize("dtype", ["?", "i1", ">u2", "f2", "f4", "g", "c8", "G", "U3"])
def test_shifts_take_every_type(dtype):
    x = np.arange(35).reshape(5, 7).astype(dtype)
    for result in (fft.fftshift(da.from_array(x, chunks=((1, 3, 1), 3))), fft.fftshift(x)):
        np.testing.assert_array_equal(result.compute(), np.fft.fftshift(x))
        assert result.compute().dtype == result.dtype == x.dtype


@pytest.mark.parametrize(
    "chunks",
    [
        (3, 2, 4, 1),
        (1, 0, 9),
        (10,),
        (1,) * 10,
    ],
)
def test_a_shift_is_one_task_a_block(chunks):
    x = np.arange(10)
    a = da.from_array(x, chunks=(chunks,))
    shifted = fft.fftshift(a)
    assert is_shifted_alone(shifted)
    assert len(tasks(shifted)) == len(chunks) + (len(chunks) > 1)  # and the plan, if several use it
    np.testing.assert_array_equal(shifted.compute(scheduler="sync"), np.fft.fftshift(x))


def test_shifts_add_up():
    a = da.from_array(RNG.standard_normal((7, 9)), chunks=(2, 4))
    shifted = fft.fftshift(a)
    assert fft.ifftshift(shifted).name == a.name
    twice = fft.fftshift(shifted, 0)
    assert len(plans_of(twice)) == 1  # a single exchange
    assert is_shifted_alone(twice)
    expected = np.fft.fftshift(np.fft.fftshift(a.compute()), 0)
    np.testing.assert_array_equal(twice.compute(), expected)


# --- beside a transform -------------------------------------------------------------------------


def case(seed):
    """A transform between two shifts, and what NumPy makes of it."""
    draw = random.Random(seed)
    ndim = draw.choice([1, 1, 2, 2, 3])
    lengths = [1, 2, 7, 8, 12, 25, 36, 64, 97] if ndim < 3 else [1, 4, 6, 9, 16]
    shape = [draw.choice(lengths) for _ in range(ndim)]
    chunks = [min(max(draw.choice([1, 2, 3, 5, 16, 100]), n // 9), n) for n in shape]
    name = draw.choice(["fftn", "ifftn", "rfftn", "irfftn", "hfftn"])
    if name in ("irfftn", "hfftn"):
        shape = [max(n, 2) for n in shape]
    axes, before, after = (
        tuple(draw.sample(range(ndim), draw.randint(least, ndim))) for least in (1, 0, 1)
    )
    x = random_array(shape, "f8" if name == "rfftn" else "c16", RNG)
    return name, x, chunks, axes, before, after, draw.choice(["shared", "tasks"])


@pytest.mark.parametrize("seed", range(50))
def test_a_transform_between_two_shifts(seed, sync):
    name, x, chunks, axes, before, after, carrier = case(seed)
    a = da.from_array(x, chunks=chunks)
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        spectrum = getattr(fft, name)(fft.ifftshift(a, before), axes=axes)
        shifted = fft.fftshift(spectrum, after)
    # hfftn is not NumPy's: the inverse transform of the conjugate, not scaled
    wanted = np.fft.ifftshift(x, before)
    if name == "hfftn":
        wanted = np.fft.irfftn(wanted.conj(), axes=axes, norm="forward")
    else:
        wanted = getattr(np.fft, name)(wanted, axes=axes)
    wanted = np.fft.fftshift(wanted, after)
    assert shifted.chunks == spectrum.chunks
    both = dask.compute(shifted, fft.fftshift(spectrum.map_blocks(np.copy), after))
    for result in both:
        assert result.dtype == shifted.dtype
        assert np.linalg.norm(result - wanted) <= 1e-13 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((4096,), (256,)),
        ((4095,), (273,)),
        ((64, 64), (16, 16)),
        ((63, 65), (9, 65)),
        ((16, 18, 20), (4, 18, 20)),
        ((10, 12, 14), (5, 6, 7)),
    ],
)
@pytest.mark.parametrize("name", ["fftn", "irfftn", "rfftn"])
def test_shifts_beside_a_transform_cost_no_exchange_and_no_tasks(shape, chunks, name):
    a = da.zeros(shape, chunks=chunks, dtype=float if name == "rfftn" else complex)
    bare = getattr(fft, name)(a)
    shifted = fft.fftshift(getattr(fft, name)(fft.ifftshift(a)))
    assert not is_shifted_alone(shifted)
    assert len(plan_of(shifted).travelling) == len(plan_of(bare).travelling)
    moved = plan_of(shifted).expected.bytes_exchanged
    assert moved == plan_of(bare).expected.bytes_exchanged
    assert len(tasks(shifted)) <= len(tasks(bare)) + 1  # a second plan, which shares rounds
    assert shifted.chunks == bare.chunks


def test_a_spectrum_and_its_shifted_form_share_their_rounds():
    x = RNG.standard_normal((36, 40)) + 0j
    a = da.from_array(x, chunks=(9, 10))
    spectrum = fft.fft2(a)
    shifted = fft.fftshift(spectrum)
    alone = len(set(tasks(spectrum)))
    both = len(set(tasks(spectrum, shifted)))
    assert both < 2 * alone - spectrum.npartitions  # the last gather, its barriers and the plan
    first, second = dask.compute(spectrum, shifted)
    np.testing.assert_array_equal(np.fft.fftshift(first), second)


def test_a_shift_that_needs_too_much_memory_stays_outside(sync):
    a = da.from_array(RNG.standard_normal((60, 64)) + 0j, chunks=(4, 64))
    spectrum = fft.fft(a)
    needed = plan_of(spectrum).expected.peak_host
    folded = fft.fftshift(spectrum, 0)  # which lets blocks travel that otherwise stay
    assert not is_shifted_alone(folded)
    assert plan_of(folded).expected.peak_host > needed
    tight = fft.fft(a, memory_limit=needed)
    outside = fft.fftshift(tight, 0)
    assert is_shifted_alone(outside)
    np.testing.assert_array_equal(*dask.compute(folded, outside))


def test_what_may_be_overwritten_is_the_shifted_array(sync):
    x = RNG.standard_normal((8, 16, 16)) + 0j
    a = da.from_array(x, chunks=(2, 16, 16)).map_blocks(np.copy).persist()
    result = fft.fftshift(fft.fft2(fft.ifftshift(a), overwrite_x=True))
    wanted = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x)))
    np.testing.assert_allclose(result.compute(), wanted, atol=1e-12)
    np.testing.assert_array_equal(a.compute(), x)


def test_blocks_that_a_device_makes_are_shifted_too(sync):
    x = (RNG.standard_normal((4, 64, 63)) + 1j).astype("c8")
    a = da.from_array(x, chunks=(2, 64, 63))
    with simulated_devices(1 << 20):
        result = fft.fftshift(fft.fft2(fft.ifftshift(a), device="gpu"), (1, 2)).compute()
    wanted = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x)), (1, 2))
    assert np.linalg.norm(result - wanted) < 1e-6 * np.linalg.norm(wanted)


# --- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [10, 2, 1])
@pytest.mark.parametrize("options", [{}, {"optimize_graph": False}])
def test_a_result_that_is_shifted_back_is_the_result(chunks, options):
    """Also of tiny blocks, which are merged: its tasks are those of the transform itself."""
    x = np.random.default_rng(2).standard_normal((130, 6))
    y = fft.fft2(da.from_array(x, chunks=(chunks, 6)))
    back = fft.ifftshift(fft.fftshift(y))
    assert back.name == y.name
    np.testing.assert_allclose(back.compute(**options), np.fft.fft2(x), atol=1e-10)
    both = dask.compute(fft.fftshift(y), fft.ifft2(back), **options)
    np.testing.assert_allclose(both[0], np.fft.fftshift(np.fft.fft2(x)), atol=1e-10)
    np.testing.assert_allclose(both[1], x, atol=1e-10)


def test_axes_that_are_whole_are_shifted_while_blocks_are_stored(sync):
    x = RNG.standard_normal((3, 1024, 1031))  # several tiles of a block
    a = da.from_array(x.astype("f4"), chunks=(1, -1, -1))
    shifted = fft.fftshift(fft.rfft2(fft.ifftshift(a, (1, 2))), 1)
    assert not plan_of(shifted).travelling
    wanted = np.fft.fftshift(np.fft.rfft2(np.fft.ifftshift(x, (1, 2))), 1)
    assert np.linalg.norm(shifted.compute() - wanted) < 3e-7 * np.linalg.norm(wanted)


def test_a_transposed_spectrum_is_shifted_place_by_place(sync):
    a = da.from_array(RNG.standard_normal(4096) + 0j, chunks=256)
    spectrum = fft.fft(a, order="transposed")
    wanted = np.fft.fftshift(spectrum.compute())
    np.testing.assert_array_equal(fft.fftshift(spectrum).compute(), wanted)
    back = fft.ifft(fft.ifftshift(fft.fftshift(spectrum)), order="transposed")
    np.testing.assert_allclose(back.compute(), a.compute(), atol=1e-13)


def test_the_plan_of_a_shifted_array_goes_to_json_and_back():
    a = fft.ifftshift(da.zeros((16, 15), chunks=(4, 5)), 1)
    for shifted_plan in (plan(a, "rfft2"), plan_of(fft.fftshift(fft.rfft2(a), 0))):
        assert dask_bigfft.Plan.from_json(shifted_plan.to_json()) == shifted_plan
        assert "stored" in shifted_plan.explain(details=True)
        assert shifted_plan._repr_html_()


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("chunks", [5, (5, 14)])
def test_a_filtered_array_is_shifted(chunks, is_lazy):
    x = np.random.default_rng(0).standard_normal((15, 14))
    h = np.random.default_rng(1).standard_normal((15, 8))
    transfer = da.from_array(h, chunks=4) if is_lazy else h
    with dask.config.set({"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1}):
        filtered = signal.fourier_filter(da.from_array(x, chunks=chunks), transfer)
        shifted = fft.fftshift(filtered)
        expected = np.fft.irfftn(np.fft.rfftn(x) * h, s=x.shape, axes=(0, 1))
        np.testing.assert_allclose(shifted.compute(), np.fft.fftshift(expected), atol=1e-12)
        np.testing.assert_allclose(filtered.compute(), expected, atol=1e-12)
