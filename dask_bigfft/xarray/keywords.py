"""Keywords that functions of `dask_bigfft.xarray` take or pass on, and errors for others."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

from dask_bigfft.errors import ArgumentTypeError, raise_invalid

#: Names of arguments that are no keywords.
_NO_KEYWORDS = {"name", "array", "other"}

#: Names of the argument `dim` in other functions.
_OTHER_NAMES_OF_DIM = {"dims", "axis", "axes", "dimension", "dimensions"}


def known_keywords(function: Callable[..., Any]) -> list[str]:
    """Return the names of the keywords of a function of arrays.

    >>> from typing import TypedDict, Unpack
    >>> class Options(TypedDict, total=False):
    ...     memory_limit: int
    >>> def outer(array, dim=None, *, shift=False, **options: Unpack[Options]): ...
    >>> known_keywords(outer)
    ['dim', 'shift', 'memory_limit']
    """
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            for options in get_args(parameter.annotation):  # a class of keywords
                names += options.__annotations__
        elif name not in _NO_KEYWORDS:
            names.append(name)
    return names


def refuse_unknown(keywords: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise an error for the first keyword that a function does not have.

    Raises
    ------
    ArgumentTypeError
        With the most similar keyword, and all others.
    """
    known = known_keywords(function)
    for name, value in keywords.items():
        if name in known:
            continue
        if name in _OTHER_NAMES_OF_DIM:
            allowed = "`dim`, one or more names of dimensions, in its place"
        else:
            nearest = difflib.get_close_matches(name, known, 1)
            allowed = f"`{nearest[0]}`, or " if nearest else ""
            allowed += f"another keyword: {', '.join(known)}"
        raise_invalid(
            name,
            value,
            allowed,
            kind=ArgumentTypeError,
        )
