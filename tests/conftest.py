"""What all tests share: profiles of hypothesis, and settings that no machine changes.

The profile `ci` is the default; HYPOTHESIS_PROFILE=thorough looks longer.
"""

import gc
import importlib.util
import itertools
import os
import signal
import tempfile
from pathlib import Path

# Read when dask is imported, and inherited by the processes that tests start.
os.environ.setdefault("DASK_BIGFFT__KERNEL", "scipy")
os.environ.setdefault("DASK_BIGFFT__PLANNER__SMALL", "0")  # small arrays stand for large ones
os.environ.setdefault(
    "DASK_BIGFFT__WISDOM__DIRECTORY", os.path.join(tempfile.gettempdir(), "bigfft-test-wisdom")
)

import dask
import numpy as np
import pytest
import support
from dask.callbacks import Callback
from hypothesis import HealthCheck, settings

# What is started in the background ignores Ctrl-C, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_FIXTURES = [HealthCheck.function_scoped_fixture]

settings.register_profile(
    "ci",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=_SLOW + _FIXTURES,
)
settings.register_profile(
    "thorough",
    max_examples=1500,
    deadline=None,
    suppress_health_check=_SLOW + _FIXTURES,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


#: Markers that SciPy's own tests carry.
SCIPYS = """skip_xp_backends xfail_xp_backends array_api_backends uses_xp_capabilities
skip_xp_invalid_arg parallel_threads_limit thread_unsafe fail_slow xslow xfail_on_32bit"""


def pytest_configure(config):
    for name in SCIPYS.split():
        config.addinivalue_line("markers", f"{name}: a marker of SciPy's tests")
    asked_for = (config.option.markexpr, config.option.keyword, *config.args)
    has_cupy = importlib.util.find_spec("cupy") is not None
    if has_cupy and not any("gpu" in text for text in asked_for):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # plans of other tests are those without a GPU


def pairs_of(item):
    """Return the pairs of values of a test's parameters; a value is known by its identity."""
    values = [(name, id(value)) for name, value in sorted(item.callspec.params.items())]
    return set(itertools.combinations(values, 2))


def covering(items):
    """Return some of a test's items in which every two values of parameters meet that can."""
    pairs = {item: pairs_of(item) for item in items}
    missing = set().union(*pairs.values())
    selected = []
    while missing:
        best = max(items, key=lambda item: len(pairs[item] & missing))
        selected.append(best)
        missing -= pairs[best]
    return selected


def redundant(items):
    """Return the items of tests in pairs that other items make unnecessary."""
    items_of = {}
    for item in items:
        if item.get_closest_marker("pairs"):
            items_of.setdefault(item.function, []).append(item)
    unnecessary = set()
    for of_test in items_of.values():
        unnecessary |= {*of_test} - {*covering(of_test)}
    return unnecessary


def pytest_collection_modifyitems(config, items):
    """Leave out slow and redundant tests, unless BIGFFT_SLOW is set or -k or -m selects tests."""
    if os.environ.get("BIGFFT_SLOW") or config.option.keyword or config.option.markexpr:
        return
    left_out = redundant(items) | {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session):
    """What all test modules have imported stays: no collection need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def settings_are_kept():
    """After each test dask's settings and the working folder are the same as before it."""
    before = repr(dask.config.config)
    folder = Path.cwd()
    yield
    assert repr(dask.config.config) == before
    assert Path.cwd() == folder


@pytest.fixture(autouse=True)
def no_callback_is_left():
    """After each test no callback of dask, such as a progress, hears the computations of others."""
    yield
    left = list(Callback.active)
    Callback.active.clear()
    assert not left


@pytest.fixture
def xp():
    """The array library that SciPy's own tests are run with."""
    from scipy._lib._array_api import array_namespace

    return array_namespace(np.empty(0))


@pytest.fixture
def sync():
    """Tasks run one after the other, in the test's own thread."""
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def small(sync):
    """Axes of a few elements fall apart as long ones do."""
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, in which axes of a few elements fall apart as long ones do."""
    monkeypatch.chdir(tmp_path)
    with dask.config.set({"scheduler": "threads", "bigfft.planner.whole-axis-floor": 1}):
        yield tmp_path


@pytest.fixture(scope="module")
def client():
    """A client of two workers that are processes."""
    with support.local(processes=True) as client:
        yield client
