"""Names, coordinates and attributes of a stored array, and those of its transform.

A Zarr array has names of its dimensions, an HDF5 dataset has dimension scales. A coordinate is an
array of one axis beside the source, with the name of the dimension.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
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
from dask_bigfft.transforms.spec import TransformSpec

#: Attributes that describe how values are stored, and references within their file.
_STORED = {*ATTRIBUTES, "_ARRAY_DIMENSIONS", "coordinates", "CLASS", "NAME", "DIMENSION_LIST"}
_STORED |= {"DIMENSION_LABELS", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"}


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a transform keeps, as JSON values."""
    plain = {}
    for name, value in attributes.items():
        if name in _STORED:
            continue
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, str | int | float | list | dict | None):
            plain[name] = value
    return plain


@contextlib.contextmanager
def _variables(path: Path, component: str | None, stored: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield the stored array, a mapping of the arrays beside it, and its name."""
    if isinstance(stored, H5Dataset):
        with package("h5py", "HDF5 files", "hdf5").File(stored.path, "r") as file:
            dataset = file[stored.name]
            yield dataset, dataset.parent, dataset.name.rpartition("/")[2]
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
    if isinstance(reader.stored, NpyFile):
        return Labels()
    coordinates = {}
    with _variables(path, component, reader.stored) as (stored, beside, variable):
        for name, length in zip(reader.dims, stored.shape, strict=False):
            coordinate: Any = beside.get(name)
            if _is_coordinate(coordinate, length):
                coordinates[name] = np.asarray(coordinate[:]), _plain(coordinate.attrs)
        return Labels(
            reader.dims,
            _plain(stored.attrs),
            coordinates,
            variable,
        )


def _is_coordinate(array: Any, length: int) -> bool:
    """Return True if a stored array, or None, can be the coordinate of a dimension.

    Packed ones are not, because they would have to be decoded.
    """
    if getattr(array, "shape", None) != (length,) or array.dtype.kind not in "biuf":
        return False
    return not set(array.attrs) & set(ATTRIBUTES[:2])


def labels_of_array(array: Any) -> Labels:
    """Return the labels of an `xarray.DataArray`, or none for another array."""
    if not hasattr(array, "coords"):
        return Labels()
    import xarray as xr

    names = tuple(map(str, array.dims))
    coordinates = {}
    for name in array.dims:
        if name not in array.coords:
            continue
        stored = xr.conventions.encode_cf_variable(array.coords[name].variable)
        if stored.dtype.kind in "biuf":
            coordinates[str(name)] = np.asarray(stored.values), _plain(stored.attrs)
    return Labels(
        names,
        _plain(array.attrs),
        coordinates,
        str(array.name or "spectrum"),
    )


def numbers(axes: Any, dims: Callable[[], tuple[str, ...]], argument: str = "axes") -> Any:
    """Return axes as numbers, from numbers or names of dimensions."""
    if not isinstance(axes, tuple | list) or not any(isinstance(axis, str) for axis in axes):
        return axes
    names = dims()
    for axis in axes:
        if isinstance(axis, str) and axis not in names:
            raise_invalid(argument, axis, f"numbers, or names of the source's dimensions {names}")
    return tuple(names.index(axis) if isinstance(axis, str) else axis for axis in axes)


def transformed(labels: Labels, plan: Plan) -> Labels:
    """Return the labels of a transform's result.

    Names and attributes stay. A transformed dimension ``x`` becomes ``freq_x`` as in
    `dask_bigfft.xarray`, and the inverse turns it back. Coordinates need xarray; of uneven
    samples, none is made. A filter keeps dimensions, and the coordinates of axes whose length it
    keeps.
    """
    if not labels.names:
        return labels
    spec = plan.spec
    if spec.transfer:
        return _filtered(labels, spec)
    attributes = labels.attributes
    if not spec.is_forward:
        with contextlib.suppress(ImportError):
            attributes = _source_attributes(labels, spec.axes)
    names = list(labels.names)
    coordinates = dict(labels.coordinates)
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        coordinates.pop(labels.names[axis], None)
        names[axis], variable = _transformed_dimension(
            labels,
            plan,
            axis,
            length,
        )
        if variable is not None:
            coordinates[names[axis]] = variable
    if len(set(names)) < len(names):
        return Labels((), attributes)
    return Labels(
        tuple(names),
        attributes,
        coordinates,
        labels.variable,
    )


def _filtered(labels: Labels, spec: TransformSpec) -> Labels:
    """Return the labels of a filter's result, without the coordinates of axes of another length."""
    coordinates = dict(labels.coordinates)
    for axis, length in zip(spec.axes, spec.lengths, strict=True):
        if length != spec.shape[axis]:
            coordinates.pop(labels.names[axis], None)
    return replace(labels, coordinates=coordinates)


def _transformed_dimension(
    labels: Labels,
    plan: Plan,
    axis: int,
    length: int,
) -> tuple[str, Variable | None]:
    """Return the name and the coordinate of a transformed dimension; None without a coordinate."""
    name = labels.names[axis]
    if name in labels.coordinates:
        coordinate_of = _frequencies if plan.spec.is_forward else _samples
        with contextlib.suppress(ImportError, ArgumentError, ArgumentTypeError):
            return coordinate_of(
                labels,
                plan,
                axis,
                length,
            )
    new_name = f"freq_{name}" if plan.spec.is_forward else name.removeprefix("freq_")
    return new_name, None


def spacing_of(
    labels: Labels,
    axis: int,
    *,
    is_needed: bool,
) -> float | None:
    """Return the distance of two samples by the coordinate of an axis; None without a coordinate.

    Coordinates need xarray. Without it, the distance is None unless it is needed.
    """
    name = labels.names[axis] if labels.names else ""
    if name not in labels.coordinates:
        return None
    try:
        from dask_bigfft.xarray.coordinates import samples_of
    except ImportError:
        if is_needed:
            need = f"a number: xarray, which reads the coordinate {name}, is not installed"
            raise_invalid("fs", None, need)
        return None
    return float(samples_of(_decoded(labels, name), name).spacing)


def of_slices(
    labels: Labels,
    x: da.Array,
    axis: int,
    kind: str,
    keywords: Mapping[str, Any],
    *,
    fs: float | None = None,
) -> Labels:
    """Return the labels of a short-time transform of an array: frequencies and times of slices.

    Parameters
    ----------
    labels : Labels
        Labels of the array.
    x : dask.array.Array
        The array, of which only shape, chunks and dtype count.
    axis : int
        Axis of the samples, not negative.
    kind : {"stft", "spectrogram"}
        Name of the short-time transform.
    keywords : mapping
        Its keywords.
    fs : float, optional
        Sampling rate of samples without a coordinate. By default frequencies are in cycles per
        sample then, and times are numbers of samples.

    Returns
    -------
    Labels
        The dimension ``x`` of the samples becomes ``freq_x``, and the slices are a last dimension
        ``x``. Without xarray these two have no coordinates. Labels without names of dimensions do
        not change.
    """
    if not labels.names:
        return labels
    dim = labels.names[axis]
    try:
        from dask_bigfft.xarray import short_time
    except ImportError:
        names = (*labels.names, dim)
        coordinates = {name: c for name, c in labels.coordinates.items() if name != dim}
        renamed = tuple(f"freq_{name}" if n == axis else name for n, name in enumerate(names))
        return replace(labels, names=renamed, coordinates=coordinates)
    transform = {"stft": short_time.stft, "spectrogram": short_time.spectrogram}[kind]
    result_labels = labels_of_array(transform(_with_zeros(labels, x), dim, **keywords))
    if fs is None or dim in labels.coordinates:
        return result_labels
    return _at_rate(result_labels, dim, x.shape[axis], fs)


def _at_rate(
    labels: Labels,
    dim: str,
    length: int,
    fs: float,
) -> Labels:
    """Return labels of slices with frequencies and times for a sampling rate.

    Parameters
    ----------
    labels : Labels
        Labels with frequencies in cycles per sample, and times as numbers of samples.
    dim : str
        Dimension of the samples.
    length : int
        Number of samples of the record.
    fs : float
        Sampling rate.
    """
    from dask_bigfft.xarray.coordinates import Samples

    record = Samples(dim, length, first=0.0, step=1 / fs, dtype="float64")
    frequencies, attrs = labels.coordinates[f"freq_{dim}"]
    times, time_attrs = labels.coordinates[dim]
    own_attrs = {name: value for name, value in attrs.items() if name != "units"} | record.attrs
    if "spacing" in own_attrs:
        own_attrs["spacing"] *= fs
    coordinates = {
        **labels.coordinates,
        f"freq_{dim}": (frequencies * fs, own_attrs),
        dim: (times / fs, time_attrs),
    }
    return replace(labels, coordinates=coordinates)


def _with_zeros(labels: Labels, x: da.Array) -> Any:
    """Return a lazy `xarray.DataArray` of zeros that has the labels and the chunks of an array."""
    import xarray as xr

    coords = {name: (name, *variable) for name, variable in labels.coordinates.items()}
    return xr.DataArray(
        da.zeros(x.shape, dtype=x.dtype, chunks=x.chunks),
        xr.decode_cf(xr.Dataset(coords=coords)).coords,
        labels.names,
        labels.variable,
        labels.attributes,
    )


def of_samples(
    labels: Labels,
    x: da.Array,
    f_axis: int,
    t_axis: int,
    keywords: Mapping[str, Any],
) -> Labels:
    """Return the labels of an inverse short-time transform of spectra.

    Parameters
    ----------
    labels : Labels
        Labels of the spectra.
    x : dask.array.Array
        The spectra, of which only shape, chunks and dtype count.
    f_axis, t_axis : int
        Axes of the frequencies and of the slices, not negative.
    keywords : mapping
        Keywords of the inverse.

    Returns
    -------
    Labels
        The dimension ``freq_x`` of the frequencies becomes ``x``, and that of the slices is gone.
        The coordinate ``x`` is that from before the transform, if the frequencies remember it.
        Labels without names of dimensions do not change.
    """
    if not labels.names:
        return labels
    dim = labels.names[f_axis]
    if rate_of_spectra(labels, f_axis)[0] is not None:
        from dask_bigfft.xarray import short_time

        return labels_of_array(short_time.istft(_with_zeros(labels, x), dim, **keywords))
    names = [name for axis, name in enumerate(labels.names) if axis not in (f_axis, t_axis)]
    coordinates = {name: labels.coordinates[name] for name in names if name in labels.coordinates}
    axis = f_axis if f_axis < len(labels.names) - 1 else t_axis
    names.insert(axis, dim.removeprefix("freq_"))
    return replace(labels, names=tuple(names), coordinates=coordinates)


def rate_of_spectra(labels: Labels, axis: int) -> tuple[float | None, int | None]:
    """Return the sampling rate and the length of the record that spectra of slices were made of.

    Frequencies remember both; they are None without such a coordinate, or without xarray.

    Parameters
    ----------
    labels : Labels
        Labels of the spectra.
    axis : int
        Axis of the frequencies.
    """
    name = labels.names[axis] if labels.names else ""
    if name not in labels.coordinates:
        return None, None
    with contextlib.suppress(ImportError, ArgumentError, ArgumentTypeError):
        from dask_bigfft.xarray.coordinates import remembered

        record = remembered(_decoded(labels, name), name, False)
        if record.dim in labels.names:
            return 1 / abs(record.spacing), record.length
    return None, None


def _source_attributes(labels: Labels, axes: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of the array that a spectrum was made of."""
    from dask_bigfft.xarray.attributes import source_attrs

    names = [labels.names[axis] for axis in axes]
    coordinates = [labels.coordinates[name][1] for name in names if name in labels.coordinates]
    return _plain(source_attrs(labels.attributes, coordinates, labels.variable))


def _decoded(labels: Labels, name: str) -> Any:
    """Return an `xarray.DataArray` of zeros that has the stored coordinate of a dimension."""
    import xarray as xr

    values, attrs = labels.coordinates[name]
    dataset = xr.decode_cf(xr.Dataset(coords={name: (name, values, attrs)}))
    return xr.DataArray(np.zeros(len(values)), dataset.coords, [name])


def _frequencies(
    labels: Labels,
    plan: Plan,
    axis: int,
    length: int,
) -> tuple[str, Variable | None]:
    """Return the name and the frequencies of a transformed dimension."""
    from dask_bigfft.xarray.attributes import ARRAY_ATTRS, attrs_as_text
    from dask_bigfft.xarray.coordinates import samples_of

    spec = plan.spec
    name = labels.names[axis]
    samples = samples_of(_decoded(labels, name), name).with_length(length)
    _, order = spec.orders_of(axis)
    digits = None if order == "natural" else spec.digits_of(axis)
    is_half = axis == spec.axes[-1] and spec.kind == "r2c"
    lazy_fftfreq = rfftfreq if is_half else fftfreq
    places = None
    if axis in spec.bands:
        places = spec.spectrum(axis).indices(spec.bands[axis])
        samples = replace(samples, band_start=places[0], band_stop=places[1])
    frequencies = lazy_fftfreq(
        length,
        samples.spacing,
        order=order,
        digits=digits,
        band_index=places,
    )
    origin = {
        "spacing": 1 / abs(length * samples.spacing),
        "direct_length": length,
        ARRAY_ATTRS: attrs_as_text(labels.attributes),
    }
    return f"freq_{name}", (frequencies.compute(scheduler="sync"), samples.attrs | origin)


def _samples(
    labels: Labels,
    plan: Plan,
    axis: int,
    length: int,
) -> tuple[str, Variable | None]:
    """Return the name and the coordinate of a dimension that is transformed back.

    The dimension has a coordinate of frequencies. The coordinate is None if the samples had none.
    """
    import xarray as xr

    from dask_bigfft.xarray.coordinates import remembered

    spec = plan.spec
    name = labels.names[axis]
    is_half = axis == spec.axes[-1] and spec.kind == "c2r"
    samples = remembered(_decoded(labels, name), name, is_half).resampled(length)
    places = samples.coordinate(spec.out_shape[axis])
    if places is None:
        return str(samples.dim), None
    stored = xr.conventions.encode_cf_variable(places)
    return str(samples.dim), (np.asarray(stored.values), _plain(stored.attrs))
