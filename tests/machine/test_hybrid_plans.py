"""The tuner tries who does the rounds: CPU threads, devices, or both together."""

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from laws.test_hybrid import EVEN
from machine.test_tuning import Clock

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.machine import tuner
from dask_bigfft.machine.tuner import tuned
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.request import Machine, Request
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.transforms.spec import transform_spec

#: Of a machine with a device that is as fast as its threads.
ALIKE = replace(EVEN, devices=(DeviceProfile(h2d=2e9, d2h=2e9),))

#: Rows are long enough for a device to take blocks, and short enough for threads to keep up.
SHAPE = (2048, 2048)
CHUNKS = ((512,) * 4, (2048,))


def requested(device, dtype="c16", **options):
    """Transforms along rows, in place, where threads and a device are alike."""
    spec = transform_spec(
        "fft",
        SHAPE,
        np.dtype(dtype),
        axis_or_axes=1,
    )
    machine = Machine(
        1 << 34,
        4,
        1,
        profile=ALIKE,
        gpus=1,
    )
    return spec, Request(CHUNKS, device=device, **options), machine


@pytest.mark.parametrize("device", ["hybrid", "auto"])
@pytest.mark.parametrize("fastest", ["hybrid", "auto", "cpu"])
def test_whoever_is_the_fastest_wins_and_wisdom_brings_that_back(monkeypatch, device, fastest):
    monkeypatch.setattr(tuner, "SCALES", (1.0, 0.5))
    clock = Clock(lambda plan: plan.device == fastest)
    winner = tuned(*requested(device), ["ducc0"], clock)
    assert {plan.device for plan in clock.calls} == {"hybrid", "auto", "cpu"}
    assert winner.device == fastest
    assert any(0 < share < 1 for share in winner.shares) == (fastest == "hybrid")
    clock.calls.clear()
    again = tuned(*requested(device), ["ducc0"], clock)
    assert "the fastest of" not in again.reason
    assert not clock.calls
    assert (again.device, again.shares) == (fastest, winner.shares)
    assert again.reason.startswith("the fastest when such transforms were measured")
    assert all(
        name.endswith((", CPU threads", ", devices", ", both")) for name, _ in winner.rejected
    )


@pytest.mark.parametrize("device", ["hybrid", "auto"])
def test_from_the_front_door(tmp_path, monkeypatch, device):
    real = tuner.transformed_array
    tried = set()

    def seen(x, plan, carrier, **options):
        tried.add(plan.device)
        return real(x, plan, carrier, **options)

    monkeypatch.setattr(tuner, "transformed_array", seen)
    path = tmp_path / "speeds.json"
    path.write_text(ALIKE.to_json())
    values = random_array(SHAPE, "c16", 0)
    x = da.from_array(values, chunks=CHUNKS)
    settings = {"bigfft.planner.profile": str(path), "num_workers": 4}
    with dask.config.set(settings), simulated_devices(1 << 30):
        lazy = fft.fft(
            x,
            axis=1,
            device=device,
            planner="measure",
            kernel="ducc0",
        )
        spectrum = lazy.compute()
        again = dask_bigfft.plan(
            x,
            "fft",
            axis=1,
            device=device,
            planner="measure",
            kernel="ducc0",
        )
    assert np.allclose(spectrum, np.fft.fft(values, axis=1))
    assert again.reason.startswith("the fastest when such")
    assert tried == {"auto", "cpu", "hybrid"}
