"""All private names of the package dask-array, imported when an array of it is transformed."""

from dask_array import Array
from dask_array._expr import ArrayExpr
from dask_array.slicing import SliceSlicesIntegers

from dask_bigfft.expressions import CalculationExpression, RecipeExpression


class Transform(RecipeExpression, ArrayExpr):  # type: ignore[misc, unused-ignore]
    """Transform or shift of an array, as dask-array prints it."""

    array_type = Array
    slice_type = SliceSlicesIntegers


class Calculation(CalculationExpression, ArrayExpr):  # type: ignore[misc, unused-ignore]
    """Result of a function that computes with arrays of dask."""
