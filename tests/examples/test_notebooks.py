"""The notebooks run from top to bottom; what is kept of their output is small and has a picture."""

import asyncio
import json
import os
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*Kernel is running over TCP without encryption")
def test_notebook_runs(name, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), before))))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel draws into the notebook
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    asyncio.run(client.async_execute())  # execute() leaves its event loop open
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
