"""A plan as stages and operands: what each stage reads and makes, and by what rounds multiply."""

import json

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import DEFAULT

#: Two axes of prime lengths; blocks of eight values hold neither of them whole.
PRIMES = (17, 19)
SMALL = {
    "bigfft.planner.whole-axis-floor": 1,
    "bigfft.planner.small": 0,
    "bigfft.planner.min-chunk": 0,
    "bigfft.planner.max-rounds": 6,
}


def lazy(shape, chunks, dtype="c16"):
    return da.zeros(shape, chunks=chunks, dtype=dtype)


def planned(shape, chunks, kind="fftn", dtype="c16", **options):
    with dask.config.set(SMALL):
        return dask_bigfft.plan(
            lazy(shape, chunks, dtype),
            kind,
            memory_limit="100 TiB",
            **options,
        )


PLANS = {
    "one block": ((64, 64), -1, "fftn", "c16"),
    "digits": ((4096,), 256, "fft", "c16"),
    "half a spectrum": ((4096,), 256, "rfft", "f4"),
    "primes": (PRIMES, (2, 4), "fftn", "c8"),
    "empty batch": ((0, 16), (1, 4), "fft", "c16"),
    "five axes": ((2, 3, 4, 5, 6), (1, 3, 2, 5, 2), "fftn", "f8"),
}


@pytest.mark.parametrize("name", PLANS)
def test_stages_are_the_exchanges_with_their_rounds(name):
    shape, chunks, kind, dtype = PLANS[name]
    plan = planned(shape, chunks, kind, dtype)
    rounds = [stage.round_ for stage in plan.stages if stage.round_ is not None]
    assert tuple(rounds) == plan.rounds
    assert all(stage.round_ is not None for stage in plan.stages[:-1])
    assert tuple(stage.exchange for stage in plan.stages) == plan.exchanges
    before, dtype_before = plan.source, plan.spec.dtype
    for stage in plan.stages:
        assert stage.exchange.source == before
        assert stage.exchange.source_dtype == dtype_before
        before, dtype_before = stage.target, stage.result_dtype
    assert np.dtype(dtype_before) == plan.spec.out_dtype
    assert before.size == plan.result.size


def test_products_name_their_operands_by_number():
    plan = planned(PRIMES, (2, 4))
    assert [operand.axes for operand in plan.operands] == [(0,), (1,)]
    for number, operand in enumerate(plan.operands):
        round_ = plan.stages[operand.stage].round_
        steps = [step for step in round_.steps if step.convolve is not None]
        assert {step.operand: (step.axis,) for step in steps}[number] == operand.axes
        assert operand.block((3, 5)) == ((3,), (5,))[number]
        assert number in plan.operands_of(operand.stage)
    assert planned((64, 64), 8).operands == ()


def without_numbers(value):
    """The JSON of a plan as it was before operands had numbers."""
    if isinstance(value, list):
        return list(map(without_numbers, value))
    if isinstance(value, dict):
        return {k: without_numbers(v) for k, v in value.items() if k != "operand"}
    return value


def test_a_plan_without_numbers_of_operands_is_read():
    plan = planned(PRIMES, (2, 4))
    text = json.dumps(without_numbers(json.loads(plan.to_json())))
    assert Plan.from_json(text) == plan


@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
def test_two_filtered_axes(carrier, tmp_path):
    """Each axis is multiplied by its own filter, whichever way blocks travel."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(PRIMES) + 1j * rng.standard_normal(PRIMES)
    settings = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with dask.config.set(SMALL | settings):
        result = fft.fftn(da.from_array(x, chunks=(2, 4)))
        np.testing.assert_allclose(result.compute(scheduler="threads"), np.fft.fftn(x), atol=1e-9)


def plan_of(array):
    (layer,) = (layer for layer in array.dask.layers.values() if hasattr(layer, "recipe"))
    return layer.recipe.plan


def test_a_shift_has_a_forecast():
    """Both halves exist at the same time."""
    array = da.zeros(((1 << 20) + 3, 2), chunks=(1 << 16, 2), dtype="f4")
    plan = plan_of(fft.fftshift(array, axes=0))
    assert 2 * array.nbytes <= plan.expected.peak_host < 4 * array.nbytes
    assert plan.expected.seconds > 0
    assert plan.expected.tasks >= array.npartitions


@pytest.mark.parametrize("storage", ["network", "disk"])
def test_real_data_travel_for_half_the_price(storage):
    """Only the first exchange has real values."""
    setting = "disk" if storage == "disk" else "tasks"
    travel = []
    for kind, dtype in (("rfft", "f8"), ("fft", "c16")):
        with dask.config.set({"bigfft.exchange.carrier": setting}):
            plan = planned((1 << 16,), 1 << 10, kind, dtype, rounds=[256, 256])
        workers = 1 if storage == "disk" else 4
        travel.append(plan.forecast(DEFAULT, workers=workers).rounds[0].travel)
    real, complex_ = travel
    assert real == pytest.approx(complex_ / 2)


def test_the_reason_names_the_strategy():
    assert "as large as the input's chunks" in planned((4096,), 256, "fft").reason
    merged = dask_bigfft.plan(lazy((4096, 4096), 64), "fftn", memory_limit="100 TiB")
    assert "chunks of the input are joined" in merged.reason
