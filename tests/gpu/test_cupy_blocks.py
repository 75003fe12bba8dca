"""Arrays whose blocks are CuPy arrays: the same calls, CuPy blocks out, and nothing by the host."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import NEEDS_GPU
from devices.random_cases import SIGNALS, random_case

from dask_bigfft import fft
from dask_bigfft.errors import ArgumentError
from dask_bigfft.gpu.cuda import available, cupy
from dask_bigfft.integrations.array_backend import ArenaBackend
from dask_bigfft.testing.strategies import random_array

pytestmark = NEEDS_GPU

RNG = np.random.default_rng(11)


@pytest.fixture
def no_host(monkeypatch):
    """Fail where data go to the host: CuPy has two ways there."""

    def raise_invalid(*args, **kwargs):
        raise AssertionError("a copy to the host")

    monkeypatch.setattr(cupy(), "asnumpy", raise_invalid)
    monkeypatch.setattr("dask_bigfft.memory.arena.HostArena.allocate", raise_invalid)


def on_card(x, chunks):
    blocks = da.from_array(x, chunks=chunks).map_blocks(cupy().asarray)
    return blocks.persist(scheduler="sync")


def spread(x, chunks, count=None):
    """Return an array whose blocks live on some or all GPUs, batch after batch."""
    cp, count = cupy(), count or len(available())
    array = da.from_array(x, chunks=chunks)

    def put(block, block_id):
        with cp.cuda.Device(available()[block_id[0] * count // array.numblocks[0]]):
            return cp.asarray(block)

    meta = cp.empty((0,) * x.ndim, x.dtype)
    return array.map_blocks(put, dtype=x.dtype, meta=meta).persist(scheduler="sync")


def blocks_of(result):
    with dask.config.set(scheduler="threads"):
        persisted = result.persist()
    blocks = list(persisted.dask.values())
    return persisted, blocks


def check(result, expected, tolerance):
    persisted, blocks = blocks_of(result)
    kinds = {type(getattr(block, "value", block)) for block in blocks}
    assert kinds == {cupy().ndarray}, kinds
    on_host = persisted.map_blocks(lambda block: block.get(), dtype=persisted.dtype).compute(
        scheduler="sync"
    )
    assert on_host.shape == expected.shape
    assert np.linalg.norm(on_host - expected) <= tolerance * (np.linalg.norm(expected) + 1e-30)


CASES = [
    ((4096,), (256,), "fft", {}),
    ((1 << 18,), (1 << 14,), "fft", {}),
    ((3**9,), (3**6,), "ifft", {"norm": "ortho"}),
    ((60, 64), (20, 16), "fft2", {}),
    ((64, 48, 20), (16, 48, 10), "fftn", {}),
    ((40, 36, 28), (10, 36, 28), "ifftn", {"axes": (0, 2)}),
    ((5, 1, 7), (2, 1, 7), "fftn", {}),
    ((4096,), (1000,), "fft", {}),
]


@pytest.mark.parametrize("dtype", ["c16", "c8", "f8", "f4"])
@pytest.mark.parametrize(("shape", "chunks", "name", "kwargs"), CASES)
def test_complex_transforms(
    shape,
    chunks,
    name,
    kwargs,
    dtype,
):
    x = random_array(shape, dtype, RNG)
    expected = getattr(scipy.fft, name)(x.astype("c16"), **kwargs)
    single = dtype in ("c8", "f4")
    check(getattr(fft, name)(on_card(x, chunks), **kwargs), expected, 2e-6 if single else 2e-15)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((4096,), (256,)),
        ((81 * 50,), (135,)),
        ((40, 64), (10, 16)),
        ((30, 9, 32), (10, 9, 32)),
    ],
)
def test_real_transforms_there_and_back(shape, chunks, dtype):
    x = RNG.standard_normal(shape).astype(dtype)
    expected = scipy.fft.rfftn(x.astype("f8"))
    tolerance = 2e-6 if dtype == "f4" else 2e-15
    spectrum = fft.rfftn(on_card(x, chunks))
    check(spectrum, expected, tolerance)
    check(fft.irfftn(spectrum, s=shape, axes=tuple(range(len(shape)))), x, tolerance)


@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dctn", "idctn", "dstn", "idstn"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("f8", 4e-15),
        ("f4", 2e-6),
        ("c8", 2e-6),
    ],
)
def test_cosines_and_sines(
    name,
    type,
    dtype,
    tolerance,
):
    x = random_array((37, 2, 64), dtype, RNG)
    expected = getattr(scipy.fft, name)(x.astype("c16" if dtype == "c8" else "f8"), type)
    check(getattr(fft, name)(spread(x, (10, 1, 64)), type), expected, tolerance)


def test_orders_pads_and_long_primes():
    x = RNG.standard_normal(10007) + 1j * RNG.standard_normal(10007)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 4096}):
        check(fft.fft(on_card(x, 1000)), scipy.fft.fft(x), 1e-14)
    x = RNG.standard_normal(4096) + 0j
    spectrum = fft.fft(on_card(x, 256), order="transposed")
    check(
        fft.ifft(spectrum * spectrum, order="transposed"),
        scipy.fft.ifft(scipy.fft.fft(x) ** 2),
        1e-14,
    )
    check(fft.fft(on_card(x, 256), n=5000), scipy.fft.fft(x, 5000), 2e-15)
    check(fft.fftshift(fft.fft(on_card(x, 256))), scipy.fft.fftshift(scipy.fft.fft(x)), 2e-15)


def test_nothing_goes_by_the_host(no_host):
    x = RNG.standard_normal((96, 80)) + 0j
    card = on_card(x, (24, 20))
    blocks_of(fft.fft2(card))
    blocks_of(fft.rfft2(card.real))
    assert isinstance(fft.fft2(card).compute(scheduler="sync"), cupy().ndarray)


def test_blocks_of_both_kinds_are_refused():
    def some(block, block_id):
        return cupy().asarray(block) if block_id[0] % 2 else block

    host = da.zeros(4096, chunks=256, dtype="c16")
    mixed = host.map_blocks(some, dtype="c16", meta=np.empty(0, "c16"))
    with pytest.raises(ArgumentError, match="of one kind"):
        fft.fft(mixed).compute(scheduler="sync")


def test_a_single_transform_of_more_than_2_to_the_31_elements():
    """A block of 17 GiB on the card, against a few values that are known."""
    cp = cupy()
    n = 2**31 + 2**20
    free = cp.cuda.runtime.memGetInfo()[0]
    if free < 4 * 8 * n:
        pytest.skip("needs 70 GB on the card")
    block = cp.zeros(n, "c8")
    block[1] = 1
    x = da.from_array(
        block,
        chunks=-1,
        asarray=False,
        name="impulse",
    )
    spectrum = fft.fft(x).persist(scheduler="sync").compute(scheduler="sync")
    places = np.array([0, 1, 12345, n // 3, 2**31 + 7, n - 1])
    expected = np.exp(-2j * np.pi * (places / n))
    np.testing.assert_allclose(spectrum[places].get(), expected, atol=1e-6)
    assert abs(float(cp.linalg.norm(spectrum)) / n**0.5 - 1) < 1e-4
    del spectrum, block, x
    cp.get_default_memory_pool().free_all_blocks()


def test_shifts_alone_and_beside_a_transform(no_host):
    x = RNG.standard_normal((6, 35, 32)) + 0j
    a = on_card(x, (2, 35, 32))
    check(fft.fftshift(a), np.fft.fftshift(x), 0)
    axes = (1, 2)
    result = fft.fftshift(fft.fft2(fft.ifftshift(a, axes)), axes)
    wanted = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x, axes)), axes)
    check(result, wanted, 1e-14)
    check(fft.fftshift(fft.fftn(a.rechunk((2, 7, 8)))), np.fft.fftshift(np.fft.fftn(x)), 1e-14)


def test_blocks_move_from_the_card_into_the_arena():
    x = RNG.standard_normal((600, 512))
    moved = ArenaBackend.to_backend(on_card(x, (300, 256)))
    np.testing.assert_array_equal(moved.compute(), x)


@pytest.mark.parametrize("seed", range(500))
def test_random_cases(seed):
    """On all GPUs, batch after batch; with 100 cases on several even where one would be chosen."""
    x, chunks, name, keywords, expected, close = random_case(seed)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1 if seed % 5 else 4 << 20}):
        result = getattr(fft, name)(spread(x, chunks), **keywords)
    persisted = result.persist(scheduler="threads")
    blocks = [getattr(block, "value", block) for block in persisted.dask.values()]
    assert {type(block) for block in blocks} == {cupy().ndarray}
    on_host = persisted.map_blocks(cupy().asnumpy, dtype=persisted.dtype).compute(scheduler="sync")
    assert on_host.shape == expected.shape
    assert np.linalg.norm(on_host - expected) <= close * (np.linalg.norm(expected) + 1)


@pytest.mark.filterwarnings("ignore:The device where the array resides")  # for dask's own functions
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("work", SIGNALS.values(), ids=SIGNALS)
def test_signals(work, dtype, request):
    pair = [random_array((360, 200), dtype, seed) for seed in (1, 2)]
    with dask.config.set({"bigfft.device": "cpu"}):
        expected = work(*(da.from_array(x, (90, 200)) for x in pair)).compute()
    request.getfixturevalue("no_host")
    result = work(*(spread(x, (90, 200)) for x in pair))
    assert result.dtype == expected.dtype
    check(result, expected, 1e-5 if dtype == "f4" else 1e-13)
