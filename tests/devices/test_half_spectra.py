"""Axes that are larger than the GPU: half spectra, digit by digit, and lengths with no digits.

What a host block has not got of half a spectrum is the mirror image of what it has; the GPU makes
it. A length with nothing to split is left to the CPU.
"""

import math

import dask
import dask.array as da
import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, on_the_card, passes_of, run, scipys, values
from support import heard

from dask_bigfft import fft
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.simulated import SimulatedGPU


def example(name, shape):
    """Values of which there are `shape` before or after the transform, and its arguments."""
    axes = {"axes": tuple(range(len(shape)))} if name.endswith(("2", "n")) else {}
    if name.startswith(("irfft", "hfft")):
        x = values(*shape[:-1], shape[-1] // 2 + 1)
        return x, {"s": shape} | axes if axes else {"n": shape[-1]}
    return values(*shape, dtype="f8" if name.startswith(("rfft", "ihfft")) else "c16"), axes


HALVES = "{X1} {X2}"
THIRDS = "{X1} {X2} {X3}"

#: Transform, shape of n points in all, bytes of the GPU as a part of the axis', and the passes.
SCHEMES = [
    *(("rfft", (n,), 6, HALVES) for n in (4096, 4095)),
    ("rfft", (4096,), 24, THIRDS),
    ("irfft", (4096,), 8, HALVES),
    ("irfft", (4095,), 6, HALVES),
    ("irfft", (4096,), 48, THIRDS),
    ("hfft", (6000,), 6, HALVES),
    ("ihfft", (6000,), 6, HALVES),
]


@pytest.mark.parametrize(("name", "shape", "part", "notation"), SCHEMES)
@pytest.mark.parametrize(
    ("norm", "single"),
    [
        ("ortho", False),
        ("forward", True),
    ],
)
def test_scheme(
    name,
    shape,
    part,
    notation,
    norm,
    single,
):
    (x, keywords) = example(name, shape)
    nbytes = 16 * shape[-1] // part
    keywords["norm"] = norm
    expected = scipys(x, name, **keywords)
    job, _ = job_of(x, name, **keywords)
    simulated = engine(nbytes, seed=part)
    (link,) = simulated.links(job, simulated.limits)
    assert passes_of(simulated.tiles(link)) == notation
    transformed = run(simulated, x, name, **keywords)
    assert distance(transformed, expected) < 1e-14
    assert simulated.device.peak <= nbytes
    if single:
        x = x.astype("f4" if x.dtype.kind == "f" else "c8")
        assert distance(run(simulated, x, name, **keywords), expected) < 2e-6


@pytest.mark.parametrize("name", ["rfftn", "irfftn", "hfftn", "ihfftn"])
@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((4, 2048), 5),
        ((16, 513), 9),
        ((3, 5, 1001), 9),
    ],
)
def test_other_axes_are_transformed_where_the_real_one_is_whole(name, shape, part):
    """r2c comes before the other axes, c2r after them."""
    x, keywords = example(name, shape)
    keywords["norm"] = "ortho"
    job, _ = job_of(x, name, **keywords)
    simulated = engine(16 * math.prod(shape) // part, seed=part)
    links = simulated.links(job, simulated.limits)
    expected = [HALVES, "{Y}" if len(shape) == 2 else "{Z, Y}"]
    schemes = [passes_of(simulated.tiles(link)) for link in links]
    assert schemes == (expected if name in ("rfftn", "ihfftn") else expected[::-1])
    assert distance(run(simulated, x, name, **keywords), scipys(x, name, **keywords)) < 1e-14
    assert simulated.device.peak <= 16 * math.prod(shape) // part


@pytest.mark.parametrize("n", [1024, 1023, 15 * 66])
def test_imaginary_parts_at_0_and_in_the_middle_do_not_matter(n):
    x, keywords = example("irfft", (n,))
    expected = scipys(x, "irfft", **keywords)
    x[0] += 3j
    x[-1] += 0 if n % 2 else 7j
    assert distance(run(engine(6 * n), x, "irfft", **keywords), expected) < 1e-14


def test_memory_that_runs_out_between_the_jobs_of_a_round_is_recovered():
    """The second job fails once: what comes before it is done again where it was overwritten."""
    refused = []

    def refuses(operation, nbytes):
        late = operation == "reserve" and len(device.trace) > 40 and not refused
        refused.extend([nbytes] * late)
        return late

    x = values(2, 3000, dtype="f8")
    device = SimulatedGPU(1 << 14, 1, refuses=refuses)
    simulated = engine(1 << 14, device=device)
    for _ in range(2):
        assert distance(run(simulated, x, "rfft2"), scipys(x, "rfft2")) < 1e-15
        simulated.recover()
    assert refused


@pytest.mark.parametrize("n", [106, 142, 202])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("chunks", [(), (0,)])
def test_a_spectrum_in_as_many_values_as_its_digits_is_not_written_over(n, dtype, chunks):
    """n/2 + 1 values come, and 2 times (n/2 + 1)/2 of the digits: they lie in other places."""
    half = n // 2 + 1
    x = values(half, dtype=dtype)
    limits = TileLimits(0, least=64, run_nbytes=16)
    a = da.from_array(x, chunks=((*chunks, half // 2, half - half // 2),))
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        result, _ = on_the_card(
            "irfft",
            a,
            32 * n,
            limits,
            n=n,
        )
    assert distance(result, np.fft.irfft(x, n)) < 1e-14


@pytest.mark.parametrize("name", ["fft", "irfft"])
def test_a_prime_larger_than_the_gpu_is_left_to_the_cpu(name):
    x, keywords = example(name, (4099,))
    limits = TileLimits(1 << 14, least=256)
    lazy = da.from_array(x, -1)
    with simulated_devices(1 << 14, limits=limits), heard() as events:
        transformed = getattr(fft, name)(lazy, device="gpu", **keywords).compute(scheduler="sync")
    assert "fallback" in [name for name, _ in events]
    assert distance(transformed, scipys(x, name, **keywords)) < 1e-14


# --- axes that are cut into blocks, and have a digit that is larger than the GPU -----------------

#: Transforms, chunks, the digits of the rounds, and bytes of the GPU as a part of the largest one.
CUT = [
    (["rfft"], 2048, (2048, 8), 3),
    (["rfft"], 2048, (2340, 7), 3),  # digits of both kinds: even, odd
    (["rfft"], 4000, (2025, 7), 10),  # of three digits
]


@pytest.mark.parametrize(
    ("name", "chunks", "digits", "part"), [(name, *case) for names, *case in CUT for name in names]
)
@pytest.mark.parametrize(
    ("order", "single"),
    [
        ("natural", False),
        ("transposed", True),
    ],
)
def test_digits_of_cut_axes(
    name,
    chunks,
    digits,
    part,
    order,
    single,
):
    x, keywords = example(name, (math.prod(digits),))
    turned = order == "transposed" and name in ("ifft", "rfft")
    if single:
        x = x.astype("f4" if x.dtype.kind == "f" else "c8")
    lazy = da.from_array(x, chunks // 2 if keywords else chunks)
    given = {"rounds": digits} | ({"order": order, "digits": digits} if turned else {})
    if turned and name == "ifft":
        name = "fft"
    transformed, _ = on_the_card(
        name,
        lazy,
        16 * max(digits) // part,
        **given,
        **keywords,
    )
    if turned:
        expected = getattr(fft, name)(lazy, device="cpu", **given).compute(scheduler="sync")
    else:
        expected = scipys(x, name, **keywords)
    assert distance(transformed, expected) < (2e-6 if single else 1e-14)


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("rfft2", (1001, 4)),
        ("irfft2", (4, 1001)),
    ],
)
def test_digits_of_cut_axes_beside_others(name, digits):
    """Both in one round: the real axis alone, then the other one; the other way round for c2r."""
    x, keywords = example(name, (6, math.prod(digits)))
    rounds = [{1: n} | ({0: 6} if n > 4 else {}) for n in digits]
    lazy = da.from_array(x, (6, max(digits)))
    nbytes = 1 << 13
    transformed, _ = on_the_card(
        name,
        lazy,
        nbytes,
        rounds=rounds,
        **keywords,
    )
    assert distance(transformed, scipys(x, name, **keywords)) < 1e-14
