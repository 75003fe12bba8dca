"""A simulated device is measured as a card is: what comes out is what it was made with."""

import pytest

from dask_bigfft.calibration.gpus import device_speeds
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.testing.simulated import SimulatedGPU


@pytest.mark.parametrize("dry", [False, True])
def test_a_simulated_device_gives_back_its_speeds(dry):
    simulated = DeviceProfile(
        h2d=4e9,
        d2h=2e9,
        run=2e-6,
        memory=5e10,
        flops=2e10,
        call=1e-6,
        nbytes=1 << 24,
    )
    device = SimulatedGPU(simulated.nbytes, profile=simulated, dry=dry)
    speeds = device_speeds(device, 1 << 20)
    assert speeds.h2d == speeds.d2h == pytest.approx(2e9, rel=0.05)  # together: the slower one's
    assert speeds.run == pytest.approx(2e-6, rel=0.1)
    assert speeds.memory == pytest.approx(5e10, rel=0.1)
    assert speeds.flops == pytest.approx(2e10, rel=0.1)
    assert speeds.call == pytest.approx(1e-6, rel=0.1)
    assert speeds.nbytes == simulated.nbytes
    assert device.memory().free == simulated.nbytes


def test_ffts_without_memory_are_reported(caplog):
    class Crowded(SimulatedGPU):
        def work_nbytes(self, op):
            return 1 << 30

    speeds = device_speeds(Crowded(1 << 24, dry=True), 1 << 20)
    assert speeds.flops == DeviceProfile().flops
    assert "FFTs" in caplog.text


def test_a_small_device_is_measured_with_less():
    device = SimulatedGPU(1 << 15, dry=True)
    assert device_speeds(device).nbytes == 1 << 15
    assert device.peak <= 1 << 15
