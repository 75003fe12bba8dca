"""Samples of dimensions in the units of their coordinates, or in metres on grids of degrees.

A step of latitude is that of a sphere, and a step of longitude that at the middle latitude of the
array.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import xarray as xr

from dask_bigfft.errors import parse_flag, raise_invalid
from dask_bigfft.xarray.coordinates import Samples, samples_of
from dask_bigfft.xarray.units import unit_symbol

#: Metres in a degree of latitude, on a sphere of radius 6,371 km.
METRES_PER_DEGREE = 6_371_000 * math.pi / 180

#: Metres in units of length.
_LENGTHS = {"m": 1.0, "km": 1000.0}


def samples_along(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    metres: Any,
) -> dict[Hashable, Samples]:
    """Return the samples of some dimensions, in metres if `metres` is true.

    Raises
    ------
    ArgumentError
        For samples in metres along a dimension whose coordinate tells no length.
    """
    samples = {dim: samples_of(array, dim) for dim in dims}
    if not parse_flag("metres", metres):
        return samples
    return {dim: _in_metres(array, own) for dim, own in samples.items()}


def _in_metres(array: xr.DataArray, samples: Samples) -> Samples:
    """Return the samples of a dimension in metres."""
    factor = _unit_in_metres(array, samples)
    return replace(
        samples,
        first=samples.start * factor,
        step=samples.spacing * factor,
        rate=None,
        last=None,
        units="m",
        dtype="float64",
    )


def _unit_in_metres(array: xr.DataArray, samples: Samples) -> float:
    """Return the length of 1 in a coordinate in metres. Degrees east are at the middle latitude."""
    dim = samples.dim
    units = "" if samples.units is None else unit_symbol(samples.units)
    if units in _LENGTHS:
        return _LENGTHS[units]
    if _is_along(array, dim, "north"):
        return METRES_PER_DEGREE
    others = [name for name in array.dims if name != dim]
    latitudes = [name for name in others if _is_along(array, name, "north")]
    if _is_along(array, dim, "east") and len(latitudes) == 1:
        degrees = array.coords[latitudes[0]].values
        middle = math.radians(float(degrees.min() + degrees.max()) / 2)
        return METRES_PER_DEGREE * math.cos(middle)
    allowed = f"False: dimension {dim} has no coordinate in metres, kilometres or degrees north, "
    allowed += "or in degrees east beside one in degrees north"
    raise_invalid("metres", True, allowed)


def _is_along(array: xr.DataArray, dim: Hashable, direction: str) -> bool:
    """Return True for a dimension of degrees north or east: by its unit, or else by its name."""
    if dim not in array.coords:
        return False
    coordinate = array.coords[dim]
    units = str(coordinate.attrs.get("units", "")).lower()
    names = {"north": ("lat", "latitude"), "east": ("lon", "longitude")}
    return direction in units or str(dim).lower() in names[direction]
