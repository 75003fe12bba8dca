"""The front door answers as `numpy.fft` and `scipy.fft` do: arguments, dtypes, values, warnings."""

import inspect
import pydoc

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from support import python

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import ArgumentError
from dask_bigfft.testing.strategies import random_array

ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
NUMPY_TWO = ["fft2", "ifft2", "rfft2", "irfft2"]
NUMPY_MANY = ["fftn", "ifftn", "rfftn", "irfftn"]
SCIPY_MANY = ["hfft2", "ihfft2", "hfftn", "ihfftn"]
TRANSFORMS = ONE + NUMPY_TWO + NUMPY_MANY + SCIPY_MANY
REAL_IN = {"rfft", "rfft2", "rfftn", "ihfft", "ihfft2", "ihfftn"}
NORMS = [None, "backward", "ortho", "forward"]
EXTRAS = [
    "order",
    "chunks",
    "memory_limit",
    "rounds",
    "digits",
    "band",
    "band_index",
    "variant",
    "kernel",
]
EXTRAS += ["device", "device_memory_limit", "overwrite_x", "verify", "planner"]
DTYPES = ["?", "i1", "u2", "i8", "f2", "f4", "f8", "g", "F", "D", "G"]
DTYPES += [">f4", ">f8", ">c8", ">c16", ">i4", ">f2"]


def peer(name):
    """Return the function that ours is compared with."""
    return getattr(np.fft, name, None) or getattr(scipy.fft, name)


def numbers(shape, dtype="D"):
    return random_array(shape, dtype, 0)


def assert_same(actual, expected, eps=None):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    eps = np.finfo(expected.dtype).eps if eps is None else eps
    assert np.linalg.norm(actual - expected) <= 8 * eps * np.linalg.norm(expected)


# --- signatures and help ----------------------------------------------------------------------


@pytest.mark.parametrize("name", TRANSFORMS)
def test_signatures_are_numpys_and_the_extras(name):
    parameters = list(inspect.signature(getattr(fft, name)).parameters.values())
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    like = name[-4:] if name in SCIPY_MANY else name  # as numpy.fft would have them
    expected = inspect.signature(getattr(np.fft, like)).parameters.values()
    assert positional == [(p.name, p.default) for p in expected]
    extras = [(p.name, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert extras == [(name, None) for name in EXTRAS]
    assert len(parameters) == len(positional) + len(extras)


def test_every_name_of_numpy_and_scipy_is_there():
    cosines = {i + name + n for i in ("", "i") for name in ("dct", "dst") for n in ("", "n")}
    ours = {"next_fast_len", "frequencies_of"}
    assert set(fft.__all__) == set(np.fft.__all__) | set(SCIPY_MANY) | cosines | ours


@pytest.mark.parametrize("name", TRANSFORMS)
def test_help_shows_everything(name):
    text = pydoc.plain(pydoc.render_doc(getattr(fft, name)))
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert f"    {section}\n    {'-' * len(section)}\n" in text
    for parameter in inspect.signature(getattr(fft, name)).parameters:
        assert f"\n    {parameter} : " in text


def test_nothing_needs_docstrings_or_asserts():
    code = """if True:
        import dask.array as da, numpy as np, dask_bigfft
        assert False, "asserts are left out"
        x = np.arange(240.0).reshape(12, 20)
        y = dask_bigfft.fft.fftn(da.from_array(x, chunks=(4, 5))).compute()
        print(dask_bigfft.fft.fftn.__doc__, np.allclose(y, np.fft.fftn(x), rtol=1e-12))
    """
    process = python(
        "-OO",
        "-W",
        "error",
        "-c",
        code,
    )
    assert (process.stdout, process.stderr) == ("None True\n", "")


def test_settings_are_the_defaults_of_the_extras():
    x = da.from_array(numbers(64), chunks=16)
    with dask.config.set({"bigfft.rounds": [4, 16], "bigfft.order": "transposed"}):
        plan = dask_bigfft.plan(x, "fft", digits=(4, 16))
        assert plan.programs[0].factors == (4, 16)
        with pytest.raises(ArgumentError, match="`rounds`"):  # other digits than documented
            dask_bigfft.plan(x, "fft")
        assert plan.spec.orders_out == ("transposed",)
        assert dask_bigfft.plan(x, "fft", rounds=[{0: 8}, {0: -1}]).programs[0].factors == (8, 8)
        assert dask_bigfft.plan(x, "fft", order="natural").spec.orders_out == ("natural",)
    with dask.config.set({"bigfft.chunks": 32, "bigfft.variant": "dif"}):
        assert fft.fft(x).chunks == ((32, 32),)
        assert dask_bigfft.plan(x, "fft").variant == "dif"


# --- lengths, norms, warnings -----------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ONE)
def test_one_axis(name, norm):
    x = numbers((12, 10), "d" if name in REAL_IN else "D")
    a = da.from_array(x, chunks=(5, 4))
    for n, axis in [(None, 0), (5, -1), (12, 0), (17, -1)]:
        expected = peer(name)(x, n, axis, norm)
        assert_same(getattr(fft, name)(a, n, axis, norm).compute(), expected)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NUMPY_TWO + NUMPY_MANY + SCIPY_MANY)
def test_several_axes(name, norm):
    x = numbers((6, 8, 10), "d" if name in REAL_IN else "D")
    a = da.from_array(x, chunks=(3, 3, 4))
    ours = getattr(fft, name)
    theirs = peer(name)
    assert_same(ours(a, norm=norm).compute(), theirs(x, norm=norm))
    for s, axes in [(None, (0, 2)), ((5, 12), (2, 0)), ((7, 7), (-3, -1)), ((9,), (1,))]:
        expected = theirs(x, s=s, axes=axes, norm=norm)
        assert_same(ours(a, s=s, axes=axes, norm=norm).compute(), expected)


@pytest.mark.parametrize(
    ("s", "axes"),
    [
        ((5, 7), None),
        ((None, 6), (0, 1)),
    ],
)
@pytest.mark.parametrize("name", NUMPY_TWO + NUMPY_MANY)
def test_s_without_axes_or_with_none_warns_as_numpy_does(name, s, axes):
    x = numbers((4, 6, 8), "d" if name in REAL_IN else "D")
    a = da.from_array(x, chunks=(2, 3, 4))
    with pytest.warns(DeprecationWarning, match="`None`"):
        expected = peer(name)(x, s=s, axes=axes)
    with pytest.warns(DeprecationWarning, match="`None`") as caught:
        actual = getattr(fft, name)(a, s=s, axes=axes)
    assert [w.filename for w in caught] == [__file__]
    assert_same(actual.compute(), expected)
    if name in NUMPY_MANY and axes is None:
        with pytest.warns(DeprecationWarning, match="`None`"):
            plan = dask_bigfft.plan(a, name, s=s)
        assert plan.spec.axes == (1, 2)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "fftn", "ifftn"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i4"])
def test_no_axes_give_the_array_itself(name, dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    expected = getattr(np.fft, name)(x, axes=())
    transformed = getattr(fft, name)(
        da.from_array(x, chunks=2),
        s=(),
        axes=[],
        norm="ortho",
    )
    assert transformed.dtype == expected.dtype == x.dtype
    np.testing.assert_array_equal(transformed.compute(), expected)


def test_axes_none_means_all_axes_also_for_two():
    x = numbers((4, 6, 8))
    a = da.from_array(x, chunks=3)
    assert_same(fft.fft2(a, axes=None).compute(), np.fft.fft2(x, axes=None))
    assert dask_bigfft.plan(a, "fft2").spec.axes == (1, 2)  # where no axes are named


# --- dtypes and what arrays are ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*ONE, "fftn", "irfft2", "rfftn", "hfftn"])
def test_dtypes(name, dtype):
    if name in REAL_IN and np.dtype(dtype).kind == "c":
        pytest.skip("real input")
    x = numbers((6, 8), dtype)
    expected = peer(name)(x.astype(x.dtype.newbyteorder("=")))
    result = getattr(fft, name)(da.from_array(x, chunks=(3, 4)))
    assert result.dtype == expected.dtype
    assert result.dtype.isnative
    # NumPy scales half precision by a half precision 1/n.
    half = np.finfo(np.float16).eps if dtype in ("f2", ">f2") else None
    assert_same(result.compute(), expected, half)


#: Shapes that have no entries or one along some axis, chunks, and where they are transformed.
THIN = [
    ((0, 8), 4, {"axis": -1}),
    ((8, 0, 4), (4, 4, 2), {"axis": -1}),
    ((22, 0, 37), (7, 1, 5), {"axis": 0}),
    ((1,), 1, {}),
    ((3, 1), 1, {}),
    ((1, 3), 1, {}),
    ((1, 1), 1, {}),
    ((4, 6), (2, 3), {"n": 1}),
    ((0, 4), 4, {"n": 3, "axis": 0}),
    ((3, 0), 3, {"n": 5, "axis": 1}),
]


@pytest.mark.parametrize("name", [*ONE, "fftn", "rfftn", "irfftn"])
@pytest.mark.parametrize(("shape", "chunks", "where"), THIN)
def test_axes_of_no_entries_or_one(
    name,
    shape,
    chunks,
    where,
):
    x = numbers(shape, "d" if name in REAL_IN else "D")
    if name.endswith("n"):
        renamed = {"n": "s", "axis": "axes"}
        where = {renamed[key]: (value,) for key, value in {"axis": -1, **where}.items()}
    ours = getattr(fft, name)
    a = da.from_array(x, chunks=chunks)
    try:
        expected = peer(name)(x, **where)
    except ValueError:
        with pytest.raises(ArgumentError):
            ours(a, **where)
        return
    if not x.size:  # NumPy may return memory that it has not written
        expected = np.zeros_like(expected)
    assert ours(a, **where).shape == expected.shape
    assert_same(ours(a, **where).compute(), expected)


@pytest.mark.parametrize(
    "x",
    [
        numbers((6, 8)),
        [1, 2, 3],
        ((1.0, 2.0), (3.0, 4.0)),
        range(5),
    ],
)
def test_array_likes_become_dask_arrays(x):
    result = fft.fft(x)
    assert isinstance(result, da.Array)
    assert_same(result.compute(), np.fft.fft(x))


# --- blocks -----------------------------------------------------------------------------------


BLOCKS = {
    "Fortran": np.asfortranarray,
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("layout", BLOCKS)
@pytest.mark.parametrize("name", ["fft", "fft2", "rfft2", "irfft", "ihfft", "ifftn"])
def test_blocks_of_any_memory(name, layout):
    x = numbers((12, 10), "d" if name in REAL_IN else "D")
    blocks = [[BLOCKS[layout](x[i : i + 4, j : j + 5]) for j in (0, 5)] for i in (0, 4, 8)]
    a = da.block([[da.from_array(b, name=False) for b in row] for row in blocks])
    for array in (a, a.rechunk((4, -1)), a.rechunk(-1)):
        assert_same(getattr(fft, name)(array).compute(), peer(name)(np.block(blocks)))


def test_numpy_arrays_are_not_hashed_and_named_anew(monkeypatch):
    hashed = []

    def record(buffer, *args, **kwargs):
        hashed.append(memoryview(buffer).nbytes)
        return "0" * 32

    x = numbers(4096)
    with monkeypatch.context() as patch:
        patch.setattr("dask.tokenize.hash_buffer_hex", record)
        da.from_array(x)
        assert max(hashed) >= x.nbytes, "the test does not see what is hashed"
        hashed.clear()
        first = fft.fft(x)
        second = fft.fft(x)
        assert max(hashed, default=0) < 4096
    assert first.name != second.name  # x may have changed in between
    x[:] = 1
    assert fft.fft(x).compute()[0] == 4096
