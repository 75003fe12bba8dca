"""The notebooks run from top to bottom; what is kept of their output is small and has a picture."""

import importlib.util
import json

import pytest
from support import ROOT, python

NOTEBOOKS = ROOT / "examples" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def outputs(notebook):
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


@pytest.mark.parametrize("name", NAMES)
def test_kept_output_is_small_and_has_a_picture(name):
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 400_000
    found = outputs(notebook)
    assert any("image/png" in output.get("data", {}) for output in found)
    assert not [output for output in found if output["output_type"] == "error"]
    assert not [output for output in found if output.get("name") == "stderr"]
    assert notebook["cells"][0]["cell_type"] == "markdown"


# In a process of its own, since the client leaves event loops open.
PROGRAM = """
import sys
import nbclient, nbformat
source, folder, result = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
resources = {"metadata": {"path": folder}}
client = nbclient.NotebookClient(
    notebook, timeout=240, kernel_name="python3", resources=resources)
client.execute()
nbformat.write(notebook, result)
"""


@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name, tmp_path):
    for needed in ("nbformat", "nbclient", "ipykernel"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    result = tmp_path / "result.ipynb"
    python(
        "-c",
        PROGRAM,
        NOTEBOOKS / f"{name}.ipynb",
        tmp_path,
        result,
        env={
            "MPLCONFIGDIR": tmp_path,
            "IPYTHONDIR": tmp_path / "ipython",
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        },
    )  # draws into the notebook
    notebook = json.loads(result.read_text(encoding="utf-8"))
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
