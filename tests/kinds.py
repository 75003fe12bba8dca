"""Kinds of lazy arrays. A process has one: what arrays are is decided when they are imported.

BIGFFT_ARRAYS names the library: `dask.array` (the default) or `dask_array`. The setting
`array.query-planning` makes dask's arrays expressions.
"""

import contextlib
import copy
import importlib
import importlib.util
import os

import dask
import pytest
import xarray as xr
from support import ROOT, python

#: Library and `array.query-planning` of each kind.
KINDS = {
    "dask": ("dask.array", False),
    "dask with query planning": ("dask.array", True),
    "dask-array": ("dask_array", False),
}

LIBRARY = os.environ.get("BIGFFT_ARRAYS", "dask.array")
da = importlib.import_module(LIBRARY)
IS_EXPRESSION = LIBRARY == "dask_array" or da.array_expr_enabled()

#: The kind of this process.
KIND = next(kind for kind, (library, planning) in KINDS.items() if library == LIBRARY)
if KIND == "dask" and IS_EXPRESSION:
    KIND = "dask with query planning"


def run_tests(kind, path, *arguments):
    """Run the tests of a file in a process of a kind of arrays; fail if one of them fails."""
    library, planning = KINDS[kind]
    package = library.partition(".")[0]
    if importlib.util.find_spec(package) is None:  # not imported: that would set options of dask
        pytest.skip(f"{package} is not installed")
    python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        path,
        *arguments,
        cwd=ROOT,
        env={"BIGFFT_ARRAYS": library, "DASK_ARRAY__QUERY_PLANNING": planning},
    )


@contextlib.contextmanager
def xarray_of_this_kind():
    """xarray cuts its arrays into chunks of this kind."""
    if LIBRARY != "dask_array":
        import_dask_array_without_settings()
        yield
        return
    managers = xr.namedarray.parallelcompat.list_chunkmanagers()
    before = dict(managers)
    importlib.import_module("dask_array.xarray").register()
    yield
    managers.clear()
    managers.update(before)


def import_dask_array_without_settings():
    """Import dask-array, as `dask.compute` with xarray's arrays does, and keep dask's settings."""
    before = copy.deepcopy(dask.config.config)
    with contextlib.suppress(ImportError):
        importlib.import_module("dask_array")
    dask.config.config.clear()
    dask.config.config.update(before)
