"""Whole transforms through simulated devices: the CPU's answers, in every kind and order."""

from collections import Counter
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from support import heard

from dask_bigfft import fft, plan
from dask_bigfft.errors import ArgumentError, DeviceError
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.engine import Source
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

SMALL = TileLimits(0, least=256, run_nbytes=64)
WIDE = TileLimits(0, least=256, run_nbytes=1)  # any row is wide enough
KINDS = ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"]
#: Shapes, chunks, and bytes of a device that are too few for a block.
CASES = [
    ((48, 40), (20, 40), 1 << 13),
    ((24, 10, 18), (7, 5, 18), 1 << 13),
    ((1200,), (90,), 1 << 12),
    ((5, 4, 6, 3, 7), (2, 4, 3, 2, 7), 1 << 13),
]


def values(*shape, real=False, single=False, seed=0):
    return random_array(shape, (("c16", "c8"), ("f8", "f4"))[real][single], seed)


def computed(lazy, **keywords):
    """The result, and the bytes of each event."""
    with heard() as events:
        transformed = lazy.compute(**keywords)
    nbytes_of = Counter()
    for name, numbers in events:
        nbytes_of[name] += int(numbers.get("nbytes", 0))
    return transformed, nbytes_of


def split():
    """Plans as for large arrays: nothing is gathered whole that can be split."""
    return dask.config.set({"bigfft.planner.whole-axis-floor": 1})


def assert_close(ours, expected, single=False):
    assert ours.shape == expected.shape
    eps = 1e-6 if single else 1e-15 * max(1, expected.size.bit_length())
    assert np.linalg.norm(ours - expected) <= eps * np.linalg.norm(expected)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize("name", ["fftn", "rfftn"])
@pytest.mark.parametrize("rows", [(0, 1), (0,)])
def test_chunks_without_entries(name, rows, device):
    x = values(
        sum(rows),
        40,
        6,
        real=name == "rfftn",
    )
    with split(), simulated_devices(1 << 13, limits=SMALL):
        a = da.from_array(x, chunks=(rows, (17, 23), 6))
        result = getattr(fft, name)(a, axes=(1, 2), device=device)
        transformed = result.compute()
    assert_close(transformed, getattr(scipy.fft, name)(x, axes=(1, 2)))


@pytest.mark.pairs
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("shape", "chunks", "nbytes"), CASES)
def test_every_kind_in_pieces(
    name,
    shape,
    chunks,
    nbytes,
    single,
):
    real = name in ("rfftn", "ihfftn")
    x = values(*shape, real=real, single=single)
    with split(), simulated_devices(nbytes, seed=len(shape), limits=SMALL) as (device,):
        lazy = getattr(fft, name)(da.from_array(x, chunks), norm="ortho", device="gpu")
        transformed, nbytes_of = computed(lazy)
    expected = getattr(scipy.fft, name)(x, norm="ortho")
    assert transformed.dtype == expected.dtype
    assert_close(transformed, expected, single)
    assert nbytes_of["h2d"]
    if name in ("fftn", "ifftn"):
        assert "fallback" not in nbytes_of
    assert device.peak <= nbytes
    assert device.memory().free == device.total  # given back with the context


@pytest.mark.parametrize(
    ("name", "shape", "chunks", "nbytes", "crossings"),
    [
        ("fft", (1 << 22,), 1 << 20, 1 << 27, 2),  # digits in tiles, written in natural order
        ("ifft", (5 << 20,), 5 << 18, 1 << 28, 2),
        ("fftn", (60, 64, 64), (7, 64, 64), 1 << 25, 1),  # all of it at a time
        ("rfftn", (60, 64, 63), (7, 32, 63), 1 << 25, 1),
        ("fftn", (1024, 1024), (256, 1024), 1 << 23, 2),  # in blocks as large as tiles
        ("ifftn", (1024, 512), (512, 512), 1 << 23, 2),
        ("fftn", (100, 120, 128), (50, 120, 128), 1 << 23, 2),
        ("rfftn", (512, 1026), (256, 1026), 1 << 23, 2),
    ],
)
def test_crossings_of_the_bus(
    name,
    shape,
    chunks,
    nbytes,
    crossings,
    monkeypatch,
):
    monkeypatch.setattr("dask_bigfft.planner.strategies.LEAST_BETWEEN", 1 << 20)
    x = values(*shape, real=name == "rfftn")
    off = dask.config.set({"bigfft.planner.small": 0})
    with split(), off, simulated_devices(nbytes):
        lazy = getattr(fft, name)(da.from_array(x, chunks), device="gpu")
        transformed, nbytes_of = computed(lazy)
    assert_close(transformed, getattr(scipy.fft, name)(x))
    assert nbytes_of["h2d"] == pytest.approx(crossings * x.nbytes, 0.01)


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("name", ["fftn", "ifftn"])
def test_transposed_order_of_several_axes(name, slots):
    """Blocks whose first dimension is several digits, also with few buffers."""
    limits = replace(SMALL, run_nbytes=1, slots=slots)
    x = values(28, 20, 10)
    ours = getattr(fft, name)
    array = da.from_array(x, (14, 10, 2))
    with split(), simulated_devices(1 << 12, limits=limits):
        host = ours(array, order="transposed", device="cpu").compute()
        spectrum, nbytes_of = computed(ours(array, order="transposed", device="gpu"))
    assert nbytes_of["h2d"]
    assert_close(spectrum, host)


@pytest.mark.parametrize("nbytes", [1 << 16, 3000])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft"])
def test_bluestein(name, nbytes):
    """With little memory the digits of the convolution fall apart as well."""
    half = name in ("irfft", "hfft")
    keywords = {"n": 8191} if half else {}
    x = values(4097 if half else 8191, real=name == "rfft")
    array = da.from_array(x, 512)
    ours = getattr(fft, name)
    with split(), simulated_devices(nbytes, limits=SMALL):
        bluestein_plan = plan(array, name, **keywords)
        transformed, nbytes_of = computed(ours(array, **keywords, device="gpu"))
    assert any(program.bluestein for program in bluestein_plan.programs)
    assert nbytes_of["h2d"]
    assert "fallback" not in nbytes_of
    assert_close(transformed, getattr(scipy.fft, name)(x, **keywords))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft"])
@pytest.mark.parametrize("seed", range(3))
def test_no_processor_touches_a_split_axis(name, seed):
    """Digits stay where they are; the device turns them into their natural order at the end."""
    x = values(4096, real=name == "rfft")
    with simulated_devices(1 << 15, seed=seed, limits=WIDE), heard("gather") as gathered:
        lazy = getattr(fft, name)(da.from_array(x, 512), device="gpu")
        transformed = lazy.compute(scheduler="threads")
    assert_close(transformed, getattr(scipy.fft, name)(x))
    assert not gathered


def test_auto_leaves_small_blocks_and_long_doubles_on_the_cpu_and_cpu_all():
    small = da.ones((32, 32), chunks=16)
    large = da.ones((512, 512), chunks=-1, dtype=complex)
    with simulated_devices(1 << 24) as (device,):
        fft.fft2(small).compute()
        fft.fft2(large, device="cpu").compute()
        fft.fft2(large.astype("G"), device="auto").compute()
        assert not device.trace
        fft.fft2(large).compute()
        assert device.trace


def test_a_limit_makes_a_large_card_small():
    x = values(64, 64)
    with simulated_devices(1 << 24, limits=SMALL) as (device,):
        lazy = fft.fft2(da.from_array(x, 64), device="gpu", device_memory_limit="16 kiB")
        spectrum = lazy.compute()
        with dask.config.set({"bigfft.device": "gpu", "bigfft.device-memory-limit": "16 kiB"}):
            limited_plan = plan(da.from_array(x, 64), "fft2")
    assert device.peak <= 1 << 14
    assert_close(spectrum, scipy.fft.fft2(x))
    assert (limited_plan.device, limited_plan.device_memory_limit) == ("gpu", 1 << 14)
    assert type(limited_plan).from_json(limited_plan.to_json()) == limited_plan


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_without_a_gpu_one_that_is_demanded_is_refused_by_name(device):
    if dispatch.missing() is None:
        pytest.skip("there is one here")
    x = da.ones((64, 64), chunks=32)
    with pytest.raises(ArgumentError, match=f"`device`='{device}'"):
        fft.fft2(x, device=device)
    with simulated_devices(1 << 14), dask.config.set({"bigfft.hybrid.min-speedup": 0}):
        with pytest.raises(ArgumentError, match="double precision"):
            fft.fft2(x.astype("G"), device=device)
        lazy = fft.fft2(x, device=device)
    if device == "gpu":  # gone when it is computed; CPU threads do all of a hybrid transform
        with pytest.raises(DeviceError, match="pip install"):
            lazy.compute()
    fft.fft2(x, device="auto").compute()


#: Transform, shape and chunks of what is transformed, and keywords.
RAGGED = {
    "padded, rows": ("fft", (24, 100), (5, 100), {"n": 128}),
    "padded, columns": ("fft", (100, 24), (100, 5), {"n": 128, "axis": 0}),
    "padded, cut": ("fft2", (60, 48), (13, 48), {"s": (64, 50)}),
    "cropped, cut": ("ifft2", (60, 48), (13, 20), {"s": (51, 40)}),
    "padded, real": ("rfft2", (60, 48), (13, 48), {"s": (63, 50)}),
    "padded far": ("fft", (3, 10), (2, 10), {"n": 200}),
    "padded far, in digits": ("fft", (3, 10), (2, 10), {"n": 2000}),
    "one value": ("fft", (1,), (1,), {"n": 300}),
    "within digits": ("fft", (4095,), (455,), {"rounds": [63, 65]}),
    "within digits, irregular": ("fft", (4095,), ((1, 700, 64, 1330, 2000),), {"rounds": [65, 63]}),
    "within digits, real": ("rfft", (4095,), (455,), {"rounds": [63, 65]}),
    "within digits, padded": ("fft", (3000,), (455,), {"rounds": [63, 65], "n": 4095}),
    "within digits, padded far": ("rfft", (100,), (30,), {"rounds": [64, 64], "n": 4096}),
    "within digits, cropped": ("ifft", (5000,), (455,), {"rounds": [63, 65], "n": 4095}),
    "within digits, half": ("irfft", (2048,), (300,), {"rounds": [63, 65], "n": 4095}),
    "within digits, half, even": ("hfft", (2049,), (300,), {"rounds": [64, 64]}),
    "within digits, half, padded": ("irfft", (1500,), (256,), {"rounds": [64, 64], "n": 4096}),
    "within digits, half, cropped": ("irfft", (2049,), (300,), {"rounds": [62, 64], "n": 3968}),
    "within digits, half, little": ("irfft", (4,), (1,), {"rounds": [2, 3]}),
    "half of two axes": ("irfft2", (12, 61), (5, 13), {"rounds": [{0: 12, 1: 10}, {1: 12}]}),
    "half of three axes": (
        "irfftn",
        (6, 10, 31),
        (4, 3, 7),
        {"rounds": [{0: 6, 1: 10, 2: 6}, {2: 10}]},
    ),
    "within digits of two axes, padded": (
        "fft2",
        (60, 44),
        (7, 11),
        {"s": (64, 48), "rounds": [{0: 8, 1: 8}, {0: 8, 1: 6}]},
    ),
}


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("case", RAGGED)
def test_what_does_not_lie_as_a_round_has_it_is_read_where_it_lies(case, slots, monkeypatch):
    """By copies of boxes, into zeros, turned where they lie backwards: the CPU gathers nothing.

    Also with few buffers, and where a part or all of a tile is nothing.
    """
    limits = replace(WIDE, slots=slots)
    single = list(RAGGED).index(case) % 2 == 1
    name, shape, chunks, keywords = RAGGED[case]
    x = values(*shape, real=name.startswith("r"), single=single)
    gathered = []
    get = Source.get

    def watched(self):
        if not self.borrowed:
            gathered.append(self)
        return get(self)

    monkeypatch.setattr(Source, "get", watched)
    with simulated_devices(1 << 13, seed=len(case), limits=limits) as (device,):
        lazy = getattr(fft, name)(da.from_array(x, chunks), device="gpu", **keywords)
        transformed, nbytes_of = computed(lazy, scheduler="sync")
        operations = {span.operation for span in device.trace}
    keywords = {key: value for key, value in keywords.items() if key != "rounds"}
    assert_close(transformed, getattr(scipy.fft, name)(x, **keywords), single)
    assert nbytes_of["h2d"]
    assert "fallback" not in nbytes_of
    assert not gathered
    if "padded" in case or case == "one value":
        assert "clear" in operations
    elif "within" not in case and "half" not in case:  # whose last exchange puts parts together
        assert "clear" not in operations
    assert device.peak <= 1 << 13


@pytest.mark.parametrize("name", ["hfftn", "irfftn"])
@pytest.mark.parametrize("n", [7, 11, 13])
def test_short_prime_lengths_are_not_split(name, n):
    """Wide rows are looked for in digits of two values or more."""
    x = values(11, 3, 11, 12, single=True)
    keywords = {"axes": (0, 3, 2), "s": (13, 10, n)}
    with simulated_devices(1 << 12, limits=SMALL), dask.config.set({"bigfft.planner.min-chunk": 0}):
        array = da.from_array(x, (11, 2, 11, 3))
        plan_of_primes = plan(array, name, device="gpu", **keywords)
        transformed = getattr(fft, name)(array, device="gpu", **keywords).compute()
    digits = [s.source for r in plan_of_primes.rounds for s in r.steps]
    assert all(digit.radix > 1 for digit in digits)
    assert_close(transformed, getattr(scipy.fft, name)(x, **keywords), single=True)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_real_input_of_complex_ffts_and_shifts_and_checks(device):
    x = values(60, 64, real=True)
    array = da.from_array(x, (15, 64))
    off = dask.config.set({"bigfft.hybrid.min-speedup": 0})
    with off, simulated_devices(1 << 13, limits=SMALL):
        shifted, nbytes_of = computed(fft.fftshift(fft.fft2(array, device=device)))
        checked = fft.fft2(array, device=device, verify="checksum").compute()
    assert nbytes_of["h2d"] or device == "hybrid"  # of which CPU threads may do all
    assert_close(shifted, scipy.fft.fftshift(scipy.fft.fft2(x)))
    assert_close(checked, scipy.fft.fft2(x))
