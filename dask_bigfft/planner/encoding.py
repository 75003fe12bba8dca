"""Frozen dataclasses as plain values for JSON, and back, every value checked by its annotation.

Pure: imports `decomposition`.
"""

import dataclasses
import itertools
import types
import typing
from typing import Any

from dask_bigfft.decomposition.layout import Digit, Group, Run

__all__ = ["decode", "encode"]


def encode(value: Any) -> Any:
    """Return dataclasses as mappings, tuples as lists, other values as they are."""
    if isinstance(value, Group):
        runs = [[size, len(list(run))] for size, run in itertools.groupby(value.chunks)]
        more = {"offset": value.offset, "arrangement": encode(value.arrangement)}
        found = {name: item for name, item in more.items() if item}
        return {"digits": encode(value.digits), "chunks": runs, **found}
    if dataclasses.is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(hint: Any, value: Any) -> Any:
    """Return the value of an annotated type that `encode` has written.

    Raises
    ------
    ValueError, TypeError, KeyError, AttributeError
        If the annotation does not allow it.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Group:
        chunks = tuple(int(s) for size, count in value["chunks"] for s in (size,) * int(count))
        digits = decode(tuple[Digit, ...], value["digits"])
        arrangement = decode(tuple[Run, ...], value.get("arrangement", []))
        return Group(digits, chunks, int(value.get("offset", 0)), arrangement)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        unknown = set(value) - set(hints)
        if unknown:
            raise ValueError(f"unknown entries {sorted(unknown)}")
        return typing.cast("Any", hint)(**{k: decode(hints[k], v) for k, v in value.items()})
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        if args[-1] is Ellipsis:
            return tuple(decode(args[0], item) for item in value)
        return tuple(decode(a, item) for a, item in zip(args, value, strict=True))
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return decode(next(a for a in args if a is not type(None)), value)
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"{value!r} is not one of {args}")
        return value
    if hint in (int, float):
        return _number(hint, value)
    if not isinstance(value, hint):
        raise TypeError(f"{value!r} is not {hint}")
    return value


def _number(hint: Any, value: Any) -> Any:
    """A number as JSON has it: neither a truth value nor text, and not beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float) if hint is float else int):
        raise TypeError(f"{value!r} is not {hint}")
    try:
        found = float(value)
    except OverflowError as error:
        raise ValueError("a number that is too large") from error
    return found if hint is float else value
