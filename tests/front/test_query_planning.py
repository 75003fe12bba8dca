"""Where dask arrays are expressions (`array.query-planning`), transforms work as elsewhere."""

import importlib.util

import pytest
from support import ROOT, python


def test_transforms_of_expressions(tmp_path):
    program = ROOT / "tests" / "front" / "expressions.py"
    variables = {"DASK_ARRAY__QUERY_PLANNING": True}
    process = python(program, "dask.array", cwd=tmp_path, env=variables)
    assert process.stdout.split("\n")[-2] == "all right"


def test_transforms_of_the_package_dask_array(tmp_path):
    """Its arrays are expressions of their own, also where those of dask are; see `test_kinds`."""
    if importlib.util.find_spec("dask_array") is None:  # its import sets options of dask
        pytest.skip("dask-array is not installed")
    program = ROOT / "tests" / "front" / "expressions.py"
    variables = {"DASK_ARRAY__QUERY_PLANNING": True}
    process = python(program, "dask_array", cwd=tmp_path, env=variables)
    assert process.stdout.split("\n")[-2] == "all right"
