"""The package keeps the rules of `floors.imports`, and each rule finds a planted breach."""

import subprocess
import sys
from pathlib import Path

import pytest
from floors.imports import NOT_PURE, PACKAGE, PURE, check

ROOT = Path(__file__).resolve().parents[2] / PACKAGE


def test_the_package_is_clean():
    assert ROOT.is_dir()
    assert check(ROOT) == []


CLEAN = {
    "__init__.py": "from dask_bigfft import fft\n",
    "errors.py": "",
    "config.py": "import dask.config\nfrom dask_bigfft.errors import refuse\n",
    "transforms/__init__.py": "from dask_bigfft.transforms.spec import Spec\n",
    "transforms/spec.py": "import math\nfrom dask_bigfft.errors import refuse\n",
    "planner/__init__.py": "",
    "planner/search.py": "from ..transforms import spec\n",
    "devices/gpu.py": "import cupy\n",
    "exchange/p2p.py": "from distributed.shuffle import _rechunk\n",
    "fft.py": "import dask.array as da\nfrom dask_bigfft import planning\n",
    "planning.py": "from dask_bigfft.planner import search\n",
    "cli.py": "def main():\n    from dask_bigfft import fft\n",
    "testing/oracles.py": "import distributed\nimport dask_bigfft\n",
}

LONG = "def f():\n" + '    """Long.\n\n' + "    a\n" * 60 + '    """\n' + "    a = 1\n" * 60


def plant(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""A planted file."""\n{text}')
    return folder


def test_a_clean_tree_is_clean(tmp_path):
    assert check(plant(tmp_path, CLEAN | {"memory/long.py": LONG})) == []


@pytest.mark.parametrize(
    ("name", "text", "breach"),
    [
        ("errors.py", "from dask_bigfft.transforms import spec", "imports upwards"),
        ("events.py", "from dask_bigfft import fft", "imports upwards"),
        ("planner/plan.py", "import dask_bigfft.kernels.gpu", "imports upwards"),
        ("planner/plan.py", "from ..kernels.gpu import x", "imports upwards"),
        ("planner/plan.py", "from .. import fft", "imports upwards"),
        ("fft.py", "import dask_bigfft", "imports upwards"),
        ("graph/a.py", "import importlib\nimportlib.import_module('dask_bigfft.cli')", "upwards"),
        ("fft.py", "from dask_bigfft.testing import oracles", "which nobody may"),
        ("cli.py", "from dask_bigfft.testing import oracles", "which nobody may"),
        ("drawer.py", "", "the room 'drawer' has no floor"),
        ("fft.py", "from dask_bigfft.drawer import x", "a room without a floor"),
        ("transforms/a.py", "import dask.array as da", "imports dask"),
        ("transforms/a.py", "def f():\n    import numba", "imports numba"),
        ("decomposition/a.py", "from distributed import Client", "imports distributed"),
        ("planner/a.py", "try:\n    import cupy\nexcept ImportError:\n    pass", "imports cupy"),
        ("planner/a.py", "__import__('dask')", "imports dask"),
        ("planner/a.py", "from dask_bigfft import config", "dask by way of dask_bigfft.config"),
        ("kernels/cpu.py", "import cupy", "imports cupy, which only"),
        ("exchange/tasks.py", "from cupyx.scipy import fft", "imports cupyx, which only"),
        ("fft.py", "from distributed import get_client", "imports distributed, which only"),
        ("exchange/tasks.py", "def f():\n    import distributed", "imports distributed"),
        ("cluster/progress.py", "import bokeh.plotting", "imports bokeh, which only"),
        ("graph/a.py", "def f():\n    from dask_bigfft.errors import x", "inside a function"),
        ("graph/a.py", "x = lambda: __import__('dask_bigfft.errors')", "inside a function"),
        ("transforms/spec.py", "from dask_bigfft.transforms import x", "modules import in"),
        ("planning.py", "import dask_bigfft.fft as front", "rooms import in"),
        ("graph/a.py", "x = 1\n" * 500, "501 lines"),
        ("graph/a.py", "def f():\n" + "    x = 1\n" * 61, "the body of f has 61 lines"),
        ("graph/a.py", "class A:\n  async def f():\n" + "    x = 1\n" * 61, "has 61 lines"),
    ],
)
def test_a_planted_breach_is_found(tmp_path, name, text, breach):
    breaches = check(plant(tmp_path, CLEAN | {name: text}))
    assert any(breach in line for line in breaches), breaches
    # nothing else in the tree is blamed
    assert all(name in line or "in a circle" in line for line in breaches), breaches


def test_a_missing_docstring_is_found(tmp_path):
    plant(tmp_path, CLEAN)
    (tmp_path / "fft.py").write_text("x = 1\n")
    assert [line.split(": ", 1)[1] for line in check(tmp_path)] == [
        "dask_bigfft.fft has no docstring"
    ]


# Imports every module of the pure rooms under a parent that runs no `__init__`, with the
# dependencies that pure rooms may not have made impossible to import.
ALONE = """
import importlib, pkgutil, sys, types
from pathlib import Path

root, rooms, blocked = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
parent = types.ModuleType(root.name)
parent.__path__ = [str(root)]
sys.modules[root.name] = parent
for room in rooms:
    if (root / room).is_dir():
        package = importlib.import_module(f"{root.name}.{room}")
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(info.name)
assert not set(blocked) & set(sys.modules)
"""


def import_alone(root):
    command = [sys.executable, "-c", ALONE, str(root), ",".join(PURE), ",".join(NOT_PURE)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_pure_rooms_import_without_dask():
    done = import_alone(ROOT)
    assert done.returncode == 0, done.stderr


def test_a_room_that_needs_dask_does_not_import_without_it(tmp_path):
    plant(tmp_path / PACKAGE, {"planner/__init__.py": "", "planner/a.py": "import dask.array"})
    done = import_alone(tmp_path / PACKAGE)
    assert done.returncode != 0
    assert "dask is blocked" in done.stderr
