"""Every Python block of the guide runs, and the guide builds as HTML without a warning."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dask_bigfft.config import KNOBS

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "examples" / "guide"
PAGES = sorted(path.stem for path in GUIDE.glob("*.md"))


def blocks(page):
    """Python blocks of a page."""
    text = (GUIDE / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_page_is_in_the_contents():
    text = (GUIDE / "index.md").read_text(encoding="utf-8")
    listed = re.search(r"```\{toctree\}.*?\n\n(.*?)```", text, re.DOTALL)[1].split()
    assert sorted([*listed, "index"]) == PAGES


@pytest.mark.parametrize(
    ("page", "method"),
    [(page, "spawn") for page in PAGES if page not in ("index", "api")]
    + [("clusters", "forkserver")],
)
def test_code_runs_as_a_script(page, method, tmp_path):
    """Processes that are started import it once more."""
    script = tmp_path / f"{page}_page.py"
    script.write_text("\n".join(blocks(page)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT),
                   "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": method}
    done = subprocess.run(
        [sys.executable, "-W", "error:::__main__", script.name], cwd=tmp_path,
        env=environment, capture_output=True, text=True, check=False, timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert blocks(page)


class Text(HTMLParser):
    """Text and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.text, self.links = [], []
        self.feed(text)

    def handle_data(self, data):
        self.text.append(data)

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name == "href" and tag == "a"]


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name)
    out = tmp_path_factory.mktemp("guide")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d",
         str(out / "trees"), str(GUIDE), str(out / "html")],
        capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return {page: Text((out / "html" / f"{page}.html").read_text()) for page in PAGES}


def test_every_setting_is_described(html):
    text = "".join(html["configuration"].text)
    for knob in KNOBS.values():
        assert knob.key in text
        assert " ".join(knob.description.split()[:4]) in " ".join(text.split())


def test_every_public_name_is_in_the_reference(html):
    import dask_bigfft
    from dask_bigfft import fft, signal

    text = "".join(html["api"].text)
    public = {f"dask_bigfft.fft.{name}" for name in fft.__all__}
    public |= {f"dask_bigfft.signal.{name}" for name in signal.__all__}
    public |= {f"dask_bigfft.{name}" for name in dask_bigfft.__all__ if name.isidentifier()}
    public -= {"dask_bigfft.__version__"}
    words = re.findall(r"[\w.]+", text)
    found = {*words, *(word.strip(".").rpartition(".")[2] for word in words)}
    missing = {name for name in public if name.rpartition(".")[2] not in found}
    assert not missing


def test_links_between_pages_lead_somewhere(html):
    for page in html.values():
        for link in page.links:
            if "://" not in link and not link.startswith("#"):
                name = link.partition("#")[0]
                assert name.removesuffix(".html") in (*PAGES, "genindex", "search", "py-modindex"
                                                      ), link
