"""Several GPUs of one process: two logical ones on a GPU, and as many GPUs as there are."""

import dask
import numpy as np
import pytest
import scipy.fft
import scipy.signal
from devices.blocks import NEEDS_GPU
from devices.crossings import RATIO, move, slabs
from gpu.test_cupy_blocks import spread

from dask_bigfft import fft, plan, signal
from dask_bigfft.carriers.resident import ON_GPUS
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu import links
from dask_bigfft.gpu.cuda import available, cupy
from dask_bigfft.gpu.peers import TRANSPORTS
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner import plan as plan_module
from dask_bigfft.signal import convolution
from dask_bigfft.testing.gpus import Batches, several_gpus
from dask_bigfft.testing.strategies import random_array

pytestmark = NEEDS_GPU

several = pytest.mark.skipif(len(available()) < 2, reason="one CUDA device")
on_one_and_two = pytest.mark.parametrize(
    "ordinals", [(0, 0), pytest.param((0, 1), marks=several)], ids=str
)


class LogicalGpus(Batches):
    """GPUs by the CUDA device of each; several may share one."""

    def __init__(self, ordinals):
        super().__init__(len(ordinals))
        self.ordinals = ordinals

    def ordinal(self, gpu):
        return self.ordinals[gpu]

    def empty(self, gpu, *what):
        values = super().empty(gpu, *what)
        self.put(gpu, values)
        return values


def uploader(ordinals, blocks):
    """Upload blocks one after the other, in batches to each device."""
    numbers = iter(range(blocks))

    def upload(values):
        with cupy().cuda.Device(ordinals[next(numbers) * len(ordinals) // blocks]):
            return cupy().asarray(values)

    return upload


@on_one_and_two
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_of_each_transport(ordinals, transport):
    arrived, moved = move(
        slabs(16, 8),
        LogicalGpus(ordinals),
        transport,
        uploader(ordinals, 8),
    )
    assert sum(moved.values()) == RATIO[transport] * 16**3 * 16 / 2
    assert {int(values.device.id) for values in arrived.values()} == set(ordinals)


@on_one_and_two
def test_a_gpu_without_memory_refuses(ordinals):
    pool = cupy().get_default_memory_pool()
    n = 64
    data = n**3 * 16 * ordinals.count(ordinals[1]) // 2
    with cupy().cuda.Device(ordinals[1]):
        pool.free_all_blocks()
        before = pool.get_limit()
        pool.set_limit(size=pool.total_bytes() + data + data // 2)
    try:
        with pytest.raises(DeviceMemoryError):
            move(
                slabs(n, 8),
                LogicalGpus(ordinals),
                "swap",
                uploader(ordinals, 8),
            )
    finally:
        with cupy().cuda.Device(ordinals[1]):
            pool.set_limit(size=before)


CASES = pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((32, 24, 20), (4, 24, 20), "fftn"),
        ((32, 24, 20), (5, 24, 20), "ifftn"),
        ((1 << 16,), (1 << 12,), "fft"),
        ((64, 48), (8, 48), "rfft2"),
    ],
)


def check(persisted, expected):
    """Compare blocks with what is expected; return their devices."""
    devices = set()
    on_host = np.empty_like(expected)
    starts = [np.cumsum((0, *cut)) for cut in persisted.chunks]
    for key, block in persisted.dask.items():
        values = getattr(block, "value", block)
        devices.add(int(values.device.id))
        place = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, key[1:], strict=True))
        on_host[place] = values.get()
    assert np.linalg.norm(on_host - expected) <= 2e-15 * np.linalg.norm(expected) * 10
    return devices


@several
@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
@CASES
def test_whole_transforms(
    shape,
    chunks,
    name,
    transport,
    monkeypatch,
):
    monkeypatch.setattr(links, "LINK_ROW_NBYTES", 1)
    x = random_array(shape, "f8" if name == "rfft2" else "c16", 4)
    with dask.config.set({"bigfft.gpu.peer-transport": transport}):
        lazy = getattr(fft, name)(spread(x, chunks))
        persisted = lazy.persist(scheduler="threads")
    assert check(persisted, getattr(scipy.fft, name)(x)) == set(available())


@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
@CASES
def test_whole_transforms_on_two_logical_gpus(
    shape,
    chunks,
    name,
    transport,
):
    x = random_array(shape, "f8" if name == "rfft2" else "c16", 4)
    array = spread(x, chunks, 1)
    lazy = transformed_array(array, plan(array, name), ON_GPUS + transport)
    with several_gpus(LogicalGpus((0, 0))):
        persisted = lazy.persist(scheduler="threads")
    check(persisted, getattr(scipy.fft, name)(x))


#: Shapes and chunks of an array, shapes and chunks of another one.
OPERANDS = pytest.mark.parametrize(
    ("shape", "chunks", "own_shape", "own_chunks"),
    [
        ((32, 24, 20), (4, 24, 20), (30, 20, 18), (7, 20, 9)),
        ((64, 48), (8, 48), (63, 47), (16, 47)),
        ((1 << 14,), (1 << 11,), (10_001,), (1_000,)),
    ],
)


def check_operands(
    monkeypatch,
    upload,
    shape,
    chunks,
    own_shape,
    own_chunks,
):
    """Compare filters by large arrays and products of two long arrays with NumPy and SciPy."""
    monkeypatch.setattr(plan_module, "WHOLE_NBYTES", 16)
    monkeypatch.setattr(convolution, "is_small", lambda plan, shape: False)
    x = random_array(shape, "c16", 4)
    y = random_array(own_shape, "c16", 5)
    h = random_array(shape, "f8", 6)
    a = upload(x, chunks)
    for values in (h, h[:1], h[..., :1]):
        multiplier = upload(values, tuple(map(min, own_chunks, values.shape)))
        filtered = signal.fourier_filter(a, multiplier)
        expected = np.fft.ifftn(np.fft.fftn(x) * values)
        check(filtered.persist(scheduler="threads"), expected)
    convolved = signal.fftconvolve(a, upload(y, own_chunks))
    check(convolved.persist(scheduler="threads"), scipy.signal.fftconvolve(x, y))


@several
@OPERANDS
def test_operands(
    monkeypatch,
    shape,
    chunks,
    own_shape,
    own_chunks,
):
    check_operands(
        monkeypatch,
        spread,
        shape,
        chunks,
        own_shape,
        own_chunks,
    )


@OPERANDS
def test_operands_on_two_logical_gpus(
    monkeypatch,
    shape,
    chunks,
    own_shape,
    own_chunks,
):
    def upload(x, own_chunks):
        array = spread(x, own_chunks, 1)
        blocks = {key[1:]: getattr(block, "value", block) for key, block in array.dask.items()}
        gpus.homes(blocks)
        return array

    with several_gpus(LogicalGpus((0, 0))) as gpus:
        check_operands(
            monkeypatch,
            upload,
            shape,
            chunks,
            own_shape,
            own_chunks,
        )
