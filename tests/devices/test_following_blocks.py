"""The next block is told of while one is submitted: threads gather it while that one goes back."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from devices.blocks import SMALL, distance, engine, job_of, values

from dask_bigfft.devices.jobs import Source
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.planner.device_settings import DeviceSettings


class Told(SimulatedDevice):
    """Writes down what it is told of and asked for; the first copy waits for a second block."""

    def __init__(self, seed=0):
        super().__init__(1 << 20, seed)
        self.calls, self.told, self.released = [], [], 0
        self.engine = engine(1 << 20, device=self, limits=SMALL)

    def ahead(self, stream, source):
        self.calls.append(("ahead", _block(source)))
        self.told.append(source)

    def h2d(self, stream, source, target):
        # the very same objects, in the order in which it was told of them
        assert source is self.told.pop(0)
        self.calls.append(("h2d", _block(source)))
        _until(lambda: _block(source) > 0 or len(self.engine._coming) > 1)
        super().h2d(stream, source, target)

    def d2h(self, stream, source, target):
        self.calls.append(("d2h", None))
        super().d2h(stream, source, target)

    def release(self):
        self.released += 1
        self.told.clear()
        super().release()


def _block(view):
    """Which block a view is of: its values say."""
    return round(float(np.asarray(view).real.flat[0]))


def _until(true):
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(1e-3)


def _blocks():
    return [n + values(32, 32, seed=n) / 100 for n in range(2)]


def _futures(device, pool, blocks, axes, settings):
    """Both blocks on their way; the second one comes when the first one is asked for."""
    job, _ = job_of(blocks[0], "fftn", axes=axes)
    job = replace(job, settings=settings)

    def go(block):
        return device.engine.run(job, Source(lambda: block, borrowed=True)).reshape(block.shape)

    yield pool.submit(go, blocks[0])
    _until(lambda: device.calls)
    yield pool.submit(go, blocks[1])


@pytest.mark.parametrize("streams", ["role", "piece"])
@pytest.mark.parametrize("axes", [(0, 1), (1,)])
def test_a_device_is_told_of_the_next_block_before_the_last_piece_goes(axes, streams):
    device, blocks = Told(), _blocks()
    with ThreadPoolExecutor(2) as pool:
        found = list(_futures(device, pool, blocks, axes, DeviceSettings(streams=streams)))
        for future, block in zip(found, blocks, strict=True):
            assert distance(future.result(), np.fft.fftn(block, axes=axes)) < 1e-14
    calls = device.calls
    last = max(i for i, call in enumerate(calls) if call == ("h2d", 0))
    assert calls[last + 1 : last + 3] == [("ahead", 1), ("d2h", None)]
    assert calls.count(("ahead", 1)) == calls.count(("h2d", 1))


@pytest.mark.parametrize("error", [DeviceError, DeviceMemoryError])
def test_what_was_begun_of_a_block_that_does_not_come_is_given_up(error):
    """Buffers of the ring are not kept for it; a block that can be had again comes later."""
    device, blocks = Told(), _blocks()
    prepare, tries = device.engine.pipeline.prepare, []

    def failing(*arguments):
        tries.append(arguments)
        if len(tries) == 2:
            assert device.told
            raise error("no more")
        prepare(*arguments)

    device.engine.pipeline.prepare = failing
    with ThreadPoolExecutor(2) as pool:
        first, second = _futures(device, pool, blocks, (0, 1), DeviceSettings())
        assert distance(first.result(), np.fft.fftn(blocks[0])) < 1e-14
        if error is DeviceError:
            with pytest.raises(DeviceError, match="no more"):
                second.result()
        else:
            assert distance(second.result(), np.fft.fftn(blocks[1])) < 1e-14
    assert device.released
    assert not device.told
    assert not device.engine._coming
