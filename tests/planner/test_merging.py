"""Very many tiny blocks: few shards and tasks, the documented chunks, and NumPy's numbers."""

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft import fft, signal
from dask_bigfft.planner.merging import MANY
from dask_bigfft.planner.plan import Plan

RNG = np.random.default_rng(5)
NEVER = {"bigfft.planner.min-chunk": 0}


#: kind, shape, chunks, options -> blocks after merging, shards of all exchanges at most
TINY = {
    "1D, all in one": ("fft", (2**15,), (128,), {}, 1, 0),
    "1D": ("fft", (2**20,), (128,), {}, 16, 3 * 16**2),
    "2D tiles": ("fft2", (1088, 1088), (4, 32), {}, 19, 19**2),
    "2D real": ("rfft2", (2048, 2048), (16, 16), {}, 32, 32**2),
    "3D": ("fftn", (96, 96, 96), (4, 4, 32), {}, 24, 24**2),
    "one of three axes": ("fft", (40, 64, 2**11), (1, 16, 64), {"axis": 2}, 160, 0),
    "preserved": ("fft2", (1024, 1024), (8, 16), {"chunks": "preserve"}, 16, 16**2),
    "transposed": ("fft", (2**20,), (100,), {"order": "transposed"}, 17, 2 * 17**2),
}


@pytest.mark.parametrize("case", TINY)
def test_few_shards(case: str) -> None:
    kind, shape, chunks, options, blocks, most = TINY[case]
    x = da.zeros(shape, chunks=chunks, dtype="f8" if kind.startswith("r") else "c16")
    plan = dask_bigfft.plan(x, kind, **options)
    assert plan.source.blocks == blocks
    assert sum(exchange.shape.shards for exchange in plan.travelling) <= most
    assert plan.incoming == x.chunks
    assert "neighbours become one" in plan.explain(details=True)
    if len(shape) < 3:  # many candidates among very many blocks take their time
        with dask.config.set(NEVER):
            assert dask_bigfft.plan(x, kind, **options).expected.seconds > plan.expected.seconds
    assert Plan.from_json(plan.to_json()) == plan


def smoothing(*cycles: np.ndarray) -> np.ndarray:
    return np.exp(-sum(f**2 for f in cycles))


@pytest.mark.parametrize(
    ("shape", "chunks", "options"),
    [
        ((64, 64, 64), 8, {}),
        ((64, 64, 64), 8, {"chunks": "preserve"}),
        ((48, 40, 64), (6, 5, 8), {}),
        ((53, 37, 41), (7, 4, 5), {}),
        ((2**16,), 2**7, {}),
    ],
)
def test_filters_of_many_blocks(
    shape: tuple[int, ...],
    chunks: object,
    options: dict,
) -> None:
    """They may have fewer blocks between rounds, and have about as many chunks as the input."""
    values = RNG.standard_normal(shape)
    x = da.from_array(values, chunks=chunks)
    spectrum = np.fft.rfftn(values)
    frequencies = [np.fft.fftfreq(n) for n in shape[:-1]]
    frequencies.append(np.fft.rfftfreq(shape[-1]))
    factor = smoothing(*np.meshgrid(*frequencies, indexing="ij"))
    expected = np.fft.irfftn(spectrum * factor, s=shape, axes=range(len(shape)))
    with dask.config.set({**NEVER, "bigfft.planner.small": 0}):
        plan = dask_bigfft.plan(x, "fourier_filter", transfer=smoothing, **options)
        result = signal.fourier_filter(x, smoothing, **options)
        assert Plan.from_json(plan.to_json()) == plan
        assert result.chunks == plan.chunks
        assert result.npartitions >= x.npartitions / 3
        if options.get("chunks"):
            assert result.chunks == x.chunks
        np.testing.assert_allclose(result.compute(scheduler="threads"), expected, atol=1e-12)
        part = tuple(slice(n // 3, n // 2) for n in shape)
        np.testing.assert_allclose(result[part].compute(), expected[part], atol=1e-12)


def test_a_transform_of_many_blocks_has_larger_ones_between_rounds() -> None:
    x = da.zeros((512, 512, 512), chunks=64, dtype="f4")
    plan = dask_bigfft.plan(x, "rfftn")
    assert plan.notation == "{Y, X} {Z}"
    assert max(round_.source.blocks for round_ in plan.rounds) <= 64
    assert plan.chunks == ((64,) * 8, (8,) * 64, (257,))


def test_a_filter_of_many_blocks_has_larger_ones_between_rounds() -> None:
    x = da.zeros((512, 512, 512), chunks=64, dtype="f4")
    plan = dask_bigfft.plan(x, "fourier_filter", transfer=smoothing)
    assert max(round_.source.blocks for round_ in plan.rounds) <= 64
    assert plan.chunks_in == x.chunks
    assert len(plan.chunks[0]) * len(plan.chunks[1]) * len(plan.chunks[2]) == 512
    limited = dask_bigfft.plan(x, "fourier_filter", transfer=smoothing, memory_limit="1.2 GiB")
    assert limited.expected.peak_host <= 1.2 * 2**30


@pytest.mark.parametrize("shape", [(600, 3), (1, 600, 1), (1009,), (30, 20), (5, 700)])
def test_blocks_of_one_value(shape: tuple[int, ...]) -> None:
    values = RNG.standard_normal(shape)
    x = da.from_array(values, chunks=1)
    with dask.config.set({**NEVER, "bigfft.planner.small": 0}):
        result = fft.fftn(x)
    np.testing.assert_allclose(result.compute(), np.fft.fftn(values), atol=1e-11)


def test_documented_chunks() -> None:
    x = da.zeros((1024, 1024), chunks=(8, 16), dtype="c16")
    assert fft.fft2(x, chunks="preserve").chunks == x.chunks
    assert fft.fft2(x, chunks=(512, 1024)).chunks == ((512, 512), (1024,))
    batch = da.zeros((300, 8, 64), chunks=(1, 1, 16), dtype="c16")
    assert fft.fft2(batch).chunks == ((1,) * 300, (8,), (64,))


@pytest.mark.parametrize(
    ("shape", "chunks", "options"),
    [
        ((2**26,), 2**22, {}),  # large
        ((64 * MANY,), 64, {}),  # few
        ((300, 64), (1, 64), {"axis": 1}),  # nothing travels
        ((2**14,), 64, {"rounds": [128, 128]}),  # by hand
        ((2**14,), 64, {"variant": "pease"}),
        ((2**20,), 2**10, {"memory_limit": "36 MiB"}),  # room for the array before and after only
    ],
)
def test_blocks_that_stay_as_they_are(shape: tuple, chunks: object, options: dict) -> None:
    x = da.zeros(shape, chunks=chunks, dtype="c16")
    plan = dask_bigfft.plan(x, "fft", **options)
    with dask.config.set(NEVER):
        unmerged = dask_bigfft.plan(x, "fft", **options)
    assert replace(plan, reason="") == replace(unmerged, reason="")
    assert plan.incoming is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": "preserve"},
        {"order": "transposed"},
    ],
)
def test_irregular_chunks(options: dict) -> None:
    a = RNG.standard_normal((60, 91, 24)) + 1j * RNG.standard_normal((60, 91, 24))
    chunks = ((1, 7, 2) * 6, (5, 0, 1, 20, 3) * 3 + (4,), (23, 1))
    x = da.from_array(a, chunks=chunks)
    y = fft.fft2(x, axes=(0, 1), **options)
    assert y.npartitions < MANY or options.get("chunks") == "preserve"
    wanted = np.fft.fft2(a, axes=(0, 1))
    if "order" in options:
        for axis in (0, 1):
            wanted = np.take(wanted, dask_bigfft.transposed_index(a.shape[axis]), axis)
    assert np.linalg.norm(y.compute() - wanted) <= 1e-14 * np.linalg.norm(wanted)
    back = fft.ifft2(y, axes=(0, 1), order=options.get("order"))
    assert np.linalg.norm(back.compute() - a) <= 1e-14 * np.linalg.norm(a)


def test_shifted_and_real() -> None:
    a = RNG.standard_normal((90, 96))
    x = da.from_array(a, chunks=(5, 4))
    spectrum = fft.fftshift(fft.rfft2(fft.ifftshift(x)), axes=0).compute()
    wanted = np.fft.fftshift(np.fft.rfft2(np.fft.ifftshift(a)), axes=0)
    assert np.linalg.norm(spectrum - wanted) <= 1e-14 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("kind", "n", "most"),
    [
        ("fft", 2**20, 16),
        ("rfft", 2**20, 16),
        ("fft", 2**24, 260),
        ("fft", 2**33, 1024),
    ],
)
def test_padding_makes_no_tiny_blocks(kind: str, n: int, most: int) -> None:
    """A short filter in a few chunks, as long as the signal that it is for."""
    x = da.zeros(1000, chunks=100, dtype="f8" if kind.startswith("r") else "c16")
    plan = dask_bigfft.plan(
        x,
        kind,
        n=n,
        memory_limit="20 GiB",
    )
    assert max(round_.target.blocks for round_ in plan.rounds) <= most
    if n <= 2**20:
        with dask.config.set(NEVER):
            preserved = dask_bigfft.plan(x, kind, n=n)
        assert preserved.rounds[0].target.blocks > 100 * most
        assert preserved.expected.seconds > plan.expected.seconds


@pytest.mark.parametrize("kind", ["fft", "rfft", "irfft"])
def test_padded_much_and_right(kind: str) -> None:
    x = RNG.standard_normal(1000)
    spectrum = getattr(fft, kind)(da.from_array(x, chunks=90), n=2**18)
    assert spectrum.npartitions <= 16
    np.testing.assert_allclose(spectrum, getattr(np.fft, kind)(x, n=2**18), atol=1e-12)
