"""A CUDA device does what the simulated one does, which is NumPy; any route copies any view."""

import itertools
import time

import dask
import numpy as np
import pytest
import scipy.fft
from devices.blocks import NEEDS_GPU, copied
from devices.kernel_text import factors

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu import copy_threads, cupy_gpu, dispatch, kernels
from dask_bigfft.gpu.cuda import available, cupy, is_pinned
from dask_bigfft.gpu.cupy_gpu import TO_DEVICE, CupyGPU, View, copies, route
from dask_bigfft.gpu.operations import (
    FFT,
    DeviceArray,
    Multiply,
    Strided,
    transposed,
)
from dask_bigfft.memory.arena import allocate, default_arena, pinned
from dask_bigfft.testing.simulated import SimulatedGPU, multiplied
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.tiles.program import ChirpFactor, Term, Twiddle
from dask_bigfft.transforms.steps import Chirp

pytestmark = NEEDS_GPU

RNG = np.random.default_rng(7)
BIG = 1 << 62
MIB = 1 << 20


@pytest.fixture(scope="module")
def device():
    gpu = CupyGPU(available()[0])
    gpu.reserve(512 * MIB)
    yield gpu
    gpu.close()


def values(shape, dtype):
    return random_array(shape, dtype, RNG)


def through(
    device,
    op,
    x,
    shape=None,
    dtype=None,
):
    """Result of one operation on an array, in place where it keeps its shape and dtype."""
    large = device.memory().total > 1 << 30
    half, last = (200 * MIB, 400 * MIB) if large else (16 * MIB, 32 * MIB)
    streams = device.stream("h2d"), device.stream("compute"), device.stream("d2h")
    loaded, transformed, end = (device.event(name) for name in ("loaded", "done", "end"))
    target = source = DeviceArray(0, x.shape, x.dtype.str)
    out = np.empty(shape or x.shape, dtype or x.dtype)
    if shape is not None:
        target = DeviceArray(half, out.shape, out.dtype.str)
    work = device.work_nbytes(op) if isinstance(op, FFT) else 0
    device.h2d(streams[0], x, source)
    device.record(loaded, streams[0])
    device.wait(streams[1], loaded)
    device.compute(
        streams[1],
        op,
        source,
        target,
        DeviceArray(last, (work,), "|u1"),
    )
    device.record(transformed, streams[1])
    device.wait(streams[2], transformed)
    device.d2h(streams[2], target, out)
    device.record(end, streams[2])
    device.synchronize(end)
    return out


def simulated(*arguments, **keywords):
    twin = SimulatedGPU(64 * MIB)
    twin.reserve(64 * MIB)
    return through(twin, *arguments, **keywords)


def close(
    ours,
    expected,
    dtype,
    eps=40,
):
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0) or 1.0
    assert ours.dtype == np.dtype(dtype)
    eps *= np.finfo(np.dtype(dtype)).eps
    np.testing.assert_allclose(
        ours,
        expected,
        rtol=0,
        atol=eps * scale,
    )


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, 5, 4), (1,)),
        ((6, 5, 4), (0, 2)),
        ((7,), (0,)),
        ((1, 1), (0, 1)),
        ((1009, 3), (0,)),
        ((3, 100003), (1,)),
        ((16, 12, 9, 5), (0, 1, 2, 3)),
        ((40, 64, 3), (1,)),
        ((3, 64, 40), (1,)),
        ((2**17, 2), (0,)),
        ((2, 3, 4, 5), (1, 2)),
    ],
)
def test_complex_ffts(
    device,
    shape,
    dims,
    sign,
    dtype,
):
    x = values(shape, dtype)
    expected = scipy.fft.fftn(x.astype("c16"), axes=dims)
    if sign > 0:
        expected = scipy.fft.ifftn(x.astype("c16"), axes=dims, norm="forward")
    op = FFT(
        "c2c",
        shape,
        shape,
        dims,
        sign,
        x.dtype.str,
    )
    close(through(device, op, x), expected, dtype)


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((3, 8, 2), 1),
        ((3, 9, 2), 1),
        ((4, 9, 7), 1),
        ((9, 15, 3), 1),
        ((5, 1), 1),
        ((1000, 6), 0),
        ((4, 2**16), 1),
    ],
)
def test_real_ffts(
    device,
    shape,
    dim,
    dtype,
):
    real = np.empty(0, dtype).real.dtype.str
    x = values(shape, real)
    half = (*shape[:dim], shape[dim] // 2 + 1, *shape[dim + 1 :])
    forward = FFT(
        "r2c",
        shape,
        half,
        (dim,),
        -1,
        np.dtype(dtype).str,
    )
    back = FFT(
        "c2r",
        half,
        shape,
        (dim,),
        1,
        np.dtype(dtype).str,
    )
    spectrum = through(
        device,
        forward,
        x,
        half,
        dtype,
    )
    close(spectrum, scipy.fft.rfft(x.astype("f8"), axis=dim), dtype)
    restored = through(
        device,
        back,
        spectrum,
        shape,
        real,
    )
    close(restored, shape[dim] * x.astype("f8"), real)


TWIDDLES = [
    Twiddle(97, -1, (Term(1, 1, BIG, 1, offset=6),), (Term(0, 2, 3, 4, offset=5),)),
    Twiddle(
        2**52,
        1,
        (Term(2, 1, BIG, 3900, offset=2**20),),
        (Term(0, 1, BIG, 33, offset=2**15), Term(1, 1, BIG, 1)),
    ),
    Twiddle(
        10**15 + 37,
        -1,
        (Term(1, 1, BIG, 7, offset=10**6),),
        (Term(2, 1, BIG, 11, offset=10**7 - 5),),
    ),
]
PLACE = Term(0, 1, BIG, 300), Term(1, 1, BIG, 50), Term(2, 1, BIG, 1)
CHIRPS = [
    ChirpFactor(Chirp(13, 1), (Term(0, 1, BIG, 2, offset=5),), (Term(2, 1, BIG, 1),)),
    ChirpFactor(
        Chirp(2**33 + 1, -1), (Term(0, 1, BIG, 1, offset=2**33 - 40),), (Term(1, 1, BIG, 5),)
    ),
    ChirpFactor(
        Chirp(2**45 + 9, 1),
        (Term(0, 1, BIG, 2**40 + 3),),
        (Term(2, 1, BIG, 2**20 + 7, offset=17),),
    ),
    ChirpFactor(Chirp(1301, 1), PLACE, ()),
    ChirpFactor(Chirp(4 * 1301, -1, step=2, offset=1, turns=1), PLACE, ()),
]
#: Behind the end of a chirp products of indices go on.
BEYOND = Twiddle(97 * 41, -1, PLACE[1:], (Term(0, 1, BIG, 3, offset=9),))


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize(
    ("twiddles", "chirps"),
    [
        ((), ()),
        *(((t,), ()) for t in TWIDDLES),
        *(((), (c,)) for c in CHIRPS),
        (tuple(TWIDDLES[:2]), (CHIRPS[1],)),
        ((BEYOND,), (ChirpFactor(Chirp(97, 1), BEYOND.own, ()),)),
    ],
)
def test_multiply(
    device,
    twiddles,
    chirps,
    conjugate,
    dtype,
):
    x = values((4, 6, 50), dtype)
    op = Multiply(x.shape, x.dtype.str, 0.5, conjugate, (*twiddles, *chirps))
    close(through(device, op, x), simulated(op, x), dtype, 4)


#: Shapes whose dimensions do not fill tiles, whose products are prime, or are 1, and orders.
TURNED = [
    *((shape, (1, 0)) for shape in ((1, 1009), (33, 31), (4099, 2), (1024, 512))),
    ((3, 50, 1, 70), (1, 3, 0, 2)),
    ((33, 2, 65, 4), (2, 3, 0, 1)),
    ((97, 5, 64), (1, 0, 2)),
    ((70000, 3, 2), (0, 2, 1)),  # more than the grid has blocks
]


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize(
    ("conjugate", "chirped"),
    [
        (False, False),
        (True, True),
    ],
)
@pytest.mark.parametrize(("shape", "axes"), TURNED)
def test_transposes_multiply_factors(
    device,
    shape,
    axes,
    conjugate,
    chirped,
    dtype,
):
    x = values(shape, dtype)
    of_all = factors(shape, dtype, conjugate, chirped)
    for by in (of_all, Multiply(shape, x.dtype.str, -0.25, conjugate)):
        expected = multiplied(by, x).transpose(axes)
        op = transposed(shape, axes, x.dtype.str, by)
        close(
            through(device, op, x, expected.shape),
            expected,
            dtype,
            4,
        )


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize("flips", list(itertools.product((1, -1), repeat=3)))
def test_strided_copies_multiply_factors(device, flips, dtype):
    """What is turned round along some dimensions, as the mirror image of half a spectrum is."""
    shape = (6, 53, 70)
    x = values(shape, dtype)
    by = factors(shape, dtype, True, True)
    strides = tuple(flip * step for flip, step in zip(flips, (3710, 70, 1), strict=True))
    start = sum((n - 1) * -min(0, s) for n, s in zip(shape, strides, strict=True))
    op = Strided(
        shape,
        strides,
        start,
        (1, 6 * 70, 6),
        0,
        x.dtype.str,
        by,
    )
    expected = multiplied(by, x[tuple(slice(None, None, flip) for flip in flips)])
    close(
        through(device, op, x, (53, 70, 6)),
        expected.transpose(1, 2, 0),
        dtype,
        4,
    )


def test_more_elements_are_turned_than_32_bits_count(device):
    """Compared where they are; 34 GiB of the GPU."""
    shape = (65537, 32771)
    if device.memory().free < 40 << 30:
        pytest.skip("the GPU has not 40 GiB free")
    cp = cupy()
    left = Term(0, 1, BIG, 1)
    right = Term(1, 1, BIG, 1)
    by = Multiply(shape, "<c8", 0.5, False, (Twiddle(2**32, -1, (left,), (right,)),))
    op = transposed(shape, (1, 0), "<c8", by)
    with cp.cuda.Device(available()[0]):
        try:
            x = cp.full(shape, 2, "c8")
            y = cp.zeros(shape[::-1], "c8")
            cp.cuda.get_current_stream().synchronize()
            kernels.strided(op, x.data.ptr, y.data.ptr)
            for row in (0, 1, 16384, 32770):
                power = np.arange(shape[0]) * row % 2**32
                expected = np.exp(-2j * np.pi * (power / 2**32))
                np.testing.assert_allclose(
                    y[row].get(),
                    expected,
                    rtol=0,
                    atol=1e-6,
                )
        finally:
            x = y = None
            cp.get_default_memory_pool().free_all_blocks()


def block_in(kind, shape, dtype):
    """A block in pinned or in ordinary memory, and what it is."""
    x = allocate(shape, dtype) if kind == "pinned" else np.empty(shape, dtype)
    x[...] = values(shape, dtype)
    return x


@pytest.mark.parametrize("kind", ["pinned", "pageable"])
@pytest.mark.parametrize("dtype", ["c16", "c8", "f8", "f4"])
@pytest.mark.parametrize(
    "part",
    [
        np.s_[:, :, :],
        np.s_[10:50, :, :],
        np.s_[:, 3:9, :],
        np.s_[:, :, 5:1000],
        np.s_[7:9, 2:8, 256:512],
        np.s_[:, 1:2, 3:4],
        np.s_[1:2, 1:2, :],
    ],
)
def test_views_travel_there_and_back(
    device,
    kind,
    dtype,
    part,
):
    x = block_in(kind, (64, 16, 1024), dtype)
    back = block_in(kind, (64, 16, 1024), dtype)
    if kind == "pinned":
        form = View(
            (64, 16, 8),
            x.strides,
            x.itemsize,
            (128 * x.itemsize, 8 * x.itemsize, x.itemsize),
        )
        assert route(form, TO_DEVICE, is_pinned(x))[0] == "kernel"
    expected = back.copy()
    inside = DeviceArray(0, x[part].shape, x.dtype.str)
    copied(device, (x[part], inside), (inside, back[part]))
    expected[part] = x[part]
    assert np.array_equal(back, expected)


@pytest.mark.parametrize("chosen", ["engine", "kernel", "ring"])
@pytest.mark.parametrize(
    "inside", [np.s_[:, 1:7, 50:639], np.s_[2:102, 3:9, :589], np.s_[1:101, :6]]
)
def test_every_route_reaches_into_a_part_of_a_larger_array(
    device,
    monkeypatch,
    chosen,
    inside,
):
    x = block_in("pinned", (140, 9, 700), "c8")
    back = block_in("pinned", (100, 6, 589), "c8")
    part = np.s_[3:103, 2:8, 11:600]
    whole = block_in(
        "pinned", (102 if inside[0].stop else 100, 9, 589 if len(inside) < 3 else 700), "c8"
    )
    assert all(map(is_pinned, (x, back, whole)))  # else a kernel does not reach it
    monkeypatch.setattr(cupy_gpu, "route", lambda form, *_: (chosen, copies(form)))
    larger = DeviceArray(0, whole.shape, "<c8")
    seen = whole[inside]
    offset = seen.ctypes.data - whole.ctypes.data
    place = DeviceArray(
        offset,
        seen.shape,
        "<c8",
        seen.strides,
    )
    expected = whole.copy()
    expected[inside] = x[part]
    copied(
        device,
        (whole, larger),
        (x[part], place),
        (place, back),
        (larger, whole),
    )
    assert np.array_equal(whole, expected)
    assert np.array_equal(back, x[part])


def test_arrays_of_others_are_pinned_where_they_are(device):
    # 32 MiB each
    x = values((1 << 21,), "c16")
    back = np.zeros(1 << 21, "c16")
    assert not is_pinned(x)
    array = DeviceArray(0, x.shape, "<c16")
    copied(device, (x, array), (array, back))
    assert np.array_equal(x, back)
    assert is_pinned(x)
    assert is_pinned(back[5:])
    low = x.ctypes.data
    del x
    assert not pinned(low, 16)


@pytest.fixture
def unpinned():
    with dask.config.set({"bigfft.memory.pin-arrays": False}):
        yield


def test_a_wait_on_an_event_covers_the_scatter(device, monkeypatch, unpinned):
    """What a crossing wrote through the ring is there when the next one reads it."""
    monkeypatch.setattr(copy_threads, "SHARE_NBYTES", 1 << 16)
    block = np.zeros((1 << 14, 512), "c8")  # 64 MiB in ordinary memory
    expected = values(block.shape, "c8")
    upload = device.stream("h2d")
    download = device.stream("d2h")
    a = DeviceArray(0, block.shape, "<c8")
    b = DeviceArray(a.nbytes, block.shape, "<c8")
    for turn in range(3):
        wanted = expected * (turn + 1)
        end = device.event("end")
        device.h2d(upload, wanted, a)
        device.record(end, upload)
        device.wait(download, end)
        device.d2h(download, a, block)
        stored = device.event("stored")
        device.record(stored, download)
        device.wait(upload, stored)
        device.h2d(upload, block, b)
        loaded = device.event("loaded")
        last = device.event("last")
        out = np.empty_like(block)
        device.record(loaded, upload)
        device.wait(download, loaded)
        device.d2h(download, b, out)
        device.record(last, download)
        device.synchronize(last)
        assert np.array_equal(out, wanted)


def test_buffers_of_the_ring_go_back_to_the_driver(monkeypatch, unpinned):
    pool = cupy().get_default_pinned_memory_pool()
    pointers = []
    alloc = cupy().cuda.alloc_pinned_memory

    def taken(nbytes):
        memory = alloc(nbytes)
        pointers.append(memory.ptr)
        return memory

    monkeypatch.setattr(cupy().cuda, "alloc_pinned_memory", taken)
    monkeypatch.setattr(cupy_gpu, "BUFFERS", 2)
    monkeypatch.setattr(cupy_gpu, "BUFFER_NBYTES", 4 * MIB)
    other = CupyGPU(available()[0])
    other.reserve(64 * MIB)
    x = np.arange(3 * MIB, dtype="f8")
    out = np.empty_like(x)
    array = DeviceArray(0, x.shape, "<f8")
    copied(other, (x, array), (array, out))
    assert np.array_equal(out, x)
    requested = cupy().cuda.pinned_memory.is_memory_pinned
    assert len(pointers) == 4
    assert all(requested(pointer) for pointer in pointers)
    other.close()
    assert pool.n_free_blocks() == 0
    assert not any(requested(pointer) for pointer in pointers)


def test_more_memory_than_there_is_is_refused_and_nothing_is_lost(device):
    other = CupyGPU(available()[0])
    total = other.memory().total
    with pytest.raises(DeviceMemoryError):
        other.reserve(total + (1 << 30))
    other.reserve(64 * MIB)
    with pytest.raises(DeviceError, match="already"):
        other.reserve(1)
    x = values((100, 100), "c16")
    op = FFT(
        "c2c",
        x.shape,
        x.shape,
        (0,),
        -1,
        "<c16",
    )
    out = np.empty_like(x)
    array = DeviceArray(0, x.shape, "<c16")
    stream = other.stream("h2d")
    other.h2d(stream, x, array)
    other.work_nbytes(op)
    other.compute(
        stream,
        op,
        array,
        array,
        DeviceArray(MIB, (0,), "|u1"),
    )
    other.d2h(stream, array, out)
    other.synchronize_all()
    close(out, scipy.fft.fft(x, axis=0), "c16")
    with pytest.raises(DeviceError, match="does not lie"):
        other.h2d(stream, x, DeviceArray(64 * MIB, x.shape, "<c16"))
    before = other.memory().free
    other.release()
    other.drop_caches()
    end = time.monotonic() + 10  # other processes may take as much at the same moment
    while other.memory().free < before + 63 * MIB and time.monotonic() < end:
        time.sleep(0.1)
    assert other.memory().free >= before + 63 * MIB
    other.close()


def test_pinned_memory_is_let_go_with_the_last_device(device):
    dispatch.release()  # those that other tests have opened
    other = CupyGPU(available()[0])
    block = allocate((1 << 20,), "c16")
    assert is_pinned(block)
    other.close()
    assert is_pinned(block)  # `device` is still there
    device.close()
    assert not is_pinned(block)
    del block
    default_arena().trim()
