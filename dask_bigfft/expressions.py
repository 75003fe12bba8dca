"""Transforms where lazy arrays are expressions: in dask with query planning, and in dask-array.

Each library has its own base class of expressions, `ArrayExpr`.
"""

from functools import cached_property
from typing import Any


class RecipeExpression:
    """Array that tasks of a recipe make from another one, beside an `ArrayExpr` of a library.

    They may need a second array, the factor.
    """

    _parameters = ["array", "recipe", "factor"]  # noqa: RUF012 (the base class has it so)
    _defaults = {"factor": None}  # noqa: RUF012
    operands: list[Any]
    deterministic_token: Any

    @cached_property
    def _name(self) -> Any:
        return self.operands[1].name(self.deterministic_token)

    @property
    def chunks(self) -> Any:
        """Chunks of the result."""
        return self.operands[1].plan.chunks

    @property
    def _meta(self) -> Any:
        return self.operands[1].meta(self.operands[0]._meta)

    def _layer(self) -> Any:
        array, recipe, factor = self.operands
        names = [array._name] if factor is None else [array._name, factor._name]
        return recipe.tasks(self.deterministic_token, *names)
