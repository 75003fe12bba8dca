"""A simulated device is measured as a card is: what comes out is what it was made with."""

import pytest

from dask_bigfft import config
from dask_bigfft.calibration.cards import _run, device_speeds, ordinals_of, peer_speeds, together
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.testing.gpus import SimulatedGpus


@pytest.mark.parametrize("dry", [False, True])
def test_a_simulated_device_gives_back_its_speeds(dry):
    made = DeviceProfile(
        h2d=2e9, d2h=2e9, run=2e-6, memory=5e10, flops=2e10, call=1e-6, nbytes=1 << 24
    )
    device = SimulatedDevice(made.nbytes, profile=made, dry=dry)
    found = device_speeds(device, 1 << 20)
    assert found.h2d == found.d2h == pytest.approx(2e9, rel=0.05)
    assert found.run == pytest.approx(2e-6, rel=0.1)
    assert found.memory == pytest.approx(5e10, rel=0.1)
    assert found.flops == pytest.approx(2e10, rel=0.1)
    assert found.call == pytest.approx(1e-6, rel=0.1)
    assert found.by_row.at(4096) == pytest.approx(1 / (1 / 2e9 + 2e-6 / 4096), rel=0.1)
    assert found.ring == pytest.approx(2e9, rel=0.05)  # nothing is pinned, nothing needs to be
    assert 0 < found.pin < 1e13
    assert found.nbytes == made.nbytes
    assert device.memory().free == made.nbytes


def test_a_simulated_device_gives_back_the_speed_of_each_way():
    made = DeviceProfile(h2d=4e9, d2h=1e9, run=1e-6, call=1e-6, nbytes=1 << 24)
    found = device_speeds(SimulatedDevice(made.nbytes, profile=made, dry=True), 1 << 20)
    assert found.h2d == found.d2h == pytest.approx(1e9, rel=0.05)  # together: the slower one's
    assert found.h2d_by_size.most == pytest.approx(4e9, rel=0.05)
    assert found.d2h_by_size.most == pytest.approx(1e9, rel=0.05)
    for curve, speed in ((found.h2d_by_row, 4e9), (found.d2h_by_row, 1e9)):
        assert curve.at(4096) == pytest.approx(1 / (1 / speed + 1e-6 / 4096), rel=0.1)
    sizes = [[size for size, _ in curve.points]
             for curve in (found.by_size, found.h2d_by_size, found.d2h_by_size)]
    assert sizes[0] == sizes[1] == sizes[2]


def test_rows_cost_what_narrow_ones_say():
    rows = (4096, 16384, 65536, 262144)
    exact = {row: 1 / (1 / 5e10 + 1.7e-7 / row) for row in rows}
    assert _run(5e10, exact) == pytest.approx(1.7e-7)
    noisy = exact | {65536: 5.05e10, 262144: 5.1e10}  # no slower than the widest copy
    assert _run(5e10, noisy) == pytest.approx(1.7e-7, rel=0.2)
    assert _run(5e10, {}) == 0


def test_memory_that_is_not_pinned_stays_so(monkeypatch):
    device, seen = SimulatedDevice(1 << 22), []
    copy = device.h2d

    def h2d(*args):
        seen.append(config.get("bigfft.memory.pin-arrays"))
        return copy(*args)

    monkeypatch.setattr(device, "h2d", h2d)
    device_speeds(device, 1 << 16)
    assert seen[0] is True
    assert seen[-1] is False


def test_a_small_device_is_measured_with_less():
    device = SimulatedDevice(1 << 15, dry=True)
    assert device_speeds(device).nbytes == 1 << 15
    assert device.peak <= 1 << 15


def test_what_is_left_of_two_speeds():
    device = SimulatedDevice(1 << 24, dry=True)
    assert 0 < together(device, 2, 1e9, 1 << 16) <= 1
    assert device.memory().free == 1 << 24


def test_pairs_that_reach_each_other():
    gpus = SimulatedGpus((1 << 20,) * 3, apart={(0, 1), (1, 0), (2, 0)})
    found = peer_speeds(range(3), 1 << 16, gpus)
    assert [(pair.source, pair.target) for pair in found] == [(1, 2), (2, 0), (2, 1)]
    assert all(pair.speed > 0 for pair in found)
    assert gpus.used == [0] * 3
    assert gpus.crossed
    assert ordinals_of([SimulatedDevice(1 << 10)] * 2) == ()
