"""Decode packed variables: scale, offset, missing values and unsigned integers.

Attributes and dtypes follow the CF conventions as xarray reads them. xarray is an optional
dependency and decodes its own variables only, so a block of numbers is decoded here.

Imports `errors`.
"""

import base64
import binascii
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse

__all__ = ["ATTRIBUTES", "Packing", "packing_of", "zarr_attributes"]

Array = npt.NDArray[Any]
DType = np.dtype[Any]

#: Names of the attributes that say how a variable is packed.
ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


@dataclass(frozen=True)
class Packing:
    """Conversion of stored numbers to values.

    Parameters
    ----------
    variable : str
        Name of the variable, for errors.
    stored : dtype
        Of the stored numbers, after `_Unsigned`.
    dtype : dtype
        Of the values.
    scale, offset : number or None
        Factor of the stored numbers, and what is added to the product.
    fills : tuple of numbers
        Stored numbers that stand for missing values.
    masked : bool
        Whether values may be missing; NaN then stands for a missing value, too.
    missing : float or None
        Value that replaces missing ones; None refuses them.
    """

    variable: str
    stored: DType
    dtype: DType
    scale: Any
    offset: Any
    fills: tuple[Any, ...]
    masked: bool
    missing: float | None

    def decode(self, raw: Array, begin: tuple[int, ...]) -> Array:
        """Return the values of stored numbers, which are overwritten where the dtype is the same.

        Parameters
        ----------
        raw : array
            The stored numbers.
        begin : tuple of int
            Index of the first of them in the variable.

        Raises
        ------
        ArgumentError
            If values are missing and no number was given for them.
        """
        raw = raw.astype(self.stored, copy=False)
        absent = np.isnan(raw) if self.masked else np.zeros((), bool)
        for fill in self.fills:
            absent |= raw == fill
        found = bool(absent.any())
        if found and self.missing is None:
            self._refuse(absent, begin)
        values = raw.astype(self.dtype, copy=False)
        if found:
            values[absent] = np.nan  # which no scale makes too large
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        if found:
            values[absent] = self.missing
        return values

    def _refuse(self, absent: Array, begin: tuple[int, ...]) -> NoReturn:
        """Refuse missing values: how many of a block, and the index of the first."""
        first = np.unravel_index(int(absent.argmax()), absent.shape)
        index = tuple(int(i) + start for i, start in zip(first, begin, strict=True))
        refuse(
            "missing",
            "refuse",
            "a number that replaces missing values: "
            f"{np.count_nonzero(absent)} of {absent.size} values of {self.variable} that were read "
            f"together are missing, the first at index {index}",
        )


def packing_of(
    variable: str, attributes: Mapping[str, Any], dtype: DType, missing: float | None
) -> Packing | None:
    """Return how a variable is packed; None if its stored numbers are its values.

    Parameters
    ----------
    variable : str
        Its name, for errors.
    attributes : mapping
        Its attributes, of which `ATTRIBUTES` are looked at.
    dtype : dtype
        Of the stored numbers.
    missing : float or None
        Value that replaces missing ones; None refuses them.

    Raises
    ------
    ArgumentError
        If an attribute that has to be a number is none.

    Examples
    --------
    >>> packing_of("t", {"scale_factor": np.float32(0.1)}, np.dtype("i2"), None).dtype
    dtype('float32')
    >>> packing_of("t", {"units": "K"}, np.dtype("i2"), None)
    """
    if dtype.kind not in "iufc":
        return None
    numbers = {name: _numbers(variable, name, attributes.get(name)) for name in ATTRIBUTES[:-1]}
    scale, offset = (
        _single(variable, name, numbers.pop(name)) for name in ("scale_factor", "add_offset")
    )
    given = [np.asarray(fill).item() for found in numbers.values() for fill in found]
    stored = _with_sign(dtype, attributes.get("_Unsigned"))
    fills = tuple(_wrapped(fill, dtype, stored) for fill in given if fill == fill)  # not NaN
    masked = bool(given if dtype.kind in "fc" else fills)  # integers are never NaN
    packed, decoded = scale is not None or offset is not None, stored
    if packed and (fills or not masked):  # floating-point numbers beside NaN keep their dtype
        decoded = _scaled_dtype(stored, scale, offset)
    elif fills and stored.kind in "iu":
        decoded = np.dtype("f4" if stored.itemsize <= 2 else "f8")
    if not packed and not masked and stored == dtype:
        return None
    return Packing(variable, stored, decoded, scale, offset, fills, masked, missing)


def _numbers(variable: str, name: str, value: Any) -> list[Any]:
    """The numbers of an attribute, each in the type in which it was written; none without one."""
    if value is None:
        return []
    found = list(value) if isinstance(value, np.ndarray | list | tuple) else [value]
    if not all(isinstance(v, Number) and not isinstance(v, bool) for v in found):
        need = f"a variable whose attribute {name} is a number, not {value!r}"
        refuse("source", variable, need)
    return found


def _single(variable: str, name: str, found: list[Any]) -> Any:
    """The number of an attribute that holds one; None where it holds none."""
    if len(found) > 1:
        refuse("source", variable, f"a variable whose attribute {name} is one number, not {found}")
    return found[0] if found else None


def _with_sign(dtype: DType, unsigned: Any) -> DType:
    """The dtype of integers whose attribute `_Unsigned` says that they have another sign."""
    other = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(unsigned)))
    return dtype if other is None else np.dtype(f"{other}{dtype.itemsize}")


def _wrapped(fill: Any, dtype: DType, stored: DType) -> Any:
    """A fill value of integers of one dtype as it is where they are read as another.

    >>> _wrapped(-1, np.dtype("i1"), np.dtype("u1"))
    255
    """
    if stored == dtype or fill % 1:  # no integer
        return fill
    return np.array(int(fill)).astype(dtype).astype(stored).item()


def _scaled_dtype(dtype: DType, scale: Any, offset: Any) -> DType:
    """The dtype of scaled numbers, as xarray chooses it; float64 where it would take integers."""
    types = [np.dtype(type(number)) for number in (scale, offset) if number is not None]
    found = types[0]
    if offset is not None and not (len(types) == 2 and types[0] == types[1]):
        found = np.dtype("f8")  # an offset may need all of its digits
    elif offset is not None and dtype.kind in "iu" and dtype.itemsize == 4:
        found = np.dtype("f8")
    return found if found.kind in "fc" else np.dtype("f8")


def zarr_attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of a Zarr array as they would be in a NetCDF file.

    xarray writes the fill value of a variable as that of the array where the format is version 2,
    and else as an attribute, for floating-point numbers in base64. An array of version 2 that has
    no names of dimensions was not written by xarray: its fill value is then an ordinary value.
    """
    found = dict(array.attrs)
    if array.metadata.zarr_format == 2:
        if "_ARRAY_DIMENSIONS" in found and array.fill_value is not None:
            found["_FillValue"] = array.fill_value
    elif "_FillValue" in found and array.dtype.kind in "fc":
        found["_FillValue"] = _from_base64(found["_FillValue"])
    return found


def _from_base64(value: Any) -> Any:
    """A floating-point number that xarray has written, or two for a complex one; others as is.

    >>> _from_base64("AAAAAAAA8D8="), _from_base64(["AAAAAAAA8D8=", "AAAAAAAAAAA="])
    (1.0, (1+0j))
    """
    texts = value if isinstance(value, list) else [value]
    try:
        parts = [struct.unpack("<d", base64.standard_b64decode(text))[0] for text in texts]
    except (TypeError, binascii.Error, struct.error):
        return value
    return complex(*parts) if isinstance(value, list) else cast("float", parts[0])
