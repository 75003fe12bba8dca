"""Every Python block of the guide runs, and the guide builds as HTML without a warning."""

import importlib
import re
import zlib
from html import unescape
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from forked_scripts import script
from support import DEFAULTS, ROOT, python

import dask_bigfft
from dask_bigfft.config import SETTINGS

GUIDE = ROOT / "examples" / "guide"
PAGES = sorted(path.stem for path in GUIDE.glob("*.md"))


def blocks(page):
    """Python blocks of a page."""
    text = (GUIDE / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


#: Pages whose code starts processes, or asks for memory that only a fresh one has.
IN_FRESH_PROCESSES = ("clusters", "gpus", "memory")


def written(page, folder):
    """Return the file of a script with the code of a page."""
    assert blocks(page)
    path = folder / f"{page}_page.py"
    path.write_text("\n".join(blocks(page)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in ("index", *IN_FRESH_PROCESSES) and page[:3] != "api"],
)
def test_code_runs_as_a_script(page, tmp_path):
    script(written(page, tmp_path), cwd=tmp_path, env=DEFAULTS)


@pytest.mark.parametrize(
    ("page", "method"),
    [*((page, "spawn") for page in IN_FRESH_PROCESSES), ("clusters", "forkserver")],
)
def test_code_runs_in_an_interpreter_of_its_own(page, method, tmp_path):
    """Processes that are started import it once more."""
    variables = DEFAULTS | {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": method}
    name = written(page, tmp_path).name
    python("-W", "error:::__main__", name, cwd=tmp_path, env=variables)


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The HTML of each page, built without running its code: the tests above do that."""
    for name in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(name)
    out = tmp_path_factory.mktemp("guide")
    options = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    options += ["-D", "run_code=0", "-D", "nb_execution_mode=off", "-d", out / "trees"]
    python(*options, GUIDE, out / "html")
    return {page: (out / "html" / f"{page}.html").read_text() for page in PAGES}


@pytest.fixture(scope="module")
def texts(html):
    """The text of each page without tags."""
    return {page: unescape(re.sub(r"<[^>]*>", "", text)) for page, text in html.items()}


def test_every_setting_is_described(texts):
    assert [key for key in SETTINGS if key not in texts["configuration"]] == []


def test_every_public_name_is_in_the_reference(texts):
    from dask_bigfft import fft, signal

    public = {f"dask_bigfft.fft.{name}" for name in fft.__all__}
    public |= {f"dask_bigfft.signal.{name}" for name in signal.__all__}
    public |= {f"dask_bigfft.{name}" for name in dask_bigfft.__all__ if name.isidentifier()}
    public -= {"dask_bigfft.__version__"}
    words = re.findall(r"[\w.]+", "".join(texts[page] for page in PAGES if page.startswith("api")))
    names = {*words, *(word.strip(".").rpartition(".")[2] for word in words)}
    missing = {name for name in public if name.rpartition(".")[2] not in names}
    assert not missing


@pytest.fixture
def outputs(monkeypatch):
    """The extension of Sphinx that runs the code of pages."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(GUIDE)
    return importlib.import_module("outputs")


def test_a_page_shows_what_its_code_prints(outputs, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 3\n```\nText\n```python\nprint(x)\nprint(2 * x)\n```\n")
    printed = outputs.printed_by(page)
    assert printed == ["", "3\n6"]
    text = outputs.with_outputs(page.read_text(), printed)
    assert text.count(":class: printed") == 1
    assert text.endswith("\n3\n6\n```\n")


def test_a_page_whose_code_fails_is_an_error_of_the_build(outputs, tmp_path):
    page = tmp_path / "wrong.md"
    page.write_text("```python\nassert 1 > 2\n```\n")
    with pytest.raises(outputs.ExtensionError, match=r"wrong\.md(.|\n)*AssertionError"):
        outputs.printed_by(page)


def test_the_reference_lists_functions_and_describes_parameters_once(texts):
    text = texts["api"]
    assert text.count("Return the real inverse of rfft.") >= 2  # in the table, and below it
    assert text.count("Other digits must be given wherever the spectrum") == 2  # one, several axes


def ids_below(html, page, name):
    """Names that a page describes below a class."""
    return set(re.findall(rf'id="{re.escape(name)}\.(\w+)"', html[page]))


@pytest.fixture(scope="module")
def shown():
    """Objects whose names a user completes."""
    x = da.ones((64, 64), chunks=(16, 64))
    y = dask_bigfft.fft.fft2(x)
    y.compute(scheduler="sync")
    report = dask_bigfft.report(y)
    spectra = da.ones((9, 64), chunks=(9, 16), dtype=complex)
    return [
        dask_bigfft.plan(x, "fft2"),
        dask_bigfft.plan(x, "welch", nperseg=16),
        dask_bigfft.plan(
            spectra,
            "istft",
            win=np.ones(16),
            hop=8,
            fs=1.0,
        ),
        report,
        report.runs[0],
    ]


@pytest.mark.parametrize(
    ("number", "page", "name"),
    [
        (0, "api", "dask_bigfft.Plan"),
        (1, "api_signal", "dask_bigfft.signal.segment_plan.SegmentPlan"),
        (2, "api_signal", "dask_bigfft.signal.segment_plan.OverlapAddPlan"),
        (3, "api_running", "dask_bigfft.watch.report.Report"),
        (4, "api_running", "dask_bigfft.watch.report.RunReport"),
    ],
)
def test_completion_shows_the_names_of_the_reference(
    html,
    shown,
    number,
    page,
    name,
):
    value = shown[number]
    assert name.endswith(type(value).__name__)
    assert set(dir(value)) == ids_below(html, page, name)
    assert all(hasattr(value, attribute) for attribute in dir(value))


def test_names_that_completion_leaves_out_are_attributes(shown):
    plan = shown[0]
    assert "stages" not in dir(plan)
    assert len(plan.stages) == len(plan.exchanges)


@pytest.mark.parametrize(
    ("page", "target"),
    [
        ("coming_from", "https://docs.dask.org/en/stable/array-api.html"),
        ("howto", "https://docs.scipy.org/doc/scipy/reference/signal.html"),
        ("index", "https://numpy.org/doc/stable/reference/routines.fft.html"),
        ("howto", "api_signal.html#dask_bigfft.signal.gradient"),
        ("memory", "api_running.html#dask_bigfft.run"),
    ],
)
def test_the_first_mention_of_a_name_is_a_link(html, page, target):
    assert html[page].count(f'href="{target}"') == 1


def test_links_to_other_libraries_need_no_network(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(GUIDE)
    inventories = importlib.import_module("inventories")
    mapping = inventories.write_inventories(tmp_path)
    address, path = mapping["scipy"]
    lines = zlib.decompress(Path(path).read_bytes().split(b"zlib.\n", 1)[1]).decode().splitlines()
    (welch,) = [line for line in lines if line.startswith("scipy.signal.welch ")]
    assert address.startswith("https://")
    page = "reference/generated/scipy.signal.welch.html#scipy.signal.welch"
    assert welch == f"scipy.signal.welch py:function 1 {page} -"
    assert "scipy.signal py:module 1 reference/signal.html -" in lines
    assert inventories.role_of("scipy.signal.missing") is None
