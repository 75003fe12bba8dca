"""A transform is a dask array like any other: optimised or not, sliced, persisted, pickled."""

import hashlib

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws.law import PLANNED, exact_transform, planned

from dask_bigfft import fft
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import cases, random_array

CARRIERS = ["auto", "shared", "tasks", "disk"]
SCHEDULERS = ["sync", "threads"]


def one_axis():
    """A split axis."""
    x = random_array((144,), "c16", 1)
    return fft.fft(da.from_array(x, chunks=24)), exact_transform("fft", x)


def convolved_axis():
    """A prime axis, by Bluestein's algorithm."""
    x = random_array((2, 101), "c16", 2)
    array = da.from_array(x, chunks=(1, 26))
    return fft.fft(array), exact_transform("fft", x, None, (1,))


def slabs():
    x = random_array((12, 8, 10), "f8", 3)
    return fft.rfftn(da.from_array(x, chunks=(3, 8, 10))), exact_transform("rfftn", x)


def real_result():
    """A split real axis beside a split complex one, irregular chunks, padded."""
    x = random_array((20, 14), "c16", 4)
    array = da.from_array(x, chunks=((3, 0, 9, 8), (5, 2, 7)))
    y = fft.irfftn(array, s=(24, 30), axes=(0, 1))
    return y, exact_transform("irfftn", x, (24, 30))


def batch():
    """No exchange at all."""
    x = random_array((9, 16), "f4", 5)
    return fft.rfft(da.from_array(x, chunks=(2, 16))), exact_transform("rfft", x, None, (1,))


BUILDERS = [one_axis, convolved_axis, slabs, real_result, batch]


@pytest.fixture(params=CARRIERS)
def carrier(request):
    return request.param


@pytest.fixture(params=["split", "whole"])
def how(request):
    return request.param


@pytest.fixture(params=BUILDERS, ids=lambda f: f.__name__)
def built(request, carrier, how):
    """A lazy result, and what it should be."""
    with planned(how), dask.config.set({"bigfft.exchange.carrier": carrier}):
        yield request.param()


def right(transformed, expected):
    eps = np.finfo(transformed.dtype).eps
    return transformed.shape == expected.shape and relative_l2(transformed, expected) < 6 * eps


@pytest.mark.pairs
def test_schedulers(built):
    """The same answer to the bit, whatever the order of the tasks and the memory they are lent."""
    y, expected = built
    first = y.compute(scheduler="sync")
    assert right(first, expected)
    for scheduler, optimize_graph in [("threads", True), ("sync", False), ("threads", False)]:
        again = y.compute(scheduler=scheduler, optimize_graph=optimize_graph)
        assert again.tobytes() == first.tobytes()


@pytest.mark.pairs
def test_persist(built):
    y, expected = built
    persisted = y.persist(scheduler="threads")
    assert persisted.chunks == y.chunks
    assert right(persisted.compute(scheduler="sync"), expected)
    assert right((persisted * 2).compute(scheduler="sync"), 2 * expected)


@pytest.mark.pairs
def test_optimized(built):
    y, expected = built
    (optimized,) = dask.optimize(y)
    assert right(optimized.compute(scheduler="sync"), expected)
    assert right(optimized.compute(scheduler="sync", optimize_graph=False), expected)
    both = dask.optimize(y, y + 1)
    spectra = dask.compute(*both, scheduler="threads")
    assert right(spectra[0], expected)
    assert right(spectra[1], expected + 1)


@pytest.mark.pairs
def test_slices(built):
    """What is not needed of a result is culled; what is left is right."""
    y, expected = built
    middle = tuple(slice(n // 3, n // 3 + 2) for n in y.shape)
    for part in [(0,) * y.ndim, middle, (..., slice(None, None, -3)), (slice(-1, None),)]:
        piece = y[part]
        values = np.asarray(piece.compute(scheduler="sync"))
        np.testing.assert_allclose(
            values.astype(complex), np.asarray(expected[part]).astype(complex), atol=1e-4
        )
    np.testing.assert_array_equal(
        np.asarray(y.blocks[(0,) * y.ndim].compute(scheduler="sync")),
        y.compute(scheduler="sync")[tuple(slice(0, c[0]) for c in y.chunks)],
    )


@pytest.mark.pairs
def test_several_results(built):
    y, expected = built
    other, theirs = one_axis()
    results = dask.compute(
        y,
        other,
        y.sum(),
        abs(y) ** 2,
        y[..., :1],
        scheduler="threads",
    )
    assert right(results[0], expected)
    assert right(results[1], theirs)
    assert relative_l2(results[3], abs(expected) ** 2) < 1e-5


@pytest.mark.pairs
def test_pickled(built):
    y, expected = built
    text = cloudpickle.dumps(y)
    assert right(cloudpickle.loads(text).compute(scheduler="sync"), expected)
    twice = cloudpickle.loads(cloudpickle.dumps(cloudpickle.loads(text)))
    assert twice.name == y.name
    assert right(twice.compute(scheduler="threads"), expected)
    (optimized,) = dask.optimize(y)
    assert right(
        cloudpickle.loads(cloudpickle.dumps(optimized)).compute(scheduler="sync"), expected
    )


def test_same_keys_for_the_same_call():
    x = da.from_array(random_array((64,), "c16", 1), chunks=8, name="x")
    first = fft.fft(x)
    second = fft.fft(x)
    assert first.name == second.name
    assert set(dict(first.__dask_graph__())) == set(dict(second.__dask_graph__()))
    others = [
        fft.ifft(x),
        fft.fft(x, norm="ortho"),
        fft.fft(x, n=63),
        fft.fft(x, order="transposed"),
        fft.fft(x, chunks=16),
        fft.fft(x, rounds=[4, 16]),
        fft.fft(x, rounds=[4, 16], variant="dif"),
        fft.fft(x + 0),
    ]
    with dask.config.set({"bigfft.exchange.carrier": "tasks"}):
        others.append(fft.fft(x))
    names = [first.name, *(y.name for y in others)]
    assert len(set(names)) == len(names)


def hashes(blocks):
    return [hashlib.sha256(np.ascontiguousarray(block)).hexdigest() for block in blocks]


@given(
    case=cases(max_axes=3),
    carrier=st.sampled_from(CARRIERS),
    how=st.sampled_from(list(PLANNED)),
)
def test_inputs_are_never_written_to(case, carrier, how):
    """Blocks that are read-only, in any memory order, are as they were, and so is the array."""
    x = case.array
    blocks = []

    def frozen(block):
        block = np.asfortranarray(block) if len(blocks) % 2 else block.copy()
        block.flags.writeable = False
        blocks.append(block)
        return block

    with planned(how), dask.config.set({"bigfft.exchange.carrier": carrier}):
        array = da.from_array(x, chunks=case.chunks).map_blocks(
            frozen, meta=np.empty((0,) * x.ndim, x.dtype)
        )
        blocks.clear()
        array = array.persist()
        before = hashes(blocks)
        first = getattr(fft, case.name)(array, **case.arguments, **case.options).compute()
        assert hashes(blocks) == before
        second = getattr(fft, case.name)(
            da.from_array(x, chunks=case.chunks), **case.arguments, **case.options
        ).compute()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("build", BUILDERS)
def test_same_answer_from_every_carrier(build, how):
    spectra = []
    for carrier in CARRIERS:
        with planned(how), dask.config.set({"bigfft.exchange.carrier": carrier}):
            spectra.append(build()[0].compute(scheduler="threads"))
    for other in spectra[1:]:
        np.testing.assert_array_equal(spectra[0], other)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_chained(carrier, scheduler):
    """Transforms of transforms, in one graph and one optimisation."""
    x = random_array((24, 30), "c16", 7)
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        array = da.from_array(x, chunks=(5, 7))
        spectrum = fft.fftn(fft.fft(array, axis=0) * 2, axes=(1, 0))
        back = fft.ifft(fft.ifftn(spectrum, axes=(0, 1)), axis=0) / 2
        real = fft.irfft(fft.rfft(array.real, axis=0), n=24, axis=0)
    computed = dask.compute(
        back,
        real,
        spectrum,
        scheduler=scheduler,
    )
    assert relative_l2(computed[0], x) < 2e-15
    assert relative_l2(computed[1], x.real) < 2e-15
