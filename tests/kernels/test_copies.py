"""The copy table does what NumPy's indexing does, whatever the strides and types."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.copying import Copies, copied_by

from dask_bigfft.kernels import copies as copies_room

#: Longest dimension of a copy of three: more than what is transposed at a time.
LONG = 16

PAIRS = [
    ("f4", "f4"),
    ("f8", "f8"),
    ("c8", "c8"),
    ("c16", "c16"),
    ("f4", "c8"),
    ("f8", "c16"),
    ("c16", "f8"),
    ("c8", "f4"),
    ("c8", "f8"),
    ("i4", "f8"),
    ("?", "c16"),
    ("f8", "c8"),
    (">f8", "c16"),
    (">c8", "c8"),
    (">i2", "f8"),
    ("f2", "c8"),
    ("g", "G"),
    ("G", "G"),
    ("G", "g"),
]


def index_valued(shape, dtype="c16"):
    """An array of row-major indices plus one; the imaginary part shows conjugations."""
    index = np.arange(1, np.prod(shape) + 1).reshape(shape)
    dtype = np.dtype(dtype)
    return (index - 1j * index if dtype.kind == "c" else index).astype(dtype)


@pytest.fixture(params=["compiled", "numpy"], autouse=True, scope="module")
def way(request):
    """Who copies: in a process that has copied much, and in one that has not."""
    with copied_by(request.param == "compiled"):
        yield request.param


@st.composite
def views(draw, counts, order):
    """Strides, in elements, of a view of `counts`, and the size of the memory it needs."""
    strides = [0] * len(counts)
    room = 1
    for d in order:
        step = draw(st.integers(1, 3)) if draw(st.booleans()) else 1
        strides[d] = room * step
        room = strides[d] * (counts[d] - 1) + room if counts[d] else room
        room += draw(st.integers(0, 2))
    start = draw(st.integers(0, 3))
    for d, n in enumerate(counts):
        if draw(st.integers(0, 3)) == 0:
            start += strides[d] * (n - 1)
            strides[d] = -strides[d]
    low = sum(min(0, s * (n - 1)) for s, n in zip(strides, counts, strict=True))
    high = sum(max(0, s * (n - 1)) for s, n in zip(strides, counts, strict=True))
    return start, strides, start + low, start + high + 1


@st.composite
def copies(draw):
    """Counts, and start and strides on both sides."""
    ndim = draw(st.integers(0, 5))
    largest = {0: 1, 1: 80, 2: 24}.get(ndim, LONG if ndim == 3 else 4)
    counts = draw(
        st.lists(st.one_of(st.just(1), st.integers(1, largest)), min_size=ndim, max_size=ndim)
    )
    source = draw(views(counts, draw(st.permutations(range(ndim)))))
    target = draw(views(counts, draw(st.permutations(range(ndim)))))
    return counts, source, target


def strided(
    array,
    start,
    counts,
    strides,
):
    """The elements, by their flat places."""
    places = np.full((), start)
    for n, s in zip(counts, strides, strict=True):
        places = np.add.outer(places, np.arange(n) * s)
    return places


def expected_values(values, target_dtype, conjugate):
    if values.dtype.kind == "c" and np.dtype(target_dtype).kind != "c":
        return values.real.astype(target_dtype)
    return (values.conj() if conjugate else values).astype(target_dtype)


@given(copy=copies(), pair=st.sampled_from(PAIRS), conjugate=st.booleans())
def test_any_strided_copy(copy, pair, conjugate):
    counts, (s0, s_strides, s_low, s_size), (t0, t_strides, t_low, t_size) = copy
    assert s_low >= 0
    assert t_low >= 0
    source = index_valued((s_size,), pair[0])
    source.flags.writeable = False
    target = np.full(t_size, 7, pair[1])
    expected = target.copy()
    reads = strided(source, s0, counts, s_strides)
    writes = strided(target, t0, counts, t_strides)
    assert len(np.unique(writes)) == writes.size
    expected[writes] = expected_values(source[reads], pair[1], conjugate)
    copies_of_target = Copies(target)
    read = s0 * source.itemsize, [s * source.itemsize for s in s_strides]
    write = t0 * target.itemsize, [t * target.itemsize for t in t_strides]
    copies_of_target.add(
        source,
        counts,
        read,
        write,
        conjugate,
    )
    copies_of_target.run()
    np.testing.assert_array_equal(target, expected)


def test_many_copies_in_one_call():
    """Rows of different dimensions and types, of arrays nobody else holds, in one table."""
    target = np.zeros((6, 40), np.complex128)
    copies_of_target = Copies(target)
    for i in range(6):
        source = index_valued((40,), "f8" if i % 2 else "c16") * (i + 1)
        size = source.itemsize
        if i < 3:
            copies_of_target.add(
                source,
                (40,),
                (0, (size,)),
                (i * 640, (16,)),
                conjugate=True,
            )
        else:  # the same as two dimensions, backwards
            read = 39 * size, (-8 * size, -size)
            copies_of_target.add(
                source,
                (5, 8),
                read,
                (i * 640, (128, 16)),
            )
        del source
    copies_of_target.run()
    for i in range(6):
        row = index_valued((40,), "f8" if i % 2 else "c16") * (i + 1)
        np.testing.assert_array_equal(target[i], row.conj() if i < 3 else row[::-1])


def test_a_table_may_be_run_again():
    target = np.zeros(3)
    copies_of_target = Copies(target)
    copies_of_target.run()
    copies_of_target.add(
        np.arange(3.0),
        (3,),
        (0, (8,)),
        (0, (8,)),
    )
    copies_of_target.run()
    target[:] = 9
    copies_of_target.run()
    np.testing.assert_array_equal(target, np.arange(3))


@given(
    counts=st.tuples(*[st.integers(1, LONG)] * 3),
    first=st.integers(0, 5),
    low=st.integers(0, 20),
    width=st.integers(1, 12),
    dim=st.integers(0, 2),
    axes=st.permutations([0, 1, 2]),
    conjugate=st.booleans(),
)
def test_parts_of_a_copy(
    counts,
    first,
    low,
    width,
    dim,
    axes,
    conjugate,
):
    """What of a copy lies in a tile, into memory that holds no more than the tile."""
    source = index_valued([counts[a] for a in np.argsort(axes)]).transpose(axes)
    shape = list(counts)
    shape[dim] = width
    target = np.zeros(shape, complex)
    copies_of_target = Copies(target)
    read = (0, source.strides)
    write = (0, target.strides)
    copies_of_target.add(
        source,
        counts,
        read,
        write,
        conjugate,
        dim,
        first,
        target.strides[dim],
    )
    copies_of_target.run(low, low + width, low)
    whole = np.zeros([*counts[:dim], first + counts[dim] + 40, *counts[dim + 1 :]], complex)
    before = (slice(None),) * dim
    whole[(*before, slice(first, first + counts[dim]))] = source.conj() if conjugate else source
    np.testing.assert_array_equal(target, whole[(*before, slice(low, low + width))])


def test_a_target_whose_strides_are_no_multiples_of_its_items_is_filled(monkeypatch):
    monkeypatch.setattr(copies_room, "_left", [0])  # compiled copies at once
    records = np.zeros(6, [("before", "f8"), ("value", "c16")])
    source = np.arange(6.0)
    copies_room.copy_array(records["value"], source)
    np.testing.assert_array_equal(records["value"], source)
    np.testing.assert_array_equal(records["before"], 0)
