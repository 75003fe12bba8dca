"""The laws of arrays hold for each kind of lazy arrays, and for xarray on each."""

import importlib.util

import pytest
from support import ROOT, python

LAWS = ROOT / "tests" / "laws" / "kinds_of_arrays.py"

#: Library and setting of each kind: `array.query-planning` makes dask's arrays expressions.
KINDS = {
    "dask": ("dask.array", False),
    "dask with query planning": ("dask.array", True),
    "dask-array": ("dask_array", False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_laws_of_arrays(kind):
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
        LAWS,
        cwd=ROOT,
        env={"BIGFFT_ARRAYS": library, "DASK_ARRAY__QUERY_PLANNING": planning},
    )
