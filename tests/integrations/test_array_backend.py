"""The array backend: what it makes, where it lies, and that it is plain NumPy."""

import tomllib

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.backends import array_creation_dispatch
from support import ROOT

from dask_bigfft import fft
from dask_bigfft.errors import ArgumentTypeError
from dask_bigfft.integrations.array_backend import ArenaBackend
from dask_bigfft.memory.arena import is_allocated

# 600 KiB a block: the arena lends it
SHAPE = (600, 512)
CHUNKS = (300, 256)


@pytest.fixture(autouse=True)
def backend():
    """The backend as the entry point gives it, also where the package is not installed."""
    array_creation_dispatch.register_backend("bigfft", ArenaBackend())
    with dask.config.set(scheduler="sync"):
        yield


def blocks(a):
    return list(dask.compute(*a.to_delayed().ravel(), optimize_graph=False))


def test_blocks_move_into_the_arena_once():
    x = np.random.default_rng(0).standard_normal(SHAPE)
    a = da.from_array(x, chunks=CHUNKS)
    assert not any(map(is_allocated, blocks(a)))
    in_arena = a.to_backend("bigfft")
    assert (in_arena.chunks, in_arena.dtype) == (a.chunks, a.dtype)
    arena_blocks = blocks(in_arena)
    assert all(type(block) is np.ndarray and is_allocated(block) for block in arena_blocks)
    np.testing.assert_array_equal(in_arena.compute(), x)
    joined = da.concatenate(
        [da.from_delayed(dask.delayed(b), b.shape, b.dtype) for b in arena_blocks]
    )
    again = blocks(joined.to_backend("bigfft"))
    assert all(np.shares_memory(a, b) for a, b in zip(arena_blocks, again, strict=True))
    np.testing.assert_allclose(fft.fft2(in_arena).compute(), np.fft.fft2(x), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "arguments", "keywords"),
    [
        ("ones", (SHAPE,), {}),
        ("ones", (SHAPE, "c16"), {}),
        ("zeros", (SHAPE,), {"dtype": "i8"}),
        ("full", (SHAPE, 2.5), {}),
        ("full", (SHAPE, np.float64(3)), {"dtype": complex}),
        ("full", (SHAPE,), {"fill_value": 7}),
    ],
)
def test_creation_functions_make_blocks_there(name, arguments, keywords):
    wanted = getattr(da, name)(*arguments, chunks=CHUNKS, **keywords)
    with dask.config.set({"array.backend": "bigfft"}):
        created = getattr(da, name)(*arguments, chunks=CHUNKS, **keywords)
    assert (created.chunks, created.dtype, created.shape) == (
        wanted.chunks,
        wanted.dtype,
        wanted.shape,
    )
    for block in blocks(created):
        assert is_allocated(block)
        assert block.flags.writeable
        assert type(block) is np.ndarray
    np.testing.assert_array_equal(created.compute(), wanted.compute())


def test_empty_and_arange():
    with dask.config.set({"array.backend": "bigfft"}):
        empty = da.empty(
            SHAPE,
            chunks=CHUNKS,
            dtype="f4",
            name="mine",
        )
        numbers = da.arange(3, 300_003, 1, chunks=100_000)
        drawn = da.random.default_rng(0).standard_normal((4, 4))
    assert empty.name == "mine"
    assert empty.dtype == np.float32
    assert [block.shape for block in blocks(empty)] == [CHUNKS] * 4
    assert all(map(is_allocated, blocks(numbers)))
    np.testing.assert_array_equal(numbers.compute(), np.arange(3, 300_003))
    assert drawn.compute().shape == (4, 4)


def test_what_has_a_mask_is_refused():
    with pytest.raises(ArgumentTypeError, match="MaskedArray"):
        da.ma.masked_greater(da.ones(4), 2).to_backend("bigfft")


def test_the_entry_point_is_announced():
    text = (ROOT / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]["dask.array.backends"]
    assert points == {"bigfft": f"{ArenaBackend.__module__}:{ArenaBackend.__name__}"}
