"""Tests of SciPy's and dask's own, as modules that may be changed."""

import importlib.util


def load(name):
    """Return a fresh copy of a module of such tests, or None where they are not installed.

    >>> load("scipy.fft.tests.no_such_tests")
    """
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
