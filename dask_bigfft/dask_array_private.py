"""All private names of the package dask-array, imported when an array of it is transformed.

Its tables of expressions show the name of a node's class. So each transform has a class of its
name, an attribute of this module.
"""

from functools import cache
from typing import Any

from dask_array import Array
from dask_array._expr import ArrayExpr
from dask_array.slicing import SliceSlicesIntegers

from dask_bigfft.expressions import CalculationExpression, RecipeExpression


class Transform(RecipeExpression, ArrayExpr):  # type: ignore[misc, unused-ignore]
    """Transform or shift of an array, as dask-array prints it."""

    array_type = Array
    slice_type = SliceSlicesIntegers


@cache
def transform_type(name: str) -> Any:
    """Return the class of the expressions of a transform, such as ``"rfft2"``."""
    return type(name, (Transform,), {"__module__": __name__, "__doc__": Transform.__doc__})


def __getattr__(name: str) -> Any:
    """Return the class of a transform, for which pickle asks by its name."""
    if name.startswith(("_", "pytest")):  # pytest asks each module for plugins
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return transform_type(name)


class Calculation(CalculationExpression, ArrayExpr):  # type: ignore[misc, unused-ignore]
    """Result of a function that computes with arrays of dask."""

    array_type = Array
    slice_type = SliceSlicesIntegers
