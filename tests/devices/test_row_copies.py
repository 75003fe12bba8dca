"""Many strided copies in one launch by the text of the kernel, against NumPy."""

import itertools

import numpy as np
import pytest
from devices.kernel_text import needs_compiler
from devices.test_blocks_on_a_gpu import CardArray

from dask_bigfft.gpu.row_copies import copied_by_rows
from dask_bigfft.kernels.copies import Segments, strided_view
from dask_bigfft.testing.strategies import random_array

pytestmark = [needs_compiler, pytest.mark.usefixtures("cards_of_kernels")]


def segments_of(copies, conjugate=False):
    """Copies given as counts, start and strides of the source, start and strides of the target."""
    columns = [np.array(column, np.int64) for column in zip(*copies, strict=True)]
    counts, source_starts, source_strides, target_starts, target_strides = columns
    return Segments(
        counts,
        source_starts,
        source_strides,
        target_starts,
        target_strides,
        np.zeros(len(counts), np.int64),
        conjugate,
    )


def copies_of_blocks(whole, cuts):
    """Copies of blocks of an array into the array: for each block, its values and its copies."""
    for cut in cuts:
        place = tuple(slice(low, high) for low, high in cut)
        block = np.ascontiguousarray(whole[place])
        start = sum(low * stride for (low, _), stride in zip(cut, whole.strides, strict=True))
        yield block, [(block.shape, 0, block.strides, start, whole.strides)]


def cuts_of(*bounds):
    """Blocks of a grid, given the bounds along each axis."""
    cuts = [()]
    for axis in bounds:
        pairs = list(itertools.pairwise(axis))
        cuts = [(*cut, pair) for cut in cuts for pair in pairs]
    return cuts


#: Bounds of blocks along each axis: cubes, slabs, odd lengths, one axis, five axes.
GRIDS = [
    ((0, 8, 16), (0, 5, 9), (0, 64, 128)),
    ((0, 3, 7, 16), (0, 9), (0, 33)),
    ((0, 1, 6), (0, 17, 90, 131)),
    ((0, 1000, 1777),),
    ((0, 1, 3), (0, 2, 3), (0, 2, 3), (0, 2, 3), (0, 40, 60)),
]


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "c8", "c16"])
@pytest.mark.parametrize("bounds", GRIDS)
def test_blocks_of_an_array(bounds, dtype):
    shape = tuple(axis[-1] for axis in bounds)
    whole = (100 * random_array(shape, "f8", 1)).astype(dtype)
    target = CardArray.of(np.zeros_like(whole))
    copies = []
    least_row = min(high - low for low, high in itertools.pairwise(bounds[-1]))
    for block, block_copies in copies_of_blocks(whole, cuts_of(*bounds)):
        copies.append((CardArray.of(block), target, segments_of(block_copies)))
    if copied_by_rows(copies):
        np.testing.assert_array_equal(target._values, whole)
    else:
        assert least_row * whole.itemsize < 64
        assert not target._values.any()


def test_strides_of_both_signs_and_several_copies_of_a_source():
    source = random_array((6, 5, 4, 32), "f4", 2)
    target = np.zeros((5, 6, 4, 40), "f4")
    s0, s1, s2, s3 = source.strides
    t0, t1, t2, t3 = target.strides
    copies = [
        ((3, 5, 4, 32), 5 * s0, (-s0, s1, s2, s3), 0, (t1, t0, t2, t3)),
        ((3, 5, 4, 32), 0, (s0, s1, s2, s3), 3 * t1 + 8 * t3, (t1, t0, t2, t3)),
    ]
    out = CardArray.of(target)
    assert copied_by_rows([(CardArray.of(source), out, segments_of(copies))])
    for counts, start, strides, place, steps in copies:
        values = strided_view(source, start, counts, strides)
        strided_view(target, place, counts, steps)[...] = values
    np.testing.assert_array_equal(out._values, target)


def test_copies_that_convert_are_left():
    source = CardArray.of(random_array((4, 64), "c8", 3))
    rows = [((4, 64), 0, source.strides, 0, source.strides)]
    target = CardArray.of(np.zeros((4, 64), "c8"))
    assert not copied_by_rows([(source, target, segments_of(rows, conjugate=True))])
    assert not copied_by_rows([(source, CardArray.of(np.zeros((4, 64), "c16")), segments_of(rows))])
    assert not target._values.any()


def test_no_copies():
    assert copied_by_rows([])
