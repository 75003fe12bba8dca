"""What settings may be: each function takes the key and a value, and returns what `get` returns.

Or refuses it. Imports dask and `errors`.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import dask.config
from dask.utils import parse_bytes

from dask_bigfft.errors import is_path, refuse

Parse = Callable[[str, Any], Any]


def parse_gain(key: str, value: Any) -> float:
    """Return a number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        refuse(key, value, "a number of at least 0")
    return float(value)


def one_of(*names: str, **meaning: str) -> Parse:
    """Return a parser of names, with those of `meaning` standing for another name."""

    def parse(key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in (*meaning, *names):
            refuse(key, value, f"one of {', '.join((*meaning, *names))}")
        return meaning.get(value, value)

    return parse


def parse_order(key: str, value: Any) -> str | tuple[str, ...]:
    """Return one order, or a tuple with an order for each transformed axis."""
    per_axis = isinstance(value, list | tuple)
    orders = tuple(value) if per_axis else (value,)
    for order in orders:
        if order not in ("natural", "transposed"):
            refuse(key, value, "natural or transposed, or a list of these with one for each axis")
    return orders if per_axis else str(value)


def parse_chunks(key: str, value: Any) -> Any:
    """Return ``auto``, ``preserve`` or dask chunks, with tuples where YAML has lists."""
    if isinstance(value, list | tuple):
        return tuple(parse_chunks(key, item) for item in value)
    if value in ("auto", "preserve") or (_is_int(value) and (value > 0 or value == -1)):
        return value
    if isinstance(value, str):
        return f"{parse_nbytes(key, value, _CHUNKS)} B"
    refuse(key, value, _CHUNKS)


def parse_rounds(key: str, value: Any) -> tuple[Any, ...] | None:
    """Return a tuple with a factor, or a mapping of axes to factors, for each round."""
    if value is None:
        return None
    allowed = "null, or a list with a factor or a mapping of axis to factor for each round"
    if not isinstance(value, list | tuple) or not value:
        refuse(key, value, allowed)
    for named in value:
        pairs = named.items() if isinstance(named, Mapping) else [(0, named)]
        if not pairs or not all(_is_int(axis) and _is_int(n) for axis, n in pairs):
            refuse(key, value, allowed)
    return tuple(value)


_SIZE = "a number of bytes above 0, such as 1073741824 or '1 GiB'"
_SIZE_OR_0 = "a number of bytes, such as 1073741824 or '1 GiB', or 0"
_CHUNKS = "auto, preserve, or dask chunks: lengths, a size, or a list of these"


def parse_nbytes(key: str, value: Any, allowed: str = _SIZE) -> int:
    """Return a number of bytes from an integer or a string such as ``4 GiB``."""
    if isinstance(value, str):
        try:
            nbytes = int(parse_bytes(value))
        except ValueError:
            refuse(key, value, allowed)
    elif _is_int(value):
        nbytes = int(value)
    else:
        refuse(key, value, allowed)
    if nbytes <= 0:
        refuse(key, value, allowed)
    return nbytes


def parse_nbytes_or_none(key: str, value: Any) -> int | None:
    """Return a number of bytes, or None where the setting is null."""
    return None if value is None else parse_nbytes(key, value)


def parse_nbytes_none_or_0(key: str, value: Any) -> int | None:
    """Return a number of bytes that may be 0, or None where the setting is null."""
    nothing = isinstance(value, str | int) and not isinstance(value, bool) and value in (0, "0")
    if nothing or value is None:
        return 0 if nothing else None
    return parse_nbytes(key, value, _SIZE_OR_0)


def parse_nbytes_or_0(key: str, value: Any) -> int:
    """Return a number of bytes that may be 0; null is refused."""
    found = None if value is None else parse_nbytes_none_or_0(key, value)
    return parse_nbytes(key, value, _SIZE_OR_0) if found is None else found


def parse_bool(key: str, value: Any) -> bool:
    """Return a truth value; numbers and strings are refused."""
    if not isinstance(value, bool):
        refuse(key, value, "true or false")
    return value


def parse_count(key: str, value: Any) -> int:
    """Return a count of at least 1."""
    if not _is_int(value) or value < 1:
        refuse(key, value, "an integer of at least 1")
    return int(value)


def parse_name(key: str, value: Any) -> str:
    """Return the name of an FFT library, or ``auto``; the kernels know which exist."""
    if not isinstance(value, str) or not value.isidentifier():
        refuse(key, value, "auto, scipy, mkl_fft, ducc0, pyfftw, or another kernel's name")
    return value


def parse_cache_directory(key: str, value: Any) -> str:
    """Return an absolute path; null is a folder of the user's cache."""
    if value is None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        value = os.path.join(cache, "dask_bigfft")
    return parse_directory(key, value, "dask_bigfft in the user's cache directory")


def parse_directory(key: str, value: Any, null: str = "dask's temporary-directory") -> str:
    """Return an absolute path; null is dask's temporary directory, or the system's."""
    if value is None:
        value = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    if not is_path(value):
        refuse(key, value, f"the path of a folder, or null for {null}")
    return os.path.abspath(value)


def parse_file(key: str, value: Any) -> str | None:
    """Return an absolute path, or None where the setting is null."""
    if value is None:
        return None
    if not is_path(value):
        refuse(key, value, "the path of a file, or null")
    return os.path.abspath(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
