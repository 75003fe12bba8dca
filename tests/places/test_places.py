"""A table of places where Python runs for users: in each of them a program that transforms works.

Each row is a process of its own.
"""

import ast
import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from places.portable import MISSING
from support import ROOT, environment

from benchmarks.core import memory_cgroup

HERE = Path(__file__).parent

#: A path below a file: nothing can be made there, not even by root.
NOWHERE = "/dev/null/nowhere"


class Place(NamedTuple):
    """Where a process runs.

    Parameters
    ----------
    way : str
        How it works there, a name of `work.WAYS`.
    program : str
        File of the program.
    options : sequence of str
        Options of the interpreter.
    variables : mapping
        Environment variables. TMPDIR is a name in the folder of the test.
    before : sequence of str
        Command that sets the place up and runs the rest of its arguments.
    """

    way: str = "plain"
    program: str = "work.py"
    options: Sequence[str] = ()
    variables: Mapping[str, str] = {}
    before: Sequence[str] = ()


def shell(commands: str) -> Sequence[str]:
    """Return the command that runs some commands, then the rest of its arguments."""
    return ("sh", "-c", f'{commands} && exec "$@"', "sh")


#: Homes and caches that cannot be written.
READ_ONLY = {
    "HOME": NOWHERE,
    "XDG_CACHE_HOME": NOWHERE,
    "XDG_CONFIG_HOME": NOWHERE,
    "NUMBA_CACHE_DIR": NOWHERE,
    "DASK_BIGFFT__WISDOM__DIRECTORY": NOWHERE,
    "DASK_BIGFFT__KERNEL": "auto",  # which would be kept there
}

PLACES = {
    "read-only home": Place(variables=READ_ONLY),
    "no home": Place(variables={"HOME": "", "XDG_CACHE_HOME": ""}),
    "no shared memory": Place(
        before=("unshare", "--mount", *shell("mount -t tmpfs -o ro,size=4k none /dev/shm"))
    ),
    "unusual TMPDIR": Place(variables={"TMPDIR": "ä b'c\"%s {x} #$y" + 80 * "z"}),
    "ASCII locale": Place(variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "fork after use": Place("fork"),
    "spawn": Place("spawn"),
    "forkserver": Place("forkserver"),
    "not the main thread": Place("thread"),
    "running event loop": Place("event loop"),
    "warnings are errors": Place(options=("-W", "error")),
    "without docstrings and assertions": Place(options=("-OO",)),
    "dask-array without assertions": Place(
        options=("-OO",), variables={"BIGFFT_ARRAYS": "dask_array"}
    ),
    "query planning without assertions": Place(
        options=("-OO",), variables={"DASK_ARRAY__QUERY_PLANNING": "True"}
    ),
    "development mode": Place(options=("-X", "dev")),
    "one processor": Place(before=("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))),
    "few file descriptors": Place(before=shell("ulimit -n 48")),
    "limited address space": Place(before=shell("ulimit -v 6291456")),
    "read-only working directory": Place(before=shell("cd /proc")),
    # Its locks are not those of other processes, which would delete its scratch files.
    "without what only Linux has": Place(program="portable.py", variables={"TMPDIR": "own"}),
}


def run_there(place: Place, folder: Path, *arguments: str) -> None:
    """Let a process work at a place; fail with what it said unless it has worked."""
    variables = dict(place.variables)
    if "TMPDIR" in variables:
        variables["TMPDIR"] = str(folder / variables["TMPDIR"])
        Path(variables["TMPDIR"]).mkdir()
    command = [*place.before, sys.executable, *place.options, str(HERE / place.program), place.way]
    command += arguments
    process = subprocess.run(
        command,
        env=environment(**variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.endswith("worked\n")
    assert not process.stderr, process.stderr


def is_possible(before: Sequence[str]) -> bool:
    """Return whether the command that sets a place up is allowed here."""
    with contextlib.suppress(OSError):
        return subprocess.run([*before, "true"], capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.parametrize("name", PLACES)
def test_place(name, tmp_path):
    place = PLACES[name]
    if place.before and not is_possible(place.before):
        pytest.skip(f"not allowed here: {' '.join(place.before)}")
    library = place.variables.get("BIGFFT_ARRAYS", "dask")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run_there(place, tmp_path)


def test_container_with_a_memory_limit(tmp_path):
    limit = 1 << 30
    with memory_cgroup(limit) as group:
        if group is None:
            pytest.skip("no memory cgroup can be made here")
        run_there(Place("limited", before=group.command([])), tmp_path, str(limit))


CELL = """
import sys
sys.path.insert(0, {folder!r})
import work
work.work()
"""


def test_notebook(tmp_path):
    """In a kernel, whose thread has a running event loop and whose output is not a file."""
    for needed in ("nbformat", "nbclient", "ipykernel"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    program = f"""
import nbclient, nbformat
cell = nbformat.v4.new_code_cell({CELL.format(folder=str(HERE))!r})
notebook = nbformat.v4.new_notebook(cells=[cell])
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
"""
    variables = environment(IPYTHONDIR=tmp_path / "ipython")
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_calls_of_one_system_are_in_one_module():
    """Without them `portable.py` runs, but it does not reach all files."""
    calls = {f"{module.__name__}.{name}" for module in MISSING for name in MISSING[module].split()}
    modules = {"fcntl", "msvcrt", "resource"}
    elsewhere = []
    for path in (ROOT / "dask_bigfft").rglob("*.py"):
        if path.name == "system.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=name):
                    used = {f"{owner}.{name}"} & calls
                case ast.Import(names=names):
                    used = {alias.name for alias in names} & modules
                case ast.ImportFrom(module=name):
                    used = {name} & modules
                case _:
                    used = set()
            elsewhere += [f"{path.relative_to(ROOT)}:{node.lineno}: {one}" for one in used]
    assert not elsewhere
