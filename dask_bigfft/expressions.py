"""Nodes of expressions, which arrays are in dask with query planning, and in dask-array.

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
    #: Classes of the library: of lazy arrays, and of their slices by integers and slices.
    array_type: type
    slice_type: type

    def _operands_for_repr(self) -> list[str]:
        return [repr(self.operands[1])]

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

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        """Return a slice of the result as a transform of less; None if it stays a slice.

        The library asks this for every expression that reads the result. Where others than slices
        read it, it is computed as a whole in any case.
        """
        readers = {parent._name: parent}
        for reference in dependents.get(self._name, ()):
            reader = reference()
            if reader is not None:
                readers[reader._name] = reader
        if any(type(reader) is not self.slice_type for reader in readers.values()):
            return None
        array, recipe, _ = self.operands
        make_array: Any = self.array_type
        part = recipe.part(
            make_array(array),
            make_array(self),
            parent.index,
            only_reader=len(readers) == 1,
        )
        return None if part is None else part.expr


class CalculationExpression:
    """Array that dask's own graph makes from arrays of another library, its further operands.

    A calculation has the `array` of dask, its `prefix` of names, and its `tasks`, given the name of
    the result and those of the sources.
    """

    _parameters = ["calculation"]  # noqa: RUF012 (the base class has it so)
    operands: list[Any]
    deterministic_token: Any

    def _operands_for_repr(self) -> list[str]:
        return [repr(self.operands[0])]

    @cached_property
    def _name(self) -> Any:
        return f"{self.operands[0].prefix}-{self.deterministic_token}"

    @property
    def chunks(self) -> Any:
        """Chunks of the result."""
        return self.operands[0].array.chunks

    @property
    def _meta(self) -> Any:
        return self.operands[0].array._meta

    def _layer(self) -> Any:
        calculation, *sources = self.operands
        return calculation.tasks(self._name, [source._name for source in sources])
