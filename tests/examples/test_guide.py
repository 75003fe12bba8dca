"""Every Python block of the guide runs, and the guide builds as HTML without a warning."""

import re
from html.parser import HTMLParser

import pytest
from support import ROOT, python

from dask_bigfft.config import SETTINGS

GUIDE = ROOT / "examples" / "guide"
PAGES = sorted(path.stem for path in GUIDE.glob("*.md"))


def blocks(page):
    """Python blocks of a page."""
    text = (GUIDE / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "method"),
    [(page, "spawn") for page in PAGES if page not in ("index", "api")]
    + [("clusters", "forkserver")],
)
def test_code_runs_as_a_script(page, method, tmp_path):
    """Processes that are started import it once more."""
    script = tmp_path / f"{page}_page.py"
    script.write_text("\n".join(blocks(page)), encoding="utf-8")
    python(
        "-W",
        "error:::__main__",
        script.name,
        cwd=tmp_path,
        env={"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": method},
    )
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
    python(
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        out / "trees",
        GUIDE,
        out / "html",
    )
    return {page: Text((out / "html" / f"{page}.html").read_text()) for page in PAGES}


def test_every_setting_is_described(html):
    text = "".join(html["configuration"].text)
    for key in SETTINGS:
        assert key in text


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
