"""Self-tests of private parts of other libraries: what has passed on this machine is stored.

A file beside the machine's profile says with which versions a test has passed. The test is repeated
after a change of a version or of the machine, and in each process where the file cannot be written.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dask_bigfft import config, files
from dask_bigfft.arrays import Array

#: Version of the file.
SCHEMA = 2

#: Tolerance of a result in rounding errors, relative to its norm.
ALLOWED = 64


def wrong_result(
    name: str,
    versions: Mapping[str, str],
    self_test: Callable[[], str | None],
) -> str | None:
    """Return what a self-test finds wrong; None if it passes, or has passed with these versions.

    Parameters
    ----------
    name : str
        Name of what is tested, by which the file has its verdict.
    versions : mapping of str to str
        Versions that the verdict depends on, besides the machine.
    self_test : callable
        Returns a description of a wrong result, None if there is none.
    """
    path = Path(config.get("bigfft.wisdom.directory"), "self-test.json")
    context = {"machine": files.machine(), "versions": dict(versions)}
    passed = files.read_json(path, SCHEMA, lambda content: dict(content["passed"])) or {}
    if passed.get(name) == context:
        return None
    wrong = self_test()
    if wrong is None:
        passed[name] = context
        files.write_json(path, {"schema": SCHEMA, "passed": passed})
    return wrong


def relative_error(values: Array, expected: Array) -> float:
    """Return the norm of a difference relative to that of the expected values; NaN is not hidden.

    >>> relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    """
    return _length(values - expected) / _length(expected)


def _length(values: Array) -> float:
    """Return the norm of an array without BLAS, whose first threads take 0.2 s of CPU time."""
    return float(np.sqrt(np.square(np.abs(values)).sum()))
