"""Keywords that functions of `dask_bigfft.xarray` take or pass on, and errors for others."""

import difflib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dask_bigfft.api.arguments import explicit_signature
from dask_bigfft.errors import ArgumentTypeError, raise_invalid

P = ParamSpec("P")
Result = TypeVar("Result")

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
    return [name for name in explicit_signature(function).parameters if name not in _NO_KEYWORDS]


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


def refuse_missing(keywords: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise an error for the first keyword that a function needs and does not get."""
    for name, parameter in explicit_signature(function).parameters.items():
        is_needed = (
            parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        )
        if is_needed and name not in keywords:
            raise ArgumentTypeError(f"{function.__name__} needs the argument `{name}`")


def knows_keywords(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function of two arrays that refuses unknown keywords, and shows the known ones."""

    @wraps(function)
    def knowing(*args: P.args, **kwargs: P.kwargs) -> Result:
        keywords = {name: value for name, value in kwargs.items() if name not in _NO_KEYWORDS}
        refuse_unknown(keywords, function)
        return function(*args, **kwargs)

    shown: Any = knowing
    shown.__signature__ = explicit_signature(function)
    return knowing
