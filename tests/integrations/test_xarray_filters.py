"""Filters by the names of dimensions: values, coordinates and units."""

from datetime import timedelta

import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray as xr

import dask_bigfft.xarray as bx
from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

CHUNKS = {"y": 7, "x": 10}
DISTANCES = {"spacing": (0.5, 2.0)}


def field(chunks=None, dtype="f8", **changed):
    """Return a field on a grid of 0.5 km by -2 km, with another coordinate along each dimension."""
    coords = {
        "y": ("y", 5 + 0.5 * np.arange(20), {"units": "km"}),
        "x": ("x", 80 - 2.0 * np.arange(30), {"units": "km"}),
        "name": ("x", [f"x{i}" for i in range(30)]),
        **changed,
    }
    values = np.random.default_rng(3).standard_normal((2, 20, 30)).astype(dtype)
    array = xr.DataArray(
        values,
        coords,
        ("time", "y", "x"),
        "T",
        attrs={"units": "K"},
    )
    return array if chunks is None else array.chunk(chunks)


def require_like(
    result,
    array,
    expected,
    units="K",
):
    """Fail where values, dimensions, coordinates or attributes differ."""
    is_lazy = isinstance(array.data, da.Array)
    assert isinstance(result.data, da.Array if is_lazy else np.ndarray)
    assert (result.dims, result.name) == (array.dims, array.name)
    assert result.attrs == ({} if units is None else {"units": units})
    xr.testing.assert_identical(result.coords.to_dataset(), array.coords.to_dataset())
    np.testing.assert_allclose(
        result.values,
        expected,
        atol=1e-10,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
@pytest.mark.parametrize("name", ["lowpass", "highpass", "bandpass", "bandstop"])
def test_filters(name, chunks):
    a = field(chunks)
    keywords = {"by": "wavelength", "edge": "cosine", "width": 0.5}
    cutoff = {"band": (6, 12)} if name.startswith("band") else {"cutoff": 6}
    result = getattr(a.bigfft, name)(
        ["y", "x"],
        **cutoff,
        **keywords,
    )
    expected = getattr(signal, name)(
        field().values,
        *cutoff.values(),
        (1, 2),
        **keywords,
        **DISTANCES,
    )
    require_like(
        result,
        a,
        expected,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_functions_of_one_dimension(chunks):
    a = field(chunks)
    values = field().values
    slope = signal.derivative(
        values,
        2,
        d=2.0,
    ).compute()
    require_like(
        a.bigfft.derivative("x"),
        a,
        -slope,
        "(K)/(km)",
    )
    second = signal.derivative(
        values,
        2,
        2,
        d=2.0,
    )
    require_like(
        a.bigfft.derivative("x", order=2),
        a,
        second,
        "(K)/(km)^2",
    )
    analytic = scipy.signal.hilbert(values, axis=2)
    require_like(
        a.bigfft.hilbert("x"),
        a,
        analytic.conj(),
    )
    require_like(
        a.bigfft.envelope("x"),
        a,
        np.abs(analytic),
    )
    require_like(
        bx.envelope(a, "y"),
        a,
        np.abs(scipy.signal.hilbert(values, axis=1)),
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_values_move_towards_higher_coordinates(chunks):
    a = field(chunks)
    moved = a.bigfft.shift(["y", "x"], distance=(1.0, 4.0))
    require_like(
        moved,
        a,
        np.roll(
            field().values,
            (2, -2),
            (1, 2),
        ),
    )
    times = np.datetime64("2026-03-01", "ns") + np.arange(20) * np.timedelta64(2, "s")
    dated = field(chunks, y=times)
    later = dated.bigfft.shift("y", distance=np.timedelta64(4, "s"))
    require_like(
        later,
        dated,
        np.roll(
            field().values,
            2,
            1,
        ),
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_convolutions(chunks):
    a = field(chunks)
    values = field().values
    kernel = xr.DataArray(np.arange(15.0).reshape(5, 3), dims=("x", "y"))
    expected = scipy.signal.convolve(
        values,
        kernel.values.T[None],
        "same",
    )
    require_like(
        a.bigfft.convolve(["y", "x"], kernel=kernel),
        a,
        expected,
    )
    require_like(
        a.bigfft.convolve(["x", "y"], kernel=kernel.values),
        a,
        expected,
    )
    mask = xr.DataArray(np.random.default_rng(0).random((30, 20)) < 0.2, dims=("x", "y"))
    masked = signal.convolve_masked(
        values,
        kernel.values.T[None],
        mask.values.T,
    )
    result = a.bigfft.convolve_masked(
        ["y", "x"],
        kernel=kernel,
        mask=mask,
    )
    require_like(
        result,
        a,
        masked,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_power_of_known_values(chunks):
    a = field(chunks)
    mask = np.random.default_rng(0).random((20, 30)) < 0.1
    named = xr.DataArray(mask.T, dims=("x", "y"))
    power = a.bigfft.power_spectrum(["y", "x"], mask=named)
    expected = signal.power_spectrum(
        field().values,
        (1, 2),
        d=(0.5, 2.0),
        mask=mask,
    )
    np.testing.assert_allclose(power, expected)


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_gaps(chunks):
    a = field(chunks)
    mask = np.random.default_rng(0).random((20, 30)) < 0.1
    options = {"band": (0.4, 0.1), "iterations": 5, "tolerance": 0.9}
    filled = a.bigfft.fill_gaps(
        ["y", "x"],
        mask=xr.DataArray(mask, dims=("y", "x")),
        **options,
    )
    expected = signal.fill_gaps(
        field().values,
        mask,
        axes=(1, 2),
        **options,
        **DISTANCES,
    )[0]
    require_like(
        filled,
        a,
        expected,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_other_samplings(chunks):
    a = field(chunks)
    values = field().values
    fine = a.bigfft.resample("x", num=45)
    np.testing.assert_allclose(
        fine,
        scipy.signal.resample(
            values,
            45,
            axis=2,
        ),
        atol=1e-10,
    )
    np.testing.assert_allclose(fine.x, 80 - 2.0 * 30 / 45 * np.arange(45))
    assert (set(fine.coords), fine.attrs) == ({"y", "x"}, a.attrs)
    coarse = a.bigfft.downsample(["y", "x"], factor=(2, 3))
    expected = signal.downsample(
        values,
        (2, 3),
        (1, 2),
    )
    xr.testing.assert_identical(coarse.coords.to_dataset(), a[:, ::2, ::3].coords.to_dataset())
    np.testing.assert_allclose(
        coarse,
        expected,
        atol=1e-10,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding_and_back(chunks, mode):
    a = field(chunks).drop_vars("name")
    padded = a.bigfft.pad(
        ["y", "x"],
        width={"y": 3, "x": (0, 5)},
        mode=mode,
    )
    expected = np.pad(
        field().values,
        [(0, 0), (3, 3), (0, 5)],
        mode=mode,
    )
    np.testing.assert_array_equal(padded, expected)
    np.testing.assert_allclose(padded.y, 3.5 + 0.5 * np.arange(26))
    np.testing.assert_allclose(padded.x, 80 - 2.0 * np.arange(35))
    xr.testing.assert_identical(padded.bigfft.unpad(), a)
    xr.testing.assert_equal(padded.bigfft.unpad("y", width=3)[:, :, :30], a)


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "wrap"])
def test_padding_by_more_than_a_period(mode):
    for n, before, after in [(7, 8, 6), (7, 33, 3), (3, 0, 40), (2, 5, 5), (1, 2, 3)]:
        values = np.arange(2.0 * n).reshape(n, 2)
        a = xr.DataArray(da.from_array(values, chunks=(3, 1)), dims=("y", "x"))
        widths = {"y": (before, after), "x": (1, 0)}
        padded = a.bigfft.pad(["y", "x"], width=widths, mode=mode)
        expected = np.pad(values, [(before, after), (1, 0)], mode=mode)
        assert padded.shape == expected.shape
        np.testing.assert_array_equal(padded, expected)


def test_padding_of_no_samples_is_refused():
    a = xr.DataArray(da.zeros((0, 4)), dims=("y", "x"))
    with pytest.raises(ArgumentError, match=r"`mode`='wrap'.*y has no samples"):
        a.bigfft.pad("y", width=2, mode="wrap")
    assert a.compute().bigfft.pad("y", width=2).shape == (4, 4)


def test_padding_of_times_and_integers():
    times = np.datetime64("2026-03-01", "ns") + np.arange(20) * np.timedelta64(2, "s")
    a = field(y=times, x=np.arange(30) * 3).drop_vars("name")
    padded = a.bigfft.pad(["y", "x"], width=(2, 1))
    assert padded.y.values[0] == times[0] - np.timedelta64(4, "s")
    assert padded.x.dtype == a.x.dtype
    xr.testing.assert_identical(padded.bigfft.unpad(["y", "x"]), a)


def test_ratios_of_two_arrays():
    a = field(CHUNKS)
    b = (a.roll(x=1, roll_coords=False) * 3).assign_attrs(units="m")
    coherent = a.bigfft.coherence(
        b,
        "x",
        nperseg=10,
    )
    _, expected = scipy.signal.coherence(
        a.values,
        b.values,
        0.5,
        nperseg=10,
        axis=2,
    )
    np.testing.assert_allclose(coherent, expected)
    assert coherent.dims == ("time", "y", "freq_x")
    assert "units" not in coherent.attrs
    response = bx.transfer_function(
        a,
        b,
        "x",
        nperseg=10,
    )
    _, expected = signal.transfer_function(
        a.values,
        b.values,
        0.5,
        nperseg=10,
        axis=2,
    )
    np.testing.assert_allclose(response, expected)
    assert response.units == "(m)/(K)"


def test_degrees_in_metres():
    lat = ("y", 40 + 0.1 * np.arange(20), {"units": "degrees_north"})
    lon = ("x", 5 + 0.2 * np.arange(30), {"units": "degrees_east"})
    a = field(
        CHUNKS,
        y=lat,
        x=lon,
    )
    metres = 6_371_000 * np.pi / 180
    middle = np.cos(np.deg2rad(40.95))
    spacing = (0.1 * metres, 0.2 * metres * middle)
    result = a.bigfft.lowpass(
        ["y", "x"],
        cutoff=50_000,
        by="wavelength",
        metres=True,
    )
    expected = signal.lowpass(
        field().values,
        1 / 50_000,
        (1, 2),
        spacing=spacing,
    )
    require_like(
        result,
        a,
        expected,
    )
    slope = a.bigfft.derivative("x", metres=True)
    require_like(
        slope,
        a,
        signal.derivative(
            field().values,
            2,
            d=spacing[1],
        ),
        "(K)/(m)",
    )
    with pytest.raises(ArgumentError, match="metres"):
        a.bigfft.lowpass(
            "time",
            cutoff=3,
            metres=True,
        )


def test_single_precision_stays():
    a = field(CHUNKS, "f4")
    assert a.bigfft.lowpass(["y", "x"], cutoff=0.2).dtype == np.float32
    assert a.bigfft.derivative("x").dtype == np.float32
    assert a.bigfft.convolve(["y", "x"], kernel=np.ones((3, 3), "f4")).dtype == np.float32
    assert a.bigfft.hilbert("x").dtype == np.complex64


def test_datasets():
    a = field(CHUNKS)
    fields = xr.Dataset(
        {
            "T": a,
            "S": 2 * a,
            "of_time": a.isel(
                x=0,
                y=0,
                drop=True,
            ),
        }
    )
    smooth = fields.bigfft.lowpass(["y", "x"], cutoff=0.2)
    xr.testing.assert_identical(smooth.S, fields.S.bigfft.lowpass(["y", "x"], cutoff=0.2))
    xr.testing.assert_identical(smooth.of_time, fields.of_time)
    assert fields.bigfft.downsample("x", factor=2).sizes["x"] == 15


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "named"),
    [
        (
            "lowpass",
            {"cutoff": 3, "bye": 2},
            ArgumentTypeError,
            "bye",
        ),
        (
            "lowpass",
            {"cutoff": 0},
            ArgumentError,
            "cutoff",
        ),
        (
            "lowpass",
            {"cutoff": 1, "metres": 1},
            ArgumentTypeError,
            "metres",
        ),
        (
            "derivative",
            {"dim": ["x", "y"]},
            ArgumentError,
            "dim",
        ),
        (
            "convolve",
            {"kernel": np.ones(3)},
            ArgumentError,
            "kernel",
        ),
        (
            "convolve",
            {"kernel": xr.DataArray([1.0], dims="z")},
            ArgumentError,
            "kernel",
        ),
        (
            "fill_gaps",
            {"band": 1, "mask": xr.DataArray([True], dims="z")},
            ArgumentError,
            "mask",
        ),
        (
            "shift",
            {"distance": (1, 2, 3, 4)},
            ArgumentError,
            "distance",
        ),
        (
            "pad",
            {"width": (1, 2, 3)},
            ArgumentError,
            "width",
        ),
        (
            "pad",
            {"width": {"z": 1}},
            ArgumentError,
            "width",
        ),
        (
            "pad",
            {"width": 1, "mode": "mean"},
            ArgumentError,
            "mode",
        ),
        (
            "unpad",
            {"dim": "x"},
            ArgumentError,
            "width",
        ),
        (
            "unpad",
            {"dim": "x", "width": 15},
            ArgumentError,
            "width",
        ),
    ],
)
def test_wrong_arguments_are_named(
    name,
    arguments,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        getattr(field().bigfft, name)(**arguments)


def times(step, unit="h"):
    return np.datetime64("2026-01-01", "ns") + np.arange(20) * np.timedelta64(step, unit)


@pytest.mark.parametrize(
    "period", [np.timedelta64(8, "h"), timedelta(hours=8), np.timedelta64(8 * 3600, "s")]
)
def test_a_period_may_be_a_duration(period):
    a = field(CHUNKS, y=times(1))
    seconds = 8 * 3600
    for by in ("period", "wavelength"):
        xr.testing.assert_identical(
            a.bigfft.lowpass("y", cutoff=period, by=by),
            a.bigfft.lowpass("y", cutoff=seconds, by=by),
        )
    xr.testing.assert_identical(
        a.bigfft.bandpass("y", band=(period, period / 2), by="period"),
        a.bigfft.bandpass("y", band=(seconds, seconds / 2), by="period"),
    )


@pytest.mark.parametrize(
    ("dim", "duration", "by"),
    [
        ("y", np.timedelta64(8, "h"), "frequency"),
        ("x", np.timedelta64(8, "h"), "period"),
        (["y", "x"], np.timedelta64(8, "h"), "period"),
        ("y", np.timedelta64(8, "M"), "period"),
    ],
)
def test_other_durations_are_refused(
    dim,
    duration,
    by,
):
    a = field(CHUNKS, y=times(1))
    with pytest.raises(ArgumentTypeError, match="cutoff"):
        a.bigfft.highpass(dim, cutoff=duration, by=by)
    with pytest.raises(ArgumentTypeError, match="band"):
        a.bigfft.bandstop(dim, band=(1, duration), by=by)
    with pytest.raises(ArgumentError, match="cutoff"):
        a.bigfft.lowpass("y", cutoff=np.timedelta64("NaT", "s"), by="period")


@pytest.mark.parametrize(
    ("dim", "distance"),
    [
        ("x", np.timedelta64(12, "h")),
        (["y", "x"], timedelta(hours=1)),
        ("y", np.timedelta64(1, "M")),
        ("y", np.timedelta64("NaT", "s")),
    ],
)
def test_other_durations_of_shifts_are_refused(dim, distance):
    a = field(CHUNKS, y=times(1))
    with pytest.raises((ArgumentError, ArgumentTypeError), match="distance"):
        a.bigfft.shift(dim, distance=distance)
    hours = a.bigfft.shift("y", distance=timedelta(hours=2))
    np.testing.assert_allclose(hours, np.roll(a, 2, a.dims.index("y")), atol=1e-9)


def test_masks_have_the_coordinates_of_the_array():
    a = field(CHUNKS)
    mask = a > 1
    moved = mask.assign_coords(x=mask.x + 1)
    calls = {
        "convolve_masked": {"dim": "x", "kernel": np.ones(3)},
        "fill_gaps": {"dim": "x", "band": 0.1},
        "power_spectrum": {"dim": "x"},
        "isotropic_power_spectrum": {"dim": ["y", "x"]},
    }
    for name, arguments in calls.items():
        with pytest.raises(ArgumentError, match=r"`mask`.*coordinate x.*reindex_like"):
            getattr(a.bigfft, name)(mask=moved, **arguments)
    bare = a.bigfft.power_spectrum("x", mask=moved.drop_vars("x"))
    xr.testing.assert_identical(bare, a.bigfft.power_spectrum("x", mask=mask))


def test_a_cutoff_above_all_frequencies_is_warned_of():
    """The frequency is named with its unit, and so is the highest one of the samples."""
    a = field(CHUNKS, y=times(1))
    text = r"`cutoff` is a period of 48, 0\.0208333 Hz.* 0\.000138889 Hz, a period of 7200$"
    with pytest.warns(UserWarning, match=text) as caught:
        a.bigfft.lowpass("y", cutoff=48, by="period")
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=r"`cutoff`.* 0\.3 1/km.* 0\.25 1/km"):
        bx.highpass(a, "x", cutoff=0.3)
    with pytest.warns(UserWarning, match=r"`band`.* 0\.2 to 0\.3 1/km.* 0\.25 1/km"):
        a.bigfft.bandpass("x", band=(0.3, 0.2))
    with pytest.warns(UserWarning, match=r" 1/m.* 0\.00025 1/m"):
        a.bigfft.lowpass("x", cutoff=0.1, metres=True)
    corner = np.hypot(1, 0.25)  # along both dimensions at once
    b = field(CHUNKS)
    b.bigfft.lowpass(["y", "x"], cutoff=corner)
    with pytest.warns(UserWarning, match="cutoff"):
        b.bigfft.lowpass(["y", "x"], cutoff=corner * 1.01)


@pytest.mark.parametrize("width", [3, {"y": (6, 0), "x": (13, 4)}, 40])
@pytest.mark.parametrize("chunks", [{"y": 7, "x": 10}, {"y": 5, "x": -1}, "preserve"])
def test_unpadded_arrays_can_be_stored_by_zarr(
    width,
    chunks,
    tmp_path,
):
    a = field({"time": 1, "y": 10, "x": 10}).drop_vars("name")
    padded = a.bigfft.pad(["y", "x"], width=width, mode="edge")
    filtered = padded.bigfft.lowpass(["y", "x"], cutoff=0.1, chunks=chunks)
    result = filtered.bigfft.unpad()
    result.to_zarr(tmp_path / "result.zarr", consolidated=False)
    inner = filtered.sel(y=a.y, x=a.x)
    np.testing.assert_array_equal(result, inner)
    if chunks != "preserve":
        assert max(result.chunksizes["y"]) == min(20, chunks["y"])
    with xr.open_zarr(tmp_path / "result.zarr", consolidated=False) as stored:
        np.testing.assert_array_equal(stored[a.name], inner)


def test_uneven_chunks_stay_when_they_are_unpadded():
    a = field().drop_vars("name").chunk(y=(3, 12, 5), x=9)
    padded = a.bigfft.pad("y", width=2)
    assert padded.bigfft.unpad().chunks == a.chunks


@pytest.mark.parametrize(
    ("dtype", "kernel", "expected"),
    [
        ("f4", np.hanning(9), "f4"),
        ("f4", [1, 2, 1], "f4"),
        ("f4", np.hanning(9) * 1j, "c8"),
        ("c8", np.hanning(9), "c8"),
        ("f8", np.hanning(9).astype("f4"), "f8"),
        ("i4", np.hanning(9), "f8"),
        ("i4", [1, 2, 1], "i8"),
    ],
)
@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_a_convolution_has_the_precision_of_the_field(
    chunks,
    dtype,
    kernel,
    expected,
):
    a = field(chunks, dtype)
    result = a.bigfft.convolve("x", kernel=kernel)
    assert result.dtype == expected
    # In one precision: of two, SciPy at times warns of casts of memory that it has not written.
    values = field(None, dtype).values.astype(complex)
    kernel_values = np.reshape(kernel, (1, 1, -1)).astype(complex)
    whole = scipy.signal.convolve(values, kernel_values, "same")
    np.testing.assert_allclose(result, whole, atol=1e-5)


@pytest.mark.parametrize("chunks", [None, CHUNKS])
@pytest.mark.parametrize("shape", [(0, 20, 30), (2, 20, 0)])
def test_convolutions_of_empty_arrays_are_empty(shape, chunks):
    a = field().drop_vars("name")[: shape[0], :, : shape[2]]
    if chunks is not None:
        a = a.chunk(chunks)
    result = a.bigfft.convolve("x", kernel=np.ones(3))
    require_like(
        result,
        a,
        a.values,
    )
    assert a.bigfft.convolve("x", kernel=np.ones(3) * 1j).dtype == "c16"


@pytest.mark.parametrize("name", ["convolve", "convolve_masked"])
def test_an_empty_kernel_is_refused(name):
    with pytest.raises(ArgumentError, match=r"`kernel`.*at least one"):
        getattr(field().bigfft, name)("x", kernel=[])


@pytest.mark.parametrize("step", [0.1, -0.01, 1 / 3])
def test_padded_and_filtered_arrays_align_with_the_source(step):
    y = np.cumsum(np.full(480, step))  # no formula gives these bits
    a = xr.DataArray(np.ones(480), {"y": y}, "y")
    padded = a.bigfft.pad("y", width=(40, 9), mode="reflect")
    np.testing.assert_array_equal(padded.y[40:-9], y)
    np.testing.assert_allclose(np.diff(padded.y), step, rtol=1e-9)
    smooth = padded.bigfft.lowpass("y", cutoff=1).bigfft.unpad("y")
    assert (a - smooth).size == 480


def test_times_before_the_first_one_are_exact_to_the_nanosecond():
    y = np.datetime64("2026-03-01", "ns") + np.arange(20) * np.timedelta64(7, "ns")
    a = xr.DataArray(np.ones(20), {"y": y}, "y")
    padded = a.bigfft.pad("y", width=3)
    assert padded.y.values[0] == y[0] - np.timedelta64(21, "ns")
    assert (np.diff(padded.y) == np.timedelta64(7, "ns")).all()


CHANGES = {
    "unpad": lambda a: a.bigfft.pad("x", width=2).bigfft.unpad(),
    "resample": lambda a: a.bigfft.resample("x", num=4),
    "downsample": lambda a: a.bigfft.downsample("x", factor=2),
    "padded and resampled": lambda a: a.bigfft.pad("x", width=2).bigfft.resample("x", num=4),
    "padded and downsampled": lambda a: a.bigfft.pad("x", width=2).bigfft.downsample("x", factor=3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_coordinates_of_samples_keep_their_attributes(change):
    attrs = {"units": "km", "long_name": "easting", "axis": "X"}
    a = xr.DataArray(np.ones(8), {"x": ("x", np.arange(8.0), attrs)}, "x")
    result = change(a)
    assert result.x.attrs == attrs
    assert a.bigfft.pad("x", width=2).x.attrs == {**attrs, "pad_width": [2, 2]}


@pytest.mark.parametrize("distance", ["a", None, 1j, [[1], [2, 3]]])
def test_distances_that_are_no_numbers_are_refused(distance):
    with pytest.raises(ArgumentTypeError, match="`distance`"):
        field().bigfft.shift("x", distance=distance)


@pytest.mark.parametrize("kernel", [[[1], [2, 3]], [["a", "b"]], [[None]]])
@pytest.mark.parametrize("name", ["convolve", "convolve_masked"])
def test_kernels_that_are_no_numbers_are_refused(name, kernel):
    with pytest.raises(ArgumentTypeError, match="`kernel`"):
        getattr(field().bigfft, name)(["y", "x"], kernel=kernel)


@pytest.mark.parametrize(
    ("dtype", "constant", "kind"),
    [
        ("f8", "a", ArgumentTypeError),
        ("f8", None, ArgumentTypeError),
        ("f8", 1j, ArgumentError),
        ("i4", 1j, ArgumentError),
        ("i4", np.nan, ArgumentError),
        ("i4", np.inf, ArgumentError),
        ("i4", 0.5, ArgumentError),
        ("i4", 2**40, ArgumentError),
        ("?", 2, ArgumentError),
    ],
)
@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_constants_that_an_array_cannot_hold_are_refused(
    chunks,
    dtype,
    constant,
    kind,
):
    a = field(chunks, dtype)
    with pytest.raises(kind, match="`constant_values`"):
        a.bigfft.pad("x", width=1, constant_values=constant)


@pytest.mark.parametrize(
    ("dtype", "constant"),
    [
        ("f4", 0.5),
        ("f8", np.nan),
        ("c8", 1j),
        ("i4", 3.0),
        ("?", True),
    ],
)
def test_constants_of_padded_samples(dtype, constant):
    padded = field(CHUNKS, dtype).bigfft.pad("x", width=1, constant_values=constant)
    assert padded.dtype == dtype
    np.testing.assert_array_equal(padded[..., [0, -1]], np.full((2, 20, 2), constant))


def test_widths_of_each_dimension_in_their_order():
    a = field(CHUNKS)
    for widths in ([(1, 2), (3, 4)], np.array([[1, 2], [3, 4]]), ([1, 2], (3, 4))):
        by_name = a.bigfft.pad(["y", "x"], width={"y": (1, 2), "x": (3, 4)})
        padded = a.bigfft.pad(["y", "x"], width=widths)
        xr.testing.assert_identical(padded, by_name)
        xr.testing.assert_equal(padded.bigfft.unpad(["y", "x"], width=widths), a.drop_vars("name"))
    xr.testing.assert_identical(a.bigfft.pad("x", width=np.array(3)), a.bigfft.pad("x", width=3))
    mixed = a.bigfft.pad(["x", "y"], width=[1, (2, 3)])
    assert dict(mixed.sizes) == {"time": 2, "y": 25, "x": 32}
    for widths in (
        [(1, 2)],
        [(1, 2), (3, 4), (5, 6)],
        [(1, 2), (3, 4, 5)],
        iter([(1, 2)]),
    ):
        with pytest.raises(ArgumentError, match="`width`"):
            a.bigfft.pad(["y", "x"], width=widths)
