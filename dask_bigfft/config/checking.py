"""Whether all settings are what they may be, looked at whenever a plan is made.

A setting that is read late would else be found wrong in the middle of a run, and one that is
misspelt never. Imports `config`.
"""

import difflib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import dask.config

from dask_bigfft import config
from dask_bigfft.errors import ArgumentTypeError, refuse

__all__ = ["check"]

#: How alike names are from which on one is suggested for the other, from 0 to 1.
NEAR = 0.8

#: Keys that were reported: each is once in a process.
_reported: set[str] = set()


def check() -> None:
    """Check all values under ``bigfft.`` in dask's configuration.

    Warns once of each key that is no setting: it does nothing, and may be misspelt.

    Raises
    ------
    ArgumentError
        If the value of a setting is not allowed.
    ArgumentTypeError
        If ``bigfft`` is no mapping.

    Examples
    --------
    >>> with dask.config.set({"bigfft.hybrid.min-speedup": -1}):
    ...     check()
    Traceback (most recent call last):
        ...
    dask_bigfft.errors.ArgumentError: `bigfft.hybrid.min-speedup`=-1 is not allowed: need a number \
of at least 0
    """
    tree = dask.config.get("bigfft", {})
    if not isinstance(tree, Mapping):
        refuse("bigfft", tree, "a mapping of settings", kind=ArgumentTypeError)
    for key in _unknown(tree, "bigfft"):
        if key not in _reported:
            _reported.add(key)
            near = _nearest(key.replace("_", "-"))
            hint = f": did you mean {near}?" if near else ""
            warnings.warn(f"there is no setting {key}, it does nothing{hint}", stacklevel=3)
    for key in config.KNOBS:
        config.get(key)


def _nearest(key: str) -> str | None:
    """The setting that a key may be meant for: nearly its name, or nearly the last part of it.

    What all names begin with does not count: it would make any two of them alike.

    >>> _nearest("bigfft.carier"), _nearest("bigfft.memory.limit"), _nearest("bigfft.workers")
    ('bigfft.exchange.carrier', 'bigfft.memory-limit', None)
    """
    whole = {known.partition(".")[2]: known for known in config.KNOBS}
    found = difflib.get_close_matches(key.partition(".")[2], whole, 1, NEAR)
    if found:
        return whole[found[0]]
    last = {known: known.rpartition(".")[2] for known in config.KNOBS}
    ends = difflib.get_close_matches(key.rpartition(".")[2], last.values(), 1, NEAR)
    several = [known for known, end in last.items() if end in ends]
    return next(iter(difflib.get_close_matches(key, several, 1, 0)), None)


def _unknown(tree: Mapping[Any, Any], above: str) -> Iterator[str]:
    """Yield the keys of a mapping, with those above, that are no settings."""
    for name, value in tree.items():
        key = f"{above}.{name}"
        if key.replace("_", "-") in config.KNOBS:  # dask takes either
            continue
        if isinstance(value, Mapping):
            yield from _unknown(value, key)
        else:
            yield key
