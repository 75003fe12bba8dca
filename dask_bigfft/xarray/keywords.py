"""Keywords that functions of `dask_bigfft.xarray` take or pass on, and errors for others."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

from dask_bigfft.errors import ArgumentTypeError, raise_invalid

#: Names of arguments that dimensions and coordinates determine.
_DETERMINED = {"name", "array", "arrays", "work", "a", "x", "y", "d", "fs", "s", "axes", "axis"}

#: Names of the argument `dim` in other functions.
_OTHER_NAMES_OF_DIM = {"dims", "axis", "axes", "dimension", "dimensions"}


def known_keywords(*functions: Callable[..., Any]) -> list[str]:
    """Return the names of the keywords of a function and of those that it passes them on to.

    >>> def inner(x, axes, *, kernel=None): ...
    >>> def outer(array, dim=None, *, shift=False, **extras): ...
    >>> known_keywords(outer, inner)
    ['dim', 'shift', 'kernel']
    """
    names: list[str] = ["dim"]
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                for options in get_args(parameter.annotation):  # a class of keywords
                    names += options.__annotations__
            elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
                names.append(name)
    return [name for name in dict.fromkeys(names) if name not in _DETERMINED]


def refuse_unknown(keywords: Mapping[str, Any], *functions: Callable[..., Any]) -> None:
    """Raise an error for the first keyword that none of some functions has.

    Raises
    ------
    ArgumentTypeError
        With the most similar keyword, and all others.
    """
    known = known_keywords(*functions)
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
