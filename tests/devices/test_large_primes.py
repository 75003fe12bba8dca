"""Lengths with nothing to split that are larger than the card: a convolution inside the block."""

import dask.array as da
import numpy as np
import pytest
from devices.blocks import SMALL, distance, engine, job_of, run, scipys, values

from dask_bigfft import fft
from dask_bigfft.devices.convolving import convolving, is_hard
from dask_bigfft.devices.crossings import PieceLimits
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.testing.devices import simulated_devices

#: Transform, shape of n points in all, and bytes of the device as a part of the axis'.
LARGE = [
    ("fft", (4099,), 3),
    ("ifft", (4099,), 4),
    ("fft", (2 * 2053,), 3),  # one digit is small, the other one larger than the card
    ("rfft", (4099,), 3),
    ("ihfft", (4099,), 3),
    ("rfft", (2 * 2053,), 3),
    ("fft", (3, 1031), 2),
    ("rfft", (3, 1031), 2),
]


def example(name, shape):
    return values(*shape, dtype="f8" if name in ("rfft", "ihfft") else "c16")


@pytest.mark.parametrize(("name", "shape", "part"), LARGE)
@pytest.mark.parametrize("norm", ["ortho", "forward"])
def test_scheme(name, shape, part, norm):
    x, n = example(name, shape), shape[-1]
    nbytes = 16 * n // part
    job, _ = job_of(x, name, norm=norm)
    simulated = engine(nbytes, seed=part, limits=SMALL)
    with pytest.raises(DeviceMemoryError):
        simulated.pieces(job)
    (link,) = simulated.links(job, simulated.limits)
    found, _ = simulated.pieces(link)
    axis = found.notation[1]
    assert found.notation == f"{{{axis}1}} {{{axis}2}} {{{axis}1}}"
    got = run(simulated, x, name, norm=norm)
    assert distance(got, scipys(x, name, norm=norm)) < 1e-14
    assert simulated.device.peak <= nbytes
    crossings = found.schedule.crossings
    works = [list(found.works(number)) for number in range(len(crossings))]
    rows, (step,) = x.size // n, link.round.steps
    padded = step.source.radix
    came = [sum(m.array.size for w in all_ for m in w.comes) for all_ in works]
    went = [sum(m.array.size for w in all_ for m in w.goes) for all_ in works]
    # Nothing that is padding crosses the bus on the first way in, or the last way out.
    assert came == [rows * n, rows * padded, rows * padded]
    assert went == [rows * padded, rows * padded, rows * got.shape[-1]]
    for crossing, mine in zip(crossings, works, strict=True):
        runs, width = crossing.reads
        assert runs * width == max(work.source.size for work in mine)
    # One filter is made, in crossings of its own, and comes with the pieces of the middle one.
    copies = [span.operation for span in simulated.device.trace]
    moves = sum(len(w.comes) + len(w.filters) for all_ in works for w in all_)
    assert copies.count("h2d") > moves
    assert sum(len(w.filters) for w in works[1]) == len(works[1])


@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_single_precision(name):
    x = example(name, (2, 2053))
    single = x.astype("f4" if name == "rfft" else "c8")
    got = run(engine(8 * 2053 // 2), single, name)
    assert got.dtype == np.complex64
    assert distance(got, scipys(x, name)) < 2e-6


@pytest.mark.parametrize("name", ["fft2", "rfft2", "ifft2", "ihfft2"])
@pytest.mark.parametrize("shape", [(6, 2053), (5, 1031), (1, 2053)])
def test_other_axes_are_transformed_as_they_are(name, shape):
    x = example(name[:-1], shape)
    nbytes = 16 * shape[-1] // 2
    job, _ = job_of(x, name)
    simulated = engine(nbytes, seed=1)
    links = simulated.links(job, simulated.limits)
    assert [link.convolves for link in links].count(True) == 1
    got = run(simulated, x, name)
    assert distance(got, scipys(x, name)) < 1e-14
    assert simulated.device.peak <= nbytes


def test_what_fits_or_splits_is_no_convolution():
    for name, shape, nbytes in (("fft", (4099,), 1 << 20), ("fft", (4096,), 1 << 14)):
        job, _ = job_of(example(name, shape), name)
        simulated = engine(nbytes)
        assert simulated.links(job, simulated.limits) == (job,)
    smooth, _ = job_of(example("fft", (4096,)), "fft")
    assert not is_hard(smooth)
    assert convolving(smooth) is None
    half, _ = job_of(values(2050), "irfft", n=4099)
    assert is_hard(half)
    assert convolving(half) is None  # its mirror image would have to be there first


def test_what_lies_on_the_card_beyond_the_block_does_not_matter():
    """Memory that nobody has written may hold anything: a chirp leaves zeros, not 0 times NaN."""
    x, device = values(4099), SimulatedDevice(1 << 15, 3)
    simulated = engine(1 << 15, device=device)
    poisoned = np.full(4099, np.nan + 0j)
    assert np.isnan(run(simulated, poisoned, "fft")).all()
    assert distance(run(simulated, x, "fft"), scipys(x, "fft")) < 1e-14


@pytest.mark.parametrize(("name", "fallback"), [("fft", 0), ("rfft", 0), ("ifft", 0), ("irfft", 1)])
def test_one_large_block_is_done_on_the_card(name, fallback):
    """c2r is not: half a spectrum would have to be completed first."""
    events, nbytes = [], 1 << 14
    x = example(name, (2050,) if name == "irfft" else (4099,))
    keywords = {"n": 4099} if name == "irfft" else {}
    add_sink(sink := lambda event, numbers: events.append(event))
    try:
        with simulated_devices(nbytes, limits=PieceLimits(nbytes, least=256)) as (device,):
            y = getattr(fft, name)(da.from_array(x, chunks=-1), device="gpu", **keywords)
            got = y.compute(scheduler="sync")
            assert bool(device.trace) is not bool(fallback)
            assert device.peak <= nbytes
    finally:
        remove_sink(sink)
    assert ("fallback" in events) is bool(fallback)
    assert distance(got, scipys(x, name, **keywords)) < 1e-14
