"""The settings of the package, and what each may be; `bigfft-schema.yaml` lists and describes them.

The values live in `dask.config` under ``bigfft.``, so files, environment variables
(``DASK_BIGFFT__MEMORY_LIMIT=4GiB``) and ``dask.config.set`` work as for dask. Importing this module
loads ``bigfft.yaml`` as the defaults. An argument of a call wins over a setting.

Imports dask and `errors`.
"""

import difflib
import math
import os
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

from dask_bigfft.errors import ArgumentTypeError, refuse

__all__ = ["SETTINGS", "Setting", "check", "get"]

#: Similarity of names from which on one is suggested for the other, from 0 to 1.
NEAR = 0.8

#: Unknown keys that were reported: each is once in a process.
_reported: set[str] = set()


@dataclass(frozen=True)
class Setting:
    """One setting, as the schema describes it.

    Parameters
    ----------
    key, unit, description : str
        Its name in `dask.config`, the unit of its values, and what it means.
    default
        Its default as YAML writes it. Null is allowed where it is the default.
    type : str
        Kind of values that are allowed, the name of a parser of this module.
    enum : sequence of str
        The names that are allowed, for ``type="enum"``.
    minimum : int, optional
        The least number that is allowed.
    """

    key: str
    default: Any
    unit: str
    description: str
    type: str = "enum"
    enum: tuple[str, ...] = ()
    minimum: int = 1

    def parse(self, name: str, value: Any) -> Any:
        """Return a value as `get` does, or refuse it as one of `name`."""
        return _PARSERS[self.type](self, name, value)


def _parse_enum(setting: Setting, name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in setting.enum:
        refuse(name, value, f"one of {', '.join(setting.enum)}")
    return value


def _parse_boolean(setting: Setting, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        refuse(name, value, "true or false")
    return value


def _parse_integer(setting: Setting, name: str, value: Any) -> int:
    if not _is_int(value) or value < setting.minimum:
        refuse(name, value, f"an integer of at least {setting.minimum}")
    return int(value)


def _parse_number(setting: Setting, name: str, value: Any) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not number >= setting.minimum:
        refuse(name, value, f"a number of at least {setting.minimum}")
    return number


def _parse_bytes(setting: Setting, name: str, value: Any) -> int | None:
    allowed = "a number of bytes above 0, such as 1073741824 or '1 GiB'"
    if setting.minimum == 0:
        allowed = allowed.replace(" above 0", "") + ", or 0"
    return (
        None
        if value is None and setting.default is None
        else _nbytes(name, value, allowed, setting.minimum)
    )


def _nbytes(name: str, value: Any, allowed: str, minimum: int = 1) -> int:
    found = int(value) if _is_int(value) else -1
    if isinstance(value, str):
        try:
            found = int(parse_bytes(value))
        except ValueError:
            refuse(name, value, allowed)
    if found < minimum:
        refuse(name, value, allowed)
    return found


def _parse_folder(setting: Setting, name: str, value: Any) -> str:
    if value is None and setting.key == "bigfft.wisdom.directory":
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        value = os.path.join(cache, "dask_bigfft")
    elif value is None:
        value = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    if not is_path(value):
        refuse(name, value, "the path of a folder, or null for the usual one")
    return os.path.abspath(value)


def _parse_file(setting: Setting, name: str, value: Any) -> str | None:
    if value is not None and not is_path(value):
        refuse(name, value, "the path of a file, or null")
    return None if value is None else os.path.abspath(value)


def _parse_kernel(setting: Setting, name: str, value: Any) -> str:
    """Return the name of an FFT library, or ``auto``; `kernels` knows which exist."""
    if not isinstance(value, str) or not value.isidentifier():
        refuse(name, value, "auto, scipy, mkl_fft, ducc0, pyfftw, or another kernel's name")
    return value


def _parse_order(setting: Setting, name: str, value: Any) -> str | tuple[str, ...]:
    """Return one order, or a tuple with an order for each transformed axis."""
    orders = tuple(value) if isinstance(value, list | tuple) else (value,)
    for order in orders:
        if order not in ("natural", "transposed"):
            refuse(name, value, "natural or transposed, or a list of these with one for each axis")
    return orders if isinstance(value, list | tuple) else str(value)


def _parse_chunks(setting: Setting, name: str, value: Any) -> Any:
    """Return ``auto``, ``preserve`` or dask chunks, with tuples where YAML has lists."""
    allowed = "auto, preserve, or dask chunks: lengths, a size, or a list of these"
    if isinstance(value, list | tuple):
        return tuple(_parse_chunks(setting, name, item) for item in value)
    if value in ("auto", "preserve") or (_is_int(value) and (value > 0 or value == -1)):
        return value
    if isinstance(value, str):
        return f"{_nbytes(name, value, allowed)} B"
    refuse(name, value, allowed)


def _parse_rounds(setting: Setting, name: str, value: Any) -> tuple[Any, ...] | None:
    """Return a tuple with a factor, or a mapping of axes to factors, for each round."""
    if value is None:
        return None
    allowed = "null, or a list with a factor or a mapping of axis to factor for each round"
    if not isinstance(value, list | tuple) or not value:
        refuse(name, value, allowed)
    for factors in value:
        pairs = factors.items() if isinstance(factors, Mapping) else [(0, factors)]
        if not pairs or not all(_is_int(axis) and _is_int(n) for axis, n in pairs):
            refuse(name, value, allowed)
    return tuple(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


_PARSERS: Mapping[str, Callable[[Setting, str, Any], Any]] = {
    "enum": _parse_enum,
    "boolean": _parse_boolean,
    "integer": _parse_integer,
    "number": _parse_number,
    "bytes": _parse_bytes,
    "folder": _parse_folder,
    "file": _parse_file,
    "kernel": _parse_kernel,
    "order": _parse_order,
    "chunks": _parse_chunks,
    "rounds": _parse_rounds,
}


def _read(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))


#: Every setting by its key.
SETTINGS: Mapping[str, Setting] = {
    key: Setting(key, **entry) for key, entry in _read("bigfft-schema.yaml").items()
}

dask.config.update_defaults(_read("bigfft.yaml"))


def get(key: str) -> Any:
    """Return the checked value of the setting `key`, such as ``"bigfft.memory-limit"``.

    Sizes come back in bytes, lists as tuples, and null as None.

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
        refuse("key", key, f"one of {', '.join(SETTINGS)}")
    return setting.parse(key, dask.config.get(key, default=setting.default))


def check() -> None:
    """Check all values under ``bigfft.`` in dask's configuration, whenever a plan is made.

    A setting that is read late would else be found wrong in the middle of a run. Warns once of each
    key that is no setting: it does nothing, and may be misspelt.

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
    for key in SETTINGS:
        get(key)


def _nearest(key: str) -> str | None:
    """Return the setting that a key may be meant for: its name, or the last part, is similar.

    >>> _nearest("bigfft.carier"), _nearest("bigfft.memory.limit"), _nearest("bigfft.workers")
    ('bigfft.exchange.carrier', 'bigfft.memory-limit', None)
    """
    whole = {known.partition(".")[2]: known for known in SETTINGS}
    found = difflib.get_close_matches(key.partition(".")[2], whole, 1, NEAR)
    if found:
        return whole[found[0]]
    last = {known: known.rpartition(".")[2] for known in SETTINGS}
    ends = difflib.get_close_matches(key.rpartition(".")[2], last.values(), 1, NEAR)
    several = [known for known, end in last.items() if end in ends]
    return next(iter(difflib.get_close_matches(key, several, 1, 0)), None)


def _unknown(tree: Mapping[Any, Any], above: str) -> Iterator[str]:
    """Yield the keys of a mapping, with those above, that are no settings."""
    for name, value in tree.items():
        key = f"{above}.{name}"
        if key.replace("_", "-") in SETTINGS:  # dask takes either
            continue
        if isinstance(value, Mapping):
            yield from _unknown(value, key)
        else:
            yield key


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    r"""Whether a value is a path that a file can have; not every string is one.

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
