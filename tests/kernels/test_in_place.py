"""Rounds whose digits lie where a device wants them: the CPU gives what the other order gives."""

import dask.array as da
import pytest
import scipy.fft
from support import close

from dask_bigfft import fft, plan
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

CASES = {
    "1D": ("fft", (4096,), (512,), {"rounds": [64, 64]}),
    "three digits": ("ifft", (4096,), (512,), {"rounds": [16, 16, 16]}),
    "real": ("rfft", (4096,), (512,), {"rounds": [64, 64]}),
    "to real": ("irfft", (2049,), (500,), {"rounds": [64, 64]}),
    "two axes": ("fft2", (64, 512), (16, 128), {"rounds": [{0: 64, 1: 16}, {1: 32}]}),
    "another axis whole": ("fft2", (256, 12), (32, 12), {"rounds": [{0: 16}, {0: 16, 1: 12}]}),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_that_no_device_takes(case):
    name, shape, chunks, keywords = CASES[case]
    x = random_array(shape, "f8" if name == "rfft" else "c16", 1)
    a = da.from_array(x, chunks)
    with simulated_devices(1 << 20):
        plan_of_blocks = plan(a, name, device="gpu", **keywords)
    # The device is gone, or has no room, when the graph runs.
    with simulated_devices(64) as (device,):
        transformed = getattr(fft, name)(a, device="gpu", **keywords).compute()
        assert device.peak == 0
    assert close(transformed, getattr(scipy.fft, name)(x))
    in_place = [
        step.source not in axis.groups[-1].digits
        for round_ in plan_of_blocks.rounds
        for step in round_.steps
        for axis in [round_.source.axes[step.axis]]
    ]
    assert any(in_place)
