"""The notebooks run from top to bottom; what is kept of their output is small and has a picture."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
ROOT = NOTEBOOKS.parents[1]


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
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    env = {**os.environ, "PYTHONPATH": paths, "MPLCONFIGDIR": str(tmp_path),
           "IPYTHONDIR": str(tmp_path / "ipython")}
    env.pop("MPLBACKEND", None)  # the kernel draws into the notebook
    result = tmp_path / "result.ipynb"
    arguments = map(str, (NOTEBOOKS / f"{name}.ipynb", tmp_path, result))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=env, capture_output=True, text=True, timeout=280,
    )
    assert run.returncode == 0, run.stderr
    notebook = json.loads(result.read_text(encoding="utf-8"))
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
