"""The exceptions of the package, and checks of arguments.

::

    BigFFTError
    +-- ArgumentError      (ValueError)    a value that is not allowed
    |   +-- AxisError      (IndexError)    an array has no such axis
    |   +-- PlanError                      no plan meets what was asked
    |       +-- MemoryLimitError           nor the memory limit
    +-- ArgumentTypeError  (TypeError)     a type that is not allowed
    +-- CarrierError       (RuntimeError)  a graph runs where its carrier cannot work
    +-- ClusterError       (RuntimeError)  a cluster is not what its client needs
    +-- DeviceError        (RuntimeError)  a device is absent or cannot do what is asked
    |   +-- DeviceMemoryError (MemoryError)  a device's memory, or its budget, is used up
    +-- KernelError        (RuntimeError)  a kernel cannot do what its round needs
    +-- ScratchError       (OSError)       a scratch file cannot be written, or is damaged
    +-- VerificationError  (RuntimeError)  a result is not what it has to be

    FallbackWarning        (RuntimeWarning)  something slower is used than was to be expected
"""

import operator
import re
import reprlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "AxisError",
    "BigFFTError",
    "CarrierError",
    "ClusterError",
    "DeviceError",
    "DeviceMemoryError",
    "FallbackWarning",
    "KernelError",
    "MemoryLimitError",
    "PlanError",
    "ScratchError",
    "VerificationError",
]
__dir__ = __all__.copy  # so that completion shows these names alone

T = TypeVar("T")


class BigFFTError(Exception):
    """Base class of the package's exceptions."""


class ArgumentError(BigFFTError, ValueError):
    """An argument has a value that is not allowed."""


class ArgumentTypeError(BigFFTError, TypeError):
    """An argument has a type that is not allowed."""


class AxisError(ArgumentError, IndexError):
    """An array has no such axis: a `ValueError` and an `IndexError`, like NumPy's of that name."""


class PlanError(ArgumentError):
    """No plan meets the given limits."""


class MemoryLimitError(PlanError):
    """No plan meets the memory limit."""


class CarrierError(BigFFTError, RuntimeError):
    """A graph was built for another scheduler than the one that runs it; build it again there."""


class ClusterError(BigFFTError, RuntimeError):
    """A process of a cluster lacks the package, or has another version of it."""


class DeviceError(BigFFTError, RuntimeError):
    """A device is absent, or does not support an operation."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device's memory, or its budget, is exhausted."""


class KernelError(BigFFTError, RuntimeError):
    """An FFT library is absent, or does not support a round."""


class ScratchError(BigFFTError, OSError):
    """A scratch file cannot be made, written or read; has the attributes of an `OSError`."""


class DamagedShardError(ScratchError):
    """Shards in a scratch file are damaged, also after a second read.

    Attributes
    ----------
    exchange : str
        Folder of the exchange.
    number : int
        Number of the exchange, from 0.
    sources : tuple of tuples of int
        Blocks that wrote the shards.
    """

    exchange: str
    number: int
    sources: tuple[tuple[int, ...], ...]


class VerificationError(BigFFTError, RuntimeError):
    """A round or a shard fails its check, also after a second attempt."""


class FallbackWarning(RuntimeWarning):
    """A slower way than expected is used, such as another FFT library."""


_short = reprlib.Repr()
_short.maxstring = 80
_short.maxother = 80
_short.maxtuple = 8
_short.maxlist = 8


def raise_invalid(
    argument: str,
    value: object,
    allowed: str,
    *,
    kind: type[BigFFTError] = ArgumentError,
) -> NoReturn:
    """Raise `kind` with a message that names the argument, its value and what is allowed.

    Parameters
    ----------
    argument
        Name of the argument, as the caller wrote it.
    value
        Given value; a long one is shortened in the message.
    allowed
        Description of the allowed values, which follows the word "need".
    kind
        Class of the exception.

    Examples
    --------
    >>> raise_invalid("axis", 7, "-2..1 for an array with 2 axes")
    Traceback (most recent call last):
        ...
    dask_bigfft.errors.ArgumentError: `axis`=7 is not allowed: need -2..1 for an array with 2 axes
    """
    if isinstance(value, str):  # `Path` makes one slash of the two in a URL
        value = re.sub(r"^(\w+:/)(?=[^/])", r"\1/", value)
    raise kind(f"`{argument}`={_short.repr(value)} is not allowed: need {allowed}")


def has_unit(values: object) -> bool:
    """Return True for a quantity, whose unit `numpy.asarray` drops.

    Those of pint have `units` and `magnitude`; those of astropy and unyt are arrays with a unit.
    """
    if hasattr(values, "units") and hasattr(values, "magnitude"):
        return True
    return isinstance(values, np.ndarray) and (hasattr(values, "unit") or hasattr(values, "units"))


def parse_type(
    argument: str,
    value: Any,
    kinds: Any,
    allowed: str,
) -> Any:
    """Return an argument that has one of some types; an error names it.

    >>> parse_type("axes", 1.5, (int, list), "an integer or a list")
    Traceback (most recent call last):
    dask_bigfft.errors.ArgumentTypeError: `axes`=1.5 is not allowed: need an integer or a list
    """
    if not isinstance(value, kinds):
        raise_invalid(argument, value, allowed, kind=ArgumentTypeError)
    return value


def parse_choice(argument: str, value: Any, *allowed: str) -> Any:
    """Return an argument that is one of some texts; an error names it.

    >>> parse_choice("mode", "all", "full", "same")
    Traceback (most recent call last):
    dask_bigfft.errors.ArgumentError: `mode`='all' is not allowed: need one of 'full', 'same'
    """
    if not isinstance(value, str) or value not in allowed:
        raise_invalid(argument, value, f"one of {', '.join(map(repr, allowed))}")
    return value


def parse_count(
    argument: str,
    value: Any,
    least: int = 1,
    most: int | None = None,
) -> int:
    """Return an argument that is a whole number from `least` to `most`; an error names it.

    Parameters
    ----------
    argument
        Name of the argument, as the caller wrote it.
    value
        Given value.
    least, most
        The smallest and the largest number that is allowed.

    Examples
    --------
    >>> parse_count("workers", 0)
    Traceback (most recent call last):
        ...
    dask_bigfft.errors.ArgumentError: `workers`=0 is not allowed: need an integer of at least 1
    """
    allowed = f"an integer of at least {least}"
    if most is not None:
        allowed += f", and at most {most}"
    count = parse_as(operator.index, argument, value, allowed)
    if isinstance(value, bool):
        raise_invalid(argument, value, allowed, kind=ArgumentTypeError)
    if count < least or (most is not None and count > most):
        raise_invalid(argument, value, allowed)
    return count


def parse_as(
    kind: Callable[[Any], T],
    argument: str,
    value: Any,
    allowed: str,
) -> T:
    """Return an argument converted by a type or function; an error names it.

    >>> parse_as(float, "fs", "fast", "a number")
    Traceback (most recent call last):
    dask_bigfft.errors.ArgumentTypeError: `fs`='fast' is not allowed: need a number
    """
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise_invalid(argument, value, allowed, kind=ArgumentTypeError)


def parse_flag(name: str, value: Any) -> bool:
    """Return a boolean argument; other types raise an error.

    >>> parse_flag("overwrite", "no")
    Traceback (most recent call last):
        ...
    dask_bigfft.errors.ArgumentTypeError: `overwrite`='no' is not allowed: need True or False
    """
    return bool(parse_type(name, value, bool | np.bool_, "True or False"))
