"""The cost model, held against what can be worked out by hand."""

from dataclasses import fields, replace

import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.profile import MOST, LibrarySpeeds, Profile
from dask_bigfft.planner.request import Machine

LIBRARY = LibrarySpeeds(
    "scipy",
    "complex128",
    1e9,
    1e9,
)

FREE_PRICES = ("run", "move", "task", "exchange", "shard", "pair")

#: Nothing costs anything but FFTs.
FREE = Profile(
    "free",
    2,
    copy=MOST,
    **dict.fromkeys(FREE_PRICES, 0.0),
    libraries=(LIBRARY,),
)


def planned(shape, chunks, profile, threads=2, **options):
    x = da.zeros(shape, chunks=chunks, dtype=complex)
    plan = dask_bigfft.plan(
        x,
        "fftn",
        kernel="scipy",
        device="cpu",
        **options,
    )
    return replace(plan, machine=Machine(None, threads, profile=profile, shared=True))


def seconds(plan, **prices):
    """Forecast of a plan where some prices are others."""
    profile = replace(plan.machine.profile, **prices)
    return forecast(replace(plan, machine=replace(plan.machine, profile=profile))).seconds


def test_ffts_take_their_flops():
    plan = planned((64, 1024), (16, 1024), FREE)
    assert seconds(plan) == pytest.approx(5 * 64 * 1024 * np.log2(64 * 1024) / 1e9 / 2)
    assert seconds(plan) == pytest.approx(plan.forecast(FREE, threads=2).seconds)
    assert plan.forecast(FREE, threads=1).seconds == pytest.approx(2 * seconds(plan))


def test_a_forecast_is_linear_in_its_prices():
    """Calibration solves for prices by that."""
    prices = {
        "run": 1e-8,
        "move": 1e-9,
        "tile": 1e-5,
        "exchange": 1e-3,
        "pair": 1e-8,
        "start": 1e-2,
    }
    prices |= {"task": 1e-4, "shard": 1e-5}
    for shape, chunks in (((256, 256), (32, 256)), ((1 << 16,), (1 << 12,))):
        plan = planned(shape, chunks, FREE)
        base = seconds(plan)
        added = {name: seconds(plan, **{name: price}) - base for name, price in prices.items()}
        assert min(added.values()) >= 0
        assert sum(added.values()) > 0
        assert seconds(plan, **prices) == pytest.approx(base + sum(added.values()))
        twice = seconds(plan, **{name: 2 * price for name, price in prices.items()})
        assert twice == pytest.approx(base + 2 * sum(added.values()))


def test_python_of_all_blocks_adds_up_since_threads_wait_for_the_gil():
    plan = planned((256, 256), (16, 256), FREE)
    tasks = sum(e.shape.blocks_out + (0 if e.local else e.shape.groups) for e in plan.exchanges)
    for threads in (1, 2, 16):
        many = replace(plan, machine=replace(plan.machine, threads=threads))
        assert seconds(many, task=1e-3) - seconds(many) == pytest.approx(1e-3 * tasks)


def test_blocks_of_the_busiest_lane():
    """Of nine blocks one of two threads works on five."""
    nine, eight = (planned((rows, 1024), (16, 1024), FREE, axes=(1,)) for rows in (144, 128))
    assert seconds(nine) == pytest.approx(seconds(eight) * 5 / 4)


def test_a_round_of_one_block_uses_all_threads():
    alone, four = (planned((64, 1024), (64, 1024), FREE, threads=n) for n in (1, 4))
    assert seconds(alone) / 4 <= seconds(four) < seconds(alone) / 2


def test_large_blocks_are_slower():
    slow = replace(FREE, libraries=(replace(LIBRARY, large_flops=1e8),))
    small, large = (planned((2, n), (1, n), FREE, axes=(1,)) for n in (1 << 10, 1 << 22))
    assert seconds(small, libraries=slow.libraries) == seconds(small)
    assert seconds(large, libraries=slow.libraries) == pytest.approx(10 * seconds(large))


@pytest.mark.parametrize("mode", ["energy", "checksum"])
def test_what_is_verified_takes_longer(mode):
    plan = planned(
        (256, 256),
        (128, 256),
        FREE,
        verify=mode,
    )
    nbytes = 2 * len(plan.rounds) * 16 * 256**2
    assert seconds(plan, **{mode: 1e9}) - seconds(plan) == pytest.approx(nbytes / 1e9 / 2)
    plain = planned((256, 256), (128, 256), FREE)
    assert seconds(plain, **{mode: 1e9}) == seconds(plain)


@pytest.mark.parametrize(
    "arguments",
    [
        {"workers": 0},
        {"workers": -3},
        {"threads": 0},
        {"threads": 1.5},
        {"gpus": -1},
    ],
)
def test_another_machine_has_whole_numbers_of_things(arguments):
    plan = planned((64, 64), (16, 64), Profile())
    ((name, value),) = arguments.items()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{name}`={value}"):
        plan.forecast(Profile(), **arguments)
    with pytest.raises(ArgumentTypeError, match="`profile`"):
        plan.forecast("fast")
    assert plan.forecast(Profile(), workers=2, threads=1, gpus=0).seconds > 0


def test_a_machine_like_this_one_has_the_same_forecast():
    plan = dask_bigfft.plan(da.zeros((512, 512), chunks=(64, 512)), "fft2", kernel="scipy")
    profile = plan.machine.profile
    machine = plan.machine
    forecast = plan.forecast(profile, threads=machine.threads, gpus=machine.gpus)
    assert machine.shared
    assert forecast == plan.expected
    assert plan.forecast(profile, workers=2, threads=1).seconds != plan.expected.seconds


def test_every_price_of_a_profile_matters():
    """A number that changes no forecast is not worth measuring."""
    elsewhere = {"together", "shared_round"}
    prices = {f.name for f in fields(Profile) if f.type in ("float", float)} - elsewhere
    told = set()
    for shape, chunks, storage, workers, verify in (
        ((512, 640), (64, 640), "memory", 1, "energy"),
        ((1 << 16,), (1 << 12,), "memory", 1, "checksum"),
        ((1 << 16,), (1 << 12,), "memory", 2, "none"),
        ((1 << 16,), (1 << 12,), "disk", 1, "none"),
    ):
        plan = dask_bigfft.plan(
            da.zeros(shape, chunks=chunks, dtype=complex),
            "fftn",
            device="cpu",
            kernel="scipy",
            verify=verify,
        )
        plan = replace(plan, storage=storage)
        base = Profile()
        for name in prices:
            changed = replace(base, **{name: 1e-3 if getattr(base, name) < 1 else 1e3})
            before, after = (plan.forecast(p, workers=workers, threads=2) for p in (base, changed))
            if before.seconds != after.seconds:
                told.add(name)
    assert told == prices
