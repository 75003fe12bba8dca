"""Reports say how much memory of each device was in use, at most."""

import time

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import format_bytes
from devices.blocks import on_devices
from laws.test_hybrid import cpu_threads_wait

from dask_bigfft import fft, report
from dask_bigfft.testing.simulated import SimulatedGPU


class Slow(SimulatedGPU):
    """One that is busy for so long that other blocks go to other devices."""

    def synchronize(self, event):
        time.sleep(0.02)
        super().synchronize(event)


@pytest.fixture
def devices():
    """Several, which have unlike amounts of memory taken before the first block comes."""
    simulated = [Slow(1 << 17, seed, libraries=1000 * seed) for seed in range(3)]
    with on_devices(*simulated, nbytes=1 << 15):
        yield simulated


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_the_most_of_each_of_several_devices(devices, monkeypatch, device):
    cpu_threads_wait(monkeypatch, lambda: sum(bool(simulated.trace) for simulated in devices) > 1)
    values = np.random.default_rng(0).standard_normal((256, 128)) + 0j
    x = da.from_array(values, chunks=(16, 128))
    with dask.config.set({"bigfft.hybrid.min-speedup": 0}):
        lazy = fft.fft2(x, device=device, kernel="scipy")
    assert not report(lazy).runs[0].device_peaks
    spectrum = lazy.compute(scheduler="threads", num_workers=6)
    (run,) = report(lazy).runs
    assert np.allclose(spectrum, np.fft.fft2(values))
    peaks = run.device_peaks
    used = [i for i, device in enumerate(devices) if device.trace]
    assert len(used) > 1
    assert peaks == {("", i): devices[i].peak for i in used}
    assert all(0 < nbytes <= 1 << 15 for nbytes in peaks.values())
    line = ", ".join(f"{format_bytes(devices[i].peak)} of device {i}" for i in used)
    assert line in str(run)
    assert line in run._repr_html_()
