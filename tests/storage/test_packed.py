"""Packed variables of NetCDF4/HDF5 files and Zarr groups are decoded as xarray decodes them."""

import os
import pickle
import warnings
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import values_of
from support import close

import dask_bigfft
from dask_bigfft import cli
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.storage import sources

zarr = pytest.importorskip("zarr")
h5py = pytest.importorskip("h5py")
xarray = pytest.importorskip("xarray")

SHAPE = (48, 40)
CHUNKS = (12, 40)
RAW = np.random.default_rng(3).integers(2, 120, SHAPE)


pytestmark = pytest.mark.usefixtures("folder")


F4 = np.float32
I2 = np.int16
SCALED = {"scale_factor": F4(0.01), "add_offset": F4(9)}
FILL = {"_FillValue": I2(-999)}

#: Attributes of a variable, and the dtype in which it is stored.
PACKED = {
    "scale and offset, double": ({"scale_factor": np.float64(0.01), "add_offset": 273.15}, "i2"),
    "scale and offset, single": (SCALED, "i2"),
    "scale, single": ({"scale_factor": F4(0.25)}, "i2"),
    "four bytes": (SCALED, "i4"),
    "mixed": (SCALED | {"add_offset": np.float64(9)}, "i2"),
    "offset": ({"add_offset": F4(9)}, "u1"),
    "fill, unscaled": (FILL, "i2"),
    "fill, unscaled, four bytes": ({"missing_value": np.int32(-999)}, "i4"),
    "everything": (
        {"scale_factor": 0.5, "add_offset": 1.0, "missing_value": I2(-999), **FILL},
        "i2",
    ),
    "unsigned": ({"_Unsigned": "true", "_FillValue": np.int8(-1), "scale_factor": 0.5}, "i1"),
    "unsigned alone": ({"_Unsigned": "true"}, "i1"),
    "signed": ({"_Unsigned": "false", "scale_factor": 0.5}, "u1"),
    "float with a fill value": ({"_FillValue": F4(1e20)}, "f4"),
    "float with NaN": ({"_FillValue": F4(np.nan)}, "f4"),
    "scaled float with NaN": ({"_FillValue": F4(np.nan), "scale_factor": np.float64(0.1)}, "f4"),
    "big-endian": ({"scale_factor": 0.5, **FILL}, ">i2"),
    "nothing": ({"units": "m"}, "i2"),
}


def raw_values(dtype):
    values = RAW.astype(dtype)
    values[5:7] = -values[5:7]
    return values


def fill_of(attributes):
    return attributes.get("_FillValue", attributes.get("missing_value"))


def decoded(values, attributes):
    """What xarray makes of stored values."""
    variable = xarray.Variable(("y", "x"), values, attributes)
    return xarray.conventions.decode_cf_variable("v", variable, decode_times=False).values


def hdf5_file(values, attributes, chunks=CHUNKS):
    """The path and the component of a variable as netCDF4 writes it, and its decoded values."""
    with h5py.File("in.nc", "w") as file:
        dataset = file.create_dataset("v", data=values, chunks=chunks)
        for name, value in attributes.items():
            text = isinstance(value, str)
            dataset.attrs[name] = np.bytes_(value) if text else np.ravel(value)
        file["x"] = np.arange(40)
    return "in.nc", "v", decoded(values, attributes)


def zarr_group(values, attributes, version, **encoding):
    """As `hdf5_file`, of a variable that xarray has written to a Zarr group."""
    attributes = dict(attributes)
    if version == 2 and "_FillValue" in attributes:
        encoding["_FillValue"] = attributes.pop("_FillValue")
    dataset = xarray.Dataset({"v": (("y", "x"), values, attributes)})
    encoding |= {"chunks": CHUNKS}
    dataset.to_zarr("in.zarr", encoding={"v": encoding}, zarr_format=version, consolidated=False)
    with xarray.open_zarr(
        "in.zarr", decode_times=False, consolidated=False, chunks=None
    ) as dataset:
        return "in.zarr", "v", dataset["v"].values


FORMATS = {
    "HDF5": hdf5_file,
    "HDF5, contiguous": lambda *given: hdf5_file(*given, None),
    "Zarr 2": lambda values, attributes: zarr_group(values, attributes, 2),
    "Zarr 3": lambda values, attributes: zarr_group(values, attributes, 3),
    "Zarr 3, plain": lambda *given: zarr_group(*given, 3, compressors=()),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", PACKED)
def test_values_and_dtype_are_those_of_xarray(format, name):
    attributes, dtype = PACKED[name]
    path, component, wanted = FORMATS[format](raw_values(dtype), attributes)
    source = sources.open_reader(Path(path), component).array()
    assert source.dtype == wanted.dtype or source.dtype.newbyteorder("=") == wanted.dtype
    np.testing.assert_array_equal(source, wanted)
    dask_bigfft.run(path, "out.zarr", component=component)
    assert values_of("out.zarr").dtype == np.fft.fftn(wanted).dtype
    assert close(values_of("out.zarr"), np.fft.fftn(wanted))


FILLED = [name for name in PACKED if fill_of(PACKED[name][0]) is not None]


@pytest.mark.parametrize(
    ("name", "format", "scratch"),
    [(name, format, None) for name in FILLED for format in ("HDF5", "Zarr 3")]
    + [("everything", format, "s") for format in FORMATS],
)
def test_missing_values_are_refused_or_filled(name, format, scratch):
    attributes, dtype = PACKED[name]
    values = raw_values(dtype)
    values[20, 30:32] = values[31, 0] = fill_of(attributes)
    path, component, wanted = FORMATS[format](values, attributes)
    assert np.isnan(wanted).sum() == 3
    requested = {"component": component, "block_size": 4 * 12 * 40}
    with pytest.raises(ArgumentError, match=r"`missing`='refuse'.* v in .*in\.(nc|zarr)"):
        dask_bigfft.run(path, "out.zarr", scratch=scratch, **requested)
    assert not Path("out.zarr").exists()
    other = scratch and "another"
    dask_bigfft.run(path, "out.zarr", scratch=other, missing=7, **requested)
    assert close(values_of("out.zarr"), np.fft.fftn(np.where(np.isnan(wanted), 7, wanted)))


def gap(*places, dtype="i2", fill=-999):
    """Stored values, some of which are missing."""
    values = raw_values(dtype)
    for place in places:
        values[place] = fill
    return values


def test_the_first_missing_value_is_named_and_missing_values_may_stay_nan():
    hdf5_file(gap((20, slice(30, 32))), FILL)
    with pytest.raises(ArgumentError, match=r"2 .*\(20, 30\)"):
        dask_bigfft.run("in.nc", "out.zarr", component="v")
    requested = {"component": "v", "scratch": "s", "missing": np.nan}
    dask_bigfft.run("in.nc", "out.zarr", "fft", **requested)
    assert dask_bigfft.run("in.nc", "out.zarr", "fft", **requested, resume=True).already
    with pytest.raises(ArgumentError, match="other arguments"):
        dask_bigfft.run("in.nc", "out.zarr", "fft", **requested | {"missing": 0}, resume=True)
    spectrum = values_of("out.zarr")
    assert np.isnan(spectrum[20]).all()
    assert np.isfinite(np.delete(spectrum, 20, axis=0)).all()


def test_nan_is_a_value_where_nothing_says_that_values_are_missing():
    hdf5_file(gap((20, 30), dtype="f4", fill=np.nan), {})
    dask_bigfft.run("in.nc", "out.zarr", "fft", component="v")
    assert np.isnan(values_of("out.zarr")[20]).all()


def test_a_chunk_without_a_file_that_reads_as_missing_values():
    """It is refused by either argument, and each of them replaces its own."""
    _, _, wanted = zarr_group(raw_values("i2"), FILL, 2)
    Path("in.zarr/v/1.0").unlink()
    wanted[12:24] = 4
    requested = {"component": "v", "missing": 4}
    with pytest.raises(ArgumentError, match="missing_chunks='fill'"):
        dask_bigfft.run("in.zarr", "out.zarr", **requested)
    with pytest.raises(ArgumentError, match="`missing`='refuse'"):
        dask_bigfft.run("in.zarr", "out.zarr", component="v", missing_chunks="fill")
    dask_bigfft.run("in.zarr", "out.zarr", **requested, missing_chunks="fill")
    assert close(values_of("out.zarr"), np.fft.fftn(wanted))


def test_a_reader_can_be_sent_to_a_worker():
    _, _, wanted = hdf5_file(gap((20, 30)), FILL | {"scale_factor": F4(0.5)})
    reader = sources.open_reader(Path("in.nc"), "v", 7.0)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(reader))[:, 3:], np.where(np.isnan(wanted), 7, wanted)[:, 3:]
    )


@pytest.mark.parametrize("version", [2, 3])
def test_the_fill_value_of_a_zarr_array_of_another_writer_is_a_value(version):
    """Zarr's own default is zero, which stands for nothing; xarray cannot open such an array."""
    values = gap((20, 30), fill=0)
    zarr.create_array("in", data=values, chunks=CHUNKS, fill_value=0, zarr_format=version)
    dask_bigfft.run("in", "out.zarr")
    assert close(values_of("out.zarr"), np.fft.fftn(values))


def test_several_fill_values():
    values = raw_values("i2")
    values[20, 30] = -999
    values[21, 3] = -998
    attributes = {"_FillValue": np.int16(-999), "missing_value": np.array([-998, -997], "i2")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xarray.SerializationWarning)
        path, component, wanted = hdf5_file(values, attributes)
    assert np.isnan(wanted).sum() == 2
    dask_bigfft.run(path, "out.zarr", component=component, missing=0)
    assert close(values_of("out.zarr"), np.fft.fftn(np.nan_to_num(wanted)))


@pytest.mark.parametrize("format", ["HDF5, contiguous", "Zarr 3, plain"])
@pytest.mark.parametrize("name", ["everything", "float with NaN"])
def test_rows_that_are_read_in_place_are_decoded(format, name):
    attributes, dtype = PACKED[name]
    values = gap((20, 30), dtype=dtype, fill=fill_of(attributes))
    path, component, wanted = FORMATS[format](values, attributes)
    options = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.row-size": "16 B"}
    requested = {"component": component, "rounds": [{0: -1}, {1: -1}], "block_size": 4 * 12 * 40}
    with dask.config.set(options):
        report = dask_bigfft.run(path, "out.zarr", "fft2", missing=2, **requested)
    assert report.plan.from_rows
    assert close(values_of("out.zarr"), np.fft.fftn(np.where(np.isnan(wanted), 2, wanted)))


@pytest.mark.parametrize("missing", ["fill", True, None, 1j, [0], "0"])
def test_missing_is_refuse_or_a_number(missing):
    hdf5_file(raw_values("i2"), {})
    with pytest.raises((ArgumentError, ArgumentTypeError), match="`missing`="):
        dask_bigfft.run("in.nc", "out.zarr", component="v", missing=missing)


@pytest.mark.parametrize(
    ("name", "value"), [("scale_factor", "wide"), ("add_offset", [1.0, 2.0]), ("_FillValue", "no")]
)
def test_attributes_that_are_no_numbers_are_refused(name, value):
    array = zarr.create_array("in", data=raw_values("f4"), chunks=CHUNKS)
    array.attrs[name] = value
    with pytest.raises(ArgumentError, match=f"`source`=.*{name}"):
        dask_bigfft.run("in", "out.zarr")


def test_on_the_command_line(capsys):
    _, _, wanted = hdf5_file(gap((20, 30)), FILL | {"scale_factor": F4(0.5)})
    argv = ["in.nc", "--component", "v"]
    assert cli.main(["plan", *argv]) == 0
    assert "float32" in capsys.readouterr().out
    argv = ["run", *argv, "out.zarr", "--quiet"]
    assert cli.main(argv) == 2
    assert "--missing" in capsys.readouterr().err
    assert "out.zarr" not in os.listdir()
    assert cli.main([*argv, "--missing", "-1.5"]) == 0
    assert close(values_of("out.zarr"), np.fft.fftn(np.where(np.isnan(wanted), -1.5, wanted)))
    with pytest.raises(SystemExit):
        cli.main([*argv, "--missing", "none"])


def test_an_array_that_is_given_itself_is_transformed_as_it_reads():
    path, component, _ = zarr_group(raw_values("i2"), PACKED["everything"][0], 3)
    array = zarr.open_array(f"{path}/{component}", mode="r")
    for x in (array, dask.array.from_zarr(array)):
        assert close(dask_bigfft.fft.fftn(x).compute(), np.fft.fftn(array[...]))
