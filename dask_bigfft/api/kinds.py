"""Functions that compute with arrays of dask, and take those of the package dask-array, too.

An array of dask-array is an expression, and dask's functions do not take it. For the time of a call
a *stand-in* replaces it: an array of dask with the same chunks, whose blocks have no tasks yet. The
result becomes a node of an expression. When that turns into tasks, the blocks of the stand-in
become names of the blocks that dask-array makes::

    array of dask-array --stand-in--> array of dask --function--> array of dask
            |                                                         |
            +------ operand ------> Calculation <------ graph --------+
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import dask.array as da
import numpy as np
from dask.utils import key_split

from dask_bigfft.api.arguments import explicit_signature
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.api.rows import RowCall, row_call
from dask_bigfft.dask_private import (
    Alias,
    Task,
    array_of_tasks,
    calculated_array,
    is_of_dask_array,
    optimized_tasks,
)

P = ParamSpec("P")
Result = TypeVar("Result")


def as_dask(x: Any) -> Any:
    """Return a lazy array as an array of dask with the same tasks; other values unchanged."""
    if not is_of_dask_array(x):
        return x
    return array_of_tasks(dict(x.__dask_graph__()), x.name, x)


def keeps_kind(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function that takes arrays of dask-array where `function` takes those of dask.

    Its results are arrays of dask-array if one of its arguments is. Help and completion show each
    keyword of its options, and others are refused.
    """
    return _keeping(function, None)


def keeps_rows(*by_row: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Return a decorator that does what `keeps_kind` does, for a function of rows.

    Such a function computes each row of its first argument, along the axes that its argument `axes`
    or `axis` names, by itself. The arrays that it returns have all axes of its first argument at
    the same places. Its arguments named `by_row` may be arrays with other values for each row.
    """

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        return _keeping(function, by_row)

    return decorate


def _keeping(
    function: Callable[P, Result],
    by_row: tuple[str, ...] | None,
) -> Callable[P, Result]:
    """Return what `keeps_kind` returns, and with names `by_row` what `keeps_rows` does."""
    signature = explicit_signature(function)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds

    @wraps(function)
    def keeping(*args: P.args, **kwargs: P.kwargs) -> Result:
        if not takes_any:
            refuse_unknown(kwargs, signature.parameters)
        values: tuple[Any, ...] = (*args, *kwargs.values())
        sources = {x.name: x for x in values if is_of_dask_array(x)}
        if not sources:
            return function(*args, **kwargs)
        stand_ins = {name: _stand_in(x) for name, x in sources.items()}

        def replaced(value: Any) -> Any:
            return stand_ins[value.name] if is_of_dask_array(value) else value

        call: Any = function
        result = call(
            *map(replaced, args),
            **{name: replaced(value) for name, value in kwargs.items()},
        )
        names = tuple(stand_in.name for stand_in in stand_ins.values())
        rows = None
        if by_row is not None and len(sources) == 1:
            rows = row_call(
                keeping,
                signature,
                by_row,
                args,
                kwargs,
            )
        return cast("Result", _in_kind(result, names, list(sources.values()), rows))

    shown: Any = keeping
    shown.__signature__ = signature
    return keeping


def _stand_in(x: Any) -> da.Array:
    """Return an array of dask in the chunks of another one, whose blocks have no values yet."""
    name = f"blocks_of-{x.name}"
    tasks = {}
    for block in np.ndindex(*map(len, x.chunks)):
        key = (name, *block)
        tasks[key] = Task(key, _absent, key)
    return array_of_tasks(tasks, name, x)


def _absent(key: Any) -> None:
    """Raise an error: a block of a stand-in is computed."""
    raise RuntimeError(f"{key} was computed before it was replaced by a block of its source")


def _in_kind(
    result: Any,
    names: tuple[str, ...],
    sources: Sequence[Any],
    rows: RowCall | None,
) -> Any:
    """Return a result, also one of several, with arrays of dask-array in place of dask's."""
    if isinstance(result, tuple | list):
        parts = []
        for number, part in enumerate(result):
            part_rows = None if rows is None else rows.of_tuple(number)
            parts.append(_in_kind(part, names, sources, part_rows))
        return type(result)(parts)
    if not isinstance(result, da.Array):
        return result
    return calculated_array(Calculation(result, names, rows), sources)


@dataclass(frozen=True)
class Calculation:
    """Graph of dask that makes an array from stand-ins.

    Parameters
    ----------
    array : dask.array.Array
        The result.
    names : tuple of str
        Names of the stand-ins.
    rows : RowCall, optional
        The call that made it, if that is one of a function of rows.
    """

    array: da.Array
    names: tuple[str, ...]
    rows: RowCall | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Slices are cut before the expression is sent, and a call may have what cannot be pickled.
        return Calculation, (self.array, self.names)

    def __repr__(self) -> str:
        return self.prefix

    def __dask_tokenize__(self) -> Any:
        return "dask_bigfft.Calculation", self.array.name, self.names

    @property
    def prefix(self) -> str:
        """Name of the result without its token."""
        return str(key_split(self.array.name))

    def tasks(self, name: str, sources: Sequence[str]) -> dict[Any, Any]:
        """Return the tasks, given the names of the result and of the source of each stand-in."""
        tasks, result_name = optimized_tasks(self.array, self.names)
        source_of = dict(zip(self.names, sources, strict=True))
        for key in tasks:
            if isinstance(key, tuple) and key[0] in source_of:
                _, *block = key
                tasks[key] = Alias(key, (source_of[key[0]], *block))
        for block_index in np.ndindex(*self.array.numblocks):
            key = (name, *block_index)
            tasks[key] = Alias(key, (result_name, *block_index))
        return tasks
