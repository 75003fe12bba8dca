"""What the bus allows: the copies of a plan are written down, and made again elsewhere."""

import ctypes
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft
from dask_bigfft.bench import gpu_floor, gpu_heard
from dask_bigfft.bench.gpu_floor import Floor, Staged
from dask_bigfft.bench.gpu_heard import Asked, Heard, heard
from dask_bigfft.devices import find
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.operations import DeviceArray
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.transfer import TO_DEVICE, TO_HOST, Memcpy3D

MIB = 1 << 20


class Memory:
    """Memory of a card that is the host's."""

    last = None

    def __init__(self, nbytes):
        self.values = np.zeros(nbytes, np.uint8)
        self.ptr = self.values.ctypes.data
        Memory.last = self


class Runtime:
    """A driver that copies when it is told to."""

    def __init__(self):
        self.registered = []

    def free(self, pointer):
        pass

    def memcpyAsync(self, to, from_, nbytes, direction, stream):
        ctypes.memmove(to, from_, nbytes)

    def memcpy2DAsync(self, to, to_pitch, from_, from_pitch, width, height, direction, stream):
        for row in range(height):
            ctypes.memmove(to + row * to_pitch, from_ + row * from_pitch, width)

    def memcpy3DAsync(self, told, stream):
        told = Memcpy3D.from_address(told)
        to, from_, extent = told.dstPtr, told.srcPtr, told.extent
        for plane in range(extent.depth):
            for row in range(extent.height):
                there = to.ptr + plane * to.pitch * to.ysize + row * to.pitch
                here = from_.ptr + plane * from_.pitch * from_.ysize + row * from_.pitch
                ctypes.memmove(there, here, extent.width)

    def hostRegister(self, address, nbytes, flags):
        self.registered.append(nbytes)

    def hostUnregister(self, address):
        pass


@pytest.fixture
def card(monkeypatch):
    runtime = Runtime()
    cuda = SimpleNamespace(
        runtime=runtime, Memory=Memory,
        Device=lambda: SimpleNamespace(use=lambda: None),
        Stream=lambda non_blocking: SimpleNamespace(ptr=0, synchronize=lambda: None),
    )
    monkeypatch.setattr(gpu_floor, "cupy", lambda: SimpleNamespace(cuda=cuda))
    return runtime


def asked_by(x, **keywords):
    """Copies of a transform on a simulated device, and the transform."""
    device = SimulatedDevice(64 * MIB)
    find.use([device], PieceLimits(1, least=1 << 12))
    try:
        with heard(device, lambda view: True) as found:
            done = fft.fftn(x, device="gpu", device_memory_limit=MIB, **keywords).compute(
                scheduler="threads")
    finally:
        find.use(None)
    assert "h2d" not in vars(device)  # it is as it was
    return found, done


def memory(nbytes, value):
    return [np.full(nbytes, value, np.uint8)]


@pytest.mark.parametrize("chunks", [(128, 256), (64, 256), (256, 32)])
def test_every_byte_of_a_transform_is_asked_for_both_ways(chunks):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 256)) + 1j * rng.standard_normal((256, 256))
    found, done = asked_by(da.from_array(x, chunks))
    np.testing.assert_allclose(done, np.fft.fft2(x), atol=1e-9)
    crossings = found.nbytes(TO_DEVICE) / x.nbytes
    assert crossings >= 2
    assert crossings == int(crossings)
    assert found.nbytes(TO_HOST) == found.nbytes(TO_DEVICE)
    assert all(copy.end <= MIB for copy in found.copies)
    assert found.row_nbytes(TO_DEVICE) <= found.largest


def test_copies_are_made_again_as_they_were(card):
    """The bytes that come to the card are those of the view, at their places."""
    block = np.arange(64 * 48, dtype="f8").reshape(64, 48)
    found = Heard(lambda view: True)
    view = block.reshape(8, 8, 48)[1:5, 2:7, 8:24]
    found.add(TO_DEVICE, view, DeviceArray(512, view.shape, "<f8"))
    floor = Floor([block.reshape(-1).view(np.uint8)], memory(MIB, 0), [], memory(MIB, 0) * 2)
    assert floor.seconds(found) > 0
    there = Memory.last.values[512 : 512 + view.nbytes].view("f8").reshape(view.shape)
    assert np.array_equal(there, view)
    assert found.row_nbytes(TO_DEVICE) == 16 * 8


def test_what_comes_back_stays_in_memory_that_is_there_for_it(card):
    """A copy of a block that is larger than that memory is made inside it, too."""
    found = Heard(lambda view: True)
    for at in (0, 3 << 16, (5 << 20) + (1 << 17)):
        found.copies.append(
            Asked(TO_HOST, True, at % 3, at, (16, 256), (8192, 8), "<f8", 0, (2048, 8)))
    around = np.full(3 << 18, 7, np.uint8)
    inside = around[1 << 18 : 2 << 18]
    Floor([inside], [inside], [], memory(MIB, 0) * 2).seconds(found)
    assert (around[: 1 << 18] == 7).all()
    assert (around[2 << 18 :] == 7).all()
    assert (inside == 0).sum() == 3 * 16 * 2048


@pytest.mark.parametrize("streamed", [(True, True), (False, False)])
def test_what_is_not_pinned_is_staged_by_threads(card, streamed):
    found = Heard(lambda view: False)
    source = np.arange(1 << 16, dtype="f8")
    for low in range(0, 1 << 16, 1 << 14):
        for way in (TO_DEVICE, TO_HOST):
            found.copies.append(
                Asked(way, False, 0, 8 * low, (1 << 14,), (8,), "<f8", 0, (8,)))
    ordinary, staging = source.copy(), [np.zeros(1 << 19, np.uint8) for _ in range(2)]
    staging[1].fill(1)
    floor = Floor([], [], [ordinary.view(np.uint8)], staging)
    staged = Staged(1 << 19, 1 << 15, streamed)
    parts = list(floor._parts(found, staged))
    assert sum(target.nbytes for target, _, _ in parts) == 2 * source.nbytes
    for target, values, _ in parts:
        if np.shares_memory(target, staging[0]):
            np.copyto(target, values)
    assert np.array_equal(staging[0].view("f8"), source)
    assert floor._run({}, parts, (), False, None) > 0
    assert (ordinary.view(np.uint8) == 1).all()  # all of it was written
    assert floor.seconds(found, staged) > 0


def test_memory_is_pinned_meanwhile(card):
    found = Heard(lambda view: True)
    found.copies.append(Asked(TO_DEVICE, True, 0, 0, (64,), (8,), "<f8", 0, (8,)))
    floor = Floor(memory(MIB, 0), memory(MIB, 0), [], memory(MIB, 0) * 2)
    floor.seconds(found, register=memory(4096, 0), let_go=True)
    assert card.registered == [4096] * floor.repeats


def test_kernels_work_beside_the_copies(card):
    """What was computed is computed again, as often, on a device that has room for all of it."""
    x = np.random.default_rng(0).standard_normal((64, 64)) + 0j
    found, _ = asked_by(da.from_array(x, (32, 64)), norm="ortho")
    device, done = SimulatedDevice(MIB), []
    device.address = 0  # so that copies are made nowhere
    for name in gpu_heard.COMPUTING:
        setattr(device, name, lambda stream, *given, name=name: done.append((name, given)))
    found.copies.clear()
    floor = Floor(memory(MIB, 0), memory(MIB, 0), [], memory(MIB, 0) * 2)
    assert floor.seconds(found, device=device) > 0
    assert done == found.kernels * floor.repeats
    assert {"fft", "multiply"} <= {name for name, _ in done}
