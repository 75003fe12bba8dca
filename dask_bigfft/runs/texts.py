"""Windows and filters by name as texts, on the command line and in `run`."""

from typing import Any

import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft.errors import ArgumentError, ArgumentTypeError, raise_invalid
from dask_bigfft.signal.passbands import Passband, parse_passband

#: Number of limits of each filter by name.
LIMITS = {"lowpass": 1, "highpass": 1, "bandpass": 2, "bandstop": 2}


def parse_window_text(argument: str, window: Any) -> Any:
    """Return the values of a window that a text describes; other values are returned unchanged.

    A text such as ``hann:1024`` or ``tukey:0.5:256`` has a name of `scipy.signal.get_window`,
    parameters if the window has some, and the number of values. A text that ends with ``.npy`` is
    the path of a file of values.

    Raises
    ------
    ArgumentError
        For other texts, with the name of the argument.

    Examples
    --------
    >>> parse_window_text("win", "hann:4").tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    if not isinstance(window, str):
        return window
    allowed = "values, the path of an .npy file of them, or a name of scipy.signal.get_window and "
    allowed += "a number of values, such as 'hann:1024' or 'tukey:0.5:256'"
    if not window.endswith(".npy") and ":" not in window:
        raise_invalid(argument, window, allowed)
    try:
        return _values_of(window)
    except (OSError, ValueError, TypeError) as error:
        raise_invalid(argument, window, f"{allowed} ({error})")


def _values_of(text: str) -> Any:
    """Return the values of the window that a text describes."""
    if text.endswith(".npy"):
        return np.load(text)
    name, *parameters, count = text.split(":")
    described: Any = (name, *map(float, parameters)) if parameters else name
    return scipy.signal.get_window(described, int(count))


def parse_transfer_text(transfer: Any) -> Any:
    """Return the transfer function that a text describes; what is no text is returned unchanged.

    ``lowpass:0.1`` and ``bandpass:0.1:0.2:sharp`` have the name of a filter, its cutoff or the two
    of its band in cycles per unit of the spacing, and the shape of its edge, by default gaussian.

    Raises
    ------
    ArgumentError
        For other texts.

    Examples
    --------
    >>> parse_transfer_text("lowpass:0.25:sharp")(np.array([0.0, 0.25, 0.5]))
    array([1., 1., 0.])
    """
    if not isinstance(transfer, str):
        return transfer
    allowed = "a name and its limits, such as 'lowpass:0.1' or 'bandpass:0.1:0.2:sharp' (or "
    allowed += "highpass, bandstop), a function of the frequencies, or an array"
    name, *values = transfer.split(":")
    count = LIMITS.get(name)
    if count is None or len(values) not in (count, count + 1):
        raise_invalid("transfer", transfer, allowed)
    try:
        return _passband_of(name, values[:count], *values[count:])
    except (ArgumentError, ArgumentTypeError) as error:
        raise_invalid("transfer", transfer, f"{allowed} ({error})")


def _passband_of(name: str, limits: list[str], edge: str = "gaussian") -> Passband:
    """Return a filter by name with the default order and width of its edge."""
    return parse_passband(
        name,
        limits if LIMITS[name] > 1 else limits[0],
        by="frequency",
        edge=edge,
        order=4,
        width=0.2,
    )
