"""Filters, padding and convolutions by the names of dimensions, on fields of any chunking."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from records import CASES, DTYPES, records, require_close
from responses import NAMES, SHAPES, filtered

import dask_bigfft.xarray  # noqa: F401
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


@st.composite
def fields(draw, ndim=None):
    """Return a field in memory or lazy, and some of its dimensions with their steps.

    Coordinates ascend or descend.
    """
    x, chunks, _ = draw(records(most=3))
    names = ("z", "y", "x")[: x.ndim]
    coords = {}
    steps = {}
    for name, n in zip(names, x.shape, strict=True):
        step = draw(st.sampled_from([0.5, -0.75, 1.0]))
        coords[name] = 5 + step * np.arange(n)
        steps[name] = step
    values = da.from_array(x, chunks) if draw(st.booleans()) else x
    field = xr.DataArray(values, coords, names, "T")
    dims = draw(st.permutations(names))
    dims = dims[: draw(st.integers(1, x.ndim))]
    return field, {dim: steps[dim] for dim in dims}


def in_memory(field):
    """Return the values of a field as NumPy's array."""
    return np.asarray(field.data)


@pytest.mark.parametrize("name", NAMES)
@CASES
@given(
    case=fields(),
    shape=SHAPES,
    by=st.sampled_from(["frequency", "wavelength"]),
)
def test_filters_multiply_the_spectrum(
    name,
    case,
    shape,
    by,
):
    field, steps = case
    limits = [0.131, 0.433]
    ends = limits if by == "frequency" else [1 / limit for limit in limits]
    cutoff = {"band": ends} if name.startswith("band") else {"cutoff": ends[0]}
    result = getattr(field.bigfft, name)(
        list(steps),
        by=by,
        **cutoff,
        **shape,
    )
    expected = filtered(
        in_memory(field),
        name,
        limits,
        [abs(step) for step in steps.values()],
        field.get_axis_num(list(steps)),
        **shape,
    )
    assert (result.chunks is None) == (field.chunks is None)
    require_close(
        result,
        expected,
        field.dtype,
    )
    xr.testing.assert_identical(
        result.coords.to_dataset(),
        field.coords.to_dataset(),
    )


MODES = ["constant", "edge", "linear_ramp", "reflect", "symmetric", "wrap"]


@CASES
@given(
    data=st.data(),
    ndim=st.integers(1, 2),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(DTYPES),
)
def test_padding_is_that_of_numpy_and_goes_back(
    data,
    ndim,
    mode,
    dtype,
):
    lengths = st.sampled_from([1, 2, 3, 7, 12])
    x = random_array([data.draw(lengths) for _ in range(ndim)], dtype, 4)
    names = ("y", "x")[:ndim]
    step = data.draw(st.sampled_from([0.5, -0.75]))
    coords = {}
    for dim, n in zip(names, x.shape, strict=True):
        coords[dim] = 5 + step * np.arange(n)
    chunks = data.draw(chunkings(x.shape))
    values = da.from_array(x, chunks) if data.draw(st.booleans()) else x
    field = xr.DataArray(values, coords, names)
    dims = data.draw(st.permutations(names))
    dims = dims[: data.draw(st.integers(1, ndim))]
    counts = st.integers(0, 15)
    widths = {dim: data.draw(st.tuples(counts, counts)) for dim in dims}
    keywords = {}
    if mode == "constant":
        keywords["constant_values"] = data.draw(st.sampled_from([0, 3]))
    padded = field.bigfft.pad(
        dims,
        width=widths,
        mode=mode,
        **keywords,
    )
    expected = np.pad(
        x,
        [widths.get(dim, (0, 0)) for dim in names],
        mode,
        **keywords,
    )
    assert padded.dtype == expected.dtype
    assert (padded.chunks is None) == (field.chunks is None)
    np.testing.assert_allclose(
        padded.compute(),
        expected,
        rtol=0,
        atol=1e-6 if mode == "linear_ramp" else 0,
    )
    for dim, (before, _) in widths.items():
        if field.sizes[dim] > 1:
            assert padded[dim].values[0] == 5 - before * step
    source = field.compute()
    restored = padded.bigfft.unpad()
    xr.testing.assert_identical(restored.compute(), source)
    by_width = padded.bigfft.unpad(dims, width=widths)
    xr.testing.assert_equal(by_width.compute(), source)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [(0, 1), (1, 0), (2, 0, 1), (1, 2, 0)])
def test_arrays_of_empty_chunks_are_padded(chunks, mode):
    x = random_array((sum(chunks), 2), "f8", 4)
    a = xr.DataArray(da.from_array(x, (chunks, (1, 0, 1))), dims=("y", "x"))
    widths = {"y": (0, 8), "x": (1, 13)}
    padded = a.bigfft.pad(["y", "x"], width=widths, mode=mode)
    expected = np.pad(x, list(widths.values()), mode)
    np.testing.assert_allclose(padded.compute(), expected, atol=1e-14)


@CASES
@given(data=st.data(), case=fields())
def test_convolutions_are_those_of_scipy(data, case):
    field, steps = case
    sizes = [data.draw(st.integers(1, 6)) for _ in steps]
    sizes = [min(size, field.sizes[dim]) for size, dim in zip(sizes, steps, strict=True)]
    kernel = xr.DataArray(random_array(sizes, "f8", 3), dims=list(steps))
    method = data.draw(st.sampled_from(["auto", "fft"]))
    result = field.bigfft.convolve(
        list(steps),
        kernel=kernel,
        method=method,
    )
    own_kernel = kernel.expand_dims([dim for dim in field.dims if dim not in steps])
    values = in_memory(field)
    expected = scipy.signal.convolve(
        values.astype("c16" if values.dtype.kind == "c" else "f8"),
        own_kernel.transpose(*field.dims).values,
        "same",
    )
    assert (result.chunks is None) == (field.chunks is None)
    require_close(
        result,
        expected,
        field.dtype,
    )
