"""Half spectra of axes that are larger than the card: read and written digit by digit.

What is not in the block is the mirror image of what is; the card makes it.
"""

import itertools
import math

import dask
import dask.array as da
import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, on_the_card, run, scipys, values

from dask_bigfft import fft
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.half_spectrum import Window, completing, missing, within_bounds
from dask_bigfft.gpu.sources import Source
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.simulated import SimulatedGPU

RADICES = [(3, 4), (4, 3), (2, 2), (5, 1), (7,), (3, 2, 5), (2, 3, 4), (4, 4, 3), (5, 3, 3)]


def cuts(sizes, seed):
    """Some boxes that together are all digits."""
    rng = np.random.default_rng(seed)
    boxes = [()]
    for n in sizes:
        inner = rng.choice(np.arange(1, n), rng.integers(0, min(3, n)), replace=False)
        ends = [0, *sorted(inner.tolist()), n]
        boxes = [(*box, pair) for box in boxes for pair in itertools.pairwise(ends)]
    return boxes


def mirror(own, image, last, radices):
    """Own indices and those of the image, element by element."""
    places = np.arange(math.prod(radices)).reshape(radices)
    mine = places[tuple(slice(*pair) for pair in own)]
    other = places[tuple(slice(*pair) for pair in image)]
    return mine, np.flip(other, tuple(range(last + 1)))


@pytest.mark.parametrize("radices", RADICES)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_missing_is_the_mirror_image_of_what_is_there(radices, seed):
    """c2r: every digit that comes has one source, with the index that it should have."""
    n = math.prod(radices)
    length = n // 2 + 1
    found = np.full(radices, -1)
    for box in cuts((*radices[:-1], radices[-1] // 2 + 1), seed):
        for own in within_bounds(box, radices, 0, length):
            mine, _ = mirror(own, own, -1, radices)
            assert (found.flat[mine] == -1).all()
            found.flat[mine] = mine
        for own, image, last in missing(box, radices, length):
            assert all(a >= c and b <= d for (a, b), (c, d) in zip(own, box, strict=True))
            mine, other = mirror(own, image, last, radices)
            assert (found.flat[mine] == -1).all()
            assert ((mine + other) % n == 0).all()
            found.flat[mine] = other
    half = found[..., : radices[-1] // 2 + 1]
    assert (half >= 0).all()
    assert (half < length).all()


@pytest.mark.parametrize("radices", RADICES)
@pytest.mark.parametrize("seed", range(4))
def test_half_a_spectrum_is_completed_once(radices, seed):
    """r2c: every index that is stored has one source."""
    n = math.prod(radices)
    length = n // 2 + 1
    found = np.full(n, -1)
    for box in cuts((*radices[:-1], radices[-1] // 2 + 1), seed):
        for own in within_bounds(box, radices, 0, length):
            mine, _ = mirror(own, own, -1, radices)
            assert (found[mine] == -1).all()
            found[mine] = mine
        for own, image, last in completing(box, radices, length):
            mine, other = mirror(own, image, last, radices)
            assert (found[other] == -1).all()
            assert ((mine + other) % n == 0).all()
            found[other] = mine
    assert (found[:length] >= 0).all()
    assert (found[length:] == -1).all()


def test_a_view_in_digits_touches_only_what_the_block_has():
    block = np.arange(2 * 7 * 5).reshape(2, 7, 5)
    view = Window.of_dimension((2, 3, 4, 5), 1, (3, 4), 7).view
    assert view.shape == (2, 3, 4, 5)
    everything = slice(0, 2), slice(0, 1), slice(1, 4), slice(0, 5)
    seen = view.part(block, everything)
    np.testing.assert_array_equal(seen, block[:, None, 1:4])
    assert seen.base is block.base  # so that whoever pins memory finds whose it is
    last = view.part(block, (slice(0, 2), slice(1, 2), slice(2, 3), slice(0, 5)))
    np.testing.assert_array_equal(last[:, 0, 0], block[:, 6])
    with pytest.raises((TypeError, ValueError)):
        view.part(block, (slice(0, 2), slice(2, 3), slice(0, 4), slice(0, 5)))


#: Transform, length of the real axis, bytes of the device as a part of the spectrum's, digits.
SCHEMES = [
    ("rfft", 4096, 3, "{X1} {X2}"),
    ("rfft", 4095, 3, "{X1} {X2}"),
    ("rfft", 4096, 12, "{X1} {X2} {X3}"),
    ("irfft", 4096, 4, "{X1} {X2}"),
    ("irfft", 4095, 3, "{X1} {X2}"),
    ("irfft", 4096, 24, "{X1} {X2} {X3}"),
    ("hfft", 6000, 3, "{X1} {X2}"),
    ("ihfft", 6000, 3, "{X1} {X2}"),
]


def example(name, n, before=(), after=()):
    """Values of a transform of n real points in all, and its arguments."""
    real, axis = name in ("rfft", "ihfft"), len(before)
    x = values(*before, n if real else n // 2 + 1, *after, dtype="f8" if real else "c16")
    return x, {"axis": axis} | ({} if real else {"n": n})


@pytest.mark.parametrize(("name", "n", "part", "notation"), SCHEMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_scheme(name, n, part, notation, seed):
    x, keywords = example(name, n)
    nbytes = 8 * n // part
    job, _ = job_of(x, name, **keywords)
    simulated = engine(nbytes, seed, limits=TileLimits(nbytes, least=256, run_nbytes=64))
    got = run(simulated, x, name, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-15
    assert simulated.device.peak <= nbytes
    assert simulated.tiles(job)[0].notation == notation


@pytest.mark.parametrize("name", ["rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize(("before", "after"), [((3,), ()), ((2, 3), (2,))])
@pytest.mark.parametrize("n", [693, 512])
def test_beside_other_dimensions(name, before, after, n):
    x, keywords = example(name, n, before, after)
    simulated = engine(16 * n // 3, seed=n)
    assert len(simulated.tiles(job_of(x, name, **keywords)[0])[0].plan.passes) > 1
    single = x.astype("f4" if x.dtype.kind == "f" else "c8")
    got = run(simulated, single, name, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-6


@pytest.mark.parametrize("name", ["rfftn", "irfftn", "hfftn", "ihfftn"])
@pytest.mark.parametrize(("shape", "part"), [((4, 2048), 5), ((16, 513), 9), ((3, 5, 1001), 9)])
def test_other_axes_are_transformed_where_the_real_one_is_whole(name, shape, part):
    """r2c comes before the other axes, c2r after them."""
    real = name in ("rfftn", "ihfftn")
    last = shape[-1] if real else shape[-1] // 2 + 1
    x = values(*shape[:-1], last, dtype="f8" if real else "c16")
    keywords = {"norm": "ortho", "axes": tuple(range(len(shape)))} | ({} if real else {"s": shape})
    nbytes = 16 * math.prod(shape) // part
    job, _ = job_of(x, name, **keywords)
    simulated = engine(nbytes, seed=part)
    links = [simulated.tiles(link)[0].notation for link in simulated.links(job, simulated.limits)]
    others = "{Y}" if len(shape) == 2 else "{Z, Y}"
    assert links == (["{X1} {X2}", others] if real else [others, "{X1} {X2}"])
    with pytest.raises(DeviceMemoryError):
        simulated.tiles(job)
    got = run(simulated, x, name, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-15
    assert simulated.device.peak <= nbytes


def test_what_does_not_matter_of_half_a_spectrum_does_not_matter_here():
    """The imaginary parts at 0 and in the middle."""
    for n in (1024, 1023, 15 * 66):
        x, keywords = example("irfft", n)
        expected = scipys(x, "irfft", **keywords)
        x[0] += 3j
        x[-1] += 0 if n % 2 else 7j
        assert distance(run(engine(6 * n), x, "irfft", **keywords), expected) < 1e-15


@pytest.mark.parametrize("name", ["rfft", "irfft", "rfft2", "irfft2"])
def test_one_large_block_is_done_on_the_card(name):
    real = name.startswith("r")
    x = values(2, 4096 if real else 2049, dtype="f8" if real else "c16")
    got, _ = on_the_card(name, da.from_array(x, chunks=-1), 1 << 14)
    assert distance(got, scipys(x, name)) < 1e-15


def test_memory_that_runs_out_between_the_jobs_of_a_round_is_recovered():
    """The second job fails once: what comes before it is done again where it was overwritten."""
    refused = []

    def refuses(operation, nbytes):
        if operation == "reserve" and len(device.trace) > 40 and len(refused) < 1:
            refused.append(nbytes)
            return True
        return False

    x = values(2, 3000, dtype="f8")
    device = SimulatedGPU(1 << 14, 1, refuses=refuses)
    simulated = engine(1 << 14, device=device)
    job, _ = job_of(x, "rfft2")
    assert len(simulated.links(job, simulated.limits)) == 2
    first = run(simulated, x, "rfft2")
    simulated.recover()
    second = simulated.run(job, Source(lambda: np.array(x))).reshape(first.shape)
    assert refused
    for got in (first, second):
        assert distance(got, scipys(x, "rfft2")) < 1e-15


@pytest.mark.parametrize("n", [106, 142, 202])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("chunks", [(), (0,)])
def test_a_spectrum_in_as_many_values_as_its_digits_is_not_written_over(n, dtype, chunks):
    """n/2 + 1 values come, and 2 times (n/2 + 1)/2 of the digits: they lie in other places."""
    half = n // 2 + 1
    x = values(half).astype(dtype) if dtype == "c16" else values(half).real
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        a = da.from_array(x, chunks=((*chunks, half // 2, half - half // 2),))
        with simulated_devices(32 * n, limits=TileLimits(0, least=64, run_nbytes=16)) as (device,):
            result = fft.irfft(a, n, device="gpu").compute()
    assert distance(result, np.fft.irfft(x, n)) < 1e-14
    assert device.peak <= 32 * n
