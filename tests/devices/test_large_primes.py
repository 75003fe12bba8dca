"""Lengths with nothing to split that are larger than the card: a convolution inside the block."""

import math

import dask.array as da
import numpy as np
import pytest
from devices.blocks import SMALL, distance, engine, job_of, on_the_card, run, scipys, values

from dask_bigfft import fft
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.testing.simulated import SimulatedGPU

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
    ("irfft", (4099,), 3),
    ("hfft", (4099,), 3),
    ("irfft", (2 * 2053,), 3),  # half the length is an index, too
    ("irfft", (3, 1031), 2),
]


def example(name, shape):
    """Values of which there are `shape` before or after the transform, and its arguments."""
    if name.startswith(("irfft", "hfft")):
        x = values(*shape[:-1], shape[-1] // 2 + 1)
        return x, {"s": shape, "axes": (0, 1)} if name.endswith("2") else {"n": shape[-1]}
    return values(*shape, dtype="f8" if name.startswith(("rfft", "ihfft")) else "c16"), {}


@pytest.mark.parametrize(("name", "shape", "part"), LARGE)
@pytest.mark.parametrize("norm", ["ortho", "forward"])
def test_scheme(name, shape, part, norm):
    (x, keywords), n = example(name, shape), shape[-1]
    keywords["norm"], nbytes = norm, 16 * n // part
    job, _ = job_of(x, name, **keywords)
    simulated = engine(nbytes, seed=part, limits=SMALL)
    with pytest.raises(DeviceMemoryError):
        simulated.tiles(job)
    (link,) = simulated.links(job, simulated.limits)
    found, _ = simulated.tiles(link)
    axis = found.notation[1]
    assert found.notation == f"{{{axis}1}} {{{axis}2}} {{{axis}1}}"
    got = run(simulated, x, name, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-14
    assert simulated.device.peak <= nbytes


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_single_precision(name):
    x, keywords = example(name, (2, 2053))
    single = x.astype("f4" if name == "rfft" else "c8")
    got = run(engine(8 * 2053 // 2), single, name, **keywords)
    assert got.dtype == ("f4" if name == "irfft" else "c8")
    assert distance(got, scipys(x, name, **keywords)) < 2e-6


@pytest.mark.parametrize("name", ["fft2", "rfft2", "ifft2", "ihfft2", "irfft2", "hfft2"])
@pytest.mark.parametrize("shape", [(6, 2053), (5, 1031), (1, 2053)])
def test_other_axes_are_transformed_as_they_are(name, shape):
    x, keywords = example(name, shape)
    nbytes = 16 * shape[-1] // 2
    job, _ = job_of(x, name, **keywords)
    simulated = engine(nbytes, seed=1)
    links = simulated.links(job, simulated.limits)
    assert [link.convolves for link in links].count(True) == 1
    got = run(simulated, x, name, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-14
    assert simulated.device.peak <= nbytes


def test_what_does_not_matter_of_half_a_spectrum_does_not_matter_here():
    """The imaginary parts at 0 and in the middle."""
    for n in (4099, 2 * 2053):
        x, keywords = example("irfft", (n,))
        expected = scipys(x, "irfft", **keywords)
        x[0] += 3j
        x[-1] += 0 if n % 2 else 7j
        assert distance(run(engine(6 * n), x, "irfft", **keywords), expected) < 1e-14


def test_what_lies_on_the_card_beyond_the_block_does_not_matter():
    """Memory that nobody has written may hold anything: a chirp leaves zeros, not 0 times NaN."""
    x, device = values(4099), SimulatedGPU(1 << 15, 3)
    simulated = engine(1 << 15, device=device)
    poisoned = np.full(4099, np.nan + 0j)
    assert np.isnan(run(simulated, poisoned, "fft")).all()
    assert distance(run(simulated, x, "fft"), scipys(x, "fft")) < 1e-14


@pytest.mark.parametrize("name", ["fft", "rfft", "ifft", "irfft", "hfft"])
def test_one_large_block_is_done_on_the_card(name):
    x, keywords = example(name, (4099,))
    got, _ = on_the_card(name, da.from_array(x, chunks=-1), 1 << 14, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-14


#: Digits of the rounds, chunks, and bytes of the device as a part of the largest digit's.
CUT = [
    ((1031, 4), 1031, 2),  # the first digit is larger than the card
    ((4, 1031), 1031, 2),  # the last one
    ((131, 29), 2000, 1),  # the first one, in blocks of several rows
    ((3, 257, 4), 1000, 1),  # the one in the middle, which has digits on both sides
    ((2 * 131, 5), 700, 2),
]


@pytest.mark.parametrize("name", ["ifft", "rfft", "ihfft", "irfft", "hfft"])
@pytest.mark.parametrize(("digits", "chunks", "part"), CUT)
def test_digits_of_cut_axes(name, digits, chunks, part):
    n = math.prod(digits)
    x, keywords = example(name, (n,))
    lazy = da.from_array(x, chunks // 2 if keywords else chunks)
    got, _ = on_the_card(name, lazy, 16 * max(digits) // part, rounds=digits, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-14


@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_digits_of_cut_axes_in_transposed_order(name):
    digits, chunks, part = CUT[3]
    x, _ = example(name, (math.prod(digits),))
    lazy = da.from_array(x, chunks)
    keywords = {"rounds": digits, "digits": digits, "order": "transposed"}
    got, _ = on_the_card(name, lazy, 16 * max(digits) // part, **keywords)
    host = getattr(fft, name)(lazy, device="cpu", **keywords).compute(scheduler="sync")
    assert distance(got, host) < 1e-14


@pytest.mark.parametrize("name", ["fft2", "rfft2", "irfft2"])
def test_digits_of_cut_axes_beside_others(name):
    x, keywords = example(name, (6, 4 * 257))
    rounds = [{0: 6, 1: 257}, {1: 4}] if name != "irfft2" else [{1: 4}, {0: 6, 1: 257}]
    lazy = da.from_array(x, (6, 257))
    got, _ = on_the_card(name, lazy, 1 << 12, rounds=rounds, **keywords)
    assert distance(got, scipys(x, name, **keywords)) < 1e-14
