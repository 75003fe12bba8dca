"""Which variables of a dataset a function is for.

Imports `errors` and this room; needs xarray.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import xarray as xr

from dask_bigfft.errors import refuse
from dask_bigfft.xarray.arrays import Dims, is_spectral

Field = TypeVar("Field", xr.DataArray, xr.Dataset)

Work = Callable[[xr.DataArray, Any], xr.DataArray]


def each(field: Field, dim: Dims, spectral: bool, work: Work) -> Field:
    """Return what `work` makes of an array, or of the variables of a dataset that it is for.

    Parameters
    ----------
    field : xarray.DataArray or xarray.Dataset
        An array, or several.
    dim : str or sequence of str, optional
        The dimensions. By default, of a dataset, all of its variables', or those of frequencies.
    spectral : bool
        Whether only dimensions of frequencies are meant by default.
    work : callable
        Takes an array and its dimensions.

    Raises
    ------
    ArgumentError
        If a variable has some of the dimensions, or none has any.
    """
    if not isinstance(field, xr.Dataset):
        return work(field, dim)
    dims = _dims(field, dim, spectral)
    variables = {name: a for name, a in field.data_vars.items() if set(a.dims) & set(dims)}
    partly = [name for name, array in variables.items() if not set(dims) <= set(array.dims)]
    if partly or not variables:
        whole = [name for name in variables if name not in partly]
        refuse(
            "dim",
            dim,
            f"dimensions that each variable has all or none of, and one has all: "
            f"{partly} have some; try dataset[{whole}]"
            if partly
            else f"some of the dimensions {tuple(field.dims)}",
        )
    found = {name: work(array, dims) for name, array in variables.items()}
    kept = {name: array for name, array in field.data_vars.items() if name not in found}
    coords = {name: c for name, c in field.coords.items() if not set(c.dims) & set(dims)}
    made = xr.Dataset(kept, coords=coords, attrs=field.attrs).assign(found)
    return made[list(field.data_vars)]


def _dims(dataset: xr.Dataset, dim: Dims, spectral: bool) -> list[Hashable]:
    """The dimensions that are meant, by default in the order in which the variables have them.

    A dataset has its coordinates' first. The last one is halved, the same way in every variable.
    """
    if dim is None:
        arrays = dataset.data_vars.values()
        named = dict.fromkeys(name for array in arrays for name in array.dims)
        return [name for name in named if not spectral or any(is_spectral(a)(name) for a in arrays)]
    if isinstance(dim, str) or not isinstance(dim, Sequence):
        return [dim]
    return list(dim)
