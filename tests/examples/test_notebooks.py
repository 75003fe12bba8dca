"""The notebooks run from top to bottom, and draw."""

import importlib.util
import json

import pytest
from support import ROOT, python

NOTEBOOKS = ROOT / "examples" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


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
    variables = {
        "MPLCONFIGDIR": tmp_path,
        "IPYTHONDIR": tmp_path / "ipython",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # draws into the notebook
        "DASK_BIGFFT__PLANNER__SMALL": "64 MiB",  # as users have it
    }
    python(
        "-c",
        PROGRAM,
        NOTEBOOKS / f"{name}.ipynb",
        tmp_path,
        result,
        env=variables,
    )
    cells = json.loads(result.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    shown = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    progress = [html for html in shown if "bigfft-progress" in html]
    assert all("done" in html for html in progress)
