"""Results that are cut from larger blocks: right, and few of them the last thing that is done."""

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import get_deps
from support import close

from dask_bigfft import fft
from dask_bigfft.graph import cutting

RNG = np.random.default_rng(3)
LENGTH = 2**15
CHUNK = 32
VALUES = RNG.standard_normal(LENGTH) + 1j * RNG.standard_normal(LENGTH)


@pytest.fixture
def spectrum() -> da.Array:
    """1,024 blocks, which come from a few."""
    return fft.fft(da.from_array(VALUES, chunks=CHUNK), chunks=CHUNK)


def ends(y: da.Array) -> int:
    """Blocks that nothing comes after in the graph that dask puts in order."""
    (optimized,) = dask.optimize(y)
    _, dependents = get_deps(dict(optimized.__dask_graph__()))
    return sum(not after for after in dependents.values())


def test_kept_sliced_and_computed(spectrum: da.Array) -> None:
    wanted = np.fft.fft(VALUES)
    assert spectrum.chunks == ((CHUNK,) * (LENGTH // CHUNK),)
    assert ends(spectrum) <= 16  # few blocks are last
    assert close(spectrum.compute(scheduler="sync"), wanted)
    persisted = spectrum.persist(scheduler="threads")
    assert persisted.chunks == spectrum.chunks
    assert close(persisted.compute(scheduler="sync"), wanted)
    assert close(spectrum[100:5000:7].compute(scheduler="threads"), wanted[100:5000:7])
    for block in (0, 500, LENGTH // CHUNK - 1):  # one of them is the last of its group
        part = spectrum.blocks[block].compute(scheduler="sync")
        assert close(part, wanted[block * CHUNK : (block + 1) * CHUNK])


@pytest.mark.parametrize(
    ("chunks", "ours"),
    [
        ((32, 64), True),
        (((1, 127) * 4, (256, 1, 255)), True),
        ((48, 64), False),
    ],
)
def test_blocks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, chunks: tuple[object, ...], ours: bool
) -> None:
    """Dask does those that are put together from several."""
    monkeypatch.setattr(cutting, "MANY_BLOCKS", 2)
    a = np.arange(512 * 512).reshape(512, 512)
    x = da.from_array(a, chunks=(128, 256))
    wanted = da.core.normalize_chunks(chunks, a.shape)
    cut = cutting.cut_blocks(x, wanted)
    assert cut.chunks == wanted
    assert cut.name.startswith("bigfft_cut") == ours
    assert ends(cut) == (x.npartitions if ours else cut.npartitions)
    np.testing.assert_array_equal(cut.compute(scheduler="sync"), a)
    (persisted,) = dask.persist(cut, scheduler="sync")
    plainly = x.rechunk(wanted)
    for place in np.ndindex(cut.numblocks):
        np.testing.assert_array_equal(
            persisted.blocks[place].compute(scheduler="sync"),
            plainly.blocks[place].compute(scheduler="sync"),
        )
