"""The schemes of Gu, Siegel and Li on one block in host memory with a small device.

Each has the passes, C and W that follow from its digits; large blocks find theirs unaided.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, job_of_round, passes_of, scipys, values

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.engine import Source
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.planner.passes import find_tile_plan
from dask_bigfft.planner.tile_plan import Line, TileLimits, TileRequest
from dask_bigfft.transforms.layout import Layout, plain
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.steps import axis_program

#: Shape, bytes of the GPU, digits of each axis, and the passes.
SCHEMES = [
    ((4096,), 1 << 14, ((64, 64),), "{X1} {X2}"),
    ((4096,), 1 << 13, ((16, 16, 16),), "{X1} {X2} {X3}"),
    ((32, 128), 1 << 14, ((32,), (128,)), "{Y} {X}"),  # naive
    ((128, 32), 1 << 14, ((16, 8), (32,)), "{Y1} {Y2, X}"),  # Y decomposed
    ((4, 2048), 1 << 14, ((4,), (64, 32)), "{X1} {Y, X2}"),  # X larger than the GPU
    ((16, 16, 16), 1 << 15, ((16,), (16,), (16,)), "{Z} {Y, X}"),  # naive
    ((64, 8, 8), 1 << 14, ((8, 8), (8,), (8,)), "{Z1, Y} {Z2, X}"),  # Z decomposed, reordered
    ((4, 32, 32), 1 << 14, ((4,), (8, 4), (32,)), "{Z, Y1} {Y2, X}"),  # XY larger than the GPU
    ((4, 4, 512), 1 << 13, ((4,), (4,), (32, 16)), "{Z, X1} {Y, X2}"),  # X larger than the GPU
]


def given(x, digits, notation):
    """The round of a transform of a block, in the decomposition of a scheme."""
    groups = enumerate(notation[1:-1].split("} {"))
    number = {name: i for i, group in groups for name in group.split(", ")}
    passes = tuple(
        tuple(number[letter + (str(i + 1) if len(split) > 1 else "")] for i in range(len(split)))
        for letter, split in zip("ZYX"[3 - x.ndim :], digits, strict=True)
    )
    return replace(job_of(x, "fftn")[0], scheme=(digits, passes))


def counted_runs(view, part):
    """Runs of a box, counted element by element."""
    places = np.arange(math.prod(view)).reshape(view)[part].ravel()
    return 1 + int(np.count_nonzero(np.diff(places) != 1))


@pytest.mark.parametrize(("shape", "nbytes", "digits", "notation"), SCHEMES)
def test_scheme(
    shape,
    nbytes,
    digits,
    notation,
):
    x = values(*shape)
    limits = TileLimits(nbytes, least=256)
    assert x.nbytes > nbytes  # larger than the card
    job = given(x, digits, notation)
    simulated = engine(nbytes, limits=limits)
    spectrum = simulated.run(
        job, Source(lambda: np.array(x).reshape(job.round.source.shape(job.block)))
    )
    assert distance(spectrum.reshape(shape), scipys(x, "fftn")) < 1e-15
    assert simulated.device.peak <= nbytes
    tiles = job.tiles(limits)
    assert passes_of(tiles) == notation
    copies = [span.operation for span in simulated.device.trace]
    assert copies.count("h2d") == copies.count("d2h") == sum(p.tiles for p in tiles.plan.passes)
    for number, pass_ in enumerate(tiles.plan.passes):
        works = list(tiles.works(number))
        assert len(works) == pass_.tiles
        largest = max(works, key=lambda work: work.source.size)
        reading = largest.form.sizes, largest.loads
        writing = largest.stored_form.sizes, largest.stores
        for (view, moves), (runs, width) in ((reading, pass_.reads), (writing, pass_.writes)):
            assert counted_runs(view, moves[0][0]) == runs
            assert runs * width == largest.source.size


#: Shape, GiB of the device, the digits that are found, and least bytes of a run, read or written.
FOUND = [
    ((1 << 28,), 2, "{X1} {X2}", 1 << 14),
    ((1 << 30,), 2, "{X1} {X2} {X3}", 1 << 20),  # two crossings would halve the runs' length
    ((1 << 14, 1 << 14), 1, "{Y1, X} {Y2}", 1 << 20),
    ((4, 1 << 28), 2, "{X1} {X2} {Y}", 1 << 18),
    ((1 << 10, 1 << 10, 1 << 10), 2, "{Z1, Y, X} {Z2}", 1 << 23),
    ((8, 1 << 14, 1 << 14), 2, "{Z, Y1, X} {Y2}", 1 << 20),
    ((1001, 999, 1000), 2, "{Z1, Y, X} {Z2}", 1 << 21),
    ((64, 1 << 14, 1 << 10), 1, "{Z, X} {Y}", 1 << 20),
]


@pytest.mark.parametrize(("shape", "gib", "notation", "run"), FOUND)
def test_found_unaided_for_large_blocks(
    shape,
    gib,
    notation,
    run,
):
    lines = tuple(Line(dim, n) for dim, n in enumerate(shape))
    tile_plan = find_tile_plan(TileRequest(shape, lines, 16), TileLimits(gib << 30), 1)
    assert " ".join(tile_plan.names("ZYX"[3 - len(shape) :])) == notation
    assert (
        min(n for pass_ in tile_plan.passes for n in (pass_.reads[1], pass_.writes[1])) * 16 >= run
    )
    assert tile_plan.buffers == 3
    assert (tile_plan.buffers + 1) * tile_plan.buffer_nbytes <= gib << 30


@pytest.mark.parametrize(
    ("shape", "notation"),
    [
        ((4096,), "{X1} {X2} swap"),
        ((8192,), "{X1} {X2} {X3} swap"),
        ((729, 6), "{Y1, X} {Y2} swap"),
        ((5, 4096), "{X1} {Y, X2} swap"),
        ((64, 64), "{Y} {X}"),
        ((12, 16, 20), "{Z, X} {Y}"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_inside_a_blocks_own_memory(shape, notation, seed):
    x = values(*shape)
    nbytes = x.nbytes // 4
    job, _ = job_of(x, "fftn")
    job = replace(job, inside=True)
    simulated = engine(nbytes, seed)
    block = np.array(x).reshape(job.round.source.shape(job.block))
    spectrum = simulated.run(job, Source(lambda: block, again=False))
    assert np.shares_memory(spectrum, block)
    assert distance(spectrum.reshape(shape), scipys(x, "fftn")) < 1e-15
    assert simulated.device.peak <= nbytes
    tiles = job.tiles(simulated.limits, 1)
    assert passes_of(tiles) == notation
    assert not any(pass_.reorders for pass_ in tiles.plan.passes)


def test_a_convolution_inside_a_blocks_own_memory():
    """There, multiplied by the spectrum of a filter, and back: what was padded is zero again."""
    (step,) = axis_program(
        0,
        1021,
        (2048,),
        bluestein=True,
    ).steps
    layout = Layout((plain(2048, (2048,)),))
    round_ = Round((step,), layout, transformed(layout, (step,)))
    job = job_of_round(round_, ("<c16", "<c16"), inside=True)
    x = np.zeros(2048, complex)
    x[:1021] = values(1021)
    expected = scipys(x[:1021], "fft")
    simulated = engine(1 << 15)
    chirp = step.convolve
    spectrum = scipys(chirp_filter(np.arange(2048), 2048, chirp.length, chirp.sign, x.dtype), "fft")
    convolved = simulated.run(job, Source(lambda: x, again=False), {0: spectrum})
    assert np.shares_memory(convolved, x)
    assert distance(convolved[:1021], expected) < 1e-14
    assert not convolved[1021:].any()
    assert passes_of(simulated.tiles(job)) == "{X1} {X2} {X1}"


def test_too_small_a_device_is_refused_with_the_numbers():
    x = values(997, 1009)  # two primes: nothing splits
    job, _ = job_of(x, "fft2")
    with pytest.raises(DeviceMemoryError, match=r"997 x 1009 .* 8.00 kiB"):
        job.tiles(TileLimits(8192))


@pytest.mark.parametrize(("multiplied", "tiles"), [(False, 4), (True, 2)])
def test_a_product_with_a_function_has_fewer_tiles(multiplied, tiles):
    """The function is evaluated by Python code once for each tile."""
    line = Line(1, 32768, multiplied=multiplied)
    request = TileRequest((1024, 32768), (line,), 8, blocks=16)
    tile_plan = find_tile_plan(request, TileLimits(2 << 30), 1)
    assert [tile_pass.tiles for tile_pass in tile_plan.passes] == [tiles]
