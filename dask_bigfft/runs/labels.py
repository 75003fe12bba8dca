"""Names, coordinates and attributes of a stored array, and those of its transform.

A Zarr array has names of its dimensions, an HDF5 dataset has dimension scales. A coordinate is an
array of one axis beside the source, with the name of the dimension.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.errors import ArgumentError, ArgumentTypeError, raise_invalid
from dask_bigfft.frequencies import fftfreq, rfftfreq
from dask_bigfft.planner.plan import Plan
from dask_bigfft.storage.formats import ATTRIBUTES, UNREADABLE, package
from dask_bigfft.storage.hdf5 import H5Dataset
from dask_bigfft.storage.sources import (
    NpyFile,
    array_folder,
    local_store,
    open_reader,
    zarr_package,
)
from dask_bigfft.storage.targets import Labels, Variable

#: Attributes that describe how values are stored, and references within their file.
_STORED = {*ATTRIBUTES, "_ARRAY_DIMENSIONS", "coordinates", "CLASS", "NAME", "DIMENSION_LIST"}
_STORED |= {"DIMENSION_LABELS", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"}


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a transform keeps, as JSON values."""
    found = {}
    for name, value in attributes.items():
        if name not in _STORED:
            value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            value = value.decode(errors="replace") if isinstance(value, bytes) else value
            if isinstance(value, str | int | float | list | dict | None):
                found[name] = value
    return found


@contextlib.contextmanager
def _variables(path: Path, component: str | None, stored: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield the stored array, a mapping of the arrays beside it, and its name."""
    if isinstance(stored, H5Dataset):
        with package("h5py", "HDF5 files", "hdf5").File(stored.path, "r") as file:
            found = file[stored.name]
            yield found, found.parent, found.name.rpartition("/")[2]
        return
    zarr = zarr_package()
    beside = dict[str, Any]()
    name = (component or path.name).strip("/").rpartition("/")[2]
    with contextlib.suppress(*UNREADABLE):
        if path.suffix == ".zip" and path.is_file():
            parent = (component or "").strip("/").rpartition("/")[0]
            beside = zarr.open_group(stored.store, mode="r", path=parent)
        else:
            folder = array_folder(path.resolve(), component).parent
            beside = zarr.open_group(local_store(folder, True), mode="r")
    yield stored, beside, name


def labels_of(path: Path, component: str | None) -> Labels:
    """Return the labels of a stored array."""
    reader = open_reader(path, component)
    coordinates = {}
    if isinstance(reader.stored, NpyFile):
        return Labels()
    with _variables(path, component, reader.stored) as (stored, beside, variable):
        for name, length in zip(reader.dims, stored.shape, strict=False):
            found: Any = beside.get(name)
            if getattr(found, "shape", None) != (length,) or found.dtype.kind not in "biuf":
                continue
            if not set(found.attrs) & set(ATTRIBUTES[:2]):  # packed ones would have to be decoded
                coordinates[name] = np.asarray(found[:]), _plain(found.attrs)
        return Labels(reader.dims, _plain(stored.attrs), coordinates, variable)


def labels_of_array(array: Any) -> Labels:
    """Return the labels of an `xarray.DataArray`, or none for another array."""
    if not hasattr(array, "coords"):
        return Labels()
    import xarray as xr

    coordinates = {}
    names = tuple(map(str, array.dims))
    for name in (name for name in array.dims if name in array.coords):
        stored = xr.conventions.encode_cf_variable(array.coords[name].variable)
        if stored.dtype.kind in "biuf":
            coordinates[str(name)] = np.asarray(stored.values), _plain(stored.attrs)
    return Labels(names, _plain(array.attrs), coordinates, str(array.name or "spectrum"))


def numbers(axes: Any, dims: Callable[[], tuple[str, ...]]) -> Any:
    """Return axes as numbers, from numbers or names of dimensions."""
    if not isinstance(axes, tuple | list) or not any(isinstance(axis, str) for axis in axes):
        return axes
    names = dims()
    for axis in axes:
        if isinstance(axis, str) and axis not in names:
            raise_invalid("axes", axis, f"numbers, or names of the source's dimensions {names}")
    return tuple(names.index(axis) if isinstance(axis, str) else axis for axis in axes)


def transformed(labels: Labels, plan: Plan) -> Labels:
    """Return the labels of a transform's result.

    Names and attributes stay. A transformed dimension ``x`` becomes ``freq_x`` as in
    `dask_bigfft.xarray`, and the inverse turns it back. Coordinates need xarray; of uneven
    samples, none is made.
    """
    spec = plan.spec
    if not labels.names:
        return labels
    attributes = labels.attributes
    if spec.name.startswith("i"):
        with contextlib.suppress(ImportError):
            attributes = _source_attributes(labels, spec.axes)
    names = list(labels.names)
    coordinates = dict(labels.coordinates)
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        name = labels.names[axis]
        coordinates.pop(name, None)
        forward = not spec.name.startswith("i")
        names[axis] = f"freq_{name}" if forward else name.removeprefix("freq_")
        if name in labels.coordinates:
            with contextlib.suppress(ImportError, ArgumentError, ArgumentTypeError):
                names[axis], made = _coordinate(labels, plan, axis, length, forward)
                if made is not None:
                    coordinates[names[axis]] = made
    if len(set(names)) < len(names):
        return Labels((), attributes)
    return Labels(tuple(names), attributes, coordinates, labels.variable)


def _source_attributes(labels: Labels, axes: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of the array that a spectrum was made of."""
    from dask_bigfft.xarray.attributes import source_attrs

    names = [labels.names[axis] for axis in axes]
    coordinates = [labels.coordinates[name][1] for name in names if name in labels.coordinates]
    return _plain(source_attrs(labels.attributes, coordinates, labels.variable))


def _coordinate(
    labels: Labels, plan: Plan, axis: int, length: int, forward: bool
) -> tuple[str, Variable | None]:
    """Return the name and the coordinate of a transformed dimension."""
    import xarray as xr

    from dask_bigfft.xarray.attributes import ARRAY_ATTRS, attrs_as_text
    from dask_bigfft.xarray.coordinates import remembered, samples_of

    spec = plan.spec
    name = labels.names[axis]
    values, attrs = labels.coordinates[name]
    known = xr.decode_cf(xr.Dataset(coords={name: (name, values, attrs)}))
    array = xr.DataArray(np.zeros(len(values)), known.coords, [name])
    last = axis == spec.axes[-1]
    size = spec.out_shape[axis]
    if not forward:
        own = remembered(array, name, last and spec.kind == "c2r").resampled(length)
        if (places := own.coordinate(size)) is None:
            return str(own.dim), None
        stored = xr.conventions.encode_cf_variable(places)
        return str(own.dim), (np.asarray(stored.values), _plain(stored.attrs))
    own = samples_of(array, name)
    order = spec.orders_out[spec.axes.index(axis)]
    digits = None if order == "natural" else spec.digits_of(axis)
    named = rfftfreq if last and spec.kind == "r2c" else fftfreq
    found = named(length, own.spacing, order=order, digits=digits)
    more = {
        "spacing": 1 / abs(length * own.spacing),
        "direct_length": length,
        ARRAY_ATTRS: attrs_as_text(labels.attributes),
    }
    return f"freq_{name}", (found.compute(scheduler="sync"), own.attrs | more)
