"""Arrays whose blocks live on several GPUs of one process, through the whole graph.

The GPUs are simulated: their memories are NumPy arrays that count, and rounds are done by CPU
threads. What travels, by which transport and how much of it, is what GPUs would do.
"""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from dask.utils import format_bytes
from devices.crossings import RATIO
from support import heard

from dask_bigfft import plan, report
from dask_bigfft.carriers.resident import ON_GPUS
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.peers import TRANSPORTS
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.testing.gpus import SimulatedGpus, several_gpus
from dask_bigfft.testing.strategies import random_array


def computed(x, chunks, name, transport, **keywords):
    """The lazy result, the computed one, and the bytes that went between GPUs."""
    array = da.from_array(x, chunks, name=False)  # a report of its own
    lazy = transformed_array(array, plan(array, name, **keywords), ON_GPUS + transport)
    with heard("peer_host", "peer_direct") as events:
        transformed = lazy.compute(scheduler="threads")
    return lazy, transformed, sum(int(numbers["nbytes"]) for _, numbers in events)


@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
@pytest.mark.parametrize("devices", [2, 3, 6])
def test_batches_on_several_gpus(transport, devices):
    x = random_array((24, 24, 10), "c16", 5)
    with several_gpus(SimulatedGpus((1 << 30,) * devices)) as gpus:
        lazy, transformed, moved = computed(x, (4, 24, 10), "fftn", transport)
    expected = scipy.fft.fftn(x)
    assert np.linalg.norm(transformed - expected) <= 1e-14 * np.linalg.norm(expected)
    needed = x.nbytes * (devices - 1) // devices
    assert moved == RATIO.get(transport, 1.0) * needed
    data = x.nbytes // devices
    block = x.nbytes // 6
    assert all(3 * data <= peak <= 3 * data + block for peak in gpus.peak)
    (run,) = report(lazy).runs
    assert run.device_peaks == {("", gpu): nbytes for gpu, nbytes in enumerate(gpus.peak)}
    assert f"at most {format_bytes(gpus.peak[0])} of device 0" in str(run)
    assert sum(gpus.crossed.values()) == (0 if transport == "direct" else moved)
    del transformed
    assert gpus.used == [0] * devices  # everything was given back


def slabs(count, devices, apart=()):
    """A transform of slabs, and GPUs of which some pairs cannot read each other."""
    x = random_array((count, count, count), "c16", 2)
    return x, SimulatedGpus((1 << 30,) * devices, apart)


class WatchedGpus(SimulatedGpus):
    """Simulated GPUs that note to whom each one writes, in its order."""

    def __init__(self, nbytes):
        super().__init__(nbytes)
        self.written = {}

    def copy_aside(self, gpu, copies, events):
        self.written.setdefault(self.home(copies[0][0]), []).append(gpu)
        return super().copy_aside(gpu, copies, events)


def test_no_two_gpus_write_to_the_same_one_at_a_time():
    x = random_array((16, 16, 16), "c16", 2)
    with several_gpus(WatchedGpus((1 << 30,) * 4)) as gpus:
        _, spectrum, _ = computed(x, (2, 16, 16), "fftn", "direct")
    assert np.allclose(spectrum, scipy.fft.fftn(x))
    turns = list(zip(*gpus.written.values(), strict=True))
    assert turns
    assert all(sorted(homes) == [0, 1, 2, 3] for homes in turns)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_gpu_without_memory_refuses(transport):
    x = random_array((16, 16, 16), "c16", 2)
    with (
        several_gpus(SimulatedGpus((x.nbytes - 16,) * 2)),
        pytest.raises(DeviceMemoryError, match="simulated GPU"),
    ):
        computed(x, (2, 16, 16), "fftn", transport)


@pytest.mark.parametrize(
    ("reader", "owner"),
    [
        (0, 1),
        (1, 0),
    ],
)
def test_the_copy_engine_reads_no_gpu_that_the_target_cannot_read(reader, owner):
    x, gpus = slabs(12, 2, {(reader, owner)})
    with several_gpus(gpus), pytest.raises(DeviceError, match="cannot read"):
        computed(x, (3, 12, 12), "fftn", "swap")
    x, gpus = slabs(12, 2, {(reader, owner)})
    with several_gpus(gpus):
        computed(x, (3, 12, 12), "fftn", "staged")
    assert gpus.crossed.keys() == {(owner, "host"), ("host", reader), (reader, owner)}


def test_transports_are_chosen_pair_by_pair():
    """By a bus, by a link of its own, by a slow link, by none at all, and one way only."""
    x, gpus = slabs(16, 4, {(0, 3), (3, 0), (1, 3)})
    bus = DeviceProfile().h2d
    gpus.speeds = {(0, 1): bus, (1, 0): 4 * bus, (0, 2): 1e9}
    with several_gpus(gpus):
        _, spectrum, _ = computed(x, (4, 16, 16), "fftn", "auto")
    assert np.allclose(spectrum, scipy.fft.fftn(x))
    pairs = {pair for pair in gpus.crossed if "host" not in pair}
    assert (0, 1) in pairs  # by the copy engine
    assert (1, 0) not in pairs  # straight into place
    assert (0, 2) not in pairs  # through the host
    assert not pairs & {(0, 3), (3, 0)}
    assert ((1, 3) in pairs) is not ((3, 1) in pairs)


@pytest.mark.parametrize("transport", ["host", "direct"])
@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((4096,), (256,), "fft"),
        ((4096,), (256,), "rfft"),
        ((24, 36), (5, 36), "ifft2"),
        ((24, 12, 18), (6, 6, 18), "fftn"),
        ((3, 4099), (3, 500), "fft"),
    ],
)
def test_other_transforms(
    shape,
    chunks,
    name,
    transport,
):
    x = random_array(shape, "f8" if name == "rfft" else "c16", 5)
    source = x.copy()
    floor = dask.config.set({"bigfft.planner.whole-axis-floor": 1})
    with several_gpus(SimulatedGpus((1 << 30,) * 2)), floor:
        _, transformed, moved = computed(x, chunks, name, transport)
    expected = getattr(scipy.fft, name)(x)
    assert np.linalg.norm(transformed - expected) <= 1e-13 * np.linalg.norm(expected)
    np.testing.assert_array_equal(x, source)
    assert moved > 0
