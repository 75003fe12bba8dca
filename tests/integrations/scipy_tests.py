"""Tests of SciPy's, dask's and xrft's own, as modules that may be changed."""

import importlib.util
from pathlib import Path


def load(name, renamed=()):
    """Return a fresh copy of a module of such tests, or None where they are not installed.

    `renamed` are new words for old ones in the text.

    >>> load("scipy.fft.tests.no_such_tests")
    """
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return None
    module = importlib.util.module_from_spec(spec)
    text = Path(spec.origin).read_text(encoding="utf-8")
    for old, new in dict(renamed).items():
        text = text.replace(old, new)
    exec(compile(text, spec.origin, "exec"), vars(module))
    return module
