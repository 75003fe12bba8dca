"""Windows of short-time transforms as texts, on the command line and in `run`."""

from typing import Any

import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft.errors import raise_invalid


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
