"""Where dask arrays are expressions (`array.query-planning`), transforms work as elsewhere."""

from support import ROOT, python


def test_transforms_of_expressions(tmp_path):
    program = ROOT / "tests" / "front" / "expressions.py"
    process = python(program, cwd=tmp_path, env={"DASK_ARRAY__QUERY_PLANNING": True})
    assert process.stdout.split("\n")[-2] == "all right"
