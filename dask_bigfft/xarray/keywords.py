"""Keywords that functions of `dask_bigfft.xarray` take or pass on, and errors for others."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dask_bigfft.api.arguments import explicit_signature
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.errors import ArgumentTypeError

P = ParamSpec("P")
Result = TypeVar("Result")

#: Names of arguments that are no keywords.
_NO_KEYWORDS = {"name", "array", "other"}


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
        refuse_unknown(keywords, known_keywords(function))
        return function(*args, **kwargs)

    shown: Any = knowing
    shown.__signature__ = explicit_signature(function)
    return knowing
