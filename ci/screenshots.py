"""Take pictures of all pages of the built guide: python ci/screenshots.py GUIDE FOLDER

A long page has several pictures. Code that is wider than its box is an error, and so is a page
that is wider than the window. Needs a browser, as `ci/browser` finds it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import browser  # noqa: E402

from dask_bigfft.testing.traps import until  # noqa: E402

#: Pixels of a picture from top to bottom.
HEIGHT = 3000

#: Pages that Sphinx makes of no source.
GENERATED = {"genindex", "search", "py-modindex"}

#: Beginnings of the code that is wider than its box.
TOO_WIDE = """
[...document.querySelectorAll("article pre")]
  .filter(code => code.scrollWidth > code.clientWidth + 1)
  .map(code => code.textContent.trim().slice(0, 60))
"""

#: The columns that the window cuts off: part of the text, or of the contents beside it.
CUT_OFF = """
[...document.querySelectorAll(".content, .toc-drawer")]
  .filter(column => column.getBoundingClientRect().left < window.innerWidth)
  .filter(column => column.getBoundingClientRect().right > window.innerWidth + 1)
  .map(column => column.className)
"""


def open_page(page, path):
    """Open a file and wait until all of it is there."""
    page("Page.navigate", url=path.resolve().as_uri())
    until(lambda: page.evaluate("document.readyState") == "complete")
    page.evaluate("document.fonts.ready.then(() => true)")


def take_pictures(page, folder, name):
    """Write the pictures of the open page."""
    total = int(page.evaluate("document.documentElement.scrollHeight"))
    for number, top in enumerate(range(0, total, HEIGHT)):
        path = folder / f"{name}-{number}.png"
        page.screenshot(path, top, min(HEIGHT, total - top))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("guide", type=Path, help="folder with the pages")
    parser.add_argument("folder", type=Path, help="folder for the pictures")
    arguments = parser.parse_args()
    program = browser.found()
    if program is None:
        raise SystemExit("ci/screenshots.py: no browser; ci/browser says how to get one")

    wide = []
    with tempfile.TemporaryDirectory() as profile, browser.opened(program, Path(profile)) as page:
        for path in sorted(arguments.guide.rglob("*.html")):
            if path.stem in GENERATED or "_static" in path.parts:
                continue
            open_page(page, path)
            take_pictures(page, arguments.folder, path.stem)
            wide += [f"{path.name}: code {code!r}" for code in page.evaluate(TOO_WIDE)]
            wide += [f"{path.name}: column {name!r}" for name in page.evaluate(CUT_OFF)]
    print(f"ci/screenshots.py: {arguments.folder}")
    if wide:
        raise SystemExit("\n".join(["wider than the box or window:", *wide]))


if __name__ == "__main__":
    main()
