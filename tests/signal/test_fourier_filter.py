"""`signal.fourier_filter` against NumPy's transforms of the whole array."""

import dask
import dask.array as da
import numpy as np
import pytest
from support import heard

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.signal.transfer import TransferInMemory
from dask_bigfft.testing.strategies import random_array

#: Shape, chunks and axes.
LAYOUTS = [
    ((64,), 8, None),
    ((63,), (10, 50, 3), None),
    ((1,), 1, 0),
    ((97,), 13, -1),
    ((12, 30), (5, 7), None),
    ((12, 30), (12, 7), (1, 0)),
    ((12, 30), (5, 30), 0),
    ((4, 6, 10), (2, 3, 5), None),
    ((3, 16, 8), (1, 4, 8), (1, 2)),
    ((2, 2, 3, 4, 6), (1, 2, 2, 2, 3), (4, 1, 2)),
]


def smooth(*frequencies):
    """Real and even."""
    return np.exp(-sum(f**2 for f in frequencies) * 9)


def delay(*frequencies):
    """Complex and Hermitian: a shift by 1.3 samples along the first axis."""
    return np.exp(-2j * np.pi * 1.3 * frequencies[0]) * np.ones_like(frequencies[-1])


def derivative(*frequencies):
    """Imaginary and odd along the last axis, on which alone it depends."""
    return 2j * np.pi * frequencies[-1]


def constant(*frequencies):
    """One number."""
    return 0.5


def frequencies_of(shape, axes, spacing):
    """Frequencies along each axis, in shapes that broadcast."""
    arrays = []
    for axis, d in zip(axes, spacing, strict=True):
        broadcast = [1] * len(shape)
        broadcast[axis] = shape[axis]
        arrays.append(np.fft.fftfreq(shape[axis], d).reshape(broadcast))
    return arrays


def expected_of(
    x,
    function,
    axes,
    spacing,
    at_zero=None,
):
    """The product of the whole spectrum, and back."""
    values = function(*frequencies_of(x.shape, axes, spacing))
    if at_zero is not None:
        values = np.where(np.isfinite(values), values, at_zero)
    whole = np.fft.ifftn(np.fft.fftn(x, axes=axes) * values, axes=axes)
    return whole if x.dtype.kind == "c" else whole.real


#: Dtypes of inputs, of their results, and errors relative to the largest value.
DTYPES = [
    ("f8", "f8", 1e-13),
    ("c16", "c16", 1e-13),
    ("f4", "f4", 1e-5),
    ("c8", "c8", 1e-5),
    ("i2", "f8", 1e-13),
]


def require_close(result, expected, error):
    """Fail where values differ by more than an error relative to the largest value."""
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.pairs
@pytest.mark.parametrize("function", [smooth, delay, derivative, constant])
@pytest.mark.parametrize(("dtype", "out_dtype", "error"), DTYPES)
@pytest.mark.parametrize(("shape", "chunks", "axes"), LAYOUTS)
def test_a_function_multiplies_the_spectrum(
    shape,
    chunks,
    axes,
    dtype,
    out_dtype,
    error,
    function,
):
    x = random_array(shape, dtype, 3)
    along = range(len(shape)) if axes is None else np.atleast_1d(axes) % len(shape)
    spacing = [0.5 + axis for axis in range(len(along))]
    lazy = signal.fourier_filter(da.from_array(x, chunks=chunks), function, axes, spacing=spacing)
    assert lazy.shape == shape
    assert lazy.dtype == out_dtype
    result = lazy.compute()
    assert result.dtype == out_dtype
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    expected = expected_of(wide, function, along, spacing)
    require_close(result, expected, error)


@pytest.mark.parametrize("as_dask", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(("shape", "chunks", "axes"), LAYOUTS)
def test_an_array_multiplies_the_spectrum_in_natural_order(
    shape,
    chunks,
    axes,
    dtype,
    as_dask,
):
    x = random_array(shape, dtype, 4)
    along = [*range(len(shape))] if axes is None else [int(a) % len(shape) for a in np.ravel(axes)]
    lengths = [shape[axis] for axis in along]
    forward = np.fft.fftn
    inverse = np.fft.ifftn
    if dtype == "f8":
        forward = np.fft.rfftn
        inverse = np.fft.irfftn
    spectrum = forward(x, lengths, along)
    a = da.from_array(x, chunks=chunks)
    whole = random_array(spectrum.shape, "c16", 5)
    one_axis = np.arange(spectrum.shape[-1]) + 1.0
    single = whole[tuple(slice(1) for _ in shape)]
    for h in (whole, one_axis, single):
        transfer = da.from_array(h, chunks=2) if as_dask else h
        result = signal.fourier_filter(a, transfer, axes).compute()
        require_close(result, inverse(spectrum * h, lengths, along), 1e-13)


@pytest.mark.parametrize(("n", "s"), [(20, 32), (20, 7), (31, 31)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_s_pads_or_crops_the_input(n, s, dtype):
    x = random_array((3, n), dtype, 6)
    lazy = signal.fourier_filter(da.from_array(x, chunks=(1, 6)), smooth, 1, s=s)
    padded = np.zeros((3, s), dtype)
    padded[:, : min(n, s)] = x[:, :s]
    require_close(lazy.compute(), expected_of(padded, smooth, [1], [1.0]), 1e-13)


@pytest.mark.parametrize("chunks", [(4, 4), (12, 3), (3, 15), (12, 15)])
def test_at_zero_replaces_what_is_not_finite_at_frequency_0(chunks):
    x = random_array((12, 15), "f8", 7)

    def inverse_square(fy, fx):
        return 1 / (fy**2 + fx**2)

    lazy = signal.fourier_filter(da.from_array(x, chunks=chunks), inverse_square, at_zero=2.5)
    with np.errstate(divide="ignore"):
        expected = expected_of(x, inverse_square, [0, 1], [1.0, 1.0], at_zero=2.5)
    require_close(lazy.compute(), expected, 1e-13)


@pytest.mark.parametrize("chunks", [16, (5, 11), 4])
def test_a_real_array_has_a_complex_result_by_a_function_that_is_not_hermitian(chunks):
    x = random_array((16,), "f8", 8)

    def positive(f):
        return np.where(f > 0, 2.0, 0.0) + np.where(f == 0, 1.0, 0.0)

    a = da.from_array(x, chunks=chunks)
    with pytest.raises(ArgumentError, match=r"`transfer`.*real=False"):
        signal.fourier_filter(a, positive)
    lazy = signal.fourier_filter(a, positive, real=False)
    assert lazy.dtype == "c16"
    require_close(lazy.compute(), expected_of(x.astype("c16"), positive, [0], [1.0]), 1e-13)


@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
def test_carriers_and_options_give_the_same(carrier):
    x = random_array((60, 84), "f4", 9)
    a = da.from_array(x, chunks=(7, 20))
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        lazy = signal.fourier_filter(a, smooth, chunks=(60, 12), verify="checksum")
        assert lazy.chunks == ((60,), (12,) * 7)
        result = lazy.compute()
    require_close(result, expected_of(x.astype("f8"), smooth, [0, 1], [1.0, 1.0]), 1e-5)


def test_the_result_has_the_chunks_of_the_input_where_they_cost_nothing():
    a = da.zeros((64, 64), chunks=(16, 64))
    assert signal.fourier_filter(a, smooth).chunks == a.chunks


def test_the_input_is_only_read_and_values_are_made_in_double_precision():
    x = random_array((32, 8), "f4", 1)
    x.flags.writeable = False
    dtypes = set()

    def noted(fy, fx):
        dtypes.update((fy.dtype, fx.dtype))
        return fy * 0 + fx * 0 + 1

    result = signal.fourier_filter(da.from_array(x, chunks=(8, 8)), noted).compute()
    require_close(result, x, 1e-6)
    assert dtypes == {np.dtype("f8")}


# --- what is refused --------------------------------------------------------------------------


def wrong_shape(fy, fx):
    return np.ones((3, 5, 7))


def text(fy, fx):
    return np.full(np.broadcast_shapes(fy.shape, fx.shape), "a")


def of_one(f):
    return f


def normalised(fy, fx):
    radius = np.hypot(fy, fx)
    return radius / radius.max()


def by_place(fy, fx):
    return np.arange(fy.size * fx.size).reshape(fy.size, fx.size)


REFUSED = [
    ({"transfer": wrong_shape}, ArgumentTypeError, "transfer"),
    ({"transfer": text}, ArgumentTypeError, "transfer"),
    ({"transfer": of_one}, ArgumentTypeError, "transfer"),
    ({"transfer": normalised}, ArgumentError, "transfer.*element-wise"),
    ({"transfer": by_place}, ArgumentError, "transfer.*element-wise"),
    ({"transfer": lambda fy, fx: 1 / (fy**2 + fx**2)}, ArgumentError, r"\(0.0, 0.0\).*at_zero"),
    ({"transfer": np.ones((12, 30))}, ArgumentError, "transfer.*(12, 16)"),
    ({"transfer": np.ones((1, 12, 16))}, ArgumentError, "transfer"),
    ({"transfer": np.full((12, 16), "a")}, ArgumentTypeError, "transfer"),
    ({"transfer": np.dtype("f8")}, ArgumentTypeError, "transfer"),
    ({"transfer": np.ones((12, 16)), "at_zero": 0}, ArgumentError, "at_zero"),
    ({"spacing": (1, 2, 3)}, ArgumentError, "spacing"),
    ({"spacing": -1}, ArgumentError, "spacing"),
    ({"spacing": "a"}, ArgumentTypeError, "spacing"),
    ({"s": (3,)}, ArgumentError, "`s`"),
    ({"s": (3, 0)}, ArgumentError, "`s`"),
    ({"transfer": np.ma.masked_equal(np.ones((12, 16)), 1)}, ArgumentTypeError, "a masked array"),
    ({"transfer": np.inf}, ArgumentError, "transfer.*inf"),
    ({"at_zero": "0"}, ArgumentTypeError, "at_zero"),
    ({"at_zero": np.nan}, ArgumentError, "at_zero"),
    ({"at_zero": np.zeros(2)}, ArgumentTypeError, "at_zero"),
    ({"x": da.ones(())}, ArgumentError, r"`x`.*\(\)"),
    ({"real": "no"}, ArgumentTypeError, "real"),
    ({"axes": 2}, ArgumentError, "axes"),
    ({"x": da.zeros((4, 4), dtype=complex), "real": True}, ArgumentError, "real"),
    ({"x": da.zeros((0, 4))}, ArgumentError, "`x`"),
    ({"workers": 3}, ArgumentTypeError, "workers"),
]


@pytest.mark.parametrize(("changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named_when_the_graph_is_built(changed, kind, named):
    arguments = {"x": da.zeros((12, 30), chunks=5), "transfer": smooth, **changed}
    with pytest.raises(kind, match=named):
        signal.fourier_filter(**arguments)


def test_finite_values_whose_sum_is_not_are_allowed():
    x = random_array((4, 6), "f8", seed=5) * 1e-300
    lazy = signal.fourier_filter(
        da.from_array(x, chunks=(2, 6)),
        lambda fy, fx: 5e307 + 0 * fy * fx,
    )
    np.testing.assert_allclose(lazy.compute(), x * 5e307, rtol=1e-12, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 512, 257), (512, 6, 33), (300, 7)])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_tiles_of_long_columns(shape, dtype):
    x = random_array(shape, dtype, seed=6)
    axis = int(np.argmax(shape))
    lazy = signal.fourier_filter(da.from_array(x, chunks=-1), smooth, axes=axis)
    expected = expected_of(x, smooth, [axis], [1.0])
    tolerance = 64 * np.finfo(dtype).eps
    np.testing.assert_allclose(lazy.compute(), expected, rtol=0, atol=tolerance)


def test_a_value_that_is_not_finite_is_an_error_with_its_frequency():
    def resonance(f):
        return np.where(np.abs(f) == 0.25, np.inf, 1.0)

    lazy = signal.fourier_filter(da.zeros(16, chunks=4), resonance)
    with pytest.raises(ArgumentError, match=r"transfer.*0\.25"):
        lazy.compute()


def test_an_array_with_values_that_are_not_finite_is_refused():
    transfer = np.ones(9)
    transfer[4] = np.nan
    with pytest.raises(ArgumentError, match=r"transfer.*nan at index \(4,\).*finite"):
        signal.fourier_filter(da.zeros(16, chunks=4), transfer)
    lazy_transfer = da.from_array(transfer, chunks=3)
    lazy = signal.fourier_filter(da.zeros(16, chunks=4), lazy_transfer)
    with pytest.raises(ArgumentError, match=r"transfer.*finite"):
        lazy.compute()


def test_an_array_may_change_after_the_graph_is_built():
    x = random_array((6, 16), "f8", 0)
    factors = np.ones(9)
    lazy = signal.fourier_filter(da.from_array(x, chunks=(3, 4)), factors, axes=1)
    factors[:] = 0
    require_close(lazy.compute(), x, 1e-13)


@pytest.mark.parametrize("band", [(0.15, 0.3), (0.001, 0.009), (0.38, 0.48)])
def test_a_band_on_one_side_is_no_filter_of_real_values(band):
    def one_sided(fy, fx):
        return ((fy > band[0]) & (fy < band[1])) + 0 * fx

    with pytest.raises(ArgumentError, match=r"transfer.*Hermitian"):
        signal.fourier_filter(da.zeros((60, 64), chunks=16), one_sided)


def test_a_function_is_not_tried_outside_of_a_band():
    x = random_array((5, 32), "f8", 1)

    def slope(f):
        return 1 / np.abs(f)

    lazy = signal.fourier_filter(x, slope, axes=1, band=(0.125, 0.25))
    factors = np.zeros(17)
    factors[4:9] = 32 / np.arange(4, 9)
    require_close(lazy.compute(), np.fft.irfft(np.fft.rfft(x) * factors), 1e-12)
    with pytest.raises(ArgumentError, match=r"inf at frequency \(0.0,\)"):
        signal.fourier_filter(x, slope, axes=1, band=(0, 0.25))


def test_an_array_at_negative_frequencies_alone():
    half = random_array((5,), "c16", 3)
    transfer = TransferInMemory(half, {0: 8}, halved=0)
    at_negative = transfer.values({0: np.array([5, 6, 7])})
    np.testing.assert_array_equal(at_negative, np.conj(half[[3, 2, 1]]))


@pytest.mark.parametrize("chunks", [16, 4])
def test_balanced_values_near_the_largest_number(chunks):
    """The sum of both values at N/2 would be infinite."""
    x = da.from_array(np.eye(1, 16)[0] * 1e-300, chunks=chunks)
    filtered = signal.fourier_filter(x, lambda f: np.full(f.shape, 1.5e308))
    np.testing.assert_allclose(filtered, np.eye(1, 16)[0] * 1.5e8, atol=1e-6)


def test_plain_chunks_of_files_are_read_into_blocks(tmp_path):
    zarr = pytest.importorskip("zarr")
    x = random_array((12, 30), "f8", 0)
    stored = zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(5, 7), compressors=None)
    filtered = signal.fourier_filter(da.from_zarr(stored), smooth)
    with heard("source_read") as reads:
        result = filtered.compute()
    assert sum(numbers["nbytes"] for _, numbers in reads) == x.nbytes
    np.testing.assert_allclose(result, signal.fourier_filter(x, smooth), rtol=0, atol=1e-12)
