"""All private names of the package dask-array, imported when an array of it is transformed."""

from dask_array._expr import ArrayExpr

from dask_bigfft.expressions import RecipeExpression


class Transform(RecipeExpression, ArrayExpr):  # type: ignore[misc, unused-ignore]
    """Transform or shift of an array, as dask-array prints it."""
