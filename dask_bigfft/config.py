"""The settings of the package and their checks; `bigfft-schema.yaml` describes them.

The values live in `dask.config` under ``bigfft.``, so files, environment variables
(``DASK_BIGFFT__MEMORY_LIMIT=4GiB``) and ``dask.config.set`` work as for dask. Importing this module
loads ``bigfft.yaml`` as the defaults. An argument of a call wins over a setting.
"""

import difflib
import functools
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

import dask.config
import yaml
from dask.utils import parse_bytes

from dask_bigfft.errors import parse_type, raise_invalid

__all__ = ["SETTINGS", "Setting", "argument", "check", "get", "own_version"]
__dir__ = __all__.copy  # so that completion shows these names alone

#: Minimum similarity of a suggested name, from 0 to 1.
NEAR = 0.8

#: Unknown keys that this process has reported.
_reported: set[str] = set()

#: The settings that were checked last, as text.
_valid = [""]


def own_version() -> str:
    """Return the version of the package in this process."""
    return str(sys.modules["dask_bigfft"].__version__)


@dataclass(frozen=True, eq=False)  # each exists once, so its identity is a fast hash
class Setting:
    """One setting, as the schema describes it.

    Parameters
    ----------
    key, unit, description : str
        Name in `dask.config`, unit of the values, and description.
    default
        Default in YAML. Null is allowed if it is the default.
    type : str
        Type of the values, the name of a parser of this module.
    enum : sequence of str
        Allowed names, for ``type="enum"``.
    minimum : int, optional
        Minimum of a number.
    """

    key: str
    default: Any
    unit: str
    description: str
    type: str = "enum"
    enum: tuple[str, ...] = ()
    minimum: int = 1

    def parse(self, name: str, value: Any) -> Any:
        """Return the checked value; an error names it `name`."""
        read, allowed = _TYPES[self.type]
        try:
            return read(self, value)
        except (TypeError, ValueError, OverflowError):
            raise_invalid(name, value, allowed.format(self=self, names=", ".join(self.enum)))


def _require(allowed: bool) -> None:
    """Raise an error unless a value is allowed; `Setting.parse` then names the value."""
    if not allowed:
        raise ValueError


def is_int(value: Any) -> bool:
    """Return True for integers of any type except bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _enum(setting: Setting, value: Any) -> Any:
    """Return one of the names of a setting."""
    _require(isinstance(value, str) and value in setting.enum)
    return value


def _boolean(setting: Setting, value: Any) -> bool:
    """Return a boolean."""
    _require(isinstance(value, bool))
    return bool(value)


def _integer(setting: Setting, value: Any) -> int:
    """Return an integer that is not below the minimum of a setting."""
    _require(is_int(value) and value >= setting.minimum)
    return int(value)


def _number(setting: Setting, value: Any) -> float:
    """Return a number that is not below the minimum of a setting."""
    _require(isinstance(value, Real) and not isinstance(value, bool))
    number = float(value)
    _require(number >= setting.minimum)
    return number


def _fraction(setting: Setting, value: Any) -> float | None:
    """Return a number up to 1, or None."""
    if value is None:
        return None
    fraction = _number(setting, value)
    _require(fraction <= 1)
    return fraction


@functools.lru_cache(maxsize=256, typed=True)
def _bytes(setting: Setting, value: Any) -> int | None:
    """Return a number of bytes, or None if that is the default of a setting."""
    if value is None and setting.default is None:
        return None
    if isinstance(value, str):
        _require(any(char.isdigit() for char in value))  # dask takes "MB" as one of them
        value = parse_bytes(value)
    _require(_number(setting, value) < math.inf)
    return int(value)


def _folder(setting: Setting, value: Any) -> str:
    """Return the absolute path of a folder, by default the usual one."""
    if value is None:
        value = _usual_folder(setting)
    _require(is_path(value) and "://" not in str(value))
    return str(os.path.abspath(value))


def _usual_folder(setting: Setting) -> str:
    """Return the folder of a setting without a value."""
    if setting.key == "bigfft.wisdom.directory":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return os.path.join(cache, "dask_bigfft")
    return dask.config.get("temporary-directory", None) or tempfile.gettempdir()


def _file(setting: Setting, value: Any) -> str | None:
    """Return the absolute path of a file, or None."""
    if value is None:
        return None
    _require(is_path(value))
    return str(os.path.abspath(value))


def _order(setting: Setting, value: Any) -> str | tuple[str, ...]:
    """Return one order, or a tuple with an order for each transformed axis."""
    if isinstance(value, list | tuple):
        return tuple(str(_order(setting, order)) for order in value)
    _require(value in ("natural", "transposed"))
    return str(value)


def _chunks(setting: Setting, value: Any) -> Any:
    """Return ``auto``, ``preserve`` or dask chunks, with tuples where YAML has lists."""
    if isinstance(value, list | tuple):
        return tuple(_chunks(setting, part) for part in value)
    if isinstance(value, str):
        return value if value in ("auto", "preserve") else f"{_bytes(setting, value)} B"
    _require(is_int(value) and (value > 0 or value == -1))
    return value


def _rounds(setting: Setting, value: Any) -> Any:
    """Return a factor or a mapping of axis to factor for each round, or no rounds."""
    if not value:
        return value
    _require(isinstance(value, list | tuple))
    return tuple(value)


#: Reader of the values of each type of setting, and the values that it allows, in words.
_TYPES: Mapping[str, tuple[Callable[[Setting, Any], Any], str]] = {
    "enum": (_enum, "one of {names}"),
    "boolean": (_boolean, "true or false"),
    "integer": (_integer, "an integer of at least {self.minimum}"),
    "number": (_number, "a number of at least {self.minimum}"),
    "fraction": (_fraction, "a number from 0 to 1, or null"),
    "bytes": (_bytes, "a number of bytes from {self.minimum} on, such as 1073741824 or '1 GiB'"),
    "folder": (_folder, "the path of a folder, or null for the usual one"),
    "file": (_file, "the path of a file, or null"),
    "order": (_order, "natural or transposed, or a list of these with one for each axis"),
    "chunks": (_chunks, "auto, preserve, or dask chunks: lengths, a size, or a list of these"),
    "rounds": (
        _rounds,
        "null, or a list with a factor or a mapping of axis to factor for each round",
    ),
}


#: Loader of YAML files, in C where the system's library was there when PyYAML was built: 2 ms in
#: place of 20.
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _read(name: str) -> Any:
    """Return the content of a YAML file of this package."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)


#: Every setting by its key.
SETTINGS: Mapping[str, Setting] = {
    key: Setting(key, **entry) for key, entry in _read("bigfft-schema.yaml").items()
}

dask.config.update_defaults(_read("bigfft.yaml"))


def get(key: str, argument: str = "", value: Any = None) -> Any:
    """Return the checked value of the setting `key`, such as ``"bigfft.memory-limit"``.

    With an argument of a call that is not None, return that instead, checked under its name.

    Sizes are in bytes, lists are tuples, and null is None.

    Raises
    ------
    ArgumentError
        If there is no such setting, or its value is not allowed.

    Examples
    --------
    >>> with dask.config.set({"bigfft.memory-limit": "2 GiB"}):
    ...     get("bigfft.memory-limit")
    2147483648
    """
    setting = SETTINGS.get(key)
    if setting is None:
        raise_invalid("key", key, f"one of {', '.join(SETTINGS)}")
    if value is not None:
        return setting.parse(argument, value)
    return setting.parse(key, dask.config.get(key, default=setting.default))


def argument(name: str, value: Any = None) -> Any:
    """Return the checked value of a keyword that has a setting, by default the setting's.

    >>> argument("planner"), argument("memory_limit", "2 GiB"), argument("digits")
    ('estimate', 2147483648, None)
    """
    key = f"bigfft.{name.replace('_', '-')}"
    if name == "planner":
        key = "bigfft.planner.mode"
    if key not in SETTINGS:
        return value
    return get(key, name, value)


def check() -> None:
    """Check all values under ``bigfft.`` in dask's configuration, whenever a plan is made.

    Otherwise an invalid setting could stop a run in the middle. A warning reports each unknown key
    once, because it has no effect and may be misspelt.

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
    text = repr(tree)
    if text == _valid[0]:
        return
    parse_type("bigfft", tree, Mapping, "a mapping of settings")
    for key in _unknown(tree, "bigfft"):
        if key in _reported:
            continue
        _reported.add(key)
        message = f"there is no setting {key}, it does nothing"
        nearest = _nearest(key.replace("_", "-"))
        if nearest:
            message += f": did you mean {nearest}?"
        warnings.warn(message, stacklevel=3)
    for key in SETTINGS:
        get(key)
    _valid[0] = text


def _nearest(key: str) -> str | None:
    """Return the setting with the most similar name, or last part of the name, to a key.

    >>> _nearest("bigfft.carier"), _nearest("bigfft.memory.limit"), _nearest("bigfft.workers")
    ('bigfft.exchange.carrier', 'bigfft.memory-limit', None)
    """
    keys_by_name = {known.partition(".")[2]: known for known in SETTINGS}
    similar_names = difflib.get_close_matches(key.partition(".")[2], keys_by_name, 1, NEAR)
    if similar_names:
        return keys_by_name[similar_names[0]]
    last_parts = {known: known.rpartition(".")[2] for known in SETTINGS}
    similar_parts = difflib.get_close_matches(
        key.rpartition(".")[2],
        last_parts.values(),
        1,
        NEAR,
    )
    similar_keys = [known for known, part in last_parts.items() if part in similar_parts]
    nearest = difflib.get_close_matches(key, similar_keys, n=1, cutoff=0)
    return nearest[0] if nearest else None


def _unknown(tree: Mapping[Any, Any], above: str) -> Iterator[str]:
    """Yield the full keys of a nested mapping that are no settings."""
    for name, value in tree.items():
        key = f"{above}.{name}"
        if key.replace("_", "-") in SETTINGS:  # dask takes either
            continue
        if isinstance(value, Mapping):
            yield from _unknown(value, key)
        else:
            yield key


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    r"""Return True for a valid path of a file; not every string is one.

    >>> is_path("a.zarr"), is_path("a\0b"), is_path(""), is_path(3)
    (True, False, False, False)
    """
    if not isinstance(value, str | os.PathLike):
        return False
    try:
        name = os.fsencode(value)
    except UnicodeEncodeError:  # half a pair of code points, which stands for no character
        return False
    return bool(name) and b"\0" not in name
