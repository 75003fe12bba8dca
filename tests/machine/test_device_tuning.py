"""What is tuned of devices: settings reach the pipeline, and the best ones are found."""

import itertools
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft, plan
from dask_bigfft.machine import tuner
from dask_bigfft.machine.tuner import tuned
from dask_bigfft.planner.profile import DeviceProfile, Profile
from dask_bigfft.planner.request import Machine, Request
from dask_bigfft.planner.tile_plan import DeviceSettings, TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.transforms.spec import transform_spec

SHAPE = (256, 256)
CHUNKS = ((64,) * 4, (256,))
NBYTES = 3 << 17
CARD = DeviceProfile(nbytes=NBYTES)


pytestmark = pytest.mark.usefixtures("sync")


def requested():
    spec = transform_spec("fftn", SHAPE, np.dtype("c16"))
    request = Request(
        CHUNKS,
        kernel="scipy",
        device="gpu",
        device_nbytes=NBYTES,
    )
    return spec, request, Machine(threads=1, profile=Profile(devices=(CARD,)), gpus=1)


@pytest.mark.parametrize("streams", ["role", "tile"])
@pytest.mark.parametrize("seed", range(4))
def test_answers_do_not_depend_on_settings(streams, seed):
    values = random_array((16, 32, 60), "c16", seed)
    x = da.from_array(values, chunks=(4, 32, 60))
    limits = TileLimits(0, least=256, run_nbytes=64)
    for k, tiles in itertools.product((1, 8), (1, 5)):
        by_hand = {"bigfft.gpu": {"buffers": k, "tiles": tiles, "streams": streams}}
        with dask.config.set(by_hand), simulated_devices(1 << 18, seed=seed, limits=limits):
            assert plan(x, device="gpu").settings == DeviceSettings(k, tiles, streams)
            assert f"a stream for each {streams}" in plan(x, device="gpu").explain(details=True)
            assert np.allclose(fft.fftn(x, device="gpu").compute(), np.fft.fftn(values))


def test_settings_are_kept_with_the_plan(monkeypatch):
    """Of a region that can be tried as a whole."""
    monkeypatch.setattr(tuner, "SCALES", (1.0,))
    monkeypatch.setattr(tuner, "REPEAT", 1)
    values = {"buffers": (2, 3), "passes": (2, 16), "streams": ("role", "tile")}
    monkeypatch.setattr(tuner, "VALUES", values)
    spec, request, on = requested()
    wanted = DeviceSettings(buffers=2, passes=16, streams="tile")

    def timer(candidate):
        names = ("buffers", "passes", "streams")
        return 2.0 - sum(getattr(candidate.settings, n) == getattr(wanted, n) for n in names) / 4

    with simulated_devices(NBYTES):
        fastest = tuned(
            spec,
            request,
            on,
            ["scipy"],
            timer,
        )
        assert fastest.settings == wanted
        again = tuned(
            spec,
            request,
            on,
            ["scipy"],
            timer,
        )
        other = replace(on, profile=Profile(devices=(replace(CARD, name="another"),)))
        assert "the fastest of" in tuned(spec, request, other, ["scipy"], timer).reason
    assert "the fastest of" not in again.reason
    assert again.settings == wanted
