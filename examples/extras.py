"""Optional packages of the examples, which end with one line where one of them is not installed."""

import contextlib


@contextlib.contextmanager
def extra(name):
    """End the script where an import fails, and name the extra of dask-bigfft that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed; pip install 'dask-bigfft[{name}]' brings it"
        raise SystemExit(text) from None
