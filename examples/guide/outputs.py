"""Runs the Python blocks of each page, and shows below a block what it prints.

The blocks of a page are one script, which runs in a process of its own. A page whose script fails
is an error of the build. Notebooks are run by myst-nb.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sphinx.errors import ExtensionError

#: Printed between two blocks.
MARK = "-- end of block --"

#: Most seconds of a page, and number of pages that run at a time.
SECONDS = 300
PAGES = 2

_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def script_of(text):
    """Return the blocks of a page as one script, which prints a mark after each."""
    mark = f'\nif __name__ == "__main__":\n    print({MARK!r}, flush=True)\n'
    return "".join(block + mark for block in _BLOCK.findall(text))


def printed_by(page):
    """Return what each block of a page prints.

    >>> page = Path(tempfile.mkdtemp()) / "page.md"
    >>> _ = page.write_text("```python\\nprint(1)\\n```\\n")
    >>> printed_by(page)
    ['1']
    """
    script = script_of(page.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{page.stem}_page.py")
        path.write_text(script, encoding="utf-8")
        root = str(Path(__file__).resolve().parents[2])
        process = subprocess.run(
            [sys.executable, path.name],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # where progress is shown
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if process.returncode:
        raise ExtensionError(f"the code of {page.name} fails:\n{process.stdout}")
    return [text.strip("\n") for text in process.stdout.split(f"{MARK}\n")[:-1]]


def with_outputs(text, outputs):
    """Return the text of a page with the output of each block below it.

    >>> print(with_outputs("```python\\nprint(1)\\n```\\n", ["1"]))
    ```python
    print(1)
    ```
    <BLANKLINE>
    ```{code-block} text
    :class: printed
    <BLANKLINE>
    1
    ```
    <BLANKLINE>
    """
    remaining = iter(outputs)

    def with_output(match):
        output = next(remaining)
        if not output:
            return match[0]
        return f"{match[0]}\n```{{code-block}} text\n:class: printed\n\n{output}\n```\n"

    return _BLOCK.sub(with_output, text)


def run_pages(app, config):
    """Run all pages with code."""
    app.printed = {}
    if not config.run_code:
        return
    folder = Path(app.srcdir)
    pages = [page for page in folder.glob("*.md") if _BLOCK.search(page.read_text("utf-8"))]
    with ThreadPoolExecutor(PAGES) as pool:
        for page, outputs in zip(pages, pool.map(printed_by, pages), strict=True):
            app.printed[page.stem] = outputs


def add_outputs(app, docname, source):
    """Add the outputs to the source of a page."""
    if docname in app.printed:
        source[0] = with_outputs(source[0], app.printed[docname])


def setup(app):
    """Make Sphinx run and show the code."""
    app.add_config_value("run_code", True, "env", bool)
    app.connect("config-inited", run_pages)
    app.connect("source-read", add_outputs)
    return {"parallel_read_safe": True}
