"""Names of dimensions, attributes and coordinates go with a run's result."""

from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from dask_bigfft import plan
from dask_bigfft.errors import ArgumentError
from dask_bigfft.runs import RunRequest, execute, run

pytestmark = pytest.mark.filterwarnings("ignore:.*[Cc]onsolidated", "ignore:.*Consolidated")
KM = {"units": "km"}


def field():
    time = np.datetime64("2026-01-01", "ns") + np.arange(12) * np.timedelta64(6, "h")
    values = np.random.default_rng(0).standard_normal((12, 16, 20))
    coords = {"time": time, "x": ("x", 2.0 * np.arange(20), KM)}  # none along y
    return xr.DataArray(values, coords, ("time", "y", "x"), "T", attrs={"units": "K", "_own": [1]})


def stored(version, path):
    """Return the arguments of a run whose source has the field."""
    if version == "netcdf":
        with pytest.importorskip("h5py").File(path.with_suffix(".nc"), "w") as file:
            for name, variable in field().to_dataset().variables.items():
                encoded = xr.conventions.encode_cf_variable(variable)
                file.create_dataset(name, data=encoded.values).attrs.update(encoded.attrs)
            for axis, name in enumerate(field().dims):
                file["T"].dims[axis].label = name
                if name in file:
                    file[name].make_scale(name)
                    file["T"].dims[axis].attach_scale(file[name])
        return path.with_suffix(".nc"), {"component": "T"}
    if version == "lazy":
        return field().chunk(time=5, x=7), {}
    field().to_dataset().to_zarr(path, zarr_format=version)
    return path, {"component": "T"}


def same(array, wanted):
    np.testing.assert_allclose(array.values, wanted.values, atol=1e-10)
    assert (array.dims, array.attrs) == (wanted.dims, wanted.attrs)
    assert set(array.coords) == set(wanted.coords)
    for name, coordinate in wanted.coords.items():
        np.testing.assert_allclose(
            array[name].values.astype(float), coordinate.values.astype(float), rtol=1e-14
        )
        assert array[name].attrs == coordinate.attrs


@pytest.mark.parametrize("version", [2, 3, "lazy", "netcdf"])
def test_a_result_beside_coordinates_is_a_group_that_xarray_reads(version, tmp_path):
    source, named = stored(version, tmp_path / "in.zarr")
    report = run(source, tmp_path / "out.zarr", "rfftn", axes=("time", "x"), **named)
    assert report.component == "T"
    assert report.plan.spec.dims == field().dims
    spectrum = xr.open_zarr(tmp_path / "out.zarr")["T"]
    wanted = field().bigfft.rfft(["time", "x"])
    same(spectrum, wanted.drop_vars("freq_y", errors="ignore"))
    run(tmp_path / "out.zarr", tmp_path / "back.zarr", "irfftn", component="T", axes=(0, 2))
    back = xr.open_zarr(tmp_path / "back.zarr")["T"]
    same(back, field())


@pytest.mark.parametrize("version", [2, 3, "netcdf"])
def test_the_only_variable_beside_coordinates_needs_no_name(version, tmp_path):
    source, _ = stored(version, tmp_path / "in.zarr")
    run(source, tmp_path / "out.zarr", "rfftn", axes=("time", "x"))
    spectrum = xr.open_zarr(tmp_path / "out.zarr")["T"]
    same(spectrum, field().bigfft.rfft(["time", "x"]).drop_vars("freq_y", errors="ignore"))
    run(tmp_path / "out.zarr", tmp_path / "back.zarr", "irfftn", axes=(0, 2))
    same(xr.open_zarr(tmp_path / "back.zarr")["T"], field())


def test_of_several_variables_one_has_to_be_named(tmp_path):
    fields = field().to_dataset().assign(S=field())
    fields.to_zarr(tmp_path / "in.zarr")
    with pytest.raises(ArgumentError, match=r"^`component`=None .*in\.zarr: S, T$"):
        run(tmp_path / "in.zarr", tmp_path / "out.zarr")
    run(tmp_path / "in.zarr", tmp_path / "out.zarr", component="S", axes=("time",))
    with pytest.raises(ArgumentError, match=r"^`component`='z' "):
        run(tmp_path / "in.zarr", tmp_path / "other.zarr", component="z")


def test_the_inverse_of_a_stored_product_has_the_attributes_of_the_source(tmp_path):
    spectrum = field().bigfft.rfft(["time", "x"])
    product = (spectrum * (spectrum.freq_x < 1)).rename("T")
    product.drop_vars("freq_y", errors="ignore").to_dataset().to_zarr(tmp_path / "out.zarr")
    for source, named in ((tmp_path / "out.zarr", {"component": "T"}), (product, {})):
        axes = ("freq_time", "freq_x")
        report = run(
            source,
            tmp_path / "back.zarr",
            "irfftn",
            axes=axes,
            overwrite=True,
            **named,
        )
        same(xr.open_zarr(report.path)["T"], field())


def test_a_bare_array_keeps_names_and_attributes(tmp_path):
    layout = {"shape": (8, 8), "chunks": (4, 4), "dtype": "f8", "attributes": {"units": "m"}}
    array = zarr.create_array(tmp_path / "in.zarr", dimension_names=["y", "x"], **layout)
    array[:] = np.arange(64.0).reshape(8, 8)
    report = run(tmp_path / "in.zarr", tmp_path / "out.zarr", "fft", axis="y")
    spectrum = zarr.open_array(tmp_path / "out.zarr")
    assert (spectrum.metadata.dimension_names, spectrum.attrs["units"]) == (("freq_y", "x"), "m")
    assert report.component is None
    assert report.plan.spec.dims == plan(da.from_zarr(tmp_path / "in.zarr")).spec.dims == ("y", "x")
    np.testing.assert_allclose(spectrum[:], np.fft.fft(array[:], axis=0))
    with pytest.raises(ArgumentError, match="`axes`='z'"):
        run(tmp_path / "in.zarr", tmp_path / "other.zarr", axes=("y", "z"))
    for given in ({"scratch": tmp_path / "s"}, {"component": "T"}):
        with pytest.raises(ArgumentError, match=next(iter(given))):
            run(da.ones((8, 8)), tmp_path / "other.zarr", **given)
    assert not (tmp_path / "other.zarr").exists()


def test_a_group_is_resumed_found_again_and_replaced_as_a_whole(tmp_path):
    source, named = stored(3, tmp_path / "in.zarr")
    target = tmp_path / "out.zarr"
    scratch = tmp_path / "scratch"
    request = RunRequest(
        source,
        target,
        "fftn",
        scratch=scratch,
        resume=True,
        **named,
    )
    request = replace(request, options={"chunks": (6, 16, 5)})

    def dies(result, sink):
        index = tuple(slice(0, n) for n in sink.target.blocks)
        sink[index] = np.ascontiguousarray(result[index].compute())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(request, dies)
    assert not target.exists()
    (partial,) = tmp_path.glob("out.zarr.partial-*")
    assert not zarr.open_group(partial).attrs["dask_bigfft"]["complete"]
    assert not execute(request).already
    assert execute(request).already
    wanted = field().bigfft.fft()
    np.testing.assert_allclose(xr.open_zarr(target)["T"].values, wanted.values, atol=1e-10)
    (Path(target) / "T" / "c" / "0" / "0" / "0").write_bytes(b"changed")
    with pytest.raises(ArgumentError, match="changed"):
        execute(request)
    assert not execute(replace(request, overwrite=True)).already
    same(xr.open_zarr(target)["T"], wanted.drop_vars("freq_y"))
    xr.Dataset({"T": field()}).to_zarr(tmp_path / "foreign.zarr")
    with pytest.raises(ArgumentError, match="destination"):
        run(source, tmp_path / "foreign.zarr", overwrite=True, **named)


def test_padded_lines_continue_the_positions_of_linspace(tmp_path):
    x = np.linspace(0.1, 3.7, 7)  # the last value is not x[0] + 6 * step
    a = xr.DataArray(np.ones((4, 7)), {"x": x}, ("y", "x"), "T").chunk(y=2)
    run(a, tmp_path / "out.zarr", "fftn", axes=("x",), s=(10,))
    spectrum = xr.open_zarr(tmp_path / "out.zarr")["T"]
    back = spectrum.bigfft.ifft()
    np.testing.assert_array_equal(back.x, a.bigfft.fft("x", n=10).bigfft.ifft().x)
    assert np.all(np.diff(back.x) > 0.5)
