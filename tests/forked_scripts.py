"""Scripts in processes that are forked from one that has imported everything.

Imports take most of the time of a short script. A script that is about processes, or about what an
import does, needs an interpreter of its own: see `support.python`.
"""

import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

import dask

from dask_bigfft.testing.clusters import started


def script(
    path,
    *arguments,
    cwd,
    env,
    category=Warning,
    seconds=240,
):
    """Run a script, whose own warnings of a category are errors; return what it has printed."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        variables = {name: str(value) for name, value in env.items()}
        words = [str(argument) for argument in arguments]
        process = started(
            _run,
            str(path),
            words,
            str(cwd),
            variables,
            category,
            str(said),
        )
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
        text = said.read_text(encoding="utf-8")
    assert process.exitcode == 0, text
    return text


def _run(
    path,
    arguments,
    cwd,
    variables,
    category,
    said,
):
    """Run a script in this process, with the output in a file."""
    output = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(cwd)
    os.environ.update(variables)
    dask.config.refresh()  # by the variables
    warnings.filterwarnings("error", category=category, module=r"__main__\Z")
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
