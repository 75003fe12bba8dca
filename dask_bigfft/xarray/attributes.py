"""The record of a source's attributes in the coordinates of its frequencies.

Products of spectra may lose their attributes, or take over those of a filter, or those of the
frequencies that the filter was computed from: this depends on the version of xarray. The attributes
of coordinates stay, so an inverse transform finds those of its source there.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

#: Beginning of the names of attributes that describe what was transformed.
RECORD = "direct_"

#: Attribute of a frequency coordinate: the attributes of the transformed array, as JSON.
ARRAY_ATTRS = f"{RECORD}attrs"

#: Attribute of frequencies that variables of a dataset share: the attributes of each by its name.
VARIABLE_ATTRS = f"{RECORD}variable_attrs"

#: Attribute of a frequency coordinate along which power includes that of the missing half.
ONESIDED = f"{RECORD}onesided"

Attrs = Mapping[Any, Any]


def attrs_as_text(attrs: Attrs) -> str:
    """Return attributes as JSON in the order of their names, for a file to store as one attribute.

    Values of types that JSON does not have become their text, except those of NumPy. Names that are
    no strings are left out.

    >>> attrs_as_text({"units": "K", "flags": np.array([0, 9], "i1")})
    '{"flags": {"dtype": "int8", "values": [0, 9]}, "units": "K"}'
    """

    def as_json(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return {"dtype": str(value.dtype), "values": value.tolist()}
        return str(value)

    names = [name for name in attrs if isinstance(name, str)]
    by_name = {name: attrs[name] for name in sorted(names)}
    return json.dumps(by_name, default=as_json, skipkeys=True)


def attrs_from_text(text: str) -> dict[str, Any]:
    """Return the attributes that `attrs_as_text` has turned into JSON.

    >>> attrs_from_text(attrs_as_text({"flags": np.array([0, 9], "i1")}))
    {'flags': array([0, 9], dtype=int8)}
    """

    def with_arrays(value: dict[str, Any]) -> Any:
        if value.keys() != {"dtype", "values"}:
            return value
        array = np.array(value["values"], value["dtype"])
        return array[()]  # a NumPy scalar if there are no dimensions

    attrs: dict[str, Any] = json.loads(text, object_hook=with_arrays)
    return attrs


def _agrees(attrs: Attrs, name: Any, value: Any) -> bool:
    """Return True if attributes have a name with a value of this text."""
    if name not in attrs:
        return False
    return attrs_as_text({name: attrs[name]}) == attrs_as_text({name: value})


def _common(several: Iterable[Attrs]) -> dict[Any, Any]:
    """Return the attributes in which several arrays agree."""
    first, *others = several
    common = {}
    for name, value in first.items():
        if all(_agrees(attrs, name, value) for attrs in others):
            common[name] = value
    return common


def frequency_attrs(array: xr.DataArray | xr.Dataset) -> dict[Hashable, dict[Any, Any]]:
    """Return the attributes of each coordinate of frequencies, by its dimension."""
    attrs_by_dim = {}
    for dim in array.dims:
        if dim in array.coords:
            attrs = array.coords[dim].attrs
            if f"{RECORD}dim" in attrs:
                attrs_by_dim[dim] = attrs
    return attrs_by_dim


def source_attrs(
    attrs: Attrs, coordinates: Sequence[Attrs], name: Hashable = None
) -> dict[Any, Any]:
    """Return the attributes of the array that a spectrum was made of.

    They are taken from the record in the coordinates. Products drop values that differ and never
    make new ones. So a spectrum with another value than the record is an array of its own, or was
    changed on purpose: it keeps its attributes, as does one without a record.

    Parameters
    ----------
    attrs
        Attributes of the spectrum.
    coordinates
        Attributes of each frequency coordinate.
    name
        Name of the spectrum, which tells variables of a dataset apart.
    """
    own = without_frequency_attrs(attrs, coordinates)
    recording = [coordinate for coordinate in coordinates if ARRAY_ATTRS in coordinate]
    if not recording:
        return own
    coordinate = recording[0]
    by_variable: Attrs = attrs_from_text(coordinate.get(VARIABLE_ATTRS, "{}"))
    recorded = by_variable.get(name, attrs_from_text(coordinate[ARRAY_ATTRS]))
    common_keys = [key for key in own if key in recorded]
    if not all(_agrees(own, key, recorded[key]) for key in common_keys):
        return own
    common = {key: own[key] for key in common_keys}
    lost = {key: value for key, value in recorded.items() if key not in common}
    return common | lost


def without_frequency_attrs(attrs: Attrs, coordinates: Sequence[Attrs]) -> dict[Any, Any]:
    """Return attributes without those that a product took over from frequencies."""
    if not any(str(key).startswith(RECORD) for key in attrs):
        return dict(attrs)
    return {
        key: value
        for key, value in attrs.items()
        if not str(key).startswith(RECORD)
        and not any(_agrees(coordinate, key, value) for coordinate in coordinates)
    }


def record_variables(dataset: xr.Dataset, transformed: Mapping[Hashable, xr.DataArray]) -> None:
    """Record the attributes of each variable in the frequencies that all of them share.

    Parameters
    ----------
    dataset
        Result of a transform, whose coordinates are changed.
    transformed
        Transformed variables by name.
    """
    for dim, record in frequency_attrs(dataset).items():
        attrs_by_variable = {}
        for name, array in transformed.items():
            if dim in array.dims:
                text = array[dim].attrs.get(ARRAY_ATTRS, "{}")
                attrs_by_variable[str(name)] = attrs_from_text(text)
        several = attrs_by_variable.values()
        common = _common(several) if several else {}
        if any(len(attrs) > len(common) for attrs in several):
            record[ARRAY_ATTRS] = attrs_as_text(common)
            record[VARIABLE_ATTRS] = attrs_as_text(attrs_by_variable)
