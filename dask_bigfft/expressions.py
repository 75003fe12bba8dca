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

        The library asks this for every expression that reads the result.
        """
        readers = _readers(self, parent, dependents)
        if not _are_slices_of_less(self, readers):
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


def _readers(expression: Any, parent: Any, dependents: Any) -> list[Any]:
    """Return the expressions that read another one, among them its parent."""
    readers = {parent._name: parent}
    for reference in dependents.get(expression._name, ()):
        reader = reference()
        if reader is not None:
            readers[reader._name] = reader
    return list(readers.values())


def _are_slices_of_less(expression: Any, readers: list[Any]) -> bool:
    """Return whether all readers of an expression are slices, with no more values than it has.

    It is computed as a whole if others read it. Slices that overlap would compute values twice.
    """
    if any(type(reader) is not expression.slice_type for reader in readers):
        return False
    return bool(sum(reader.size for reader in readers) <= expression.size)


class CalculationExpression:
    """Array that dask's own graph makes from arrays of another library, its further operands.

    A calculation has the `array` of dask, its `prefix` of names, and its `tasks`, given the name of
    the result and those of the sources. One with a single source may have `rows`, by which a slice
    of the result is made.
    """

    _parameters = ["calculation"]  # noqa: RUF012 (the base class has it so)
    operands: list[Any]
    deterministic_token: Any
    #: As `RecipeExpression` has them.
    array_type: type
    slice_type: type

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

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        """Return a slice of the result as the result of less; None if it stays a slice."""
        calculation, *sources = self.operands
        if calculation.rows is None:
            return None
        if not _are_slices_of_less(self, _readers(self, parent, dependents)):
            return None
        (source,) = sources
        make_array: Any = self.array_type
        part = calculation.rows.part(make_array(source), make_array(self), parent.index)
        return None if part is None else part.expr
