"""Blocks in host memory, rounds on a card whose memory may hardly be used: SciPy's answers."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dask
import dask.array as da
import pytest
import scipy.fft
from devices.blocks import NEEDS_GPU, job_of_round
from laws.test_devices import assert_close, computed, values

from dask_bigfft import fft
from dask_bigfft import plan as plan_of
from dask_bigfft.gpu import cupy_gpu, dispatch
from dask_bigfft.gpu.engine import Source
from dask_bigfft.memory import allocate
from dask_bigfft.planner.tile_plan import TileLimits

pytestmark = NEEDS_GPU

MIB = 1 << 20
LIMITS = TileLimits(0, least=MIB // 4)


@pytest.fixture(autouse=True)
def small_pieces():
    """Devices that are opened here cut small blocks, too, and are closed at the end."""
    dispatch.use(None, LIMITS)
    yield
    dispatch.use(None)


def placed(x, pinned):
    """The values in pinned memory, or as they are."""
    if not pinned:
        return x
    dispatch.leases()  # from now on lent memory is pinned
    block = allocate(x.shape, x.dtype)
    block[...] = x
    return block


def check(name, x, chunks, nbytes=2 * MIB, single=False, **keywords):
    """Compare with SciPy what a card gives that may use some bytes; return the bytes of events."""
    lazy = getattr(fft, name)(
        da.from_array(x, chunks),
        device="gpu",
        device_memory_limit=nbytes,
        **keywords,
    )
    transformed, nbytes_of = computed(lazy)
    keywords.pop("rounds", None)
    expected = getattr(scipy.fft, name)(x, **keywords)
    assert transformed.dtype == expected.dtype
    assert_close(transformed, expected, single)
    assert nbytes_of["h2d"]
    assert "fallback" not in nbytes_of
    return nbytes_of


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((1024, 768), -1),
        ((1024, 768), (200, 768)),
        ((96, 60, 130), -1),
        ((96, 60, 130), (40, 60, 50)),
    ],
)
def test_every_kind_larger_than_the_limit(
    name,
    shape,
    chunks,
    single,
):
    real = name in ("rfftn", "ihfftn")
    x = values(*shape, real=real, single=single)
    check(name, x, chunks, single=single)


RAGGED = {
    "wide rows": ("fft2", (1024, 768), (200, 768), {}),
    "wide rows of other blocks": ("ifftn", (96, 60, 130), (40, 60, 130), {}),
    "an axis in many blocks": ("fft", (1 << 20,), (1 << 16,), {}),
    "an axis in few blocks": ("fft", (1 << 20,), (1 << 18,), {}),
    "padded": ("fft2", (700, 500), (200, 500), {"s": (768, 1024)}),
    "padded, real": ("rfft2", (700, 501), (200, 501), {"s": (768, 1023)}),
    "padded, columns": ("fft", (700, 512), (700, 100), {"n": 1024, "axis": 0}),
    "padded far": ("fft", (3, 10), (3, 10), {"n": 1 << 19}),
    "cropped": ("ifft2", (1024, 768), (200, 768), {"s": (1000, 700)}),
    "within digits": ("fft", (4095 * 256,), (100_003,), {"rounds": [4095, 256]}),
    "within digits, padded": (
        "rfft",
        (900_001,),
        (100_003,),
        {"rounds": [4095, 256], "n": 4095 * 256},
    ),
    "half": ("irfft", (2**19 + 1,), (100_003,), {"rounds": [4096, 256]}),
    "half, odd": ("irfft", (410_063,), (50_001,), {"rounds": [3645, 225], "n": 3645 * 225}),
    "half, out": ("rfft", (4095 * 256,), (100_003,), {"rounds": [4095, 256]}),
    "half, out, even": ("ihfft", (4096 * 250,), (100_003,), {"rounds": [4096, 250]}),
    "half of two axes, out": (
        "rfft2",
        (96, 10_000),
        (96, 1000),
        {"rounds": [{0: 96, 1: 100}, {1: 100}]},
    ),
    "half of two axes": ("irfft2", (96, 5001), (40, 700), {"rounds": [{0: 96, 1: 100}, {1: 100}]}),
}


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("case", RAGGED)
def test_what_does_not_lie_as_a_round_has_it_is_read_where_it_lies(case, pinned, single):
    """Padding, chunks and blocks of the result that end within digits, mirror images."""
    dispatch.use(None, replace(LIMITS, run_nbytes=1))  # any row is wide enough
    name, shape, chunks, keywords = RAGGED[case]
    x = values(*shape, real=name.startswith(("r", "ihfft")), single=single)
    nbytes_of = check(
        name,
        placed(x, pinned),
        chunks,
        single=single,
        **keywords,
    )
    assert "gather" not in nbytes_of


@pytest.mark.parametrize("n", [1 << 20, 3**6 * 1000, 1 << 21])
@pytest.mark.parametrize("name", ["fft", "ifft"])
def test_one_axis_in_several_crossings(n, name):
    x = values(n)
    assert check(name, x, -1)["h2d"] in (2 * x.nbytes, 3 * x.nbytes)


def given(name, shape, single=False):
    """Input of a transform whose real or longer side has some shape, and what says so."""
    half = name.startswith(("ir", "hf"))
    size = shape[-1] // 2 + 1 if half else shape[-1]
    x = values(
        *shape[:-1],
        size,
        real=name.startswith(("r", "ih")),
        single=single,
    )
    several = {"s": shape, "axes": tuple(range(len(shape)))}
    return x, ({} if not half else several if name.endswith("n") else {"n": shape[-1]})


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("shape", [(1 << 21,), (3**6 * 2001,), (3, 1 << 19)])
@pytest.mark.parametrize("name", ["rfftn", "irfftn", "hfftn", "ihfftn"])
def test_half_spectra_larger_than_the_card(name, shape, pinned):
    """The real axis falls apart; its mirror image is made on the card."""
    x, keywords = given(name, shape)
    check(
        name,
        placed(x, pinned),
        -1,
        **keywords,
    )


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("digits", [(1 << 19, 8), (3**9 * 25, 7)])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "ihfft", "irfft", "hfft"])
def test_digits_of_cut_axes_larger_than_the_card(name, digits, single):
    """A digit falls apart; its twiddle follows."""
    x, keywords = given(name, (digits[0] * digits[1],), single)
    check(
        name,
        x,
        x.size // 4 + 1,
        single=single,
        rounds=digits,
        **keywords,
    )


@pytest.mark.parametrize("order", ["natural", "transposed"])
@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_an_axis_in_many_blocks(order, name):
    x = values(1 << 20, real=name == "rfft")
    array = da.from_array(x, 1 << 16)
    ours = getattr(fft, name)
    host = ours(array, order=order, device="cpu").compute()
    transformed, nbytes_of = computed(
        ours(array, order=order, device="gpu", device_memory_limit=MIB)
    )
    assert_close(transformed, host)
    assert nbytes_of["h2d"] > x.nbytes  # in both rounds


@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_bluestein(name):
    x = values(65_537, real=name == "rfft")
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        check(name, x, 4096, 4 * MIB)


@pytest.mark.parametrize("shape", [(1 << 20,), (1024, 1024), (128, 96, 90)])
@pytest.mark.parametrize("pinned", [True, False])
def test_overwritten_in_its_own_memory(shape, pinned):
    block = placed(values(*shape), pinned)
    expected = scipy.fft.fftn(block)
    name = f"owned-{id(block)}-{pinned}"
    chunks = da.core.normalize_chunks(-1, shape, dtype=block.dtype)
    x = da.Array(
        {(name, *(0,) * block.ndim): block},
        name,
        chunks,
        dtype=block.dtype,
    )
    fft.fftn(
        x,
        device="gpu",
        device_memory_limit=4 * MIB,
        overwrite_x=True,
    ).persist()
    assert_close(block, expected)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("ring", [(4, MIB), (2, MIB // 4), (8, 4 * MIB)])
def test_blocks_that_follow_one_another_through_the_ring(axes, ring, monkeypatch):
    """Threads gather the next block while one goes back, which is larger than the ring or not."""
    blocks = [values(512, 512, seed=n) for n in range(12)]
    expected = [scipy.fft.fftn(block, axes=axes) for block in blocks]
    plan_of_block = plan_of(da.zeros((512, 512), chunks=-1, dtype="c16"), "fftn", axes=axes)
    job = job_of_round(plan_of_block.rounds[0], ("<c16", "<c16"), inside=True)
    monkeypatch.setattr(cupy_gpu, "BUFFERS", ring[0])
    monkeypatch.setattr(cupy_gpu, "BUFFER_NBYTES", ring[1])
    engine = dispatch.leases().engines[0]
    with dask.config.set({"bigfft.memory.pin-arrays": False}), ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(engine.run, job, Source(lambda b=b: b)) for b in blocks]
        spectra = [future.result() for future in futures]
    assert engine.device._ring is not None
    for spectrum, right in zip(spectra, expected, strict=True):
        assert_close(spectrum, right)


def test_the_device_holds_no_more_than_it_may():
    x = values(2048, 1024)
    engines = dispatch.leases().engines
    before = engines[0].device.memory().free
    lazy = fft.fft2(da.from_array(x, (256, 1024)), device="gpu", device_memory_limit=4 * MIB)
    spectrum, _ = computed(lazy)
    assert_close(spectrum, scipy.fft.fft2(x))
    assert engines[0].executor.arena_nbytes <= 4 * MIB
    # plans and kernels that the libraries load take memory of their own
    assert before - engines[0].device.memory().free <= 512 * MIB
